//! All local peers of a device: listening, calling, and the messages on the connections.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use vernic_io::Nanos;
use vernic_io::host::{Slot, SlotTable};
use vernic_sys::random;
use vernic_sys::{self as sys, ClosableFd, EpollOp, OwnFd, Packet};

use super::connected_peer::{ConnectedPeer, Next, READABLE};
use super::connecting::{IncomingRing, OutgoingCall, PendingPeer, ReceivedFiles};
use super::failure::{ConnectFailure, ConnectFailures, Shortages};
use super::warning::{ConnectWarnings, WarningSubject};
use super::{Event, LocalPeerCounters, MAX_PENDING_PEERS, PATIENCE};
use crate::hello::{Hello, MAX_MESSAGE_BYTES, PeerMessage};
use crate::page::{OwnPage, Receipts, SleepFlag};
use crate::process::{LocalPeerId, MAX_LOCAL_PEERS, PeerProcess};
use crate::ring::{MIN_RING_BYTES, RingMemory, RingWriter};
use crate::rules::AccessRules;

mod listeners;

use listeners::SlotListener;

/// Messages that one poll takes from one connection.
const MAX_SERVED: usize = 32;
/// The time after which a message that found no room is tried again.
const RETRY_NANOS: u64 = 1_000_000;

/// Local peers whose rings have the capacity that the settings say. A process has at most so many
/// busy peers, or few packets for each; with more peers, memory counts.
const FULL_RINGS: usize = 8;

/// The local peers of a device. Served by one thread, which sleeps on [`raw_fd`](Self::raw_fd).
#[derive(Debug)]
pub struct Connections {
    engine: u64,
    slots: Arc<SlotTable>,
    ring_bytes: u32,
    /// For access of local peers to our memory.
    rules: AccessRules,
    page: Arc<OwnPage>,
    epoll: OwnFd,
    listeners: Vec<SlotListener>,
    pending: Vec<PendingPeer>,
    connected: Vec<Option<ConnectedPeer>>,
    failures: ConnectFailures,
    warnings: ConnectWarnings,
    shortages: Shortages,
    /// The [`SlotTable::generation`] whose slots were followed last.
    followed: Option<u64>,
    /// The time until which no calls are taken, because there are no descriptors for them.
    shut_until: Option<Nanos>,
    /// Set while a slot's socket could not be opened: the pause before the next try, and when that
    /// try is.
    listeners_due: Option<(u64, Nanos)>,
    last_key: u64,
    generation: u32,
    counters: LocalPeerCounters,
    closed: bool,
}

impl Connections {
    /// Creates the local peers of a device, with none connected yet. Other processes find this
    /// device by the slots of `slots`. They write to rings of `ring_bytes`, or less from the ninth
    /// local peer on. `ring_bytes` is a power of two from [`MIN_RING_BYTES`]
    /// to [`MAX_RING_BYTES`](crate::MAX_RING_BYTES).
    ///
    /// # Errors
    /// `InvalidInput` for another size; other errors where the system has no memory that can be
    /// shared.
    pub fn new(slots: Arc<SlotTable>, ring_bytes: u32, rules: AccessRules) -> io::Result<Self> {
        if !RingMemory::is_capacity(ring_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            engine: random(),
            slots,
            ring_bytes,
            rules,
            page: Arc::new(OwnPage::new()?),
            epoll: sys::epoll()?,
            listeners: Vec::new(),
            pending: Vec::new(),
            connected: Vec::new(),
            failures: ConnectFailures::default(),
            warnings: ConnectWarnings::default(),
            shortages: Shortages::default(),
            followed: None,
            shut_until: None,
            listeners_due: None,
            last_key: 0,
            generation: 0,
            counters: LocalPeerCounters::default(),
            closed: false,
        })
    }

    /// Returns the descriptor to sleep on. It is readable when [`serve`](Self::serve) has something
    /// to do; a local peer's bell makes it readable, too.
    pub fn raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Returns the flag for the thread that sleeps.
    pub fn sleep_flag(&self) -> SleepFlag {
        SleepFlag(self.page.clone())
    }

    /// Returns the receipts of this process's queue pairs.
    pub fn receipts(&self) -> Receipts {
        Receipts(self.page.clone())
    }

    /// Returns the totals so far.
    pub fn counters(&self) -> LocalPeerCounters {
        self.counters
    }

    /// The time at which [`serve`](Self::serve) must be called at the latest, though nothing is
    /// readable.
    pub fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let patience = PATIENCE.as_nanos() as u64;
        let pending = self.pending.iter().map(|pending| pending.since.plus(patience));
        let owed = self.connected.iter().flatten().any(|peer| peer.owed_slots);
        let owed = owed.then(|| now.plus(RETRY_NANOS));
        let listeners = self.listeners_due.map(|(_, due)| due);
        let muted = self.connected.iter().flatten().filter(|peer| peer.is_muted);
        let muted = muted.map(ConnectedPeer::heard_again_at);
        let others = [owed, listeners, self.shut_until, self.failures.next()];
        pending.chain(muted).chain(others.into_iter().flatten()).min()
    }

    /// Why the process that has `slot` is no local peer although a connect was tried; `None` if no
    /// failure is known.
    pub fn connect_failure(&self, slot: Slot) -> Option<ConnectFailure> {
        self.failures.why(slot)
    }

    fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    fn watch(&self, fd: &OwnFd, key: u64) -> io::Result<()> {
        sys::epoll_watch(self.epoll.as_fd(), EpollOp::Add, fd.as_fd(), key, READABLE)
    }

    /// Counts a shortage on this side, and notes it for `pid` if the process is known.
    fn count_shortage(&mut self, why: ConnectFailure, pid: Option<u32>, now: Nanos) {
        if why.is_shortage() {
            self.counters.short += 1;
            pid.into_iter().for_each(|pid| self.shortages.note(pid, why, now));
        }
    }

    /// Why a connect to the process `pid` failed. Of two calls at once one ends, with a hang-up or
    /// in silence, and the other is to be accepted. If accepting failed because something ran out
    /// here, the failure is a shortage of ours and not the peer's.
    fn why(&self, error: &io::Error, pid: Option<u32>, now: Nanos) -> ConnectFailure {
        let own = || self.shortages.of(pid?, now);
        match ConnectFailure::of(error) {
            why @ (ConnectFailure::HungUp | ConnectFailure::Silent) => own().unwrap_or(why),
            why => why,
        }
    }

    /// Tries again what failed before and may be possible now.
    fn try_again(&mut self, now: Nanos, events: &mut Vec<Event>) {
        self.try_listeners(now);
        for slot in self.failures.due(now) {
            self.connect_owner(slot, None, now, events);
        }
    }

    /// Sends our slots to the local peers that do not know them.
    fn pay_slots(&mut self) {
        let own = PeerMessage::Slots(self.slots.own_slots());
        for peer in self.connected.iter_mut().flatten().filter(|peer| peer.owed_slots) {
            let told = peer.local_peer.send_message(&own, &[]);
            peer.owed_slots = told.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        }
    }

    /// Returns the local peer that says it has this slot.
    pub fn find(&self, slot: Slot) -> Option<&Arc<PeerProcess>> {
        let peer = self.connected.iter().flatten();
        peer.into_iter().find(|peer| peer.slots.contains(&slot)).map(|peer| &peer.local_peer)
    }

    /// Begins to connect to the process `pid`, which has this slot, unless that is done or under
    /// way. Does not wait: [`serve`](Self::serve) reports the connected peer, or this function does
    /// if the peer is this process. A connect that fails is tried again, some times in the next
    /// minutes.
    pub fn connect(&mut self, slot: Slot, pid: u32, now: Nanos, events: &mut Vec<Event>) {
        self.connect_owner(slot, Some(pid), now, events);
    }

    /// Does what [`connect`](Self::connect) does, with the process that has the slot now. `pid` is
    /// that process if it is known before the connect.
    fn connect_owner(
        &mut self,
        slot: Slot,
        mut pid: Option<u32>,
        now: Nanos,
        events: &mut Vec<Event>,
    ) {
        let is_under_way =
            |pending: &PendingPeer| pending.call.as_ref().is_some_and(|call| call.slot == slot);
        if self.find(slot).is_some() {
            self.failures.forget(&[slot]);
        }
        if self.closed
            || !slot.is_ordinary()
            || self.find(slot).is_some()
            || self.pending.iter().any(is_under_way)
            || self.failures.is_paused(slot, now)
        {
            return;
        }
        self.failures.begin(slot, now);
        let met = match self.slots.is_ours(slot) {
            true => self.connect_self(events),
            false => self.call(slot, &mut pid, now),
        };
        if let Err(error) = met {
            self.note_failure(slot, pid, &error, now);
        }
    }

    /// Notes that the process that has `slot` could not be connected to; `pid` is the process if
    /// known.
    fn note_failure(&mut self, slot: Slot, pid: Option<u32>, error: &io::Error, now: Nanos) {
        if self.find(slot).is_some() {
            // Two calls at once: the other one succeeded.
            return;
        }
        let why = self.why(error, pid, now);
        tracing::debug!(slot = slot.value(), pid, %error, %why, "its process is no local peer");
        let tries = self.failures.note(slot, why, now);
        self.warnings.note(
            pid.map_or(WarningSubject::Unknown, WarningSubject::Process),
            why,
            tries,
        );
        self.count_shortage(ConnectFailure::of(error), pid, now);
    }

    fn hello(&self, ring_bytes: u32) -> Hello {
        Hello { engine: self.engine, ring_bytes, slots: self.slots.own_slots() }
    }

    /// Returns the capacity of the ring that the next local peer writes to.
    fn next_ring_bytes(&self) -> u32 {
        ring_bytes_among(self.connected.iter().flatten().count(), self.ring_bytes)
    }

    /// Calls the process that has `slot`, and sets `pid` to that process once it is reached.
    fn call(&mut self, slot: Slot, pid: &mut Option<u32>, now: Nanos) -> io::Result<()> {
        self.free_index().ok_or(io::ErrorKind::QuotaExceeded)?;
        if self.pending.len() >= MAX_PENDING_PEERS {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let connection = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?;
        sys::connect_abstract(connection.as_fd(), &self.slots.neighbour_name(slot))?;
        let peer = PendingPeer::check(connection.as_fd())?;
        *pid = Some(peer);
        let ring_bytes = self.next_ring_bytes();
        let incoming = IncomingRing::new(ring_bytes)?;
        incoming.send(
            connection.as_fd(),
            &PeerMessage::Hello(self.hello(ring_bytes)),
            &self.page,
        )?;
        let key = self.next_key();
        self.watch(&connection, key)?;
        let call = Some(OutgoingCall { slot, incoming });
        self.pending.push(PendingPeer { key, connection, pid: peer, since: now, call });
        Ok(())
    }

    fn connect_self(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let (mouth, ear) = sys::packet_pair()?;
        let ring_bytes = self.next_ring_bytes();
        let incoming = IncomingRing::new(ring_bytes)?;
        let received = ReceivedFiles::own(&incoming, &self.page)?;
        let key = self.next_key();
        self.watch(&ear, key)?;
        let hello = self.hello(ring_bytes);
        let pid = std::process::id();
        let writer = self.welcome(key, mouth, pid, &hello, incoming.memory, received, events)?;
        if let Some(peer) = self.connected.iter_mut().flatten().find(|peer| peer.key == key) {
            peer.ear = Some(Arc::new(ear));
            let from = peer.local_peer.id();
            events.push(Event::Ready { from, writer });
        }
        Ok(())
    }

    fn free_index(&self) -> Option<usize> {
        let free = self.connected.iter().position(Option::is_none).unwrap_or(self.connected.len());
        (free < MAX_LOCAL_PEERS).then_some(free)
    }

    /// Adds the process on this connection as a local peer, which may write to us from now on.
    #[allow(clippy::too_many_arguments)]
    fn welcome(
        &mut self,
        key: u64,
        connection: OwnFd,
        pid: u32,
        hello: &Hello,
        incoming: Arc<RingMemory>,
        received: ReceivedFiles,
        events: &mut Vec<Event>,
    ) -> io::Result<RingWriter> {
        let index = self.free_index().ok_or(io::ErrorKind::QuotaExceeded)?;
        let connection = Arc::new(ClosableFd::new(connection));
        let (outgoing, reader, writer) = received.into_ends(incoming.clone(), &connection);
        self.generation = self.generation.wrapping_add(1);
        let id = LocalPeerId::new(index as u16, self.generation);
        let process = PeerProcess::new(id, pid, connection, (incoming, outgoing), &self.rules);
        let local_peer = Arc::new(process);
        let peer = ConnectedPeer::new(key, local_peer.clone(), hello);
        self.failures.forget(&hello.slots);
        if index == self.connected.len() {
            self.connected.push(Some(peer));
        } else {
            self.connected[index] = Some(peer);
        }
        self.counters.met += 1;
        let from = local_peer.id();
        events.push(Event::Connected { process: local_peer, reader });
        // Known before anything is read: what comes out of the ring is taken by them.
        events.push(Event::Slots { from, slots: hello.slots.clone() });
        Ok(writer)
    }

    /// Handles what has come over the connections, and gives up those that do not answer. Appends
    /// what has happened to `events`. After `Gone`, the caller drops what the earlier events of
    /// that peer brought. Never blocks.
    pub fn serve(&mut self, now: Nanos, events: &mut Vec<Event>) {
        if self.closed {
            return;
        }
        let epoll = self.epoll.as_fd();
        let muted = self.connected.iter_mut().flatten().filter(|peer| peer.is_muted);
        muted.filter(|peer| peer.heard_again_at() <= now).for_each(|peer| peer.watch(epoll, true));
        let mut ready = Vec::new();
        // The only errors possible are of descriptors that are not ours.
        let _ = sys::epoll_ready(self.epoll.as_fd(), |key, _| ready.push(key));
        for key in ready {
            if let Some(at) = self.listeners.iter().position(|listener| listener.key == key) {
                self.accept(at, now);
            } else if let Some(at) = self.pending.iter().position(|s| s.key == key) {
                self.hear_pending(at, now, events);
            } else if let Some(at) = self.index_of(key) {
                self.hear(at, now, events);
            }
        }
        self.give_up_silent(now);
        self.try_again(now, events);
        self.pay_slots();
    }

    fn index_of(&self, key: u64) -> Option<usize> {
        self.connected.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.key == key))
    }

    fn give_up_silent(&mut self, now: Nanos) {
        let patience = PATIENCE.as_nanos() as u64;
        while let Some(at) = self.pending.iter().position(|s| s.since.plus(patience) <= now) {
            let pending = self.pending.remove(at);
            self.counters.refused += 1;
            tracing::debug!(pid = pending.pid, "a process does not answer: no local peer");
            if let Some(call) = pending.call {
                self.note_failure(
                    call.slot,
                    Some(pending.pid),
                    &io::ErrorKind::TimedOut.into(),
                    now,
                );
            }
        }
    }

    /// Handles one message of a pending peer: the peer becomes a local peer, or its connection is
    /// closed.
    fn hear_pending(&mut self, at: usize, now: Nanos, events: &mut Vec<Event>) {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        let packet = sys::recv_packet(self.pending[at].connection.as_fd(), &mut buf);
        if packet.as_ref().is_err_and(sys::is_for_later) {
            return;
        }
        let pending = self.pending.remove(at);
        let (pid, called) = (pending.pid, pending.call.as_ref().map(|call| call.slot));
        let met = packet.and_then(|packet| self.consider(pending, &buf, &packet, events));
        let Err(error) = met else { return };
        // A hang-up, or a shortage on this side, does not count as refused.
        let why = ConnectFailure::of(&error);
        tracing::debug!(pid, %error, %why, "a process is no local peer");
        match called {
            Some(slot) => self.note_failure(slot, Some(pid), &error, now),
            None => {
                self.count_shortage(why, Some(pid), now);
                if why.is_shortage() {
                    self.warnings.note(WarningSubject::Process(pid), why, 1);
                }
            }
        }
        if !why.is_shortage() && why != ConnectFailure::HungUp {
            self.counters.refused += 1;
        }
    }

    fn consider(
        &mut self,
        pending: PendingPeer,
        buf: &[u8],
        packet: &Packet,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        if packet.len == 0 {
            // The peer has hung up; of two calls at once, one ends like this.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if packet.lost_files {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let message =
            buf.get(..packet.len).filter(|_| !packet.truncated).and_then(PeerMessage::parse);
        let PendingPeer { key, connection, pid, call, .. } = pending;
        match (message, call) {
            (Some(PeerMessage::Hello(hello)), None) => {
                let received = ReceivedFiles::map(&hello, &packet.files)?;
                if !self.takes_call_of(&hello, pid) {
                    return Ok(());
                }
                // Refuse before the welcome: a welcomed process sends through memory at once, and
                // takes a hang-up for our death.
                self.free_index().ok_or(io::ErrorKind::QuotaExceeded)?;
                let ring_bytes = self.next_ring_bytes();
                let incoming = IncomingRing::new(ring_bytes)?;
                let welcome = PeerMessage::Welcome(self.hello(ring_bytes));
                incoming.send(connection.as_fd(), &welcome, &self.page)?;
                let memory = incoming.memory;
                let writer =
                    self.welcome(key, connection, pid, &hello, memory, received, events)?;
                if let Some(peer) = self.connected.iter_mut().flatten().find(|peer| peer.key == key)
                {
                    peer.writer = Some(writer);
                }
                Ok(())
            }
            (Some(PeerMessage::Welcome(hello)), Some(OutgoingCall { incoming, .. })) => {
                let received = ReceivedFiles::map(&hello, &packet.files)?;
                if self.knows(&hello, pid) {
                    return Ok(());
                }
                let memory = incoming.memory;
                let writer =
                    self.welcome(key, connection, pid, &hello, memory, received, events)?;
                let at = self.index_of(key).ok_or(io::ErrorKind::NotFound)?;
                let Some(peer) = &mut self.connected[at] else { return Ok(()) };
                // If there is no room for the message, the connection is lost, which the next
                // message notices.
                let _ = peer.local_peer.send_message(&PeerMessage::Ready, &[]);
                let from = peer.local_peer.id();
                events.push(Event::Ready { from, writer });
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Whether the engine in `hello` is this engine, or a local peer already over another
    /// connection.
    fn knows(&self, hello: &Hello, pid: u32) -> bool {
        let is_it =
            |peer: &ConnectedPeer| peer.engine == hello.engine && peer.local_peer.pid() == pid;
        hello.engine == self.engine || self.connected.iter().flatten().any(is_it)
    }

    /// Whether a caller becomes a local peer on its connection. If we call it at the same time, one
    /// of the two calls ends here, and the same one ends at the other end.
    fn takes_call_of(&mut self, hello: &Hello, pid: u32) -> bool {
        if self.knows(hello, pid) {
            return false;
        }
        let ours = self.pending.iter().position(|pending| {
            pending.call.as_ref().is_some_and(|call| hello.slots.contains(&call.slot))
        });
        match ours {
            Some(_) if self.engine < hello.engine => false,
            Some(at) => {
                self.pending.remove(at);
                true
            }
            None => true,
        }
    }

    /// Handles messages of a local peer.
    fn hear(&mut self, at: usize, now: Nanos, events: &mut Vec<Event>) {
        for _ in 0..MAX_SERVED {
            let mut buf = [0; MAX_MESSAGE_BYTES];
            let Some(peer) = &mut self.connected[at] else { return };
            if peer.has_said_enough(now) {
                // The kernel reports a hang-up all the same; it is handled when the peer is handled
                // again.
                if !peer.is_muted {
                    peer.watch(self.epoll.as_fd(), false);
                    self.counters.muted += 1;
                }
                return;
            }
            let Some(packet) = peer.hear(&mut buf) else { return };
            let next = match packet {
                // The peer has closed without having read all that we sent. The kernel reports this
                // once, before it delivers the peer's own last messages.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Next::Stay,
                Err(_) => Next::Close { in_order: peer.said_bye },
                Ok(packet) if packet.len == 0 => Next::Close { in_order: peer.said_bye },
                Ok(packet) if packet.lost_files => Next::Short,
                Ok(packet) => peer.take(&buf, packet, events),
            };
            match next {
                Next::Stay => {}
                Next::Short => {
                    let pid = peer.local_peer.pid();
                    tracing::debug!(pid, "no descriptor for the file that a local peer has sent");
                    self.counters.short += 1;
                    self.warnings.note_lost_file(pid);
                }
                Next::Close { in_order } => return self.disconnect(at, in_order, events),
                Next::Expel(why) => {
                    let pid = peer.local_peer.pid();
                    tracing::warn!(pid, why, "a local peer breaks the rules, and is none any more");
                    self.counters.expelled += 1;
                    return self.disconnect(at, false, events);
                }
            }
        }
    }

    fn disconnect(&mut self, at: usize, in_order: bool, events: &mut Vec<Event>) {
        let Some(peer) = self.connected.get_mut(at).and_then(Option::take) else { return };
        peer.local_peer.set_gone();
        self.counters.gone += 1;
        events.push(Event::Gone { from: peer.local_peer.id(), in_order });
    }

    /// Disconnects a local peer whose ring broke a rule: nothing that it sends is handled any more.
    /// Appends `Gone` to `events`, unless the peer is gone already.
    pub fn expel(&mut self, id: LocalPeerId, events: &mut Vec<Event>) {
        let is_it =
            |peer: &Option<ConnectedPeer>| peer.as_ref().is_some_and(|o| o.local_peer.id() == id);
        if let Some(at) = self.connected.iter().position(is_it) {
            self.counters.expelled += 1;
            self.disconnect(at, false, events);
        }
    }

    /// Says good-bye to all local peers, and connects to none any more. Appends `Gone` for each.
    pub fn close(&mut self, events: &mut Vec<Event>) {
        self.closed = true;
        self.page.close();
        self.listeners.clear();
        self.pending.clear();
        for at in 0..self.connected.len() {
            if let Some(peer) = &self.connected[at] {
                // A local peer that cannot be sent the message notices the hang-up.
                let _ = peer.local_peer.send_message(&PeerMessage::Bye, &[]);
            }
            self.disconnect(at, true, events);
        }
    }
}

/// Returns the capacity of a ring among so many other peers: half of `most` from [`FULL_RINGS`]
/// peers on, a quarter from twice as many, and so on.
fn ring_bytes_among(peers: usize, most: u32) -> u32 {
    let halvings = match peers / FULL_RINGS {
        0 => 0,
        times => times.ilog2() + 1,
    };
    most.checked_shr(halvings).unwrap_or(0).max(MIN_RING_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_get_smaller_as_local_peers_get_more() {
        const FULL: u32 = 4 * MIN_RING_BYTES;
        let among = |peers| FULL / ring_bytes_among(peers, FULL);
        assert_eq!([0, 7, 8, 15, 16, 31, 32, MAX_LOCAL_PEERS].map(among), [1, 1, 2, 2, 4, 4, 4, 4]);
        assert_eq!(ring_bytes_among(usize::MAX, MIN_RING_BYTES), MIN_RING_BYTES);
        // 64 processes of a host, in KiB: 16 MiB each if all rings were of 256 KiB.
        let all: u32 = (0..63).map(|n| ring_bytes_among(n, FULL) >> 10).sum();
        assert_eq!(all, 8 * 256 + 8 * 128 + 47 * 64);
    }

    #[test]
    fn who_is_told_of_has_the_slot_now_and_not_when_it_was_looked_for() {
        let scope = format!("vo{}", std::process::id());
        let [own, mute] = [(); 2].map(|()| SlotTable::with_scope(&scope).unwrap());
        own.claim().unwrap();
        let slot = mute.claim().unwrap();
        let listener = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
        sys::bind_abstract(listener.as_fd(), &mute.neighbour_name(slot)).unwrap();
        sys::listen(listener.as_fd(), 5).unwrap();
        let mut peers = Connections::new(own, MIN_RING_BYTES, AccessRules::default()).unwrap();
        let (former, mut now, mut events) = (1, Nanos(1), Vec::new());
        peers.connect(slot, former, now, &mut events);
        // The connect is given up, tried again, and given up.
        for _ in 0..3 {
            now = peers.deadline(now).unwrap();
            peers.serve(now, &mut events);
        }
        let is_logged =
            |pid| peers.warnings.is_logged(WarningSubject::Process(pid), ConnectFailure::Silent);
        assert_eq!([former, std::process::id()].map(is_logged), [false, true]);
    }
}

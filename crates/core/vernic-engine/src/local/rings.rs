//! Packets to and from processes of this host, through memory: the lane's side.
//!
//! [`Near`] owns the ends of the rings of all local peers (`vernic_io::neighbour`) and knows which
//! process has which slot. `lane/neighbours.rs` connects and disconnects the peers. `tx.rs` writes
//! a queue pair's requests and responses either into the batch of the link or, as [`RingOut`], into
//! a ring. `rx.rs` reads rings.
//!
//! # When the route changes
//!
//! A ring keeps packets in order, and so do sockets, but between the two there is no order. So a
//! queue pair changes its route only when none of its packets is on the other one:
//!
//! - With acknowledgements, that is when every request is acknowledged, for which the queue pair
//!   pauses.
//! - UC and UD wait until the peer has taken all that was sent to it (`pacer.rs`), for which they
//!   pause for up to [`DRAIN_NANOS`].
//!
//! Responses take the route of the last request. Packets of QP1 and of multicast groups always go
//! by UDP.
//!
//! Once a peer was heard through a ring, nothing is taken from it by the link any more
//! (`QpWay::excludes_link`). The kernel says which process sends through a ring, but any user of
//! the host may send by the link.
//!
//! Large SENDs of RC go through a ring as runs, whose payload the receiver copies out of the
//! sender's memory: `pull.rs`.
//!
//! # When the peer does not read
//!
//! If a ring is full, the queue pair's turn is put off (`Did::Held`). After [`PATIENCE_NANOS`] at a
//! stretch, packets to the ring are lost, and counted, until there is room, as in a full socket. So
//! UC and UD never hang, and RC ends with its retries. RC without an ACK timeout repeats nothing,
//! so it waits for as long as it takes.
//!
//! # Polling
//!
//! Polling a ring costs a load, polling a socket a system call. While rings have packets, the link
//! is received from every [`LINK_NANOS`]. In between it is received from only if it had something
//! the last time.

use std::sync::Arc;

use vernic_io::TxPath;
use vernic_io::host::Slot;
use vernic_io::neighbour::{
    MAX_NEIGHBOURS, Neighbour, NeighbourId, PacketBuffer, RingBroken, RingReader, RingWriter,
};
use vernic_proto::Time;
use vernic_wire::Qpn;

use super::stage::Stage;
use super::way::DatagramWay;
use crate::counters::{Counted, Counters};

/// How long a full ring is waited for at a stretch: as long as UC and UD wait for a receiver of UDP
/// (`pacer.rs`).
const PATIENCE_NANOS: u64 = 100_000_000;

/// How long UC and UD pause so that the peer takes all that was sent to it by UDP. This is longer
/// than it takes to forget what never comes (`vernic_io::host::intake`). Other processes' packets
/// may keep the peer busy for longer; after [`DRAIN_PAUSE_NANOS`] there is another try.
const DRAIN_NANOS: u64 = 5_000_000;
/// The pause after [`DRAIN_NANOS`] before the next try: a second.
const DRAIN_PAUSE_NANOS: u64 = 1_000_000_000;

/// How long the link is polled less often after a packet came out of a ring. That is some round
/// trips of a program that answers at once, and some of its computations.
const BUSY_NANOS: u64 = 1_000_000;

/// How often the link is polled then. A packet of the wire waits half of this on average. A poll
/// that makes a system call takes ten times as long as one that makes none.
const LINK_NANOS: u64 = 20_000;

/// The delay before the next try to wake a local peer that sleeps and could not be woken, because
/// the system had no memory for the message.
const WAKE_NANOS: u64 = 1_000_000;

/// Most bytes that one call writes to rings: two rings' worth, so that no call takes long if the
/// rings are read meanwhile.
const BYTES_PER_CALL: usize = 512 * 1024;

/// The number of slots.
const SLOTS: usize = 1 << Slot::BITS;

/// A local peer as the lane sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    neighbour: Arc<Neighbour>,
    /// The ring from the peer; `None` once it is broken.
    reader: Option<RingReader>,
    /// The ring to the peer; `None` until the peer reads it, and once it is broken.
    writer: Option<RingWriter>,
    slots: Vec<Slot>,
    /// Whether UC and UD go through the ring.
    datagrams: bool,
    /// Since when UC and UD pause to change to the ring.
    drains_since: Option<Time>,
    /// Since when a queue pair has waited for room without a break.
    full_since: Option<Time>,
}

/// The local peer from which the packets of a ring come.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    neighbour: &'a Neighbour,
    /// The slots that the peer says it has.
    slots: &'a [Slot],
    owners: &'a [Option<u32>],
    found: &'a mut Vec<(Slot, u32)>,
}

impl Origin<'_> {
    #[inline]
    pub(crate) fn id(&self) -> NeighbourId {
        self.neighbour.id()
    }

    /// Whether the peer has the slot of a queue pair. The peer's own word suffices only while the
    /// slot's socket has not been heard.
    pub(crate) fn has(&self, peer: Qpn) -> bool {
        let slot = Slot::of(peer);
        let owner = self.owners[usize::from(slot.value())];
        owner.is_none_or(|owner| owner == self.neighbour.pid()) && self.slots.contains(&slot)
    }

    /// Notes that the slot of a queue pair's peer belongs to a process of this host.
    pub(crate) fn found(&mut self, peer: Qpn, pid: u32) {
        self.found.push((Slot::of(peer), pid));
    }
}

impl Peer {
    /// Returns the id of the peer's process; 0 if the process cannot be seen.
    pub(crate) fn pid(&self) -> u32 {
        self.neighbour.pid()
    }

    /// Returns the slots that the peer says it has.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Whether UC and UD go through the ring.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.datagrams
    }

    #[cold]
    fn begins_datagrams(&mut self, now: Time, is_idle: impl FnOnce() -> bool) -> bool {
        self.datagrams = is_idle();
        let paused = DRAIN_NANOS + DRAIN_PAUSE_NANOS;
        if self.drains_since.is_none_or(|since| now.since(since) > paused) {
            self.drains_since = Some(now);
        }
        self.datagrams
    }

    fn is_draining(&self, now: Time) -> bool {
        self.drains_since.is_some_and(|since| now.since(since) <= DRAIN_NANOS)
    }

    #[cold]
    fn break_off(&mut self, error: &RingBroken) -> NeighbourId {
        tracing::warn!(pid = self.neighbour.pid(), %error, "a process of this host is cut off");
        (self.reader, self.writer) = (None, None);
        self.neighbour.id()
    }
}

/// Faults of local peers that the background thread has to handle.
#[derive(Debug, Default)]
struct Trouble {
    /// Peers that broke the rules, to be expelled.
    broken: Vec<NeighbourId>,
    /// When to try again to wake peers that sleep and could not be woken.
    wake_at: Option<Time>,
}

/// The rings of all local peers, from the lane's side; see the module's head.
#[derive(Debug)]
pub(crate) struct Near {
    /// The peers, by index.
    peers: Vec<Option<Peer>>,
    /// The indices that are taken.
    places: Vec<u16>,
    by_slot: Box<[Option<NeighbourId>]>,
    /// For each slot the process that has it, as the kernel reported it with the answer of the
    /// slot's socket.
    owners: Box<[Option<u32>]>,
    buffer: Option<Box<PacketBuffer>>,
    /// The staging buffer, where packets are written before they go to a ring.
    stage: Stage,
    trouble: Trouble,
    /// Processes of this host that a path was found to lead to, to be connected to.
    found: Vec<(Slot, u32)>,
    /// When the last packet came out of a ring.
    last_packet: Option<Time>,
    looked_at_link: Time,
    link_is_busy: bool,
    /// Bytes that this call may still write.
    budget: usize,
}

impl Near {
    pub(crate) fn new() -> Self {
        Self {
            peers: Vec::new(),
            places: Vec::with_capacity(MAX_NEIGHBOURS),
            by_slot: vec![None; SLOTS].into_boxed_slice(),
            owners: vec![None; SLOTS].into_boxed_slice(),
            buffer: None,
            stage: Stage::new(),
            trouble: Trouble::default(),
            found: Vec::new(),
            last_packet: None,
            looked_at_link: Time(0),
            link_is_busy: false,
            budget: 0,
        }
    }

    /// Whether there is no local peer.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether the background thread has something to do here.
    pub(crate) fn is_pending(&self) -> bool {
        !self.trouble.broken.is_empty() || !self.found.is_empty()
    }

    /// Returns the peers that broke the rules, to be expelled.
    pub(crate) fn take_broken(&mut self) -> Vec<NeighbourId> {
        std::mem::take(&mut self.trouble.broken)
    }

    /// Takes the processes of this host that a path was found to lead to, to be connected to.
    pub(crate) fn take_found(&mut self) -> Vec<(Slot, u32)> {
        std::mem::take(&mut self.found)
    }

    /// Notes that the slot of a queue pair's peer belongs to a process of this host.
    pub(crate) fn note_found(&mut self, peer: Qpn, pid: u32) {
        self.found.push((Slot::of(peer), pid));
    }

    /// Returns when to try again to wake a peer that could not be woken.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.trouble.wake_at
    }

    /// Tries again to wake peers that could not be woken, if it is time.
    #[inline]
    pub(crate) fn wake_again(&mut self, now: Time) {
        if self.trouble.wake_at.is_some_and(|at| at <= now) {
            let writers = self.peers.iter_mut().flatten().filter_map(|peer| peer.writer.as_mut());
            let asleep = writers.map(RingWriter::wake_again).filter(|is_awake| !is_awake).count();
            self.trouble.wake_at = (asleep != 0).then(|| now + WAKE_NANOS);
        }
    }

    pub(crate) fn peer(&self, id: NeighbourId) -> Option<&Peer> {
        self.peers.get(id.place())?.as_ref().filter(|peer| peer.neighbour.id() == id)
    }

    fn peer_mut(&mut self, id: NeighbourId) -> Option<&mut Peer> {
        self.peers.get_mut(id.place())?.as_mut().filter(|peer| peer.neighbour.id() == id)
    }

    fn peer_at(&mut self, place: u16) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(place))?.as_mut()
    }

    /// Returns the number of local peers.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the index of the peer that is the `nth` in the list, if the peer has sent something.
    #[inline]
    pub(crate) fn news_of(&self, nth: usize) -> Option<u16> {
        let place = *self.places.get(nth)?;
        let reader = self.peers.get(usize::from(place))?.as_ref()?.reader.as_ref()?;
        reader.has_news().then_some(place)
    }

    /// Notes that a peer reads its ring, which can be written from now on.
    pub(crate) fn set_writer(&mut self, id: NeighbourId, writer: RingWriter) {
        if let Some(peer) = self.peer_mut(id) {
            peer.writer = Some(writer);
        }
    }

    /// Returns the peer that has a slot, and the process that has it.
    #[cfg(test)]
    pub(crate) fn owner_of(&self, slot: Slot) -> (Option<NeighbourId>, Option<u32>) {
        let at = usize::from(slot.value());
        (self.by_slot[at], self.owners[at])
    }

    /// Closes the rings of all peers, as if each were broken.
    #[cfg(test)]
    pub(crate) fn break_all(&mut self) {
        self.places.clone().iter().for_each(|&at| self.break_off(at, &RingBroken::Position));
    }

    /// Returns the ring of the peer at an index, to be read, and where its packets come from.
    #[inline]
    pub(crate) fn reading(&mut self, place: u16) -> Option<(&mut RingReader, Origin<'_>)> {
        let Self { peers, owners, found, .. } = self;
        let Peer { neighbour, reader, slots, .. } = peers.get_mut(usize::from(place))?.as_mut()?;
        Some((reader.as_mut()?, Origin { neighbour, slots, owners, found }))
    }

    /// Returns the local peer that `peer` belongs to, if `path` leads to a process of this host.
    #[inline]
    pub(crate) fn neighbour_of(&self, path: &TxPath, peer: Qpn) -> Option<NeighbourId> {
        // Where no process was found, the slot may be one of another host.
        if self.places.is_empty() || !path.is_local() {
            return None;
        }
        let id = self.by_slot[usize::from(Slot::of(peer).value())]?;
        self.peer(id)?.writer.is_some().then_some(id)
    }

    /// Returns the route of a datagram: as [`neighbour_of`](Self::neighbour_of), for services
    /// without acknowledgements. Packets go through memory only once nothing is on its way to the
    /// process by the link, which `is_idle` reports.
    #[inline]
    pub(crate) fn way_of_datagram(
        &mut self,
        path: &TxPath,
        peer: Qpn,
        now: Time,
        is_idle: impl FnOnce() -> bool,
    ) -> DatagramWay {
        let Some(id) = self.neighbour_of(path, peer) else { return DatagramWay::Wire };
        let Some(peer) = self.peer_mut(id) else { return DatagramWay::Wire };
        if peer.datagrams || peer.begins_datagrams(now, is_idle) {
            DatagramWay::Ring(id)
        } else if peer.is_draining(now) {
            DatagramWay::Wait
        } else {
            DatagramWay::Wire
        }
    }

    /// Whether there is a ring to write to.
    #[inline]
    pub(crate) fn has_writer(&self, id: NeighbourId) -> bool {
        self.peer(id).is_some_and(|peer| peer.writer.is_some())
    }

    /// Begins the writes of one call.
    pub(crate) fn begin(&mut self) {
        self.budget = BYTES_PER_CALL;
    }

    /// Counts bytes that were moved to a peer's memory.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
    }

    /// Whether this call has written enough.
    pub(crate) fn is_done(&self) -> bool {
        self.budget == 0
    }

    /// Returns the ring to a peer, to write to; `None` if the peer is gone.
    #[inline]
    pub(crate) fn out<'a>(&'a mut self, id: NeighbourId, now: Time) -> Option<RingOut<'a>> {
        let Self { peers, stage, trouble, budget, .. } = self;
        let peer = peers.get_mut(id.place())?.as_mut().filter(|p| p.neighbour.id() == id)?;
        peer.writer.is_some().then_some(RingOut {
            peer,
            stage,
            trouble,
            budget,
            now,
            waits: false,
            drops: false,
            lost: 0,
            packets: 0,
            bytes: 0,
        })
    }

    /// Whether the link is to be received from now, after `packets` came out of rings.
    #[inline]
    pub(crate) fn is_time_for_link(&mut self, packets: usize, now: Time) -> bool {
        if packets != 0 {
            self.last_packet = Some(now);
        }
        let Some(last) = self.last_packet else { return true };
        let is_time = self.link_is_busy
            || now.since(self.looked_at_link) >= LINK_NANOS
            || now.since(last) > BUSY_NANOS;
        if is_time {
            self.looked_at_link = now;
        }
        is_time
    }

    /// Whether a full ring was waited for in vain.
    pub(crate) fn is_stuck(&self, now: Time) -> bool {
        let mut since = self.peers.iter().flatten().filter_map(|peer| peer.full_since);
        since.any(|since| now.since(since) >= PATIENCE_NANOS)
    }

    /// Notes how many packets the link had.
    #[inline]
    pub(crate) fn link_had(&mut self, packets: usize) {
        self.link_is_busy = packets != 0;
    }

    /// Whether any peer has sent something. For a thread that is about to sleep and has announced
    /// that.
    pub(crate) fn has_news(&self) -> bool {
        let mut readers = self.peers.iter().flatten().filter_map(|peer| peer.reader.as_ref());
        readers.any(RingReader::has_news)
    }

    /// Closes a peer's broken ring: nothing goes through it any more, and the peer is to be
    /// expelled.
    #[cold]
    pub(crate) fn break_off(&mut self, place: u16, error: &RingBroken) {
        if let Some(peer) = self.peer_at(place) {
            let id = peer.break_off(error);
            self.trouble.broken.push(id);
        }
    }

    /// Takes the buffer to which packets are copied out of a ring.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> Box<PacketBuffer> {
        self.buffer.take().unwrap_or_else(|| Box::new([0; _]))
    }

    /// Gives the buffer back.
    #[inline]
    pub(crate) fn give_buffer(&mut self, buffer: Box<PacketBuffer>) {
        self.buffer = Some(buffer);
    }

    pub(crate) fn meet(&mut self, neighbour: Arc<Neighbour>, reader: RingReader) {
        let place = neighbour.id().place();
        if self.peers.len() <= place {
            self.peers.resize_with(place + 1, || None);
        }
        self.peers[place] = Some(Peer {
            neighbour,
            reader: Some(reader),
            writer: None,
            slots: Vec::new(),
            datagrams: false,
            drains_since: None,
            full_since: None,
        });
        self.places.push(place as u16);
    }

    /// Removes a peer that is gone, or whose ring was read to its end, and returns what is left of
    /// it.
    pub(crate) fn part(&mut self, id: NeighbourId) -> Option<Peer> {
        self.peer(id)?;
        let peer = self.peers.get_mut(id.place())?.take();
        self.places.retain(|&place| usize::from(place) != id.place());
        self.by_slot.iter_mut().for_each(|known| *known = known.filter(|known| *known != id));
        for (pid, &slot) in peer.iter().flat_map(|p| p.slots.iter().map(|s| (p.neighbour.pid(), s)))
        {
            // The next owner of the slot is asked anew, unless it was heard before the end of this
            // peer.
            let owner = &mut self.owners[usize::from(slot.value())];
            *owner = owner.filter(|&owner| owner != pid);
            self.map(slot);
        }
        peer
    }

    /// Notes that this process answered on the slot's own socket.
    pub(crate) fn set_owner(&mut self, slot: Slot, pid: u32) {
        self.owners[usize::from(slot.value())] = Some(pid);
        self.map(slot);
    }

    pub(crate) fn set_slots(&mut self, id: NeighbourId, slots: Vec<Slot>) {
        let Some(peer) = self.peer_mut(id) else { return };
        let pid = peer.neighbour.pid();
        let before = std::mem::replace(&mut peer.slots, slots.clone());
        for slot in before.into_iter().chain(slots) {
            // The peer's word changes nothing about other processes' slots, however many it names.
            if self.owners[usize::from(slot.value())] == Some(pid) {
                self.map(slot);
            }
        }
    }

    /// Finds the peer that has a slot: the peer must say so, and the kernel must say the same.
    fn map(&mut self, slot: Slot) {
        let at = usize::from(slot.value());
        let owner = self.owners[at];
        let has = |peer: &&Peer| Some(peer.neighbour.pid()) == owner && peer.slots.contains(&slot);
        let found = self.peers.iter().flatten().find(has);
        self.by_slot[at] = found.map(|peer| peer.neighbour.id());
    }
}

/// A ring to which the packets of one turn of a queue pair are written.
pub(crate) struct RingOut<'a> {
    peer: &'a mut Peer,
    stage: &'a mut Stage,
    trouble: &'a mut Trouble,
    budget: &'a mut usize,
    now: Time,
    /// Whether nothing may be lost, however long it takes.
    waits: bool,
    /// Whether the packet that is written next is lost.
    drops: bool,
    lost: u64,
    packets: u64,
    bytes: u64,
}

impl<'a> RingOut<'a> {
    /// Returns space as [`room`](Self::room) does, for one packet that [`push_one`](Self::push_one)
    /// sends, and whether that packet is lost.
    pub(crate) fn into_room(mut self) -> Option<(&'a mut [u8], bool)> {
        self.room()?;
        Some((self.stage.room(), self.drops))
    }

    /// Sends the packet in the space of [`into_room`](Self::into_room), or loses it. The peer sees
    /// it at once.
    pub(crate) fn push_one(
        mut self,
        path: &TxPath,
        len: usize,
        is_lost: bool,
        counters: &Counters,
    ) {
        self.drops = is_lost;
        self.push(path, len, false);
        self.finish(counters);
    }
}

impl RingOut<'_> {
    /// Makes packets wait until there is room, however long that takes: what is sent is never
    /// repeated.
    pub(crate) fn wait_for_ever(&mut self) {
        self.waits = true;
    }

    /// Whether one more packet, of any size, may be written.
    #[inline]
    fn has_room(&mut self) -> bool {
        let Some(writer) = &mut self.peer.writer else { return false };
        match writer.has_room(self.stage.record_bytes()) {
            Ok(free) => free,
            Err(error) => {
                let id = self.peer.break_off(&error);
                self.trouble.broken.push(id);
                false
            }
        }
    }

    /// Returns space for one more packet, of any size; `None` while the ring is full and waited
    /// for. If it was waited for in vain, there is space all the same, but the packet written there
    /// is lost.
    #[inline]
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        if self.has_room() {
            (self.peer.full_since, self.drops) = (None, false);
        } else {
            let since = *self.peer.full_since.get_or_insert(self.now);
            if self.waits || self.now.since(since) < PATIENCE_NANOS {
                return None;
            }
            self.drops = true;
        }
        Some(self.stage.room())
    }

    /// Sends the packet in that space.
    #[inline]
    pub(crate) fn push(&mut self, path: &TxPath, len: usize, is_run: bool) {
        if self.drops {
            self.lost += 1;
        } else {
            self.packets += 1;
            self.bytes += len as u64;
            if self.stage.push(path, len, is_run) {
                self.stage.flush(self.peer.writer.as_mut());
            }
        }
    }

    /// Ends the turn: the peer sees what was written.
    #[inline]
    pub(crate) fn finish(self, counters: &Counters) {
        if self.lost != 0 {
            counters.add(Counted::NearLost, self.lost);
        }
        if self.packets == 0 {
            return;
        }
        self.stage.flush(self.peer.writer.as_mut());
        if let Some(writer) = &mut self.peer.writer
            && !writer.publish()
        {
            self.trouble.wake_at.get_or_insert(self.now + WAKE_NANOS);
        }
        *self.budget = self.budget.saturating_sub(self.bytes as usize);
        counters.add(Counted::NearTxPacket, self.packets);
        counters.add(Counted::NearTxByte, self.bytes);
    }
}

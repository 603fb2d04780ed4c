//! Packets to and from processes of this host, through memory: the lane's side.
//!
//! Owns the ends of the rings of all neighbours (`vernic_io::neighbour`) and the knowledge which
//! slot is whose. `near/control.rs` meets and loses them, `tx.rs` writes requests and answers of a
//! queue pair either into the batch of the link or, as [`RingOut`], into a ring, `rx.rs` reads.
//!
//! # Who goes which way
//!
//! A ring keeps order, the sockets keep order, but between them there is none. So a queue pair
//! changes its way only when nothing of it is on the other: one that is acknowledged when no
//! request is without its acknowledgement, for which it pauses; UC and UD when the peer has taken
//! all that was sent to it (`pacer.rs`), for which they pause for up to [`DRAIN_NANOS`]. Answers go
//! the way that the last request came. Packets of QP1 and of multicast groups always go by UDP.
//!
//! From a peer that was heard through a ring nothing is taken by the link any more
//! ([`QpWay::excludes_link`]): who sends through a ring is known by the kernel's word, who sends by
//! the link may be any user of the host.
//!
//! Large SENDs of RC go through a ring as runs, whose bytes the receiver copies by itself:
//! `near/pull.rs`.
//!
//! # When the other does not read
//!
//! A full ring puts the queue pair's turn off (`Did::Held`). After [`PATIENCE_NANOS`] at a stretch
//! packets to it are lost, counted, until there is room, as they would be in a full socket: UC and
//! UD never hang, and RC ends with its retries. RC without an ACK timeout repeats nothing, so it
//! waits for as long as it takes.
//!
//! # Polling
//!
//! Looking at a ring costs a load, looking at a socket a system call. While rings have packets, the
//! link is received from every [`LINK_NANOS`], and in between only if it had something the last
//! time.

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
use crate::counters::Counters;

/// How long a neighbour is waited for at a stretch: as a receiver of UDP by UC and UD (`pacer.rs`).
const PATIENCE_NANOS: u64 = 100_000_000;

/// How long UC and UD pause so that the peer takes all that was sent to it by UDP: longer than it
/// takes to forget what never comes (`vernic_io::host::intake`). Other processes' packets may keep
/// it busy for longer; after a [`DRAIN_PAUSE_NANOS`] there is another try.
const DRAIN_NANOS: u64 = 5_000_000;
/// See [`DRAIN_NANOS`]: a second.
const DRAIN_PAUSE_NANOS: u64 = 1_000_000_000;

/// How long after a packet came out of a ring the link is looked at less often: some round trips of
/// a program that answers at once, and some of its computations.
const BUSY_NANOS: u64 = 1_000_000;

/// How often it is looked at then: a packet of the wire waits half of this on average, and a poll
/// that makes a system call takes ten times as long as one that makes none.
const LINK_NANOS: u64 = 20_000;

/// How soon a neighbour is woken that sleeps and could not be woken: the system had no memory for
/// the message.
const WAKE_NANOS: u64 = 1_000_000;

/// Bytes that one call writes to rings, two rings' worth: so that no call takes long if they are
/// read meanwhile.
const BYTES_PER_CALL: usize = 512 * 1024;

/// Slots that there are.
const SLOTS: usize = 1 << Slot::BITS;

/// A neighbour as the lane sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) neighbour: Arc<Neighbour>,
    /// `None` once it is broken.
    pub(crate) reader: Option<RingReader>,
    /// `None` until it reads, and once it is broken.
    pub(crate) writer: Option<RingWriter>,
    pub(crate) slots: Vec<Slot>,
    /// UC and UD go through the ring.
    pub(crate) datagrams: bool,
    /// Since when they pause for it.
    drains_since: Option<Time>,
    /// Since when somebody waits for room without a pause.
    full_since: Option<Time>,
}

/// Where packets out of a ring come from.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    neighbour: &'a Neighbour,
    /// The slots that the neighbour says it has.
    slots: &'a [Slot],
    owners: &'a [Option<u32>],
    found: &'a mut Vec<(Slot, u32)>,
}

impl Origin<'_> {
    #[inline]
    pub(crate) fn id(&self) -> NeighbourId {
        self.neighbour.id()
    }

    /// Whether it has the slot of a queue pair: by its own word alone only while the slot's socket
    /// has not been heard.
    pub(crate) fn has(&self, peer: Qpn) -> bool {
        let slot = Slot::of(peer);
        let owner = self.owners[usize::from(slot.value())];
        owner.is_none_or(|owner| owner == self.neighbour.pid()) && self.slots.contains(&slot)
    }

    /// The slot of a queue pair's peer is that of a process of this host.
    pub(crate) fn found(&mut self, peer: Qpn, pid: u32) {
        self.found.push((Slot::of(peer), pid));
    }
}

impl Peer {
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

/// What went wrong with neighbours.
#[derive(Debug, Default)]
struct Trouble {
    /// Neighbours that broke the rules, to be expelled.
    broken: Vec<NeighbourId>,
    /// Some sleep and could not be woken: when that is tried again.
    wake_at: Option<Time>,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Near {
    /// By place.
    peers: Vec<Option<Peer>>,
    /// The places that are taken.
    pub(crate) places: Vec<u16>,
    pub(crate) by_slot: Box<[Option<NeighbourId>]>,
    /// The process that has a slot, as the kernel named it with the answer of the slot's socket.
    pub(crate) owners: Box<[Option<u32>]>,
    buffer: Option<Box<PacketBuffer>>,
    /// Where packets are written before they go to a ring.
    stage: Stage,
    trouble: Trouble,
    /// Processes of this host that a path was found to lead to: they are to be met.
    pub(crate) found: Vec<(Slot, u32)>,
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

    /// Whether there is a neighbour at all.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether the background thread has something to do here.
    pub(crate) fn is_pending(&self) -> bool {
        !self.trouble.broken.is_empty() || !self.found.is_empty()
    }

    /// Neighbours that broke the rules, to be expelled.
    pub(crate) fn take_broken(&mut self) -> Vec<NeighbourId> {
        std::mem::take(&mut self.trouble.broken)
    }

    /// When a neighbour that could not be woken is to be woken.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.trouble.wake_at
    }

    /// Tries again to wake those that could not be woken, if it is time.
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

    pub(crate) fn peer_mut(&mut self, id: NeighbourId) -> Option<&mut Peer> {
        self.peers.get_mut(id.place())?.as_mut().filter(|peer| peer.neighbour.id() == id)
    }

    pub(crate) fn peer_at(&mut self, place: u16) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(place))?.as_mut()
    }

    /// The ring of the neighbour at a place, to be read, and where its packets come from.
    #[inline]
    pub(crate) fn reading(&mut self, place: u16) -> Option<(&mut RingReader, Origin<'_>)> {
        let Self { peers, owners, found, .. } = self;
        let Peer { neighbour, reader, slots, .. } = peers.get_mut(usize::from(place))?.as_mut()?;
        Some((reader.as_mut()?, Origin { neighbour, slots, owners, found }))
    }

    /// The neighbour that `peer` belongs to, if `path` leads to a process of this host.
    #[inline]
    pub(crate) fn neighbour_of(&self, path: &TxPath, peer: Qpn) -> Option<NeighbourId> {
        // Where no process was found, the slot may be one of another host.
        if self.places.is_empty() || !path.is_local() {
            return None;
        }
        let id = self.by_slot[usize::from(Slot::of(peer).value())]?;
        self.peer(id)?.writer.is_some().then_some(id)
    }

    /// As [`neighbour_of`](Self::neighbour_of), for services without acknowledgements: through
    /// memory only once nothing is on its way to the process by the link, which `is_idle` says.
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

    /// One call begins to write.
    pub(crate) fn begin(&mut self) {
        self.budget = BYTES_PER_CALL;
    }

    /// So many bytes were moved to a neighbour's memory.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
    }

    /// Whether this call has written enough.
    pub(crate) fn is_done(&self) -> bool {
        self.budget == 0
    }

    /// The ring to a neighbour, to write to; `None` if it is gone.
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

    /// Whether a neighbour was waited for in vain.
    pub(crate) fn is_stuck(&self, now: Time) -> bool {
        let mut since = self.peers.iter().flatten().filter_map(|peer| peer.full_since);
        since.any(|since| now.since(since) >= PATIENCE_NANOS)
    }

    /// What came of it.
    #[inline]
    pub(crate) fn link_had(&mut self, packets: usize) {
        self.link_is_busy = packets != 0;
    }

    /// For who is about to sleep, having said so: whether any neighbour has sent something.
    pub(crate) fn has_news(&self) -> bool {
        let mut readers = self.peers.iter().flatten().filter_map(|peer| peer.reader.as_ref());
        readers.any(RingReader::has_news)
    }

    /// A neighbour's ring is broken: nothing goes through it any more, and it is to be expelled.
    #[cold]
    pub(crate) fn break_off(&mut self, place: u16, error: &RingBroken) {
        if let Some(peer) = self.peer_at(place) {
            let id = peer.break_off(error);
            self.trouble.broken.push(id);
        }
    }

    /// Where packets are copied to that come out of a ring.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> Box<PacketBuffer> {
        self.buffer.take().unwrap_or_else(|| Box::new([0; _]))
    }

    /// Gives it back.
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

    /// The neighbour has read the ring to its end, or the process is gone: what is left of it.
    pub(crate) fn part(&mut self, id: NeighbourId) -> Option<Peer> {
        self.peer(id)?;
        let peer = self.peers.get_mut(id.place())?.take();
        self.places.retain(|&place| usize::from(place) != id.place());
        self.by_slot.iter_mut().for_each(|known| *known = known.filter(|known| *known != id));
        for (pid, &slot) in peer.iter().flat_map(|p| p.slots.iter().map(|s| (p.neighbour.pid(), s)))
        {
            // Whoever has it next is asked anew, unless that was heard before the end of this one.
            let owner = &mut self.owners[usize::from(slot.value())];
            *owner = owner.filter(|&owner| owner != pid);
            self.map(slot);
        }
        peer
    }

    /// The slot's own socket was answered by this process.
    pub(crate) fn set_owner(&mut self, slot: Slot, pid: u32) {
        self.owners[usize::from(slot.value())] = Some(pid);
        self.map(slot);
    }

    pub(crate) fn set_slots(&mut self, id: NeighbourId, slots: Vec<Slot>) {
        let Some(peer) = self.peer_mut(id) else { return };
        let pid = peer.neighbour.pid();
        let before = std::mem::replace(&mut peer.slots, slots.clone());
        for slot in before.into_iter().chain(slots) {
            // Of others' slots its word changes nothing, however many it names.
            if self.owners[usize::from(slot.value())] == Some(pid) {
                self.map(slot);
            }
        }
    }

    /// Finds out whose a slot is: of whoever says so, if the kernel says the same.
    fn map(&mut self, slot: Slot) {
        let at = usize::from(slot.value());
        let owner = self.owners[at];
        let has = |peer: &&Peer| Some(peer.neighbour.pid()) == owner && peer.slots.contains(&slot);
        let found = self.peers.iter().flatten().find(has);
        self.by_slot[at] = found.map(|peer| peer.neighbour.id());
    }
}

/// A ring as packets are written to it: one turn of a queue pair.
pub(crate) struct RingOut<'a> {
    peer: &'a mut Peer,
    stage: &'a mut Stage,
    trouble: &'a mut Trouble,
    budget: &'a mut usize,
    now: Time,
    /// Nothing may be lost, however long it takes.
    waits: bool,
    /// The packet that is written next is lost.
    drops: bool,
    lost: u64,
    packets: u64,
    bytes: u64,
}

impl<'a> RingOut<'a> {
    /// As [`room`](Self::room), for one packet that [`push_one`](Self::push_one) sends; with
    /// whether the packet is lost.
    pub(crate) fn into_room(mut self) -> Option<(&'a mut [u8], bool)> {
        self.room()?;
        Some((self.stage.room(), self.drops))
    }

    /// The packet in the space of [`into_room`](Self::into_room) is sent, or lost: the neighbour
    /// sees it.
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
    /// What is sent is never repeated: it waits until there is room.
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

    /// Space for one more packet, of any size; `None` while the neighbour is waited for. Without
    /// any once it was waited for in vain the packet is written, and lost.
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

    /// The packet in that space is sent.
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

    /// The turn is over: the neighbour sees what was written.
    #[inline]
    pub(crate) fn finish(self, counters: &Counters) {
        if self.lost != 0 {
            counters.near_lost.add(self.lost);
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
        counters.near_tx_packets.add(self.packets);
        counters.near_tx_bytes.add(self.bytes);
    }
}

//! Packets and messages to and from processes of this host, through rings of shared memory: the
//! lane's side.
//!
//! [`LocalRings`] owns this process's ends of the rings of all local peers
//! (`vernic_io::local`), and knows which process has which process slot. `lane/local_peers.rs`
//! connects and disconnects the peers. `tx.rs` writes the requests and responses of a queue pair
//! either into the batch of the link or, through [`RingOut`], into a ring. `rx.rs` reads the rings.
//!
//! # When the route changes
//!
//! A ring keeps packets in order, and so does a socket, but a packet in a ring may overtake one in
//! a socket. So a queue pair changes its route only when none of its packets is under way on the
//! present route:
//!
//! - Services with acknowledgements pause until every request is acknowledged.
//! - UC and UD pause until the peer has taken all that was sent to it by UDP
//!   (`udp_backpressure.rs`), for up to [`DRAIN_NANOS`].
//!
//! Responses take the route of the last request. Packets of QP1 and of multicast groups always go
//! by UDP.
//!
//! From the time that a peer's packets come through a ring, packets that come for it by the link
//! are refused (`QpRoute::excludes_link`): the kernel says which process writes to a ring, but any
//! user of the host may send by the link.
//!
//! SENDs of RC, XRC and UC travel as messages, without packets ([`MessagePart`]). The receiver
//! copies the payload of large ones, but of UC, out of the sender's memory (`rendezvous.rs`).
//!
//! # When the peer does not read
//!
//! If a ring is full, the queue pair's turn ends and is repeated later
//! (`TurnResult::Backpressured`). If the ring stays full for [`PATIENCE_NANOS`], packets to it are
//! lost and counted until there is room, as they would be at a full socket. So UC and UD never
//! hang, and RC fails when its retries are used up. RC without an ACK timeout never repeats a
//! packet, so it waits for room without a limit.
//!
//! # Polling
//!
//! Polling a ring costs a load from memory, polling a socket a system call. While packets come
//! through rings, the link is received from at least every [`LINK_NANOS`]. It is received from at
//! each poll only while it has packets.

use std::sync::Arc;

use vernic_io::TxPath;
use vernic_io::host::Slot;
use vernic_io::local::{
    LocalPeer, LocalPeerId, MAX_LOCAL_PEERS, PacketBuffer, RingBroken, RingReader, RingWriter,
    message_bytes, record_bytes,
};
use vernic_proto::{MessagePart, Time};
use vernic_wire::Qpn;

use super::message_head::head_of;
use super::route::DatagramRoute;
use super::staging::StagingBuffer;
use crate::counters::{Counted, Counters};

/// How long a queue pair waits for room in a full ring before packets to the ring are lost. It is
/// as long as UC and UD wait for room in a receiver's UDP socket (`udp_backpressure.rs`).
const PATIENCE_NANOS: u64 = 100_000_000;

/// How long UC and UD pause so that the peer takes all that was sent to it by UDP. This is longer
/// than the time after which packets that never arrived are no longer counted as under way
/// (`vernic_io::host::receiver_page`). If packets of other processes keep the peer busy for longer,
/// the next try comes after [`DRAIN_PAUSE_NANOS`].
const DRAIN_NANOS: u64 = 5_000_000;
/// The time after a pause of [`DRAIN_NANOS`] in vain until the next pause: one second.
const DRAIN_PAUSE_NANOS: u64 = 1_000_000_000;

/// For how long after the last packet of a ring the link is polled less often. The time covers a
/// few round trips with a program that answers at once or computes a little first.
const BUSY_NANOS: u64 = 1_000_000;

/// Time between two polls of the link while it is polled less often. A packet of the wire then
/// waits half of this on average. Such a poll makes a system call, and takes ten times as long as a
/// poll of rings alone.
const LINK_NANOS: u64 = 20_000;

/// The delay before another try to wake a sleeping local peer, after the system had no memory for
/// the message that wakes it.
const WAKE_NANOS: u64 = 1_000_000;

/// Largest number of bytes that one call of the lane writes to rings: as many as two rings hold.
/// Without this bound a call might take long, because readers make room while it writes.
const BYTES_PER_CALL: usize = 512 * 1024;

/// The number of process slots.
const SLOTS: usize = 1 << Slot::BITS;

/// A local peer as the lane sees it.
#[derive(Debug)]
pub(crate) struct PeerRings {
    local_peer: Arc<LocalPeer>,
    /// The ring from the peer; `None` once it is broken.
    reader: Option<RingReader>,
    /// The ring to the peer; `None` until the peer has said that it reads the ring, and once the
    /// ring is broken.
    writer: Option<RingWriter>,
    slots: Vec<Slot>,
    /// Whether packets of UC and UD to the peer go through the ring.
    datagrams: bool,
    /// Since when UC and UD pause to change to the ring.
    drains_since: Option<Time>,
    /// The time since which each attempt of a queue pair to write has found the ring full.
    full_since: Option<Time>,
}

/// The local peer from which the packets of a ring come, while the ring is read.
#[derive(Debug)]
pub(crate) struct RingSource<'a> {
    local_peer: &'a LocalPeer,
    /// The process slots that the peer says it has.
    slots: &'a [Slot],
    owners: &'a [Option<u32>],
    found: &'a mut Vec<(Slot, u32)>,
}

impl RingSource<'_> {
    #[inline]
    pub(crate) fn id(&self) -> LocalPeerId {
        self.local_peer.id()
    }

    /// Whether the peer has the process slot of the queue pair `peer`. The peer's own statement is
    /// enough only until the kernel has reported the owner of the slot's socket.
    pub(crate) fn has(&self, peer: Qpn) -> bool {
        let slot = Slot::of(peer);
        let owner = self.owners[usize::from(slot.value())];
        owner.is_none_or(|owner| owner == self.local_peer.pid()) && self.slots.contains(&slot)
    }

    /// Notes that the process slot of the queue pair `peer` belongs to the process `pid` of this
    /// host, so that the background thread connects to it.
    pub(crate) fn found(&mut self, peer: Qpn, pid: u32) {
        self.found.push((Slot::of(peer), pid));
    }
}

impl PeerRings {
    /// Returns the id of the peer's process; 0 if the process cannot be seen.
    pub(crate) fn pid(&self) -> u32 {
        self.local_peer.pid()
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
    fn break_off(&mut self, error: &RingBroken) -> LocalPeerId {
        tracing::warn!(pid = self.local_peer.pid(), %error, "a process of this host is cut off");
        (self.reader, self.writer) = (None, None);
        self.local_peer.id()
    }
}

/// Faults of local peers that the background thread has to handle.
#[derive(Debug, Default)]
struct RingFaults {
    /// Peers that broke the protocol of the ring, to be disconnected by the background thread.
    broken: Vec<LocalPeerId>,
    /// The time of the next try to wake sleeping peers that could not be woken; `None` if there are
    /// none.
    wake_at: Option<Time>,
}

/// The rings of all local peers, from the lane's side; see the head of this module.
#[derive(Debug)]
pub(crate) struct LocalRings {
    /// The peers, by [`LocalPeerId::index`].
    peers: Vec<Option<PeerRings>>,
    /// The indices of `peers` that are in use.
    indices: Vec<u16>,
    by_slot: Box<[Option<LocalPeerId>]>,
    /// For each process slot the id of the process that has it, as the kernel reported it: as the
    /// sender of an answer from the slot's socket.
    owners: Box<[Option<u32>]>,
    buffer: Option<Box<PacketBuffer>>,
    /// The staging buffer: packets are built here before they are copied to a ring.
    staging: StagingBuffer,
    faults: RingFaults,
    /// Processes of this host, with their slots, that a path leads to. The background thread
    /// connects to them.
    found: Vec<(Slot, u32)>,
    /// When the last packet came out of a ring.
    last_packet: Option<Time>,
    polled_link_at: Time,
    link_is_busy: bool,
    /// Bytes that the present call of the lane may still write to rings.
    budget: usize,
}

impl LocalRings {
    pub(crate) fn new() -> Self {
        Self {
            peers: Vec::new(),
            indices: Vec::with_capacity(MAX_LOCAL_PEERS),
            by_slot: vec![None; SLOTS].into_boxed_slice(),
            owners: vec![None; SLOTS].into_boxed_slice(),
            buffer: None,
            staging: StagingBuffer::new(),
            faults: RingFaults::default(),
            found: Vec::new(),
            last_packet: None,
            polled_link_at: Time(0),
            link_is_busy: false,
            budget: 0,
        }
    }

    /// Whether there is no local peer.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Whether the background thread has something to do: peers to connect to, or to disconnect.
    pub(crate) fn is_pending(&self) -> bool {
        !self.faults.broken.is_empty() || !self.found.is_empty()
    }

    /// Takes the list of peers that broke the protocol of the ring, to disconnect them.
    pub(crate) fn take_broken(&mut self) -> Vec<LocalPeerId> {
        std::mem::take(&mut self.faults.broken)
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
        self.faults.wake_at
    }

    /// Tries again to wake sleeping peers that could not be woken, if it is time.
    #[inline]
    pub(crate) fn wake_again(&mut self, now: Time) {
        if self.faults.wake_at.is_some_and(|at| at <= now) {
            let writers = self.peers.iter_mut().flatten().filter_map(|peer| peer.writer.as_mut());
            let asleep = writers.map(RingWriter::wake_again).filter(|is_awake| !is_awake).count();
            self.faults.wake_at = (asleep != 0).then(|| now + WAKE_NANOS);
        }
    }

    pub(crate) fn peer(&self, id: LocalPeerId) -> Option<&PeerRings> {
        self.peers.get(id.index())?.as_ref().filter(|peer| peer.local_peer.id() == id)
    }

    fn peer_mut(&mut self, id: LocalPeerId) -> Option<&mut PeerRings> {
        self.peers.get_mut(id.index())?.as_mut().filter(|peer| peer.local_peer.id() == id)
    }

    fn peer_at(&mut self, index: u16) -> Option<&mut PeerRings> {
        self.peers.get_mut(usize::from(index))?.as_mut()
    }

    /// Returns the number of local peers.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns the index of the peer that is the `nth` in the list, if the peer has sent something.
    #[inline]
    pub(crate) fn news_of(&self, nth: usize) -> Option<u16> {
        let index = *self.indices.get(nth)?;
        let reader = self.peers.get(usize::from(index))?.as_ref()?.reader.as_ref()?;
        reader.has_news().then_some(index)
    }

    /// Notes that a peer reads its ring, which can be written from now on.
    pub(crate) fn set_writer(&mut self, id: LocalPeerId, writer: RingWriter) {
        if let Some(peer) = self.peer_mut(id) {
            peer.writer = Some(writer);
        }
    }

    /// Returns the peer that has a slot, and the process that has it.
    #[cfg(test)]
    pub(crate) fn owner_of(&self, slot: Slot) -> (Option<LocalPeerId>, Option<u32>) {
        let at = usize::from(slot.value());
        (self.by_slot[at], self.owners[at])
    }

    /// Returns the ring to a peer, to write anything to it.
    #[cfg(test)]
    pub(crate) fn writer_of(&mut self, id: LocalPeerId) -> Option<&mut RingWriter> {
        self.peer_mut(id)?.writer.as_mut()
    }

    /// Closes the rings of all peers, as if each were broken.
    #[cfg(test)]
    pub(crate) fn break_all(&mut self) {
        self.indices.clone().iter().for_each(|&at| self.break_off(at, &RingBroken::Position));
    }

    /// Returns the ring of the peer at an index, to be read, and where its packets come from.
    #[inline]
    pub(crate) fn reading(&mut self, index: u16) -> Option<(&mut RingReader, RingSource<'_>)> {
        let Self { peers, owners, found, .. } = self;
        let PeerRings { local_peer, reader, slots, .. } =
            peers.get_mut(usize::from(index))?.as_mut()?;
        Some((reader.as_mut()?, RingSource { local_peer, slots, owners, found }))
    }

    /// Returns the local peer that has the queue pair `peer`, if `path` leads to a process of this
    /// host and there is a ring to write to.
    #[inline]
    pub(crate) fn peer_of(&self, path: &TxPath, peer: Qpn) -> Option<LocalPeerId> {
        // A path that does not lead to this host may lead to a queue pair of another host with the
        // same slot.
        if self.indices.is_empty() || !path.is_local() {
            return None;
        }
        let id = self.by_slot[usize::from(Slot::of(peer).value())]?;
        self.has_writer(id).then_some(id)
    }

    /// Returns the route of a packet of UC or UD: the ring to the peer once the switch is done,
    /// otherwise the wire or a pause. The switch is done when none of our packets is on its way to
    /// the peer's process by the link, which `is_idle` reports.
    #[inline]
    pub(crate) fn datagram_route(
        &mut self,
        path: &TxPath,
        peer: Qpn,
        now: Time,
        is_idle: impl FnOnce() -> bool,
    ) -> DatagramRoute {
        let Some(id) = self.peer_of(path, peer) else { return DatagramRoute::Wire };
        let Some(peer) = self.peer_mut(id) else { return DatagramRoute::Wire };
        if peer.datagrams || peer.begins_datagrams(now, is_idle) {
            DatagramRoute::Ring(id)
        } else if peer.is_draining(now) {
            DatagramRoute::Wait
        } else {
            DatagramRoute::Wire
        }
    }

    /// Whether there is a ring to write to for this peer.
    #[inline]
    pub(crate) fn has_writer(&self, id: LocalPeerId) -> bool {
        self.peer(id).is_some_and(|peer| peer.writer.is_some())
    }

    /// Begins a call of the lane, which may write [`BYTES_PER_CALL`] to rings.
    pub(crate) fn begin(&mut self) {
        self.budget = BYTES_PER_CALL;
    }

    /// Counts bytes that were copied to a peer's memory without a ring against the limit of this
    /// call.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
    }

    /// Whether this call of the lane has written as much to rings as it may.
    pub(crate) fn is_done(&self) -> bool {
        self.budget == 0
    }

    /// Returns the ring to a peer, to write to; `None` if the peer is gone.
    #[inline]
    pub(crate) fn out<'a>(&'a mut self, id: LocalPeerId, now: Time) -> Option<RingOut<'a>> {
        let Self { peers, staging, faults, budget, .. } = self;
        let peer = peers.get_mut(id.index())?.as_mut().filter(|p| p.local_peer.id() == id)?;
        peer.writer.is_some().then_some(RingOut {
            peer,
            staging,
            faults,
            budget,
            now,
            waits: false,
            drops: false,
            lost: 0,
            packets: 0,
            bytes: 0,
            spent: 0,
        })
    }

    /// Whether the link is to be polled now, after a poll of the rings found `packets` packets.
    #[inline]
    pub(crate) fn is_time_for_link(&mut self, packets: usize, now: Time) -> bool {
        if packets != 0 {
            self.last_packet = Some(now);
        }
        let Some(last) = self.last_packet else { return true };
        let is_time = self.link_is_busy
            || now.since(self.polled_link_at) >= LINK_NANOS
            || now.since(last) > BUSY_NANOS;
        if is_time {
            self.polled_link_at = now;
        }
        is_time
    }

    /// Whether some ring has been full for longer than [`PATIENCE_NANOS`].
    pub(crate) fn is_stuck(&self, now: Time) -> bool {
        let mut since = self.peers.iter().flatten().filter_map(|peer| peer.full_since);
        since.any(|since| now.since(since) >= PATIENCE_NANOS)
    }

    /// Notes how many packets the last poll of the link found.
    #[inline]
    pub(crate) fn link_had(&mut self, packets: usize) {
        self.link_is_busy = packets != 0;
    }

    /// Whether any peer has written something to its ring. For a thread that has announced that it
    /// is about to sleep.
    pub(crate) fn has_news(&self) -> bool {
        let mut readers = self.peers.iter().flatten().filter_map(|peer| peer.reader.as_ref());
        readers.any(RingReader::has_news)
    }

    /// Stops using a peer's rings because the peer broke their protocol, and notes that the
    /// background thread has to disconnect the peer.
    #[cold]
    pub(crate) fn break_off(&mut self, index: u16, error: &RingBroken) {
        if let Some(peer) = self.peer_at(index) {
            let id = peer.break_off(error);
            self.faults.broken.push(id);
        }
    }

    /// Takes the buffer to which a packet is copied out of a ring.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> Box<PacketBuffer> {
        self.buffer.take().unwrap_or_else(|| Box::new([0; _]))
    }

    /// Returns the buffer that [`take_buffer`](Self::take_buffer) took.
    #[inline]
    pub(crate) fn give_buffer(&mut self, buffer: Box<PacketBuffer>) {
        self.buffer = Some(buffer);
    }

    pub(crate) fn connect(&mut self, local_peer: Arc<LocalPeer>, reader: RingReader) {
        let index = local_peer.id().index();
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(PeerRings {
            local_peer,
            reader: Some(reader),
            writer: None,
            slots: Vec::new(),
            datagrams: false,
            drains_since: None,
            full_since: None,
        });
        self.indices.push(index as u16);
    }

    /// Removes a peer that is gone, or whose ring was read to its end, and returns it with its
    /// rings.
    pub(crate) fn disconnect(&mut self, id: LocalPeerId) -> Option<PeerRings> {
        self.peer(id)?;
        let peer = self.peers.get_mut(id.index())?.take();
        self.indices.retain(|&index| usize::from(index) != id.index());
        self.by_slot.iter_mut().for_each(|known| *known = known.filter(|known| *known != id));
        for (pid, &slot) in
            peer.iter().flat_map(|p| p.slots.iter().map(|s| (p.local_peer.pid(), s)))
        {
            // The slot's next owner is looked up again. An owner that the kernel reported before
            // this peer's end is kept.
            let owner = &mut self.owners[usize::from(slot.value())];
            *owner = owner.filter(|&owner| owner != pid);
            self.map(slot);
        }
        peer
    }

    /// Notes that the process `pid` has a slot: the kernel reported it as the sender of an answer
    /// from the slot's socket.
    pub(crate) fn set_owner(&mut self, slot: Slot, pid: u32) {
        self.owners[usize::from(slot.value())] = Some(pid);
        self.map(slot);
    }

    pub(crate) fn set_slots(&mut self, id: LocalPeerId, slots: Vec<Slot>) {
        let Some(peer) = self.peer_mut(id) else { return };
        let pid = peer.local_peer.pid();
        let before = std::mem::replace(&mut peer.slots, slots.clone());
        for slot in before.into_iter().chain(slots) {
            // Only slots that the kernel says are the peer's change, however many the peer claims.
            if self.owners[usize::from(slot.value())] == Some(pid) {
                self.map(slot);
            }
        }
    }

    /// Finds the peer that has a slot and notes it. The peer must claim the slot, and the kernel
    /// must have reported the peer's process as its owner.
    fn map(&mut self, slot: Slot) {
        let at = usize::from(slot.value());
        let owner = self.owners[at];
        let has =
            |peer: &&PeerRings| Some(peer.local_peer.pid()) == owner && peer.slots.contains(&slot);
        let found = self.peers.iter().flatten().find(has);
        self.by_slot[at] = found.map(|peer| peer.local_peer.id());
    }
}

/// The ring to a local peer, while the packets of one turn of a queue pair are written to it.
pub(crate) struct RingOut<'a> {
    peer: &'a mut PeerRings,
    staging: &'a mut StagingBuffer,
    faults: &'a mut RingFaults,
    budget: &'a mut usize,
    now: Time,
    /// Whether no packet may be lost, however long the ring stays full.
    waits: bool,
    /// Whether the next packet will be lost because the ring has been full for too long.
    drops: bool,
    lost: u64,
    packets: u64,
    bytes: u64,
    /// Bytes of the ring that the records take.
    spent: usize,
}

impl RingOut<'_> {
    /// Makes packets wait for room however long it takes. For queue pairs that never repeat a
    /// packet.
    pub(crate) fn wait_for_ever(&mut self) {
        self.waits = true;
    }

    /// Whether the ring has room for one more packet of any size.
    #[inline]
    fn has_room(&mut self) -> bool {
        let Some(writer) = &mut self.peer.writer else { return false };
        match writer.has_room(self.staging.record_bytes()) {
            Ok(free) => free,
            Err(error) => {
                let id = self.peer.break_off(&error);
                self.faults.broken.push(id);
                false
            }
        }
    }

    /// Returns space for one more packet, or for the payload of one more part of a message: as much
    /// as the longest packet takes; `None` if the ring is full. A packet that `may_be_lost` has
    /// space all the same: see [`is_given_up`](Self::is_given_up).
    #[inline]
    pub(crate) fn room(&mut self, may_be_lost: bool) -> Option<&mut [u8]> {
        if self.has_room() {
            (self.peer.full_since, self.drops) = (None, false);
        } else {
            self.peer.full_since.get_or_insert(self.now);
            if !may_be_lost {
                return None;
            }
            self.drops = true;
        }
        Some(self.staging.room())
    }

    /// Whether the ring has been full for [`PATIENCE_NANOS`], so that packets to it are lost.
    #[inline]
    pub(crate) fn is_given_up(&self) -> bool {
        let full = self.peer.full_since.map(|since| self.now.since(since));
        !self.waits && full.is_some_and(|nanos| nanos >= PATIENCE_NANOS)
    }

    /// Sends the packet that was written to the space of [`room`](Self::room), or counts it as
    /// lost.
    #[inline]
    pub(crate) fn push(&mut self, path: &TxPath, len: usize) {
        if self.drops {
            self.lost += 1;
        } else {
            self.packets += 1;
            self.bytes += len as u64;
            self.spent += record_bytes(len);
            if self.staging.push(path, len) {
                self.staging.flush(self.peer.writer.as_mut());
            }
        }
    }

    /// Sends the part whose payload, `len` bytes, was written to the space of
    /// [`room`](Self::room), to the queue pair `dest` of the peer.
    #[inline]
    pub(crate) fn push_message(&mut self, dest: Qpn, part: &MessagePart, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
        self.spent += message_bytes(len);
        if self.staging.push_message(head_of(dest, part), len) {
            self.staging.flush(self.peer.writer.as_mut());
        }
    }

    /// Ends the turn: lets the peer see what was written, and wakes the peer if it sleeps.
    #[inline]
    pub(crate) fn finish(self, counters: &Counters) {
        if self.lost != 0 {
            counters.add(Counted::NearLost, self.lost);
        }
        if self.packets == 0 {
            return;
        }
        self.staging.flush(self.peer.writer.as_mut());
        if let Some(writer) = &mut self.peer.writer
            && !writer.publish()
        {
            self.faults.wake_at.get_or_insert(self.now + WAKE_NANOS);
        }
        *self.budget = self.budget.saturating_sub(self.spent);
        counters.add(Counted::NearTxPacket, self.packets);
        counters.add(Counted::NearTxByte, self.bytes);
    }
}

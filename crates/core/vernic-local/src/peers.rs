//! All local peers, as the lane of a device knows them.
//!
//! [`LocalPeers`] owns this process's ends of the rings of all local peers, and knows which process
//! has which process slot. The lane connects and disconnects the peers as the events of the
//! [`Connections`](crate::Connections) say. It writes the requests and responses of a queue pair
//! either into the batch of the link or, through [`RingOut`], into a ring, and reads the rings.
//!
//! # When the route changes
//!
//! A ring keeps packets in order, and so does a socket, but a packet in a ring may overtake one in
//! a socket. So a queue pair changes its route only when none of its packets is under way on the
//! present route:
//!
//! - Services with acknowledgements pause until every request is acknowledged.
//! - UC and UD pause until the peer has taken all that was sent to it by UDP, for
//!   up to 5 ms.
//!
//! Responses take the route of the last request. Packets of QP1 and of multicast groups always go
//! by UDP.
//!
//! From the time that a peer's packets come through a ring, packets that come for it by the link
//! are refused (`QpRoute::excludes_link`): the kernel says which process writes to a ring, but any
//! user of the host may send by the link.
//!
//! SENDs of RC, XRC and UC travel as messages, without packets (`vernic_proto::MessagePart`). The
//! receiver copies the payload of large ones, but of UC, out of the sender's memory
//! (`rendezvous.rs`).
//!
//! # When the peer does not read
//!
//! If a ring is full, the queue pair's turn ends and is repeated later. If the ring stays full for
//! [`PATIENCE_NANOS`], packets to it are lost and counted until there is room, as they would be at
//! a full socket. So UC and UD never hang, and RC fails when its retries are used up. RC without an
//! ACK timeout never repeats a packet, so it waits for room without a limit.
//!
//! # Polling
//!
//! Polling a ring costs a load from memory, polling a socket a system call. While packets come
//! through rings, the link is received from at least every [`LINK_NANOS`]. It is received from at
//! each poll only while it has packets.

use std::sync::Arc;

use vernic_io::TxPath;
use vernic_io::host::Slot;
use vernic_mem::Memory;
use vernic_proto::Time;
use vernic_wire::Qpn;

use crate::peer::{LocalPeer, PATIENCE_NANOS, RingFaults, RingSource, WAKE_NANOS};
use crate::process::{LocalPeerId, MAX_LOCAL_PEERS, PeerProcess};
use crate::ring::{PacketBuffer, RingBroken, RingReader, RingWriter};
use crate::ring_out::RingOut;
use crate::route::DatagramRoute;
use crate::staging::StagingBuffer;

/// For how long after the last packet of a ring the link is polled less often. The time covers a
/// few round trips with a program that answers at once or computes a little first.
const BUSY_NANOS: u64 = 1_000_000;

/// Time between two polls of the link while it is polled less often. A packet of the wire then
/// waits half of this on average. Such a poll makes a system call, and takes ten times as long as a
/// poll of rings alone.
const LINK_NANOS: u64 = 20_000;

/// Largest number of bytes that one call of the lane writes to rings: as many as two rings hold.
/// Without this bound a call might take long, because readers make room while it writes.
const BYTES_PER_CALL: usize = 512 * 1024;

/// The number of process slots.
const SLOTS: usize = 1 << Slot::BITS;

/// The rings of all local peers, from the lane's side; see the head of this module.
#[derive(Debug)]
pub struct LocalPeers {
    /// The peers, by [`LocalPeerId::index`].
    peers: Vec<Option<LocalPeer>>,
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

impl Default for LocalPeers {
    fn default() -> Self {
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
}

impl LocalPeers {
    /// Whether there is no local peer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Whether the background thread has something to do: peers to connect to, or to disconnect.
    #[inline]
    pub fn is_pending(&self) -> bool {
        !self.faults.broken.is_empty() || !self.found.is_empty()
    }

    /// Takes the list of peers that broke the protocol of the ring, to disconnect them.
    pub fn take_broken(&mut self) -> Vec<LocalPeerId> {
        std::mem::take(&mut self.faults.broken)
    }

    /// Takes the processes of this host that a path was found to lead to, to be connected to.
    pub fn take_found(&mut self) -> Vec<(Slot, u32)> {
        std::mem::take(&mut self.found)
    }

    /// Notes that the slot of a queue pair's peer belongs to a process of this host.
    pub fn note_found(&mut self, peer: Qpn, pid: u32) {
        self.found.push((Slot::of(peer), pid));
    }

    /// Returns when to try again to wake a peer that could not be woken.
    #[inline]
    pub fn wake_at(&self) -> Option<Time> {
        self.faults.wake_at
    }

    /// Tries again to wake sleeping peers that could not be woken, if it is time.
    #[inline]
    pub fn wake_again(&mut self, now: Time) {
        if self.faults.wake_at.is_some_and(|at| at <= now) {
            let writers =
                self.peers.iter_mut().flatten().filter_map(|peer| peer.ring.writer.as_mut());
            let asleep = writers.map(RingWriter::wake_again).filter(|is_awake| !is_awake).count();
            self.faults.wake_at = (asleep != 0).then(|| now + WAKE_NANOS);
        }
    }

    /// Returns a local peer by its id.
    #[inline]
    pub fn peer(&self, id: LocalPeerId) -> Option<&LocalPeer> {
        self.peers.get(id.index())?.as_ref().filter(|peer| peer.id() == id)
    }

    /// Returns a local peer with which memory accesses are possible, by its id.
    #[inline]
    pub fn accessible(&mut self, id: LocalPeerId) -> Option<&mut LocalPeer> {
        self.peer_mut(id).filter(|peer| peer.process().may_access())
    }

    /// Ends the access of all local peers to our memory, because the device is closed.
    pub fn close(&mut self, memory: &Memory) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.grants_mut().end(memory));
    }

    #[inline]
    fn peer_mut(&mut self, id: LocalPeerId) -> Option<&mut LocalPeer> {
        self.peers.get_mut(id.index())?.as_mut().filter(|peer| peer.id() == id)
    }

    fn peer_at(&mut self, index: u16) -> Option<&mut LocalPeer> {
        self.peers.get_mut(usize::from(index))?.as_mut()
    }

    /// Returns the number of local peers.
    #[inline]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns the index of the peer that is the `nth` in the list, if the peer has sent something.
    #[inline]
    pub fn news_of(&self, nth: usize) -> Option<u16> {
        let index = *self.indices.get(nth)?;
        let reader = self.peers.get(usize::from(index))?.as_ref()?.ring.reader.as_ref()?;
        reader.has_news().then_some(index)
    }

    /// Notes that a peer reads its ring, which can be written from now on.
    pub fn set_writer(&mut self, id: LocalPeerId, writer: RingWriter) {
        if let Some(peer) = self.peer_mut(id) {
            peer.ring.writer = Some(writer);
        }
    }

    /// Returns the peer that has a slot, and the process that has it.
    pub fn owner_of(&self, slot: Slot) -> (Option<LocalPeerId>, Option<u32>) {
        let at = usize::from(slot.value());
        (self.by_slot[at], self.owners[at])
    }

    /// Returns the ring to a peer, to write anything to it.
    pub fn writer_of(&mut self, id: LocalPeerId) -> Option<&mut RingWriter> {
        self.peer_mut(id)?.ring.writer.as_mut()
    }

    /// Closes the rings of all peers, as if each were broken.
    pub fn break_all(&mut self) {
        self.indices.clone().iter().for_each(|&at| self.break_off(at, &RingBroken::Position));
    }

    /// Returns the ring of the peer at an index, to be read, and where its packets come from.
    #[inline]
    pub fn reading(&mut self, index: u16) -> Option<(&mut RingReader, RingSource<'_>)> {
        let Self { peers, owners, found, .. } = self;
        let peer = peers.get_mut(usize::from(index))?.as_mut()?;
        let (reader, process, slots, grants) = peer.reading()?;
        let sender_memory = grants.sender_memory();
        Some((reader, RingSource { process, slots, owners, found, sender_memory }))
    }

    /// Returns the local peer that has the queue pair `peer`, if `path` leads to a process of this
    /// host and there is a ring to write to.
    #[inline]
    pub fn peer_of(&self, path: &TxPath, peer: Qpn) -> Option<LocalPeerId> {
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
    pub fn datagram_route(
        &mut self,
        path: &TxPath,
        peer: Qpn,
        now: Time,
        is_idle: impl FnOnce() -> bool,
    ) -> DatagramRoute {
        let Some(id) = self.peer_of(path, peer) else { return DatagramRoute::Wire };
        let Some(peer) = self.peer_mut(id) else { return DatagramRoute::Wire };
        if peer.ring.takes_datagrams(now, is_idle) {
            DatagramRoute::Ring(id)
        } else if peer.ring.is_draining(now) {
            DatagramRoute::Wait
        } else {
            DatagramRoute::Wire
        }
    }

    /// Returns the local peer through whose ring packets of UC or UD go, if the switch to that ring
    /// is done: see [`datagram_route`](Self::datagram_route).
    #[inline]
    pub fn datagram_ring(&self, path: &TxPath, peer: Qpn) -> Option<LocalPeerId> {
        let id = self.peer_of(path, peer)?;
        self.peer(id).is_some_and(LocalPeer::takes_datagrams).then_some(id)
    }

    /// Whether there is a ring to write to for this peer.
    #[inline]
    pub fn has_writer(&self, id: LocalPeerId) -> bool {
        self.peer(id).is_some_and(|peer| peer.ring.writer.is_some())
    }

    /// Begins a call of the lane, which may write 512 KiB to rings.
    #[inline]
    pub fn begin(&mut self) {
        self.budget = BYTES_PER_CALL;
    }

    /// Counts bytes that were copied to a peer's memory without a ring against the limit of this
    /// call.
    #[inline]
    pub fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
    }

    /// Whether this call of the lane has written as much to rings as it may.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.budget == 0
    }

    /// Returns the ring to a peer, to write to; `None` if the peer is gone.
    #[inline]
    pub fn out<'a>(&'a mut self, id: LocalPeerId, now: Time) -> Option<RingOut<'a>> {
        let Self { peers, staging, faults, budget, .. } = self;
        let peer = peers.get_mut(id.index())?.as_mut().filter(|p| p.id() == id)?;
        peer.ring.writer.is_some().then(|| RingOut::new(peer, staging, faults, budget, now))
    }

    /// Whether the link is to be polled now, after a poll of the rings found `packets` packets.
    #[inline]
    pub fn is_time_for_link(&mut self, packets: usize, now: Time) -> bool {
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

    /// Whether some ring has been full for longer than 100 ms.
    #[inline]
    pub fn is_stuck(&self, now: Time) -> bool {
        let mut since = self.peers.iter().flatten().filter_map(|peer| peer.ring.full_since);
        since.any(|since| now.since(since) >= PATIENCE_NANOS)
    }

    /// Notes how many packets the last poll of the link found.
    #[inline]
    pub fn link_had(&mut self, packets: usize) {
        self.link_is_busy = packets != 0;
    }

    /// Whether any peer has written something to its ring. For a thread that has announced that it
    /// is about to sleep.
    #[inline]
    pub fn has_news(&self) -> bool {
        let mut readers = self.peers.iter().flatten().filter_map(|peer| peer.ring.reader.as_ref());
        readers.any(RingReader::has_news)
    }

    /// Stops using a peer's rings because the peer broke their protocol, and notes that the
    /// background thread has to disconnect the peer.
    #[cold]
    pub fn break_off(&mut self, index: u16, error: &RingBroken) {
        if let Some(peer) = self.peer_at(index) {
            let id = peer.break_off(error);
            self.faults.broken.push(id);
        }
    }

    /// Takes the buffer to which a packet is copied out of a ring.
    #[inline]
    pub fn take_buffer(&mut self) -> Box<PacketBuffer> {
        self.buffer.take().unwrap_or_else(|| Box::new([0; _]))
    }

    /// Returns the buffer that [`take_buffer`](Self::take_buffer) took.
    #[inline]
    pub fn give_buffer(&mut self, buffer: Box<PacketBuffer>) {
        self.buffer = Some(buffer);
    }

    /// Adds a local peer that has just connected.
    pub fn connect(&mut self, process: Arc<PeerProcess>, reader: RingReader) {
        let index = process.id().index();
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(LocalPeer::new(process, reader));
        self.indices.push(index as u16);
    }

    /// Removes a peer that is gone and whose ring was read to its end, and returns the peer. Its
    /// access to our memory ends: revocations no longer wait for it.
    pub fn disconnect(&mut self, id: LocalPeerId, memory: &Memory) -> Option<LocalPeer> {
        self.peer(id)?;
        let mut peer = self.peers.get_mut(id.index())?.take();
        peer.iter_mut().for_each(|peer| peer.grants_mut().end(memory));
        self.indices.retain(|&index| usize::from(index) != id.index());
        self.by_slot.iter_mut().for_each(|known| *known = known.filter(|known| *known != id));
        for (pid, &slot) in peer.iter().flat_map(|p| p.slots.iter().map(|s| (p.pid(), s))) {
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
    pub fn set_owner(&mut self, slot: Slot, pid: u32) {
        self.owners[usize::from(slot.value())] = Some(pid);
        self.map(slot);
    }

    /// Notes the process slots that a peer says it has.
    pub fn set_slots(&mut self, id: LocalPeerId, slots: Vec<Slot>) {
        let Some(peer) = self.peer_mut(id) else { return };
        let pid = peer.pid();
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
        let has = |peer: &&LocalPeer| Some(peer.pid()) == owner && peer.slots.contains(&slot);
        let found = self.peers.iter().flatten().find(has);
        self.by_slot[at] = found.map(|peer| peer.id());
    }
}

//! One local peer, as the lane knows it: a process of this host, the rings to and from it, and the
//! grants.

use std::sync::Arc;

use vernic_io::host::Slot;
use vernic_proto::Time;
use vernic_wire::{Psn, Qpn};

use crate::grants::Grants;
use crate::process::{LocalPeerId, PeerProcess};
use crate::rendezvous::SenderMemory;
use crate::ring::{RingBroken, RingReader, RingWriter};

/// How long a queue pair waits for room in a full ring before packets to the ring are lost. It is
/// as long as UC and UD wait for room in a receiver's UDP socket.
pub(crate) const PATIENCE_NANOS: u64 = 100_000_000;

/// The delay before another try to wake a sleeping local peer, after the system had no memory for
/// the message that wakes it.
pub(crate) const WAKE_NANOS: u64 = 1_000_000;

/// How long UC and UD pause so that the peer takes all that was sent to it by UDP. This is longer
/// than the time after which packets that never arrived are no longer counted as under way
/// (`vernic_io::host::receiver_page`). If packets of other processes keep the peer busy for longer,
/// the next try comes after [`DRAIN_PAUSE_NANOS`].
const DRAIN_NANOS: u64 = 5_000_000;
/// The time after a pause of [`DRAIN_NANOS`] in vain until the next pause: one second.
const DRAIN_PAUSE_NANOS: u64 = 1_000_000_000;

/// A local peer: a process of this host that shares memory with this process.
#[derive(Debug)]
pub struct LocalPeer {
    process: Arc<PeerProcess>,
    /// The process slots that the peer says it has.
    pub(crate) slots: Vec<Slot>,
    pub(crate) ring: PeerRing,
    /// Access of the peer to our memory, and ours to the peer's.
    grants: Grants,
}

/// The rings to a local peer and from it.
#[derive(Debug)]
pub(crate) struct PeerRing {
    /// The ring from the peer; `None` once it is broken.
    pub(crate) reader: Option<RingReader>,
    /// The ring to the peer; `None` until the peer has said that it reads the ring, and once the
    /// ring is broken.
    pub(crate) writer: Option<RingWriter>,
    /// Whether packets of UC and UD to the peer go through the ring.
    datagrams: bool,
    /// Since when UC and UD pause to change to the ring.
    drains_since: Option<Time>,
    /// The time since which each attempt of a queue pair to write has found the ring full.
    pub(crate) full_since: Option<Time>,
}

/// The local peer from which the packets of a ring come, while the ring is read.
#[derive(Debug)]
pub struct RingSource<'a> {
    pub(crate) process: &'a PeerProcess,
    /// The process slots that the peer says it has.
    pub(crate) slots: &'a [Slot],
    pub(crate) owners: &'a [Option<u32>],
    pub(crate) found: &'a mut Vec<(Slot, u32)>,
    pub(crate) sender_memory: Option<&'a SenderMemory>,
}

impl<'a> RingSource<'a> {
    /// Returns the id of the peer.
    #[inline]
    pub fn id(&self) -> LocalPeerId {
        self.process.id()
    }

    /// Returns the peer's memory, if this process copies the payload of the peer's SENDs out of it.
    #[inline]
    pub fn sender_memory(&self) -> Option<&'a SenderMemory> {
        self.sender_memory
    }

    /// Whether the peer has the process slot of the queue pair `peer`. The peer's own statement is
    /// enough only until the kernel has reported the owner of the slot's socket.
    pub fn has(&self, peer: Qpn) -> bool {
        self.may_have(peer) && self.slots.contains(&Slot::of(peer))
    }

    /// Whether the peer may have the process slot of the queue pair `peer`, whatever it says: the
    /// kernel has not reported another process as the owner of the slot's socket. What a process
    /// sends from a new slot may come before it says that it has the slot.
    pub fn may_have(&self, peer: Qpn) -> bool {
        let owner = self.owners[usize::from(Slot::of(peer).value())];
        owner.is_none_or(|owner| owner == self.process.pid())
    }

    /// Notes that the process slot of the queue pair `peer` belongs to the process `pid` of this
    /// host, so that the background thread connects to it.
    pub fn found(&mut self, peer: Qpn, pid: u32) {
        self.found.push((Slot::of(peer), pid));
    }
}

impl LocalPeer {
    pub(crate) fn new(process: Arc<PeerProcess>, reader: RingReader) -> Self {
        let reader = Some(reader);
        let grants = Grants::new(process.clone());
        let ring = PeerRing {
            reader,
            writer: None,
            datagrams: false,
            drains_since: None,
            full_since: None,
        };
        Self { process, slots: Vec::new(), ring, grants }
    }

    /// Returns the peer's process.
    #[inline]
    pub fn process(&self) -> &Arc<PeerProcess> {
        &self.process
    }

    /// Returns the grants between this process and the peer.
    #[inline]
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns the grants between this process and the peer.
    #[inline]
    pub fn grants_mut(&mut self) -> &mut Grants {
        &mut self.grants
    }

    pub(crate) fn id(&self) -> LocalPeerId {
        self.process.id()
    }

    /// Returns the id of the peer's process; 0 if the process cannot be seen.
    #[inline]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the slots that the peer says it has.
    #[inline]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the sequence number before which the peer's queue pair `qpn` has received everything
    /// of our queue pair `by`, as the peer notes it; `None` if it has received nothing, or its ring
    /// is broken. The value stays readable when the peer's process is gone.
    pub fn received(&self, qpn: Qpn, by: Qpn) -> Option<Psn> {
        self.ring.reader.as_ref()?.page().received(qpn, by)
    }

    /// Whether UC and UD go through the ring.
    #[inline]
    pub fn takes_datagrams(&self) -> bool {
        self.ring.datagrams
    }

    /// Returns the parts that reading the peer's ring takes; `None` once the ring is broken.
    #[inline]
    pub(crate) fn reading(&mut self) -> Option<(&mut RingReader, &PeerProcess, &[Slot], &Grants)> {
        let Self { process, slots, ring, grants } = self;
        Some((ring.reader.as_mut()?, process, slots, grants))
    }

    #[cold]
    pub(crate) fn break_off(&mut self, error: &RingBroken) -> LocalPeerId {
        tracing::warn!(pid = self.pid(), %error, "a process of this host is cut off");
        (self.ring.reader, self.ring.writer) = (None, None);
        self.id()
    }
}

impl PeerRing {
    /// Whether UC and UD take the ring. If they do not yet, they begin to if `is_idle`: none of our
    /// packets is on its way to the peer by the link.
    #[inline]
    pub(crate) fn takes_datagrams(&mut self, now: Time, is_idle: impl FnOnce() -> bool) -> bool {
        self.datagrams || self.begins_datagrams(now, is_idle)
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

    /// Whether UC and UD pause until the peer has taken what was sent to it by UDP.
    #[inline]
    pub(crate) fn is_draining(&self, now: Time) -> bool {
        self.drains_since.is_some_and(|since| now.since(since) <= DRAIN_NANOS)
    }
}

/// Faults of local peers that the background thread has to handle.
#[derive(Debug, Default)]
pub(crate) struct RingFaults {
    /// Peers that broke the protocol of the ring, to be disconnected by the background thread.
    pub(crate) broken: Vec<LocalPeerId>,
    /// The time of the next try to wake sleeping peers that could not be woken; `None` if there are
    /// none.
    pub(crate) wake_at: Option<Time>,
}

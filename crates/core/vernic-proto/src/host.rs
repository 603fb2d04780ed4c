//! What a queue pair asks of the device around it.

use vernic_wire::{LocalRoute, Rkey, Srqn};

use crate::completion::Completion;
use crate::error::{AccessFault, Failure, Stall};
use crate::event::QpEvent;
use crate::state::QpAttr;
use crate::wqe::{RecvWqe, SendWqe};

/// A right that a remote operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomics.
    Atomic,
    /// FLUSH for global visibility.
    FlushGlobal,
    /// FLUSH for persistence.
    FlushPersistent,
}

/// An atomic on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if the value is `compare`.
    CmpSwap {
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// Add modulo 2^64.
    FetchAdd(u64),
}

/// Why a shared receive queue cannot be used by an XRC target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqFault {
    /// No XRC shared receive queue has the number.
    Unknown,
    /// It belongs to another XRC domain than the queue pair.
    WrongDomain,
}

/// The device around a queue pair: memory, receive queue, completion queues.
///
/// All calls are made from inside [`Qp`](crate::Qp)'s methods, on the caller's thread, and must not
/// block. Memory methods may touch memory that others change; the protocol never holds a reference
/// to it. The engine implements this over registered memory, the simulator over its oracle.
pub trait Host {
    /// Copies `buf.len()` bytes at `offset` of the send request in `slot` into `buf`.
    fn gather(&mut self, slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault>;

    /// Stores response data (READ, atomic) at `offset` of the send request in `slot`.
    fn scatter_response(&mut self, slot: u32, offset: u32, data: &[u8]) -> Result<(), AccessFault>;

    /// Carries out a local operation of the send queue: invalidate or bind.
    fn local_op(&mut self, wqe: &SendWqe) -> Result<(), AccessFault>;

    /// Whether the peer may do `need` on `len` bytes at `addr`. Zero bytes need no key (IBTA
    /// C9-88).
    fn check_remote(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault>;

    /// Stores bytes for a remote WRITE, checked again.
    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), AccessFault>;

    /// Fetches bytes for a remote READ, checked again.
    fn read_remote(&mut self, rkey: Rkey, addr: u64, buf: &mut [u8]) -> Result<(), AccessFault>;

    /// Carries out an atomic and returns the value before it. Values are host-endian.
    fn atomic(&mut self, rkey: Rkey, addr: u64, op: AtomicOp) -> Result<u64, AccessFault>;

    /// Stores 8 bytes at once for ATOMIC WRITE.
    fn atomic_write(&mut self, rkey: Rkey, addr: u64, data: [u8; 8]) -> Result<(), AccessFault>;

    /// Makes earlier WRITEs to the range visible, or persistent. 0 bytes ask for the whole region
    /// or window of the key, which is checked all the same.
    fn flush(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault>;

    /// Invalidates a key for SEND WITH INVALIDATE.
    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault>;

    /// On an XRC target: what follows is for this shared receive queue, until the next such call.
    /// Receives are taken from it, and remote keys must be of its protection domain (IBTA A14). A
    /// receive taken before stays the current one.
    fn select_srq(&mut self, srqn: Srqn) -> Result<(), SrqFault>;

    /// Takes the next receive off the queue (own or shared) and makes it the current one.
    fn take_recv(&mut self) -> Option<RecvWqe>;

    /// Receives that could be taken now, for end-to-end credits; `None` with a shared queue.
    fn recv_credits(&mut self) -> Option<u32>;

    /// Stores bytes at `offset` of the current receive.
    fn scatter_recv(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessFault>;

    /// Says in `buf` where `length` bytes of the send request in `slot` lie, from byte `offset` on,
    /// for the peer's [`pull_recv`](Self::pull_recv). Returns how many bytes that took; `None` if
    /// it cannot be said, and the payload must travel itself. Called only where
    /// [`Qp::set_rendezvous`](crate::Qp::set_rendezvous) permits a rendezvous; by default nothing
    /// can be said.
    fn name_payload(
        &mut self,
        slot: u32,
        offset: u32,
        length: u32,
        buf: &mut [u8],
    ) -> Result<Option<usize>, AccessFault> {
        let _ = (slot, offset, length, buf);
        Ok(None)
    }

    /// Copies the `length` bytes of payload of the part that is being handled
    /// ([`MessagePart::is_rendezvous`](crate::MessagePart)) out of the peer's memory to `offset` of
    /// the current receive. By default no peer's memory can be reached.
    fn pull_recv(&mut self, offset: u64, length: u32) -> Result<(), PullFault> {
        let _ = (offset, length);
        Err(PullFault::Unreachable)
    }

    /// Nanoseconds that the peer of a queue pair with these attributes is waited for though it does
    /// not answer: as long as that its process and its queue pair are known to be there, or 0.
    /// Asked when an ACK timeout has run out. By default nothing is known of the peer.
    fn live_peer_patience(&mut self, attr: &QpAttr) -> u64 {
        let _ = attr;
        0
    }

    /// The alternate path that was loaded last is the queue pair's path from now on: its packets
    /// leave by it, and come by it (IBTA 17.2.8). By default nothing has to change.
    fn change_path(&mut self) {}

    /// Whether packets by the alternate path have the same addresses as those by the path: the two
    /// differ in what no packet of the peer tells. By default they do not.
    fn is_alternate_alike(&mut self) -> bool {
        false
    }

    /// Completes every receive still on the queue pair's own queue as flushed.
    /// `current` says whether the current receive was taken and not completed.
    fn flush_recv(&mut self, current: Option<RecvWqe>);

    /// Delivers a completion of the send queue.
    fn complete_send(&mut self, completion: Completion);

    /// Delivers a completion of the receive queue.
    fn complete_recv(&mut self, completion: Completion);

    /// The queue pair has waited for its peer for two seconds, and goes on. Called once for each
    /// request that is waited for. By default nothing has to be done.
    fn stalled(&mut self, _stall: Stall) {}

    /// A congestion notification packet leaves. By default nothing has to be done.
    fn notification_sent(&mut self) {}

    /// Raises an asynchronous event of this queue pair.
    fn event(&mut self, event: QpEvent);

    /// Records why this queue pair failed. Called once, before the first failed completion.
    fn failure(&mut self, failure: Failure);
}

/// Why the payload of a rendezvous was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullFault {
    /// The receive's own scatter list is invalid.
    Local(AccessFault),
    /// The sender's memory cannot be reached: packets must bring the bytes.
    Unreachable,
    /// The sender has taken the bytes back: as if they had never come.
    Withdrawn,
}

/// ECN field of an IP header that a congested router has marked (RFC 3168).
pub(crate) const CONGESTION_EXPERIENCED: u8 = 3;

/// What the link knows about a received packet, beside its transport bytes.
#[derive(Clone, Copy, Debug)]
pub struct RxMeta {
    /// The 40 bytes for the GRH area of a datagram receive: an IPv6 header, or 20 bytes of zero and
    /// an IPv4 header. Built only for datagrams.
    pub grh: Option<[u8; 40]>,
    /// ECN field of the IP header, 0 to 3.
    pub ecn: u8,
    /// The way of a datagram, for `Completion::route`.
    pub route: LocalRoute,
    /// The packet is known to be the connected peer's by more than its sequence number. One that is
    /// not is never kept for later: of many guesses at the sequence, one would be ahead of a gap.
    pub is_peer: bool,
}

/// One packet written by [`Qp::poll_request`](crate::Qp::poll_request) or
/// [`Qp::poll_response`](crate::Qp::poll_response).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes written: BTH up to payload and pad, without the ICRC.
    pub len: usize,
    /// Destination of a datagram: the caller's address handle; `None` on connected services.
    pub ah: Option<u32>,
}

/// Defines [`QpCounters`] with the names of its fields.
macro_rules! qp_counters {
    ($($name:ident,)+) => {
        /// Counters of a queue pair, since its reset.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is what its name says")]
        pub struct QpCounters {
            $(pub $name: u64,)+
        }

        impl QpCounters {
            /// The names of the counters.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// Returns the values, in the order of [`NAMES`](Self::NAMES).
            pub fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),+].into_iter()
            }

            /// Returns the counter of a name; `None` if there is none.
            pub fn by_name(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)+
                    _ => None,
                }
            }
        }
    };
}

qp_counters! {
    tx_packets,
    tx_bytes,
    rx_packets,
    rx_bytes,
    retransmitted_packets,
    ack_timeouts,
    patient_timeouts,
    tail_probes,
    sequence_naks_received,
    sequence_naks_sent,
    implied_naks,
    rnr_naks_received,
    rnr_naks_sent,
    duplicates_received,
    acks_sent,
    acks_received,
    messages_sent,
    messages_received,
    ecn_marked_received,
    cnps_received,
    cnps_sent,
    packets_kept,
    kept_packets_handled,
}

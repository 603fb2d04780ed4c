//! One direction of a connection as the oracle knows it: the messages posted, and how far they
//! came.
//!
//! ```text
//!   msgs      0 ........ next_done ............. executed .......... emitted ....... posted
//!             | completed | executed by the peer | on the wire, or lost | waiting      |
//!   sequence              una                    exec                   high
//! ```
//! Which message and byte a sequence number stands for follows from the posts alone (RC), so every
//! packet and every access to memory can be checked against what must happen next. Extended numbers
//! count from the connection's first.
//!
//! Used by the host (what is executed), the wire check (what is sent), the completion check.

use std::collections::{BTreeSet, VecDeque};

use vernic_proto::{ErrorClass, SendFlags, SendOp, Time, WcStatus};
use vernic_wire::{Psn, Rkey};

use crate::cover::Count;

/// A deliberate mistake in a request, and so the failure that must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Bad {
    #[default]
    None,
    /// Local memory refuses from this payload offset on.
    Local(u32),
    /// Key, bounds, rights or domain at the peer.
    Key,
    /// An atomic at an odd address.
    Misaligned,
    /// The queue pair at the peer does not grant the right.
    QpRights,
    /// The key of a SEND WITH INVALIDATE, of a local invalidate or of a bind.
    Invalidate,
    /// The Q_Key of a datagram.
    Qkey,
    /// An XRC request for a shared receive queue that does not exist.
    UnknownSrq,
    /// An XRC request for a shared receive queue of another XRC domain.
    ForeignSrq,
}

/// A message: one send request.
#[derive(Debug)]
pub(crate) struct Msg {
    /// Number of its content.
    pub(crate) id: u64,
    pub(crate) op: SendOp,
    /// What it counts as.
    pub(crate) count: Count,
    pub(crate) flags: SendFlags,
    pub(crate) len: u32,
    /// First sequence number and how many (RC); unreliable services fill in `first` when sent.
    pub(crate) first: u64,
    pub(crate) packets: u32,
    pub(crate) bad: Bad,
    /// The peer's shared receive queue that it is for (XRC).
    pub(crate) queue: usize,
    /// What a READ must return: content number and offset.
    pub(crate) source: (u64, u64),
    /// What came back so far.
    pub(crate) sink: Vec<u8>,
    /// Value before an atomic, as executed.
    pub(crate) original: Option<u64>,
    /// The local operation was carried out.
    pub(crate) local_done: bool,
    /// Deliveries to the peer (unreliable services; at most the copies that the network made).
    pub(crate) delivered: u32,
    /// Copies of its last packet handed to the peer.
    pub(crate) copies: u32,
}

impl Msg {
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInv(_) | SendOp::BindMw(_))
    }
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read(_))
    }
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.op, SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. })
    }
    pub(crate) fn is_send(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_))
    }
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.op, SendOp::Write(_) | SendOp::WriteImm(..))
    }
    /// Whether its end takes a receive.
    pub(crate) fn takes_recv(&self) -> bool {
        self.is_send() || matches!(self.op, SendOp::WriteImm(..))
    }
    /// Bytes that come back.
    pub(crate) fn sink_len(&self) -> u32 {
        if self.is_read() {
            self.len
        } else if self.is_atomic() {
            8
        } else {
            0
        }
    }
    /// Whether the answer has come in whole, as the oracle saw it stored.
    pub(crate) fn is_answered(&self) -> bool {
        self.sink.len() >= self.sink_len() as usize
    }
    /// The key it presents to the peer.
    pub(crate) fn rkey(&self) -> Option<Rkey> {
        match self.op {
            SendOp::Write(remote)
            | SendOp::WriteImm(remote, _)
            | SendOp::Read(remote)
            | SendOp::AtomicWrite(remote)
            | SendOp::CmpSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::Flush { remote, .. } => Some(remote.rkey),
            SendOp::SendInv(rkey) => Some(rkey),
            _ => None,
        }
    }
    /// Payload bytes of packet `index` of a SEND or WRITE, and where they begin.
    pub(crate) fn piece(&self, index: u32, mtu: u32) -> (u32, u32) {
        if self.is_send() || self.is_write() {
            let offset = index * mtu;
            (offset, (self.len - offset).min(mtu))
        } else if matches!(self.op, SendOp::AtomicWrite(_)) {
            (0, 8)
        } else {
            (0, 0)
        }
    }
}

/// A receive of the application.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) capacity: u32,
    /// Its memory refuses.
    pub(crate) bad: bool,
    pub(crate) data: Vec<u8>,
}

/// A failure that this direction's responder found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) msg: usize,
    pub(crate) class: ErrorClass,
}

/// A range of the peer's write area.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    /// Message that writes there.
    pub(crate) writer: usize,
    /// Message whose completion frees it: the writer, or a READ of what it wrote.
    pub(crate) until: usize,
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) msgs: Vec<Msg>,
    /// First sequence number on the wire.
    pub(crate) base: Psn,
    /// Sequence number of the next post (RC).
    pub(crate) next_seq: u64,
    /// One past the highest sequence number sent.
    pub(crate) high: u64,
    /// One past the highest number that an answer has reached: the requester knows no more.
    pub(crate) acked: u64,
    /// Unreliable: message being sent and packet index in it.
    pub(crate) emit: (usize, u32),
    /// Next sequence number that the responder executes.
    pub(crate) exec: u64,
    /// Unreliable: one past the newest message delivered.
    pub(crate) delivered: usize,
    /// Requests the responder has finished: its MSN.
    pub(crate) msn: u32,
    /// Next message to complete at the requester.
    pub(crate) next_done: usize,
    /// First local operation not carried out.
    pub(crate) next_local: usize,
    /// READs and atomics sent and not answered.
    pub(crate) reads_out: u32,
    /// The first failed completion: message and status.
    pub(crate) failed: Option<(usize, WcStatus)>,
    /// Requests that the responder refused: the one that ended the connection, and READs whose
    /// answer could not be repeated.
    pub(crate) refusals: Vec<Refusal>,
    /// Losses and other disturbances since the connection began, and since the last success.
    pub(crate) trouble: u32,
    pub(crate) trouble_since: u32,
    /// A rendezvous failed, so that packets had to bring its payload.
    pub(crate) unreachable: bool,
    pub(crate) rnr_naks: u32,
    /// The packet under way is an RNR NAK.
    pub(crate) rnr_now: u32,
    pub(crate) rnr_until: Time,
    /// Whether the request was sent before that time, through the ring; and how often it was
    /// refused again.
    pub(crate) rnr_looks: (bool, u32),
    /// Packets that came ahead of a gap and may be kept, by their numbers.
    pub(crate) ahead: BTreeSet<u64>,
    pub(crate) rnr_seq: u64,
    pub(crate) last_wants_answer: bool,
    /// Unreliable: the message under assembly at the receiver, bytes so far, whether it is intact.
    pub(crate) assembly: Option<(usize, u32)>,
    /// Destination ranges in use, in order.
    pub(crate) ring: VecDeque<Range>,
    pub(crate) ring_head: u64,
}

impl Flow {
    pub(crate) fn new(base: Psn) -> Self {
        Self {
            msgs: Vec::new(),
            base,
            next_seq: 0,
            high: 0,
            acked: 0,
            emit: (0, 0),
            exec: 0,
            delivered: 0,
            msn: 0,
            next_done: 0,
            next_local: usize::MAX,
            reads_out: 0,
            failed: None,
            refusals: Vec::new(),
            trouble: 0,
            trouble_since: 0,
            unreachable: false,
            rnr_naks: 0,
            rnr_now: 0,
            rnr_until: Time(0),
            rnr_looks: (false, 0),
            ahead: BTreeSet::new(),
            rnr_seq: 0,
            last_wants_answer: true,
            assembly: None,
            ring: VecDeque::new(),
            ring_head: 0,
        }
    }

    /// The extended number nearest to `near` with this wire form; `None` before the first.
    pub(crate) fn extend(&self, psn: Psn, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(psn.offset_from(self.base.add(near as u32))))
    }

    /// The message that a sequence number belongs to.
    pub(crate) fn holding(&self, seq: u64) -> Option<usize> {
        let at = self.msgs.partition_point(|msg| msg.end() <= seq);
        (at < self.msgs.len()).then_some(at)
    }

    pub(crate) fn disturb(&mut self) {
        self.trouble += 1;
        self.trouble_since += 1;
    }

    /// Posted and not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.msgs.len() - self.next_done
    }
}

//! One end of a connection: its queue pair, and the device around it, which judges every access.

use vernic_proto::{
    AccessCheck, AccessFault, AddressVector, AtomicOp, Completion, Failure, Host, Qp, QpAttr,
    QpEvent, QpInit, QpType, RecvWqe, Remote, RemoteAccess, SendFlags, SendOp, SendWqe, SrqFault,
    Tag, Time, WcStatus,
};
use vernic_wire::{AckTimeout, Lid, PortNum, Psn, Qpn, Rkey, RnrTimer, Srqn};

use super::plan::{Message, Mutation, Plan};
use crate::content;
use crate::rng::mix;
use crate::steps::to_rts;

/// Number of the queue pair for host 0.
const FIRST_QPN: u32 = 0x100;
/// Requests of a queue pair at a time: as many as the longest burst.
pub(super) const SEND_SLOTS: u32 = 4;
/// Receives that are posted.
const RECEIVES: u32 = 8;
/// The key of what peers write to.
const RKEY: Rkey = Rkey(0x0A11_0A11);
/// Right to be written to, as of `ibv_access_flags`, with that of the owner.
const ACCESS: u32 = 3;
/// Packets under way of a queue pair.
const MAX_WINDOW: u32 = 16;
/// ACK timeout: 537 ms. Eight of them are more than a manager needs that has to find out first that
/// nodes do not answer any more, 0.8 s each time.
const TIMEOUT: u8 = 17;

/// What all hosts have received and completed.
#[derive(Debug)]
pub(super) struct Books {
    hosts: usize,
    /// Messages that a host has received from another one, by place `from * hosts + to`.
    received: Vec<u32>,
    /// Messages whose sends are complete, by the same place.
    completed: Vec<u32>,
    pub(super) total_received: u64,
    pub(super) total_completed: u64,
    pub(super) bytes: u64,
    /// The first violation.
    pub(super) violation: Option<String>,
    /// Chances until the deliberate fault strikes.
    pub(super) fuse: u32,
    pub(super) mutated: bool,
}

impl Books {
    pub(super) fn new(hosts: usize) -> Self {
        Self {
            hosts,
            received: vec![0; hosts * hosts],
            completed: vec![0; hosts * hosts],
            total_received: 0,
            total_completed: 0,
            bytes: 0,
            violation: None,
            fuse: 20,
            mutated: false,
        }
    }
    /// Records a violation, the first one.
    pub(super) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
    /// Returns whether the deliberate fault strikes here: once in a run.
    pub(super) fn mutates(&mut self, plan: &Plan, which: Mutation) -> bool {
        if plan.mutation != which || self.mutated {
            return false;
        }
        self.fuse = self.fuse.saturating_sub(1);
        self.mutated = self.fuse == 0;
        self.mutated
    }
    fn at(&self, from: u32, to: u32) -> usize {
        from as usize * self.hosts + to as usize
    }
    /// Returns the first pair of hosts of which a message is missing.
    pub(super) fn missing(&self, messages: u32) -> Option<(usize, usize, u32)> {
        let hosts = self.hosts;
        let is_pair = move |at: &usize| at / hosts != at % hosts;
        let at = (0..hosts * hosts).filter(is_pair).find(|at| self.received[*at] != messages)?;
        Some((at / hosts, at % hosts, self.received[at]))
    }
}

/// One end without its queue pair.
#[derive(Debug)]
struct Side {
    own: u32,
    peer: u32,
    posted: u32,
    /// Numbers of the messages in the send slots.
    slots: [u32; SEND_SLOTS as usize],
    taken: u32,
    /// Bytes of the message under way that have arrived.
    filled: u32,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: Qp,
    side: Side,
    /// Whether the end stands in its host's line of those that have something to send.
    pub(super) is_ready: bool,
    pub(super) response_next: bool,
    pub(super) timer_at: Option<Time>,
}

/// Returns the number of the queue pair for a peer.
pub(super) fn qpn_for(peer: u32) -> Qpn {
    Qpn::new(FIRST_QPN + peer)
}

/// Returns the peer that a queue pair is for.
pub(super) fn peer_of(qpn: Qpn) -> Option<u32> {
    qpn.value().checked_sub(FIRST_QPN)
}

impl End {
    /// Makes an end that is connected.
    pub(super) fn new(plan: &Plan, books: &mut Books, own: u32, peer: u32, dlid: Lid) -> Self {
        let init = QpInit {
            qpn: qpn_for(peer),
            qp_type: QpType::Rc,
            max_send_wr: SEND_SLOTS,
            max_window: MAX_WINDOW,
            shared_rq: false,
        };
        let psn = |from: u32, to: u32| {
            Psn::new(mix(plan.seed ^ u64::from(from) << 32 ^ u64::from(to)) as u32 & 0xFF_FFFF)
        };
        let av = AddressVector { dlid, port: PortNum(1), ..AddressVector::default() };
        let attr = QpAttr {
            path_mtu: plan.mtu,
            access: ACCESS,
            av,
            dest_qpn: qpn_for(own),
            rq_psn: psn(peer, own),
            sq_psn: psn(own, peer),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer::new(12),
            timeout: AckTimeout::new(TIMEOUT),
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let side = Side { own, peer, posted: 0, slots: Default::default(), taken: 0, filled: 0 };
        let mut end =
            Self { qp: Qp::new(init), side, is_ready: false, response_next: true, timer_at: None };
        for (state, mask) in to_rts() {
            let attr = QpAttr { state, ..attr };
            let made = end.with(plan, books, |qp, host| qp.modify(&attr, mask, Time(0), host));
            made.expect("attributes of a new queue pair are right");
        }
        end
    }
    /// Calls the queue pair with the device around it.
    pub(super) fn with<R>(
        &mut self,
        plan: &Plan,
        books: &mut Books,
        call: impl FnOnce(&mut Qp, &mut EndHost<'_>) -> R,
    ) -> R {
        let mut host = EndHost { side: &mut self.side, plan, books };
        call(&mut self.qp, &mut host)
    }
    /// Posts the next message. Returns whether there was room.
    pub(super) fn post(&mut self, plan: &Plan) -> bool {
        let number = self.side.posted;
        let message = Message::new(plan, self.side.own, self.side.peer, number);
        let op = if message.is_write {
            SendOp::WriteImm(Remote { addr: address(number), rkey: RKEY }, number)
        } else {
            SendOp::Send
        };
        let wqe = SendWqe {
            wr_id: u64::from(number),
            op,
            flags: SendFlags::SIGNALED,
            length: message.len,
            dest: None,
            srqn: None,
        };
        let Ok(slot) = self.qp.post_send(wqe) else { return false };
        self.side.slots[slot as usize] = number;
        self.side.posted += 1;
        true
    }
}

/// Returns where a message is written to.
fn address(number: u32) -> u64 {
    0x7A00_0000_0000 + (u64::from(number) << 20)
}

/// Everything that a queue pair reaches during one call.
pub(super) struct EndHost<'a> {
    side: &'a mut Side,
    plan: &'a Plan,
    books: &'a mut Books,
}

impl EndHost<'_> {
    /// Returns the message that the peer's packets belong to, with its number.
    fn incoming(&self) -> (u32, Message) {
        let Side { own, peer, .. } = *self.side;
        let number = self.books.received[self.books.at(peer, own)];
        (number, Message::new(self.plan, peer, own, number))
    }
    fn fail(&mut self, what: &str) {
        let Side { own, peer, .. } = *self.side;
        self.books.fail(format!("h{} with h{}: {what}", own + 1, peer + 1));
    }
    /// Takes bytes of the message under way.
    fn fill(&mut self, offset: u64, data: &[u8], is_write: bool) {
        let (number, message) = self.incoming();
        if number >= self.plan.messages {
            self.fail(&format!("{} bytes of a message that nobody has sent", data.len()));
        } else if message.is_write != is_write {
            self.fail(&format!("message {number} came as another kind"));
        } else if offset != u64::from(self.side.filled) {
            let filled = self.side.filled;
            self.fail(&format!("message {number}: bytes at {offset}, expected at {filled}"));
        } else if let Some(at) = content::mismatch(message.id, offset, data) {
            self.fail(&format!("message {number}: wrong byte at {}", offset + at as u64));
        }
        self.side.filled += data.len() as u32;
    }
    fn refuse<T>(&mut self, what: &str) -> Result<T, AccessFault> {
        self.fail(what);
        Err(AccessFault { check: AccessCheck::KeyUnknown, key: 0, addr: 0, len: 0 })
    }
}

impl Host for EndHost<'_> {
    fn gather(&mut self, slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        let number = self.side.slots[slot as usize];
        let message = Message::new(self.plan, self.side.own, self.side.peer, number);
        if u64::from(offset) + buf.len() as u64 > u64::from(message.len) {
            self.fail(&format!("message {number}: bytes beyond its end are sent"));
        }
        content::fill(message.id, u64::from(offset), buf);
        if !buf.is_empty() && self.books.mutates(self.plan, Mutation::WrongByte) {
            buf[buf.len() / 2] ^= 1;
        }
        Ok(())
    }
    fn scatter_response(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), AccessFault> {
        self.refuse("an answer with data, which nobody asked for")
    }
    fn local_op(&mut self, _: &SendWqe) -> Result<(), AccessFault> {
        self.refuse("a local operation that nobody has posted")
    }
    fn check_remote(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        let (number, message) = self.incoming();
        let is_right = (rkey, addr, len) == (RKEY, address(number), u64::from(message.len))
            && need == RemoteAccess::Write;
        if is_right { Ok(()) } else { self.refuse("a WRITE to where no message is due") }
    }
    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        if rkey != RKEY {
            return self.refuse("a WRITE with a wrong key");
        }
        let (number, _) = self.incoming();
        self.fill(addr.wrapping_sub(address(number)), data, true);
        Ok(())
    }
    fn read_remote(&mut self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), AccessFault> {
        self.refuse("a READ that nobody has posted")
    }
    fn atomic(&mut self, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        self.refuse("an atomic that nobody has posted")
    }
    fn atomic_write(&mut self, _: Rkey, _: u64, _: [u8; 8]) -> Result<(), AccessFault> {
        self.refuse("an ATOMIC WRITE that nobody has posted")
    }
    fn flush(&mut self, _: Rkey, _: u64, _: u64, _: RemoteAccess) -> Result<(), AccessFault> {
        self.refuse("a FLUSH that nobody has posted")
    }
    fn invalidate_remote(&mut self, _: Rkey) -> Result<(), AccessFault> {
        self.refuse("an invalidation that nobody has asked for")
    }
    fn select_srq(&mut self, _: Srqn) -> Result<(), SrqFault> {
        self.fail("a shared receive queue on a connection without one");
        Err(SrqFault::Unknown)
    }
    fn take_recv(&mut self) -> Option<RecvWqe> {
        let number = self.side.taken;
        self.side.taken += 1;
        Some(RecvWqe { wr_id: u64::from(number), capacity: u64::from(self.plan.max_len) })
    }
    fn recv_credits(&mut self) -> Option<u32> {
        Some(RECEIVES)
    }
    fn scatter_recv(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.fill(offset, data, false);
        Ok(())
    }
    fn flush_recv(&mut self, _: Option<RecvWqe>) {}
    fn complete_send(&mut self, completion: Completion) {
        let Side { own, peer, .. } = *self.side;
        let at = self.books.at(own, peer);
        let number = self.books.completed[at];
        if completion.status != WcStatus::Success {
            self.fail(&format!("message {number} completed with {:?}", completion.status));
        } else if completion.wr_id != u64::from(number) {
            self.fail(&format!("message {} completed before {number}", completion.wr_id));
        } else if self.books.received[at] <= number {
            self.fail(&format!("message {number} completed before it was received"));
        }
        self.books.completed[at] += 1;
        self.books.total_completed += 1;
    }
    fn complete_recv(&mut self, completion: Completion) {
        let Side { own, peer, filled, .. } = *self.side;
        let (number, message) = self.incoming();
        let tag = if message.is_write { Tag::Imm(number) } else { Tag::None };
        if completion.status != WcStatus::Success {
            self.fail(&format!("receive {number} completed with {:?}", completion.status));
        } else if number >= self.plan.messages {
            self.fail("more messages were received than sent");
        } else if (completion.wr_id, completion.tag) != (u64::from(number), tag) {
            let (wr_id, had) = (completion.wr_id, completion.tag);
            self.fail(&format!("receive {number} is {wr_id} with {had:?}, and not {tag:?}"));
        } else if (completion.byte_len, filled) != (message.len, message.len) {
            let (told, len) = (completion.byte_len, message.len);
            self.fail(&format!("message {number}: {filled} bytes, told {told}, sent {len}"));
        }
        let at = self.books.at(peer, own);
        self.books.received[at] += 1;
        self.books.total_received += 1;
        self.books.bytes += u64::from(message.len);
        self.side.filled = 0;
    }
    fn event(&mut self, event: QpEvent) {
        // The first packet from the peer is no news here: all ends are in RTS.
        if event != QpEvent::CommEstablished {
            self.fail(&format!("event {event:?}"));
        }
    }
    fn failure(&mut self, failure: Failure) {
        self.fail(&format!("{:?} at PSN {}: {}", failure.status, failure.psn, failure.cause));
    }
}

//! What this end's application sends: send requests become messages, messages become FPDUs (RFC
//! 5040, 5; RFC 5041, 5.2; RFC 7306, 5, 6).
//!
//! Owns how far the request under way has come, the message numbers, and which requests wait for
//! the connection to take their bytes or for the peer to answer. The queue itself is the
//! [`SendQueue`] of the other services; here its sequence counts messages.
//!
//! | request | messages |
//! |---|---|
//! | SEND, with invalidate | one, untagged, queue 0, in as many segments as it takes |
//! | RDMA WRITE | one, tagged |
//! | RDMA WRITE with immediate | that, and immediate data |
//! | RDMA READ, atomic | one of one segment, untagged, queue 1 |
//!
//! A SEND or WRITE is complete when the connection has taken its last byte: "DDP Message transfer
//! is considered completed when the reliable, in-order transport LLP has indicated that the
//! transfer will occur reliably" (RFC 5041, 5.4). Completions keep the order of the posts (RFC
//! 5040, 5.5 (15)).

use std::collections::VecDeque;

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    AtomicCode, AtomicRequest, Control, DdpHeader, Immediate, Msn, QueueNumber, RdmapOpcode,
    ReadRequest, Tagged, Untagged,
};

use super::agreed::RtrSet;
use super::asked::Asked;
pub(super) use super::asked::Expected;
use super::layout::{Fpdu, Item, Layout, Source};
use crate::cx::Cx;
use crate::error::{AccessFault, Cause, WcStatus};
use crate::host::{Host, QpCounters};
use crate::send_completion::{completion, retire};
use crate::sq::{Entry, SendQueue};
use crate::wqe::{Remote, SendFlags, SendOp, SendWqe};

/// Key of an RTR by WRITE or READ, which names nothing. Not 0: some hardware refuses that.
const RTR_STAG: Rkey = Rkey(1);

/// How far the request at the cursor has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    /// Payload bytes handed out.
    done: u32,
    /// The WRITE of a WRITE with immediate data is out.
    immediate: bool,
    /// Something of it is out.
    is_begun: bool,
}

/// A request whose last byte has been handed out.
#[derive(Clone, Copy, Debug)]
struct Finished {
    index: u64,
    /// Place in the stream behind its last byte.
    end: u64,
    /// It waits for an answer of its own.
    needs_answer: bool,
    answered: bool,
    /// Its number, if it is an untagged message.
    number: Option<(QueueNumber, Msn)>,
}

/// What the request at the cursor failed with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fatal {
    pub(super) status: WcStatus,
    pub(super) fault: AccessFault,
}

/// The sending side of one stream's requests.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) asked: Asked,
    progress: Progress,
    finished: VecDeque<Finished>,
    send_msn: Msn,
    read_msn: Msn,
    /// The request at the cursor met a local error and waits until those before it are complete.
    stuck: bool,
    /// Requests from this one on stay where they are: the stream is closing.
    until: Option<u64>,
    /// The ready-to-receive indication that is still to be sent.
    rtr: RtrSet,
}

impl Requester {
    pub(super) fn new(ord: u32, slots: u32, rtr: RtrSet) -> Self {
        Self {
            asked: Asked::new(ord),
            progress: Progress::default(),
            finished: VecDeque::with_capacity(slots as usize),
            send_msn: Msn::FIRST,
            read_msn: Msn::FIRST,
            stuck: false,
            until: None,
            rtr,
        }
    }

    /// Whether a message is in the middle: no other may come between its segments. A WRITE with
    /// immediate data is in the middle between its two messages, too, so that nothing comes
    /// between.
    pub(super) fn is_begun(&self) -> bool {
        self.progress.is_begun
    }
    /// Requests posted from now on stay in the queue.
    pub(super) fn close(&mut self, sq: &SendQueue) {
        self.until.get_or_insert(sq.tail());
    }
    /// Whether everything that is to be sent has been, and taken, and answered.
    pub(super) fn is_drained(&self, sq: &SendQueue) -> bool {
        let at_end = match sq.at_cursor() {
            Some((index, _)) => self.until.is_some_and(|until| index >= until),
            None => true,
        };
        at_end && self.rtr.is_empty() && self.finished.is_empty() && self.asked.is_empty()
    }

    /// Whether [`next`](Self::next) has something to send or carry out.
    pub(super) fn is_ready(&self, sq: &SendQueue) -> bool {
        if !self.rtr.is_empty() {
            return true;
        }
        match sq.at_cursor() {
            Some((index, entry)) => self.may_proceed(sq, index, entry),
            None => false,
        }
    }

    fn may_proceed(&self, sq: &SendQueue, index: u64, entry: &Entry) -> bool {
        if self.progress.is_begun {
            return true;
        }
        let fenced = entry.wqe.flags.contains(SendFlags::FENCE) && !self.asked.is_empty();
        let held = self.until.is_some_and(|until| index >= until);
        let stuck = self.stuck && !sq.cursor_is_head();
        !(held || fenced || stuck || entry.needs_response() && !self.asked.has_room())
    }

    /// The next FPDU of the application's requests, local operations carried out on the way.
    /// Nothing of it counts until it is [taken](Self::sent).
    pub(super) fn next(
        &mut self,
        sq: &mut SendQueue,
        layout: &Layout,
        host: &mut impl Host,
    ) -> Result<Option<Fpdu>, Fatal> {
        if let Some(fpdu) = self.next_rtr() {
            return Ok(Some(fpdu));
        }
        // Bounded: each round returns, or passes one local request of the queue.
        while let Some((index, &entry)) = sq.at_cursor() {
            if !self.may_proceed(sq, index, &entry) {
                return Ok(None);
            }
            if !entry.is_local() {
                return Ok(Some(self.fpdu(&entry.wqe, sq.slot(index), layout)));
            }
            match host.local_op(&entry.wqe) {
                // Started only now: one that failed is met again in its turn.
                Ok(()) => {
                    sq.start(0);
                    sq.advance(0);
                }
                Err(fault) => return self.local_error(sq, &entry, fault).map(|()| None),
            }
        }
        Ok(None)
    }

    /// A local error completes its request only after those before it: until then the queue stands,
    /// unless it stands in the middle of a message.
    pub(super) fn local_error(
        &mut self,
        sq: &SendQueue,
        entry: &Entry,
        fault: AccessFault,
    ) -> Result<(), Fatal> {
        if !sq.cursor_is_head() && !self.progress.is_begun {
            self.stuck = true;
            return Ok(());
        }
        let status = match entry.wqe.op {
            SendOp::BindMw(_) => WcStatus::MwBind,
            SendOp::LocalInv(_) => WcStatus::LocalQpOperation,
            _ => WcStatus::LocalProtection,
        };
        Err(Fatal { status, fault })
    }

    /// The ready-to-receive indication, if it is still to be sent.
    pub(super) fn next_rtr(&self) -> Option<Fpdu> {
        self.rtr.choice().map(|rtr| self.rtr_fpdu(rtr))
    }

    /// The ready-to-receive indication: "The RDMA connection initiator MUST NOT allow any later
    /// FULPDUs to be transmitted before the RTR indication" (RFC 6581, 5).
    fn rtr_fpdu(&self, rtr: RtrSet) -> Fpdu {
        if rtr == RtrSet::WRITE {
            let control = Control::new(RdmapOpcode::WRITE, true);
            let header = Tagged { control, stag: RTR_STAG, offset: 0 };
            return Fpdu::new(Item::Rtr, &DdpHeader::Tagged(header), &[], Source::None, 0);
        }
        if rtr == RtrSet::SEND {
            let header = self.untagged(RdmapOpcode::SEND, true, 0);
            return Fpdu::new(Item::Rtr, &header, &[], Source::None, 0);
        }
        let remote = Remote { addr: 0, rkey: RTR_STAG };
        self.read_fpdu(Item::Rtr, remote, 0)
    }

    fn read_fpdu(&self, item: Item, remote: Remote, size: u32) -> Fpdu {
        let mut rdmap = [0; ReadRequest::LEN];
        let request = ReadRequest {
            sink_stag: Rkey(self.asked.next_number()),
            sink_offset: 0,
            size,
            source_stag: remote.rkey,
            source_offset: remote.addr,
        };
        request.emit(&mut rdmap);
        let header = self.untagged(RdmapOpcode::READ_REQUEST, true, 0);
        Fpdu::new(item, &header, &rdmap, Source::None, 0)
    }

    fn untagged(&self, opcode: RdmapOpcode, last: bool, offset: u32) -> DdpHeader {
        let queue = opcode.info().and_then(|info| info.queue).unwrap_or_default();
        let msn = if queue == QueueNumber::SEND { self.send_msn } else { self.read_msn };
        let control = Control::new(opcode, last);
        DdpHeader::Untagged(Untagged { control, invalidate: Rkey(0), queue, msn, offset })
    }

    /// The next FPDU of a request.
    fn fpdu(&self, wqe: &SendWqe, slot: u32, layout: &Layout) -> Fpdu {
        let solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let send = |key: Option<Rkey>| self.send_fpdu(wqe, slot, solicited, key, layout);
        match wqe.op {
            SendOp::Write(remote) => self.write_fpdu(wqe, slot, remote, layout),
            SendOp::WriteImm(remote, _) if !self.progress.immediate => {
                self.write_fpdu(wqe, slot, remote, layout)
            }
            SendOp::WriteImm(_, imm) => {
                let mut rdmap = [0; Immediate::LEN];
                Immediate::of_verbs(imm).emit(&mut rdmap);
                let header = self.untagged(RdmapOpcode::immediate(solicited), true, 0);
                Fpdu::new(Item::Request, &header, &rdmap, Source::None, 0)
            }
            SendOp::Read(remote) | SendOp::ReadInv(remote, _) => {
                self.read_fpdu(Item::Request, remote, wqe.length)
            }
            SendOp::CmpSwap { remote, compare, swap } => {
                let masks = (u64::MAX, u64::MAX);
                self.atomic_fpdu(AtomicCode::CMP_SWAP, remote, swap, compare, masks)
            }
            // "The setting of the Add Mask field to 0x0000000000000000 results in Atomic Add of
            // 64-bit Original Remote Data Value and 64-bit Add Data" (RFC 7306, 5.1.1).
            SendOp::FetchAdd { remote, add } => {
                self.atomic_fpdu(AtomicCode::FETCH_ADD, remote, add, 0, (0, u64::MAX))
            }
            SendOp::SendInv(rkey) => send(Some(rkey)),
            // `post_send` takes no others.
            _ => send(None),
        }
    }

    fn send_fpdu(
        &self,
        wqe: &SendWqe,
        slot: u32,
        solicited: bool,
        invalidate: Option<Rkey>,
        layout: &Layout,
    ) -> Fpdu {
        let Progress { done, .. } = self.progress;
        let (len, last) = cut(wqe.length - done, layout, Untagged::LEN);
        let opcode = RdmapOpcode::send(solicited, invalidate.is_some());
        let mut header = self.untagged(opcode, last, done);
        if let DdpHeader::Untagged(header) = &mut header {
            header.invalidate = invalidate.unwrap_or_default();
        }
        Fpdu::new(Item::Request, &header, &[], source(slot, done, len), len)
    }

    fn write_fpdu(&self, wqe: &SendWqe, slot: u32, remote: Remote, layout: &Layout) -> Fpdu {
        let Progress { done, .. } = self.progress;
        let (len, last) = cut(wqe.length - done, layout, Tagged::LEN);
        let header = DdpHeader::Tagged(Tagged {
            control: Control::new(RdmapOpcode::WRITE, last),
            stag: remote.rkey,
            offset: remote.addr.wrapping_add(u64::from(done)),
        });
        Fpdu::new(Item::Request, &header, &[], source(slot, done, len), len)
    }

    fn atomic_fpdu(
        &self,
        code: AtomicCode,
        remote: Remote,
        data: u64,
        compare: u64,
        (mask, compare_mask): (u64, u64),
    ) -> Fpdu {
        let mut rdmap = [0; AtomicRequest::LEN];
        let request = AtomicRequest {
            reserved: 0,
            code,
            request_id: self.asked.next_number(),
            stag: remote.rkey,
            offset: remote.addr,
            data,
            mask,
            compare,
            compare_mask,
        };
        request.emit(&mut rdmap);
        let header = self.untagged(RdmapOpcode::ATOMIC_REQUEST, true, 0);
        Fpdu::new(Item::Request, &header, &rdmap, Source::None, 0)
    }

    /// The RTR that is still to be sent.
    pub(super) fn due_rtr(&self) -> Option<RtrSet> {
        self.rtr.choice()
    }

    /// An empty WRITE, which means nothing to a peer that had the RTR.
    pub(super) fn repeat_rtr(&mut self) {
        self.rtr = RtrSet::WRITE;
    }

    /// The RTR has been taken.
    pub(super) fn rtr_sent(&mut self) {
        match self.rtr.choice() {
            Some(rtr) if rtr == RtrSet::SEND => self.send_msn = self.send_msn.next(),
            Some(rtr) if rtr == RtrSet::READ => {
                self.read_msn = self.read_msn.next();
                self.asked.push_rtr();
            }
            _ => {}
        }
        self.rtr = RtrSet::empty();
    }

    /// The FPDU that [`next`](Self::next) made has been taken, with so many bytes of payload; `end`
    /// is the place in the stream behind it.
    pub(super) fn sent(
        &mut self,
        sq: &mut SendQueue,
        counters: &mut QpCounters,
        len: u32,
        end: u64,
    ) {
        let Some((index, &entry)) = sq.at_cursor() else { return };
        if !self.progress.is_begun {
            sq.start(1);
            self.stuck = false;
        }
        self.progress.is_begun = true;
        self.progress.done += len;
        let whole = entry.needs_response() || self.progress.done == entry.wqe.length;
        let is_write_imm = matches!(entry.wqe.op, SendOp::WriteImm(..));
        if !whole {
            return;
        }
        if is_write_imm && !self.progress.immediate {
            self.progress.immediate = true;
            return;
        }
        let number = self.count(&entry.wqe.op);
        if entry.needs_response() {
            self.asked.push(index, sq.slot(index), &entry.wqe);
        }
        let needs_answer = entry.needs_response();
        self.finished.push_back(Finished { index, end, needs_answer, answered: false, number });
        self.progress = Progress::default();
        counters.messages_sent += 1;
        sq.advance(1);
    }

    /// One more message of its queue.
    fn count(&mut self, op: &SendOp) -> Option<(QueueNumber, Msn)> {
        let (queue, msn) = match op {
            SendOp::Write(_) => return None,
            SendOp::Send | SendOp::SendInv(_) | SendOp::WriteImm(..) => {
                (QueueNumber::SEND, &mut self.send_msn)
            }
            _ => (QueueNumber::READ_REQUEST, &mut self.read_msn),
        };
        let number = *msn;
        *msn = number.next();
        Some((queue, number))
    }

    /// The oldest READ or atomic is answered.
    pub(super) fn answered(&mut self) {
        let Some(index) = self.asked.pop() else { return };
        // It was handed out whole before it could be answered.
        if let Some(finished) = self.finished.iter_mut().find(|one| one.index == index) {
            finished.answered = true;
        }
    }

    /// Completes what is finished, oldest first: taken by the connection up to `accepted`, or
    /// answered.
    pub(super) fn settle(
        &mut self,
        sq: &mut SendQueue,
        accepted: u64,
        cx: &Cx<'_>,
        host: &mut impl Host,
    ) {
        while let Some(oldest) = self.finished.front() {
            let done = if oldest.needs_answer { oldest.answered } else { oldest.end <= accepted };
            if !done {
                break;
            }
            self.finished.pop_front();
            sq.acknowledge(sq.una() + 1);
        }
        retire(sq, cx, host);
    }

    /// The request that an untagged message of this number belongs to, if it is not complete.
    pub(super) fn numbered(&self, sq: &SendQueue, queue: QueueNumber, msn: Msn) -> Option<u64> {
        let finished = self.finished.iter().find(|one| one.number == Some((queue, msn)));
        let at_cursor = || {
            let is_send = queue == QueueNumber::SEND && msn == self.send_msn;
            let begun = self.progress.is_begun && is_send;
            begun.then(|| sq.at_cursor().map(|(index, _)| index)).flatten()
        };
        finished.map(|one| one.index).or_else(at_cursor)
    }

    /// Completes every request as flushed, but for `failed`, which has a status of its own.
    pub(super) fn flush(
        &mut self,
        sq: &mut SendQueue,
        failed: Option<(u64, WcStatus, u32)>,
        cx: &Cx<'_>,
        host: &mut impl Host,
    ) {
        while let Some((index, _)) = sq.head() {
            let Some(entry) = sq.pop() else { break };
            let (status, code) = match failed {
                Some((failed, status, code)) if failed == index => (status, code),
                _ => (WcStatus::Flushed, Cause::Flushed.vendor_err()),
            };
            host.complete_send(completion(&entry, cx, status, code));
        }
        self.finished.clear();
        self.asked.clear();
        self.progress = Progress::default();
    }
}

/// Payload of the next segment, and whether it is the last: "The octet offset for each DDP Segment
/// of a Untagged DDP Message is the MO field"; "A zero-length DDP Message is allowed and MUST
/// consume exactly one DDP Segment" (RFC 5041, 5.2).
fn cut(left: u32, layout: &Layout, header: usize) -> (u32, bool) {
    let room = layout.max_ulpdu() - header as u32;
    (left.min(room), left <= room)
}

fn source(slot: u32, offset: u32, len: u32) -> Source {
    if len == 0 { Source::None } else { Source::Send { slot, offset } }
}

//! What one end knows: its memory, what it asked for, what it received, and what both must lead to.

use std::collections::VecDeque;
use std::fmt::Arguments;

use vernic_proto::{Completion, Failure, Remote, SendOp, Time, WcOpcode, WcStatus};
use vernic_wire::Rkey;

use super::plan::Mutation;
use super::tally::{Tally, Totals};
use crate::content;
use crate::memory::{Memory, access};

/// Bytes that the peer may write, and as many that it may read.
pub(crate) const AREA: u64 = 300_000;
/// 8-byte cells for atomics.
pub(crate) const CELLS: u64 = 4;
/// The protection domain of everything.
pub(crate) const PD: u32 = 1;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendInv,
    Write,
    WriteImm,
    Read,
    ReadInv,
    CmpSwap,
    FetchAdd,
}

/// All kinds, with what counts them.
pub(crate) const KINDS: [(Kind, Tally); 8] = [
    (Kind::Send, Tally::Send),
    (Kind::SendInv, Tally::SendInv),
    (Kind::Write, Tally::Write),
    (Kind::WriteImm, Tally::WriteImm),
    (Kind::Read, Tally::Read),
    (Kind::ReadInv, Tally::ReadInv),
    (Kind::CmpSwap, Tally::CmpSwap),
    (Kind::FetchAdd, Tally::FetchAdd),
];

impl Kind {
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadInv)
    }
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }
    pub(crate) fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendInv | Self::WriteImm)
    }
    fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendInv => WcOpcode::Send,
            Self::Write | Self::WriteImm => WcOpcode::Write,
            Self::Read | Self::ReadInv => WcOpcode::Read,
            Self::CmpSwap => WcOpcode::CmpSwap,
            Self::FetchAdd => WcOpcode::FetchAdd,
        }
    }
}

/// A request, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Msg {
    pub(crate) kind: Kind,
    pub(crate) op: SendOp,
    pub(crate) len: u32,
    pub(crate) remote: Remote,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// The peer must refuse it.
    pub(crate) bad: bool,
    /// Names the bytes that it carries.
    pub(crate) content: u64,
    /// Bytes fetched for sending.
    pub(crate) gathered: u32,
    /// Place in the stream behind its last byte of payload, once that was made.
    pub(crate) end: Option<u64>,
    /// Bytes of its answer that arrived.
    pub(crate) answered: u32,
    /// What the atomic found.
    pub(crate) found: Option<u64>,
    /// Carried out at the peer.
    pub(crate) finished: bool,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recv {
    pub(crate) index: u64,
    pub(crate) addr: u64,
    pub(crate) capacity: u64,
}

/// What all parts of a run share.
#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) now: Time,
    pub(crate) totals: Totals,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) mutation: Mutation,
    pub(crate) fuse: u32,
    pub(crate) mutated: bool,
    /// Something was injected: not everything need succeed.
    pub(crate) disturbed: bool,
    /// Bytes may be wrong: only safety is judged.
    pub(crate) lenient: bool,
}

impl Judge {
    /// Records a violation of a property; the first wins.
    pub(crate) fn fail(&mut self, what: Arguments<'_>) {
        if self.violation.is_none() {
            self.violation = Some(format!("at {:?}: {what}", self.now));
        }
    }

    pub(crate) fn say(&mut self, line: Arguments<'_>) {
        let now = self.now;
        if let Some(lines) = &mut self.trace {
            lines.push(format!("{:>12} {line}", format!("{now:?}")));
        }
    }

    /// Whether the deliberate fault `which` strikes here: once in a run.
    pub(crate) fn mutates(&mut self, which: Mutation) -> bool {
        if self.mutation != which || self.mutated {
            return false;
        }
        if self.fuse > 0 {
            self.fuse -= 1;
            return false;
        }
        self.mutated = true;
        self.say(format_args!("MUTATION {which:?}"));
        true
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) side: usize,
    pub(crate) memory: Memory,
    pub(crate) write_area: u64,
    pub(crate) write_key: Rkey,
    pub(crate) read_area: u64,
    pub(crate) read_key: Rkey,
    pub(crate) cells: u64,
    pub(crate) cells_key: Rkey,
    recv_area: u64,
    recv_capacity: u64,
    recv_ring: u64,
    /// Names the bytes of the area that is read.
    pub(crate) read_content: u64,
    /// Requests, in the order of the posts, and which one each slot holds.
    pub(crate) msgs: Vec<Msg>,
    pub(crate) slots: Vec<usize>,
    /// The next request that completes.
    pub(crate) next_done: usize,
    pub(crate) send_failed: bool,
    /// Bytes of the stream that the connection has taken.
    pub(crate) accepted: u64,
    pub(crate) receives: VecDeque<Recv>,
    pub(crate) current: Option<Recv>,
    pub(crate) recvs_posted: u64,
    pub(crate) recvs_done: u64,
    pub(crate) recv_failed: bool,
    /// The peer's request that is carried out next, and bytes of it that came.
    pub(crate) cursor: usize,
    pub(crate) done: u32,
    /// The peer's READs and atomics that are answered: bytes of the oldest.
    pub(crate) answer_cursor: usize,
    pub(crate) answer_done: u32,
    pub(crate) failure: Option<Failure>,
}

impl Books {
    pub(crate) fn new(side: usize, salt: u64, slots: u32, receives: u32, max_len: u32) -> Self {
        let mut memory = Memory::new(salt as u32);
        let write_area = memory.area(AREA as usize);
        let read_area = memory.area(AREA as usize);
        let cells = memory.area((CELLS * 8) as usize);
        let recv_capacity = u64::from(max_len);
        let recv_ring = u64::from(receives) + 1;
        let stride = recv_capacity.next_multiple_of(64);
        let recv_area = memory.area((stride * recv_ring) as usize);
        let write_key =
            memory.grant(PD, write_area, AREA, access::LOCAL_WRITE | access::REMOTE_WRITE);
        let read_key = memory.grant(PD, read_area, AREA, access::REMOTE_READ);
        let cells_key =
            memory.grant(PD, cells, CELLS * 8, access::LOCAL_WRITE | access::REMOTE_ATOMIC);
        let read_content = salt ^ 0xF00D << 40 ^ side as u64;
        let at = Memory::index(read_area);
        content::fill(read_content, 0, &mut memory.mem[at..at + AREA as usize]);
        content::fill(read_content, 0, &mut memory.model[at..at + AREA as usize]);
        Self {
            side,
            memory,
            write_area,
            write_key,
            read_area,
            read_key,
            cells,
            cells_key,
            recv_area,
            recv_capacity,
            recv_ring,
            read_content,
            msgs: Vec::new(),
            slots: vec![0; slots as usize],
            next_done: 0,
            send_failed: false,
            accepted: 0,
            receives: VecDeque::new(),
            current: None,
            recvs_posted: 0,
            recvs_done: 0,
            recv_failed: false,
            cursor: 0,
            done: 0,
            answer_cursor: 0,
            answer_done: 0,
            failure: None,
        }
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&mut self) {
        let index = self.recvs_posted;
        let stride = self.recv_capacity.next_multiple_of(64);
        let addr = self.recv_area + index % self.recv_ring * stride;
        self.receives.push_back(Recv { index, addr, capacity: self.recv_capacity });
        self.recvs_posted += 1;
    }

    /// Receives that were posted and have not completed.
    pub(crate) fn recvs_outstanding(&self) -> u64 {
        self.recvs_posted - self.recvs_done
    }

    /// Whether every request has completed.
    pub(crate) fn is_done(&self) -> bool {
        self.next_done == self.msgs.len()
    }

    /// A send request completes.
    pub(crate) fn complete_send(&mut self, judge: &mut Judge, completion: &Completion) {
        let side = self.side;
        let index = completion.wr_id as usize;
        let good = completion.status == WcStatus::Success;
        judge.say(format_args!("{side}: request {index} completes: {}", completion.status));
        let Some(&msg) = self.msgs.get(index).filter(|_| index >= self.next_done) else {
            return judge
                .fail(format_args!("{side}: request {index} completes again, or never was"));
        };
        let silent = &self.msgs[self.next_done..index];
        if silent.iter().any(|msg| msg.signaled || self.send_failed) {
            judge.fail(format_args!("{side}: request {index} completes before earlier ones"));
        }
        // Unsignaled ones before it are as complete as it is; those that fail are never silent.
        let range = if good { self.next_done..index + 1 } else { index..index + 1 };
        for at in range {
            self.check_success(judge, at, good);
        }
        judge.totals.hit(match completion.status {
            WcStatus::Success => Tally::Success,
            WcStatus::Flushed => Tally::Flushed,
            _ => Tally::Failed,
        });
        if good {
            if self.send_failed || !msg.signaled {
                judge.fail(format_args!(
                    "{side}: request {index} succeeds after a failure, or unasked"
                ));
            }
            let len = if msg.kind.is_atomic() { 8 } else { msg.len };
            let counts = msg.kind.is_read() || msg.kind.is_atomic();
            if completion.opcode != msg.kind.wc_opcode() || counts && completion.byte_len != len {
                judge.fail(format_args!("{side}: {msg:?} completes as {completion:?}"));
            }
        }
        self.send_failed |= !good;
        self.next_done = index + 1;
    }

    /// What the success of a request promises.
    fn check_success(&self, judge: &mut Judge, index: usize, good: bool) {
        let (side, msg) = (self.side, &self.msgs[index]);
        if !good {
            return;
        }
        let asks = msg.kind.is_read() || msg.kind.is_atomic();
        let has = if asks {
            msg.answered == msg.len
        } else {
            msg.gathered == msg.len && msg.end.is_none_or(|end| end <= self.accepted)
        };
        if !has && !judge.lenient {
            judge.fail(format_args!("{side}: request {index} succeeds too early: {msg:?}"));
        }
        if msg.bad && asks {
            judge.fail(format_args!("{side}: request {index} succeeds and must not: {msg:?}"));
        }
    }
}

//! The device around a queue pair: [`vernic_proto::Host`] over the oracle's memory. Every access is
//! compared with what the peer's request that is due must do.

use vernic_proto::iwarp::StreamEnd as End;
use vernic_proto::{
    AccessCheck, AccessFault, AtomicOp, Cause, Completion, Failure, Host, QpEvent, RecvWqe,
    RemoteAccess, SendOp, SendWqe, SrqFault, Tag, WcOpcode, WcStatus,
};
use vernic_wire::{Qpn, Rkey, Srqn};

use super::books::{Books, Judge, Kind, Msg, PD};
use super::plan::Mutation;
use super::tally::Tally;
use crate::content;
use crate::memory::{Asker, Memory};

/// Everything that a queue pair reaches during one call.
pub(crate) struct StreamHost<'a> {
    pub(crate) own: &'a mut Books,
    pub(crate) peer: &'a mut Books,
    pub(crate) judge: &'a mut Judge,
}

/// Number of the queue pair of an end.
pub(crate) fn qpn(side: usize) -> Qpn {
    Qpn::new(0x100 + side as u32)
}

/// Whether a request leaves no trace at the peer's host, so that it counts as carried out when the
/// next one is.
fn is_traceless(msg: &Msg) -> bool {
    msg.len == 0 && (msg.kind == Kind::Write || msg.kind.is_read())
}

impl StreamHost<'_> {
    /// The peer's request that must be carried out now, if `wanted` is what it is.
    fn due(&mut self, what: &str, wanted: impl Fn(&Msg) -> bool) -> Option<usize> {
        let Books { cursor, done, side, .. } = self.own;
        while let Some(msg) = self.peer.msgs.get_mut(*cursor) {
            msg.finished |= is_traceless(msg);
            if !msg.finished {
                break;
            }
            (*cursor, *done) = (*cursor + 1, 0);
        }
        let msg = self.peer.msgs.get(*cursor);
        if msg.is_some_and(wanted) {
            return Some(*cursor);
        }
        if !self.judge.lenient {
            let side = *side;
            self.judge.fail(format_args!("{side}: {what}, but request {cursor} is due: {msg:?}"));
        }
        None
    }

    /// Bytes of the peer's request `index` came. Returns whether they are the right ones.
    fn came(&mut self, index: usize, data: &[u8]) {
        let (msg, done, side) = (&self.peer.msgs[index], self.own.done, self.own.side);
        if let Some(at) = content::mismatch(msg.content, u64::from(done), data)
            && !self.judge.lenient
        {
            let at = done as usize + at;
            self.judge.fail(format_args!("{side}: byte {at} of request {index} is wrong: {msg:?}"));
        }
        self.own.done += data.len() as u32;
    }

    fn asker(&self) -> Asker {
        Asker { qpn: qpn(self.own.side), pd: PD }
    }

    /// Stores what came; the model gets what should have come.
    fn store(&mut self, addr: u64, data: &[u8], right: Option<(u64, u64)>, spoil: Mutation) {
        let at = Memory::index(addr);
        let range = at..at + data.len();
        let memory = &mut self.own.memory;
        memory.mem[range.clone()].copy_from_slice(data);
        match right.filter(|_| !self.judge.lenient) {
            Some((id, offset)) => content::fill(id, offset, &mut memory.model[range]),
            None => memory.model[range].copy_from_slice(data),
        }
        if !data.is_empty() && self.judge.mutates(spoil) {
            self.own.memory.mem[at] ^= 0x10;
        }
    }
}

impl Host for StreamHost<'_> {
    fn gather(&mut self, slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        let index = self.own.slots[slot as usize];
        let side = self.own.side;
        let msg = &mut self.own.msgs[index];
        if offset != msg.gathered || offset + buf.len() as u32 > msg.len {
            self.judge.fail(format_args!("{side}: bytes from {offset} fetched for {msg:?}"));
        }
        content::fill(msg.content, u64::from(offset), buf);
        msg.gathered += buf.len() as u32;
        Ok(())
    }

    fn scatter_response(&mut self, slot: u32, offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        let index = self.own.slots[slot as usize];
        let (side, lenient) = (self.own.side, self.judge.lenient);
        let msg = &mut self.own.msgs[index];
        let fits = offset == msg.answered && offset + data.len() as u32 <= msg.len;
        let right = match msg.kind {
            kind if kind.is_atomic() => msg.found.is_some_and(|value| value.to_ne_bytes() == *data),
            _ => {
                let from = msg.remote.addr - self.peer.read_area + u64::from(offset);
                content::mismatch(self.peer.read_content, from, data).is_none()
            }
        };
        if !fits || !right && !lenient {
            self.judge.fail(format_args!("{side}: a wrong answer at {offset} to {msg:?}"));
        }
        msg.answered += data.len() as u32;
        Ok(())
    }

    fn local_op(&mut self, wqe: &SendWqe) -> Result<(), AccessFault> {
        let SendOp::LocalInv(key) = wqe.op else { return Ok(()) };
        if !self.own.memory.revoke(key) {
            let side = self.own.side;
            self.judge.fail(format_args!("{side}: {key:?} is invalidated again, or never was"));
        }
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.own.memory.check(self.asker(), rkey, addr, len, need)?;
        if need == RemoteAccess::Read {
            let due = self.due("a READ", |msg| {
                msg.kind.is_read() && msg.remote.addr == addr && u64::from(msg.len) == len
            });
            if let Some(index) = due {
                self.peer.msgs[index].finished = true;
            }
        }
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        let asker = self.asker();
        self.own.memory.check(asker, rkey, addr, data.len() as u64, RemoteAccess::Write)?;
        let due = self.due("a WRITE", |msg| matches!(msg.kind, Kind::Write | Kind::WriteImm));
        let done = u64::from(self.own.done);
        let mut right = None;
        if let Some(index) = due {
            let msg = &self.peer.msgs[index];
            if (addr != msg.remote.addr + done || rkey != msg.remote.rkey) && !self.judge.lenient {
                self.judge.fail(format_args!("a WRITE to {addr:#x} for {msg:?} after {done}"));
            }
            right = Some((msg.content, done));
            self.came(index, data);
            let msg = &mut self.peer.msgs[index];
            msg.finished |= msg.kind == Kind::Write && self.own.done >= msg.len;
        }
        self.store(addr, data, right, Mutation::LostByte);
        let is_last = due.is_some_and(|index| self.own.done == self.peer.msgs[index].len);
        if is_last && !data.is_empty() && self.judge.mutates(Mutation::OverlongWrite) {
            self.own.memory.mem[Memory::index(addr) + data.len()] ^= 1;
        }
        Ok(())
    }

    fn read_remote(&mut self, rkey: Rkey, addr: u64, buf: &mut [u8]) -> Result<(), AccessFault> {
        let asker = self.asker();
        self.own.memory.check(asker, rkey, addr, buf.len() as u64, RemoteAccess::Read)?;
        let at = Memory::index(addr);
        buf.copy_from_slice(&self.own.memory.mem[at..at + buf.len()]);
        if self.judge.lenient {
            return Ok(());
        }
        let Books { answer_cursor, answer_done, side, .. } = self.own;
        let owed = |msg: &Msg| msg.kind.is_read() && msg.len > 0;
        while let Some(msg) = self.peer.msgs.get(*answer_cursor)
            && (!owed(msg) || *answer_done == msg.len)
        {
            (*answer_cursor, *answer_done) = (*answer_cursor + 1, 0);
        }
        let msg = self.peer.msgs.get(*answer_cursor);
        let right = |msg: &Msg| {
            let due = msg.remote.addr + u64::from(*answer_done);
            msg.finished && addr == due && *answer_done + buf.len() as u32 <= msg.len
        };
        if !msg.is_some_and(right) {
            let side = *side;
            self.judge.fail(format_args!("{side}: answers from {addr:#x}, but {msg:?} is due"));
        }
        *answer_done += buf.len() as u32;
        Ok(())
    }

    fn atomic(&mut self, rkey: Rkey, addr: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        self.own.memory.check(self.asker(), rkey, addr, 8, RemoteAccess::Atomic)?;
        let old = self.own.memory.load_u64(addr);
        let new = match op {
            AtomicOp::CmpSwap { compare, swap } if compare == old => swap,
            AtomicOp::CmpSwap { .. } => old,
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
        };
        let due = self.due("an atomic", |msg| {
            msg.remote.addr == addr
                && match (msg.op, op) {
                    (SendOp::CmpSwap { compare, swap, .. }, AtomicOp::CmpSwap { .. }) => {
                        op == AtomicOp::CmpSwap { compare, swap }
                    }
                    (SendOp::FetchAdd { add, .. }, AtomicOp::FetchAdd(_)) => {
                        op == AtomicOp::FetchAdd(add)
                    }
                    _ => false,
                }
        });
        if let Some(index) = due {
            let msg = &mut self.peer.msgs[index];
            (msg.finished, msg.found) = (true, Some(old));
        }
        self.own.memory.store_u64(addr, new);
        Ok(if self.judge.mutates(Mutation::WrongAtomic) { old ^ 1 } else { old })
    }

    fn atomic_write(&mut self, rkey: Rkey, addr: u64, _: [u8; 8]) -> Result<(), AccessFault> {
        Err(AccessFault { check: AccessCheck::Kind, key: rkey.value(), addr, len: 8 })
    }

    fn flush(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        _: RemoteAccess,
    ) -> Result<(), AccessFault> {
        Err(AccessFault { check: AccessCheck::Kind, key: rkey.value(), addr, len })
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        if !self.own.memory.revoke(rkey) {
            return Err(AccessFault {
                check: AccessCheck::KeyStale,
                key: rkey.value(),
                addr: 0,
                len: 0,
            });
        }
        self.due("SEND with invalidate", |msg| msg.op == SendOp::SendInv(rkey));
        Ok(())
    }

    fn select_srq(&mut self, _: Srqn) -> Result<(), SrqFault> {
        Err(SrqFault::Unknown)
    }

    fn take_recv(&mut self) -> Option<RecvWqe> {
        let recv = self.own.receives.pop_front();
        if let (Some(_), Some(current)) = (recv, self.own.current) {
            let side = self.own.side;
            self.judge.fail(format_args!("{side}: a receive is taken while {current:?} is filled"));
        }
        self.own.current = recv;
        recv.map(|recv| RecvWqe { wr_id: recv.index, capacity: recv.capacity })
    }

    fn recv_credits(&mut self) -> Option<u32> {
        None
    }

    fn scatter_recv(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessFault> {
        let side = self.own.side;
        let Some(recv) = self.own.current else {
            self.judge.fail(format_args!("{side}: bytes for a receive that was not taken"));
            return Ok(());
        };
        let due = self.due("a SEND", |msg| matches!(msg.kind, Kind::Send | Kind::SendInv));
        let mut right = None;
        if let Some(index) = due {
            let done = u64::from(self.own.done);
            right = Some((self.peer.msgs[index].content, done));
            if offset != done && !self.judge.lenient {
                self.judge.fail(format_args!("{side}: bytes at {offset} of a SEND after {done}"));
            }
            self.came(index, data);
        }
        if offset + data.len() as u64 > recv.capacity {
            self.judge.fail(format_args!("{side}: {offset} and {} for {recv:?}", data.len()));
            return Ok(());
        }
        self.store(recv.addr + offset, data, right, Mutation::LostByteOfReceive);
        Ok(())
    }

    fn flush_recv(&mut self, current: Option<RecvWqe>) {
        let had = self.own.current.take();
        if had.map(|recv| recv.index) != current.map(|wqe| wqe.wr_id) {
            let side = self.own.side;
            self.judge.fail(format_args!("{side}: flush of {current:?} while {had:?} is filled"));
        }
        self.own.recvs_done += u64::from(had.is_some()) + self.own.receives.len() as u64;
        self.own.receives.clear();
    }

    fn complete_send(&mut self, completion: Completion) {
        if self.judge.mutates(Mutation::LostCompletion) {
            return;
        }
        self.own.complete_send(self.judge, &completion);
        if self.judge.mutates(Mutation::RepeatedCompletion) {
            self.own.complete_send(self.judge, &completion);
        }
    }

    fn complete_recv(&mut self, completion: Completion) {
        let side = self.own.side;
        self.own.recvs_done += 1;
        let recv = self.own.current.take();
        if recv.map(|recv| recv.index) != Some(completion.wr_id) || self.own.recv_failed {
            self.judge.fail(format_args!("{side}: {completion:?} while {recv:?} is filled"));
        }
        if completion.status != WcStatus::Success {
            self.own.recv_failed = true;
            return;
        }
        self.judge.totals.hit(Tally::Received);
        let Some(index) = self.due("a receive completes", |msg| msg.kind.takes_receive()) else {
            return;
        };
        let done = self.own.done;
        let msg = &mut self.peer.msgs[index];
        let (opcode, tag) = match msg.op {
            SendOp::WriteImm(_, imm) => (WcOpcode::RecvWriteImm, Tag::Imm(imm)),
            SendOp::SendInv(key) => (WcOpcode::Recv, Tag::Invalidated(key)),
            _ => (WcOpcode::Recv, Tag::None),
        };
        let wanted = (opcode, tag, msg.len, msg.len, msg.solicited);
        let Completion { opcode, tag, byte_len, solicited, .. } = completion;
        msg.finished = true;
        if wanted != (opcode, tag, byte_len, done, solicited) && !self.judge.lenient || msg.bad {
            self.judge.fail(format_args!("{side}: {completion:?} after {done} bytes of {msg:?}"));
        }
        self.check_received(index, recv.map(|recv| recv.addr));
    }

    fn event(&mut self, event: QpEvent) {
        let side = self.own.side;
        self.judge.say(format_args!("{side}: event {event:?}"));
    }

    fn failure(&mut self, failure: Failure) {
        let side = self.own.side;
        self.judge.say(format_args!("{side}: failed: {}", failure.cause));
        if let Some(first) = self.own.failure {
            self.judge.fail(format_args!("{side}: fails again: {first:?}, {failure:?}"));
        }
        self.judge.totals.hit(match failure.cause {
            Cause::Terminated { .. } => Tally::Terminated,
            Cause::ConnectionLost(End::TimedOut | End::Stalled) => Tally::TimedOut,
            Cause::ConnectionLost(_) => Tally::Lost,
            _ => Tally::Violations,
        });
        self.own.failure = Some(failure);
        if !self.judge.disturbed {
            self.judge.fail(format_args!("{side}: fails for nothing: {}", failure.cause));
        }
    }
}

impl StreamHost<'_> {
    /// A receive that has completed holds the bytes that were sent.
    fn check_received(&mut self, index: usize, addr: Option<u64>) {
        let msg = &self.peer.msgs[index];
        let Some(addr) = addr.filter(|_| msg.kind != Kind::WriteImm && !self.judge.lenient) else {
            return;
        };
        let at = Memory::index(addr);
        let bytes = &self.own.memory.mem[at..at + msg.len as usize];
        if let Some(byte) = content::mismatch(msg.content, 0, bytes) {
            let side = self.own.side;
            self.judge.fail(format_args!("{side}: byte {byte} of the receive is wrong: {msg:?}"));
        }
    }
}

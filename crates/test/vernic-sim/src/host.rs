//! The device around a simulated queue pair: [`vernic_proto::Host`] over the oracle's memory.
//!
//! Every access is compared with what the message under way must do; what a packet did in all is
//! kept in [`Effects`](crate::side::Effects) and judged by [`crate::judge`] against the
//! disposition. Called by the queue pair; calls the memory, the flows and the completion check.

use vernic_proto::{
    AccessCheck, AccessFault, AtomicOp, Cause, Completion, Failure, Host, PullFault, QpAttr,
    QpEvent, RecvWqe, RemoteAccess, SendOp, SendWqe, SrqFault,
};
use vernic_wire::{Rkey, Service, Srqn};

use crate::complete;
use crate::content;
use crate::cover::Count;
use crate::ctx::fail;
use crate::flow::Bad;
use crate::memory::{Asker, Grant, Memory};
use crate::parts::Named;
use crate::plan::Mutation;
use crate::rng::mix;
use crate::side::{Offer, Pulled, SimHost};
use crate::xrc::{FOREIGN, QUEUES, is_reliable, queue_of};

impl SimHost<'_> {
    fn asker(&self) -> Asker {
        Asker { qpn: self.st.qpn, pd: self.st.pd }
    }

    fn access(
        &mut self,
        key: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        let checked = self.memory.check(self.asker(), key, addr, len, need);
        if let Err(fault) = checked {
            self.st.fx.refused = Some(fault.check);
        }
        checked
    }

    fn local_fault(&self, len: u64) -> AccessFault {
        AccessFault { check: AccessCheck::KeyStale, key: 0, addr: 0, len }
    }

    /// Stores `data` in memory, and what the message under way must have there in the model.
    fn store(&mut self, addr: u64, data: &[u8]) {
        let at = Memory::index(addr);
        self.memory.mem[at..at + data.len()].copy_from_slice(data);
        if self.ctx.mutates(Mutation::LostByte) && !data.is_empty() {
            self.memory.mem[at] ^= 1;
        }
        let ends = self.st.piece.is_none_or(|piece| piece.last);
        if ends && self.ctx.mutates(Mutation::OverlongWrite) {
            self.memory.mem[at + data.len()] ^= 1;
        }
        if self.st.lenient {
            self.memory.model[at..at + data.len()].copy_from_slice(data);
            return;
        }
        let Some(piece) = self.st.piece else {
            fail!(
                self.ctx,
                "{} bytes written at {addr:#x} by a packet that must not write",
                data.len()
            );
            return;
        };
        let msg = &self.inn.msgs[piece.msg];
        let offset = piece.offset + self.st.fx.written;
        let base = match msg.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) | SendOp::AtomicWrite(remote) => {
                remote.addr
            }
            _ => {
                fail!(self.ctx, "message {} is no WRITE and wrote at {addr:#x}", piece.msg);
                return;
            }
        };
        if addr != base + u64::from(offset) {
            fail!(
                self.ctx,
                "message {} offset {offset} written at {addr:#x}, not {:#x}",
                piece.msg,
                base + u64::from(offset)
            );
        }
        if let Some(at) = content::mismatch(msg.id, u64::from(offset), data) {
            fail!(
                self.ctx,
                "message {}: wrong byte written at offset {}",
                piece.msg,
                offset as usize + at
            );
        }
        content::fill(msg.id, u64::from(offset), &mut self.memory.model[at..at + data.len()]);
        self.st.fx.written += data.len() as u32;
    }

    /// Stores `len` bytes in the current receive.
    fn fill_recv(
        &mut self,
        offset: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), AccessFault> {
        let fault = self.local_fault(len as u64);
        let Some(recv) = &mut self.st.current else {
            fail!(self.ctx, "bytes stored into a receive that was not taken");
            return Ok(());
        };
        if recv.bad && len > 0 {
            return Err(fault);
        }
        let end = offset as usize + len;
        if end > recv.capacity as usize {
            fail!(self.ctx, "receive bytes {offset}..{end} stored where {} fit", recv.capacity);
            return Ok(());
        }
        if end > recv.data.len() {
            recv.data.resize(end, 0);
        }
        fill(&mut recv.data[offset as usize..end]);
        if self.ctx.mutates(Mutation::LostByteOfReceive) && len > 0 {
            recv.data[offset as usize] ^= 1;
        }
        self.st.fx.scattered += len as u32;
        Ok(())
    }
}

impl Host for SimHost<'_> {
    fn gather(&mut self, slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        let index = self.st.slots[slot as usize];
        let Some(msg) = self.out.msgs.get(index) else {
            fail!(self.ctx, "gather from slot {slot}, which holds no request");
            return Err(self.local_fault(buf.len() as u64));
        };
        let end = u64::from(offset) + buf.len() as u64;
        let whole = if matches!(msg.op, SendOp::AtomicWrite(_)) { 8 } else { u64::from(msg.len) };
        if end > whole {
            fail!(
                self.ctx,
                "gather of bytes {offset}..{end} from message {index} of {whole} bytes"
            );
        }
        if let Bad::Local(from) = msg.bad
            && end > u64::from(from)
        {
            return Err(self.local_fault(buf.len() as u64));
        }
        content::fill(msg.id, u64::from(offset), buf);
        self.st.gathered = Some((index, end));
        Ok(())
    }

    fn scatter_response(&mut self, slot: u32, offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        let index = self.st.slots[slot as usize];
        if index < self.out.next_done {
            fail!(self.ctx, "response stored into message {index}, which is complete");
        }
        let Some(msg) = self.out.msgs.get_mut(index) else {
            fail!(self.ctx, "response stored into slot {slot}, which holds no request");
            return Ok(());
        };
        let end = offset as usize + data.len();
        if matches!(msg.bad, Bad::Local(from) if end > from as usize) {
            return Err(self.local_fault(data.len() as u64));
        }
        if end > msg.sink_len() as usize || offset as usize > msg.sink.len() {
            fail!(
                self.ctx,
                "response bytes {offset}..{end} for message {index} ({} bytes, {} there)",
                msg.sink_len(),
                msg.sink.len()
            );
            return Ok(());
        }
        let was_answered = msg.is_answered();
        if end > msg.sink.len() {
            msg.sink.resize(end, 0);
        }
        msg.sink[offset as usize..end].copy_from_slice(data);
        if msg.is_answered() && !was_answered {
            self.out.reads_out = self.out.reads_out.saturating_sub(1);
        }
        Ok(())
    }

    fn live_peer_patience(&mut self, _: &QpAttr) -> u64 {
        self.st.patience
    }

    fn local_op(&mut self, wqe: &SendWqe) -> Result<(), AccessFault> {
        let index = (wqe.wr_id & 0xFFFF_FFFF) as usize;
        if self.out.next_local != index {
            fail!(
                self.ctx,
                "local operation {index} carried out, expected {}",
                self.out.next_local
            );
        }
        let Some(msg) = self.out.msgs.get_mut(index) else { return Ok(()) };
        if matches!(msg.bad, Bad::Invalidate | Bad::Local(_)) {
            return Err(self.local_fault(0));
        }
        msg.local_done = true;
        let next = (index + 1..self.out.msgs.len()).find(|&i| self.out.msgs[i].is_local());
        self.out.next_local = next.unwrap_or(usize::MAX);
        match wqe.op {
            SendOp::LocalInv(key) => {
                if !self.memory.revoke(key) {
                    fail!(self.ctx, "local invalidate of {key}, which is not valid");
                }
            }
            SendOp::BindMw(bind) => {
                let grant = Grant {
                    key: bind.new_rkey.value(),
                    pd: self.st.pd,
                    start: bind.addr,
                    len: bind.length,
                    access: bind.access,
                    window_of: Some(self.st.qpn),
                    valid: true,
                };
                if !self.memory.bind(bind.mw, bind.new_rkey, grant) {
                    fail!(self.ctx, "bind of {} to {}", bind.mw, bind.new_rkey);
                }
            }
            _ => fail!(self.ctx, "{:?} is no local operation", wqe.op),
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
        self.access(rkey, addr, len, need)
    }

    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.access(rkey, addr, data.len() as u64, RemoteAccess::Write)?;
        self.store(addr, data);
        Ok(())
    }

    fn read_remote(&mut self, rkey: Rkey, addr: u64, buf: &mut [u8]) -> Result<(), AccessFault> {
        self.access(rkey, addr, buf.len() as u64, RemoteAccess::Read)?;
        let at = Memory::index(addr);
        buf.copy_from_slice(&self.memory.mem[at..at + buf.len()]);
        Ok(())
    }

    fn atomic(&mut self, rkey: Rkey, addr: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        self.access(rkey, addr, 8, RemoteAccess::Atomic)?;
        self.st.fx.atomics += 1;
        let before = self.memory.load_u64(addr);
        let after = match op {
            AtomicOp::FetchAdd(add) => before.wrapping_add(add),
            AtomicOp::CmpSwap { compare, swap } if before == compare => swap,
            AtomicOp::CmpSwap { .. } => before,
        };
        self.memory.store_u64(addr, after);
        if self.st.lenient {
            return Ok(before);
        }
        let Some(msg) = self.st.piece.and_then(|piece| self.inn.msgs.get_mut(piece.msg)) else {
            fail!(self.ctx, "atomic at {addr:#x} by a packet that must not execute one");
            return Ok(before);
        };
        let fits = match (msg.op, op) {
            (SendOp::FetchAdd { remote, add }, AtomicOp::FetchAdd(a)) => {
                remote.addr == addr && add == a
            }
            (
                SendOp::CmpSwap { remote, compare: c, swap: s },
                AtomicOp::CmpSwap { compare, swap },
            ) => remote.addr == addr && (c, s) == (compare, swap),
            _ => false,
        };
        if !fits || msg.original.is_some() {
            fail!(
                self.ctx,
                "atomic {op:?} at {addr:#x} for {:?} (executed before: {:?})",
                msg.op,
                msg.original
            );
        }
        msg.original = Some(before);
        if self.ctx.mutates(Mutation::WrongAtomic) {
            return Ok(before.wrapping_add(1));
        }
        Ok(before)
    }

    fn atomic_write(&mut self, rkey: Rkey, addr: u64, data: [u8; 8]) -> Result<(), AccessFault> {
        self.access(rkey, addr, 8, RemoteAccess::Write)?;
        self.store(addr, &data);
        Ok(())
    }

    fn flush(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.access(rkey, addr, len, need)?;
        self.st.fx.flushes += 1;
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.st.fx.invalidated += 1;
        if self.memory.belongs(rkey, self.st.pd) && self.memory.revoke(rkey) {
            return Ok(());
        }
        self.st.fx.refused = Some(AccessCheck::KeyStale);
        Err(AccessFault { check: AccessCheck::KeyStale, key: rkey.value(), addr: 0, len: 0 })
    }

    fn select_srq(&mut self, srqn: Srqn) -> Result<(), SrqFault> {
        if self.st.service != Service::Xrc {
            fail!(self.ctx, "{} selected {srqn} and is no XRC target", self.st.label());
        }
        let Some(mut queue) = queue_of(srqn) else {
            let foreign = srqn == FOREIGN;
            return Err(if foreign { SrqFault::WrongDomain } else { SrqFault::Unknown });
        };
        if self.ctx.mutates(Mutation::WrongQueue) {
            queue = QUEUES - 1 - queue;
        }
        self.st.selected = Some(queue);
        Ok(())
    }

    fn take_recv(&mut self) -> Option<RecvWqe> {
        if self.st.current.is_some() {
            fail!(self.ctx, "a receive taken while another is in use");
        }
        let at = self.st.selected.unwrap_or(0);
        let queue = if self.st.shared { &mut self.srqs[at] } else { &mut self.st.rq };
        let recv = queue.pop_front()?;
        self.st.fx.recvs_taken += 1;
        self.st.last_capacity = Some(recv.capacity);
        self.st.last_recv_bad = recv.bad;
        let taken = RecvWqe { wr_id: recv.wr_id, capacity: u64::from(recv.capacity) };
        self.st.current = Some(recv);
        Some(taken)
    }

    fn recv_credits(&mut self) -> Option<u32> {
        (!self.st.shared).then_some(self.st.rq.len() as u32)
    }

    fn scatter_recv(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.fill_recv(offset, data.len(), |room| room.copy_from_slice(data))
    }

    fn name_payload(
        &mut self,
        slot: u32,
        offset: u32,
        length: u32,
        buf: &mut [u8],
    ) -> Result<Option<usize>, AccessFault> {
        let index = self.st.slots[slot as usize];
        let Some(msg) = self.out.msgs.get(index) else {
            fail!(self.ctx, "payload of slot {slot} named, which holds no request");
            return Err(self.local_fault(u64::from(length)));
        };
        let end = u64::from(offset) + u64::from(length);
        if end > u64::from(msg.len) {
            fail!(self.ctx, "bytes {offset}..{end} named of message {index} of {}", msg.len);
        }
        if matches!(msg.bad, Bad::Local(from) if end > u64::from(from)) {
            return Err(self.local_fault(u64::from(length)));
        }
        // Some memory is in too many pieces.
        let is_scattered = mix(msg.id ^ u64::from(offset)).is_multiple_of(8);
        Ok((!is_scattered).then(|| Named { msg: index, offset, length }.emit(buf)))
    }

    fn pull_recv(&mut self, offset: u64, length: u32) -> Result<(), PullFault> {
        let Some(Offer { content: (id, at), pulled }) = self.st.offer.take() else {
            fail!(self.ctx, "{length} bytes pulled, and no rendezvous is handled");
            return Err(PullFault::Unreachable);
        };
        self.st.pulled = Some(pulled);
        match pulled {
            Pulled::Unreachable => {
                self.ctx.hit(Count::Unreachable);
                Err(PullFault::Unreachable)
            }
            Pulled::Withdrawn => {
                self.ctx.hit(Count::Withdrawn);
                Err(PullFault::Withdrawn)
            }
            Pulled::Bytes => {
                self.ctx.hit(Count::Rendezvous);
                let filled =
                    self.fill_recv(offset, length as usize, |room| content::fill(id, at, room));
                filled.map_err(PullFault::Local)
            }
        }
    }

    fn flush_recv(&mut self, current: Option<RecvWqe>) {
        if current.map(|wqe| wqe.wr_id) != self.st.current.as_ref().map(|recv| recv.wr_id) {
            fail!(
                self.ctx,
                "flush names the current receive {current:?}, it is {:?}",
                self.st.current
            );
        }
        let flushed = self.st.rq.len() as u64 + u64::from(self.st.current.is_some());
        self.st.current = None;
        self.st.rq.clear();
        self.st.recvs_done += flushed;
        self.st.recv_flushed = true;
        self.ctx.cover.add(Count::WcFlushed, flushed);
    }

    fn complete_send(&mut self, completion: Completion) {
        if self.ctx.mutates(Mutation::LostCompletion) {
            return;
        }
        complete::send(self, &completion);
        if self.ctx.mutates(Mutation::RepeatedCompletion) {
            complete::send(self, &completion);
        }
    }

    fn complete_recv(&mut self, completion: Completion) {
        complete::recv(self, &completion);
    }

    fn event(&mut self, event: QpEvent) {
        self.ctx.say(format_args!("{} event {event:?}", self.st.label()));
        match event {
            QpEvent::SqDrained => complete::drained(self),
            QpEvent::LastWqeReached if self.st.last_wqe_reached || !self.st.shared => {
                fail!(self.ctx, "last WQE reached: again, or without a shared queue");
            }
            QpEvent::LastWqeReached => self.st.last_wqe_reached = true,
            _ => {}
        }
    }

    fn failure(&mut self, failure: Failure) {
        self.ctx.say(format_args!(
            "{} failed: {:?} psn={} {}",
            self.st.label(),
            failure.status,
            failure.psn,
            failure.cause
        ));
        let again = self.st.failure.filter(|before| {
            is_reliable(self.st.service) || !matches!(before.cause, Cause::LocalMemory(_))
        });
        if let Some(before) = again {
            fail!(self.ctx, "a second failure {failure:?} after {before:?}");
        }
        if self.out.failed.is_some() && is_reliable(self.st.service) {
            fail!(self.ctx, "failure {failure:?} reported after the failed completion");
        }
        self.st.failure = Some(failure);
    }
}

//! A device of one region and one receive queue, for tests of single state machines.

use std::collections::VecDeque;

use vernic_wire::{LocalRoute, Rkey, Srqn};

use crate::completion::Completion;
use crate::error::{AccessCheck, AccessFault, Failure};
use crate::event::QpEvent;
use crate::host::{AtomicOp, Host, PullFault, RemoteAccess, RxMeta, SrqFault};
use crate::wqe::{RecvWqe, SendOp, SendWqe};

/// Key of the region.
pub(crate) const RKEY: Rkey = Rkey(0x77);
/// First byte of the region.
pub(crate) const BASE: u64 = 0x10_0000;

/// The XRC shared receive queue that there is.
pub(crate) const SRQN: Srqn = Srqn::new(0x33);
/// One of another XRC domain.
pub(crate) const FOREIGN_SRQN: Srqn = Srqn::new(0x44);

/// Memory, receives, and a record of everything that was called.
pub(crate) struct TestHost {
    pub(crate) memory: Vec<u8>,
    /// The key is valid.
    pub(crate) key_valid: bool,
    /// The receive's scatter list is valid.
    pub(crate) recv_valid: bool,
    /// What becomes of the payload of a rendezvous.
    pub(crate) pull: Result<(), PullFault>,
    /// Offsets and lengths of those that were to be copied.
    pub(crate) pulled: Vec<(u64, u32)>,
    pub(crate) recvs: VecDeque<RecvWqe>,
    pub(crate) recv_buf: Vec<u8>,
    pub(crate) credits: Option<u32>,
    /// Payload of every send request.
    pub(crate) send_buf: Vec<u8>,
    pub(crate) send_valid: bool,
    pub(crate) sent: Vec<Completion>,
    pub(crate) received: Vec<Completion>,
    pub(crate) flushed: Vec<Option<RecvWqe>>,
    pub(crate) events: Vec<QpEvent>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) invalidated: Vec<Rkey>,
    pub(crate) flushes: Vec<(u64, u64, RemoteAccess)>,
    pub(crate) atomics: u32,
    /// Shared receive queues that were selected.
    pub(crate) selected: Vec<Srqn>,
    /// The shared receive queue is destroyed.
    pub(crate) srq_gone: bool,
    /// Where responses are stored, whatever their request.
    pub(crate) response_buf: Vec<u8>,
    pub(crate) response_valid: bool,
    pub(crate) local_ops: Vec<SendOp>,
    /// How often the path was changed.
    pub(crate) paths_changed: u32,
}

impl TestHost {
    pub(crate) fn new() -> Self {
        Self {
            memory: (0..8192).map(|i| (i / 7) as u8).collect(),
            key_valid: true,
            recv_valid: true,
            pull: Ok(()),
            pulled: Vec::new(),
            recvs: VecDeque::new(),
            recv_buf: vec![0; 8192],
            credits: None,
            send_buf: (0..8192).map(|i| (i / 5) as u8).collect(),
            send_valid: true,
            sent: Vec::new(),
            received: Vec::new(),
            flushed: Vec::new(),
            events: Vec::new(),
            failures: Vec::new(),
            invalidated: Vec::new(),
            flushes: Vec::new(),
            atomics: 0,
            selected: Vec::new(),
            srq_gone: false,
            response_buf: vec![0; 8192],
            response_valid: true,
            local_ops: Vec::new(),
            paths_changed: 0,
        }
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, capacity: u64) {
        self.recvs.push_back(RecvWqe { wr_id, capacity });
    }

    fn range(&self, rkey: Rkey, addr: u64, len: u64) -> Result<usize, AccessFault> {
        let fault = |check| AccessFault { check, key: rkey.0, addr, len };
        if rkey != RKEY {
            return Err(fault(AccessCheck::KeyUnknown));
        }
        if !self.key_valid {
            return Err(fault(AccessCheck::KeyStale));
        }
        let end = BASE + self.memory.len() as u64;
        if addr < BASE || addr.saturating_add(len) > end {
            return Err(fault(AccessCheck::Bounds));
        }
        Ok((addr - BASE) as usize)
    }
}

fn local_fault() -> AccessFault {
    AccessFault { check: AccessCheck::KeyStale, key: 1, addr: 0, len: 0 }
}

impl Host for TestHost {
    fn gather(&mut self, _slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        if !self.send_valid {
            return Err(local_fault());
        }
        let start = offset as usize;
        buf.copy_from_slice(&self.send_buf[start..start + buf.len()]);
        Ok(())
    }
    fn scatter_response(&mut self, _: u32, offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        if !self.response_valid {
            return Err(local_fault());
        }
        let start = offset as usize;
        self.response_buf[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn local_op(&mut self, wqe: &SendWqe) -> Result<(), AccessFault> {
        if !self.send_valid {
            return Err(local_fault());
        }
        self.local_ops.push(wqe.op);
        Ok(())
    }
    fn check_remote(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        _need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.range(rkey, addr, len).map(|_| ())
    }
    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        let at = self.range(rkey, addr, data.len() as u64)?;
        self.memory[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn read_remote(&mut self, rkey: Rkey, addr: u64, buf: &mut [u8]) -> Result<(), AccessFault> {
        let at = self.range(rkey, addr, buf.len() as u64)?;
        buf.copy_from_slice(&self.memory[at..at + buf.len()]);
        Ok(())
    }
    fn atomic(&mut self, rkey: Rkey, addr: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let at = self.range(rkey, addr, 8)?;
        let cell: &mut [u8; 8] = (&mut self.memory[at..at + 8]).try_into().unwrap();
        let old = u64::from_ne_bytes(*cell);
        let new = match op {
            AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwap { .. } => old,
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
        };
        *cell = new.to_ne_bytes();
        self.atomics += 1;
        Ok(old)
    }
    fn atomic_write(&mut self, rkey: Rkey, addr: u64, data: [u8; 8]) -> Result<(), AccessFault> {
        self.atomics += 1;
        self.write_remote(rkey, addr, &data)
    }
    fn flush(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.range(rkey, if len == 0 { BASE } else { addr }, len)?;
        self.flushes.push((addr, len, need));
        Ok(())
    }
    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.range(rkey, BASE, 0)?;
        self.invalidated.push(rkey);
        Ok(())
    }
    fn select_srq(&mut self, srqn: Srqn) -> Result<(), SrqFault> {
        self.selected.push(srqn);
        match srqn {
            SRQN if !self.srq_gone => Ok(()),
            FOREIGN_SRQN => Err(SrqFault::WrongDomain),
            _ => Err(SrqFault::Unknown),
        }
    }
    fn take_recv(&mut self) -> Option<RecvWqe> {
        self.recvs.pop_front()
    }
    fn recv_credits(&mut self) -> Option<u32> {
        self.credits
    }
    fn scatter_recv(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessFault> {
        if !self.recv_valid {
            return Err(local_fault());
        }
        let start = offset as usize;
        self.recv_buf[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn pull_recv(&mut self, offset: u64, length: u32) -> Result<(), PullFault> {
        self.pulled.push((offset, length));
        self.pull
    }
    fn change_path(&mut self) {
        self.paths_changed += 1;
    }
    fn flush_recv(&mut self, current: Option<RecvWqe>) {
        self.flushed.push(current);
    }
    fn complete_send(&mut self, completion: Completion) {
        self.sent.push(completion);
    }
    fn complete_recv(&mut self, completion: Completion) {
        self.received.push(completion);
    }
    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
    fn failure(&mut self, failure: Failure) {
        self.failures.push(failure);
    }
}

/// What a link reports about a packet of no interest.
pub(crate) fn meta() -> RxMeta {
    let route = LocalRoute { service_level: 0xA, ..LocalRoute::NONE };
    RxMeta { grh: None, ecn: 0, route, is_peer: true }
}

/// Bytes of a packet: headers, payload, pad.
pub(crate) fn packet_bytes(mut headers: vernic_wire::Headers, payload: &[u8]) -> Vec<u8> {
    headers.bth.pad = vernic_wire::packet::pad_of(payload.len());
    let mut bytes = vec![0; vernic_wire::Headers::MAX_LEN];
    let len = headers.emit(&mut bytes);
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

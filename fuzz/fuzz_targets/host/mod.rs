//! What the fuzz targets of protocol machines give them for a device.

use vernic_proto::{
    AccessCheck, AccessFault, AtomicOp, Completion, Failure, Host, PullFault, QpEvent, RecvWqe,
    RemoteAccess, SendWqe, SrqFault,
};
use vernic_wire::{Rkey, Srqn};

/// Memory that refuses odd keys, a receive queue that is sometimes empty.
pub(crate) struct FuzzHost {
    pub(crate) receives: u32,
    pub(crate) sends_completed: u32,
    /// Receives that were taken and did not end yet: one at most.
    taken: u32,
    /// What becomes of the payload of a rendezvous.
    pub(crate) pull: Result<(), PullFault>,
}

impl FuzzHost {
    pub(crate) fn new() -> Self {
        Self { receives: 0, sends_completed: 0, taken: 0, pull: Ok(()) }
    }

    /// Notes that the receive that was taken has ended.
    fn end_receive(&mut self) {
        self.taken = self.taken.checked_sub(1).expect("a receive that was taken, and ends once");
    }

    fn access(&self, rkey: Rkey) -> Result<(), AccessFault> {
        if rkey.value() & 1 == 0 {
            return Ok(());
        }
        Err(AccessFault { check: AccessCheck::KeyUnknown, key: rkey.value(), addr: 0, len: 0 })
    }
}

impl Host for FuzzHost {
    fn gather(&mut self, _: u32, _: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        buf.fill(0x5A);
        Ok(())
    }
    fn scatter_response(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn local_op(&mut self, _: &SendWqe) -> Result<(), AccessFault> {
        Ok(())
    }
    fn check_remote(
        &mut self,
        k: Rkey,
        _: u64,
        _: u64,
        _: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.access(k)
    }
    fn write_remote(&mut self, k: Rkey, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        self.access(k)
    }
    fn read_remote(&mut self, k: Rkey, _: u64, buf: &mut [u8]) -> Result<(), AccessFault> {
        buf.fill(0xA5);
        self.access(k)
    }
    fn atomic(&mut self, k: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        self.access(k).map(|()| 1)
    }
    fn atomic_write(&mut self, k: Rkey, _: u64, _: [u8; 8]) -> Result<(), AccessFault> {
        self.access(k)
    }
    fn flush(&mut self, k: Rkey, _: u64, _: u64, _: RemoteAccess) -> Result<(), AccessFault> {
        self.access(k)
    }
    fn invalidate_remote(&mut self, k: Rkey) -> Result<(), AccessFault> {
        self.access(k)
    }
    fn select_srq(&mut self, srqn: Srqn) -> Result<(), SrqFault> {
        match srqn.value() & 3 {
            3 => Err(SrqFault::WrongDomain),
            2 => Err(SrqFault::Unknown),
            _ => Ok(()),
        }
    }
    fn take_recv(&mut self) -> Option<RecvWqe> {
        self.receives = self.receives.checked_sub(1)?;
        self.taken += 1;
        assert_eq!(self.taken, 1, "one receive at a time");
        Some(RecvWqe { wr_id: 1, capacity: 2000 })
    }
    fn recv_credits(&mut self) -> Option<u32> {
        Some(self.receives)
    }
    fn scatter_recv(&mut self, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn name_payload(
        &mut self,
        _: u32,
        _: u32,
        _: u32,
        buf: &mut [u8],
    ) -> Result<Option<usize>, AccessFault> {
        buf[..36].fill(0xC3);
        Ok(Some(36))
    }
    fn pull_recv(&mut self, _: u64, _: u32) -> Result<(), PullFault> {
        self.pull
    }
    fn flush_recv(&mut self, current: Option<RecvWqe>) {
        self.receives = 0;
        if current.is_some() {
            self.end_receive();
        }
        assert_eq!(self.taken, 0, "every receive that was taken ends");
    }
    fn complete_send(&mut self, _: Completion) {
        self.sends_completed += 1;
    }
    fn complete_recv(&mut self, _: Completion) {
        self.end_receive();
    }
    fn event(&mut self, _: QpEvent) {}
    fn failure(&mut self, _: Failure) {}
}

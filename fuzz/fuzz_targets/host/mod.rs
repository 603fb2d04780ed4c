//! What the fuzz targets of protocol machines give them for a device.

use vernic_proto::{
    AccessCheck, AccessFault, AtomicOp, Completion, Failure, Host, QpEvent, RecvWqe, RemoteAccess,
    SendWqe, SrqFault,
};
use vernic_wire::{Rkey, Srqn};

/// Memory that refuses odd keys, a receive queue that is sometimes empty.
pub(crate) struct FuzzHost {
    pub(crate) receives: u32,
    pub(crate) sends_completed: u32,
}

impl FuzzHost {
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
        Some(RecvWqe { wr_id: 1, capacity: 2000 })
    }
    fn recv_credits(&mut self) -> Option<u32> {
        Some(self.receives)
    }
    fn scatter_recv(&mut self, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn flush_recv(&mut self, _: Option<RecvWqe>) {
        self.receives = 0;
    }
    fn complete_send(&mut self, _: Completion) {
        self.sends_completed += 1;
    }
    fn complete_recv(&mut self, _: Completion) {}
    fn event(&mut self, _: QpEvent) {}
    fn failure(&mut self, _: Failure) {}
}

//! Memory of another process that the kernel copies.

use std::io;

use super::{Holds, LocalPart, PeerCopyError, RemoteMemory, bounce, fill, outside};
use crate::data::CheckedAddress;
use crate::racy::CopyBatch;
use crate::{Access, LivenessWord, PeerList, PeerRange};

impl RemoteMemory for PeerRange {
    fn write(&self, from: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError> {
        let remote = |batch: &mut CopyBatch<'_, true>, at, len| batch.push_range(self, at, len);
        let mut copy = KernelCopy::new((self.pid, self.liveness), at, holds, remote);
        from.each(Access::empty(), |checked, n| {
            if copy.add(checked, n)? {
                return Ok(());
            }
            bounce(checked, n, |_, bytes| {
                let mut one = KernelCopy::new((self.pid, self.liveness), copy.at, holds, remote);
                one.len = bytes.len() as u64;
                one.batch.push_bytes(bytes).ok_or_else(outside)?;
                one.run()?;
                copy.at = one.at;
                Ok(())
            })
        })?;
        copy.run()
    }

    fn write_bytes(&self, bytes: &[u8], at: u64) -> Result<(), PeerCopyError> {
        let remote = |batch: &mut CopyBatch<'_, true>, at, len| batch.push_range(self, at, len);
        let mut copy = KernelCopy::new((self.pid, self.liveness), at, &|| true, remote);
        copy.len = bytes.len() as u64;
        copy.batch.push_bytes(bytes).ok_or_else(outside)?;
        copy.run()
    }

    fn read(&self, to: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError> {
        read((self.pid, self.liveness), to, at, holds, |batch, at, len| {
            batch.push_range(self, at, len)
        })
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn range(&self) -> Option<&PeerRange> {
        Some(self)
    }
}

impl RemoteMemory for PeerList<'_> {
    fn is_mapped(&self) -> bool {
        false
    }

    fn write(&self, _: LocalPart<'_>, _: u64, _: Holds<'_>) -> Result<(), PeerCopyError> {
        Err(outside())
    }

    fn write_bytes(&self, _: &[u8], _: u64) -> Result<(), PeerCopyError> {
        Err(outside())
    }

    fn read(&self, to: LocalPart<'_>, at: u64, holds: Holds<'_>) -> Result<(), PeerCopyError> {
        read((self.pid, self.liveness), to, at, holds, |batch, at, len| {
            batch.push_list(self, at, len)
        })
    }
}

impl PeerList<'_> {
    /// Checks that the process has this liveness word. Reads nothing else.
    ///
    /// # Errors
    /// Errors of the kernel for a read from that process: `EPERM`, `ESRCH`, `ENOSYS`. `EFAULT` if
    /// the process runs another program than the one with the liveness word.
    pub fn find_process(pid: i32, liveness: LivenessWord) -> io::Result<()> {
        CopyBatch::<false>::new(pid, liveness).copy().map(drop)
    }
}

fn read(
    program: (i32, LivenessWord),
    to: LocalPart<'_>,
    at: u64,
    holds: Holds<'_>,
    remote: impl Fn(&mut CopyBatch<'_, false>, u64, u64) -> Option<()> + Copy,
) -> Result<(), PeerCopyError> {
    let mut copy = KernelCopy::new(program, at, holds, remote);
    to.each(Access::LOCAL_WRITE, |checked, n| {
        if copy.add(checked, n)? {
            return Ok(());
        }
        fill(checked, n, |_, bytes| {
            let mut one = KernelCopy::new(program, copy.at, holds, remote);
            one.len = bytes.len() as u64;
            one.batch.push_bytes_mut(bytes).ok_or_else(outside)?;
            one.run()?;
            copy.at = one.at;
            Ok(())
        })
    })?;
    copy.run()
}

/// A copy of one message by the kernel, in as many calls as its local pieces take.
struct KernelCopy<'a, const TO_PEER: bool, F> {
    /// The local pieces of the next call.
    batch: CopyBatch<'a, TO_PEER>,
    /// The offset in remote memory where the next call begins, and how many bytes it copies.
    at: u64,
    len: u64,
    holds: Holds<'a>,
    /// Adds the remote pieces of a call: so many bytes from an offset on.
    remote: F,
}

impl<'a, const TO_PEER: bool, F> KernelCopy<'a, TO_PEER, F>
where
    F: Fn(&mut CopyBatch<'_, TO_PEER>, u64, u64) -> Option<()>,
{
    #[inline(always)]
    fn new((pid, liveness): (i32, LivenessWord), at: u64, holds: Holds<'a>, remote: F) -> Self {
        Self { batch: CopyBatch::new(pid, liveness), at, len: 0, holds, remote }
    }

    /// Adds a local piece, after a call if there is no room for one more. Returns false, and has
    /// nothing left to copy, if the piece is in a special region.
    fn add(&mut self, checked: CheckedAddress, n: u64) -> Result<bool, PeerCopyError> {
        if self.batch.is_full() {
            self.run()?;
        }
        if self.batch.push_region(checked.region, checked.offset, n).is_none() {
            self.run()?;
            return Ok(false);
        }
        self.len += n;
        Ok(true)
    }

    /// Copies what was added.
    fn run(&mut self) -> Result<(), PeerCopyError> {
        if self.len == 0 {
            return Ok(());
        }
        if !(self.holds)() {
            return Err(PeerCopyError::Revoked);
        }
        (self.remote)(&mut self.batch, self.at, self.len).ok_or_else(outside)?;
        let copied = self.batch.copy().map_err(PeerCopyError::Peer)?;
        if copied < self.len {
            return Err(PeerCopyError::Peer(io::Error::from_raw_os_error(libc::EFAULT)));
        }
        self.batch.clear();
        self.at += self.len;
        self.len = 0;
        Ok(())
    }
}

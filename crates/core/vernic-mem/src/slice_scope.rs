//! Memory for system calls: checked slices of registered memory that the kernel reads or writes.
//!
//! The checks are those of the copies in `data.rs`, and so are the guarantees. An access begins
//! when [`Memory::with_slices`] is called, and ends when that call returns. A thread that ends a
//! key meanwhile waits for the access, as the [crate head](crate) describes. The slices cannot
//! outlive the call.
//!
//! The kernel does not promise an order in which the bytes of a copy become visible. A caller that
//! needs the last bytes to be stored last must store them itself.

use vernic_wire::{Qpn, Rkey};

use crate::data::{CheckedAddress, fits, list_too_short, refuse};
use crate::racy::{AccessLifetime, RacySlice, RacySliceMut, with_access_lifetime};
use crate::{Access, AccessError, Check, Memory, PdId, SgCursor, Sge};

/// The scope of one access, in which slices of registered memory can be used.
#[derive(Clone, Copy, Debug)]
pub struct SliceScope<'s> {
    memory: &'s Memory,
    life: AccessLifetime<'s>,
}

/// The result of a request for slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slices {
    /// The caller received slices of the whole range.
    Complete,
    /// The caller must drop the slices that it received, and copy the bytes instead. Either a key
    /// names no ordinary memory (the null region, the address space), or the caller had no room for
    /// more slices.
    MustCopy,
}

impl Memory {
    /// Runs `work` as one access, in which it can use slices of registered memory for system calls.
    pub fn with_slices<T>(&self, work: impl for<'s> FnOnce(SliceScope<'s>) -> T) -> T {
        with_access_lifetime(|life| work(SliceScope { memory: self, life }))
    }
}

/// The result for one slice. `taken` says whether the caller took the slice; it is `None` if there
/// was no slice to take.
fn outcome(taken: Option<bool>) -> Slices {
    if taken == Some(true) { Slices::Complete } else { Slices::MustCopy }
}

impl<'s> SliceScope<'s> {
    /// Passes slices of a range of the message to `take`, to be read by a system call. `range` is
    /// (offset in the message, bytes). `take` gets the slices in order, and returns whether it had
    /// room for the slice.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read_local(
        self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        range: (u64, u64),
        mut take: impl FnMut(RacySlice<'s>) -> bool,
    ) -> Result<Slices, AccessError> {
        self.walk(
            pd,
            sges,
            cursor,
            range,
            Access::empty(),
            |CheckedAddress { region, offset }, len| {
                outcome(region.read_piece(self.life, offset, len).map(&mut take))
            },
        )
    }

    /// Does the same as [`read_local`](Self::read_local), with slices to be written.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write_local(
        self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        range: (u64, u64),
        mut take: impl FnMut(RacySliceMut<'s>) -> bool,
    ) -> Result<Slices, AccessError> {
        self.walk(
            pd,
            sges,
            cursor,
            range,
            Access::LOCAL_WRITE,
            |CheckedAddress { region, offset }, len| {
                outcome(region.write_piece(self.life, offset, len).map(&mut take))
            },
        )
    }

    /// Checks each list element that the range covers and passes it to `show`, until `show` returns
    /// [`Slices::MustCopy`].
    fn walk(
        self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        (mut offset, mut left): (u64, u64),
        needs: Access,
        mut show: impl FnMut(CheckedAddress, u64) -> Slices,
    ) -> Result<Slices, AccessError> {
        // The loop ends: each round completes an element of the list, or the range.
        while left > 0 {
            let (sge, inside) =
                cursor.seek(sges, offset).ok_or_else(|| list_too_short(sges, offset, left))?;
            let len = left.min(u64::from(sge.length) - inside);
            fits(sge, inside, len)?;
            let addr = sge.addr.wrapping_add(inside);
            let checked = self
                .memory
                .find_local(pd, sge.lkey, addr, len, needs)
                .map_err(|check| refuse(check, sge.lkey.value(), addr, len))?;
            if show(checked, len) == Slices::MustCopy {
                return Ok(Slices::MustCopy);
            }
            (offset, left) = (offset + len, left - len);
        }
        Ok(Slices::Complete)
    }

    /// Passes to `take` one slice that a peer reads. `range` is (address, bytes).
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read_remote(
        self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        range: (u64, u64),
        take: impl FnOnce(RacySlice<'s>) -> bool,
    ) -> Result<Slices, AccessError> {
        let CheckedAddress { region, offset } = self
            .memory
            .find_remote(pd, qpn, rkey, range, Access::REMOTE_READ)
            .map_err(|check| self.refused(check, rkey, range))?;
        Ok(outcome(region.read_piece(self.life, offset, range.1).map(take)))
    }

    /// Passes to `take` one slice that a peer writes. `range` is (address, bytes).
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write_remote(
        self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        range: (u64, u64),
        take: impl FnOnce(RacySliceMut<'s>) -> bool,
    ) -> Result<Slices, AccessError> {
        let CheckedAddress { region, offset } = self
            .memory
            .find_remote(pd, qpn, rkey, range, Access::REMOTE_WRITE)
            .map_err(|check| self.refused(check, rkey, range))?;
        Ok(outcome(region.write_piece(self.life, offset, range.1).map(take)))
    }

    fn refused(self, check: Check, rkey: Rkey, (addr, len): (u64, u64)) -> AccessError {
        refuse(check, rkey.value(), addr, len)
    }
}

#[cfg(test)]
mod tests {
    use vernic_wire::Lkey;

    use super::*;
    use crate::HostBuffer;

    const QP: Qpn = Qpn::new(0x11);

    /// A domain, and 4 KiB registered at `iova` with the given rights. Each byte's value follows
    /// from its offset.
    fn rig(iova: u64, access: Access) -> (Memory, HostBuffer, PdId, Lkey, Rkey) {
        let (memory, buffer) = (Memory::new(), HostBuffer::new(4096).unwrap());
        let bytes: Vec<u8> = (0..4096).map(|i| (i / 7) as u8).collect();
        buffer.write_at(0, &bytes).unwrap();
        let pd = memory.alloc_pd();
        // SAFETY: `buffer` outlives all accesses, and only its racy copies access it.
        #[allow(unsafe_code)]
        let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 4096, iova, access) }.unwrap();
        (memory, buffer, pd, mr.lkey, mr.rkey)
    }

    #[test]
    fn slices_hold_the_bytes_that_a_copy_finds() {
        let (memory, _buffer, pd, lkey, rkey) = rig(0x1000, Access::REMOTE_READ);
        let sges = [(0x1005, 3), (0, 0), (0x1100, 2000), (0x1000, 10)].map(|(addr, length)| Sge {
            addr,
            length,
            lkey,
        });
        for (offset, len) in [(0, 2013), (2, 1), (3, 2000), (1, 2005), (2013, 0)] {
            let mut copy = vec![0; len];
            memory.read_local(pd, &sges, &mut SgCursor::default(), offset, &mut copy).unwrap();
            let mut found = Vec::new();
            let named = memory.with_slices(|access| {
                let range = (offset, len as u64);
                access.read_local(pd, &sges, &mut SgCursor::default(), range, |piece| {
                    piece.append_to(&mut found);
                    true
                })
            });
            assert_eq!((named, found), (Ok(Slices::Complete), copy), "{len} from {offset}");
        }
        let mut found = Vec::new();
        let named = memory.with_slices(|access| {
            access.read_remote(pd, QP, rkey, (0x1fff, 1), |piece| {
                piece.append_to(&mut found);
                true
            })
        });
        assert_eq!((named, found), (Ok(Slices::Complete), vec![(4095 / 7) as u8]));
    }

    #[test]
    fn slices_are_refused_where_copies_are() {
        let (memory, _buffer, pd, lkey, rkey) = rig(0, Access::LOCAL_WRITE);
        let never = |_: RacySliceMut<'_>| -> bool { unreachable!() };
        let error = memory.with_slices(|access| access.write_remote(pd, QP, rkey, (0, 8), never));
        assert_eq!(error.unwrap_err().check, Check::Rights(Access::REMOTE_WRITE));
        let long = [Sge { addr: 0, length: 4097, lkey }];
        let cursor = &mut SgCursor::default();
        let error =
            memory.with_slices(|access| access.write_local(pd, &long, cursor, (0, 4097), never));
        assert_eq!(error.unwrap_err().check, Check::Bounds);
        let error = memory.with_slices(|access| access.write_local(pd, &[], cursor, (0, 1), never));
        assert_eq!(error.unwrap_err().check, Check::ListTooShort);
    }

    #[test]
    fn special_memory_and_lists_without_room_must_be_copied() {
        let (memory, _buffer, pd, lkey, _) = rig(0, Access::LOCAL_WRITE);
        let null = memory.alloc_null_mr(pd).unwrap().lkey;
        for (lkey, has_room) in [(null, true), (lkey, false)] {
            let sges = [Sge { addr: 0, length: 8, lkey }];
            let cursor = &mut SgCursor::default();
            let named = memory
                .with_slices(|access| access.write_local(pd, &sges, cursor, (0, 8), |_| has_room));
            assert_eq!(named, Ok(Slices::MustCopy));
        }
    }
}

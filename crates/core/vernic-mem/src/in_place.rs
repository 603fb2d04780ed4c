//! Accesses that the kernel carries out: pieces of registered memory for a system call.
//!
//! The checks are those of the copies (`data.rs`), and so is what an access may rely on: it begins
//! when [`Memory::in_place`] is called and ends when that returns, and who ends a key meanwhile
//! waits for it as the [crate head](crate) says. Pieces cannot leave it.
//!
//! The kernel promises no order in which the bytes that it copies become visible: who needs the
//! last ones last stores them by itself.

use vernic_wire::{Qpn, Rkey};

use crate::data::{CheckedAddress, fits, list_too_short, refuse};
use crate::racy::{AccessLifetime, RacySlice, RacySliceMut, with_access_lifetime};
use crate::{Access, AccessError, Check, Memory, PdId, SgCursor, Sge};

/// One access, within which pieces of memory can be named.
#[derive(Clone, Copy, Debug)]
pub struct InPlace<'s> {
    memory: &'s Memory,
    life: AccessLifetime<'s>,
}

/// What became of a request for pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// All of them were given.
    Pieces,
    /// Those that were given are to be forgotten, and the bytes copied: there is no plain memory
    /// behind a key (the null region, the address space), or no room for so many pieces.
    Copy,
}

impl Memory {
    /// Runs `work`, within which pieces of registered memory can be named for system calls.
    pub fn in_place<T>(&self, work: impl for<'s> FnOnce(InPlace<'s>) -> T) -> T {
        with_access_lifetime(|life| work(InPlace { memory: self, life }))
    }
}

/// Whether a piece was given and taken.
fn named(taken: Option<bool>) -> Named {
    if taken == Some(true) { Named::Pieces } else { Named::Copy }
}

impl<'s> InPlace<'s> {
    /// `range` of the message that the list holds, (offset, bytes), to be read. `take` is given the
    /// pieces in order, and says whether it had room for this one.
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
    ) -> Result<Named, AccessError> {
        self.walk(
            pd,
            sges,
            cursor,
            range,
            Access::empty(),
            |CheckedAddress { region, offset }, len| {
                named(region.read_piece(self.life, offset, len).map(&mut take))
            },
        )
    }

    /// As [`read_local`](Self::read_local), to be written.
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
    ) -> Result<Named, AccessError> {
        self.walk(
            pd,
            sges,
            cursor,
            range,
            Access::LOCAL_WRITE,
            |CheckedAddress { region, offset }, len| {
                named(region.write_piece(self.life, offset, len).map(&mut take))
            },
        )
    }

    /// Checks and shows the pieces of a list, until one cannot be used.
    fn walk(
        self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        (mut offset, mut left): (u64, u64),
        needs: Access,
        mut show: impl FnMut(CheckedAddress, u64) -> Named,
    ) -> Result<Named, AccessError> {
        // Each round ends a piece or the range.
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
            if show(checked, len) == Named::Copy {
                return Ok(Named::Copy);
            }
            (offset, left) = (offset + len, left - len);
        }
        Ok(Named::Pieces)
    }

    /// What a peer reads, (address, bytes), as one piece.
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
    ) -> Result<Named, AccessError> {
        let CheckedAddress { region, offset } = self
            .memory
            .find_remote(pd, qpn, rkey, range, Access::REMOTE_READ)
            .map_err(|check| self.refused(check, rkey, range))?;
        Ok(named(region.read_piece(self.life, offset, range.1).map(take)))
    }

    /// What a peer writes, (address, bytes), as one piece.
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
    ) -> Result<Named, AccessError> {
        let CheckedAddress { region, offset } = self
            .memory
            .find_remote(pd, qpn, rkey, range, Access::REMOTE_WRITE)
            .map_err(|check| self.refused(check, rkey, range))?;
        Ok(named(region.write_piece(self.life, offset, range.1).map(take)))
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

    /// A domain, and 4 KiB known by these addresses with every right; bytes say their place.
    fn rig(iova: u64, access: Access) -> (Memory, HostBuffer, PdId, Lkey, Rkey) {
        let (memory, buffer) = (Memory::new(), HostBuffer::new(4096).unwrap());
        let bytes: Vec<u8> = (0..4096).map(|i| (i / 7) as u8).collect();
        buffer.write_at(0, &bytes).unwrap();
        let pd = memory.alloc_pd();
        // SAFETY: `buffer` outlives all accesses, and is accessed by its racy copies only.
        #[allow(unsafe_code)]
        let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 4096, iova, access) }.unwrap();
        (memory, buffer, pd, mr.lkey, mr.rkey)
    }

    #[test]
    fn pieces_hold_the_bytes_that_a_copy_finds() {
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
            let named = memory.in_place(|access| {
                let range = (offset, len as u64);
                access.read_local(pd, &sges, &mut SgCursor::default(), range, |piece| {
                    piece.append_to(&mut found);
                    true
                })
            });
            assert_eq!((named, found), (Ok(Named::Pieces), copy), "{len} from {offset}");
        }
        let mut found = Vec::new();
        let named = memory.in_place(|access| {
            access.read_remote(pd, QP, rkey, (0x1fff, 1), |piece| {
                piece.append_to(&mut found);
                true
            })
        });
        assert_eq!((named, found), (Ok(Named::Pieces), vec![(4095 / 7) as u8]));
    }

    #[test]
    fn what_a_copy_is_refused_a_piece_is_refused() {
        let (memory, _buffer, pd, lkey, rkey) = rig(0, Access::LOCAL_WRITE);
        let never = |_: RacySliceMut<'_>| -> bool { unreachable!() };
        let error = memory.in_place(|access| access.write_remote(pd, QP, rkey, (0, 8), never));
        assert_eq!(error.unwrap_err().check, Check::Rights(Access::REMOTE_WRITE));
        let long = [Sge { addr: 0, length: 4097, lkey }];
        let cursor = &mut SgCursor::default();
        let error =
            memory.in_place(|access| access.write_local(pd, &long, cursor, (0, 4097), never));
        assert_eq!(error.unwrap_err().check, Check::Bounds);
        let error = memory.in_place(|access| access.write_local(pd, &[], cursor, (0, 1), never));
        assert_eq!(error.unwrap_err().check, Check::ListTooShort);
    }

    #[test]
    fn memory_without_a_place_and_lists_without_room_are_to_be_copied() {
        let (memory, _buffer, pd, lkey, _) = rig(0, Access::LOCAL_WRITE);
        let null = memory.alloc_null_mr(pd).unwrap().lkey;
        for (lkey, has_room) in [(null, true), (lkey, false)] {
            let sges = [Sge { addr: 0, length: 8, lkey }];
            let cursor = &mut SgCursor::default();
            let named = memory
                .in_place(|access| access.write_local(pd, &sges, cursor, (0, 8), |_| has_room));
            assert_eq!(named, Ok(Named::Copy));
        }
    }
}

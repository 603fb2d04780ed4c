//! The data path: check the key, then copy. No lock is taken, and nothing shared is written.
//!
//! An lkey gives access to a region of the queue pair's domain (IBTA 10.6.3.1). An rkey gives
//! access to a region or bound window that has the needed right (IBTA 9.7.4.1.5 and 10.6.3.2).
//! Accesses of length 0 succeed, and the key is not checked (IBTA 9.7.4.1.5, C9-88).

use std::sync::atomic::Ordering;

use vernic_wire::{Lkey, Qpn, Rkey};

use crate::racy::{Entry, Kind, Region, flush_fence};
use crate::{Access, AccessError, Check, Memory, PdId, RemoteAccess, SgCursor, Sge};

/// An address that has passed the checks: a region and an offset in it.
#[derive(Clone, Copy)]
pub(crate) struct CheckedAddress {
    pub(crate) region: Region,
    pub(crate) offset: u64,
}

impl CheckedAddress {
    /// The reason why the checked address has no aligned word. `addr` is the address that the
    /// request named.
    #[cold]
    fn no_word(self, addr: u64) -> Check {
        let unmapped = self.region.is_address_space() && addr.is_multiple_of(8);
        if unmapped { Check::Unmapped } else { Check::Alignment }
    }
}

#[cold]
#[inline(never)]
pub(crate) fn refuse(check: Check, key: u32, addr: u64, len: u64) -> AccessError {
    AccessError { check, key, addr, len }
}

/// The check that refuses every access by peers to this entry, whatever the range. `pd` is the
/// domain of the queue pair, which cannot use the entry.
#[cold]
fn closed(entry: &Entry, pd: PdId) -> Check {
    match entry.kind {
        Kind::Unbound => Check::NotBound,
        Kind::Window2 if entry.pd == pd.0 => Check::WrongQp,
        Kind::Window2 => Check::WrongPd,
        _ => Check::KeyKind,
    }
}

impl Memory {
    /// The entry of `key`, if the key is valid.
    #[inline(always)]
    fn find(&self, key: u32) -> Result<Entry, Check> {
        let location = self.indexes.find(key).ok_or(Check::KeyUnknown)?;
        let slot = self.table.at(location).ok_or(Check::KeyUnknown)?;
        let entry = slot.snapshot().ok_or(Check::KeyStale)?;
        if entry.key != key || entry.kind == Kind::Free {
            // An index always names the same slot. A slot that was never used has the key 0.
            return Err(if entry.key == 0 { Check::KeyUnknown } else { Check::KeyStale });
        }
        Ok(entry)
    }

    #[inline(always)]
    pub(crate) fn find_local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<CheckedAddress, Check> {
        let entry = self.find(lkey.value())?;
        if !matches!(entry.kind, Kind::Region | Kind::NullRegion) {
            return Err(Check::KeyKind);
        }
        permit(&entry, pd, addr, len, needs)
    }

    #[inline(always)]
    pub(crate) fn find_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        (addr, len): (u64, u64),
        needs: Access,
    ) -> Result<CheckedAddress, Check> {
        let entry = self.find_open(pd, qpn, rkey)?;
        permit(&entry, pd, addr, len, needs)
    }

    /// The entry that `rkey` names, if this queue pair can use it. The domain of a region, the
    /// rights and the range are not checked here.
    #[inline(always)]
    pub(crate) fn find_open(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<Entry, Check> {
        let entry = self.find(rkey.value())?;
        let open = match entry.kind {
            Kind::Region | Kind::Window1 => true,
            Kind::Window2 => entry.qpn == qpn.value(),
            _ => false,
        };
        if open { Ok(entry) } else { Err(closed(&entry, pd)) }
    }

    /// Checks that a local work request may read every element of a list, or write it if `write` is
    /// set.
    ///
    /// # Errors
    /// [`AccessError`] for the first element that is refused.
    pub fn check_local(&self, pd: PdId, sges: &[Sge], write: bool) -> Result<(), AccessError> {
        let needs = if write { Access::LOCAL_WRITE } else { Access::empty() };
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let len = u64::from(sge.length);
            self.find_local(pd, sge.lkey, sge.addr, len, needs)
                .map_err(|check| refuse(check, sge.lkey.value(), sge.addr, len))?;
        }
        Ok(())
    }

    /// Gathers `dst.len()` bytes of the message, from byte `offset` of the message on.
    ///
    /// # Errors
    /// [`AccessError`]; `dst` may have been filled in part.
    #[inline]
    pub fn read_local(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        match sges {
            [sge] => self.read_local_one(pd, sge, offset, dst),
            _ => self.gather(pd, sges, cursor, offset, dst),
        }
    }

    /// [`Memory::read_local`] for a list of one element.
    ///
    /// # Errors
    /// [`AccessError`]; nothing was copied.
    #[inline]
    pub fn read_local_one(
        &self,
        pd: PdId,
        sge: &Sge,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        if len == 0 {
            return Ok(());
        }
        fits(sge, offset, len)?;
        let addr = sge.addr.wrapping_add(offset);
        self.find_local(pd, sge.lkey, addr, len, Access::empty())
            .and_then(|checked| checked.region.load(checked.offset, dst).ok_or(Check::Unmapped))
            .map_err(|check| refuse(check, sge.lkey.value(), addr, len))
    }

    fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        mut offset: u64,
        mut dst: &mut [u8],
    ) -> Result<(), AccessError> {
        // The loop ends: each round completes an element of the list, or the message.
        while !dst.is_empty() {
            let (sge, inside) = cursor
                .seek(sges, offset)
                .ok_or_else(|| list_too_short(sges, offset, dst.len() as u64))?;
            let n = dst.len().min((u64::from(sge.length) - inside) as usize);
            let (now, later) = dst.split_at_mut(n);
            self.read_local_one(pd, sge, inside, now)?;
            dst = later;
            offset += n as u64;
        }
        Ok(())
    }

    /// Scatters `src` to the message, from byte `offset` of the message on. The [crate head](crate)
    /// defines the order in which the bytes become visible.
    ///
    /// # Errors
    /// [`AccessError`]; the bytes before the refused element were written.
    #[inline]
    pub fn write_local(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        offset: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        match sges {
            [sge] => self.write_local_one(pd, sge, offset, src),
            _ => self.scatter(pd, sges, cursor, offset, src),
        }
    }

    /// [`Memory::write_local`] for a list of one element.
    ///
    /// # Errors
    /// [`AccessError`]; nothing was copied.
    #[inline]
    pub fn write_local_one(
        &self,
        pd: PdId,
        sge: &Sge,
        offset: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        if len == 0 {
            return Ok(());
        }
        fits(sge, offset, len)?;
        let addr = sge.addr.wrapping_add(offset);
        self.find_local(pd, sge.lkey, addr, len, Access::LOCAL_WRITE)
            .and_then(|checked| checked.region.store(checked.offset, src).ok_or(Check::Unmapped))
            .map_err(|check| refuse(check, sge.lkey.value(), addr, len))
    }

    fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        cursor: &mut SgCursor,
        mut offset: u64,
        mut src: &[u8],
    ) -> Result<(), AccessError> {
        // The loop ends: each round completes an element of the list, or the message.
        while !src.is_empty() {
            let (sge, inside) = cursor
                .seek(sges, offset)
                .ok_or_else(|| list_too_short(sges, offset, src.len() as u64))?;
            let n = src.len().min((u64::from(sge.length) - inside) as usize);
            let (now, later) = src.split_at(n);
            self.write_local_one(pd, sge, inside, now)?;
            src = later;
            offset += n as u64;
        }
        Ok(())
    }

    /// Checks the access that the header of a request asks for, before any of it is done (the
    /// responder's check_rkey). The accesses themselves check again. So a key that is invalidated
    /// between two packets of a message stops the message.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn check_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        if len == 0 && !access.is_word() {
            return Ok(());
        }
        let aligned = |checked: CheckedAddress| {
            let ok = !access.is_word()
                || (addr.is_multiple_of(8)
                    && checked.region.with_word(checked.offset, |_| ()).is_some());
            if ok { Ok(()) } else { Err(checked.no_word(addr)) }
        };
        let len = if access.is_word() { 8 } else { len };
        self.find_remote(pd, qpn, rkey, (addr, len), access.needs())
            .and_then(aligned)
            .map_err(|check| refuse(check, rkey.value(), addr, len))
    }

    /// Reads the bytes of one RDMA READ response packet.
    ///
    /// # Errors
    /// [`AccessError`]; nothing was copied.
    #[inline]
    pub fn read_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        if len == 0 {
            return Ok(());
        }
        self.find_remote(pd, qpn, rkey, (addr, len), Access::REMOTE_READ)
            .and_then(|checked| checked.region.load(checked.offset, dst).ok_or(Check::Unmapped))
            .map_err(|check| refuse(check, rkey.value(), addr, len))
    }

    /// Writes the bytes of one RDMA WRITE packet. The [crate head](crate) defines the order in
    /// which the bytes become visible.
    ///
    /// # Errors
    /// [`AccessError`]; nothing was copied.
    #[inline]
    pub fn write_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        if len == 0 {
            return Ok(());
        }
        self.find_remote(pd, qpn, rkey, (addr, len), Access::REMOTE_WRITE)
            .and_then(|checked| checked.region.store(checked.offset, src).ok_or(Check::Unmapped))
            .map_err(|check| refuse(check, rkey.value(), addr, len))
    }

    /// Runs a CMP_SWAP: stores `swap` if the word equals `compare`, and returns the old value of
    /// the word (IBTA 9.4.5). The word is in host byte order. The operation is also atomic for the
    /// CPUs of this host.
    ///
    /// # Errors
    /// [`AccessError`]; the word did not change.
    pub fn atomic_cmp_swap(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        self.word(pd, qpn, rkey, addr, Access::REMOTE_ATOMIC, |word| {
            word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found)
        })
    }

    /// Runs a FETCH_ADD: adds to the word, wrapping, and returns its old value (IBTA 9.4.5). The
    /// word is in host byte order. The operation is also atomic for the CPUs of this host.
    ///
    /// # Errors
    /// [`AccessError`]; the word did not change.
    pub fn atomic_fetch_add(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        add: u64,
    ) -> Result<u64, AccessError> {
        self.word(pd, qpn, rkey, addr, Access::REMOTE_ATOMIC, |word| {
            word.fetch_add(add, Ordering::SeqCst)
        })
    }

    /// Runs an ATOMIC WRITE (IBTA A19): stores the 8 bytes of the packet, in their order, as one
    /// word. Everything that was written earlier becomes visible before the word.
    ///
    /// # Errors
    /// [`AccessError`]; the word did not change.
    pub fn atomic_write_8(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError> {
        self.word(pd, qpn, rkey, addr, Access::REMOTE_WRITE, |word| {
            word.store(u64::from_ne_bytes(bytes), Ordering::Release);
        })
    }

    fn word<T>(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        addr: u64,
        needs: Access,
        op: impl FnOnce(&std::sync::atomic::AtomicU64) -> T,
    ) -> Result<T, AccessError> {
        let run = || {
            let checked = self.find_remote(pd, qpn, rkey, (addr, 8), needs)?;
            if !addr.is_multiple_of(8) {
                return Err(Check::Alignment);
            }
            checked.region.with_word(checked.offset, op).ok_or_else(|| checked.no_word(addr))
        };
        run().map_err(|check| refuse(check, rkey.value(), addr, 8))
    }

    /// Runs a FLUSH: all that peers wrote to the range earlier becomes visible to all readers (IBTA
    /// A19). Registered memory is ordinary coherent memory, so a fence is enough for both kinds of
    /// FLUSH, global visibility and persistence. Persistence lasts as long as the mapping of the
    /// memory. `range` is (address, bytes), or `None` for the whole region.
    ///
    /// # Errors
    /// [`AccessError`]: `placement` names the needed rights, `FLUSH_GLOBAL`, `FLUSH_PERSISTENT` or
    /// both.
    pub fn flush(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        range: Option<(u64, u64)>,
        placement: Access,
    ) -> Result<(), AccessError> {
        let check = || {
            let range = match range {
                Some(range) => range,
                None => (self.find(rkey.value())?.iova, 0),
            };
            self.find_remote(pd, qpn, rkey, range, placement)
        };
        let (addr, len) = range.unwrap_or((0, 0));
        check().map_err(|check| refuse(check, rkey.value(), addr, len))?;
        flush_fence();
        Ok(())
    }
}

/// Checks domain, rights and bounds, in this order.
#[inline(always)]
pub(crate) fn permit(
    entry: &Entry,
    pd: PdId,
    addr: u64,
    len: u64,
    needs: Access,
) -> Result<CheckedAddress, Check> {
    if entry.pd != pd.0 {
        return Err(Check::WrongPd);
    }
    if !entry.access.contains(needs) {
        return Err(Check::Rights(needs.difference(entry.access)));
    }
    // An address below the first one wraps to an offset beyond the end.
    let offset = addr.wrapping_sub(entry.iova);
    if !entry.region.contains(offset, len) {
        return Err(Check::Bounds);
    }
    Ok(CheckedAddress { region: entry.region, offset })
}

/// Checks that `offset..offset + len` lies in the list element.
#[inline(always)]
pub(crate) fn fits(sge: &Sge, offset: u64, len: u64) -> Result<(), AccessError> {
    let length = u64::from(sge.length);
    if offset > length || len > length - offset {
        return Err(refuse(Check::ListTooShort, sge.lkey.value(), offset, len));
    }
    Ok(())
}

#[cold]
pub(crate) fn list_too_short(sges: &[Sge], offset: u64, len: u64) -> AccessError {
    let key = sges.last().map_or(0, |sge| sge.lkey.value());
    refuse(Check::ListTooShort, key, offset, len)
}

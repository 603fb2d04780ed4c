//! Tests of the rules for keys, rights, windows and bounds, one by one.

use vernic_wire::{Lkey, Qpn, Rkey};

use super::*;

const QP: Qpn = Qpn::new(0x11);
const OTHER_QP: Qpn = Qpn::new(0x22);

/// All rights that exist.
fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND
}

/// A device with one domain and 4 KiB registered with `access` at I/O virtual address `iova`.
struct Rig {
    memory: Memory,
    buffer: HostBuffer,
    pd: PdId,
    mr: Mr,
    iova: u64,
}

impl Rig {
    fn new(access: Access) -> Self {
        Self::at(0x1000_0000, access)
    }

    fn at(iova: u64, access: Access) -> Self {
        let memory = Memory::new();
        let buffer = HostBuffer::new(4096).unwrap();
        let pd = memory.alloc_pd();
        // SAFETY: `buffer` lives as long as `memory`, and only its racy copies access it.
        let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 4096, iova, access) }.unwrap();
        Self { memory, buffer, pd, mr, iova }
    }

    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut out = [0; N];
        self.buffer.read_at(offset, &mut out).unwrap();
        out
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.iova + offset, length, lkey: self.mr.lkey }
    }

    fn bind(&self, addr: u64, len: u64, access: Access) -> Bind {
        Bind { qp_pd: self.pd, qpn: QP, lkey: self.mr.lkey, addr, len, access, key: None }
    }

    fn write(&self, rkey: Rkey, offset: u64, src: &[u8]) -> Result<(), Check> {
        let addr = self.iova.wrapping_add(offset);
        self.memory.write_remote(self.pd, QP, rkey, addr, src).map_err(|e| e.check)
    }
}

#[test]
fn remote_write_lands_and_remote_read_returns_it() {
    let rig = Rig::new(all_rights());
    rig.write(rig.mr.rkey, 5, b"hello").unwrap();
    assert_eq!(&rig.bytes::<7>(4), b"\0hello\0");
    let mut out = [0; 5];
    rig.memory.read_remote(rig.pd, QP, rig.mr.rkey, rig.iova + 5, &mut out).unwrap();
    assert_eq!(&out, b"hello");
}

/// Runs the operation of `access` on the first 8 bytes.
fn run(rig: &Rig, access: RemoteAccess) -> Result<(), AccessError> {
    let (memory, pd, rkey, addr) = (&rig.memory, rig.pd, rig.mr.rkey, rig.iova);
    match access {
        RemoteAccess::Read => memory.read_remote(pd, QP, rkey, addr, &mut [0; 8]),
        RemoteAccess::Write => memory.write_remote(pd, QP, rkey, addr, &[0; 8]),
        RemoteAccess::Atomic => memory
            .atomic_cmp_swap(pd, QP, rkey, addr, 0, 0)
            .and(memory.atomic_fetch_add(pd, QP, rkey, addr, 0))
            .map(drop),
        RemoteAccess::AtomicWrite => memory.atomic_write_8(pd, QP, rkey, addr, [0; 8]),
        RemoteAccess::FlushGlobal | RemoteAccess::FlushPersistent => {
            memory.flush(pd, QP, rkey, Some((addr, 8)), access.needs())
        }
    }
}

#[test]
fn each_remote_operation_needs_exactly_its_right() {
    use RemoteAccess::{Atomic, AtomicWrite, FlushGlobal, FlushPersistent, Read, Write};
    for access in [Read, Write, Atomic, AtomicWrite, FlushGlobal, FlushPersistent] {
        let needs = access.needs();
        for (given, missing) in
            [(needs | Access::LOCAL_WRITE, None), (all_rights().difference(needs), Some(needs))]
        {
            let rig = Rig::new(given);
            let expected = missing.map_or(Ok(()), |missing| Err(Check::Rights(missing)));
            assert_eq!(run(&rig, access).map_err(|e| e.check), expected, "{access:?}");
            let checked = rig.memory.check_remote(rig.pd, QP, rig.mr.rkey, rig.iova, 8, access);
            assert_eq!(checked.map_err(|e| e.check), expected, "{access:?}");
        }
    }
}

#[test]
fn local_read_needs_no_right_and_local_write_needs_local_write() {
    let rig = Rig::new(Access::empty());
    let sges = [rig.sge(0, 16)];
    let cursor = &mut SgCursor::default();
    rig.memory.read_local(rig.pd, &sges, cursor, 0, &mut [0; 16]).unwrap();
    rig.memory.check_local(rig.pd, &sges, false).unwrap();
    let missing = Check::Rights(Access::LOCAL_WRITE);
    let error = rig.memory.write_local(rig.pd, &sges, cursor, 0, &[0; 16]).unwrap_err();
    assert_eq!(error.check, missing);
    assert_eq!(rig.memory.check_local(rig.pd, &sges, true).unwrap_err().check, missing);
}

#[test]
fn keys_of_another_domain_are_refused() {
    let rig = Rig::new(all_rights());
    let other = rig.memory.alloc_pd();
    let sges = [rig.sge(0, 8)];
    let error = rig.memory.write_remote(other, QP, rig.mr.rkey, rig.iova, &[1]).unwrap_err();
    assert_eq!(error.check, Check::WrongPd);
    let error = rig.memory.check_local(other, &sges, false).unwrap_err();
    assert_eq!(error.check, Check::WrongPd);
}

#[test]
fn dead_keys_are_stale_and_invented_keys_are_unknown() {
    let rig = Rig::new(all_rights());
    assert_eq!(rig.write(Rkey(rig.mr.rkey.value() ^ 1), 0, &[1]), Err(Check::KeyStale));
    // The flipped bit belongs to the index. So the key is of another slot, which never had a key or
    // does not exist.
    assert_eq!(rig.write(Rkey(rig.mr.rkey.value() ^ 0x8000_0000), 0, &[1]), Err(Check::KeyUnknown));
    assert_eq!(rig.write(Rkey(0), 0, &[1]), Err(Check::KeyUnknown));
    rig.memory.deregister(rig.mr.handle).unwrap();
    assert_eq!(rig.write(rig.mr.rkey, 0, &[1]), Err(Check::KeyStale));
    assert_eq!(rig.memory.deregister(rig.mr.handle), Err(DeregisterError::UnknownHandle));
}

#[test]
fn bounds_hold_at_every_edge() {
    let rig = Rig::new(all_rights());
    let write = |offset: u64, len: usize| rig.write(rig.mr.rkey, offset, &vec![7; len]);
    write(0, 4096).unwrap();
    write(4095, 1).unwrap();
    for (offset, len) in
        [(4096, 1), (4095, 2), (0, 4097), (u64::MAX, 1), (u64::MAX, 2), (1 << 40, 1), (1 << 63, 8)]
    {
        assert_eq!(write(offset, len), Err(Check::Bounds), "{len} bytes at {offset:#x}");
    }
    let check = |len| {
        let (rkey, access) = (rig.mr.rkey, RemoteAccess::Read);
        rig.memory.check_remote(rig.pd, QP, rkey, rig.iova + 1, len, access).map_err(|e| e.check)
    };
    assert_eq!(check(4095), Ok(()));
    assert_eq!(check(4096), Err(Check::Bounds));
    assert_eq!(check(u64::MAX), Err(Check::Bounds));
}

#[test]
fn region_may_end_at_the_last_virtual_address() {
    let rig = Rig::at(u64::MAX - 4095, all_rights());
    rig.write(rig.mr.rkey, 4088, &[1; 8]).unwrap();
    assert_eq!(rig.write(rig.mr.rkey, 4089, &[1; 8]), Err(Check::Bounds));
    assert_eq!(rig.write(rig.mr.rkey, 4096, &[1]), Err(Check::Bounds));
}

#[test]
fn accesses_of_length_zero_do_not_look_at_the_key() {
    let rig = Rig::new(Access::empty());
    rig.write(Rkey(0xDEAD_BEEF), 1 << 50, &[]).unwrap();
    rig.memory.read_remote(rig.pd, QP, Rkey(0), 0, &mut []).unwrap();
    rig.memory.check_remote(rig.pd, QP, Rkey(0), 0, 0, RemoteAccess::Read).unwrap();
    let empty = Sge { addr: 1, length: 0, lkey: Lkey(0) };
    rig.memory.check_local(rig.pd, &[empty, rig.sge(0, 4), empty], false).unwrap();
    let mut out = [0; 4];
    let sges = [empty, rig.sge(0, 2), empty, rig.sge(8, 2)];
    rig.memory.read_local(rig.pd, &sges, &mut SgCursor::default(), 0, &mut out).unwrap();
}

#[test]
fn words_are_checked_even_if_the_packet_says_length_zero() {
    let rig = Rig::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let check = |rkey, offset, access| {
        let addr = rig.iova + offset;
        rig.memory.check_remote(rig.pd, QP, rkey, addr, 0, access).map_err(|e| e.check)
    };
    assert_eq!(check(Rkey(0), 0, RemoteAccess::AtomicWrite), Err(Check::KeyUnknown));
    assert_eq!(check(rig.mr.rkey, 4096, RemoteAccess::AtomicWrite), Err(Check::Bounds));
    assert_eq!(check(rig.mr.rkey, 4, RemoteAccess::AtomicWrite), Err(Check::Alignment));
    assert_eq!(check(rig.mr.rkey, 8, RemoteAccess::AtomicWrite), Ok(()));
}

#[test]
fn atomics_work_on_words_in_host_order_and_want_them_aligned() {
    let rig = Rig::new(all_rights());
    let (memory, pd, rkey) = (&rig.memory, rig.pd, rig.mr.rkey);
    let addr = rig.iova + 16;
    let value = || u64::from_ne_bytes(rig.bytes::<8>(16));
    assert_eq!(memory.atomic_fetch_add(pd, QP, rkey, addr, u64::MAX).unwrap(), 0);
    assert_eq!(memory.atomic_fetch_add(pd, QP, rkey, addr, 3).unwrap(), u64::MAX);
    assert_eq!(value(), 2);
    assert_eq!(memory.atomic_cmp_swap(pd, QP, rkey, addr, 5, 9).unwrap(), 2);
    assert_eq!(value(), 2);
    assert_eq!(memory.atomic_cmp_swap(pd, QP, rkey, addr, 2, 9).unwrap(), 2);
    assert_eq!(value(), 9);
    memory.atomic_write_8(pd, QP, rkey, addr, *b"8 bytes!").unwrap();
    assert_eq!(&rig.bytes::<8>(16), b"8 bytes!");
    for offset in [1, 4, 4092] {
        let error = memory.atomic_fetch_add(pd, QP, rkey, rig.iova + offset, 1).unwrap_err();
        let bounds = offset == 4092;
        assert_eq!(error.check, if bounds { Check::Bounds } else { Check::Alignment });
    }
}

#[test]
fn word_that_is_aligned_on_the_wire_but_not_in_memory_is_refused() {
    let rig = Rig::at(0x1004, all_rights());
    let error = rig.memory.atomic_fetch_add(rig.pd, QP, rig.mr.rkey, 0x1008, 1).unwrap_err();
    assert_eq!(error.check, Check::Alignment);
}

#[test]
fn zero_based_region_counts_from_zero() {
    let rig = Rig::at(0, all_rights() | Access::ZERO_BASED);
    rig.write(rig.mr.rkey, 4095, &[9]).unwrap();
    assert_eq!(rig.bytes::<1>(4095), [9]);
    let base = rig.buffer.as_mut_ptr();
    assert_eq!(rig.write(rig.mr.rkey, base.addr() as u64, &[9]), Err(Check::Bounds));
}

#[test]
fn null_region_reads_zero_swallows_writes_and_has_no_remote_rights() {
    let rig = Rig::new(Access::LOCAL_WRITE);
    let null = rig.memory.alloc_null_mr(rig.pd).unwrap();
    let hole = |length| Sge { addr: 0xFFFF_FFFF_0000_0000, length, lkey: null.lkey };
    let sges = [rig.sge(0, 4), hole(4), rig.sge(4, 4)];
    let cursor = &mut SgCursor::default();
    rig.memory
        .write_local(rig.pd, &sges, cursor, 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
        .unwrap();
    assert_eq!(rig.bytes::<9>(0), [1, 2, 3, 4, 9, 10, 11, 12, 0]);
    let mut out = [0xEE; 12];
    rig.memory.read_local(rig.pd, &sges, cursor, 0, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 4, 0, 0, 0, 0, 9, 10, 11, 12]);
    assert_eq!(rig.write(null.rkey, 0, &[1]), Err(Check::KeyKind));
    let wraps = Sge { addr: u64::MAX, length: 2, lkey: null.lkey };
    let error = rig.memory.check_local(rig.pd, &[wraps], false).unwrap_err();
    assert_eq!(error.check, Check::Bounds);
    rig.memory.deregister(null.handle).unwrap();
}

#[test]
fn list_is_gathered_and_scattered_at_any_offset_and_its_end_is_an_error() {
    let rig = Rig::new(Access::LOCAL_WRITE);
    let sges = [rig.sge(100, 3), rig.sge(0, 0), rig.sge(50, 5), rig.sge(200, 2)];
    assert_eq!(total_len(&sges), 10);
    let cursor = &mut SgCursor::default();
    rig.memory.write_local(rig.pd, &sges, cursor, 0, b"0123456789").unwrap();
    assert_eq!(&rig.bytes::<3>(100), b"012");
    assert_eq!(&rig.bytes::<5>(50), b"34567");
    assert_eq!(&rig.bytes::<2>(200), b"89");
    for (offset, len) in [(0, 10), (2, 3), (9, 1), (4, 4), (0, 1), (3, 7), (10, 0)] {
        let mut out = vec![0; len];
        rig.memory.read_local(rig.pd, &sges, cursor, offset as u64, &mut out).unwrap();
        assert_eq!(out, b"0123456789"[offset..offset + len]);
    }
    for (list, offset, len) in
        [(&sges[..], 9, 2), (&sges[..], 11, 1), (&sges[..1], 2, 2), (&[], 0, 1)]
    {
        let error =
            rig.memory.read_local(rig.pd, list, cursor, offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.check, Check::ListTooShort);
    }
}

#[test]
fn registration_of_a_tebibyte_touches_nothing() {
    let memory = Memory::new();
    let pd = memory.alloc_pd();
    let address = std::ptr::without_provenance_mut::<u8>(0x1000_0000_0000);
    // SAFETY: no access uses the key.
    let mr = unsafe { memory.register(pd, address, 1 << 40, 0, Access::REMOTE_READ) }.unwrap();
    let last = (1 << 40) - 1;
    memory.check_remote(pd, QP, mr.rkey, last, 1, RemoteAccess::Read).unwrap();
    memory.deregister(mr.handle).unwrap();
}

#[test]
fn impossible_regions_are_refused_by_name() {
    let memory = Memory::new();
    let pd = memory.alloc_pd();
    let register = |addr: usize, len, iova, access| {
        let addr = std::ptr::without_provenance_mut(addr);
        // SAFETY: no access uses the key.
        unsafe { memory.register(pd, addr, len, iova, access) }.map(drop)
    };
    let none = Access::empty();
    let max = Memory::MAX_REGION_BYTES;
    let top = usize::MAX;
    assert_eq!(register(1, max + 1, 0, none), Err(RegisterError::TooLong { len: max + 1, max }));
    assert_eq!(register(1, u64::MAX, 0, none), Err(RegisterError::TooLong { len: u64::MAX, max }));
    assert_eq!(
        register(top, 2, 0, none),
        Err(RegisterError::WrapsAddress { addr: top as u64, len: 2 })
    );
    assert_eq!(
        register(1, 2, u64::MAX, none),
        Err(RegisterError::WrapsIova { iova: u64::MAX, len: 2 })
    );
    assert_eq!(register(0, 1, 0, none), Err(RegisterError::NullAddress { len: 1 }));
    assert_eq!(register(1, 1, 1, Access::ZERO_BASED), Err(RegisterError::NotZeroBased { iova: 1 }));
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert_eq!(register(1, 1, 1, access), Err(RegisterError::NeedsLocalWrite { access }));
    }
    assert_eq!(
        register(1, 1, 1, Access::from_bits_retain(1 << 15)),
        Err(RegisterError::UnknownAccess { bits: 1 << 15 })
    );
    assert_eq!(register(0, 0, 0, none), Ok(()));
    assert_eq!(register(1, max, 0, none), Ok(()));
}

#[test]
fn access_bits_of_the_c_api_are_taken_and_unknown_optional_ones_dropped() {
    assert_eq!(Access::from_verbs(0x3FF), Ok(Access::from_bits_retain(0x3FF)));
    assert_eq!(Access::from_verbs(1 << 25 | 1 << 20), Ok(Access::RELAXED_ORDERING));
    assert_eq!(Access::from_verbs(1 << 10), Err(RegisterError::UnknownAccess { bits: 1 << 10 }));
}

#[test]
fn reregistration_keeps_keys_and_changes_what_was_asked_for() {
    let rig = Rig::new(all_rights());
    let other = HostBuffer::new(64).unwrap();
    let pd = rig.memory.alloc_pd();
    let change = Reregister {
        pd: Some(pd),
        access: Some(Access::REMOTE_READ),
        range: Some((other.as_mut_ptr(), 64, 0)),
    };
    other.write_at(60, b"tail").unwrap();
    // SAFETY: `other` lives as long as `rig.memory` is used.
    let mr = unsafe { rig.memory.reregister(rig.mr.handle, change) }.unwrap();
    assert_eq!(mr, rig.mr);
    let mut out = [0; 4];
    rig.memory.read_remote(pd, QP, mr.rkey, 60, &mut out).unwrap();
    assert_eq!(&out, b"tail");
    assert_eq!(rig.write(mr.rkey, 0, &[1]), Err(Check::WrongPd));
    rig.memory.dealloc_pd(rig.pd).unwrap();
    let bad = Reregister { access: Some(Access::REMOTE_WRITE), ..Reregister::default() };
    // SAFETY: the call is refused, so nothing changes.
    let refused = unsafe { rig.memory.reregister(mr.handle, bad) };
    assert_eq!(refused, Err(RegisterError::NeedsLocalWrite { access: Access::REMOTE_WRITE }));
    rig.memory.read_remote(pd, QP, mr.rkey, 60, &mut out).unwrap();
}

#[test]
fn domain_is_freed_only_when_empty() {
    let rig = Rig::new(all_rights());
    let mw = rig.memory.alloc_mw(rig.pd, MwType::Type1).unwrap();
    rig.memory.hold_pd(rig.pd).unwrap();
    let busy =
        |regions, windows, holders| Err(PdError::Busy { pd: rig.pd, regions, windows, holders });
    assert_eq!(rig.memory.dealloc_pd(rig.pd), busy(1, 1, 1));
    rig.memory.deregister(rig.mr.handle).unwrap();
    assert_eq!(rig.memory.dealloc_pd(rig.pd), busy(0, 1, 1));
    rig.memory.dealloc_mw(mw.handle).unwrap();
    assert_eq!(rig.memory.dealloc_pd(rig.pd), busy(0, 0, 1));
    rig.memory.release_pd(rig.pd);
    rig.memory.dealloc_pd(rig.pd).unwrap();
    assert_eq!(rig.memory.dealloc_pd(rig.pd), Err(PdError::Unknown(rig.pd)));
    assert_eq!(
        rig.memory.alloc_mw(rig.pd, MwType::Type1).unwrap_err(),
        RegisterError::Pd(PdError::Unknown(rig.pd))
    );
}

#[test]
fn type_1_window_opens_its_range_and_each_bind_kills_the_key_before() {
    let rig = Rig::new(all_rights());
    let mw = rig.memory.alloc_mw(rig.pd, MwType::Type1).unwrap();
    assert_eq!(rig.write(mw.rkey, 0, &[1]), Err(Check::NotBound));
    let bind = rig.bind(rig.iova + 100, 50, Access::REMOTE_WRITE);
    let first = rig.memory.bind_mw(mw.handle, &bind).unwrap();
    assert_eq!(first, rig.memory.next_rkey(mw.rkey));
    assert_eq!(rig.write(mw.rkey, 100, &[1]), Err(Check::KeyStale));
    rig.write(first, 100, &[1; 50]).unwrap();
    assert_eq!(rig.write(first, 99, &[1]), Err(Check::Bounds));
    assert_eq!(rig.write(first, 150, &[1]), Err(Check::Bounds));
    // Any queue pair of the domain may use a type 1 window.
    rig.memory.write_remote(rig.pd, OTHER_QP, first, rig.iova + 100, &[1]).unwrap();
    let error = rig.memory.read_remote(rig.pd, QP, first, rig.iova + 100, &mut [0]).unwrap_err();
    assert_eq!(error.check, Check::Rights(Access::REMOTE_READ));
    // A window has no lkey.
    let sge = Sge { addr: rig.iova + 100, length: 1, lkey: Lkey(first.value()) };
    let error = rig.memory.check_local(rig.pd, &[sge], false).unwrap_err();
    assert_eq!(error.check, Check::KeyKind);
    // Binding with length 0 unbinds.
    let unbind = Bind { len: 0, lkey: Lkey(0), ..bind };
    let second = rig.memory.bind_mw(mw.handle, &unbind).unwrap();
    assert_eq!(rig.write(first, 100, &[1]), Err(Check::KeyStale));
    assert_eq!(rig.write(second, 100, &[1]), Err(Check::NotBound));
    rig.memory.deregister(rig.mr.handle).unwrap();
}

#[test]
fn type_2_window_serves_one_queue_pair_and_is_bound_again_only_after_invalidation() {
    let rig = Rig::new(all_rights());
    let mw = rig.memory.alloc_mw(rig.pd, MwType::Type2).unwrap();
    let byte = (mw.rkey.value() as u8).wrapping_add(1);
    let bind = Bind { key: Some(byte), ..rig.bind(rig.iova, 64, Access::REMOTE_WRITE) };
    let rkey = rig.memory.bind_mw(mw.handle, &bind).unwrap();
    assert_eq!(rkey.value(), (mw.rkey.value() & !0xFF) | u32::from(byte));
    rig.write(rkey, 0, &[1]).unwrap();
    let wrong = rig.memory.write_remote(rig.pd, OTHER_QP, rkey, rig.iova, &[1]).unwrap_err();
    assert_eq!(wrong.check, Check::WrongQp);
    let again = Bind { key: Some(byte.wrapping_add(1)), ..bind };
    assert_eq!(rig.memory.bind_mw(mw.handle, &again), Err(BindError::AlreadyBound));
    rig.memory.invalidate_remote(rig.pd, QP, rkey).unwrap();
    assert_eq!(rig.write(rkey, 0, &[1]), Err(Check::NotBound));
    // The application may also keep the present key.
    assert_eq!(rig.memory.bind_mw(mw.handle, &bind), Ok(rkey));
    rig.write(rkey, 0, &[1]).unwrap();
    rig.memory.invalidate_local(rig.pd, rkey).unwrap();
    let rkey = rig.memory.bind_mw(mw.handle, &again).unwrap();
    rig.write(rkey, 0, &[1]).unwrap();
    rig.memory.unbind_qp_windows(OTHER_QP);
    rig.write(rkey, 0, &[1]).unwrap();
    rig.memory.unbind_qp_windows(QP);
    assert_eq!(rig.write(rkey, 0, &[1]), Err(Check::NotBound));
}

#[test]
fn only_bound_type_2_windows_are_invalidated_and_only_by_their_owner() {
    let rig = Rig::new(all_rights());
    let (memory, pd) = (&rig.memory, rig.pd);
    let other_pd = memory.alloc_pd();
    let region = rig.mr.rkey;
    let refused = InvalidateError::NotInvalidatable(region);
    assert_eq!(memory.invalidate_local(pd, region), Err(refused));
    assert_eq!(memory.invalidate_remote(pd, QP, region), Err(refused));
    let bind = rig.bind(rig.iova, 64, Access::REMOTE_READ);
    let mw1 = memory.alloc_mw(pd, MwType::Type1).unwrap();
    let rkey1 = memory.bind_mw(mw1.handle, &bind).unwrap();
    assert_eq!(memory.invalidate_local(pd, rkey1), Err(InvalidateError::NotInvalidatable(rkey1)));
    let mw2 = memory.alloc_mw(pd, MwType::Type2).unwrap();
    assert_eq!(memory.invalidate_local(pd, mw2.rkey), Err(InvalidateError::UnknownKey(mw2.rkey)));
    let rkey2 = memory.bind_mw(mw2.handle, &bind).unwrap();
    assert_eq!(memory.invalidate_remote(other_pd, QP, rkey2), Err(InvalidateError::WrongPd(rkey2)));
    assert_eq!(memory.invalidate_remote(pd, OTHER_QP, rkey2), Err(InvalidateError::WrongQp(rkey2)));
    assert!(memory.is_bound(mw2.handle));
    assert_eq!(memory.invalidate_local(pd, rkey2), Ok(()));
    assert!(!memory.is_bound(mw2.handle));
    assert_eq!(memory.invalidate_local(pd, rkey2), Err(InvalidateError::UnknownKey(rkey2)));
}

#[test]
fn bind_is_refused_by_each_rule() {
    let rig = Rig::new(all_rights());
    let memory = &rig.memory;
    let mw = memory.alloc_mw(rig.pd, MwType::Type1).unwrap();
    let good = rig.bind(rig.iova, 64, Access::REMOTE_WRITE);
    let bind = |bind: Bind| memory.bind_mw(mw.handle, &bind).unwrap_err();
    let other = memory.alloc_pd();
    let (window, region) = (rig.pd, rig.pd);
    let wrong = BindError::WrongPd { window, region, qp: other };
    assert_eq!(bind(Bind { qp_pd: other, ..good }), wrong);
    assert_eq!(bind(Bind { lkey: Lkey(9), ..good }), BindError::UnknownRegion { lkey: 9 });
    let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    assert_eq!(bind(Bind { access, ..good }), BindError::BadAccess { access });
    for (addr, len) in [(rig.iova, 4097), (rig.iova - 1, 2), (rig.iova + 4096, 1), (0, u64::MAX)] {
        assert_eq!(bind(Bind { addr, len, ..good }), BindError::Bounds { addr, len });
    }

    let plain = Rig::new(Access::LOCAL_WRITE);
    let mw = plain.memory.alloc_mw(plain.pd, MwType::Type1).unwrap();
    let good = plain.bind(plain.iova, 64, Access::REMOTE_READ);
    assert_eq!(plain.memory.bind_mw(mw.handle, &good), Err(BindError::NoBindRight));
    let read_only = Rig::new(Access::MW_BIND);
    let mw = read_only.memory.alloc_mw(read_only.pd, MwType::Type1).unwrap();
    let good = read_only.bind(read_only.iova, 64, Access::REMOTE_ATOMIC);
    assert_eq!(read_only.memory.bind_mw(mw.handle, &good), Err(BindError::NeedsLocalWrite));
    let good = Bind { access: Access::REMOTE_READ, ..good };
    read_only.memory.bind_mw(mw.handle, &good).unwrap();
}

#[test]
fn zero_based_window_counts_from_zero() {
    let rig = Rig::new(all_rights());
    let mw = rig.memory.alloc_mw(rig.pd, MwType::Type2).unwrap();
    let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
    let rkey = rig.memory.bind_mw(mw.handle, &rig.bind(rig.iova + 8, 4, access)).unwrap();
    rig.memory.write_remote(rig.pd, QP, rkey, 3, &[0xAB]).unwrap();
    assert_eq!(rig.bytes::<1>(11), [0xAB]);
    let error = rig.memory.write_remote(rig.pd, QP, rkey, 4, &[0xAB]).unwrap_err();
    assert_eq!(error.check, Check::Bounds);
}

#[test]
fn region_with_bound_windows_stays_until_they_are_gone() {
    let rig = Rig::new(all_rights());
    let bind = rig.bind(rig.iova, 64, Access::REMOTE_READ);
    let mws = [MwType::Type1, MwType::Type2].map(|mw_type| {
        let mw = rig.memory.alloc_mw(rig.pd, mw_type).unwrap();
        rig.memory.bind_mw(mw.handle, &bind).unwrap();
        mw
    });
    let refused = |windows| Err(DeregisterError::WindowsBound { windows });
    assert_eq!(rig.memory.deregister(rig.mr.handle), refused(2));
    // SAFETY: the call is refused, so nothing changes.
    let reregistered = unsafe { rig.memory.reregister(rig.mr.handle, Reregister::default()) };
    assert_eq!(reregistered, Err(RegisterError::WindowsBound { windows: 2 }));
    // A window that is bound again counts once.
    rig.memory.bind_mw(mws[0].handle, &bind).unwrap();
    assert_eq!(rig.memory.deregister(rig.mr.handle), refused(2));
    rig.memory.dealloc_mw(mws[0].handle).unwrap();
    assert_eq!(rig.memory.dealloc_mw(mws[0].handle), Err(BindError::UnknownHandle));
    assert_eq!(rig.memory.deregister(rig.mr.handle), refused(1));
    rig.memory.unbind_qp_windows(QP);
    rig.memory.deregister(rig.mr.handle).unwrap();
}

#[test]
fn forced_deregistration_unbinds_the_windows_of_its_region_only() {
    let rig = Rig::new(all_rights());
    let memory = &rig.memory;
    let base = rig.buffer.as_mut_ptr();
    // SAFETY: `buffer` lives as long as `memory`, and only its racy copies access it.
    let other = unsafe { memory.register(rig.pd, base, 4096, rig.iova, all_rights()) }.unwrap();
    let bind = rig.bind(rig.iova, 64, Access::REMOTE_WRITE);
    let bind_other = Bind { lkey: other.lkey, ..bind };
    let windows = [MwType::Type1, MwType::Type2].map(|mw_type| {
        let mw = memory.alloc_mw(rig.pd, mw_type).unwrap();
        (mw, memory.bind_mw(mw.handle, &bind).unwrap())
    });
    let kept = memory.alloc_mw(rig.pd, MwType::Type1).unwrap();
    let kept_rkey = memory.bind_mw(kept.handle, &bind_other).unwrap();

    assert_eq!(memory.force_deregister(rig.mr.handle), 2);
    assert_eq!(memory.force_deregister(rig.mr.handle), 0, "gone already");
    assert_eq!(memory.deregister(rig.mr.handle), Err(DeregisterError::UnknownHandle));
    assert_eq!(rig.write(rig.mr.rkey, 0, &[1]), Err(Check::KeyStale));
    rig.write(kept_rkey, 0, &[1]).unwrap();
    let busy = PdError::Busy { pd: rig.pd, regions: 1, windows: 3, holders: 0 };
    assert_eq!(memory.dealloc_pd(rig.pd), Err(busy));
    for (mw, rkey) in windows {
        assert_eq!(rig.write(rkey, 0, &[1]), Err(Check::NotBound));
        assert!(memory.invalidate_remote(rig.pd, QP, rkey).is_err(), "it has no rights to take");
        let unknown = BindError::UnknownRegion { lkey: rig.mr.lkey.value() };
        assert_eq!(memory.bind_mw(mw.handle, &bind), Err(unknown));
        let again = memory.bind_mw(mw.handle, &bind_other).unwrap();
        assert_eq!(again, memory.next_rkey(rkey));
        rig.write(again, 0, &[1]).unwrap();
        memory.dealloc_mw(mw.handle).unwrap();
        assert_eq!(rig.write(again, 0, &[1]), Err(Check::KeyStale));
    }
    assert_eq!(memory.force_deregister(other.handle), 1);
    memory.dealloc_mw(kept.handle).unwrap();
    memory.dealloc_pd(rig.pd).unwrap();
}

#[test]
fn flush_checks_the_range_or_the_whole_region() {
    let rig = Rig::new(Access::FLUSH_GLOBAL);
    let flush = |range, placement| {
        rig.memory.flush(rig.pd, QP, rig.mr.rkey, range, placement).map_err(|e| e.check)
    };
    flush(None, Access::FLUSH_GLOBAL).unwrap();
    flush(Some((rig.iova, 4096)), Access::FLUSH_GLOBAL).unwrap();
    assert_eq!(flush(Some((rig.iova, 4097)), Access::FLUSH_GLOBAL), Err(Check::Bounds));
    let both = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    assert_eq!(flush(None, both), Err(Check::Rights(Access::FLUSH_PERSISTENT)));
}

#[test]
fn refusal_is_one_line_that_says_what_to_do() {
    let error = AccessError {
        check: Check::Rights(Access::REMOTE_WRITE),
        key: 0x0102_03FF,
        addr: 0x1000,
        len: 64,
    };
    assert_eq!(
        error.to_string(),
        "key 0x010203ff, 64 bytes at 0x1000: the right REMOTE_WRITE is missing; register or bind \
         with it"
    );
    let error = AccessError { check: Check::Bounds, ..error };
    assert!(!error.to_string().contains('\n'));
}

#[test]
fn host_buffer_is_zeroed_page_aligned_and_checks_its_bounds() {
    let lengths = [0, 1, 4096, 10_000].into_iter();
    for (len, make) in
        lengths.flat_map(|len| [(len, HostBuffer::new as fn(_) -> _), (len, HostBuffer::private)])
    {
        let buffer: HostBuffer = make(len).unwrap();
        assert_eq!((buffer.len(), buffer.is_empty()), (len, len == 0));
        assert_eq!(buffer.as_mut_ptr().addr() % 4096, 0);
        let mut all = vec![1; len];
        buffer.read_at(0, &mut all).unwrap();
        assert!(all.iter().all(|&b| b == 0));
        assert!(buffer.write_at(len, &[1]).is_err());
        assert!(buffer.read_at(usize::MAX, &mut [0]).is_err());
    }
    assert!(HostBuffer::new(usize::MAX).is_err());
}

#[test]
fn private_memory_has_no_descriptor() {
    assert!(HostBuffer::private(10).unwrap().shared_fd().is_none());
}

/// Whether a child of `fork` inherits the mapping that begins at `base`.
#[cfg(not(miri))]
fn is_inherited(base: *mut u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", base.addr());
    let flags = maps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = flags.skip(1).find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    // The flag `dc` means "do not copy".
    !flags.split_whitespace().any(|flag| flag == "dc")
}

#[test]
#[cfg(not(miri))]
fn children_inherit_no_buffer_that_peers_may_map() {
    let (shared, private) = (HostBuffer::new(8192).unwrap(), HostBuffer::private(8192).unwrap());
    assert!(shared.shared_fd().is_some());
    assert!(!is_inherited(shared.as_mut_ptr()));
    assert!(is_inherited(private.as_mut_ptr()));
}

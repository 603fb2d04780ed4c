//! Tests of the region over the whole address space. Accesses to mapped memory succeed, all others
//! are refused, and no access ends the process.

#![cfg(not(miri))]
#![allow(unsafe_code)]

use vernic_mem::{
    Access, Bind, BindError, Check, Memory, Mr, MwType, PdId, RegisterError, RemoteAccess,
    Reregister, SgCursor, Sge,
};
use vernic_wire::Qpn;

const QP: Qpn = Qpn::new(0x11);
const PAGE: usize = 4096;

/// Pages of the test, between pages that no other thread maps.
struct Pages(*mut u8);

impl Pages {
    const COUNT: usize = 4;

    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), Self::COUNT * PAGE, rights, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self(base.cast())
    }

    fn addr(&self, page: usize) -> u64 {
        (self.0.addr() + page * PAGE) as u64
    }

    fn protect(&self, page: usize, rights: i32) {
        // SAFETY: the range is a page of this mapping, to which there are no references.
        let result = unsafe { libc::mprotect(self.0.add(page * PAGE).cast(), PAGE, rights) };
        assert_eq!(result, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, which is not used any more.
        unsafe { libc::munmap(self.0.cast(), Self::COUNT * PAGE) };
    }
}

struct Rig {
    memory: Memory,
    pd: PdId,
    mr: Mr,
}

impl Rig {
    fn new() -> Self {
        let memory = Memory::new();
        let pd = memory.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND | Access::ON_DEMAND;
        // SAFETY: these tests access `Pages` only, to which there are no references.
        let mr = unsafe { memory.register_address_space(pd, access) }.unwrap();
        Self { memory, pd, mr }
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), Check> {
        self.memory.write_remote(self.pd, QP, self.mr.rkey, addr, src).map_err(|e| e.check)
    }

    fn read<const N: usize>(&self, addr: u64) -> Result<[u8; N], Check> {
        let mut bytes = [0; N];
        let done = self.memory.read_remote(self.pd, QP, self.mr.rkey, addr, &mut bytes);
        done.map(|()| bytes).map_err(|e| e.check)
    }

    fn add(&self, addr: u64, n: u64) -> Result<u64, Check> {
        self.memory.atomic_fetch_add(self.pd, QP, self.mr.rkey, addr, n).map_err(|e| e.check)
    }

    fn swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Check> {
        let (pd, rkey) = (self.pd, self.mr.rkey);
        self.memory.atomic_cmp_swap(pd, QP, rkey, addr, compare, swap).map_err(|e| e.check)
    }

    fn gather(&self, addr: u64) -> Result<[u8; 8], Check> {
        let sge = Sge { addr, length: 8, lkey: self.mr.lkey };
        let mut bytes = [0; 8];
        self.memory
            .read_local(self.pd, &[sge], &mut SgCursor::default(), 0, &mut bytes)
            .map_err(|e| e.check)?;
        Ok(bytes)
    }

    fn scatter(&self, addr: u64) -> Result<(), Check> {
        let sge = Sge { addr, length: 8, lkey: self.mr.lkey };
        self.memory
            .write_local(self.pd, &[sge], &mut SgCursor::default(), 0, b"scattere")
            .map_err(|e| e.check)
    }
}

#[test]
fn mapped_memory_is_reached_by_its_address() {
    let (rig, pages) = (Rig::new(), Pages::new());
    for len in [1, 7, 8, 9, 4096, 5000] {
        for offset in [0, 1, 7, 8, 4090] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + offset) as u8).collect();
            rig.write(pages.addr(0) + offset, &bytes).unwrap();
            let found: [u8; 5000] = rig.read(pages.addr(0) + offset).unwrap();
            assert_eq!(found[..len as usize], bytes, "{len} bytes at {offset}");
        }
    }
    rig.scatter(pages.addr(3)).unwrap();
    assert_eq!(&rig.gather(pages.addr(3)).unwrap(), b"scattere");
}

#[test]
fn words_are_operated_upon() {
    let (rig, pages) = (Rig::new(), Pages::new());
    let at = pages.addr(1) + 16;
    assert_eq!((rig.add(at, 5), rig.add(at, 2)), (Ok(0), Ok(5)));
    assert_eq!((rig.swap(at, 6, 9), rig.swap(at, 7, 9)), (Ok(7), Ok(7)));
    assert_eq!(rig.read(at), Ok(9u64.to_ne_bytes()));
    let (pd, rkey) = (rig.pd, rig.mr.rkey);
    rig.memory.atomic_write_8(pd, QP, rkey, at, *b"eight by").unwrap();
    assert_eq!(rig.read(at), Ok(*b"eight by"));
    assert_eq!(rig.add(at + 4, 1), Err(Check::Alignment));
}

#[test]
fn what_is_not_mapped_is_refused_until_it_is() {
    let (rig, pages) = (Rig::new(), Pages::new());
    pages.protect(1, libc::PROT_NONE);
    let at = pages.addr(1);
    let all = |rig: &Rig| {
        [
            rig.write(at, b"x"),
            rig.write(at - 4, b"8 across"),
            rig.read::<1>(at).map(drop),
            rig.read::<8>(at - 4).map(drop),
            rig.add(at, 1).map(drop),
            rig.swap(at, 0, 1).map(drop),
            rig.gather(at).map(drop),
            rig.scatter(at),
        ]
    };
    assert_eq!(all(&rig), [Err(Check::Unmapped); 8]);
    let asked = rig.memory.check_remote(rig.pd, QP, rig.mr.rkey, at, 8, RemoteAccess::Atomic);
    assert_eq!(asked.map_err(|e| e.check), Err(Check::Unmapped));
    pages.protect(1, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(all(&rig), [Ok(()); 8]);
    for addr in [0, 8, 1 << 63, u64::MAX - 8] {
        assert_eq!(rig.write(addr, b"x"), Err(Check::Unmapped), "{addr:#x}");
    }
    assert_eq!(rig.write(u64::MAX, b"xy"), Err(Check::Bounds));
}

#[test]
fn read_only_memory_can_be_read_only() {
    let (rig, pages) = (Rig::new(), Pages::new());
    let at = pages.addr(2);
    rig.write(at, b"constant").unwrap();
    pages.protect(2, libc::PROT_READ);
    assert_eq!(rig.write(at, b"x"), Err(Check::Unmapped));
    assert_eq!(rig.scatter(at), Err(Check::Unmapped));
    assert_eq!(rig.add(at, 1), Err(Check::Unmapped));
    assert_eq!(rig.swap(at, 0, 1).map(u64::to_ne_bytes), Ok(*b"constant"), "nothing to write");
    assert_eq!((rig.read(at), rig.gather(at)), (Ok(*b"constant"), Ok(*b"constant")));
}

#[test]
fn it_takes_no_window_and_no_other_memory_but_other_rights() {
    let (rig, pages) = (Rig::new(), Pages::new());
    let window = rig.memory.alloc_mw(rig.pd, MwType::Type1).unwrap();
    let (lkey, addr, len) = (rig.mr.lkey, pages.addr(0), 8);
    let access = Access::REMOTE_READ;
    let bind = Bind { qp_pd: rig.pd, qpn: QP, lkey, addr, len, access, key: None };
    assert_eq!(rig.memory.bind_mw(window.handle, &bind), Err(BindError::Bounds { addr, len }));
    let range = Some((pages.0, 8, 0));
    let change = Reregister { range, ..Reregister::default() };
    // SAFETY: the pages outlive the region.
    let changed = unsafe { rig.memory.reregister(rig.mr.handle, change) };
    assert_eq!(changed, Err(RegisterError::NoMemory));
    let change = Reregister { access: Some(Access::REMOTE_READ), ..Reregister::default() };
    // SAFETY: the pages outlive the region.
    unsafe { rig.memory.reregister(rig.mr.handle, change) }.unwrap();
    assert_eq!(rig.write(addr, b"x"), Err(Check::Rights(Access::REMOTE_WRITE)));
    assert!(rig.read::<1>(addr).is_ok());
    rig.memory.deregister(rig.mr.handle).unwrap();
    assert_eq!(rig.read::<1>(addr), Err(Check::KeyStale));
}

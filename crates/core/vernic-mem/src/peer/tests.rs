//! Tests of copies to and from memory of another process. A second mapping of a file stands for
//! that memory, or this process itself, accessed through the kernel.
#![cfg(not(miri))]

use std::os::fd::AsFd;

use vernic_wire::Lkey;

use super::*;
use crate::{Bind, Check, GrantedProcess, PeerRevocationWords, Reregister, RevocationToken};
use crate::{
    Grant, GrantError, GrantedProcessId, HostBuffer, LivenessWord, Memory, Mr, MwType, SgCursor,
};
use crate::{PeerList, PeerRange};
use vernic_wire::{Qpn, Rkey};

fn own_pid() -> i32 {
    std::process::id() as i32
}

const QP: Qpn = Qpn::new(0x11);
const LEN: usize = 16384;

/// Local memory, registered as two halves and a null region, and memory that stands for remote
/// memory.
struct Rig {
    memory: Memory,
    local: HostBuffer,
    remote: HostBuffer,
    pd: PdId,
    mr: Mr,
    null: Mr,
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

impl Rig {
    fn new() -> Self {
        let memory = Memory::new();
        let (local, remote) = (HostBuffer::new(LEN).unwrap(), HostBuffer::new(LEN).unwrap());
        local.write_at(0, &pattern(1, LEN)).unwrap();
        remote.write_at(0, &pattern(2, LEN)).unwrap();
        let pd = memory.alloc_pd();
        // SAFETY: `local` lives as long as `memory`, and only its racy copies access it.
        let mr =
            unsafe { memory.register(pd, local.as_mut_ptr(), LEN as u64, 0, Access::LOCAL_WRITE) };
        let (mr, null) = (mr.unwrap(), memory.alloc_null_mr(pd).unwrap());
        Self { memory, local, remote, pd, mr, null }
    }

    fn mapped(&self) -> Box<dyn RemoteMemory> {
        let file = self.remote.shared_fd().unwrap();
        Box::new(PeerMapping::map(file, 0, LEN as u64, true).unwrap())
    }

    fn range(&self) -> PeerRange {
        let (addr, len) = (self.remote.as_mut_ptr().addr() as u64, LEN as u64);
        PeerRange { liveness: self.liveness_word(), pid: own_pid(), addr, len }
    }

    fn process(&self) -> Box<dyn RemoteMemory> {
        Box::new(self.range())
    }

    fn liveness_word(&self) -> LivenessWord {
        self.memory.liveness_word().unwrap()
    }

    fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: self.mr.lkey }
    }

    fn write(&self, sges: &[Sge], to: &dyn RemoteMemory, at: u64) -> Result<(), PeerCopyError> {
        let len = crate::total_len(sges);
        let cursor = &mut SgCursor::default();
        to.write(self.memory.part(self.pd, sges, cursor, 0, len), at, &|| true)
    }

    fn read(&self, sges: &[Sge], from: &dyn RemoteMemory, at: u64) -> Result<(), PeerCopyError> {
        let len = crate::total_len(sges);
        let cursor = &mut SgCursor::default();
        from.read(self.memory.part(self.pd, sges, cursor, 0, len), at, &|| true)
    }

    fn bytes(buffer: &HostBuffer) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        buffer.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
    let lens = [1, 7, 8, 9, 15, 64, 255, 256, 257, 263, 511, 2047, 2056, 2063, 4100, 8001];
    let rig = Rig::new();
    for to in [rig.mapped(), rig.process()] {
        for len in lens {
            for (from, at) in [(0, 0), (1, 1), (3, 0), (0, 5), (7, 3), (16, 8)] {
                let (source, before) = (Rig::bytes(&rig.local), Rig::bytes(&rig.remote));
                rig.write(&[rig.sge(from, len)], &*to, at).unwrap();
                let mut expected = before;
                let (from, at, len) = (from as usize, at as usize, len as usize);
                expected[at..at + len].copy_from_slice(&source[from..from + len]);
                assert_eq!(Rig::bytes(&rig.remote), expected, "WRITE of {len} from {from} to {at}");

                let fresh = pattern(len + at, LEN);
                rig.remote.write_at(0, &fresh).unwrap();
                let mut expected = source;
                rig.read(&[rig.sge(from as u64, len as u32)], &*to, at as u64).unwrap();
                expected[from..from + len].copy_from_slice(&fresh[at..at + len]);
                assert_eq!(Rig::bytes(&rig.local), expected, "READ of {len} at {at} to {from}");
            }
        }
    }
}

#[test]
fn lists_of_many_pieces_and_special_regions_are_copied_in_their_order() {
    let rig = Rig::new();
    let source = Rig::bytes(&rig.local);
    let mut sges: Vec<Sge> = (0..40).map(|i| rig.sge(i * 100, 1 + i as u32 % 9)).collect();
    // A null region reads as zero.
    sges.insert(17, Sge { addr: 0, length: 5000, lkey: rig.null.lkey });
    let mut expected: Vec<u8> = Vec::new();
    for sge in &sges {
        let start = sge.addr as usize;
        match sge.lkey == rig.null.lkey {
            true => expected.resize(expected.len() + 5000, 0),
            false => expected.extend(&source[start..start + sge.length as usize]),
        }
    }
    for reach in [rig.mapped(), rig.process()] {
        rig.remote.write_at(0, &pattern(3, LEN)).unwrap();
        rig.write(&sges, &*reach, 11).unwrap();
        assert_eq!(Rig::bytes(&rig.remote)[11..11 + expected.len()], expected);
        rig.read(&sges, &*reach, 11).unwrap();
        assert_eq!(Rig::bytes(&rig.local), source, "what was written comes back");
        // Copy a part of the message that begins in the middle of a list element.
        let mut cursor = SgCursor::default();
        let to = (&reach, 9000);
        to.0.write(rig.memory.part(rig.pd, &sges, &mut cursor, 3, 2000), to.1, &|| true).unwrap();
        assert_eq!(Rig::bytes(&rig.remote)[9000..11000], expected[3..2003]);
    }
}

#[test]
fn bytes_of_ours_arrive_and_atomics_need_a_mapping() {
    let rig = Rig::new();
    for reach in [rig.mapped(), rig.process()] {
        reach.write_bytes(b"hello", 13).unwrap();
        assert_eq!(&Rig::bytes(&rig.remote)[13..18], b"hello");
        reach.write_bytes(b"", LEN as u64).unwrap();
    }
    let mapped = rig.mapped();
    rig.remote.write_at(64, &5_u64.to_ne_bytes()).unwrap();
    assert_eq!(mapped.atomic(64, PeerAtomic::FetchAdd(3)).unwrap(), 5);
    assert_eq!(mapped.atomic(64, PeerAtomic::CmpSwap { compare: 7, swap: 1 }).unwrap(), 8);
    assert_eq!(mapped.atomic(64, PeerAtomic::CmpSwap { compare: 8, swap: u64::MAX }).unwrap(), 8);
    assert_eq!(mapped.atomic(64, PeerAtomic::FetchAdd(2)).unwrap(), u64::MAX);
    assert_eq!(Rig::bytes(&rig.remote)[64..72], 1_u64.to_ne_bytes());
    assert!(mapped.atomic(65, PeerAtomic::FetchAdd(3)).is_err());
    assert!(mapped.atomic(LEN as u64 - 4, PeerAtomic::FetchAdd(3)).is_err());
    assert!(rig.process().atomic(64, PeerAtomic::FetchAdd(3)).is_err());
}

#[test]
fn accesses_beyond_the_range_or_the_rights_are_refused() {
    let rig = Rig::new();
    let before = Rig::bytes(&rig.remote);
    let sges = [rig.sge(0, 9)];
    for reach in [rig.mapped(), rig.process()] {
        for at in [LEN as u64 - 8, LEN as u64, u64::MAX - 3, u64::MAX] {
            assert!(
                matches!(rig.write(&sges, &*reach, at), Err(PeerCopyError::Peer(_))),
                "{at:#x}"
            );
            assert!(matches!(rig.read(&sges, &*reach, at), Err(PeerCopyError::Peer(_))), "{at:#x}");
            assert!(
                matches!(reach.write_bytes(&[0; 9], at), Err(PeerCopyError::Peer(_))),
                "{at:#x}"
            );
        }
        // An error of the local memory is reported as one.
        let outside = [rig.sge(LEN as u64 - 1, 2)];
        let stale = [Sge { lkey: Lkey(rig.mr.lkey.value() ^ 0x100), ..sges[0] }];
        for list in [outside, stale] {
            assert!(matches!(rig.write(&list, &*reach, 0), Err(PeerCopyError::Local(_))));
            assert!(matches!(rig.read(&list, &*reach, 0), Err(PeerCopyError::Local(_))));
        }
        let (cursor, len) = (&mut SgCursor::default(), 10);
        let to = (&reach, LEN as u64 - 10);
        let short = to.0.write(rig.memory.part(rig.pd, &sges, cursor, 0, len), to.1, &|| true);
        let short = matches!(short, Err(PeerCopyError::Local(e)) if e.check == Check::ListTooShort);
        assert!(short);
    }
    let file = rig.remote.shared_fd().unwrap();
    let read_only = PeerMapping::map(file, 0, LEN as u64, false).unwrap();
    assert!(rig.write(&sges, &read_only, 0).is_err() && read_only.write_bytes(&[1], 0).is_err());
    assert!(read_only.atomic(0, PeerAtomic::FetchAdd(1)).is_err());
    rig.read(&sges, &read_only, 0).unwrap();
    let mut after = Rig::bytes(&rig.remote);
    // The copy that failed at the end may have written the bytes before it.
    after[LEN - 10..].copy_from_slice(&before[LEN - 10..]);
    assert_eq!(after, before);
}

#[test]
fn a_program_without_the_liveness_word_is_not_touched() {
    let rig = Rig::new();
    let LivenessWord { addr, value } = rig.liveness_word();
    let (here, sges) = (rig.remote.as_mut_ptr().addr() as u64, [rig.sge(0, 100)]);
    let (before, len) = (Rig::bytes(&rig.remote), LEN as u64);
    let gone = LivenessWord { addr: addr ^ (1 << 40), value };
    let to = |liveness| PeerRange { pid: own_pid(), addr: here, len, liveness };
    let is_fault = |done: Result<(), PeerCopyError>| matches!(done, Err(PeerCopyError::Peer(error)) if error.raw_os_error() == Some(libc::EFAULT));
    assert!(is_fault(rig.write(&sges, &to(gone), 0)) && is_fault(rig.read(&sges, &to(gone), 0)));
    assert_eq!(Rig::bytes(&rig.remote), before);
    assert_eq!(Rig::bytes(&rig.local), pattern(1, LEN));
    // The address has another value than the liveness word. A read detects that.
    let other = LivenessWord { addr, value: value ^ 2 };
    assert!(is_fault(rig.read(&sges, &to(other), 0)));
    rig.read(&sges, &to(rig.liveness_word()), 0).unwrap();
    assert_ne!(
        Memory::new().liveness_word().unwrap(),
        rig.liveness_word(),
        "each device has its own"
    );
}

#[test]
fn the_kernel_says_what_is_wrong_with_a_process() {
    let rig = Rig::new();
    let fault = |pid: i32, addr: u64| {
        let to = PeerRange { pid, addr, len: 100, liveness: rig.liveness_word() };
        match rig.write(&[rig.sge(0, 100)], &to, 0) {
            Err(PeerCopyError::Peer(error)) => error.raw_os_error(),
            other => panic!("{other:?}"),
        }
    };
    let own = own_pid();
    assert_eq!(fault(own, 8), Some(libc::EFAULT));
    assert_eq!(fault(i32::MAX, 8), Some(libc::ESRCH));
    // The range has a mapped first half and an unmapped second half.
    let end = rig.remote.as_mut_ptr().addr() as u64 + LEN as u64;
    let hole = HostBuffer::private(4096).unwrap();
    let addr = hole.as_mut_ptr().addr() as u64;
    drop(hole);
    assert!(end != addr && fault(own, addr).is_some());
}

/// The granted range of a rig, as the kernel reaches it.
fn range(rig: &Rig) -> PeerRange {
    rig.range()
}

#[test]
fn one_call_copies_a_list_of_messages_as_calls_one_after_the_other() {
    let rig = Rig::new();
    let range = range(&rig);
    // Offsets here and there: aligned or not, of one byte and of pages, and two that overlap.
    let list = [(0, 0, 8), (100, 64, 8), (3, 131, 1), (8, 500, 4097), (7, 501, 20), (40, 9001, 63)];
    let (source, mut expected) = (Rig::bytes(&rig.local), Rig::bytes(&rig.remote));
    let mut copies = PeerCopies::<true>::new(&rig.memory, rig.pd, &range);
    for (from, at, len) in list {
        assert!(copies.push(&[rig.sge(from as u64, len as u32)], len as u64, at as u64));
        expected[at..at + len].copy_from_slice(&source[from..from + len]);
    }
    assert!(copies.push_bytes(b"inline", 12_000));
    expected[12_000..12_006].copy_from_slice(b"inline");
    // Messages of several pieces, of which only a part is taken.
    let pieces = [rig.sge(1, 10), rig.sge(50, 0), rig.sge(700, 100)];
    assert!(copies.push(&pieces, 15, 13_000));
    expected[13_000..13_010].copy_from_slice(&source[1..11]);
    expected[13_010..13_015].copy_from_slice(&source[700..705]);
    let bytes: usize = list.iter().map(|&(_, _, len)| len).sum();
    assert_eq!(copies.copy().unwrap(), bytes as u64 + 6 + 15);
    assert_eq!(Rig::bytes(&rig.remote), expected);

    let (source, mut expected) = (Rig::bytes(&rig.remote), Rig::bytes(&rig.local));
    let mut copies = PeerCopies::<false>::new(&rig.memory, rig.pd, &range);
    for (to, at, len) in list {
        assert!(copies.push(&[rig.sge(to as u64, len as u32)], len as u64, at as u64));
        expected[to..to + len].copy_from_slice(&source[at..at + len]);
    }
    assert_eq!(copies.copy().unwrap(), bytes as u64);
    assert_eq!(Rig::bytes(&rig.local), expected);
}

#[test]
fn a_message_that_cannot_be_copied_is_not_added_to_a_list() {
    let rig = Rig::new();
    let range = range(&rig);
    let one = rig.sge(0, 8);
    let stale = Sge { lkey: Lkey(rig.mr.lkey.value() ^ 0x100), ..one };
    let null = Sge { addr: 0, length: 8, lkey: rig.null.lkey };
    // SAFETY: only the memory of `rig` is named.
    let read_only = unsafe {
        let at = rig.local.as_mut_ptr();
        rig.memory.register(rig.pd, at, 64, 0, Access::empty()).unwrap()
    };
    let read_only = Sge { addr: 0, length: 8, lkey: read_only.lkey };
    let before = Rig::bytes(&rig.remote);
    let mut copies = PeerCopies::<true>::new(&rig.memory, rig.pd, &range);
    assert!(copies.push(&[one], 8, 0));
    let pieces = copies.pieces();
    for (sges, len, at) in [
        (&[one, stale][..], 16, 64),
        (&[one, null], 16, 64),
        (&[one], 9, 64),
        (&[one], 0, 64),
        (&[rig.sge(LEN as u64 - 4, 8)], 8, 64),
        (&[one], 8, LEN as u64 - 7),
        (&[one], 8, u64::MAX - 3),
    ] {
        assert!(!copies.push(sges, len, at), "{len} {at}");
        assert_eq!(copies.pieces(), pieces);
    }
    assert!(!copies.push_bytes(b"", 64) && !copies.push_bytes(b"12", LEN as u64 - 1));
    assert!(copies.push(&[read_only], 8, 8), "memory that may be read");
    assert_eq!(copies.copy().unwrap(), 16);
    let mut copies = PeerCopies::<false>::new(&rig.memory, rig.pd, &range);
    assert!(!copies.push(&[read_only], 8, 8), "memory that may not be written");
    assert_eq!(copies.copy().unwrap(), 0, "nothing but the liveness word");
    assert_eq!(Rig::bytes(&rig.remote)[16..], before[16..]);
}

#[test]
fn a_list_takes_512_pieces_on_each_side_and_no_more() {
    let rig = Rig::new();
    let range = range(&rig);
    let mut copies = PeerCopies::<true>::new(&rig.memory, rig.pd, &range);
    let added = (0..1024).take_while(|i| copies.push(&[rig.sge(16 * i, 8)], 8, 16 * i)).count();
    // The liveness words take one on each side.
    assert_eq!((added, copies.pieces()), (511, 1022));
    assert_eq!(copies.copy().unwrap(), 511 * 8);
    let (source, copy) = (Rig::bytes(&rig.local), Rig::bytes(&rig.remote));
    assert!((0..511).all(|i| copy[16 * i..16 * i + 8] == source[16 * i..16 * i + 8]));

    // The last word of a longer WRITE is a piece of its own.
    let mut copies = PeerCopies::<true>::new(&rig.memory, rig.pd, &range);
    let added = (0..1024).take_while(|i| copies.push(&[rig.sge(16 * i, 16)], 16, 16 * i)).count();
    assert_eq!((added, copies.pieces()), (255, 3 * 255));
    assert!(copies.push(&[rig.sge(0, 8)], 8, 0), "there is room for one more");
    assert_eq!(copies.copy().unwrap(), 255 * 16 + 8);

    // A message of so many pieces that they fit only in an empty list.
    let sges: Vec<Sge> = (0..511).map(|i| rig.sge(i, 1)).collect();
    let mut copies = PeerCopies::<false>::new(&rig.memory, rig.pd, &range);
    assert!(copies.push(&sges, 511, 0));
    assert!(!copies.push(&sges[..1], 1, 0));
    assert_eq!(copies.copy().unwrap(), 511);
    let mut copies = PeerCopies::<false>::new(&rig.memory, rig.pd, &range);
    assert!(copies.push(&sges[..1], 1, 0) && !copies.push(&sges, 511, 0));
    assert_eq!(copies.pieces(), 2);
}

/// `LEN` bytes of this process followed by a page that is not mapped.
struct BeforeHole(*mut u8);

impl BeforeHole {
    fn new() -> Self {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: the mapping is new, and nothing else uses its last page.
        unsafe {
            let flags = flags | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), LEN + 4096, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let at = at.cast::<u8>();
            assert_eq!(libc::mprotect(at.add(LEN).cast(), 4096, libc::PROT_NONE), 0);
            Self(at)
        }
    }

    fn range(&self, liveness: LivenessWord) -> PeerRange {
        let addr = self.0.addr() as u64;
        PeerRange { pid: own_pid(), addr, len: LEN as u64 + 4096, liveness }
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        // SAFETY: the bytes are mapped, and only the kernel writes them, in calls that are over.
        unsafe { std::slice::from_raw_parts(self.0.add(at), len) }.to_vec()
    }
}

impl Drop for BeforeHole {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it exists.
        unsafe { libc::munmap(self.0.cast(), LEN + 4096) };
    }
}

#[test]
fn a_missing_page_in_the_middle_of_a_list_ends_it_and_the_messages_before_are_whole() {
    let rig = Rig::new();
    let hole = BeforeHole::new();
    let range = hole.range(rig.liveness_word());
    let source = Rig::bytes(&rig.local);
    let len = LEN as u64;
    // The third of four begins before the hole and ends inside.
    let list = [(0, 8), (512, 24), (len - 20, 40), (1024, 8)];
    let mut copies = PeerCopies::<true>::new(&rig.memory, rig.pd, &range);
    for (at, n) in list {
        assert!(copies.push(&[rig.sge(at % 4096, n as u32)], n, at));
    }
    let copied = copies.copy().unwrap();
    assert!((8 + 24..8 + 24 + 40).contains(&copied), "{copied}");
    assert_eq!(hole.bytes(0, 8), source[..8]);
    assert_eq!(hole.bytes(512, 24), source[512..536]);
    assert_eq!(hole.bytes(1024, 8), [0; 8], "what follows is not touched");

    let before = Rig::bytes(&rig.local);
    let mut copies = PeerCopies::<false>::new(&rig.memory, rig.pd, &range);
    for (at, n) in list {
        assert!(copies.push(&[rig.sge(2048 + at % 4096, n as u32)], n, at));
    }
    let copied = copies.copy().unwrap();
    assert!((8 + 24..8 + 24 + 40).contains(&copied), "{copied}");
    let after = Rig::bytes(&rig.local);
    assert_eq!(after[2048..2056], hole.bytes(0, 8));
    assert_eq!(after[2560..2584], hole.bytes(512, 24));
    assert_eq!(after[3072..3080], before[3072..3080], "what follows is not touched");
}

#[test]
fn a_list_touches_nothing_in_a_program_without_the_liveness_word() {
    let rig = Rig::new();
    let (before, good) = (Rig::bytes(&rig.remote), range(&rig));
    let LivenessWord { addr, value } = good.liveness;
    let gone = PeerRange { liveness: LivenessWord { addr: addr ^ (1 << 40), value }, ..good };
    let other = PeerRange { liveness: LivenessWord { addr, value: value ^ 2 }, ..good };
    let nobody = PeerRange { pid: i32::MAX, ..good };
    let write = |to: &PeerRange| {
        let mut copies = PeerCopies::<true>::new(&rig.memory, rig.pd, to);
        assert!(copies.push(&[rig.sge(0, 8)], 8, 0) && copies.push(&[rig.sge(8, 8)], 8, 64));
        copies.copy().map_err(|error| error.raw_os_error().unwrap())
    };
    let read = |from: &PeerRange| {
        let mut copies = PeerCopies::<false>::new(&rig.memory, rig.pd, from);
        assert!(copies.push(&[rig.sge(0, 8)], 8, 0) && copies.push(&[rig.sge(8, 8)], 8, 64));
        copies.copy().map_err(|error| error.raw_os_error().unwrap())
    };
    assert_eq!((write(&gone), read(&gone)), (Err(libc::EFAULT), Err(libc::EFAULT)));
    assert_eq!((write(&nobody), read(&nobody)), (Err(libc::ESRCH), Err(libc::ESRCH)));
    assert_eq!(Rig::bytes(&rig.remote), before);
    assert_eq!(Rig::bytes(&rig.local), pattern(1, LEN));
    assert_eq!(read(&other), Err(libc::EFAULT), "a READ compares the word");
    assert_eq!((write(&good), read(&good)), (Ok(16), Ok(16)));
}

#[test]
fn only_files_of_fixed_size_are_mapped_and_only_inside() {
    let rig = Rig::new();
    let file = rig.remote.shared_fd().unwrap();
    let len = LEN as u64;
    for (offset, bytes) in [(0, 0), (0, len + 1), (1, len), (len, 1), (u64::MAX, 2), (5, u64::MAX)]
    {
        assert!(PeerMapping::map(file, offset, bytes, true).is_err(), "{offset} {bytes}");
    }
    let part = PeerMapping::map(file, 4099, 1000, true).unwrap();
    part.write_bytes(b"x", 1).unwrap();
    assert_eq!(Rig::bytes(&rig.remote)[4100], b'x');
    assert!(part.write_bytes(b"x", 1000).is_err());
    let loose = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(PeerMapping::map(loose.as_fd(), 0, 100, false).is_err());
}

/// Memory with all rights, which is granted to other processes.
struct Owner {
    memory: Memory,
    _buffer: HostBuffer,
    base: u64,
    pd: PdId,
    mr: Mr,
    words: PeerRevocationWords,
    process: std::sync::Arc<TestProcess>,
    process_id: GrantedProcessId,
}

impl Owner {
    fn new() -> Self {
        let (memory, buffer) = (Memory::new(), HostBuffer::new(LEN).unwrap());
        let pd = memory.alloc_pd();
        let rights = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let at = buffer.as_mut_ptr();
        // SAFETY: `buffer` lives as long as `memory`, and no references into it exist.
        let mr = unsafe { memory.register(pd, at, LEN as u64, 0x7000, rights) }.unwrap();
        let words = PeerRevocationWords::open(memory.revocation_file().unwrap()).unwrap();
        let process = std::sync::Arc::new(TestProcess(AtomicU64::new(0)));
        let process_id = memory.add_process(process.clone()).unwrap();
        let base = at.addr() as u64;
        Self { memory, base, _buffer: buffer, pd, mr, words, process, process_id }
    }

    fn grant(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<Grant, GrantError> {
        self.memory.grant(self.process_id, pd, qpn, rkey)
    }

    /// Grants the key, and returns the token for the key's revocation word.
    fn token(&self, rkey: Rkey) -> RevocationToken {
        let token = self.grant(self.pd, QP, rkey).unwrap().key;
        assert!(self.words.is_valid(token));
        token
    }

    fn bind(&self, access: Access) -> Bind {
        let lkey = self.mr.lkey;
        Bind { qp_pd: self.pd, qpn: QP, lkey, addr: 0x7100, len: 256, access, key: None }
    }
}

#[test]
fn a_grant_says_what_the_responder_would_permit() {
    let owner = Owner::new();
    let grant = owner.grant(owner.pd, QP, owner.mr.rkey).unwrap();
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    assert_eq!((grant.iova, grant.len, grant.base), (0x7000, LEN as u64, owner.base));
    assert_eq!(grant.access, rights);
    assert_eq!(grant.share.unwrap().offset(), 0);
    let mw = owner.memory.alloc_mw(owner.pd, MwType::Type2).unwrap();
    let closed = |pd, qpn, rkey| match owner.grant(pd, qpn, rkey) {
        Err(GrantError::Check(check)) => check,
        other => panic!("{other:?}"),
    };
    assert_eq!(closed(owner.pd, QP, mw.rkey), Check::NotBound);
    let bind = owner.bind(Access::REMOTE_READ);
    let rkey = owner.memory.bind_mw(mw.handle, &bind).unwrap();
    assert_eq!(closed(owner.pd, Qpn::new(0x12), rkey), Check::WrongQp);
    // A packet may end a window, and nothing waits for accesses then.
    assert!(matches!(owner.grant(owner.pd, QP, rkey), Err(GrantError::Window)));
    assert_eq!(closed(owner.memory.alloc_pd(), QP, owner.mr.rkey), Check::WrongPd);
    assert_eq!(closed(owner.pd, QP, Rkey(owner.mr.rkey.value() ^ 1)), Check::KeyStale);
    let null = owner.memory.alloc_null_mr(owner.pd).unwrap();
    assert_eq!(closed(owner.pd, QP, null.rkey), Check::KeyKind);
    // SAFETY: no access uses these regions.
    let (all, empty, local) = unsafe {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let at = owner._buffer.as_mut_ptr();
        (
            owner.memory.register_address_space(owner.pd, rights).unwrap(),
            owner.memory.register(owner.pd, at, 0, 0, rights).unwrap(),
            owner.memory.register(owner.pd, at, 8, 0, Access::LOCAL_WRITE).unwrap(),
        )
    };
    let refused = |mr: Mr| owner.grant(owner.pd, QP, mr.rkey).unwrap_err();
    assert!(matches!(refused(all), GrantError::Range));
    assert!(matches!(refused(empty), GrantError::Range));
    assert!(matches!(refused(local), GrantError::Rights));
    let private = HostBuffer::private(64).unwrap();
    // SAFETY: no access uses this region.
    let mr = unsafe {
        owner.memory.register(owner.pd, private.as_mut_ptr(), 64, 0, Access::REMOTE_READ)
    };
    assert!(owner.grant(owner.pd, QP, mr.unwrap().rkey).unwrap().share.is_none());
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn the_file_is_shared_of_a_region_that_is_all_of_it_alone() {
    let owner = Owner::new();
    let buffer = HostBuffer::new(3 * 4096 - 100).unwrap();
    let is_shared = |from: usize, len: usize| {
        let at = buffer.as_mut_ptr().wrapping_add(from);
        // SAFETY: the range lies in the buffer, which nothing accesses.
        let mr = unsafe { owner.memory.register(owner.pd, at, len as u64, 0, Access::REMOTE_READ) };
        owner.grant(owner.pd, QP, mr.unwrap().rkey).unwrap().share.is_some()
    };
    let all = buffer.len();
    assert!(is_shared(0, all) && is_shared(0, all + 100) && is_shared(0, 2 * 4096 + 1));
    assert!(!is_shared(0, 2 * 4096) && !is_shared(0, 1));
    assert!(!is_shared(8, all - 8) && !is_shared(4096, all - 4096) && !is_shared(8192, 8));
}

#[test]
fn every_change_of_a_key_revokes_its_tokens() {
    let owner = Owner::new();
    let memory = &owner.memory;
    let token = owner.token(owner.mr.rkey);
    let change =
        Reregister { access: Some(Access::REMOTE_READ | Access::MW_BIND), ..Reregister::default() };
    // SAFETY: the region keeps its memory.
    unsafe { memory.reregister(owner.mr.handle, change) }.unwrap();
    assert!(!owner.words.is_valid(token), "rereg");

    let region = owner.token(owner.mr.rkey);
    memory.force_deregister(owner.mr.handle);
    assert!(!owner.words.is_valid(region), "forced dereg");

    let owner = Owner::new();
    let token = owner.token(owner.mr.rkey);
    owner.memory.deregister(owner.mr.handle).unwrap();
    assert!(!owner.words.is_valid(token), "dereg");

    let owner = Owner::new();
    let grant = owner.grant(owner.pd, QP, owner.mr.rkey).unwrap();
    owner.memory.revoke_qp(QP);
    owner.memory.wait_for_revocations();
    assert!(owner.words.is_valid(grant.key) && !owner.words.is_valid(grant.qp), "queue pair");

    let grant = owner.grant(owner.pd, QP, owner.mr.rkey).unwrap();
    owner.memory.remove_process(owner.process_id);
    assert!(owner.words.is_valid(grant.key) && !owner.words.is_valid(grant.qp), "process removed");
    let again = owner.grant(owner.pd, QP, owner.mr.rkey);
    assert!(matches!(again, Err(GrantError::Process)));
}

#[test]
fn what_packets_and_work_requests_do_to_windows_waits_for_nobody() {
    let owner = Owner::new();
    let grant = owner.grant(owner.pd, QP, owner.mr.rkey).unwrap();
    let _access = owner.words.begin_access(&owner.process.0, grant.key, grant.qp).unwrap();
    // This happens when a queue pair fails while its lane is working.
    owner.memory.revoke_qp(QP);
    let mw = owner.memory.alloc_mw(owner.pd, MwType::Type2).unwrap();
    for _ in 0..2 {
        let rkey = owner.memory.bind_mw(mw.handle, &owner.bind(Access::REMOTE_READ)).unwrap();
        owner.memory.invalidate_remote(owner.pd, QP, rkey).unwrap();
        let rkey = owner.memory.bind_mw(mw.handle, &owner.bind(Access::REMOTE_READ)).unwrap();
        owner.memory.invalidate_local(owner.pd, rkey).unwrap();
    }
    // The waiting thread would cut the process off, and `cut_off` panics.
}

/// A process whose access stays in progress for some time.
#[derive(Debug)]
struct TestProcess(AtomicU64);

impl GrantedProcess for TestProcess {
    fn access_word(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    fn is_gone(&self) -> bool {
        false
    }
    fn cut_off(&self) {
        panic!("the access has ended");
    }
    fn notify_revoked(&self) -> bool {
        true
    }
}

#[test]
fn deregistering_waits_for_accesses_in_progress() {
    let owner = Owner::new();
    let grant = owner.grant(owner.pd, QP, owner.mr.rkey).unwrap();
    let access = owner.words.begin_access(&owner.process.0, grant.key, grant.qp).unwrap();
    let left = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            left.store(true, Ordering::SeqCst);
            drop(access);
        });
        owner.memory.deregister(owner.mr.handle).unwrap();
        assert!(left.load(Ordering::SeqCst));
    });
}

#[test]
fn a_copy_ends_where_access_does() {
    const LONG: usize = 5 * PIECE as usize;
    let memory = Memory::new();
    let (local, remote) = (HostBuffer::new(LONG).unwrap(), HostBuffer::new(LONG).unwrap());
    let (file, len) = (remote.shared_fd().unwrap(), LONG as u64);
    let reach = PeerMapping::map(file, 0, len, true).unwrap();
    let pd = memory.alloc_pd();
    // SAFETY: `local` lives as long as `memory`, and only its racy copies access it.
    let mr = unsafe { memory.register(pd, local.as_mut_ptr(), len, 0, Access::LOCAL_WRITE) };
    let sges = [Sge { addr: 0, length: LONG as u32, lkey: mr.unwrap().lkey }];
    let copied = |to: &HostBuffer| {
        let mut bytes = vec![0; LONG];
        to.read_at(0, &mut bytes).unwrap();
        bytes.iter().position(|&byte| byte != 7).unwrap_or(LONG)
    };
    // The grant is revoked after three checks.
    let looks = std::cell::Cell::new(0);
    let holds = || looks.replace(looks.get() + 1) < 3;
    local.write_at(0, &[7; LONG]).unwrap();
    let ended = reach.write(memory.part(pd, &sges, &mut SgCursor::default(), 0, len), 0, &holds);
    assert!(matches!(ended, Err(PeerCopyError::Revoked)));
    assert_eq!(copied(&remote), 3 * PIECE as usize);

    (0..2).for_each(|_| remote.write_at(0, &[7; LONG]).unwrap());
    local.write_at(0, &[0; LONG]).unwrap();
    looks.set(0);
    let ended = reach.read(memory.part(pd, &sges, &mut SgCursor::default(), 0, len), 0, &holds);
    assert!(matches!(ended, Err(PeerCopyError::Revoked)));
    assert_eq!(copied(&local), 4 * PIECE as usize);

    // Copies by the kernel check the grant before each system call.
    let (addr, liveness) = (remote.as_mut_ptr().addr() as u64, memory.liveness_word().unwrap());
    let process = PeerRange { pid: own_pid(), addr, len, liveness };
    let cursor = &mut SgCursor::default();
    let ended = process.write(memory.part(pd, &sges, cursor, 0, len), 0, &|| false);
    assert!(matches!(ended, Err(PeerCopyError::Revoked)));
    assert_eq!(copied(&remote), LONG);
}

#[test]
fn an_atomic_whose_result_cannot_be_stored_does_not_run() {
    let rig = Rig::new();
    rig.remote.write_at(64, &5_u64.to_ne_bytes()).unwrap();
    let reach = rig.mapped();
    let run = |sges: &[Sge]| {
        let op = PeerAtomic::FetchAdd(1);
        rig.memory.part(rig.pd, sges, &mut SgCursor::default(), 0, 8).fetch(&*reach, 64, op)
    };
    // SAFETY: unmapped memory is not accessed, and no reference to mapped memory conflicts.
    let all = unsafe { rig.memory.register_address_space(rig.pd, Access::LOCAL_WRITE) };
    let nowhere = Sge { addr: 8, length: 8, lkey: all.unwrap().lkey };
    let stale = Sge { lkey: Lkey(rig.mr.lkey.value() ^ 0x100), ..rig.sge(0, 5) };
    for list in [&[nowhere][..], &[rig.sge(0, 3), stale], &[rig.sge(0, 7)], &[]] {
        assert!(matches!(run(list), Err(PeerCopyError::Local(_))), "{list:?}");
    }
    assert_eq!(Rig::bytes(&rig.remote)[64..72], 5_u64.to_ne_bytes());
    let null = Sge { addr: 0, length: 8, lkey: rig.null.lkey };
    let bytes: Vec<Sge> = (0..9).map(|i| rig.sge(100 - 10 * i, 1)).collect();
    for list in [&[null][..], &bytes, &[rig.sge(200, 0), rig.sge(201, 100)]] {
        run(list).unwrap();
    }
    assert_eq!(Rig::bytes(&rig.remote)[64..72], 8_u64.to_ne_bytes());
    let local = Rig::bytes(&rig.local);
    let was: Vec<u8> = (0..8).map(|i| local[100 - 10 * i]).collect();
    assert_eq!((was, &local[201..209]), (6_u64.to_ne_bytes().to_vec(), &7_u64.to_ne_bytes()[..]));
}

#[test]
fn files_of_huge_pages_are_not_mapped() {
    use std::os::fd::{FromRawFd, OwnedFd};
    const HUGE: usize = 2 << 20;
    let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    // SAFETY: the name is a C string.
    let raw = unsafe { libc::memfd_create(c"huge".as_ptr(), flags) };
    if raw < 0 {
        return; // A kernel without huge pages.
    }
    // SAFETY: the descriptor was just created, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: the calls pass no pointers.
    unsafe {
        assert_eq!(libc::ftruncate(raw, HUGE as i64), 0);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        assert_eq!(libc::fcntl(raw, libc::F_ADD_SEALS, seals), 0);
    }
    // No page of the file exists, and the system need not have any.
    let refused = PeerMapping::map(file.as_fd(), 0, HUGE as u64, true).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}

/// Addresses of ranges of the rig's remote memory.
fn remote_pieces(rig: &Rig, pieces: &[(usize, u32)]) -> Vec<PeerPiece> {
    let base = rig.remote.as_mut_ptr().addr();
    pieces.iter().map(|&(at, len)| PeerPiece { addr: (base + at) as u64, len }).collect()
}

#[test]
fn a_list_of_another_process_is_copied_to_a_list_of_ours_in_its_order() {
    let rig = Rig::new();
    let source = Rig::bytes(&rig.remote);
    let from: Vec<(usize, u32)> =
        (0..30).map(|i| (i * 531 % 9000, 1 + (i as u32 * 61) % 600)).collect();
    let pieces = remote_pieces(&rig, &from);
    let list = PeerList { pid: own_pid(), liveness: rig.liveness_word(), pieces: &pieces };
    let expected: Vec<u8> =
        from.iter().flat_map(|&(at, n)| &source[at..at + n as usize]).copied().collect();
    // The list has more pieces than one system call takes, among them a null region. One byte
    // between pieces must stay unchanged.
    let mut sges: Vec<Sge> = (0..40).map(|i| rig.sge(1 + i * 300, 255 + i as u32)).collect();
    sges.insert(11, Sge { addr: 0, length: 777, lkey: rig.null.lkey });
    let offset = 5;
    assert!(crate::total_len(&sges) >= offset + expected.len() as u64);
    let mut after = Rig::bytes(&rig.local);
    let mut at = 0;
    for sge in &sges {
        for n in 0..sge.length as usize {
            if at >= offset as usize
                && sge.lkey == rig.mr.lkey
                && let Some(&byte) = expected.get(at - offset as usize)
            {
                after[sge.addr as usize + n] = byte;
            }
            at += 1;
        }
    }
    let cursor = &mut SgCursor::default();
    let len = expected.len() as u64;
    list.read(rig.memory.part(rig.pd, &sges, cursor, offset, len), 0, &|| true).unwrap();
    assert!(Rig::bytes(&rig.local) == after);
}

#[test]
fn a_list_is_not_copied_from_another_program_nor_beyond_ours() {
    let rig = Rig::new();
    let pieces = remote_pieces(&rig, &[(0, 100)]);
    let pull = |list: &PeerList<'_>, room: u32| {
        let (sges, cursor) = ([rig.sge(0, room)], &mut SgCursor::default());
        list.read(rig.memory.part(rig.pd, &sges, cursor, 0, 100), 0, &|| true)
    };
    let good = PeerList { pid: own_pid(), liveness: rig.liveness_word(), pieces: &pieces };
    assert!(PeerList::find_process(own_pid(), rig.liveness_word()).is_ok());
    assert!(pull(&good, 100).is_ok());
    assert!(matches!(pull(&good, 99), Err(PeerCopyError::Local(_))));
    let (addr, value) = (good.liveness.addr, good.liveness.value);
    for liveness in [LivenessWord { addr, value: value ^ 2 }, LivenessWord { addr: 4096, value }] {
        assert!(matches!(pull(&PeerList { liveness, ..good }, 100), Err(PeerCopyError::Peer(_))));
        assert!(PeerList::find_process(own_pid(), liveness).is_err());
    }
    // Nothing is mapped at the first address, and the second wraps.
    for addr in [8, u64::MAX - 50] {
        let pieces = [PeerPiece { addr, len: 100 }];
        assert!(matches!(
            pull(&PeerList { pieces: &pieces, ..good }, 100),
            Err(PeerCopyError::Peer(_))
        ));
    }
}

#[test]
fn bytes_of_a_message_are_located_where_they_are_and_only_in_memory_of_their_own() {
    let rig = Rig::new();
    let base = rig.local.as_mut_ptr().addr() as u64;
    let sges = [rig.sge(10, 100), rig.sge(5000, 50), rig.sge(200, 1)];
    let mut pieces = [PeerPiece::default(); 3];
    let mut locate = |sges: &[Sge], offset, len| {
        let cursor = &mut SgCursor::default();
        let count = rig.memory.part(rig.pd, sges, cursor, offset, len).locate(&mut pieces)?;
        Ok::<_, AccessError>(count.map(|count| pieces[..count].to_vec()))
    };
    let at = |offset: u64, len| PeerPiece { addr: base + offset, len };
    assert_eq!(locate(&sges, 0, 151), Ok(Some(vec![at(10, 100), at(5000, 50), at(200, 1)])));
    assert_eq!(locate(&sges, 90, 30), Ok(Some(vec![at(100, 10), at(5000, 20)])));
    assert_eq!(locate(&[&sges[..], &sges[..1]].concat(), 0, 200), Ok(None), "four pieces");
    let null = Sge { addr: 0, length: 9, lkey: rig.null.lkey };
    assert_eq!(locate(&[sges[0], null], 0, 109), Ok(None));
    assert_eq!(locate(&sges, 0, 152).unwrap_err().check, Check::ListTooShort);
    let wrong = Sge { lkey: Lkey(7), ..sges[0] };
    assert_eq!(locate(&[wrong], 0, 100).unwrap_err().check, Check::KeyUnknown);
}

#[test]
fn the_token_of_a_send_queue_is_valid_until_it_is_revoked() {
    let rig = Rig::new();
    let words = PeerRevocationWords::open(rig.memory.revocation_file().unwrap()).unwrap();
    let token = rig.memory.send_token(QP).unwrap();
    assert_eq!(rig.memory.send_token(QP), Some(token));
    assert!(words.is_valid(token) && words.is_valid_after_read(token));
    // Other queue pairs, and the grants of this queue pair, have other revocation words.
    let other = rig.memory.send_token(Qpn::new(0x12)).unwrap();
    rig.memory.revoke_qp(QP);
    assert!(words.is_valid_after_read(token) && words.is_valid_after_read(other));
    rig.memory.revoke_send(QP);
    assert!(!words.is_valid_after_read(token) && words.is_valid_after_read(other));
    rig.memory.wait_for_revocations();
    // The revocation word is used again, with another value.
    let next = rig.memory.send_token(QP).unwrap();
    assert_eq!(next.number, token.number);
    assert!(words.is_valid_after_read(next) && !words.is_valid_after_read(token));
    rig.memory.revoke_all();
    assert!(!words.is_valid_after_read(next) && !words.is_valid_after_read(other));
}

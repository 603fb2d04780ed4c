use std::ptr::null_mut;

use super::*;
use crate::PeerMapping;

const PAGE: usize = 4096;

/// A mapping of ordinary memory, or of the kind that `flags` and `fd` choose. It is filled with a
/// pattern if it is writable.
struct Pages {
    at: *mut u8,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let this = Self::with(pages, libc::PROT_READ | libc::PROT_WRITE, flags, -1);
        this.fill(1);
        this
    }

    fn with(pages: usize, protection: i32, flags: i32, fd: i32) -> Self {
        let len = pages * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at = unsafe { libc::mmap(null_mut(), len, protection, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { at: at.cast(), len }
    }

    fn byte(i: usize, seed: usize) -> u8 {
        (i * 7 + i / 251 + seed) as u8
    }

    fn fill(&self, seed: usize) {
        for i in 0..self.len {
            // SAFETY: the byte lies in the mapping, to which no references exist.
            unsafe { self.at.add(i).write_volatile(Self::byte(i, seed)) };
        }
    }

    fn has(&self, seed: usize) -> bool {
        // SAFETY: the bytes lie in the mapping, to which no references exist.
        (0..self.len).all(|i| unsafe { self.at.add(i).read_volatile() } == Self::byte(i, seed))
    }

    fn share_part(&self, from: usize, len: usize) -> Result<Option<SharedPages>, NotShared> {
        // SAFETY: only this thread knows the memory's address.
        unsafe { share_pages(self.at.addr() + from, len as u64) }
    }

    fn share(&self) -> SharedPages {
        self.share_part(0, self.len).unwrap().unwrap()
    }

    /// Maps the file as another process with a grant would.
    fn peer(&self) -> Option<PeerMapping> {
        let found = shares::find(self.at.addr(), self.len as u64)?;
        Some(PeerMapping::map(found.file(), found.offset(), self.len as u64, true).unwrap())
    }

    fn areas(&self) -> Vec<MapsEntry> {
        areas((self.at.addr() as u64, (self.at.addr() + self.len) as u64)).unwrap()
    }

    fn refused(&self, from: usize, len: usize) -> String {
        let refused = self.share_part(from, len).unwrap_err();
        assert!(shares::find(self.at.addr() + from, 1).is_none());
        refused.to_string()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made by `with`, or the mapping that replaced it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

#[test]
fn moved_pages_keep_their_address_and_bytes_and_peers_can_map_them() {
    let pages = Pages::new(600);
    let held = pages.share();
    assert!(pages.has(1) && pages.areas().iter().all(|area| area.is_shared));
    let peer = pages.peer().unwrap();
    let region = peer.region(true).unwrap();
    let mut seen = [0; 100];
    region.load(5000, &mut seen).unwrap();
    assert!((0..100).all(|i| seen[i] == Pages::byte(5000 + i, 1)));
    region.store(0, &[0; 64]).unwrap();
    // SAFETY: the bytes lie in the mapping.
    assert!((0..64).all(|i| unsafe { pages.at.add(i).read_volatile() } == 0));
    pages.fill(2);
    drop(held);
    // The memory is private again, with the bytes written last. The peer's mapping changes it no
    // longer.
    assert!(pages.has(2) && pages.peer().is_none());
    assert!(pages.areas().iter().all(|area| !area.is_shared && area.is_writable));
    let mut gone = [1; 100];
    region.load(5000, &mut gone).unwrap();
    assert_eq!(gone, [0; 100], "the file's memory is given back");
    // SAFETY: the range is the second page of the mapping.
    unsafe {
        assert_eq!(libc::madvise(pages.at.add(PAGE).cast(), PAGE, libc::MADV_DONTNEED), 0);
        assert_eq!(pages.at.add(PAGE + 7).read_volatile(), 0);
    }
    pages.fill(3);
    region.store(0, &[0xEE; 500]).unwrap();
    assert!(pages.has(3));
}

#[test]
fn pages_stay_moved_until_their_last_holder_is_dropped() {
    let pages = Pages::new(8);
    let first = pages.share();
    let part = pages.share_part(2 * PAGE, PAGE).unwrap().unwrap();
    let bytes = pages.share_part(10, 20).unwrap().unwrap();
    drop((first, bytes));
    assert!(pages.peer().is_some());
    // No holder is added for a range of which a part was not moved.
    let more = Pages { at: pages.at, len: pages.len };
    let outside = more.share_part(4 * PAGE, 8 * PAGE);
    std::mem::forget(more);
    assert!(outside.is_err());
    drop(part);
    assert!(pages.peer().is_none() && pages.has(1));
    let again = pages.share();
    assert!(pages.peer().is_some());
    drop(again);
}

#[test]
fn memory_of_other_kinds_is_left_alone_and_said_why() {
    let pages = Pages::new(4);
    assert_eq!(pages.refused(1, PAGE), "it does not begin and end where pages do");
    assert_eq!(pages.refused(0, PAGE + 1), "it does not begin and end where pages do");
    assert!(pages.refused(0, 2 << 30).starts_with("it has 2147483648 bytes"));
    let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let constant = Pages::with(2, read, private, -1);
    assert_eq!(constant.refused(0, PAGE), "there is memory that cannot be written in it");
    let shared = Pages::with(2, write, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    assert_eq!(shared.refused(0, PAGE), "there is memory that is shared already in it");
    let exe = File::open("/proc/self/exe").unwrap();
    let file = Pages::with(2, write, libc::MAP_PRIVATE, exe.as_raw_fd());
    assert_eq!(file.refused(0, PAGE), "there is a file in it");
    // SAFETY: the range is the second page of the test's mapping.
    unsafe { libc::munmap(pages.at.add(PAGE).cast(), PAGE) };
    assert_eq!(pages.refused(0, 2 * PAGE), "there is a hole in it");
    let local = 0_u8;
    let stack = (&raw const local).addr() & !(PAGE - 1);
    // SAFETY: the call is refused, so nothing changes.
    let stack = unsafe { share_pages(stack - PAGE, 2 * PAGE as u64) };
    assert_eq!(stack.unwrap_err().to_string(), "there is the stack in it");
    let areas = std::fs::read_to_string("/proc/self/maps").unwrap();
    let main = areas.lines().filter_map(MapsEntry::parse).find(|area| area.name == "[stack]");
    assert_eq!(main.unwrap().obstacle(), Some("the stack"));
    let huge = "7f0000000000-7f0000200000 rw-p 00000000 00:10 12345 /anon_hugepage (deleted)";
    assert_eq!(MapsEntry::parse(huge).unwrap().obstacle(), Some("memory of huge pages"));
    // Memory that already lies in a file of this process is not moved.
    let buffer = crate::HostBuffer::new(PAGE).unwrap();
    // SAFETY: the call changes nothing.
    let held = unsafe { share_pages(buffer.as_mut_ptr().addr(), PAGE as u64) };
    assert!(held.unwrap().is_none());
}

#[test]
fn pages_that_were_unmapped_or_replaced_are_not_touched_at_the_end() {
    let pages = Pages::new(8);
    let held = pages.share();
    let other = Pages::new(1);
    other.fill(9);
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the calls unmap and replace pages of the test's own two mappings only.
    unsafe {
        assert_eq!(libc::munmap(pages.at.add(PAGE).cast(), PAGE), 0);
        let third = pages.at.add(2 * PAGE);
        let moved = libc::mremap(other.at.cast(), PAGE, PAGE, fixed, third);
        assert_eq!(moved, third.cast());
        // The sixth page moves to another address.
        let sixth = pages.at.add(5 * PAGE).cast();
        let elsewhere = libc::mremap(sixth, PAGE, PAGE, fixed, other.at);
        assert_eq!(elsewhere, other.at.cast());
    }
    drop(held);
    let areas = pages.areas();
    let base = pages.at.addr() as u64;
    let at = |page: u64| {
        let at = base + page * PAGE as u64;
        areas.iter().find(|area| (area.start..area.end).contains(&at))
    };
    assert!(at(1).is_none() && at(5).is_none(), "{areas:?}");
    assert!([0, 2, 3, 4, 6, 7].iter().all(|&page| !at(page).unwrap().is_shared));
    // SAFETY: the third page is mapped, from the other file.
    let third = unsafe { pages.at.add(2 * PAGE).read_volatile() };
    assert_eq!(third, Pages::byte(0, 9));
    assert_eq!(at(0).unwrap().inode, at(3).unwrap().inode, "the file's bytes, private");
}

#[test]
fn a_child_of_fork_shares_what_is_moved_and_copies_what_was_taken_back() {
    /// Writes a byte in a child process.
    fn write_in_child(at: *mut u8, byte: u8, held: SharedPages) -> SharedPages {
        // SAFETY: the child writes to its own memory, reads a number, and exits at once.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                at.write_volatile(byte);
                drop(held);
                libc::_exit(0);
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert_eq!(status, 0);
        }
        held
    }
    let pages = Pages::new(2);
    // SAFETY: the byte lies in the mapping.
    let first = || unsafe { pages.at.read_volatile() };
    let held = write_in_child(pages.at, 77, pages.share());
    assert_eq!(first(), 77);
    // The child's drop has not changed the parent's pages.
    assert!(pages.peer().is_some());
    drop(held);
    let other = Pages::new(1);
    drop(write_in_child(pages.at, 78, other.share()));
    assert_eq!(first(), 77);
}

#[test]
fn pages_that_were_never_used_take_no_memory() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let pages = Pages::with(100_000, write, flags, -1);
    // SAFETY: the byte lies in the mapping.
    unsafe { pages.at.add(70_000 * PAGE).write_volatile(5) };
    let held = pages.share();
    let file = shares::find(pages.at.addr(), 1).unwrap();
    let stat = File::from(file.file().try_clone_to_owned().unwrap()).metadata().unwrap();
    assert!(stat.blocks() <= 64, "{} blocks", stat.blocks());
    // SAFETY: the byte lies in the mapping.
    assert_eq!(unsafe { pages.at.add(70_000 * PAGE).read_volatile() }, 5);
    drop(held);
}

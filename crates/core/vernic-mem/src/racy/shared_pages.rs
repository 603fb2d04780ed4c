//! Memory of the application that is moved into a file, so that other processes can map it.
//!
//! Whole pages of ordinary private memory are copied into a memory file, which is then mapped at
//! the same address in one step: pointers stay what they are. At the end ([`SharedPages`] is
//! dropped) the file is mapped privately, in one step again, so nothing that is written meanwhile
//! is lost; the kernel makes each page the process's own; and the file's are given back. From then
//! on a child of `fork` has its own copy, and pages that the application gives back
//! (`MADV_DONTNEED`) read as zero, as before.
//!
//! In between the memory differs from what it was: a child of `fork` shares it, `mlock`, `madvise`
//! and `mbind` are forgotten, and it is not merged into huge pages. Whoever writes to it *while* it
//! is moved may find the write lost, which is why this is done only where somebody asked for it,
//! and why only whole pages are moved: no other object lies in them.
//!
//! Who has it unmapped, moved or replaced meanwhile, against his promise, keeps what he has there:
//! only what is still the file is touched at the end.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{memfd, shares};

/// Longest range that is moved: a copy of a third of a second. Longer ones are left alone.
pub const MAX_SHARED_BYTES: u64 = 1 << 30;

/// Why memory stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum NotShared {
    /// It is not a number of whole pages: what else lies in the first or last one is not ours to
    /// move.
    #[error("it does not begin and end where pages do")]
    NotWholePages,
    /// See [`MAX_SHARED_BYTES`].
    #[error("it has {len} bytes, and at most {MAX_SHARED_BYTES} are moved")]
    TooLong {
        /// Bytes.
        len: u64,
    },
    /// There is, at least in part, other than ordinary private memory.
    #[error("there is {what} in it")]
    Other {
        /// What there is.
        what: &'static str,
    },
    /// The system does not let us.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Holds pages in their file. Dropped, they are the process's own again, unless somebody else holds
/// them.
#[derive(Debug)]
pub struct SharedPages {
    base: usize,
    /// A child of `fork` leaves all as it is.
    pid: u32,
}

/// One at a time moves pages, there or back.
static MOVING: Mutex<()> = Mutex::new(());

fn moving() -> MutexGuard<'static, ()> {
    MOVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves `len` > 0 bytes at `addr` into a file, unless they lie in one already; `None` if that is
/// not of this function's making.
///
/// # Errors
/// [`NotShared`]; nothing has changed then.
///
/// # Safety
/// Nobody writes to the memory during the call, no stack lies in it, and no Rust reference to it is
/// in use.
pub unsafe fn share_pages(addr: usize, len: u64) -> Result<Option<SharedPages>, NotShared> {
    let _moving = moving();
    let pid = std::process::id();
    if let Some(held) = shares::add_holder(addr, len) {
        return Ok(held.map(|base| SharedPages { base, pid }));
    }
    let page = memfd::page_size();
    if len == 0 || !len.is_multiple_of(page) || !(addr as u64).is_multiple_of(page) {
        return Err(NotShared::NotWholePages);
    }
    if len > MAX_SHARED_BYTES {
        return Err(NotShared::TooLong { len });
    }
    let range = (addr as u64, addr as u64 + len);
    let here = (&raw const range).addr() as u64;
    if (range.0..range.1).contains(&here) {
        return Err(NotShared::Other { what: "the stack" });
    }
    let areas = areas(range)?;
    check(&areas, range)?;
    // Asked for no page at all: whether this kernel (5.14) can take them back.
    memfd::populate_private(addr, 0)?;
    let file = memfd::create(len as usize)?;
    memfd::seal(&file, memfd::FIXED_SIZE)?;
    let is_of_file = areas.iter().any(|area| area.inode != 0);
    copy_used(&file, addr, len, page, is_of_file)?;
    // SAFETY: these are pages of private memory, all of them mapped, with no reference in use; what
    // replaces them has the same bytes, as nobody writes meanwhile.
    unsafe { memfd::map_at(&file, 0, addr, len as usize, libc::MAP_SHARED)? };
    shares::insert_moved(addr, len as usize, &Arc::new(file));
    Ok(Some(SharedPages { base: addr, pid }))
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // Locks of the parent's other threads may be held for ever.
            return;
        }
        let _moving = moving();
        let Some((file, len)) = shares::remove_holder(self.base) else { return };
        if let Err(error) = restore_private(&file, self.base, len) {
            // They stay shared with children of `fork`, and with who has the file mapped.
            debug_assert!(false, "{error}");
        }
    }
}

/// Makes what is still mapped of the file private memory.
fn restore_private(file: &OwnedFd, base: usize, len: usize) -> io::Result<()> {
    let stat = File::from(file.try_clone()?).metadata()?;
    let range = (base as u64, base as u64 + len as u64);
    for area in areas(range)? {
        let (start, end) = (area.start.max(range.0), area.end.min(range.1));
        let offset = start - range.0;
        let is_ours = area.inode == stat.ino()
            && area.is_shared
            && area.offset + (start - area.start) == offset
            && area.device == (libc::major(stat.dev()), libc::minor(stat.dev()));
        if is_ours {
            let (at, len) = (start as usize, (end - start) as usize);
            // SAFETY: a mapping of our file, which has the same bytes privately.
            unsafe { memfd::map_at(file, offset, at, len, libc::MAP_PRIVATE)? };
        }
    }
    // What was never used is of nobody, and reads as zero.
    let mut from = 0;
    while let Some(used) = memfd::used_part(file, from, len as u64) {
        for area in areas((range.0 + used.start, range.0 + used.end))? {
            if area.inode == stat.ino() && !area.is_shared {
                let start = area.start.max(range.0 + used.start);
                let end = area.end.min(range.0 + used.end);
                memfd::populate_private(start as usize, (end - start) as usize)?;
            }
        }
        from = used.end;
    }
    memfd::discard(file, len as u64)
}

/// What a memory file of this module is called there.
const MEMFD: &str = "/memfd:vernic";

/// What is mapped somewhere (`/proc/self/maps`).
#[derive(Debug, PartialEq, Eq)]
struct MapsEntry {
    start: u64,
    end: u64,
    is_writable: bool,
    is_code: bool,
    is_shared: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    name: String,
}

impl MapsEntry {
    fn parse(line: &str) -> Option<Self> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            is_writable: rights.starts_with("rw"),
            is_code: rights.contains('x'),
            is_shared: rights.ends_with('s'),
            offset,
            device: (hex(major)? as u32, hex(minor)? as u32),
            inode: words.next()?.parse().ok()?,
            name: words.next().unwrap_or_default().to_owned(),
        })
    }

    /// What it is, unless it is ordinary private memory.
    fn obstacle(&self) -> Option<&'static str> {
        Some(match &*self.name {
            "[stack]" => "the stack",
            _ if self.is_shared => "memory that is shared already",
            // It was moved before.
            MEMFD if self.is_writable => return None,
            name if name.starts_with("/anon_hugepage") => "memory of huge pages",
            _ if self.inode != 0 => "a file",
            _ if !self.is_writable => "memory that cannot be written",
            _ if self.is_code => "code",
            "" | "[heap]" => return None,
            name if name.starts_with("[anon:") => return None,
            _ => "memory of the kernel",
        })
    }
}

/// What is mapped in a range, ascending.
fn areas(range: (u64, u64)) -> io::Result<Vec<MapsEntry>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    let all = text.lines().filter_map(MapsEntry::parse);
    Ok(all.filter(|area| area.start < range.1 && range.0 < area.end).collect())
}

/// Whether there is nothing but ordinary private memory in a range.
fn check(areas: &[MapsEntry], range: (u64, u64)) -> Result<(), NotShared> {
    let mut at = range.0;
    for area in areas {
        if area.start > at {
            break;
        }
        if let Some(what) = area.obstacle() {
            return Err(NotShared::Other { what });
        }
        at = area.end;
    }
    if at < range.1 { Err(NotShared::Other { what: "a hole" }) } else { Ok(()) }
}

/// Copies the pages that were ever used, or all of them; the others read as zero in the file, too.
fn copy_used(file: &OwnedFd, addr: usize, len: u64, page: u64, all: bool) -> io::Result<()> {
    /// Pages looked up at a time.
    const PAGES: usize = 512;
    // Where nobody says, all are.
    let used = File::open("/proc/self/pagemap").ok().filter(|_| !all);
    let mut entries = [0; PAGES * 8];
    let (first, count) = (addr as u64 / page, len / page);
    let mut done = 0;
    while done < count {
        let now = (count - done).min(PAGES as u64) as usize;
        let read = used
            .as_ref()
            .map(|used| used.read_exact_at(&mut entries[..now * 8], (first + done) * 8).is_ok());
        for i in 0..now {
            // Bit 63: in memory; 62: swapped out; 61: of a file, or shared.
            let is_used = read != Some(true) || entries[i * 8 + 7] >> 5 != 0;
            if is_used {
                let at = (done + i as u64) * page;
                write_page(file, addr + at as usize, page as usize, at)?;
            }
        }
        done += now as u64;
    }
    Ok(())
}

/// Writes a page of memory to the file.
fn write_page(file: &OwnedFd, addr: usize, len: usize, offset: u64) -> io::Result<()> {
    let from: *const libc::c_void = std::ptr::with_exposed_provenance(addr);
    // SAFETY: the bytes are only looked at by the kernel, which says so if they are not there.
    let n = unsafe { libc::pwrite(file.as_raw_fd(), from, len, offset as libc::off_t) };
    match n {
        _ if n == len as isize => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests;

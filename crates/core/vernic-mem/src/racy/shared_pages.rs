//! Pages of the application that are moved into a memory file, so that other processes can map
//! them.
//!
//! Whole pages of ordinary private memory are copied into a memory file. The file is then mapped at
//! the same address in one step, so all pointers stay valid. When [`SharedPages`] is dropped, the
//! pages become private memory again, in three steps. First the file is mapped as private memory,
//! by one call, so that no concurrent write is lost. Then the kernel gives the process its own copy
//! of each page. Then the memory of the file is released. From then on, a child of `fork` has its
//! own copy again, and pages that the application releases (`MADV_DONTNEED`) read as zero again.
//!
//! While the pages are in the file, they differ from ordinary memory. A child of `fork` shares
//! them. The effects of earlier `mlock`, `madvise` and `mbind` calls are lost. The kernel does not
//! merge them into huge pages. A write *during* the move may be lost. So pages are moved only if
//! the user of the library asked for it. And only whole pages are moved, because other objects may
//! lie in the rest of a page of which only a part is registered.
//!
//! The application may break its promise, and unmap, move or replace the memory while it is in the
//! file. Then the application's new mapping stays: on drop, only pages that are still mapped from
//! the file are touched.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{memfd, shares};

/// Longest range that is moved: copying it takes a third of a second.
pub const MAX_SHARED_BYTES: u64 = 1 << 30;

/// Why memory was not moved.
#[derive(Debug, thiserror::Error)]
pub enum NotShared {
    /// The range is not a number of whole pages. Other objects may lie in its first or last page,
    /// and those must not be moved.
    #[error("it does not begin and end where pages do")]
    NotWholePages,
    /// The range is longer than [`MAX_SHARED_BYTES`].
    #[error("it has {len} bytes, and at most {MAX_SHARED_BYTES} are moved")]
    TooLong {
        /// Length of the range in bytes.
        len: u64,
    },
    /// Part of the range is not ordinary private memory.
    #[error("there is {what} in it")]
    Other {
        /// What that part is.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Keeps pages in their file. After the drop of the last such value for the pages, they are private
/// memory again.
#[derive(Debug)]
pub struct SharedPages {
    base: usize,
    /// The process that moved the pages. In a child of `fork`, the drop changes nothing.
    pid: u32,
}

/// Held while a thread moves pages to a file or back.
static MOVING: Mutex<()> = Mutex::new(());

fn moving() -> MutexGuard<'static, ()> {
    MOVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves `len` > 0 bytes at `addr` into a file, unless they already lie in one. `None` if they lie
/// in a file that was not made by this function, such as that of a
/// [`HostBuffer`](super::HostBuffer).
///
/// # Errors
/// [`NotShared`]; nothing has changed then.
///
/// # Safety
/// No thread or process writes to the memory during the call, no stack lies in it, and no Rust
/// reference to it is in use.
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
    // This call populates no pages. It fails if the kernel is older than 5.14, which could not move
    // the pages back.
    memfd::populate_private(addr, 0)?;
    let file = memfd::create(len as usize)?;
    memfd::seal(&file, memfd::FIXED_SIZE)?;
    let is_of_file = areas.iter().any(|area| area.inode != 0);
    copy_used(&file, addr, len, page, is_of_file)?;
    // SAFETY: the range is private memory, all of it is mapped, and no reference to it is in use.
    // The file has the same bytes, because nothing writes to the memory meanwhile.
    unsafe { memfd::map_at(&file, 0, addr, len as usize, libc::MAP_SHARED)? };
    shares::insert_moved(addr, len as usize, &Arc::new(file));
    Ok(Some(SharedPages { base: addr, pid }))
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // In a child, locks that other threads of the parent held at the fork are never
            // released.
            return;
        }
        let _moving = moving();
        let Some((file, len)) = shares::remove_holder(self.base) else { return };
        if let Err(error) = restore_private(&file, self.base, len) {
            // The pages stay shared with children of `fork`, and with processes that have the file
            // mapped.
            debug_assert!(false, "{error}");
        }
    }
}

/// Makes private memory of those pages of the range that are still mapped from the file.
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
            // SAFETY: the range is a mapping of this file, and the private mapping has the same
            // bytes.
            unsafe { memfd::map_at(file, offset, at, len, libc::MAP_PRIVATE)? };
        }
    }
    // Pages of the file that were never used need no copy: they read as zero.
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

/// Name of this module's memory files in `/proc/self/maps`.
const MEMFD: &str = "/memfd:vernic";

/// An entry of `/proc/self/maps`: one mapping.
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

    /// Why the mapping cannot be moved; `None` for ordinary private memory.
    fn obstacle(&self) -> Option<&'static str> {
        Some(match &*self.name {
            "[stack]" => "the stack",
            _ if self.is_shared => "memory that is shared already",
            // The pages were moved before, and moved back.
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

/// The mappings that overlap a range, in ascending order.
fn areas(range: (u64, u64)) -> io::Result<Vec<MapsEntry>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    let all = text.lines().filter_map(MapsEntry::parse);
    Ok(all.filter(|area| area.start < range.1 && range.0 < area.end).collect())
}

/// Checks that the range has nothing but ordinary private memory.
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

/// Copies to the file the pages that were ever used, or all pages if `all` is set. The other pages
/// read as zero in the file too.
fn copy_used(file: &OwnedFd, addr: usize, len: u64, page: u64, all: bool) -> io::Result<()> {
    /// Number of entries that are read from the page map at a time.
    const PAGES: usize = 512;
    // If the page map cannot be read, all pages count as used.
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
            // Bit 63: in memory; bit 62: swapped out; bit 61: page of a file, or shared.
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

/// Writes one page of memory to the file.
fn write_page(file: &OwnedFd, addr: usize, len: usize, offset: u64) -> io::Result<()> {
    let from: *const libc::c_void = std::ptr::with_exposed_provenance(addr);
    // SAFETY: only the kernel reads the bytes, and the call fails if they are not mapped.
    let n = unsafe { libc::pwrite(file.as_raw_fd(), from, len, offset as libc::off_t) };
    match n {
        _ if n == len as isize => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests;

//! Whether memory that is registered can be accessed as its rights say.
//!
//! Hardware pins what is registered, and so finds out. Nothing is pinned here, and a region of
//! terabytes costs nothing; only its first and last page are looked at, which finds what programs
//! get wrong: a wrong pointer, a length beyond the end, memory that must not be written. What is
//! unmapped after it was registered is not found: see the limits in README.md.

use std::ffi::{c_int, c_void};
use std::fs;

use libc::{EFAULT, EINVAL};
use vernic_engine::Access;

use crate::boundary::Failure;

/// Rights that write.
const WRITING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Looks at the first and the last page of `length` bytes at `addr`.
///
/// # Errors
/// `EFAULT`: not mapped, or not to be read or written as `access` needs it.
pub(super) fn check(addr: *mut c_void, length: usize, access: Access) -> Result<(), Failure> {
    let Some(last) = length.checked_sub(1).and_then(|beyond| addr.addr().checked_add(beyond))
    else {
        return Ok(()); // Nothing, or more than there is: the engine has a word for it.
    };
    let write = access.intersects(WRITING);
    for byte in [addr.addr(), last] {
        if !is_accessible(byte, write) {
            let what = if write { "written" } else { "read" };
            let why = format!(
                "{length} bytes at {addr:?}: {byte:#x} is not mapped, or not to be {what} (see /proc/self/maps)"
            );
            return Err(Failure::new(EFAULT, why));
        }
    }
    Ok(())
}

/// Whether the page of `byte` can be read, and written if `write`.
fn is_accessible(byte: usize, write: bool) -> bool {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
    let advice: c_int = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let start = (byte & !(page - 1)) as *mut c_void;
    // SAFETY: brings in a page as an access would, and changes no byte.
    if unsafe { libc::madvise(start, page, advice) } == 0 {
        return true;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // An old kernel, memory of a device, or rights that are missing: the list of mappings
        // tells.
        Some(EINVAL) => is_listed(byte, write),
        _ => false,
    }
}

/// Whether the list of mappings has `byte` with the right. Without that list nothing is known, and
/// nothing refused.
fn is_listed(byte: usize, write: bool) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return true };
    maps.lines().any(|line| {
        let mut words = line.split([' ', '-']);
        let mut address = || usize::from_str_radix(words.next()?, 16).ok();
        let (Some(start), Some(end)) = (address(), address()) else { return false };
        let rights = words.next().unwrap_or_default();
        (start..end).contains(&byte) && rights.contains(if write { 'w' } else { 'r' })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(protection: c_int, pages: usize) -> *mut c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory at an address of the kernel's choice.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), pages * 4096, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at
    }

    #[test]
    fn memory_must_be_there_and_have_the_rights() {
        let (read, write) = (Access::empty(), Access::LOCAL_WRITE);
        let writable = map(libc::PROT_READ | libc::PROT_WRITE, 2);
        let readable = map(libc::PROT_READ, 1);
        let nothing = map(libc::PROT_NONE, 1);
        assert!(check(writable, 8192, write).is_ok());
        assert!(check(readable, 4096, read).is_ok());
        for (at, length, access) in
            [(readable, 4096, write), (nothing, 1, read), (0x1000 as *mut c_void, 1, read)]
        {
            assert_eq!(check(at, length, access).unwrap_err().errno, EFAULT, "{at:?}");
        }
        // SAFETY: the second page of the mapping above, which nobody uses.
        assert_eq!(unsafe { libc::munmap(writable.byte_add(4096), 4096) }, 0);
        assert!(check(writable, 4096, write).is_ok());
        assert_eq!(check(writable, 4097, write).unwrap_err().errno, EFAULT);
        assert!(check(writable, 0, write).is_ok());
    }

    #[test]
    fn the_list_of_mappings_knows_rights() {
        let constant = "a text of the program".as_ptr().addr();
        assert!(is_listed(constant, false) && !is_listed(constant, true));
        let mut local = 0_u8;
        assert!(is_listed((&raw mut local).addr(), true));
        assert!(!is_listed(0x10, false));
    }
}

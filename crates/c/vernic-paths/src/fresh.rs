//! Files whose content must be true when they are opened: counters.
//!
//! `ports/1/counters` and `ports/1/hw_counters` of a device that is shown hold empty files, which
//! say which counters there are. Whoever opens one gets in its place a file of its own, in memory,
//! with the sum of what the processes of this user count now ([`status`]); 0 if none has the device
//! open. If one of them does not say, opening fails with ETIMEDOUT: a smaller number would be a
//! wrong one. As in `/sys`, who wants a newer value opens the file again.
//!
//! A file is known after it was opened, by the name that the kernel has for it, so links, the
//! working directory and descriptors of folders lead here too. A path is looked at so only if it
//! may be one: it is shown, or relative, and its last name has nothing but small letters, digits
//! and `_`.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use libc::FILE;

use crate::shown::{folder, is_shown};
use crate::status;

/// What nothing is to be done with.
///
/// # Safety
/// None.
pub(crate) unsafe fn kept<T>(opened: T, _path: *const c_char) -> T {
    opened
}

/// A descriptor that was opened by a path: itself, with the content of now; -1, closed, with an
/// error in `errno`.
///
/// # Safety
/// `path` is the C string by which it was opened; nobody else has `fd` yet, unless it is negative.
pub(crate) unsafe fn descriptor(fd: c_int, path: *const c_char) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: this function's own conditions.
    match unsafe { refresh(fd, path) } {
        Ok(()) => fd,
        Err(error) => {
            // SAFETY: nobody else's, as the caller says.
            unsafe { libc::close(fd) };
            fail(error);
            -1
        }
    }
}

/// A stream that was opened by a path: itself, with the content of now; NULL, closed, with an error
/// in `errno`.
///
/// # Safety
/// As of [`descriptor`]; `file` is NULL or a stream that nobody has read.
pub(crate) unsafe fn stream(file: *mut FILE, path: *const c_char) -> *mut FILE {
    if file.is_null() {
        return file;
    }
    // SAFETY: an open stream, and this function's own conditions.
    match unsafe { refresh(libc::fileno(file), path) } {
        Ok(()) => file,
        Err(error) => {
            // SAFETY: nobody else's, as the caller says.
            unsafe { libc::fclose(file) };
            fail(error);
            std::ptr::null_mut()
        }
    }
}

fn fail(error: c_int) {
    // SAFETY: the address of the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = error };
}

/// Puts a file with the content of now in the place of `fd`, if it is of a counter.
///
/// # Safety
/// As of [`descriptor`].
unsafe fn refresh(fd: c_int, path: *const c_char) -> Result<(), c_int> {
    // SAFETY: a C string, as the caller says.
    if path.is_null() || !unsafe { may_be_counter(path) } {
        return Ok(());
    }
    let Some(folder) = folder() else { return Ok(()) };
    let mut buffer = [0; libc::PATH_MAX as usize];
    let Some(real) = real_name(fd, &mut buffer) else { return Ok(()) };
    let counter = real.strip_prefix(folder.to_bytes()).and_then(Counter::of);
    let Some(counter) = counter else { return Ok(()) };
    let texts = status::ask(counter.device).map_err(|_| libc::ETIMEDOUT)?;
    let value = status::sum(&texts, [counter.list, counter.name]);
    replace(fd, &format!("{value}\n"))
}

/// Whether it is worth a look at what was opened.
///
/// # Safety
/// `path` is a C string.
unsafe fn may_be_counter(path: *const c_char) -> bool {
    // SAFETY: this function's own condition.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_usual = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    // SAFETY: as above.
    name.iter().all(is_usual) && (!bytes.starts_with(b"/") || unsafe { is_shown(path) })
}

/// The name that the kernel has for an open file.
fn real_name(fd: c_int, buffer: &mut [u8]) -> Option<&[u8]> {
    let link = format!("/proc/self/fd/{fd}\0");
    let (at, size) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: a C string, and a buffer of that size. By number, since the function of this name is
    // ours.
    let len =
        unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), at, size) };
    buffer.get(..usize::try_from(len).ok()?)
}

/// A counter of a device that is shown.
#[derive(Debug, PartialEq, Eq)]
struct Counter<'a> {
    device: &'a str,
    /// Which lines of a status it is in.
    list: &'static str,
    name: &'a str,
}

impl<'a> Counter<'a> {
    /// That of a path in the folder of what is shown.
    fn of(path: &'a [u8]) -> Option<Self> {
        let path = std::str::from_utf8(path.strip_prefix(b"/sys/class/infiniband/")?).ok()?;
        let mut names = path.split('/');
        let device = names.next()?;
        if (names.next()?, names.next()?) != ("ports", "1") {
            return None;
        }
        let list = match names.next()? {
            "counters" => "port",
            "hw_counters" => "hw",
            _ => return None,
        };
        let name = names.next()?;
        names.next().is_none().then_some(Self { device, list, name })
    }
}

/// Makes `fd` a file in memory that holds `content`.
fn replace(fd: c_int, content: &str) -> Result<(), c_int> {
    let error = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // SAFETY: a C string.
    let made = unsafe { libc::memfd_create(c"vernic-counter".as_ptr(), libc::MFD_CLOEXEC) };
    if made < 0 {
        return Err(error());
    }
    // SAFETY: just opened, and nobody else's.
    let mut file = unsafe { File::from_raw_fd(made) };
    let wrote = file.write_all(content.as_bytes()).and_then(|()| file.seek(SeekFrom::Start(0)));
    if let Err(error) = wrote {
        return Err(error.raw_os_error().unwrap_or(libc::EIO));
    }
    // SAFETY: descriptors of this process; no pointers are passed.
    let replaced = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFD);
        let close = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        libc::dup3(file.as_raw_fd(), fd, close)
    };
    if replaced < 0 { Err(error()) } else { Ok(()) }
}

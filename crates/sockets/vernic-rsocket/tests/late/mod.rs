//! Memory that is filled only when somebody looks at it (`userfaultfd`).
#![allow(unsafe_code, unreachable_pub)]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// `UFFD_API`, and the other numbers of `linux/userfaultfd.h`.
const API: u64 = 0xAA;
const USER_MODE_ONLY: libc::c_int = 1;
const REGISTER_MODE_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;
/// Of a message: where the address begins.
const ADDRESS_AT: usize = 16;

/// The number of a request of this kind whose argument is read and written.
const fn request<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

#[repr(C)]
struct Hello {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// Pages that nobody has filled.
pub struct Memory {
    fd: OwnedFd,
    start: *mut u8,
    len: usize,
}

// SAFETY: threads look at bytes that do not change once they are there, and make system calls.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many pages; `None` where this user may not have such memory.
    pub fn new(pages: usize) -> Option<Self> {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        if fd < 0 {
            return None;
        }
        // SAFETY: just opened, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let len = pages * PAGE;
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let memory = Self { fd, start: start.cast(), len };
        let mut hello = Hello { api: API, features: 0, ioctls: 0 };
        let (start, len, mode) = (start.addr() as u64, len as u64, REGISTER_MODE_MISSING);
        let mut register = Register { start, len, mode, ioctls: 0 };
        memory.ask(request::<Hello>(0x3F), &mut hello);
        memory.ask(request::<Register>(0), &mut register);
        Some(memory)
    }

    fn ask<T>(&self, request: u64, argument: &mut T) {
        // SAFETY: the request's number says how long its argument is.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, ptr::from_mut(argument)) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// The bytes; who looks at a page that is not there waits for it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping, which lives as long as this, and whose bytes do not change once they
        // are there.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Waits until somebody looks at a page that is not there: which.
    pub fn wait_for_a_look(&self) -> usize {
        let mut message = [0_u8; MESSAGE_BYTES];
        // SAFETY: room for so many bytes.
        let count =
            unsafe { libc::read(self.fd.as_raw_fd(), message.as_mut_ptr().cast(), message.len()) };
        assert_eq!((count, message[0]), (message.len() as isize, EVENT_PAGEFAULT));
        let address = message[ADDRESS_AT..ADDRESS_AT + 8].try_into().unwrap();
        (u64::from_ne_bytes(address) as usize - self.start.addr()) / PAGE
    }

    /// Fills a page; who waits for it goes on.
    pub fn fill(&self, page: usize, bytes: &[u8]) {
        assert_eq!(bytes.len(), PAGE);
        let to = (self.start.addr() + page * PAGE) as u64;
        let from = bytes.as_ptr().addr() as u64;
        let mut copy = Copy { to, from, len: PAGE as u64, mode: 0, copied: 0 };
        self.ask(request::<Copy>(3), &mut copy);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which nobody has a reference any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

//! Liveness words: how a copy by the kernel checks that it reaches the program that granted access.
//!
//! A process that calls exec keeps its process id but gets other memory. When a process ends,
//! another process may get its id. The connection is closed in both cases. But no check before a
//! copy can tell which program the process runs when the kernel copies.
//!
//! The kernel does promise one thing. One call works on one address space, piece by piece, and ends
//! at the first piece that is not mapped. So each call begins with a word in the owner's memory,
//! the liveness word. Its address is drawn at random from those that a process can have. After
//! exec, nothing is mapped there, except in 1 of 60,000 programs that map a gibibyte. So the call
//! ends before it has touched anything else. A call that began before exec continues in the old
//! memory, which no program uses any more.
//!
//! A call that writes to the owner's memory stores in the word the value that it already has. A
//! call that reads from it compares the value of the word with the expected one.

use std::io;
#[cfg(not(miri))]
use std::ptr::NonNull;

#[cfg(not(miri))]
use super::memfd::page_size;
use crate::random::Random;

/// The address and value of the liveness word of a process, as its grants contain them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessWord {
    /// Address of the word in the owner's address space.
    pub addr: u64,
    /// Value of the word; never 0.
    pub value: u64,
}

/// Lowest address of a liveness word. If a system does not randomize addresses, it puts programs
/// and libraries below. Most machines do not give a program addresses from `END` on.
#[cfg(not(miri))]
const START: u64 = 1 << 33;
/// End of the addresses of liveness words (see [`START`]). x86-64 and most other machines have 47
/// bits of addresses, so 46 bits are half of them.
#[cfg(not(miri))]
const END: u64 = 1 << 46;
/// Random addresses that are tried before the kernel chooses one.
#[cfg(not(miri))]
const TRIES: u32 = 8;

/// The page with the liveness word of this process.
#[derive(Debug)]
pub(crate) struct LivenessPage {
    #[cfg(not(miri))]
    page: NonNull<u8>,
    value: u64,
}

// SAFETY: the page belongs to this value, and no code of this process touches it after it was made.
unsafe impl Send for LivenessPage {}
// SAFETY: as for `Send`.
unsafe impl Sync for LivenessPage {}

#[cfg(not(miri))]
impl LivenessPage {
    /// Maps a page at a random address, and stores a random value in its first word.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = Random::new();
        let size = page_size();
        let mut place = || (START + random.next() % (END - START)) / size * size;
        // A machine with fewer addresses refuses high ones. Memory that is already mapped is not
        // replaced.
        let placed =
            (0..TRIES).find_map(|_| map_page(place() as usize, libc::MAP_FIXED_NOREPLACE).ok());
        let page = placed.map_or_else(|| map_page(0, 0), Ok)?;
        let value = random.next() | 1;
        // SAFETY: the page belongs to this value, is writable and aligned, and no reference to it
        // exists.
        unsafe { page.cast::<u64>().write(value) };
        Ok(Self { page, value })
    }

    pub(crate) fn liveness_word(&self) -> LivenessWord {
        LivenessWord { addr: self.page.as_ptr().addr() as u64, value: self.value }
    }
}

/// Maps a private page at an address; address 0 lets the kernel choose. A child of `fork` does not
/// inherit it.
#[cfg(not(miri))]
fn map_page(at: usize, how: libc::c_int) -> io::Result<NonNull<u8>> {
    let (len, rights) = (page_size() as usize, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let place = std::ptr::without_provenance_mut(at);
    // SAFETY: the new mapping replaces nothing. Kernels before 4.17 do not know the flag, and
    // choose another address if there is a mapping.
    let page = unsafe { libc::mmap(place, len, rights, flags, -1, 0) };
    match NonNull::new(page) {
        Some(page) if page.as_ptr() != libc::MAP_FAILED => {
            // If the kernel ignores this advice, a child inherits the page, but never touches it.
            // SAFETY: the range is the mapping made above.
            unsafe { libc::madvise(page.as_ptr(), len, libc::MADV_DONTFORK) };
            Ok(page.cast())
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(miri))]
impl Drop for LivenessPage {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `map_page` with this length; no code of this process
        // touches it.
        unsafe { libc::munmap(self.page.as_ptr().cast(), page_size() as usize) };
    }
}

/// Miri does not support other processes.
#[cfg(miri)]
impl LivenessPage {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn liveness_word(&self) -> LivenessWord {
        LivenessWord { addr: 0, value: self.value }
    }
}

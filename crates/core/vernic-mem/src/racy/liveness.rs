//! A word that is in one program's memory alone: how a copy by the kernel knows that the process is
//! still the one that granted access.
//!
//! A process that calls exec keeps its number and has other memory; one that ends leaves its number
//! to another. Its connection is closed then, but nothing that is looked at before a copy says what
//! the process is when the kernel copies. What the kernel does promise is that one call works on
//! one address space, piece by piece, and ends at the first piece that is not there. So each call
//! begins with a word that its owner has put at an address of its own, drawn at random from those
//! that a process has: after exec there is nothing, but for 1 of 60,000 programs that map a
//! gibibyte, and the call ends before it has touched anything else. A call that began before exec
//! goes on in memory that nobody sees any more.
//!
//! What is written there is what is there. What is read there is compared.

use std::io;
#[cfg(not(miri))]
use std::ptr::NonNull;

#[cfg(not(miri))]
use super::memfd::page_size;
use crate::random::Random;

/// What a ticket says of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sentinel {
    /// Where it is in its owner's memory.
    pub addr: u64,
    /// What it is; never 0.
    pub value: u64,
}

/// Addresses below are where programs and libraries are put where nothing is random, those from
/// `END` on are not a program's own on most machines.
#[cfg(not(miri))]
const START: u64 = 1 << 33;
/// See [`START`]: 46 bits are half of what x86-64 and most others have.
#[cfg(not(miri))]
const END: u64 = 1 << 46;
/// Addresses that are tried until the kernel chooses.
#[cfg(not(miri))]
const TRIES: u32 = 8;

/// The owner's page with the word.
#[derive(Debug)]
pub(crate) struct LivenessPage {
    #[cfg(not(miri))]
    page: NonNull<u8>,
    value: u64,
}

// SAFETY: the page belongs to this value, and after it was made nobody in this process touches it.
unsafe impl Send for LivenessPage {}
// SAFETY: as above.
unsafe impl Sync for LivenessPage {}

#[cfg(not(miri))]
impl LivenessPage {
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = Random::new();
        let size = page_size();
        let mut place = || (START + random.next() % (END - START)) / size * size;
        // A machine with fewer addresses refuses; what is taken is left alone.
        let placed =
            (0..TRIES).find_map(|_| map_page(place() as usize, libc::MAP_FIXED_NOREPLACE).ok());
        let page = placed.map_or_else(|| map_page(0, 0), Ok)?;
        let value = random.next() | 1;
        // SAFETY: a page of ours, writable and aligned, to which nobody has a reference.
        unsafe { page.cast::<u64>().write(value) };
        Ok(Self { page, value })
    }

    pub(crate) fn sentinel(&self) -> Sentinel {
        Sentinel { addr: self.page.as_ptr().addr() as u64, value: self.value }
    }
}

/// A page of this process alone at an address, 0 for one of the kernel's choice; a child of `fork`
/// does not have it.
#[cfg(not(miri))]
fn map_page(at: usize, how: libc::c_int) -> io::Result<NonNull<u8>> {
    let (len, rights) = (page_size() as usize, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let place = std::ptr::without_provenance_mut(at);
    // SAFETY: a new mapping in the place of nothing: kernels before 4.17 do not know the flag, and
    // put it elsewhere.
    let page = unsafe { libc::mmap(place, len, rights, flags, -1, 0) };
    match NonNull::new(page) {
        Some(page) if page.as_ptr() != libc::MAP_FAILED => {
            // Advice: a child that has it all the same never touches it.
            // SAFETY: the mapping just made.
            unsafe { libc::madvise(page.as_ptr(), len, libc::MADV_DONTFORK) };
            Ok(page.cast())
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(miri))]
impl Drop for LivenessPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_page` with this length; nobody in this process touches it.
        unsafe { libc::munmap(self.page.as_ptr().cast(), page_size() as usize) };
    }
}

/// Miri has no other processes.
#[cfg(miri)]
impl LivenessPage {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn sentinel(&self) -> Sentinel {
        Sentinel { addr: 0, value: self.value }
    }
}

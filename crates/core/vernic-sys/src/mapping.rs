//! Memory files of any size that processes share: a sealed `memfd`, mapped whole.
//!
//! As with a page (`shared.rs`), nothing about a file of another process is trusted. Its size is
//! sealed and checked before it is mapped, so that no access can fault. The memory is accessed as
//! atomics only, any value of which is valid. Bytes are copied in and out by words, so that a
//! reader always checks a copy of its own.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::{SEALS, promise_memory, stat};
use super::{OwnFd, check};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// The seal after which new mappings can only be read; existing ones can still be written (Linux
/// 5.1).
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x0010;

/// Makes a memory file of `len` bytes, all zero, whose size is sealed; closed on exec. The file
/// takes memory as it is accessed.
pub fn memory_file(len: usize) -> io::Result<OwnFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string of C that lives through the call.
    let open = |flags| check(unsafe { libc::memfd_create(c"vernic".as_ptr(), flags) });
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`; later ones want to know about execution.
    let fd = OwnFd::open(|| open(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| open(flags)))?;
    let raw = fd.as_raw_fd();
    promise_memory(&fd, len)?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) })?;
    Ok(fd)
}

/// Seals the file so that it can be mapped for reading only from now on, and no seal can be added.
/// A kernel without such a seal leaves the file as it is.
pub fn seal_against_writers(fd: BorrowedFd<'_>) {
    for seals in [F_SEAL_FUTURE_WRITE, libc::F_SEAL_SEAL] {
        // SAFETY: no pointers are passed.
        let _ = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    }
}

/// A mapped memory file.
#[derive(Debug)]
struct Mapping {
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access to it is by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a memory file.
    ///
    /// # Errors
    /// `InvalidData` for anything other than a memory file of `len` bytes, a multiple of the page
    /// size, whose size is sealed.
    fn map(fd: BorrowedFd<'_>, len: usize, protection: libc::c_int) -> io::Result<Self> {
        // Only files in memory have seals, so no untrusted file system is behind an access.
        // SAFETY: no pointers are passed.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let is_sealed = seals >= 0 && seals & SEALS == SEALS;
        if !is_sealed || len == 0 || stat(fd)?.st_size != len as libc::off_t {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (anywhere, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of this process is
        // there.
        let at = unsafe { libc::mmap(anywhere, len, protection, shared, fd.as_raw_fd(), 0) };
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => {
                // A child of `fork` does not need the mapping. Where the kernel refuses
                // `MADV_DONTFORK`, the child has it, and leaves it alone, as everything of its
                // parent.
                // SAFETY: the range was just mapped.
                let _ = unsafe { libc::madvise(at.as_ptr(), len, libc::MADV_DONTFORK) };
                Ok(Self { at: at.cast(), words: len / WORD })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped and readable until `self` is dropped; aligned as pages are; the file is as
        // long as the mapping and cannot become shorter. Others change the words at any time, which
        // atomics allow. Of a read-only mapping, only `ReadMemory` has the words, and it only loads
        // them, relaxed.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.words * WORD) };
    }
}

/// A memory file mapped for reading and writing.
#[derive(Debug)]
pub struct SharedMemory(Mapping);

impl SharedMemory {
    /// Maps a file of [`memory_file`] that this process or another one made.
    ///
    /// # Errors
    /// `InvalidData` for anything other than a memory file of `len` bytes whose size is sealed.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Mapping::map(fd, len, libc::PROT_READ | libc::PROT_WRITE).map(Self)
    }

    /// Returns all words of the memory.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// A memory file mapped for reading.
#[derive(Debug)]
pub struct ReadMemory(Mapping);

impl ReadMemory {
    /// Does what [`SharedMemory::map`] does, but maps the memory for reading only.
    ///
    /// # Errors
    /// The errors of [`SharedMemory::map`].
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Mapping::map(fd, len, libc::PROT_READ).map(Self)
    }

    /// Returns the value of the word with this index, which must exist. The load is relaxed.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.0.words()[index].load(Ordering::Relaxed)
    }
}

/// Copies `bytes` to words that others may load meanwhile; the last word is filled up with zeros.
/// Bytes beyond the words are left out.
#[inline]
pub fn copy_in(words: &[AtomicU64], bytes: &[u8]) {
    let whole = vernic_mem::write_words(words, bytes);
    let rest = &bytes[whole * WORD..];
    if let Some(word) = words.get(whole).filter(|_| !rest.is_empty()) {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Asks for the cache line of a word that is to be written soon. Other cores lose the line now, and
/// no store has to wait for that. A hint, which changes no byte.
#[inline]
pub fn prefetch_for_write(word: &AtomicU64) {
    // SAFETY: neither reads nor writes for the program, and never faults; the memory is mapped
    // besides. Processors without the instruction treat it as a no-op.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{word}]", word = in(reg) word, options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{word}]", word = in(reg) word, options(nostack, preserves_flags));
    }
    let _ = word;
}

/// Copies words that others may change meanwhile to `bytes`. Bytes beyond the words stay as they
/// were.
#[inline]
pub fn copy_out(words: &[AtomicU64], bytes: &mut [u8]) {
    let whole = vernic_mem::read_words(words, bytes);
    let rest = &mut bytes[whole * WORD..];
    if let Some(word) = words.get(whole).filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const LEN: usize = 3 * 4096;

    #[test]
    fn bytes_of_any_length_come_out_as_they_went_in() {
        let fd = memory_file(LEN).unwrap();
        let (a, b) =
            (SharedMemory::map(fd.as_fd(), LEN).unwrap(), SharedMemory::map(fd.as_fd(), LEN));
        let b = b.unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        for len in 0..=bytes.len() {
            copy_in(&a.words()[5..], &bytes[..len]);
            let mut back = vec![0xEE; len];
            copy_out(&b.words()[5..], &mut back);
            assert_eq!(back, bytes[..len]);
        }
        assert_eq!(a.words()[4].load(Ordering::Relaxed), 0);
        // Nothing is written behind the words that are there.
        copy_in(&a.words()[..1], &bytes);
        assert_eq!(b.words()[1].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_is_taken_as_it_is_accessed() {
        let policy = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
        if policy.trim() == "2" {
            return;
        }
        let fd = memory_file(64 * 4096).unwrap();
        let taken = || stat(fd.as_fd()).unwrap().st_blocks * 512;
        let memory = SharedMemory::map(fd.as_fd(), 64 * 4096).unwrap();
        assert_eq!(taken(), 0);
        memory.words()[0].store(1, Ordering::Relaxed);
        assert!(taken() > 0 && taken() < 64 * 4096, "{}", taken());
    }

    #[test]
    fn after_the_seal_others_may_read_and_the_owner_still_writes() {
        let fd = memory_file(4096).unwrap();
        let own = SharedMemory::map(fd.as_fd(), 4096).unwrap();
        seal_against_writers(fd.as_fd());
        let reader = ReadMemory::map(fd.as_fd(), 4096).unwrap();
        own.words()[7].store(9, Ordering::Relaxed);
        assert_eq!(reader.load(7), 9);
        // SAFETY: no pointers are passed.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals & F_SEAL_FUTURE_WRITE != 0 {
            assert!(SharedMemory::map(fd.as_fd(), 4096).is_err());
        }
    }

    #[test]
    fn a_file_of_another_size_or_that_could_shrink_is_not_mapped() {
        let fd = memory_file(LEN).unwrap();
        assert!(SharedMemory::map(fd.as_fd(), LEN + 4096).is_err());
        assert!(SharedMemory::map(fd.as_fd(), LEN - 4096).is_err());
        assert!(SharedMemory::map(fd.as_fd(), 0).is_err());
        // SAFETY: no pointers are passed.
        let cut = unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) };
        assert_eq!((cut, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
        let open = || {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            // SAFETY: the name is a string of C; nothing else is a pointer.
            check(unsafe { libc::memfd_create(c"test".as_ptr(), flags) })
        };
        let fd = OwnFd::open(open).unwrap();
        // SAFETY: no pointers are passed.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), LEN as libc::off_t) }).unwrap();
        assert!(SharedMemory::map(fd.as_fd(), LEN).is_err(), "it is not sealed");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(ReadMemory::map(file.as_fd(), 4096).is_err());
    }
}

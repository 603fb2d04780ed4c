//! The file of a capture: whole blocks only, and one writer only.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vernic_sys::{self as sys, OwnFd};

/// Bytes that wait in memory before they are written.
const FULL_BYTES: usize = 64 * 1024;

/// The places where the descriptors of this process have names.
const DESCRIPTORS: [&str; 4] = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc/self/fd"];

/// Names to try before giving up.
const MAX_NAMES: u32 = 10_000;

/// A file that is written block by block: bytes gather in memory until
/// [`write_out`](Self::write_out), which is called between blocks. So the file ends with a whole
/// block whenever its process ends.
pub(super) struct Blocks {
    file: OwnFd,
    waiting: Vec<u8>,
}

impl Blocks {
    /// Creates or replaces the file. If another writer has the file, adds a number to the name.
    /// Returns the path of the file.
    pub(super) fn create(path: &Path) -> io::Result<(Self, PathBuf)> {
        for number in 1..=MAX_NAMES {
            let path = numbered(path, number);
            let file = open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                // A file system without locks cannot say whether there is another writer.
                Err(TryLockError::Error(_)) => {}
            }
            // A pipe or a terminal has no length to cut.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            // A child of this process neither writes the file nor keeps its lock.
            let file = sys::own(file.into())?;
            return Ok((Self { file, waiting: Vec::with_capacity(2 * FULL_BYTES) }, path));
        }
        Err(io::Error::other(format!("{MAX_NAMES} other writers have this file and its numbers")))
    }

    /// Whether it is time to write.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= FULL_BYTES
    }

    /// Writes the waiting bytes, which are whole blocks.
    pub(super) fn write_out(&mut self) -> io::Result<()> {
        let result = sys::write_all(self.file.as_fd(), &self.waiting);
        self.waiting.clear();
        result
    }
}

/// Opens or makes a file that holds the traffic of programs. A new file is for its user alone. A
/// file of another user is refused, so that the capture does not end up there (a folder such as
/// /tmp belongs to all).
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Not truncated before its owner is known.
    options.write(true).create(true).truncate(false).mode(0o600);
    if DESCRIPTORS.iter().any(|folder| path.starts_with(folder)) {
        // Links that the system itself made, to descriptors of this process.
        return options.open(path);
    }
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ELOOP) => io::Error::other(
                "it is a symbolic link, which a capture does not follow: name the file itself",
            ),
            _ => error,
        }
    })?;
    let metadata = file.metadata()?;
    // Only root makes devices, such as terminals and /dev/null.
    if metadata.uid() != sys::effective_uid() && !metadata.file_type().is_char_device() {
        let owner = metadata.uid();
        return Err(io::Error::other(format!(
            "it belongs to user {owner}, who could read it: choose another name"
        )));
    }
    Ok(file)
}

impl Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Does nothing: the writer of a block does not know where blocks end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `a.pcapng`, `a-2.pcapng`, `a-3.pcapng`...
fn numbered(path: &Path, number: u32) -> PathBuf {
    let Some(stem) = path.file_stem().filter(|_| number > 1) else { return path.to_owned() };
    let mut name = OsString::from(stem);
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

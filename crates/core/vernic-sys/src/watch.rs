//! Files that processes open to say that they are there, and a watch on them.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::{OwnFd, check, read};

/// Bytes of the events that one call reads: at least one with the longest name.
const EVENT_BYTES: usize = 4096;

/// Makes a FIFO that its user alone can open.
pub fn make_fifo(path: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a text that ends with a zero and lives through the call.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) })?;
    Ok(())
}

/// What happened to a file of a watched folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileEvent {
    /// A process opened the file. Several openings in a row may be one event.
    Opened,
    /// The last descriptor of an opening for reading was closed, also by the end of its process.
    /// Several in a row may be one event.
    Closed,
    /// Events were lost.
    Lost,
}

/// A watch on the files of a folder: opened, and closed by a reader (`inotify`).
#[derive(Debug)]
pub struct FileWatch(OwnFd);

impl FileWatch {
    /// Begins to watch the files of a folder.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let folder = std::ffi::CString::new(folder.as_os_str().as_bytes())?;
        let fd = OwnFd::open(|| {
            // SAFETY: no pointers are passed.
            check(unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) })
        })?;
        let events = libc::IN_OPEN | libc::IN_CLOSE_NOWRITE | libc::IN_ONLYDIR;
        // SAFETY: a text that ends with a zero and lives through the call.
        check(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), folder.as_ptr(), events) })?;
        Ok(Self(fd))
    }

    /// Calls `take` with each event that waits, up to 4 KiB of them, and with the name of its
    /// file. Returns whether there were any.
    pub fn read(&self, mut take: impl FnMut(&[u8], FileEvent)) -> io::Result<bool> {
        let mut buf = [0; EVENT_BYTES];
        let len = match read(self.0.as_fd(), &mut buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            other => other?,
        };
        let mut events = &buf[..len];
        while let Some((head, rest)) = events.split_at_checked(size_of::<libc::inotify_event>()) {
            // Watch, mask, cookie, length of the name: four words.
            let word =
                |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| head[4 * at + byte]));
            let (mask, name_len) = (word(1), word(3) as usize);
            let Some((name, rest)) = rest.split_at_checked(name_len) else { break };
            events = rest;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if mask & libc::IN_Q_OVERFLOW != 0 {
                take(name, FileEvent::Lost);
            } else if mask & libc::IN_ISDIR == 0 && !name.is_empty() {
                let opened = mask & libc::IN_OPEN != 0;
                take(name, if opened { FileEvent::Opened } else { FileEvent::Closed });
            }
        }
        Ok(true)
    }
}

impl AsFd for FileWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn a_fifo_is_seen_to_be_opened_and_closed() {
        let folder = std::env::temp_dir().join(format!("vernic-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("port");
        make_fifo(&path).unwrap();
        assert_eq!(make_fifo(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let watch = FileWatch::new(&folder).unwrap();
        let mut seen = Vec::new();
        let mut look = || {
            watch.read(|name, event| seen.push((name.to_vec(), event))).unwrap();
            std::mem::take(&mut seen)
        };
        assert_eq!(look(), []);
        // As a program that wants to know nothing but whether it opens.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let opened = opened.unwrap();
        let copy = opened.try_clone().unwrap();
        assert_eq!(look(), [(b"port".to_vec(), FileEvent::Opened)]);
        drop(opened);
        assert_eq!(look(), []);
        drop(copy);
        assert_eq!(look(), [(b"port".to_vec(), FileEvent::Closed)]);
        assert!(!watch.read(|_, _| {}).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}

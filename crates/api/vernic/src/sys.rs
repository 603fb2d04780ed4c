//! Waiting for a descriptor.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Returns when the descriptor is readable, after `timeout`, or when a signal comes.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = match timeout {
        None => PollTimeout::NONE,
        // Rounded up: a timeout that is not zero must not become a busy loop.
        Some(timeout) => PollTimeout::try_from(timeout.as_nanos().div_ceil(1_000_000))
            .unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

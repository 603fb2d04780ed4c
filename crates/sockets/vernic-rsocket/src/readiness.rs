//! What a socket is ready for.

/// Bits of `poll` (and of `epoll`, whose are the same) that a socket has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(u16);

impl Readiness {
    /// Something can be read, or the end of the stream, or a connection accepted.
    pub const READ: Self = Self((libc::POLLIN | libc::POLLRDNORM) as u16);
    /// Something can be written.
    pub const WRITE: Self = Self((libc::POLLOUT | libc::POLLWRNORM) as u16);
    /// The peer will send no more.
    pub const READ_ENDED: Self = Self(libc::POLLRDHUP as u16);
    /// The connection is over in both directions.
    pub const HUNG_UP: Self = Self(libc::POLLHUP as u16);
    /// The connection failed.
    pub const ERROR: Self = Self(libc::POLLERR as u16);
    /// What is reported without being asked for.
    const ALWAYS: Self = Self(libc::POLLHUP as u16 | libc::POLLERR as u16);

    /// These bits if `condition` holds.
    pub(crate) fn when(self, condition: bool) -> Self {
        if condition { self } else { Self(0) }
    }

    /// Nothing.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Of these, those that who asked for `events` is told.
    #[must_use]
    pub const fn among(self, events: u32) -> Self {
        Self(self.0 & (events as u16 | Self::ALWAYS.0))
    }

    /// Whether there is a bit that `before` did not have.
    pub(crate) const fn is_more_than(self, before: Self) -> bool {
        self.0 & !before.0 != 0
    }

    /// Whether all bits of `other` are there.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

impl std::ops::BitOr for Readiness {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_also_to_who_did_not_ask() {
        let all = Readiness::READ | Readiness::WRITE | Readiness::HUNG_UP | Readiness::ERROR;
        let told = all.among(libc::POLLIN as u32);
        assert_eq!(told.bits(), (libc::POLLIN | libc::POLLHUP | libc::POLLERR) as u16);
        assert!(Readiness::WRITE.among(libc::POLLIN as u32).is_empty());
    }
}

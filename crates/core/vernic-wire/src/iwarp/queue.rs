//! The queues of untagged messages, and the numbers of the messages in them (RFC 5041, 4.3).

use core::fmt;

/// Queue of untagged messages (RFC 5040, 3.1; registered by RFC 7306, 10.2). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// "used by RDMAP for Send, Send with Invalidate, Send with Solicited Event, and Send with
    /// Solicited Event and Invalidate operations" (RFC 5040, 3.1), and for immediate data.
    pub const SEND: Self = Self(0);
    /// RDMA READ requests and atomic requests.
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate.
    pub const TERMINATE: Self = Self(2);
    /// "a new queue for untagged Buffers (QN=3) used for Atomic Response tracking" (RFC 7306, 4).
    pub const ATOMIC_RESPONSE: Self = Self(3);
    /// Queues that there are.
    pub const COUNT: u32 = 4;
}

impl fmt::Display for QueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Message sequence number of a queue: "The initial value for MSN MUST be one. The MSN value MUST
/// wrap to 0 after a value of 0xFFFFFFFF" (RFC 5041, 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Msn(pub u32);

impl Msn {
    /// The number of a queue's first message.
    pub const FIRST: Self = Self(1);

    /// The successor.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl Default for Msn {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

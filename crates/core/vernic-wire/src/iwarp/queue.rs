//! The queues of untagged messages.

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

//! What a stream's machine wants written to its peer, and the names by which completions come back.

use vernic_wire::Rkey;

use super::ring::Spans;
use crate::wire::{Control, IomapEntry, Message};

/// An RDMA WRITE that the machine asks for. It has to be posted, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its name; its completion goes to [`Stream::handle_sent`](super::Stream::handle_sent).
    pub id: WriteId,
    /// Which bytes.
    pub source: Source,
    /// Where to, as the peer's region counts.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: Rkey,
    /// With immediate data, or without.
    pub message: Option<Message>,
}

/// The bytes of a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// None: only the message counts.
    Nothing,
    /// These of the send ring.
    Ring(Spans),
    /// The user's, so many; they did not go through the ring.
    User(u32),
    /// These.
    Bytes(Small),
}

/// The few bytes of an entry in a table of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Small {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Small {
    /// Most bytes: a queue pair needs room for so many inline.
    pub const MAX: usize = IomapEntry::LEN;

    pub(super) fn new<const N: usize>(from: [u8; N]) -> Self {
        const { assert!(N <= Self::MAX) };
        let mut bytes = [0; Self::MAX];
        bytes[..N].copy_from_slice(&from);
        Self { bytes, len: N as u8 }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The name of a posted [`Write`]: what its completion gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteId(u64);

/// What a completed write gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Data, or a direct write: so many bytes of the send ring.
    Ring(u32),
    /// An entry of the peer's table of mapped buffers.
    Iomap,
    /// Credits or a keep-alive.
    Quiet,
    /// A control message.
    Control(Control),
}

const RING: u64 = 0;
const IOMAP: u64 = 1;
const QUIET: u64 = 2;
const CONTROL: u64 = 3;

impl WriteId {
    /// The number for a work request; the top bit is not set.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// From the number of a completed work request.
    pub const fn of(number: u64) -> Self {
        Self(number)
    }

    /// Whether the write has bytes of the user.
    pub const fn is_data(self) -> bool {
        matches!(self.sent(), Sent::Ring(_) | Sent::Iomap)
    }

    pub(super) const fn new(sent: Sent) -> Self {
        let (kind, value) = match sent {
            Sent::Ring(bytes) => (RING, bytes),
            Sent::Iomap => (IOMAP, 0),
            Sent::Quiet => (QUIET, 0),
            Sent::Control(Control(value)) => (CONTROL, value),
        };
        Self(kind << 32 | value as u64)
    }

    pub(super) const fn sent(self) -> Sent {
        let value = self.0 as u32;
        match self.0 >> 32 {
            RING => Sent::Ring(value),
            IOMAP => Sent::Iomap,
            CONTROL => Sent::Control(Control(value)),
            _ => Sent::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_is_the_name_of() {
        for sent in [
            Sent::Ring(0),
            Sent::Ring(u32::MAX),
            Sent::Iomap,
            Sent::Quiet,
            Sent::Control(Control::SHUTDOWN),
        ] {
            let id = WriteId::new(sent);
            assert_eq!(WriteId::of(id.number()).sent(), sent);
            assert_eq!(id.number() >> 63, 0);
        }
    }
}

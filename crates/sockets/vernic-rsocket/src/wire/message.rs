//! A message: the 32 bits of immediate data of an RDMA WRITE; over iWARP, which has none, the 4
//! bytes of a SEND behind the WRITE, in the byte order of the host that sends them.
//!
//! ```text
//!  bit   31..29   28..0
//!       +-------+-------------------------------------------+
//!       | kind  | bytes, credits, index or what is controlled |
//!       +-------+-------------------------------------------+
//! ```
//!
//! | kind | message | value |
//! |---|---|---|
//! | 0 | data was written to the receive buffer | bytes |
//! | 4 | credits, and maybe an entry of the target list | sequence number up to which may be sent, 16 bits |
//! | 6 | an entry of the table of mapped buffers | its index |
//! | 7 | control | 0 disconnect, 1 keep-alive, 2 shut down |
//!
//! Kinds 1, 2, 3 and 5 are reserved.

use std::fmt;

/// Kinds.
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

/// Bits of the value.
const VALUE_BITS: u32 = 29;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;

/// What a control message says. Others are data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u32);

impl Control {
    /// The sender has closed both directions.
    pub const DISCONNECT: Self = Self(0);
    /// Nothing: it only has to arrive. (Others send a WRITE of no bytes without a message instead.)
    pub const KEEPALIVE: Self = Self(1);
    /// The sender will send no more data.
    pub const SHUTDOWN: Self = Self(2);
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes were written where the sender's next target was.
    Data(u32),
    /// The receiver may send up to this sequence number, and an entry of its target list may be
    /// new.
    Credits(u16),
    /// An entry of the table of mapped buffers is new.
    Iomap(u32),
    /// See there.
    Control(Control),
    /// Kinds that nobody has defined, as found.
    Reserved(u32),
}

impl Message {
    /// Bytes of data that a message can announce.
    pub const MAX_DATA: u32 = VALUE_MASK;

    /// Bytes of one that is a SEND.
    pub const LEN: usize = 4;

    /// Reads one that came as a SEND.
    pub const fn of_send(bytes: [u8; Self::LEN]) -> Self {
        Self::parse(u32::from_ne_bytes(bytes))
    }

    /// As a SEND.
    pub const fn to_send(self) -> [u8; Self::LEN] {
        self.to_imm().to_ne_bytes()
    }

    /// Reads immediate data.
    pub const fn parse(imm: u32) -> Self {
        let value = imm & VALUE_MASK;
        match imm >> VALUE_BITS {
            DATA => Self::Data(value),
            // The number is one of 16 bits; a sum that went beyond them is cut here.
            CREDITS => Self::Credits(value as u16),
            IOMAP => Self::Iomap(value),
            CONTROL => Self::Control(Control(value)),
            _ => Self::Reserved(imm),
        }
    }

    /// The immediate data. Values beyond their 29 bits are cut.
    pub const fn to_imm(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credits(sequence) => (CREDITS, sequence as u32),
            Self::Iomap(index) => (IOMAP, index),
            Self::Control(Control(value)) => (CONTROL, value),
            Self::Reserved(imm) => return imm,
        };
        kind << VALUE_BITS | value & VALUE_MASK
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bytes) => write!(f, "DATA {bytes}"),
            Self::Credits(sequence) => write!(f, "CREDITS {sequence}"),
            Self::Iomap(index) => write!(f, "IOMAP {index}"),
            Self::Control(Control::DISCONNECT) => f.write_str("DISCONNECT"),
            Self::Control(Control::KEEPALIVE) => f.write_str("KEEPALIVE"),
            Self::Control(Control::SHUTDOWN) => f.write_str("SHUTDOWN"),
            Self::Control(Control(value)) => write!(f, "CONTROL {value:#x}"),
            Self::Reserved(imm) => write!(f, "RESERVED {imm:#010x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_numbers_of_the_table() {
        for (imm, message) in [
            (0x0000_0040, Message::Data(64)),
            (0x1fff_ffff, Message::Data(Message::MAX_DATA)),
            (0x8000_0180, Message::Credits(384)),
            (0xc000_0003, Message::Iomap(3)),
            (0xe000_0000, Message::Control(Control::DISCONNECT)),
            (0xe000_0001, Message::Control(Control::KEEPALIVE)),
            (0xe000_0002, Message::Control(Control::SHUTDOWN)),
            (0xe000_0009, Message::Control(Control(9))),
            (0x2000_0001, Message::Reserved(0x2000_0001)),
            (0xa000_0000, Message::Reserved(0xa000_0000)),
        ] {
            assert_eq!(Message::parse(imm), message);
            assert_eq!(message.to_imm(), imm);
            assert_eq!(Message::of_send(imm.to_ne_bytes()), message);
            assert_eq!(message.to_send(), imm.to_ne_bytes());
        }
    }

    #[test]
    fn credits_beyond_16_bits_wrap_as_their_sender_counts() {
        assert_eq!(Message::parse(0x8001_0005), Message::Credits(5));
    }
}

//! Why bytes are not a packet.
//!
//! Each variant is the sender's or the network's fault, never the caller's, and maps to one drop
//! counter. The values say what was seen, for logs and explanations.

use core::fmt;

/// Why bytes are not a packet. Values are as found on the wire; lengths are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// Fewer bytes than the headers take.
    Truncated {
        /// Bytes the headers take.
        need: u16,
        /// Bytes there are.
        have: u16,
    },
    /// An opcode that no row of the table defines.
    UnknownOpcode(u8),
    /// A transport header version other than 0.
    BadVersion(u8),
    /// More pad bytes than bytes after the headers, or a length that is not a multiple of 4.
    BadPad {
        /// Pad count, 0 to 3.
        pad: u8,
        /// Bytes after the headers, pad included.
        len: u16,
    },
    /// A payload that the opcode's rule forbids, as on an ACK. Requests are let through: their
    /// responder refuses them.
    PayloadLength {
        /// The opcode's name.
        opcode: &'static str,
        /// Payload bytes, pad not counted.
        len: u16,
    },
    /// A header field with a value that this parser cannot read on from.
    Field {
        /// Header and field.
        field: &'static str,
        /// Value found.
        value: u16,
    },
}

impl ParseError {
    pub(crate) const fn truncated(need: usize, have: usize) -> Self {
        Self::Truncated { need: saturate(need), have: saturate(have) }
    }
}

/// Lengths in errors stop at 65,535: no packet is longer.
pub(crate) const fn saturate(len: usize) -> u16 {
    if len > u16::MAX as usize { u16::MAX } else { len as u16 }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { need, have } => {
                write!(f, "truncated: headers take {need} bytes, packet has {have}")
            }
            Self::UnknownOpcode(opcode) => write!(f, "unknown opcode {opcode:#04x}"),
            Self::BadVersion(version) => {
                write!(f, "transport header version {version}, only 0 is defined")
            }
            Self::BadPad { pad, len } => {
                write!(f, "pad count {pad} does not fit {len} bytes after the headers")
            }
            Self::PayloadLength { opcode, len } => {
                write!(f, "{opcode} with {len} bytes of payload")
            }
            Self::Field { field, value } => write!(f, "{field} is {value:#x}"),
        }
    }
}

impl core::error::Error for ParseError {}

/// The first `N` bytes, for headers of fixed length.
#[inline]
pub(crate) const fn head<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], ParseError> {
    match bytes.first_chunk::<N>() {
        Some(head) => Ok(head),
        None => Err(ParseError::truncated(N, bytes.len())),
    }
}

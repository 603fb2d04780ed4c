//! The first message of a connection, and refusals.

use std::fmt;

use crate::bytes::{Reader, Writer};

const MAGIC: [u8; 4] = *b"VNFB";
/// The version of all messages: one number for all of them, changed with any.
const VERSION: u16 = 2;

const HELLO: u8 = 0x01;
const REFUSED: u8 = 0xFF;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Packets of a program's queue pairs.
    Data = 1,
    /// Management datagrams.
    Mad = 2,
    /// Requests of `vernic fabric`.
    Control = 3,
    /// One question to a host, whose life is that of what was asked for.
    Question = 4,
}

/// What the first message of a connection says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hello {
    /// The connection is for this.
    For(Purpose),
    /// The version of a client that is not of this one.
    Version(u16),
}

impl Hello {
    /// Returns the message of a client of this version.
    pub fn emit(purpose: Purpose) -> Vec<u8> {
        Writer::new(HELLO).bytes(&MAGIC).u16(VERSION).u16(purpose as u16).done()
    }
    /// Reads a first message; `None` if it is none.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (HELLO, mut body) = Reader::new(message)? else { return None };
        if body.array()? != MAGIC {
            return None;
        }
        match body.u16()? {
            VERSION => {}
            other => return Some(Self::Version(other)),
        }
        let purpose = match body.u16()? {
            1 => Purpose::Data,
            2 => Purpose::Mad,
            3 => Purpose::Control,
            4 => Purpose::Question,
            _ => return None,
        };
        body.end(Self::For(purpose))
    }
    /// Returns the refusal of a client of another version.
    pub fn version_refused(theirs: u16) -> Refusal {
        let text = format!(
            "the fabric process speaks version {VERSION} of its protocol, and this program {theirs}; \
             use one build of Vernic for both"
        );
        Refusal { kind: RefusalKind::Version, text }
    }
}

/// The kind of a refusal. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum RefusalKind {
    /// Any reason that is none of those below.
    Other = 0,
    /// The two ends are of different versions.
    Version = 1,
    /// No host, or no node, has this name.
    NoSuchNode = 2,
    /// The node has no such port.
    NoSuchPort = 3,
    /// Somebody else has it: a slot, or a class and method.
    Taken = 4,
    /// There are as many as can be.
    TooMany = 5,
    /// Permission is missing.
    NotAllowed = 6,
    /// A value that makes no sense.
    Invalid = 7,
    /// The port is down, or has no subnet manager.
    Down = 8,
    /// Subnet administration, or the other end, did not answer.
    Unanswered = 9,
    /// Subnet administration has no such path, or does not let the port in.
    Unreachable = 10,
}

impl RefusalKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Other,
        Self::Version,
        Self::NoSuchNode,
        Self::NoSuchPort,
        Self::Taken,
        Self::TooMany,
        Self::NotAllowed,
        Self::Invalid,
        Self::Down,
        Self::Unanswered,
        Self::Unreachable,
    ];
    /// Returns the nearest number of the C library (`errno`).
    pub const fn errno(self) -> i32 {
        match self {
            Self::Other => libc::EIO,
            Self::Version => libc::EPROTO,
            Self::NoSuchNode | Self::NoSuchPort => libc::ENODEV,
            Self::Taken => libc::EBUSY,
            Self::TooMany => libc::ENOSPC,
            Self::NotAllowed => libc::EPERM,
            Self::Invalid => libc::EINVAL,
            Self::Down => libc::ENETDOWN,
            Self::Unanswered => libc::ETIMEDOUT,
            Self::Unreachable => libc::EHOSTUNREACH,
        }
    }
}

/// An answer that says no, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What kind of refusal it is.
    pub kind: RefusalKind,
    /// The reason, as a sentence.
    pub text: String,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
    /// Returns the message.
    pub fn emit(&self) -> Vec<u8> {
        Writer::new(REFUSED).u16(self.kind as u16).text(&self.text).done()
    }
    /// Reads a message; `None` if it is no refusal.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (REFUSED, mut body) = Reader::new(message)? else { return None };
        let code = body.u16()?;
        let kind = RefusalKind::ALL.into_iter().find(|kind| *kind as u16 == code);
        let refusal =
            Self { kind: kind.unwrap_or(RefusalKind::Other), text: body.text()?.to_owned() };
        body.end(refusal)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_says_what_the_connection_is_for() {
        for purpose in [Purpose::Data, Purpose::Mad, Purpose::Control, Purpose::Question] {
            let mut bytes = Hello::emit(purpose);
            assert_eq!(Hello::parse(&bytes), Some(Hello::For(purpose)));
            for len in 0..bytes.len() {
                assert_eq!(Hello::parse(&bytes[..len]), None);
            }
            bytes[8] = 9;
            assert_eq!(Hello::parse(&bytes), Some(Hello::Version(9)));
            bytes[4] = b'X';
            assert_eq!(Hello::parse(&bytes), None);
        }
        assert!(Hello::version_refused(9).to_string().contains('9'));
    }

    #[test]
    fn a_refusal_keeps_its_kind_and_its_reason() {
        for kind in RefusalKind::ALL {
            let refusal = Refusal::new(kind, "no host is called \"h9\"");
            assert_eq!(Refusal::parse(&refusal.emit()), Some(refusal));
        }
        let long = Refusal::new(RefusalKind::Other, "\u{20ac}".repeat(30_000)).emit();
        assert!(long.len() < crate::MAX_MESSAGE && Refusal::parse(&long).is_some());
    }
}

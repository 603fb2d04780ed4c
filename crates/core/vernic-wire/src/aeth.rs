//! ACK Extended Transport Header (AETH): 4 bytes, a responder's answer (IBTA 9.3.5, 9.7.5.1).
//!
//! ```text
//!  byte   0                    1..3
//!       +--------------------+-------+        code 0: ACK, value = credit code
//!       | 0 | code2 | value5 |  MSN  |        code 1: RNR NAK, value = timer code
//!       +--------------------+-------+        code 3: NAK, value = NAK code
//!         1     2       5       24 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, RnrTimer};

/// First byte of the AETH: what the answer is (IBTA 9.7.5.1.1, table 43).
///
/// Any value is data; [`Syndrome::decode`] tells what it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Syndrome(pub u8);

impl Syndrome {
    /// An ACK that says nothing about receive credits.
    pub const ACK: Self = Self::ack(CreditCode::INVALID);

    /// An ACK with receive credits.
    pub const fn ack(credits: CreditCode) -> Self {
        Self(credits.0 & 31)
    }
    /// Receiver not ready: come back after `timer`.
    pub const fn rnr(timer: RnrTimer) -> Self {
        Self(0x20 | timer.code())
    }
    /// A negative acknowledge.
    pub const fn nak(code: NakCode) -> Self {
        Self(0x60 | code.0 & 31)
    }
    /// The meaning of the byte.
    #[inline]
    pub const fn decode(self) -> AethCode {
        match self.0 >> 5 {
            0 => AethCode::Ack { credits: CreditCode(self.0 & 31) },
            1 => AethCode::RnrNak(RnrTimer::new(self.0)),
            3 => AethCode::Nak(NakCode(self.0 & 31)),
            _ => AethCode::Reserved(self.0),
        }
    }
}

/// A decoded [`Syndrome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AethCode {
    /// Everything up to and including the PSN of the packet was received.
    Ack {
        /// Receive work requests the responder has beyond this message.
        credits: CreditCode,
    },
    /// The responder had no receive work request; everything before the PSN was received.
    RnrNak(RnrTimer),
    /// The responder refuses the packet with this PSN; everything before it was received.
    Nak(NakCode),
    /// Not defined; the packet is dropped.
    Reserved(u8),
}

/// End-to-end credits as the AETH carries them: 5 bits, 31 = no credit information (IBTA 9.7.7.2,
/// table 46).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CreditCode(pub u8);

impl CreditCode {
    /// The responder does not report credits.
    pub const INVALID: Self = Self(31);

    /// Credits by code, 0 to 30.
    const COUNTS: [u16; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];

    /// Receive work requests that the code stands for, 0 to 32,768; `None` for code 31 and above.
    pub const fn count(self) -> Option<u32> {
        if self.0 < 31 { Some(Self::COUNTS[self.0 as usize] as u32) } else { None }
    }
    /// The largest code that promises at most `available` receive work requests.
    pub const fn at_most(available: u32) -> Self {
        // From 2 on there are two codes for each power of two: itself, and one and a half times it.
        Self(match available {
            0 | 1 => available as u8,
            32_768.. => 30,
            _ => {
                let power = available.ilog2();
                (2 * power) as u8 + (available >> (power - 1) & 1) as u8
            }
        })
    }
}

/// Why a responder refuses a packet: 5 bits (IBTA 9.7.5.2, table 44).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A PSN beyond the expected one: a packet is missing.
    pub const PSN_SEQUENCE: Self = Self(0);
    /// The request is malformed, out of order in its message, too long, or not supported.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The key, range, rights or protection domain do not fit.
    pub const REMOTE_ACCESS: Self = Self(2);
    /// The responder cannot complete the request for a reason of its own.
    pub const REMOTE_OPERATIONAL: Self = Self(3);
    /// The request does not fit the reliable datagram's context.
    pub const INVALID_RD: Self = Self(4);

    /// Name, or `None` for a reserved code.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::PSN_SEQUENCE => Some("PSN_SEQUENCE"),
            Self::INVALID_REQUEST => Some("INVALID_REQUEST"),
            Self::REMOTE_ACCESS => Some("REMOTE_ACCESS"),
            Self::REMOTE_OPERATIONAL => Some("REMOTE_OPERATIONAL"),
            Self::INVALID_RD => Some("INVALID_RD"),
            _ => None,
        }
    }
}

impl fmt::Debug for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "reserved NAK code {}", self.0),
        }
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What the answer is.
    pub syndrome: Syndrome,
    /// Message sequence number: messages the responder has completed, 24 bits, wraps.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head(bytes) {
            Ok(head) => Ok(Self::from_bytes(head)),
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { syndrome: Syndrome(b[0]), msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let word = u32::from(self.syndrome.0) << 24 | self.msn & 0xFF_FFFF;
        buf[..Self::LEN].copy_from_slice(&word.to_be_bytes());
    }
}

impl Default for Aeth {
    /// An ACK without credit information, MSN 0.
    fn default() -> Self {
        Self { syndrome: Syndrome::ACK, msn: 0 }
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syndrome.decode() {
            AethCode::Ack { credits } => match credits.count() {
                Some(count) => write!(f, "ack credits={count}")?,
                None => f.write_str("ack")?,
            },
            AethCode::RnrNak(timer) => write!(f, "rnr timer={}", timer.code())?,
            AethCode::Nak(code) => write!(f, "nak {code}")?,
            AethCode::Reserved(value) => write!(f, "reserved syndrome {value:#04x}")?,
        }
        write!(f, " msn={}", self.msn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let aeth = Aeth::parse(&[0x62, 1, 2, 3]).unwrap();
        assert_eq!(aeth.syndrome.decode(), AethCode::Nak(NakCode::REMOTE_ACCESS));
        assert_eq!(aeth.msn, 0x01_0203);
        let mut out = [0; 4];
        aeth.emit(&mut out);
        assert_eq!(out, [0x62, 1, 2, 3]);
    }

    #[test]
    fn three_bytes_are_truncated() {
        assert_eq!(Aeth::parse(&[0; 3]), Err(ParseError::Truncated { need: 4, have: 3 }));
    }

    #[test]
    fn constructors_and_decode_agree() {
        for code in 0..32 {
            let ack = Syndrome::ack(CreditCode(code));
            assert_eq!(ack.decode(), AethCode::Ack { credits: CreditCode(code) });
            let rnr = Syndrome::rnr(RnrTimer::new(code));
            assert_eq!(rnr.decode(), AethCode::RnrNak(RnrTimer::new(code)));
            let nak = Syndrome::nak(NakCode(code));
            assert_eq!(nak.decode(), AethCode::Nak(NakCode(code)));
        }
    }

    #[test]
    fn every_syndrome_with_code_two_or_the_top_bit_is_reserved() {
        for value in (0x40..0x60).chain(0x80..=0xFF) {
            assert_eq!(Syndrome(value).decode(), AethCode::Reserved(value));
        }
    }

    #[test]
    fn credits_round_down_and_back() {
        assert_eq!(CreditCode::INVALID.count(), None);
        assert_eq!(CreditCode(30).count(), Some(32768));
        for code in 0..31 {
            let count = CreditCode(code).count().unwrap();
            assert_eq!(CreditCode::at_most(count), CreditCode(code));
        }
        for available in 0..=32_768 {
            let code = CreditCode::at_most(available);
            assert!(code.count().unwrap() <= available);
            assert!(CreditCode(code.0 + 1).count().is_none_or(|more| more > available));
        }
        assert_eq!(CreditCode::at_most(u32::MAX).count(), Some(32768));
    }
}

//! RMPP header: 12 bytes behind the MAD header, in the classes that send more than one datagram's
//! worth of data reliably (IBTA 13.6.2).
//!
//! ```text
//!  byte   0         1      2                   3        4..7     8..11
//!       +---------+------+-------------------+--------+--------+--------+
//!       | version | type | RRespTime LFA     | status | data 1 | data 2 |
//!       +---------+------+-------------------+--------+--------+--------+
//!         8         8      5         3         8        32       32 bits
//! ```
//! L says that the segment is the last, F that it is the first, A that the header is in use:
//! without A the datagram is one by itself, and the other fields are 0.
//!
//! | type | data 1 | data 2 |
//! |---|---|---|
//! | DATA | number of the segment, from 1 on | in the first and the last segment, a length |
//! | ACK | the last segment that has arrived | the last segment that may be sent |
//! | STOP, ABORT | reserved | reserved |

use core::fmt;

use crate::ParseError;
use crate::error::head;
use crate::mad::{MAD_LEN, MadHeader};

/// What an RMPP datagram is for. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RmppType(pub u8);

impl RmppType {
    /// The header is not in use.
    pub const NONE: Self = Self(0);
    /// A segment.
    pub const DATA: Self = Self(1);
    /// Acknowledges segments and lets more be sent.
    pub const ACK: Self = Self(2);
    /// Ends the transfer: the receiver or the sender lacks resources.
    pub const STOP: Self = Self(3);
    /// Ends the transfer: the other side made a mistake, or does not answer.
    pub const ABORT: Self = Self(4);

    /// Name, or `None` if nobody defined the value.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::NONE => Some("NONE"),
            Self::DATA => Some("DATA"),
            Self::ACK => Some("ACK"),
            Self::STOP => Some("STOP"),
            Self::ABORT => Some("ABORT"),
            _ => None,
        }
    }
}

impl fmt::Display for RmppType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// Why a STOP or an ABORT was sent (IBTA 13.6.2). Any value is data; those from 128 on are the
/// class's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RmppStatus(pub u8);

impl RmppStatus {
    /// Nothing is wrong; of DATA and ACK.
    pub const NORMAL: Self = Self(0);
    /// Resources are exhausted; the only reason of a STOP.
    pub const RESOURCES_EXHAUSTED: Self = Self(1);
    /// The whole transfer took too long.
    pub const TOTAL_TIME_TOO_LONG: Self = Self(118);
    /// The last segment and the length in the first do not agree.
    pub const INCONSISTENT_LAST: Self = Self(119);
    /// The first segment and its number do not agree.
    pub const INCONSISTENT_FIRST: Self = Self(120);
    /// The type is none that is defined.
    pub const BAD_TYPE: Self = Self(121);
    /// An ACK takes back what it had let be sent.
    pub const WINDOW_TOO_SMALL: Self = Self(122);
    /// An ACK is of a segment that was not sent.
    pub const SEGMENT_TOO_BIG: Self = Self(123);
    /// The status is none that is defined.
    pub const ILLEGAL_STATUS: Self = Self(124);
    /// The version is not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(125);
    /// Requests were repeated as often as is allowed, and not answered.
    pub const TOO_MANY_RETRIES: Self = Self(126);
    /// No reason is given.
    pub const UNSPECIFIED: Self = Self(127);
}

bitflags::bitflags! {
    /// Flags of an RMPP header, 3 bits.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RmppFlags: u8 {
        /// The header is in use.
        const ACTIVE = 1 << 0;
        /// The segment is the first.
        const FIRST = 1 << 1;
        /// The segment is the last.
        const LAST = 1 << 2;
    }
}

/// RMPP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rmpp {
    /// Version of this format; 1 where the header is in use.
    pub version: u8,
    /// What the datagram is for.
    pub kind: RmppType,
    /// How long the sender takes to answer at most, 5 bits
    /// ([`timeout_nanos`](crate::cm::timeout_nanos)); 31 says nothing.
    pub response_time: u8,
    /// Flags.
    pub flags: RmppFlags,
    /// Why a transfer ends.
    pub status: RmppStatus,
    /// The number of a segment, from 1 on.
    pub data1: u32,
    /// A length in bytes, or the number of a segment.
    pub data2: u32,
}

impl Rmpp {
    /// Bytes on the wire.
    pub const LEN: usize = 12;
    /// The only version.
    pub const VERSION: u8 = 1;
    /// The response time that says nothing.
    pub const NO_RESPONSE_TIME: u8 = 31;
    /// Bytes of a datagram behind the header. Lengths count them: those of the class's own header,
    /// again in each segment, and those of the data.
    pub const SEGMENT_LEN: usize = MAD_LEN - MadHeader::LEN - Self::LEN;

    /// Returns the header of segment `number`, from 1 on, of a transfer of `segments` of them. Its
    /// length field is `total_len` in the first segment, `last_len` in the last, and 0 between; in
    /// the only one it is `total_len` (IBTA 13.6.2).
    pub fn data(number: u32, segments: u32, total_len: u32, last_len: u32) -> Self {
        let mut flags = RmppFlags::ACTIVE;
        flags.set(RmppFlags::FIRST, number == 1);
        flags.set(RmppFlags::LAST, number == segments);
        let data2 = match (number == 1, number == segments) {
            (true, _) => total_len,
            (false, true) => last_len,
            (false, false) => 0,
        };
        Self {
            version: Self::VERSION,
            kind: RmppType::DATA,
            response_time: Self::NO_RESPONSE_TIME,
            flags,
            status: RmppStatus::NORMAL,
            data1: number,
            data2,
        }
    }
    /// Returns the header that acknowledges all segments up to `number`, and lets those up to
    /// `window_last` be sent.
    pub fn ack(number: u32, window_last: u32) -> Self {
        Self {
            version: Self::VERSION,
            kind: RmppType::ACK,
            response_time: Self::NO_RESPONSE_TIME,
            flags: RmppFlags::ACTIVE,
            status: RmppStatus::NORMAL,
            data1: number,
            data2: window_last,
        }
    }
    /// Returns the header that ends a transfer: `kind` is STOP or ABORT.
    pub fn end(kind: RmppType, status: RmppStatus) -> Self {
        Self { kind, status, data1: 0, data2: 0, ..Self::ack(0, 0) }
    }
    /// Returns whether the header is in use.
    pub const fn is_active(&self) -> bool {
        self.flags.contains(RmppFlags::ACTIVE)
    }
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head(bytes) {
            Ok(head) => Ok(Self::from_bytes(head)),
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            version: b[0],
            kind: RmppType(b[1]),
            response_time: b[2] >> 3,
            flags: RmppFlags::from_bits_truncate(b[2]),
            status: RmppStatus(b[3]),
            data1: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            data2: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
        }
    }
    /// Writes the header at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = self.version;
        buf[1] = self.kind.0;
        buf[2] = self.response_time << 3 | self.flags.bits() & 7;
        buf[3] = self.status.0;
        buf[4..8].copy_from_slice(&self.data1.to_be_bytes());
        buf[8..Self::LEN].copy_from_slice(&self.data2.to_be_bytes());
    }
}

impl fmt::Display for Rmpp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, data1, data2) = (self.kind, self.data1, self.data2);
        match self.kind {
            _ if !self.is_active() => f.write_str("no RMPP"),
            RmppType::DATA => {
                let first = if self.flags.contains(RmppFlags::FIRST) { " first" } else { "" };
                let last = if self.flags.contains(RmppFlags::LAST) { " last" } else { "" };
                write!(f, "{kind} segment={data1}{first}{last} len={data2}")
            }
            RmppType::ACK => write!(f, "{kind} segment={data1} window={data2}"),
            _ => write!(f, "{kind} status={}", self.status.0),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 0x9D, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let header = Rmpp::parse(&bytes).unwrap();
        assert_eq!((header.version, header.kind), (1, RmppType::ACK));
        // 0x9D: 10011 101
        assert_eq!(header.response_time, 19);
        assert_eq!(header.flags, RmppFlags::ACTIVE | RmppFlags::LAST);
        assert_eq!(header.status, RmppStatus(4));
        assert_eq!((header.data1, header.data2), (0x0506_0708, 0x090A_0B0C));
        let mut out = [0; Rmpp::LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn eleven_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 12, have: 11 };
        assert_eq!(Rmpp::parse(&[0; 11]), Err(error));
    }

    #[test]
    fn first_and_last_segments_are_marked_and_have_lengths() {
        let (first, last) = (RmppFlags::FIRST, RmppFlags::LAST);
        let fields = |number, segments| {
            let header = Rmpp::data(number, segments, 500, 60);
            assert!(header.is_active());
            assert_eq!((header.kind, header.data1), (RmppType::DATA, number));
            (header.flags - RmppFlags::ACTIVE, header.data2)
        };
        assert_eq!(fields(1, 3), (first, 500));
        assert_eq!(fields(2, 3), (RmppFlags::empty(), 0));
        assert_eq!(fields(3, 3), (last, 60));
        assert_eq!(fields(1, 1), (first | last, 500));
    }

    #[test]
    fn headers_read_as_a_trace() {
        let data = Rmpp::data(1, 1, 84, 84);
        assert_eq!(data.to_string(), "DATA segment=1 first last len=84");
        assert_eq!(Rmpp::ack(7, 71).to_string(), "ACK segment=7 window=71");
        let abort = Rmpp::end(RmppType::ABORT, RmppStatus::BAD_TYPE);
        assert_eq!(abort.to_string(), "ABORT status=121");
        assert_eq!((abort.data1, abort.data2), (0, 0));
        assert_eq!(Rmpp { kind: RmppType(9), ..abort }.to_string(), "type 9 status=121");
        assert_eq!(Rmpp::default().to_string(), "no RMPP");
        assert_eq!(Rmpp::default().kind, RmppType::NONE);
    }
}

//! InformInfoRecord: 60 bytes, a subscription that the data base holds (IBTA 15.2.5).
//!
//! ```text
//!  byte   0..15            16..17   18..23     24..59
//!       +----------------+--------+----------+------------+
//!       | subscriber GID | enum   | reserved | InformInfo |
//!       +----------------+--------+----------+------------+
//! ```

use core::fmt;

use super::{InformInfo, be16, part};
use crate::error::head;
use crate::{Gid, ParseError};

bitflags::bitflags! {
    /// Components of an [`InformInfoRecord`], as a component mask says which of them count.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InformComponents: u64 {
        /// [`InformInfoRecord::subscriber_gid`].
        const SUBSCRIBER_GID = 1 << 0;
        /// [`InformInfoRecord::number`].
        const NUMBER = 1 << 1;
        /// [`InformInfo::gid`].
        const GID = 1 << 3;
        /// [`InformInfo::lid_begin`].
        const LID_BEGIN = 1 << 4;
        /// [`InformInfo::lid_end`].
        const LID_END = 1 << 5;
        /// [`InformInfo::is_generic`].
        const IS_GENERIC = 1 << 7;
        /// [`InformInfo::subscribe`].
        const SUBSCRIBE = 1 << 8;
        /// [`InformInfo::notice_type`].
        const NOTICE_TYPE = 1 << 9;
        /// [`InformInfo::trap_number`].
        const TRAP_NUMBER = 1 << 10;
        /// [`InformInfo::qpn`].
        const QPN = 1 << 11;
        /// [`InformInfo::response_time`].
        const RESPONSE_TIME = 1 << 13;
        /// [`InformInfo::producer_type`].
        const PRODUCER_TYPE = 1 << 15;
    }
}

/// A subscription that the data base holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InformInfoRecord {
    /// The port that subscribed.
    pub subscriber_gid: Gid,
    /// Which of the port's subscriptions.
    pub number: u16,
    /// Reserved, 0 when sent.
    pub reserved18: [u8; 6],
    /// The subscription.
    pub info: InformInfo,
}

impl InformInfoRecord {
    /// Bytes on the wire.
    pub const LEN: usize = INFO_AT + InformInfo::LEN;

    /// Reads the record at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the record from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            subscriber_gid: Gid(part(b, 0)),
            number: be16(b, 16),
            reserved18: part(b, 18),
            info: InformInfo::from_bytes(&part(b, INFO_AT)),
        }
    }
    /// Writes the record at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..16].copy_from_slice(&self.subscriber_gid.0);
        buf[16..18].copy_from_slice(&self.number.to_be_bytes());
        buf[18..INFO_AT].copy_from_slice(&self.reserved18);
        self.info.emit(&mut buf[INFO_AT..]);
    }
}

/// Where the subscription begins.
const INFO_AT: usize = 24;

impl fmt::Display for InformInfoRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subscriber {} number={} {}", self.subscriber_gid, self.number, self.info)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; InformInfoRecord::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let record = InformInfoRecord::parse(&bytes).unwrap();
        assert_eq!((record.subscriber_gid.0[0], record.subscriber_gid.0[15]), (1, 16));
        assert_eq!((record.number, record.reserved18), (0x1112, [19, 20, 21, 22, 23, 24]));
        assert_eq!(record.info, InformInfo::parse(&bytes[24..]).unwrap());
        let mut out = [0; InformInfoRecord::LEN];
        record.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn fifty_nine_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 60, have: 59 };
        assert_eq!(InformInfoRecord::parse(&[0; 59]), Err(error));
    }

    #[test]
    fn a_record_reads_as_a_trace() {
        let text = InformInfoRecord { number: 7, ..InformInfoRecord::default() }.to_string();
        assert!(text.starts_with("subscriber :: number=7 unsubscribe trap=0"), "{text}");
    }
}

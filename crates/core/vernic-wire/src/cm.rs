//! Communication management (CM) datagrams: what connects queue pairs before they can talk (IBTA
//! chapter 12).
//!
//! Each is a management datagram of class 7, version 2, method SEND: 24 bytes of [`MadHeader`],
//! whose attribute id says which message, and 232 bytes of the message. They go from QP 1 to QP 1
//! with the Q_Key [`GSI_QKEY`].
//!
//! ```text
//!  byte   0..23        24..255
//!       +------------+------------------------------------------------+
//!       | MAD header | message: fields, then private data to the end  |
//!       +------------+------------------------------------------------+
//! ```
//!
//! | message | from -> to | says |
//! |---|---|---|
//! | [`Req`] | active -> passive | connect to this service; my queue pair, path, limits |
//! | [`Mra`] | either | your REQ, REP or LAP is here; the answer takes this long |
//! | [`Rep`] | passive -> active | accepted; my queue pair and limits |
//! | [`Rtu`] | active -> passive | the connection is up |
//! | [`Rej`] | either | no, for this reason |
//! | [`Dreq`], [`Drep`] | either | disconnect; done |
//! | [`SidrReq`], [`SidrRep`] | client -> server, back | which datagram queue pair has this service |
//! | [`Lap`], [`Apr`] | active -> passive, back | load an alternate path; what became of it |

mod apr;
mod cma;
mod drep;
mod dreq;
mod info;
mod lap;
mod mra;
mod path;
mod private_data;
mod reason;
mod rej;
mod rep;
mod req;
mod rtu;
mod service;
mod sidr_rep;
mod sidr_req;

use core::fmt;

use crate::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use crate::{ParseError, Qkey};

pub use apr::{Apr, AprStatus};
pub use cma::CmaHeader;
pub use drep::Drep;
pub use dreq::Dreq;
pub use info::Info;
pub use lap::Lap;
pub use mra::{AckedMessage, Mra};
pub use path::ReqPath;
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use reason::RejReason;
pub use rej::{Rej, RejectedMessage};
pub use rep::{FailoverAccepted, Rep};
pub use req::{CmService, Req};
pub use rtu::Rtu;
pub use service::{PortSpace, ServiceId};
pub use sidr_rep::{SidrRep, SidrStatus};
pub use sidr_req::SidrReq;

/// Bytes of a message after the MAD header.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;
/// Q_Key of QP 1, the only one that its datagrams have (IBTA chapter 13).
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);
/// Version of the class that these formats are of.
pub const CLASS_VERSION: u8 = 2;
/// Nanoseconds of a CM timeout field: `4.096 us * 2^exponent` (IBTA 12.7). The field has 5 bits;
/// higher ones are ignored. Unlike the ACK timeout, 0 is no infinity.
pub const fn timeout_nanos(exponent: u8) -> u64 {
    4096 << (exponent & 31)
}

/// Communication id: what one end of a connection names it by (IBTA 12.7). 0 stands for none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommId(pub u32);

impl CommId {
    /// No connection: in messages about one that the sender has no id for.
    pub const NONE: Self = Self(0);

    /// The value.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $variant:ident($message:ty) = $name:ident, $id:literal;)*) => {
        /// Which message a datagram is: the attribute id of its header. Any value is data.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct CmAttribute(pub u16);

        impl CmAttribute {
            $($(#[$doc])* pub const $name: Self = Self($id);)*

            /// All that are defined, ascending, without a gap.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Name, or `None` if nobody defined the value.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }

        /// A CM message.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "all take 232 bytes on the wire")]
        pub enum CmMessage {
            $($(#[$doc])* $variant($message),)*
        }

        impl CmMessage {
            /// Which message it is.
            pub const fn attribute(&self) -> CmAttribute {
                match self { $(Self::$variant(_) => CmAttribute::$name,)* }
            }
            fn parse_body(
                attribute: CmAttribute,
                body: &[u8; BODY_LEN],
            ) -> Result<Self, ParseError> {
                match attribute {
                    $(CmAttribute::$name => Ok(Self::$variant(<$message>::from_bytes(body))),)*
                    CmAttribute(value) => Err(ParseError::Field { field: "CM attribute id", value }),
                }
            }
            fn emit_body(&self, body: &mut [u8]) {
                match self { $(Self::$variant(message) => message.emit(body),)* }
            }
        }

        impl fmt::Display for CmMessage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$variant(message) => message.fmt(f),)* }
            }
        }

        $(
            impl From<$message> for CmMessage {
                fn from(message: $message) -> Self {
                    Self::$variant(message)
                }
            }
        )*
    };
}

messages! {
    /// Request for a connection.
    Req(Req) = REQ, 0x10;
    /// Message receipt acknowledgement: the answer takes longer.
    Mra(Mra) = MRA, 0x11;
    /// Rejection.
    Rej(Rej) = REJ, 0x12;
    /// Reply: the connection is accepted.
    Rep(Rep) = REP, 0x13;
    /// Ready to use.
    Rtu(Rtu) = RTU, 0x14;
    /// Request to disconnect.
    Dreq(Dreq) = DREQ, 0x15;
    /// Reply to it.
    Drep(Drep) = DREP, 0x16;
    /// Service id resolution: which datagram queue pair.
    SidrReq(SidrReq) = SIDR_REQ, 0x17;
    /// Answer to it.
    SidrRep(SidrRep) = SIDR_REP, 0x18;
    /// Load alternate path.
    Lap(Lap) = LAP, 0x19;
    /// Alternate path response.
    Apr(Apr) = APR, 0x1A;
}

impl fmt::Display for CmAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "CM attribute {:#06x}", self.0),
        }
    }
}

impl CmMessage {
    /// Bytes on the wire, MAD header included.
    pub const LEN: usize = MAD_LEN;

    /// Reads the datagram at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 256 bytes; [`ParseError::Field`] for another class, version
    /// or method, and for an attribute id that is no CM message.
    pub fn parse(bytes: &[u8]) -> Result<(MadHeader, Self), ParseError> {
        let mad: &[u8; MAD_LEN] = crate::error::head(bytes)?;
        let header = MadHeader::parse(mad)?;
        let expect = |field, value: u8, expected: u8| match value == expected {
            true => Ok(()),
            false => Err(ParseError::Field { field, value: u16::from(value) }),
        };
        expect("MAD base version", header.base_version, MadHeader::BASE_VERSION)?;
        expect("MAD class", header.mgmt_class.0, MgmtClass::COMMUNICATION.0)?;
        expect("CM class version", header.class_version, CLASS_VERSION)?;
        expect("CM method", header.method.0, Method::SEND.0)?;
        let body = mad.last_chunk().expect("a MAD is longer than its body");
        Ok((header, Self::parse_body(CmAttribute(header.attribute_id), body)?))
    }
    /// Writes the datagram: the header of the class with this transaction id, and the message.
    pub fn emit(&self, transaction_id: u64, buf: &mut [u8; MAD_LEN]) {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            mgmt_class: MgmtClass::COMMUNICATION,
            class_version: CLASS_VERSION,
            method: Method::SEND,
            transaction_id,
            attribute_id: self.attribute().0,
            ..MadHeader::default()
        };
        header.emit(buf);
        self.emit_body(&mut buf[MadHeader::LEN..]);
    }
    /// The id of the receiver's connection that the message names: `remote_comm_id`, the request id
    /// of a SIDR_REP. `None` on a REQ and a SIDR_REQ, which name a service instead.
    pub const fn receiver_comm_id(&self) -> Option<CommId> {
        match self {
            Self::Req(_) | Self::SidrReq(_) => None,
            Self::Mra(m) => Some(m.remote_comm_id),
            Self::Rej(m) => Some(m.remote_comm_id),
            Self::Rep(m) => Some(m.remote_comm_id),
            Self::Rtu(m) => Some(m.remote_comm_id),
            Self::Dreq(m) => Some(m.remote_comm_id),
            Self::Drep(m) => Some(m.remote_comm_id),
            Self::SidrRep(m) => Some(m.request_id),
            Self::Lap(m) => Some(m.remote_comm_id),
            Self::Apr(m) => Some(m.remote_comm_id),
        }
    }
}

fn be16(b: &[u8; BODY_LEN], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}
fn be24(b: &[u8; BODY_LEN], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}
fn be32(b: &[u8; BODY_LEN], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn be64(b: &[u8; BODY_LEN], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}
/// A 24-bit number and the byte after it.
fn put24(buf: &mut [u8], at: usize, number: u32, last: u8) {
    buf[at..at + 4].copy_from_slice(&(number << 8 | u32::from(last)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram of the attribute whose body is all 0xA5: every field has bits of both values.
    fn datagram(attribute: CmAttribute) -> [u8; MAD_LEN] {
        let mut mad = [0xA5; MAD_LEN];
        mad[..MadHeader::LEN].fill(0);
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[15] = 9;
        mad[16..18].copy_from_slice(&attribute.0.to_be_bytes());
        mad
    }

    #[test]
    fn every_message_is_emitted_as_it_was_parsed() {
        for &attribute in CmAttribute::ALL {
            let mad = datagram(attribute);
            let (header, message) = CmMessage::parse(&mad).unwrap();
            assert_eq!((message.attribute(), header.transaction_id), (attribute, 9));
            let mut out = [0; MAD_LEN];
            message.emit(9, &mut out);
            assert_eq!(out, mad, "{attribute}");
        }
    }

    #[test]
    fn other_classes_versions_and_methods_are_told_apart() {
        let broken = |at: usize, value: u8| {
            let mut mad = datagram(CmAttribute::REQ);
            mad[at] = value;
            CmMessage::parse(&mad).unwrap_err()
        };
        let field = |field, value| ParseError::Field { field, value };
        assert_eq!(broken(0, 2), field("MAD base version", 2));
        assert_eq!(broken(1, 3), field("MAD class", 3));
        assert_eq!(broken(2, 1), field("CM class version", 1));
        assert_eq!(broken(3, 0x81), field("CM method", 0x81));
        assert_eq!(broken(17, 0x1B), field("CM attribute id", 0x1B));
    }

    #[test]
    fn a_byte_less_than_a_datagram_is_truncated() {
        let mad = datagram(CmAttribute::REP);
        let error = ParseError::Truncated { need: 256, have: 255 };
        assert_eq!(CmMessage::parse(&mad[..255]), Err(error));
    }

    #[test]
    fn timeouts_are_powers_of_two_of_4096_ns() {
        assert_eq!(timeout_nanos(0), 4_096);
        assert_eq!(timeout_nanos(17), 536_870_912);
        assert_eq!(timeout_nanos(31), 8_796_093_022_208);
        assert_eq!(timeout_nanos(32), 4_096);
    }
}

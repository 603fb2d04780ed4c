//! What the two ends of a connection must tell each other before they can talk.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::{Gid, Lid, Mtu, Psn, Qpn, StaticRate};

/// The address of a queue pair: all that its peer needs to connect to it.
///
/// It travels over any channel that the application has: 24 bytes ([`Endpoint::to_bytes`]), or one
/// word of text without blanks ([`Display`](fmt::Display) and [`FromStr`]) to be pasted or put
/// into a file. [`oob`](crate::oob) exchanges it over TCP.
///
/// ```
/// use vernic::Endpoint;
/// let text = "qpn=0x000123,psn=0x00abcd,mtu=1024,gid=::ffff:10.0.0.1";
/// let endpoint: Endpoint = text.parse()?;
/// assert_eq!(endpoint.to_string(), text);
/// assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
/// # Ok::<(), vernic::EndpointError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The first packet sequence number that it sends.
    pub psn: Psn,
    /// Where it is: for RoCEv2 an IP address.
    pub gid: Gid,
    /// Largest path MTU of its port; a connection uses the smaller one of both ends.
    pub mtu: Mtu,
}

/// How packets get to a peer, beside its address (IBTA 11.2.2.1). The default suits most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Row of the GID table that is the source. `None`: the queue pair's own, or, for an address
    /// handle, the first of the destination's IP version.
    pub gid_index: Option<u8>,
    /// IP hop limit; 0 means 64.
    pub hop_limit: u8,
    /// IP traffic class: DSCP in the upper 6 bits.
    pub traffic_class: u8,
    /// Flow label, 20 bits: chooses the UDP source port; 0 lets the queue pair's number do it.
    pub flow_label: u32,
    /// Row of the P_Key table with the partition that the way is asked for in; a queue pair's own
    /// row goes before 0.
    pub pkey_index: u16,
    /// The rate that packets by the link keep to; none by default. Codes that are no rate are
    /// refused.
    pub static_rate: StaticRate,
    /// Service level, 0 to 15: the priority of the packets (`SO_PRIORITY`) on RoCEv2, where the
    /// system allows it. On InfiniBand it is of the way that [`subnet`](Self::subnet) names;
    /// subnet administration tells it.
    pub service_level: u8,
    /// The way within an InfiniBand subnet. `None`: subnet administration is asked, as by
    /// [`Device::path_to`](crate::Device::path_to). Nothing else has one.
    pub subnet: Option<SubnetPath>,
}

/// The way to a port of an InfiniBand subnet, as subnet administration tells it (IBTA 15.2.5.16).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubnetPath {
    /// LID of the port.
    pub dlid: Lid,
    /// Low bits of the own LID, which choose among the ways to the own port.
    pub path_bits: u8,
    /// Whether packets have a GRH: they leave the subnet, or the peer is to learn this port's GID.
    pub is_global: bool,
}

/// Text or bytes that are no [`Endpoint`] or [`RemoteMr`](crate::RemoteMr).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// A part is missing, unknown, given twice or has a bad value.
    #[error(
        "{text:?} is no endpoint: {part}; expected qpn=0x000123,psn=0x00abcd,mtu=1024,gid=::ffff:10.0.0.1"
    )]
    Text {
        /// What was given.
        text: String,
        /// The part that is wrong, in words.
        part: &'static str,
    },
    /// Not the number of bytes that it must be.
    #[error(
        "{what} takes {expected} bytes, not {len}: does the peer speak another protocol or version?"
    )]
    Length {
        /// The object.
        what: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// A field of the bytes has a value that it cannot have.
    #[error("{field} of {what} is {value}: does the peer speak another protocol or version?")]
    Field {
        /// The object.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u8,
    },
}

impl Endpoint {
    /// Bytes of [`Endpoint::to_bytes`].
    pub const LEN: usize = 24;
    /// First byte of the form: its version.
    const VERSION: u8 = 1;

    /// Version, MTU code, QPN (3 bytes), PSN (3 bytes), GID (16 bytes); numbers big-endian.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1] = self.mtu as u8;
        bytes[2..5].copy_from_slice(&self.qpn.value().to_be_bytes()[1..]);
        bytes[5..8].copy_from_slice(&self.psn.value().to_be_bytes()[1..]);
        bytes[8..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Reads what [`Endpoint::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`EndpointError::Length`], [`EndpointError::Field`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let what = "an endpoint";
        let b: &[u8; Self::LEN] = bytes.try_into().map_err(|_| EndpointError::Length {
            what,
            len: bytes.len(),
            expected: Self::LEN,
        })?;
        if b[0] != Self::VERSION {
            return Err(EndpointError::Field { what, field: "the version", value: b[0] });
        }
        let mtu = Mtu::from_code(b[1]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&b[8..]);
        Ok(Self {
            qpn: Qpn::new(u32::from_be_bytes([0, b[2], b[3], b[4]])),
            psn: Psn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            gid: Gid(gid),
            mtu: mtu.ok_or(EndpointError::Field { what, field: "the MTU code", value: b[1] })?,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, psn, gid, mtu } = self;
        write!(f, "qpn={qpn},psn={:#08x},mtu={mtu},gid={gid}", psn.value())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = |part| EndpointError::Text { text: text.to_owned(), part };
        let (mut qpn, mut psn, mut mtu, mut gid) = (None, None, None, None);
        for part in text.trim().split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("a part without '='"))?;
            let again = match key {
                "qpn" => qpn.replace(number24(value).ok_or_else(|| wrong("bad qpn"))?).is_some(),
                "psn" => psn.replace(number24(value).ok_or_else(|| wrong("bad psn"))?).is_some(),
                "mtu" => {
                    let parsed = value.parse().ok().and_then(Mtu::from_bytes);
                    mtu.replace(parsed.ok_or_else(|| wrong("bad mtu"))?).is_some()
                }
                "gid" => {
                    let parsed = value.parse::<Ipv6Addr>().map_err(|_| wrong("bad gid"))?;
                    gid.replace(Gid(parsed.octets())).is_some()
                }
                _ => return Err(wrong("an unknown part")),
            };
            if again {
                return Err(wrong("a part twice"));
            }
        }
        Ok(Self {
            qpn: Qpn::new(qpn.ok_or_else(|| wrong("no qpn"))?),
            psn: Psn::new(psn.ok_or_else(|| wrong("no psn"))?),
            mtu: mtu.ok_or_else(|| wrong("no mtu"))?,
            gid: gid.ok_or_else(|| wrong("no gid"))?,
        })
    }
}

/// A number below 2^24, decimal or hexadecimal with `0x`.
fn number24(text: &str) -> Option<u32> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    (number < 1 << 24).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_a_missing_double_or_bad_part_is_refused_and_quoted() {
        let cases = [
            ("", "a part without '='"),
            ("qpn=1,psn=2,mtu=1024", "no gid"),
            ("qpn=1,qpn=1", "a part twice"),
            ("qpn=0x1000000", "bad qpn"),
            ("mtu=1500", "bad mtu"),
            ("gid=10.0.0.1", "bad gid"),
            ("lid=3", "an unknown part"),
        ];
        for (text, part) in cases {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error, EndpointError::Text { text: text.to_owned(), part });
        }
    }

    #[test]
    fn bytes_of_another_length_version_or_mtu_are_refused() {
        let good: Endpoint = "gid=::1,mtu=4096,psn=16777215,qpn=17".parse().unwrap();
        let bytes = good.to_bytes();
        assert_eq!(Endpoint::from_bytes(&bytes), Ok(good));
        assert!(Endpoint::from_bytes(&bytes[1..]).is_err());
        for (at, value) in [(0, 2), (1, 0), (1, 6)] {
            let mut bad = bytes;
            bad[at] = value;
            assert!(Endpoint::from_bytes(&bad).is_err(), "byte {at} = {value}");
        }
    }
}

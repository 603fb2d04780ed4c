//! Small conversions that all readers of packets need.

use std::net::{IpAddr, SocketAddr};

use vernic_proto::DropReason;
use vernic_wire::{Gid, ParseError};

/// The address as a GID.
#[inline]
pub(crate) fn gid_of(addr: SocketAddr) -> Gid {
    Gid::from_ip(match addr {
        SocketAddr::V4(v4) => IpAddr::V4(*v4.ip()),
        SocketAddr::V6(v6) => IpAddr::V6(*v6.ip()),
    })
}

/// Under which counter bytes that are no packet are counted.
#[cold]
pub(crate) fn reason_of(error: ParseError) -> DropReason {
    match error {
        ParseError::Truncated { .. } => DropReason::Truncated,
        ParseError::UnknownOpcode(_) => DropReason::UnknownOpcode,
        ParseError::PayloadLength { .. } => DropReason::Length,
        ParseError::BadVersion(_) | ParseError::BadPad { .. } | ParseError::Field { .. } => {
            DropReason::Malformed
        }
    }
}

//! Address of a management datagram, as the owners of a port name it: by places in its tables.

use crate::{Gid, Lid, Qkey, Qpn, ServiceLevel};

/// Where a datagram goes; of one that came, where it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MadAddress {
    /// Queue pair of the other end.
    pub qpn: Qpn,
    /// Q_Key to send with.
    pub qkey: Qkey,
    /// LID of the other end.
    pub lid: Lid,
    /// Service level.
    pub service_level: ServiceLevel,
    /// Low bits of our own LID, which choose among the port's paths.
    pub path_bits: u8,
    /// Place of the P_Key in the port's table.
    pub pkey_index: u16,
    /// The global part, if the datagram has a GRH.
    pub grh: Option<MadGrh>,
}

/// Global part of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MadGrh {
    /// GID of the other end.
    pub gid: Gid,
    /// Place of our own GID in the port's table.
    pub gid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

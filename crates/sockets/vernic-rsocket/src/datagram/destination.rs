//! The way to a peer, and how packets from there are told.

use std::sync::Arc;

use vernic_cm::{AddressVector, CmPath};
use vernic_engine::{Ah, PortNum, Wc};
use vernic_wire::{Gid, Lid};

use crate::memory::GRH_BYTES;

/// Hop limit of datagrams: what the engine has for address vectors that name none.
const HOP_LIMIT: u8 = 64;

/// What the packets of a peer show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// RoCE: an IP address, which was compared when the packet came.
    Address,
    /// A port of the subnet: one of its LIDs, and the count of low bits in which these differ.
    Port { lid: Lid, lmc: u8 },
    /// A port beyond a router.
    Far(Gid),
}

/// Where a packet came from, as the device tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) slid: Lid,
    gid: Option<Gid>,
}

impl Origin {
    /// Returns the origin of a packet whose global routing header, if it has one, is this.
    pub(super) fn new(wc: &Wc, grh: &[u8; GRH_BYTES]) -> Self {
        let source = || grh[8..24].try_into().ok().map(Gid);
        Self { slid: wc.route.slid, gid: if wc.grh { source() } else { None } }
    }
}

/// The way to a peer.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) ah: Arc<Ah>,
    /// Longest message on this path, bytes.
    pub(super) mtu: usize,
    sign: Sign,
}

impl Destination {
    /// An address on RoCE.
    pub(super) fn of_address(ah: Arc<Ah>) -> Self {
        Self { ah, mtu: usize::MAX, sign: Sign::Address }
    }

    /// A port of a subnet, by the path to it.
    pub(super) fn of_path(ah: Arc<Ah>, mtu: usize, path: &CmPath) -> Self {
        let sign = match path.lids {
            Some(lids) if !lids.is_global => Sign::Port { lid: lids.remote, lmc: lids.lmc },
            _ => Sign::Far(path.remote),
        };
        Self { ah, mtu, sign }
    }

    /// Whether a packet from `origin` is the peer's.
    pub(super) fn is_at(&self, origin: &Origin) -> bool {
        match self.sign {
            Sign::Address => true,
            // All ports of a subnet have as many LIDs.
            Sign::Port { lid, lmc } => {
                (lid.value() ^ origin.slid.value()).checked_shr(lmc.into()).unwrap_or(0) == 0
            }
            Sign::Far(gid) => origin.gid == Some(gid),
        }
    }
}

/// The address vector of an address on RoCE.
pub(super) fn vector_of_address(gid: Gid, sgid_index: u8) -> AddressVector {
    let (hop_limit, port) = (HOP_LIMIT, PortNum(1));
    AddressVector { dgid: gid, sgid_index, hop_limit, port, ..AddressVector::default() }
}

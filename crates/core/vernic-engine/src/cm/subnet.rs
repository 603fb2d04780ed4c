//! Paths of CM messages within an InfiniBand subnet: LIDs and service level, and a GRH if the path
//! leaves the subnet.
//!
//! The fabric process brings each message to the process that it is for, by the service of a
//! request and by the communication id of any other (docs/fabric-process.md). So the ways by which
//! processes of a RoCE host find each other (`route.rs`) are not used.

use vernic_io::{Address, NoPath, PathId, PathRequest, RxPacket, TxPath};
use vernic_proto::cm::{CmPath, LidPath};
use vernic_wire::{Bth, Gid, Lid, Pkey, PortNum, RoceVersion};

use super::CmShared;
use crate::device::port::Port;

/// Returns the P_Key that this end of a packet has: of two members of a partition, one may be a
/// limited one (IBTA 10.9.3).
fn own_pkey(port: &Port, packet: &RxPacket<'_>) -> Pkey {
    let theirs = Bth::parse(packet.transport()).map_or(Pkey::DEFAULT, |bth| bth.pkey);
    port.pkey_row(theirs).map_or(theirs, |(_, own)| own)
}

impl CmShared {
    /// Whether messages travel by LIDs.
    pub(crate) fn has_lids(&self) -> bool {
        self.device.rules().has_lids()
    }

    /// Returns the port with a LID; port 1 if none has it.
    fn port_of_lid(&self, lid: Lid) -> &Port {
        self.device.port_of_lid(lid).unwrap_or(&self.device.ports()[0])
    }

    fn port_of_number(&self, port: PortNum) -> &Port {
        self.device.port(port).unwrap_or(&self.device.ports()[0])
    }

    /// Returns the path that a packet came by.
    pub(super) fn subnet_path_of(&self, packet: &RxPacket<'_>) -> CmPath {
        let meta = packet.meta;
        let (port, is_global) = match meta.dst {
            Address::Lid(lid) => (self.port_of_lid(Lid(lid)), false),
            Address::OwnLid { port, .. } => (self.port_of_number(PortNum(port)), false),
            Address::Gid(gid) | Address::RoceV1(gid) => (self.device.port_of_gid(gid), true),
        };
        let (base, lmc) = port.link().map_or((Lid::RESERVED, 0), |link| (link.lid, link.lmc));
        let lids = LidPath {
            port: port.number(),
            local: Lid(base.value() | u16::from(meta.route.path_bits)),
            remote: meta.route.slid,
            service_level: meta.route.service_level,
            lmc,
            is_global,
            rate: 0,
        };
        CmPath {
            traffic_class: meta.traffic_class,
            hop_limit: if is_global { CmPath::HOP_LIMIT } else { 1 },
            pkey: own_pkey(port, packet),
            lids: Some(lids),
            ..CmPath::new(meta.dst.gid(), meta.src.gid())
        }
    }

    /// Returns the path by which a datagram is sent.
    pub(super) fn subnet_mad_path(&self, path: &CmPath, lids: LidPath) -> TxPath {
        let port = self.port_of_lid(lids.local);
        let [local, remote] = match lids.is_global {
            true => [path.local, path.remote],
            false => [Gid::default(); 2],
        };
        let to = PathRequest {
            port: port.number(),
            local,
            remote,
            netdev_index: port.netdev_index(),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            service_level: lids.service_level,
            flow_label: path.flow_label,
            dlid: lids.remote,
            path_bits: lids.path_bits(),
            roce: RoceVersion::default(),
            may_wait: false,
        };
        // If there is no path, the link refuses the packet and counts it.
        let nowhere = |_: NoPath| TxPath::new(local, remote, PathId::default(), 0);
        port.open_path(&to).map_or_else(nowhere, |open| open.path)
    }
}

//! Datagrams of the agents of a port: what places in the port's tables mean, and packets as they
//! pass between the port and its owner, LRH to ICRC.

use vernic_wire::mad::{MAD_LEN, MadAddress, MadGrh};
use vernic_wire::{Grh, Lid, Pkey, Psn, Qpn, ServiceLevel, vcrc};

use super::Envelope;
use crate::attributes::PortAttributes;

impl Envelope {
    /// Makes what surrounds a datagram that an agent of a port sends from the queue pair `source`.
    /// `None` if the port has no such GID or partition key.
    pub fn of_port(source: Qpn, address: &MadAddress, port: &PortAttributes) -> Option<Self> {
        let is_management = source == Qpn::SMI;
        let path = (1_u16 << port.lmc.min(7)) - 1;
        let is_permissive = is_management && address.lid == Lid::PERMISSIVE;
        let own = port.lid.0 | u16::from(address.path_bits) & path;
        let grh = match &address.grh {
            None => None,
            Some(grh) => Some(Grh {
                version: 6,
                payload_length: 0, // filled in when the packet is complete
                next_header: Grh::NEXT_HEADER_IBA,
                traffic_class: grh.traffic_class,
                flow_label: grh.flow_label,
                hop_limit: grh.hop_limit,
                sgid: port.gid(grh.gid_index)?,
                dgid: grh.gid,
            }),
        };
        let pkey = match is_management {
            // Subnet management is of no partition (IBTA 10.9.9).
            true => Pkey::DEFAULT,
            false => {
                let row = port.tables.pkeys.get(usize::from(address.pkey_index));
                *row.filter(|pkey| port.has_pkey(**pkey))?
            }
        };
        Some(Self {
            is_management,
            service_level: address.service_level.value(),
            slid: if is_permissive { Lid::PERMISSIVE.0 } else { own },
            dlid: address.lid.0,
            grh,
            pkey,
            source,
            destination: address.qpn,
            qkey: address.qkey,
        })
    }
    /// Returns where a datagram came from that has arrived at a port.
    pub fn sender(&self, port: &PortAttributes) -> MadAddress {
        let path = (1_u16 << port.lmc.min(7)) - 1;
        let matches = |pkey: &Pkey| pkey.matches(self.pkey);
        let pkey_index = port.tables.pkeys.iter().position(matches).unwrap_or(0);
        MadAddress {
            qpn: self.source,
            qkey: self.qkey,
            lid: Lid(self.slid),
            service_level: ServiceLevel::new(self.service_level),
            path_bits: (self.dlid & path) as u8,
            pkey_index: pkey_index as u16,
            grh: self.grh.map(|grh| MadGrh {
                gid: grh.sgid,
                gid_index: 0,
                flow_label: grh.flow_label,
                hop_limit: grh.hop_limit,
                traffic_class: grh.traffic_class,
            }),
        }
    }
    /// Reads a packet that a port has given its owner, and adds the VCRC to it. `None` as for
    /// [`open`](Self::open).
    pub fn open_received(packet: &mut Vec<u8>) -> Option<(Self, [u8; MAD_LEN])> {
        packet.extend([0; vcrc::LEN]);
        vcrc::stamp(packet);
        Self::open(packet)
    }
    /// Writes the packet with a datagram as a port takes it from its owner.
    pub fn seal_to_send(&self, psn: Psn, mad: &[u8; MAD_LEN], out: &mut Vec<u8>) {
        self.seal(psn, mad, out);
        out.truncate(out.len() - vcrc::LEN);
    }
}

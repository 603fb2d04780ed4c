//! Paths of an InfiniBand link: the fields of LRH and GRH in a [`TxPath`].
//!
//! ```text
//!  TxPath   id                    door                                   flow
//!         +-----------+------+  +------+--------------+-----+-----+----+  +-------------+
//!         | path bits | DLID |  | port | label 19..16 |  0  | GRH | SL |  | label 15..0 |
//!         +-----------+------+  +------+--------------+-----+-----+----+  +-------------+
//!              16        16        4          4          3     1    4 bits
//! ```
//!
//! The source LID is made when a packet leaves, of the LID that the port has then and the path bits
//! (IBTA 7.7.2): a subnet manager may give the port another LID at any time.
//!
//! GIDs, traffic class and hop limit are those of the path, and go into a GRH if there is one.

use vernic_wire::{Gid, Grh, Lrh, PortNum};

use crate::address::Address;
use crate::link::{OpenPath, PathRequest};
use crate::link_port::LinkPort;
use crate::path::{PathId, TxPath};

/// The bit of a door that says that packets have a GRH.
const GLOBAL: u16 = 1 << 4;
/// Where a door has the high bits of the flow label.
const LABEL_SHIFT: u32 = 8;

/// Where a door has the port: adapters have up to 15.
const PORT_SHIFT: u32 = 12;

/// Returns the port that a path leaves by.
pub(super) fn port_of(path: &TxPath) -> PortNum {
    PortNum((path.door() >> PORT_SHIFT) as u8)
}

/// Returns the bits of a LID that a port chooses itself.
pub(super) fn own_bits(port: &LinkPort) -> u8 {
    (1 << port.lmc.min(7)) - 1
}

/// Opens the path of a request. The path bits are some that the port has.
pub(super) fn open(to: &PathRequest, path_bits: u8) -> OpenPath {
    let is_global = !to.remote.is_zero();
    let id = PathId(u32::from(path_bits) << 16 | u32::from(to.dlid.value()));
    let label = if is_global { to.flow_label & 0xF_FFFF } else { 0 };
    let port = u16::from(to.port.value()) << PORT_SHIFT;
    let label_bits = (label >> 16 << LABEL_SHIFT) as u16;
    let mut door = port | label_bits | u16::from(to.service_level & 0xF);
    let [local, remote] = match is_global {
        true => [to.local, to.remote],
        false => [Gid::default(); 2],
    };
    if is_global {
        door |= GLOBAL;
    }
    let hop_limit = if to.hop_limit == 0 { TxPath::DEFAULT_HOP_LIMIT } else { to.hop_limit };
    let path = TxPath::new(local, remote, id, door)
        .with_flow(label as u16)
        .with_traffic_class(to.traffic_class)
        .with_hop_limit(hop_limit);
    let [remote, local] = match is_global {
        true => [Address::Gid(remote), Address::Gid(local)],
        false => {
            let own = Address::OwnLid { port: to.port.value(), path_bits };
            [Address::Lid(to.dlid.value()), own]
        }
    };
    OpenPath { path, remote, local }
}

/// The headers that the link puts before the BTH of the packets of a path.
pub(super) struct Headers {
    lrh: Lrh,
    grh: Option<Grh>,
}

impl Headers {
    /// Returns the headers of a path by one of the ports as they are now, without lengths.
    pub(super) fn of(path: &TxPath, ports: &[LinkPort]) -> Self {
        let (id, door) = (path.id().0, path.door());
        let port = ports.get(usize::from(port_of(path).value()).wrapping_sub(1));
        let bits = (id >> 16) as u8;
        let slid = port.map_or(0, |port| port.lid.value() | u16::from(bits & own_bits(port)));
        let is_global = door & GLOBAL != 0;
        let lrh = Lrh {
            service_level: (door & 0xF) as u8,
            next_header: if is_global { Lrh::NEXT_GRH } else { Lrh::NEXT_BTH },
            dlid: id as u16,
            slid,
            ..Lrh::default()
        };
        let grh = is_global.then(|| Grh {
            version: 6,
            traffic_class: path.traffic_class(),
            flow_label: u32::from(path.flow()) | u32::from(door >> LABEL_SHIFT & 0xF) << 16,
            payload_length: 0,
            next_header: Grh::NEXT_HEADER_IBA,
            hop_limit: path.hop_limit(),
            sgid: path.local(),
            dgid: path.remote(),
        });
        Self { lrh, grh }
    }

    /// Returns the bytes of the headers.
    pub(super) fn len(&self) -> usize {
        Lrh::LEN + self.grh.map_or(0, |_| Grh::LEN)
    }

    /// Sets the lengths for a packet of `bytes` bytes, BTH to ICRC.
    fn measure(&mut self, bytes: usize) {
        if let Some(grh) = &mut self.grh {
            grh.payload_length = bytes as u16;
        }
        self.lrh.packet_length = ((self.len() + bytes) / 4) as u16;
    }

    /// Returns the ICRC of a packet of the path, BTH to pad.
    pub(super) fn icrc(&mut self, transport: &[u8]) -> u32 {
        self.measure(transport.len() + vernic_wire::icrc::LEN);
        vernic_wire::icrc::of_infiniband(&self.lrh, self.grh.as_ref(), transport)
    }

    /// Writes the headers of a packet of `bytes` bytes, BTH to ICRC, at the start of `to`.
    pub(super) fn emit(&mut self, bytes: usize, to: &mut [u8]) {
        self.measure(bytes);
        self.lrh.emit(to);
        if let Some(grh) = &self.grh {
            grh.emit(&mut to[Lrh::LEN..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use vernic_wire::Lid;

    use super::*;

    fn request(remote: Gid) -> PathRequest {
        PathRequest {
            port: PortNum(1),
            local: Gid([1; 16]),
            remote,
            netdev_index: 0,
            traffic_class: 7,
            hop_limit: 3,
            service_level: 5,
            flow_label: 0xA_BCDE,
            dlid: Lid(9),
            path_bits: 0,
            roce: vernic_wire::RoceVersion::default(),
            may_wait: false,
        }
    }

    fn ports(lid: u16, lmc: u8) -> [LinkPort; 1] {
        [LinkPort { lid: Lid(lid), lmc, ..LinkPort::default() }]
    }

    #[test]
    fn a_path_leaves_with_the_lid_that_the_port_has_then() {
        let OpenPath { path, local, .. } = open(&request(Gid::default()), 3);
        assert_eq!(local, Address::OwnLid { port: 1, path_bits: 3 });
        let slid = |lid, lmc| Headers::of(&path, &ports(lid, lmc)).lrh.slid;
        assert_eq!([slid(4, 2), slid(32, 2), slid(32, 1), slid(5, 0)], [7, 35, 33, 5]);
        assert_eq!(Headers::of(&path, &[]).lrh.slid, 0);
    }

    #[test]
    fn a_local_path_has_an_lrh_alone() {
        let OpenPath { path, remote, local } = open(&request(Gid::default()), 0);
        let own = Address::OwnLid { port: 1, path_bits: 0 };
        assert_eq!((remote, local), (Address::Lid(9), own));
        let mut headers = Headers::of(&path, &ports(4, 0));
        let mut bytes = [0; 60];
        headers.emit(20, &mut bytes);
        let lrh = Lrh::parse(&bytes).unwrap();
        assert_eq!((lrh.slid, lrh.dlid, lrh.service_level), (4, 9, 5));
        assert_eq!((lrh.packet_length, lrh.next_header, headers.len()), (7, Lrh::NEXT_BTH, 8));
    }

    #[test]
    fn a_global_path_has_a_grh_with_all_that_was_asked_for() {
        let OpenPath { path, remote, local } = open(&request(Gid([2; 16])), 0);
        assert_eq!((remote, local), (Address::Gid(Gid([2; 16])), Address::Gid(Gid([1; 16]))));
        let mut headers = Headers::of(&path, &ports(4, 0));
        let mut bytes = [0; 60];
        headers.emit(20, &mut bytes);
        let lrh = Lrh::parse(&bytes).unwrap();
        assert_eq!((lrh.packet_length, lrh.next_header, headers.len()), (17, Lrh::NEXT_GRH, 48));
        let grh = Grh::parse(&bytes[8..]).unwrap();
        assert_eq!((grh.flow_label, grh.traffic_class, grh.hop_limit), (0xA_BCDE, 7, 3));
        assert_eq!((grh.payload_length, grh.sgid, grh.dgid), (20, Gid([1; 16]), Gid([2; 16])));
    }
}

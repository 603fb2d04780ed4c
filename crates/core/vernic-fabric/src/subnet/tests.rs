use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{NodeInfo, SmAttribute, Smp};
use vernic_wire::{Psn, vcrc};

use super::*;
use crate::attributes::PortState;
use crate::datagram::Envelope;

const ONE: PortNum = PortNum(1);

/// A subnet with what a test does to it.
struct Bench {
    subnet: Subnet,
    now: Time,
    buffer: Vec<u8>,
}

impl Bench {
    fn new(plan: &Topology, config: SubnetConfig) -> Self {
        let mut bench =
            Self { subnet: Subnet::new(plan, config), now: Time(0), buffer: Vec::new() };
        bench.pass(10_000_000);
        bench
    }
    fn pass(&mut self, nanos: u64) {
        self.now = self.now + nanos;
        self.subnet.run(self.now);
    }
    fn node(&self, name: &str) -> NodeId {
        self.subnet.node(name).unwrap()
    }
    /// Sends a datagram of subnet management from a host, and returns what arrives at it.
    fn ask(&mut self, host: NodeId, smp: &Smp) -> Option<Smp> {
        let mut mad = [0; MAD_LEN];
        smp.emit(&mut mad);
        let mut packet = Vec::new();
        let dlid = if smp.is_directed() { 0xFFFF } else { smp.dr_dlid.0 };
        Envelope::of_smp(0xFFFF, dlid, 0).seal(Psn::new(0), &mad, &mut packet);
        packet.truncate(packet.len() - vcrc::LEN);
        self.subnet.submit(host, ONE, &packet, self.now).unwrap();
        self.pass(1_000_000);
        self.datagram(host)
    }
    fn datagram(&mut self, host: NodeId) -> Option<Smp> {
        if !self.subnet.poll_datagram(host, ONE, &mut self.buffer) {
            return None;
        }
        self.buffer.extend([0; vcrc::LEN]);
        vcrc::stamp(&mut self.buffer);
        let (_, mad) = Envelope::open(&self.buffer).unwrap();
        Some(Smp::from_bytes(&mad))
    }
}

/// A request by a directed route.
fn request(path: &[u8], attribute: SmAttribute, modifier: u32) -> Smp {
    let mut initial_path = [0; Smp::PATH_LEN];
    initial_path[1..=path.len()].copy_from_slice(path);
    Smp {
        header: MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::SUBNET_DIRECTED_ROUTE,
            class_version: 1,
            method: Method::GET,
            class_specific: path.len() as u16,
            transaction_id: 77,
            attribute_id: attribute.0,
            attribute_modifier: modifier,
            ..MadHeader::default()
        },
        m_key: 0,
        dr_slid: Lid::PERMISSIVE,
        dr_dlid: Lid::PERMISSIVE,
        reserved36: [0; 28],
        data: [0; 64],
        initial_path,
        return_path: [0; Smp::PATH_LEN],
    }
}

#[test]
fn links_come_up_by_themselves_and_are_told_once() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    let mut bench = Bench::new(&plan, SubnetConfig::MODELLED);
    let h1 = bench.node("h1");
    assert_eq!(bench.subnet.port(h1, ONE).unwrap().state, PortState::Init);
    let changes: Vec<_> = std::iter::from_fn(|| bench.subnet.poll_change()).collect();
    assert_eq!(changes.len(), 4);
    bench.pass(1_000_000_000);
    assert_eq!(bench.subnet.poll_change(), None);
}

#[test]
fn a_directed_route_reaches_every_node_on_its_way_and_comes_back() {
    let plan = Topology::tree("t", 2, 2, 4).unwrap();
    for config in [SubnetConfig::MODELLED, SubnetConfig::UNPACED] {
        let mut bench = Bench::new(&plan, config);
        let h1 = bench.node("h1");
        // Leaf ports 1 and 2 are hosts, 3 and 4 the spines; port 2 of a spine leads to leaf2.
        let ways: [(&[u8], &str); 5] = [
            (&[], "h1"),
            (&[1], "leaf1"),
            (&[1, 3], "spine1"),
            (&[1, 4, 2], "leaf2"),
            (&[1, 3, 2, 2], "h4"),
        ];
        for (path, name) in ways {
            let answer = bench.ask(h1, &request(path, SmAttribute::NODE_INFO, 0)).unwrap();
            assert_eq!((answer.header.method, answer.status().0), (Method::GET_RESP, 0));
            let info = NodeInfo::parse(&answer.data).unwrap();
            let node = bench.node(name);
            assert_eq!(info.node_guid, bench.subnet.attributes(node).unwrap().guid, "{name}");
        }
        assert_eq!(bench.ask(h1, &request(&[1, 9], SmAttribute::NODE_INFO, 0)), None);
        assert_eq!(bench.subnet.packets(), 0);
    }
}

//! Management datagrams from anyone against the agents of a switch and of an adapter: nothing
//! panics, tables keep their lengths, values stay in range, packets leave by ports that exist, and
//! every format is emitted as it was parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_fabric::Time;
use vernic_fabric::attributes::{
    ArbitrationEntry, Forwarding, LinkSpeed, LinkWidth, NodeAttributes, NodeKind, PhysicalState,
    PortAttributes, PortCounters, PortState, PortTables,
};
use vernic_fabric::management::{Agent, Ingress, ManagedNode, PortChange, Route};
use vernic_wire::mad::{MAD_LEN, Method, MgmtClass};
use vernic_wire::smp::{self, Smp};
use vernic_wire::{Guid, Lid, Mtu, Pkey, PortNum, Qpn, ServiceLevel, VirtualLane, pma};

const PORTS: u8 = 18;
const KEYS: usize = 40;
const LOW: usize = 8;
const HIGH: usize = 64;
const LIDS: usize = 200;
const GROUPS: usize = 40;

struct Node {
    attributes: NodeAttributes,
    ports: Vec<PortAttributes>,
    forwarding: Option<Forwarding>,
}

impl Node {
    /// The place of a port: an adapter has none of number 0.
    fn at(&self, port: PortNum) -> Option<usize> {
        let first = usize::from(self.attributes.kind == NodeKind::Adapter);
        usize::from(port.0).checked_sub(first)
    }
}

impl ManagedNode for Node {
    fn attributes(&self) -> &NodeAttributes {
        &self.attributes
    }
    fn port(&self, port: PortNum) -> Option<&PortAttributes> {
        self.ports.get(self.at(port)?)
    }
    fn port_mut(&mut self, port: PortNum) -> Option<&mut PortAttributes> {
        let at = self.at(port)?;
        self.ports.get_mut(at)
    }
    fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.as_ref()
    }
    fn forwarding_mut(&mut self) -> Option<&mut Forwarding> {
        self.forwarding.as_mut()
    }
    fn change_port(&mut self, port: PortNum, change: PortChange) {
        let port = self.port_mut(port).expect("the port exists");
        match change {
            PortChange::Arm => {
                assert_eq!(port.state, PortState::Init);
                port.state = PortState::Armed;
            }
            PortChange::Activate => {
                assert_eq!(port.state, PortState::Armed);
                port.state = PortState::Active;
            }
            PortChange::Down(physical) => {
                assert_ne!(physical, PhysicalState::LinkUp);
                (port.state, port.physical) = (PortState::Down, physical);
            }
        }
    }
}

fn port(inputs: usize) -> PortAttributes {
    let entry = ArbitrationEntry { lane: VirtualLane::new(0), weight: 1 };
    PortAttributes {
        guid: Guid(1),
        state: PortState::Init,
        physical: PhysicalState::LinkUp,
        link_down_default: PhysicalState::Polling,
        lid: Lid(1),
        lmc: 0,
        sm_lid: Lid(2),
        sm_service_level: ServiceLevel::new(0),
        gid_prefix: 0,
        capabilities: Agent::CAPABILITIES,
        m_key: 0,
        m_key_protection: 0,
        m_key_lease_s: 0,
        response_time: 16,
        subnet_timeout: 18,
        mtu_capability: Mtu::B2048,
        neighbor_mtu: Mtu::B256,
        lanes_supported: 8,
        operational_lanes: 1,
        width: LinkWidth::X4,
        speed: LinkSpeed::Edr,
        head_of_queue_life: 16,
        stall_count: 7,
        enforces_inbound: false,
        enforces_outbound: false,
        client_reregister: false,
        m_key_violations: 0,
        p_key_violations: 0,
        q_key_violations: 0,
        tables: PortTables {
            pkeys: vec![Pkey::DEFAULT; KEYS],
            lanes: vec![[VirtualLane::new(0); ServiceLevel::COUNT]; inputs],
            low: vec![entry; LOW],
            high: vec![entry; HIGH],
            high_limit: 0,
        },
        counters: PortCounters::default(),
    }
}

fn node(kind: NodeKind) -> Node {
    let (own, inputs) = match kind {
        NodeKind::Switch => (1, usize::from(PORTS) + 1),
        NodeKind::Adapter => (0, 1),
    };
    Node {
        attributes: NodeAttributes {
            kind,
            guid: Guid(1),
            system_guid: Guid(1),
            ports: PORTS,
            vendor_id: 0,
            device_id: 0,
            revision: 0,
            description: "node".into(),
        },
        ports: vec![port(inputs); usize::from(PORTS) + own],
        forwarding: (kind == NodeKind::Switch).then(|| Forwarding {
            linear: vec![255; LIDS],
            top: Lid(0),
            multicast: vec![[0; 16]; GROUPS],
            default_multicast_primary: 255,
            default_multicast_other: 255,
            life_time: 0,
            port_changed: false,
        }),
    }
}

fn check_node(node: &Node) {
    let inputs = if node.forwarding.is_some() { usize::from(PORTS) + 1 } else { 1 };
    for port in &node.ports {
        let tables = &port.tables;
        let lens = (tables.pkeys.len(), tables.lanes.len(), tables.low.len(), tables.high.len());
        assert_eq!(lens, (KEYS, inputs, LOW, HIGH));
        assert!(port.neighbor_mtu <= port.mtu_capability);
        assert!((1..=port.lanes_supported).contains(&port.operational_lanes));
        assert!(port.lid.is_unicast() && Lid(port.lid.0 + ((1 << port.lmc) - 1)).is_unicast());
        assert!(port.sm_lid.is_unicast() && port.lmc < 8 && port.m_key_protection < 4);
        let mut entries = tables.low.iter().chain(&tables.high);
        assert!(entries.all(|entry| !entry.lane.is_management() || entry.weight == 0));
    }
    let Some(forwarding) = &node.forwarding else { return };
    assert_eq!((forwarding.linear.len(), forwarding.multicast.len()), (LIDS, GROUPS));
    assert!(usize::from(forwarding.top.0) < LIDS);
    assert!(forwarding.linear.iter().all(|port| *port <= PORTS || *port == 255));
    let exist = |group: &[u16; 16]| group[1] >> (PORTS - 15) == 0 && group[2..] == [0; 14];
    assert!(forwarding.multicast.iter().all(exist));
}

macro_rules! check_formats {
    ($bytes:expr, $($format:ty),* $(,)?) => {$(
        let mut out = [0; <$format>::LEN];
        let parsed = <$format>::parse($bytes).expect("there are enough bytes");
        parsed.emit(&mut out);
        assert_eq!(out, $bytes[..<$format>::LEN]);
        assert!(!parsed.to_string().contains('\u{0}'));
    )*};
}

fn check_formats(mad: &[u8; MAD_LEN]) {
    check_formats!(mad, Smp);
    check_formats!(
        &mad[Smp::DATA_AT..],
        smp::GuidInfo,
        smp::LinearForwardingTable,
        smp::MulticastForwardingTable,
        smp::NodeDescription,
        smp::NodeInfo,
        smp::Notice,
        smp::PkeyTable,
        smp::PortInfo,
        smp::SlToVlTable,
        smp::SmInfo,
        smp::SwitchInfo,
        smp::VlArbitrationTable,
        pma::ClassPortInfo,
        pma::PortCounters,
        pma::PortCountersExtended,
    );
}

/// Takes `N` bytes, with zeros for those that the input lacks.
fn take<const N: usize>(input: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = input.len().min(N);
    let (head, rest) = input.split_at(len);
    bytes[..len].copy_from_slice(head);
    *input = rest;
    bytes
}

fuzz_target!(|input: &[u8]| {
    let mut input = input;
    let [kind] = take(&mut input);
    let mut node = node(if kind & 1 == 0 { NodeKind::Switch } else { NodeKind::Adapter });
    let mut agent = Agent::new(PORTS);
    let mut now = Time(0);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let [number, flags, slid, seconds] = take(&mut input);
        let mut mad: [u8; MAD_LEN] = take(&mut input);
        // Most inputs get past the first checks.
        if flags & 1 == 0 {
            mad[0] = 1;
            mad[2] = 1;
            let classes = [
                MgmtClass::SUBNET_LID_ROUTED,
                MgmtClass::SUBNET_DIRECTED_ROUTE,
                MgmtClass::PERFORMANCE,
            ];
            mad[1] = classes[usize::from(mad[1]) % 3].0;
        }
        check_formats(&mad);
        let is_performance = mad[1] == MgmtClass::PERFORMANCE.0;
        let is_answer = mad[3] & 0x80 != 0;
        let ingress = Ingress {
            port: PortNum(number),
            slid: Lid(slid.into()),
            queue_pair: if is_performance != (flags & 2 != 0) { Qpn::GSI } else { Qpn::SMI },
            local: flags & 4 != 0,
        };
        match agent.handle(&mut node, ingress, &mut mad, now) {
            Route::Port(port) => assert!((1..=PORTS).contains(&port.0) || port == ingress.port),
            Route::Lid(lid) if mad[1] != MgmtClass::SUBNET_DIRECTED_ROUTE.0 => {
                assert_eq!(
                    (lid, Method(mad[3]), is_answer),
                    (ingress.slid, Method::GET_RESP, false)
                );
            }
            Route::Lid(_) | Route::Local | Route::Done | Route::Drop(_) => {}
        }
        if flags & 8 != 0 {
            agent.handle_link_change(&mut node, now);
            agent.handle_node_change(&node, PortNum(number), seconds.into(), now);
        }
        now = now + u64::from(seconds) * 1_000_000_000;
        agent.handle_timeout(&mut node, now);
        let mut traps = 0;
        while agent.poll_trap(&node, now).is_some() {
            traps += 1;
            assert!(traps <= 1, "traps leave one by one");
        }
        if let Some(due) = agent.next_deadline() {
            assert!(due > now || traps == 0);
        }
        check_node(&node);
    }
});

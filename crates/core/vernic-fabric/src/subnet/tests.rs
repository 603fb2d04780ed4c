use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{NodeInfo, Notice, PortInfo, SmAttribute, Smp, SwitchInfo, TrapNumber};
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
    let mut smp = Smp::by_route(path, attribute, modifier);
    smp.header.transaction_id = 77;
    smp
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

/// Writes a port of the node at the end of a directed route, and makes sure that it was.
fn set_port(bench: &mut Bench, path: &[u8], port: u32, change: impl FnOnce(&mut PortInfo)) {
    let h1 = bench.node("h1");
    let mut smp = request(path, SmAttribute::PORT_INFO, port);
    let mut info = PortInfo::from_bytes(&bench.ask(h1, &smp).unwrap().data);
    (info.state, info.physical_state) = (0, 0);
    change(&mut info);
    info.emit(&mut smp.data);
    smp.header.method = Method::SET;
    assert_eq!(bench.ask(h1, &smp).unwrap().status().0, 0, "{path:?}");
}

/// One switch with three hosts: the first is the manager with LID 1, the switch has LID 2.
fn managed() -> Bench {
    let mut bench = Bench::new(&Topology::single("t", 3).unwrap(), SubnetConfig::UNPACED);
    set_port(&mut bench, &[], 0, |info| (info.lid, info.sm_lid) = (Lid(1), Lid(1)));
    set_port(&mut bench, &[1], 0, |info| (info.lid, info.sm_lid) = (Lid(2), Lid(1)));
    let mut table = request(&[1], SmAttribute::LINEAR_FORWARDING, 0);
    table.header.method = Method::SET;
    table.data.fill(255);
    table.data[1..5].copy_from_slice(&[1, 0, 2, 3]);
    let h1 = bench.node("h1");
    bench.ask(h1, &table).unwrap();
    let mut info = request(&[1], SmAttribute::SWITCH_INFO, 0);
    let mut switch = SwitchInfo::parse(&bench.ask(h1, &info).unwrap().data).unwrap();
    switch.linear_top = Lid(4);
    switch.emit(&mut info.data);
    info.header.method = Method::SET;
    bench.ask(h1, &info).unwrap();
    for (lid, path) in [(3, [1, 2]), (4, [1, 3])] {
        set_port(&mut bench, &path, 0, |info| (info.lid, info.sm_lid) = (Lid(lid), Lid(1)));
    }
    for state in [3, 4] {
        for port in 1..4 {
            set_port(&mut bench, &[1], port, |info| info.state = state);
        }
        for path in [&[][..], &[1, 2], &[1, 3]] {
            set_port(&mut bench, path, 0, |info| info.state = state);
        }
    }
    while bench.subnet.poll_change().is_some() {}
    bench
}

/// A packet of unreliable datagrams, LRH to ICRC.
fn packet(slid: u16, dlid: u16) -> Vec<u8> {
    let mut packet = vec![0; 8 + 12 + 8 + 256 + 6];
    let next_header = vernic_wire::Lrh::NEXT_BTH;
    vernic_wire::Lrh { slid, dlid, next_header, ..Default::default() }.emit(&mut packet);
    let qpn = vernic_wire::Qpn::new(5);
    let opcode = vernic_wire::Opcode::UD_SEND_ONLY;
    vernic_wire::Bth::new(opcode, qpn, Psn::new(0)).emit(&mut packet[8..]);
    vernic_wire::link_packet::finish(&mut packet).unwrap();
    packet.truncate(packet.len() - vcrc::LEN);
    packet
}

#[test]
fn a_cut_cable_is_told_to_the_manager_by_a_trap_until_it_answers() {
    let mut bench = managed();
    let (h1, h2) = (bench.node("h1"), bench.node("h2"));
    bench.subnet.set_cable(h2, ONE, false, bench.now).unwrap();
    bench.pass(1_000);
    let mut trap = bench.datagram(h1).unwrap();
    let notice = Notice::parse(&trap.data).unwrap();
    assert_eq!((notice.number, notice.issuer), (TrapNumber::LINK_STATE, Lid(2)));
    assert_eq!(bench.subnet.poll_change(), Some((h2, ONE)));
    assert_eq!(bench.subnet.port(h2, ONE).unwrap().state, PortState::Down);
    // Repeated after the subnet timeout, 2^18 times 4.096 us.
    bench.pass(1_100_000_000);
    assert!(bench.datagram(h1).is_some());
    trap.header.method = Method::TRAP_REPRESS;
    trap.dr_dlid = Lid(2);
    assert_eq!(bench.ask(h1, &trap), None);
    bench.pass(3_000_000_000);
    assert_eq!(bench.datagram(h1), None);
    assert_eq!(bench.subnet.cables().filter(|cable| !cable.is_up).count(), 1);
}

#[test]
fn a_manager_that_appears_is_told_of_by_trap_144_and_gets_what_is_for_managers() {
    let mut bench = managed();
    let (h1, h2) = (bench.node("h1"), bench.node("h2"));
    bench.subnet.set_capabilities(h2, ONE, PortInfo::CAPABILITY_SM, true, bench.now);
    bench.pass(1_000);
    let trap = bench.datagram(h1).unwrap();
    assert_eq!(Notice::parse(&trap.data).unwrap().number, TrapNumber::CHANGE);
    assert_eq!(bench.subnet.poll_change(), Some((h2, ONE)));
    let mut ask = request(&[], SmAttribute::SM_INFO, 0);
    ask.header.mgmt_class = MgmtClass::SUBNET_LID_ROUTED;
    ask.dr_dlid = Lid(3);
    assert_eq!(bench.ask(h1, &ask), None, "no agent answers for a manager");
    assert_eq!(bench.subnet.poll_ready().map(|ready| ready.0), Some(h1));
    assert_eq!(bench.subnet.poll_ready(), Some((h2, ONE)));
    assert!(bench.datagram(h2).is_some());
}

#[test]
fn wrong_bits_are_counted_and_their_packets_dropped() {
    let mut bench = managed();
    let (h2, h3) = (bench.node("h2"), bench.node("h3"));
    bench.subnet.set_bit_error_rate(h3, ONE, 1e-4).unwrap();
    let mut taken = 0;
    for _ in 0..1_000 {
        bench.subnet.submit(h2, ONE, &packet(3, 4), bench.now).unwrap();
        bench.pass(100_000);
        while bench.subnet.poll_receive(h3, ONE, &mut bench.buffer) {
            assert_eq!(bench.buffer, packet(3, 4));
            taken += 1;
        }
    }
    let counters = bench.subnet.port(h3, ONE).unwrap().counters;
    // 290 bytes are 2,320 bits, of which one in 10,000 is wrong.
    assert!((150..280).contains(&counters.rcv_errors), "{counters:?}");
    assert_eq!(taken + counters.rcv_errors, 1_000);
    // Credits have wrong bits too, and are told again.
    assert!(counters.symbol_errors >= counters.rcv_errors);
    assert_eq!(counters.link_downed, 0);
    assert_eq!(bench.subnet.packets(), 0);
}

#[test]
fn a_tap_sees_each_packet_on_each_cable() {
    let mut bench = managed();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (h2, h3, log) = (bench.node("h2"), bench.node("h3"), seen.clone());
    bench.subnet.set_tap(Some(Box::new(move |tapped: Tapped<'_>| {
        assert!(vernic_wire::LinkPacket::parse(tapped.bytes).is_ok());
        log.lock().unwrap().push((tapped.from, tapped.to));
    })));
    bench.subnet.submit(h2, ONE, &packet(3, 4), bench.now).unwrap();
    bench.pass(1);
    let switch = bench.node("sw1");
    let ways = [((h2, ONE), (switch, PortNum(2))), ((switch, PortNum(3)), (h3, ONE))];
    assert_eq!(*seen.lock().unwrap(), ways);
    bench.subnet.set_tap(None);
}

#[test]
fn a_packet_to_the_port_itself_needs_no_cable() {
    let mut bench = managed();
    let h2 = bench.node("h2");
    bench.subnet.set_cable(h2, ONE, false, bench.now).unwrap();
    bench.pass(1_000);
    bench.subnet.submit(h2, ONE, &packet(3, 3), bench.now).unwrap();
    bench.pass(1_000);
    assert_eq!(bench.subnet.peek_receive(h2, ONE), Some(&packet(3, 3)[..]));
    assert!(bench.subnet.poll_receive(h2, ONE, &mut bench.buffer));
    assert!(bench.subnet.submit(h2, ONE, &packet(3, 4), bench.now).is_err());
}

#[test]
fn counters_of_a_port_are_read_by_lid_and_answers_go_to_who_asked() {
    let mut bench = managed();
    let (h1, h2) = (bench.node("h1"), bench.node("h2"));
    bench.subnet.submit(h2, ONE, &packet(3, 4), bench.now).unwrap();
    bench.pass(1_000);
    // Of the switch, of another adapter, of the port itself.
    for (dlid, port) in [(2, 2), (3, 1), (1, 1)] {
        let mut mad = [0; MAD_LEN];
        let header = MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::PERFORMANCE,
            class_version: 1,
            method: Method::GET,
            transaction_id: 9,
            attribute_id: 0x12,
            ..MadHeader::default()
        };
        header.emit(&mut mad);
        mad[64 + 1] = port;
        let envelope = Envelope {
            is_management: false,
            source: vernic_wire::Qpn::new(33),
            destination: vernic_wire::Qpn::GSI,
            qkey: crate::datagram::GSI_QKEY,
            ..Envelope::of_smp(1, dlid, 0)
        };
        envelope.seal(Psn::new(0), &mad, &mut bench.buffer);
        bench.buffer.truncate(bench.buffer.len() - vcrc::LEN);
        let bytes = bench.buffer.clone();
        bench.subnet.submit(h1, ONE, &bytes, bench.now).unwrap();
        bench.pass(1_000);
        // To queue pair 33, and so no datagram of management for the port.
        assert!(bench.subnet.poll_receive(h1, ONE, &mut bench.buffer), "{dlid}");
        let mut whole = bench.buffer.clone();
        whole.extend([0; 2]);
        vcrc::stamp(&mut whole);
        let (answer, mad) = Envelope::open(&whole).unwrap();
        assert_eq!((answer.slid, answer.destination.value()), (dlid, 33));
        let header = MadHeader::parse(&mad).unwrap();
        assert_eq!((header.method, header.status, mad[64 + 1]), (Method::GET_RESP, 0, port));
    }
}

#[test]
fn a_packet_that_is_refused_for_want_of_room_is_no_news() {
    let mut bench = managed();
    let h2 = bench.node("h2");
    bench.subnet.set_rate(h2, ONE, "1k".parse().ok()).unwrap();
    bench.pass(1_000);
    while bench.subnet.submit(h2, ONE, &packet(3, 4), bench.now).is_ok() {
        bench.subnet.run(bench.now);
    }
    let due = bench.subnet.poll_timeout();
    let again = bench.subnet.submit(h2, ONE, &packet(3, 4), bench.now);
    assert_eq!((again, bench.subnet.poll_timeout()), (Err(SubmitError::Full), due));
    assert!(due.is_some_and(|due| due > bench.now));
}

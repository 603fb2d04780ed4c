use vernic_wire::{Lid, LinkPacket, Mtu, Pkey, link_packet};

use super::*;
use crate::attributes::{Forwarding, PortState};
use crate::link::port_tests::{attributes, packet};
use crate::link::{FrameKind, Signal};

const MANAGEMENT: u8 = 15;

/// A switch with its attributes, whose ports are active and whose cables lead to the test.
struct Bench {
    switch: Switch,
    ports: Vec<PortAttributes>,
    forwarding: Forwarding,
    now: Time,
}

impl Bench {
    /// Makes a switch with LID 1 and four ports; LIDs 2 to 5 are behind ports 1 to 4.
    fn new() -> Self {
        let mut forwarding = Forwarding {
            linear: vec![255; 64],
            top: Lid(63),
            multicast: vec![[0; 16]; 4],
            default_multicast_primary: 255,
            default_multicast_other: 255,
            life_time: 20,
            port_changed: false,
        };
        forwarding.linear[2..6].copy_from_slice(&[1, 2, 3, 4]);
        let mut bench = Self {
            switch: Switch::new(4, LinkConfig { lane_blocks: 100, ..LinkConfig::default() }),
            ports: vec![attributes(); 5],
            forwarding,
            now: Time(0),
        };
        (1..=4).for_each(|port| bench.bring_up(port));
        bench
    }
    fn with<R>(&mut self, call: impl FnOnce(&mut Switch, &mut View<'_>, Time) -> R) -> R {
        let mut view = View { ports: &mut self.ports, forwarding: &mut self.forwarding };
        call(&mut self.switch, &mut view, self.now)
    }
    fn frame(&mut self, port: u8, frame: Frame<'_>) {
        self.with(|switch, view, now| switch.handle_frame(view, PortNum(port), frame, now));
    }
    /// Trains a port, grants it 100 blocks of both lanes, and makes it active.
    fn bring_up(&mut self, port: u8) {
        self.with(|switch, view, now| switch.handle_cable(view, PortNum(port), true, now));
        self.frame(port, Frame::Signal(Signal::Ready));
        for lane in 0..2 {
            let packet = vernic_wire::FlowControl {
                virtual_lane: VirtualLane::new(lane),
                credit_limit: 100,
                ..Default::default()
            };
            let mut bytes = [0; 6];
            packet.emit(&mut bytes);
            self.frame(port, Frame::FlowControl(&bytes));
        }
        self.ports[usize::from(port)].state = PortState::Active;
        assert_eq!(self.sent(), []);
        assert_eq!(self.switch.poll_change(), Some(PortNum(port)));
        assert!(std::mem::take(&mut self.forwarding.port_changed));
    }
    fn receive(&mut self, port: u8, bytes: &[u8]) {
        self.frame(port, Frame::Packet(bytes));
    }
    /// Lets time pass, and returns the packets that left: port, lane and LID.
    fn sent(&mut self) -> Vec<(u8, u8, u16)> {
        let (mut sent, mut out) = (Vec::new(), Vec::new());
        for _ in 0..60 {
            self.now = self.now + 5_000;
            while let Some((port, transmit)) =
                self.with(|switch, view, now| switch.poll_transmit(view, now, &mut out))
            {
                if transmit.kind == FrameKind::Packet {
                    let packet = LinkPacket::parse(&out).unwrap();
                    assert!(packet.has_right_icrc());
                    sent.push((port.0, packet.virtual_lane().value(), packet.lrh().dlid));
                }
            }
        }
        sent
    }
    fn managed(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut out = Vec::new();
        self.switch.poll_management(&mut out).map(|port| (port.0, out))
    }
    /// Checks that nothing is held.
    fn assert_empty(&self) {
        assert_eq!(self.switch.packets(), 0);
        for (port, lane) in (1..=4).flat_map(|port| [(port, 0), (port, 1)]) {
            assert_eq!(self.switch.free_blocks(PortNum(port), VirtualLane::new(lane)), 100);
        }
    }
}

/// Returns a packet as the node submits it: without VCRC.
fn own(lane: u8, dlid: u16, payload: usize) -> Vec<u8> {
    let mut bytes = packet(lane, dlid, payload);
    bytes.truncate(bytes.len() - 2);
    bytes
}

#[test]
fn a_packet_leaves_by_the_port_of_its_lid_on_the_lane_of_the_table() {
    let mut bench = Bench::new();
    bench.ports[2].tables.lanes[1][0] = VirtualLane::new(1);
    bench.receive(1, &packet(0, 3, 64));
    assert_eq!(bench.sent(), [(2, 1, 3)]);
    bench.assert_empty();
}

#[test]
fn a_packet_that_the_tables_lead_nowhere_or_back_is_counted_where_it_came_by() {
    let mut bench = Bench::new();
    bench.forwarding.linear[10] = 77;
    bench.forwarding.top = Lid(20);
    bench.forwarding.linear[21] = 2;
    // No entry, no such port, above the top, beyond the table, back, LID 0, permissive.
    for dlid in [9, 10, 21, 0xBFFF, 2, 0, 0xFFFF] {
        bench.receive(1, &packet(0, dlid, 64));
    }
    assert_eq!((bench.sent(), bench.managed()), (vec![], None));
    assert_eq!(bench.ports[1].counters.rcv_switch_relay, 7);
    bench.assert_empty();
}

#[test]
fn lane_15_of_the_table_discards() {
    let mut bench = Bench::new();
    for lane in [15, 2] {
        bench.ports[2].tables.lanes[1][0] = VirtualLane::new(lane);
        bench.receive(1, &packet(0, 3, 64));
    }
    bench.ports[2].tables.lanes.clear();
    bench.receive(1, &packet(0, 3, 64));
    assert_eq!((bench.sent(), bench.ports[1].counters.rcv_switch_relay), (vec![], 3));
    bench.assert_empty();
}

#[test]
fn a_packet_that_the_next_port_cannot_take_is_counted_where_it_was_to_leave() {
    let mut bench = Bench::new();
    bench.ports[2].neighbor_mtu = Mtu::B1024;
    bench.ports[3].state = PortState::Armed;
    bench.receive(1, &packet(0, 3, 2048));
    bench.receive(1, &packet(0, 3, 1024));
    bench.receive(1, &packet(0, 4, 64));
    assert_eq!(bench.sent(), [(2, 0, 3)]);
    let discards = bench.ports.iter().map(|port| port.counters.xmit_discards);
    assert_eq!(discards.collect::<Vec<_>>(), [0, 0, 1, 1, 0]);
    bench.assert_empty();
}

#[test]
fn partitions_are_enforced_where_they_are_to_be() {
    let mut bench = Bench::new();
    let of = |pkey: u16| {
        let mut bytes = packet(0, 3, 64);
        bytes[10..12].copy_from_slice(&pkey.to_be_bytes());
        link_packet::finish(&mut bytes).unwrap();
        bytes
    };
    bench.ports[1].tables.pkeys = vec![Pkey(0), Pkey(0x8001), Pkey(0x0002)];
    bench.ports[1].enforces_inbound = true;
    for pkey in [0x8001, 0x0001, 0x8002, 0x0002, 0x8003, 0x8000] {
        bench.receive(1, &of(pkey));
    }
    assert_eq!(bench.sent().len(), 3);
    let port = &bench.ports[1];
    assert_eq!((port.counters.rcv_constraint, port.p_key_violations), (3, 3));
    bench.ports[1].enforces_inbound = false;
    bench.ports[2].enforces_outbound = true;
    bench.receive(1, &of(0x8003));
    bench.receive(1, &packet(MANAGEMENT, 3, 256));
    assert_eq!(bench.sent(), [(2, MANAGEMENT, 3)]);
    assert_eq!(bench.ports[2].counters.xmit_constraint, 1);
    bench.assert_empty();
}

#[test]
fn a_group_gets_a_copy_at_each_port_but_the_one_it_came_by() {
    let mut bench = Bench::new();
    bench.forwarding.multicast[2][0] = 0b11111;
    bench.receive(1, &packet(0, 0xC002, 64));
    bench.ports[2].state = PortState::Init;
    assert_eq!(bench.sent(), [(3, 0, 0xC002), (4, 0, 0xC002)]);
    assert_eq!(bench.ports[2].counters.xmit_discards, 1);
    assert_eq!(bench.switch.packets(), 1, "the owner has not taken its copy");
    assert_eq!(bench.managed().map(|(port, _)| port), Some(1));
    bench.assert_empty();
    let counters = bench.ports[1].counters;
    assert_eq!((counters.multicast_rcv, counters.unicast_rcv), (1, 0));
}

#[test]
fn a_copy_that_waits_keeps_the_buffer_of_all() {
    let mut bench = Bench::new();
    bench.forwarding.multicast[2][0] = 0b01100;
    // Port 2 has 100 blocks of credit, and the first packet takes 65 of them.
    bench.receive(4, &packet(0, 3, 4096));
    bench.receive(1, &packet(0, 0xC002, 4096));
    assert_eq!(bench.sent(), [(2, 0, 3), (3, 0, 0xC002)]);
    let free = |bench: &Bench| bench.switch.free_blocks(PortNum(1), VirtualLane::new(0));
    assert_eq!((free(&bench), bench.switch.packets()), (35, 1));
    bench.with(|switch, view, now| switch.handle_cable(view, PortNum(2), false, now));
    assert_eq!((bench.sent(), free(&bench)), (vec![], 100));
    assert_eq!(bench.ports[2].counters.xmit_discards, 1);
}

#[test]
fn a_group_without_an_entry_takes_the_default_ports() {
    let mut bench = Bench::new();
    bench.receive(1, &packet(0, 0xC001, 64));
    assert_eq!((bench.sent(), bench.ports[1].counters.rcv_switch_relay), (vec![], 1));
    bench.forwarding.default_multicast_primary = 3;
    bench.forwarding.default_multicast_other = 4;
    bench.receive(1, &packet(0, 0xC001, 64));
    bench.receive(3, &packet(0, 0xCFFF, 64));
    assert_eq!(bench.sent(), [(3, 0, 0xC001), (4, 0, 0xCFFF)]);
}

#[test]
fn the_owner_gets_what_is_for_the_switch() {
    let mut bench = Bench::new();
    bench.ports[0].lmc = 0;
    let packets = [packet(MANAGEMENT, 0xFFFF, 256), packet(0, 1, 256)];
    bench.receive(2, &packets[0]);
    bench.receive(3, &packets[1]);
    bench.receive(4, &packet(MANAGEMENT, 2, 256));
    assert_eq!(bench.managed(), Some((2, packets[0].clone())));
    assert_eq!(bench.managed(), Some((3, packets[1].clone())));
    assert_eq!(bench.managed(), None);
    assert_eq!(bench.sent(), [(1, MANAGEMENT, 2)], "by LID in the lane of management");
    bench.assert_empty();
}

#[test]
fn all_lids_of_the_switch_are_its_own() {
    let mut bench = Bench::new();
    (bench.ports[0].lid, bench.ports[0].lmc) = (Lid(8), 2);
    (8..12).for_each(|dlid| bench.receive(1, &packet(0, dlid, 64)));
    bench.receive(1, &packet(0, 12, 64));
    assert_eq!(std::iter::from_fn(|| bench.managed()).count(), 4);
    assert_eq!(bench.ports[1].counters.rcv_switch_relay, 1);
}

#[test]
fn the_owner_sends_by_any_port_and_by_lid() {
    let mut bench = Bench::new();
    bench.ports[4].state = PortState::Init;
    let send = |bench: &mut Bench, port: u8, bytes: &[u8]| {
        bench.with(|switch, view, now| switch.send_management(view, PortNum(port), bytes, now))
    };
    let submit = |bench: &mut Bench, bytes: &[u8]| {
        bench.with(|switch, view, now| switch.submit(view, bytes, now))
    };
    assert_eq!(send(&mut bench, 4, &own(MANAGEMENT, 0xFFFF, 256)), Ok(()));
    assert_eq!(submit(&mut bench, &own(0, 3, 256)), Ok(()));
    assert_eq!(bench.sent(), [(2, 0, 3), (4, MANAGEMENT, 0xFFFF)]);
    assert_eq!(submit(&mut bench, &own(MANAGEMENT, 1, 256)), Ok(()));
    assert_eq!(bench.managed().map(|(port, _)| port), Some(0), "to itself");
    assert_eq!(send(&mut bench, 5, &own(MANAGEMENT, 0xFFFF, 256)), Err(SubmitError::NoPort));
    assert_eq!(send(&mut bench, 0, &own(MANAGEMENT, 0xFFFF, 256)), Err(SubmitError::NoPort));
    assert_eq!(submit(&mut bench, &[1, 2, 3]), Err(SubmitError::Malformed));
    bench.assert_empty();
}

#[test]
fn the_owner_has_to_wait_when_its_packets_do() {
    let mut bench = Bench::new();
    let mut taken = 0;
    let error = loop {
        let bytes = own(MANAGEMENT, 3, 256);
        match bench.with(|switch, view, now| switch.submit(view, &bytes, now)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((taken, error), (264 / 5, SubmitError::Full));
    assert_eq!(bench.sent().len(), taken);
    assert_eq!(bench.switch.own_blocks, 0);
    bench.assert_empty();
}

#[test]
fn ports_that_there_are_not_are_ignored() {
    let mut bench = Bench::new();
    for port in [0, 5, 255] {
        bench.receive(port, &packet(0, 3, 64));
        bench.with(|switch, view, now| switch.handle_cable(view, PortNum(port), false, now));
    }
    bench.ports.truncate(3);
    bench.receive(4, &packet(0, 3, 64));
    bench.receive(1, &packet(0, 5, 64));
    assert_eq!(bench.sent(), []);
    assert_eq!(bench.switch.packets(), 0);
}

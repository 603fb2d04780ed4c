//! Faults at random, and a node that keeps no rule, against the oracle.

mod common;

use std::num::NonZeroU64;

use common::cable::{End, Faults};
use common::oracle::{Flow, packet};
use common::{Fabric, Random};
use vernic_fabric::attributes::PortState;
use vernic_fabric::link::{FrameKind, LinkConfig, Signal};
use vernic_wire::{FlowControl, FlowControlOp, VirtualLane, vcrc};

const CONFIG: LinkConfig = LinkConfig {
    lane_blocks: 100,
    management_blocks: 20,
    submit_blocks: 200,
    bytes_per_s: None,
    paced: true,
    update_ns: 20_000,
    idle_update_ns: 1_000_000,
    training_ns: 100_000,
};

const SECOND: u64 = 1_000_000_000;

/// Pulls a cable, plugs one in, or changes the state of a port.
fn trouble(fabric: &mut Fabric) {
    let cable = fabric.random.below(fabric.cables.len() as u64) as usize;
    let end = fabric.cables[cable].ends[fabric.random.below(2) as usize];
    match fabric.random.below(6) {
        0 | 1 => fabric.plug(cable, false),
        2 | 3 => fabric.plug(cable, true),
        4 => fabric.set_state(end, PortState::Down),
        _ if fabric.attributes(end).state == PortState::Init => {
            fabric.set_state(end, PortState::Active);
        }
        _ => {}
    }
}

/// Lets hosts send to each other at random.
fn traffic(fabric: &mut Fabric, service_level: u8, packets: u64) -> u64 {
    let hosts = fabric.hosts();
    for host in &hosts {
        let to = hosts[fabric.random.below(hosts.len() as u64) as usize];
        let lid = fabric.host(to).attributes.lid.0;
        let payload = 8 + fabric.random.below(4088) as usize;
        fabric.host(*host).send(lid, service_level, payload, packets);
        fabric.poll(*host);
    }
    hosts.len() as u64 * packets
}

#[test]
fn after_any_trouble_every_packet_is_accounted_for_and_the_fabric_recovers() {
    for seed in 0..100 {
        let mut fabric = Fabric::random_tree(seed, 3, CONFIG);
        fabric.oracle.lossy = true;
        let faults = Faults { lose_credits: 10, damage_packets: 3, lose_signals: 20 };
        fabric.cables.iter_mut().for_each(|cable| cable.faults = faults);
        for level in 0..3 {
            traffic(&mut fabric, level, 60);
            for _ in 0..10 {
                let nanos = 1_000 + fabric.random.below(60_000);
                fabric.run_for(nanos);
                trouble(&mut fabric);
                fabric.check_conservation();
            }
        }
        for cable in 0..fabric.cables.len() {
            fabric.cables[cable].faults = Faults::default();
            fabric.plug(cable, true);
        }
        fabric.run_for(5_000_000);
        fabric.activate();
        assert!(fabric.settle(SECOND), "seed {seed}");
        let sent = traffic(&mut fabric, 3, 10);
        assert!(fabric.settle(SECOND), "seed {seed}");
        let late = fabric.oracle.by_flow.iter().filter(|(flow, _)| flow.service_level == 3);
        assert_eq!(late.map(|(_, count)| count).sum::<u64>(), sent, "seed {seed}");
        fabric.check_conservation();
        let overruns =
            fabric.linked().iter().map(|port| port.counters.buffer_overruns).sum::<u64>();
        assert_eq!(overruns, 0, "seed {seed}: no end sends beyond its credits");
    }
}

/// Sends a frame that follows no rule, but that mostly has a right CRC.
fn attack(fabric: &mut Fabric, end: End, victims: &[u16]) {
    let random = &mut fabric.random;
    let (kind, bytes) = match random.below(8) {
        0 => (FrameKind::Signal(Signal::Polling), Vec::new()),
        1 | 2 => (FrameKind::Signal(Signal::Ready), Vec::new()),
        3 | 4 => (FrameKind::FlowControl(credits(random)), Vec::new()),
        5 => (FrameKind::Packet, (0..random.below(200)).map(|_| random.next() as u8).collect()),
        _ => (FrameKind::Packet, data(random, victims)),
    };
    fabric.arrive(end, kind, &bytes);
}

fn credits(random: &mut Random) -> [u8; FlowControl::LEN] {
    // Small counts are often believed, large ones seldom.
    let most = [1, 200, 5000][random.below(3) as usize];
    let packet = FlowControl {
        op: FlowControlOp(random.below(3) as u8),
        total_sent: random.below(most) as u16,
        virtual_lane: VirtualLane::new(random.below(16) as u8),
        credit_limit: random.below(most) as u16,
    };
    let mut bytes = [0; FlowControl::LEN];
    packet.emit(&mut bytes);
    bytes
}

fn data(random: &mut Random, victims: &[u16]) -> Vec<u8> {
    let victim = victims[random.below(victims.len() as u64) as usize];
    let destination = [victim, 0, 0xC000, 0xFFFF, 77][random.below(5) as usize];
    let service_level = random.below(16) as u8;
    let lane = [0, 1, 2, 3, 4, 15][random.below(6) as usize];
    // The oracle knows the source 0 for a liar.
    let flow = Flow { source: 0, destination, service_level };
    let mut bytes = packet(flow, lane, random.next(), random.below(4190) as usize);
    bytes.extend([0; vcrc::LEN]);
    vcrc::stamp(&mut bytes);
    bytes
}

#[test]
fn a_node_that_keeps_no_rule_harms_nobody_but_itself() {
    for seed in 0..60 {
        let (mut fabric, hosts, switch) = Fabric::star(seed, 4, CONFIG);
        let victims: Vec<u16> =
            hosts[..3].iter().map(|host| fabric.host(*host).attributes.lid.0).collect();
        // The last port's cable leads to the attacker from now on.
        fabric.plug(3, false);
        let end = fabric.cables[3].ends[1];
        fabric.switch(switch).with(|switch, view| {
            switch.handle_cable(view, end.port, true, vernic_fabric::Time(0));
        });
        fabric.oracle.lossy = true;
        fabric.host(hosts[0]).send(victims[1], 0, 1024, 300);
        fabric.host(hosts[1]).send(victims[2], 1, 4096, 100);
        // Packets to the attacker, who may never take them, must not wait for ever.
        fabric.switch(switch).ports[4].head_of_queue_life = 4;
        let attacker = fabric.host(hosts[3]).attributes.lid.0;
        fabric.host(hosts[2]).send(attacker, 2, 512, 100);
        hosts[..3].iter().for_each(|host| fabric.poll(*host));
        let mut most = 0;
        for step in 0..3_000 {
            attack(&mut fabric, end, &victims);
            let nanos = fabric.random.below(1_000);
            fabric.run_for(nanos);
            most = most.max(fabric.switch(switch).switch.packets());
            if step % 10 == 0 && fabric.attributes(end).state == PortState::Init {
                fabric.set_state(end, PortState::Active);
            }
        }
        // Four ports of five lanes: no more than their buffers hold.
        assert!(most <= 4 * (4 * 100 + 20), "seed {seed}: {most} packets");
        fabric.run_for(SECOND / 100);
        let honest = |source: u16| {
            let flows = fabric.oracle.by_flow.iter().filter(|(flow, _)| flow.source == source);
            flows.map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!((honest(victims[0]), honest(victims[1])), (300, 100), "seed {seed}");
        let counters = fabric.attributes(end).counters;
        assert!(counters.link_downed > 0 && counters.rcv_errors > 0, "seed {seed}");
        for cable in 0..3 {
            for end in fabric.cables[cable].ends {
                let port = fabric.attributes(end);
                assert_eq!((port.state, port.counters.link_downed), (PortState::Active, 0));
            }
        }
    }
}

#[test]
fn a_very_slow_line_still_carries_packets_between_its_credits() {
    // 6 bytes of credits take 60 us, and are due every 20 us for each of four lanes.
    let config =
        LinkConfig { bytes_per_s: NonZeroU64::new(100_000), idle_update_ns: 20_000, ..CONFIG };
    let (mut fabric, hosts, _) = Fabric::star(1, 2, config);
    let lid = fabric.host(hosts[1]).attributes.lid.0;
    fabric.host(hosts[0]).send(lid, 0, 256, 20);
    assert!(fabric.settle(SECOND / 2));
    assert_eq!(fabric.oracle.delivered, 20);
    fabric.check_clean();
}

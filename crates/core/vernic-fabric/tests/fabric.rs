//! Whole fabrics in virtual time, against an oracle.

mod common;

use std::num::NonZeroU64;

use common::cable::Faults;
use common::{Fabric, attributes};
use vernic_fabric::attributes::ArbitrationEntry;
use vernic_fabric::link::LinkConfig;
use vernic_wire::VirtualLane;

/// Buffers of little more than the longest packet, and short times.
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

#[test]
fn eight_hosts_send_to_one_and_nothing_is_lost() {
    let (mut fabric, hosts, switch) = Fabric::star(1, 9, CONFIG);
    let receiver = fabric.host(hosts[8]).attributes.lid.0;
    for host in &hosts[..8] {
        fabric.host(*host).send(receiver, 0, 2048, 100);
    }
    let start = fabric.now;
    assert!(fabric.settle(SECOND));
    assert_eq!(fabric.oracle.delivered, 800);
    fabric.check_conservation();
    fabric.check_clean();
    // The receiver's link, at 4 bytes a nanosecond, is what takes the time.
    let least = 800 * 2074 / 4;
    let took = fabric.now.since(start);
    assert!((least..least * 11 / 10).contains(&took), "{took} ns, at least {least}");
    let waits = hosts[..8].iter().map(|host| fabric.host(*host).attributes.counters.xmit_wait);
    assert!(waits.min() > Some(0), "every sender was held up");
    assert_eq!(fabric.switch(switch).ports[9].counters.xmit_packets, 800);
}

#[test]
fn two_service_levels_share_a_link_by_the_weights_of_their_lanes() {
    for (payload, weights) in [(2048, [1, 3]), (256, [64, 192]), (4096, [10, 30])] {
        // Room for several packets, or a lane would be empty when its turn comes again.
        let config = LinkConfig { lane_blocks: 400, ..CONFIG };
        let (mut fabric, hosts, switch) = Fabric::star(1, 3, config);
        let receiver = fabric.host(hosts[2]).attributes.lid.0;
        let entry = |lane: u8| ArbitrationEntry {
            lane: VirtualLane::new(lane),
            weight: weights[usize::from(lane)],
        };
        fabric.switch(switch).ports[3].tables.low = vec![entry(0), entry(1)];
        for (host, level) in [(hosts[0], 0), (hosts[1], 1)] {
            fabric.host(host).send(receiver, level, payload, 10_000);
            fabric.poll(host);
        }
        fabric.run_for(500_000);
        let counts: Vec<_> = fabric.oracle.by_flow.values().copied().collect();
        let ratio = counts[1] as f64 / counts[0] as f64;
        assert!((2.7..3.3).contains(&ratio), "{payload} bytes: {counts:?}");
    }
}

#[test]
fn a_slow_receiver_holds_up_its_sender_and_nobody_else() {
    let (mut fabric, hosts, _) = Fabric::star(1, 4, CONFIG);
    let lids = [0, 1, 2, 3].map(|at| fabric.host(hosts[at]).attributes.lid.0);
    fabric.host(hosts[1]).takes_every_ns = Some(100_000);
    fabric.host(hosts[0]).send(lids[1], 0, 1024, 50);
    fabric.host(hosts[2]).send(lids[3], 0, 1024, 1000);
    for host in &hosts {
        fabric.poll(*host);
    }
    fabric.run_for(1_000_000);
    let of = |fabric: &Fabric, source: u16| {
        fabric
            .oracle
            .by_flow
            .iter()
            .filter(|(flow, _)| flow.source == source)
            .map(|f| *f.1)
            .sum::<u64>()
    };
    assert_eq!(of(&fabric, lids[2]), 1000, "done long since");
    assert!((9..=11).contains(&of(&fabric, lids[0])));
    assert!(fabric.settle(SECOND));
    assert_eq!(of(&fabric, lids[0]), 50);
    fabric.check_conservation();
    fabric.check_clean();
}

#[test]
fn a_host_may_be_slow_on_a_slow_link() {
    let config = LinkConfig { bytes_per_s: NonZeroU64::new(1_250_000_000), ..CONFIG };
    let (mut fabric, hosts, _) = Fabric::star(1, 2, config);
    let lid = fabric.host(hosts[1]).attributes.lid.0;
    fabric.host(hosts[0]).send(lid, 0, 4096, 100);
    let start = fabric.now;
    assert!(fabric.settle(SECOND));
    // 4,122 bytes at 10 Gb/s are 3,298 ns.
    let least = 100 * 3298;
    let took = fabric.now.since(start);
    assert!((least..least * 12 / 10).contains(&took), "{took} ns, at least {least}");
    fabric.check_clean();
}

#[test]
fn lost_credits_are_told_again() {
    for seed in 0..40 {
        let (mut fabric, hosts, _) = Fabric::star(seed, 4, CONFIG);
        fabric.cables.iter_mut().for_each(|cable| cable.faults.lose_credits = 30);
        let lid = fabric.host(hosts[3]).attributes.lid.0;
        for host in &hosts[..3] {
            fabric.host(*host).send(lid, 0, 4096, 30);
        }
        assert!(fabric.settle(SECOND), "seed {seed}");
        assert_eq!(fabric.oracle.delivered, 90, "seed {seed}");
        fabric.check_conservation();
        fabric.check_clean();
    }
}

#[test]
fn damaged_packets_are_counted_and_their_credits_come_back() {
    for seed in 0..40 {
        let (mut fabric, hosts, _) = Fabric::star(seed, 3, CONFIG);
        let faults = Faults { lose_credits: 10, damage_packets: 10, lose_signals: 0 };
        fabric.cables.iter_mut().for_each(|cable| cable.faults = faults);
        fabric.oracle.lossy = true;
        let lid = fabric.host(hosts[2]).attributes.lid.0;
        for host in &hosts[..2] {
            fabric.host(*host).send(lid, 0, 2048, 300);
        }
        assert!(fabric.settle(SECOND), "seed {seed}");
        let errors: u64 = fabric.linked().iter().map(|port| port.counters.rcv_errors).sum();
        assert!(errors > 30, "seed {seed}: {errors}");
        assert_eq!(fabric.oracle.delivered + errors, 600);
        fabric.check_conservation();
        fabric.check_clean();
    }
}

#[test]
fn a_cut_cable_loses_what_it_carried_and_comes_back() {
    for seed in 0..40 {
        let (mut fabric, hosts, _) = Fabric::star(seed, 4, CONFIG);
        fabric.oracle.lossy = true;
        let lid = fabric.host(hosts[3]).attributes.lid.0;
        for host in &hosts[..3] {
            fabric.host(*host).send(lid, 0, 2048, 200);
            fabric.poll(*host);
        }
        let wait = 10_000 + fabric.random.below(200_000);
        fabric.run_for(wait);
        let cable = fabric.random.below(4) as usize;
        fabric.plug(cable, false);
        fabric.check_conservation();
        fabric.run_for(100_000);
        fabric.plug(cable, true);
        fabric.activate();
        for host in &hosts[..3] {
            fabric.host(*host).send(lid, 1, 2048, 20);
        }
        assert!(fabric.settle(SECOND), "seed {seed}");
        fabric.check_conservation();
        let late = fabric.oracle.by_flow.iter().filter(|(flow, _)| flow.service_level == 1);
        assert_eq!(late.map(|(_, count)| count).sum::<u64>(), 60, "seed {seed}");
        assert!(fabric.linked().iter().all(|port| port.counters.buffer_overruns == 0));
        assert!(fabric.linked().iter().any(|port| port.counters.link_downed == 1));
    }
}

#[test]
fn packets_that_wait_too_long_at_the_head_are_discarded_and_counted() {
    let (mut fabric, hosts, switch) = Fabric::star(1, 3, CONFIG);
    fabric.oracle.lossy = true;
    fabric.host(hosts[2]).takes_every_ns = None;
    // 4.096 us times 2 to the power of 4 are 65.536 us.
    fabric.switch(switch).ports[3].head_of_queue_life = 4;
    let lid = fabric.host(hosts[2]).attributes.lid.0;
    for host in &hosts[..2] {
        fabric.host(*host).send(lid, 0, 2048, 20);
    }
    assert!(!fabric.settle(SECOND / 10));
    let discards = fabric.switch(switch).ports[3].counters.xmit_discards;
    // The receiver's 100 blocks hold three packets of 33.
    assert_eq!((discards, fabric.held()), (37, 3));
    fabric.host(hosts[2]).takes_every_ns = Some(0);
    assert!(fabric.settle(SECOND));
    assert_eq!(fabric.oracle.delivered, 3);
    fabric.check_conservation();
    fabric.check_clean();
}

#[test]
fn a_stalled_lane_discards_at_once_and_others_go_on() {
    let (mut fabric, hosts, switch) = Fabric::star(1, 3, CONFIG);
    fabric.oracle.lossy = true;
    fabric.host(hosts[2]).takes_every_ns = None;
    (
        fabric.switch(switch).ports[3].head_of_queue_life,
        fabric.switch(switch).ports[3].stall_count,
    ) = (4, 2);
    let lid = fabric.host(hosts[2]).attributes.lid.0;
    fabric.host(hosts[0]).send(lid, 0, 2048, 400);
    fabric.poll(hosts[0]);
    // Two lifetimes until the lane stalls, eight until it is tried again.
    fabric.run_for(9 * 65_536);
    assert_eq!(fabric.oracle.sent, 400);
    fabric.check_conservation();
    let discards = fabric.switch(switch).ports[3].counters.xmit_discards;
    assert!(discards > 390, "{discards}");
}

#[test]
fn packets_in_an_endless_ring_die_of_age_and_are_counted() {
    for seed in 0..3 {
        let (mut fabric, hosts) = Fabric::endless_ring(seed, CONFIG);
        for node in 0..3 {
            fabric.switch(node).forwarding.life_time = 3;
        }
        for host in &hosts {
            fabric.host(*host).send(200, 0, 2048, 100);
            fabric.poll(*host);
        }
        fabric.run_for(5_000_000);
        fabric.check_conservation();
        let discards: u64 = fabric.linked().iter().map(|port| port.counters.xmit_discards).sum();
        assert!(discards > 100, "seed {seed}: {discards} of 300");
        assert_eq!(fabric.oracle.sent, 300, "seed {seed}");
        assert!(fabric.linked().iter().all(|port| port.counters.buffer_overruns == 0));
    }
}

#[test]
fn a_group_gets_each_packet_once_and_its_sender_none() {
    for seed in 0..30 {
        let mut fabric = Fabric::random_tree(seed, 4, CONFIG);
        let members: Vec<_> = fabric.hosts().into_iter().step_by(2).collect();
        fabric.join(0xC003, &members);
        let outsider = fabric.hosts()[1 % fabric.hosts().len()];
        for member in &members {
            fabric.host(*member).send(0xC003, 2, 512, 20);
        }
        assert!(fabric.settle(SECOND), "seed {seed}");
        let expected = 20 * (members.len() * (members.len() - 1)) as u64;
        assert_eq!(fabric.oracle.delivered, expected, "seed {seed}");
        assert_eq!(fabric.host(outsider).port.misdirected(), 0);
        fabric.check_clean();
    }
}

#[test]
fn management_is_dropped_only_where_it_is_full_and_counted() {
    for seed in 0..20 {
        let (mut fabric, hosts, switch) = Fabric::star(seed, 5, CONFIG);
        fabric.oracle.lossy = true;
        let lid = fabric.host(hosts[4]).attributes.lid.0;
        for host in &hosts[..4] {
            fabric.host(*host).send(lid, 15, 256, 100);
            fabric.host(*host).send(lid, 0, 2048, 50);
        }
        assert!(fabric.settle(SECOND));
        let dropped: u64 =
            fabric.switch(switch).ports.iter().map(|port| port.counters.management_dropped).sum();
        assert!(dropped > 0, "four hosts to one are more than a lane without credits takes");
        assert_eq!(fabric.oracle.delivered, 600 - dropped);
        let data = fabric.oracle.by_flow.iter().filter(|(flow, _)| flow.service_level == 0);
        assert_eq!(data.map(|(_, count)| count).sum::<u64>(), 200, "data is never dropped");
        fabric.check_conservation();
        fabric.check_clean();
    }
}

#[test]
fn random_fabrics_lose_double_and_reorder_nothing() {
    for seed in 0..200 {
        let mut fabric = Fabric::random_tree(seed, 2 + seed as usize % 5, CONFIG);
        let hosts = fabric.hosts();
        for host in &hosts {
            for _ in 0..3 {
                let to = hosts[fabric.random.below(hosts.len() as u64) as usize];
                let level = fabric.random.below(u64::from(attributes::LANES)) as u8;
                let payload = 8 + fabric.random.below(4088) as usize;
                let lid = fabric.host(to).attributes.lid.0;
                let known = fabric.host(*host).traffic.iter().any(|other| {
                    (other.flow.destination, other.flow.service_level) == (lid, level)
                });
                if !known {
                    fabric.host(*host).send(lid, level, payload, 15);
                }
            }
            if fabric.random.below(4) == 0 {
                fabric.host(*host).takes_every_ns = Some(5_000);
            }
        }
        if seed % 2 == 0 {
            fabric.cables.iter_mut().for_each(|cable| cable.faults.lose_credits = 10);
        }
        assert!(fabric.settle(SECOND), "seed {seed}: {:?}", fabric.oracle);
        assert_eq!(fabric.oracle.sent, fabric.oracle.delivered, "seed {seed}");
        fabric.check_conservation();
        fabric.check_clean();
    }
}

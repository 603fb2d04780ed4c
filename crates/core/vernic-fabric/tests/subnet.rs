//! Whole subnets in virtual time, against an oracle.

mod common;

use common::net::{Net, ONE};
use vernic_fabric::link::LinkConfig;
use vernic_fabric::subnet::{NodeId, SubnetConfig};
use vernic_fabric::topology::Topology;
use vernic_wire::PortNum;

/// Buffers of little more than the longest packet, and short times.
const CONFIG: SubnetConfig = SubnetConfig {
    link: LinkConfig {
        lane_blocks: 100,
        management_blocks: 80,
        submit_blocks: 200,
        bytes_per_s: None,
        paced: true,
        update_ns: 20_000,
        idle_update_ns: 1_000_000_000,
        training_ns: 100_000,
    },
    data_lanes: 4,
    ..SubnetConfig::MODELLED
};

const SECOND: u64 = 1_000_000_000;

/// Lets every host send to some others, on two of the service levels from `level` on.
fn random_traffic(net: &mut Net, level: u8, packets: u64) -> u64 {
    let hosts = net.hosts();
    let mut flows = std::collections::BTreeSet::new();
    for host in &hosts {
        for _ in 0..3 {
            let to = hosts[net.random.below(hosts.len() as u64) as usize];
            let level = level + net.random.below(2) as u8;
            let payload = 8 + net.random.below(4088) as usize;
            if flows.insert((*host, to, level)) {
                net.send(*host, to, level, payload, packets);
            }
        }
    }
    flows.len() as u64 * packets
}

#[test]
fn random_traffic_on_a_fat_tree_loses_doubles_and_reorders_nothing() {
    for seed in 0..20 {
        let plan = Topology::tree("t", 3, 4, 16).unwrap();
        let mut net = Net::new(plan, CONFIG, seed);
        for host in net.hosts() {
            if net.random.below(4) == 0 {
                net.slow.insert(host, 7_000);
            }
        }
        let sent = random_traffic(&mut net, 0, 20);
        assert!(net.settle(SECOND), "seed {seed}: {:?}", net.oracle);
        assert_eq!((net.oracle.sent, net.oracle.delivered), (sent, sent), "seed {seed}");
        net.check_conservation();
        net.check_clean();
    }
}

#[test]
fn cut_cables_lose_what_is_counted_and_new_tables_lead_around_them() {
    let mut lost = 0;
    for seed in 0..20 {
        let plan = Topology::tree("t", 3, 4, 16).unwrap();
        let mut net = Net::new(plan, CONFIG, seed);
        net.oracle.lossy = true;
        random_traffic(&mut net, 0, 40);
        let wait = 10_000 + net.random.below(200_000);
        net.run_for(wait);
        // Port 5 of a leaf leads to the first of three spines.
        let leaf = NodeId(net.named("leaf1") as u32 + net.random.below(4) as u32);
        let port = PortNum(5 + net.random.below(3) as u8);
        net.subnet.set_cable(leaf, port, false, net.now).unwrap();
        net.check_conservation();
        assert!(net.settle(SECOND), "seed {seed}");
        net.check_conservation();
        lost += net.oracle.sent - net.oracle.delivered;
        net.check_clean();
        for is_up in [false, true] {
            net.subnet.set_cable(leaf, port, is_up, net.now).unwrap();
            net.run_for(1_000_000);
            net.manage();
            let before = (net.oracle.sent, net.oracle.delivered);
            let level = if is_up { 4 } else { 2 };
            let sent = random_traffic(&mut net, level, 10);
            assert!(net.settle(SECOND), "seed {seed}");
            let after = (net.oracle.sent - before.0, net.oracle.delivered - before.1);
            assert_eq!(after, (sent, sent), "seed {seed}");
            net.check_clean();
        }
    }
    assert!(lost > 100, "{lost} packets met a cut cable");
}

/// Makes a ring of three switches with a host each, whose tables lead LID 60 round for ever.
fn circle(config: SubnetConfig) -> Net {
    let mut net = Net::new(Topology::ring("t", 3, 3).unwrap(), config, 1);
    net.oracle.lossy = true;
    for switch in net.switches() {
        net.lead(switch, 60, 2);
    }
    // As many as fit into the ring: more would wait for each other for ever.
    net.send_to(net.hosts()[0], 60, 512, 10);
    net
}

#[test]
fn a_packet_in_a_circle_passes_63_switches_and_is_counted() {
    for config in [CONFIG, SubnetConfig::UNPACED] {
        let mut net = circle(config);
        assert!(net.settle(SECOND / 10), "{:?}", net.oracle);
        net.check_conservation();
        net.check_clean();
        let ports = net.switches().into_iter().flat_map(|node| [1, 2, 3].map(|port| (node, port)));
        let counters: Vec<_> = ports
            .map(|(node, port)| net.subnet.port(NodeId(node as u32), PortNum(port)).unwrap())
            .map(|port| (port.counters.xmit_discards, port.counters.rcv_packets))
            .collect();
        let sums = counters.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!(sums, (10, 10 * 64), "each came by 64 switches and left 63");
    }
}

#[test]
fn copies_for_a_group_that_multiply_come_to_an_end() {
    for config in [CONFIG, SubnetConfig::UNPACED] {
        let mut net = Net::new(Topology::tree("t", 3, 3, 3).unwrap(), config, 1);
        for switch in net.switches() {
            // By all ports, so that each switch makes two or three of one. 8 ms in a switch.
            net.lead_group(switch, 0xC000, 0b11110);
            net.set_life_time(switch, 11);
        }
        net.send_to(net.hosts()[0], 0xC000, 512, 3);
        net.run_for(5_000_000);
        let misdirected = |net: &Net, host: usize| {
            net.subnet.port_view(NodeId(host as u32), ONE).unwrap().misdirected
        };
        let copies: Vec<_> = net.hosts().iter().map(|host| misdirected(&net, *host)).collect();
        assert!(copies.iter().all(|copies| *copies > 50), "{copies:?}");
        // Their first ancestors entered the subnet a second before.
        assert!(net.settle(3 * SECOND), "{} packets", net.subnet.packets());
        net.check_clean();
    }
}

#[test]
fn eight_hosts_to_a_slow_link_share_it_by_weight_and_lose_nothing() {
    for weights in [(64, 64), (1, 3), (10, 90)] {
        let plan = Topology::single("t", 9).unwrap();
        // Room for several packets, or a lane would be empty when its turn comes again.
        let link = LinkConfig { lane_blocks: 400, ..CONFIG.link };
        let mut net = Net::new(plan, SubnetConfig { link, ..CONFIG }, 1);
        let (switch, hosts) = (net.named("sw1"), net.hosts());
        net.arbitrate(switch, 9, &[(0, weights.0), (1, weights.1)]);
        // The only link that 10 Gb/s limits is that of the receiver.
        let receiver = NodeId(hosts[8] as u32);
        net.subnet.set_rate(receiver, ONE, "10g".parse().ok()).unwrap();
        for (at, host) in hosts[..8].iter().enumerate() {
            // One host alone has the second lane.
            net.send(*host, hosts[8], u8::from(at == 7), 2048, 2_000);
        }
        net.run_for(2_000_000);
        let shares: Vec<_> = [0, 1].map(|level| net.delivered_at(level)).into();
        let (first, second) = (shares[0] as f64, shares[1] as f64);
        let share = second / (first + second);
        let weight = f64::from(weights.1) / f64::from(weights.0 + weights.1);
        assert!(share >= 0.9 * weight, "{weights:?}: {shares:?}");
        // 2,074 bytes at 10 Gb/s are 1,659 ns.
        assert!(first + second > 0.95 * 2_000_000.0 / 1_659.0, "{shares:?}");
        net.traffic_ends();
        assert!(net.settle(SECOND));
        assert_eq!(net.oracle.sent, net.oracle.delivered, "nothing is dropped");
        net.check_conservation();
        net.check_clean();
    }
}

#[test]
fn eight_hosts_to_a_slow_program_share_it_and_lose_nothing() {
    let plan = Topology::tree("t", 2, 3, 9).unwrap();
    let mut net = Net::new(plan, CONFIG, 1);
    let hosts = net.hosts();
    net.slow.insert(hosts[8], 5_000);
    for (at, host) in hosts[..8].iter().enumerate() {
        net.send(*host, hosts[8], u8::from(at == 0), 2048, 2_000);
    }
    net.run_for(10_000_000);
    let (first, second) = (net.delivered_at(0), net.delivered_at(1));
    assert!(first + second >= 1_900, "{first} {second}");
    assert!(second as f64 >= 0.9 * 0.5 * (first + second) as f64, "{first} {second}");
    net.traffic_ends();
    assert!(net.settle(SECOND));
    assert_eq!(net.oracle.sent, net.oracle.delivered, "nothing is dropped");
    net.check_conservation();
    net.check_clean();
}

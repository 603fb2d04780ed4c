//! Packets per second of a subnet in one process, without modelled rates: through one switch, and
//! at random among the hosts of a fat tree. `cargo run --release -p vernic-fabric --example
//! throughput [HOSTS]`.

#![allow(clippy::print_stdout)] // The figures are what it is for.

use std::time::Instant;

use vernic_fabric::Time;
use vernic_fabric::subnet::{NodeId, Subnet, SubnetConfig};
use vernic_fabric::topology::Topology;
use vernic_wire::PortNum;

#[path = "../tests/common/mod.rs"]
mod common;

use common::net::Net;
use common::oracle::{Flow, packet};

const ONE: PortNum = PortNum(1);

fn bytes(from: usize, to: usize, payload: usize) -> Vec<u8> {
    let flow = Flow { source: Net::lid(from), destination: Net::lid(to), service_level: 0 };
    packet(flow, 0, 0, payload)
}

/// Sends packets in batches from a host to another. Prints how many per second.
fn stream(net: &mut Net, from: usize, to: usize, payload: usize, batch: usize) {
    let packet = bytes(from, to, payload);
    let (source, sink) = (NodeId(from as u32), NodeId(to as u32));
    let (mut out, mut received) = (Vec::new(), 0_u64);
    let start = Instant::now();
    while start.elapsed().as_millis() < 1_000 {
        for _ in 0..batch {
            net.subnet.submit(source, ONE, &packet, net.now).expect("there is room");
        }
        net.subnet.run(net.now);
        while net.subnet.poll_ready().is_some() {}
        while net.subnet.poll_receive(sink, ONE, &mut out) {
            received += 1;
        }
        net.subnet.run(net.now);
    }
    let seconds = start.elapsed().as_secs_f64();
    let (rate, each) = (received as f64 / seconds, seconds / received as f64 * 1e9);
    println!(
        "{payload} bytes in batches of {batch}: {:.3} million/s, {:.2} GB/s, {each:.0} ns each",
        rate / 1e6,
        rate * payload as f64 / 1e9
    );
}

/// Sends packets at random among all hosts.
fn random(net: &mut Net, payload: usize) {
    let hosts = net.hosts();
    let packets: Vec<_> = (0..4096)
        .map(|_| {
            let [from, to] = [(); 2].map(|()| hosts[net.random.below(hosts.len() as u64) as usize]);
            (NodeId(from as u32), bytes(from, to, payload))
        })
        .collect();
    let (mut out, mut received, mut refused) = (Vec::new(), 0_u64, 0_u64);
    let start = Instant::now();
    while start.elapsed().as_millis() < 2_000 {
        for chunk in packets.chunks(256) {
            for (node, packet) in chunk {
                refused += u64::from(net.subnet.submit(*node, ONE, packet, net.now).is_err());
            }
            drain(&mut net.subnet, net.now, &mut out, &mut received);
        }
    }
    let rate = received as f64 / start.elapsed().as_secs_f64();
    println!(
        "{} hosts, {payload} bytes at random: {:.3} million/s, {:.2} GB/s, {refused} refused",
        hosts.len(),
        rate / 1e6,
        rate * payload as f64 / 1e9
    );
}

fn drain(subnet: &mut Subnet, now: Time, out: &mut Vec<u8>, received: &mut u64) {
    subnet.run(now);
    while let Some((node, port)) = subnet.poll_ready() {
        while subnet.poll_receive(node, port, out) {
            *received += 1;
        }
    }
    subnet.run(now);
}

fn main() {
    let config = SubnetConfig::UNPACED;
    let mut net = Net::new(Topology::single("one", 2).expect("a shape"), config, 1);
    let hosts = net.hosts();
    for (payload, batch) in [(4096, 4), (4096, 1), (2048, 8), (256, 8), (8, 8), (8, 1)] {
        stream(&mut net, hosts[0], hosts[1], payload, batch);
    }
    let hosts = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(648);
    let plan = Topology::tree("tree", 18, 36, hosts).expect("a shape");
    let start = Instant::now();
    let mut net = Net::new(plan, config, 1);
    println!("{hosts} hosts, up and managed after {:.2} s", start.elapsed().as_secs_f64());
    for payload in [4096, 64] {
        random(&mut net, payload);
    }
}

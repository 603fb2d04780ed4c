//! Interfaces of hosts of a fabric that runs in this process with its own subnet manager. The
//! kernels of the hosts are sockets in place of TUN devices, so that no rights are needed.

mod common;

use std::time::Instant;

use common::{Fabric, PATIENCE, Running, packet, until_it_comes, v4, v6};
use vernic_ipoibd::Mode;

const HOSTS: usize = 3;

#[test]
fn hosts_of_a_fabric_speak_ip() {
    let fabric = Fabric::start(HOSTS);
    let hosts: Vec<_> =
        (0..HOSTS).map(|index| Running::start(&fabric.name, index, Mode::Datagram)).collect();
    for address in [v4, v6] {
        // The first packet finds everything out; the longest one fits.
        for len in [8, 2044 - 40] {
            let sent = packet(address(0), address(1), &vec![7; len]);
            until_it_comes(&hosts[0], &hosts[1], &sent);
            let back = packet(address(1), address(0), &vec![8; len]);
            until_it_comes(&hosts[1], &hosts[0], &back);
        }
    }
    // To all of the link, and to all but the sender.
    while hosts[2].receive().is_some() {}
    let all = packet(v4(0), "224.0.0.1".parse().unwrap(), b"all systems");
    until_it_comes(&hosts[0], &hosts[2], &all);
    until_it_comes(&hosts[0], &hosts[1], &all);
    while let Some(came) = hosts[0].receive() {
        assert_ne!(came, all, "the sender hears itself");
    }
    // What nobody has, and what is too long, comes back as ICMP.
    hosts[0].packets.send(&packet(v4(0), v4(77), b"nobody")).unwrap();
    hosts[0].packets.send(&packet(v4(0), v4(1), &[0; 3000])).unwrap();
    let start = Instant::now();
    let mut said = Vec::new();
    while said.len() < 2 && start.elapsed() < PATIENCE {
        said.extend(hosts[0].receive().map(|came| [came[9], came[20], came[21]]));
    }
    assert_eq!(said, [[1, 3, 4], [1, 3, 1]], "ICMP: too long, then unreachable");
}

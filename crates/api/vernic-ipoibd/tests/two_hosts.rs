//! Interfaces of hosts of a fabric that runs in this process with its own subnet manager. The
//! kernels of the hosts are sockets in place of TUN devices, so that no rights are needed.

mod common;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{Fabric, PATIENCE};
use vernic_ipoibd::{Address, Host, Options, Owner};
use vernic_wire::net::{Ipv4, Ipv6};

const HOSTS: usize = 3;

/// The kernel of a host, as its interface sees it.
struct Kernel {
    packets: UnixDatagram,
    addresses: Vec<Address>,
}

impl Host for Kernel {
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.packets.recv(buf)
    }
    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.packets.send(packet).map(drop)
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packets.as_fd()
    }
    fn addresses(&self) -> io::Result<Vec<Address>> {
        Ok(self.addresses.clone())
    }
    fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        assert_eq!(mtu, 2044);
        Ok(())
    }
}

/// A host whose interface runs in a thread of its own. `packets` is the kernel's end.
struct Running {
    packets: UnixDatagram,
    stop: UnixDatagram,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(fabric: &str, index: usize) -> Self {
        let (ours, packets) = UnixDatagram::pair().unwrap();
        let (stop, stopped) = UnixDatagram::pair().unwrap();
        packets.set_nonblocking(true).unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let addresses = vec![
            Address { ip: v4(index), prefix_len: 24 },
            Address { ip: v6(index), prefix_len: 64 },
        ];
        let options = Options::new(fabric, &format!("h{}", index + 1));
        let thread = thread::spawn(move || {
            let mut owner = Owner::new(options, Kernel { packets, addresses }).unwrap();
            owner
                .run(stopped.as_fd(), |summary| {
                    let is_fine = summary.mtu.is_none() || summary.troubles.is_empty();
                    assert!(is_fine, "host {index}: {:?}", summary.troubles);
                })
                .unwrap();
        });
        Self { packets: ours, stop, thread: Some(thread) }
    }
    /// What comes next, if something does in a moment.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 65_535];
        let len = self.packets.recv(&mut packet).ok()?;
        packet.truncate(len);
        Some(packet)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let told = self.stop.send(&[1]);
        let ended = self.thread.take().unwrap().join();
        let is_fine = told.is_ok() && ended.is_ok();
        assert!(is_fine || thread::panicking(), "the interface has failed");
    }
}

fn v4(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, index as u8 + 1])
}
fn v6(index: usize) -> IpAddr {
    format!("fd00::{:x}", index + 1).parse().unwrap()
}

/// A packet of a protocol for experiments.
fn packet(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut bytes = vec![0; Ipv4::LEN];
            let mut ip = Ipv4 {
                tos: 0,
                total_length: (Ipv4::LEN + payload.len()) as u16,
                ident: 0,
                flags_and_offset: Ipv4::DF,
                ttl: 64,
                protocol: 253,
                checksum: 0,
                src,
                dst,
            };
            ip.checksum = ip.computed_checksum();
            ip.emit(&mut bytes);
            bytes
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut bytes = vec![0; Ipv6::LEN];
            let ip = Ipv6 {
                traffic_class: 0,
                flow_label: 0,
                payload_length: payload.len() as u16,
                next_header: 253,
                hop_limit: 64,
                src,
                dst,
            };
            ip.emit(&mut bytes);
            bytes
        }
        _ => panic!("two versions"),
    };
    bytes.extend_from_slice(payload);
    bytes
}

/// Sends a packet again and again until it has come: the first ones are too early.
fn until_it_comes(from: &Running, to: &Running, sent: &[u8]) {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        from.packets.send(sent).unwrap();
        if to.receive().is_some_and(|came| came == sent) {
            return;
        }
    }
    panic!("nothing came in {PATIENCE:?}");
}

#[test]
fn hosts_of_a_fabric_speak_ip() {
    let fabric = Fabric::start(HOSTS);
    let hosts: Vec<_> = (0..HOSTS).map(|index| Running::start(&fabric.name, index)).collect();
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

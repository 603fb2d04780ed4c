//! A fabric with its own subnet manager, in a thread of the test, and hosts whose kernels are
//! sockets.

// Each test of the crate uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vernic_attach::ControlClient;
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, Request};
use vernic_fabricd::{FabricError, Server};
use vernic_ipoib::Counters;
use vernic_ipoibd::{Address, Host, Mode, Options, Owner};
use vernic_wire::net::{Ipv4, Ipv6};

/// Far longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Fabric {
    pub name: String,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Fabric {
    pub fn start(hosts: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ipoib-{}-{count}", std::process::id());
        let manager = Some(vernic_fabricd::ManagerOptions::new(Routing::default()));
        let options = vernic_fabricd::Options { manager, ..vernic_fabricd::Options::new(&name) };
        let plan = Topology::single(&name, hosts).expect("a plan");
        let mut server = Server::new(plan, options).expect("the fabric starts");
        Self { name, thread: Some(thread::spawn(move || server.run(|_| {}))) }
    }
    pub fn ask(&self, request: &Request) -> Answer {
        let text = serde_json::to_string(request).unwrap();
        let answer = ControlClient::connect(&self.name).unwrap().ask(&text).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.ask(&Request::Stop);
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

/// The kernel of a host, as its interface sees it.
struct Kernel {
    packets: UnixDatagram,
    addresses: Vec<Address>,
    mtu: u32,
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
        assert_eq!(mtu, self.mtu);
        Ok(())
    }
}

/// A host whose interface runs in a thread of its own. `packets` is the kernel's end.
pub struct Running {
    pub packets: UnixDatagram,
    pub counters: Arc<Mutex<Option<Counters>>>,
    stop: UnixDatagram,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(fabric: &str, index: usize, mode: Mode) -> Self {
        let (ours, packets) = UnixDatagram::pair().unwrap();
        let (stop, stopped) = UnixDatagram::pair().unwrap();
        packets.set_nonblocking(true).unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let addresses = vec![
            Address { ip: v4(index), prefix_len: 24 },
            Address { ip: v6(index), prefix_len: 64 },
        ];
        let options = Options { mode, ..Options::new(fabric, &format!("h{}", index + 1)) };
        let mtu = if mode == Mode::Connected { 65_520 } else { 2044 };
        let counters = Arc::new(Mutex::new(None));
        let told = counters.clone();
        let thread = thread::spawn(move || {
            let mut owner = Owner::new(options, Kernel { packets, addresses, mtu }).unwrap();
            owner
                .run(stopped.as_fd(), |summary| {
                    *told.lock().unwrap() = Some(summary.counters);
                    let is_fine = summary.mtu.is_none() || summary.troubles.is_empty();
                    assert!(is_fine, "host {index}: {:?}", summary.troubles);
                })
                .unwrap();
        });
        Self { packets: ours, counters, stop, thread: Some(thread) }
    }
    /// What comes next, if something does in a moment.
    pub fn receive(&self) -> Option<Vec<u8>> {
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

pub fn v4(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, index as u8 + 1])
}
pub fn v6(index: usize) -> IpAddr {
    format!("fd00::{:x}", index + 1).parse().unwrap()
}

/// A packet of a protocol for experiments.
pub fn packet(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
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
pub fn until_it_comes(from: &Running, to: &Running, sent: &[u8]) {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        from.packets.send(sent).unwrap();
        if to.receive().is_some_and(|came| came == sent) {
            return;
        }
    }
    let counters = [from, to].map(|host| *host.counters.lock().unwrap());
    panic!("nothing came in {PATIENCE:?}: {counters:#?}");
}

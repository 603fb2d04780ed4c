//! Datagrams between hosts of an InfiniBand fabric. The network of the system, which carries the
//! lookups, is `lo`.

mod common;

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{alone, content, int, recv_from, send_to};
use vernic_attach::{ControlClient, MadClient};
use vernic_cm::{Config, EventKind, Manager, PortSpace, QpType, UDP_QKEY};
use vernic_engine::{Dest, Payload, QpCap, QpInit, Qpn, SendFlags, SendOp, SendWr, Service};
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::Request;
use vernic_fabricd::{FabricError, ManagerOptions, Options, Server};
use vernic_ipoibd::{Address, Owner};
use vernic_rsocket::wire::{DatagramHeader, LookupHeader, LookupOp};
use vernic_rsocket::{
    Family, MsgFlags, RDMA_DROPPED, Runtime, SOL_RDMA, Settings, Socket, SocketKind,
};

/// Far longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fabric with its own subnet manager, and hosts with an address each.
struct Fabric {
    name: String,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
    interfaces: Vec<(UnixDatagram, JoinHandle<()>)>,
}

/// The address of a host, which `lo` has as well.
fn address(host: u8) -> IpAddr {
    IpAddr::from([127, 77, 0, host])
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not happen in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

impl Fabric {
    fn start(hosts: u8) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rsocket-{}-{count}", std::process::id());
        let manager = Some(ManagerOptions::new(Routing::default()));
        let plan = Topology::single(&name, hosts.into()).unwrap();
        let mut server = Server::new(plan, Options { manager, ..Options::new(&name) }).unwrap();
        let thread = Some(thread::spawn(move || server.run(|_| {})));
        let interfaces = (1..=hosts).map(|host| Self::interface(&name, host)).collect();
        let fabric = Self { name, thread, interfaces };
        let client = MadClient::connect(&fabric.name).unwrap();
        for host in 1..=hosts {
            let guid = client.adapter(&format!("h{host}")).unwrap().guid;
            eventually("an interface comes up", || {
                let found = vernic_attach::interfaces(&fabric.name, guid).unwrap();
                found.iter().any(|interface| interface.mtu.is_some())
            });
        }
        fabric
    }

    fn interface(fabric: &str, host: u8) -> (UnixDatagram, JoinHandle<()>) {
        let (stop, stopped) = UnixDatagram::pair().unwrap();
        let options = vernic_ipoibd::Options::new(fabric, &format!("h{host}"));
        let thread = thread::spawn(move || {
            let address = Address { ip: address(host), prefix_len: 24 };
            let mut owner = Owner::without_device(options, &[address]).unwrap();
            owner.run(stopped.as_fd(), |_| {}).unwrap();
        });
        (stop, thread)
    }

    /// What programs of a host have.
    fn manager(&self, host: u8) -> Arc<Manager> {
        let (fabric, host) = (self.name.clone(), format!("h{host}"));
        Manager::new(Config { fabric, host, ..Config::default() })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for (stop, thread) in self.interfaces.drain(..) {
            let _ = stop.send(&[1]);
            let _ = thread.join();
        }
        let text = serde_json::to_string(&Request::Stop).unwrap();
        let _ = ControlClient::connect(&self.name).unwrap().ask(&text);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn bound(runtime: &Runtime, host: u8) -> Socket {
    let socket = runtime.socket(Family::V4, SocketKind::Datagram).unwrap();
    socket.bind(SocketAddr::new(address(host), 0)).unwrap();
    socket
}

/// Packets that the device of a manager has sent.
fn packets(manager: &Manager) -> u64 {
    let name = &manager.devices().unwrap()[0].name;
    manager.context(name).unwrap().counters().link.tx_packets
}

#[test]
fn datagrams_go_by_the_path_once_it_is_found_and_by_udp_before() {
    let _alone = alone();
    let fabric = Fabric::start(2);
    let managers = [fabric.manager(1), fabric.manager(2)];
    let [one, two] = [0, 1].map(|n| Runtime::new(&managers[n], Settings::default()).unwrap());
    let (a, b) = (bound(&one, 1), bound(&two, 2));
    let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let turn = |len: usize| {
        let bytes = content(len as u64, len);
        send_to(&a, &bytes, at_b);
        assert_eq!(recv_from(&b), (bytes.clone(), at_a));
        send_to(&b, &bytes, at_a);
        assert_eq!(recv_from(&a), (bytes, at_b));
    };
    for manager in &managers {
        let before = packets(manager);
        eventually("a datagram takes the path", || {
            turn(9);
            packets(manager) > before
        });
    }
    let before = packets(&managers[0]);
    for len in [0, 1, 100, 2000, 1, 300] {
        turn(len);
    }
    assert_eq!(packets(&managers[0]) - before, 6, "all of them take it");
}

#[test]
fn the_senders_port_tells_whether_a_datagram_is_from_where_it_says() {
    let _alone = alone();
    let fabric = Fabric::start(3);
    let managers = [fabric.manager(1), fabric.manager(2)];
    let [one, two] = [0, 1].map(|n| Runtime::new(&managers[n], Settings::default()).unwrap());
    let (a, b) = (bound(&one, 1), bound(&two, 2));
    let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let before = packets(&managers[0]);
    eventually("a knows the path to b", || {
        send_to(&a, b"hello", at_b);
        assert_eq!(recv_from(&b), (b"hello".to_vec(), at_a));
        packets(&managers[0]) > before
    });
    let stranger = Stranger::new(&fabric, 3);
    let qpn = stranger.qpn_of(at_b);
    assert_eq!(recv_from(&b).0, b"");
    let dropped = || int(&b, SOL_RDMA, RDMA_DROPPED);
    let own = SocketAddr::new(address(3), 77);
    // The truth, although no lookup came from there: the path tells.
    stranger.send(at_b, qpn, own, b"truth");
    assert_eq!(recv_from(&b), (b"truth".to_vec(), own));
    assert_eq!(dropped(), 0);
    // The address of a socket, and another one of its host: the port is not that host's. An
    // address that nobody has.
    let lies = [at_a, SocketAddr::new(address(1), 77), SocketAddr::new(address(99), 77)];
    b.set_nonblocking(true);
    for (count, source) in (1..).zip(lies) {
        stranger.send(at_b, qpn, source, b"lie");
        eventually("a lie is dropped", || {
            let nothing = b.recv(&mut [IoSliceMut::new(&mut [0; 9])], MsgFlags::NONE);
            assert_eq!(common::errno(nothing), libc::EAGAIN);
            dropped() == count
        });
    }
    b.set_nonblocking(false);
    send_to(&a, b"friend", at_b);
    assert_eq!(recv_from(&b), (b"friend".to_vec(), at_a));
}

/// A queue pair for datagrams that is no socket's.
struct Stranger {
    manager: Arc<Manager>,
    home: SocketAddr,
}

impl Stranger {
    fn new(fabric: &Fabric, host: u8) -> Self {
        Self { manager: fabric.manager(host), home: SocketAddr::new(address(host), 0) }
    }

    /// The queue pair behind a socket.
    fn qpn_of(&self, at: SocketAddr) -> Qpn {
        let udp = UdpSocket::bind(self.home).unwrap();
        let (op, address) = (LookupOp::DATA, self.home.ip());
        let header = LookupHeader { op, qpn: Qpn::new(2), address };
        let mut bytes = [0; LookupHeader::MAX_LEN];
        header.emit(&mut bytes);
        udp.send_to(&bytes[..header.len()], at).unwrap();
        let count = udp.recv(&mut bytes).unwrap();
        LookupHeader::parse(&bytes[..count]).unwrap().qpn
    }

    /// Sends a datagram to a queue pair at an address, which names `source` as its sender.
    fn send(&self, at: SocketAddr, qpn: Qpn, source: SocketAddr, bytes: &[u8]) {
        let id = self.manager.create_id(None, PortSpace::UDP, QpType::Ud).unwrap();
        let channel = id.channel().unwrap();
        id.resolve_addr(Some(self.home), at, PATIENCE).unwrap();
        assert_eq!(channel.wait().unwrap().kind, EventKind::AddrResolved);
        id.resolve_route(PATIENCE).unwrap();
        assert_eq!(channel.wait().unwrap().kind, EventKind::RouteResolved);
        let context = id.context().unwrap();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(16, None).unwrap());
        let cap = QpCap { max_send_wr: 16, max_inline: 64, ..QpCap::default() };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let service = Service::Ud;
        let init = QpInit {
            service,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            signal_all: true,
            congestion: None,
        };
        let qp = pd.create_qp(init).unwrap();
        id.attach_qp(qp.clone()).unwrap();
        let mut datagram = [0; 64];
        let header = DatagramHeader { source };
        header.emit(&mut datagram);
        let end = header.len() + bytes.len();
        datagram[header.len()..end].copy_from_slice(bytes);
        let ah = pd.create_ah(id.address_vector().unwrap()).unwrap();
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::InlineBytes(&datagram[..end]),
            dest: Some(Dest { ah: &ah, qpn, qkey: UDP_QKEY }),
            srqn: None,
        };
        qp.post_send(&[wr]).unwrap();
        eventually("it is sent", || {
            let mut wcs = [vernic_engine::EMPTY_WC; 1];
            cq.poll(&mut wcs).unwrap() == 1
        });
    }
}

//! A link of another kind: packets through channels, addressed by LID, on virtual lanes with
//! credits. It is made of what `vernic-io` and `vernic-engine` offer to everybody.
//!
//! It is short rather than fast: it allocates and locks for each packet. It has no descriptor to
//! sleep on, so the tests make progress at both ends themselves.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use vernic_engine::{
    Config, Context, DeviceInfo, Gid, Lid, LinkCounters, LinkError, LinkPort, LocalAddr, Mtu,
    OpenError, PortInfo,
};
use vernic_io::link::Departure;
use vernic_io::{
    Address, Door, Icrc, Link, LinkFactory, LinkLimits, LinkSetup, Nanos, NoPath, OpenPath, PathId,
    PathRequest, Paths, PortWatch, RxBatch, RxMeta, RxPacket, SendReport, TxBatch, TxPath,
};

/// Virtual lanes of each link.
pub const LANES: u8 = 4;

struct Frame {
    from: u16,
    to: u16,
    bytes: Vec<u8>,
}

/// What all links are plugged into: it brings frames to the LID in their head, and knows the LID of
/// each GID, as a subnet manager does.
#[derive(Default)]
pub struct Fabric {
    ports: Mutex<HashMap<u16, Sender<Frame>>>,
    lids: Mutex<HashMap<Gid, u16>>,
    /// Runs that a lane of any link may still send.
    credits: [AtomicUsize; LANES as usize],
    /// Frames sent, by the LID in their head that they are from.
    sent: Mutex<HashMap<u16, usize>>,
    /// LIDs whose cable is cut.
    cut: Mutex<Vec<u16>>,
    /// What the links know of their ports, if they know anything.
    known: Mutex<Option<Vec<LinkPort>>>,
}

impl Fabric {
    pub fn new() -> Arc<Self> {
        let this = Self::default();
        this.credits.iter().for_each(|credits| credits.store(usize::MAX / 2, Ordering::SeqCst));
        Arc::new(this)
    }

    pub fn set_credits(&self, lane: u8, runs: usize) {
        self.credits[usize::from(lane)].store(runs, Ordering::SeqCst);
    }

    /// A device with a port for each of these LIDs.
    pub fn device(self: &Arc<Self>, lids: &[u16], config: Config) -> Arc<Context> {
        self.try_device(lids, lids, config).unwrap()
    }

    /// Opens a device whose information has the addresses of `shown`, over a link that has the LIDs
    /// `lids`.
    pub fn try_device(
        self: &Arc<Self>,
        shown: &[u16],
        lids: &[u16],
        config: Config,
    ) -> Result<Arc<Context>, OpenError> {
        let factory = ToyFactory { fabric: self.clone(), lids: lids.into() };
        Context::open_over(info(shown), &factory, config)
    }

    /// Returns the number of frames that a port has sent.
    pub fn sent(&self, lid: u16) -> usize {
        self.sent.lock().unwrap().get(&lid).copied().unwrap_or(0)
    }

    /// Cuts the cable of a port, or mends it: its frames are lost without a sign.
    pub fn set_cut(&self, lid: u16, is_cut: bool) {
        let mut cut = self.cut.lock().unwrap();
        cut.retain(|&other| other != lid);
        cut.extend(is_cut.then_some(lid));
    }

    /// Lets links that are opened from now on know this of their ports.
    pub fn set_known(&self, ports: Vec<LinkPort>) {
        *self.known.lock().unwrap() = Some(ports);
    }

    fn plug(&self, lids: &[u16]) -> Receiver<Frame> {
        let (sender, inbox) = channel();
        for &lid in lids {
            self.ports.lock().unwrap().insert(lid, sender.clone());
            self.lids.lock().unwrap().insert(Gid::from_ip(ip(lid)), lid);
        }
        inbox
    }
}

fn ip(lid: u16) -> IpAddr {
    let [high, low] = lid.to_be_bytes();
    IpAddr::from([198, 18, high, low])
}

fn info(lids: &[u16]) -> DeviceInfo {
    let number = u32::from(lids[0]);
    let port = |lid: u16| PortInfo {
        netdev: format!("toy{lid}"),
        netdev_index: 0,
        netdev_mtu_bytes: 4200,
        active_mtu: Some(Mtu::B4096),
        up: true,
        addresses: vec![LocalAddr::from(ip(lid))],
        link: None,
        has_roce_v1: false,
    };
    DeviceInfo {
        name: format!("toy{number}"),
        number,
        node_guid: 0x0200_0000_0000_0000 | u64::from(number),
        loopback: false,
        default_route: false,
        port: port(lids[0]),
        more_ports: lids[1..].iter().map(|&lid| port(lid)).collect(),
        transport: vernic_engine::Transport::Roce,
    }
}

struct ToyFactory {
    fabric: Arc<Fabric>,
    /// The LID of each port.
    lids: Arc<[u16]>,
}

impl LinkFactory for ToyFactory {
    fn open(&self, _setup: &LinkSetup) -> io::Result<Box<dyn Link>> {
        let (fabric, lids) = (self.fabric.clone(), self.lids.clone());
        let inbox = fabric.plug(&lids);
        Ok(Box::new(ToyLink { fabric, lids, inbox, counters: LinkCounters::default() }))
    }
}

struct ToyLink {
    fabric: Arc<Fabric>,
    lids: Arc<[u16]>,
    inbox: Receiver<Frame>,
    counters: LinkCounters,
}

/// Ports that do not change: the socket is never readable.
struct ToyPorts(Vec<LinkPort>, UnixDatagram);

impl PortWatch for ToyPorts {
    fn raw_fd(&self) -> RawFd {
        self.1.as_raw_fd()
    }
    fn take(&self) -> Option<Vec<LinkPort>> {
        Some(self.0.clone())
    }
}

struct ToyPaths {
    fabric: Arc<Fabric>,
    lids: Arc<[u16]>,
}

/// The number of a path: the LIDs that its frames are from and to.
fn path_id(from: u16, to: u16) -> PathId {
    PathId(u32::from(from) << 16 | u32::from(to))
}

impl Paths for ToyPaths {
    fn open_path(&self, to: &PathRequest) -> Result<OpenPath, NoPath> {
        let own = self.lids[usize::from(to.port.value()) - 1];
        let lid = *self.fabric.lids.lock().unwrap().get(&to.remote).ok_or(NoPath::UnknownGid)?;
        let path = TxPath::new(to.local, to.remote, path_id(own, lid), 0);
        Ok(OpenPath {
            path: path.with_lane(to.service_level % LANES),
            remote: Address::Lid(lid),
            local: Address::Lid(own),
        })
    }
}

impl Link for ToyLink {
    fn limits(&self) -> LinkLimits {
        LinkLimits { lanes: LANES, ..LinkLimits::default() }
    }

    fn stamp(&mut self, _batch: &mut TxBatch) {}

    fn send(&mut self, _now: Nanos, batch: &mut TxBatch) -> SendReport {
        let mut report = SendReport::default();
        while let Some(run) = batch.first_run() {
            let credits = &self.fabric.credits[usize::from(run.path.lane())];
            let take = |credits: usize| credits.checked_sub(1);
            if credits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                report.blocked = true;
                self.counters.tx_blocked += 1;
                break;
            }
            let [from, to] = [16, 0].map(|shift| (run.path.id().0 >> shift) as u16);
            let is_cut = self.fabric.cut.lock().unwrap().iter().any(|lid| [from, to].contains(lid));
            if let Some(port) = self.fabric.ports.lock().unwrap().get(&to).filter(|_| !is_cut) {
                for bytes in run.packets() {
                    let _ = port.send(Frame { from, to, bytes: bytes.to_vec() });
                }
                *self.fabric.sent.lock().unwrap().entry(from).or_default() += run.count();
            }
            report.packets += run.count();
            report.bytes += run.bytes.len();
            batch.retire(1);
        }
        self.counters.tx_packets += report.packets as u64;
        report
    }

    fn recv(&mut self, _now: Nanos, batch: &mut RxBatch) -> usize {
        batch.clear();
        while batch.free() != 0 {
            let Ok(frame) = self.inbox.try_recv() else { break };
            let len = frame.bytes.len();
            batch.spare()[..len].copy_from_slice(&frame.bytes);
            let meta = RxMeta {
                src: Address::Lid(frame.from),
                dst: Address::Lid(frame.to),
                flow: 0,
                door: Door::Shared,
                netdev: 0,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
                route: vernic_wire::LocalRoute::NONE,
                icrc: Icrc::Good,
                handed_over: false,
            };
            batch.commit(len, len, meta);
        }
        self.counters.rx_packets += batch.len() as u64;
        batch.len()
    }

    fn verify(&mut self, packet: &RxPacket<'_>) -> Icrc {
        packet.meta.icrc
    }

    fn poll_fds(&self) -> &[RawFd] {
        &[]
    }

    fn poll_generation(&self) -> u64 {
        0
    }

    fn paths(&self) -> Arc<dyn Paths> {
        Arc::new(ToyPaths { fabric: self.fabric.clone(), lids: self.lids.clone() })
    }

    fn activate(&mut self, addr: LocalAddr) -> Result<(), LinkError> {
        let is_own = self.lids.iter().any(|&lid| ip(lid) == addr.ip);
        if is_own { Ok(()) } else { Err(LinkError::NoSuchAddress { addr }) }
    }

    fn deactivate(&mut self, _local: LocalAddr) {}

    fn join(&mut self, local: LocalAddr, _group: IpAddr, _lid: Lid) -> Result<(), LinkError> {
        Err(LinkError::NotActive { addr: local })
    }

    fn leave(&mut self, _local: LocalAddr, _group: IpAddr, _lid: Lid) {}

    fn port_watch(&self) -> Option<Arc<dyn PortWatch>> {
        let ports = self.fabric.known.lock().unwrap().clone()?;
        Some(Arc::new(ToyPorts(ports, UnixDatagram::unbound().unwrap())))
    }

    fn departure(&mut self, _path: &TxPath) -> Option<Departure> {
        None
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

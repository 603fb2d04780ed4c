//! A fabric in a thread of the test, and a subnet manager that is just enough to bring up one
//! switch.

// Each test of the crate uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vernic_attach::hello::Purpose;
use vernic_attach::{
    AdapterReport, Connection, ControlClient, DataClient, DataEvent, MAX_MESSAGE, MadClient,
    MadPort, PacketBatch, Registration, UserMad,
};
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, Request, State};
use vernic_fabricd::{FabricError, Options, Server};
use vernic_wire::mad::{MAD_LEN, MadAddress, Method, MgmtClass};
use vernic_wire::smp::{PortInfo, SmAttribute, Smp, SwitchInfo};
use vernic_wire::{
    Bth, Deth, Lid, LinkPacket, Lrh, Opcode, Pkey, PortNum, Psn, Qkey, Qpn, VirtualLane, icrc,
    link_packet, vcrc,
};

/// Far longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const ONE: PortNum = PortNum(1);

/// A fabric that runs.
pub struct Fabric {
    pub name: String,
    pub folder: PathBuf,
    pub socket: PathBuf,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Fabric {
    /// Starts a fabric in a folder of its own.
    pub fn start(plan: Topology) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("vernic-fabricd-{pid}-{count}"));
        Self::start_in(folder, "lab", plan)
    }
    pub fn start_in(folder: PathBuf, name: &str, plan: Topology) -> Self {
        Self::start_with(plan, Options { folder, ..Options::new(name) })
    }
    pub fn start_with(plan: Topology, options: Options) -> Self {
        let (name, folder) = (options.name.clone(), options.folder.clone());
        let mut server = Server::new(plan, options).expect("the fabric starts");
        let socket = server.path().to_owned();
        let thread = thread::spawn(move || server.run(|_| {}));
        Self { name, folder, socket, thread: Some(thread) }
    }
    pub fn connect(&self, purpose: Purpose) -> Connection {
        Connection::connect_path(&self.name, &self.socket, purpose).unwrap()
    }
    pub fn attach(&self, host: &str) -> (DataClient, AdapterReport) {
        DataClient::attach_over(self.connect(Purpose::Data), host, None).unwrap()
    }
    pub fn open(&self, host: &str) -> MadPort {
        MadClient::over(self.connect(Purpose::Mad)).open(host, ONE, true).unwrap()
    }
    pub fn ask(&self, request: &Request) -> Answer {
        let client = ControlClient::over(self.connect(Purpose::Control));
        let answer = client.ask(&serde_json::to_string(request).unwrap()).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
    pub fn state(&self) -> State {
        match self.ask(&Request::Show) {
            Answer::State(state) => *state,
            other => panic!("{other:?}"),
        }
    }
    /// Returns how many programs a host has.
    pub fn programs(&self, host: &str) -> usize {
        let state = self.state();
        state.nodes.iter().find(|node| node.name == host).unwrap().programs.len()
    }
    /// Ends the fabric in order.
    pub fn stop(mut self) {
        assert_eq!(self.ask(&Request::Stop), Answer::Done);
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert!(!self.socket.exists());
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Looks until there is something, for a minute at most.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what} did not happen in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A subnet manager on h1 of a single switch.
pub struct Manager {
    port: MadPort,
    agent: vernic_attach::AgentId,
    tid: u64,
}

impl Manager {
    /// Gives LID 1 to h1, LID 2 to h2 and so on, LID 100 to the switch, and brings all links up.
    pub fn bring_up(fabric: &Fabric, hosts: u8) -> Self {
        let port = fabric.open("h1");
        let registration = Registration {
            class: MgmtClass::SUBNET_DIRECTED_ROUTE,
            class_version: 1,
            ..Registration::default()
        };
        let agent = port.register(&registration).unwrap();
        let mut manager = Self { port, agent, tid: 1 };
        let lids = |lid| move |info: &mut PortInfo| (info.lid, info.sm_lid) = (Lid(lid), Lid(1));
        manager.eventually_init(&[]);
        manager.set_port(&[], 0, lids(1));
        manager.set_port(&[1], 0, lids(100));
        for host in 2..=hosts {
            manager.eventually_init(&[1, host]);
            manager.set_port(&[1, host], 0, lids(host.into()));
        }
        let mut table = Smp::by_route(&[1], SmAttribute::LINEAR_FORWARDING, 0);
        table.data.fill(255);
        (1..=hosts).for_each(|host| table.data[usize::from(host)] = host);
        manager.set(table);
        let mut switch = Smp::by_route(&[1], SmAttribute::SWITCH_INFO, 0);
        let mut info = SwitchInfo::parse(&manager.ask(&switch).unwrap().data).unwrap();
        info.linear_top = Lid(100);
        info.emit(&mut switch.data);
        manager.set(switch);
        for state in [3, 4] {
            for host in 1..=hosts {
                manager.set_port(&[1], host.into(), |info| info.state = state);
                let path: &[u8] = if host == 1 { &[] } else { &[1, host] };
                manager.set_port(path, 0, |info| info.state = state);
            }
        }
        manager
    }
    fn eventually_init(&mut self, path: &[u8]) {
        eventually("the link comes up", || {
            let answer = self.ask(&Smp::by_route(path, SmAttribute::PORT_INFO, 0))?;
            (PortInfo::from_bytes(&answer.data).state >= 2).then_some(())
        });
    }
    /// Sends a datagram, and returns what comes back: the answer, or nothing when the time is over.
    pub fn ask(&mut self, smp: &Smp) -> Option<Smp> {
        let mut smp = *smp;
        self.tid += 1;
        smp.header.transaction_id = self.tid;
        let mut mad = vec![0; MAD_LEN];
        smp.emit(&mut mad);
        let address = MadAddress { lid: Lid::PERMISSIVE, ..MadAddress::default() };
        let (timeout_ms, retries) = (1000, 0);
        let mad = UserMad { agent: self.agent, timeout_ms, retries, address, mad, status: 0 };
        self.port.send(&mad).unwrap();
        let answer = receive(&mut self.port);
        assert_eq!(answer.agent, self.agent);
        (answer.status == 0).then(|| Smp::parse(&answer.mad).unwrap())
    }
    pub fn set(&mut self, mut smp: Smp) {
        smp.header.method = Method::SET;
        let answer = self.ask(&smp).expect("an answer");
        assert_eq!(answer.status().0 & 0x7FFF, 0, "{:?}", smp.header);
    }
    /// Writes a port of the node at the end of a directed route.
    pub fn set_port(&mut self, path: &[u8], port: u32, change: impl FnOnce(&mut PortInfo)) {
        let mut smp = Smp::by_route(path, SmAttribute::PORT_INFO, port);
        let mut info = PortInfo::from_bytes(&self.ask(&smp).expect("an answer").data);
        (info.state, info.physical_state) = (0, 0);
        change(&mut info);
        info.emit(&mut smp.data);
        self.set(smp);
    }
}

/// Waits for the next datagram.
pub fn receive(port: &mut MadPort) -> UserMad {
    assert!(port.wait(Some(PATIENCE)).unwrap(), "nothing came in {PATIENCE:?}");
    loop {
        match port.recv() {
            Ok(mad) => return mad,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(port.wait(Some(PATIENCE)).unwrap(), "half a datagram");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes a datagram, LRH to ICRC.
pub fn packet(slid: u16, dlid: u16, qpn: u32, payload: &[u8]) -> Vec<u8> {
    datagram((slid, dlid), (qpn, Qkey(7)), payload)
}

/// Makes a datagram with a queue key, LRH to ICRC.
pub fn datagram((slid, dlid): (u16, u16), (qpn, qkey): (u32, Qkey), payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; Lrh::LEN + Bth::LEN + Deth::LEN];
    let lrh = Lrh { next_header: Lrh::NEXT_BTH, slid, dlid, ..Lrh::default() };
    lrh.emit(&mut bytes);
    let mut bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(qpn), Psn::new(1));
    bth.pkey = Pkey::DEFAULT;
    bth.emit(&mut bytes[Lrh::LEN..]);
    Deth::new(qkey, Qpn::new(0x4001)).emit(&mut bytes[Lrh::LEN + Bth::LEN..]);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4) + icrc::LEN + vcrc::LEN, 0);
    link_packet::finish(&mut bytes).unwrap();
    bytes.truncate(bytes.len() - vcrc::LEN);
    bytes
}

/// Makes the ICRC of a packet, LRH to ICRC, anew.
pub fn restamp(mut packet: Vec<u8>) -> Vec<u8> {
    packet.extend([0; vcrc::LEN]);
    link_packet::finish(&mut packet).unwrap();
    packet.truncate(packet.len() - vcrc::LEN);
    packet
}

/// Returns the payload of a datagram, once its ICRC was checked.
pub fn payload(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    bytes.extend([0; vcrc::LEN]);
    vcrc::stamp(&mut bytes);
    let packet = LinkPacket::parse(&bytes).unwrap();
    assert!(packet.has_right_icrc() && packet.virtual_lane() != VirtualLane::MANAGEMENT);
    packet.transport().unwrap()[Bth::LEN + Deth::LEN..].to_vec()
}

/// Sends packets, and waits for room.
pub fn send(client: &DataClient, packets: &[Vec<u8>]) {
    let mut batch = PacketBatch::new();
    for packet in packets {
        assert!(batch.push(ONE, packet));
    }
    eventually("a batch leaves", || client.send(&batch).ok());
}

/// Waits for packets, and returns the payloads of one batch.
pub fn receive_batch(client: &DataClient) -> Vec<Vec<u8>> {
    let mut buf = vec![0; MAX_MESSAGE];
    eventually("a packet arrives", || match client.recv(&mut buf) {
        Ok(DataEvent::Packets(packets)) => {
            Some(packets.map(|(port, bytes)| (assert_eq!(port, ONE), payload(bytes)).1).collect())
        }
        Ok(DataEvent::Port(_)) => None,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    })
}

/// Waits for a port that is as a test wants it.
pub fn port_news(client: &DataClient, wanted: impl Fn(&vernic_attach::PortReport) -> bool) {
    let mut buf = vec![0; MAX_MESSAGE];
    eventually("a port changes", || match client.recv(&mut buf) {
        Ok(DataEvent::Port(port)) if wanted(&port) => Some(()),
        Ok(_) => None,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    });
}

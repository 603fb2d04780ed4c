//! Several processes on one host: who gets which packet on port 4791, and how they find each other.
//! And two network namespaces: what is really on the wire.
//!
//! The other process is this test program, started again with one test, [`peer_process`], that does
//! what it is told on its standard input.

#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use vernic_io::host::Lookup;
use vernic_io::{
    Icrc, Link, LinkCounters, Nanos, ROCE_PORT, RxBatch, Sleeper, Slot, SlotTable, TxBatch,
    UdpConfig, UdpLink, udp,
};
use vernic_wire::Qpn;

/// Set for the other process: the addresses that it is to use, and the scope of its slots.
const PEER_ENV: &str = "VERNIC_IO_TEST_PEER";
/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);

/// An address of 127.0.0.0/8 for each test, so that port 4791 is free.
fn address(test: u8, host: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 128 | high & 63, low, test * 16 + host])
}

fn scope(test: u8) -> String {
    format!("vp{}.{test}", std::process::id())
}

/// A link with one address and one slot, that counts what it receives by QPN.
struct Node {
    link: UdpLink,
    slots: std::sync::Arc<SlotTable>,
    slot: Slot,
    ip: IpAddr,
    good: HashMap<Qpn, usize>,
    bad: usize,
    rx: RxBatch,
    tx: TxBatch,
    start: Instant,
}

impl Node {
    fn open(ip: IpAddr, scope: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let slots = SlotTable::with_scope(scope)?;
        let mut link = UdpLink::open(UdpConfig::default(), slots.clone());
        link.activate(ip.into())?;
        let slot = slots.claim()?;
        let tx = TxBatch::new(&link.limits());
        let (good, bad, rx, start) = (HashMap::new(), 0, RxBatch::new(), Instant::now());
        Ok(Self { link, slots, slot, ip, good, bad, rx, tx, start })
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Receives what there is, and sends nothing. Accepts all packets that are good.
    fn turn(&mut self) -> usize {
        let now = self.now();
        let (count, mut noted) = (self.link.recv(now, &mut self.rx), None);
        for packet in self.rx.packets() {
            match (self.link.verify(&packet), packet.dest_qpn()) {
                (Icrc::Good, Some(qpn)) => *self.good.entry(qpn).or_default() += 1,
                _ => {
                    self.bad += 1;
                    continue;
                }
            }
            let buffer = std::ptr::from_ref(packet.meta);
            if packet.meta.handed_over && noted != Some(buffer) {
                noted = Some(buffer);
                self.link.note_accepted(&packet, now);
            }
        }
        count
    }

    /// Sends `count` packets of `size` bytes to `qpn` at `to`, in one run.
    fn send(&mut self, to: (IpAddr, u16), flow: u16, qpn: Qpn, count: usize, size: usize) {
        let path = udp::path(self.ip, to.into()).with_flow(flow);
        for _ in 0..count {
            let room = self.tx.room().expect("the batch has room");
            room[..size].fill(7);
            room[5..8].copy_from_slice(&qpn.value().to_be_bytes()[1..]);
            self.tx.push(&path, size);
        }
        let report = self.link.send(self.now(), &mut self.tx);
        assert_eq!((report.packets, report.failed), (count, 0), "{report:?}");
    }

    fn received(&self, qpn: Qpn) -> usize {
        self.good.get(&qpn).copied().unwrap_or(0)
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

/// What the other process does: not a test when run as one.
#[test]
fn peer_process() {
    let Ok(setup) = std::env::var(PEER_ENV) else { return };
    let (ip, scope) = setup.split_once(' ').expect("address and scope");
    let mut node = match Node::open(ip.parse().expect("an address"), scope) {
        Ok(node) => node,
        Err(error) => {
            println!("\npeer: error {error}");
            return;
        }
    };
    println!("\npeer: slot {}", node.slot.value());
    let (lines, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { break };
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let mut sleeper = Sleeper::new().expect("a sleeper");
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        while node.turn() != 0 {}
        match commands.try_recv() {
            Ok(line) => {
                if !obey(&mut node, &line) {
                    return;
                }
            }
            // The parent is gone.
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            Err(std::sync::mpsc::TryRecvError::Empty) => {
                sleeper.watch(node.link.poll_fds().iter().copied());
                sleeper.sleep(Some(PAUSE));
            }
        }
    }
}

/// Does what one line says; false at the end.
fn obey(node: &mut Node, line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<u32>().expect("a number");
    match words[0] {
        "report" => {
            let counters = node.counters();
            let good = node.received(Qpn::new(number(1)));
            let (handed, taken) = (counters.handed_over, counters.taken_over);
            let (steered, solved) = (counters.steered_flows, counters.icrc_solved);
            println!("peer: report {good} {} {handed} {taken} {steered} {solved}", node.bad);
        }
        "query" => {
            let ip = words[1].parse().expect("an address");
            let found = node.slots.query(ip, Qpn::new(number(2)), PATIENCE);
            println!("peer: found {}", found.map_or(0, |peer| peer.pid));
        }
        "send" => {
            let to = (words[1].parse().expect("an address"), ROCE_PORT);
            let (count, size) = (number(3) as usize, number(4) as usize);
            node.send(to, 0, Qpn::new(number(2)), count, size);
            println!("peer: sent");
        }
        _ => return false,
    }
    true
}

/// A child process as its parent sees it: dropping this ends the child.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    replies: Receiver<String>,
    slot: Slot,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Report {
    good: usize,
    bad: usize,
    handed: usize,
    taken: usize,
    steered: usize,
    solved: usize,
}

impl Peer {
    fn command(ip: IpAddr, scope: &str) -> Command {
        Self::command_in(&[], ip, scope)
    }

    /// The command that runs a peer, behind the words of another command.
    fn command_in(prefix: &[&str], ip: IpAddr, scope: &str) -> Command {
        let program = std::env::current_exe().expect("this program");
        let mut command = match prefix.split_first() {
            None => Command::new(&program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(&program);
                command
            }
        };
        command.args(["--exact", "peer_process", "--nocapture", "--test-threads=1"]);
        command.env(PEER_ENV, format!("{ip} {scope}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Starts a peer; the error is what it says if it cannot open its link.
    fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command.spawn().map_err(|error| format!("cannot start: {error}"))?;
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (lines, replies) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, reply)) = line.split_once("peer: ") {
                    let _ = lines.send(reply.to_owned());
                }
            }
        });
        let mut peer = Self { child, stdin, replies, slot: Slot::FIRST };
        let hello = peer.reply()?;
        match hello.split_once(' ') {
            Some(("slot", slot)) => {
                let slot: u32 = slot.parse().expect("a slot");
                peer.slot = Slot::of(Qpn::new(slot << Slot::INDEX_BITS));
                Ok(peer)
            }
            Some(("error", error)) => Err(error.to_owned()),
            _ => Err(hello),
        }
    }

    fn reply(&self) -> Result<String, String> {
        self.replies.recv_timeout(PATIENCE).map_err(|_| "the peer is silent".to_owned())
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the peer listens");
    }

    fn report(&mut self, qpn: Qpn) -> Report {
        self.tell(&format!("report {}", qpn.value()));
        let reply = self.reply().expect("a report");
        let numbers: Vec<usize> =
            reply.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        let [good, bad, handed, taken, steered, solved] = numbers[..] else { panic!("{reply}") };
        Report { good, bad, handed, taken, steered, solved }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Stops the process, or lets it go on.
    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill {signal}");
        if signal != "-STOP" {
            return;
        }
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start = Instant::now();
        while !state().contains(") T ") {
            assert!(start.elapsed() < PATIENCE, "it goes on");
            std::thread::sleep(PAUSE);
        }
    }
}

/// Flows from `sender` to the peer that the kernel brings to the node, which hands them over.
fn detours(sender: &mut Node, node: &mut Node, peer: &mut Peer, qpn: Qpn) -> Vec<u16> {
    let mut found = Vec::new();
    for flow in 0..16 {
        let before = node.counters().handed_over;
        sender.send((node.ip, ROCE_PORT), flow, qpn, 1, 64);
        settle(node, peer, (qpn, 0), (qpn, usize::from(flow) + 1));
        if node.counters().handed_over != before {
            found.push(flow);
        }
    }
    found
}

/// Sends packets one by one, and lets the node hand them over.
fn send_singly(sender: &mut Node, node: &mut Node, flow: u16, qpn: Qpn, count: usize) {
    let seen = |node: &Node| node.counters().handed_over + node.counters().hand_over_drops;
    let (before, start) = (seen(node), Instant::now());
    for _ in 0..count {
        sender.send((node.ip, ROCE_PORT), flow, qpn, 1, 1040);
    }
    while seen(node) < before + count as u64 {
        node.turn();
        assert!(start.elapsed() < PATIENCE, "{:?}", node.counters());
    }
}

#[test]
fn a_burst_at_the_wrong_process_waits_for_an_owner_that_does_not_run() {
    let (ip, from) = (address(6, 1), address(6, 2));
    let mut node = Node::open(ip, &scope(6)).unwrap();
    let mut peer = Peer::start(Peer::command(ip, &scope(6))).unwrap();
    let mut sender = Node::open(from, &scope(106)).unwrap();
    let (probe, theirs) = (peer.slot.qpn(6), peer.slot.qpn(7));
    let Some(&flow) = detours(&mut sender, &mut node, &mut peer, probe).first() else {
        panic!("the kernel brings no flow of 16 to this process");
    };
    peer.signal("-STOP");
    for _ in 0..10 {
        send_singly(&mut sender, &mut node, flow, theirs, 50);
    }
    peer.signal("-CONT");
    let report = settle(&mut node, &mut peer, (theirs, 0), (theirs, 500));
    assert_eq!((report.good, report.bad, node.counters().hand_over_drops), (500, 0, 0));
}

#[test]
fn a_flow_that_floods_the_wrong_process_loses_its_own_packets_and_not_those_of_others() {
    let (ip, from) = (address(7, 1), address(7, 2));
    let mut node = Node::open(ip, &scope(7)).unwrap();
    let mut peer = Peer::start(Peer::command(ip, &scope(7))).unwrap();
    let mut sender = Node::open(from, &scope(107)).unwrap();
    let (probe, flood, polite) = (peer.slot.qpn(6), peer.slot.qpn(7), peer.slot.qpn(8));
    let flows = detours(&mut sender, &mut node, &mut peer, probe);
    let &[one, other, ..] = &flows[..] else {
        panic!("the kernel brings {flows:?} of 16 flows to this process");
    };
    peer.signal("-STOP");
    for _ in 0..100 {
        send_singly(&mut sender, &mut node, one, flood, 50);
        send_singly(&mut sender, &mut node, other, polite, 1);
    }
    let drops = node.counters().hand_over_drops as usize;
    assert!(drops > 0, "the flood is no flood");
    peer.signal("-CONT");
    settle(&mut node, &mut peer, (polite, 0), (polite, 100));
    let report = settle(&mut node, &mut peer, (flood, 0), (flood, 5000 - drops));
    assert_eq!((report.good, report.bad), (5000 - drops, 0), "all that was dropped is the flood's");
}

/// Lets the node work until both have received as many packets as wanted.
fn settle(node: &mut Node, peer: &mut Peer, ours: (Qpn, usize), theirs: (Qpn, usize)) -> Report {
    let start = Instant::now();
    loop {
        while node.turn() != 0 {}
        let report = peer.report(theirs.0);
        if node.received(ours.0) >= ours.1 && report.good >= theirs.1 {
            return report;
        }
        assert!(start.elapsed() < PATIENCE, "{report:?}, {:?}", node.counters());
    }
}

#[test]
fn each_process_gets_the_packets_for_its_slot_and_flows_are_steered_to_it() {
    let (ip, from) = (address(1, 1), address(1, 2));
    let mut node = Node::open(ip, &scope(1)).unwrap();
    let mut peer = Peer::start(Peer::command(ip, &scope(1))).unwrap();
    let mut sender = Node::open(from, &scope(101)).unwrap();
    let (ours, theirs) = (node.slot.qpn(5), peer.slot.qpn(6));
    assert_ne!(node.slot, peer.slot);
    // The kernel spreads 16 flows over the two processes: for about half of the packets the wrong
    // one. Pairs of packets for both in one run: buffers are taken apart.
    let mut report = Report::default();
    for flow in 0..16 {
        sender.send((ip, ROCE_PORT), flow, theirs, 3, 512);
        sender.send((ip, ROCE_PORT), flow, ours, 2, 512);
        let flows = usize::from(flow) + 1;
        report = settle(&mut node, &mut peer, (ours, 2 * flows), (theirs, 3 * flows));
    }
    assert_eq!((node.received(ours), report.good, report.bad, node.bad), (32, 48, 0, 0));
    assert!(node.counters().handed_over > 0 && report.taken > 0, "{report:?}");
    assert_eq!(node.counters().handed_over as usize, report.taken);
    assert_eq!(node.counters().taken_over as usize, report.handed);
    assert_eq!(node.received(theirs), 0);
    assert_eq!(report.steered, 0);

    // Flows that keep coming here though they are the peer's are steered to the peer.
    let mut sent = 48;
    for _ in 0..20 {
        for flow in 0..16 {
            sender.send((ip, ROCE_PORT), flow, theirs, 1, 512);
            sent += 1;
            if flow % 8 == 7 {
                settle(&mut node, &mut peer, (ours, 32), (theirs, sent));
            }
        }
    }
    let before = node.counters().handed_over;
    let report = peer.report(theirs);
    assert!(report.steered > 0, "{report:?}");
    for flow in 0..16 {
        sender.send((ip, ROCE_PORT), flow, theirs, 4, 512);
    }
    let report = settle(&mut node, &mut peer, (ours, 32), (theirs, sent + 64));
    assert_eq!(node.counters().handed_over, before, "nothing takes the detour any more");
    assert_eq!((report.good, report.bad), (sent + 64, 0));

    // Packets for a slot whose process is gone stay here: the engine counts an unknown QPN. The
    // sockets of the peer are gone with it, so all flows come here.
    drop(peer);
    for flow in 0..16 {
        sender.send((ip, ROCE_PORT), flow, theirs, 1, 512);
    }
    let start = Instant::now();
    while node.received(theirs) < 16 && start.elapsed() < PATIENCE {
        node.turn();
    }
    assert_eq!(node.received(theirs), 16);
}

#[test]
fn processes_find_each_other_and_talk_on_a_private_port() {
    let ip = address(2, 1);
    let mut node = Node::open(ip, &scope(2)).unwrap();
    let mut peer = Peer::start(Peer::command(ip, &scope(2))).unwrap();
    let theirs = peer.slot.qpn(9);
    let found = node.slots.query(ip, theirs, PATIENCE).expect("the peer answers");
    assert_eq!(found.pid, peer.child.id());
    assert_ne!(found.private_port, ROCE_PORT);
    assert_eq!(node.slots.query(address(2, 15), theirs, PATIENCE), None, "not its address");
    for flow in 0..16 {
        node.send((ip, found.private_port), flow, theirs, 2, 1040);
    }
    let report = settle(&mut node, &mut peer, (theirs, 0), (theirs, 32));
    let wanted = Report { good: 32, ..Report::default() };
    assert_eq!(report, wanted, "no hand-over, no bad ICRC");

    // The same without waiting.
    let start = Instant::now();
    let looked_up = loop {
        match node.slots.lookup(ip, theirs) {
            Lookup::Asked | Lookup::Pending if start.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            other => break other,
        }
    };
    assert_eq!(looked_up, Lookup::Here(found));

    drop(peer);
    assert_eq!(node.slots.query(ip, theirs, PATIENCE), None, "its slot vanished with it");
}

#[test]
fn two_processes_that_ask_each_other_at_once_both_get_an_answer() {
    let ip = address(3, 1);
    let node = Node::open(ip, &scope(3)).unwrap();
    let mut peer = Peer::start(Peer::command(ip, &scope(3))).unwrap();
    for _ in 0..20 {
        // Neither does anything but wait for its answer.
        peer.tell(&format!("query {ip} {}", node.slot.qpn(1).value()));
        assert!(node.slots.query(ip, peer.slot.qpn(1), PATIENCE).is_some());
        // The peer's question may come later than our answer.
        let start = Instant::now();
        let reply = loop {
            node.slots.serve();
            match peer.replies.recv_timeout(PAUSE) {
                Ok(reply) => break reply,
                Err(_) => assert!(start.elapsed() < PATIENCE),
            }
        };
        assert_eq!(reply, format!("found {}", std::process::id()));
    }
}

#[test]
fn another_user_is_told_who_holds_the_port() {
    let ip = address(4, 1);
    let _node = Node::open(ip, &scope(4)).unwrap();
    let mut command = Peer::command(ip, &scope(4));
    command.uid(65_534);
    match Peer::start(command) {
        Ok(_) => panic!("two users share port 4791"),
        Err(error) if error.contains("4791") => {
            assert!(error.contains("user id"), "{error}");
            assert!(error.contains("run as that user"), "{error}");
        }
        Err(error) => println!("skipped: needs root, and a program others may run: {error}"),
    }
}

/// Two network namespaces joined by a veth pair; deleted at the end.
struct Namespaces([String; 2]);

impl Namespaces {
    fn new() -> Result<Self, String> {
        let names = ["a", "b"].map(|side| format!("vernic-io-{}-{side}", std::process::id()));
        let this = Self(names);
        let [a, b] = &this.0;
        for line in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add veth0 mtu 9000 type veth peer name veth0 mtu 9000 netns {b}"),
            format!("-n {a} address add 10.77.0.1/24 dev veth0"),
            format!("-n {b} address add 10.77.0.2/24 dev veth0"),
            // From here on the kernel must cut runs up before the device sees them.
            format!("-n {a} link set veth0 up gso_max_segs 1"),
            format!("-n {b} link set veth0 up"),
        ] {
            let output = Command::new("ip").args(line.split(' ')).output();
            let output = output.map_err(|error| format!("cannot run ip: {error}"))?;
            if !output.status.success() {
                return Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        Ok(this)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn a_run_that_is_cut_up_has_its_index_as_identification_on_the_wire() {
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(error) => {
            println!("skipped: needs root, iproute2 and veth: {error}");
            return;
        }
    };
    let start = |side: usize, ip: &str| {
        let prefix = ["ip", "netns", "exec", &namespaces.0[side]];
        Peer::start(Peer::command_in(&prefix, ip.parse().unwrap(), &scope(5))).unwrap()
    };
    let (mut sender, mut receiver) = (start(0, "10.77.0.1"), start(1, "10.77.0.2"));
    let qpn = receiver.slot.qpn(1);
    let (mut wanted, began) = (0, Instant::now());
    for (count, size) in [(40, 1040), (1, 64), (15, 4112), (50, 128)] {
        sender.tell(&format!("send 10.77.0.2 {} {count} {size}", qpn.value()));
        assert_eq!(sender.reply().unwrap(), "sent");
        wanted += count;
        // One run at a time.
        while receiver.report(qpn).good < wanted {
            assert!(began.elapsed() < PATIENCE, "{:?}", receiver.report(qpn));
        }
    }
    // Each packet arrives alone. Its ICRC is right with the successor of the Identification before
    // or with 0, and never had to be solved for: so they were 0, 1, 2... in each run.
    let report = receiver.report(qpn);
    assert_eq!((report.good, report.bad, report.solved), (wanted, 0, 0));
}

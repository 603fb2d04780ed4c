//! Another user of this host who forges packets: they come from the address that all of its users
//! share, and do no harm to anybody's connections.
//!
//! Each test has a live connection and a thread with another user id (`common/stranger.rs`), which
//! knows what such a user can find out (`/proc/net/udp`, `/proc/net/unix`), and more: numbers of
//! queue pairs, which are random, and one id of two. It does not know the sequence numbers. The
//! tests take seconds and send a share of what there is to try; the whole is
//!
//! ```sh
//! cargo test --release -p vernic-engine --test hostile_user -- --ignored --nocapture all_sequence
//! ```

#![allow(clippy::print_stdout)] // how much was sent

mod common;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use common::cm::*;
use common::near::*;
use common::other::runs_alone;
use common::stranger::{Forger, as_another_user};
use common::*;
use vernic_engine::*;
use vernic_io::{HandoverResult, Icrc, ROCE_PORT, RxMeta, RxPacket, Slot, SlotTable};
use vernic_proto::cm::EventKind;
use vernic_wire::cm::{
    AckedMessage, CmMessage, CommId, Drep, Dreq, Mra, Rej, RejReason, RejectedMessage, Rtu,
};
use vernic_wire::{Aeth, Bth, CreditCode, Headers, NakCode, Opcode, Psn, Reth, Syndrome};

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Where [`connect`] lets sequence numbers begin.
const FIRST: u32 = 0xFF_FFF0;
/// All sequence numbers.
const PSNS: u32 = 1 << 24;

fn wire_config() -> Config {
    let mut config = test_config();
    config.set("same_host", "off").unwrap();
    config
}

/// Peers that are not given up because the machine is busy.
fn patient() -> Setup {
    Setup { timeout: AckTimeout::new(18), ..Setup::default() }
}

fn wire_pair() -> Pair {
    Pair::with(Service::Rc, patient(), wire_config(), wire_config())
}

/// The value of a counter of a device, by name.
fn count(end: &End, name: &str) -> u64 {
    end.context.counters().iter().filter(|(known, _)| known == name).map(|(_, n)| n).sum()
}

/// Waits until a counter has reached `least`; false if it does not.
fn reaches(end: &End, name: &str, least: u64) -> bool {
    let start = Instant::now();
    while count(end, name) < least && start.elapsed() < PATIENCE / 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    count(end, name) >= least
}

fn ack(qpn: Qpn, psn: u32, syndrome: Syndrome) -> Headers {
    let mut headers = Headers::new(Bth::new(Opcode::RC_ACK, qpn, Psn::new(psn)));
    headers.aeth = Some(Aeth { syndrome, msn: 0 });
    headers
}

fn assert_alive(pair: &Pair) {
    for qp in [&pair.a_qp, &pair.b_qp] {
        assert_eq!(qp.state(), QpState::Rts, "{:?}", qp.explain());
    }
    talk(pair);
}

/// Requests that were handled before, and answers to nothing, which need no knowledge of sequence
/// numbers.
fn send_duplicates(forger: &mut Forger, qpn: Qpn) {
    for n in 0..32 {
        for (opcode, back) in [(Opcode::RC_SEND_ONLY, 1), (Opcode::RC_SEND_ONLY, 1 << 22)] {
            let mut bth = Bth::new(opcode, qpn, Psn::new(FIRST).sub(back + n));
            bth.ack_req = true;
            forger.send(&Headers::new(bth), &[7; 64]);
        }
        let bth = Bth::new(Opcode::RC_READ_REQUEST, qpn, Psn::new(FIRST).sub(n));
        let mut headers = Headers::new(bth);
        headers.reth = Some(Reth { addr: 0, rkey: Rkey(7), length: 64 });
        forger.send(&headers, &[]);
        forger.send(&ack(qpn, FIRST - n, Syndrome::ack(CreditCode::INVALID)), &[]);
    }
}

/// Held by a test that counts what its devices send, and by one that makes all devices which share
/// the port answer.
static ANSWERS: Mutex<()> = Mutex::new(());

#[test]
fn duplicates_of_another_user_do_not_bring_a_connection_by_memory_to_the_wire() {
    let _alone = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = near_pair(Service::Rc);
    warm_up(&pair);
    talk(&pair);
    let sent_by_wire = || [&pair.a, &pair.b].map(|end| end.context.counters().link.tx_packets);
    let before = sent_by_wire();
    let ports = [ROCE_PORT, pair.a_qp.path().unwrap().door()];
    let Some(sent) = as_another_user(|| {
        let forgers = ports.map(|port| {
            let mut forger = Forger::new(port);
            send_duplicates(&mut forger, pair.b_qp.qpn());
            forger.sent
        });
        forgers[1]
    }) else {
        return;
    };
    assert!(reaches(&pair.b, "drop_wrong_way", sent), "{}", pair.b.context.counters());
    for _ in 0..100 {
        assert_alive(&pair);
    }
    assert_eq!(sent_by_wire(), before, "what was answered by memory is answered by the wire");
    assert!(SHARED(&pair.a_qp) && SHARED(&pair.b_qp));
}

/// Sends refusals to `qpn`, in strides that no window of a queue pair with so much in flight
/// escapes, until `stop`.
fn sweep_refusals(forger: &mut Forger, qpn: Qpn, stride: u32, stop: &AtomicBool) {
    let mut psn = 0;
    while !stop.load(Ordering::Relaxed) {
        let syndrome = Syndrome::nak(NakCode::REMOTE_ACCESS);
        forger.send(&ack(qpn, psn % PSNS, syndrome), &[]);
        // An odd stride visits all numbers in the end.
        psn = psn.wrapping_add(stride);
    }
}

/// Sends long messages from `a` to `b` until `done`.
fn stream(pair: &Pair, done: impl Fn() -> bool) -> u64 {
    const LEN: u32 = 1 << 20;
    let mut messages = 0;
    while !done() {
        pair.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[pair.b.sge(0, LEN)] }]).unwrap();
        pair.a_qp.post_send(&[wr(2, SendOp::Send, &[pair.a.sge(0, LEN)])]).unwrap();
        let sent = pair.a.wait_beside(1, || pair.b.context.progress())[0];
        assert_eq!(sent.status, WcStatus::Success, "{:?}", pair.a_qp.explain());
        let received = pair.b.wait(1)[0];
        assert_eq!(received.status, WcStatus::Success, "{:?}", pair.b_qp.explain());
        messages += 1;
    }
    messages
}

#[test]
fn refusals_swept_by_another_user_do_not_end_a_connection_by_the_wire() {
    let pair = wire_pair();
    talk(&pair);
    let port = pair.b_qp.path().unwrap().door();
    let (stop, qpn) = (AtomicBool::new(false), pair.a_qp.qpn());
    let end = Instant::now() + PATIENCE / 8;
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            as_another_user(|| {
                let mut forger = Forger::new(port);
                sweep_refusals(&mut forger, qpn, 61, &stop);
                forger.sent
            })
        });
        let guard = StopAtEnd(&stop);
        let messages = stream(&pair, || Instant::now() >= end);
        drop(guard);
        let Some(sent) = attack.join().unwrap() else { return };
        println!("{messages} messages of 1 MiB beside {sent} forged refusals");
        assert!(count(&pair.a, "drop_wrong_port") > sent / 100, "{}", pair.a.context.counters());
    });
    assert_alive(&pair);
}

/// Tells the other thread to end, also where a test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends requests that end a queue pair if they carry the number that it expects: the middle of
/// nothing.
fn sweep_requests(forger: &mut Forger, qpn: Qpn, psns: std::ops::Range<u32>) {
    for psn in psns {
        let bth = Bth::new(Opcode::RC_SEND_LAST, qpn, Psn::new(psn));
        forger.send(&Headers::new(bth), &[7; 16]);
    }
}

#[test]
fn requests_of_another_user_are_refused_by_the_wire() {
    const SHARE: u32 = 20_000;
    let pair = wire_pair();
    talk(&pair);
    let port = pair.a_qp.path().unwrap().door();
    let qpn = pair.b_qp.qpn();
    let Some(sent) = as_another_user(|| {
        let mut forger = Forger::new(port);
        send_duplicates(&mut forger, qpn);
        // Far from where it is.
        sweep_requests(&mut forger, qpn, 1 << 22..(1 << 22) + SHARE);
        forger.sent
    }) else {
        return;
    };
    let refused = sent / 2;
    assert!(reaches(&pair.b, "drop_wrong_port", refused), "{}", pair.b.context.counters());
    assert_alive(&pair);
}

#[test]
#[ignore = "the whole of what another test sends a share of: two minutes"]
fn all_sequence_numbers_of_another_user_do_not_end_an_idle_connection() {
    let pair = wire_pair();
    talk(&pair);
    let port = pair.a_qp.path().unwrap().door();
    let (qpn, start) = (pair.b_qp.qpn(), Instant::now());
    let Some(sent) = as_another_user(|| {
        let mut forger = Forger::new(port);
        let mut psn = 0;
        while psn < PSNS && pair.b_qp.state() == QpState::Rts {
            sweep_requests(&mut forger, qpn, psn..psn + 4096);
            psn += 4096;
        }
        forger.sent
    }) else {
        return;
    };
    println!("{sent} forged requests in {:?}, {:?}", start.elapsed(), pair.b_qp.state());
    assert_alive(&pair);
}

/// Ports of UDP that are taken on an address, as everybody can read them.
fn taken_ports(ip: std::net::Ipv4Addr) -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let at = format!("{:08X}:", u32::from_ne_bytes(ip.octets()));
    let local = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    let ports = table.lines().filter_map(local).filter_map(|local| {
        local.strip_prefix(&at).and_then(|port| u16::from_str_radix(port, 16).ok())
    });
    ports.collect()
}

#[test]
fn another_user_gets_no_port_that_packets_are_sent_from_not_even_on_another_address() {
    if runs_alone(
        "another_user_gets_no_port_that_packets_are_sent_from_not_even_on_another_address",
    ) {
        return;
    }
    let pair = wire_pair();
    talk(&pair);
    let sent_from = source_ports(&pair);
    assert!(sent_from.len() >= 2, "{sent_from:?}");
    let Some(free) = as_another_user(|| {
        // A socket may name any of the host's addresses as the source of a packet, whichever it is
        // bound to.
        let is_free = |port: &u16| {
            let elsewhere = std::net::Ipv4Addr::new(127, 0, 0, 2);
            std::net::UdpSocket::bind((elsewhere, *port)).is_ok()
        };
        sent_from.iter().copied().filter(is_free).collect::<Vec<_>>()
    }) else {
        return;
    };
    assert!(free.is_empty(), "{free:?} of {sent_from:?}");
}

/// The ports that the packets of a pair come from: those that nothing is received on.
fn source_ports(pair: &Pair) -> Vec<u16> {
    let received_on = [&pair.a_qp, &pair.b_qp].map(|qp| qp.path().unwrap().door());
    let mut ports = taken_ports(std::net::Ipv4Addr::LOCALHOST);
    ports.retain(|port| *port >= 49_152 && !received_on.contains(port));
    ports
}

#[test]
fn packets_of_another_user_that_reach_the_wrong_process_disturb_nobody() {
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    let pair = Pair::with(Service::Rc, patient(), config.clone(), config);
    talk(&pair);
    let qpns = [pair.a_qp.qpn(), pair.b_qp.qpn()];
    let end = Instant::now() + PATIENCE / 10;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            as_another_user(|| {
                let mut forgers: Vec<_> = (0..8).map(|_| Forger::new(ROCE_PORT)).collect();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    for (at, forger) in forgers.iter_mut().enumerate() {
                        let qpn = qpns[at % 2];
                        let bth = Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::new(1 << 22 | n));
                        forger.send(&Headers::new(bth), &[7; 16]);
                    }
                    n = n.wrapping_add(1) % (1 << 20);
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            })
        });
        let guard = StopAtEnd(&stop);
        while Instant::now() < end {
            talk(&pair);
        }
        drop(guard);
        attack.join().unwrap();
    });
    assert_alive(&pair);
}

#[test]
fn what_comes_for_a_slot_that_another_user_has_taken_is_not_handed_over() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let scope = format!("vh{}", std::process::id());
    let table = SlotTable::with_scope(&scope).unwrap();
    let slot = Slot::of(Qpn::new(77 << Slot::INDEX_BITS));
    let at = std::net::SocketAddr::new(HOME, ROCE_PORT);
    let meta = RxMeta { icrc: Icrc::Good, ..vernic_io::udp::arrival(at, at) };
    let packet = RxPacket { bytes: &[7; 64], meta: &meta, segment: 0 };
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (answered, is_answered) = std::sync::mpsc::channel();
    // What it has of both sockets of the slot, after it has answered as its owner would.
    let squat = move || {
        let [answers, packets] = ["", "/packets"].map(|suffix| {
            let name = format!("{scope}/{}{suffix}", slot.value());
            let name = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
            let socket = UnixDatagram::bind_addr(&name).unwrap();
            socket.set_read_timeout(Some(PATIENCE / 10)).unwrap();
            socket
        });
        ready.send(()).unwrap();
        let mut message = [0; 64];
        let (len, asker) = answers.recv_from(&mut message).expect("it was asked");
        message[1] = b'A';
        message[len..len + 2].copy_from_slice(&ROCE_PORT.to_be_bytes());
        answers.send_to_addr(&message[..len + 2], &asker).unwrap();
        answered.send(()).unwrap();
        packets.recv(&mut message).ok()
    };
    std::thread::scope(|scope| {
        let squatter = scope.spawn(move || as_another_user(squat));
        if is_ready.recv_timeout(PATIENCE).is_err() {
            return;
        }
        assert_ne!(table.hand_over_to_slot(slot, &packet), HandoverResult::Yes);
        is_answered.recv_timeout(PATIENCE).expect("it answers");
        assert_ne!(table.hand_over_to_slot(slot, &packet), HandoverResult::Yes);
        assert_eq!(squatter.join().unwrap(), Some(None), "bytes that it was handed");
    });
}

/// Messages for a connection, of which the forger knows what `known` says: the receiver's id, its
/// peer's.
fn cm_messages(theirs: CommId, ours: CommId, qpn: Qpn) -> Vec<CmMessage> {
    let (local_comm_id, remote_comm_id) = (theirs, ours);
    let mra = |message| {
        let data = Default::default();
        CmMessage::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            message,
            reserved8: 0,
            service_timeout: 31,
            reserved9: 0,
            private_data: data,
        })
    };
    let private_data = Default::default();
    vec![
        CmMessage::Dreq(Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: qpn,
            reserved11: 0,
            private_data,
        }),
        CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data: Default::default() }),
        CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: Default::default() }),
        mra(AckedMessage::REQ),
        mra(AckedMessage::REP),
        mra(AckedMessage::LAP),
    ]
}

fn rejections(theirs: CommId, ours: CommId) -> Vec<CmMessage> {
    let messages = [RejectedMessage::REQ, RejectedMessage::REP, RejectedMessage::OTHER];
    let reasons = [RejReason::TIMEOUT, RejReason::CONSUMER, RejReason::STALE_CONNECTION];
    let rej = |message, reason| {
        CmMessage::Rej(Rej {
            local_comm_id: theirs,
            remote_comm_id: ours,
            message,
            reserved8: 0,
            reserved9: false,
            reason,
            info: Default::default(),
            private_data: Default::default(),
        })
    };
    messages.iter().flat_map(|m| reasons.iter().map(move |r| rej(*m, *r))).collect()
}

#[test]
fn messages_of_another_user_with_a_wrong_id_or_none_change_no_connection() {
    let _alone = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, client) = (Node::new(), Node::new());
    let service = port(20_001);
    let listener = server.listen(service, ServiceScope::Address(HOME.into()));
    let active = client.connect(HOME, service, b"");
    let (passive, ..) = server.request();
    server.accept(passive, b"");
    let reply = client.next();
    let EventKind::Reply { rep } = reply.kind else { panic!("no reply: {reply:?}") };
    client.cm().ready_to_use(active, b"").unwrap();
    assert!(matches!(server.next().kind, EventKind::Established { .. }));
    let (ours, theirs) = (passive.0, active.0);
    let Some(sent) = as_another_user(|| {
        let mut forger = Forger::new(ROCE_PORT);
        for (to, from) in [(ours, theirs), (theirs, ours)] {
            // One of the two is known, the other is a guess, a neighbour, or left out.
            let near = [1, 2, 1 << 10, 1 << 22].map(|bit| CommId(from.0 ^ bit));
            let guesses = near.into_iter().chain([to, CommId(0)]);
            let half = guesses.clone().map(|guess| (guess, to));
            let other_half = guesses.map(|guess| (from, guess));
            for (local, remote) in half.chain(other_half).filter(|ids| *ids != (from, to)) {
                let messages = cm_messages(local, remote, rep.local_qpn);
                for message in messages.iter().chain(&rejections(local, remote)) {
                    forger.send_cm(message);
                }
            }
        }
        forger.sent
    }) else {
        return;
    };
    assert!(sent != 0);
    // The last of them were heard when this is answered: connections are made, and ended, all the
    // same.
    std::thread::scope(|scope| {
        let serves = scope.spawn(|| server.serve(b"welcome"));
        let other = Node::new();
        assert_eq!(other.use_service(HOME, service, b"hello"), b"welcome");
        serves.join().unwrap();
    });
    assert!(client.peek().is_none() && server.peek().is_none(), "{:?}", client.peek());
    client.cm().disconnect(active, b"").unwrap();
    assert!(matches!(server.next().kind, EventKind::DisconnectRequest { .. }));
    server.cm().disconnect(passive, b"").unwrap();
    assert!(matches!(client.next().kind, EventKind::Disconnected));
    server.cm().stop_listening(listener);
}

//! Packets and parts of messages of no sense against queue pairs of every type: nothing panics, no
//! work request completes twice, and what is sent parses. Seeded; the seed is in the message of a
//! failure.

use vernic_wire::opcode::{self, Kind, Position, Tail};
use vernic_wire::{
    Aeth, AethCode, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Headers, Ieth, ImmDt, Mtu, Opcode,
    Packet, Placement, PortNum, Psn, Qkey, Qpn, Reth, Rkey, Selectivity, Service, Srqn, Syndrome,
    Xrceth,
};

use crate::completion::Tag;
use crate::cx::QpInit;
use crate::disposition::{Disposition, DropReason};
use crate::host::PullFault;
use crate::message::{MessagePart, PartAck, RendezvousLimits};
use crate::qp::Qp;
use crate::state::{AttrMask, QpAttr, QpState, QpType};
use crate::test_host::{BASE, FOREIGN_SRQN, RKEY, SRQN, TestHost, meta, packet_bytes};
use crate::time::Time;
use crate::transition::required;
use crate::wqe::{Remote, SendFlags, SendOp, SendWqe, UdDest};

/// Xorshift: a test needs variety, not quality.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// First sequence number in both directions: soon wraps.
const FIRST_PSN: u32 = 0xFF_FFFC;

/// The path MTU in bytes.
const PATH_MTU: Mtu = Mtu::B256;
const MTU: u32 = PATH_MTU.bytes();

fn queue_pair(qp_type: QpType) -> Qp {
    let (max_send_wr, max_window, shared_rq) = (8, 64, false);
    Qp::new(QpInit { qpn: Qpn::new(1), qp_type, max_send_wr, max_window, shared_rq })
}

/// From Reset to RTS.
fn bring_up(qp: &mut Qp, host: &mut TestHost) {
    let mut attr = QpAttr {
        port: PortNum(1),
        access: 0xFFFF,
        path_mtu: PATH_MTU,
        qkey: Qkey(7),
        dest_qpn: Qpn::new(2),
        rq_psn: Psn::new(FIRST_PSN),
        sq_psn: Psn::new(FIRST_PSN),
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    attr.av.port = PortNum(1);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        attr.state = state;
        let mask = required(qp.qp_type(), qp.state(), state).unwrap();
        qp.modify(&attr, mask | AttrMask::STATE, Time(0), host).unwrap();
    }
}

fn modify(qp: &mut Qp, host: &mut TestHost, state: QpState) {
    let attr = QpAttr { state, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, Time(0), host).unwrap();
}

/// A known opcode of the service with numbers near those that make sense.
fn nonsense(random: &mut Random, service: Service, near: Psn) -> Vec<u8> {
    let opcode = loop {
        let opcode = Opcode(random.next() as u8);
        if opcode.info().service == service {
            break opcode;
        }
    };
    let psn = near.add(random.below(12) as u32).sub(8);
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), psn));
    headers.bth.ack_req = random.below(2) == 0;
    let addr = BASE + random.one_of(&[0, 8, 4, 8000, u64::MAX - BASE, u64::MAX / 2]);
    let rkey = random.one_of(&[RKEY, RKEY, RKEY, Rkey(0)]);
    let length = random.one_of(&[0, 8, 256, 300, 512, 600, 1 << 31, u32::MAX]);
    let syndrome = Syndrome(random.one_of(&[0, 0, 0, 5, 31, 0x21, 0x60, 0x60, 0x40, 0xFF]));
    let may_end = random.below(40) == 0;
    let refused = matches!(random.below(40), 0).then_some(Syndrome(0x62));
    let syndrome = match syndrome.decode() {
        AethCode::Reserved(_) if !may_end => Syndrome(0),
        _ => refused.unwrap_or(syndrome),
    };
    headers.reth = Some(Reth { addr, rkey, length });
    headers.atomic = Some(AtomicEth { addr, rkey, swap_or_add: 1, compare: 2 });
    headers.aeth = Some(Aeth { syndrome, msn: random.below(4) as u32 });
    headers.atomic_ack = Some(AtomicAckEth { original: 3 });
    headers.deth = Some(Deth::new(random.one_of(&[Qkey(7), Qkey(8)]), Qpn::new(2)));
    headers.imm = Some(ImmDt(4));
    headers.ieth = Some(Ieth { rkey });
    let placement = Placement::from_bits_retain(random.below(5) as u8);
    headers.feth = Some(Feth::new(Selectivity(random.below(4) as u8), placement));
    let srqn = random.one_of(&[SRQN, SRQN, SRQN, FOREIGN_SRQN, Srqn::new(0)]);
    headers.xrceth = Some(Xrceth::new(srqn));
    let payload = vec![9; random.one_of(&[0, 0, 1, 8, 44, 255, 256, 256, 256, 257]) as usize];
    packet_bytes(headers, &payload)
}

/// A part of a message with numbers near those that make sense.
fn nonsense_part(random: &mut Random, near: Psn) -> MessagePart {
    MessagePart {
        psn: near.add(random.below(12) as u32).sub(8),
        length: random.one_of(&[0, 1, 8, 256, 300, 512, 600, 8192, 8448, 1 << 31, u32::MAX]),
        mtu: random.one_of(&[PATH_MTU, PATH_MTU, PATH_MTU, Mtu::B512, Mtu::B4096]),
        is_rendezvous: random.below(2) == 0,
        starts: random.below(2) == 0,
        ends: random.below(2) == 0,
        solicited: random.below(2) == 0,
        tag: random.one_of(&[
            Tag::None,
            Tag::Imm(4),
            Tag::Invalidated(RKEY),
            Tag::Invalidated(Rkey(0)),
        ]),
        srqn: random.one_of(&[None, Some(SRQN), Some(SRQN), Some(FOREIGN_SRQN)]),
    }
}

/// Whether a queue pair of this type may take a part, which names a shared receive queue or not.
fn takes_part(qp_type: QpType, part: &MessagePart) -> bool {
    match qp_type {
        QpType::Rc => part.srqn.is_none(),
        QpType::XrcTgt => part.srqn.is_some(),
        QpType::Uc => part.srqn.is_none() && !part.is_rendezvous,
        QpType::Ud | QpType::XrcIni => false,
    }
}

/// Hands a part to a queue pair, with payload of its length or of another one.
fn hand_over(
    random: &mut Random,
    qp: &mut Qp,
    (now, host): (Time, &mut TestHost),
    part: &MessagePart,
) -> Disposition {
    if random.below(4) == 0 {
        let any = Syndrome(random.next() as u8);
        let syndrome = random.one_of(&[Syndrome::ACK, Syndrome::ACK, any]);
        let aeth = Aeth { syndrome, msn: random.below(4) as u32 };
        let psn = Psn::new(FIRST_PSN).add(random.below(24) as u32).sub(8);
        let disposition = qp.handle_ack(now, PartAck { psn, aeth }, host);
        assert!(qp.qp_type() == QpType::Rc || matches!(disposition, Disposition::Drop(_)));
    }
    let payload = [7; 8448];
    let is_cut = random.below(100) == 0;
    let len = if part.is_rendezvous { 0 } else { (part.length as usize).min(payload.len()) };
    let len = if is_cut { len / 2 } else { len };
    let disposition = qp.handle_message(now, part, &payload[..len], host);
    if !takes_part(qp.qp_type(), part) {
        use DropReason::{BadState, Malformed, RendezvousRefused, WrongService};
        let reasons = [WrongService, BadState, Malformed, RendezvousRefused];
        let reasons = reasons.map(Disposition::Drop);
        assert!(reasons.contains(&disposition), "{disposition:?} {part:?}");
    }
    disposition
}

/// A peer that mostly follows the rules, so that nonsense meets messages, READs and gaps half done.
struct Peer {
    psn: Psn,
    /// Kind and bytes left of the message in progress.
    message: Option<(Kind, u32)>,
}

impl Peer {
    fn new() -> Self {
        Self { psn: Psn::new(FIRST_PSN), message: None }
    }

    /// The packet that a requester would send next, and the peer after it.
    fn packet(&self, random: &mut Random, service: Service) -> (Vec<u8>, Self) {
        let kinds = [Kind::Send, Kind::Write, Kind::ReadRequest, Kind::FetchAdd, Kind::AtomicWrite];
        let kinds = if service == Service::Uc { &kinds[..2] } else { &kinds[..] };
        let (kind, left, starts) = match self.message {
            Some((kind, left)) => (kind, left, false),
            None => (random.one_of(kinds), random.one_of(&[0, 8, 256, 300, 512, 600]), true),
        };
        let cut = matches!(kind, Kind::Send | Kind::Write);
        let now = if cut { left.min(256) } else { 0 };
        let position = match (starts, !cut || left <= 256) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        let opcode = opcode::request(service, kind, position, Tail::None).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), self.psn));
        headers.bth.ack_req = random.below(3) == 0;
        let length = if kind == Kind::AtomicWrite { 8 } else { left };
        headers.reth = Some(Reth { addr: BASE, rkey: RKEY, length });
        headers.atomic = Some(AtomicEth { addr: BASE, rkey: RKEY, swap_or_add: 1, compare: 2 });
        headers.deth = Some(Deth::new(Qkey(7), Qpn::new(2)));
        headers.xrceth = Some(Xrceth::new(SRQN));
        let payload = if kind == Kind::AtomicWrite { 8 } else { now as usize };
        let taken = if kind == Kind::ReadRequest { left.div_ceil(256).max(1) } else { 1 };
        let message = (!position.ends()).then_some((kind, left - now));
        let after = Self { psn: self.psn.add(taken), message };
        (packet_bytes(headers, &vec![5; payload]), after)
    }

    /// The part of a SEND that a requester of this host would send next, and the peer after it.
    /// `None` in the midst of a message of another kind.
    fn part(&self, random: &mut Random, service: Service) -> Option<(MessagePart, Self)> {
        let (left, starts) = match self.message {
            Some((Kind::Send, left)) => (left, false),
            Some(_) => return None,
            None => (random.one_of(&[0, 8, 256, 300, 512, 600]), true),
        };
        let is_cut = left > MTU && random.below(2) == 0;
        let length = if is_cut { MTU } else { left };
        let part = MessagePart {
            psn: self.psn,
            length,
            mtu: PATH_MTU,
            is_rendezvous: length != 0 && service != Service::Uc && random.below(4) == 0,
            starts,
            ends: !is_cut,
            solicited: !is_cut && random.below(2) == 0,
            tag: if is_cut { Tag::None } else { random.one_of(&[Tag::None, Tag::Imm(3)]) },
            srqn: (service == Service::Xrc).then_some(SRQN),
        };
        let message = is_cut.then_some((Kind::Send, left - length));
        Some((part, Self { psn: self.psn.add(part.packets()), message }))
    }

    /// Hands what the peer sends next to a queue pair; returns whether it was taken.
    fn send(
        &mut self,
        random: &mut Random,
        qp: &mut Qp,
        (now, host): (Time, &mut TestHost),
    ) -> bool {
        let takes = matches!(qp.qp_type(), QpType::Rc | QpType::XrcTgt | QpType::Uc);
        let is_local = takes && random.below(2) == 0;
        let part = if is_local { self.part(random, qp.service()) } else { None };
        let (disposition, after) = match part {
            Some((part, after)) => (hand_over(random, qp, (now, host), &part), after),
            None => {
                let (bytes, after) = self.packet(random, qp.service());
                let packet = Packet::parse(&bytes).unwrap();
                (qp.handle_packet(now, &packet, &meta(), host), after)
            }
        };
        let is_taken = disposition == Disposition::Accepted;
        if is_taken {
            *self = after;
        } else if qp.service() == Service::Uc {
            *self = Self { message: None, ..after };
        }
        is_taken
    }
}

fn post(random: &mut Random, qp: &mut Qp, wr_id: u64) -> bool {
    let remote = Remote { addr: BASE, rkey: RKEY };
    let op = random.one_of(&[
        SendOp::Send,
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::AtomicWrite(remote),
        SendOp::LocalInv(RKEY),
    ]);
    let length = match op {
        SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_) => 8,
        _ => random.one_of(&[0, 8, 256, 600]),
    };
    let flags = SendFlags::SIGNALED;
    let dest = match qp.service() {
        Service::Ud => Some(UdDest { ah: 0, qpn: Qpn::new(2), qkey: Qkey(7), rate_mbps: 0 }),
        _ => None,
    };
    qp.post_send(SendWqe { wr_id, op, flags, length, dest, srqn: Some(SRQN) }).is_ok()
}

fn drain(qp: &mut Qp, host: &mut TestHost, now: Time) {
    let mut buf = vec![0; 8192];
    // A window and all answers fit; what does not stop within is a livelock.
    for _ in 0..20_000 {
        if let Some((part, len)) = qp.poll_message(now, host, &mut buf) {
            let sends = matches!(qp.qp_type(), QpType::Rc | QpType::XrcIni | QpType::Uc);
            assert!(sends, "{part:?}");
            assert!(!part.is_rendezvous || qp.qp_type() != QpType::Uc, "{part:?}");
            assert_eq!(part.srqn.is_some(), qp.qp_type() == QpType::XrcIni);
            assert!(part.has_fitting_length(PATH_MTU), "{part:?}");
            assert!(part.is_rendezvous || len == part.length as usize, "{part:?}");
            if let Some(ack) = qp.take_ack(now, host) {
                assert_eq!(qp.qp_type(), QpType::Rc, "{ack:?}");
                assert!(!qp.wants_responses(), "an acknowledgement is all there is to answer");
            }
            continue;
        }
        let sent = match qp.poll_response(now, host, &mut buf) {
            Some(sent) => sent,
            None => match qp.poll_request(now, host, &mut buf) {
                Some(sent) => sent,
                None => return,
            },
        };
        Packet::parse(&buf[..sent.len]).expect("what is sent parses");
    }
    panic!("a queue pair never stops sending");
}

/// One run; returns how many packets were accepted.
fn run(qp_type: QpType, seed: u64) -> u32 {
    let service = qp_type.service();
    let random = &mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let host = &mut TestHost::new();
    let mut qp = queue_pair(qp_type);
    bring_up(&mut qp, host);
    let mut peer = Peer::new();
    let (mut posted, mut received, mut accepted) = (0, 0, 0);
    for step in 0..600 {
        let now = Time(step * 1_000_000);
        match random.below(24) {
            0..4 => {
                host.post_recv(received, random.one_of(&[1000, 8192, 8192, 8192]));
                received += 1;
            }
            4 => posted += u64::from(post(random, &mut qp, posted)),
            5..8 => drain(&mut qp, host, now),
            8 => qp.handle_timeout(now, host),
            9 if random.below(40) == 0 => host.key_valid = false,
            9 if random.below(4) == 0 => {
                qp.set_messages(random.below(2) == 0);
                let limits = RendezvousLimits { min_bytes: MTU, max_bytes: 2 * MTU };
                qp.set_rendezvous((random.below(2) == 0).then_some(limits));
            }
            10 if random.below(40) == 0 => host.recv_valid = false,
            10 if random.below(4) == 0 => {
                let faults = [PullFault::Unreachable, PullFault::Withdrawn];
                host.pull = random.one_of(&[Ok(()), Ok(()), Err(faults[0]), Err(faults[1])]);
            }
            11 if random.below(2) == 0 => {
                let part = nonsense_part(random, peer.psn);
                hand_over(random, &mut qp, (now, host), &part);
            }
            11 => {
                let bytes = nonsense(random, service, peer.psn);
                if let Ok(packet) = Packet::parse(&bytes) {
                    qp.handle_packet(now, &packet, &meta(), host);
                }
            }
            _ if service == Service::Ud => {
                let mut headers =
                    Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(1), peer.psn));
                headers.deth = Some(Deth::new(Qkey(7), Qpn::new(2)));
                let bytes = packet_bytes(headers, &[1; 300]);
                let packet = Packet::parse(&bytes).unwrap();
                let disposition = qp.handle_packet(now, &packet, &meta(), host);
                accepted += u32::from(disposition == Disposition::Accepted);
            }
            _ => accepted += u32::from(peer.send(random, &mut qp, (now, host))),
        }
        if qp.state() == QpState::Error {
            assert_eq!(host.failures.len(), 1, "{qp_type:?} seed {seed}: one failure");
            drain(&mut qp, host, now);
            host.failures.clear();
            (host.key_valid, host.recv_valid) = (true, true);
            modify(&mut qp, host, QpState::Reset);
            bring_up(&mut qp, host);
            peer = Peer::new();
        }
    }
    modify(&mut qp, host, QpState::Error);
    drain(&mut qp, host, Time(0));
    let ids: Vec<u64> = host.sent.iter().map(|completion| completion.wr_id).collect();
    let expected: Vec<u64> = (0..posted).collect();
    assert_eq!(ids, expected, "{qp_type:?} seed {seed}: each send completes once, in order");
    let mut taken: Vec<u64> = host.received.iter().map(|completion| completion.wr_id).collect();
    taken.extend(host.flushed.iter().flatten().map(|recv| recv.wr_id));
    taken.extend(host.recvs.iter().map(|recv| recv.wr_id));
    taken.sort_unstable();
    let expected: Vec<u64> = (0..received).collect();
    assert_eq!(taken, expected, "{qp_type:?} seed {seed}: each receive ends once");
    accepted
}

fn run_all(qp_type: QpType) {
    // Miri takes a minute for what the machine does in a millisecond.
    let seeds = if cfg!(miri) { 1 } else { 300 };
    let accepted: u32 = (1..=seeds).map(|seed| run(qp_type, seed)).sum();
    let least = if qp_type.receives() { 33 * seeds as u32 } else { 0 };
    assert!(accepted >= least, "{qp_type:?}: only {accepted} packets meant anything");
}

#[test]
fn rc_survives_packets_of_no_sense() {
    run_all(QpType::Rc);
}

#[test]
fn xrc_initiators_survive_packets_of_no_sense() {
    run_all(QpType::XrcIni);
}

#[test]
fn xrc_targets_survive_packets_of_no_sense() {
    run_all(QpType::XrcTgt);
}

#[test]
fn uc_survives_packets_of_no_sense() {
    run_all(QpType::Uc);
}

#[test]
fn ud_survives_packets_of_no_sense() {
    run_all(QpType::Ud);
}

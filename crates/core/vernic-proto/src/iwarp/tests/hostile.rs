//! FPDUs of no sense, commands in any order, a network that cuts and ends: nothing panics, every
//! work request ends once, what is sent parses and holds one Terminate at most, and every stream
//! comes to an end. Seeded; the seed is in the message of a failure.

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    AtomicCode, AtomicRequest, AtomicResponse, DdpHeader, Msn, QueueNumber, RdmapOpcode,
    ReadRequest, Tagged, Untagged,
};

use super::pair::{REMOTE, agreed, config, modify, queue_pair, wqe};
use super::raw::{fpdu, segments, tagged, untagged};
use crate::iwarp::{Agreed, MAX_FPDU, Qp, Role, RtrSet, RxNext, StreamConfig, StreamEnd};
use crate::state::QpState;
use crate::test_host::{BASE, RKEY, TestHost};
use crate::time::Time;
use crate::wqe::{Remote, SendOp};

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
    fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// A peer that mostly follows the rules, so that nonsense meets messages half done.
#[derive(Clone, Copy)]
struct Peer {
    send: u32,
    read: u32,
    /// SEND in progress: bytes so far.
    sending: Option<u32>,
}

impl Peer {
    const NEW: Self = Self { send: 1, read: 1, sending: None };

    /// The next segment of a peer that means well, and the peer after it.
    fn segment(mut self, random: &mut Random) -> (DdpHeader, Vec<u8>, Self) {
        let len = random.one_of(&[0, 1, 8, 100, 300]);
        let body = vec![random.next() as u8; len];
        let kind = if self.sending.is_some() { 0 } else { random.below(5) };
        let header = match kind {
            0 | 1 => {
                let (offset, last) = (self.sending.unwrap_or(0), random.chance(2));
                self.sending = (!last).then_some(offset + len as u32);
                let header = untagged(RdmapOpcode::SEND, self.send, offset, last);
                self.send += u32::from(last);
                header
            }
            2 => {
                let header = tagged(RdmapOpcode::WRITE, RKEY, BASE + 5, true);
                return (DdpHeader::Tagged(header), body, self);
            }
            3 => {
                let mut body = vec![0; ReadRequest::LEN];
                let size = random.one_of(&[0, 10, 2000]);
                ReadRequest { size, source_stag: RKEY, source_offset: BASE, ..Default::default() }
                    .emit(&mut body);
                let header = untagged(RdmapOpcode::READ_REQUEST, self.read, 0, true);
                self.read += 1;
                return (DdpHeader::Untagged(header), body, self);
            }
            _ => {
                let mut body = vec![0; AtomicRequest::LEN];
                let code = random.one_of(&[AtomicCode::FETCH_ADD, AtomicCode::CMP_SWAP]);
                AtomicRequest { code, stag: RKEY, offset: BASE, ..Default::default() }
                    .emit(&mut body);
                let header = untagged(RdmapOpcode::ATOMIC_REQUEST, self.read, 0, true);
                self.read += 1;
                return (DdpHeader::Untagged(header), body, self);
            }
        };
        (DdpHeader::Untagged(header), body, self)
    }
}

/// Any opcode with numbers near those that make sense.
fn nonsense(random: &mut Random, peer: &Peer) -> Vec<u8> {
    let opcode = RdmapOpcode(random.below(16) as u8);
    let last = !random.chance(3);
    let len = random.one_of(&[0, 4, 8, 12, 28, 52, 64, 65, 300]);
    let mut body: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    if random.chance(2) && len >= AtomicResponse::LEN {
        AtomicResponse { request_id: random.below(3) as u32, original: 1 }.emit(&mut body);
    }
    let header = if random.chance(2) {
        let stag = random.one_of(&[RKEY, Rkey(0), Rkey(1), Rkey(2), Rkey(3)]);
        let offset = random.one_of(&[0, 10, BASE, BASE + 8000, u64::MAX]);
        let mut header: Tagged = tagged(opcode, stag, offset, last);
        header.control.ddp_version = random.one_of(&[1, 1, 1, 0]);
        DdpHeader::Tagged(header)
    } else {
        let mut header: Untagged = untagged(opcode, 0, 0, last);
        header.queue = QueueNumber(random.one_of(&[header.queue.0, 0, 1, 2, 3, 4, u32::MAX]));
        header.msn = Msn(random.one_of(&[peer.send, peer.read, 1, 0, u32::MAX]));
        header.offset = random.one_of(&[0, 0, peer.sending.unwrap_or(1), u32::MAX]);
        header.control.rdmap_version = random.one_of(&[1, 1, 1, 2]);
        DdpHeader::Untagged(header)
    };
    fpdu(&header, &body)
}

fn post(random: &mut Random, qp: &mut Qp, wr_id: u64) -> bool {
    let nowhere = Remote { addr: 0, rkey: Rkey(0) };
    let remote = random.one_of(&[REMOTE, REMOTE, nowhere]);
    let op = random.one_of(&[
        SendOp::Send,
        SendOp::SendInv(RKEY),
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 7),
        SendOp::Read(remote),
        SendOp::ReadInv(remote, RKEY),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::LocalInv(RKEY),
    ]);
    let length = match op {
        SendOp::FetchAdd { .. } => 8,
        _ => random.one_of(&[0, 8, 300, 1500]),
    };
    qp.post_send(wqe(wr_id, op, length)).is_ok()
}

/// A queue pair with its side of the network.
struct Victim {
    qp: Qp,
    host: TestHost,
    /// Received and not consumed.
    inbox: Vec<u8>,
    /// Sent, whole.
    sent: Vec<u8>,
}

impl Victim {
    fn new(agreed: &Agreed, config: StreamConfig) -> Self {
        let mut host = TestHost::new();
        let mut qp = queue_pair(&mut host);
        qp.start(agreed, config).unwrap();
        Self { qp, host, inbox: Vec::new(), sent: Vec::new() }
    }

    fn drain(&mut self, now: Time) {
        let mut buf = vec![0; MAX_FPDU];
        // The queues fit; what does not stop within is a livelock.
        for _ in 0..2_000 {
            match self.qp.poll_transmit(now, &mut self.host, &mut buf) {
                Some(len) => self.sent.extend_from_slice(&buf[..len]),
                None => {
                    let total = self.qp.committed();
                    self.qp.handle_sent(now, total, &mut self.host);
                    return;
                }
            }
        }
        panic!("a queue pair never stops sending");
    }

    fn receive(&mut self, now: Time, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        let consumed = self.qp.handle_bytes(now, &self.inbox, &mut self.host);
        self.inbox.drain(..consumed);
    }
}

/// One run; returns how many messages were taken.
fn run(seed: u64) -> u64 {
    let random = &mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut agreed = agreed(random.one_of(&[Role::Initiator, Role::Responder]));
    agreed.rtr = random.one_of(&[RtrSet::empty(), RtrSet::SEND, RtrSet::WRITE, RtrSet::READ]);
    let config = StreamConfig {
        place_before_crc: random.chance(2),
        large_fpdus: random.chance(2),
        recv_wait_ns: random.one_of(&[0, 5_000]),
        ..config()
    };
    let mut victim = Victim::new(&agreed, config);
    let (mut peer, mut posted, mut received) = (Peer::NEW, 0, 0);
    let mut now = Time(0);
    for step in 0..300 {
        now = Time(step * 200);
        let rest = victim.inbox.len();
        let Victim { qp, host, .. } = &mut victim;
        match random.below(40) {
            0..6 => {
                host.post_recv(received, random.one_of(&[10, 8000, 8000]));
                received += 1;
            }
            6..10 => posted += u64::from(post(random, qp, posted)),
            10..14 => victim.drain(now),
            14 => qp.handle_timeout(now, host),
            15 if random.chance(30) => host.key_valid = false,
            15 if random.chance(30) => host.send_valid = false,
            15 if random.chance(30) => host.recv_valid = false,
            16 if random.chance(30) => qp.close(now, host),
            16 if random.chance(30) => modify(qp, host, QpState::Error, now),
            17 if random.chance(30) => {
                let end = random.one_of(&[StreamEnd::Closed, StreamEnd::Reset]);
                qp.handle_end(now, end, rest, host);
            }
            18 if random.chance(3) => {
                let bytes = nonsense(random, &peer);
                victim.receive(now, &bytes);
            }
            19 if random.chance(10) => victim.receive(now, &[random.next() as u8; 40]),
            _ => {
                // Mostly there is room for what comes.
                if !random.chance(50) {
                    if host.recvs.is_empty() {
                        host.post_recv(received, 8000);
                        received += 1;
                    }
                    victim.drain(now);
                }
                let (header, body, after) = peer.segment(random);
                let bytes = fpdu(&header, &body);
                let cut = random.below(bytes.len() as u64 + 1) as usize;
                victim.receive(now, &bytes[..cut]);
                victim.receive(now, &bytes[cut..]);
                peer = after;
            }
        }
    }
    let taken = victim.qp.counters().messages_received;
    finish(&mut victim, now);
    assert!(victim.host.failures.len() <= 1, "seed {seed}: {:?}", victim.host.failures);
    let ids: Vec<u64> = victim.host.sent.iter().map(|completion| completion.wr_id).collect();
    let expected: Vec<u64> = (0..posted).collect();
    assert_eq!(ids, expected, "seed {seed}: each send completes once, in order");
    let mut ended: Vec<u64> = victim.host.received.iter().map(|one| one.wr_id).collect();
    ended.extend(victim.host.flushed.iter().flatten().map(|recv| recv.wr_id));
    ended.extend(victim.host.recvs.iter().map(|recv| recv.wr_id));
    ended.sort_unstable();
    let expected: Vec<u64> = (0..received).collect();
    assert_eq!(ended, expected, "seed {seed}: each receive ends once");
    let said = segments(&victim.sent);
    let is_last_word = |header: &DdpHeader| header.control().opcode == RdmapOpcode::TERMINATE;
    if let Some(at) = said.iter().position(|(header, _)| is_last_word(header)) {
        assert_eq!(at + 1, said.len(), "seed {seed}: something follows the last word");
    }
    taken
}

/// The application gives up, and the peer closes: both halves end, and nothing is due any more.
fn finish(victim: &mut Victim, now: Time) {
    let Victim { qp, host, .. } = victim;
    if qp.state() != QpState::Error {
        modify(qp, host, QpState::Error, now);
    }
    victim.drain(now);
    let Victim { qp, host, .. } = victim;
    qp.handle_end(now, StreamEnd::Closed, 0, host);
    while let Some(deadline) = qp.next_deadline() {
        qp.handle_timeout(deadline, host);
    }
    assert_eq!(qp.rx_next(), RxNext::Nothing);
    assert!(!qp.wants_transmit());
}

#[test]
fn a_queue_pair_survives_fpdus_of_no_sense() {
    // Miri takes a minute for what the machine does in a millisecond.
    let seeds = if cfg!(miri) { 2 } else { 3_000 };
    let taken: u64 = (1..=seeds).map(run).sum();
    let least = if cfg!(miri) { 1 } else { 8 * seeds };
    assert!(taken >= least, "only {taken} messages of {seeds} runs meant anything");
}

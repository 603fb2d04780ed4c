//! Runs of packets: responses are placed as they come, and complete their requests where the run
//! ends. Nothing else differs from packets that are handled one by one, but that the window grows
//! as by one acknowledgement of all.

use super::*;

impl Sender {
    /// Hands over a response of a run.
    fn in_run(&mut self, headers: Headers, payload: &[u8]) -> Disposition {
        let mut buf = [0; 4500];
        let at = headers.emit(&mut buf);
        buf[at..at + payload.len()].copy_from_slice(payload);
        let packet = Packet::parse(&buf[..at + payload.len()]).unwrap();
        let meta = RxMeta { grh: None, ecn: 0, route: LocalRoute::NONE, is_peer: true };
        self.qp.handle_packet_of_run(self.now, &packet, &meta, &mut self.host)
    }

    fn end_run(&mut self) {
        self.qp.end_run(self.now, &mut self.host);
    }
}

fn headers(kind: Kind, position: Position, psn: u32) -> Headers {
    let opcode = response(Service::Rc, kind, position).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(psn)));
    headers.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
    headers.atomic_ack = (kind == Kind::AtomicAck).then_some(AtomicAckEth { original: 5 });
    headers
}

fn only(psn: u32) -> Headers {
    headers(Kind::ReadResponse, Position::Only, psn)
}

/// Two READs of 8 bytes, of which the first one is answered in a run that is not over.
fn in_the_midst_of_a_run() -> Sender {
    let mut s = Sender::new();
    (0..2).for_each(|_| s.post(read_at(0x1000), 8));
    s.drain();
    assert_eq!(s.in_run(only(0), &[7; 8]), Disposition::Accepted);
    assert_eq!((s.log().as_str(), s.qp.has_run()), ("", true));
    s
}

#[test]
fn reads_of_a_run_complete_at_its_end() {
    let mut s = in_the_midst_of_a_run();
    s.in_run(only(1), &[7; 8]);
    assert_eq!(s.host.responses, [(0, 0, 8), (1, 0, 8)]);
    check(&s.log(), expect![""]);
    s.end_run();
    check(&s.log(), expect!["wc 1 Success; wc 2 Success;"]);
    assert!(!s.qp.has_run() && s.qp.next_deadline().is_none());
}

#[test]
fn a_wrong_response_fails_its_request_behind_those_of_the_run() {
    let mut s = in_the_midst_of_a_run();
    s.in_run(only(1), &[7; 4]);
    check(
        &s.log(),
        expect![
            "wc 1 Success; failed: the peer's response does not fit the request: a READ response of the wrong length; wc 2 BadResponse;"
        ],
    );
}

#[test]
fn what_was_answered_in_a_run_is_not_flushed() {
    let mut s = in_the_midst_of_a_run();
    s.modify(QpState::Error, AttrMask::STATE, 2).unwrap();
    check(&s.log(), expect!["wc 1 Success; wc 2 Flushed;"]);

    // The peer breaks the rules in the same run.
    let mut s = in_the_midst_of_a_run();
    let bth = Bth::new(Opcode::RC_SEND_LAST, Qpn::new(0x11), Psn::new(0));
    s.in_run(Headers::new(bth), &[7; 4]);
    assert_eq!(s.qp.state(), QpState::Error);
    let log = s.log();
    assert!(log.contains("wc 1 Success; wc 2 Flushed;"), "{log}");
}

/// A number that looks like chance, below `limit`.
fn draw(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

/// What a peer that has everything answers to a request.
fn answers_to(packet: &Packet<'_>) -> Vec<(Headers, usize)> {
    let psn = packet.psn().value();
    match (packet.info().kind, packet.reth()) {
        (Kind::ReadRequest, Some(reth)) => {
            let count = reth.length.div_ceil(MTU).max(1);
            let of = |at| {
                let left = reth.length - at * MTU;
                let position = Position::of(at, count);
                let mut headers = headers(Kind::ReadResponse, position, psn + at);
                headers.aeth = headers.aeth.filter(|_| position != Position::Middle);
                (headers, left.min(MTU) as usize)
            };
            (0..count).map(of).collect()
        }
        (Kind::FetchAdd, _) => vec![(headers(Kind::AtomicAck, Position::Only, psn), 0)],
        _ if packet.ack_req() => vec![(headers(Kind::Ack, Position::Only, psn), 0)],
        _ => Vec::new(),
    }
}

/// Two queue pairs to which the same happens.
struct Twins {
    single: Sender,
    by_run: Sender,
    answers: Vec<(Headers, usize)>,
}

impl Twins {
    fn both(&mut self, f: impl Fn(&mut Sender)) {
        f(&mut self.single);
        f(&mut self.by_run);
    }

    /// Both send the same, which is answered later.
    fn drain(&mut self) {
        let (mut one, mut other) = ([0; 4500], [0; 4500]);
        loop {
            let Sender { qp, host, now, .. } = &mut self.single;
            let sent = qp.poll_request(*now, host, &mut one).map(|sent| &one[..sent.len]);
            let Sender { qp, host, now, .. } = &mut self.by_run;
            let likewise = qp.poll_request(*now, host, &mut other).map(|sent| &other[..sent.len]);
            assert_eq!(sent, likewise);
            let Some(bytes) = sent else { return };
            self.answers.extend(answers_to(&Packet::parse(bytes).unwrap()));
        }
    }

    /// Some of the answers come: some twice, some in another order, some not at all.
    fn answer(&mut self, count: usize, chance: &mut u64) {
        let mut burst: Vec<_> = self.answers.drain(..count.min(self.answers.len())).collect();
        if draw(chance, 4) == 0 && burst.len() > 1 {
            let at = draw(chance, burst.len() as u64 - 1) as usize;
            match draw(chance, 3) {
                0 => drop(burst.remove(at)),
                1 => burst.insert(at, burst[at]),
                _ => burst.swap(at, at + 1),
            }
        }
        for (headers, len) in burst {
            let payload = vec![9; len];
            assert_eq!(
                self.single.answer(headers, &payload),
                self.by_run.in_run(headers, &payload)
            );
        }
        self.by_run.end_run();
    }

    fn compare(&mut self) {
        assert_eq!(self.single.log(), self.by_run.log());
        assert_eq!(self.single.host.responses, self.by_run.host.responses);
        let of = |s: &Sender| (s.qp.state(), s.qp.next_deadline(), s.qp.wants_requests());
        assert_eq!(of(&self.single), of(&self.by_run));
    }
}

#[test]
fn runs_end_as_packets_one_by_one_do() {
    const SEEDS: u64 = if cfg!(miri) { 1 } else { 500 };
    let mut completed = 0;
    for seed in 0..SEEDS {
        let chance = &mut (seed << 32 | 77);
        let make = || {
            let qp = Qp::with_algorithm(INIT, crate::congestion::Algorithm::None);
            Sender::connect(qp, |attr| (attr.max_rd_atomic, attr.retry_cnt) = (16, 7))
        };
        let mut twins = Twins { single: make(), by_run: make(), answers: Vec::new() };
        for _ in 0..60 {
            let (op, bytes) = match draw(chance, 6) {
                0 => (SendOp::Write(Remote { addr: 0, rkey: Rkey(9) }), 4 * draw(chance, 150)),
                1 => {
                    let remote = Remote { addr: 8, rkey: Rkey(9) };
                    (SendOp::FetchAdd { remote, add: 1 }, 8)
                }
                _ => (read_at(0x1000), 4 * draw(chance, 150)),
            };
            if twins.single.qp.send_room() > 0 && twins.single.qp.state() == QpState::Rts {
                twins.both(|s| s.post(op, bytes as u32));
            }
            if draw(chance, 3) == 0 {
                twins.drain();
                twins.answer(draw(chance, 12) as usize, chance);
                twins.compare();
            }
            if draw(chance, 12) == 0 {
                twins.both(|s| s.pass(5_000_000));
                twins.compare();
            }
        }
        completed += twins.single.qp.send_progress().completed;
    }
    assert!(completed > 20 * SEEDS, "{completed} requests");
}

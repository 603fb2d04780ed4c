//! Scenarios of the RC send side alone: requests come out, crafted answers go in, time is virtual.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use vernic_wire::opcode::{Kind, Opcode, Position, response};
use vernic_wire::{
    AckTimeout, Aeth, AtomicAckEth, Bth, CreditCode, Headers, LocalRoute, Mtu, NakCode, Packet,
    Psn, Qpn, Rkey, RnrTimer, Service, Srqn, Syndrome,
};

use crate::*;

mod congestion;
mod direct;
mod gone;
mod limit;
mod messages;
mod migration;
mod overtaken;
mod patience;
mod runs;

/// A device whose memory yields a counter and swallows responses.
#[derive(Default)]
struct TestHost {
    log: String,
    responses: Vec<(u32, u32, usize)>,
    fail_gather: bool,
    /// Payload that was named: slot, first byte, length.
    named: Vec<(u32, u32, u32)>,
    unnamed: bool,
    /// The alternate path has the addresses of the path.
    is_alike: bool,
    /// Nanoseconds for which the peer is known to be there.
    patience: u64,
}

impl Host for TestHost {
    fn gather(&mut self, slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        if self.fail_gather {
            return Err(AccessFault { check: AccessCheck::KeyStale, key: slot, addr: 0, len: 0 });
        }
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = (offset as usize + i) as u8;
        }
        Ok(())
    }
    fn name_payload(
        &mut self,
        slot: u32,
        offset: u32,
        length: u32,
        buf: &mut [u8],
    ) -> Result<Option<usize>, AccessFault> {
        if self.fail_gather {
            return Err(AccessFault { check: AccessCheck::KeyStale, key: slot, addr: 0, len: 0 });
        }
        if self.unnamed {
            return Ok(None);
        }
        self.named.push((slot, offset, length));
        buf[..8].fill(7);
        Ok(Some(8))
    }
    fn scatter_response(&mut self, slot: u32, offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        self.responses.push((slot, offset, data.len()));
        Ok(())
    }
    fn local_op(&mut self, wqe: &SendWqe) -> Result<(), AccessFault> {
        let _ = write!(self.log, "local {}; ", wqe.wr_id);
        Ok(())
    }
    fn check_remote(
        &mut self,
        _: Rkey,
        _: u64,
        _: u64,
        _: RemoteAccess,
    ) -> Result<(), AccessFault> {
        Ok(())
    }
    fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn read_remote(&mut self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn atomic(&mut self, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        Ok(0)
    }
    fn atomic_write(&mut self, _: Rkey, _: u64, _: [u8; 8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn flush(&mut self, _: Rkey, _: u64, _: u64, _: RemoteAccess) -> Result<(), AccessFault> {
        Ok(())
    }
    fn invalidate_remote(&mut self, _: Rkey) -> Result<(), AccessFault> {
        Ok(())
    }
    fn select_srq(&mut self, _: Srqn) -> Result<(), SrqFault> {
        Ok(())
    }
    fn take_recv(&mut self) -> Option<RecvWqe> {
        None
    }
    fn recv_credits(&mut self) -> Option<u32> {
        None
    }
    fn scatter_recv(&mut self, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn live_peer_patience(&mut self, _: &QpAttr) -> u64 {
        self.patience
    }
    fn is_alternate_alike(&mut self) -> bool {
        self.is_alike
    }
    fn change_path(&mut self) {
        self.log.push_str("path; ");
    }
    fn flush_recv(&mut self, _: Option<RecvWqe>) {}
    fn complete_send(&mut self, c: Completion) {
        let _ = write!(self.log, "wc {} {:?}; ", c.wr_id, c.status);
    }
    fn complete_recv(&mut self, _: Completion) {}
    fn event(&mut self, event: QpEvent) {
        let _ = write!(self.log, "event {event:?}; ");
    }
    fn failure(&mut self, failure: Failure) {
        let _ = write!(self.log, "failed: {}; ", failure.cause);
    }
    fn stalled(&mut self, stall: Stall) {
        let _ = write!(self.log, "stalled: {stall}; ");
    }
}

/// A queue pair in RTS, MTU 256, timeout 4.2 ms, sequence numbers from `psn`.
struct Sender {
    qp: Qp,
    host: TestHost,
    now: Time,
    next_id: u64,
}

const MTU: u32 = 256;

const INIT: QpInit = QpInit {
    qpn: Qpn::new(0x11),
    qp_type: QpType::Rc,
    max_send_wr: 64,
    max_window: 1024,
    shared_rq: false,
};

impl Sender {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut QpAttr)) -> Self {
        Self::of(INIT, change)
    }

    fn of(init: QpInit, change: impl FnOnce(&mut QpAttr)) -> Self {
        Self::connect(Qp::new(init), change)
    }

    fn connect(mut qp: Qp, change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut attr = QpAttr {
            path_mtu: Mtu::B256,
            dest_qpn: Qpn::new(0x22),
            timeout: AckTimeout::new(10),
            retry_cnt: 3,
            rnr_retry: 2,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            ..QpAttr::default()
        };
        change(&mut attr);
        let mut host = TestHost::default();
        use AttrMask as M;
        for (state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                QpState::Rtr,
                M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER,
            ),
            (QpState::Rts, M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC),
        ] {
            attr.state = state;
            attr.av.port = vernic_wire::PortNum(1);
            qp.modify(&attr, mask | M::STATE, Time(0), &mut host).unwrap();
        }
        Self { qp, host, now: Time(0), next_id: 1 }
    }

    /// A modify to `state` that names the attributes of `mask`, with `max_rd_atomic` as given.
    fn modify(
        &mut self,
        state: QpState,
        mask: AttrMask,
        max_rd_atomic: u8,
    ) -> Result<(), ModifyError> {
        let attr = QpAttr { state, max_rd_atomic, ..*self.qp.attr() };
        self.qp.modify(&attr, mask, self.now, &mut self.host)
    }

    fn post(&mut self, op: SendOp, length: u32) {
        self.post_flags(op, length, SendFlags::SIGNALED);
    }
    fn post_flags(&mut self, op: SendOp, length: u32, flags: SendFlags) {
        let wqe = SendWqe { wr_id: self.next_id, op, flags, length, dest: None, srqn: None };
        self.next_id += 1;
        self.qp.post_send(wqe).unwrap();
    }

    /// Everything that may leave now.
    fn drain(&mut self) -> String {
        let mut out = String::new();
        let mut buf = [0; 4500];
        while let Some(t) = self.qp.poll_request(self.now, &mut self.host, &mut buf) {
            let packet = Packet::parse(&buf[..t.len]).unwrap();
            let _ = write!(out, "{} {}", packet.opcode(), packet.psn());
            if packet.ack_req() {
                out.push('!');
            }
            if let (true, Some(reth)) = (packet.info().kind == Kind::ReadRequest, packet.reth()) {
                let _ = write!(out, " [{:#x}+{}]", reth.addr, reth.length);
            }
            out.push_str("; ");
        }
        out
    }

    fn answer(&mut self, headers: Headers, payload: &[u8]) -> Disposition {
        self.answer_marked(headers, payload, 0)
    }

    /// The same with `ecn` in the IP header.
    fn answer_marked(&mut self, headers: Headers, payload: &[u8], ecn: u8) -> Disposition {
        let mut buf = [0; 4500];
        let at = headers.emit(&mut buf);
        buf[at..at + payload.len()].copy_from_slice(payload);
        let packet = Packet::parse(&buf[..at + payload.len()]).unwrap();
        let meta = RxMeta { grh: None, ecn, route: LocalRoute::NONE, is_peer: true };
        self.qp.handle_packet(self.now, &packet, &meta, &mut self.host)
    }
    fn aeth(&mut self, psn: u32, msn: u32, syndrome: Syndrome) -> Disposition {
        let bth = Bth::new(Opcode::RC_ACK, Qpn::new(0x11), Psn::new(psn));
        let mut headers = Headers::new(bth);
        headers.aeth = Some(Aeth { syndrome, msn });
        self.answer(headers, &[])
    }
    fn ack(&mut self, psn: u32) -> Disposition {
        self.aeth(psn, 0, Syndrome::ack(CreditCode::INVALID))
    }
    fn nak(&mut self, psn: u32, code: NakCode) -> Disposition {
        self.aeth(psn, 0, Syndrome::nak(code))
    }
    fn read_response(&mut self, psn: u32, position: Position, len: usize) -> Disposition {
        let opcode = response(Service::Rc, Kind::ReadResponse, position).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(psn)));
        headers.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
        self.answer(headers, &vec![7; len])
    }
    fn pass(&mut self, nanos: u64) {
        self.now = self.now + nanos;
        self.qp.handle_timeout(self.now, &mut self.host);
    }

    fn log(&mut self) -> String {
        std::mem::take(&mut self.host.log)
    }
}

#[track_caller]
fn check(actual: &str, expected: Expect) {
    expected.assert_eq(actual.trim_end());
}

fn read_at(addr: u64) -> SendOp {
    SendOp::Read(Remote { addr, rkey: Rkey(9) })
}

#[test]
fn message_is_cut_by_the_mtu_and_asks_for_an_ack_at_its_end() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 3 * MTU);
    s.post(SendOp::Send, 0);
    check(
        &s.drain(),
        expect!["RC_SEND_FIRST 0; RC_SEND_MIDDLE 1; RC_SEND_LAST 2!; RC_SEND_ONLY 3!;"],
    );
    s.ack(3);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success;"]);
    assert!(!s.qp.wants_transmit() && s.qp.next_deadline().is_none());
}

#[test]
fn sequence_nak_goes_back_to_the_missing_packet_once() {
    let mut s = Sender::with(|a| a.sq_psn = Psn::new(0xFF_FFFE));
    s.post(SendOp::Send, 4 * MTU);
    s.drain();
    s.nak(0xFF_FFFF, NakCode::PSN_SEQUENCE);
    check(&s.drain(), expect!["RC_SEND_MIDDLE 16777215; RC_SEND_MIDDLE 0!;"]);
    s.nak(0xFF_FFFF, NakCode::PSN_SEQUENCE);
    check(&s.drain(), expect![""]);
    s.ack(1);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!(s.qp.counters().retransmitted_packets, 2);
}

#[test]
fn some_packets_are_held_back_eight_times_to_see_whether_the_peer_keeps_them() {
    let mut s = Sender::new();
    // The last one, half of them, all but the missing one, and so on.
    for (trial, sent) in [3, 2, 1, 3, 2, 1, 3, 2].into_iter().enumerate() {
        let first = trial as u32 * 4;
        s.post(SendOp::Send, 4 * MTU);
        s.drain();
        s.nak(first, NakCode::PSN_SEQUENCE);
        let before = s.drain();
        assert_eq!(before.matches(';').count(), sent, "{before}");
        assert!(before.ends_with("!; "), "the last of them asks for an ACK: {before}");
        s.ack(first + sent as u32 - 1);
        assert_eq!(s.drain().matches(';').count(), 4 - sent);
        s.ack(first + 3);
    }
    s.post(SendOp::Send, 4 * MTU);
    s.drain();
    s.nak(32, NakCode::PSN_SEQUENCE);
    assert_eq!(s.drain().matches(';').count(), 4);
}

#[test]
fn a_trial_that_another_loss_ends_shows_nothing() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 64 * MTU);
    for missing in 0..16 {
        s.drain();
        s.nak(missing, NakCode::PSN_SEQUENCE);
    }
    let all = s.drain();
    s.nak(16, NakCode::PSN_SEQUENCE);
    assert!(all.matches(';').count() < s.drain().matches(';').count(), "sixteen times at most");
}

#[test]
fn what_another_queue_pair_has_learnt_of_a_peer_need_not_be_learnt_again() {
    let mut s = Sender::new();
    assert!(!s.qp.asks_kept());
    s.qp.assume_peer_keeps();
    s.post(SendOp::Send, 4 * MTU);
    s.drain();
    s.nak(0, NakCode::PSN_SEQUENCE);
    assert_eq!(s.drain().matches(';').count(), 4, "nothing is held back");
    assert!(s.qp.asks_kept() && !s.qp.peer_keeps(), "an assumption is not passed on");
}

#[test]
fn silence_is_repeated_retry_cnt_times_and_then_explained() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.post(SendOp::Send, 1);
    let timeout = AckTimeout::new(10).nanos().unwrap();
    for _ in 0..3 {
        assert!(!s.drain().is_empty());
        s.pass(timeout);
    }
    check(&s.log(), expect![""]);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!; RC_SEND_ONLY 1!;"]);
    s.pass(timeout);
    check(
        &s.log(),
        expect![
            "failed: no answer after 4 transmissions in 16 ms; it never answered: wrong address, GID index, QPN or PSN, peer not in RTR, or a link that is down; wc 1 RetryExceeded; wc 2 Flushed;"
        ],
    );
    assert_eq!(s.qp.state(), QpState::Error);
}

#[test]
fn rnr_nak_waits_for_its_delay_and_gives_up_after_rnr_retry() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    let delay = RnrTimer::new(12);
    for _ in 0..2 {
        assert!(!s.drain().is_empty());
        s.aeth(0, 0, Syndrome::rnr(delay));
        assert!(!s.qp.wants_transmit());
        s.pass(delay.nanos() - 1);
        check(&s.drain(), expect![""]);
        s.pass(1);
    }
    s.drain();
    s.aeth(0, 0, Syndrome::rnr(delay));
    check(
        &s.log(),
        expect![
            "failed: the peer had no receive posted, 3 times in a row, asking for 640 us each; post receives earlier or raise rnr_retry (7 = for ever); wc 1 RnrRetryExceeded;"
        ],
    );
}

#[test]
fn a_peer_without_receives_is_told_of_once_for_each_request_after_two_seconds() {
    let mut s = Sender::with(|attr| attr.rnr_retry = 7);
    (1..=2).for_each(|_| s.post(SendOp::Send, 1));
    let delay = RnrTimer::new(0);
    for psn in 0..2 {
        for naks in 1..=6 {
            s.drain();
            s.aeth(psn, psn, Syndrome::rnr(delay));
            let is_told = s.log().contains("stalled: for 2.6 s the peer has had no receive posted");
            assert_eq!(is_told, naks == 5, "{naks}");
            s.pass(delay.nanos());
        }
        s.drain();
        s.ack(psn);
        assert_eq!(s.log().trim_end(), format!("wc {} Success;", psn + 1));
    }
}

#[test]
fn ack_beyond_an_unanswered_read_is_an_implied_nak() {
    let mut s = Sender::new();
    s.post(read_at(0x1000), 2 * MTU);
    s.post(SendOp::Send, 1);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x1000+512]; RC_SEND_ONLY 2!;"]);
    s.ack(2);
    s.ack(2);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x1000+512]; RC_SEND_ONLY 2!;"]);
    s.read_response(0, Position::First, 256);
    s.read_response(1, Position::Last, 256);
    s.ack(2);
    check(&s.log(), expect!["wc 1 Success; wc 2 Success;"]);
    assert_eq!(s.host.responses, [(0, 0, 256), (0, 256, 256)]);
}

#[test]
fn lost_read_response_is_asked_for_from_where_it_is_missing() {
    let mut s = Sender::new();
    s.post(read_at(0x1000), 3 * MTU + 4);
    s.drain();
    s.read_response(0, Position::First, 256);
    s.read_response(2, Position::Middle, 256);
    check(&s.drain(), expect!["RC_READ_REQUEST 1 [0x1100+516];"]);
    s.read_response(1, Position::First, 256);
    s.read_response(2, Position::Middle, 256);
    s.read_response(3, Position::Last, 4);
    check(&s.log(), expect!["wc 1 Success;"]);
}

#[test]
fn long_read_is_asked_for_in_pieces_within_depth_and_window() {
    let mut s = Sender::new();
    s.post(read_at(0), 200 * MTU);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x0+4096]; RC_READ_REQUEST 16 [0x1000+4096];"]);
    for psn in 0..16 {
        let position = Position::of(psn, 16);
        assert_eq!(s.read_response(psn, position, 256), Disposition::Accepted);
    }
    assert!(!s.drain().is_empty());
}

#[test]
fn repeated_read_keeps_the_borders_of_its_pieces() {
    let mut s = Sender::new();
    s.post(read_at(0), 32 * MTU);
    s.drain();
    s.read_response(0, Position::First, 256);
    s.pass(AckTimeout::new(10).nanos().unwrap());
    check(&s.drain(), expect!["RC_READ_REQUEST 1 [0x100+3840];"]);
    for psn in 1..15 {
        s.read_response(psn, Position::Middle, 256);
    }
    s.read_response(15, Position::Last, 256);
    check(&s.drain(), expect!["RC_READ_REQUEST 16 [0x1000+4096];"]);
}

#[test]
fn an_answer_to_a_second_copy_lets_the_ack_timeout_start_anew() {
    let timeout = AckTimeout::new(10).nanos().unwrap();
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    s.pass(timeout);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!;"]);
    s.ack(0);
    s.post(SendOp::Send, 1);
    check(&s.drain(), expect!["RC_SEND_ONLY 1!;"]);
    // The peer is late, and comes to the second copy of the first packet: the other one stands
    // behind it.
    s.pass(timeout - 1);
    s.drain();
    assert_eq!(s.ack(0), Disposition::Duplicate);
    s.pass(timeout - 1);
    check(&s.drain(), expect![""]);
    // Nothing more came: it is lost.
    s.pass(1);
    check(&s.drain(), expect!["RC_SEND_ONLY 1!;"]);
    assert_eq!(s.qp.counters().ack_timeouts, 2);
}

#[test]
fn a_peer_that_answers_old_packets_without_end_is_given_up_all_the_same() {
    let timeout = AckTimeout::new(10).nanos().unwrap();
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    s.ack(0);
    s.post(SendOp::Send, 1);
    s.drain();
    let mut waited = 0;
    while s.qp.counters().ack_timeouts == 0 {
        assert_eq!(s.ack(0), Disposition::Duplicate);
        s.pass(timeout / 2);
        s.drain();
        waited += 1;
        assert!(waited < 100, "it is waited for");
    }
    assert!(waited > 60, "{waited} times half a timeout");
}

#[test]
fn fence_holds_until_reads_are_complete() {
    let mut s = Sender::new();
    s.post(read_at(0), 12);
    s.post_flags(SendOp::Send, 1, SendFlags::SIGNALED | SendFlags::FENCE);
    check(&s.drain(), expect!["RC_READ_REQUEST 0 [0x0+12];"]);
    s.read_response(0, Position::Only, 12);
    check(&s.drain(), expect!["RC_SEND_ONLY 1!;"]);
}

#[test]
fn local_operations_complete_in_order_without_a_packet() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.post(SendOp::LocalInv(Rkey(5)), 0);
    check(&s.drain(), expect!["RC_SEND_ONLY 0!;"]);
    s.ack(0);
    check(&s.log(), expect!["local 2; wc 1 Success; wc 2 Success;"]);
    s.post(SendOp::LocalInv(Rkey(6)), 0);
    s.drain();
    check(&s.log(), expect!["local 3; wc 3 Success;"]);
}

#[test]
fn credits_hold_sends_back_and_one_alone_probes() {
    let mut s = Sender::new();
    for _ in 0..4 {
        s.post(SendOp::Send, 1);
    }
    let mut buf = [0; 4500];
    s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
    // One message received, one more receive there: the second may go, the third may not.
    s.aeth(0, 1, Syndrome::ack(CreditCode::at_most(1)));
    check(&s.drain(), expect!["RC_SEND_ONLY 1!;"]);
    s.aeth(1, 2, Syndrome::ack(CreditCode::at_most(0)));
    check(&s.drain(), expect!["RC_SEND_ONLY 2!;"]);
    s.aeth(2, 3, Syndrome::ack(CreditCode::at_most(0)));
    // Operations that take no receive need no credit.
    s.post(SendOp::Write(Remote::default()), 1);
    check(&s.drain(), expect!["RC_SEND_ONLY 3!; RC_WRITE_ONLY 4!;"]);
}

#[test]
fn pieces_of_a_read_count_as_messages_for_the_credits() {
    let mut s = Sender::new();
    s.post(read_at(0), 32 * MTU);
    s.post(SendOp::Send, 1);
    s.post(SendOp::Send, 1);
    let mut buf = [0; 4500];
    for _ in 0..2 {
        s.qp.poll_request(s.now, &mut s.host, &mut buf).unwrap();
    }
    let credits = Syndrome::ack(CreditCode::at_most(1));
    for psn in 0..32 {
        let opcode = response(Service::Rc, Kind::ReadResponse, Position::of(psn % 16, 16)).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(psn)));
        headers.aeth = Some(Aeth { syndrome: credits, msn: 1 + psn / 16 });
        s.answer(headers, &[7; 256]);
    }
    // Two messages received, one receive there: the first SEND is message 3, the second must wait.
    check(&s.drain(), expect!["RC_SEND_ONLY 32!;"]);
}

#[test]
fn local_error_waits_for_the_requests_before_it() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    s.host.fail_gather = true;
    s.post(SendOp::Send, 1);
    s.post(SendOp::Send, 1);
    s.drain();
    check(&s.log(), expect![""]);
    s.ack(0);
    assert!(s.qp.wants_transmit());
    s.drain();
    check(
        &s.log(),
        expect![
            "wc 1 Success; failed: local memory: key 0x00000001, address 0x0, 0 bytes: the key was deregistered, invalidated or rebound, or is a wrong one; wc 2 LocalProtection; wc 3 Flushed;"
        ],
    );
}

#[test]
fn refusal_fails_the_request_it_names_with_its_key_and_flushes_the_rest() {
    let mut s = Sender::new();
    for n in 1..=3 {
        s.post(SendOp::Write(Remote { addr: 0x1000 * n, rkey: Rkey(0x100 * n as u32) }), 1);
    }
    s.drain();
    s.nak(1, NakCode::REMOTE_ACCESS);
    check(
        &s.log(),
        expect![
            "wc 1 Success; failed: the peer refused: key, bounds or rights of the remote memory; it was asked for 1 bytes at 0x2000 with R_Key 0x00000200; the peer's log and its queue pair's explanation say which check failed; wc 2 RemoteAccess; wc 3 Flushed;"
        ],
    );
}

#[test]
fn atomic_response_lands_in_host_order() {
    let mut s = Sender::new();
    s.post(SendOp::FetchAdd { remote: Remote::default(), add: 1 }, 8);
    s.drain();
    let bth = Bth::new(Opcode::RC_ATOMIC_ACK, Qpn::new(0x11), Psn::new(0));
    let mut headers = Headers::new(bth);
    headers.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 1 });
    headers.atomic_ack = Some(AtomicAckEth { original: 41 });
    assert_eq!(s.answer(headers, &[]), Disposition::Accepted);
    check(&s.log(), expect!["wc 1 Success;"]);
    assert_eq!(s.host.responses, [(0, 0, 8)]);
}

#[test]
fn sqd_finishes_what_was_started_and_says_so() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1);
    s.drain();
    let mut attr = *s.qp.attr();
    attr.state = QpState::Sqd;
    attr.sqd_async_notify = true;
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    s.qp.modify(&attr, mask, s.now, &mut s.host).unwrap();
    s.post(SendOp::Send, 1);
    assert!(s.qp.is_draining());
    check(&s.drain(), expect![""]);
    s.ack(0);
    check(&s.log(), expect!["wc 1 Success; event SqDrained;"]);
    attr.state = QpState::Rts;
    s.qp.modify(&attr, AttrMask::STATE, s.now, &mut s.host).unwrap();
    check(&s.drain(), expect!["RC_SEND_ONLY 1!;"]);
}

#[test]
fn a_response_is_credible_at_the_edges_of_what_is_in_flight() {
    let mut t = Sender::new();
    let credible = |t: &Sender| {
        let is = |psn: &u32| {
            let mut buf = [0; 64];
            let bth = Bth::new(Opcode::RC_ACK, Qpn::new(0x11), Psn::new(*psn));
            let mut headers = Headers::new(bth);
            headers.aeth = Some(Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 });
            let len = headers.emit(&mut buf);
            t.qp.is_credible(&Packet::parse(&buf[..len]).unwrap())
        };
        (0..200u32).filter(is).collect::<Vec<_>>()
    };
    assert_eq!(credible(&t), []);
    t.post(SendOp::Send, 6 * MTU);
    t.drain();
    assert_eq!(credible(&t), [0, 5]);
    t.ack(1);
    assert_eq!(credible(&t), [2, 5]);
    // Sent again up to the middle.
    t.nak(2, NakCode::PSN_SEQUENCE);
    for _ in 0..2 {
        t.qp.poll_request(t.now, &mut t.host, &mut [0; 4500]).unwrap();
    }
    assert_eq!(credible(&t), [2, 3, 5]);
    t.ack(5);
    assert_eq!(credible(&t), []);
}

#[test]
fn answers_to_nothing_are_dropped() {
    let mut s = Sender::new();
    assert_eq!(s.ack(0), Disposition::Drop(DropReason::StaleResponse));
    s.post(SendOp::Send, 1);
    s.drain();
    assert_eq!(s.ack(5), Disposition::Drop(DropReason::StaleResponse));
    s.ack(0);
    assert_eq!(s.ack(0), Disposition::Duplicate);
}

#[test]
fn window_bounds_what_is_in_flight() {
    let mut s = Sender::new();
    s.post(SendOp::Send, 1000 * MTU);
    let sent = s.drain().matches(';').count();
    assert_eq!(sent, 32);
    assert!(!s.qp.wants_transmit());
    s.ack(15);
    assert!(s.qp.wants_transmit());
}

/// Every operation that `max_rd_atomic` limits.
fn limited_operations() -> [SendOp; 5] {
    let remote = Remote { addr: 0x1000, rkey: Rkey(9) };
    [
        SendOp::Read(remote),
        SendOp::CmpSwap { remote, compare: 0, swap: 1 },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::Flush { remote, placement: 1, selectivity: 0 },
        SendOp::AtomicWrite(remote),
    ]
}

#[test]
fn without_read_depth_reads_and_atomics_are_refused_at_the_post() {
    let mut s = Sender::with(|a| a.max_rd_atomic = 0);
    for op in limited_operations() {
        let wqe =
            SendWqe { wr_id: 1, op, flags: SendFlags::SIGNALED, length: 8, dest: None, srqn: None };
        assert_eq!(s.qp.post_send(wqe), Err(PostError::NoReadDepth));
    }
    s.post(SendOp::Write(Remote::default()), 8);
    check(&s.drain(), expect!["RC_WRITE_ONLY 0!;"]);
}

#[test]
fn read_depth_cannot_end_while_requests_are_queued_that_need_it() {
    for op in limited_operations() {
        let mut s = Sender::new();
        s.post(SendOp::Send, 1);
        s.drain();
        s.modify(QpState::Sqd, AttrMask::STATE, 2).unwrap();
        s.post(op, 8);
        s.post(op, 8);
        let error =
            s.modify(QpState::Sqd, AttrMask::STATE | AttrMask::MAX_RD_ATOMIC, 0).unwrap_err();
        assert_eq!(error, ModifyError::ReadsQueued { queued: 2, wr_id: 2 });
        // Refused means unchanged: they go on as they would have.
        assert_eq!((s.qp.attr().max_rd_atomic, s.qp.state()), (2, QpState::Sqd));
        s.modify(QpState::Rts, AttrMask::STATE, 2).unwrap();
        assert_eq!(s.drain().matches(';').count(), 2);
    }
}

#[test]
fn read_depth_can_end_once_all_is_answered_and_come_back() {
    let depth = AttrMask::STATE | AttrMask::MAX_RD_ATOMIC;
    let mut s = Sender::new();
    s.post(read_at(0), 8);
    s.drain();
    s.read_response(0, Position::Only, 8);
    s.modify(QpState::Sqd, AttrMask::STATE, 2).unwrap();
    s.post(SendOp::Write(Remote::default()), 8);
    s.modify(QpState::Sqd, depth, 0).unwrap();
    s.modify(QpState::Rts, AttrMask::STATE, 2).unwrap();
    check(&s.drain(), expect!["RC_WRITE_ONLY 1!;"]);
    s.modify(QpState::Sqd, AttrMask::STATE, 2).unwrap();
    s.modify(QpState::Sqd, depth, 1).unwrap();
    s.post(read_at(0), 8);
    s.modify(QpState::Rts, AttrMask::STATE, 2).unwrap();
    check(&s.drain(), expect!["RC_READ_REQUEST 2 [0x0+8];"]);
}

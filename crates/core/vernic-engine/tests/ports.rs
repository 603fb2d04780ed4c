//! The UDP ports that the peer of a connected queue pair sends from: learned, held on to, and
//! changed.
//!
//! The peer is made by hand, and sends to the port that only the device has: on 4791 others may be
//! at work.

mod common;

use common::near::near_config;
use common::stranger::Forger;
use common::*;
use vernic_engine::*;
use vernic_wire::{Aeth, Bth, CreditCode, Headers, Opcode, Psn, Syndrome};

/// The first number of either direction.
const FIRST: Psn = Psn::new(0xFF_FFF0);

/// A device with a queue pair whose peer is the test.
struct Rig {
    end: End,
    qp: std::sync::Arc<Qp>,
    /// Where it receives.
    port: u16,
}

impl Rig {
    fn new(service: Service, pin: &str) -> Self {
        let mut config = near_config();
        config.set("pin_source_ports", pin).unwrap();
        let end = End::with(config);
        let qp = end.qp(service);
        // Nothing is sent again.
        let setup = Setup { timeout: AckTimeout::INFINITE, ..Setup::default() };
        // Nobody takes a slot of the first QPNs.
        connect_with_psn(&end, &qp, end.gid().1, Qpn::new(2), setup, FIRST);
        let other = end.qp(service);
        connect(&end, &other, end.gid().1, qp.qpn(), setup);
        let port = other.path().unwrap().door();
        let rig = Self { end, qp, port };
        for wr_id in 0..64 {
            rig.qp.post_recv(&[RecvWr { wr_id, sges: &[rig.end.sge(0, 64)] }]).unwrap();
        }
        rig
    }

    /// A port that the peer, or somebody else, sends from.
    fn port(&self) -> Forger {
        Forger::new(self.port)
    }

    /// Sends a request of the peer's.
    fn send(&self, from: &mut Forger, psn: u32) {
        send(&self.qp, from, psn);
    }

    fn ack(&self, from: &mut Forger, psn: u32) {
        let bth = Bth::new(Opcode::RC_ACK, self.qp.qpn(), FIRST.add(psn));
        let mut headers = Headers::new(bth);
        let syndrome = Syndrome::ack(CreditCode::INVALID);
        headers.aeth = Some(Aeth { syndrome, msn: psn + 1 });
        from.send(&headers, &[]);
    }

    /// Waits until so many completions are there.
    fn takes(&self, count: usize) {
        let done = self.end.wait(count);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    }

    fn refused(&self) -> u64 {
        let rows = self.end.context.counters();
        let counted = rows.iter().filter(|(name, _)| name == "drop_wrong_port");
        counted.map(|(_, n)| n).sum()
    }

    /// Waits until so many packets were refused, and no completion is there.
    fn refuses(&self, count: u64) {
        let since = std::time::Instant::now();
        while self.refused() < count {
            assert_eq!(self.end.cq.poll(&mut [EMPTY_WC; 1]).unwrap(), 0);
            assert!(since.elapsed() < PATIENCE, "{}", self.end.context.counters());
        }
    }
}

/// Sends a request to a queue pair, so many behind the first.
fn send(to: &Qp, from: &mut Forger, psn: u32) {
    let opcode = match to.service() {
        Service::Uc => Opcode::UC_SEND_ONLY,
        _ => Opcode::RC_SEND_ONLY,
    };
    from.send(&Headers::new(Bth::new(opcode, to.qpn(), FIRST.add(psn))), &[7; 16]);
}

#[test]
fn a_peer_that_sends_from_another_port_is_heard_with_the_next_number() {
    let rig = Rig::new(Service::Rc, "on");
    let [mut first, mut second] = [rig.port(), rig.port()];
    for psn in 0..4 {
        rig.send(&mut first, psn);
    }
    rig.takes(4);
    // What it repeats from there was handled before; then comes what was not.
    for psn in 2..6 {
        rig.send(&mut second, psn);
    }
    rig.takes(2);
    rig.send(&mut second, 6);
    rig.takes(1);
    assert_eq!(rig.refused(), 0);
}

#[test]
fn guesses_from_other_ports_are_few_and_the_peer_is_heard_all_the_while() {
    let rig = Rig::new(Service::Rc, "on");
    let [mut peer, mut stranger] = [rig.port(), rig.port()];
    rig.send(&mut peer, 0);
    rig.takes(1);
    // In the other half of all numbers: old ones.
    for n in 0..2000 {
        rig.send(&mut stranger, 0xC0_0000 + n);
        if n % 100 == 99 {
            rig.send(&mut peer, 1 + n / 100);
            rig.takes(1);
        }
    }
    let since = std::time::Instant::now();
    // One in 67 ms is looked at beyond the first 16; that is hundreds only if the machine stood
    // still.
    rig.refuses(1000);
    // Another port of the peer's has its turn when there is a guess again.
    let mut moved = rig.port();
    while rig.end.cq.poll(&mut [EMPTY_WC; 1]).unwrap() == 0 {
        rig.send(&mut moved, 21);
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert!(since.elapsed() < PATIENCE, "{}", rig.end.context.counters());
    }
}

#[test]
fn a_response_from_another_port_is_heard_if_it_answers_the_oldest_or_the_newest() {
    let rig = Rig::new(Service::Rc, "on");
    for wr_id in 0..5 {
        rig.qp.post_send(&[wr(wr_id, SendOp::Send, &[rig.end.sge(0, 16)])]).unwrap();
    }
    let [mut first, mut second] = [rig.port(), rig.port()];
    rig.ack(&mut first, 0);
    rig.takes(1);
    // In the window, and blind all the same.
    rig.ack(&mut second, 2);
    rig.refuses(1);
    rig.ack(&mut second, 4);
    rig.takes(4);
    assert_eq!(rig.refused(), 1);
}

#[test]
fn requests_and_responses_may_come_from_two_ports() {
    let rig = Rig::new(Service::Rc, "on");
    let [mut requests, mut responses] = [rig.port(), rig.port()];
    for psn in 0..40 {
        rig.qp.post_send(&[wr(99, SendOp::Send, &[rig.end.sge(0, 16)])]).unwrap();
        rig.send(&mut requests, psn);
        rig.ack(&mut responses, psn);
        rig.takes(2);
    }
    assert_eq!(rig.refused(), 0);
}

#[test]
fn a_peer_of_uc_is_heard_from_another_port_if_little_was_lost() {
    let rig = Rig::new(Service::Uc, "on");
    let [mut first, mut second] = [rig.port(), rig.port()];
    rig.send(&mut first, 0);
    rig.takes(1);
    rig.send(&mut second, 1 << 20);
    rig.refuses(1);
    rig.send(&mut second, 100);
    rig.takes(1);
    // Whatever number it is, from the port that is known.
    rig.send(&mut second, 1 << 22);
    rig.takes(1);
}

#[test]
fn any_port_is_heard_where_the_setting_says_so() {
    let rig = Rig::new(Service::Rc, "off");
    let mut ports = [rig.port(), rig.port(), rig.port()];
    for psn in 0..60 {
        rig.send(&mut ports[psn as usize % 3], psn);
        rig.send(&mut ports[(psn + 1) as usize % 3], psn);
        rig.takes(1);
    }
    assert_eq!(rig.refused(), 0);
}

#[test]
fn a_peer_whose_memory_is_gone_is_heard_by_the_wire() {
    let pair = near::near_pair(Service::Rc);
    near::warm_up(&pair);
    let mut peer = Forger::new(pair.b_qp.path().unwrap().door());
    let since = std::time::Instant::now();
    let refused = |rig: &End| {
        let rows = rig.context.counters();
        rows.iter().any(|(name, n)| name == "drop_wrong_way" && n != 0)
    };
    // Until its requests are known to come through memory, they are heard by the wire, too.
    while !refused(&pair.a) {
        near::talk(&pair);
        send(&pair.a_qp, &mut peer, 0);
        assert!(since.elapsed() < PATIENCE, "{}", pair.a.context.counters());
    }
    let handled = pair.a_qp.counters().messages_received as u32;
    let Pair { a, b, a_qp, b_qp } = pair;
    a_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[a.sge(0, 64)] }]).unwrap();
    for _ in 0..100 {
        send(&a_qp, &mut peer, handled);
        assert_eq!(a.cq.poll(&mut [EMPTY_WC; 1]).unwrap(), 0);
    }
    // The other end takes its leave, in order: nothing fails.
    drop(b_qp);
    b.context.close();
    while a.cq.poll(&mut [EMPTY_WC; 1]).unwrap() == 0 {
        send(&a_qp, &mut peer, handled);
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(since.elapsed() < PATIENCE, "{}", a.context.counters());
    }
    assert_eq!(a_qp.state(), QpState::Rts);
}

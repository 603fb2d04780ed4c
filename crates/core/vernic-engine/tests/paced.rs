//! UC and UD between processes of one host: senders wait for the receiver, and no socket overflows.

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::*;
use vernic_engine::*;

const QKEY: Qkey = Qkey(0x1111);
const MESSAGES: u64 = 100_000;
/// Receives that are posted at any time: more than a receiver can find waiting in its socket.
const RECEIVES: u64 = 8192;
/// Sends that wait at any time.
const SENDS: u64 = 128;
/// Bytes of each message.
const BYTES: u32 = 64;

/// A queue pair whose queues hold all of that.
fn wide_qp(end: &End, service: Service) -> (Arc<Qp>, Arc<Cq>) {
    let cq = end.context.create_cq(2 * RECEIVES as u32, None).unwrap();
    let init = QpInit {
        service,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: SENDS as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signal_all: true,
        congestion: None,
    };
    (end.pd.create_qp(init).unwrap(), cq)
}

/// The sockets of both hold `socket_buffer_bytes`, twice as much by the kernel's count.
fn config(socket_buffer_bytes: u32) -> Config {
    Config { socket_buffer_bytes, ..test_config() }
}

/// Sends all messages from one thread to another.
fn send_all(service: Service, socket_buffer_bytes: u32) {
    let (a, b) = (End::with(config(socket_buffer_bytes)), End::with(config(socket_buffer_bytes)));
    let ((a_qp, a_cq), (b_qp, b_cq)) = (wide_qp(&a, service), wide_qp(&b, service));
    if service == Service::Ud {
        bring_up_ud(&a_qp, QKEY);
        bring_up_ud(&b_qp, QKEY);
    } else {
        connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
        connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    }
    let sge = [b.sge(0, 256)];
    for wr_id in 0..RECEIVES {
        b_qp.post_recv(&[RecvWr { wr_id, sges: &sge }]).unwrap();
    }
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut got = 0;
            let mut batch = [EMPTY_WC; 64];
            let mut last = start;
            // A receiver whose thread gets no processor for so long that its receives run out loses
            // messages, as IBTA has it; so does one that the sender gave up waiting for. The socket
            // must not.
            while got + dropped(&b, DropReason::NoReceive) < MESSAGES {
                let sent = a.context.counters();
                let gave_up = sent.pace_timeouts != 0 || sent.near_lost != 0;
                if gave_up && last.elapsed() > PATIENCE / 10 {
                    break;
                }
                let n = b_cq.poll(&mut batch).unwrap();
                for wc in &batch[..n] {
                    assert_eq!(wc.status, WcStatus::Success);
                    b_qp.post_recv(&[RecvWr { wr_id: wc.wr_id, sges: &sge }]).unwrap();
                }
                got += n as u64;
                if n != 0 {
                    last = Instant::now();
                }
                let late = start.elapsed() >= 3 * PATIENCE;
                assert!(!late, "{got} of {MESSAGES} came: {:?}, {sent:?}", b.context.counters());
            }
        });
        let av = AddressVector {
            dgid: b.gid().1,
            sgid_index: a.gid().0,
            port: PortNum(1),
            ..AddressVector::default()
        };
        let ah = a.pd.create_ah(av).unwrap();
        let sge = [a.sge(0, BYTES)];
        let dest =
            (service == Service::Ud).then_some(Dest { ah: &ah, qpn: b_qp.qpn(), qkey: QKEY });
        let (mut posted, mut completed) = (0, 0);
        let mut batch = [EMPTY_WC; 64];
        while completed < MESSAGES {
            while posted < MESSAGES && posted - completed < SENDS {
                a_qp.post_send(&[SendWr { dest, ..wr(posted, SendOp::Send, &sge) }]).unwrap();
                posted += 1;
            }
            completed += a_cq.poll(&mut batch).unwrap() as u64;
            assert!(start.elapsed() < 3 * PATIENCE, "{completed} of {MESSAGES} left");
        }
    });
}

/// Packets that `end` dropped for `reason`.
fn dropped(end: &End, reason: DropReason) -> u64 {
    let drops = end.context.counters().drops;
    drops.iter().find(|drop| drop.0 == reason).map_or(0, |drop| drop.1)
}

#[test]
fn a_hundred_thousand_uc_messages_all_arrive() {
    send_all(Service::Uc, 4 << 20);
}

#[test]
fn a_hundred_thousand_datagrams_all_arrive() {
    send_all(Service::Ud, 4 << 20);
}

#[test]
fn messages_all_arrive_also_through_a_small_socket_buffer() {
    send_all(Service::Uc, 64 << 10);
    send_all(Service::Ud, 64 << 10);
}

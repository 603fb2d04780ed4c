//! Several reliable connections that receive from one shared queue, which says when it runs low.
//!
//! `srq_pingpong server`, then `srq_pingpong client HOST`; or without arguments for both ends at
//! once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::{ROUNDS, Role, SIZE, TIMEOUT};
use vernic::{Access, Error, EventKind, Inline, Mr, Qp, Rc, Rts, Srq, WrId, oob};

/// Connections.
const QPS: usize = 4;
/// Receives in the shared queue.
const DEPTH: u32 = 32;
/// With fewer than this left the queue is filled up.
const LOW: u32 = 8;

fn main() -> Result<(), Error> {
    common::run(end)
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(256)?;
    let srq = pd.create_srq(DEPTH, 1)?;
    let incoming = pd.alloc_mr(SIZE, Access::NONE.local_write())?;
    fill(&srq, &incoming, DEPTH)?;

    let mut qps: Vec<Qp<Rc, Rts>> = Vec::new();
    for _ in 0..QPS {
        let qp = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).srq(&srq).create()?;
        let remote = oob::exchange_endpoints(stream, qp.endpoint())?;
        qps.push(qp.connect(remote)?);
    }
    oob::barrier(stream)?;

    let (events, message) = (device.events(), [0x5A; SIZE]);
    let (mut used, mut refills) = (0, 0);
    let start = Instant::now();
    for round in 0..ROUNDS {
        let turn = &qps[round as usize % QPS];
        if role == Role::Client {
            turn.post_send(WrId(round), Inline(&message))?;
        }
        let received = loop {
            let wc = cq.wait_one(TIMEOUT)?;
            if wc.is_recv() {
                break wc;
            }
        };
        assert_eq!(received.qpn(), turn.qpn());
        used += 1;
        if events.try_next().is_some_and(|event| event.kind == EventKind::SrqLimitReached) {
            fill(&srq, &incoming, std::mem::take(&mut used))?;
            refills += 1;
        }
        if role == Role::Server {
            turn.post_send(WrId(round), Inline(&message))?;
        }
    }
    assert!(refills > 0, "{ROUNDS} messages need more than {DEPTH} receives");
    if role == Role::Client {
        common::report(&device, "RC SEND, shared receive queue,", start);
    }
    oob::barrier(stream)?;
    Ok(())
}

/// Posts `count` receives and asks to be told when few are left.
fn fill(srq: &Srq, incoming: &Mr, count: u32) -> Result<(), Error> {
    let mut batch = srq.recv_batch();
    for place in 0..count {
        batch.recv(WrId(u64::from(place)), incoming);
    }
    batch.commit()?;
    srq.arm_limit(LOW)?;
    Ok(())
}

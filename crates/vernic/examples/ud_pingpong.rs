//! Datagrams there and back. The server learns where to answer from the completion: any number of
//! clients could share its queue pair. A lost datagram ends it; `uc_pingpong` shows how to send again.
//!
//! `ud_pingpong server`, then `ud_pingpong client HOST`; or without arguments for both ends at once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::{ROUNDS, Role, SIZE, TIMEOUT};
use vernic::{Access, Error, Inline, Qkey, Ud, UdInit, WrId, oob};

/// Key that datagrams must carry to be received.
const QKEY: Qkey = Qkey(0x1111_1111);
/// A datagram is received with the IP header before it, in an area of this size (IBTA 11.4.1.2).
const GRH: usize = 40;

fn main() -> Result<(), Error> {
    common::run(end)
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(64)?;
    let incoming = pd.alloc_mr(GRH + SIZE, Access::NONE.local_write())?;

    let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq).create()?;
    let remote = oob::exchange_endpoints(stream, qp.endpoint())?;
    let qp = qp.init(UdInit { qkey: QKEY })?;
    qp.post_recv(WrId(0), &incoming)?;
    let qp = qp.activate()?;
    let there = pd.create_ah(remote.gid)?;
    oob::barrier(stream)?;

    let mut message = [0; SIZE];
    let start = Instant::now();
    for round in 1..=ROUNDS {
        message[..8].copy_from_slice(&round.to_be_bytes());
        if role == Role::Client {
            qp.post_send_to(WrId(round), Inline(&message), there.to(remote.qpn, QKEY))?;
        }
        let received = loop {
            let wc = cq.wait_one(TIMEOUT)?;
            if wc.is_recv() {
                break wc;
            }
        };
        assert_eq!(received.byte_len() as usize, GRH + SIZE);
        assert_eq!(incoming.to_vec(GRH..)?, message);
        qp.post_recv(WrId(0), &incoming)?;
        if role == Role::Server {
            let sender = there.to(received.src_qpn(), QKEY);
            qp.post_send_to(WrId(round), Inline(&message), sender)?;
        }
    }
    if role == Role::Client {
        common::report(&device, "UD SEND", start);
    }
    oob::barrier(stream)?;
    Ok(())
}

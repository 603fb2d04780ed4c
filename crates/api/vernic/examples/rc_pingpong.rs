//! SEND there and back over a reliable connection.
//!
//! `rc_pingpong server`, then `rc_pingpong client HOST`; or without arguments for both ends at
//! once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::{ROUNDS, Role, SIZE, TIMEOUT};
use vernic::{Access, Error, InitAttr, Rc, WrId, oob};

fn main() -> Result<(), Error> {
    common::run(end)
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(64)?;
    let outgoing = pd.alloc_mr(SIZE, Access::NONE)?;
    let incoming = pd.alloc_mr(SIZE, Access::NONE.local_write())?;

    let qp = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create()?;
    let remote = oob::exchange_endpoints(stream, qp.endpoint())?;
    let qp = qp.init(InitAttr::default())?;
    qp.post_recv(WrId(0), &incoming)?;
    let qp = qp.connect(remote)?;
    oob::barrier(stream)?;

    let start = Instant::now();
    for round in 1..=ROUNDS {
        if role == Role::Client {
            outgoing.write_at(0, &round.to_be_bytes())?;
            qp.post_send(WrId(round), &outgoing)?;
        }
        // One completion for the message that comes; the client has one of its own SEND before.
        while !cq.wait_one(TIMEOUT)?.is_recv() {}
        assert_eq!(incoming.to_vec(..8)?, round.to_be_bytes());
        qp.post_recv(WrId(0), &incoming)?;
        if role == Role::Server {
            outgoing.write_at(0, &round.to_be_bytes())?;
            qp.post_send(WrId(round), &outgoing)?;
        }
    }
    if role == Role::Client {
        common::report(&device, "RC SEND", start);
    }
    oob::barrier(stream)?;
    Ok(())
}

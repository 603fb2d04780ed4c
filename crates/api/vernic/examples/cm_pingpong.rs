//! SEND there and back over a connection that is made by IP address and port, as `rdma_cm` makes
//! them. Compare `rc_pingpong`, where both ends exchange what they must know over TCP: here that is
//! the connection manager's work, and the peer may be a program of C on `librdmacm`.
//!
//! `cm_pingpong server [PORT]`, then `cm_pingpong client HOST [PORT]`; or without arguments for
//! both ends at once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::SocketAddr;
use std::time::Instant;

use common::{ROUNDS, SIZE, TIMEOUT};
use vernic::cm::{Manager, Options};
use vernic::{Access, Cq, Device, Error, Mr, Qp, Rc, Reset, WrId};

fn main() -> Result<(), Error> {
    common::meet(server, client)
}

fn server(manager: &Manager, place: SocketAddr, ready: common::Ready<'_>) -> Result<(), Error> {
    let listener = manager.listen::<Rc>(place)?;
    ready(listener.local_addr());
    let request = listener.next(None)?;
    println!("{} wants to connect", request.peer_addr());

    let (end, qp) = End::new(request.device())?;
    let prepared = request.prepare(qp)?;
    prepared.qp().post_recv(WrId(0), &end.incoming)?; // before the client can send
    let mut connection = prepared.accept(&Options::default())?;
    for round in 1..=ROUNDS {
        end.receive(round)?;
        connection.qp().post_recv(WrId(0), &end.incoming)?;
        end.outgoing.write_at(0, &round.to_be_bytes())?;
        connection.qp().post_send(WrId(round), &end.outgoing)?;
    }
    connection.wait_disconnected(Some(TIMEOUT))?;
    Ok(())
}

fn client(manager: &Manager, peer: SocketAddr) -> Result<(), Error> {
    let route = manager.resolve::<Rc>(peer)?;
    let device = route.device().clone();
    let (end, qp) = End::new(&device)?;
    let prepared = route.prepare(qp)?;
    prepared.qp().post_recv(WrId(0), &end.incoming)?;
    let connection = prepared.connect(&Options::default())?;

    let start = Instant::now();
    for round in 1..=ROUNDS {
        end.outgoing.write_at(0, &round.to_be_bytes())?;
        connection.qp().post_send(WrId(round), &end.outgoing)?;
        end.receive(round)?;
        connection.qp().post_recv(WrId(0), &end.incoming)?;
    }
    common::report(&device, "RC SEND", start);
    Ok(connection.disconnect()?)
}

/// What an end has beside its queue pair.
struct End {
    cq: Cq,
    outgoing: Mr,
    incoming: Mr,
}

impl End {
    fn new(device: &Device) -> Result<(Self, Qp<Rc, Reset>), Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(64)?;
        let qp = pd.qp().send_cq(&cq).recv_cq(&cq).create()?;
        let outgoing = pd.alloc_mr(SIZE, Access::NONE)?;
        let incoming = pd.alloc_mr(SIZE, Access::NONE.local_write())?;
        Ok((Self { cq, outgoing, incoming }, qp))
    }

    /// Waits for the message of a round. The completions of our own SENDs come in between.
    fn receive(&self, round: u64) -> Result<(), Error> {
        while !self.cq.wait_one(TIMEOUT)?.is_recv() {}
        assert_eq!(self.incoming.to_vec(..8)?, round.to_be_bytes());
        Ok(())
    }
}

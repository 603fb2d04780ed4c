//! Several receivers behind one connection: each has a shared receive queue of its own, and the
//! sender names the one that it means.
//!
//! `xrc_pingpong server`, then `xrc_pingpong client HOST`; or without arguments for both ends at
//! once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use common::{ROUNDS, Role, SIZE, TIMEOUT};
use vernic::{Access, Cq, Device, Error, Inline, Mr, Srq, Srqn, WrId, Xrc, Xrcd, oob};

/// Receivers: threads of a server, in real life.
const WORKERS: usize = 4;
/// Receives that each has posted.
const DEPTH: u32 = 8;

fn main() -> Result<(), Error> {
    common::run(end)
}

/// One who receives: with memory that no request for others can reach.
struct Worker {
    srq: Srq<Xrc>,
    cq: Cq,
    incoming: Mr,
}

impl Worker {
    fn new(device: &Device, domain: &Xrcd) -> Result<Self, Error> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let srq = pd.create_xrc_srq(domain, &cq, DEPTH, 1)?;
        let incoming = pd.alloc_mr(SIZE, Access::NONE.local_write())?;
        for place in 0..DEPTH {
            srq.post_recv(WrId(u64::from(place)), &incoming)?;
        }
        Ok(Self { srq, cq, incoming })
    }

    /// Waits for a message.
    fn receive(&self) -> Result<(), Error> {
        let received = self.cq.wait_one(TIMEOUT)?;
        self.srq.post_recv(received.wr_id(), &self.incoming)?;
        Ok(())
    }
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let domain = device.create_xrcd()?;
    let workers = (0..WORKERS).map(|_| Worker::new(&device, &domain));
    let workers = workers.collect::<Result<Vec<_>, _>>()?;

    // A connection goes one way: an initiator here and a target there, and the other way round.
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let (ini, tgt) = (pd.xrc_ini().send_cq(&cq).create()?, domain.create_tgt()?);
    let their_ini = oob::exchange_endpoints(stream, ini.endpoint())?;
    let their_tgt = oob::exchange_endpoints(stream, tgt.endpoint())?;
    let numbers = exchange_numbers(stream, &workers)?;
    let _tgt = tgt.connect(their_ini)?;
    let ini = ini.connect(their_tgt)?;
    oob::barrier(stream)?;

    let message = [0x5A; SIZE];
    let start = Instant::now();
    for round in 0..ROUNDS {
        let turn = round as usize % WORKERS;
        if role == Role::Server {
            workers[turn].receive()?;
        }
        let mut batch = ini.send_batch_to(numbers[turn]);
        batch.send(WrId(round), Inline(&message)).signaled();
        batch.commit()?;
        if role == Role::Client {
            workers[turn].receive()?;
        }
        cq.wait_one(TIMEOUT)?;
    }
    if role == Role::Client {
        common::report(&device, "XRC SEND, a queue per receiver,", start);
    }
    oob::barrier(stream)?;
    Ok(())
}

/// Tells the peer the numbers of our queues, 4 bytes each, and learns its own.
fn exchange_numbers(stream: &mut TcpStream, workers: &[Worker]) -> io::Result<Vec<Srqn>> {
    let ours = workers.iter().flat_map(|worker| worker.srq.number().value().to_be_bytes());
    let theirs = oob::exchange(stream, &ours.collect::<Vec<_>>())?;
    let (numbers, rest) = theirs.as_chunks();
    if numbers.len() != WORKERS || !rest.is_empty() {
        return Err(io::Error::other(format!("{} bytes of numbers of queues", theirs.len())));
    }
    Ok(numbers.iter().map(|bytes| Srqn::new(u32::from_be_bytes(*bytes))).collect())
}

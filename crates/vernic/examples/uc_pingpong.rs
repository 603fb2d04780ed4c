//! SEND there and back over an unreliable connection: a message that loses a packet never arrives,
//! so the client sends again when the answer stays away.
//!
//! `uc_pingpong server`, then `uc_pingpong client HOST`; or without arguments for both ends at once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{ROUNDS, Role, SIZE, TIMEOUT};
use vernic::{Access, Cq, Error, Init, InitAttr, Inline, Mr, Qp, Rts, Uc, WaitError, WrId, oob};

/// After this long without an answer a message counts as lost.
const LOST: Duration = Duration::from_millis(500);
/// Receives that are kept posted: a repetition may arrive beside the original.
const DEPTH: u64 = 8;

fn main() -> Result<(), Error> {
    common::run(end)
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(64)?;
    let incoming = pd.alloc_mr(SIZE * DEPTH as usize, Access::NONE.local_write())?;

    let qp = pd.qp::<Uc>().send_cq(&cq).recv_cq(&cq).create()?;
    let remote = oob::exchange_endpoints(stream, qp.endpoint())?;
    let qp = qp.init(InitAttr::default())?;
    post_all(&qp, &incoming)?;
    let qp = qp.connect(remote)?;
    // Nobody repeats what arrives before the peer is in RTR.
    oob::barrier(stream)?;

    let start = Instant::now();
    match role {
        Role::Client => client(&qp, &cq, &incoming)?,
        Role::Server => server(&qp, &cq, &incoming)?,
    }
    if role == Role::Client {
        common::report(&device, "UC SEND", start);
    }
    oob::barrier(stream)?;
    Ok(())
}

fn post_all(qp: &Qp<Uc, Init>, incoming: &Mr) -> Result<(), Error> {
    for place in 0..DEPTH {
        qp.post_recv(WrId(place), slot(incoming, place)?)?;
    }
    Ok(())
}

/// The part of the region that receive `place` fills.
fn slot(incoming: &Mr, place: u64) -> Result<vernic::MrSlice<'_>, Error> {
    let start = place as usize * SIZE;
    Ok(incoming.slice(start..start + SIZE)?)
}

fn send(qp: &Qp<Uc, Rts>, round: u64) -> Result<(), Error> {
    let mut message = [0; SIZE];
    message[..8].copy_from_slice(&round.to_be_bytes());
    Ok(qp.post_send(WrId(round), Inline(&message))?)
}

/// The round of the next message that arrives.
fn receive(qp: &Qp<Uc, Rts>, cq: &Cq, incoming: &Mr, timeout: Duration) -> Result<u64, Error> {
    loop {
        let wc = cq.wait_one(timeout)?;
        if wc.is_recv() {
            let place = wc.wr_id();
            let mut round = [0; 8];
            slot(incoming, place.0)?.copy_to(&mut round)?;
            qp.post_recv(place, slot(incoming, place.0)?)?;
            return Ok(u64::from_be_bytes(round));
        }
    }
}

fn client(qp: &Qp<Uc, Rts>, cq: &Cq, incoming: &Mr) -> Result<(), Error> {
    for round in 1..=ROUNDS {
        send(qp, round)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match receive(qp, cq, incoming, LOST) {
                Ok(answer) if answer == round => break,
                Ok(_late) => {}
                Err(Error::Wait(WaitError::Timeout(_))) if Instant::now() < deadline => {
                    send(qp, round)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    // Tells the server that this was the last one; a few times, as each may be lost.
    for _ in 0..DEPTH / 2 {
        send(qp, 0)?;
    }
    Ok(())
}

fn server(qp: &Qp<Uc, Rts>, cq: &Cq, incoming: &Mr) -> Result<(), Error> {
    // Ends with the client's farewell, or when nothing comes.
    loop {
        match receive(qp, cq, incoming, TIMEOUT)? {
            0 => return Ok(()),
            round => send(qp, round)?,
        }
    }
}

//! SEND there and back over an unreliable connection: a message that loses a packet never arrives,
//! so the client sends again when the answer stays away (`common/lossy.rs`).
//!
//! `uc_pingpong server`, then `uc_pingpong client HOST`; or without arguments for both ends at
//! once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::lossy::{self, End};
use common::{Role, SIZE};
use vernic::{Access, Cq, Error, InitAttr, Inline, Mr, MrSlice, Qp, Qpn, Rts, Uc, Wc, WrId, oob};

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
    for place in 0..DEPTH {
        qp.post_recv(WrId(place), slot(&incoming, place)?)?;
    }
    let end = Connection { qp: qp.connect(remote)?, cq, incoming };
    // Nobody repeats what arrives before the peer is in RTR.
    oob::barrier(stream)?;

    let start = Instant::now();
    match role {
        Role::Client => {
            let repeated = lossy::client(&end, remote.qpn)?;
            common::report(&device, "UC SEND", start);
            println!("{repeated} messages were sent again");
        }
        Role::Server => lossy::server(&end, stream)?,
    }
    oob::barrier(stream)?;
    Ok(())
}

struct Connection {
    qp: Qp<Uc, Rts>,
    cq: Cq,
    incoming: Mr,
}

impl End for Connection {
    fn send(&self, number: u64, _: Qpn) -> Result<(), Error> {
        let mut message = [0; SIZE];
        message[..8].copy_from_slice(&number.to_be_bytes());
        Ok(self.qp.post_send(WrId(number), Inline(&message))?)
    }

    fn cq(&self) -> &Cq {
        &self.cq
    }

    fn take(&self, wc: &Wc) -> Result<u64, Error> {
        let place = wc.wr_id();
        let mut number = [0; 8];
        slot(&self.incoming, place.0)?.copy_to(&mut number)?;
        self.qp.post_recv(place, slot(&self.incoming, place.0)?)?;
        Ok(u64::from_be_bytes(number))
    }
}

/// The part of the region that receive `place` fills.
fn slot(incoming: &Mr, place: u64) -> Result<MrSlice<'_>, Error> {
    let start = place as usize * SIZE;
    Ok(incoming.slice(start..start + SIZE)?)
}

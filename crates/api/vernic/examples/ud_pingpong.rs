//! Datagrams there and back. The server learns where to answer from the completion: any number of
//! clients could share its queue pair. A datagram may be lost, so the client sends again when the
//! answer stays away (`common/lossy.rs`).
//!
//! `ud_pingpong server`, then `ud_pingpong client HOST`; or without arguments for both ends at
//! once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::lossy::{self, End};
use common::{Role, SIZE};
use vernic::{
    Access, Ah, Cq, Error, Inline, Mr, MrSlice, Qkey, Qp, Qpn, Rts, Ud, UdInit, Wc, WrId, oob,
};

/// Key that datagrams must carry to be received.
const QKEY: Qkey = Qkey(0x1111_1111);
/// A datagram is received with the IP header before it, in an area of this size (IBTA 11.4.1.2).
const GRH: usize = 40;
/// Receives that are kept posted: a repetition may arrive beside the original.
const DEPTH: u64 = 8;

fn main() -> Result<(), Error> {
    common::run(end)
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(64)?;
    let incoming = pd.alloc_mr((GRH + SIZE) * DEPTH as usize, Access::NONE.local_write())?;

    let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq).create()?;
    let remote = oob::exchange_endpoints(stream, qp.endpoint())?;
    let qp = qp.init(UdInit { qkey: QKEY })?;
    for place in 0..DEPTH {
        qp.post_recv(WrId(place), slot(&incoming, place)?)?;
    }
    let end = Datagrams { qp: qp.activate()?, there: pd.create_ah(remote.gid)?, cq, incoming };
    oob::barrier(stream)?;

    let start = Instant::now();
    match role {
        Role::Client => {
            let repeated = lossy::client(&end, remote.qpn)?;
            common::report(&device, "UD SEND", start);
            println!("{repeated} messages were sent again");
        }
        Role::Server => lossy::server(&end, stream)?,
    }
    oob::barrier(stream)?;
    Ok(())
}

struct Datagrams {
    qp: Qp<Ud, Rts>,
    there: Ah,
    cq: Cq,
    incoming: Mr,
}

impl End for Datagrams {
    fn send(&self, number: u64, peer: Qpn) -> Result<(), Error> {
        let mut message = [0; SIZE];
        message[..8].copy_from_slice(&number.to_be_bytes());
        Ok(self.qp.post_send_to(WrId(number), Inline(&message), self.there.to(peer, QKEY))?)
    }

    fn cq(&self) -> &Cq {
        &self.cq
    }

    fn take(&self, wc: &Wc) -> Result<u64, Error> {
        assert_eq!(wc.byte_len() as usize, GRH + SIZE);
        let place = wc.wr_id();
        let mut datagram = [0; GRH + SIZE];
        slot(&self.incoming, place.0)?.copy_to(&mut datagram)?;
        self.qp.post_recv(place, slot(&self.incoming, place.0)?)?;
        let mut number = [0; 8];
        number.copy_from_slice(&datagram[GRH..GRH + 8]);
        Ok(u64::from_be_bytes(number))
    }
}

/// The part of the region that receive `place` fills.
fn slot(incoming: &Mr, place: u64) -> Result<MrSlice<'_>, Error> {
    let start = place as usize * (GRH + SIZE);
    Ok(incoming.slice(start..start + GRH + SIZE)?)
}

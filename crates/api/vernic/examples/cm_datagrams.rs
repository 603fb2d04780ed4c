//! Datagrams to a queue pair that is found by IP address and port, as `rdma_cm` finds them (SIDR).
//!
//! `cm_datagrams server [PORT]`, then `cm_datagrams client HOST [PORT]`; or without arguments for
//! both ends at once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{SIZE, TIMEOUT};
use vernic::cm::{self, Manager};
use vernic::{
    Access, Cq, Device, Error, Gid, Inline, Mr, Pd, Qp, Rts, Ud, UdInit, WaitError, Wc, WrId,
};

/// Datagrams that the client sends, and the server answers.
const MESSAGES: u64 = 100;
/// A datagram is received with the IP header before it, in an area of this size (IBTA 11.4.1.2).
const GRH: usize = 40;
/// Receives that are kept posted.
const DEPTH: usize = 16;
/// The client sends again what is not answered in this time, and gives up after [`TIMEOUT`].
const RETRY: Duration = Duration::from_millis(50);
/// A client that says nothing for so long has all its answers.
const QUIET: Duration = Duration::from_secs(1);

fn main() -> Result<(), Error> {
    common::meet(server, client)
}

fn server(manager: &Manager, place: SocketAddr, ready: common::Ready<'_>) -> Result<(), Error> {
    let listener = manager.listen_datagrams(place)?;
    ready(listener.local_addr());
    // One queue pair may serve everybody who asks; here there is one.
    let request = listener.next(None)?;
    println!("{} asks for a queue pair", request.peer_addr());
    let end = End::new(request.device())?;
    let there = end.pd.create_ah(Gid::from_ip(request.peer_addr().ip()))?;
    request.accept(&end.qp, b"welcome")?;
    let mut answered = 0;
    // Until the client, which repeats what it hears no answer to, is quiet.
    while let Some(wc) = end.next(if answered == MESSAGES { QUIET } else { TIMEOUT })? {
        if !wc.is_recv() {
            continue;
        }
        let number = end.take(wc.wr_id())?;
        let to = there.to(wc.src_qpn(), cm::UDP_QKEY);
        end.qp.post_send_to(WrId(u64::MAX), Inline(&number.to_be_bytes()), to)?;
        end.post(wc.wr_id())?;
        answered = answered.max(number);
    }
    println!("{answered} messages answered");
    Ok(())
}

fn client(manager: &Manager, peer: SocketAddr) -> Result<(), Error> {
    let found = manager.find(peer, b"hello", TIMEOUT)?;
    println!("{peer} is queue pair {} at {}", found.qpn, found.gid);
    assert_eq!(&found.private_data[..7], b"welcome");
    let end = End::new(found.device())?;
    let there = end.pd.create_ah_with(found.gid, &found.path)?;
    let start = Instant::now();
    let mut repeated = 0;
    for number in 1..=MESSAGES {
        let give_up = Instant::now() + TIMEOUT;
        let to = || there.to(found.qpn, found.qkey);
        end.qp.post_send_to(WrId(u64::MAX), Inline(&number.to_be_bytes()), to())?;
        while !end.answered(number)? {
            if Instant::now() > give_up {
                return Err(std::io::Error::other(format!("no answer to message {number}")).into());
            }
            repeated += 1;
            end.qp.post_send_to(WrId(u64::MAX), Inline(&number.to_be_bytes()), to())?;
        }
    }
    let each_us = start.elapsed().as_secs_f64() * 1e6 / MESSAGES as f64;
    println!("{MESSAGES} round trips by UD SEND: {each_us:.1} us each");
    println!("{repeated} messages were sent again");
    Ok(())
}

/// A queue pair with receives posted.
struct End {
    pd: Pd,
    cq: Cq,
    qp: Qp<Ud, Rts>,
    incoming: Mr,
}

impl End {
    fn new(device: &Device) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(256)?;
        let incoming = pd.alloc_mr((GRH + SIZE) * DEPTH, Access::NONE.local_write())?;
        let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq).create()?;
        let qp = qp.init(UdInit { qkey: cm::UDP_QKEY })?.activate()?;
        let end = Self { pd, cq, qp, incoming };
        (0..DEPTH as u64).try_for_each(|place| end.post(WrId(place)))?;
        Ok(end)
    }

    fn post(&self, place: WrId) -> Result<(), Error> {
        let start = place.0 as usize * (GRH + SIZE);
        Ok(self.qp.post_recv(place, self.incoming.slice(start..start + GRH + SIZE)?)?)
    }

    /// The number in the datagram that receive `place` took.
    fn take(&self, place: WrId) -> Result<u64, Error> {
        let start = place.0 as usize * (GRH + SIZE) + GRH;
        let mut number = [0; 8];
        self.incoming.slice(start..start + 8)?.copy_to(&mut number)?;
        Ok(u64::from_be_bytes(number))
    }

    /// The next completion; none within `timeout` is none.
    fn next(&self, timeout: Duration) -> Result<Option<Wc>, Error> {
        match self.cq.wait_one(timeout) {
            Ok(wc) => Ok(Some(wc)),
            Err(Error::Wait(WaitError::Timeout(..))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the answer to `number`; false if it stays away, as a datagram may.
    fn answered(&self, number: u64) -> Result<bool, Error> {
        let until = Instant::now() + RETRY;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let Some(wc) = self.next(left)? else { return Ok(false) };
            if wc.is_recv() {
                let is_it = self.take(wc.wr_id())? == number;
                self.post(wc.wr_id())?;
                if is_it {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

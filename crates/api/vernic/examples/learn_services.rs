//! The book, docs/learn-services.md: one message by each transport service.
//!
//! Words: `loss` loses all packets, `large` sends a datagram that no packet holds.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use std::time::Duration;

use two_ends::{outcome, word};
use vernic::{
    Access, Config, Cq, Device, Error, InitAttr, Inline, Mr, Pd, Qkey, Rc, Uc, Ud, UdInit, WrId,
};

/// The IP header of a datagram takes so many bytes of its receive (IBTA 11.4.1.2).
const GRH: usize = 40;

fn main() -> Result<(), Error> {
    let mistake = word(&["loss", "large"])?;
    let fault = if mistake == "loss" { "loss=1" } else { "" };
    let config =
        Config { device: "lo".into(), fault: fault.into(), force_wire: true, ..Config::default() };
    let host = Host::new(&Device::open_with(config)?)?;
    if mistake != "large" {
        host.reliable_connection()?;
        host.unreliable_connection()?;
    }
    host.datagram(if mistake == "large" { 5000 } else { 5 })?;
    if mistake.is_empty() {
        host.extended_connection()?;
    }
    Ok(())
}

/// What all services need.
struct Host {
    device: Device,
    pd: Pd,
    /// Completion queues of the sender and of the receiver.
    cqs: [Cq; 2],
    memory: Mr,
}

impl Host {
    fn new(device: &Device) -> Result<Self, Error> {
        let pd = device.alloc_pd()?;
        let cqs = [device.create_cq(16)?, device.create_cq(16)?];
        let memory = pd.alloc_mr(8192, Access::NONE.local_write())?;
        Ok(Self { device: device.clone(), pd, cqs, memory })
    }

    /// Prints what both ends learn.
    fn tell(&self, service: &str, from: usize) -> Result<(), Error> {
        println!("{service} sender: {}", outcome(&self.cqs[0]));
        match self.cqs[1].wait_one(Duration::from_millis(100)) {
            Ok(wc) => {
                let text = self.memory.to_vec(from..from + 5)?;
                let (text, bytes) = (String::from_utf8_lossy(&text).into_owned(), wc.byte_len());
                println!("{service} receiver: {bytes} bytes, from byte {from} on {text:?}");
            }
            Err(_) => println!("{service} receiver: nothing came"),
        }
        Ok(())
    }

    fn reliable_connection(&self) -> Result<(), Error> {
        let make = |cq| self.pd.qp::<Rc>().send_cq(cq).recv_cq(cq).create();
        let (a, b) = (make(&self.cqs[0])?, make(&self.cqs[1])?);
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let b = b.init(InitAttr::default())?;
        b.post_recv(WrId(1), &self.memory)?;
        let _b = b.connect(at_a)?;
        let a = a.connect_with(at_b, &two_ends::impatient())?;
        a.post_send(WrId(1), Inline(b"by RC"))?;
        self.tell("RC", 0)
    }

    fn unreliable_connection(&self) -> Result<(), Error> {
        let make = |cq| self.pd.qp::<Uc>().send_cq(cq).recv_cq(cq).create();
        let (a, b) = (make(&self.cqs[0])?, make(&self.cqs[1])?);
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let b = b.init(InitAttr::default())?;
        b.post_recv(WrId(2), &self.memory)?;
        let _b = b.connect(at_a)?;
        let a = a.connect(at_b)?;
        a.post_send(WrId(2), Inline(b"by UC"))?;
        self.tell("UC", 0)
    }

    fn datagram(&self, bytes: usize) -> Result<(), Error> {
        // Any sender that knows the key, not one peer.
        let key = UdInit { qkey: Qkey(0x1111_1111) };
        let make = |cq| self.pd.qp::<Ud>().send_cq(cq).recv_cq(cq).create();
        let (a, b) = (make(&self.cqs[0])?, make(&self.cqs[1])?);
        let at_b = b.endpoint();
        let b = b.init(key)?;
        b.post_recv(WrId(3), &self.memory)?;
        let _b = b.activate()?;
        let a = a.init(key)?.activate()?;
        // Where it goes is said with each message.
        let there = self.pd.create_ah(at_b.gid)?;
        let message = self.pd.alloc_mr(bytes, Access::NONE)?;
        message.write_at(0, b"by UD")?;
        let posted = a.post_send_to(WrId(3), &message, there.to(at_b.qpn, key.qkey));
        match posted {
            Ok(()) => self.tell("UD", GRH),
            Err(error) => {
                println!("UD sender: {error}");
                Ok(())
            }
        }
    }

    fn extended_connection(&self) -> Result<(), Error> {
        // The receiver has a queue for each of its threads; one connection is for all of them.
        let domain = self.device.create_xrcd()?;
        let queues = [
            self.pd.create_xrc_srq(&domain, &self.cqs[1], 8, 1)?,
            self.pd.create_xrc_srq(&domain, &self.cqs[1], 8, 1)?,
        ];
        queues[1].post_recv(WrId(4), &self.memory)?;
        let target = domain.create_tgt()?;
        let initiator = self.pd.xrc_ini().send_cq(&self.cqs[0]).create()?;
        let (at_initiator, at_target) = (initiator.endpoint(), target.endpoint());
        let _target = target.connect(at_initiator)?;
        let initiator = initiator.connect(at_target)?;
        let mut batch = initiator.send_batch_to(queues[1].number());
        batch.send(WrId(4), Inline(b"XRC 1")).signaled();
        batch.commit()?;
        self.tell("XRC", 0)
    }
}

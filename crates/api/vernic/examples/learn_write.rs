//! The book, docs/learn-write.md: one RDMA WRITE, step by step.
//!
//! With the word `deny` the target does not permit it.
#![expect(clippy::print_stdout, reason = "a command-line program")]

use std::time::Duration;
use vernic::{Access, Device, Error, InitAttr, Rc, WrId};

fn main() -> Result<(), Error> {
    let is_denied = std::env::args().nth(1).as_deref() == Some("deny");

    // The network card. Then what belongs to it: a protection domain, which says what may be used
    // together, and a completion queue, in which the outcome of requests is found.
    let device = Device::open("lo")?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16)?;

    // Two queue pairs, the ends of a connection. Here both are in one process.
    let make = || pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create();
    let (initiator, target) = (make()?, make()?);
    let (at_initiator, at_target) = (initiator.endpoint(), target.endpoint());

    // The target registers memory that its peer may write, and connects.
    let rights = if is_denied { Access::NONE } else { Access::NONE.remote_write() };
    let memory = pd.alloc_mr(4096, rights)?;
    let granting = InitAttr::granting(Access::NONE.remote_write());
    let _target = target.init(granting)?.connect(at_initiator)?;
    // Address, key and length: the initiator needs no more.
    let place = memory.remote();
    println!("target: {} bytes at {:#x}, key {:#x}", place.len, place.addr, place.rkey.value());

    // The initiator registers memory, too: the card reads what is to be written.
    let initiator = initiator.connect(at_target)?;
    let source = pd.alloc_mr(4096, Access::NONE)?;
    source.write_at(0, b"hello, RDMA")?;
    initiator.post_write(WrId(1), source.slice(..11)?, place.at(100))?;
    println!("initiator: a WRITE of 11 bytes to byte 100 is posted");

    // The outcome comes later: first other work could be done.
    match cq.wait_one(Duration::from_secs(10)) {
        Ok(done) => println!("initiator: work request {} is complete", done.wr_id().0),
        Err(error) => println!("initiator: {error}"),
    }

    // The target has made no call meanwhile. It looks into its memory.
    let found = memory.to_vec(100..111)?;
    println!("target: the 11 bytes there are {:?}", String::from_utf8_lossy(&found));
    Ok(())
}

//! The book, docs/learn-states.md: the states of a queue pair, one by one.
//!
//! With the word `half` the peer stops at Init, as a program does that sends too early.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use two_ends::{outcome, word};
use vernic::{
    Access, AckTimeout, Cq, Device, Endpoint, Error, Init, InitAttr, Inline, Mtu, Path, Pd, Qp, Rc,
    RcRtr, RcRts, RnrTimer, Rts, WrId,
};

fn main() -> Result<(), Error> {
    let is_half = word(&["half"])? == "half";
    let device = Device::open("lo")?;
    let (pd, cq_a, cq_b) = (device.alloc_pd()?, device.create_cq(16)?, device.create_cq(16)?);
    let make = |cq: &Cq| pd.qp::<Rc>().send_cq(cq).recv_cq(cq).create();

    // Reset: it has a number, and takes no work.
    let (a, b) = (make(&cq_a)?, make(&cq_b)?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    println!("created: {:?} and {:?}", a.state(), b.state());

    // Init: port and rights of the peer are chosen. Receives may be posted; nothing is received.
    let (a, b) = (a.init(InitAttr::default())?, b.init(InitAttr::default())?);
    println!("port and rights: {:?} and {:?}", a.state(), b.state());
    let memory = receive(&pd, &b)?;

    if is_half {
        let a = bring_up(a, at_b)?;
        println!("a is brought up, b is not: {:?} and {:?}", a.state(), b.state());
        a.post_send(WrId(1), Inline(b"hello"))?;
        println!("a: {}", outcome(&cq_a));
        println!("the end: {:?} and {:?}", a.state(), b.state());
        return Ok(());
    }

    let b = bring_up(b, at_a)?;
    let a = bring_up(a, at_b)?;
    println!("both brought up: {:?} and {:?}", a.state(), b.state());
    a.post_send(WrId(1), Inline(b"hello"))?;
    println!("a: {}", outcome(&cq_a));
    println!("b: {}, {:?}", outcome(&cq_b), String::from_utf8_lossy(&memory.to_vec(..5)?));

    // Error: all that is posted comes back. From there the only way is Reset.
    b.post_recv(WrId(3), &memory)?;
    b.fail()?;
    println!("b moved to {:?}; the receive that it had: {}", b.state(), outcome(&cq_b));
    let b = b.reset()?;
    println!("b: {:?}, and its number is still its own: {}", b.state(), b.qpn() == at_b.qpn);
    Ok(())
}

/// A receive for up to 64 bytes.
fn receive(pd: &Pd, qp: &Qp<Rc, Init>) -> Result<vernic::Mr, Error> {
    let memory = pd.alloc_mr(64, Access::NONE.local_write())?;
    qp.post_recv(WrId(2), &memory)?;
    Ok(memory)
}

/// From Init to RTS, with each attribute that the two steps need.
fn bring_up(qp: Qp<Rc, Init>, remote: Endpoint) -> Result<Qp<Rc, Rts>, Error> {
    // RTR, ready to receive: it knows its peer. Requests of the peer are answered.
    let qp = qp.rtr(RcRtr {
        remote, // number, first sequence number, address
        path: Path::default(),
        path_mtu: Mtu::B1024,             // the same at both ends
        max_dest_rd_atomic: 1,            // READs and atomics of the peer at a time
        min_rnr_timer: RnrTimer::new(12), // 0.64 ms: "come back then" where no receive is posted
    })?;
    // RTS, ready to send.
    Ok(qp.rts(RcRts {
        timeout: AckTimeout::new(15), // 134 ms without an answer: send again
        retry_cnt: 2,                 // twice, then give up
        rnr_retry: 7,                 // "come back then" may be said for ever
        max_rd_atomic: 1,             // READs and atomics of its own at a time
    })?)
}

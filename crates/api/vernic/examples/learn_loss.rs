//! The book, docs/learn-loss.md: what is sent again, when, and when that ends.
//!
//! Without a word one packet in twenty is lost. Words: `late` posts the receive too late, `rnr`
//! never, `silence` has no peer.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use std::time::Duration;

use two_ends::{PATIENCE, impatient, outcome, word};
use vernic::{Access, Config, Device, Error, Inline, RcOptions, WrId};

/// Messages, and bytes of each.
const COUNT: u64 = 200;
const SIZE: usize = 16_384;

fn main() -> Result<(), Error> {
    match &*word(&["late", "rnr", "silence"])? {
        "" => loss(),
        "late" => late(),
        "rnr" => never_ready(),
        _ => silence(),
    }
}

/// Packets are lost, messages are not.
fn loss() -> Result<(), Error> {
    // By the wire: what goes from memory to memory loses nothing.
    let fault = "loss=0.05,seed=7".to_owned();
    let config = Config { device: "lo".into(), fault, force_wire: true, ..Config::default() };
    let device = Device::open_with(config)?;
    let (a, b) = two_ends::connected(&device, Access::NONE, &RcOptions::default())?;
    let outgoing = a.pd.alloc_mr(SIZE, Access::NONE)?;
    let incoming = b.pd.alloc_mr(SIZE, Access::NONE.local_write())?;
    let mut in_order = 0;
    for number in 0..COUNT {
        outgoing.write_at(0, &number.to_ne_bytes())?;
        b.qp.post_recv(WrId(number), &incoming)?;
        a.qp.post_send(WrId(number), &outgoing)?;
        a.cq.wait_one(PATIENCE)?;
        b.cq.wait_one(PATIENCE)?;
        in_order += u64::from(incoming.load_u64(0)? == number);
    }
    println!("{COUNT} messages sent, {in_order} received in order");
    let lost = device.counters().link.fault_drops;
    let again = a.qp.counters().retransmitted_packets;
    println!("packets were lost: {}, and sent again: {}", lost > 0, again > 0);
    Ok(())
}

/// The receive is posted a fifth of a second after the message was sent.
fn late() -> Result<(), Error> {
    let device = Device::open("lo")?;
    let (a, b) = two_ends::connected(&device, Access::NONE, &RcOptions::default())?;
    let memory = b.pd.alloc_mr(64, Access::NONE.local_write())?;
    a.qp.post_send(WrId(1), Inline(b"hello"))?;
    std::thread::sleep(Duration::from_millis(200));
    b.qp.post_recv(WrId(2), &memory)?;
    println!("a: {}", outcome(&a.cq));
    println!("b: {}", outcome(&b.cq));
    println!("b was not ready at first: {}", a.qp.counters().rnr_naks_received > 0);
    Ok(())
}

/// No receive is ever posted, and the sender asks three times.
fn never_ready() -> Result<(), Error> {
    let device = Device::open("lo")?;
    let (a, _b) = two_ends::connected(&device, Access::NONE, &impatient())?;
    a.qp.post_send(WrId(1), Inline(b"hello"))?;
    a.qp.post_send(WrId(2), Inline(b"again"))?;
    println!("a: {}", outcome(&a.cq));
    println!("a: {}", outcome(&a.cq));
    println!("a is in {:?}", a.qp.state());
    Ok(())
}

/// The peer's queue pair is gone.
fn silence() -> Result<(), Error> {
    let device = Device::open("lo")?;
    let (a, b) = two_ends::connected(&device, Access::NONE, &impatient())?;
    drop(b.qp);
    a.qp.post_send(WrId(1), Inline(b"anybody?"))?;
    println!("a: {}", outcome(&a.cq));
    println!("a is in {:?}", a.qp.state());
    Ok(())
}

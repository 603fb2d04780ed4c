//! The book, docs/learn-completions.md: which requests complete, when and in which order.
//!
//! Words: `full` never asks for a completion, `overrun` never takes one.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use two_ends::{PATIENCE, word};
use vernic::{Access, Device, Error, InitAttr, Inline, Pd, Qp, Rc, Rts, Wc, WrId};

fn main() -> Result<(), Error> {
    let mistake = word(&["full", "overrun"])?;
    let device = Device::open("lo")?;
    let pd = device.alloc_pd()?;
    // The queue tells on a channel, on which a program can sleep.
    let channel = device.create_channel()?;
    let cq = device.create_cq_on(if mistake == "overrun" { 2 } else { 16 }, &channel)?;
    let theirs = pd.alloc_mr(64, Access::NONE.remote_write().remote_read())?;
    let ours = pd.alloc_mr(64, Access::NONE.local_write())?;
    let (a, _b) = connected(&pd, &cq)?;
    let place = theirs.remote();
    let mut wcs = [Wc::default(); 16];

    if mistake == "full" {
        // Unsignaled requests keep their places in the send queue until a signaled one completes.
        let mut batch = a.send_batch();
        for number in 1..=5 {
            batch.write(WrId(number), Inline(b"x"), place.at(0));
        }
        match batch.commit() {
            Ok(()) => println!("all five are posted"),
            Err(error) => println!("{error}"),
        }
        return Ok(());
    }
    if mistake == "overrun" {
        // Three completions, and room for two.
        for number in 1..=3 {
            a.post_write(WrId(number), Inline(b"x"), place.at(0))?;
        }
        std::thread::sleep(PATIENCE / 100);
        let taken = cq.poll(&mut wcs)?.len();
        println!(
            "{taken} completions, then: {}",
            cq.poll(&mut wcs).map_or_else(|e| e.to_string(), |_| "none".into())
        );
        return Ok(());
    }

    // Four WRITEs by one doorbell, of which the last is signaled: one completion for all.
    let mut batch = a.send_batch();
    for number in 1..=3 {
        batch.write(WrId(number), Inline(b"x"), place.at(number));
    }
    batch.write(WrId(4), Inline(b"x"), place.at(4)).signaled();
    batch.commit()?;
    let done = cq.wait_one(PATIENCE)?;
    println!("four WRITEs, one completion: of work request {}", done.wr_id().0);
    println!("the queue has {} more", cq.poll(&mut wcs)?.len());

    // A READ takes longer than the WRITE behind it, and still completes first: in the order posted.
    let mut batch = a.send_batch();
    batch.read(WrId(5), ours.slice(..64)?, place.at(0)).signaled();
    batch.write(WrId(6), Inline(b"y"), place.at(0)).signaled();
    batch.commit()?;
    let order = [cq.wait_one(PATIENCE)?, cq.wait_one(PATIENCE)?].map(|wc| wc.wr_id().0);
    println!("a READ and a WRITE complete in the order {order:?}");

    // The fence: the SEND of what a READ brings waits until the READ is complete.
    theirs.write_at(0, b"new")?;
    let mut batch = a.send_batch();
    batch.read(WrId(7), ours.slice(..3)?, place.at(0));
    batch.write(WrId(8), ours.slice(..3)?, place.at(32)).fence().signaled();
    batch.commit()?;
    cq.wait_one(PATIENCE)?;
    let copied = theirs.to_vec(32..35)?;
    println!("what the READ brought was written behind it: {:?}", String::from_utf8_lossy(&copied));

    // Sleeping: arm, look once more, wait. In another order a completion could be missed.
    cq.arm();
    a.post_write(WrId(9), Inline(b"z"), place.at(0))?;
    let woken = match cq.poll(&mut wcs)?.len() {
        0 => channel.wait(Some(PATIENCE))?.is_some() && !cq.poll(&mut wcs)?.is_empty(),
        _ => true,
    };
    println!("the completion was there, at once or after sleep: {woken}");
    Ok(())
}

/// The two ends of a connection.
type Ends = (Qp<Rc, Rts>, Qp<Rc, Rts>);

/// Two ends with four places in each send queue, and one completion queue.
fn connected(pd: &Pd, cq: &vernic::Cq) -> Result<Ends, Error> {
    let make = || pd.qp::<Rc>().send_cq(cq).recv_cq(cq).max_send_wr(4).create();
    let (a, b) = (make()?, make()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let granting = InitAttr::granting(Access::NONE.remote_write().remote_read());
    let b = b.init(granting)?.connect(at_a)?;
    Ok((a.connect(at_b)?, b))
}

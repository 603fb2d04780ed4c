//! The cost of the calls: one thread posts lists of 8-byte WRITEs and polls until each list is
//! complete, with both queue pairs in this process.
//!
//! `post_poll [MESSAGES [LIST]]`: so many messages, so many of them with one doorbell. Prints the
//! nanoseconds that a message took. `tools/post_poll/post_poll.c` does the same through libibverbs;
//! `cargo xtask bench` compares the two.
#![expect(clippy::print_stdout, reason = "a command-line program")]

use std::time::Instant;

use vernic::{Access, Device, Error, InitAttr, Rc, Wc, WrId};

/// Bytes of a message.
const LEN: usize = 8;

fn main() -> Result<(), Error> {
    let messages = argument(1, 100_000);
    let list = argument(2, 16);

    let device = Device::open("lo")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(2 * list as u32)?);
    let make = || {
        let builder = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq);
        builder.max_send_wr(list as u32).create()
    };
    let (a, b) = (make()?, make()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let source = pd.alloc_mr(LEN, Access::NONE)?;
    let target = pd.alloc_mr(LEN, Access::NONE.remote_write())?;
    let _b = b.init(InitAttr::granting(Access::NONE.remote_write()))?.connect(at_a)?;
    let a = a.connect(at_b)?;

    let (from, to) = (source.slice(..LEN)?, target.remote().at(0));
    let mut wcs = [Wc::default(); 1];
    let mut batch = a.send_batch();
    let lists = messages.div_ceil(list);
    let began = Instant::now();
    for _ in 0..lists {
        for id in 1..list {
            batch.write(WrId(id), from, to);
        }
        batch.write(WrId(list), from, to).signaled();
        batch.commit_and_clear()?;
        // A completion that is an error ends the loop as one: it is not of the last request.
        while cq.poll(&mut wcs)?.is_empty() {}
        cq.check(&wcs[0])?;
    }
    let elapsed = began.elapsed();
    println!("{:.1} ns per message", elapsed.as_nanos() as f64 / (lists * list) as f64);
    Ok(())
}

/// The argument at this place, a number above zero, or what stands for it.
fn argument(place: usize, default: u64) -> u64 {
    let Some(text) = std::env::args().nth(place) else { return default };
    match text.parse() {
        Ok(number) if number > 0 => number,
        _ => panic!("{text} is not a number above zero; usage: post_poll [MESSAGES [LIST]]"),
    }
}

//! The book, docs/learn-messages.md: two-sided and one-sided operations, and what each end notices.
//!
//! With the word `short` the receive has less room than the message has bytes.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use two_ends::{End, PATIENCE, outcome, word};
use vernic::{Access, Device, Error, Mr, RcOptions, Wc, WrId};

fn main() -> Result<(), Error> {
    let is_short = word(&["short"])? == "short";
    let device = Device::open("lo")?;
    let rights = Access::NONE.remote_write().remote_read();
    let (a, b) = two_ends::connected(&device, rights, &RcOptions::default())?;
    let ours = a.pd.alloc_mr(64, Access::NONE.local_write())?;
    let theirs = b.pd.alloc_mr(64, rights)?;
    ours.write_at(0, b"one two three")?;

    // SEND: b must have posted a receive, which says where the message goes.
    let room = if is_short { 2 } else { 64 };
    b.qp.post_recv(WrId(10), theirs.slice(..room)?)?;
    a.qp.post_send(WrId(1), ours.slice(..3)?)?;
    println!("a: {}", outcome(&a.cq));
    if is_short {
        println!("b: {}", outcome(&b.cq));
        return Ok(());
    }
    tell(&b, &theirs)?;

    // WRITE: a says where the bytes go. b is told nothing.
    a.qp.post_write(WrId(2), ours.slice(4..7)?, theirs.remote().at(0))?;
    println!("a: {}", outcome(&a.cq));
    tell(&b, &theirs)?;

    // WRITE with immediate data: as WRITE, and it completes a receive of b, with a number.
    b.qp.post_recv(WrId(11), ())?;
    a.qp.post_write_imm(WrId(3), ours.slice(8..13)?, theirs.remote().at(0), 7)?;
    println!("a: {}", outcome(&a.cq));
    tell(&b, &theirs)?;

    // READ: a fetches. b is told nothing.
    theirs.write_at(0, b"from b")?;
    a.qp.post_read(WrId(4), ours.slice(..6)?, theirs.remote().at(0))?;
    println!("a: {}, {:?}", outcome(&a.cq), text(&ours, 6)?);
    tell(&b, &theirs)?;
    Ok(())
}

/// Prints what an end notices by its completion queue, and what it has in memory.
fn tell(end: &End, memory: &Mr) -> Result<(), Error> {
    let mut wc = [Wc::default()];
    // Nothing is waited for: what comes is there when the peer's request is complete.
    let noticed = match end.cq.wait(&mut wc, PATIENCE / 100) {
        Ok([wc]) => {
            format!("{:?} of {} bytes, immediate {:?}", wc.opcode(), wc.byte_len(), wc.imm())
        }
        _ => "no completion".to_owned(),
    };
    println!("   b: {noticed}; its memory begins with {:?}", text(memory, 6)?);
    Ok(())
}

/// The first bytes of a region, zeros apart.
fn text(memory: &Mr, len: usize) -> Result<String, Error> {
    let bytes = memory.to_vec(..len)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
}

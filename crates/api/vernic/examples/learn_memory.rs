//! The book, docs/learn-memory.md: what a peer may reach, and what is said when it may not.
//!
//! Words: `bounds`, `rights`, `stale`, `domain`, `window`.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use two_ends::{outcome, word};
use vernic::{Access, Device, Error, Inline, RcOptions, RemoteAddr, Type1, WrId};

fn main() -> Result<(), Error> {
    let mistake = word(&["bounds", "rights", "stale", "domain", "window"])?;
    let is = |name: &str| mistake == name;
    let device = Device::open("lo")?;
    let granted = Access::NONE.remote_write();
    let (initiator, target) = two_ends::connected(&device, granted, &RcOptions::default())?;

    // The target registers 64 bytes.
    let domain = if is("domain") { device.alloc_pd()? } else { target.pd.clone() };
    let rights = match &*mistake {
        "rights" => Access::NONE.local_write(),
        "window" => Access::NONE.local_write().bind_windows(),
        _ => Access::NONE.remote_write(),
    };
    let memory = domain.alloc_mr(64, rights)?;
    let mut place = memory.remote();

    // A window grants a part of the region, under a key of its own: here bytes 16 to 31.
    let window = target.pd.alloc_window::<Type1>()?;
    if is("window") {
        place = window.bind(&memory, 16..32, Access::NONE.remote_write())?;
    }

    // The initiator writes 5 bytes. `place.at` knows how long the region is, and would refuse what
    // leaves it. Programs of C have an address and a key alone, as `RemoteAddr::new` has.
    let offset = match &*mistake {
        "bounds" => 60,
        "window" => 20,
        _ => 0,
    };
    let to = RemoteAddr::new(place.addr + offset, place.rkey);
    let kept = if is("stale") {
        memory.deregister();
        None
    } else {
        Some(memory)
    };
    initiator.qp.post_write(WrId(1), Inline(b"hello"), to)?;
    println!("initiator: {}", outcome(&initiator.cq));

    // A refusal tells the initiator little, by design. The target knows which check failed.
    match (target.qp.explain(), kept) {
        (Some(why), _) => println!("target: {why}"),
        (None, Some(memory)) => {
            println!("target: {:?}", String::from_utf8_lossy(&memory.to_vec(..5)?));
        }
        (None, None) => println!("target: no complaint"),
    }
    println!("states: {:?} and {:?}", initiator.qp.state(), target.qp.state());
    Ok(())
}

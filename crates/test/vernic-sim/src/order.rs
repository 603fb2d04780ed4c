//! Orders that a scenario gives to the sides of its pair.
//!
//! Kept by the world until an order's time has come; carried out by `command`.

use vernic_proto::{QpState, SendFlags};

use crate::flow::Bad;

/// An order to a side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Post {
        op: Posted,
        len: u32,
        flags: SendFlags,
        bad: Bad,
        queue: usize,
    },
    Recv {
        capacity: u32,
        bad: bool,
        queue: usize,
    },
    State(QpState),
    RevokeWriteKey,
    JoinRings,
    /// The rings break; so many records of each are still read, at once.
    LoseRings(usize),
    /// The process of the side ends; so many records of what it wrote are still read.
    Die(usize),
    /// So many rendezvous that this side receives cannot be copied.
    Unreachable(u32),
}

/// Operations by their names in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Send,
    SendImm(u32),
    SendInv,
    Write,
    WriteImm(u32),
    Read,
    FetchAdd(u64),
    CmpSwap(u64, u64),
    Flush,
    AtomicWrite,
    LocalInv,
    BindMw,
}

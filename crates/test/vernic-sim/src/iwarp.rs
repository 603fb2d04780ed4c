//! Simulation of iWARP: two ends of `vernic_proto::iwarp` over a simulated TCP connection.
//!
//! Owns no protocol. Called by the command (`--iwarp`) and by tests; calls `vernic-proto` and the
//! oracle's memory and contents. A run depends on its seed and on nothing else.
//!
//! # How a run works
//!
//! ```text
//!   seed -> Plan (what is agreed, traffic, one fault at most)
//!
//!   Startup, then Qp  --bytes-->  Pipe: taken in any pieces,   --bytes-->  Startup, then Qp
//!     | StreamHost                 delivered in any pieces                   | StreamHost
//!     +--- End 0: memory, model, requests, receives                End 1 ----+
//! ```
//! TCP neither loses nor reorders, so there is no network to simulate, only who does what next:
//! each step picks one of the things that could happen ([`world`]). An end posts, makes an FPDU,
//! has some bytes of its own taken, gets some bytes delivered; in some runs byte by byte, so a
//! stream is cut at every boundary. Time passes a little with each step, and leaps to the next
//! deadline when nothing else can happen. The fault of a run, if it has one: a byte that changes on
//! the way, a reset, a half that ends too early, a silence, an application that goes to Error, a
//! request that the peer must refuse, a missing receive.
//!
//! # What is proven
//!
//! | property | where |
//! |---|---|
//! | every request is carried out once, in the order of the posts, with the right bytes at their place | [`host`] |
//! | READs and atomics are answered in order, with what was there | [`host`] |
//! | nothing outside of a granted range is touched, guards included | [`ending`], at the end |
//! | completions come in the order of the posts; success of a READ or atomic means that it was answered, of others that the connection had taken their last byte | [`books`] |
//! | receives complete in order: bytes, length, immediate data, invalidated key | [`books`], [`host`] |
//! | a changed byte under a CRC never counts as received, and ends the stream | [`host`], [`ending`] |
//! | without a fault everything succeeds and both ends close in order; with one both end in Error, with each request and each receive completed | [`ending`] |
//! | the contract: deadlines lie ahead, what is wanted is given, no bytes are consumed that were not passed | [`world`] |
//!
//! That the oracle can fail is tested: [`Mutation`].
//!
//! # Limits
//! One connection; no shared receive queues and no windows (the keys of `invalidate` are granted
//! for each request). Where bytes change and no CRC protects them, or payload is placed before its
//! CRC is checked, only safety is judged: no panic, no access beyond a grant, one completion for
//! each request.

mod books;
mod ending;
mod host;
mod owner;
mod pipe;
mod plan;
mod tally;
mod traffic;
mod world;

pub use plan::{Mutation, Plan};
pub use tally::{Tally, Totals};
pub use world::{Report, run};

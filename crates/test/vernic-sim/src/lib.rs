//! Deterministic simulation of the Vernic protocol core: a network, a clock and an oracle of memory
//! around the real queue pairs of `vernic-proto`.
//!
//! Owns no protocol. Called by its own command and by its tests, which use [`RcPair`] where they
//! need less than a whole run. Calls `vernic-proto` and `vernic-wire`. A run depends on its seed
//! and on nothing else: no wall clock, no addresses, no hash order; one generator
//! ([xoshiro256**](rng)) descends from the seed. A violation prints one line with the command that
//! replays it.
//!
//! # How a run works
//!
//! ```text
//!   seed -> Plan (what, how bad) -> World: queue of events in virtual time
//!                                     |  Post, PostRecv, Chaos, Heal      applications, faults
//!                                     |  Pump, Timer                      the engine's part
//!                                     v  Deliver                          the network
//!        side A: Qp <-> SimHost  ---- links: delay, loss, ... ----  SimHost <-> Qp :side B
//!                         |      ==== rings: packets and parts ====      |
//!                         |  Flow A->B: messages posted, executed, completed  |
//!                         v                 v                                 v
//!                      memory, model    judge, wirecheck, complete         memory, model
//! ```
//! - [`plan`] draws topology, attributes, traffic and faults; each seed switches on a random subset
//!   of the features (swarm testing), so that rare combinations meet.
//! - [`world`] is the loop. The run ends when no event is left: nothing here is periodic, so a
//!   protocol that has finished falls silent, and one that has not is caught by the bounds on
//!   events and virtual time.
//! - *Safety phase*: all faults on. At a drawn time the world *heals*: no more losses, receives are
//!   posted at once, failed connections are made anew and carry a few more messages. *Liveness
//!   phase*: all that was posted must finish, and no new connection may fail.
//!
//! # What is proven
//!
//! | property | where |
//! |---|---|
//! | RC executes each packet exactly once and in order; a duplicate, dropped or refused one changes nothing | [`judge`] |
//! | every byte stored, sent, received or read back is the right one, at its place | [`host`], [`wirecheck`], [`complete`] |
//! | nothing outside a granted range is touched, guards included | [`memory`], at the end of the run |
//! | completions come in the order of the posts, one for each signaled request, and one for each request after a failure | [`complete`], [`checks`] |
//! | success is only reported for what the peer executed and answered; atomics return the value that was there | [`complete`] |
//! | receive completions fit the messages one to one: bytes, length, immediate data, invalidated key | [`complete`] |
//! | a failure has its reason in what was injected, and both ends agree about it | [`complete`], [`judge`] |
//! | XRC executes a request for the shared receive queue that it names, and for no other | [`judge`], [`complete`], [`wirecheck`] |
//! | a SEND through a ring is what it is in packets, whole or in parts, copied twice or once by the receiver; an unreachable payload costs no retry | [`parts`], [`judge`] |
//! | requests go over to a ring without a loss; a ring that breaks, and a peer that ends, lose what was in it and nothing else | [`local`] |
//! | UC delivers a message whole or not at all and in order; UD never more often than the network did | [`judge`] |
//! | every packet parses, emits again identically, fits the MTU, and is due (window, fence, read depth, RNR delay, SQD) | [`wirecheck`] |
//! | marked packets are told of, and all of it holds whatever the congestion controller says, and no request leaves before the time that it names | [`wirecheck`], [`erratic`] |
//! | the contract of `Qp`: deadlines lie ahead, `wants_transmit` tells the truth, nothing panics on garbage | [`world`] |
//! | all ends after healing | [`checks`] |
//!
//! Sequence numbers, messages and bytes are tied by arithmetic: on RC the place of a packet in its
//! message follows from what was posted ([`flow`]), and contents follow from the message's number
//! ([`content`]), so the oracle needs no copy of the protocol's state.
//!
//! Half of the reliable connections are between processes of one host: beside the network they have
//! rings ([`ring`]), under the engine's rules. Where garbage is about, parts come too that nobody
//! sent.
//!
//! That the oracle can fail is tested: [`Mutation`] breaks the host or the network on purpose.
//!
//! # Networks
//! [`network`] is another kind of run: thousands of hosts with real queue pairs, over switches that
//! queue, mark and pause. It judges nothing; it measures what congestion controls do
//! (`docs/sim-net.md`).
//!
//! # Limits
//! Two ends per connection (no multicast); one path; keys and completion queues are the engine's
//! and are modelled, not tested, here.
#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)] // who reads these pages reads the code

mod app;
mod arrival;
mod checks;
mod command;
mod complete;
mod content;
mod cover;
mod ctx;
mod erratic;
pub mod fabric;
mod flow;
mod host;
pub mod iwarp;
mod judge;
mod lifecycle;
mod local;
mod memory;
mod net;
pub mod network;
mod notify;
mod order;
pub mod pair;
mod parts;
mod plan;
mod ring;
mod rng;
mod side;
mod steps;
mod trace;
mod wirecheck;
mod world;
mod xrc;

pub use cover::{Count, Cover};
pub use expect_test::expect;
pub use memory::access;
pub use pair::{PairConfig, RcPair};
pub use plan::{Mutation, Plan};
pub use world::{Report, run};

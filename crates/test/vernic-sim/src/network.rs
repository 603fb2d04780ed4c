//! The simulator at scale: thousands of hosts, real queue pairs, simulated switches.
//!
//! Owns no protocol. Each flow is a connection of two [`vernic_proto::Qp`], which write and read
//! real headers; what is simulated is the network between them, and that in detail enough to
//! compare congestion controllers: shared buffers, marks of ECN, PFC, ECMP, delays and rates,
//! store and forward. Called by the command `vernic-sim net`. A run depends on its seed and
//! nothing else.
//!
//! ```text
//!   load, ring --> world <--> hosts: ends (Qp + device), one link each
//!   (what begins)    |           |  poll: headers          ^ parse, handle
//!                    |           v                         |
//!        measure <---+       forward: ports, buffers, marks, packets in a slab
//!           |                    ^
//!   report, json, picture    topology, routes       events: of each node, in windows
//! ```
//! The page `docs/sim-net.md` says what is modelled, and how far.
//!
//! # Payload is virtual
//! A queue pair asks its [`Host`](vernic_proto::Host) to fill the payload in, and to store it.
//! Here the host does neither, so a packet is its first 32 bytes and its length. The machine sees
//! packets of the full length all the same.
//!
//! # Limits
//! One traffic class. PFC frames take no time of the link that they are sent by. ECN and PFC look
//! at bytes of frames, without preamble. Hosts take packets as fast as they come.

mod algo;
mod end;
mod events;
mod forward;
mod hosts;
mod json;
mod link;
mod load;
mod measure;
mod packet;
mod picture;
mod ran;
mod report;
mod ring;
mod routes;
mod setup;
mod sizes;
mod switch;
#[cfg(test)]
mod tests;
mod topology;
mod units;
mod world;

pub use algo::algorithm;
pub use load::{Planned, Traffic};
pub use report::Report;
pub use setup::Setup;
pub use sizes::Sizes;
pub use switch::Ecn;
pub use topology::Shape;
pub use units::{Rate, bytes, nanos, part};

/// Runs a network.
///
/// # Errors
/// Values that do not go together, in words.
pub fn run(setup: &Setup) -> Result<Report, String> {
    let mut world = world::World::new(setup)?;
    world.run();
    Ok(Report::new(setup, &world))
}

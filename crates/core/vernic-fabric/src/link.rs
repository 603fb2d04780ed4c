//! The link layer: one end of a cable (IBTA chapter 7).
//!
//! Owns what is between a node and the cable: training, the states of the port, virtual lanes with
//! their buffers and credits, arbitration, the modelled rate. Switches and channel adapters call
//! it. It knows lengths and lanes of packets, and keeps none of their bytes; those are in the
//! node's `PacketStore`.
//!
//! A port keeps no copy of its attributes: each call borrows the
//! [`PortAttributes`](crate::attributes::PortAttributes), which management changes between calls.
//!
//! | module | owns |
//! |---|---|
//! | `frame` | what travels on a cable, and the checks of a received packet |
//! | `training` | whether there is a link |
//! | `credit`, `flow` | credits of a lane; when they are told to the other end |
//! | `buffer` | how full the receive buffers are |
//! | `lanes` | which lanes there are, and which a packet takes |
//! | `queue` | packets that wait to be sent, and those that wait too long |
//! | `arbiter` | which lane sends next |
//! | `line` | how long sending takes |
//! | `next` | what leaves, before it is bytes |
//! | `life` | how far a packet has come |
//! | `port` | the whole |
//! | `store`, `submit` | the bytes of packets in a node; why one is not taken |
//! | `config` | what the owner decides |

mod arbiter;
mod buffer;
mod config;
mod credit;
mod flow;
mod frame;
mod lanes;
mod life;
mod line;
mod next;
mod port;
mod queue;
mod store;
mod submit;
mod training;

pub use config::LinkConfig;
pub use frame::{Frame, FrameKind, Signal, Transmit};
pub use life::Life;
pub use submit::SubmitError;

pub(crate) use frame::{Header, fits};
pub(crate) use lanes::lane_for;
pub(crate) use port::Port;
pub(crate) use queue::{Lifetimes, Queued};
pub(crate) use store::{Origin, PacketId, PacketStore, Spares};

#[cfg(test)]
pub(crate) mod port_tests {
    //! What tests of the nodes need of the tests here.
    pub(crate) use super::frame::tests::packet;
    pub(crate) use super::port::tests::attributes;
}

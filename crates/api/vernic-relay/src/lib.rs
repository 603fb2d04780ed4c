//! A bad network between two netdevs: each frame that comes by one leaves by the other, after what
//! the network does to it. For tests and trials where the kernel has no `netem`.
//!
//! | module | owns |
//! |---|---|
//! | `impairment` | what the network does, as a user writes it |
//! | `direction` | frames on their way in one direction, without input or output |
//! | `ip` | the bits of a frame that a router may change |
//! | `relay` | the packet sockets, the clock and the loop |
//!
//! A direction is a line with a rate behind a queue, and then a delay. Frames that are not of IP
//! (ARP, say) take their time too, and nothing else happens to them.
//!
//! The fate of a frame depends on the seed and on the frames before it in its direction, and not on
//! the time: the same frames are lost in each run.
#![forbid(unsafe_code)]

mod direction;
mod impairment;
mod ip;
mod relay;

pub use direction::{Counts, Direction, Nanos};
pub use impairment::{Impairment, ImpairmentError};
pub use relay::{Relay, RelayError, Report};

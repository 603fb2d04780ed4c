//! The owner of an interface of IP over InfiniBand: it gives a host of a fabric an IP interface, by
//! a TUN device whose packets go through the host's adapter (docs/ipoib.md).
//!
//! Owns what `vernic-ipoib`, the machine, leaves to its owner: the TUN device, a queue pair of
//! datagrams, requests to subnet administration, the time; and the socket of the interface. Called
//! by `vernic fabric ipoib`, and by tests with another [`Host`] than a TUN device.
//!
//! ```text
//!   kernel of the network namespace
//!     | IP packets
//!   Host (Tun)  <->  Owner: Interface  <->  SubnetQuestions  subnet administration
//!                                      <->  Datagrams        UD queue pair of the device
//!                                      <->  Connections      RC queue pairs, CM
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `owner` | the loop: who is asked when, what becomes of each answer |
//! | `datagrams` | the queue pair of datagrams, its memory, address handles |
//! | `connections` | reliable connections, their queue pairs and memory |
//! | `port` | the port as the fabric tells it |
//! | `subnet` | groups, paths and notices of subnet administration, by the fabric process |
//! | `host` | where IP packets come from and go to |
//! | `questions` | the socket by which programs ask where IP addresses are |
//!
//! One thread does all. It sleeps until the host, the queue pair or the SA has something, and looks
//! at the port and the addresses of the host four times a second.
#![forbid(unsafe_code)]

mod connections;
mod datagrams;
mod error;
mod host;
mod owner;
mod port;
mod questions;
mod subnet;

pub use error::IpoibError;
pub use host::{Host, NoDevice};
pub use owner::{Options, Owner, Summary};
pub use vernic_ipoib::{Address, Gateway, Mode};

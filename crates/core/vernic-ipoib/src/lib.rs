//! IP over InfiniBand without I/O: the machine between a device that carries bare IP packets and
//! the queue pairs of an InfiniBand port.
//!
//! Owns one interface of IPoIB: the link that the broadcast group of a partition is, who on it has
//! which IP address, how their ports are reached, multicast groups, and connections (RFC 4391, RFC
//! 4392, RFC 4755; address resolution by RFC 826 and RFC 4861). It has no clock, socket or queue
//! pair: its owner passes in the present, packets and answers, and fetches what there is to do.
//!
//! ```text
//!   IP packets of the host                                       queue pairs, SA, CM
//!     handle_ip  ------------------>  Interface  -- Forward::Send, poll_transmit -->
//!     <-- Received::Deliver, poll_deliver  |     <-- handle_datagram, handle_message
//!                                          |     -- poll_request: join, path, connect -->
//!                                          |     <-- handle_joined, handle_path, handle_connected
//! ```
//!
//! After each call that takes `&mut self` the owner fetches what [`Interface::poll_transmit`],
//! [`Interface::poll_deliver`], [`Interface::poll_request`] and [`Interface::poll_event`] give, and
//! asks for [`Interface::next_deadline`].
//!
//! | module | owns |
//! |---|---|
//! | `interface` | the machine: which part a packet or an answer is for |
//! | `link` | the broadcast group: whether the link is up, and its MTU and Q_Key |
//! | `addresses` | our IP addresses, which others are on the link, routers |
//! | `neighbors` | which hardware address an IP address has |
//! | `paths` | how packets get to a GID |
//! | `groups` | multicast groups that we receive from or send to |
//! | `connections` | connections of connected mode |
//! | `waiting` | packets that cannot leave yet |
//! | `membership` | which IP groups the host joins, as its own IGMP and MLD tell |
//! | `icmp` | what the host hears of packets that do not arrive |
//!
//! # Limits
//!
//! All tables and queues are bounded by [`Config`]; what does not fit is dropped and counted. There
//! is one subnet: GIDs behind InfiniBand routers are reached if the SA knows a path. Redirects and
//! router advertisements pass as IP packets and change nothing here. ARP has no authentication: a
//! member of the partition may claim any address, as on Ethernet.
#![forbid(unsafe_code)]

mod addresses;
mod config;
mod connections;
mod counters;
mod groups;
mod icmp;
mod interface;
mod ip;
mod link;
mod membership;
mod neighbors;
mod output;
mod paths;
mod timers;
mod waiting;

pub use addresses::{Address, Gateway};
pub use config::{Config, Mode, NewGroup};
pub use connections::ConnectionId;
pub use counters::{Counters, DropReason};
pub use interface::Interface;
pub use output::{
    Destination, Event, Forward, GlobalRoute, Received, Request, Resolved, Route, Source, Transmit,
};
pub use vernic_proto::Time;

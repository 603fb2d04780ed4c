//! IP over InfiniBand (IPoIB): how IP packets and address resolution travel in the datagrams and
//! the connections of InfiniBand (RFC 4391, RFC 4755).
//!
//! A link of IPoIB is the members of one multicast group, the broadcast group of a partition. All
//! that a member sends begins with an [`Encapsulation`]:
//!
//! ```text
//!  byte   0..3            4..
//!       +---------------+--------------------------------------------------+
//!       | Encapsulation | IPv4, IPv6 (of it: NeighborMessage), or Arp      |
//!       +---------------+--------------------------------------------------+
//! ```
//!
//! | format | bytes | of |
//! |---|---|---|
//! | [`Encapsulation`] | 4 | what follows |
//! | [`HardwareAddress`] | 20 | where an interface is: queue pair and GID |
//! | [`Arp`] | 56 | address resolution of IPv4 |
//! | [`NeighborMessage`] | 24 or 48 | address resolution of IPv6 |
//! | [`ConnectedData`] | 8 | private data of connections |
//! | [`group_of`] | 16 | which multicast group of InfiniBand an IP group is |

mod arp;
mod connected;
mod encapsulation;
mod group;
mod hardware_address;
mod neighbor;

use crate::Qkey;

pub use arp::{Arp, ArpOperation};
pub use connected::{ConnectedData, service_id};
pub use encapsulation::Encapsulation;
pub use group::{Scope, broadcast_group, group_of, partition_of};
pub use hardware_address::{ConnectedModes, HardwareAddress};
pub use neighbor::{NeighborFlags, NeighborKind, NeighborMessage};

/// The Q_Key that broadcast groups usually have: the one that managers of partitions give them.
pub const USUAL_QKEY: Qkey = Qkey(0x0B1B);
/// The longest IP packet of a datagram of 2,048 bytes: the MTU that every interface has at least
/// (RFC 4391, section 7).
pub const DATAGRAM_MTU: u16 = 2048 - Encapsulation::LEN as u16;
/// The longest IP packet that connected interfaces usually take: 65,535 less what IPv4 options and
/// headers can add, in whole units of 8.
pub const CONNECTED_MTU: u16 = 65_520;

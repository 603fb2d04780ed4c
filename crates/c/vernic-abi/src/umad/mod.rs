//! libibumad: which devices and ports there are, and management datagrams of the ports of a fabric.
//!
//! The fabric process has the agents, their transactions and their transfers
//! (`vernic_proto::mad`); this is C's side of a connection to it. RoCE ports are shown, and cannot
//! be opened.
//!
//! | file | what |
//! |---|---|
//! | `shown.rs` | devices and ports: of the host's adapter in a fabric, or RoCE devices |
//! | `ca.rs`, `list.rs` | these in the structs of C, as `ibstat` prints them; the list of their names |
//! | `port.rs` | open ports, waiting |
//! | `agents.rs` | registering agents |
//! | `transfer.rs` | sending and receiving |
//! | `address.rs` | the header in front of a datagram |
//! | `issm.rs` | the file of a subnet manager |
//! | `text.rs` | names, prints |

use std::ffi::c_int;

pub(crate) mod address;
pub(crate) mod agents;
pub(crate) mod ca;
pub(crate) mod issm;
pub(crate) mod list;
pub(crate) mod port;
mod shown;
pub(crate) mod text;
pub(crate) mod transfer;

/// `umad_init`.
pub(crate) extern "C" fn umad_init() -> c_int {
    crate::log::init();
    0
}

/// `umad_done`.
pub(crate) extern "C" fn umad_done() -> c_int {
    0
}

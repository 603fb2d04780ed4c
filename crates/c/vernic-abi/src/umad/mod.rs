//! libibumad: which devices and ports there are, and their management datagrams.
//!
//! Agents, their transactions and their transfers are `vernic_proto::mad`'s. Those of a fabric are
//! in the fabric process, and this is C's side of a connection to it. Those of a RoCE device are in
//! the engine of this process.
//!
//! | file | what |
//! |---|---|
//! | `shown.rs` | devices and ports: of the host's adapter in a fabric, or RoCE devices |
//! | `ca.rs`, `list.rs` | these in the structs of C, as `ibstat` prints them; the list of their names |
//! | `endpoint.rs` | what a port sends to: the fabric process, or a RoCE device |
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
mod endpoint;
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

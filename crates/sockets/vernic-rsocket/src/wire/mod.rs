//! Bytes of the rsockets protocol and their meaning: one file each, all of one shape.
//!
//! The protocol is that of rdma-core's rsockets, version 1, so that either side of a connection may
//! be that implementation. Nothing here allocates, and input cannot make it panic.
//!
//! | file | what | where it travels |
//! |---|---|---|
//! | `conn_data` | [`ConnData`] | private data of the CM's REQ and REP |
//! | `sge` | [`RemoteSge`] | inside the former; RDMA-written into the peer's target list |
//! | `iomap` | [`IomapEntry`] | RDMA-written into the peer's table of mapped buffers |
//! | `message` | [`Message`] | immediate data of RDMA WRITEs |
//! | `datagram` | [`DatagramHeader`] | before each datagram between UD queue pairs |
//! | `lookup` | [`LookupHeader`] | before each datagram of the UDP socket that finds the queue pairs |

mod conn_data;
mod datagram;
mod iomap;
mod lookup;
mod message;
mod sge;

pub use conn_data::ConnData;
pub use datagram::DatagramHeader;
pub use iomap::{IomapEntry, IomapScale};
pub use lookup::{LookupHeader, LookupOp};
pub use message::{Control, Message};
pub use sge::{ByteOrder, RemoteSge};

/// Why bytes of a peer are not what they should be. Lengths are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the format takes.
    #[error("{what} takes {need} bytes, there are {have}")]
    Truncated {
        /// The format.
        what: &'static str,
        /// Bytes it takes.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// A version of the protocol, or of IP, that is not known.
    #[error("{what}: version {version} is not known")]
    Version {
        /// The format.
        what: &'static str,
        /// Version found.
        version: u8,
    },
    /// A field with a value that makes no sense.
    #[error("{what}: {field} is {value:#x}")]
    Field {
        /// The format.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Value found.
        value: u32,
    },
}

/// The first `N` bytes, for formats of fixed length.
fn head<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], WireError> {
    let have = bytes.len();
    let head = bytes.get(..N).and_then(|head| head.try_into().ok());
    head.ok_or(WireError::Truncated { what, need: N, have })
}

/// `N` bytes of an array, from a constant place in it.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        field.copy_from_slice(found);
    }
    field
}

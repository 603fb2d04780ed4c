//! The device: the devices of this machine, the state of an open one, its addresses, limits and
//! paths.

pub(crate) mod alarms;
pub(crate) mod book;
pub(crate) mod circumstances;
pub(crate) mod explanation;
pub(crate) mod file_objects;
pub(crate) mod gid;
pub(crate) mod grh;
pub(crate) mod in_use;
pub(crate) mod infiniband;
pub mod limits;
pub(crate) mod listing;
pub(crate) mod middleware;
pub(crate) mod opened;
pub(crate) mod path;
pub(crate) mod peer_end;
pub(crate) mod peer_qp;
pub(crate) mod peers;
pub(crate) mod port;
pub(crate) mod transport;

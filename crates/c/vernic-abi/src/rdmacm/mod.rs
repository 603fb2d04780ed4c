//! The connection manager by IP address: `librdmacm.so.1`, over `vernic-cm`.
//!
//! | file | what |
//! |---|---|
//! | `process.rs` | once per process: the open devices, which id is which of C's |
//! | `channel.rs` `event.rs` `strings.rs` | event channels, events and their names |
//! | `id.rs` `path.rs` `live.rs` | ids, what they show, which there are; synchronous ids |
//! | `addrinfo.rs` `resolve.rs` | names to addresses, addresses to devices and routes, listening |
//! | `connect.rs` `multicast.rs` `option.rs` | connections, groups, options |
//! | `rsocket/` | rsockets |
//! | `qp.rs` `srq.rs` `endpoint.rs` | queue pairs and queues of ids; both at once |

pub(crate) mod addrinfo;
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod endpoint;
pub(crate) mod event;
pub(crate) mod id;
mod live;
pub(crate) mod multicast;
pub(crate) mod option;
mod path;
pub(crate) mod process;
pub(crate) mod qp;
pub(crate) mod resolve;
pub(crate) mod rsocket;
pub(crate) mod srq;
pub(crate) mod strings;

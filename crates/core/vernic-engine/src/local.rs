//! What the threads of a device share about processes of this host.
//!
//! | file | what |
//! |---|---|
//! | `control.rs` | the connections to local peers, and processes that are to be connected |
//! | `watch.rs` | processes that queue pairs are connected to, so that their end is noticed |
//!
//! All else that is between processes of one host is in `vernic-local`.

pub(crate) mod control;
pub(crate) mod watch;

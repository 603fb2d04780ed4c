//! Events that were taken.

use std::sync::Arc;

use crate::event::{EventKind, Param};
use crate::id::Id;
use crate::registry::Unacked;

/// An event. While it lives, [`Id::destroy`](crate::Id::destroy) and
/// [`Id::migrate`](crate::Id::migrate) of its id (of the listener, for a request) wait for it.
#[derive(Debug)]
pub struct Event {
    /// The id that it is about; of a request the new id.
    pub id: Arc<Id>,
    /// The listener, of a request.
    pub listen_id: Option<Arc<Id>>,
    /// What happened.
    pub kind: EventKind,
    /// 0, or why: negative a system's error number, positive the peer's reason
    /// ([`EventKind::Rejected`]) or status ([`EventKind::Unreachable`] of datagrams).
    pub status: i32,
    /// What it carries.
    pub param: Param,
    pub(crate) _unacked: Unacked,
}

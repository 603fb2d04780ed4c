//! Events that were taken.

use std::sync::Arc;

use crate::event::{EventKind, Param};
use crate::id::Id;
use crate::registry::Unacked;

/// An event. While it lives, [`Id::destroy`](crate::Id::destroy) and
/// [`Id::migrate`](crate::Id::migrate) of its id (of the listener, for a request) wait for it.
#[derive(Debug)]
pub struct Event {
    /// The id of the event; for a request, the new id.
    pub id: Arc<Id>,
    /// The listener, for a request.
    pub listen_id: Option<Arc<Id>>,
    /// The kind.
    pub kind: EventKind,
    /// 0, or why: negative a system's errno, positive the peer's reason ([`EventKind::Rejected`])
    /// or status ([`EventKind::Unreachable`] of datagrams).
    pub status: i32,
    /// What the event carries beside its kind.
    pub param: Param,
    pub(crate) _unacked: Unacked,
}

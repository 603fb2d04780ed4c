//! What an event does when it is taken.

use std::sync::Arc;

use crate::event::Event;
use crate::id::{Id, State};
use crate::registry::{Taken, What, lock};

impl Id {
    /// Does the event's share of the work; `None` if the event is of no interest any more.
    pub(crate) fn tell(self: Arc<Self>, what: What, taken: Taken) -> Option<Event> {
        let (kind, status, param) = {
            let mut inner = lock(&self.inner);
            if inner.state == State::Destroyed {
                return None;
            }
            match what {
                What::Told { kind, status, param } => {
                    self.written.taken(kind);
                    (kind, status, param)
                }
                What::Joined { gid } => Self::tell_joined(&mut inner, gid)?,
            }
        };
        Some(Event { id: self, listen_id: None, kind, status, param, _taken: taken })
    }
}

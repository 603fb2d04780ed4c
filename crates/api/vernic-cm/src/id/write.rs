//! Events that the program writes itself.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::event::{EventKind, Param};
use crate::id::Id;
use crate::registry::EntryContent;

/// Most written events of an id that may wait to be taken.
const MAX_WRITTEN: u32 = 1024;

/// The number of written events of an id that wait.
#[derive(Debug, Default)]
pub(crate) struct Written(AtomicU32);

impl Written {
    /// Counts one more written event.
    ///
    /// # Errors
    /// [`Error::TooManyEvents`].
    fn add(&self) -> Result<(), Error> {
        let more = |waiting: u32| (waiting < MAX_WRITTEN).then_some(waiting + 1);
        let added = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        added.map(drop).map_err(|_| Error::TooManyEvents { max: MAX_WRITTEN })
    }

    /// Counts one less, if the taken event is a written one.
    pub(crate) fn taken(&self, kind: EventKind) {
        if kind.is_written() {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Id {
    /// Writes an event to the id's own channel, with a status and an argument whose meaning is the
    /// program's.
    ///
    /// # Errors
    /// [`Error::Value`] for a kind that programs may not write ([`EventKind::is_written`]),
    /// [`Error::TooManyEvents`], [`Error::State`] for a destroyed id.
    pub fn write_event(&self, kind: EventKind, status: i32, arg: u64) -> Result<(), Error> {
        let inner = self.enter("write_event")?;
        if !kind.is_written() {
            let (what, value) = ("kind of event", kind as u64);
            let allowed = "16 to 19: AddrInfoResolved, AddrInfoError, User, Internal".to_owned();
            return Err(Error::Value { what, value, allowed });
        }
        self.written.add()?;
        let what = EntryContent::Decided { kind, status, param: Param::Arg(arg) };
        self.shared.registry.push(self.key(), what);
        drop(inner);
        Ok(())
    }
}

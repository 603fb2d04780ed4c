//! The libraries inside the command, if it was built with `BUNDLE_VERNIC`.

use super::folder::{self, Carried, Entry};
use crate::failure::Outcome;
use std::path::PathBuf;

#[cfg(bundled)]
mod carried {
    include!(concat!(env!("OUT_DIR"), "/bundle.rs"));
}

/// A command that was built without them.
#[cfg(not(bundled))]
mod carried {
    pub(super) const ID: u64 = 0;
    pub(super) const FILES: [(&str, &[u8]); 0] = [];
}

/// Unpacks the libraries of this command, and returns their folder; `None` if it carries none.
pub(super) fn unpacked() -> Option<Outcome<PathBuf>> {
    let entry = |&(file, bytes): &(&str, &'static [u8])| {
        Entry::carried(file.to_owned(), Carried { id: carried::ID, bytes })
    };
    let entries: Vec<_> = carried::FILES.iter().map(entry).collect();
    (!entries.is_empty()).then(|| folder::keep(&entries))
}

//! State of the control path, behind one lock: domains, regions, windows, free keys.

use std::collections::HashMap;

use crate::keys::KeyAllocator;
use crate::racy::{Entry, Kind};
use crate::{PdError, PdId};

/// How many objects use a protection domain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PdUse {
    pub(crate) regions: u32,
    pub(crate) windows: u32,
    pub(crate) holders: u32,
}

#[derive(Debug)]
pub(crate) struct RegionRecord {
    pub(crate) serial: u64,
    /// Windows bound to the region.
    pub(crate) windows: u32,
    /// The content of the region's slot in the key table.
    pub(crate) entry: Entry,
}

/// The type of a window (IBTA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MwType {
    /// A type 1 window is bound by a verb, and usable through any queue pair of the window's
    /// domain.
    Type1,
    /// A type 2 window is bound by a work request, with a key byte that the consumer chooses. It is
    /// usable through one queue pair of the window's domain only (type 2B), and can be invalidated.
    Type2,
}

#[derive(Debug)]
pub(crate) struct WindowRecord {
    pub(crate) serial: u64,
    pub(crate) mw_type: MwType,
    /// Slot of the region to which the window is bound.
    pub(crate) region: Option<u32>,
    /// The content of the window's slot in the key table.
    pub(crate) entry: Entry,
}

impl WindowRecord {
    pub(crate) const fn is_bound(&self) -> bool {
        matches!(self.entry.kind, Kind::Window1 | Kind::Window2)
    }
}

/// Everything that the control lock protects.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) keys: KeyAllocator,
    pub(crate) pds: HashMap<PdId, PdUse>,
    /// Regions by slot number.
    pub(crate) regions: HashMap<u32, RegionRecord>,
    /// Windows by slot number.
    pub(crate) windows: HashMap<u32, WindowRecord>,
    pub(crate) last_pd: u32,
    last_serial: u64,
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            keys: KeyAllocator::new(),
            pds: HashMap::new(),
            regions: HashMap::new(),
            windows: HashMap::new(),
            last_pd: 0,
            last_serial: 0,
        }
    }

    pub(crate) fn pd(&mut self, pd: PdId) -> Result<&mut PdUse, PdError> {
        self.pds.get_mut(&pd).ok_or(PdError::Unknown(pd))
    }

    pub(crate) fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }
}

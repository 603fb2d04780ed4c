//! Objects that files stand for: whoever opens one by the same file gets the same object.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A file that stands for an XRC domain: whoever opens the device's domain by it gets the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdFile {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// The objects. Which type they have is their owner's business, a floor above.
pub(crate) type FileObjects = Mutex<HashMap<XrcdFile, Arc<dyn Any + Send + Sync>>>;

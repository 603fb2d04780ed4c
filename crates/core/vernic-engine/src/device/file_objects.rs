//! Objects that files stand for: every process that opens one by the same file gets the same
//! object.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A file that stands for an XRC domain: opening the device's domain by it returns the same domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdFile {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// The objects of each file. Only the layer above, which puts them in, knows their type.
pub(crate) type FileObjects = Mutex<HashMap<XrcdFile, Arc<dyn Any + Send + Sync>>>;

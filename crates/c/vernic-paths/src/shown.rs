//! Which paths are concerned, and where they lead.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// Variable that names the folder, which holds `sys/class/infiniband` and so on.
const FOLDER: &CStr = c"VERNIC_PATHS";

/// What is shown: each path, and all below it.
const SHOWN: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/dev/infiniband",
];

/// Longest path that libc takes, its terminating zero included.
const LONGEST: usize = libc::PATH_MAX as usize;

/// Room for a path that leads somewhere else; not written before it is needed.
pub(crate) struct Room(MaybeUninit<[u8; LONGEST]>);

impl Room {
    /// Room in the caller's frame.
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// The path to pass on in the place of `path`: itself, or one in this room.
    ///
    /// # Safety
    /// `path` is NULL or a C string.
    pub(crate) unsafe fn lead(&mut self, path: *const c_char) -> *const c_char {
        // SAFETY: this function's own condition.
        if path.is_null() || !unsafe { is_shown(path) } {
            return path;
        }
        let Some(folder) = folder() else { return path };
        // SAFETY: the caller's C string.
        let rest = unsafe { CStr::from_ptr(path) };
        let (folder, rest) = (folder.to_bytes(), rest.to_bytes_with_nul());
        if folder.len() + rest.len() > LONGEST {
            return path;
        }
        let room: *mut u8 = self.0.as_mut_ptr().cast();
        // SAFETY: both pieces fit into the room, which overlaps neither of them: it is the frame's.
        unsafe {
            room.copy_from_nonoverlapping(folder.as_ptr(), folder.len());
            room.add(folder.len()).copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
        room.cast_const().cast()
    }
}

/// The folder of what is shown, if something is.
pub(crate) fn folder() -> Option<&'static CStr> {
    // SAFETY: a C string; a program that changes its environment while another thread of it opens
    // files has this race with libc's own readers, too.
    let folder = unsafe { libc::getenv(FOLDER.as_ptr()) };
    if folder.is_null() {
        return None;
    }
    // SAFETY: a C string of the environment, which is read at once.
    let folder = unsafe { CStr::from_ptr(folder) };
    (!folder.is_empty()).then_some(folder)
}

/// Whether a path is one of those shown, or below one. Slashes that follow one another count as
/// one; other spellings (`.`, `..`) are not looked through.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn is_shown(path: *const c_char) -> bool {
    SHOWN.iter().any(|shown| {
        let mut at = path;
        for byte in *shown {
            // SAFETY: all bytes before this one were not zero, so the string has not ended.
            if unsafe { at.read() } as u8 != *byte {
                return false;
            }
            // SAFETY: as above: behind a byte that is not zero.
            at = unsafe { at.add(1) };
            // SAFETY: as above; ends with the string at the latest.
            while *byte == b'/' && unsafe { at.read() } as u8 == b'/' {
                // SAFETY: as above.
                at = unsafe { at.add(1) };
            }
        }
        // SAFETY: as above; this may be the terminating zero.
        let next = unsafe { at.read() } as u8;
        next == 0 || next == b'/'
    })
}

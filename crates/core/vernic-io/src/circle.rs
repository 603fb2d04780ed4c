//! Words in a circle: copying bytes to and from positions that wrap around.

use std::sync::atomic::AtomicU64;

use crate::sys;

/// A circle of words: positions in bytes wrap around it. It has a power of two of words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circle<'a>(pub(crate) &'a [AtomicU64]);

impl<'a> Circle<'a> {
    /// Returns the words from a position to the end, and those from the start on that follow them.
    #[inline]
    pub(crate) fn from(self, at: u64) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        let start = (at / 8) as usize & (self.0.len() - 1);
        let (second, first) = self.0.split_at(start);
        (first, second)
    }

    /// Copies bytes in, from a position that is a multiple of 8.
    #[inline]
    pub(crate) fn copy_in(self, at: u64, bytes: &[u8]) {
        let (first, second) = self.from(at);
        match bytes.split_at_checked(first.len() * 8) {
            None => sys::copy_in(first, bytes),
            Some((left, right)) => {
                sys::copy_in(first, left);
                sys::copy_in(second, right);
            }
        }
    }

    /// Copies bytes out, from a position that is a multiple of 8.
    #[inline]
    pub(crate) fn copy_out(self, at: u64, bytes: &mut [u8]) {
        let (first, second) = self.from(at);
        match bytes.split_at_mut_checked(first.len() * 8) {
            None => sys::copy_out(first, bytes),
            Some((left, right)) => {
                sys::copy_out(first, left);
                sys::copy_out(second, right);
            }
        }
    }
}

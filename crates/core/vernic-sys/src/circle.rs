//! Words in a circle: copying bytes to and from positions that wrap around.

use std::sync::atomic::AtomicU64;

/// A circle of words: positions in bytes wrap around it. It has a power of two of words.
#[derive(Clone, Copy, Debug)]
pub struct Circle<'a>(pub &'a [AtomicU64]);

impl<'a> Circle<'a> {
    /// Returns the words from a position to the end, and those from the start on that follow them.
    #[inline]
    pub fn from(self, at: u64) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        let start = (at / 8) as usize & (self.0.len() - 1);
        let (second, first) = self.0.split_at(start);
        (first, second)
    }

    /// Copies bytes in, from a position that is a multiple of 8.
    #[inline]
    pub fn copy_in(self, at: u64, bytes: &[u8]) {
        let (first, second) = self.from(at);
        match bytes.split_at_checked(first.len() * 8) {
            None => crate::copy_in(first, bytes),
            Some((left, right)) => {
                crate::copy_in(first, left);
                crate::copy_in(second, right);
            }
        }
    }

    /// Copies bytes out, from a position that is a multiple of 8.
    #[inline]
    pub fn copy_out(self, at: u64, bytes: &mut [u8]) {
        let (first, second) = self.from(at);
        match bytes.split_at_mut_checked(first.len() * 8) {
            None => crate::copy_out(first, bytes),
            Some((left, right)) => {
                crate::copy_out(first, left);
                crate::copy_out(second, right);
            }
        }
    }
}

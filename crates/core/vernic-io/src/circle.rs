//! Words in a circle: copying bytes to and from positions that go round.

use std::sync::atomic::AtomicU64;

use crate::sys;

/// Words that positions in bytes go round: a power of two of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circle<'a>(pub(crate) &'a [AtomicU64]);

impl<'a> Circle<'a> {
    /// The words from a position on, to the end, and those that follow at the begin.
    #[inline]
    pub(crate) fn from(self, at: u64) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        let start = (at / 8) as usize & (self.0.len() - 1);
        (&self.0[start..], &self.0[..start])
    }

    /// Copies in, from a position that is a multiple of 8.
    #[inline]
    pub(crate) fn copy_in(self, at: u64, bytes: &[u8]) {
        let (first, second) = self.from(at);
        let (left, right) = bytes.split_at(bytes.len().min(first.len() * 8));
        sys::copy_in(first, left);
        if !right.is_empty() {
            sys::copy_in(second, right);
        }
    }

    /// Copies out, from a position that is a multiple of 8.
    #[inline]
    pub(crate) fn copy_out(self, at: u64, bytes: &mut [u8]) {
        let (first, second) = self.from(at);
        let (left, right) = bytes.split_at_mut(bytes.len().min(first.len() * 8));
        sys::copy_out(first, left);
        if !right.is_empty() {
            sys::copy_out(second, right);
        }
    }
}

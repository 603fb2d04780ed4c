//! Message contents: bytes that follow from a message's number, so nobody has to store them.
//!
//! A message is a row of 4 KiB blocks; each block is a window of one fixed random table, at a place
//! that depends on the message and the block's index. Filling and checking run at the speed of
//! `memcpy` and `memcmp`; a byte shifted, swapped between messages or left out is noticed.

use std::sync::OnceLock;

use crate::rng::{Rng, mix};

const BLOCK: usize = 4096;
/// A prime, so that places spread evenly.
const PLACES: u64 = 65_521;

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut rng = Rng::new(0x5EED);
        let words = (PLACES as usize + BLOCK).div_ceil(8);
        (0..words).flat_map(|_| rng.word().to_le_bytes()).collect()
    })
}

fn block(id: u64, index: u64) -> &'static [u8] {
    let place = (mix(id ^ index << 40) % PLACES) as usize;
    &table()[place..place + BLOCK]
}

/// Walks `len` bytes from `offset` of message `id` as runs `(position, bytes)`.
fn runs(id: u64, offset: u64, len: usize) -> impl Iterator<Item = (usize, &'static [u8])> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = offset + done as u64;
            let inside = (at % BLOCK as u64) as usize;
            let take = (BLOCK - inside).min(len - done);
            let run = (done, &block(id, at / BLOCK as u64)[inside..inside + take]);
            done += take;
            run
        })
    })
}

/// Writes the bytes of message `id` from `offset` on into `buf`.
pub(crate) fn fill(id: u64, offset: u64, buf: &mut [u8]) {
    for (at, run) in runs(id, offset, buf.len()) {
        buf[at..at + run.len()].copy_from_slice(run);
    }
}

/// The first position where `data` differs from message `id` at `offset`.
pub(crate) fn mismatch(id: u64, offset: u64, data: &[u8]) -> Option<usize> {
    runs(id, offset, data.len()).find_map(|(at, run)| {
        let have = &data[at..at + run.len()];
        if have == run {
            None
        } else {
            have.iter().zip(run).position(|(a, b)| a != b).map(|p| at + p)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_message_fit_together_over_block_borders() {
        let mut whole = vec![0; 10_000];
        fill(3, 0, &mut whole);
        let mut piece = vec![0; 5000];
        fill(3, 4001, &mut piece);
        assert_eq!(whole[4001..9001], piece);
        assert_eq!(mismatch(3, 4001, &piece), None);
    }

    #[test]
    fn a_changed_byte_a_shift_and_a_foreign_message_are_noticed() {
        let mut data = vec![0; 9000];
        fill(3, 0, &mut data);
        data[8500] ^= 1;
        assert_eq!(mismatch(3, 0, &data), Some(8500));
        fill(3, 0, &mut data);
        assert!(mismatch(3, 1, &data).is_some());
        assert!(mismatch(4, 0, &data).is_some());
    }
}

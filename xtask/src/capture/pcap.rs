//! The frames of a classic pcap file.
//!
//! ```text
//!   +-------------+----------+------------+--------------+-----------+----------+----
//!   | header (24) | time (8) | length (4) | original (4) | frame ... | time (8) | ...
//!   +-------------+----------+------------+--------------+-----------+----------+----
//! ```

use crate::Result;

const MAGIC: [u8; 4] = 0xA1B2_C3D4_u32.to_le_bytes();
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;

/// The frames, of a file written on a little-endian machine with times in microseconds.
pub(super) fn frames(file: &[u8]) -> Result<Vec<&[u8]>> {
    if !file.starts_with(&MAGIC) || file.len() < HEADER_BYTES {
        return Err("not a pcap file".into());
    }
    let mut rest = &file[HEADER_BYTES..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let cut = || "the pcap file ends in the middle of a frame".to_owned();
        let (record, tail) = rest.split_first_chunk::<RECORD_BYTES>().ok_or_else(cut)?;
        let length = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        let (frame, tail) = tail.split_at_checked(length as usize).ok_or_else(cut)?;
        frames.push(frame);
        rest = tail;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_and_a_cut_one_is_an_error() {
        let mut file = MAGIC.to_vec();
        file.resize(HEADER_BYTES, 0);
        for frame in [&[1_u8, 2, 3][..], &[4]] {
            let length = (frame.len() as u32).to_le_bytes();
            file.extend([&[0; 8][..], &length, &length, frame].concat());
        }
        assert_eq!(frames(&file).unwrap(), [&[1, 2, 3][..], &[4]]);
        assert!(frames(&file[..file.len() - 1]).is_err());
        assert!(frames(b"pcapng").is_err());
    }
}

//! The bits of a frame that a network may change: the mark of congestion (RFC 3168), and a bit by
//! mistake.

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// EtherTypes of IP.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xDD];
/// EtherTypes of tags (802.1Q, 802.1ad), and their bytes.
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xA8]];
const TAG_BYTES: usize = 4;
/// Values of the ECN field.
const NOT_ECT: u8 = 0;
const CE: u8 = 3;

/// Returns where IP begins in a frame, behind the Ethernet header and tags, and its EtherType.
/// `None` if the frame carries no IP.
fn start_of_ip(frame: &[u8]) -> Option<(usize, [u8; 2])> {
    let mut at = ETHERNET;
    // Each round goes on in the frame, which has an end.
    loop {
        let kind = *frame.get(at - 2..at)?.first_chunk()?;
        match kind {
            IPV4 | IPV6 => return Some((at, kind)),
            _ if TAGS.contains(&kind) => at += TAG_BYTES,
            _ => return None,
        }
    }
}

/// Whether a frame carries IP.
pub(crate) fn is_ip(frame: &[u8]) -> bool {
    start_of_ip(frame).is_some()
}

/// Marks a frame as one that met congestion. Returns false, and changes nothing, if its sender does
/// not understand the mark.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let Some((at, kind)) = start_of_ip(frame) else { return false };
    let header = &mut frame[at..];
    if header.len() < 20 {
        return false;
    }
    if kind == IPV4 {
        if header[1] & CE == NOT_ECT {
            return false;
        }
        let before = u16::from_be_bytes([header[0], header[1]]);
        header[1] |= CE;
        let after = u16::from_be_bytes([header[0], header[1]]);
        let sum = u16::from_be_bytes([header[10], header[11]]);
        let [high, low] = updated(sum, before, after).to_be_bytes();
        (header[10], header[11]) = (high, low);
    } else {
        // The traffic class is behind the 4 bits of the version.
        if header[1] >> 4 & CE == NOT_ECT {
            return false;
        }
        header[1] |= CE << 4;
    }
    true
}

/// The checksum of a header of which one word has changed (RFC 1624, equation 3).
fn updated(sum: u16, before: u16, after: u16) -> u16 {
    let sum = u32::from(!sum) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !((folded & 0xFFFF) + (folded >> 16)) as u16
}

/// Flips a bit of a frame's IP, which `choice` chooses.
pub(crate) fn corrupt(frame: &mut [u8], choice: u64) {
    let Some((at, _)) = start_of_ip(frame) else { return };
    let bits = (frame.len() - at) as u64 * 8;
    if bits > 0 {
        let bit = choice % bits;
        frame[at + (bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of IPv4 or IPv6 with this ECN field, and with a right checksum.
    pub(crate) fn frame(is_v4: bool, ecn: u8, len: usize) -> Vec<u8> {
        let mut frame = vec![0x5A; len.max(ETHERNET + 40)];
        frame[12..ETHERNET].copy_from_slice(if is_v4 { &IPV4 } else { &IPV6 });
        let header = &mut frame[ETHERNET..];
        if is_v4 {
            (header[0], header[1]) = (0x45, 0xB8 | ecn);
            header[10..12].fill(0);
            let sum = !checksum(&header[..20]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            (header[0], header[1]) = (0x6B, 0x80 | ecn << 4);
        }
        frame
    }

    fn checksum(header: &[u8]) -> u16 {
        let words = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        ((sum & 0xFFFF) + (sum >> 16)) as u16
    }

    #[test]
    fn frames_of_transports_that_understand_are_marked() {
        for is_v4 in [true, false] {
            for ecn in 0..=3 {
                let before = frame(is_v4, ecn, 100);
                let mut after = before.clone();
                assert_eq!(mark(&mut after), ecn != NOT_ECT);
                let field = |frame: &[u8]| match is_v4 {
                    true => frame[ETHERNET + 1] & 3,
                    false => frame[ETHERNET + 1] >> 4 & 3,
                };
                assert_eq!(field(&after), if ecn == NOT_ECT { NOT_ECT } else { CE });
                if is_v4 {
                    assert_eq!(checksum(&after[ETHERNET..ETHERNET + 20]), 0xFFFF);
                }
            }
        }
    }

    #[test]
    fn what_is_no_ip_or_too_short_is_left_alone() {
        let mut arp = frame(true, 1, 60);
        arp[12..ETHERNET].copy_from_slice(&[0x08, 0x06]);
        let mut short = frame(true, 1, 60);
        short.truncate(ETHERNET + 19);
        for frame in [&mut arp[..], &mut short, &mut [], &mut [0; ETHERNET - 1]] {
            let before = frame.to_vec();
            assert!(!mark(frame));
            assert_eq!(frame, before);
        }
        assert!(!is_ip(&arp) && is_ip(&short) && !is_ip(&[]));
    }

    /// Puts two tags into a frame.
    fn tagged(frame: &[u8]) -> Vec<u8> {
        [&frame[..12], &[0x88, 0xA8, 0, 5, 0x81, 0, 0x20, 6], &frame[12..]].concat()
    }

    #[test]
    fn tags_are_passed_over() {
        for is_v4 in [true, false] {
            let mut plain = frame(is_v4, 2, 100);
            let mut after = tagged(&plain);
            assert!(is_ip(&after) && mark(&mut after) && mark(&mut plain));
            assert_eq!(after, tagged(&plain));
            corrupt(&mut after, 77);
            corrupt(&mut plain, 77);
            assert_eq!(after, tagged(&plain));
        }
        assert!(!is_ip(&tagged(&frame(true, 2, 100))[..20]));
    }

    #[test]
    fn one_bit_behind_the_ethernet_header_is_flipped() {
        let before = frame(true, 0, 60);
        for choice in 0..1000 {
            let mut after = before.clone();
            corrupt(&mut after, choice);
            let flipped = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones());
            assert_eq!(flipped.sum::<u32>(), 1);
            assert_eq!(before[..ETHERNET], after[..ETHERNET]);
        }
        corrupt(&mut [], 7);
    }
}

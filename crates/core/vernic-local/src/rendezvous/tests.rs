use super::*;

fn record(lens: &[u32]) -> RendezvousRecord {
    let mut pieces = [PeerPiece::default(); MAX_PIECES];
    for (n, (piece, &len)) in pieces.iter_mut().zip(lens).enumerate() {
        *piece = PeerPiece { addr: 0x7000_0000 + n as u64 * 0x1_0000, len };
    }
    RendezvousRecord::new(
        lens.iter().sum(),
        RevocationToken { number: 77, value: 0x0123_4567_89AB_CDEF },
        pieces,
        lens.len(),
    )
}

fn bytes_of(record: &RendezvousRecord) -> Vec<u8> {
    let mut bytes = vec![0xEE; 1024];
    let len = record.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn what_is_named_is_understood_and_nothing_shorter_or_longer_is() {
    for lens in [&[4096_u32][..], &[1, 2, 3], &[1000; MAX_PIECES], &[MAX_BYTES]] {
        let record = record(lens);
        let mut bytes = bytes_of(&record);
        assert_eq!(bytes.len() % 4, 0, "its words are whole");
        assert_eq!(RendezvousRecord::parse(&bytes), Some(record));
        for len in 0..bytes.len() {
            assert_eq!(RendezvousRecord::parse(&bytes[..len]), None, "cut to {len}");
        }
        bytes.extend([0; PIECE]);
        assert_eq!(RendezvousRecord::parse(&bytes), None, "bytes behind the last piece");
    }
    assert_eq!(record(&[4096]).emit(&mut [0; HEAD + PIECE - 1]), None);
}

#[test]
fn what_cannot_be_meant_is_not_understood() {
    let good = record(&[4096, 4096]);
    let refused = |change: &dyn Fn(&mut RendezvousRecord)| {
        let mut record = good;
        change(&mut record);
        RendezvousRecord::parse(&bytes_of(&record)).is_none()
    };
    assert!(!refused(&|_| ()));
    assert!(refused(&|record| record.length += 1), "more than its pieces hold");
    assert!(refused(&|record| record.length -= 1));
    assert!(refused(&|record| record.token.value = 0), "what a closed gate shows");
    assert!(refused(&|record| record.token.number = MAX_REVOCATION_WORDS));
    assert!(refused(&|record| (record.length, record.pieces[1].len) = (4096, 0)));
    assert!(
        refused(&|record| record.pieces[0].addr = u64::MAX - 4094),
        "over the end of addresses"
    );
    assert!(refused(
        &|record| (record.length, record.pieces[0].len) = (MAX_BYTES + 4096, MAX_BYTES)
    ));
    // Lengths with a sum that wraps around.
    assert!(refused(&|record| {
        (record.pieces[0].len, record.pieces[1].len) = (u32::MAX, 4097);
        record.length = 4096;
    }));
    let mut bytes = bytes_of(&good);
    for count in [0, 1, 3, 31, u32::MAX] {
        bytes[8..12].copy_from_slice(&count.to_ne_bytes());
        assert_eq!(RendezvousRecord::parse(&bytes), None, "{count} pieces");
    }
    let mut bytes = bytes_of(&good);
    bytes[12] = 1;
    assert_eq!(RendezvousRecord::parse(&bytes), None, "something where a zero is");
}

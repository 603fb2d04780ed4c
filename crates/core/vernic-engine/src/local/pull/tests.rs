use super::*;

fn named(lens: &[u32]) -> Named {
    let mut pieces = [PeerPiece::default(); MAX_PIECES];
    for (n, (piece, &len)) in pieces.iter_mut().zip(lens).enumerate() {
        *piece = PeerPiece { addr: 0x7000_0000 + n as u64 * 0x1_0000, len };
    }
    let run = Run { length: lens.iter().sum(), packets: 3 };
    Named::new(
        run,
        RevocationToken { number: 77, value: 0x0123_4567_89AB_CDEF },
        pieces,
        lens.len(),
    )
}

fn bytes_of(named: &Named) -> Vec<u8> {
    let mut bytes = vec![0xEE; 1024];
    let len = named.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn what_is_named_is_understood_and_nothing_shorter_or_longer_is() {
    for lens in [&[4096_u32][..], &[1, 2, 3], &[1000; MAX_PIECES], &[MAX_BYTES]] {
        let named = named(lens);
        let mut bytes = bytes_of(&named);
        assert_eq!(bytes.len() % 4, 0, "a packet needs no pad");
        assert_eq!(Named::parse(&bytes), Some(named));
        for len in 0..bytes.len() {
            assert_eq!(Named::parse(&bytes[..len]), None, "cut to {len}");
        }
        bytes.extend([0; PIECE]);
        assert_eq!(Named::parse(&bytes), None, "bytes behind the last piece");
    }
    assert_eq!(named(&[4096]).emit(&mut [0; HEAD + PIECE - 1]), None);
}

#[test]
fn what_cannot_be_meant_is_not_understood() {
    let good = named(&[4096, 4096]);
    let refused = |change: &dyn Fn(&mut Named)| {
        let mut named = good;
        change(&mut named);
        Named::parse(&bytes_of(&named)).is_none()
    };
    assert!(!refused(&|_| ()));
    assert!(refused(&|named| named.run.length += 1), "more than its pieces hold");
    assert!(refused(&|named| named.run.length -= 1));
    assert!(refused(&|named| named.run.packets = 0));
    assert!(refused(&|named| named.run.packets = named.run.length + 1), "packets without a byte");
    assert!(refused(&|named| named.pass.value = 0), "what a closed gate shows");
    assert!(refused(&|named| named.pass.number = MAX_REVOCATION_WORDS));
    assert!(refused(&|named| (named.run.length, named.pieces[1].len) = (4096, 0)));
    assert!(refused(&|named| named.pieces[0].addr = u64::MAX - 4094), "over the end of addresses");
    assert!(refused(
        &|named| (named.run.length, named.pieces[0].len) = (MAX_BYTES + 4096, MAX_BYTES)
    ));
    // Lengths with a sum that wraps around.
    assert!(refused(&|named| {
        (named.pieces[0].len, named.pieces[1].len) = (u32::MAX, 4097);
        named.run.length = 4096;
    }));
    let mut bytes = bytes_of(&good);
    for count in [0, 1, 3, 31, u32::MAX] {
        bytes[12..16].copy_from_slice(&count.to_ne_bytes());
        assert_eq!(Named::parse(&bytes), None, "{count} pieces");
    }
}

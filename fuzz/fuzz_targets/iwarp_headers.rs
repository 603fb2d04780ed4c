//! Any bytes: what an iWARP header's parser accepts is emitted as it was, and has a text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_wire::iwarp::{
    AtomicRequest, AtomicResponse, Control, FpduHeader, Immediate, Marker, MpaEnhanced, MpaKey,
    MpaStart, ReadRequest, Segment, Tagged, Terminate, Untagged, pad_of,
};

macro_rules! round_trip {
    ($bytes:ident: $($header:ty),*) => {
        $(
            if let Ok(header) = <$header>::parse($bytes) {
                let mut out = [0; <$header>::LEN];
                header.emit(&mut out);
                assert_eq!(out, $bytes[..<$header>::LEN]);
                assert!(!header.to_string().is_empty());
            } else {
                assert!($bytes.len() < <$header>::LEN);
            }
        )*
    };
}

fuzz_target!(|bytes: &[u8]| {
    round_trip!(bytes: Control, Tagged, Untagged, ReadRequest, AtomicRequest, AtomicResponse);
    round_trip!(bytes: Immediate, FpduHeader, Marker, MpaEnhanced);
    if let Ok(start) = MpaStart::parse(bytes) {
        let mut out = [0; MpaStart::LEN];
        start.emit(&mut out);
        assert_eq!(out, bytes[..MpaStart::LEN]);
        assert!(start.key.may_begin(bytes));
    } else if bytes.len() >= MpaStart::LEN {
        assert!(!MpaKey::Request.may_begin(bytes) && !MpaKey::Reply.may_begin(bytes));
    }
    if let Ok(segment) = Segment::parse(bytes) {
        let mut out = vec![0; segment.header.len()];
        segment.header.emit(&mut out);
        out.extend_from_slice(segment.body);
        assert_eq!(out, bytes);
        assert!(!segment.to_string().is_empty());
        assert_eq!((2 + bytes.len() + pad_of(bytes.len())) % 4, 0);
    }
    if let Ok(terminate) = Terminate::parse(bytes) {
        let mut out = [0; Terminate::MAX_LEN];
        let len = terminate.emit(&mut out);
        assert_eq!(len, terminate.len());
        assert_eq!(out[..len], bytes[..len]);
        assert!(!terminate.to_string().is_empty());
    }
});

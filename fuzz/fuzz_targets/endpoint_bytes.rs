//! What a peer sends before there is a connection: its endpoint, as bytes and as text, and its
//! region. Whatever is accepted is sent on as it came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic::{Endpoint, RemoteMr, oob};

/// A stream from which a peer's bytes come.
struct Peer<'a>(&'a [u8]);

impl std::io::Read for Peer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl std::io::Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(endpoint) = Endpoint::from_bytes(bytes) {
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }
    if let Ok(region) = RemoteMr::from_bytes(bytes) {
        assert_eq!(RemoteMr::from_bytes(&region.to_bytes()), Ok(region));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<Endpoint>();
    }
    if let Ok(theirs) = oob::exchange(&mut Peer(bytes), b"mine") {
        assert!(theirs.len() <= oob::MAX_LEN);
    }
});

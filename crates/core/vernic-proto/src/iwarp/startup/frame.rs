//! One start-up frame, collected from a stream that is cut anywhere, and checked as early as it can
//! be.
//!
//! Bounded: a frame is 532 bytes at most, and its buffer is as large from the start.

use vernic_wire::iwarp::{MAX_PRIVATE_DATA, MpaEnhanced, MpaKey, MpaStart};

use super::StartupError;

/// Bytes of the longest frame.
pub(super) const MAX_FRAME: usize = MpaStart::LEN + MAX_PRIVATE_DATA as usize;

/// A frame, or the beginning of one.
#[derive(Debug)]
pub(super) struct Frame {
    buf: Box<[u8; MAX_FRAME]>,
    len: usize,
    /// Its head, once it is here and right.
    start: Option<MpaStart>,
}

impl Frame {
    pub(super) fn new() -> Self {
        Self { buf: Box::new([0; MAX_FRAME]), len: 0, start: None }
    }

    /// Takes what belongs to the frame from the front of `bytes`, and says how much that was.
    ///
    /// `expected` is the key that must come: "If a received Key does not match the expected value
    /// the TCP/DDP connection MUST be closed, and an error returned to the ULP" (RFC 5044, 7.1.2
    /// (5)); the first wrong byte is enough.
    pub(super) fn take(&mut self, bytes: &[u8], expected: MpaKey) -> Result<usize, StartupError> {
        let mut taken = self.fill(bytes, MpaStart::LEN);
        if !expected.may_begin(&self.buf[..self.len]) {
            return Err(StartupError::Key { expected });
        }
        if self.start.is_none() && self.len >= MpaStart::LEN {
            // The key is right, and nothing else of a head is unreadable.
            let start = MpaStart::parse(&self.buf[..self.len])
                .map_err(|_| StartupError::Key { expected })?;
            check_head(&start)?;
            self.start = Some(start);
        }
        if let Some(start) = self.start {
            let whole = MpaStart::LEN + usize::from(start.private_len);
            taken += self.fill(&bytes[taken..], whole);
        }
        Ok(taken)
    }

    /// Copies bytes until there are `until` of them.
    fn fill(&mut self, bytes: &[u8], until: usize) -> usize {
        let take = until.saturating_sub(self.len).min(bytes.len());
        self.buf[self.len..self.len + take].copy_from_slice(&bytes[..take]);
        self.len += take;
        take
    }

    /// The head, once the whole frame is here.
    pub(super) fn complete(&self) -> Option<MpaStart> {
        self.start.filter(|start| self.len == MpaStart::LEN + usize::from(start.private_len))
    }

    /// What RFC 6581 adds, of a complete and enhanced frame.
    pub(super) fn enhanced(&self) -> Option<MpaEnhanced> {
        let start = self.complete().filter(|start| start.enhanced)?;
        let end = MpaStart::LEN + usize::from(start.private_len);
        MpaEnhanced::parse(&self.buf[MpaStart::LEN..end]).ok()
    }

    /// The application's private data of a complete frame.
    pub(super) fn private(&self) -> &[u8] {
        let Some(start) = self.complete() else { return &[] };
        let begin = MpaStart::LEN + if start.enhanced { MpaEnhanced::LEN } else { 0 };
        self.buf.get(begin..MpaStart::LEN + usize::from(start.private_len)).unwrap_or(&[])
    }
}

/// "MPA implementations MUST validate the PD_Length field" (RFC 5044, 7.1.2 (9)).
fn check_head(start: &MpaStart) -> Result<(), StartupError> {
    if start.private_len > MAX_PRIVATE_DATA {
        return Err(StartupError::PrivateLength { len: start.private_len });
    }
    if start.enhanced && usize::from(start.private_len) < MpaEnhanced::LEN {
        return Err(StartupError::NoEnhancedData { len: start.private_len });
    }
    Ok(())
}

/// Writes a frame: head, what RFC 6581 adds, the application's private data. The caller has checked
/// that the data is not too long.
pub(super) fn write(start: MpaStart, enhanced: Option<&MpaEnhanced>, private: &[u8]) -> Vec<u8> {
    let added = if enhanced.is_some() { MpaEnhanced::LEN } else { 0 };
    let private_len = (added + private.len()) as u16;
    let mut bytes = vec![0; MpaStart::LEN + added];
    MpaStart { enhanced: enhanced.is_some(), private_len, ..start }.emit(&mut bytes);
    if let Some(data) = enhanced {
        data.emit(&mut bytes[MpaStart::LEN..]);
    }
    bytes.extend_from_slice(private);
    bytes
}

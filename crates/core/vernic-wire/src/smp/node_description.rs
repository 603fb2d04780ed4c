//! NodeDescription: what people call a node (IBTA 14.2.5.2): 64 bytes.
//!
//! ```text
//!  byte   0..63
//!       +----------------------------+
//!       | UTF-8, filled up by zeros  |
//!       +----------------------------+
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// What people call a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeDescription {
    /// Text, filled up by zeros. Any bytes are data.
    pub bytes: [u8; NodeDescription::LEN],
}

impl NodeDescription {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Description of this text, which is cut after 64 bytes, at the border of a character.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(Self::LEN);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; Self::LEN];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self { bytes }
    }
    /// Text up to the first zero, as far as it is UTF-8.
    pub fn text(&self) -> &str {
        let end = self.bytes.iter().position(|b| *b == 0).unwrap_or(Self::LEN);
        let bytes = &self.bytes[..end];
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { bytes: *b }
    }
    /// Writes the attribute at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.bytes);
    }
}

impl fmt::Display for NodeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_where_the_picture_says() {
        let bytes: [u8; NodeDescription::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = NodeDescription::parse(&bytes).unwrap();
        assert_eq!(read.bytes, bytes);
        assert!(read.text().starts_with("\u{1}\u{2}"));
        let mut out = [0; NodeDescription::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 64, have: 63 };
        assert_eq!(NodeDescription::parse(&[0; 63]), Err(error));
    }

    #[test]
    fn text_is_cut_at_the_border_of_a_character() {
        let long = [b'a'; 63].map(char::from);
        let mut buf = [0; 65];
        buf[..63].copy_from_slice(&long.map(|c| c as u8));
        buf[63..].copy_from_slice("\u{e9}".as_bytes());
        let description = NodeDescription::new(core::str::from_utf8(&buf).unwrap());
        assert_eq!(description.bytes[62..], [b'a', 0]);
        assert_eq!(description.text().len(), 63);
        assert_eq!(NodeDescription::new("leaf 1").text(), "leaf 1");
    }

    #[test]
    fn text_ends_before_bytes_that_are_no_utf_8() {
        let mut description = NodeDescription::new("node");
        description.bytes[4] = 0xFF;
        assert_eq!(description.text(), "node");
    }
}

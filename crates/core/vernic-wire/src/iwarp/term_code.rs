//! Terminate codes: which layer found an error, of what type, and which (RFC 5040, 4.8, figure 9;
//! RFC 5041, 7.2; RFC 5044, 8; RFC 6581, 8; registered by RFC 6580, 3.1 to 3.3).
//!
//! One table. Values that nobody has defined are data like the others.

use core::fmt;

/// What a Terminate reports: layer, error type and error code, 16 bits in all.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TermCode {
    /// Layer: 0 RDMAP, 1 DDP, 2 MPA. 4 bits.
    pub layer: u8,
    /// Error type within the layer. 4 bits.
    pub error_type: u8,
    /// Error code within the type.
    pub code: u8,
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TermRow {
    /// The code.
    pub code: TermCode,
    /// In words.
    pub text: &'static str,
}

impl TermCode {
    /// Of the three fields, the first two with 4 bits each.
    pub const fn new(layer: u8, error_type: u8, code: u8) -> Self {
        Self { layer: layer & 15, error_type: error_type & 15, code }
    }
    /// The layer's name.
    pub const fn layer_name(self) -> &'static str {
        match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        }
    }
    /// What it means; `None` where nobody has defined it. RDMAP's local catastrophic error "does
    /// not have an error code. Any value in this field is acceptable" (RFC 5040, 4.8).
    pub fn text(self) -> Option<&'static str> {
        let any_code = (self.layer, self.error_type) == (0, 0);
        let code = if any_code { Self::RDMAP_LOCAL } else { self };
        TERM_CODES.iter().find(|row| row.code == code).map(|row| row.text)
    }
}

macro_rules! term_codes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal $error_type:literal $code:literal $text:literal;)*) => {
        impl TermCode {
            $($(#[$doc])* pub const $name: Self = Self::new($layer, $error_type, $code);)*
        }

        /// Every code that an RFC defines.
        pub static TERM_CODES: &[TermRow] =
            &[$(TermRow { code: TermCode::$name, text: $text },)*];
    };
}

term_codes! {
    /// RDMAP, local catastrophic error.
    RDMAP_LOCAL = 0 0 0x00 "local catastrophic error";
    /// RDMAP, remote protection: no such key.
    RDMAP_STAG = 0 1 0x00 "invalid STag";
    /// RDMAP, remote protection: outside of the buffer.
    RDMAP_BOUNDS = 0 1 0x01 "base or bounds violation";
    /// RDMAP, remote protection: the right is not granted.
    RDMAP_ACCESS = 0 1 0x02 "access rights violation";
    /// RDMAP, remote protection: the key belongs to others.
    RDMAP_STREAM = 0 1 0x03 "STag not associated with the RDMAP stream";
    /// RDMAP, remote protection: offset and length exceed 64 bits.
    RDMAP_WRAP = 0 1 0x04 "TO wrap";
    /// RDMAP, remote protection: a key that cannot be invalidated.
    RDMAP_INVALIDATE = 0 1 0x09 "STag cannot be invalidated";
    /// RDMAP, remote protection: something else.
    RDMAP_PROTECTION_OTHER = 0 1 0xFF "unspecified remote protection error";
    /// RDMAP, remote operation: another version.
    RDMAP_VERSION = 0 2 0x05 "invalid RDMAP version";
    /// RDMAP, remote operation: an opcode that is unknown or cannot come now.
    RDMAP_OPCODE = 0 2 0x06 "unexpected opcode";
    /// RDMAP, remote operation: this stream cannot go on.
    RDMAP_STREAM_CATASTROPHIC = 0 2 0x07 "catastrophic error, localized to the RDMAP stream";
    /// RDMAP, remote operation: no stream can go on.
    RDMAP_GLOBAL_CATASTROPHIC = 0 2 0x08 "catastrophic error, global";
    /// RDMAP, remote operation: a key that cannot be invalidated.
    RDMAP_OPERATION_INVALIDATE = 0 2 0x09 "STag cannot be invalidated (remote operation)";
    /// RDMAP, remote operation: something else.
    RDMAP_OPERATION_OTHER = 0 2 0xFF "unspecified remote operation error";
    /// DDP, local catastrophic error.
    DDP_LOCAL = 1 0 0x00 "local catastrophic error of DDP";
    /// DDP, tagged buffer: no such key, or none that may be written.
    DDP_TAGGED_STAG = 1 1 0x00 "tagged buffer: invalid STag";
    /// DDP, tagged buffer: outside of it.
    DDP_TAGGED_BOUNDS = 1 1 0x01 "tagged buffer: base or bounds violation";
    /// DDP, tagged buffer: the key belongs to others.
    DDP_TAGGED_STREAM = 1 1 0x02 "tagged buffer: STag not associated with the DDP stream";
    /// DDP, tagged buffer: offset and length exceed 64 bits.
    DDP_TAGGED_WRAP = 1 1 0x03 "tagged buffer: TO wrap";
    /// DDP, tagged buffer: another version.
    DDP_TAGGED_VERSION = 1 1 0x04 "tagged buffer: invalid DDP version";
    /// DDP, untagged buffer: no such queue.
    DDP_UNTAGGED_QUEUE = 1 2 0x01 "untagged buffer: invalid QN";
    /// DDP, untagged buffer: the queue is empty.
    DDP_UNTAGGED_NO_BUFFER = 1 2 0x02 "untagged buffer: invalid MSN, no buffer available";
    /// DDP, untagged buffer: another message was due.
    DDP_UNTAGGED_MSN = 1 2 0x03 "untagged buffer: invalid MSN, MSN range is not valid";
    /// DDP, untagged buffer: another part of the message was due.
    DDP_UNTAGGED_OFFSET = 1 2 0x04 "untagged buffer: invalid MO";
    /// DDP, untagged buffer: it is too short.
    DDP_UNTAGGED_TOO_LONG = 1 2 0x05 "untagged buffer: DDP message too long for available buffer";
    /// DDP, untagged buffer: another version.
    DDP_UNTAGGED_VERSION = 1 2 0x06 "untagged buffer: invalid DDP version";
    /// MPA: the TCP connection is gone.
    MPA_CLOSED = 2 0 0x01 "TCP connection closed, terminated, or lost";
    /// MPA: CRC32c.
    MPA_CRC = 2 0 0x02 "MPA CRC error";
    /// MPA: marker and length disagree.
    MPA_MARKER = 2 0 0x03 "MPA marker and ULPDU length field mismatch";
    /// MPA: start-up frame.
    MPA_START = 2 0 0x04 "invalid MPA request or reply frame";
    /// MPA, enhanced start-up: something local.
    MPA_LOCAL = 2 0 0x05 "local catastrophic error of MPA";
    /// MPA, enhanced start-up: not enough room for the peer's READs.
    MPA_IRD = 2 0 0x06 "insufficient IRD resources";
    /// MPA, enhanced start-up: no ready-to-receive indication in common.
    MPA_RTR = 2 0 0x07 "no matching RTR option";
}

impl fmt::Debug for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}/{:x}/{:02x}", self.layer, self.error_type, self.code)
    }
}
impl fmt::Display for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text().unwrap_or("not defined by an RFC");
        write!(f, "{} {:?}: {text}", self.layer_name(), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_has_two_rows_and_each_finds_its_own() {
        for (index, row) in TERM_CODES.iter().enumerate() {
            assert_eq!(row.code.text(), Some(row.text));
            assert!(
                TERM_CODES[..index].iter().all(|other| other.code != row.code),
                "{:?}",
                row.code
            );
        }
    }

    #[test]
    fn the_table_has_as_many_rows_as_the_registries() {
        let rows = |layer| TERM_CODES.iter().filter(|row| row.code.layer == layer).count();
        // RFC 6580, 3.1 to 3.3, without "reserved for the LLP"; three codes of RFC 6581, 11.
        assert_eq!((rows(0), rows(1), rows(2)), (14, 12, 7));
    }

    #[test]
    fn a_local_catastrophic_error_may_have_any_code() {
        assert_eq!(TermCode::new(0, 0, 0x5A).text(), Some("local catastrophic error"));
        assert_eq!(TermCode::new(0, 3, 0).text(), None);
        assert_eq!(TermCode::new(9, 0, 0).layer_name(), "unknown layer");
    }
}

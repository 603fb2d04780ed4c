//! Selector: how an MTU, a rate or a life time of a request compares with that of a record (IBTA
//! 15.2.5).
//!
//! ```text
//!       +----------+-------+
//!       | selector | value |
//!       +----------+-------+
//!         2          6 bits
//! ```

/// How a value of a request compares with that of a record, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Selector(pub u8);

impl Selector {
    /// The record's is greater.
    pub const GREATER: Self = Self(0);
    /// The record's is less.
    pub const LESS: Self = Self(1);
    /// The record's is the same.
    pub const EXACTLY: Self = Self(2);
    /// The record's is the best there is, whatever the value: of MTU and rate the largest, of life
    /// time the smallest.
    pub const BEST: Self = Self(3);
}

/// A value with its selector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Selected {
    /// How it compares.
    pub selector: Selector,
    /// The value, 6 bits: a code of MTU or rate, or the exponent of a time
    /// ([`timeout_nanos`](crate::cm::timeout_nanos)).
    pub value: u8,
}

impl Selected {
    /// Returns this value and no other.
    pub const fn exactly(value: u8) -> Self {
        Self { selector: Selector::EXACTLY, value }
    }
    /// Reads the two from their byte.
    pub const fn from_byte(byte: u8) -> Self {
        Self { selector: Selector(byte >> 6), value: byte & 0x3F }
    }
    /// Returns the byte of the two. Fields wider than theirs are cut.
    pub const fn to_byte(self) -> u8 {
        self.selector.0 << 6 | self.value & 0x3F
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selector_is_on_top() {
        assert_eq!(Selected::from_byte(0x84), Selected::exactly(4));
        assert_eq!(Selected::exactly(0x44).to_byte(), 0x84);
        for byte in 0..=255 {
            assert_eq!(Selected::from_byte(byte).to_byte(), byte);
        }
    }
}

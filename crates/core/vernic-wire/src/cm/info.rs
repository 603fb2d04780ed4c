//! Additional information of a REJ, an APR and a SIDR_REP: a field of 72 bytes, and how many of
//! them mean something. What they mean depends on the reason or status beside them.

use core::fmt;

use super::PrivateDataTooLong;

/// Additional information, 0 to 72 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Bytes that mean something, as on the wire; more than 72 stand for 72.
    pub len: u8,
    /// The whole field.
    pub field: [u8; Self::LEN],
}

impl Info {
    /// Bytes of the field.
    pub const LEN: usize = 72;
    /// No information.
    pub const NONE: Self = Self { len: 0, field: [0; Self::LEN] };

    /// The bytes that mean something.
    pub fn as_slice(&self) -> &[u8] {
        &self.field[..usize::from(self.len).min(Self::LEN)]
    }
}

impl Default for Info {
    fn default() -> Self {
        Self::NONE
    }
}
impl TryFrom<&[u8]> for Info {
    type Error = PrivateDataTooLong;

    fn try_from(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        if bytes.len() > Self::LEN {
            return Err(PrivateDataTooLong { len: bytes.len(), max: Self::LEN });
        }
        let mut info = Self { len: bytes.len() as u8, ..Self::NONE };
        info.field[..bytes.len()].copy_from_slice(bytes);
        Ok(info)
    }
}
impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "[{}]", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_the_field_ends_with_the_field() {
        let info = Info { len: 127, field: [7; Info::LEN] };
        assert_eq!(info.as_slice(), &[7; Info::LEN]);
    }

    #[test]
    fn seventy_three_bytes_are_refused() {
        let error = PrivateDataTooLong { len: 73, max: 72 };
        assert_eq!(Info::try_from(&[0; 73][..]), Err(error));
        assert_eq!(Info::try_from(&[1, 2][..]).unwrap().as_slice(), &[1, 2]);
    }
}

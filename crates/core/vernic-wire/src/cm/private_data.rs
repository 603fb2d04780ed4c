//! Private data: the bytes at the end of a CM message that belong to the applications.
//!
//! The field always has its full size on the wire; what is shorter is filled up with zeros, and how
//! much of it means something is for the applications to know.

use core::fmt;

/// Bytes for the application at the peer, always `N` of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>([u8; N]);

/// More bytes than the field has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrivateDataTooLong {
    /// Bytes given.
    pub len: usize,
    /// Bytes that the field takes.
    pub max: usize,
}

impl<const N: usize> PrivateData<N> {
    /// Bytes of the field.
    pub const LEN: usize = N;

    /// The whole field.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
    /// From the field, or from its start in `bytes`. What `bytes` does not have is zero.
    pub(crate) fn from_tail(bytes: &[u8]) -> Self {
        let mut field = [0; N];
        let len = bytes.len().min(N);
        field[..len].copy_from_slice(&bytes[..len]);
        Self(field)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    /// All zeros.
    fn default() -> Self {
        Self([0; N])
    }
}
impl<const N: usize> From<[u8; N]> for PrivateData<N> {
    fn from(field: [u8; N]) -> Self {
        Self(field)
    }
}
impl<const N: usize> TryFrom<&[u8]> for PrivateData<N> {
    type Error = PrivateDataTooLong;

    fn try_from(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        if bytes.len() > N {
            return Err(PrivateDataTooLong { len: bytes.len(), max: N });
        }
        Ok(Self::from_tail(bytes))
    }
}
impl<const N: usize> AsRef<[u8]> for PrivateData<N> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// In hexadecimal, without the zeros at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = N - self.0.iter().rev().take_while(|byte| **byte == 0).count();
        self.0[..used].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "[{used}/{N}]")
    }
}

impl fmt::Display for PrivateDataTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, the field takes {}", self.len, self.max)
    }
}
impl core::error::Error for PrivateDataTooLong {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_data_is_filled_up_with_zeros() {
        let data = PrivateData::<4>::try_from(&[1, 2][..]).unwrap();
        assert_eq!(data.as_bytes(), &[1, 2, 0, 0]);
        assert_eq!(PrivateData::<4>::default().as_ref(), [0; 4]);
    }

    #[test]
    fn a_byte_too_many_is_refused_with_both_lengths() {
        let error = PrivateData::<4>::try_from(&[0; 5][..]).unwrap_err();
        assert_eq!(error, PrivateDataTooLong { len: 5, max: 4 });
        assert_eq!(PrivateData::<4>::try_from(&[7; 4][..]).unwrap().as_bytes(), &[7; 4]);
    }
}

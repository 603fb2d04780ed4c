//! Hardware address: 20 bytes, where an interface of IPoIB is (RFC 4391, section 9.1.1; RFC 4755,
//! section 3.1).
//!
//! ```text
//!  byte   0       1..3   4..19
//!       +-------+------+-------+
//!       | modes | QPN  | GID   |
//!       +-------+------+-------+
//!         8       24     128 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::{Gid, ParseError, Qpn};

bitflags::bitflags! {
    /// Connected modes that an interface takes. Bits without a name are kept.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    pub struct ConnectedModes: u8 {
        /// Reliable connections.
        const RC = 1 << 7;
        /// Unreliable connections.
        const UC = 1 << 6;
        const _ = !0;
    }
}

/// Hardware address of an interface. The order is that of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HardwareAddress {
    /// Connected modes that the interface takes beside datagrams.
    pub modes: ConnectedModes,
    /// The interface's queue pair of datagrams.
    pub qpn: Qpn,
    /// A GID of the interface's port.
    pub gid: Gid,
}

impl HardwareAddress {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Returns the address of an interface that takes datagrams only.
    pub const fn new(qpn: Qpn, gid: Gid) -> Self {
        Self { modes: ConnectedModes::empty(), qpn, gid }
    }
    /// Returns the address without modes, by which two of them are compared (RFC 4755, section
    /// 3.3).
    #[must_use]
    pub const fn without_modes(self) -> Self {
        Self { modes: ConnectedModes::empty(), ..self }
    }
    /// Reads the address at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the address from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            modes: ConnectedModes::from_bits_retain(b[0]),
            qpn: Qpn::new(u32::from_be_bytes([0, b[1], b[2], b[3]])),
            gid: Gid(core::array::from_fn(|i| b[4 + i])),
        }
    }
    /// Returns the bytes of the address.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.emit(&mut bytes);
        bytes
    }
    /// Writes the address at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let first = u32::from(self.modes.bits()) << 24 | self.qpn.value();
        buf[..4].copy_from_slice(&first.to_be_bytes());
        buf[4..Self::LEN].copy_from_slice(&self.gid.0);
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qpn={} gid={} modes={:#04x}", self.qpn, self.gid, self.modes.bits())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; HardwareAddress::LEN] = core::array::from_fn(|i| i as u8 + 0x81);
        let address = HardwareAddress::parse(&bytes).unwrap();
        assert_eq!(address.modes, ConnectedModes::RC | ConnectedModes::from_bits_retain(1));
        assert_eq!(address.qpn, Qpn::new(0x82_8384));
        assert_eq!((address.gid.0[0], address.gid.0[15]), (0x85, 0x94));
        assert_eq!(address.to_bytes(), bytes);
        assert_eq!(address.without_modes().to_bytes()[0], 0);
    }

    #[test]
    fn nineteen_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 20, have: 19 };
        assert_eq!(HardwareAddress::parse(&[0; 19]), Err(error));
    }

    #[test]
    fn addresses_are_ordered_as_their_bytes_are() {
        let gid = |last| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let addresses = [
            HardwareAddress::new(Qpn::new(1), gid(9)),
            HardwareAddress::new(Qpn::new(2), gid(1)),
            HardwareAddress::new(Qpn::new(2), gid(2)),
            HardwareAddress { modes: ConnectedModes::UC, ..HardwareAddress::default() },
            HardwareAddress { modes: ConnectedModes::RC, ..HardwareAddress::default() },
        ];
        assert!(addresses.is_sorted());
        assert!(addresses.map(|address| address.to_bytes()).is_sorted());
        assert_eq!(addresses[1].to_string(), "qpn=0x000002 gid=::1 modes=0x00");
    }
}

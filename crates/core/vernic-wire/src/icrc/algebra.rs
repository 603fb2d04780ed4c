//! Polynomials modulo the CRC's: finds an IPv4 Identification from the difference of two ICRCs.
//!
//! A CRC is a remainder modulo P in polynomials over GF(2). Two packets that differ only in the
//! Identification have CRCs whose difference is D * x^(8 n) mod P: D the difference of the fields,
//! n the bytes from the field's first to the end, and the 4 bytes of shift that every CRC has are
//! the same on both sides. As P is primitive, x has an inverse, and D = diff * x^(-8 n).
//!
//! Bits are reflected as in the CRC: bit 31 is x^0. Read as little-endian bytes, D is then the 4
//! bytes of the packet that begin with the Identification: its low 16 bits are the field with its
//! bytes swapped, and the upper 16 bits (flags and fragment offset, which do not differ) are 0.

/// The polynomial of CRC-32 without its leading term, reflected.
pub(super) const POLY: u32 = 0xEDB8_8320;
/// x^0, reflected.
const ONE: u32 = 1 << 31;
/// Bytes of pseudo packet from the Identification to the transport bytes: the rest of the IPv4
/// header, from byte 4 of 20, and the UDP header.
const FIELD_TO_TRANSPORT: u32 = 16 + 8;
/// Powers in [`INVERSES`]: enough for 17 bits of length, more than any packet's.
const POWERS: usize = 17;

/// `INVERSES[k]` is x^(-8 * 2^k) modulo P.
const INVERSES: [u32; POWERS] = {
    // x * x^-1 = 1 = P + 1 + 1 where P has a term 1: x^-1 = (P + 1) / x, one step of "divide by x".
    let mut byte = ONE;
    let mut i = 0;
    while i < 8 {
        byte = divide_by_x(byte);
        i += 1;
    }
    let mut table = [byte; POWERS];
    let mut k = 1;
    while k < POWERS {
        table[k] = multiply(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
};

/// `a / x` modulo P: takes the CRC's state one zero bit back. P has both of the terms 1 and x^32:
/// add P if `a` has a term 1, then shift.
pub(super) const fn divide_by_x(a: u32) -> u32 {
    if a & ONE == 0 { a << 1 } else { (a ^ POLY) << 1 | 1 }
}

/// `a * b` modulo P.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLY & (b & 1).wrapping_neg();
    }
    product
}

/// x^(-8 n) modulo P.
const fn inverse_of_bytes(n: u32) -> u32 {
    let mut result = ONE;
    let mut k = 0;
    while k < POWERS {
        if n >> k & 1 != 0 {
            result = multiply(result, INVERSES[k]);
        }
        k += 1;
    }
    result
}

const fn inverse_for(transport_len: u32) -> u32 {
    inverse_of_bytes(transport_len + FIELD_TO_TRANSPORT)
}

/// The field, if `quotient` fits into its place.
const fn to_ident(quotient: u32) -> Option<u16> {
    if quotient <= 0xFFFF { Some((quotient as u16).swap_bytes()) } else { None }
}

/// Explains an ICRC difference by the IPv4 Identification.
///
/// `diff` is [`Verdict::Differs`](super::Verdict::Differs)'s, `transport_len` the bytes from BTH to
/// pad. Returns what to xor to the guess to get the Identification that makes the packet good, or
/// `None` if there is none: the packet is corrupt, or not over IPv4. Of 65,536 random differences
/// one passes.
///
/// Takes some 0.2 us; [`IdentSolver`] is the one for data paths.
pub const fn solve_ident(diff: u32, transport_len: usize) -> Option<u16> {
    if transport_len > u16::MAX as usize {
        return None;
    }
    to_ident(multiply(diff, inverse_for(transport_len as u32)))
}

/// Slots of the cache: a flow has few packet sizes (FIRST, MIDDLE, LAST, ACK).
const SLOTS: usize = 16;

/// [`solve_ident`] with the inverses of recently seen packet lengths: 128 bytes, no allocation.
#[derive(Clone, Debug)]
pub struct IdentSolver {
    /// Length and its inverse, at index length / 4 modulo [`SLOTS`].
    slots: [(u32, u32); SLOTS],
}

impl IdentSolver {
    /// An empty cache.
    pub const fn new() -> Self {
        Self { slots: [(u32::MAX, 0); SLOTS] }
    }
    /// As [`solve_ident`].
    #[inline]
    pub fn solve(&mut self, diff: u32, transport_len: usize) -> Option<u16> {
        if transport_len > u16::MAX as usize {
            return None;
        }
        let len = transport_len as u32;
        let slot = &mut self.slots[transport_len / 4 % SLOTS];
        if slot.0 != len {
            *slot = (len, inverse_for(len));
        }
        to_ident(multiply(diff, slot.1))
    }
}

impl Default for IdentSolver {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverses_undo_powers() {
        let mut x8 = ONE;
        for _ in 0..8 {
            x8 = x8 >> 1 ^ POLY & (x8 & 1).wrapping_neg();
        }
        let mut power = ONE;
        let count = if cfg!(miri) { 30 } else { 3000 };
        for n in 0..count {
            assert_eq!(multiply(power, inverse_of_bytes(n)), ONE, "{n}");
            power = multiply(power, x8);
        }
    }

    #[test]
    fn lengths_beyond_any_packet_have_no_solution() {
        assert_eq!(solve_ident(1, 65_536), None);
        assert_eq!(IdentSolver::new().solve(1, usize::MAX), None);
    }
}

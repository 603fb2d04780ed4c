//! GUIDs of nodes that have none of their own.
//!
//! ```text
//!  bits   63..56           55..24                  23..8            7..0
//!       +----------------+-----------------------+----------------+---------------+
//!       | 0x02           | hash of fabric's name | node, from 1   | port, node: 0 |
//!       +----------------+-----------------------+----------------+---------------+
//! ```
//!
//! The first byte says that an EUI-64 was assigned locally, so no maker's GUID is the same. Two
//! nodes of a fabric never share one, and two fabrics only if the hashes of their names collide.

use vernic_wire::Guid;

/// Makes the GUID of the node with this index, below [`MAX_NODES`](super::MAX_NODES).
pub(super) fn of_node(fabric: &str, node: usize) -> Guid {
    let number = (node as u64 + 1) & 0xFFFF;
    Guid(0x02 << 56 | u64::from(hash(fabric)) << 24 | number << 8)
}

/// FNV-1a of 64 bits, folded to 32.
fn hash(text: &str) -> u32 {
    let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_differ_by_fabric_and_node_and_leave_room_for_ports() {
        let guid = of_node("lab", 0);
        assert_eq!(guid, of_node("lab", 0));
        assert_ne!(guid, of_node("lab", 1));
        assert_ne!(guid, of_node("lab2", 0));
        assert_eq!((guid.value() >> 56, guid.value() & 0xFFFF), (0x02, 0x0100));
        assert_eq!(of_node("lab", 0xBFFE).value() - guid.value(), 0xBFFE << 8);
    }
}

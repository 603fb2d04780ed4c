//! Sets of ports of a switch, port 0 among them.

use vernic_wire::PortNum;

/// A set of ports 0 to 255.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PortSet([u64; 4]);

impl PortSet {
    /// Makes the set of ports 1 to `last`, at most 255.
    pub(crate) fn up_to(last: usize) -> Self {
        let mut set = Self::default();
        (1..=last.min(255)).for_each(|port| set.insert(PortNum(port as u8)));
        set
    }
    /// Makes the set of one port.
    pub(crate) fn of(port: PortNum) -> Self {
        let mut set = Self::default();
        set.insert(port);
        set
    }
    /// Makes the set of a mask of the multicast forwarding table: bit n of word w is port 16 w + n.
    pub(crate) fn of_masks(masks: &[u16; 16]) -> Self {
        let mut set = Self::default();
        for (at, mask) in masks.iter().enumerate() {
            set.0[at / 4] |= u64::from(*mask) << (at % 4 * 16);
        }
        set
    }
    /// Adds a port.
    pub(crate) fn insert(&mut self, port: PortNum) {
        self.0[usize::from(port.0 / 64)] |= 1 << (port.0 % 64);
    }
    /// Takes a port out.
    pub(crate) fn remove(&mut self, port: PortNum) {
        self.0[usize::from(port.0 / 64)] &= !(1 << (port.0 % 64));
    }
    /// Returns whether there is no port.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
    /// Returns the first port.
    pub(crate) fn first(&self) -> Option<PortNum> {
        let (at, word) = self.0.iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(PortNum((at * 64) as u8 + word.trailing_zeros() as u8))
    }
    /// Returns the ports in order.
    pub(crate) fn iter(mut self) -> impl Iterator<Item = PortNum> {
        std::iter::from_fn(move || {
            let port = self.first()?;
            self.remove(port);
            Some(port)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_out_as_they_went_in() {
        let mut set = PortSet::default();
        assert!(set.is_empty());
        for port in [255, 0, 63, 64, 130] {
            set.insert(PortNum(port));
        }
        assert_eq!(set.iter().map(|port| port.0).collect::<Vec<_>>(), [0, 63, 64, 130, 255]);
        set.remove(PortNum(0));
        assert_eq!(set.first(), Some(PortNum(63)));
        assert_eq!(PortSet::up_to(300).iter().count(), 255);
        assert_eq!(PortSet::of(PortNum(9)).first(), Some(PortNum(9)));
    }

    #[test]
    fn masks_have_sixteen_ports_each() {
        let mut masks = [0; 16];
        (masks[0], masks[1], masks[15]) = (1 << 3, 1 << 1, 1 << 15);
        let ports: Vec<_> = PortSet::of_masks(&masks).iter().map(|port| port.0).collect();
        assert_eq!(ports, [3, 17, 255]);
    }
}

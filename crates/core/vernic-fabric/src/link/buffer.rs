//! How full the receive buffers of a port are. The bytes are elsewhere.

use vernic_wire::VirtualLane;

/// Receive buffers, one for each lane, in blocks of 64 bytes.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveBuffers {
    data_blocks: u16,
    management_blocks: u16,
    used: [u16; VirtualLane::COUNT],
}

impl ReceiveBuffers {
    /// Makes empty buffers.
    pub(crate) const fn new(data_blocks: u16, management_blocks: u16) -> Self {
        Self { data_blocks, management_blocks, used: [0; VirtualLane::COUNT] }
    }
    const fn size(&self, lane: VirtualLane) -> u16 {
        if lane.is_management() { self.management_blocks } else { self.data_blocks }
    }
    /// Returns the free blocks of a lane.
    pub(crate) fn free(&self, lane: VirtualLane) -> u16 {
        self.size(lane).saturating_sub(self.used[usize::from(lane.value())])
    }
    /// Takes blocks; returns whether there were as many.
    pub(crate) fn take(&mut self, lane: VirtualLane, blocks: u16) -> bool {
        let fits = blocks <= self.free(lane);
        if fits {
            self.used[usize::from(lane.value())] += blocks;
        }
        fits
    }
    /// Gives blocks back that were taken.
    pub(crate) fn release(&mut self, lane: VirtualLane, blocks: u16) {
        let used = &mut self.used[usize::from(lane.value())];
        debug_assert!(*used >= blocks, "more is given back than was taken");
        *used = used.saturating_sub(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_takes_no_more_than_its_size_and_leaves_the_others_alone() {
        let mut buffers = ReceiveBuffers::new(10, 3);
        let (data, management) = (VirtualLane::new(2), VirtualLane::MANAGEMENT);
        assert!(buffers.take(data, 7) && !buffers.take(data, 4) && buffers.take(data, 3));
        assert!(buffers.take(management, 3) && !buffers.take(management, 1));
        assert_eq!(buffers.free(VirtualLane::new(0)), 10);
        buffers.release(data, 7);
        assert_eq!(buffers.free(data), 7);
    }
}

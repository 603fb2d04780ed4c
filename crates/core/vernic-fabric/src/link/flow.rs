//! The credits of one data lane, both ways, and when they are told to the other end (IBTA 7.9.4).
//!
//! A flow-control packet leaves at once if the other end may be waiting for it, or a good part of
//! the buffer became free. Otherwise it leaves after a while, and again after longer and longer
//! whiles: so the next one makes good for one that was lost.

use vernic_wire::{FlowControl, FlowControlOp, VirtualLane};

use super::config::LinkConfig;
use super::credit::{BadCount, Count, MOST, ReceiveCredits, SendCredits};
use crate::Time;

/// What was told last.
#[derive(Clone, Copy, Debug)]
struct Told {
    limit: Count,
    sent: Count,
    at: Time,
    /// Nanoseconds until it is told again if nothing changes.
    interval_ns: u64,
}

/// Credits of one data lane. New with every link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaneFlow {
    send: SendCredits,
    receive: ReceiveCredits,
    told: Option<Told>,
}

impl LaneFlow {
    /// Returns whether a packet of so many blocks may leave.
    pub(crate) const fn may_send(&self, blocks: u16) -> bool {
        self.send.may_send(blocks)
    }
    /// Returns the blocks that may leave yet.
    pub(crate) const fn credits(&self) -> u16 {
        self.send.left()
    }
    /// Counts a packet that leaves.
    pub(crate) fn sent(&mut self, blocks: u16) {
        self.send.take(blocks);
    }
    /// Counts a packet that arrived.
    pub(crate) fn received(&mut self, blocks: u16) {
        self.receive.add(blocks);
    }
    /// Takes a flow-control packet.
    ///
    /// # Errors
    /// [`BadCount`] if the other end moves a count as it must not.
    pub(crate) fn handle(&mut self, packet: &FlowControl) -> Result<(), BadCount> {
        self.receive.resume(Count::new(packet.total_sent))?;
        self.send.grant(Count::new(packet.credit_limit))?;
        Ok(())
    }
    /// Returns when credits are to be told, with so many blocks free. [`Time`] 0 means at once.
    pub(crate) fn due(&self, config: &LinkConfig, free: u16) -> Time {
        const AT_ONCE: Time = Time(0);
        let Some(told) = self.told else { return AT_ONCE };
        let grown = self.receive.limit(free).since(told.limit);
        let left = told.limit.since(self.receive.received());
        if grown != 0
            && (left < LinkConfig::LEAST_BLOCKS || grown >= config.data_blocks().min(MOST) / 4)
        {
            return AT_ONCE;
        }
        let changed = grown != 0 || self.send.sent() != told.sent;
        let interval = if changed { config.update_ns } else { told.interval_ns };
        told.at + interval
    }
    /// Makes the flow-control packet that is due.
    pub(crate) fn poll(
        &mut self,
        config: &LinkConfig,
        free: u16,
        now: Time,
    ) -> Option<(Count, Count)> {
        if now < self.due(config, free) {
            return None;
        }
        let (limit, sent) = (self.receive.limit(free), self.send.sent());
        let interval_ns = match self.told {
            Some(told) if told.limit == limit && told.sent == sent => {
                told.interval_ns.saturating_mul(2).min(config.idle_update_ns.max(config.update_ns))
            }
            _ => config.update_ns,
        };
        self.told = Some(Told { limit, sent, at: now, interval_ns });
        Some((sent, limit))
    }
}

/// Returns the bytes of a flow-control packet.
pub(crate) fn packet(
    initializes: bool,
    lane: VirtualLane,
    (sent, limit): (Count, Count),
) -> [u8; FlowControl::LEN] {
    let op = if initializes { FlowControlOp::INITIALIZE } else { FlowControlOp::NORMAL };
    let (total_sent, credit_limit) = (sent.value(), limit.value());
    let mut bytes = [0; FlowControl::LEN];
    FlowControl { op, total_sent, virtual_lane: lane, credit_limit }.emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LinkConfig {
        let (lane_blocks, update_ns, idle_update_ns) = (400, 100, 350);
        LinkConfig { lane_blocks, update_ns, idle_update_ns, ..LinkConfig::default() }
    }

    #[test]
    fn what_does_not_change_is_told_ever_less_often() {
        let (config, mut flow, mut times) = (config(), LaneFlow::default(), Vec::new());
        for now in 0..1500 {
            if flow.poll(&config, 400, Time(now)).is_some() {
                times.push(now);
            }
        }
        assert_eq!(times, [0, 100, 300, 650, 1000, 1350]);
    }

    #[test]
    fn a_sender_that_may_wait_is_told_at_once() {
        let (config, mut flow) = (config(), LaneFlow::default());
        assert_eq!(flow.poll(&config, 400, Time(0)), Some((Count::new(0), Count::new(400))));
        // 66 blocks are left to the sender after 334: it can send the longest packet yet.
        flow.received(334);
        assert_eq!(flow.due(&config, 66 + 50), Time(100));
        flow.received(1);
        assert_eq!(flow.due(&config, 65), Time(100), "there is nothing new to tell");
        assert_eq!(flow.due(&config, 66), Time(0));
    }

    #[test]
    fn a_quarter_of_the_buffer_is_told_at_once() {
        let (config, mut flow) = (config(), LaneFlow::default());
        flow.poll(&config, 300, Time(0));
        assert_eq!(flow.due(&config, 399), Time(100));
        assert_eq!(flow.due(&config, 400), Time(0));
    }

    #[test]
    fn a_buffer_larger_than_can_be_granted_is_told_in_time_too() {
        let config = LinkConfig { lane_blocks: 60_000, ..config() };
        let mut flow = LaneFlow::default();
        assert_eq!(flow.poll(&config, 60_000, Time(0)), Some((Count::new(0), Count::new(2048))));
        flow.received(511);
        assert_eq!(flow.due(&config, 59_489), Time(100));
        flow.received(1);
        assert_eq!(flow.due(&config, 59_488), Time(0));
    }

    #[test]
    fn blocks_sent_are_told_after_a_while_so_that_lost_ones_come_back() {
        let (config, mut flow) = (config(), LaneFlow::default());
        for now in [0, 100, 300] {
            assert!(flow.poll(&config, 400, Time(now)).is_some());
        }
        flow.sent(3);
        assert_eq!(flow.due(&config, 400), Time(400));
        assert_eq!(flow.poll(&config, 400, Time(400)), Some((Count::new(3), Count::new(400))));
    }
}

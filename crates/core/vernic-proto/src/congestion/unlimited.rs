//! No control: always the largest window.

use vernic_wire::Kind;

use super::{Acked, Congestion, Sent};
use crate::time::Time;

/// Hears of everything and does nothing.
#[derive(Debug)]
pub(crate) struct Unlimited {
    limit: u32,
}

impl Unlimited {
    pub(super) fn new(limit: u32) -> Self {
        Self { limit: limit.max(1) }
    }
}

impl Congestion for Unlimited {
    fn reset(&mut self) {}
    #[inline]
    fn on_sent(&mut self, _: Time, _: Sent) {}
    #[inline]
    fn on_ack(&mut self, _: Time, _: Acked) {}
    fn on_loss(&mut self, _: Time) {}
    fn on_mark(&mut self, _: Time, _: Kind) {}
    fn on_cnp(&mut self, _: Time) {}
    fn on_silence(&mut self, _: Time) {}
    #[inline]
    fn window(&self) -> u32 {
        self.limit
    }
    #[inline]
    fn not_before(&self) -> Option<Time> {
        None
    }
}

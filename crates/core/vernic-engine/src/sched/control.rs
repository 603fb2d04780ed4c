//! The controller of a destination window: the default one, or one of the owner's.

use vernic_proto::Time;
use vernic_proto::congestion::{Congestion, Tally};

use super::destination_aimd::DestinationAimd;

/// The controller of one destination window, which all queue pairs of that destination share.
#[derive(Debug)]
pub(super) enum Control {
    Aimd(DestinationAimd),
    Owners(Box<dyn Congestion>),
}

impl Control {
    pub(super) const fn new() -> Self {
        Self::Aimd(DestinationAimd::new())
    }

    /// Returns the number of packets that may be in flight, at least 1.
    #[inline]
    pub(super) fn window(&self) -> u64 {
        match self {
            Self::Aimd(aimd) => u64::from(aimd.window()),
            Self::Owners(controller) => u64::from(controller.window().max(1)),
        }
    }

    /// Returns the time before which no queue pair may send, if that time is still to come.
    #[inline]
    pub(super) fn opens_at(&self, now: Time) -> Option<Time> {
        match self {
            Self::Aimd(_) => None,
            Self::Owners(controller) => controller.not_before().filter(|at| *at > now),
        }
    }

    /// Tells the controller what a queue pair's own controller was told since `told`.
    #[inline]
    pub(super) fn tell(&mut self, told: &mut Tally, tally: &Tally, limited: bool, now: Time) {
        match self {
            Self::Aimd(aimd) => tally.pass_on(told, aimd, limited, now),
            Self::Owners(controller) => tally.pass_on(told, controller.as_mut(), limited, now),
        }
    }

    /// Tells the controller whether a queue pair waits for room.
    pub(super) fn on_contention(&mut self, contended: bool) {
        match self {
            Self::Aimd(aimd) => aimd.on_contention(contended),
            Self::Owners(controller) => controller.on_contention(contended),
        }
    }
}

//! The rate that an application allows a queue pair.

/// The largest rate at which a queue pair sends requests, as the application sets it. It holds for
/// all that its requests put on the way: SENDs, WRITEs, datagrams, and what READs and atomics ask
/// for; counted from the BTH to the pad, what is sent again included. It does not hold for what it
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Kilobits (1,000 bits) per second, up to [`RateLimit::MAX_KBPS`]; 0 for no limit.
    pub kbps: u32,
    /// Bytes that leave together at most after a pause; 0 for what 2 ms are worth. At least one
    /// packet leaves, and as much as 100 us are worth: nobody wakes more often.
    pub burst_bytes: u32,
}

impl RateLimit {
    /// No limit.
    pub const NONE: Self = Self { kbps: 0, burst_bytes: 0 };

    /// The largest rate that can be asked for: 400 Gb/s, at which a packet of 4 KiB takes 82 ns.
    pub const MAX_KBPS: u32 = 400_000_000;

    /// A limit in kilobits per second.
    pub const fn kbps(kbps: u32) -> Self {
        Self { kbps, burst_bytes: 0 }
    }

    /// Bytes per second, if there is a limit.
    pub(crate) fn rate(self) -> Option<u64> {
        (self.kbps != 0).then(|| u64::from(self.kbps) * 125)
    }
}

//! How long a thread that waits looks again and again before it sleeps, or lets others run.
//!
//! Who sleeps is woken by the device's thread, which is woken by the packet: two switches between
//! threads, which take longer than many an answer. So a thread whose last wait was short looks for
//! longer, up to [`LONGER`]; one that waits long sleeps after the
//! [`polling_time`](crate::Settings::polling_time), which at 0 means at once in any case.
//!
//! A program may also look for itself, by calls that do not wait. Where the threads that would
//! bring what it looks for share its core and come behind it (`SCHED_FIFO`), they would never run;
//! so such a call lets them ([`looked`]). Where there is a connection the engine sees to that.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A wait of at most this is a short one. Twice the time of an exchange with a peer that sleeps,
/// too (50 us, on two processors), so that two who both sleep find out of it.
const LONGER: Duration = Duration::from_micros(100);

thread_local! {
    /// The last wait of this thread was a short one.
    static SHORT: Cell<bool> = const { Cell::new(false) };
}

/// After so long of nothing but fruitless looks a thread offers its core to others, as the engine
/// does for who polls completions.
const OFFER_AFTER: Duration = Duration::from_micros(20);

/// An offer that took longer than this was taken by somebody who computes: the caller was away for
/// a time slice.
const LONG_OFFER: Duration = Duration::from_micros(500);

/// After such an offer, the next one comes after so long: most of a time slice.
const OFFER_WARILY_AFTER: Duration = Duration::from_millis(2);

thread_local! {
    /// Since when the looks of this thread have found nothing, and after how long of that it offers
    /// its core.
    static LOOKS: Cell<(Option<Instant>, Duration)> = const { Cell::new((None, OFFER_AFTER)) };
}

/// A call that does not wait has looked for something that threads of this library bring, and has
/// `found` it or not. Under no lock: it may let others run.
pub(crate) fn looked(found: bool) {
    // A thread that ends has no memory any more.
    let Ok((since, after)) = LOOKS.try_with(Cell::get) else { return };
    if found {
        let _ = LOOKS.try_with(|cell| cell.set((None, after)));
        return;
    }
    let now = Instant::now();
    let looks = match since {
        Some(since) if now - since >= after => {
            std::thread::yield_now();
            let back = Instant::now();
            let is_long = back - now > LONG_OFFER;
            (Some(back), if is_long { OFFER_WARILY_AFTER } else { OFFER_AFTER })
        }
        since => (since.or(Some(now)), after),
    };
    let _ = LOOKS.try_with(|cell| cell.set(looks));
}

/// A wait, from when it begins until the value is dropped.
#[derive(Debug)]
pub(crate) struct Patience {
    begun: Instant,
    until: Instant,
}

impl Patience {
    pub(crate) fn new(polling_time: Duration) -> Self {
        let begun = Instant::now();
        // A thread that ends has no memory any more.
        let short = SHORT.try_with(Cell::get).unwrap_or(false);
        let time = match polling_time.is_zero() || !short {
            true => polling_time,
            false => polling_time.max(LONGER),
        };
        Self { begun, until: begun + time }
    }

    /// Whether it is not yet time to sleep.
    pub(crate) fn lasts(&self) -> bool {
        Instant::now() < self.until
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        let short = self.begun.elapsed() <= LONGER;
        let _ = SHORT.try_with(|cell| cell.set(short));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_shortly_looks_for_longer_the_next_time() {
        let time = |polling: Duration| {
            let patience = Patience::new(polling);
            patience.until - patience.begun
        };
        let little = Duration::from_nanos(1);
        assert_eq!(time(little), little);
        // That was a short one, unless this thread was stopped in the middle.
        let longer = (0..100).any(|_| time(little) == LONGER);
        assert!(longer);
        assert_eq!(time(Duration::ZERO), Duration::ZERO);
        assert_eq!(time(Duration::from_secs(9)), Duration::from_secs(9));
        let patience = Patience::new(little);
        std::thread::sleep(2 * LONGER);
        assert!(!patience.lasts());
        drop(patience);
        assert_eq!(time(little), little);
    }
}

//! Samples for many that ask: one is taken at a time, and a fresh one serves all.
//!
//! Owns the samples that are kept, at most three, and which of them rates are between. Watched
//! processes are asked at most once in [`FRESH`], however many requests there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::super::sample::{Filter, Sample};

/// How long a sample serves.
const FRESH: Duration = Duration::from_millis(100);

/// The shortest time that rates are of. Shorter ones jump, since processes do not tell all at once.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);

/// The longest time that rates are of: nobody has asked since, and an average says little of now.
const LONGEST_INTERVAL: Duration = Duration::from_secs(120);

/// The samples of a monitor.
#[derive(Debug)]
pub(super) struct Looks {
    filter: Filter,
    last: Mutex<Option<Look>>,
}

/// A sample, and an earlier one that rates are since.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) now: Arc<Sample>,
    pub(super) before: Option<Arc<Sample>>,
    /// How long it took to ask all processes.
    pub(super) took: Duration,
    /// Samples taken until now, this one included.
    pub(super) taken: u64,
    /// The sample that the next rates are since, once it is old enough.
    next_before: Arc<Sample>,
}

impl Looks {
    /// No sample yet.
    pub(super) fn new(filter: Filter) -> Self {
        Self { filter, last: Mutex::new(None) }
    }

    /// Returns a sample that is at most 100 ms old; takes it if there is none, for which others
    /// wait that ask meanwhile.
    ///
    /// # Errors
    /// No sample can be taken; the text says why.
    pub(super) async fn look(&self) -> Result<Look, String> {
        let mut last = self.last.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.now.at().elapsed() < FRESH) {
            return Ok(look.clone());
        }
        let filter = self.filter.clone();
        let take = move || {
            let start = Instant::now();
            Sample::take(&filter).map(|sample| (sample, start.elapsed()))
        };
        let (sample, took) = match spawn_blocking(take).await {
            Ok(taken) => taken.map_err(|failure| failure.to_string())?,
            Err(error) => return Err(format!("cannot take a sample: {error}")),
        };
        let look = Look::after(last.as_ref(), Arc::new(sample), took);
        *last = Some(look.clone());
        Ok(look)
    }
}

impl Look {
    /// A look at a sample that took so long, after the last one.
    pub(super) fn after(last: Option<&Self>, now: Arc<Sample>, took: Duration) -> Self {
        let age = |sample: &Arc<Sample>| now.at().saturating_duration_since(sample.at());
        let (mut before, mut next_before) = match last {
            Some(last) => (last.before.clone(), Arc::clone(&last.next_before)),
            None => (None, Arc::clone(&now)),
        };
        if age(&next_before) >= SHORTEST_INTERVAL {
            before = Some(std::mem::replace(&mut next_before, Arc::clone(&now)));
        }
        before = before.filter(|sample| age(sample) <= LONGEST_INTERVAL);
        Self { now, before, took, taken: last.map_or(0, |last| last.taken) + 1, next_before }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::sample::tests::sample;
    use super::*;

    /// Rates of looks at these seconds, as the seconds that they are since.
    fn since(seconds: &[u64]) -> Vec<Option<u64>> {
        let (mut last, mut found) = (None, Vec::new());
        let start = sample(0, Vec::new()).at();
        for second in seconds {
            let now = Arc::new(sample(*second, Vec::new()));
            let look = Look::after(last.as_ref(), now, Duration::ZERO);
            found.push(look.before.as_ref().map(|before| (before.at() - start).as_secs()));
            last = Some(look);
        }
        found
    }

    #[test]
    fn rates_are_since_the_look_before() {
        assert_eq!(since(&[1, 2, 3, 18]), [None, Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn looks_at_the_same_time_have_the_same_rates() {
        assert_eq!(since(&[1, 2, 2, 2, 3, 3]), [None, Some(1), Some(1), Some(1), Some(2), Some(2)]);
    }

    #[test]
    fn after_a_long_time_without_looks_rates_begin_anew() {
        assert_eq!(since(&[1, 2, 500, 501]), [None, Some(1), None, Some(500)]);
    }

    #[test]
    fn at_most_one_sample_is_taken_within_a_tenth_of_a_second() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let looks = Looks::new(Filter::default());
            let first = looks.look().await.unwrap();
            let second = looks.look().await.unwrap();
            let is_late = first.now.at().elapsed() >= FRESH;
            assert!(is_late || Arc::ptr_eq(&first.now, &second.now));
            std::thread::sleep(FRESH);
            let third = looks.look().await.unwrap();
            assert!(!Arc::ptr_eq(&first.now, &third.now));
            assert_eq!(third.taken, second.taken + 1);
        });
    }
}

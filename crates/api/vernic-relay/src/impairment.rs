//! What the network does to frames, as a user writes it: `loss=1% delay=5ms rate=100m`.

use std::time::Duration;

use vernic_io::fault::share;

/// Longest delay and jitter.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// Most bits per second: those of the fastest netdevs.
const MAX_RATE: u64 = 1_000_000_000_000;
/// Least bits per second: a frame of 1,500 bytes takes 12 s at a thousand.
const MIN_RATE: u64 = 1_000;
/// Most bytes of a queue.
const MAX_QUEUE: u64 = 1_000_000_000;

/// What the network does to frames, in each direction alike.
///
/// ```
/// use vernic_relay::Impairment;
///
/// let bad = Impairment::parse(["loss=1%", "delay=5ms", "rate=100m", "queue=100k"])?;
/// assert_eq!((bad.loss, bad.rate_bits_per_s), (0.01, Some(100_000_000)));
/// assert!(Impairment::parse(["loss=2"]).is_err());
/// # Ok::<(), vernic_relay::ImpairmentError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// The share of frames that are lost, 0 to 1.
    pub loss: f64,
    /// The share of frames that come twice.
    pub dup: f64,
    /// The share of frames of which one bit is flipped.
    pub corrupt: f64,
    /// The share of frames that are held up, so that others overtake them.
    pub reorder: f64,
    /// How long each frame takes.
    pub delay: Duration,
    /// By how much the delay of each frame is longer or shorter, at most.
    pub jitter: Duration,
    /// What the line carries; `None`: all at once.
    pub rate_bits_per_s: Option<u64>,
    /// Bytes that may wait for the line.
    pub queue_bytes: u64,
    /// From so many waiting bytes on, frames that may be marked are (ECN, RFC 3168).
    pub ecn_bytes: Option<u64>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Impairment {
    /// A network without faults, whose queue takes a megabyte once it has a rate.
    fn default() -> Self {
        Self {
            loss: 0.0,
            dup: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate_bits_per_s: None,
            queue_bytes: 1_000_000,
            ecn_bytes: None,
            seed: 0,
        }
    }
}

/// A text that is no [`Impairment`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairmentError {
    /// A part that is not `name=value`.
    #[error("{0:?} is not of the form name=value, such as loss=1%")]
    NoValue(String),
    /// A name that does not exist.
    #[error(
        "there is no {0:?}; known are loss, dup, corrupt, reorder, delay, jitter, rate, queue, ecn, \
         seed"
    )]
    UnknownName(String),
    /// A name that occurs twice.
    #[error("{0} is given twice")]
    Twice(String),
    /// A value that is none of its name.
    #[error("{name}={value} is not {wanted}")]
    BadValue {
        /// The name.
        name: String,
        /// The text given.
        value: String,
        /// What the value has to be.
        wanted: &'static str,
    },
    /// A value without another that it needs.
    #[error("{0}")]
    Alone(&'static str),
    /// A threshold of marks that no queue ever has.
    #[error(
        "ecn={ecn_bytes} is not below queue={queue_bytes}{}, both in bytes: a full queue drops what \
         comes before anything is marked. Lower ecn or raise queue",
        if *is_default { ", which it is without a word" } else { "" }
    )]
    EcnAboveQueue {
        /// Bytes from which on frames are marked.
        ecn_bytes: u64,
        /// Bytes that may wait.
        queue_bytes: u64,
        /// Nobody has said how many may wait.
        is_default: bool,
    },
    /// A frame would come before it was sent.
    #[error(
        "jitter={jitter:?} is longer than delay={delay:?}, and no frame comes before it was sent: \
         lower jitter or raise delay"
    )]
    JitterAboveDelay {
        /// By how much a delay may be shorter.
        jitter: Duration,
        /// The delay.
        delay: Duration,
    },
}

impl Impairment {
    /// Reads `name=value` words.
    ///
    /// # Errors
    /// [`ImpairmentError`].
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, ImpairmentError> {
        let mut read = Self::default();
        let mut seen = Vec::new();
        for word in words {
            let (name, value) =
                word.split_once('=').ok_or_else(|| ImpairmentError::NoValue(word.to_owned()))?;
            if seen.contains(&name) {
                return Err(ImpairmentError::Twice(name.to_owned()));
            }
            seen.push(name);
            read.set(name, value)?;
        }
        read.check(seen.contains(&"queue"))?;
        Ok(read)
    }

    /// Checks that the values go together.
    fn check(&self, has_queue: bool) -> Result<(), ImpairmentError> {
        let &Self { ecn_bytes, rate_bits_per_s, queue_bytes, jitter, delay, .. } = self;
        if ecn_bytes.is_some() && rate_bits_per_s.is_none() {
            let text = "ecn marks frames that wait for the line: give the line a rate (rate=100m)";
            return Err(ImpairmentError::Alone(text));
        }
        if has_queue && rate_bits_per_s.is_none() {
            let text = "queue is for frames that wait for the line: give it a rate (rate=100m)";
            return Err(ImpairmentError::Alone(text));
        }
        if let Some(ecn_bytes) = ecn_bytes.filter(|ecn| *ecn >= queue_bytes) {
            let is_default = !has_queue;
            return Err(ImpairmentError::EcnAboveQueue { ecn_bytes, queue_bytes, is_default });
        }
        if jitter > delay {
            return Err(ImpairmentError::JitterAboveDelay { jitter, delay });
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ImpairmentError> {
        let bad = |wanted| ImpairmentError::BadValue {
            name: name.to_owned(),
            value: value.to_owned(),
            wanted,
        };
        let share =
            || share(value).ok_or_else(|| bad("a share of the frames: 0 to 1, or 0% to 100%"));
        let time = || time(value).ok_or_else(|| bad("a time with us, ms or s, at most 10s"));
        let bytes =
            || bytes(value).ok_or_else(|| bad("a number of bytes, at most 1g: 1k is 1000 bytes"));
        match name {
            "loss" => self.loss = share()?,
            "dup" => self.dup = share()?,
            "corrupt" => self.corrupt = share()?,
            "reorder" => self.reorder = share()?,
            "delay" => self.delay = time()?,
            "jitter" => self.jitter = time()?,
            "rate" => {
                let rate = rate(value);
                let wanted = "bits per second with k, m or g behind, from 1k to 1000g: 1k is 1000";
                self.rate_bits_per_s = Some(rate.ok_or_else(|| bad(wanted))?);
            }
            "queue" => self.queue_bytes = bytes()?,
            "ecn" => self.ecn_bytes = Some(bytes()?),
            "seed" => self.seed = value.parse().map_err(|_| bad("a whole number"))?,
            _ => return Err(ImpairmentError::UnknownName(name.to_owned())),
        }
        Ok(())
    }
}

/// Reads a number from 0 on, perhaps with a fraction.
fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|number: &f64| is_plain && number.is_finite())
}

fn time(text: &str) -> Option<Duration> {
    // The longer names first: "ms" ends with "s" too.
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (digits, unit) = found?;
    let seconds = number(digits)? * unit;
    (seconds <= MAX_DELAY.as_secs_f64()).then(|| Duration::from_secs_f64(seconds))
}

/// Reads a whole number, perhaps with a letter behind that stands for thousands.
fn scaled(text: &str) -> Option<u64> {
    let units = [('k', 1e3), ('m', 1e6), ('g', 1e9)];
    let unit = units.iter().find(|(letter, _)| text.ends_with(*letter));
    let (digits, unit) = match unit {
        Some((_, unit)) => (&text[..text.len() - 1], *unit),
        None => (text, 1.0),
    };
    let scaled = number(digits)? * unit;
    // Beyond the range, the cast stops at the largest value, which every caller refuses.
    (scaled.fract() == 0.0).then_some(scaled as u64)
}

fn rate(text: &str) -> Option<u64> {
    scaled(text).filter(|rate| (MIN_RATE..=MAX_RATE).contains(rate))
}

fn bytes(text: &str) -> Option<u64> {
    scaled(text).filter(|bytes| *bytes <= MAX_QUEUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_are_read() {
        let words = "loss=0.1% dup=0.5 corrupt=1e-6 reorder=100% delay=20ms jitter=5ms rate=2.5g \
                     queue=100k ecn=50k seed=7";
        let read = Impairment::parse(words.split(' ')).unwrap();
        let expected = Impairment {
            loss: 0.001,
            dup: 0.5,
            corrupt: 1e-6,
            reorder: 1.0,
            delay: Duration::from_millis(20),
            jitter: Duration::from_millis(5),
            rate_bits_per_s: Some(2_500_000_000),
            queue_bytes: 100_000,
            ecn_bytes: Some(50_000),
            seed: 7,
        };
        assert_eq!(read, expected);
        assert_eq!(Impairment::parse([]), Ok(Impairment::default()));
        let times = [("1500us", 1_500_000), ("0.25s", 250_000_000), ("10s", 10_000_000_000)];
        for (text, nanos) in times {
            assert_eq!(time(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (word, said) in [
            ("loss", "name=value"),
            ("los=1", "known are loss"),
            ("loss=2", "loss=2 is not a share"),
            ("loss=-1%", "share"),
            ("dup=nan", "share"),
            ("corrupt=", "share"),
            ("delay=5", "delay=5 is not a time with us, ms or s"),
            ("delay=11s", "at most 10s"),
            ("delay=-1ms", "a time"),
            ("jitter=1ms", "jitter=1ms is longer than delay=0ns"),
            ("rate=10", "from 1k to 1000g"),
            ("rate=1001g", "bits per second"),
            ("rate=infg", "bits per second"),
            ("queue=1k", "give it a rate"),
            ("ecn=1k", "give the line a rate"),
            ("seed=-1", "a whole number"),
        ] {
            let error = Impairment::parse([word]).unwrap_err().to_string();
            assert!(error.contains(said), "{word}: {error}");
        }
        let twice = Impairment::parse(["loss=1%", "loss=1%"]).unwrap_err();
        assert_eq!(twice, ImpairmentError::Twice("loss".to_owned()));
        let large = Impairment::parse(["rate=1m", "queue=2000m"]).unwrap_err();
        assert!(large.to_string().contains("at most 1g: 1k is 1000 bytes"), "{large}");
        let most = Impairment::parse(["rate=1m", "queue=1g"]).unwrap();
        assert_eq!(most.queue_bytes, 1_000_000_000, "letters are thousands");
    }

    #[test]
    fn marks_that_begin_where_the_queue_is_full_are_refused_with_both_values() {
        let refused = |words: &str| Impairment::parse(words.split(' ')).unwrap_err().to_string();
        let error = refused("rate=1m queue=100k ecn=200k");
        assert!(
            error.starts_with("ecn=200000 is not below queue=100000, both in bytes"),
            "{error}"
        );
        assert!(error.ends_with("Lower ecn or raise queue"), "{error}");
        let error = refused("rate=1m ecn=1m");
        assert!(error.contains("queue=1000000, which it is without a word,"), "{error}");
        Impairment::parse(["rate=1m", "queue=100k", "ecn=99k"]).unwrap();
    }
}

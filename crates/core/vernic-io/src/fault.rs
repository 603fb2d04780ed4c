//! A middleware that damages traffic on purpose: loss, duplication, reordering, delay and
//! corruption, the same way each time for the same seed.
//!
//! For tests of code that is built on a link, without root (`tc netem` needs root), and also in
//! production. It damages what is *sent*: for faults in both directions, both ends run it.
//!
//! ```
//! use vernic_io::fault::FaultConfig;
//!
//! let config: FaultConfig = "loss=0.01,dup=0.001,reorder=0.01,delay_us=50,seed=7".parse()?;
//! assert_eq!((config.loss, config.delay_us, config.seed), (0.01, 50, 7));
//! let error = "loss=2".parse::<FaultConfig>().unwrap_err();
//! assert!(error.to_string().ends_with("loss=2 is not a probability: 0 to 1, or 0% to 100%"));
//! # Ok::<(), vernic_io::fault::FaultConfigError>(())
//! ```
//!
//! The fate of each packet is drawn once, in the order of sending, with always the same number of
//! random numbers. So it depends on the seed and the sequence of packets alone, not on time or
//! batch sizes. Surviving packets are stamped anew, since their index in a run, and so their
//! Identification, may have changed. Corrupted packets are damaged after that, so that their ICRC
//! is wrong.
//!
//! Limits: [`MAX_HELD`] packets held back at a time; beyond it they pass at once.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use crate::batch::{MAX_PACKET_BYTES, RxBatch, TX_ARENA_BYTES, TxBatch};
use crate::link::{Link, LinkCounters, Nanos, SendReport, forward_to_inner};
use crate::path::TxPath;

/// Most packets held back (delayed or reordered) at a time.
pub const MAX_HELD: usize = 4096;

/// The most packets that overtake a packet which is to be reordered.
const MAX_OVERTAKEN: u64 = 4;

/// The time after which a packet that is to be overtaken, and is not, leaves: one millisecond.
const REORDER_NANOS: u64 = 1_000_000;

/// The time after which packets that the link below had no space for are tried again.
const RETRY_NANOS: u64 = 50_000;

/// The faults to inject, and how often. Probabilities are per packet, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is sent twice.
    pub dup: f64,
    /// Probability that a packet is overtaken by up to four later ones.
    pub reorder: f64,
    /// Probability that one bit of a packet flips (in any field that the ICRC covers).
    pub corrupt: f64,
    /// Every packet is held back for this long, in microseconds; at most 10 seconds.
    pub delay_us: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Longest delay in microseconds.
const MAX_DELAY_US: u64 = 10_000_000;

/// An error in the text of a [`FaultConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultConfigError {
    /// A part that is not `name=value`.
    #[error("fault injection: {0:?} is not of the form name=value")]
    NoValue(String),
    /// A name that does not exist.
    #[error(
        "fault injection: there is no {0:?}; known are loss, dup, reorder, corrupt, delay_us, seed"
    )]
    UnknownName(String),
    /// A probability out of range, or no number.
    #[error("fault injection: {name}={value} is not a probability: 0 to 1, or 0% to 100%")]
    NotAProbability {
        /// The name of the probability.
        name: String,
        /// The text given.
        value: String,
    },
    /// A whole number out of range, or no whole number.
    #[error("fault injection: {name}={value} is not a whole number from 0 to {limit}")]
    NotANumber {
        /// The name of the setting.
        name: String,
        /// The text given.
        value: String,
        /// The largest allowed.
        limit: u64,
    },
    /// A name that occurs twice.
    #[error("fault injection: {0} is given twice")]
    Twice(String),
}

impl FromStr for FaultConfig {
    type Err = FaultConfigError;

    /// Reads `name=value` pairs, separated by commas; probabilities as [`share`] reads them. The
    /// empty text is no faults at all.
    fn from_str(text: &str) -> Result<Self, FaultConfigError> {
        let mut config = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| FaultConfigError::NoValue(part.to_owned()))?;
            if seen.contains(&name) {
                return Err(FaultConfigError::Twice(name.to_owned()));
            }
            seen.push(name);
            match name {
                "loss" => config.loss = probability(name, value)?,
                "dup" => config.dup = probability(name, value)?,
                "reorder" => config.reorder = probability(name, value)?,
                "corrupt" => config.corrupt = probability(name, value)?,
                "delay_us" => config.delay_us = number(name, value, MAX_DELAY_US)?,
                "seed" => config.seed = number(name, value, u64::MAX)?,
                _ => return Err(FaultConfigError::UnknownName(name.to_owned())),
            }
        }
        Ok(config)
    }
}

/// Reads a part of a whole: `0.05`, or the same in percent, `5%`. `None` for any other text, and
/// for what is not from 0 to 1.
pub fn share(text: &str) -> Option<f64> {
    let number = |digits: &str| digits.trim().parse::<f64>().ok();
    let share = match text.strip_suffix('%') {
        Some(percent) => number(percent)? / 100.0,
        None => number(text)?,
    };
    (0.0..=1.0).contains(&share).then_some(share)
}

fn probability(name: &str, value: &str) -> Result<f64, FaultConfigError> {
    share(value).ok_or_else(|| FaultConfigError::NotAProbability {
        name: name.to_owned(),
        value: value.to_owned(),
    })
}

fn number(name: &str, value: &str, limit: u64) -> Result<u64, FaultConfigError> {
    let parsed = value.parse().ok().filter(|&n| n <= limit);
    parsed.ok_or_else(|| FaultConfigError::NotANumber {
        name: name.to_owned(),
        value: value.to_owned(),
        limit,
    })
}

impl fmt::Display for FaultConfig {
    /// The text that [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loss={},dup={},reorder={},corrupt={},delay_us={},seed={}",
            self.loss, self.dup, self.reorder, self.corrupt, self.delay_us, self.seed
        )
    }
}

/// SplitMix64: small, seedable, good enough to roll dice.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn hits(&mut self, probability: f64) -> bool {
        // 53 bits: as many as an f64 holds exactly.
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// The faults that happen to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    lost: bool,
    doubled: bool,
    /// The number of packets that overtake the packet.
    overtaken: u64,
    /// A number that chooses the bit to flip.
    flipped: Option<u64>,
}

impl Fate {
    /// Draws the fate of the next packet: always the same number of random numbers.
    fn draw(config: &FaultConfig, dice: &mut Dice) -> Self {
        let lost = dice.hits(config.loss);
        let doubled = dice.hits(config.dup);
        let reordered = dice.hits(config.reorder);
        let corrupted = dice.hits(config.corrupt);
        let choice = dice.next();
        Self {
            lost,
            doubled,
            overtaken: if reordered { 1 + choice % MAX_OVERTAKEN } else { 0 },
            flipped: corrupted.then_some(choice >> 8),
        }
    }
}

#[derive(Debug)]
struct Held {
    path: TxPath,
    bytes: Vec<u8>,
    /// The time at which the packet leaves at the latest.
    due: Nanos,
    /// The number of packets after which the packet leaves, if that comes first.
    overtaken: Option<u64>,
    flipped: Option<u64>,
}

/// A link that damages what is sent through it. See the [module](self).
pub struct FaultLink {
    inner: Box<dyn Link>,
    config: FaultConfig,
    dice: Dice,
    out: TxBatch,
    /// Packets of `out` to damage once it is stamped: index, and which bit.
    damage: Vec<(usize, u64)>,
    /// The time at which to try again what stayed in `out`. The caller's batch may be empty by
    /// then, so only [`deadline`](Link::deadline) makes the caller send again.
    retry: Option<Nanos>,
    held: VecDeque<Held>,
    /// The number of packets in `held` that wait for others to overtake them.
    overtaking: usize,
    drops: u64,
    changes: u64,
}

impl fmt::Debug for FaultLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultLink").field("config", &self.config).finish_non_exhaustive()
    }
}

impl FaultLink {
    /// Makes a link that damages what is sent through `inner`.
    pub fn new(inner: Box<dyn Link>, config: FaultConfig) -> Self {
        Self {
            out: TxBatch::new(&inner.limits()),
            inner,
            config,
            dice: Dice(config.seed),
            damage: Vec::new(),
            retry: None,
            held: VecDeque::new(),
            overtaking: 0,
            drops: 0,
            changes: 0,
        }
    }

    /// Sends the packets in `out`; returns false if some of them stay.
    fn flush(&mut self, now: Nanos, report: &mut SendReport) -> bool {
        self.inner.stamp(&mut self.out);
        for (index, choice) in self.damage.drain(..) {
            if let Some(bytes) = self.out.packet_mut(index) {
                flip(bytes, choice);
            }
        }
        let part = self.inner.send(now, &mut self.out);
        report.packets += part.packets;
        report.bytes += part.bytes;
        report.failed += part.failed;
        report.blocked |= part.blocked;
        report.failure = part.failure.or(report.failure.take());
        self.retry = (!self.out.is_empty()).then(|| now.plus(RETRY_NANOS));
        self.retry.is_none()
    }

    /// Puts a packet into `out`; if there is no room, it waits for the next flush.
    fn put(&mut self, path: &TxPath, bytes: &[u8], flipped: Option<u64>) {
        if !self.out.push_copy(path, bytes) {
            let bytes = bytes.to_vec();
            let due = Nanos::default();
            self.held.push_back(Held { path: *path, bytes, due, overtaken: None, flipped });
            return;
        }
        if let Some(choice) = flipped {
            self.damage.push((self.out.packets() - 1, choice));
            self.changes += 1;
        }
    }

    /// Whether `out` has room for `bytes` more bytes of any packets.
    fn has_room(&self, bytes: usize) -> bool {
        self.out.bytes() + bytes + MAX_PACKET_BYTES <= TX_ARENA_BYTES && !self.out.is_full()
    }

    /// Moves held packets that are due into `out`. Stops when `out` is full.
    fn release(&mut self, now: Nanos) {
        let mut at = 0;
        while at < self.held.len() && self.has_room(MAX_PACKET_BYTES) {
            let held = &self.held[at];
            if held.due <= now || held.overtaken == Some(0) {
                if let Some(held) = self.held.remove(at) {
                    self.overtaking -= usize::from(held.overtaken.is_some());
                    self.put(&held.path, &held.bytes, held.flipped);
                }
            } else {
                at += 1;
            }
        }
    }

    /// Draws the fate of one packet and carries it out.
    fn pass(&mut self, path: &TxPath, bytes: &[u8], now: Nanos) {
        let fate = Fate::draw(&self.config, &mut self.dice);
        if fate.lost {
            self.drops += 1;
        } else {
            self.changes += u64::from(fate.doubled) + u64::from(fate.overtaken != 0);
            for _ in 0..1 + usize::from(fate.doubled) {
                self.hold_or_put(path, bytes, fate, now);
            }
        }
        let waiting = if self.overtaking == 0 { 0 } else { self.held.len() };
        for held in self.held.iter_mut().take(waiting) {
            if let Some(left) = &mut held.overtaken {
                *left = left.saturating_sub(1);
            }
        }
    }

    fn hold_or_put(&mut self, path: &TxPath, bytes: &[u8], fate: Fate, now: Nanos) {
        let delay = self.config.delay_us * 1000;
        if (delay == 0 && fate.overtaken == 0) || self.held.len() >= MAX_HELD {
            self.put(path, bytes, fate.flipped);
            return;
        }
        // The packet itself counts down once, too.
        let overtaken = (fate.overtaken != 0 && delay == 0).then_some(fate.overtaken + 1);
        self.overtaking += usize::from(overtaken.is_some());
        let reorder = if fate.overtaken == 0 { 0 } else { REORDER_NANOS };
        self.held.push_back(Held {
            path: *path,
            bytes: bytes.to_vec(),
            due: now.plus(delay + reorder),
            overtaken,
            flipped: fate.flipped,
        });
    }
}

/// Flips one bit of a packet, in any byte but that of FECN and BECN, which the ICRC leaves out.
fn flip(bytes: &mut [u8], choice: u64) {
    const UNCOVERED: usize = 4;
    let mut at = (choice / 8) as usize % bytes.len();
    if at == UNCOVERED {
        at = 0;
    }
    bytes[at] ^= 1 << (choice % 8);
}

impl Link for FaultLink {
    forward_to_inner!();

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn send(&mut self, now: Nanos, batch: &mut TxBatch) -> SendReport {
        let mut report = SendReport::default();
        if !self.flush(now, &mut report) {
            return report;
        }
        loop {
            self.release(now);
            // Each packet may be doubled.
            while let Some(run) = batch.first_run() {
                if !self.has_room(2 * run.bytes.len()) {
                    break;
                }
                for bytes in run.packets() {
                    self.pass(run.path, bytes, now);
                    if self.overtaking != 0 {
                        self.release(now);
                    }
                }
                batch.retire(1);
            }
            if self.out.is_empty() {
                break;
            }
            if !self.flush(now, &mut report) {
                break;
            }
        }
        report
    }

    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize {
        // Packets that wait or are due must leave even if the caller has nothing to send.
        let mut report = SendReport::default();
        let free = self.out.is_empty() || self.flush(now, &mut report);
        if free && self.held.iter().any(|held| held.due <= now) {
            self.release(now);
            self.flush(now, &mut report);
        }
        self.inner.recv(now, batch)
    }

    fn deadline(&self) -> Option<Nanos> {
        // While some packets wait for space below, no other can leave.
        let ours = self.retry.or_else(|| self.held.iter().map(|held| held.due).min());
        [ours, self.inner.deadline()].into_iter().flatten().min()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        counters.fault_drops += self.drops;
        counters.fault_changes += self.changes;
        counters
    }
}

#[cfg(test)]
mod tests;

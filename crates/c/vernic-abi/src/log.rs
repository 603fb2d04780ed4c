//! The log of the C libraries: lines on standard error, as `VERNIC_LOG` asks for them.
//!
//! `VERNIC_LOG` is `off`, `error`, `brief`, `warn`, `info`, `debug` or `trace`. Without it errors
//! are printed: that a device cannot be opened, and why, since programs say no more than that it
//! cannot. `brief`, which `vernic run` sets, has warnings too: the first of each kind, without
//! those that programs get which work. Set up by the first call that lists, opens or imports a
//! device, never while the library is loaded: it is loaded into every child of a program too.

use std::ffi::OsStr;
use std::fmt::{Debug, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use vernic_engine::{Gate, has_foreign_rights};

use crate::failure::USUAL;

/// Environment variable that asks for the log.
const VARIABLE: &str = "VERNIC_LOG";

/// Sets the log up, the first time it is called.
pub(crate) fn init() {
    /// Behind the gate, so that no child inherits it half done.
    static ONCE: Once = Once::new();
    if ONCE.is_completed() {
        return;
    }
    let mut unknown = None;
    let gate = Gate::enter();
    ONCE.call_once(|| {
        // What the caller of a program with more rights says is not heard.
        let wanted = std::env::var_os(VARIABLE).filter(|_| !has_foreign_rights());
        let level = match wanted.as_deref().map(OsStr::to_str) {
            None => Some(Level::ERROR),
            Some(Some("off")) => return,
            Some(Some(BRIEF)) => Some(Level::WARN),
            Some(text) => text.and_then(|text| text.parse::<Level>().ok()),
        };
        let is_brief = wanted.as_deref() == Some(OsStr::new(BRIEF));
        let lines = Lines {
            level: level.unwrap_or(Level::WARN),
            spans: AtomicU64::new(1),
            kinds: is_brief.then(Kinds::default),
        };
        // The library has a `tracing` of its own, so nobody else can have been here.
        let _ = tracing::subscriber::set_global_default(lines);
        unknown = wanted.filter(|_| level.is_none());
    });
    drop(gate);
    if let Some(wanted) = unknown {
        tracing::warn!(
            "{VARIABLE}={wanted:?}: allowed are off, error, brief, warn, info, debug, trace"
        );
    }
}

/// A subscriber that prints an event a line.
struct Lines {
    level: Level,
    spans: AtomicU64,
    /// What was printed so far, where only the first of each kind is.
    kinds: Option<Kinds>,
}

/// The level with the first warnings of each kind.
const BRIEF: &str = "brief";

/// So many of a kind are printed.
const MOST_OF_A_KIND: u32 = 3;

/// So many kinds are told apart; those beyond count as one.
const MOST_KINDS: usize = 128;

/// How many events of each kind were printed, by [`kind_of`]. No lock, which a thread might hold
/// while another forks.
struct Kinds([(AtomicUsize, AtomicU32); MOST_KINDS]);

impl Default for Kinds {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

/// What two lines have in common that say the same of different objects: their words without a
/// digit, as one number that is not 0 (FNV-1a).
fn kind_of(line: &str) -> usize {
    let words = line.split_whitespace().filter(|word| !word.bytes().any(|b| b.is_ascii_digit()));
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    words.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325, step) as usize | 1
}

impl Kinds {
    /// Counts an event; how many of its kind there were before.
    fn count(&self, kind: usize) -> u32 {
        let is_its_own = |place: &&(AtomicUsize, AtomicU32)| {
            let taken = place.0.compare_exchange(0, kind, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok() || taken == Err(kind)
        };
        let place = self.0.iter().find(is_its_own).unwrap_or(&self.0[MOST_KINDS - 1]);
        let before = place.1.fetch_add(1, Ordering::Relaxed);
        // It does not come around to 0.
        place.1.fetch_min(MOST_OF_A_KIND + 1, Ordering::Relaxed);
        before
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_left_out = self.kinds.is_some() && metadata.target() == USUAL;
        *metadata.level() <= self.level && !is_left_out
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut words = Line(format!("vernic[{}] {level}:", std::process::id()), String::new());
        event.record(&mut words);
        let Line(mut line, more) = words;
        match self.kinds.as_ref().map(|kinds| kinds.count(kind_of(&line))) {
            Some(before) if before >= MOST_OF_A_KIND => return,
            Some(before) if before + 1 == MOST_OF_A_KIND => {
                line.push_str(" (no more of this kind; VERNIC_LOG=warn shows all, off none)");
            }
            _ => {}
        }
        line.push_str(&more);
        line.push('\n');
        // One write, so that lines of several processes do not mix; without the lock of Rust's
        // standard error, which a thread may hold while another forks. Where nobody reads standard
        // error there is nobody to tell about it either. By its number, since `write` is a place
        // where a thread may be cancelled, which the calls that post and poll are not.
        let (bytes, len) = (line.as_ptr(), line.len());
        // SAFETY: pointer and length are those of the line, which is only read.
        let _ = unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, bytes, len) };
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The words of an event, and behind them what they point to: [`vernic_engine::Topic`].
struct Line(String, String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            "more" => write!(self.1, " (more: {value:?})"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_in_numbers_alone_are_of_one_kind() {
        let of =
            |qpn: &str, why| kind_of(&format!("vernic[7] warn: {qpn} failed: {why} qpn={qpn}"));
        assert_eq!(of("0x11", "no answer"), of("0xab2", "no answer"));
        assert_ne!(of("0x11", "no answer"), of("0x11", "no receive"));
    }

    #[test]
    fn kinds_are_counted_apart_and_those_beyond_the_table_together() {
        let kinds = Kinds::default();
        assert_eq!([7, 7, 9, 7].map(|kind| kinds.count(kind)), [0, 1, 0, 2]);
        (0..100).for_each(|_| assert!(kinds.count(7) >= 3));
        for kind in 10..10 + MOST_KINDS {
            let _ = kinds.count(kind);
        }
        assert_ne!(kinds.count(100_000), 0, "the table is full");
    }
}

//! The log of the C libraries: lines on standard error, as `VERNIC_LOG` asks for them.
//!
//! `VERNIC_LOG` is `off`, `error`, `warn`, `info`, `debug` or `trace`. Without it errors are
//! printed: that a device cannot be opened, and why, since programs say no more than that it
//! cannot. Set up by the first call that lists, opens or imports a device, never while the library
//! is loaded: it is loaded into every child of a program too.

use std::ffi::OsStr;
use std::fmt::{Debug, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use vernic_engine::{Gate, has_foreign_rights};

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
            Some(text) => text.and_then(|text| text.parse::<Level>().ok()),
        };
        let lines = Lines { level: level.unwrap_or(Level::WARN), spans: AtomicU64::new(1) };
        // The library has a `tracing` of its own, so nobody else can have been here.
        let _ = tracing::subscriber::set_global_default(lines);
        unknown = wanted.filter(|_| level.is_none());
    });
    drop(gate);
    if let Some(wanted) = unknown {
        tracing::warn!("{VARIABLE}={wanted:?}: allowed are off, error, warn, info, debug, trace");
    }
}

/// A subscriber that prints an event a line.
struct Lines {
    level: Level,
    spans: AtomicU64,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut line = Line(format!("vernic[{}] {level}:", std::process::id()));
        event.record(&mut line);
        line.0.push('\n');
        // One write, so that lines of several processes do not mix; without the lock of Rust's
        // standard error, which a thread may hold while another forks. Where nobody reads standard
        // error there is nobody to tell about it either. By its number, since `write` is a place
        // where a thread may be cancelled, which the calls that post and poll are not.
        let (bytes, len) = (line.0.as_ptr(), line.0.len());
        // SAFETY: pointer and length are those of the line, which is only read.
        let _ = unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, bytes, len) };
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

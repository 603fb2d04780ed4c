//! Events of the library on standard error: warnings, and every packet with the setting `trace`.
//!
//! The library reports through `tracing` and leaves it to the program who listens; without a
//! listener `VERNIC_TRACE` would be accepted and show nothing. One line per event, nothing else:
//! the library opens no spans.

use crate::failure::complain;
use std::fmt::{self, Write as _};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Prints events up to a level.
struct Logger {
    level: Level,
}

/// Listens from here on, in every thread.
pub(crate) fn install() {
    // Settings that are wrong are reported by the command, which reads them next.
    let trace = vernic::Config::load().is_ok_and(|config| config.trace);
    let level = if trace { Level::TRACE } else { Level::WARN };
    // Fails if there is a listener already: nobody else installs one.
    let _ = tracing::subscriber::set_global_default(Logger { level });
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are not enabled; any number but 0 will do.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        complain(format_args!("{level}: {}{}{}", line.message, line.fields, line.more));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event in words: its message, then its fields as ` name=value`, then the topic of the page of
/// errors that it points to.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
    more: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "more" => write!(self.more, " (more: {value:?})"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

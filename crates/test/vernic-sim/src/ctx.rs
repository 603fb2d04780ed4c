//! What every part of a run may use: the virtual clock, the counters, the first violation, the
//! trace.
//!
//! Owns no protocol state. The first violation wins; the loop stops at it.

use std::fmt::Arguments;

use vernic_proto::Time;

use crate::cover::{Count, Cover};
use crate::plan::Mutation;

/// Shared by the parts of a run.
#[derive(Debug)]
pub(crate) struct Ctx {
    pub(crate) now: Time,
    pub(crate) cover: Cover,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Trace,
    /// Time of the newest line of the trace.
    pub(crate) said_at: Time,
    /// The deliberate fault of a mutation check, once, after `fuse` chances.
    mutation: Mutation,
    fuse: u32,
    pub(crate) mutated: bool,
}

/// Where the trace goes.
#[derive(Debug)]
pub(crate) enum Trace {
    /// Nowhere: the fast case.
    Off,
    /// To memory, for scenario tests and for `--trace`.
    Lines(Vec<String>),
}

impl Ctx {
    pub(crate) fn new(mutation: Mutation, fuse: u32, trace: bool) -> Self {
        Self {
            now: Time(0),
            cover: Cover::default(),
            violation: None,
            trace: if trace { Trace::Lines(Vec::new()) } else { Trace::Off },
            said_at: Time(0),
            mutation,
            fuse,
            mutated: false,
        }
    }

    /// Records a violation of a property.
    pub(crate) fn fail(&mut self, what: Arguments<'_>) {
        if self.violation.is_none() {
            self.violation = Some(format!("at {:?}: {what}", self.now));
            self.say(format_args!("VIOLATION {what}"));
        }
    }

    pub(crate) fn hit(&mut self, count: Count) {
        self.cover.hit(count);
    }

    pub(crate) fn is_tracing(&self) -> bool {
        matches!(self.trace, Trace::Lines(_))
    }

    pub(crate) fn say(&mut self, line: Arguments<'_>) {
        let now = self.now;
        if let Trace::Lines(lines) = &mut self.trace {
            lines.push(format!("{:>12} {line}", format!("{:?}", now)));
            self.said_at = now;
        }
    }

    /// Whether the deliberate fault `which` strikes here: once in a run.
    pub(crate) fn mutates(&mut self, which: Mutation) -> bool {
        if self.mutation != which || self.mutated {
            return false;
        }
        if self.fuse > 0 {
            self.fuse -= 1;
            return false;
        }
        self.mutated = true;
        self.say(format_args!("MUTATION {which:?}"));
        true
    }
}

/// Records a violation: `fail!(ctx, "what {}", values)`.
macro_rules! fail {
    ($ctx:expr, $($arg:tt)*) => {
        $ctx.fail(format_args!($($arg)*))
    };
}
pub(crate) use fail;

//! All measurements that are kept: what the pages are written from.

use super::schema::Report;
use super::{growth, guest, one_host, readings};
use crate::Result;

/// The name of a whole run's readings.
const NAME: &str = "bench";

/// The last measurement of each command.
pub(super) struct Kept {
    pub(super) whole: Report,
    pub(super) one_host: one_host::Report,
    pub(super) growth: growth::Report,
    pub(super) guest: guest::Report,
}

impl Kept {
    /// Reads all of them.
    pub(super) fn read() -> Result<Self> {
        Ok(Self {
            whole: Report::parse(&readings::kept(NAME)?)?,
            one_host: one_host::Report::kept()?,
            growth: growth::Report::kept()?,
            guest: guest::Report::kept()?,
        })
    }
}

/// Checks the JSON of a whole run, and keeps it.
pub(super) fn keep_whole(json: &str) -> Result {
    Report::parse(json)?;
    readings::keep(NAME, json)
}

//! Responses of READs and atomics that come as they were asked for, one behind the other: each is
//! placed as it comes, and all of them count as answered at once, when their run ends.
//!
//! A response that is not the next one, or with which anything is wrong, ends the run, and is
//! handled as `responses.rs` says.

use vernic_wire::Packet;
use vernic_wire::opcode::Kind;

use super::responses::expected_data;
use super::{Completer, Parts, take_credits};
use crate::cx::Cx;
use crate::host::Host;

/// Responses that were placed and do not count as answered yet.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// One past the newest of them; 0 without any.
    end: u64,
    /// Requests, from the oldest on, of which all responses are before that.
    requests: u32,
}

impl Completer {
    /// Places the data of a response that is the next one while nothing is missing. `None`, and
    /// nothing has changed, of any other packet.
    #[inline]
    pub(crate) fn place_next(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &Cx<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Option<()> {
        let Run { end, requests } = self.run;
        let seq = if end == 0 { parts.sq.una() } else { end };
        let is_response = matches!(packet.info().kind, Kind::ReadResponse | Kind::AtomicAck);
        let is_next = packet.psn() == parts.sq.psn(seq) && seq < parts.sq.next();
        let is_gapless = !self.is_open && self.kept.is_empty() && self.told <= parts.sq.una();
        if !is_response || !is_next || !is_gapless {
            return None;
        }
        let (index, entry) = parts.sq.started(requests)?;
        if seq < entry.first || seq >= entry.end() {
            return None;
        }
        let (offset, data) = expected_data(parts, cx, seq, entry, packet).ok()?;
        let is_last = seq + 1 == entry.end();
        if !data.is_empty() {
            host.scatter_response(parts.sq.slot(index), offset, data.as_slice()).ok()?;
        }
        if let Some(aeth) = packet.aeth() {
            take_credits(parts.req, aeth);
        }
        parts.req.reads.answered(seq + 1);
        self.heard = true;
        self.run = Run { end: seq + 1, requests: requests + u32::from(is_last) };
        Some(())
    }

    /// Counts what was placed as answered; true if there was anything.
    #[inline]
    pub(crate) fn end_run(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>) -> bool {
        let Some(end) = self.take_run() else { return false };
        self.progress(parts, cx, end);
        true
    }

    /// Takes the end of what was placed, if there is anything.
    #[inline]
    pub(crate) fn take_run(&mut self) -> Option<u64> {
        let Run { end, .. } = std::mem::take(&mut self.run);
        (end != 0).then_some(end)
    }

    /// Whether anything was placed that does not count as answered yet.
    #[inline]
    pub(crate) fn has_run(&self) -> bool {
        self.run.end != 0
    }
}

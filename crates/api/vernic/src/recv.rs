//! Batches of receives, for queue pairs and shared receive queues.

use std::ops::Range;

use vernic_engine::Sge;
use vernic_engine::{self as engine, RecvWr};

use crate::WrId;
use crate::error::PostRecvError;
use crate::mr::Scatter;

/// Where receives go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecvTarget<'q> {
    Qp(&'q engine::Qp),
    Srq(&'q engine::Srq),
}

/// Receives that are collected, then posted together by [`RecvBatch::commit`]. Dropping it posts
/// nothing. One batch serves again and again without allocating: [`RecvBatch::commit_and_clear`].
#[derive(Debug)]
#[must_use = "nothing is posted before `commit`"]
pub struct RecvBatch<'q> {
    target: RecvTarget<'q>,
    entries: Vec<(WrId, Range<usize>)>,
    sges: Vec<Sge>,
}

impl<'q> RecvBatch<'q> {
    pub(crate) const fn new(target: RecvTarget<'q>) -> Self {
        Self { target, entries: Vec::new(), sges: Vec::new() }
    }

    /// Adds a receive of one message into `scatter`; `()` takes messages without payload, as WRITE
    /// with immediate.
    pub fn recv(&mut self, wr_id: WrId, scatter: impl Scatter) {
        let start = self.sges.len();
        scatter.for_each(&mut |sge| self.sges.push(sge));
        self.entries.push((wr_id, start..self.sges.len()));
    }

    /// Receives collected.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Posts all receives in order.
    ///
    /// # Errors
    /// [`PostRecvError`] with the place of the first that was refused; those before it are posted.
    pub fn commit(mut self) -> Result<(), PostRecvError> {
        self.commit_and_clear()
    }

    /// As [`RecvBatch::commit`], and leaves an empty batch to be filled again.
    ///
    /// # Errors
    /// As [`RecvBatch::commit`].
    pub fn commit_and_clear(&mut self) -> Result<(), PostRecvError> {
        let Self { target, entries, sges } = self;
        let wrs = entries
            .iter()
            .map(|(wr_id, range)| RecvWr { wr_id: wr_id.0, sges: &sges[range.clone()] });
        let result = match target {
            RecvTarget::Qp(qp) => qp.post_recv_from(wrs),
            RecvTarget::Srq(srq) => srq.post_recv_from(wrs),
        };
        entries.clear();
        sges.clear();
        result
    }
}

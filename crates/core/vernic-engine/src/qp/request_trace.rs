//! The trace of a queue pair's send requests: when each was posted, began to leave, had left, and
//! was completed; and when the application took completions from a completion queue.
//!
//! There is a trace only while another process asks for it (`verbs/status/requests.rs`), and for
//! [`TRACE_NANOS`] after its last question. A queue pair is looked at whenever its protocol machine
//! was called ([`QpInner::attend`](crate::qp::state::QpInner::attend)), and what has changed since
//! the last look has happened now. So the times are those of the calls, not of single packets.
//! The next call after the end of its time frees a trace; an idle queue pair may have it longer.
//!
//! Limits: [`MOST_REQUESTS`] requests of a queue pair, and the latest [`MOST_TAKEN`] completions
//! that were taken from a completion queue. A new request takes the place of the oldest one that is
//! completed. While none is, further requests are not traced.

use std::collections::VecDeque;

use vernic_proto::{Completion, QpCounters, SendFlags, Time};
use vernic_wire::Qpn;

use crate::qp::machine::Machine;

/// How long a trace lasts after the last question: longer than the pause between two questions of
/// one caller, and short enough that a caller that is gone soon costs nothing.
pub(crate) const TRACE_NANOS: u64 = 1_000_000_000;

/// The most requests of a queue pair that are kept, in some 60 KiB: twice of what programs usually
/// have outstanding.
const MOST_REQUESTS: usize = 256;

/// The most requests that are told of those that are not completed: the oldest.
const MOST_OUTSTANDING: usize = 8;

/// The most completions that are kept of those taken from a completion queue.
const MOST_TAKEN: usize = 512;

/// What went wrong on a queue pair, in counts since its reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Troubles {
    pub(crate) resent: u64,
    pub(crate) rnr_naks: u64,
    pub(crate) sequence_naks: u64,
    pub(crate) timeouts: u64,
}

impl Troubles {
    fn of(counters: &QpCounters) -> Self {
        Self {
            resent: counters.retransmitted_packets,
            rnr_naks: counters.rnr_naks_received,
            sequence_naks: counters.sequence_naks_received + counters.implied_naks,
            timeouts: counters.ack_timeouts + counters.patient_timeouts,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            resent: self.resent.saturating_sub(before.resent),
            rnr_naks: self.rnr_naks.saturating_sub(before.rnr_naks),
            sequence_naks: self.sequence_naks.saturating_sub(before.sequence_naks),
            timeouts: self.timeouts.saturating_sub(before.timeouts),
        }
    }
}

/// A send request, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedRequest {
    /// The number of the request since the queue pair's reset, from 0.
    pub(crate) index: u64,
    pub(crate) wr_id: u64,
    pub(crate) operation: &'static str,
    pub(crate) bytes: u32,
    pub(crate) is_signaled: bool,
    /// Sequence numbers that it takes; 0 if it needed no packets.
    pub(crate) packets: u32,
    /// Requests that were posted before it and not completed when it was posted.
    pub(crate) ahead: u64,
    /// The time of the post; `None` for a request that was posted before the trace began.
    pub(crate) posted: Option<Time>,
    pub(crate) begun: Option<Time>,
    pub(crate) sent: Option<Time>,
    pub(crate) completed: Option<Time>,
    /// The time that its completion has.
    stamp: Option<Time>,
    /// What went wrong on the queue pair from the post to the completion, or until now.
    pub(crate) troubles: Troubles,
    /// The counts at the post.
    before: Troubles,
}

/// The trace of the send requests of one queue pair.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    until: Time,
    /// In the order of the posts.
    requests: VecDeque<TracedRequest>,
    /// The index of the next request that is posted.
    next: u64,
}

impl RequestTrace {
    /// Begins a trace with the requests that are outstanding.
    pub(crate) fn begin(machine: &Machine, now: Time) -> Self {
        let next = machine.send_progress().completed;
        let mut this = Self { until: now + TRACE_NANOS, requests: VecDeque::new(), next };
        this.note(machine, now, now);
        for request in &mut this.requests {
            (request.posted, request.begun, request.sent) = (None, None, None);
        }
        this
    }

    /// Lets the trace last until [`TRACE_NANOS`] from now.
    pub(crate) fn renew(&mut self, now: Time) {
        self.until = now + TRACE_NANOS;
    }

    /// Whether nobody asks for the trace any more.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        now > self.until
    }

    /// Notes what has happened since the last call. It happened in a call into the machine that was
    /// made with the time `called`, and has ended `now`.
    pub(crate) fn note(&mut self, machine: &Machine, called: Time, now: Time) {
        let progress = machine.send_progress();
        if progress.posted < self.next {
            // The queue pair was reset.
            self.requests.clear();
            self.next = progress.completed;
        }
        let troubles = Troubles::of(machine.counters());
        // At most as many as the send queue has slots.
        for index in self.next.max(progress.completed)..progress.posted {
            let Some((wqe, _)) = machine.posted_send(index) else { continue };
            if self.requests.len() == MOST_REQUESTS {
                if self.requests.front().is_some_and(|oldest| oldest.completed.is_none()) {
                    break;
                }
                self.requests.pop_front();
            }
            self.requests.push_back(TracedRequest {
                index,
                wr_id: wqe.wr_id,
                operation: wqe.op.name(),
                bytes: wqe.length,
                is_signaled: wqe.flags.contains(SendFlags::SIGNALED),
                packets: 0,
                ahead: index - progress.completed.min(index),
                posted: Some(now),
                begun: None,
                sent: None,
                completed: None,
                stamp: None,
                troubles: Troubles::default(),
                before: troubles,
            });
        }
        self.next = progress.posted;
        for request in self.requests.iter_mut().rev() {
            if request.completed.is_some() {
                break;
            }
            let index = request.index;
            request.troubles = troubles.since(request.before);
            if let Some((_, packets)) = machine.posted_send(index) {
                request.packets = packets;
            }
            let posted = request.posted.unwrap_or(called);
            let begins = index < progress.begun && request.begun.is_none();
            request.begun = if begins { Some(called.max(posted)) } else { request.begun };
            let ends = index < progress.sent && request.sent.is_none();
            request.sent = if ends { Some(now) } else { request.sent };
            if index < progress.completed {
                (request.completed, request.stamp) = (Some(now), Some(called));
            }
        }
    }

    /// Returns the latest requests that are completed and the oldest that are not, `most` together,
    /// the oldest first; each with the time at which the application took its completion, as
    /// `taken` has it.
    pub(crate) fn told(
        &self,
        (qpn, most): (Qpn, usize),
        taken: Option<&TakenTrace>,
        stamp: impl Fn(Time) -> u64,
    ) -> Vec<(TracedRequest, Option<Time>)> {
        let mut left = taken.map(|taken| taken.of(qpn)).unwrap_or_default();
        let done = self.requests.partition_point(|request| request.completed.is_some());
        let end = self.requests.len().min(done + MOST_OUTSTANDING);
        let told = self.requests.range(end.saturating_sub(most)..end).map(|request| {
            let stamp = request.stamp.filter(|_| request.is_signaled).map(&stamp);
            let is_its =
                |taken: &Taken| (Some(taken.stamp_ns), taken.wr_id) == (stamp, request.wr_id);
            let place = left.iter().position(is_its);
            // Completions come in the order of the posts: those before it are of others.
            let at = place.map(|place| left.drain(..=place).next_back().map(|taken| taken.at));
            (*request, at.flatten())
        });
        told.collect()
    }
}

/// A completion that the application took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    qpn: Qpn,
    wr_id: u64,
    /// The time that the completion has.
    stamp_ns: u64,
    at: Time,
}

/// The trace of the completions that the application took from one completion queue.
#[derive(Debug)]
pub(crate) struct TakenTrace {
    until: Time,
    list: VecDeque<Taken>,
}

impl TakenTrace {
    pub(crate) fn begin(now: Time) -> Self {
        Self { until: now + TRACE_NANOS, list: VecDeque::with_capacity(MOST_TAKEN) }
    }

    /// Lets the trace last until [`TRACE_NANOS`] from now.
    pub(crate) fn renew(&mut self, now: Time) {
        self.until = now + TRACE_NANOS;
    }

    /// Whether nobody asks for the trace any more.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        now > self.until
    }

    /// Notes a completion, of the time `stamp_ns`, that the application takes now.
    pub(crate) fn note(&mut self, completion: &Completion, stamp_ns: u64, now: Time) {
        if self.list.len() == MOST_TAKEN {
            self.list.pop_front();
        }
        let Completion { qpn, wr_id, .. } = *completion;
        self.list.push_back(Taken { qpn, wr_id, stamp_ns, at: now });
    }

    /// Returns what was taken of one queue pair, the oldest first.
    fn of(&self, qpn: Qpn) -> Vec<Taken> {
        self.list.iter().filter(|taken| taken.qpn == qpn).copied().collect()
    }
}

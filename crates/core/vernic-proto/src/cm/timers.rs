//! What happens when time has passed.

use vernic_wire::cm::CommId;

use super::Cm;
use super::event::{EventKind, Unanswered};
use super::params::Ears;
use super::state::State;
use crate::time::Time;

/// Timers that one call serves at most, so that the owner can send in between.
pub(super) const TIMEOUTS_PER_CALL: usize = 64;

/// How often a REP is repeated at any rate to a peer of which nothing came but its REQ, which
/// anybody can send in its name: with them a forged one brings six datagrams (an MRA, these, a
/// REJ). A peer that lost them asks again by its REQ, of which each copy is answered.
const UNHEARD_REPS: u8 = 3;

/// When a process that ends repeats its DREQ for the first time: some round trips within a site.
const HASTY_NANOS: u64 = 10_000_000;

/// How often it does: after 10, 30, 70 and 150 ms. Where one in ten is lost, one peer in 100,000
/// hears of none.
const HASTY_RETRIES: u8 = 4;

/// Further repeats of all such REPs together in a second: enough where RTUs are lost (of 1000
/// connections at once over a network that loses a tenth, one or two need more than the three), and
/// 20 kB/s for whom forged requests name, however many there are.
const MORE_REPS_PER_S: u32 = 64;

impl Cm {
    /// Does what is due. Serves 64 timers at most: [`next_deadline`](Self::next_deadline) is still
    /// in the past then, and the owner calls again after it has fetched what there is to send.
    pub fn handle_timeout(&mut self, now: Time) {
        self.handle_timeout_with(now, &|_| None);
    }

    /// The same, and `ears` tells which queue pairs of ours hear their peers.
    pub fn handle_timeout_with(&mut self, now: Time, ears: Ears<'_>) {
        for _ in 0..TIMEOUTS_PER_CALL {
            if let Some(id) = self.table.take_due(now) {
                self.handle_timer(now, id, ears);
            } else if let Some(id) = self.table.due_lap(now) {
                self.handle_lap_timer(now, id);
            } else {
                break;
            }
        }
    }

    fn handle_timer(&mut self, now: Time, id: CommId, ears: Ears<'_>) {
        let Some(conn) = self.table.conn(id) else { return };
        let hurries = self.leaves && conn.state == State::DreqSent;
        let max_retries = if hurries { HASTY_RETRIES } else { conn.max_retries };
        let again = conn.retries < max_retries;
        match conn.state {
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::DreqSent
            | State::SidrReqSent
                if again =>
            {
                self.send_again(now, id);
            }
            State::ReqSent | State::MraReqRcvd => {
                self.unanswered(id, Unanswered::Req);
                self.reject_timed_out(id);
                self.forget(id);
            }
            State::SidrReqSent => {
                self.unanswered(id, Unanswered::Sidr);
                self.forget(id);
            }
            State::RepSent | State::MraRepRcvd => {
                self.unanswered(id, Unanswered::Rep);
                self.disown(id);
                self.reject_silent(now, id);
            }
            State::DreqSent => {
                self.unanswered(id, Unanswered::Dreq);
                self.over(now, id);
            }
            State::ReqRcvd | State::RepRcvd => self.ask_for_time(now, id),
            State::MraReqSent | State::SidrReqRcvd => {
                self.counters.half_open_expired += 1;
                self.drop_half_open(now, id);
            }
            State::Timewait | State::SidrDone => self.timewait_over(id),
            State::Established => self.settle_doubt(now, id, ears),
            State::MraRepSent | State::DreqRcvd => {}
        }
    }

    /// Repeats the message that is not answered.
    fn send_again(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        conn.retries += 1;
        let unheard = conn.state == State::RepSent && conn.retries > UNHEARD_REPS;
        if unheard && !self.may_repeat_more(now) {
            self.counters.reps_withheld += 1;
        } else {
            self.counters.retries += 1;
            self.send_last(id);
        }
        self.await_answer(now, id);
    }

    /// Whether one more of the repeats goes out of which there are so many in a second.
    fn may_repeat_more(&mut self, now: Time) -> bool {
        let (since, sent) = &mut self.more_reps;
        if now.since(*since) >= 1_000_000_000 {
            (*since, *sent) = (now, 0);
        }
        *sent += 1;
        *sent <= MORE_REPS_PER_S
    }

    /// The message that was just sent is repeated unless it is answered.
    pub(super) fn await_answer(&mut self, now: Time, id: CommId) {
        let first = self.config.first_wait();
        let Some(conn) = self.table.conn(id) else { return };
        let hurries = self.leaves && conn.state == State::DreqSent;
        let wait = if hurries { HASTY_NANOS << conn.retries } else { conn.answer_wait(first) };
        let deadline = now + wait;
        self.table.set_deadline(id, Some(deadline));
    }

    pub(super) fn unanswered(&mut self, id: CommId, which: Unanswered) {
        self.counters.unanswered += 1;
        self.event(id, EventKind::Unreachable { which });
    }
}

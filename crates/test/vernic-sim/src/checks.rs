//! What must hold when a queue pair is down, when requests are done, and when all is silent.
//!
//! Called by the world's loop after every call into a queue pair, and once at the end. Changes the
//! oracle's books only.

use vernic_proto::{QpState, SendOp, WcStatus};

use crate::complete;
use crate::cover::Count;
use crate::ctx::fail;
use crate::flow::{Bad, Flow};
use crate::memory::Memory;
use crate::world::{Event, Phase, World};
use crate::xrc::is_reliable;

impl World {
    /// Notices that a queue pair has failed, and whether it had a reason.
    pub(crate) fn check_state(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        let side = &mut conn.sides[s];
        let state = side.qp.state();
        if side.st.noticed == state || !matches!(state, QpState::Error | QpState::Sqe) {
            return;
        }
        side.st.noticed = state;
        if side.st.failure.is_none() && !side.st.forced {
            fail!(self.ctx, "{} is in {state:?} without a failure", side.st.label());
        }
        if state == QpState::Sqe {
            let failed = conn.flows[s].failed;
            let good = failed.is_some_and(|(i, status)| {
                status == WcStatus::LocalProtection && conn.flows[s].msgs[i].bad != Bad::None
            });
            if !good && !side.st.lenient {
                fail!(self.ctx, "{} is in SQE after {failed:?}", side.st.label());
            }
            self.at(50_000, Event::EndSqe(c, s));
            self.check_flushed(c, s);
            return;
        }
        let peer_refused = !conn.flows[1 - s].refusals.is_empty();
        if !side.st.forced
            && !peer_refused
            && conn.flows[s].failed.is_none()
            && !side.st.lenient
            && is_reliable(conn.plan.service)
        {
            fail!(
                self.ctx,
                "{} is in Error, nothing failed: {:?}",
                side.st.label(),
                side.st.failure
            );
        }
        if conn.born_healed && !side.st.forced {
            fail!(
                self.ctx,
                "{} failed on a healthy network: {:?}",
                side.st.label(),
                side.st.failure
            );
        }
        // Its own traffic finds the peer dead from now on.
        conn.flows[1 - s].trouble += 1;
        conn.flows[1 - s].trouble_since += 100;
        self.check_flushed(c, s);
        self.bring_down(c);
    }

    /// In Error and SQE nothing posted is without a completion, once the queue pair was polled.
    pub(crate) fn check_flushed(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        let side = &mut conn.sides[s];
        let state = side.qp.state();
        let posted_later = side.st.pump_at.is_some() || side.qp.wants_requests();
        if !matches!(state, QpState::Error | QpState::Sqe)
            || posted_later
            || self.ctx.violation.is_some()
        {
            return;
        }
        self.with_qp(c, s, |_, _, host| complete::silent(host));
        let conn = &self.conns[c];
        let side = &conn.sides[s];
        if conn.flows[s].outstanding() > 0 {
            fail!(
                self.ctx,
                "{} is in {state:?} with {} requests that did not complete",
                side.st.label(),
                conn.flows[s].outstanding()
            );
        }
        if state == QpState::Error && (!side.st.rq.is_empty() || side.st.current.is_some()) {
            fail!(self.ctx, "{} is in Error with receives that did not complete", side.st.label());
        }
    }

    /// Before an incarnation ends: its counters are what was seen on the wire, and on a path that
    /// disturbed nothing, nothing was sent twice.
    pub(crate) fn check_counters(&mut self, c: usize, s: usize) {
        let conn = &self.conns[c];
        let side = &conn.sides[s];
        let k = *side.qp.counters();
        if side.qp.state() == QpState::Reset || conn.incarnation == 0 {
            return;
        }
        let counted = [k.tx_packets, k.tx_bytes, k.sequence_naks_sent, k.rnr_naks_sent];
        if counted != side.st.sent {
            fail!(
                self.ctx,
                "{} sent packets, bytes, NAKs, RNR NAKs {:?} and counted {counted:?}",
                side.st.label(),
                side.st.sent
            );
        }
        let is_quiet = |flow: &Flow| flow.trouble == 0 && !flow.unreachable;
        // By the network answers take longer than through a ring that was there before. And what
        // went by the network last, before the pause, need not have asked for an answer.
        let has_changed = conn.rings.were_lost || conn.rings.were_joined;
        let is_steady = !conn.plan.hasty && !has_changed;
        let quiet = conn.flows.iter().all(is_quiet) && is_steady;
        self.ctx.cover.add(Count::TailProbes, k.tail_probes);
        self.ctx.cover.add(Count::AckTimeouts, k.ack_timeouts);
        let repaired = k.ack_timeouts + k.tail_probes + k.sequence_naks_received + k.implied_naks;
        let repeated = repaired > 0 || k.retransmitted_packets > 0;
        if quiet && repeated && k.rnr_naks_received == 0 && !side.st.lenient {
            fail!(self.ctx, "{} repeated itself on a perfect path: {k:?}", side.st.label());
        }
        if side.qp.state() == QpState::Error && side.st.shared != side.st.last_wqe_reached {
            fail!(
                self.ctx,
                "{} is in Error, shared queue {}, last WQE reached {}",
                side.st.label(),
                side.st.shared,
                side.st.last_wqe_reached
            );
        }
    }

    /// What newly completed requests promise about the peer's memory; effects of local operations.
    pub(crate) fn check_done(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        let flow = &conn.flows[s];
        let good = flow.failed.map_or(flow.next_done, |(index, _)| index);
        for index in conn.sides[s].checked..good {
            let msg = &flow.msgs[index];
            match msg.op {
                SendOp::BindMw(bind) => {
                    conn.sides[s].st.areas.window = bind.new_rkey;
                    conn.sides[s].st.areas.window_bound = true;
                }
                SendOp::Write(remote)
                | SendOp::WriteImm(remote, _)
                | SendOp::AtomicWrite(remote)
                    if msg.len > 0 && is_reliable(conn.plan.service) =>
                {
                    let memory = &self.nodes[conn.plan.nodes[1 - s]].memory;
                    let at = Memory::index(remote.addr);
                    // A few bytes around it too: nobody else may have touched them either.
                    let range = at - 8..at + msg.len as usize + 8;
                    if !conn.plan.lenient && memory.mem[range.clone()] != memory.model[range] {
                        fail!(
                            self.ctx,
                            "message {index} {:?} succeeded, the bytes at the peer are wrong",
                            msg.op
                        );
                    }
                }
                _ => {}
            }
        }
        conn.sides[s].checked = conn.sides[s].checked.max(flow.next_done);
    }

    /// After silence: everything is done, and nothing was touched that must not be.
    pub(crate) fn check_end(&mut self) {
        if self.ctx.violation.is_some() {
            return;
        }
        for c in 0..self.conns.len() {
            for s in 0..2 {
                let conn = &self.conns[c];
                let left = conn.sides[s].remaining as usize + conn.flows[s].outstanding();
                if !self.manual && (conn.phase != Phase::Up || left > 0) {
                    fail!(self.ctx, "silence, but not done: {}", self.describe());
                    return;
                }
            }
            for s in 0..2 {
                self.check_counters(c, s);
                if !matches!(self.conns[c].sides[s].qp.state(), QpState::Error | QpState::Reset) {
                    self.conns[c].sides[s].st.forced = true;
                    self.conns[c].phase = Phase::Down;
                    self.conns[c].sides[s].st.pump_at = None;
                    self.change(c, s, QpState::Error);
                    self.check_flushed(c, s);
                }
                let st = &self.conns[c].sides[s].st;
                if !st.shared && st.recvs_posted != st.recvs_done {
                    fail!(
                        self.ctx,
                        "{}: {} receives posted, {} completed",
                        st.label(),
                        st.recvs_posted,
                        st.recvs_done
                    );
                }
            }
        }
        self.check_memory();
    }

    fn check_memory(&mut self) {
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(addr) = node.memory.difference() {
                fail!(
                    self.ctx,
                    "memory of node {number} at {addr:#x} is not what the messages made it"
                );
            }
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let shared: u64 = self
                .conns
                .iter()
                .flat_map(|conn| &conn.sides)
                .filter(|side| side.st.node == number && side.st.shared)
                .map(|side| side.st.recvs_done)
                .sum();
            let left = node.srqs.iter().map(|queue| queue.len() as u64).sum::<u64>();
            if node.srq_posted != shared + left {
                fail!(
                    self.ctx,
                    "node {number}: {} shared receives posted, {shared} completed, {left} left",
                    node.srq_posted,
                );
            }
        }
    }

    /// Where everything stands, for a report.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for conn in &self.conns {
            for s in 0..2 {
                let (side, flow) = (&conn.sides[s], &conn.flows[s]);
                text.push_str(&format!(
                    "[{} {:?} {:?} {:?}: {} to post, {} posted, {} completed, executed {} of {}, sent {}, receives {}+{}, deadline {:?}, wants {}] ",
                    side.st.label(), conn.plan.service, conn.phase, side.qp.state(), side.remaining, flow.msgs.len(),
                    flow.next_done, flow.exec, flow.next_seq, flow.high, side.st.rq.len(),
                    self.nodes[side.st.node].srqs[0].len(), side.qp.next_deadline(), side.qp.wants_transmit(),
                ));
            }
        }
        text
    }
}

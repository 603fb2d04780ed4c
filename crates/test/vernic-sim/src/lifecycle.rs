//! Connections come, break, and come again; chaos.
//!
//! Owns building the world from the plan, the modify sequences, every [`Chaos`], and healing.
//! Called by the world's loop.

use std::sync::Arc;

use vernic_proto::{
    AddressVector, AttrMask, KeepBudget, Keeping, Qp, QpAttr, QpInit, QpState, QpType,
};
use vernic_wire::{AckTimeout, PortNum, Psn, Qpn, RnrTimer, Service};

use crate::content;
use crate::cover::Count;
use crate::ctx::fail;
use crate::erratic::Erratic;
use crate::flow::Flow;
use crate::memory::{Memory, access};
use crate::net::Link;
use crate::plan::{Chaos, ConnPlan};
use crate::ring::Rings;
use crate::rng::Rng;
use crate::side::{Areas, SideState};
use crate::world::{Conn, Event, Node, Phase, Side, World};
use crate::xrc::{is_reliable, qp_type};

/// Atomic cells of a node.
pub(crate) const CELLS: u64 = 8;
/// Messages that every connection carries after healing, each way, beside what was left.
const FINAL_MESSAGES: u32 = 3;
/// ACK timeout after healing: 8.4 ms, more than any path here takes.
const PATIENT_TIMEOUT: u8 = 11;

impl Node {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self {
            memory: Memory::new(rng.word() as u32),
            srqs: Default::default(),
            srq_posted: 0,
            srq_scheduled: false,
            srq_len: 0,
            has_xrc: false,
        }
    }
}

impl World {
    /// Builds nodes and connections, and starts them.
    pub(crate) fn build(&mut self) {
        let cells: Vec<_> =
            self.nodes.iter_mut().map(|node| node.memory.area(CELLS as usize * 8)).collect();
        for plan in self.plan.conns.clone() {
            let c = self.conns.len();
            let sides = [0, 1].map(|s| self.side(&plan, c, s, cells[plan.nodes[s]]));
            self.ctx.hit(match plan.service {
                Service::Rc => Count::ConnRc,
                Service::Uc => Count::ConnUc,
                Service::Xrc => Count::ConnXrc,
                _ => Count::ConnUd,
            });
            for s in 0..2 {
                if plan.sides[s].srq {
                    let node = &mut self.nodes[plan.nodes[s]];
                    node.srq_len = node.srq_len.max(plan.max_len + 40);
                    node.has_xrc |= plan.service == Service::Xrc;
                }
            }
            let is_up = plan.ring.as_ref().is_some_and(|ring| ring.is_up);
            self.conns.push(Conn {
                plan,
                sides,
                flows: [Flow::new(Psn::new(0)), Flow::new(Psn::new(0))],
                links: [Link::default(), Link::default()],
                incarnation: 0,
                phase: Phase::Down,
                rings: Rings::new(is_up),
                in_flight: 0,
                born_healed: false,
            });
            self.reconnect(c);
        }
        for (at, chaos, c, s) in self.plan.chaos.clone() {
            self.at(at, Event::Chaos(chaos, c, s));
        }
        if self.plan.heal_at < u64::MAX {
            self.at(self.plan.heal_at, Event::Heal);
        }
    }

    fn side(&mut self, plan: &ConnPlan, c: usize, s: usize, cells: u64) -> Side {
        let memory = &mut self.nodes[plan.nodes[s]].memory;
        let pd = (c * 2 + s) as u32 + 1;
        let write_len = u64::from(plan.max_len) * 3 + 512;
        let read_len = u64::from(plan.max_len) + 64;
        let (write, read) = (memory.area(write_len as usize), memory.area(read_len as usize));
        let read_id = u64::MAX - u64::from(pd);
        let at = Memory::index(read);
        content::fill(read_id, 0, &mut memory.mem[at..at + read_len as usize]);
        content::fill(read_id, 0, &mut memory.model[at..at + read_len as usize]);
        let areas = Areas {
            write,
            write_len,
            write_key: memory.grant(pd, write, write_len, access::ALL),
            read,
            read_len,
            read_key: memory.grant(pd, read, read_len, access::REMOTE_READ),
            read_id,
            mute_key: memory.grant(pd, write, write_len, access::LOCAL_WRITE),
            foreign_key: memory.grant(pd + 100, write, write_len, access::ALL),
            cells,
            cells_key: memory.grant(pd, cells, CELLS * 8, access::ALL),
            window: memory.grant(pd, write, 0, 0),
            window_bound: false,
        };
        memory.revoke(areas.window);
        let qpn = Qpn::new(0x100 + (c * 2 + s) as u32);
        let st = SideState::new(plan, c, s, pd, qpn, areas);
        let remaining = plan.sides[s].quota;
        let qp = new_qp(plan, &st);
        Side {
            qp,
            st,
            remaining,
            post_scheduled: false,
            recv_scheduled: false,
            response_next: true,
            checked: 0,
        }
    }

    /// Starts a new incarnation, unless packets of the old one must be waited for.
    pub(crate) fn reconnect(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        if conn.phase == Phase::Connecting {
            return;
        }
        if conn.in_flight > 0 && !conn.plan.fresh_qpn && !conn.plan.ghosts {
            self.at(100_000, Event::Reconnect(c));
            return;
        }
        self.check_counters(c, 0);
        self.check_counters(c, 1);
        let conn = &mut self.conns[c];
        conn.incarnation += 1;
        conn.phase = Phase::Connecting;
        conn.born_healed = self.healed;
        (conn.rings.were_lost, conn.rings.were_joined) = (false, false);
        if conn.incarnation > 1 && conn.plan.ring.is_some() && self.rng.percent(30) {
            self.at(0, Event::Chaos(Chaos::RingUp, c, 0));
        }
        let conn = &mut self.conns[c];
        if conn.incarnation > 1 {
            self.ctx.hit(Count::Reconnects);
        }
        let fresh = conn.plan.fresh_qpn;
        for s in 0..2 {
            let psn = first_psn(conn, s, &mut self.rng);
            conn.flows[s] = Flow::new(Psn::new(psn));
            let side = &mut conn.sides[s];
            side.checked = 0;
            if fresh {
                side.st.qpn = Qpn::new(0x100 + (c * 2 + s) as u32 + conn.incarnation * 0x40);
                side.qp = new_qp(&conn.plan, &side.st);
            }
            side.st.restart(conn.incarnation, side.qp.send_slots() as usize);
            if self.healed {
                // Patience enough for a peer that comes up later, and for its receives.
                (side.st.retry_cnt, side.st.rnr_retry, side.st.hasty) = (7, 7, false);
                side.st.timeout = side.st.timeout.max(PATIENT_TIMEOUT);
            }
            let memory = &mut self.nodes[side.st.node].memory;
            memory.restore(side.st.areas.write_key);
            memory.restore(side.st.areas.read_key);
            memory.retire(side.st.areas.window);
            side.st.areas.window_bound = false;
        }
        let qpns = [0, 1].map(|s| conn.sides[s].st.qpn);
        for s in 0..2 {
            self.conns[c].sides[s].st.peer_qpn = qpns[1 - s];
        }
        let spread = if self.conns[c].plan.staggered { 3_000_000 } else { 0 };
        for s in 0..2 {
            self.change(c, s, QpState::Reset);
            self.change(c, s, QpState::Init);
            self.settle(c, s);
            let at = self.rng.below(spread + 1);
            self.at(at, Event::Connect(c, s, QpState::Rtr));
        }
    }

    /// One step of coming up.
    pub(crate) fn connect_step(&mut self, c: usize, s: usize, state: QpState) {
        if self.conns[c].phase != Phase::Connecting {
            return;
        }
        self.change(c, s, state);
        if state == QpState::Rtr {
            let spread = if self.conns[c].plan.staggered { 1_000_000 } else { 0 };
            let at = self.rng.below(spread + 1);
            self.at(at, Event::Connect(c, s, QpState::Rts));
        } else if (0..2).all(|s| self.conns[c].sides[s].qp.state() == QpState::Rts) {
            self.conns[c].phase = Phase::Up;
            self.settle(c, 1 - s);
        }
        self.settle(c, s);
    }

    /// Modifies a queue pair with everything that the transition takes.
    pub(crate) fn change(&mut self, c: usize, s: usize, state: QpState) {
        let (attr, mask) = self.attributes(c, s, state);
        let label = self.conns[c].sides[s].st.label();
        self.ctx.say(format_args!("{label} -> {state:?}"));
        let outcome = self.with_qp(c, s, |qp, now, host| qp.modify(&attr, mask, now, host));
        if let Err(error) = outcome {
            fail!(self.ctx, "{label}: modify to {state:?}: {error}");
        }
    }

    fn attributes(&self, c: usize, s: usize, state: QpState) -> (QpAttr, AttrMask) {
        let conn = &self.conns[c];
        let (plan, side) = (&conn.plan.sides[s], &conn.sides[s]);
        let granted =
            if plan.reject_reads { access::ALL & !access::REMOTE_READ } else { access::ALL };
        let attr = QpAttr {
            state,
            path_mtu: conn.plan.mtu,
            access: granted & !access::MW_BIND,
            port: PortNum(1),
            qkey: side.st.qkey,
            av: AddressVector { port: PortNum(1), ..AddressVector::default() },
            dest_qpn: side.st.peer_qpn,
            rq_psn: conn.flows[1 - s].base,
            sq_psn: conn.flows[s].base,
            max_rd_atomic: plan.max_rd,
            max_dest_rd_atomic: plan.max_dest,
            min_rnr_timer: RnrTimer::new(plan.min_rnr),
            timeout: AckTimeout::new(side.st.timeout),
            retry_cnt: side.st.retry_cnt,
            rnr_retry: side.st.rnr_retry,
            sqd_async_notify: true,
            ..QpAttr::default()
        };
        use AttrMask as M;
        let from = side.qp.state();
        let more = match (from, state, qp_type(conn.plan.service, s)) {
            (_, QpState::Init, QpType::Ud) => M::PKEY_INDEX | M::PORT | M::QKEY,
            (_, QpState::Init, _) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            (_, QpState::Rtr, QpType::Rc | QpType::XrcTgt) => {
                M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER
            }
            (_, QpState::Rtr, QpType::Uc | QpType::XrcIni) => {
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN
            }
            (QpState::Rtr, QpState::Rts, QpType::Rc | QpType::XrcIni) => {
                M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC
            }
            (QpState::Rtr, QpState::Rts, QpType::XrcTgt) => M::TIMEOUT | M::SQ_PSN,
            (QpState::Rtr, QpState::Rts, _) => M::SQ_PSN,
            (_, QpState::Sqd, _) => M::EN_SQD_ASYNC_NOTIFY,
            _ => M::empty(),
        };
        (attr, more | M::STATE)
    }

    // Chaos.

    pub(crate) fn wreak(&mut self, chaos: Chaos, c: usize, s: usize) {
        if chaos == Chaos::RingUp {
            self.join_rings(c);
        }
        if self.healed {
            return;
        }
        let now = self.ctx.now;
        let conn = &mut self.conns[c];
        let label = conn.sides[s].st.label();
        match chaos {
            Chaos::Partition(length) => {
                self.ctx.hit(Count::Partitions);
                conn.links[s].dead_until = now + length;
            }
            Chaos::MtuCut(bytes, length) => {
                conn.links[s].cut_bytes = bytes;
                conn.links[s].cut_until = now + length;
            }
            Chaos::Revoke => {
                let areas = &conn.sides[s].st.areas;
                let key = if now.nanos() & 1 == 0 { areas.write_key } else { areas.read_key };
                self.nodes[conn.sides[s].st.node].memory.revoke(key);
                self.ctx.hit(Count::Revocations);
            }
            Chaos::Error if conn.phase == Phase::Up => {
                self.ctx.hit(Count::ForcedErrors);
                conn.sides[s].st.forced = true;
                self.change(c, s, QpState::Error);
                self.settle(c, s);
            }
            Chaos::Reset if conn.phase == Phase::Up => {
                self.ctx.hit(Count::Resets);
                self.change(c, s, QpState::Reset);
                self.forget(c, s);
                self.bring_down(c);
            }
            Chaos::Ring(records, fate) => {
                conn.rings.armed = Some((records, fate, s));
                self.strike(c);
            }
            Chaos::Drain(length)
                if conn.phase == Phase::Up && conn.sides[s].qp.state() == QpState::Rts =>
            {
                self.ctx.hit(Count::Drains);
                let flow = &conn.flows[s];
                let started =
                    flow.msgs.iter().position(|msg| !msg.is_local() && msg.first >= flow.high);
                let st = &mut conn.sides[s].st;
                st.draining = true;
                st.drain_from = started.unwrap_or(flow.msgs.len());
                if !is_reliable(st.service) {
                    st.drain_from = usize::MAX;
                }
                self.change(c, s, QpState::Sqd);
                self.at(length, Event::EndDrain(c, s));
                self.settle(c, s);
            }
            _ => return,
        }
        self.ctx.say(format_args!("chaos {chaos:?} at {label}"));
    }

    /// SQD back to RTS.
    pub(crate) fn end_drain(&mut self, c: usize, s: usize) {
        if self.conns[c].sides[s].qp.state() != QpState::Sqd {
            return;
        }
        if !self.conns[c].sides[s].st.drained && !self.healed {
            // IBTA leaves SQD only when drained; give it time, and take it as it is after healing.
            self.at(1_000_000, Event::EndDrain(c, s));
            return;
        }
        self.change(c, s, QpState::Rts);
        let st = &mut self.conns[c].sides[s].st;
        (st.draining, st.drained, st.drain_from) = (false, false, usize::MAX);
        self.settle(c, s);
    }

    /// SQE back to RTS.
    pub(crate) fn end_sqe(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        if conn.sides[s].qp.state() != QpState::Sqe {
            return;
        }
        self.ctx.hit(Count::SqeRecoveries);
        conn.sides[s].st.failure = None;
        conn.sides[s].st.noticed = QpState::Rts;
        let flow = &mut conn.flows[s];
        flow.failed = None;
        flow.emit = (flow.next_done, 0);
        self.change(c, s, QpState::Rts);
        self.settle(c, s);
    }

    /// A queue pair in Reset has forgotten everything: nothing of it may complete any more.
    pub(crate) fn forget(&mut self, c: usize, s: usize) {
        let conn = &mut self.conns[c];
        let side = &mut conn.sides[s];
        let recvs = side.st.rq.len() as u64 + u64::from(side.st.current.is_some());
        side.st.recvs_done += recvs;
        side.st.rq.clear();
        side.st.current = None;
        conn.flows[s].next_done = conn.flows[s].msgs.len();
        side.checked = conn.flows[s].next_done;
        side.st.noticed = QpState::Error;
        // The peer waits in vain, perhaps for the rest of an answer.
        conn.flows[1 - s].trouble += 1;
        conn.flows[1 - s].trouble_since += 100;
    }

    /// The connection is broken: after a while the other side is told, and it is made anew.
    pub(crate) fn bring_down(&mut self, c: usize) {
        self.post_into_error(c);
        if self.manual || self.conns[c].phase == Phase::Down {
            return;
        }
        self.conns[c].phase = Phase::Down;
        let patience = self.rng.pick(&[0, 10_000, 1_000_000, 100_000_000, 400_000_000]);
        let at = self.rng.below(patience + 1);
        self.at(at, Event::TearDown(c));
    }

    pub(crate) fn tear_down(&mut self, c: usize) {
        for s in 0..2 {
            let state = self.conns[c].sides[s].qp.state();
            if !matches!(state, QpState::Error | QpState::Reset) {
                self.conns[c].sides[s].st.forced = true;
                self.change(c, s, QpState::Error);
                self.settle(c, s);
            }
        }
        let delay = self.rng.below(if self.conns[c].plan.ghosts { 1_000 } else { 1_000_000 });
        self.at(delay, Event::Reconnect(c));
    }

    /// End of the faults: what is left must finish.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.ctx.say(format_args!("healed"));
        for node in &mut self.nodes {
            let longest = node.srq_len;
            for recv in node.srqs.iter_mut().flatten() {
                recv.bad = false;
                recv.capacity = recv.capacity.max(longest);
            }
        }
        for c in 0..self.conns.len() {
            for s in 0..2 {
                let longest = self.conns[c].plan.max_len + 40;
                let active = self.conns[c].plan.sides[s].quota > 0;
                let side = &mut self.conns[c].sides[s];
                if active {
                    side.remaining += FINAL_MESSAGES;
                }
                for recv in &mut side.st.rq {
                    recv.bad = false;
                    recv.capacity = recv.capacity.max(longest);
                }
                self.nodes[side.st.node].memory.restore(side.st.areas.write_key);
                self.nodes[side.st.node].memory.restore(side.st.areas.read_key);
                self.settle(c, s);
            }
        }
    }
}

/// Where a sequence starts: the plan's number first (often just before the wrap), then any; with
/// packets of the old connection about, far from theirs.
fn first_psn(conn: &Conn, s: usize, rng: &mut Rng) -> u32 {
    let old = conn.flows[s].base.add(conn.flows[s].high as u32).value();
    match (conn.incarnation, conn.plan.ghosts) {
        (1, _) => conn.plan.sides[s].psn,
        (_, true) => old.wrapping_add(rng.pick(&[1 << 22, 3 << 22])) & 0xFF_FFFF,
        (_, false) => rng.below(1 << 24) as u32,
    }
}

fn new_qp(plan: &ConnPlan, st: &SideState) -> Qp {
    let side = &plan.sides[st.side];
    let init = QpInit {
        qpn: st.qpn,
        qp_type: qp_type(plan.service, st.side),
        max_send_wr: side.sq,
        max_window: side.window,
        shared_rq: side.srq,
    };
    let mut qp = match side.erratic {
        Some(seed) => Qp::with_congestion(init, Box::new(Erratic::new(seed))),
        None => Qp::with_algorithm(init, side.algorithm),
    };
    if plan.service == Service::Ud {
        qp.set_port_mtu(plan.mtu);
    }
    qp.set_keeping(side.keep.map(|(packets, bytes)| {
        let budget = Arc::new(KeepBudget::new(bytes));
        Keeping { packets, budget }
    }));
    qp
}

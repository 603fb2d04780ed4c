//! How much RC has in flight towards one place, all queue pairs together.
//!
//! The window of a queue pair (`vernic-proto/src/rc/window.rs`) follows its own path, and knows
//! nothing of a thousand others that fill the same socket: each may have its least in flight, and
//! the sum overruns the receiver. Go-back-N then sends more again than new. So the packets in
//! flight to one address and port are counted, and a queue pair that has requests waits its turn,
//! in order of arrival, while there are as many as its [`Budget`] allows. It answers all the same.
//! A queue pair that is alone never waits.
//!
//! The limit follows the path as a window does: loss takes 30 % off, once in [`SHRINK_NANOS`];
//! while somebody waits it grows by an eighth each time that eight times its size has been
//! acknowledged.
//!
//! ```text
//!   turn of a queue pair: admits? -- no --> waiting --- room, and its turn ---> turn
//!                            | yes
//!                            v
//!                      packets leave      note: what it has in flight now, what was lost
//! ```
//!
//! Nobody waits for longer than [`PATIENCE_NANOS`]: others may have in flight what nobody takes,
//! since a budget is of all processes behind an address and port, one of which may be stopped.
//! Where queue pairs that do not wait are always ready, each batch of theirs lets in one. A queue
//! pair whose timer fired, or that went back, is let in at once, for its retries are counted.
//!
//! Owned by the lane. Limits: [`PLACES`] budgets; places beyond that share them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vernic_io::TxPath;
use vernic_proto::{QpState, Time};
use vernic_wire::Service;

use crate::qp::flight::Flight;
use crate::qp::machine::Machine;
use crate::qp::state::{QpCore, QpInner};
use crate::qp::timers::make_ready;
use crate::support::events::lock;

/// Budgets of a device.
const PLACES: usize = 256;
/// Packets that may be in flight at first: as many messages of 64 bytes as a socket with the
/// default buffer of 208 KiB takes, when they come in runs.
const INITIAL: u64 = 512;
/// Packets to which loss does not press a budget: a full GSO run.
const MIN: u64 = 64;
/// The most packets, more than a socket holds.
const MAX: u64 = 1 << 16;
/// Signs of loss within this many nanoseconds are of one overrun.
const SHRINK_NANOS: u64 = 1_000_000;

/// How long a queue pair waits for room at most: some of the round trips of a thousand that take
/// turns, and a fraction of an ACK timeout.
const PATIENCE_NANOS: u64 = 20_000_000;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Budgets {
    budgets: Vec<Budget>,
    /// Queue pairs that wait, of all budgets.
    waiting: usize,
    /// Where the search for one that may go on starts.
    next: usize,
}

#[derive(Debug)]
struct Budget {
    limit: u64,
    in_flight: u64,
    /// Acknowledged since it grew last, while somebody waited.
    credit: u64,
    shrunk_at: Option<Time>,
    /// In order of arrival, and since when.
    waiting: VecDeque<(Time, Arc<QpInner>)>,
}

impl Budgets {
    pub(crate) fn new() -> Self {
        Self { budgets: Vec::new(), waiting: 0, next: 0 }
    }

    /// Whether `qp`, which is about to have its turn, may send requests. If not, it waits.
    #[inline]
    pub(crate) fn admits(&mut self, qp: &Arc<QpInner>, core: &mut QpCore, now: Time) -> bool {
        match core.side.flight.place {
            // A ring says itself when it is full.
            _ if core.side.way.is_ring() => true,
            Some(place) if self.of(place).is_open() => true,
            _ => self.admits_one(qp, core, now),
        }
    }

    /// The same for one that sends for the first time, or where not everybody is let in.
    fn admits_one(&mut self, qp: &Arc<QpInner>, core: &mut QpCore, now: Time) -> bool {
        let QpCore { machine, side } = core;
        let Some(machine) = machine.packets() else { return true };
        // Flushing is no sending.
        let sends = matches!(machine.state(), QpState::Rts | QpState::Sqd);
        let acknowledged = matches!(qp.service, Service::Rc | Service::Xrc);
        if !acknowledged || !sends || side.flight.gone || !machine.wants_requests() {
            return true;
        }
        let Some(path) = &side.path else { return true };
        let flight = &mut side.flight;
        let went_back = flight.counted == 0 && machine.has_unacknowledged();
        let place = *flight.place.get_or_insert_with(|| place_of(path));
        let budget = self.of(place);
        let is_alone = budget.in_flight == flight.counted;
        let let_in = qp.admitted.swap(false, Ordering::Relaxed);
        if flight.exempt || went_back || is_alone || let_in || budget.is_open() {
            flight.exempt = false;
            return true;
        }
        if !qp.waits.swap(true, Ordering::Relaxed) {
            budget.waiting.push_back((now, qp.clone()));
            self.waiting += 1;
        }
        false
    }

    /// Counts what a queue pair has in flight, after anything that may have changed it.
    #[inline]
    pub(crate) fn note(&mut self, core: &mut QpCore, now: Time) {
        let QpCore { machine, side } = core;
        let Some(place) = side.flight.place else { return };
        let in_flight = in_flight(machine);
        let losses = losses(machine);
        let flight = &mut side.flight;
        if in_flight == flight.counted && losses == flight.losses {
            return;
        }
        let budget = self.of(place);
        budget.in_flight = budget.in_flight - flight.counted + in_flight;
        if losses > flight.losses {
            budget.shrink(now);
        } else {
            budget.grow(flight.counted.saturating_sub(in_flight));
        }
        (flight.counted, flight.losses) = (in_flight, losses);
    }

    /// A queue pair is gone.
    pub(crate) fn remove(&mut self, qp: &Arc<QpInner>) {
        let gone = Flight { gone: true, ..Flight::default() };
        let flight = std::mem::replace(&mut lock(&qp.core).side.flight, gone);
        let Flight { place, counted, .. } = flight;
        if let Some(place) = place {
            self.of(place).in_flight -= counted;
        }
        if qp.waits.swap(false, Ordering::Relaxed) {
            self.budgets
                .iter_mut()
                .for_each(|budget| budget.waiting.retain(|(_, other)| other.qpn != qp.qpn));
            self.waiting = self.budgets.iter().map(|budget| budget.waiting.len()).sum();
        }
    }

    /// When the next of those that wait may send at the latest.
    #[inline]
    pub(crate) fn next_at(&self, now: Time) -> Option<Time> {
        if self.waiting == 0 {
            return None;
        }
        self.budgets.iter().filter_map(|budget| budget.next_at(now)).min()
    }

    /// Puts the next queue pair of those that wait on the ready list, if there is room for it, or
    /// it has waited for long enough.
    #[inline]
    pub(crate) fn let_in(&mut self, ready: &mut VecDeque<Arc<QpInner>>, now: Time) {
        if self.waiting == 0 {
            return;
        }
        for step in 0..self.budgets.len() {
            let at = (self.next + step) % self.budgets.len();
            let budget = &mut self.budgets[at];
            if budget.next_at(now).is_none_or(|at| at > now) {
                continue;
            }
            let Some((_, qp)) = budget.waiting.pop_front() else { continue };
            self.waiting -= 1;
            self.next = at + 1;
            qp.admitted.store(true, Ordering::Relaxed);
            qp.waits.store(false, Ordering::Relaxed);
            return make_ready(ready, &qp);
        }
    }

    #[inline]
    fn of(&mut self, place: u8) -> &mut Budget {
        if self.budgets.is_empty() {
            self.budgets.resize_with(PLACES, Budget::new);
        }
        &mut self.budgets[usize::from(place)]
    }
}

impl Budget {
    const fn new() -> Self {
        let waiting = VecDeque::new();
        Self { limit: INITIAL, in_flight: 0, credit: 0, shrunk_at: None, waiting }
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// Whether everybody may send.
    #[inline]
    fn is_open(&self) -> bool {
        self.has_room() && self.waiting.is_empty()
    }

    /// When the first of those that wait may send at the latest.
    #[inline]
    fn next_at(&self, now: Time) -> Option<Time> {
        let (since, _) = self.waiting.front()?;
        Some(if self.has_room() { now } else { *since + PATIENCE_NANOS })
    }

    fn grow(&mut self, acknowledged: u64) {
        if self.waiting.is_empty() {
            return;
        }
        self.credit += acknowledged;
        if self.credit >= 8 * self.limit {
            self.credit = 0;
            self.limit = (self.limit + self.limit / 8).min(MAX);
        }
    }

    #[cold]
    fn shrink(&mut self, now: Time) {
        // One that is alone has its own window.
        if self.waiting.is_empty() || self.shrunk_at.is_some_and(|at| now.since(at) < SHRINK_NANOS)
        {
            return;
        }
        self.shrunk_at = Some(now);
        self.credit = 0;
        self.limit = (self.limit - self.limit / 10 * 3).max(MIN);
    }
}

/// Packets that a machine waits for an answer to.
#[inline]
fn in_flight(machine: &mut Machine) -> u64 {
    match machine.packets() {
        Some(qp) if matches!(qp.state(), QpState::Rts | QpState::Sqd) => qp.packets_in_flight(),
        _ => 0,
    }
}

/// How often a machine has noticed that something was lost.
#[inline]
fn losses(machine: &Machine) -> u64 {
    let counters = machine.counters();
    counters.sequence_naks_received + counters.implied_naks + counters.ack_timeouts
}

/// Which budget a path counts in.
#[inline]
fn place_of(path: &TxPath) -> u8 {
    let (_, address) = path.gid_bits();
    let mixed = (address as u64 ^ (address >> 64) as u64 ^ u64::from(path.door()) << 32)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

#[cfg(test)]
mod tests {
    use vernic_proto::{AttrMask, QpAttr, SendFlags, SendOp};
    use vernic_wire::{PortNum, Qkey};

    use super::*;
    use crate::testing::{post_writes, rc_pair, ud_qp, without_background};
    use crate::{AddressVector, Config, Context, Cq, Dest, EMPTY_WC, Payload, Qp, QpCap, SendWr};

    /// Pairs, and the requests that each end of them has.
    const PAIRS: usize = 100;
    const DEPTH: u32 = 16;

    fn pairs(context: &Arc<Context>, cq: &Arc<Cq>) -> Vec<Arc<Qp>> {
        (0..PAIRS).flat_map(|_| rc_pair(context, cq, DEPTH)).collect()
    }

    fn post(qps: &[Arc<Qp>]) {
        qps.iter().for_each(|qp| post_writes(qp, DEPTH as usize));
    }

    /// Packets in flight, and queue pairs that wait.
    fn totals(context: &Context) -> (u64, usize) {
        context.engine().with_lane(|lane| {
            let budgets = &lane.budgets;
            (budgets.budgets.iter().map(|budget| budget.in_flight).sum(), budgets.waiting)
        })
    }

    #[test]
    fn many_queue_pairs_have_no_more_in_flight_together_than_their_budget() {
        let context = without_background();
        let cq = context.create_cq(8192, None).unwrap();
        let qps = pairs(&context, &cq);
        post(&qps);
        let (in_flight, waiting) = totals(&context);
        // What is in flight is a turn beyond the limit at most.
        let most = INITIAL + u64::from(DEPTH);
        assert!((INITIAL..=most).contains(&in_flight), "{in_flight} in flight");
        assert_eq!(waiting, qps.len() - (in_flight / u64::from(DEPTH)) as usize);

        let mut left = qps.len() * DEPTH as usize;
        while left != 0 {
            left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap();
        }
        assert_eq!(totals(&context), (0, 0));
    }

    #[test]
    fn nobody_waits_for_long_behind_what_is_never_acknowledged() {
        let context = without_background();
        let cq = context.create_cq(8192, None).unwrap();
        let qps = pairs(&context, &cq);
        // Nothing is received until somebody polls, as if the peers were stopped.
        let before = context.now();
        post(&qps);
        let (_, waiting) = totals(&context);
        let (early, late) = context.engine().with_lane(|lane| {
            let mut ready = VecDeque::new();
            lane.budgets.let_in(&mut ready, before + (PATIENCE_NANOS - 1));
            let early = ready.len();
            // The next look is planned for then.
            let next = lane.budgets.next_at(before).unwrap();
            lane.budgets.let_in(&mut lane.ready, next);
            (early, lane.ready.len())
        });
        assert_eq!((early, late), (0, 1));
        context.progress();
        assert!(totals(&context).1 < waiting);
    }

    #[test]
    fn queue_pairs_that_wait_are_let_in_though_another_is_always_ready() {
        // Calls to send, and the datagrams that are more than so many send.
        const CALLS: usize = 4;
        const DATAGRAMS: usize = 6000;
        let mut config = Config::default();
        config.set("device", "lo").unwrap();
        config.set("pace", "off").unwrap();
        let context = Context::open(None, config).unwrap();
        context.stop_background();
        let cq = context.create_cq(8192, None).unwrap();
        let qps = pairs(&context, &cq);
        post(&qps);
        let (pd, own) = (context.alloc_pd(), context.create_cq(8192, None).unwrap());
        let cap = QpCap { max_send_wr: DATAGRAMS as u32, max_inline: 1024, ..QpCap::default() };
        let busy = ud_qp(&pd, &own, cap);
        let entry = context.gid_table()[0].clone();
        let (dgid, sgid_index) = (entry.gid, entry.index);
        let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..Default::default() };
        let ah = pd.create_ah(av).unwrap();
        let dest = Some(Dest { ah: &ah, qpn: busy.qpn(), qkey: Qkey(1) });
        let (op, payload) = (SendOp::Send, Payload::Inline(&[&[7; 1024]]));
        let flags = SendFlags::empty();
        let datagram = SendWr { wr_id: 0, op, flags, payload, dest, srqn: None };
        busy.post_send(&vec![datagram; DATAGRAMS]).unwrap();

        let (_, before) = totals(&context);
        let late = context.now() + PATIENCE_NANOS;
        let engine = context.engine();
        (0..CALLS).for_each(|_| engine.with_lane(|lane| lane.transmit(engine, late)));
        assert!((own.waiting() as usize) < DATAGRAMS, "{DATAGRAMS} datagrams are too few");
        let (_, after) = totals(&context);
        assert!(after + CALLS <= before, "{before} waited, and {after} still do");
    }

    #[test]
    fn queue_pairs_in_error_flush_though_their_budget_is_full() {
        let context = without_background();
        let cq = context.create_cq(8192, None).unwrap();
        let own = context.create_cq(64, None).unwrap();
        let qps = pairs(&context, &cq);
        let late = pairs(&context, &own).swap_remove(0);
        post(&qps);
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        late.modify(&attr, AttrMask::STATE).unwrap();
        post(std::slice::from_ref(&late));
        assert_ne!(totals(&context).1, 0);
        assert_eq!(own.waiting(), DEPTH);
    }

    #[test]
    fn queue_pairs_whose_neighbour_is_gone_leave_nothing_of_theirs_in_flight() {
        let mut config = Config::default();
        config.set("same_host", "on").unwrap();
        let context = Context::open(Some("lo"), config).unwrap();
        context.stop_background();
        let cq = context.create_cq(8192, None).unwrap();
        let qps = pairs(&context, &cq);
        let is_shared = |qp: &Arc<Qp>| matches!(qp.route(), crate::Route::SharedMemory { .. });
        // By the wire, so that they have a budget, and then through memory.
        for round in 0..2 {
            post(&qps);
            let mut left = qps.len() * DEPTH as usize;
            while left != 0 {
                left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap();
            }
            assert!(qps.iter().all(|qp| is_shared(qp) == (round == 1)));
            context.engine().serve_neighbours();
        }
        post(&qps);
        assert_ne!(totals(&context).0, 0);
        let engine = context.engine();
        engine.with_lane(|lane| {
            let ids: Vec<_> = lane.near.places.clone();
            ids.iter().for_each(|&at| {
                lane.near.break_off(at, &vernic_io::neighbour::RingBroken::Position);
            });
        });
        engine.serve_neighbours();
        assert_eq!(totals(&context), (0, 0));
        assert!(qps.iter().all(|qp| qp.state() == QpState::Error));
    }

    #[test]
    fn queue_pairs_that_end_leave_nothing_of_theirs_in_flight() {
        let context = without_background();
        let cq = context.create_cq(8192, None).unwrap();
        let mut qps = pairs(&context, &cq);
        post(&qps);
        assert_ne!(totals(&context), (0, 0));
        let destroyed = qps.split_off(PAIRS);
        drop(destroyed);
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        qps.iter().for_each(|qp| qp.modify(&attr, AttrMask::STATE).unwrap());
        assert_eq!(totals(&context), (0, 0));
    }
}

//! Tests of destination windows, and of the bounds on how long queue pairs wait.

use std::sync::{Mutex, MutexGuard};

use vernic_proto::congestion::{Acked, Congestion, Sent};
use vernic_proto::{AttrMask, QpAttr, SendFlags, SendOp};
use vernic_wire::{Kind, PortNum, Qkey};

use super::destination_aimd;
use super::*;
use crate::testing::{post_writes, rc_pair, ud_qp, without_background};
use crate::{AddressVector, Config, Context, Cq, Dest, EMPTY_WC, Payload, Qp, QpCap, SendWr};

/// The number of connected pairs of queue pairs. `DEPTH` is the number of requests that each queue
/// pair may have outstanding: as many as one turn sends at first.
const PAIRS: usize = 100;
const DEPTH: u32 = 4;
/// The packets that may be in flight to one destination at first.
const INITIAL: u64 = destination_aimd::INITIAL as u64;

fn pairs(context: &Arc<Context>, cq: &Arc<Cq>) -> Vec<Arc<Qp>> {
    (0..PAIRS).flat_map(|_| rc_pair(context, cq, DEPTH)).collect()
}

fn post(qps: &[Arc<Qp>]) {
    qps.iter().for_each(|qp| post_writes(qp, DEPTH as usize));
}

/// Returns the packets in flight, and the number of queue pairs that wait.
fn totals(context: &Context) -> (u64, usize) {
    context.engine().with_lane(|lane| lane.sched().window_totals())
}

#[test]
fn many_queue_pairs_have_no_more_in_flight_together_than_their_budget() {
    let context = without_background();
    let cq = context.create_cq(8192, None).unwrap();
    let qps = pairs(&context, &cq);
    post(&qps);
    let (in_flight, waiting) = totals(&context);
    // The packets in flight exceed the limit of the window by those of one turn at most.
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
fn what_one_queue_pair_learns_of_its_peer_those_that_wait_beside_it_know() {
    let context = without_background();
    let cq = context.create_cq(8192, None).unwrap();
    let qps = pairs(&context, &cq);
    let keeps = |qp: &&Arc<Qp>| {
        lock(&qp.inner().core).machine.packets().is_some_and(|machine| machine.asks_kept())
    };
    post(&qps);
    assert_eq!(qps.iter().filter(keeps).count(), 0);
    let path = *lock(&qps[0].inner().core).side.peer.path().unwrap();
    context.engine().with_lane(|lane| lane.sched().windows.learn(&path));
    let mut left = qps.len() * DEPTH as usize;
    while left != 0 {
        left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap();
    }
    // Those whose first turn came before it had an answer had not waited.
    let know = qps.iter().filter(keeps).count();
    assert!(know > PAIRS, "{know}");
}

#[test]
fn nobody_waits_for_long_behind_what_is_never_acknowledged() {
    let context = without_background();
    let cq = context.create_cq(8192, None).unwrap();
    let qps = pairs(&context, &cq);
    // Nothing is received until the test polls, as if the peers were stopped.
    let before = context.now();
    post(&qps);
    let (_, waiting) = totals(&context);
    let (early, late) = context.engine().with_lane(|lane| {
        let sched = lane.sched();
        sched.admit_waiting(before + (PATIENCE_NANOS - 1));
        let early = sched.ready_len();
        // The next poll is planned for the end of the wait.
        let next = sched.windows.next_at(&sched.entries, before).unwrap();
        sched.admit_waiting(next);
        (early, sched.ready_len())
    });
    assert_eq!((early, late), (0, 1));
    context.progress();
    assert!(totals(&context).1 < waiting);
}

#[test]
fn queue_pairs_that_wait_are_let_in_though_another_is_always_ready() {
    // The number of calls that send. `DATAGRAMS` is more than that many calls can send.
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
fn queue_pairs_of_a_local_peer_have_nothing_in_flight_on_the_path_to_it() {
    let mut config = Config::default();
    config.set("same_host", "on").unwrap();
    let context = Context::open(Some("lo"), config).unwrap();
    context.stop_background();
    let cq = context.create_cq(8192, None).unwrap();
    let qps = pairs(&context, &cq);
    let is_shared = |qp: &Arc<Qp>| matches!(qp.route(), crate::Route::SharedMemory { .. });
    // The first round sends by the wire, so that the queue pairs have a destination window. The
    // second sends through shared memory.
    for round in 0..2 {
        post(&qps);
        let mut left = qps.len() * DEPTH as usize;
        while left != 0 {
            left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap();
        }
        assert!(qps.iter().all(|qp| is_shared(qp) == (round == 1)));
        context.engine().serve_local_peers();
    }
    post(&qps);
    assert_eq!(totals(&context), (0, 0));
    let engine = context.engine();
    engine.with_lane(|lane| lane.rings_mut().break_all());
    engine.serve_local_peers();
    assert_eq!(totals(&context), (0, 0));
    assert!(qps.iter().all(|qp| qp.state() == QpState::Error));
}

#[test]
fn requests_are_flushed_though_a_ring_to_the_peer_came_after_those_in_flight() {
    let mut config = Config::default();
    config.set("same_host", "on").unwrap();
    let context = Context::open(Some("lo"), config).unwrap();
    context.stop_background();
    let cq = context.create_cq(64, None).unwrap();
    let qps = rc_pair(&context, &cq, DEPTH);
    // Sent by the wire, and not acknowledged: nothing is received.
    post_writes(&qps[0], 1);
    let engine = context.engine();
    while engine.with_lane(|lane| lane.local_peers().is_empty()) {
        engine.serve_local_peers();
    }
    engine.serve_local_peers();
    qps[0].modify(&QpAttr { state: QpState::Error, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    post_writes(&qps[0], 2);
    let mut wcs = [EMPTY_WC; 4];
    let mut flushed = 0;
    for _ in 0..10 {
        flushed += cq.poll(&mut wcs).unwrap();
    }
    assert_eq!(flushed, 3);
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

/// What a controller answers, and the sums of what it heard.
#[derive(Debug, Default)]
struct Script {
    window: u32,
    /// Packets keep the next back for so many nanoseconds.
    gap: Option<u64>,
    not_before: Option<Time>,
    sent: u64,
    again: u64,
    acked: u64,
    silences: u64,
    contended: Vec<bool>,
}

/// A congestion controller that answers as its script says, and writes down in the script each
/// event that it is told.
#[derive(Clone, Debug)]
struct Scripted(Arc<Mutex<Script>>);

impl Scripted {
    /// Makes it the controller of all destinations of a device.
    fn of(context: &Context, window: u32, gap: Option<u64>) -> Self {
        let not_before = gap.map(|_| Time(0));
        let script = Script { window, gap, not_before, ..Script::default() };
        let scripted = Self(Arc::new(Mutex::new(script)));
        context.set_destination_control(|| Box::new(scripted.clone()));
        scripted.script().contended.clear();
        scripted
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.0)
    }
}

impl Congestion for Scripted {
    fn reset(&mut self) {
        unreachable!("others share it");
    }
    fn on_sent(&mut self, now: Time, sent: Sent) {
        let mut script = self.script();
        script.sent += u64::from(sent.packets);
        script.again += u64::from(sent.packets) * u64::from(sent.again);
        script.not_before = script.gap.map(|gap| now + gap);
    }
    fn on_ack(&mut self, _: Time, acked: Acked) {
        self.script().acked += u64::from(acked.packets);
    }
    fn on_loss(&mut self, _: Time) {}
    fn on_mark(&mut self, _: Time, _: Kind) {}
    fn on_cnp(&mut self, _: Time) {}
    fn on_silence(&mut self, _: Time) {
        self.script().silences += 1;
    }
    fn on_contention(&mut self, contended: bool) {
        let mut script = self.script();
        if script.contended.last() != Some(&contended) {
            script.contended.push(contended);
        }
    }
    fn window(&self) -> u32 {
        self.script().window
    }
    fn not_before(&self) -> Option<Time> {
        self.script().not_before
    }
}

#[test]
fn another_controller_may_bound_what_is_in_flight_to_a_destination() {
    const WINDOW: u32 = 8;
    let context = without_background();
    let cq = context.create_cq(8192, None).unwrap();
    let qps = pairs(&context, &cq);
    let controller = Scripted::of(&context, WINDOW, None);
    qps.iter().for_each(|qp| post_writes(qp, 1));
    assert_eq!(totals(&context), (u64::from(WINDOW), qps.len() - WINDOW as usize));
    assert_eq!(controller.script().sent, u64::from(WINDOW));

    let mut left = qps.len();
    while left != 0 {
        left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap();
        assert!(totals(&context).0 <= u64::from(WINDOW));
    }
    assert_eq!(totals(&context), (0, 0));
    let script = controller.script();
    let all = qps.len() as u64;
    assert_eq!((script.sent - script.again, script.acked), (all, all));
    assert_eq!(script.contended, [true, false]);
}

#[test]
fn a_controller_that_paces_keeps_every_queue_pair_back_until_its_time_has_come() {
    // Longer than queue pairs wait for room, and than a test takes.
    const GAP: u64 = 1000 * PATIENCE_NANOS;
    let context = without_background();
    let cq = context.create_cq(64, None).unwrap();
    let qps = [rc_pair(&context, &cq, DEPTH), rc_pair(&context, &cq, DEPTH)].concat();
    let controller = Scripted::of(&context, u32::MAX, Some(GAP));
    // The first leaves, and then not even the queue pair that has all that is in flight may send.
    post_writes(&qps[0], 1);
    post_writes(&qps[0], 1);
    qps.iter().skip(1).for_each(|qp| post_writes(qp, 1));
    let engine = context.engine();
    let all = qps.len() as u64 + 1;
    for sent in 1..all {
        let opens = controller.script().not_before.unwrap();
        let before = Time(opens.nanos() - 1);
        // Nor one whose timer fired.
        let planned = engine.with_lane(|lane| {
            lane.sched().exempt(qps[1].inner());
            lane.sched().make_ready(qps[1].inner());
            lane.transmit(engine, before);
            let sched = lane.sched();
            sched.windows.next_at(&sched.entries, before)
        });
        assert_eq!((controller.script().sent, planned), (sent, Some(opens)));
        engine.with_lane(|lane| lane.transmit(engine, opens));
        assert_eq!(controller.script().sent, sent + 1);
    }
    assert_eq!(totals(&context), (all, 0));
}

#[test]
fn a_controller_of_a_destination_hears_of_silence_and_of_what_is_sent_again() {
    let mut config = Config::default();
    config.set("device", "lo").unwrap();
    config.set("fault", "loss=1").unwrap();
    let context = Context::open(None, config).unwrap();
    context.stop_background();
    let cq = context.create_cq(64, None).unwrap();
    let qps = rc_pair(&context, &cq, DEPTH);
    let controller = Scripted::of(&context, 64, None);
    post_writes(&qps[0], 3);
    let engine = context.engine();
    let due = lock(&qps[0].inner().core).machine.next_deadline().unwrap();
    let mut at = due;
    while controller.script().silences == 0 {
        engine.with_lane(|lane| lane.fire_timers(engine, at));
        at = at + PATIENCE_NANOS;
    }
    engine.with_lane(|lane| lane.transmit(engine, at));
    let script = controller.script();
    assert_eq!((script.sent, script.again, script.acked, script.silences), (6, 3, 0, 1));
}

/// A generator of random numbers (xorshift), so that a failure can be repeated with its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Checks under the lane that each queue pair with something to send has a standing that brings a
/// turn, and that none has waited for a window for twice [`PATIENCE_NANOS`].
fn check_standings(context: &Context, now: Time, seed: u64) {
    context.engine().with_lane(|lane| {
        let qps: Vec<_> = lane.table().iter().cloned().collect();
        for qp in &qps {
            let standing = lane.sched().standing_of(qp);
            let core = lock(&qp.core);
            let has_work = core.machine.wants_requests() || core.machine.wants_responses();
            // All doorbells were answered when the lane was taken.
            assert!(!has_work || standing != Standing::Idle, "seed {seed}: {} is idle", qp.qpn());
            let since = lane.sched().entries.since(qp.mark.index());
            let waited = since.map_or(0, |since| now.since(since));
            assert!(waited < 2 * PATIENCE_NANOS, "seed {seed}: {} waited {waited} ns", qp.qpn());
        }
    });
}

#[test]
fn no_queue_pair_with_work_is_idle_and_none_waits_beyond_its_bound() {
    const SEEDS: u64 = 24;
    const STEPS: usize = 120;
    for seed in 1..=SEEDS {
        let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let context = without_background();
        let cq = context.create_cq(16_384, None).unwrap();
        let qps = pairs(&context, &cq);
        let engine = context.engine();
        let mut outstanding = vec![0_u32; qps.len()];
        // The lane's clock runs ahead of the device's, so that waits end in a test of some ms.
        let mut ahead = 0;
        for _ in 0..STEPS {
            ahead += chance.below(PATIENCE_NANOS / 4);
            match chance.below(4) {
                0 | 1 => {
                    let at = chance.below(qps.len() as u64) as usize;
                    let room = u64::from(DEPTH - outstanding[at]);
                    let count = chance.below(room + 1);
                    post_writes(&qps[at], count as usize);
                    outstanding[at] += count as u32;
                }
                2 => {
                    let mut wcs = [EMPTY_WC; 64];
                    let taken = cq.poll(&mut wcs).unwrap();
                    for wc in &wcs[..taken] {
                        let at = qps.iter().position(|qp| qp.qpn() == wc.qpn).unwrap();
                        outstanding[at] -= 1;
                    }
                }
                _ => {
                    let now = engine.now() + ahead;
                    engine.with_lane(|lane| lane.transmit(engine, now));
                }
            }
            check_standings(&context, engine.now(), seed);
        }
        // All requests complete.
        let mut left: u32 = outstanding.iter().sum();
        while left != 0 {
            left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap() as u32;
        }
        assert_eq!(totals(&context), (0, 0), "seed {seed}");
    }
}

//! Tests of the policy: the purpose of each constant and, in the model of a machine, what the
//! policy as a whole achieves.

use vernic_proto::Time;

use super::model::{Broken, Machine, Packet, Role, SLICE, TAKEOVER};
use super::table::ROWS;
use super::*;

mod behaviour;

/// Returns the table with a change.
fn but(change: impl FnOnce(&mut Table)) -> Table {
    let mut table = TABLE;
    change(&mut table);
    table
}

#[test]
fn each_row_of_the_table_has_a_test() {
    let tests = include_str!("tests.rs");
    for row in ROWS {
        assert!(tests.contains(&format!("\nfn {row}_")), "{row}: no test is named for it");
    }
}

/// Makes polls that find nothing at these times; returns for each whether the thread then yields
/// its core.
fn offers(cells: &Cells, times: &[u64]) -> Vec<bool> {
    let offers = |at: &u64| cells.polled(false, Time(*at)) == AfterPoll::OfferCore;
    times.iter().map(offers).collect()
}

#[test]
fn offer_after_nanos_is_how_long_a_poller_finds_nothing_before_it_offers_its_core() {
    let (cells, nanos) = (Cells::default(), TABLE.offer_after_nanos);
    let times = [1_000, 1_000 + nanos - 1, 1_000 + nanos, 1_000 + 2 * nanos - 1, 1_000 + 2 * nanos];
    assert_eq!(offers(&cells, &times), [false, false, true, false, true]);
    // The poll found something, so the time counts from the next poll on.
    assert_eq!(cells.polled(true, Time(90_000)), AfterPoll::Return);
    assert_eq!(offers(&cells, &[91_000, 91_000 + nanos - 1, 91_000 + nanos]), [false, false, true]);
}

#[test]
fn long_offer_nanos_tells_a_peer_that_answers_from_a_thread_that_computes() {
    assert_eq!(poller::offer_after(&TABLE, 2_000), TABLE.offer_after_nanos);
    assert_eq!(poller::offer_after(&TABLE, TABLE.long_offer_nanos), TABLE.offer_after_nanos);
    assert_eq!(poller::offer_after(&TABLE, 3_000_000), TABLE.wary_offer_after_nanos);
    const { assert!(TABLE.long_offer_nanos < SLICE / 2, "less than a time slice") };
}

#[test]
fn wary_offer_after_nanos_is_how_long_a_poller_keeps_its_core_after_a_long_offer() {
    let (cells, wary) = (Cells::default(), TABLE.wary_offer_after_nanos);
    cells.offered(&TABLE, 3_000_000);
    let times = [1_000, 1_000 + TABLE.offer_after_nanos, 1_000 + wary - 1, 1_000 + wary];
    assert_eq!(offers(&cells, &times), [false, false, false, true]);
    cells.offered(&TABLE, 2_000);
    let again = 1_000 + wary + TABLE.offer_after_nanos;
    assert_eq!(offers(&cells, &[again]), [true], "the peer is back");
}

/// Returns the decisions after so many polls without the lane.
fn without_lane(cells: &Cells, polls: u32) -> Vec<AfterPoll> {
    (0..polls).map(|_| cells.polled_without_lane(&TABLE)).collect()
}

#[test]
fn polls_per_offer_is_how_often_a_poller_misses_the_lane_before_it_offers_its_core() {
    let cells = Cells::default();
    let all = without_lane(&cells, TABLE.polls_per_offer);
    let (last, first) = all.split_last().unwrap();
    assert_eq!(*last, AfterPoll::OfferCore);
    assert!(first.iter().all(|after| *after == AfterPoll::Return));
}

#[test]
fn polls_per_rest_is_how_often_a_poller_misses_a_lane_that_no_other_gets_before_it_sleeps() {
    let cells = Cells::default();
    let all = without_lane(&cells, TABLE.polls_per_rest);
    assert_eq!(all.iter().position(|after| *after == AfterPoll::Rest), Some(all.len() - 1));
    // Other threads get the lane in turn, so the lane is not stuck.
    let cells = Cells::default();
    for _ in 0..2 * TABLE.polls_per_rest / TABLE.polls_per_offer {
        cells.called(Time(1));
        assert!(!without_lane(&cells, TABLE.polls_per_offer).contains(&AfterPoll::Rest));
    }
}

#[test]
fn rest_nanos_lets_a_holder_of_a_lower_priority_finish() {
    // On the only core, where yielding lets no thread of a lower priority run.
    let completes = |table: &Table| {
        let mut machine = Machine::new(1, 1, table, Broken::Nothing);
        let device = machine.device();
        machine.thread(device, Role::Holder { nanos: 50_000 }, false);
        machine.run(machine.now + 20_000);
        machine.thread(device, Role::PingPong { seen: 0 }, true);
        machine.arrives(machine.now, device, Packet::Completion);
        machine.run(machine.now + 20 * SLICE);
        machine.devices[device].completions == 1
    };
    assert!(completes(&TABLE));
    assert!(!completes(&but(|table| table.polls_per_rest = u32::MAX)));
}

#[test]
fn polls_per_progress_lets_acknowledgements_leave_within_a_batch_of_completions() {
    // A device answers within its window, of which the smallest is 32 packets.
    assert!((2..=32).contains(&TABLE.polls_per_progress));
}

fn judged(policy: &mut Background, calls: u64) -> Next {
    policy.after(&TABLE, Event::Judged { calls, is_armed: false })
}

const NOTHING: Event = Event::Polled { found: false, is_done: true, silent_nanos: 0 };

#[test]
fn active_calls_end_the_watching_unless_a_queue_is_armed() {
    let mut policy = Background::new(TAKEOVER);
    assert_eq!(judged(&mut policy, TABLE.active_calls - 1), Next::Poll);
    assert_eq!(judged(&mut policy, 2 * TABLE.active_calls - 1), Next::BackOff);
    let armed = Event::Judged { calls: 1_000, is_armed: true };
    assert_eq!(policy.after(&TABLE, armed), Next::Poll);
    // Armed after the thread judged: the thread does not sleep.
    let armed = Event::BackedOff { is_armed: true, caller_sleeps: false };
    assert_eq!(policy.after(&TABLE, armed), Next::Judge);
}

#[test]
fn staying_calls_keep_it_away_once_it_is() {
    let mut policy = Background::new(TAKEOVER);
    judged(&mut policy, 100);
    let away = Event::BackedOff { is_armed: false, caller_sleeps: false };
    assert_eq!(policy.after(&TABLE, away), Next::Pause { nanos: TAKEOVER });
    assert_eq!(policy.after(&TABLE, Event::Paused { caller_sleeps: false }), Next::Judge);
    assert_eq!(judged(&mut policy, 100 + TABLE.staying_calls), Next::BackOff);
    policy.after(&TABLE, away);
    policy.after(&TABLE, Event::Paused { caller_sleeps: false });
    assert_eq!(judged(&mut policy, 100 + 2 * TABLE.staying_calls - 1), Next::Poll);
}

#[test]
fn calls_of_a_copy_let_a_thread_that_copies_count_as_one_that_polls() {
    let (cells, mut policy) = (Cells::default(), Background::new(TAKEOVER));
    // While the thread does not back off, a copy is no sign of a poller.
    cells.called(Time(1));
    cells.pulled(&TABLE);
    assert_eq!(cells.calls(), 1);
    judged(&mut policy, 1 + TABLE.active_calls);
    assert!(matches!(cells.back_off(), Event::BackedOff { is_armed: false, .. }));
    let away = Event::BackedOff { is_armed: false, caller_sleeps: false };
    policy.after(&TABLE, away);
    policy.after(&TABLE, Event::Paused { caller_sleeps: false });
    // At 17 GB/s, the messages of 1 MiB of a take-over time.
    for _ in 0..TAKEOVER * 17 / (1 << 20) {
        cells.called(Time(2));
        cells.pulled(&TABLE);
    }
    let calls = 1 + TABLE.active_calls + cells.calls();
    assert_eq!(judged(&mut policy, calls), Next::BackOff);
    // One of them is not enough.
    policy.after(&TABLE, away);
    policy.after(&TABLE, Event::Paused { caller_sleeps: false });
    let before = cells.calls();
    cells.called(Time(3));
    cells.pulled(&TABLE);
    assert_eq!(judged(&mut policy, calls + cells.calls() - before), Next::Poll);
}

/// Returns for how many rounds the thread watches, although application threads call, after it has
/// backed off and then found packets `silent_nanos` after the last call.
fn rounds_after(silent_nanos: u64, table: &Table) -> usize {
    let mut policy = Background::new(TAKEOVER);
    let mut calls = 100;
    policy.after(table, Event::Judged { calls, is_armed: false });
    policy.after(table, Event::BackedOff { is_armed: false, caller_sleeps: false });
    policy.after(table, Event::Paused { caller_sleeps: false });
    policy.after(table, Event::Judged { calls, is_armed: false });
    policy.after(table, Event::Polled { found: true, is_done: false, silent_nanos });
    policy.after(table, NOTHING);
    let mut rounds = 0;
    loop {
        calls += 1_000;
        if policy.after(table, Event::Judged { calls, is_armed: false }) == Next::BackOff {
            return rounds;
        }
        policy.after(table, NOTHING);
        rounds += 1;
    }
}

#[test]
fn silence_nanos_tells_a_program_that_waits_for_its_memory_from_one_that_polls() {
    assert_eq!(rounds_after(TABLE.silence_nanos, &TABLE), 0);
    assert_ne!(rounds_after(TABLE.silence_nanos + 1, &TABLE), 0);
}

#[test]
fn longer_rests_leave_an_application_with_long_calls_its_core() {
    let mut policy = Background::new(TAKEOVER);
    let mut rests = |times: usize| -> Vec<u64> {
        let rest = |_| match policy.after(&TABLE, Event::Taken) {
            Next::Rest { nanos } => nanos / 1000,
            other => panic!("{other:?}"),
        };
        (0..times).map(rest).collect()
    };
    assert_eq!(rests(7), [20, 40, 80, 160, 320, 500, 500], "at most the take-over time");
    let found = Event::Polled { found: true, is_done: true, silent_nanos: 0 };
    assert_eq!(policy.after(&TABLE, found), Next::Watch);
    let first = Next::Rest { nanos: TABLE.rest_nanos };
    assert_eq!(policy.after(&TABLE, Event::Taken), first, "it had the lane");
}

#[test]
fn ignore_callers_rounds_are_watched_whatever_the_calls() {
    assert_eq!(rounds_after(1_000_000, &TABLE), TABLE.ignore_callers_rounds as usize);
    assert_eq!(rounds_after(1_000_000, &but(|table| table.ignore_callers_rounds = 3)), 3);
}

#[test]
fn count_nanos_is_how_long_it_counts_calls_after_a_thread_went_to_rest() {
    let count = Next::Count { nanos: TABLE.count_nanos };
    let mut policy = Background::new(TAKEOVER);
    judged(&mut policy, 100);
    let caller_sleeps = Event::BackedOff { is_armed: false, caller_sleeps: true };
    assert_eq!(policy.after(&TABLE, caller_sleeps), count);
    assert_eq!(policy.after(&TABLE, Event::Paused { caller_sleeps: true }), count);
    const { assert!(TABLE.count_nanos < TAKEOVER / 5, "nobody notices") };
}

#[test]
fn count_calls_mean_that_another_thread_polls() {
    let mut policy = Background::new(TAKEOVER);
    judged(&mut policy, 100);
    policy.after(&TABLE, Event::BackedOff { is_armed: false, caller_sleeps: true });
    let many = Event::Counted { before: 150, after: 150 + TABLE.count_calls };
    assert_eq!(policy.after(&TABLE, many), Next::Stay { nanos: TAKEOVER });
    assert_eq!(policy.after(&TABLE, Event::Stayed), Next::Judge);
    let few = Event::Counted { before: 150, after: 150 + TABLE.count_calls - 1 };
    assert_eq!(policy.after(&TABLE, few), Next::Judge);
    assert_eq!(judged(&mut policy, 152), Next::Poll, "it takes over");
}

#[test]
fn polls_per_round_bound_how_long_it_does_not_ask_whether_others_poll() {
    let mut policy = Background::new(TAKEOVER);
    let found = Event::Polled { found: true, is_done: false, silent_nanos: 0 };
    for _ in 0..2 {
        assert_eq!(judged(&mut policy, 0), Next::Poll);
        for _ in 1..TABLE.polls_per_round {
            assert_eq!(policy.after(&TABLE, found), Next::Poll);
        }
        assert_eq!(policy.after(&TABLE, found), Next::ServeOthers);
    }
    // A lane that is taken: its holder may be of a lower priority, or need this core.
    judged(&mut policy, 0);
    assert_eq!(policy.after(&TABLE, Event::Taken), Next::Rest { nanos: TABLE.rest_nanos });
}

#[test]
fn report_nanos_is_far_longer_than_a_round_and_shorter_than_anybody_notices() {
    assert!((500_000..=100_000_000).contains(&TABLE.report_nanos));
}

/// Returns the decision about a post. The batch has `packets` packets with `bytes` bytes in all, a
/// thread polled `polled_nanos` ago, and the background thread backs off.
fn posted(in_flight: u64, packets: usize, bytes: usize, polled_nanos: u64) -> Post {
    let cells = Cells::default();
    cells.called(Time(1_000_000));
    cells.back_off();
    let now = Time(1_000_000 + polled_nanos);
    cells.posted(&TABLE, in_flight, || Gathered::new(packets, bytes), now, TAKEOVER)
}

#[test]
fn gather_in_flight_is_how_many_stand_before_a_post_that_waits() {
    assert_eq!(posted(TABLE.gather_in_flight - 1, 1, 64, 0), Post::SendNow);
    assert_eq!(posted(TABLE.gather_in_flight, 1, 64, 0), Post::Gather);
}

#[test]
fn gather_share_of_those_in_flight_may_wait() {
    let share = 40 / TABLE.gather_share as usize;
    assert_eq!(posted(40, share - 1, 64, 0), Post::Gather);
    assert_eq!(posted(40, share, 64, 0), Post::SendNow);
}

#[test]
fn gather_packets_is_how_many_wait_at_most() {
    let most = TABLE.gather_packets as usize;
    assert_eq!(posted(10_000, most - 1, 64, 0), Post::Gather);
    assert_eq!(posted(10_000, most, 64, 0), Post::SendNow);
}

#[test]
fn gather_bytes_is_how_much_waits_at_most() {
    assert_eq!(posted(64, 2, TABLE.gather_bytes - 1, 0), Post::Gather);
    assert_eq!(posted(64, 2, TABLE.gather_bytes, 0), Post::SendNow);
}

#[test]
fn gather_polled_nanos_is_how_lately_a_thread_must_have_polled_while_nobody_else_looks() {
    assert_eq!(posted(64, 2, 64, TABLE.gather_polled_nanos), Post::Gather);
    assert_eq!(posted(64, 2, 64, TABLE.gather_polled_nanos + 1), Post::SendNow);
}

#[test]
fn a_post_waits_only_for_a_look_within_the_take_over_time() {
    let cells = Cells::default();
    let now = Time(1_000_000);
    let post = || {
        let gathered = || Gathered::new(1, 64);
        cells.posted(&TABLE, 64, gathered, now, TAKEOVER)
    };
    cells.plan_poll(Some(now + TAKEOVER));
    assert_eq!(post(), Post::Gather);
    cells.plan_poll(Some(now + (TAKEOVER + 1)));
    assert_eq!(post(), Post::SendNow);
    cells.plan_poll(None);
    assert_eq!(post(), Post::SendNow, "it sleeps until a packet comes");
}

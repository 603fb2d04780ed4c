//! Tests of the policy in the model of a machine: bounds that hold for programs whatever the
//! schedule, and that do not hold if the policy is broken on purpose.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn never_offers() -> Table {
    but(|table| {
        (table.offer_after_nanos, table.wary_offer_after_nanos) = (u64::MAX, u64::MAX);
        table.polls_per_offer = u32::MAX;
    })
}

fn never_takes_over() -> Table {
    but(|table| (table.active_calls, table.staying_calls) = (0, 0))
}

/// Returns latencies of WRITEs to a program that polls for its own send and then only reads its
/// memory.
fn memory_latencies(cores: usize, seed: u64, table: &Table) -> Vec<u64> {
    let mut machine = Machine::new(cores, seed, table, Broken::Nothing);
    let device = machine.device();
    machine.thread(device, Role::MemorySpinner { seen: 0, polls: 0, completions: 0 }, false);
    let first = 10_000 + machine.random(1_000_000);
    machine.arrives(first, device, Packet::Write);
    machine.run(SECOND / 8);
    let mut latencies = machine.devices[device].latencies.clone();
    latencies.push(machine.longest(device)[0]);
    latencies
}

#[test]
fn a_program_that_looks_at_its_memory_gets_packets_within_two_take_over_times_and_slices() {
    for cores in [1, 2] {
        // The background thread may have judged twice that a thread polls, each time just before
        // the thread stopped polling.
        let bound = 2 * TAKEOVER + if cores == 1 { 2 * SLICE } else { 50_000 };
        for seed in 1..10 {
            let mut latencies = memory_latencies(cores, seed, &TABLE);
            let worst = latencies.iter().copied().max().unwrap();
            assert!(worst <= bound, "{cores} cores, seed {seed}: {worst} ns");
            latencies.sort_unstable();
            let median = latencies[latencies.len() / 2];
            assert!(cores == 1 || median < 20_000, "seed {seed}: {median} ns, it is distrusted");
        }
        let worst = memory_latencies(cores, 1, &never_takes_over()).into_iter().max().unwrap();
        assert!(worst > bound, "it is not noticed that nobody takes over");
    }
    let mut trusting = memory_latencies(2, 1, &but(|table| table.ignore_callers_rounds = 0));
    trusting.sort_unstable();
    assert!(trusting[trusting.len() / 2] > TAKEOVER / 2, "distrust changes nothing");
}

/// Returns the messages of a ping-pong in an eighth of a second, beside so many threads that
/// compute.
fn ping_pong(cores: usize, computes: usize, seed: u64, table: &Table) -> u64 {
    let mut machine = Machine::new(cores, seed, table, Broken::Nothing);
    let (a, b) = (machine.device(), machine.device());
    machine.connect(a, b);
    machine.thread(a, Role::PingPong { seen: 0 }, false);
    machine.thread(b, Role::PingPong { seen: 0 }, false);
    for _ in 0..computes {
        machine.thread(a, Role::Computes, false);
    }
    let first = machine.now + machine.random(100_000);
    machine.arrives(first, a, Packet::Completion);
    machine.run(SECOND / 8);
    machine.devices[a].completions + machine.devices[b].completions
}

#[test]
fn two_pollers_on_one_core_answer_each_other_in_far_less_than_a_time_slice() {
    let slices = SECOND / 8 / SLICE;
    for seed in 1..5 {
        let messages = ping_pong(1, 0, seed, &TABLE);
        assert!(messages > 50 * slices, "seed {seed}: {messages}");
    }
    let messages = ping_pong(1, 0, 1, &never_offers());
    assert!(messages < 3 * slices, "{messages}: it is not noticed that none offers its core");
    // If each polling thread has a core of its own, none needs to yield.
    assert!(ping_pong(2, 0, 1, &never_offers()) > 50 * slices);
}

#[test]
fn pollers_beside_threads_that_compute_keep_their_cores_for_a_while() {
    let wary = ping_pong(2, 2, 1, &TABLE);
    let eager = ping_pong(2, 2, 1, &but(|t| t.wary_offer_after_nanos = t.offer_after_nanos));
    assert!(wary > 2 * eager, "{wary} messages, {eager} where each gives its slices away");
}

#[test]
fn an_idle_device_sleeps() {
    let naps = |table: &Table| {
        let mut machine = Machine::new(2, 1, table, Broken::Nothing);
        let device = machine.device();
        machine.thread(device, Role::Rests { until: 3_000_000 }, false);
        machine.run(10_000_000);
        let before = machine.naps(device);
        machine.run(SECOND + 10_000_000);
        machine.naps(device) - before
    };
    assert_eq!(naps(&TABLE), 0);
    assert!(naps(&never_takes_over()) > 1_000, "it is not noticed that it never watches");
}

#[test]
fn a_thread_that_goes_to_rest_after_it_polled_is_stood_in_for_at_once() {
    let latency = |table: &Table, broken: Broken, seed: u64| {
        let mut machine = Machine::new(2, seed, table, broken);
        let device = machine.device();
        let until = 5_000_000 + machine.random(1_000_000);
        machine.thread(device, Role::Rests { until }, false);
        machine.arrives(until + 10_000, device, Packet::Completion);
        machine.run(until + 10_000_000);
        machine.longest(device)[0]
    };
    let bound = 3 * TABLE.count_nanos;
    let worst = (1..20).map(|seed| latency(&TABLE, Broken::Nothing, seed)).max().unwrap();
    assert!(worst < bound, "{worst} ns");
    let worst = (1..20).map(|seed| latency(&TABLE, Broken::Wakes, seed)).max().unwrap();
    assert!(worst > bound, "it is not noticed that nobody is told of the rest");
    let slow = but(|table| table.count_calls = 0);
    let worst = (1..20).map(|seed| latency(&slow, Broken::Nothing, seed)).max().unwrap();
    assert!(worst > bound, "it is not noticed that a thread at rest counts as one that polls");
}

#[test]
fn a_thread_that_sleeps_for_a_completion_gets_it_soon() {
    let latency = |broken: Broken, seed: u64| {
        let mut machine = Machine::new(2, seed, &TABLE, broken);
        let device = machine.device();
        machine.thread(device, Role::Sleeper { polls: 1_000, left: 0, pause: None }, false);
        let mut at = 1_000_000;
        for _ in 0..100 {
            at += 100_000 + machine.random(200_000);
            machine.arrives(at, device, Packet::Completion);
        }
        machine.run(at + SECOND / 10);
        machine.longest(device)[0]
    };
    let worst = |broken| (1..10).map(|seed| latency(broken, seed)).max().unwrap();
    assert!(worst(Broken::Nothing) < 50_000, "{} ns", worst(Broken::Nothing));
    assert!(worst(Broken::Wakes) > 100_000, "it is not noticed that an armed queue wakes nobody");
}

#[test]
fn posts_behind_many_others_share_calls_into_the_kernel() {
    let mut machine = Machine::new(2, 1, &TABLE, Broken::Nothing);
    let device = machine.device();
    let role = Role::Poster { gap: 1_000, batch: 32, turn: 0 };
    machine.thread(device, role, false);
    machine.run(SECOND / 10);
    let [_, posts, _] = machine.longest(device);
    assert!(posts <= TAKEOVER + 50_000, "{posts} ns");
    let posted = machine.devices[device].posted;
    let sends = machine.devices[device].sends;
    assert!(sends < posted / 4, "{posted} posts, {sends} calls");
}

/// Returns the longest wait of any packet, post or timer on a machine with random cores and
/// threads, and the bound for it.
fn worst_of(seed: u64, table: &Table, broken: Broken) -> (u64, u64) {
    let mut machine = Machine::new(1, seed, table, broken);
    let cores = 1 + machine.random(3) as usize;
    machine = Machine::new(cores, seed, table, broken);
    let devices: Vec<_> = (0..1 + machine.random(2)).map(|_| machine.device()).collect();
    let mut threads = devices.len() as u64;
    for &device in &devices {
        let mut has_sleeper = false;
        for _ in 0..machine.random(4) {
            let role = match machine.random(6) {
                0 => Role::PingPong { seen: 0 },
                1 => Role::MemorySpinner { seen: 0, polls: 0, completions: 0 },
                2 => {
                    let batch = machine.random(2) * machine.random(32);
                    Role::Poster { gap: machine.random(50_000), batch, turn: 0 }
                }
                3 => Role::Rests { until: machine.random(100_000_000) },
                4 if !has_sleeper => {
                    let pause = (machine.random(2) == 0).then(|| machine.random(1_000_000));
                    has_sleeper = pause.is_none();
                    let polls = 1 + machine.random(2_000);
                    Role::Sleeper { polls, left: 0, pause }
                }
                _ => Role::Computes,
            };
            machine.thread(device, role, false);
            threads += 1;
        }
    }
    let mut end = 0;
    for _ in 0..50 {
        end += machine.random(4_000_000);
        let device = devices[machine.random(devices.len() as u64) as usize];
        match machine.random(3) {
            0 => {
                machine.run(end);
                let due = machine.now + machine.random(1_000_000);
                machine.leave_timer(device, due);
            }
            1 => machine.arrives(end, device, Packet::Write),
            _ => machine.arrives(end, device, Packet::Completion),
        }
    }
    machine.run(end + SECOND / 80);
    let longest = devices.iter().flat_map(|&device| machine.longest(device)).max().unwrap_or(0);
    // Two take-over times: a thread that polled just before the background thread judged keeps that
    // thread away once more. In addition, the background thread waits for the slices of others each
    // time that it needs a core. So does a holder of the lane that lost its core.
    let turns = if threads > cores as u64 { 4 * threads * SLICE } else { 0 };
    (longest, 2 * TAKEOVER + 100_000 + turns)
}

#[test]
fn nothing_waits_beyond_its_bound_whatever_the_schedule() {
    let seeds = 1..100;
    for seed in seeds.clone() {
        let (longest, bound) = worst_of(seed, &TABLE, Broken::Nothing);
        assert!(longest <= bound, "seed {seed}: {longest} ns, bound {bound} ns");
    }
    let noticed = |table: &Table, broken: Broken| {
        seeds.clone().any(|seed| {
            let (longest, bound) = worst_of(seed, table, broken);
            longest > bound
        })
    };
    assert!(noticed(&TABLE, Broken::HandOver), "a lost plan is not noticed");
    assert!(noticed(&never_takes_over(), Broken::Nothing), "that nobody takes over is not noticed");
}

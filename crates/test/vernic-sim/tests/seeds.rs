//! Seeds run clean, the same seed gives the same run, and the oracle can fail.

use vernic_sim::{Count, Cover, Mutation, Plan, run};

#[test]
fn four_hundred_seeds_run_clean_and_exercise_everything() {
    let mut cover = Cover::default();
    for seed in 1..=400 {
        let report = run(Plan::of_seed(seed), false);
        assert_eq!(
            report.violation, None,
            "cargo run --release -p vernic-sim -- --seed {seed} --trace"
        );
        cover.merge(&report.cover);
    }
    let never: Vec<_> = Count::ALL.iter().filter(|&&count| cover.of(count) == 0).collect();
    assert!(never.is_empty(), "never exercised: {never:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [3, 17, 40] {
        let (a, b) = (run(Plan::of_seed(seed), true), run(Plan::of_seed(seed), true));
        assert_eq!(a.trace, b.trace);
        assert_eq!(a.cover, b.cover);
    }
}

/// Runs a broken host or network until it has struck `wanted` times; returns how often the oracle
/// noticed.
fn noticed(mutation: Mutation, wanted: u32) -> u32 {
    let (mut struck, mut noticed) = (0, 0);
    for seed in 1..500 {
        let report = run(Plan::of_seed(seed).with_mutation(mutation, seed as u32 % 7), false);
        if report.mutated {
            struck += 1;
            noticed += u32::from(report.violation.is_some());
        }
        if struck == wanted {
            return noticed;
        }
    }
    panic!("{mutation:?} struck only {struck} times");
}

#[test]
fn a_network_that_corrupts_silently_is_noticed() {
    // A packet without payload, or one of a queue pair whose peer drops it, bears no harm.
    assert!(noticed(Mutation::SilentCorruption, 40) >= 15);
}

#[test]
fn a_network_that_makes_requests_up_is_noticed() {
    let n = noticed(Mutation::Replay, 40);
    assert!(n >= 15, "{n}");
}

#[test]
fn a_host_that_stores_a_wrong_byte_is_noticed() {
    // What fails before it is complete may be written over before anyone looks.
    assert!(noticed(Mutation::LostByte, 40) >= 25);
}

#[test]
fn a_host_that_writes_one_byte_too_many_is_noticed() {
    // The next message may overwrite it before anyone looks.
    let n = noticed(Mutation::OverlongWrite, 40);
    assert!(n >= 20, "{n}");
}

#[test]
fn a_host_that_spoils_a_receive_is_noticed() {
    // On UC the message may be broken for another reason.
    assert!(noticed(Mutation::LostByteOfReceive, 40) >= 30);
}

#[test]
fn a_lost_completion_is_noticed() {
    assert!(noticed(Mutation::LostCompletion, 40) >= 38);
}

#[test]
fn a_repeated_completion_is_noticed_each_time() {
    assert_eq!(noticed(Mutation::RepeatedCompletion, 40), 40);
}

#[test]
fn a_wrong_result_of_an_atomic_is_noticed() {
    // If the queue pair fails before the answer arrives, nobody sees it.
    assert!(noticed(Mutation::WrongAtomic, 40) >= 30);
}

#[test]
fn a_receiver_that_mixes_up_what_it_kept_is_noticed() {
    // Of two packets with the same bytes, or of a queue pair that fails, nobody is harmed.
    let n = noticed(Mutation::WrongKept, 20);
    assert!(n >= 15, "{n}");
}

#[test]
fn a_network_that_never_heals_is_noticed() {
    let plan = |seed| Plan::of_seed(seed).with_mutation(Mutation::DeadNetwork, 0);
    let noticed = (1..=40).filter(|&seed| run(plan(seed), false).violation.is_some()).count();
    assert!(noticed >= 25, "{noticed} of 40"); // seeds without RC have nothing to wait for
}

#[test]
fn a_host_that_takes_receives_of_another_shared_queue_is_noticed() {
    // What finds that queue empty, or is refused for another reason, bears no harm.
    let n = noticed(Mutation::WrongQueue, 40);
    assert!(n >= 30, "{n}");
}

//! Seeds of iWARP run clean, the same seed gives the same run, and the oracle can fail.

use vernic_sim::iwarp::{Mutation, Plan, Tally, Totals, run};

#[test]
fn three_hundred_seeds_run_clean_and_exercise_everything() {
    let mut totals = Totals::default();
    for seed in 1..=300 {
        let report = run(Plan::of_seed(seed), false);
        let again = format!("cargo run --release -p vernic-sim -- --iwarp --seed {seed} --trace");
        assert_eq!(report.violation, None, "{again}");
        totals.merge(&report.totals);
    }
    let never: Vec<_> = Tally::ALL.iter().filter(|&&tally| totals.of(tally) == 0).collect();
    assert!(never.is_empty(), "never exercised: {never:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [3, 17, 40] {
        let (a, b) = (run(Plan::of_seed(seed), true), run(Plan::of_seed(seed), true));
        assert_eq!(a.trace, b.trace);
        assert_eq!(a.totals, b.totals);
    }
}

/// Runs a broken host or connection until it has struck `wanted` times; returns how often the
/// oracle noticed.
fn noticed(mutation: Mutation, wanted: u32) -> u32 {
    let (mut struck, mut noticed) = (0, 0);
    for seed in 1..800 {
        let report = run(Plan::of_seed(seed).with_mutation(mutation, seed as u32 % 5), false);
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
fn a_connection_that_changes_a_byte_silently_is_noticed() {
    // Pad, and the CRC field where no CRC is agreed, bear no harm.
    let n = noticed(Mutation::SilentCorruption, 40);
    assert!(n >= 30, "{n}");
}

#[test]
fn a_host_that_stores_a_wrong_byte_is_noticed() {
    // The next WRITE may cover it before anyone looks.
    let n = noticed(Mutation::LostByte, 40);
    assert!(n >= 30, "{n}");
    assert_eq!(noticed(Mutation::LostByteOfReceive, 40), 40);
}

#[test]
fn a_host_that_writes_one_byte_too_many_is_noticed() {
    // The same: it is a byte behind a message, of the area or of the guard behind it.
    let n = noticed(Mutation::OverlongWrite, 40);
    assert!(n >= 25, "{n}");
}

#[test]
fn lost_and_repeated_completions_are_noticed_each_time() {
    assert_eq!(noticed(Mutation::LostCompletion, 40), 40);
    assert_eq!(noticed(Mutation::RepeatedCompletion, 40), 40);
}

#[test]
fn a_wrong_result_of_an_atomic_is_noticed_each_time() {
    assert_eq!(noticed(Mutation::WrongAtomic, 40), 40);
}

#[test]
fn an_owner_that_says_too_early_that_bytes_are_on_their_way_is_noticed() {
    // Unless no request ended within these bytes, or it waits for an answer anyway.
    let n = noticed(Mutation::EarlySent, 60);
    assert!(n >= 10, "{n}");
}

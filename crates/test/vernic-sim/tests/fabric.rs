//! Fabrics of real queue pairs, adapters, switches and a subnet manager: every message arrives
//! exactly once, and the oracle can fail.

use vernic_sim::fabric::{Mutation, Plan, Totals, TreeOptions, run};

const OPTIONS: TreeOptions = TreeOptions { messages: 2, max_len: 8192, cuts: 0, bit_errors: 0.0 };

#[test]
fn small_fabrics_of_many_seeds_run_clean_and_meet_every_fault() {
    let mut totals = Totals::default();
    for seed in 1..=60 {
        let report = run(&Plan::of_seed(seed), || ());
        let again = format!("cargo run --release -p vernic-sim -- --fabric --seed {seed} --trace");
        assert_eq!(report.violation, None, "{again}");
        totals.merge(&report.totals);
    }
    let Totals { messages, cuts, repeated, sweeps, .. } = totals;
    assert!(messages > 1_000 && cuts > 10 && repeated > 100, "{totals}");
    assert!(sweeps > 60 + cuts, "a cut and a mended cable are found each: {totals}");
}

#[test]
fn hosts_of_a_tree_send_each_other_everything_without_a_repeat() {
    let plan = Plan::of_tree((2, 4, 24), &OPTIONS, 1).unwrap();
    let report = run(&plan, || ());
    assert_eq!(report.violation, None);
    let Totals { messages, connections, packets_sent, repeated, .. } = report.totals;
    assert_eq!((messages, connections, repeated), (24 * 23 * 2, 24 * 23 / 2, 0));
    assert!(packets_sent > messages);
}

#[test]
fn cables_are_cut_and_bits_damaged_and_all_arrives() {
    let options = TreeOptions { messages: 4, cuts: 3, bit_errors: 1e-7, ..OPTIONS };
    let report = run(&Plan::of_tree((2, 4, 16), &options, 7).unwrap(), || ());
    assert_eq!(report.violation, None);
    assert_eq!(report.totals.messages, 16 * 15 * 4);
    // A cut waits until the cable before is mended, and traffic may end meanwhile.
    assert!(report.totals.cuts > 0 && report.totals.repeated > 0, "{}", report.totals);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [3, 17, 40] {
        let plan = Plan::of_seed(seed);
        assert_eq!(run(&plan, || ()).totals, run(&plan, || ()).totals);
    }
}

#[test]
fn what_is_broken_on_purpose_is_noticed() {
    for mutation in [Mutation::WrongByte, Mutation::LostPacket, Mutation::WrongHost] {
        for seed in 1..=10 {
            let plan = Plan::of_tree((2, 2, 8), &OPTIONS, seed).unwrap().with_mutation(mutation);
            let report = run(&plan, || ());
            assert!(report.mutated, "{mutation:?} {seed}");
            assert!(report.violation.is_some(), "{mutation:?} {seed}");
        }
    }
}

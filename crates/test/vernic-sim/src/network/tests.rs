//! Whole runs: each behaviour of the network, seen at the figures.

use vernic_wire::Mtu;

use super::world::World;
use super::{Rate, Report, Setup, Traffic, algorithm, run};

/// A run of a millisecond without congestion control, in a network with room for all.
fn setup(topology: &str, load: &str) -> Setup {
    Setup {
        topology: topology.parse().unwrap(),
        hosts: None,
        algorithm: algorithm("none").unwrap(),
        traffic: Traffic::named(load).unwrap(),
        load_factor: 0.5,
        bytes: None,
        seed: 1,
        time_nanos: 1_000_000,
        rate: Rate::new(100).unwrap(),
        delay_nanos: 1_000,
        mtu: Mtu::B1024,
        buffer: 32_000_000,
        ecn: None,
        pfc: true,
        keep: true,
    }
}

/// Sixteen senders of 500 KB each, at a switch with a buffer that holds a tenth of that.
fn narrow(pfc: bool) -> Setup {
    let buffer = if pfc { 1_300_000 } else { 800_000 };
    let bytes = Some(500_000);
    Setup { bytes, buffer, pfc, time_nanos: 40_000_000, ..setup("incast:16", "incast") }
}

fn report(setup: &Setup) -> Report {
    run(setup).unwrap()
}

#[test]
fn a_flow_alone_takes_the_time_that_it_takes_alone() {
    for bytes in [1, 1_000, 1_024, 1_025, 50_000, 100_000] {
        let traffic = Traffic::parse(&format!("5us 0 15 {bytes}")).unwrap();
        let report = report(&Setup { traffic, ..setup("fat-tree:4", "incast") });
        let [bin, _] = &report.bins[..] else { panic!("{bytes}: {:?}", report.bins) };
        // Headers of the first packet are left out of the ideal.
        assert!((0.999..1.01).contains(&bin.slowdowns[0]), "{bytes}: {:?}", bin.slowdowns);
    }
}

#[test]
fn marks_begin_where_a_line_exceeds_kmin_and_become_notifications() {
    let marked = |ecn: &str| {
        let (ecn, bytes) = (Some(ecn.parse().unwrap()), Some(100_000));
        let report = report(&Setup { ecn, bytes, ..setup("incast:2", "incast") });
        assert_eq!(report.ended, 2);
        (u64::from(report.busy.most), report.packets.marked, report.packets.cnps)
    };
    // Two flows of 100 KB have about 100 KB in the line at the end.
    let (most, marks, cnps) = marked("1m,1m,1");
    assert!((90_000..130_000).contains(&most) && marks == 0 && cnps == 0, "{most} {marks} {cnps}");
    assert_eq!(marked(&format!("{most},{most},1")).1, 0);
    let (_, marks, cnps) = marked("50k,50k,1");
    assert!((80..120).contains(&marks) && cnps > 0, "{marks} {cnps}");
}

#[test]
fn pfc_loses_nothing_and_goes_on() {
    let report = report(&narrow(true));
    assert_eq!((report.ended, report.packets.dropped, report.packets.repeated), (16, 0, 0));
    assert!(report.pauses.frames >= 16, "{:?}", report.pauses);
    // Each sender is paused for most of the time that the 8 MB take, and not for ever.
    assert!((300.0..800.0).contains(&report.pauses.longest_us), "{:?}", report.pauses);
}

#[test]
fn without_pfc_packets_are_lost_and_repeated() {
    let report = report(&Setup { algorithm: algorithm("aimd").unwrap(), ..narrow(false) });
    assert_eq!((report.ended, report.pauses.frames), (16, 0));
    assert!(report.packets.dropped > 0 && report.packets.repeated > 0, "{:?}", report.packets);
}

#[test]
fn where_packets_ahead_of_a_gap_are_kept_fewer_are_sent_again() {
    // Of eight runs: in a single one chance may be more than what keeping spares.
    let repeated = |keep| {
        let runs = (1..=8).map(|seed| {
            let algorithm = algorithm("aimd").unwrap();
            let report = report(&Setup { algorithm, keep, seed, ..narrow(false) });
            assert_eq!(report.ended, 16);
            (report.packets.repeated, report.packets.kept)
        });
        runs.fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
    };
    let ((kept, packets_kept), (dropped, none)) = (repeated(true), repeated(false));
    assert!(packets_kept > 0 && none == 0, "{packets_kept} {none}");
    assert!(kept < dropped, "{kept} and not below {dropped}");
}

#[test]
fn packets_and_bytes_are_conserved() {
    let narrow = Setup { buffer: 150_000, pfc: false, ..setup("fat-tree:4", "websearch") };
    let mut world = World::new(&narrow).unwrap();
    world.run();
    let (held, lines) = world.network.bytes_held();
    assert!(lines > 0 && held == lines, "{held} in buffers, {lines} in lines");
    let report = Report::new(&narrow, &world);
    let packets = report.packets;
    assert_eq!(packets.sent, packets.delivered + packets.dropped + packets.under_way);
    assert!(packets.dropped > 0 && packets.under_way > 0, "{packets:?}");
    // What ended was placed to the byte, and nothing more than was wanted.
    let flows = &report.flows;
    assert_eq!(flows.placed, flows.ended + flows.placed_of_open);
    assert!(flows.wanted > flows.placed && flows.ended > 0, "{flows:?}");
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let text = |seed| {
        let ecn = Some("20k,80k,0.2".parse().unwrap());
        let algorithm = algorithm("dcqcn").unwrap();
        report(&Setup { seed, ecn, algorithm, ..setup("fat-tree:4", "hadoop") }).to_string()
    };
    assert_eq!(text(3), text(3));
    assert_ne!(text(3), text(4));
}

#[test]
fn dcqcn_keeps_the_line_short_where_no_control_fills_it() {
    let run = |name| {
        let (ecn, algorithm) = (Some("40k,160k,0.2".parse().unwrap()), algorithm(name).unwrap());
        report(&Setup { ecn, algorithm, time_nanos: 8_000_000, ..setup("incast:8", "incast") })
    };
    let (none, dcqcn) = (run("none"), run("dcqcn"));
    assert!(dcqcn.packets.cnps > 0);
    assert!(dcqcn.busy.median * 10 < none.busy.median, "{:?} {:?}", dcqcn.busy, none.busy);
    // Without control, PFC or its absence alone divides the link.
    assert!(none.fairness.unwrap().0 > 0.99);
}

#[test]
fn ways_of_equal_length_share_the_load() {
    // All hosts of the first pod send to those of the second: four ways up for eight flows.
    let flows: String =
        (0..64).map(|flow| format!("0us {} {} 1m\n", flow % 4, 4 + flow % 4)).collect();
    let traffic = Traffic::parse(&flows).unwrap();
    let setup = Setup { traffic, ..setup("fat-tree:4", "incast") };
    let mut world = World::new(&setup).unwrap();
    world.run();
    // Ports of the first pod's two edge switches that lead to its two aggregation switches.
    let is_up = |port: &u32| {
        let (near, far) = world.network.ends(*port);
        (16..18).contains(&near) && far >= 24
    };
    let up: Vec<_> = world.network.switch_ports().filter(is_up).collect();
    let had_lines = up.iter().filter(|port| world.network.port(**port).most() > 0).count();
    assert_eq!((up.len(), had_lines), (4, 4));
}

#[test]
fn a_ring_goes_round_and_all_its_links_are_used_alike() {
    let report = report(&Setup {
        bytes: Some(1_600_000),
        time_nanos: 3_000_000,
        ..setup("fat-tree:4", "allreduce")
    });
    let text = report.to_string();
    // A round is 30 pieces of 100 KB, 8.6 us each and up to 12.3 us of round trip behind them.
    let rounds = text.lines().find(|line| line.starts_with("rounds: ")).unwrap();
    let count: u32 = rounds.split(' ').nth(1).unwrap().parse().unwrap();
    assert!((4..12).contains(&count), "{rounds}");
    assert!(report.fairness.unwrap().1 > 0.9, "{:?}", report.fairness);
}

#[test]
fn a_random_load_brings_what_was_asked_for() {
    let report = report(&Setup { time_nanos: 4_000_000, ..setup("fat-tree:4", "hadoop") });
    let goodput: f64 = report.spans.iter().map(|span| span.goodput).sum();
    let mean = goodput / report.spans.len() as f64;
    assert!((560.0..960.0).contains(&mean), "{mean} and not about 800 Gb/s");
    assert_eq!(report.flows.failed, 0);
}

#[test]
fn figures_are_drawn_and_written_as_json() {
    let report = report(&Setup { bytes: Some(9_000), ..setup("incast:2", "incast") });
    let svg = report.svg().unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("to 10 KB") && svg.contains("Fairness"));
    let json = report.json();
    assert!(json.contains("\"flows\":{\"begun\":2,\"ended\":2,\"open\":0,\"failed\":0}"), "{json}");
    assert_eq!(json.matches('{').count(), json.matches('}').count());
}

#[test]
fn values_that_do_not_go_together_are_refused_with_their_names() {
    let small = Setup { buffer: 100_000, ..setup("incast:16", "incast") };
    let error = run(&small).unwrap_err();
    assert!(error.contains("a buffer of 100000 bytes is too small"), "{error}");
    let many = Setup { hosts: Some(99), ..setup("fat-tree:4", "incast") };
    assert!(run(&many).unwrap_err().contains("99 hosts: fat-tree:4 has 16"));
}

#[test]
fn the_json_of_a_run_says_what_was_run_and_balances_its_braces() {
    let algorithm = algorithm("dcqcn,rpg_threshold=3").unwrap();
    let ecn = Some("20k,80k,20%".parse().unwrap());
    let json = report(&Setup { seed: 7, ecn, algorithm, ..setup("fat-tree:4", "hadoop") }).json();
    for part in [
        "\"run\":\"fat-tree:4, 16 hosts, 20 switches, 100 Gb/s, dcqcn",
        "\"algorithm\":\"dcqcn,rpg_threshold=3,pacing_quantum=0\"",
        "\"seed\":7,\"time_ms\":1,\"topology\":\"fat-tree:4\",\"hosts\":16,\"switches\":20",
        "\"load\":\"hadoop\",\"load_factor\":0.5000",
        "\"ecn\":{\"kmin_bytes\":20000,\"kmax_bytes\":80000,\"pmax\":0.2000}",
        "\"rounds\":null",
    ] {
        assert!(json.contains(part), "{part}: {json}");
    }
    let depth = json.chars().fold(0, |depth, letter| match letter {
        '{' | '[' => depth + 1,
        '}' | ']' => depth - 1,
        _ => depth,
    });
    assert!(depth == 0 && !json.contains("inf") && !json.contains("NaN"), "{json}");
}

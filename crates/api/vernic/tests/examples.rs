//! Every example runs: both ends in one process, and as two processes.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No example takes longer, on however slow a machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Examples that make round trips, as servers and clients.
const PINGPONGS: [&str; 5] =
    ["rc_pingpong", "uc_pingpong", "ud_pingpong", "srq_pingpong", "xrc_pingpong"];

/// `cargo test` builds examples beside the tests.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(target.exists(), "{} is not built: run `cargo test -p vernic`", target.display());
    let mut command = Command::new(target);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of a process, which must be a good one, and returns what it printed.
fn finish(mut child: Child, what: &str) -> String {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (mut out, mut err) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
    assert!(status.is_some_and(|s| s.success()), "{what}: {status:?} (None: too slow)\n{out}{err}");
    out
}

fn alone(name: &str) -> String {
    finish(example(name).spawn().unwrap(), name)
}

fn two_processes(name: &str, faults: &str) -> String {
    let mut command = example(name);
    let mut server = command.args(["server", "0"]).env("VERNIC_FAULT", faults).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let port = line.rsplit(' ').next().unwrap().trim();
    let mut command = example(name);
    let client =
        command.args(["client", "127.0.0.1", port]).env("VERNIC_FAULT", faults).spawn().unwrap();
    let report = finish(client, name);
    finish(server, name);
    report
}

#[test]
fn hello_runs() {
    assert!(alone("hello").contains("arrived"));
}

#[test]
fn every_pingpong_makes_its_round_trips_in_one_process() {
    for name in PINGPONGS {
        assert!(alone(name).contains("round trips"), "{name}");
    }
}

#[test]
fn every_pingpong_makes_its_round_trips_between_two_processes() {
    for name in PINGPONGS {
        assert!(two_processes(name, "").contains("round trips"), "{name}");
    }
}

#[test]
fn ends_that_meet_by_ip_address_make_their_round_trips() {
    for name in ["cm_pingpong", "cm_datagrams"] {
        for report in [alone(name), two_processes(name, "")] {
            assert!(report.contains("round trips"), "{name}: {report}");
        }
    }
}

#[cfg(feature = "tokio")]
#[test]
fn awaited_round_trips_are_made_in_one_process_and_between_two() {
    let lossy = "loss=0.02,dup=0.01,reorder=0.01,corrupt=0.005,seed=3";
    let name = "net_pingpong";
    for report in [alone(name), two_processes(name, ""), two_processes(name, lossy)] {
        assert!(report.contains("round trips"), "{report}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_stream_of_bytes_comes_back_whole_from_a_task_and_from_another_process() {
    for report in [alone("net_copy"), two_processes("net_copy", "")] {
        assert!(report.contains("16777216 bytes there and back"), "{report}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn each_of_many_clients_takes_a_row_of_its_own() {
    let report = alone("net_clients");
    let rows: std::collections::BTreeSet<&str> =
        report.lines().filter_map(|line| line.split_once(": ")).map(|(_, who)| who).collect();
    assert_eq!(rows.len(), 8, "{report}");
    assert!(rows.iter().all(|who| who.starts_with("client ")), "{report}");
}

#[test]
fn every_example_gets_through_over_a_lossy_path() {
    let names = [
        "rc_pingpong",
        "uc_pingpong",
        "ud_pingpong",
        "srq_pingpong",
        "write_read_atomic",
        "hello",
        "cm_pingpong",
        "cm_datagrams",
    ];
    for name in names {
        let mut command = example(name);
        let spec = "loss=0.02,dup=0.01,reorder=0.01,corrupt=0.005,seed=3";
        let mut outs = vec![finish(command.env("VERNIC_FAULT", spec).spawn().unwrap(), name)];
        if name != "hello" {
            outs.push(two_processes(name, spec));
        }
        for out in outs {
            if let Some(line) = out.lines().find(|line| line.ends_with("were sent again")) {
                assert!(!line.starts_with("0 "), "nothing was lost: {out}");
            }
        }
    }
}

#[test]
fn a_path_that_passes_nothing_is_told_with_the_number_of_attempts() {
    let names = ["uc_pingpong", "ud_pingpong"];
    let running = names.map(|name| example(name).env("VERNIC_FAULT", "loss=1").spawn().unwrap());
    for child in running {
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("no answer to message 1, sent "), "{text}");
        assert!(text.contains("times in 10 s"), "{text}");
    }
}

#[test]
fn one_sided_operations_work_and_the_failure_at_the_end_explains_itself() {
    for report in [alone("write_read_atomic"), two_processes("write_read_atomic", "")] {
        assert!(report.contains("counter by READ:          100"), "{report}");
        assert!(report.contains("RemoteAccess") && report.contains("127.0.0.1"), "{report}");
    }
}

#[test]
fn a_loop_of_posts_and_polls_says_what_a_message_takes() {
    let child = example("post_poll").args(["1000", "16"]).spawn().unwrap();
    let report = finish(child, "post_poll");
    let ns: f64 = report.trim_end().strip_suffix(" ns per message").unwrap().parse().unwrap();
    assert!(ns > 0.0, "{report}");
    let output = example("post_poll").args(["1000", "0"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 is not a number above zero"));
}

#[test]
fn what_more_of_everything_costs_is_told_by_name() {
    let common = ["large_gbytes_per_s", "small_mmsg_per_s"];
    for (arguments, first) in [
        (&["qps", "100"][..], "open_us_per_qp"),
        (&["peers", "2"][..], "open_us_per_peer"),
        (&["regions", "10", "1099511627776"][..], "register_us"),
    ] {
        let report = finish(example("growth").args(arguments).spawn().unwrap(), "growth");
        let value = |name: &str| -> f64 {
            let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name}: {report}")).parse().unwrap()
        };
        let others = if first == "register_us" { ["write_ns", "deregister_us"] } else { common };
        for name in [first].into_iter().chain(others) {
            assert!(value(name) > 0.0, "{name}: {report}");
        }
    }
    let output = example("growth").args(["qps", "0"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage: growth qps N"));
}

#[test]
fn programs_of_the_book_end_well_and_know_their_words_alone() {
    for (name, words) in [
        ("learn_write", &["deny"][..]),
        ("learn_memory", &["bounds", "rights", "stale", "domain", "window"]),
        ("learn_states", &["half"]),
        ("learn_messages", &["short"]),
        ("learn_completions", &["full", "overrun"]),
        ("learn_services", &["loss", "large"]),
        ("learn_connect", &["nobody", "reject"]),
        ("learn_loss", &["late", "rnr", "silence"]),
        ("learn_atomics", &["misaligned"]),
    ] {
        // What they print is on the pages, which `cargo xtask commands` compares.
        assert!(!alone(name).is_empty(), "{name}");
        for word in words {
            let child = example(name).arg(word).spawn().unwrap();
            assert!(!finish(child, &format!("{name} {word}")).is_empty());
        }
    }
    let output = example("learn_memory").arg("bound").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"bounds\""), "{output:?}");
}

#[test]
fn wrong_arguments_are_answered_with_the_right_ones() {
    let output = example("rc_pingpong").arg("both").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("client HOST"));
}

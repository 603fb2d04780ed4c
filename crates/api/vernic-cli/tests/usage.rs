//! What a user sees who asks for help or mistypes.

use std::process::{Command, Output, Stdio};

fn vernic(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_names_every_command_and_hides_the_internal_one() {
    let output = vernic(&["--help"]);
    assert!(output.status.success());
    for command in ["devices", "info", "config", "run", "env", "bench", "fabric"] {
        assert!(stdout(&output).contains(command), "{command}");
    }
    assert!(stdout(&output).starts_with("Vernic is an RDMA network card"), "{}", stdout(&output));
    assert!(!stdout(&vernic(&["bench", "--help"])).contains("second-process"));
    for mistyped in ["pear", "peer"] {
        let output = vernic(&["bench", mistyped]);
        assert!(!stderr(&output).contains("similar"), "{}", stderr(&output));
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_wrong() {
    for (arguments, word) in [
        (&["bench", "--sizes", "1"][..], "--sizes"),
        (&["bench", "-s", "3g"], "2 GiB"),
        (&["bench", "-c", "RD"], "RD"),
        (&["bench", "-n", "0"], "0"),
        (&["bench", "client"], "HOST"),
        (&["devizes"], "devices"),
        (&["fabric", "up", "/nonexistent/lab.topo"], "/nonexistent/lab.topo"),
        (
            &["run", "--fabric", "lab", "--host", "h1", "--capture", "/tmp/x.erf", "true"],
            "`vernic fabric capture lab FILE`",
        ),
    ] {
        let output = vernic(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn numbers_out_of_range_are_refused_at_once_with_what_is_allowed() {
    for (arguments, word) in [
        (&["bench", "-q", "0"][..], "1..=1024"),
        (&["bench", "-l", "0"], "1..=32768"),
        (&["bench", "-l", "64", "-t", "32"], "1 to 32"),
        (&["bench", "-t", "99999"], "1..=32768"),
        (&["bench", "-I", "1025"], "0..=1024"),
        (&["bench", "-o", "129"], "1..=128"),
        (&["bench", "-u", "32"], "0..=31"),
        (&["bench", "-m", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["bench", "-c", "UD", "--op", "read"], "UD has SEND"),
        (&["bench", "-d", "lo", "-x", "77"], "it has: 0 ("),
        (&["bench", "-d", "mlx5_0"], "vernic0"),
        (&["bench", "server", "-d", "mlx5_0"], "vernic0"),
        (&["bench", "server", "-x", "77"], "it has: 0 ("),
        // Nobody listens there: what is wrong with the device comes first.
        (&["bench", "client", "127.0.0.1", "-p", "1", "-d", "mlx5_0"], "vernic0"),
        (&["info", "mlx5_0"], "vernic0"),
        (&["run", "--iwarp", "-d", "vernic0", "true"], "--iwarp and -d vernic0 contradict"),
    ] {
        let output = vernic(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
}

#[test]
fn an_mtu_beyond_the_device_is_refused_with_those_that_fit() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(["bench", "-d", "lo", "-m", "4096"]).env("VERNIC_MTU", "1024");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("256, 512, 1024\n"), "{}", stderr(&output));
}

#[test]
fn a_closed_output_is_no_panic() {
    // The reader of each is gone before the command starts.
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    for arguments in
        [&["info", "mlx5_0"][..], &["bench", "-q", "0"], &["bench", "second-process", "-p", "1"]]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
        let status = command.args(arguments).stderr(closed()).stdout(closed()).status().unwrap();
        assert!(matches!(status.code(), Some(1 | 2)), "{arguments:?}: {status}");
    }
    let line = "bench -d lo -n 5 --rounds 1 -c RC --op send --test lat -s 64 --no-baselines";
    for arguments in ["info lo", "devices", "config", line] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
        command.args(arguments.split(' ')).env("VERNIC_FAULT", "delay_us=1");
        let status = command.stderr(closed()).stdout(closed()).status().unwrap();
        assert!(status.success(), "{arguments}: {status}");
    }
}

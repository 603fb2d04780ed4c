//! The two processes of a bench end together, whichever of them dies and however.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far longer than a process takes to start or end, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn vernic(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A bench that would take an hour, and the process id of its child.
fn long_bench() -> (Child, u32) {
    let line = ["bench", "--op", "send", "-c", "RC", "-s", "64", "--test", "lat", "-D", "3600"];
    let mut command = vernic(&line);
    let mut bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children = PathBuf::from(format!("/proc/{0}/task/{0}/children", bench.id()));
    let child = eventually(|| {
        if let Some(status) = bench.try_wait().unwrap() {
            panic!("the bench ended at once: {status}");
        }
        let text = std::fs::read_to_string(&children).ok()?;
        text.split_whitespace().next()?.parse().ok()
    });
    (bench, child)
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it did not happen in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(status.success());
}

/// True when the process is gone, or dead and not yet waited for by whoever inherited it.
fn is_dead(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}

#[test]
fn no_child_is_left_when_the_bench_is_killed() {
    for name in ["INT", "KILL"] {
        let (mut bench, child) = long_bench();
        signal(name, bench.id());
        let status = bench.wait().unwrap();
        assert!(!status.success(), "{name}");
        eventually(|| is_dead(child).then_some(()));
    }
}

#[test]
fn a_child_that_dies_is_reported_with_its_signal() {
    let (mut bench, child) = long_bench();
    signal("KILL", child);
    // Each task fails once, with a fresh child for the next one: kill these too.
    let children = PathBuf::from(format!("/proc/{0}/task/{0}/children", bench.id()));
    let status = eventually(|| {
        for process in
            std::fs::read_to_string(&children).ok().iter().flat_map(|c| c.split_whitespace())
        {
            // It may have ended by itself in between.
            let _ = Command::new("kill").args(["-s", "KILL", process]).status();
        }
        bench.try_wait().unwrap()
    });
    let (mut stdout, mut stderr) = (String::new(), String::new());
    bench.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    bench.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{stdout}{stderr}");
    assert!(format!("{stdout}{stderr}").contains("(signal: 9 (SIGKILL))"), "{stdout}{stderr}");
}

#[test]
fn a_peer_without_its_bench_says_who_starts_it() {
    let output = vernic(&["bench", "second-process", "--port", "9"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("hint: use `vernic bench`"), "{text}");
}

//! `vernic explain` of the sample capture, of files that are none, and of programs that it runs.

mod installed;

use std::path::{Path, PathBuf};
use std::process::Output;

use installed::Installed;
use serde_json::Value;

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/samples/loss-and-rnr.pcapng")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_sample_is_explained_in_words_in_pictures_and_as_json() {
    let installed = Installed::new();
    let sample = sample();
    let sample = sample.to_str().unwrap();
    let text = stdout(&installed.vernic(&["explain", sample, "--diagram"]));
    for part in
        ["had no receive posted", "sent again", "post receives at", "RNR NAK", "A 127.0.0.1"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let picture = installed.0.join("flows.svg");
    let picture_name = picture.to_str().unwrap();
    let text = stdout(&installed.vernic(&["explain", sample, "--json", "--svg", picture_name]));
    let report: Value = serde_json::from_str(&text).unwrap();
    let flow = &report["flows"][0];
    assert_eq!(flow["service"], "RC");
    assert!(flow["findings"].as_array().unwrap().iter().any(|f| f["kind"] == "receiver_not_ready"));
    assert!(std::fs::read_to_string(picture).unwrap().contains("RNR NAK"));
    let qpn = flow["a"]["qpn"].to_string();
    let chosen = stdout(&installed.vernic(&["explain", sample, "--qp", &qpn]));
    assert!(chosen.contains("had no receive posted"), "{chosen}");
    let other = installed.vernic(&["explain", sample, "--qp", "0xfffffe"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("no flow has the queue pair"));
}

#[test]
fn a_file_that_is_no_capture_is_refused_with_what_it_may_be() {
    let installed = Installed::new();
    let file = installed.0.join("bin/vernic");
    let output = installed.vernic(&["explain", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is not a capture") && said.contains("tshark -r"), "{said}");
    let output = installed.vernic(&["explain", "no-such-file.pcapng"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot open no-such-file.pcapng: No such file"), "{said}");
    assert_eq!(installed.vernic(&["explain"]).status.code(), Some(2));
}

#[test]
fn a_program_is_run_with_a_capture_that_is_explained_and_removed() {
    let installed = Installed::new();
    let temporary = installed.0.join("temporary");
    std::fs::create_dir_all(&temporary).unwrap();
    let live = |line: &str| {
        let mut command = installed.command(&["explain", "--live", "--", "sh", "-c", line]);
        command.env("TMPDIR", &temporary).output().unwrap()
    };
    let sample = sample();
    // In the place of a program that opens devices: what it would write, in two processes.
    let line = format!(
        "echo ran; for i in 1 2; do cp {} $(echo $VERNIC_CAPTURE | sed s/%p/$i/); done; exit 7",
        sample.display()
    );
    let output = live(&line);
    assert_eq!(output.status.code(), Some(7), "the exit status is the program's");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("ran\n") && text.contains("had no receive posted"), "{text}");
    assert_eq!(text.matches(".pcapng: ").count(), 2, "both files are named: {text}");
    let output = live("exit 3");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("captured nothing"), "{output:?}");
    assert_eq!(live("true").status.code(), Some(1));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left behind");
}

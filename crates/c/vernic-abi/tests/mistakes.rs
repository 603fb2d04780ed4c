//! What people do wrong with verbs, and whether what is printed says so.
//!
//! The log is that of `vernic run`. Each mistake has words of the reason, which somebody who does
//! not know it has to read.

mod common;

use std::path::Path;

use common::Folder;

/// The mistake, what the program itself can say, and what the log has to.
const MISTAKES: [(&str, &str, &[&str]); 15] = [
    ("rkey", "remote access error", &["no region or window has this key"]),
    ("outside", "remote access error", &["the range leaves the region"]),
    ("rights-of-region", "remote access error", &["the region does not grant this right"]),
    (
        "rights-of-queue-pair",
        "remote invalid request error",
        &["does not grant it (qp_access_flags)"],
    ),
    ("lkey", "local protection error", &["local memory", "no region or window has this key"]),
    ("receive-too-short", "remote invalid request error", &["longer than the receive"]),
    ("path-mtu", "remote invalid request error", &["path MTUs of the ends differ"]),
    ("no-receive", "RNR retry counter exceeded", &["had no receive posted", "raise rnr_retry"]),
    (
        "no-receive-for-ever",
        "nothing comes",
        &["has had no receive posted", "rnr_retry is 7", "request posted behind it waits too"],
    ),
    (
        "not-in-rtr",
        "transport retry counter exceeded",
        &["it never answered", "not in RTR", "packets are dropped: the queue pair is in Reset"],
    ),
    ("wrong-number", "transport retry counter exceeded", &["it never answered", "QPN"]),
    ("queue-key", "success", &["packets are dropped: their queue key is not the queue pair's"]),
    ("no-room-for-grh", "success", &["packets are dropped: their length does not fit", "40 bytes"]),
    ("gid-index", "Invalid argument", &["GID", "77"]),
    ("before-rts", "Invalid argument", &["ibv_post_send", "Reset"]),
];

/// What the output of a program lacks that makes this mistake, by memory or by the wire.
fn lacking(
    folder: &Folder,
    program: &Path,
    force_wire: &str,
    (mistake, said, reasons): (&str, &str, &[&str]),
) -> Option<String> {
    let settings = [("VERNIC_LOG", "brief"), ("VERNIC_FORCE_WIRE", force_wire)];
    let output = folder.command_with(program, &settings).arg(mistake).output().unwrap();
    let [out, log] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let all = format!("{out}{log}");
    assert!(output.status.success(), "{mistake}: {all}");
    let lacks = |words: &&str| !all.to_lowercase().contains(&words.to_lowercase());
    let missing: Vec<_> = [said].iter().chain(reasons).copied().filter(lacks).collect();
    let what = || format!("{mistake}, force_wire {force_wire}: no {missing:?} in\n{all}");
    (!missing.is_empty()).then(what)
}

#[test]
fn the_reason_of_each_mistake_is_printed_without_being_asked_for() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes.c");
    let folder = Folder::new("mistakes");
    let Some(program) = folder.compile(&source) else { return };
    let (folder, program) = (&folder, &*program);
    let lacking: Vec<String> = std::thread::scope(|scope| {
        let run = |force_wire| {
            move || {
                MISTAKES
                    .iter()
                    .filter_map(|row| lacking(folder, program, force_wire, *row))
                    .collect()
            }
        };
        let runs: [_; 2] =
            ["off", "on"].map(|force_wire| scope.spawn::<_, Vec<_>>(run(force_wire)));
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    assert!(lacking.is_empty(), "{}", lacking.join("\n"));
}

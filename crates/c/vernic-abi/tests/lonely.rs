//! What the log says when a queue pair fails, to a user who asks for it.

mod common;

use std::path::Path;
use std::process::Command;

use common::Folder;

#[test]
fn a_failed_queue_pair_is_explained_in_one_line_of_plain_words() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lonely.c");
    let folder = Folder::new("lonely");
    let Some(program) = folder.compile(&source) else { return };
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder.path()).env("VERNIC_LOG", "warn");
    let output = command.env("VERNIC_FAULT", "seed=1").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}{log}", String::from_utf8_lossy(&output.stdout));
    let line = log.lines().find(|line| line.contains("queue pair failed")).unwrap();
    for part in [
        "no answer after 2 transmissions",
        "; this process injects faults: fault (VERNIC_FAULT) is set to seed=1 qpn=0x",
        " path=127.0.0.1->127.0.0.1:4791 status=RETRY_EXC_ERR wr_id=77 psn=",
    ] {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    assert!(line.ends_with(" (more: vernic errors RETRY_EXC_ERR)"), "{line:?}");
    assert_eq!(log.matches("RETRY_EXC_ERR)").count(), 1, "{log}");
}

#[test]
fn what_a_program_does_in_vain_is_a_warning_once_per_device_for_each_cause_but_a_full_queue() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unconnected.c");
    let folder = Folder::new("unconnected");
    let Some(program) = folder.compile(&source) else { return };
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder.path()).env("VERNIC_LOG", "warn");
    let output = command.env("VERNIC_TRANSPORT", "iwarp").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}{log}", String::from_utf8_lossy(&output.stdout));
    let told = [
        "queue pair is in Reset: send requests are taken from RTS on",
        "in RTS without a connection: what is posted waits for one, which only rdma_cm makes",
        "2 scatter/gather entries, the queue pair was created for 1",
        "more requests in a batch than the 1 that it was created for",
    ];
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), told.len(), "{log}");
    for (line, part) in lines.iter().zip(told) {
        assert!(line.contains("] warn: ") && line.contains(part), "{part:?} is not in {line:?}");
    }
}

#[test]
fn who_looks_for_a_limit_is_told_of_it_once_per_device_and_who_lacks_memory_once() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probes.c");
    let folder = Folder::new("probes");
    let Some(program) = folder.compile(&source) else { return };
    // No file may have a byte, that of shared memory included.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$0\""]).arg(program);
    command.env("LD_LIBRARY_PATH", folder.path()).env("VERNIC_LOG", "warn");
    let output = command.env("VERNIC_SAME_HOST", "on").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success(),
        "{:?} {}{log}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    let count = |part| log.lines().filter(|line| line.contains(part)).count();
    assert_eq!(count("ibv_create_qp: max_inline is "), 2, "{log}");
    assert_eq!(count("no memory can be shared"), 1, "{log}");
}

//! What a program sees of a peer of its host that is killed, or stopped: through memory, and by the
//! wire.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Folder;

/// The ways that packets go.
const WAYS: [(&str, &str); 3] =
    [("VERNIC_SAME_HOST", "on"), ("VERNIC_SAME_HOST", "off"), ("VERNIC_FORCE_WIRE", "on")];

fn compiled(name: &str) -> Option<(Folder, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/liveness.c");
    let folder = Folder::new(name);
    folder.compile(&source).map(|program| (folder, program))
}

#[track_caller]
fn run(folder: &Folder, program: &Path, (variable, value): (&str, &str), args: &[&str]) {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder.path()).env(variable, value).args(args);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{variable}={value} {args:?}: {:?} {said}", output.status);
}

#[test]
fn a_killed_peer_flushes_the_queue_pair_and_is_told_with_and_without_traffic() {
    let Some((folder, program)) = compiled("liveness-kill") else { return };
    for way in WAYS {
        // Before, while and after the processes meet.
        for milliseconds in ["0", "1", "10", "300"] {
            for traffic in ["0", "1"] {
                run(&folder, &program, way, &["kill", milliseconds, traffic]);
            }
        }
    }
}

#[test]
fn a_stopped_peer_goes_on_and_has_every_byte() {
    let Some((folder, program)) = compiled("liveness-stop") else { return };
    WAYS.iter().for_each(|&way| run(&folder, &program, way, &["stop"]));
}

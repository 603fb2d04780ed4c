//! What a process says about a connection arrives though the process is gone in the next moment.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use common::Folder;

/// How often each message is said: where it depends on luck, it is lost in a quarter of the rounds.
const ROUNDS: &str = "12";

/// One test at a time: a process of another test shares port 4791, and what lies in its socket ends
/// with it.
static ALONE: Mutex<()> = Mutex::new(());

fn must_arrive(messages: &[&str], settings: &[(&str, &str)]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/last_words.c");
    let folder = Folder::new("last-words");
    let Some(program) = folder.compile(&source) else { return };
    let mut command = Command::new(program);
    command.arg(ROUNDS).args(messages).env("LD_LIBRARY_PATH", folder.path());
    let output = command.envs(settings.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}\n{said}", output.status);
}

const ALL: [&str; 5] = ["reject", "accept", "request", "ready", "disconnect"];

#[test]
fn messages_of_a_process_that_is_gone_arrive_at_a_process_of_its_host() {
    must_arrive(&ALL, &[]);
}

#[test]
fn messages_of_a_process_that_is_gone_arrive_by_the_wire() {
    must_arrive(&ALL, &[("VERNIC_FORCE_WIRE", "on")]);
}

/// But the request: it can leave only when TCP has connected, which a call does not wait for.
#[test]
fn messages_of_a_process_that_is_gone_arrive_over_iwarp() {
    must_arrive(&["reject", "ready", "disconnect"], &[("VERNIC_TRANSPORT", "iwarp")]);
}

//! A program of C that knows TCP alone, with `librspreload.so` before it.

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Folder;

/// Runs one trial of `preload.c`: RDMA `only`, or TCP, too (`auto`). Returns what it printed as
/// errors; nothing without a compiler.
fn check(mode: &str, trial: &str, variables: &[(&str, &str)]) -> Option<String> {
    check_in("preload.c", mode, trial, variables)
}

/// The same with connections that go over to RDMA with their first use, of `preload_forks.c`.
fn check_forks(mode: &str, trial: &str) {
    check_in("preload_forks.c", mode, trial, &[("RDMAV_FORK_SAFE", "1")]);
}

/// The same with sockets that change meanwhile, of `preload_changes.c`.
fn check_changes(mode: &str, trial: &str, variables: &[(&str, &str)]) {
    check_in("preload_changes.c", mode, trial, variables);
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn check_in(program: &str, mode: &str, trial: &str, variables: &[(&str, &str)]) -> Option<String> {
    let folder = Folder::new(&format!("preload-{mode}-{trial}"));
    check_with(&folder, program, mode, trial, variables)
}

fn check_with(
    folder: &Folder,
    program: &str,
    mode: &str,
    trial: &str,
    variables: &[(&str, &str)],
) -> Option<String> {
    let library = folder.path().join("librspreload.so");
    symlink(common::built("libvernic_rspreload.so"), &library).unwrap();
    let program = folder.compile(&source(program))?;
    let mut command = Command::new(program);
    command.arg(trial).env("LD_LIBRARY_PATH", folder.path()).env("LD_PRELOAD", library);
    let output = command.env("VERNIC_RSOCKETS", mode).envs(variables.iter().copied()).output();
    let output = output.unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success(), "{mode} {trial}: {:?}\n{out}{err}", output.status);
    Some(err)
}

#[test]
fn every_way_to_wait_knows_listeners_and_connections() {
    check("only", "waiting", &[]);
    check("auto", "waiting", &[]);
}

#[test]
fn copies_of_descriptors_are_the_same_connection() {
    check("only", "copies", &[]);
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    check("only", "half-close", &[]);
}

#[test]
fn who_waits_for_a_peer_that_is_killed_is_told() {
    check("only", "killed", &[]);
}

#[test]
fn a_signal_tells_of_a_closed_connection_unless_it_is_not_wanted() {
    check("only", "signals", &[]);
}

#[test]
fn a_child_serves_the_connection_that_its_parent_accepted() {
    check_forks("auto", "forked");
}

#[test]
fn who_is_killed_in_its_turn_or_has_it_for_ever_keeps_nobody_from_rdma() {
    check_forks("auto", "dying");
    check_forks("auto", "taken-turn");
}

#[test]
fn a_child_is_refused_its_parents_connections_and_does_not_hang() {
    check_in("preload_forks.c", "only", "stays", &[]);
}

#[test]
fn who_has_no_rdma_is_reached_over_tcp() {
    check("auto", "plain-server", &[]);
    check("auto", "plain-client", &[]);
}

#[test]
fn threads_that_wait_for_one_connection_are_not_told_that_it_was_no_rdma() {
    check("auto", "settling", &[]);
}

#[test]
fn what_else_a_set_has_is_told_when_a_socket_of_the_same_data_is_no_rdma() {
    check("auto", "alike", &[]);
}

#[test]
fn a_member_of_a_set_may_be_changed_while_it_goes_over_tcp() {
    check("auto", "changing", &[]);
}

#[test]
fn the_first_use_of_a_connection_may_be_of_several_threads() {
    check_forks("auto", "together");
}

#[test]
fn a_socket_whose_port_is_taken_keeps_what_was_set() {
    check("auto", "taken", &[]);
    check("only", "poor", &[]);
}

#[test]
fn without_tcp_a_server_that_has_no_rdma_is_not_there() {
    check("only", "refused", &[]);
}

#[test]
fn who_was_refused_asks_again_on_the_same_socket_and_gets_rdma() {
    check("only", "again", &[]);
    check("auto", "again", &[]);
    check("only", "later", &[]);
    check("auto", "later", &[]);
}

#[test]
fn a_wait_for_a_connection_goes_on_after_a_signal() {
    check_forks("auto", "cut");
    check("only", "interrupted", &[]);
    check("auto", "interrupted", &[]);
}

#[test]
fn a_thread_that_waits_for_a_set_is_told_of_what_another_adds_to_it() {
    check_changes("auto", "joins", &[]);
    check_changes("auto", "silent", &[("VERNIC_RSOCKETS_CONNECT_MS", "300")]);
}

#[test]
fn a_set_of_the_same_number_is_another_set() {
    check_changes("auto", "reused", &[]);
}

#[test]
fn what_is_set_while_tcp_is_asked_holds_when_rdma_comes_back() {
    check_changes("auto", "asked", &[]);
}

#[test]
fn who_wants_to_wait_no_longer_for_a_connection_waits_no_longer() {
    check_changes("only", "patient", &[]);
    check_changes("auto", "patient", &[("VERNIC_RSOCKETS_CONNECT_MS", "100000")]);
}

#[test]
fn who_waits_for_a_connection_is_told_if_another_socket_gets_the_number_of_its_descriptor() {
    check_changes("only", "taken", &[]);
    check_changes("auto", "taken", &[("VERNIC_RSOCKETS_CONNECT_MS", "100000")]);
}

#[test]
fn who_closes_a_socket_while_it_is_renewed_closes_none_of_others() {
    check_changes("only", "closing", &[]);
}

#[test]
fn with_another_library_who_is_refused_goes_over_tcp_too() {
    let folder = Folder::new("preload-other");
    let library = folder.path().join("librdmacm.so.1");
    std::fs::remove_file(&library).unwrap();
    let flags =
        ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o"];
    let made = Command::new("cc")
        .args(flags)
        .arg(&library)
        .args([source("preload_other.c"), common::library()])
        .status();
    match made {
        Ok(status) => assert!(status.success()),
        Err(why) => return eprintln!("skipped: no C compiler: {why}"),
    }
    check_with(&folder, "preload_changes.c", "auto", "refused", &[]);
}

#[test]
fn over_iwarp_sockets_stay_those_of_tcp_or_are_refused_and_that_is_said() {
    for variable in [("VERNIC_TRANSPORT", "iwarp"), ("VERNIC_DEVICE", "viw0")] {
        for (mode, said) in [("auto", "no socket goes over RDMA"), ("only", "sockets are refused")]
        {
            let errors = check(mode, "iwarp", &[variable]);
            assert!(errors.is_none_or(|errors| errors.contains(said)), "{mode}");
        }
    }
}

//! Programs of C on rsockets.

mod common;

use std::path::Path;

use common::Folder;

fn check(program: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
    Folder::new(program).check(&source);
}

#[test]
fn each_function_does_what_its_manual_page_says() {
    check("rsockets.c");
}

#[test]
fn a_process_that_jumped_out_of_a_call_ends() {
    check("rsocket_jump.c");
}

#[test]
fn programs_that_only_look_let_the_threads_run_that_bring_what_they_look_for() {
    check("rsocket_spin.c");
}

#[test]
fn calls_that_wait_go_on_after_a_signal_if_its_handler_says_so() {
    check("rsocket_signals.c");
}

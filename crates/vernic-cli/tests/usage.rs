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
    for command in ["devices", "info", "config", "run", "env", "bench"] {
        assert!(stdout(&output).contains(command), "{command}");
    }
    assert!(!stdout(&vernic(&["bench", "--help"])).contains("peer"));
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
    ] {
        let output = vernic(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn a_combination_that_does_not_exist_exits_with_1_and_the_reason() {
    let output = vernic(&["bench", "-c", "UD", "--op", "read"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("UD has SEND"), "{}", stderr(&output));
}

//! valgrind's memcheck finds nothing to complain about in a program that uses the library: people
//! look for mistakes of their own with it.

mod common;

use std::path::Path;
use std::process::Command;

use common::Folder;

/// valgrind's exit status if it has complained: one that the program does not use.
const COMPLAINED: i32 = 99;

/// Runs a program of these tests under memcheck, which must not complain.
fn memcheck(name: &str, arguments: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let folder = Folder::new(&format!("memcheck-{name}"));
    let Some(program) = folder.compile(&source) else { return };
    let output = Command::new("valgrind")
        .args(["--quiet", "--leak-check=full", "--show-leak-kinds=definite"])
        .args(["--errors-for-leak-kinds=definite", &format!("--error-exitcode={COMPLAINED}")])
        .arg(&program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", folder.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            assert!(std::env::var_os("VERNIC_REQUIRE_TOOLS").is_none(), "valgrind: {error}");
            eprintln!("skipped: no valgrind: {error}");
            return;
        }
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}{err}", output.status);
}

#[test]
fn memcheck_has_no_complaint_about_the_library() {
    memcheck("crowd", &["4"]);
}

#[test]
fn memcheck_has_no_complaint_about_objects_that_outlive_their_device() {
    memcheck("leaks", &[]);
}

#[test]
fn memcheck_has_no_complaint_about_calls_on_ids_that_were_destroyed() {
    memcheck("cm_gone", &[]);
}

#[test]
fn memcheck_has_no_complaint_about_devices_for_management() {
    memcheck("umad", &[]);
}

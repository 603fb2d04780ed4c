//! Programs in sandboxes that forbid some system calls: slower, not dead.

mod common;

use std::path::Path;
use std::process::Command;

use common::Folder;

#[test]
fn programs_that_may_make_neither_memory_files_nor_event_counters_have_devices_all_the_same() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox.c");
    let folder = Folder::new("sandbox");
    let Some(program) = folder.compile(&source) else { return };
    for forbidden in ["", "m", "e", "me"] {
        let mut command = Command::new(&program);
        let output = command.arg(forbidden).env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (said(&output.stdout), said(&output.stderr));
        assert!(output.status.success(), "{forbidden:?}: {:?}\n{out}{err}", output.status);
    }
}

//! Memory windows keep their key if the program does, and the log says why a bind was refused.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn windows_are_bound_under_the_key_they_have_and_the_log_names_why_a_bind_is_refused() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/window_keys.c");
    let folder = Folder::new("window-keys");
    let Some(program) = folder.compile(&source) else { return };
    let output = folder.run_with(&program, &[("VERNIC_LOG", "warn")]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}{log}", String::from_utf8_lossy(&output.stdout));
    let line = log.lines().find(|line| line.contains("memory window was not bound")).expect(&log);
    assert!(line.contains("registered without MW_BIND") && line.contains("qpn=0x"), "{line}");
}

//! Path migration by the verbs of C.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn alternate_paths_are_loaded_armed_and_taken() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migration.c");
    let folder = Folder::new("migration");
    let Some(program) = folder.compile(&source) else { return };
    let output = folder.run_with(&program, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

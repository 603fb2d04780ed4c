//! libibumad: the read-only half.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn devices_and_ports_are_shown_to_programs_for_management() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/umad.c");
    Folder::new("umad").check(&source);
}

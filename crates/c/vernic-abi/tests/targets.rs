//! Events of XRC targets that were opened more than once.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn every_handle_of_a_target_is_told_of_its_events() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets.c");
    Folder::new("targets").check(&source);
}

//! `fork` while other threads open devices: children open their own.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn children_open_devices_whatever_the_parents_threads_were_at() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forks.c");
    Folder::new("forks").check(&source);
}

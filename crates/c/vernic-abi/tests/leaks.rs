//! A program that closes devices and forgets what it made on them.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn a_closed_device_keeps_no_thread_and_no_socket_for_objects_that_were_forgotten() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/leaks.c");
    Folder::new("leaks").check(&source);
}

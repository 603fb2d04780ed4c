//! A program of C that does everything wrong gets answers, and goes on.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn misuse_is_answered_with_the_errno_of_the_manual_pages() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse.c");
    Folder::new("misuse").check(&source);
}

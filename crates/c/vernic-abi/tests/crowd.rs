//! Threads that share queues, destroy what others still poll for, and are interrupted by signals.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn threads_share_queues_and_destroy_them_under_signals() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crowd.c");
    Folder::new("crowd").check(&source);
}

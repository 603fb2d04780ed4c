//! The loop of posts and polls that `cargo xtask bench` compares with the same through the Rust
//! API.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn every_list_of_the_loop_completes() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tools/post_poll/post_poll.c");
    Folder::new("post_poll").check(&source);
}

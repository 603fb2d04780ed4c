//! Objects are destroyed in the moment in which their last event is acknowledged, by another thread.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn objects_go_while_their_last_event_is_acknowledged() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/events.c");
    Folder::new("events").check(&source);
}

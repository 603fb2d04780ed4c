//! Objects are destroyed in the moment in which their last event is acknowledged, by another
//! thread; and threads that wait for events are cancelled.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn objects_go_while_their_last_event_is_acknowledged_and_who_waits_can_be_cancelled() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/events.c");
    Folder::new("events").check(&source);
}

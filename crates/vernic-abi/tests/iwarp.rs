//! Programs of C on an iWARP device.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn the_device_is_an_rnic_and_connections_bring_its_queue_pairs_up() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/iwarp.c");
    let settings = [("VERNIC_DEVICE", "lo"), ("VERNIC_TRANSPORT", "iwarp")];
    Folder::new("iwarp").check_with(&source, &settings);
}

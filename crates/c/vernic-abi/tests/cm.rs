//! Programs of C on the connection manager.

mod common;

use std::path::Path;

use common::Folder;

/// On the device of `lo` alone, so that an id bound to a loopback address shows it.
fn check(program: &str) {
    check_with(program, &[("VERNIC_DEVICE", "lo")]);
}

fn check_with(program: &str, settings: &[(&str, &str)]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
    Folder::new(&format!("{program}-{}", settings.len())).check_with(&source, settings);
}

#[test]
fn names_and_hints_become_addresses() {
    check("cm_addresses.c");
}

#[test]
fn ids_show_what_they_are_and_refuse_what_is_wrong() {
    check("cm_ids.c");
}

#[test]
fn endpoints_keep_what_they_are_given() {
    check("cm_endpoints.c");
}

#[test]
fn connections_begin_and_end_as_both_sides_expect() {
    check("cm_connections.c");
}

#[test]
fn queue_pairs_that_a_program_gives_to_ids_itself_are_theirs() {
    check("cm_moved.c");
}

#[test]
fn calls_on_what_is_no_id_are_refused() {
    check("cm_gone.c");
}

#[test]
fn a_program_that_ends_without_a_word_or_is_killed_has_ended_its_connections() {
    check("cm_ends.c");
}

#[test]
fn a_loopback_address_is_of_any_device_until_there_is_a_peer() {
    check_with("cm_loopback.c", &[]);
}

#[test]
fn a_loopback_address_is_of_the_only_device() {
    check("cm_loopback.c");
}

/// Of a machine that has one beside `lo`; elsewhere there is nothing to ask.
#[test]
fn a_loopback_address_is_not_of_another_device() {
    let devices = vernic_engine::devices().unwrap();
    let Some(other) = devices.iter().find(|device| device.port.netdev != "lo") else { return };
    check_with("cm_loopback.c", &[("VERNIC_DEVICE", &other.name)]);
}

//! Programs of C on the connection manager.

mod common;

use std::path::Path;

use common::Folder;

fn check(program: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
    Folder::new(program).check(&source);
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
fn connections_begin_and_end_as_both_sides_expect() {
    check("cm_connections.c");
}

#[test]
fn a_program_that_ends_without_a_word_or_is_killed_has_ended_its_connections() {
    check("cm_ends.c");
}

//! `ibv_modify_qp_rate_limit` and static rates, through memory and by the wire.

mod common;

use std::path::Path;

use common::Folder;

fn check(settings: &[(&str, &str)]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rate_limit.c");
    Folder::new("rate-limit").check_with(&source, settings);
}

#[test]
fn limits_are_kept_to_within_one_host() {
    check(&[("VERNIC_SAME_HOST", "on")]);
}

#[test]
fn limits_are_kept_to_by_the_wire() {
    check(&[("VERNIC_FORCE_WIRE", "on")]);
}

#[test]
fn a_static_rate_that_is_none_is_refused_by_its_value() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rate_limit.c");
    let folder = Folder::new("rate-value");
    let Some(program) = folder.compile(&source) else { return };
    let output = folder.run_with(&program, &[("VERNIC_LOG", "warn")]);
    let log = String::from_utf8(output.stderr).unwrap();
    for value in ["static rate 77", "static rate 1 ", "rate_limit in kb/s is 400000001"] {
        assert!(log.contains(value), "{value} in {log}");
    }
}

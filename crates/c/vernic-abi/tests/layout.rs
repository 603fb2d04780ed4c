//! The structs of C, against the headers that are installed.
//!
//! `src/layout/` states sizes and offsets in its `sizes!` and `offsets!`; the compiler has checked
//! that our structs have them. Here a program of C checks that the header's have them, too.

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use common::Folder;

/// Structs of ours that the header has no name for, or that newer headers have longer.
const NOT_IN_THE_HEADER: &[&str] = &[
    "verbs_device",
    "wr_rdma",
    "wr_atomic",
    "wr_ud",
    "wr_union",
    "wr_bind_mw",
    "PathRecord",
    "event_param",
];
const LONGER_SINCE: &[&str] = &["ibv_port_attr", "ibv_qp_ex", "verbs_context"];

/// Fields that newer headers have.
const NEWER: &[&str] = &["active_speed_ex", "wr_flush"];

/// The name of a field in the header, where ours is another.
fn field(ours: &str) -> &str {
    match ours {
        "mw_type" => "type",
        "remote_srqn" => "qp_type.xrc.remote_srqn",
        "private" => "priv",
        other => other,
    }
}

/// What is between the braces of a macro, for each time that it is used.
fn blocks<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(name).skip(1).map(|rest| {
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// `name = number` of a list.
fn pairs(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split(',').filter_map(|item| {
        let (name, number) = item.split_once('=')?;
        Some((name.trim(), number.trim().trim_end_matches(['}', ' '])))
    })
}

fn program(sources: &str) -> (String, usize) {
    let header = |name: &&str| !NOT_IN_THE_HEADER.contains(name);
    let mut code = String::from(
        "#include <stddef.h>\n#include <infiniband/umad.h>\n#include <rdma/rdma_cma.h>\n",
    );
    let mut count = 0;
    let mut check = |claim: String| {
        let _ = writeln!(code, "_Static_assert({claim}, \"{claim}\");");
        count += 1;
    };
    for list in blocks(sources, "sizes! {") {
        for (name, bytes) in pairs(list).filter(|(name, _)| header(name)) {
            if !LONGER_SINCE.contains(&name) {
                check(
                    format!("sizeof(struct {name}) == {bytes}")
                        .replace("struct ibv_gid)", "union ibv_gid)"),
                );
            }
        }
    }
    for list in blocks(sources, "offsets! {") {
        for entry in list.split('}').filter_map(|entry| entry.split_once('{')) {
            let name = entry.0.trim();
            for (ours, bytes) in pairs(entry.1).filter(|(ours, _)| !NEWER.contains(ours)) {
                let theirs = field(ours);
                match name {
                    // Grows at its front: what counts is the distance from the end.
                    "verbs_context" => check(format!(
                        "sizeof(struct {name}) - offsetof(struct {name}, {theirs}) == 696 - {bytes}"
                    )),
                    _ => check(format!("offsetof(struct {name}, {theirs}) == {bytes}")),
                }
            }
        }
    }
    code.push_str("int main(void) { return 0; }\n");
    (code, count)
}

#[test]
fn sizes_and_offsets_are_those_of_the_installed_header() {
    let folder = Folder::new("layout");
    let layouts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/layout");
    let mut sources = String::new();
    for file in fs::read_dir(layouts).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().is_some_and(|name| name != "mod.rs") {
            sources.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let (code, count) = program(&sources);
    assert!(count > 260, "only {count} claims were found in src/layout");
    let source = folder.path().join("layout.c");
    fs::write(&source, code).unwrap();
    folder.check(&source);
}

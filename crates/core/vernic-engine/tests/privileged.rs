//! Programs with rights that their caller has not, such as those that are set-uid: they listen to
//! nobody.

#![allow(clippy::print_stdout)] // how the processes talk

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use vernic_engine::{Origin, Settings};

/// Tells the other process that it is one.
const ROLE: &str = "VERNIC_TEST_ROLE";

/// Not a test of its own: what the copy of this program runs.
#[test]
fn the_other_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let settings = Settings::load().unwrap();
    let rows = settings.rows().filter(|(_, _, origin)| **origin != Origin::Default);
    let all: Vec<_> =
        rows.map(|(key, value, origin)| format!("{}={value} ({origin})", key.name)).collect();
    println!("> {} rights, {}", vernic_engine::has_foreign_rights(), all.join(", "));
}

/// A copy of this program, gone with the value.
struct Copied(PathBuf);

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What a program says of its settings that is told some by file and environment.
fn settings_of(program: &Path, file: &Path) -> String {
    let mut command = Command::new(program);
    command.args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, "1").env("VERNIC_MTU", "1024").env("VERNIC_CONFIG", file);
    let output = command.env("VERNIC_CAPTURE", "/tmp/stolen.pcapng").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("> ").map(|(_, rest)| rest));
    line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

#[test]
fn a_set_gid_program_takes_neither_file_nor_environment_and_shares_nothing() {
    let at = |name: &str| std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let (program, file) = (Copied(at("vernic-set-gid")), Copied(at("vernic-set-gid.conf")));
    std::fs::write(&file.0, "flows = 3\n").unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), &program.0).unwrap();
    let plain = settings_of(&program.0, &file.0);
    assert!(plain.starts_with("false rights, "), "{plain}");
    for part in ["mtu=1024 (", "capture=/tmp/stolen.pcapng (", "flows=3 ("] {
        assert!(plain.contains(part), "{part} is not in {plain}");
    }
    if chown(&program.0, None, Some(1)).is_err() {
        return eprintln!("skipped: only root can give a file to another group");
    }
    std::fs::set_permissions(&program.0, PermissionsExt::from_mode(0o2755)).unwrap();
    let privileged = settings_of(&program.0, &file.0);
    if privileged.starts_with("false rights") {
        return eprintln!("skipped: the system ignores the bit (a mount with nosuid)");
    }
    let rights = "rights that the caller has not (set-uid or the like)";
    let expected = format!("true rights, same_host=off ({rights}), direct=off ({rights})");
    assert_eq!(privileged, expected);
}

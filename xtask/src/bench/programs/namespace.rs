//! A network of this measurement's own: a namespace whose only interface is `lo`.
//!
//! Verbs programs of other users of the machine are then no neighbours of the ends, and nobody
//! else's packets pass the loopback interface.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::Result;
use crate::shell::run;

/// What a new namespace must allow; tried in a child, since there is no way back.
const TRIAL: &str = "unshare -rn ip link set lo up";

/// Moves this process, and what it starts from now on, to a network of its own, and says which
/// network it is. Where the system allows no namespace it stays in the machine's.
pub(super) fn enter() -> Result<&'static str> {
    if !run(TRIAL).succeeds() {
        return Ok("on the machine's own loopback interface, since it allows no namespace");
    }
    match unshare(CloneFlags::CLONE_NEWNET) {
        Err(Errno::EPERM) => with_user()?,
        other => other.map_err(|e| format!("a network namespace: {e}"))?,
    }
    run("ip link set lo up").output()?;
    Ok("in a network namespace of their own")
}

/// Moves this process likewise without privilege: into a namespace of users, too, where it is root.
fn with_user() -> Result {
    let me = fs::metadata("/proc/self").map_err(|e| format!("/proc/self: {e}"))?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
        .map_err(|e| format!("a namespace of users: {e}"))?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).map_err(|e| format!("{file}: {e}"))
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("0 {} 1", me.uid()))?;
    write("gid_map", format!("0 {} 1", me.gid()))
}

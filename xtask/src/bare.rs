//! `cargo xtask dist --try`: what was packed, installed as a stranger does, in a bare Debian.
//!
//! Called by `dist`, by hand, as root: it needs mmdebstrap and Debian's packages, and takes as long
//! as these take to arrive. The root is made new, and has no compiler, no curl and no Vernic. Three
//! commands of docs/install.md are run in it and timed; the archive lies in a folder instead of on
//! a server, and the two ends have a network namespace with nothing but `lo`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::shell::run;
use crate::{Result, root, target, tools};

/// Packages that bring what makes the root, and network namespaces.
const TOOLS: &[tools::Tool] = &[
    ("mmdebstrap", &["mmdebstrap", "--version"], "mmdebstrap"),
    ("ip", &["ip", "-V"], "iproute2"),
];

/// Seconds from the first command to the end of the last one, at most: the bar of the project.
const BAR: Duration = Duration::from_secs(60);

/// Command lines, in the order of typing; the last one without the network of this machine.
const COMMANDS: [&str; 3] = [
    "apt-get update -q && apt-get install -q -y --no-install-recommends curl ca-certificates perftest",
    "curl -fsSL file:///srv/install.sh | VERNIC_URL=file:///srv sh",
    "vernic run -- ib_write_bw & sleep 1; vernic run -- ib_write_bw 127.0.0.1",
];

/// Installs what lies in `folder` (the archive and `SHA256SUMS`) in a bare Debian 12, and runs a
/// benchmark with it.
pub(crate) fn check(folder: &Path) -> Result {
    tools::install(TOOLS)?;
    let debian = target().join("dist/bare");
    if debian.exists() {
        fs::remove_dir_all(&debian).map_err(|e| format!("{}: {e}", debian.display()))?;
    }
    let place = debian.display().to_string();
    run("mmdebstrap --variant=minbase bookworm").arg(&place).limit_min(10).go()?;
    let served = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let files = served.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    for file in files.chain([root().join("tools/install/install.sh")]) {
        let name = file.file_name().unwrap_or_default();
        let copied = fs::copy(&file, debian.join("srv").join(name));
        copied.map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let mut whole = Duration::ZERO;
    for (number, command) in COMMANDS.iter().enumerate() {
        let start = Instant::now();
        enter(&place, command, number + 1 == COMMANDS.len())?;
        let took = start.elapsed();
        println!("command {}: {:.1} s", number + 1, took.as_secs_f64());
        whole += took;
    }
    println!("{} commands in a bare Debian 12: {:.1} s", COMMANDS.len(), whole.as_secs_f64());
    if whole < BAR { Ok(()) } else { Err(format!("that is more than {} s", BAR.as_secs())) }
}

/// Runs a command line in a root, with /proc, /dev and a /dev/shm of its own.
fn enter(place: &str, command: &str, alone: bool) -> Result {
    const MOUNTS: &str = "set -e
        mount -t proc proc $0/proc
        mount --rbind /dev $0/dev
        mount -t tmpfs tmpfs $0/dev/shm
        [ -z \"$2\" ] || ip link set lo up
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
            DEBIAN_FRONTEND=noninteractive chroot $0 sh -c \"$1\"";
    let apart = "unshare --mount --pid --fork --kill-child";
    let apart = if alone { format!("{apart} --net") } else { apart.into() };
    let alone = if alone { "alone" } else { "" };
    run(&apart).args(&["sh", "-c", MOUNTS, place, command, alone]).limit_min(5).go()
}

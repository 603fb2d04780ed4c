//! Where the commands of a page run: a network namespace with `lo` alone, and `/dev/shm` and `/tmp`
//! of their own, all gone with the block.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{on_path, run};
use crate::{Result, root, target};

/// How long a block may take, seconds: the longest is a benchmark.
const LIMIT_S: u32 = 180;

/// Seconds between a line that ends with `&` and the next, as somebody who types makes: a server
/// listens by then, and its client does not try twice.
const PAUSE_S: u32 = 2;

/// What is done before a block. `target/release` is where pages say that programs are, wherever
/// they were built. Processes of the block that still run at its end, such as servers, are ended
/// then.
const BEFORE: &str = "\
exec 2>&1
mount --make-rprivate /
mount -t tmpfs tmpfs /dev/shm
if [ -n \"$OWN_TMP\" ]; then mount -t tmpfs tmpfs /tmp; fi
mkdir -p target/release
mount --bind \"$PROGRAMS\" target/release
ip link set lo up
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT
set -e
";

/// The namespaces, and the programs in them.
pub(super) struct Place {
    programs: PathBuf,
    path: OsString,
}

/// How a block ended.
pub(super) struct Ended {
    pub(super) output: String,
    code: Option<i32>,
}

impl Ended {
    /// One word for it.
    pub(super) fn verdict(&self) -> &'static str {
        if self.code == Some(0) { "ok" } else { "FAILED" }
    }

    /// What went wrong, with all that was printed.
    pub(super) fn failure(&self) -> Option<String> {
        let how = match self.code {
            Some(0) => return None,
            Some(124 | 137) => format!("ran past {LIMIT_S} s"),
            Some(code) => format!("a command ended with exit status {code}"),
            None => "bash was killed".into(),
        };
        Some(format!("{how}; printed was:\n{}", self.output))
    }
}

impl Place {
    /// Whether there can be such namespaces here.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn probe() -> Result {
        for program in ["unshare", "ip", "bash", "timeout"] {
            if !on_path(program) {
                return Err(format!("there is no `{program}` on the PATH"));
            }
        }
        let probe = unshare().arg("true").stderr(Stdio::null()).status();
        match probe {
            Ok(status) if status.success() => Ok(()),
            _ => Err("network and mount namespaces cannot be made here: run this as root".into()),
        }
    }

    /// With the programs of a folder.
    pub(super) fn new(programs: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(PathBuf::from(programs)).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).unwrap_or(path);
        Self { programs: programs.to_owned(), path }
    }

    /// Runs a block from the root of the repository.
    pub(super) fn run(&self, block: &str) -> Result<Ended> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &LIMIT_S.to_string()]);
        let around = unshare();
        command.arg(around.get_program()).args(around.get_args());
        command.args(["bash", "-c", &script(block)]).current_dir(root()).stdin(Stdio::null());
        command.env("PATH", &self.path).env("PROGRAMS", &self.programs);
        command.env("VERNIC_CONFIG", "/dev/null").env("LC_ALL", "C");
        // Everything is built and fetched; there is no network.
        command.env("CARGO_NET_OFFLINE", "true");
        command.env("OWN_TMP", if is_tmp_ours() { "yes" } else { "" });
        for name in ["XDG_RUNTIME_DIR", "TMPDIR"] {
            command.env_remove(name);
        }
        let output = command.output().map_err(|e| format!("cannot start timeout: {e}"))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaints = String::from_utf8_lossy(&output.stderr);
        Ok(Ended { output: printed + &complaints, code: output.status.code() })
    }
}

/// Whether `/tmp` may be hidden: nothing that is needed lies there.
fn is_tmp_ours() -> bool {
    ![root().to_path_buf(), target()].iter().any(|path| path.starts_with("/tmp"))
}

/// The command that makes the namespaces; without root it makes one of users, too.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !run("id -u").output().is_ok_and(|id| id.trim() == "0") {
        command.arg("--map-root-user");
    }
    command
}

/// What bash is given: the block, with a pause behind each line that leaves a program in the
/// background.
fn script(block: &str) -> String {
    let mut script = String::from(BEFORE);
    for line in block.lines() {
        script += line;
        script += "\n";
        let command = line.split(" #").next().unwrap_or_default().trim_end();
        if command.ends_with('&') && !command.ends_with("&&") {
            script += &format!("sleep {PAUSE_S}\n");
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_the_background_is_given_time() {
        let script = script("server &          # waits\nclient && true\nx &&\ny\n");
        let lines: Vec<_> = script.strip_prefix(BEFORE).unwrap().lines().collect();
        let pause = format!("sleep {PAUSE_S}");
        assert_eq!(lines, ["server &          # waits", &pause, "client && true", "x &&", "y"]);
    }

    #[test]
    fn a_block_that_fails_says_how_with_what_it_printed() {
        if Place::probe().is_err() {
            return;
        }
        let place = Place::new(&std::env::temp_dir());
        let ended = place.run("echo one\nfalse\necho two\n").unwrap();
        assert_eq!((ended.output.as_str(), ended.code), ("one\n", Some(1)));
        assert!(ended.failure().unwrap().contains("exit status 1; printed was:\none"));
        let ended = place.run("sleep 1000 &\ncd /dev/shm && ls | wc -l\n").unwrap();
        assert_eq!((ended.failure(), ended.output.as_str()), (None, "0\n"));
    }
}

//! Another process: this test binary once more, told by a variable of the environment what to be.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Tells the other process what it is.
pub const ROLE: &str = "VERNIC_TEST_ROLE";

/// Another process with its standard input and output; dropping the value ends it.
pub struct Other {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Other {
    /// Runs the test `the_other_process` of this binary.
    pub fn start(role: &str) -> Self {
        Self::run(&mut Command::new(std::env::current_exe().unwrap()), role)
    }

    /// Runs the test `the_other_process` by a command that runs this binary.
    pub fn run(command: &mut Command, role: &str) -> Self {
        let mut child = command
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Runs the test `the_other_process` in a network namespace of its own, of which it is root.
    /// Prints why and returns `None` where there is none.
    pub fn in_a_namespace(role: &str) -> Option<Self> {
        unshared().map(|mut command| Self::run(&mut command, role))
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that is for us: what stands behind "> ".
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the other process ended");
            // The test harness may have begun the line.
            if let Some((_, text)) = line.split_once("> ") {
                return text.trim().to_owned();
            }
        }
    }

    #[allow(unsafe_code)]
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers; the process is our child, which was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Stops it; returns when none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        let since = Instant::now();
        while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
            std::thread::sleep(Duration::from_millis(1));
            assert!(since.elapsed() < super::PATIENCE, "it does not stop");
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All descriptors that this process may have.
#[allow(unsafe_code)]
pub fn take_descriptors() -> Vec<std::fs::File> {
    let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
    // SAFETY: the pointer is to `limit`, which lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    (0..).map_while(|_| std::fs::File::open("/dev/null").ok()).collect()
}

/// Set where a test has a network namespace to itself.
const ALONE: &str = "VERNIC_TEST_ALONE";

/// A command that runs this binary in a network namespace of its own, with `lo` up. `None`, and
/// said, where that cannot be.
#[allow(clippy::print_stdout)] // what is skipped
fn unshared() -> Option<Command> {
    let unshare = |shell: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", shell]);
        command
    };
    let probe = unshare("ip link set lo up").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no network namespaces, or no `ip`, here");
        return None;
    }
    let mut command = unshare("ip link set lo up && exec \"$0\" \"$@\"");
    command.arg(std::env::current_exe().unwrap());
    Some(command)
}

/// Runs a test in a network namespace of its own: a process that is stopped must not share port
/// 4791 with other tests. False where this is that run.
pub fn runs_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let Some(mut command) = unshared() else { return true };
    let run = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
    true
}

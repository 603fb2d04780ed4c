//! Another process: this test binary once more, told by a variable of the environment what to be.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Tells the other process what it is.
pub const ROLE: &str = "VERNIC_TEST_ROLE";

/// The other process with its standard input and output; ended with the value.
pub struct Other {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Other {
    /// Runs the test `the_other_process` of this binary.
    pub fn start(role: &str) -> Self {
        Self::run(&mut Command::new(std::env::current_exe().unwrap()), role)
    }

    /// The same, by a command that runs the binary.
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
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

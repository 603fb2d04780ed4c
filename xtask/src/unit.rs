//! The workspace's tests: cargo runs them, and what failed is said once more where one looks, at
//! the end.

use crate::Result;
use crate::shell::run;

/// Features are code that users build, so it is judged too: `vernic`'s `tokio`. Both steps take the
/// same set, and dependencies are built once for it.
pub(crate) const FEATURES: &str = "--all-features";

/// With this variable set, a test whose outside judge (tshark, scapy) is missing fails instead of
/// skipping itself.
const REQUIRE_TOOLS: &str = "VERNIC_REQUIRE_TOOLS";

/// Up to this many failed tests are run once more, each alone: many of them run processes against
/// each other, and a machine can be too busy for that. More is no matter of luck.
const SECOND_ATTEMPTS: usize = 3;

/// Lines of what a failed test printed that are repeated.
const EXCERPT: usize = 12;

/// Runs the tests of the workspace.
pub(crate) fn check() -> Result {
    let line = format!("cargo test --workspace {FEATURES} --no-fail-fast");
    let mut watched = Watched::default();
    let ended = run(&line).env(REQUIRE_TOOLS, "1").limit_min(20).watch(|line| watched.see(line));
    let Err(why) = ended else { return Ok(()) };
    let failures = watched.failures;
    if failures.is_empty() || failures.len() > SECOND_ATTEMPTS {
        return Err(why + &told(&failures));
    }
    println!("Once more, each alone:{}", told(&failures));
    let again = format!("cargo test --workspace {FEATURES} --no-fail-fast --");
    for failure in &failures {
        let alone = run(&again).args(&["--exact", &failure.name]);
        let mut seen = Watched::default();
        let ended = alone.env(REQUIRE_TOOLS, "1").limit_min(10).watch(|line| seen.see(line));
        if ended.is_err() || seen.passed == 0 {
            return Err(format!("failed twice: {}{}", failure.name, told(&failures)));
        }
    }
    println!("Passed at the second attempt only:{}", told(&failures));
    Ok(())
}

fn told(failures: &[Failure]) -> String {
    failures.iter().map(|f| format!("\n  {}\n{}", f.name, f.excerpt)).collect()
}

struct Failure {
    name: String,
    /// What it printed, its first lines.
    excerpt: String,
}

/// What the lines that libtest prints say.
#[derive(Default)]
struct Watched {
    failures: Vec<Failure>,
    passed: usize,
    /// Lines that still belong to the excerpt of the last failure.
    left: usize,
}

impl Watched {
    fn see(&mut self, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"));
        if let Some(name) = heading {
            self.failures.push(Failure { name: name.into(), excerpt: String::new() });
            self.left = EXCERPT;
        } else if line == "failures:" || line == "stack backtrace:" {
            self.left = 0;
        } else if self.left > 0
            && !line.is_empty()
            && let Some(failure) = self.failures.last_mut()
        {
            failure.excerpt += &format!("    {line}\n");
            self.left -= 1;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            let count = rest.split_once(". ").and_then(|(_, counts)| counts.split_once(" passed"));
            self.passed += count.and_then(|(count, _)| count.parse::<usize>().ok()).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 2 tests
test good ... ok
test nested::bad ... FAILED

failures:

---- nested::bad stdout ----

thread 'nested::bad' panicked at src/lib.rs:1:1:
assertion failed: false
stack backtrace:
   0: rust_begin_unwind


failures:
    nested::bad

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn failed_tests_are_named_with_what_they_said() {
        let mut watched = Watched::default();
        OUTPUT.lines().for_each(|line| watched.see(line));
        assert_eq!(watched.passed, 13);
        let said = "\n  nested::bad\n    thread 'nested::bad' panicked at src/lib.rs:1:1:\n    assertion failed: false\n";
        assert_eq!(told(&watched.failures), said);
    }
}

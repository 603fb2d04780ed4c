//! The workspace's tests: cargo runs them, and what failed or never ended is said once more where
//! one looks, at the end.

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
    // Built first, under a limit of its own: a slow build is then no hang of a test.
    run(&line).arg("--no-run").limit_min(20).go()?;
    let mut watched = Watched::default();
    let ended = run(&line).env(REQUIRE_TOOLS, "1").limit_min(20).watch(|line| watched.see(line));
    let Err(why) = ended else { return Ok(()) };
    let failures = std::mem::take(&mut watched.failures);
    if failures.is_empty() || failures.len() > SECOND_ATTEMPTS {
        return Err(why + &told(&failures) + &watched.unfinished());
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
    /// Tests that libtest reported as slow, and no end of them.
    slow: Vec<String>,
    /// The last line that told of a test.
    last: String,
}

impl Watched {
    /// What to say of tests that did not end, for a run that reached its limit.
    fn unfinished(&self) -> String {
        let slow: String =
            self.slow.iter().map(|name| format!("\n  still running: {name}")).collect();
        format!("{slow}\n  the last line of a test: {}", self.last)
    }

    /// Keeps which tests run for long.
    fn see_test(&mut self, of_test: &str) {
        self.last = of_test.to_owned();
        if let Some((name, _)) = of_test.split_once(" has been running for over ") {
            self.slow.push(name.to_owned());
        } else if let Some((name, _)) = of_test.split_once(" ... ") {
            self.slow.retain(|slow| slow != name);
        }
    }

    fn see(&mut self, line: &str) {
        if let Some(of_test) = line.strip_prefix("test ").filter(|rest| !rest.starts_with("result"))
        {
            self.see_test(of_test);
        }
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

    #[test]
    fn tests_that_never_ended_are_named() {
        let mut watched = Watched::default();
        let lines = [
            "test slow has been running for over 60 seconds",
            "test stuck has been running for over 60 seconds",
            "test slow ... ok",
        ];
        lines.iter().for_each(|line| watched.see(line));
        let said = "\n  still running: stuck\n  the last line of a test: slow ... ok";
        assert_eq!(watched.unfinished(), said);
    }
}

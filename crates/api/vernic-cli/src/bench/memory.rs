//! Whether this machine has the memory that a measurement asks for.
//!
//! A server takes its orders from anybody who reaches its port, and memory that is asked for and
//! written to ends in the system killing some process.

use crate::failure::{Failure, Outcome};

/// Fails if `bytes` are more than half of what is available: on one machine both sides take as
/// much. Where the system does not say what is available (no /proc), the allocation decides.
pub(crate) fn check(bytes: usize) -> Outcome<()> {
    match std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text)) {
        Some(available) => check_against(bytes, available),
        None => Ok(()),
    }
}

fn check_against(bytes: usize, available: usize) -> Outcome<()> {
    if bytes <= available / 2 {
        return Ok(());
    }
    let mib = |bytes: usize| bytes >> 20;
    Err(Failure::new(format!(
        "the messages of all queue pairs take {} MiB, more than half of the {} MiB that are available here",
        mib(bytes),
        mib(available)
    ))
    .hint("take smaller messages (-s) or fewer queue pairs (-q)"))
}

/// Bytes that programs can have without swapping, from the text of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: usize = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_available_may_be_asked_for() {
        let text = "MemTotal:  4000 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemTotal: 1 kB"), None);
        check_against(1 << 20, 2 << 20).unwrap();
        let failure = check_against((1 << 20) + 1, 2 << 20).unwrap_err();
        assert!(failure.to_string().contains("-q"), "{failure}");
    }
}

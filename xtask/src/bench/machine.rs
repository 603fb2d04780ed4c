//! A line about the machine a measurement ran on: without it a figure says nothing.

use crate::shell::run;

/// Processor, cores, memory, kernel, compiler and commit; what cannot be found out is "unknown".
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kib = value_of("/proc/meminfo", "MemTotal").and_then(|v| {
        let number = v.split_whitespace().next()?;
        number.parse::<u64>().ok()
    });
    let memory = kib.map_or("unknown".into(), |kib| format!("{} GiB", kib.div_ceil(1 << 20)));
    let cpu = value_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into());
    format!(
        "{cpu}, {cores} cores, {memory} of memory, Linux {}, {}, commit {}",
        first_line("uname -r"),
        first_line("rustc --version"),
        first_line("git describe --always --dirty"),
    )
}

fn first_line(command: &str) -> String {
    let output = run(command).output().unwrap_or_default();
    output.lines().next().unwrap_or("unknown").to_owned()
}

/// The value of the first `key : value` line of a /proc file.
fn value_of(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

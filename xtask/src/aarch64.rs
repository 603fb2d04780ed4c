//! The step `aarch64`: what is released for that processor, built and run on another one.
//!
//! Called by the list of steps. The command and the libraries are built for aarch64 and linked by
//! GNU ld, programs of C run with them, and unit tests run, all by QEMU's emulation of a process.
//! Its limits: the kernel is that of this machine, and memory is ordered as this machine orders it,
//! so what loom finds in the rings between processes is not found here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::plan::Done;
use crate::shell::{Run, on_path, run};
use crate::tools::{self, Tool};
use crate::{Result, root, target};

/// The target, as rustc names it.
const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// The C compiler, which rustc links with.
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// The emulator, with the folder of this processor's C library.
const EMULATOR: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu";

const TOOLS: &[Tool] = &[
    (COMPILER, &[COMPILER, "--version"], "gcc-aarch64-linux-gnu"),
    (
        "aarch64's C library",
        &["test", "-f", "/usr/aarch64-linux-gnu/include/stdio.h"],
        "libc6-dev-arm64-cross",
    ),
    ("qemu-aarch64", &["qemu-aarch64", "--version"], "qemu-user"),
];

/// Crates whose unit tests run: those with code that depends on the processor. `vernic-proto` has
/// none. Those above it open sockets and devices; what they need of the processor, the programs of
/// C show.
const UNIT_TESTS: &str = "-p vernic-sys -p vernic-wire -p vernic-mem";

/// Parts of the names of unit tests that do not run.
const LEFT_OUT: [&str; 4] = [
    // QEMU knows no `process_vm_readv`, and ends when a process with threads forks.
    "peer::tests::",
    "shared_pages::tests::",
    "several_processes_that_do_not_stop",
    "children_inherit_no_buffer",
];

/// Tests of the C interface that run, each a program that fails if anything is wrong, and the
/// transport. Left out are those that need a test around them, and those that QEMU does not let
/// pass: it ends when a process with threads forks, and joins no group of IPv4 on `lo`.
const PROGRAMS: [(&str, &str); 9] = [
    ("cm_endpoints", "roce"),
    ("cm_loopback", "roce"),
    ("cm_moved", "roce"),
    ("crowd", "roce"),
    ("iwarp", "iwarp"),
    ("migration", "roce"),
    ("probes", "roce"),
    ("rsockets", "roce"),
    ("window_keys", "roce"),
];

/// The step of `cargo xtask test`.
pub(crate) fn check() -> Result<Done> {
    if cfg!(target_arch = "aarch64") {
        return Ok(Done::Skipped("this is such a machine, so the other steps judge it".into()));
    }
    if let Err(why) = add_target() {
        return Ok(Done::Skipped(format!("no standard library for {TRIPLE}: {why}")));
    }
    tools::install(TOOLS)?;
    for_aarch64("cargo build").limit_min(15).go()?;
    let built = target().join(TRIPLE).join("debug");
    emulated(&built.join("vernic")).arg("--version").limit_min(1).go()?;
    let libraries = libraries(&built)?;
    for (name, transport) in PROGRAMS {
        check_program(name, transport, &libraries)?;
    }
    unit_tests()?;
    Ok(Done::Passed)
}

/// Builds unit tests, and runs them; both of all crates together, which share what they need.
fn unit_tests() -> Result {
    let line = format!("cargo test --lib {UNIT_TESTS}");
    for_aarch64(&line).arg("--no-run").limit_min(15).go()?;
    let tests = for_aarch64(&line).arg("--");
    let tests = LEFT_OUT.iter().fold(tests, |tests, name| tests.args(&["--skip", name]));
    tests.env("PROPTEST_CASES", "16").limit_min(10).go()
}

/// The standard library, by rustup where it is not there.
fn add_target() -> Result {
    let folder = run(&format!("rustc --print target-libdir --target {TRIPLE}")).output()?;
    if Path::new(folder.trim()).is_dir() {
        return Ok(());
    }
    if !on_path("rustup") {
        return Err("there is no rustup to bring it".into());
    }
    run(&format!("rustup target add {TRIPLE}")).limit_min(5).go()
}

/// A command of cargo for aarch64.
fn for_aarch64(line: &str) -> Run {
    let name = TRIPLE.to_uppercase().replace('-', "_");
    run(&format!("{line} --target {TRIPLE}"))
        .env(&format!("CARGO_TARGET_{name}_LINKER"), COMPILER)
        .env(&format!("CARGO_TARGET_{name}_RUNNER"), EMULATOR)
}

/// A program of aarch64, run.
fn emulated(program: &Path) -> Run {
    run(EMULATOR).arg(program.display().to_string())
}

/// A folder with the library of verbs under the names that programs look for.
fn libraries(built: &Path) -> Result<PathBuf> {
    let folder = target().join("aarch64");
    let why = |e| format!("{}: {e}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(why)?;
    }
    fs::create_dir_all(&folder).map_err(why)?;
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"] {
        symlink(built.join("libvernic_abi.so"), folder.join(name)).map_err(why)?;
    }
    Ok(folder)
}

/// Compiles a test of the C interface for aarch64, and runs it.
fn check_program(name: &str, transport: &str, libraries: &Path) -> Result {
    let program = libraries.join(name);
    let source = root().join(format!("crates/c/vernic-abi/tests/{name}.c"));
    // The headers of verbs are the same for each processor; those of the C library are not.
    run(COMPILER)
        .args(&["-Wall", "-Wextra", "-O1", "-pthread", "-idirafter", "/usr/include", "-o"])
        .arg(program.display().to_string())
        .arg(source.display().to_string())
        .arg(format!("-L{}", libraries.display()))
        .args(&["-l:libibverbs.so.1", "-l:librdmacm.so.1"])
        .go()?;
    emulated(&program)
        .env("LD_LIBRARY_PATH", &libraries.display().to_string())
        .env("VERNIC_DEVICE", "lo")
        .env("VERNIC_TRANSPORT", transport)
        .limit_min(2)
        .go()
}

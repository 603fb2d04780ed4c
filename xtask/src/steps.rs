//! The steps of `cargo xtask test`: what this repository is judged by.
//!
//! TESTING.md says what each judge proves; a step added here gets its row there.

use crate::plan::{Done, Step};
use crate::shell::run;
use crate::unit::FEATURES;
use crate::{
    Result, aarch64, bench, book, capture, clauses, commands, conformance, dist, fabric,
    instructions, ipsec, kernel, kills, lives, root, rules, settings, target, tools, unit,
};

/// Crates whose unit tests run under Miri, and which of these: memory, where it is `unsafe` or has
/// atomics, and the CRCs, which are `unsafe` code of others. The rest of `vernic-wire`, and
/// `vernic-proto`, have no `unsafe`: it takes Miri minutes to find nothing. The others make system
/// calls that Miri does not know.
const MIRI_TESTS: &[(&str, &str)] =
    &[("vernic-mem", "racy slice_scope revocation peer"), ("vernic-wire", "crc")];

/// Every step, in the order of running: quick ones first.
pub(crate) fn all(seeds: u64, fuzz_seconds: u64) -> Vec<Step> {
    let mut steps = vec![
        Step::new(
            "packages",
            "system packages: tshark, scapy, g++, iproute2, verbs programs",
            &[],
            tools::system_packages,
        ),
        Step::new("cargo-deny", "cargo-deny is installed", &[], tools::cargo_deny),
        Step::new("cargo-fuzz", "cargo-fuzz is installed", &[], tools::cargo_fuzz),
        Step::new("mdbook", "mdBook is installed", &[], tools::mdbook),
        Step::may_skip("nightly", "a nightly toolchain with Miri is installed", &[], tools::miri),
    ];
    steps.extend(lint(true));
    steps.extend([
        Step::new("deny", "licences, sources and bans of dependencies", &["cargo-deny"], deny),
        Step::new("tests", "unit, integration and documentation tests", &["packages"], unit::check),
        Step::new("golden", "scapy makes the golden packets again", &["packages"], golden),
        Step::new("sim", format!("simulator, {seeds} seeds"), &[], move || simulator(seeds, None)),
        Step::new("bench", "vernic bench --quick --json keeps its schema", &[], bench::check_quick),
        Step::new(
            "instructions",
            "messages cost no more instructions than their page says",
            &["packages"],
            instructions::check,
        ),
        Step::may_skip(
            "lives",
            "ARCHITECTURE.md tells the order in which functions are entered",
            &["packages"],
            lives::check,
        ),
        Step::new(
            "capture",
            "captured packets: tshark's opinion, every ICRC",
            &["packages"],
            capture::check,
        ),
        Step::may_skip(
            "conformance",
            "Debian's verbs programs and rdma-core's Python tests",
            &["packages"],
            conformance::check,
        ),
        Step::may_skip(
            "commands",
            "the commands of README.md and pages run, and print what the pages show",
            &["packages"],
            commands::check,
        ),
        Step::new(
            "book",
            "docs/ makes a book, whose links lead somewhere",
            &["mdbook"],
            book::check,
        ),
        Step::may_skip(
            "dist",
            "what people install is packed, and runs where it is unpacked",
            &["packages"],
            dist::check,
        ),
        Step::may_skip(
            "aarch64",
            "the command and the libraries built for aarch64, and run by an emulator",
            &["packages"],
            aarch64::check,
        ),
        Step::may_skip(
            "kills",
            "programs that are killed, and what their peers learn of it",
            &["packages"],
            kills::check,
        ),
        Step::new(
            "fabric",
            "fabrics under OpenSM, infiniband-diags and tshark",
            &["packages"],
            fabric::check,
        ),
        Step::may_skip(
            "kernel-image",
            "QEMU and a Linux kernel with rdma_rxe are here",
            &["packages"],
            kernel::check_image,
        ),
        Step::may_skip(
            "kernel",
            "programs against the Linux kernel's rdma_rxe",
            &["packages", "kernel-image"],
            kernel::check,
        ),
        Step::may_skip(
            "ipsec",
            "the recipe of docs/ipsec.md, in a guest",
            &["packages", "kernel-image"],
            ipsec::check,
        ),
        Step::new(
            "fuzz",
            format!("each fuzz target for {fuzz_seconds} s"),
            &["packages", "cargo-fuzz"],
            move || fuzz(fuzz_seconds, None),
        ),
        Step::may_skip("miri", "unit tests of mem, and of the CRCs, under Miri", &[], miri),
    ]);
    steps
}

/// The steps that need no tools beyond rustup's own: `cargo xtask lint`, which builds no release.
pub(crate) fn lint(release: bool) -> Vec<Step> {
    vec![
        Step::new("rules", "what the repository's own files must keep", &[], rules::check),
        Step::new("fmt", "formatting", &[], fmt),
        Step::new(
            "settings",
            "the settings of docs/settings.md and its neighbour are the engine's",
            &[],
            move || settings::check(release),
        ),
        Step::new(
            "verbs",
            "tables of programs and verbs are as the code",
            &[],
            conformance::check_page,
        ),
        Step::new("clauses", "iWARP's clauses are as the source cites them", &[], clauses::check),
        Step::new("clippy", "clippy, no warnings", &[], || {
            run(&format!("cargo clippy --workspace {FEATURES} --all-targets -- -D warnings"))
                .limit_min(20)
                .go()
        }),
        Step::new("docs", "documentation, no warnings", &[], || {
            // The command's binary and the library are both called `vernic`, and would overwrite
            // each other's pages.
            run("cargo doc --workspace --no-deps --exclude vernic-cli")
                .env("RUSTDOCFLAGS", "-D warnings")
                .limit_min(20)
                .go()
        }),
    ]
}

fn fmt() -> Result {
    run("cargo fmt --all --check").go()?;
    run("cargo fmt --manifest-path fuzz/Cargo.toml --check").go()
}

/// Advisories are left out: their database is fetched from GitHub, and this command must pass on
/// machines that reach nothing but a crate registry. `cargo deny check` runs them too.
fn deny() -> Result {
    println!("(the advisory database is not checked here: that needs GitHub)");
    run("cargo deny --all-features check bans licenses sources").limit_min(5).go()
}

/// The golden packets are what scapy makes today, comments (its version) apart.
fn golden() -> Result {
    const FILE: &str = "crates/core/vernic-wire/tests/data/golden.txt";
    let committed =
        std::fs::read_to_string(root().join(FILE)).map_err(|e| format!("{FILE}: {e}"))?;
    let made = run("python3 tools/golden/make.py").limit_min(2).output()?;
    let packets = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let (committed, made) = (packets(&committed), packets(&made));
    match committed.iter().zip(&made).position(|(a, b)| a != b) {
        Some(line) => Err(format!("{FILE}: scapy makes packet {} another one", line + 1)),
        None if committed.len() != made.len() => {
            Err(format!("{FILE}: {} packets, scapy makes {}", committed.len(), made.len()))
        }
        None => {
            println!("{} packets, all as committed", made.len());
            Ok(())
        }
    }
}

/// The simulator over this many seeds, release build; over a tenth as many of iWARP and a fiftieth
/// of fabrics, which take longer each.
pub(crate) fn simulator(seeds: u64, first: Option<u64>) -> Result {
    // Of the whole workspace, whose features other steps have built.
    run("cargo build --release --workspace --bin vernic-sim").limit_min(20).go()?;
    let program = target().join("release/vernic-sim").display().to_string();
    for (which, seeds) in
        [("", seeds), ("--iwarp", seeds.div_ceil(10)), ("--fabric", seeds.div_ceil(50))]
    {
        let mut sim = run(&format!("{program} {which} --seeds")).arg(seeds.to_string());
        if let Some(first) = first {
            sim = sim.arg("--first").arg(first.to_string());
        }
        sim.limit_min(15).go()?;
    }
    Ok(())
}

/// Every fuzz target (or the one named), this long each.
///
/// On nightly the address sanitizer is on; without nightly, coverage only.
pub(crate) fn fuzz(seconds: u64, only: Option<&str>) -> Result {
    let (cargo, sanitizer) = if tools::has_nightly() {
        ("rustup run nightly cargo fuzz", "address")
    } else {
        println!("no nightly toolchain: fuzzing on stable, without the address sanitizer");
        ("cargo fuzz", "none")
    };
    let options = format!("--fuzz-dir fuzz --target-dir target/fuzz --sanitizer {sanitizer}");
    let list = run(&format!("{cargo} list --fuzz-dir fuzz")).output()?;
    let targets: Vec<&str> =
        list.split_whitespace().filter(|t| only.is_none_or(|o| o == *t)).collect();
    if targets.is_empty() {
        return Err(match only {
            Some(only) => format!("there is no fuzz target `{only}`; there are: {}", list.trim()),
            None => "fuzz/ has no targets".into(),
        });
    }
    run(&format!("{cargo} build {options}")).limit_min(15).go()?;
    let mut crashed = Vec::new();
    for target in targets {
        // New inputs go to the first directory; committed seeds, where there are any, only lead.
        let corpus = format!("fuzz/corpus/{target}");
        std::fs::create_dir_all(root().join(&corpus)).map_err(|e| format!("{corpus}: {e}"))?;
        let seeds = format!("fuzz/seeds/{target}");
        let seeds = if root().join(&seeds).is_dir() { seeds } else { String::new() };
        let line = format!(
            "{cargo} run {options} {target} {corpus} {seeds} -- -max_total_time={seconds} -timeout=10 -print_final_stats=1"
        );
        if let Err(why) = run(&line).limit_min(2 + seconds / 60).go() {
            crashed.push(why);
        }
    }
    if crashed.is_empty() { Ok(()) } else { Err(crashed.join("; ")) }
}

/// Unit tests under Miri: undefined behaviour, data races, leaks.
fn miri() -> Result<Done> {
    if !tools::has_miri() {
        return Ok(Done::Skipped("Miri is not installed; nothing was checked by it".into()));
    }
    if let Err(why) = tools::miri_sysroot() {
        return Ok(Done::Skipped(format!("no standard library for Miri, nothing checked: {why}")));
    }
    for (package, tests) in MIRI_TESTS {
        run(&format!(
            "rustup run nightly cargo miri test --target-dir target/miri --lib -p {package} -- {tests}"
        ))
        // Property tests read their case count from the environment, and their own path.
        // The racy copies mix access sizes, which Miri's weak-memory emulation cannot do.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation")
        .env("PROPTEST_CASES", "2")
        .limit_min(20)
        .go()?;
    }
    Ok(Done::Passed)
}

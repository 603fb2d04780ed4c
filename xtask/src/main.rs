//! One entry for CI and humans: `cargo xtask <command>`.
//!
//! Owns the list of checks this repository must pass, the installation of the tools they need, and
//! the report of `vernic bench` in BENCHMARKS.md. Called by `.ci/run` and by people; calls cargo,
//! git, rustup, apt-get and tshark as programs, and of the library only `vernic-wire`.
//!
//! | file | owns |
//! |---|---|
//! | `plan` | a list of steps: order, needs, times, the totals |
//! | `steps` | the steps themselves, one function each |
//! | `tools` | programs the steps need, found or installed |
//! | `rules`, `links` | what is checked by reading the repository's own files; links of pages |
//! | `commands` | the commands of README.md and of pages, run, and what they print |
//! | `book` | docs/ as a book, by mdBook |
//! | `cycles` | import cycles between the modules of a crate |
//! | `bench` | the JSON of `vernic bench`, programs measured beside it: bars, BENCHMARKS.md, docs/benchmark-*.md, the charts |
//! | `instructions` | what a message costs in instructions, held against docs/benchmark-instructions.md |
//! | `capture` | captures of benchmarks, read by tshark, every ICRC checked |
//! | `conformance` | Debian's verbs programs and rdma-core's Python tests, through `vernic run` |
//! | `kernel` | the same programs against the Linux kernel's own driver, in an emulated machine |
//! | `ipsec` | the recipe of docs/ipsec.md, carried out and measured |
//! | `dist` | what people install, packed and tried |
//! | `bare` | what is packed, installed in a bare Debian and timed |
//! | `aarch64` | the same built for another processor, and run by an emulator |
//! | `kills` | programs of one host that are killed, and what their peers learn of it |
//! | `fabric` | fabrics under OpenSM, infiniband-diags and tshark |
//! | `clauses` | which clauses of iWARP are implemented where |
//! | `lives` | the lives in ARCHITECTURE.md, compared with what a debugger sees |
//! | `settings`, `pages` | the settings in docs/settings.md and docs/setting-meanings.md; generated parts of pages |
//! | `shell` | running a program with a time limit |

#![expect(clippy::print_stdout, reason = "a command-line program")]

mod aarch64;
mod bare;
mod bench;
mod book;
mod capture;
mod clauses;
mod commands;
mod conformance;
mod cycles;
mod dist;
mod fabric;
mod history;
mod instructions;
mod ipsec;
mod kernel;
mod kills;
mod links;
mod lives;
mod pages;
mod plan;
mod prose;
mod rules;
mod settings;
mod shell;
mod steps;
mod tools;
mod unit;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// What every part returns: nothing useful, or one sentence that says what went wrong.
type Result<T = ()> = std::result::Result<T, String>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks, tests, fuzzing and benchmarks of this repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need and run all of them
    Test(TestArgs),
    /// The fast part of `test`: repository rules, formatting, clippy, documentation
    Lint,
    /// Run the simulator in release mode
    Sim {
        /// How many seeds
        #[arg(long, default_value_t = 20_000)]
        seeds: u64,
        /// The first seed
        #[arg(long)]
        first: Option<u64>,
    },
    /// Run every fuzz target
    Fuzz {
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only this target
        #[arg(long)]
        target: Option<String>,
    },
    /// Capture benchmarks and let tshark and the ICRC judge every packet
    Capture,
    /// Run unmodified verbs programs and rdma-core's Python tests
    Conformance(conformance::Arguments),
    /// Run programs against the Linux kernel's RoCEv2 driver, in an emulated machine
    Kernel(kernel::Arguments),
    /// Carry out the recipe of docs/ipsec.md between two namespaces of a guest, and measure it
    Ipsec {
        /// Write the figures into the page
        #[arg(long)]
        write: bool,
    },
    /// Kill unmodified programs at random moments, and watch whether their peers learn of it
    Kills(kills::Arguments),
    /// Start fabrics, and let OpenSM, infiniband-diags and tshark judge them
    Fabric(fabric::Arguments),
    /// Print which modules of a crate import which, and which imports are part of a cycle
    Imports {
        /// The crate, as `vernic-engine`
        name: String,
    },
    /// Rewrite the tables of programs and verbs in conformance/README.md
    Verbs,
    /// Rewrite the settings in docs/settings.md and docs/setting-meanings.md
    Settings,
    /// Rewrite the list of iWARP's clauses in crates/core/vernic-proto/IWARP.md
    Clauses,
    /// Watch the lives that ARCHITECTURE.md tells in a debugger, and compare
    Lives,
    /// Count the instructions that messages cost, and compare with docs/benchmark-instructions.md
    Instructions {
        /// Write the figures instead
        #[arg(long)]
        write: bool,
    },
    /// Run the commands that README.md and pages of docs/ show, and compare what they print
    Commands(commands::Arguments),
    /// Build docs/ as a book into target/book; installs mdBook if it is not here
    Book,
    /// Change links that leave docs/: mdBook's preprocessor
    #[command(hide = true)]
    LinksOut {
        /// What mdBook asks, if it asks
        arguments: Vec<String>,
    },
    /// Pack what people install: the command, its libraries, man pages, completions
    Dist(dist::Arguments),
    /// Measure Vernic and unmodified programs on it, and write BENCHMARKS.md, docs/benchmark-*.md
    /// and the charts
    Bench {
        /// Read this JSON instead of running the benchmark ("-" is standard input)
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        /// A run of about two minutes; its figures are noisier
        #[arg(long)]
        quick: bool,
        /// Only what more queue pairs, peers and regions cost; some minutes
        #[arg(long, conflicts_with_all = ["from", "quick"])]
        growth: bool,
        /// Only Vernic beside the kernel's own drivers, inside an emulated machine; a quarter of an
        /// hour
        #[arg(long, conflicts_with = "growth")]
        guest: bool,
        /// Only traffic within one host; some five minutes
        #[arg(long, conflicts_with_all = ["growth", "guest"])]
        one_host: bool,
        /// Rounds of it
        #[arg(long, requires = "one_host", value_parser = clap::value_parser!(u16).range(1..))]
        rounds: Option<u16>,
    },
}

/// Options of `cargo xtask test`.
#[derive(Args)]
struct TestArgs {
    /// Run only these steps, by name, and the tools they need (repeatable)
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Leave these steps out, by name (repeatable)
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// Print the names of the steps and stop
    #[arg(long)]
    list: bool,
    /// Simulator seeds
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// Seconds for each fuzz target
    #[arg(long, default_value_t = 5)]
    fuzz_seconds: u64,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Test(args) => return test(&args),
        Command::Lint => return plan::run(&steps::lint(false)),
        Command::Sim { seeds, first } => steps::simulator(seeds, first),
        Command::Fuzz { seconds, target } => {
            tools::cargo_fuzz().and_then(|()| steps::fuzz(seconds, target.as_deref()))
        }
        Command::Capture => tools::system_packages().and_then(|()| capture::check()),
        Command::Conformance(arguments) => conformance::conformance(&arguments),
        Command::Kernel(arguments) => kernel::kernel(&arguments),
        Command::Ipsec { write } => ipsec::run(write),
        Command::Kills(arguments) => kills::kills(&arguments),
        Command::Fabric(arguments) => fabric::fabric(&arguments),
        Command::Imports { name } => cycles::print(&name),
        Command::Verbs => conformance::write_page(),
        Command::Settings => settings::write(),
        Command::Clauses => clauses::write(),
        Command::Lives => lives::check().map(|done| match done {
            plan::Done::Passed => {}
            plan::Done::Skipped(why) => println!("skipped: {why}"),
        }),
        Command::Instructions { write: false } => instructions::check(),
        Command::Instructions { write: true } => instructions::write(),
        Command::Commands(arguments) => commands::commands(&arguments),
        Command::Book => book::book(),
        Command::LinksOut { arguments } => book::links_out(&arguments),
        Command::Dist(arguments) => dist::dist(&arguments),
        Command::Bench { growth: true, .. } => bench::report_growth(),
        Command::Bench { guest: true, from, quick, .. } => {
            bench::report_guest(from.as_deref(), quick)
        }
        Command::Bench { one_host: true, from, quick, rounds, .. } => {
            bench::report_one_host(from.as_deref(), quick, rounds.map(usize::from))
        }
        Command::Bench { from, quick, .. } => bench::report(from.as_deref(), quick),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn test(args: &TestArgs) -> ExitCode {
    let all = steps::all(args.seeds, args.fuzz_seconds);
    if args.list {
        for step in &all {
            println!("{:<16} {}", step.name, step.title);
        }
        return ExitCode::SUCCESS;
    }
    match plan::select(all, &args.only, &args.skip) {
        Ok(chosen) => plan::run(&chosen),
        Err(why) => {
            println!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository, wherever the command was started.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from))
}

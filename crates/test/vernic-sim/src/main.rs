//! `vernic-sim`: runs seeds, reports violations with a command that replays them, ends with totals.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

mod simnet;
mod tree;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, Subcommand};
use vernic_sim::{Count, Cover, Plan, Report, fabric, iwarp, run};

use crate::simnet::{NetArgs, run_net};
use crate::tree::{TreeArgs, run_tree};

/// Deterministic simulation of the Vernic protocol core under every fault at once.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run this one seed only.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Print everything that happens (with --seed).
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Seeds run at the same time; the number of cores if left out.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Run iWARP over streams of bytes instead of queue pairs over packets.
    #[arg(long)]
    iwarp: bool,
    /// Run small InfiniBand subnets: hosts, switches and a subnet manager.
    #[arg(long, conflicts_with = "iwarp")]
    fabric: bool,
    #[command(flatten)]
    tree: TreeArgs,
    /// Report all violations instead of stopping at the first.
    #[arg(long)]
    keep_going: bool,
}

/// What is run instead of seeds.
#[derive(Debug, Subcommand)]
enum Command {
    /// Compare congestion controllers on networks of up to thousands of hosts.
    Net(Box<NetArgs>),
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Net(args)) = &args.command {
        return run_net(args);
    }
    if let Some(shape) = args.tree.tree {
        return run_tree(&args.tree, shape, args.seed.unwrap_or(args.first));
    }
    let kind = match (args.iwarp, args.fabric) {
        (true, _) => Kind::Iwarp,
        (_, true) => Kind::Fabric,
        _ => Kind::Packets,
    };
    let (first, seeds) = args.seed.map_or((args.first, args.seeds), |seed| (seed, 1));
    println!(
        "vernic-sim: seeds {first} to {} ({seeds})",
        first.saturating_add(seeds).saturating_sub(1)
    );
    let started = Instant::now();
    let jobs =
        args.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZero::get);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(seeds.max(1) as usize) {
            scope.spawn(|| {
                loop {
                    let step = next.fetch_add(1, Ordering::Relaxed);
                    if step >= seeds || stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let seed = first.wrapping_add(step);
                    let (ran, violation) = one(seed, args.trace, kind);
                    let mut totals = totals.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    totals.merge(&ran);
                    if let Some(what) = violation {
                        totals.violations += 1;
                        let which = kind.option();
                        println!("VIOLATION: cargo run --release -p vernic-sim -- {which} --seed {seed} --trace : {what}");
                        stop.store(!args.keep_going, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Totals { packets, streams, fabrics, seeds, violations } = &totals;
    let wall = started.elapsed();
    let rate = *seeds as f64 / wall.as_secs_f64();
    print!("totals: seeds={seeds} violations={violations} wall_s={:.1} ", wall.as_secs_f64());
    let virtual_s = packets.of(Count::VirtualMs) as f64 / 1000.0;
    match kind {
        Kind::Packets => println!("seeds_per_s={rate:.0} virtual_s={virtual_s:.1} {packets}"),
        Kind::Iwarp => println!("seeds_per_s={rate:.0} {streams}"),
        Kind::Fabric => println!("seeds_per_s={rate:.0} {fabrics}"),
    }
    if *violations > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What is run.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Packets,
    Iwarp,
    Fabric,
}

impl Kind {
    /// Returns the option that says so.
    const fn option(self) -> &'static str {
        match self {
            Self::Packets => "",
            Self::Iwarp => "--iwarp",
            Self::Fabric => "--fabric",
        }
    }
}

/// Returns the seconds that this thread has had a processor, as Linux tells it; else 0.
fn processor_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    nanos.map_or(0.0, |nanos| nanos * 1e-9)
}

/// What seeds exercised, one or many.
#[derive(Default)]
struct Totals {
    packets: Cover,
    streams: iwarp::Totals,
    fabrics: fabric::Totals,
    seeds: u64,
    violations: u64,
}

impl Totals {
    fn merge(&mut self, other: &Self) {
        self.packets.merge(&other.packets);
        self.streams.merge(&other.streams);
        self.fabrics.merge(&other.fabrics);
        self.seeds += other.seeds;
    }
}

/// Runs one seed; a panic is a violation like any other.
fn one(seed: u64, trace: bool, kind: Kind) -> (Totals, Option<String>) {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut totals = Totals { seeds: 1, ..Totals::default() };
        let (violation, lines) = match kind {
            Kind::Packets => {
                let Report { cover, violation, trace, .. } = run(Plan::of_seed(seed), trace);
                totals.packets = cover;
                (violation, trace)
            }
            Kind::Iwarp => {
                let report = iwarp::run(iwarp::Plan::of_seed(seed), trace);
                totals.streams = report.totals;
                (report.violation, report.trace)
            }
            Kind::Fabric => {
                let plan = fabric::Plan::of_seed(seed);
                let report = fabric::run(&plan, || ());
                totals.fabrics = report.totals;
                let lines = trace.then(|| vec![format!("{plan}: {:?}", plan.deeds)]);
                (report.violation, lines.unwrap_or_default())
            }
        };
        for line in lines {
            println!("{line}");
        }
        (totals, violation)
    }));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        (Totals { seeds: 1, ..Totals::default() }, Some(format!("panic: {text}")))
    })
}

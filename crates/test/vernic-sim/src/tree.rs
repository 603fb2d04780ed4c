//! The option `--tree`: one large fabric, with figures.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use vernic_sim::fabric::{Plan, TreeOptions, run};

use crate::processor_s;

/// Options of a large fabric.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TreeArgs {
    /// Run one fat tree of SPINES,LEAVES,HOSTS, each host sending to each other one.
    #[arg(long, value_name = "SPINES,LEAVES,HOSTS", value_parser = shape)]
    pub(crate) tree: Option<Shape>,
    /// Messages from each host of the tree to each other one.
    #[arg(long, default_value_t = 1, requires = "tree")]
    messages: u32,
    /// The longest message in bytes (with --tree).
    #[arg(long, default_value_t = 8192, requires = "tree", value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    bytes: u32,
    /// Cables that are cut and mended (with --tree).
    #[arg(long, default_value_t = 0, requires = "tree")]
    cuts: u32,
    /// One bit in so many is wrong on every cable: 1e-7, say (with --tree).
    #[arg(long, default_value_t = 0.0, requires = "tree")]
    ber: f64,
}

/// Spines, leaves and hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape([usize; 3]);

fn shape(text: &str) -> Result<Shape, String> {
    let numbers: Vec<_> = text
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{text}: three numbers with commas between, as in 18,36,648"))?;
    let numbers = numbers.try_into().map(Shape);
    numbers.map_err(|_| format!("{text}: spines, leaves and hosts, as in 18,36,648"))
}

/// Runs a tree, and prints what it did and how fast.
pub(crate) fn run_tree(args: &TreeArgs, shape: Shape, seed: u64) -> ExitCode {
    let Shape([spines, leaves, hosts]) = shape;
    let TreeArgs { messages, bytes: max_len, cuts, ber: bit_errors, .. } = *args;
    let options = TreeOptions { messages, max_len, cuts, bit_errors };
    let plan = match Plan::of_tree((spines, leaves, hosts), &options, seed) {
        Ok(plan) => plan,
        Err(error) => {
            println!("--tree: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("vernic-sim: {plan}");
    let (started, mut traffic) = (Instant::now(), (Instant::now(), processor_s()));
    let report = run(&plan, || {
        println!("the subnet is up after {:.2} s", started.elapsed().as_secs_f64());
        traffic = (Instant::now(), processor_s());
    });
    let (totals, wall) = (report.totals, traffic.0.elapsed().as_secs_f64());
    let processor = processor_s() - traffic.1;
    let packets = totals.packets_sent as f64;
    println!("{totals}");
    println!(
        "{:.0} packets/s of wall time ({wall:.2} s), {:.0} of processor time ({processor:.2} s), \
         peak memory {}",
        packets / wall,
        packets / processor,
        peak_memory()
    );
    match report.violation {
        Some(what) => {
            println!("VIOLATION: {what}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// Returns the most memory that this process had, as Linux tells it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(|| "unknown".to_owned(), |peak| peak.trim().to_owned())
}

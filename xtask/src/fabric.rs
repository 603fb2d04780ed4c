//! `cargo xtask fabric`: fabrics of `vernic fabric up`, managed by Debian's OpenSM, asked by
//! infiniband-diags, captured for tshark.
//!
//! | file | owns |
//! |---|---|
//! | `acm` | names and LIDs to paths, by ibacm |
//! | `bench` | a fabric that runs, and programs on its hosts |
//! | `sweeps` | trees of several sizes, brought up by each of OpenSM's routing engines |
//! | `diags` | tools, with what each must print |
//! | `ipoib` | IP between hosts: ping and iperf3 |
//! | `cut` | a cable that is pulled out while a manager runs |
//! | `own` | the own subnet manager beside OpenSM, and its partitions |
//! | `killed` | programs that are killed, and hosts where nobody listens |
//! | `migration` | a connection with two paths, whose cables are pulled out one after the other |

mod acm;
mod bench;
mod cut;
mod diags;
mod ipoib;
mod killed;
mod migration;
mod own;
mod sweeps;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::plan::none_of;
use crate::tools::{self, Tool};
use crate::{Result, conformance};

const TOOLS: &[Tool] = &[
    ("opensm", &["sh", "-c", "command -v opensm || test -x /usr/sbin/opensm"], "opensm"),
    ("ibstat", &["sh", "-c", "command -v ibstat || test -x /usr/sbin/ibstat"], "infiniband-diags"),
    ("ibacm", &["sh", "-c", "command -v ibacm || test -x /usr/sbin/ibacm"], "ibacm"),
    ("ibsrpdm", &["sh", "-c", "command -v ibsrpdm || test -x /usr/sbin/ibsrpdm"], "srptools"),
    ("ib_write_bw", &["sh", "-c", "command -v ib_write_bw"], "perftest"),
    ("ibv_rc_pingpong", &["sh", "-c", "command -v ibv_rc_pingpong"], "ibverbs-utils"),
    ("cc", &["cc", "--version"], "gcc"),
    ("verbs headers", &["test", "-e", "/usr/include/infiniband/verbs.h"], "libibverbs-dev"),
    ("tshark", &["tshark", "--version"], "tshark"),
    ("iperf3", &["iperf3", "--version"], "iperf3"),
    ("rping", &["sh", "-c", "command -v rping"], "rdmacm-utils"),
    ("ping", &["ping", "-V"], "iputils-ping"),
    ("ip", &["ip", "-V"], "iproute2"),
];

/// What to run.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Only cases whose name has this in it, as a run prints them (repeatable)
    #[arg(long, value_name = "FILTER")]
    only: Vec<String>,
    /// The command to judge, with its libraries beside it; else it is built
    #[arg(long, value_name = "FILE")]
    vernic: Option<PathBuf>,
}

/// The step of `cargo xtask test`.
pub(crate) fn check() -> Result {
    fabric(&Arguments::default())
}

/// `cargo xtask fabric`.
pub(crate) fn fabric(arguments: &Arguments) -> Result {
    tools::install(TOOLS)?;
    let vernic = arguments.vernic.clone().map_or_else(conformance::build, Ok)?;
    let cases = [
        sweeps::cases(),
        diags::cases(),
        ipoib::cases(),
        cut::cases(),
        own::cases(),
        acm::cases(),
        killed::cases(),
        migration::cases(),
    ]
    .concat();
    let wanted = |name: &str| {
        let only = &arguments.only;
        only.is_empty() || only.iter().any(|filter| name.contains(filter.as_str()))
    };
    let mut findings = Vec::new();
    let mut count = 0;
    for case in cases.into_iter().filter(|case| wanted(&case.name)) {
        let start = Instant::now();
        let outcome = case.run(&vernic);
        let seconds = start.elapsed().as_secs_f64();
        count += 1;
        match outcome {
            Ok(figure) => println!("ok      {:<40} {seconds:>5.1} s  {figure}", case.name),
            Err(reason) => {
                println!("FAILED  {:<40} {seconds:>5.1} s  {reason}", case.name);
                findings.push(format!("{}: {reason}", case.name));
            }
        }
    }
    println!("totals: cases={count} failed={}", findings.len());
    if count == 0 {
        return Err("no case has that in its name; a run prints the names".into());
    }
    none_of(&findings)
}

/// A case, and what it takes from its list.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Acm,
    Sweep(sweeps::Sweep),
    Tools,
    Capture,
    Ipoib(ipoib::Mode),
    Cut,
    Killed,
    Takeover,
    Partitions,
    Migration,
}

impl Case {
    /// Runs the case, and returns what to print beside its name.
    fn run(&self, vernic: &Path) -> Result<String> {
        match &self.action {
            Action::Acm => acm::run(vernic),
            Action::Sweep(sweep) => sweeps::run(vernic, sweep),
            Action::Tools => diags::tools(vernic),
            Action::Capture => diags::capture(vernic),
            Action::Ipoib(mode) => ipoib::run(vernic, *mode),
            Action::Cut => cut::run(vernic),
            Action::Killed => killed::run(vernic),
            Action::Takeover => own::takeover(vernic),
            Action::Partitions => own::partitions(vernic),
            Action::Migration => migration::run(vernic),
        }
    }
}

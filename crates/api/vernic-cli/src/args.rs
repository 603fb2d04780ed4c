//! The command line.
//!
//! Options of `bench` have the names and letters of the perftest programs (`ib_send_bw` and its
//! kin) where those have one, so that fingers need not learn new ones.

use crate::doctor;
use crate::errors;
use crate::explain;
use crate::fabric;
use crate::relay;
use crate::run;
use crate::spec::{Kind, MAX_DEPTH, MAX_OUTSTANDING, MAX_QPS, MAX_SIZE, Op, Service, parse_mtu};
use crate::watch;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use vernic::limits::MAX_INLINE;

/// Vernic is an RDMA network card in user space: it runs verbs programs over ordinary UDP sockets
/// (RoCEv2), with no RDMA hardware, no kernel module and no root.
#[derive(Debug, Parser)]
#[command(name = "vernic", version, propagate_version = true)]
#[command(after_help = "Without a command, vernic runs `vernic bench`.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the RDMA devices of this machine, one per line
    Devices {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show everything about a device: attributes, port, GIDs, limits, counters
    Info {
        /// Device or netdev, as `vernic devices` lists them [default: VERNIC_DEVICE, else all]
        device: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the settings, their values, and where each value comes from
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say what is in the way of RDMA here, and to a host, and what helps
    Doctor(doctor::Arguments),
    /// Print what programs do on their devices now: queue pairs with their peers, routes and rates
    Stat(watch::StatArguments),
    /// Show the same live in the terminal, to be sorted, filtered and looked into
    Top(watch::TopArguments),
    /// Serve the same to Prometheus as metrics, and to browsers as a page
    Monitor(watch::MonitorArguments),
    /// Run a verbs program on these devices: perftest, UCX, anything that uses libibverbs
    Run(Box<run::Arguments>),
    /// Print what `vernic run` sets, for a shell: eval "$(vernic env)"
    Env(Box<run::Options>),
    /// Say what happened in a capture, or in a program that is run for it, and what helps
    Explain(Box<explain::Arguments>),
    /// Say what a status, errno or event means and what to do, as in `vernic errors RETRY_EXC_ERR`
    Errors(errors::Arguments),
    /// Measure latency, bandwidth and message rate beside UDP and TCP
    Bench(Box<BenchArguments>),
    /// Be a bad network between two netdevs: loss, delay, jitter, a bottleneck with a queue and ECN
    Relay(relay::Arguments),
    /// Start an InfiniBand fabric in software, show it, cut its cables
    Fabric {
        #[command(subcommand)]
        command: fabric::Command,
    },
    /// Print what a shell needs to complete this command's words
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command into a folder: for those who make packages
    #[command(hide = true)]
    ManPages {
        /// The folder
        folder: PathBuf,
    },
}

/// `vernic bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) mode: Option<BenchMode>,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

/// Where the other side of the bench is.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchMode {
    /// Wait for `vernic bench client` on another host
    Server(ServerOptions),
    /// Measure against `vernic bench server` on HOST
    Client {
        /// Name or address of the host that runs the server
        host: String,
        /// TCP port of the server's control connection
        #[arg(short, long, default_value_t = DEFAULT_PORT)]
        port: u16,
        #[command(flatten)]
        options: Box<BenchOptions>,
    },
    /// The second process of `vernic bench`, which starts it; the name resembles nothing that a
    /// user would mistype, as hidden commands are suggested too
    #[command(hide = true, name = SECOND_PROCESS)]
    Peer {
        /// TCP port of the bench that started this process
        #[arg(short, long)]
        port: u16,
        #[command(flatten)]
        device: DeviceOptions,
    },
}

/// Name of the hidden command that runs the second process of `vernic bench`.
pub(crate) const SECOND_PROCESS: &str = "second-process";

/// perftest's port.
pub(crate) const DEFAULT_PORT: u16 = 18_515;

/// `vernic bench server`.
#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// TCP port to listen on
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    pub(crate) port: u16,
    /// End after the first client
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the device's counters after each client
    #[arg(long)]
    pub(crate) counters: bool,
    #[command(flatten)]
    pub(crate) device: DeviceOptions,
}

/// Which device and address to use.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DeviceOptions {
    /// Device or netdev [default: VERNIC_DEVICE; else on one machine the one with the largest MTU,
    /// and between hosts the one that the connection to the other side uses]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// Index into the device's GID table (see `vernic info`) [default: chosen]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(crate) gid_index: Option<u32>,
}

/// What to measure and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchOptions {
    /// Short measurements: the whole table in less than 30 s
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the device's counters of this process too
    #[arg(long, conflicts_with = "json")]
    pub(crate) counters: bool,
    #[command(flatten)]
    pub(crate) device: DeviceOptions,

    /// Operations [default: all]
    #[arg(long, value_delimiter = ',', ignore_case = true, help_heading = "What to measure")]
    pub(crate) op: Vec<Op>,
    /// Services [default: all]
    #[arg(
        short,
        long,
        value_delimiter = ',',
        ignore_case = true,
        help_heading = "What to measure"
    )]
    pub(crate) connection: Vec<Service>,
    /// Latency (lat), bandwidth and message rate (bw) [default: both]
    #[arg(long, value_delimiter = ',', ignore_case = true, help_heading = "What to measure")]
    pub(crate) test: Vec<Kind>,
    /// Message sizes in bytes, with k, m or g for powers of 1024 [default: a selection]
    #[arg(short, long, value_delimiter = ',', value_parser = parse_size)]
    #[arg(help_heading = "What to measure")]
    pub(crate) size: Vec<u64>,
    /// All sizes from 2 bytes to 8 MiB, by powers of two
    #[arg(short, long, conflicts_with = "size", help_heading = "What to measure")]
    pub(crate) all: bool,
    /// Path MTUs in bytes: 256, 512, 1024, 2048, 4096 [default: the largest that both ends have,
    /// and for RC bandwidth at 1 MiB and more also 1024]
    #[arg(short, long, value_delimiter = ',', value_parser = parse_mtu)]
    #[arg(help_heading = "What to measure")]
    pub(crate) mtu: Vec<u32>,
    /// No UDP, TCP and memcpy beside it
    #[arg(long, help_heading = "What to measure")]
    pub(crate) no_baselines: bool,

    /// Iterations of each measurement [default: as many as fit its time]
    #[arg(short = 'n', long, conflicts_with = "duration", help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=8_388_608))]
    pub(crate) iters: Option<u64>,
    /// Seconds of each measurement [default: 0.2, quick: 0.08]
    #[arg(short = 'D', long, value_parser = parse_seconds, help_heading = "How to measure")]
    pub(crate) duration: Option<f64>,
    /// Rounds: each measures everything once, medians over rounds are shown [default: 7, quick: 3
    /// or as many as fit 24 s]
    #[arg(long, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Queue pairs used at once (bandwidth)
    #[arg(short, long = "qp", default_value_t = 1, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_QPS)))]
    pub(crate) qps: u32,
    /// Sends in flight per queue pair [default: by message size]
    #[arg(short, long, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub(crate) tx_depth: Option<u32>,
    /// Receives posted per queue pair [default: by message size]
    #[arg(short, long, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub(crate) rx_depth: Option<u32>,
    /// Sends posted with one doorbell [default: by message size]
    #[arg(short = 'l', long = "post_list", help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub(crate) post_list: Option<u32>,
    /// One completion for every so many sends [default: by transmit depth]
    #[arg(short = 'Q', long, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub(crate) cq_mod: Option<u32>,
    /// Messages up to this size are copied into the work request
    #[arg(short = 'I', long = "inline_size", default_value_t = 0, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_INLINE)))]
    pub(crate) inline_size: u32,
    /// READs and ATOMICs outstanding per queue pair
    #[arg(short, long = "outs", default_value_t = MAX_OUTSTANDING, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_OUTSTANDING)))]
    pub(crate) outstanding: u32,
    /// ACK timeout exponent: 4.096 us * 2^n
    #[arg(short = 'u', long, default_value_t = 14, help_heading = "How to measure")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=31))]
    pub(crate) qp_timeout: u32,
    /// The passive side of WRITE, READ and ATOMIC sleeps; its background thread does the work
    #[arg(long, help_heading = "How to measure")]
    pub(crate) passive: bool,

    /// No iWARP but where it is named: the settings ask for something that only packets have
    #[arg(skip)]
    pub(crate) packets_only: bool,
}

impl Default for BenchOptions {
    fn default() -> Self {
        // One source of the defaults: the attributes above.
        #[derive(Parser)]
        struct Only {
            #[command(flatten)]
            options: BenchOptions,
        }
        Only::parse_from(["bench"]).options
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last().map(|last| last.to_ascii_lowercase()) {
        Some('k') => (&text[..text.len() - 1], 10),
        Some('m') => (&text[..text.len() - 1], 20),
        Some('g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number; write 64, 4k or 1m".to_string())?;
    match number.checked_mul(1 << shift) {
        Some(size) if (1..=MAX_SIZE).contains(&size) => Ok(size),
        _ => Err("the range is 1 byte to 2 GiB".into()),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("the range is 0.001 to 3600 seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_take_the_units_of_a_thousand_and_twenty_four() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        for wrong in ["", "k", "-1", "3g", "0", "99999999999999999999", "1.5m", "é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_letters_of_perftest_work() {
        let line =
            "vernic bench client host -s 64,1m -n 100 -t 64 -q 2 -m 1024 -d vernic0 -x 1 -p 9";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let Some(Command::Bench(bench)) = arguments.command else { panic!("not a bench") };
        let Some(BenchMode::Client { host, port, options }) = bench.mode else {
            panic!("no client")
        };
        assert_eq!((host.as_str(), port), ("host", 9));
        assert_eq!(options.size, [64, 1 << 20]);
        assert_eq!((options.iters, options.tx_depth, options.qps), (Some(100), Some(64), 2));
        assert_eq!((options.mtu.as_slice(), options.device.gid_index), (&[1024][..], Some(1)));
        assert_eq!(options.device.device.as_deref(), Some("vernic0"));
    }

    #[test]
    fn services_are_named_in_either_case() {
        let arguments =
            Arguments::try_parse_from(["vernic", "bench", "-c", "rc,UD", "--op", "SEND,write"]);
        let Some(Command::Bench(bench)) = arguments.unwrap().command else { panic!("not a bench") };
        assert_eq!(bench.options.connection, [Service::Rc, Service::Ud]);
        assert_eq!(bench.options.op, [Op::Send, Op::Write]);
    }
}

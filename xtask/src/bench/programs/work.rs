//! How a thing is measured: the commands, and what is read from their output.

use std::borrow::Cow;

use super::output;
use super::pair::{self, Line, Ran};
use super::series::{Series, median};
use super::setup::{Setup, lacking};
use super::table::Entry;
use crate::Result;

/// What runs.
pub(super) enum Work {
    /// A server and a client.
    Pair(Pair),
    /// A loop of posts and polls in one thread; lists of so many messages.
    Calls { through: Through, list: u32 },
    /// `ibv_devices`, from the start of `vernic run` to the end.
    Start,
}

/// A server and a client.
pub(super) enum Pair {
    /// A program of perftest with options, under `vernic run`.
    Perftest(Cow<'static, str>),
    /// The same over iWARP, connected by IP address, with CRCs or without.
    Iwarp(&'static str, Crc),
    /// One stream of iperf3.
    Iperf3,
    /// A test of qperf, over TCP, with messages of so many bytes.
    Qperf(&'static str, u64),
    /// A test of UCX.
    Ucx(Over, Cow<'static, str>),
    /// libfabric's ping-pong of messages of so many bytes.
    Libfabric(Over, u64),
    /// `vernic bench` with options: the Rust API.
    RustApi(&'static str),
}

/// Whether segments of iWARP have CRCs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Crc {
    On,
    Off,
}

/// What a library that has the choice runs over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Tcp,
    SharedMemory,
}

/// Which interface a loop of calls uses.
pub(super) enum Through {
    C,
    Rust,
}

/// What is read from it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Figure {
    Bandwidth,
    Rate,
    Latency,
    CallTime,
    CallInstructions,
    Start,
}

/// Where servers are.
const HOST: &str = "127.0.0.1";
/// Starts of `ibv_devices` in a round.
const STARTS: usize = 15;
/// Instructions are counted over a run of so many times the messages of another, less those of the
/// other: what is left has no start and no end.
const MORE: u32 = 3;
/// What counts them, and says so among the program's own output.
const COUNT: &str = "perf stat --log-fd 1 -x, -e instructions:u --";
/// Messages that UCX sends before it measures.
const UCX_WARM_UP: u32 = 100;
/// What is measured as RoCEv2 goes through sockets, though both ends are on one host.
const WIRE: &[(&str, &str)] = &[("VERNIC_FORCE_WIRE", "on")];
/// Seconds of a measurement of qperf.
pub(super) const QPERF_SECONDS: u32 = 2;

impl Crc {
    fn env(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::On => &[("VERNIC_IWARP_CRC", "on")],
            Self::Off => &[("VERNIC_IWARP_CRC", "off")],
        }
    }
}

impl Over {
    /// UCX on nothing else, TCP over the loopback interface.
    fn ucx(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Tcp => &[("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")],
            Self::SharedMemory => &[("UCX_TLS", "posix,cma")],
        }
    }

    /// libfabric's name for it.
    fn provider(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::SharedMemory => "shm",
        }
    }
}

impl Figure {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "GB/s",
            Self::Rate => "M msg/s",
            Self::Latency => "us",
            Self::CallTime => "ns per message",
            Self::CallInstructions => "instructions per message",
            Self::Start => "ms",
        }
    }
}

impl Pair {
    /// Runs both ends once.
    pub(super) fn run(&self, setup: &Setup, messages: u32, figure: Figure) -> Result<Ran> {
        let port = pair::free_port()?;
        let (server, client) = (self.server(setup, messages), self.client(setup, messages, figure));
        let (passive, active) = match self {
            Self::Qperf(..) => ("-lp", "-lp"),
            Self::Libfabric(..) => ("-B", "-P"),
            _ => ("-p", "-p"),
        };
        pair::run(&server.port(passive, port), &client.port(active, port), port)
    }

    /// The passive side, without its port.
    fn server(&self, setup: &Setup, messages: u32) -> Line {
        let Setup { vernic, .. } = setup;
        let line = match self {
            Self::Perftest(program) => {
                Line::new(&format!("{vernic} run -d lo -- {program} -F -n {messages}")).env(WIRE)
            }
            Self::Iwarp(program, crc) => {
                let line = format!("{vernic} run --iwarp -d lo -- {program} -R -F -n {messages}");
                Line::new(&line).env(crc.env())
            }
            Self::Iperf3 => Line::new("iperf3 -s -1"),
            Self::Qperf(..) => Line::new("qperf"),
            Self::Ucx(over, _) => Line::new("ucx_perftest").env(over.ucx()),
            Self::Libfabric(over, size) => {
                let provider = over.provider();
                Line::new(&format!("fi_pingpong -p {provider} -e rdm -I {messages} -S {size}"))
            }
            Self::RustApi(_) => Line::new(&format!("{vernic} bench server --once -d lo")).env(WIRE),
        };
        line.on(setup.server_core)
    }

    /// The active side, without its port.
    pub(super) fn client(&self, setup: &Setup, messages: u32, figure: Figure) -> Line {
        let Setup { vernic, quick, .. } = setup;
        let line = match self {
            // -F: the processor's frequency is not ours to set. perftest's other unit of bandwidth is
            // called MB and is MiB.
            Self::Perftest(program) => {
                let unit = if figure == Figure::Latency { "" } else { "--report_gbits" };
                let line =
                    format!("{vernic} run -d lo -- {program} -F {unit} -n {messages} {HOST}");
                Line::new(&line).env(WIRE)
            }
            Self::Iwarp(program, crc) => {
                let unit = if figure == Figure::Latency { "" } else { "--report_gbits" };
                let options = format!("-R -F {unit} -n {messages} {HOST}");
                Line::new(&format!("{vernic} run --iwarp -d lo -- {program} {options}"))
                    .env(crc.env())
            }
            Self::Iperf3 => {
                let seconds = if *quick { 1 } else { 2 };
                Line::new(&format!("iperf3 --json -c {HOST} -t {seconds}"))
            }
            // Its server ends when it is told to.
            Self::Qperf(test, size) => {
                let options = format!("-t {QPERF_SECONDS} -m {size} -uu");
                Line::new(&format!("qperf {HOST} {options} {test} quit"))
            }
            Self::Ucx(over, test) => {
                let options = format!("-n {messages} -w {UCX_WARM_UP} -f -v");
                Line::new(&format!("ucx_perftest {HOST} {test} {options}")).env(over.ucx())
            }
            Self::Libfabric(over, size) => {
                let options = format!("-e rdm -I {messages} -S {size} {HOST}");
                Line::new(&format!("fi_pingpong -p {} {options}", over.provider()))
            }
            Self::RustApi(options) => {
                let all = format!("-d lo -c rc -m 4096 {options} -n {messages}");
                let rest = "--rounds 1 --no-baselines --json";
                Line::new(&format!("{vernic} bench client {HOST} {all} {rest}")).env(WIRE)
            }
        };
        line.on(setup.client_core)
    }

    /// The program that must be installed.
    pub(super) fn program(&self) -> Option<&str> {
        match self {
            Self::Perftest(line) => line.split_whitespace().next(),
            Self::Iwarp(line, _) => line.split_whitespace().next(),
            Self::Iperf3 => Some("iperf3"),
            Self::Qperf(..) => Some("qperf"),
            Self::Ucx(..) => Some("ucx_perftest"),
            Self::Libfabric(..) => Some("fi_pingpong"),
            Self::RustApi(_) => None,
        }
    }

    /// The figure in what the client printed.
    pub(super) fn read(&self, figure: Figure, printed: &str) -> Result<f64> {
        match (self, figure) {
            (Self::Perftest(_) | Self::Iwarp(..), Figure::Bandwidth) => {
                output::perftest_bandwidth(printed)
            }
            (Self::Perftest(_) | Self::Iwarp(..), Figure::Rate) => output::perftest_rate(printed),
            (Self::Perftest(_) | Self::Iwarp(..), _) => output::perftest_latency(printed),
            (Self::Ucx(..), Figure::Latency) => output::ucx_latency(printed),
            (Self::Ucx(..), _) => output::ucx_bandwidth(printed),
            (Self::Qperf(..), Figure::Latency) => output::qperf_latency(printed),
            (Self::Qperf(..), _) => output::qperf_bandwidth(printed),
            (Self::Libfabric(..), _) => output::libfabric_latency(printed),
            (Self::RustApi(_), Figure::Bandwidth) => output::vernic_bench(printed, "gbytes_per_s"),
            (Self::RustApi(_), Figure::Rate) => output::vernic_bench(printed, "mmsg_per_s"),
            (Self::RustApi(_), _) => output::vernic_bench(printed, "latency_us_p50"),
            (Self::Iperf3, _) => output::iperf3(printed),
        }
    }
}

impl Entry {
    /// The series without readings, and with what is missing here.
    pub(super) fn begin(&self, setup: &Setup) -> Series {
        let (command, failure) = match self.active(setup, self.messages(setup)) {
            Ok(line) => (line.text(), self.program().and_then(lacking)),
            Err(why) => (String::new(), Some(why)),
        };
        Series {
            name: self.name.into(),
            command: setup.without_folders(&command),
            unit: self.figure.unit().into(),
            readings: Vec::new(),
            failure,
        }
    }

    /// One reading.
    pub(super) fn measure(&self, setup: &Setup) -> Result<f64> {
        let messages = self.messages(setup);
        match (&self.work, self.figure) {
            (Work::Pair(pair), figure) => {
                pair.read(figure, &pair.run(setup, messages, figure)?.printed)
            }
            (Work::Calls { .. }, Figure::CallInstructions) => {
                let few = output::instructions(&self.active(setup, messages)?.run()?)?;
                let many = output::instructions(&self.active(setup, MORE * messages)?.run()?)?;
                Ok((many - few) / f64::from((MORE - 1) * messages))
            }
            (Work::Calls { .. }, _) => output::post_poll(&self.active(setup, messages)?.run()?),
            (Work::Start, _) => start_ms(&self.active(setup, messages)?),
        }
    }

    fn messages(&self, setup: &Setup) -> u32 {
        if setup.quick { self.messages / 5 } else { self.messages }
    }

    /// The one process, or the active side of two; without its port.
    fn active(&self, setup: &Setup, messages: u32) -> Result<Line> {
        let Setup { vernic, post_poll, post_poll_c, .. } = setup;
        let (program, list) = match &self.work {
            Work::Pair(pair) => return Ok(pair.client(setup, messages, self.figure)),
            Work::Start => {
                let line = Line::new(&format!("{vernic} run -- ibv_devices"));
                return Ok(line.on(setup.client_core));
            }
            Work::Calls { through: Through::Rust, list } => (post_poll.clone(), list),
            Work::Calls { through: Through::C, list } => {
                let program = post_poll_c.as_ref().map_err(Clone::clone)?;
                (format!("{vernic} run -d lo -- {program}"), list)
            }
        };
        let count = if self.figure == Figure::CallInstructions { COUNT } else { "" };
        let line = Line::new(&format!("{count} {program} {messages} {list}"));
        Ok(line.on(setup.client_core))
    }

    /// The program that must be installed.
    fn program(&self) -> Option<&str> {
        match &self.work {
            Work::Pair(pair) => pair.program(),
            Work::Calls { .. } if self.figure == Figure::CallInstructions => Some("perf"),
            Work::Calls { .. } => None,
            Work::Start => Some("ibv_devices"),
        }
    }
}

/// The median of several starts, in milliseconds.
fn start_ms(line: &Line) -> Result<f64> {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let (took, printed) = line.time()?;
        starts.push(took.as_secs_f64() * 1e3);
        if !printed.contains("vernic") {
            return Err(format!("ibv_devices lists no device of ours:\n{printed}"));
        }
    }
    median(starts).ok_or_else(|| "no start".into())
}

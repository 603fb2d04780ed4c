//! How a thing is measured: the commands, and what is read from their output.

use std::borrow::Cow;

use super::median::median;
use super::output;
use super::pair::{self, Line, Ran, Server};
use super::probe::Probe;
use super::setup::Setup;
use crate::Result;

/// What runs.
pub(super) enum Work {
    /// A server and a client.
    Pair(Pair),
    /// A loop of posts and polls in one thread; lists of so many messages.
    Calls { through: Through, list: u32 },
    /// `ibv_devices`, from the start of `vernic run` to the end.
    Start,
    /// The machine itself.
    Machine(Probe),
}

/// A server and a client.
pub(super) enum Pair {
    /// A program of perftest with options, under `vernic run`; without a number of messages it says
    /// itself how long it takes.
    Perftest(Way, Cow<'static, str>),
    /// The same over iWARP, connected by IP address, with CRCs or without.
    Iwarp(Cow<'static, str>, Crc),
    /// One stream of iperf3.
    Iperf3,
    /// A test of qperf, over TCP, with messages of so many bytes.
    Qperf(&'static str, u64),
    /// A test of UCX, over what its options say if it is over nothing here.
    Ucx(Option<Over>, Cow<'static, str>),
    /// libfabric's ping-pong of messages of so many bytes.
    Libfabric(Over, u64),
    /// sockperf's ping-pong over stream sockets, of messages of so many bytes.
    Sockperf(Streams, u64),
    /// `vernic bench` with options: the Rust API.
    RustApi(Way, &'static str),
    /// So many connections by `cmtime`, all at once.
    Cmtime,
}

/// How RoCE goes between two ends, which are on one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// As RoCEv2, through sockets.
    Wire,
    /// As it goes unless told otherwise: through memory. That of a program that has registered it
    /// is copied by the kernel (`process_vm_writev` and its like).
    SameHost,
    /// The same with the program's registered memory moved to files that the other end maps.
    Mapped,
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

/// What carries the stream sockets of a program that knows TCP alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Streams {
    Tcp,
    /// rsockets, by `librspreload.so`.
    Rdma,
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
    /// Of the time of a core, while its client is at work, what the passive side takes.
    PassiveShare,
    Connections,
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
/// UCX's names of its ways within a host.
const SHARED_MEMORY: &str = "posix,cma,self";
/// Messages that UCX sends before it measures.
const UCX_WARM_UP: u32 = 100;
/// Seconds of a measurement of sockperf.
const SOCKPERF_SECONDS: u32 = 1;
/// Seconds of a measurement of qperf.
pub(super) const QPERF_SECONDS: u32 = 1;

impl Way {
    fn env(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Wire => &[("VERNIC_FORCE_WIRE", "on")],
            Self::SameHost | Self::Mapped => &[],
        }
    }

    /// A verbs program on the loopback interface's device.
    fn run(self, vernic: &str, program: &str) -> Line {
        let option = if self == Self::Mapped { " --share-memory" } else { "" };
        Line::new(&format!("{vernic} run{option} -d lo -- {program}")).env(self.env())
    }
}

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
            Self::SharedMemory => &[("UCX_TLS", SHARED_MEMORY)],
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

impl Streams {
    fn run(self, vernic: &str, program: &str) -> Line {
        match self {
            Self::Tcp => Line::new(program),
            Self::Rdma => Line::new(&format!("{vernic} run --rsockets=only -d lo -- {program}")),
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
            Self::PassiveShare => "% of a core",
            Self::Connections => "connections/s",
        }
    }
}

impl Pair {
    /// Runs both ends once.
    pub(super) fn run(&self, setup: &Setup, messages: u32, figure: Figure) -> Result<Ran> {
        let (server, client, port) = self.ends(setup, messages, figure)?;
        pair::run(&server, &client, port)
    }

    /// Both sides, and the port at which they meet.
    fn ends(&self, setup: &Setup, messages: u32, figure: Figure) -> Result<(Line, Line, Server)> {
        let port = pair::free_port()?;
        let (server, client) = (self.server(setup, messages), self.client(setup, messages, figure));
        let (passive, active) = match self {
            Self::Qperf(..) => ("-lp", "-lp"),
            Self::Libfabric(..) => ("-B", "-P"),
            _ => ("-p", "-p"),
        };
        let meeting = match self {
            Self::Cmtime | Self::Sockperf(Streams::Rdma, _) => Server::Cm(port),
            Self::Sockperf(Streams::Tcp, _) => Server::EndlessTcp(port),
            _ => Server::Tcp(port),
        };
        Ok((server.port(passive, port), client.port(active, port), meeting))
    }

    /// The passive side, without its port.
    fn server(&self, setup: &Setup, messages: u32) -> Line {
        let Setup { vernic, .. } = setup;
        let line = match self {
            Self::Perftest(way, program) => {
                way.run(vernic, &format!("{program} -F{}", count(messages)))
            }
            Self::Iwarp(program, crc) => {
                let line = format!("{vernic} run --iwarp -d lo -- {program} -R -F -n {messages}");
                Line::new(&line).env(crc.env())
            }
            Self::Iperf3 => Line::new("iperf3 -s -1"),
            Self::Qperf(..) => Line::new("qperf"),
            Self::Ucx(over, _) => Line::new("ucx_perftest").env(over.map_or(&[], Over::ucx)),
            Self::Libfabric(over, size) => {
                let provider = over.provider();
                Line::new(&format!("fi_pingpong -p {provider} -e rdm -I {messages} -S {size}"))
            }
            Self::RustApi(way, _) => {
                Line::new(&format!("{vernic} bench server --once -d lo")).env(way.env())
            }
            Self::Sockperf(streams, _) => {
                streams.run(vernic, &format!("sockperf server --tcp -i {HOST}"))
            }
            Self::Cmtime => Way::SameHost.run(vernic, &format!("cmtime -b {HOST}")),
        };
        line.on(setup.server_core)
    }

    /// The active side, without its port.
    pub(super) fn client(&self, setup: &Setup, messages: u32, figure: Figure) -> Line {
        let Setup { vernic, quick, .. } = setup;
        // perftest's other unit of bandwidth is called MB and is MiB.
        let unit = if figure == Figure::Latency { "" } else { " --report_gbits" };
        let line = match self {
            // -F: the processor's frequency is not ours to set.
            Self::Perftest(way, program) => {
                way.run(vernic, &format!("{program} -F{unit}{} {HOST}", count(messages)))
            }
            Self::Iwarp(program, crc) => {
                let options = format!("-R -F{unit} -n {messages} {HOST}");
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
                Line::new(&format!("ucx_perftest {HOST} {test} {options}"))
                    .env(over.map_or(&[], Over::ucx))
            }
            Self::Libfabric(over, size) => {
                let options = format!("-e rdm -I {messages} -S {size} {HOST}");
                Line::new(&format!("fi_pingpong -p {} {options}", over.provider()))
            }
            Self::RustApi(way, options) => {
                let all = format!("-d lo -c rc -m 4096 {options} -n {messages}");
                let rest = "--rounds 1 --no-baselines --json";
                Line::new(&format!("{vernic} bench client {HOST} {all} {rest}")).env(way.env())
            }
            Self::Sockperf(streams, size) => {
                let options = format!("-m {size} -t {SOCKPERF_SECONDS} --full-rtt -i {HOST}");
                streams.run(vernic, &format!("sockperf ping-pong --tcp {options}"))
            }
            Self::Cmtime => Way::SameHost.run(vernic, &format!("cmtime -s {HOST} -c {messages}")),
        };
        line.on(setup.client_core)
    }

    /// The program that must be installed.
    pub(super) fn program(&self) -> Option<&str> {
        match self {
            Self::Perftest(_, line) => line.split_whitespace().next(),
            Self::Iwarp(line, _) => line.split_whitespace().next(),
            Self::Iperf3 => Some("iperf3"),
            Self::Qperf(..) => Some("qperf"),
            Self::Ucx(..) => Some("ucx_perftest"),
            Self::Libfabric(..) => Some("fi_pingpong"),
            Self::Sockperf(..) => Some("sockperf"),
            Self::RustApi(..) => None,
            Self::Cmtime => Some("cmtime"),
        }
    }

    /// The figure in what the client printed.
    pub(super) fn read(&self, figure: Figure, printed: &str) -> Result<f64> {
        match (self, figure) {
            (Self::Perftest(..) | Self::Iwarp(..), Figure::Bandwidth) => {
                output::perftest_bandwidth(printed)
            }
            (Self::Perftest(..) | Self::Iwarp(..), Figure::Rate) => output::perftest_rate(printed),
            (Self::Perftest(..) | Self::Iwarp(..), _) => output::perftest_latency(printed),
            (Self::Ucx(..), Figure::Latency) => output::ucx_latency(printed),
            (Self::Ucx(..), Figure::Rate) => output::ucx_rate(printed),
            (Self::Ucx(..), _) => output::ucx_bandwidth(printed),
            (Self::Qperf(..), Figure::Latency) => output::qperf_latency(printed),
            (Self::Qperf(..), _) => output::qperf_bandwidth(printed),
            (Self::Libfabric(..), _) => output::libfabric_latency(printed),
            (Self::Sockperf(..), _) => output::sockperf_round_trip(printed),
            (Self::RustApi(..), Figure::Bandwidth) => output::vernic_bench(printed, "gbytes_per_s"),
            (Self::RustApi(..), Figure::Rate) => output::vernic_bench(printed, "mmsg_per_s"),
            (Self::RustApi(..), _) => output::vernic_bench(printed, "latency_us_p50"),
            (Self::Iperf3, _) => output::iperf3(printed),
            (Self::Cmtime, _) => output::cmtime(printed),
        }
    }
}

/// perftest's option for a number of messages, if it is told one.
fn count(messages: u32) -> String {
    if messages == 0 { String::new() } else { format!(" -n {messages}") }
}

/// One thing to measure.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) work: Work,
    pub(super) figure: Figure,
    /// Messages of a whole run; a quick one has a fifth.
    pub(super) messages: u32,
    /// The entry beside which it is shown.
    pub(super) beside: Option<&'static str>,
}

impl Entry {
    /// One reading.
    pub(super) fn measure(&self, setup: &Setup) -> Result<f64> {
        let messages = self.messages(setup);
        let run = |messages| match self.active(setup, messages)? {
            Some(line) => line.run(),
            None => Err("no program".into()),
        };
        match (&self.work, self.figure) {
            (Work::Pair(pair), Figure::PassiveShare) => {
                let (server, client, port) = pair.ends(setup, messages, self.figure)?;
                pair::passive_share(&server, &client, port)
            }
            (Work::Pair(pair), figure) => {
                pair.read(figure, &pair.run(setup, messages, figure)?.printed)
            }
            (Work::Calls { .. }, Figure::CallInstructions) => {
                let few = output::instructions(&run(messages)?)?;
                let many = output::instructions(&run(MORE * messages)?)?;
                Ok((many - few) / f64::from((MORE - 1) * messages))
            }
            (Work::Calls { .. }, _) => output::post_poll(&run(messages)?),
            (Work::Start, _) => start_ms(&Self::start_line(setup)),
            (Work::Machine(probe), _) => probe.measure(setup),
        }
    }

    pub(super) fn messages(&self, setup: &Setup) -> u32 {
        setup.messages(self.messages)
    }

    /// The one process, or the active side of two; without its port. None where this program is the
    /// one.
    pub(super) fn active(&self, setup: &Setup, messages: u32) -> Result<Option<Line>> {
        let Setup { vernic, post_poll, post_poll_c, .. } = setup;
        let (program, list) = match &self.work {
            Work::Pair(pair) => return Ok(Some(pair.client(setup, messages, self.figure))),
            Work::Start => return Ok(Some(Self::start_line(setup))),
            Work::Machine(_) => return Ok(None),
            Work::Calls { through: Through::Rust, list } => (post_poll.clone(), list),
            Work::Calls { through: Through::C, list } => {
                let program = post_poll_c.as_ref().map_err(Clone::clone)?;
                (format!("{vernic} run -d lo -- {program}"), list)
            }
        };
        let count = if self.figure == Figure::CallInstructions { COUNT } else { "" };
        // Else memory that the Rust API allocates is mapped, and the program's is not.
        let line = Line::new(&format!("{count} {program} {messages} {list}")).env(Way::Wire.env());
        Ok(Some(line.on(setup.client_core)))
    }

    fn start_line(setup: &Setup) -> Line {
        Line::new(&format!("{} run -- ibv_devices", setup.vernic)).on(setup.client_core)
    }

    /// The program that must be installed.
    pub(super) fn program(&self) -> Option<&str> {
        match &self.work {
            Work::Pair(pair) => pair.program(),
            Work::Calls { .. } if self.figure == Figure::CallInstructions => Some("perf"),
            Work::Calls { .. } | Work::Machine(_) => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup {
            quick: false,
            vernic: "vernic".into(),
            post_poll: "post_poll".into(),
            post_poll_c: Err("no compiler".into()),
            server_core: None,
            client_core: None,
            cores: "any",
        }
    }

    #[test]
    fn stream_sockets_go_over_rdma_alone_and_meet_by_its_connection_manager() {
        let ends = |streams| Pair::Sockperf(streams, 64).ends(&setup(), 0, Figure::Latency);
        let (server, client, port) = ends(Streams::Rdma).unwrap();
        let Server::Cm(port) = port else { panic!("{port:?}") };
        let around = "vernic run --rsockets=only -d lo -- sockperf";
        let options = format!("-i 127.0.0.1 -p {port}");
        assert_eq!(server.text(), format!("{around} server --tcp {options}"));
        let client_options = format!("--tcp -m 64 -t 1 --full-rtt {options}");
        assert_eq!(client.text(), format!("{around} ping-pong {client_options}"));
        let (server, _, port) = ends(Streams::Tcp).unwrap();
        assert!(matches!(port, Server::EndlessTcp(_)), "{port:?}");
        assert!(server.text().starts_with("sockperf server --tcp"), "{}", server.text());
    }

    #[test]
    fn both_ends_of_ucx_run_over_the_same() {
        let pair = Pair::Ucx(Some(Over::SharedMemory), "-t tag_bw -s 64".into());
        let env = "UCX_TLS=posix,cma,self ucx_perftest";
        assert_eq!(pair.server(&setup(), 10).text(), env);
        assert_eq!(
            pair.client(&setup(), 10, Figure::Rate).text(),
            format!("{env} 127.0.0.1 -t tag_bw -s 64 -n 10 -w 100 -f -v")
        );
    }
}

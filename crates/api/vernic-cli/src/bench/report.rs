//! What a bench prints: tables for people, one JSON object for machines.
//!
//! Values are medians over rounds. A ratio is the median of the ratios of each round, so that both
//! of its sides saw the same machine.

use super::end::Reading;
use super::rounds::{Plan, Series};
use super::stats::median;
use super::suite::{is_message_rate, limit, streams};
use super::verbs::Packets;
use super::verbs::resources::Resources;
use crate::spec::{Baseline, Kind, Op, Service, Spec, Task};
use crate::table::{Align, Table, size_text};
use serde::Serialize;
use std::fmt::Write as _;

/// The object that `--json` prints.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Verbs measurements.
    pub(crate) results: Vec<ResultRow>,
    /// Plain sockets and memory.
    pub(crate) baselines: Vec<BaselineRow>,
    /// What idle objects cost, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resources: Option<Resources>,
}

/// One verbs measurement. Fields that do not apply are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ResultRow {
    /// `SEND`, `WRITE`, `READ` or `ATOMIC`.
    pub(crate) op: Op,
    /// `RC`, `UC` or `UD`.
    pub(crate) service: Service,
    /// How the bytes went: `udp` is RoCEv2, `tcp` iWARP, `memory` that which two processes share.
    pub(crate) path: &'static str,
    /// Bytes of each message.
    pub(crate) size_bytes: u64,
    /// Path MTU.
    pub(crate) mtu_bytes: u32,
    /// Queue pairs in use at once.
    pub(crate) qps: u32,
    /// Median latency; one way for SEND and WRITE, round trip for READ and ATOMIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_p50: Option<f64>,
    /// 99th percentile of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_p99: Option<f64>,
    /// Payload, 10^9 bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbytes_per_s: Option<f64>,
    /// 10^6 messages per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mmsg_per_s: Option<f64>,
}

/// One baseline measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct BaselineRow {
    /// `tcp`, `udp`, `udp_packets` or `memcpy`.
    pub(crate) name: &'static str,
    /// Bytes of each message.
    pub(crate) size_bytes: u64,
    /// Bytes of payload in a packet of `udp_packets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mtu_bytes: Option<u32>,
    /// Median one-way latency of a ping-pong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_p50: Option<f64>,
    /// Payload, 10^9 bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbytes_per_s: Option<f64>,
}

/// Collects the rows of `series`; latency and throughput of the same thing share a row.
pub(crate) fn report(series: &[Series], resources: Option<Resources>, packets: Packets) -> Report {
    let mut report = Report { resources, ..Report::default() };
    for entry in series.iter().filter(|entry| !entry.readings.is_empty()) {
        match entry.task {
            Task::Verbs(spec) => {
                fill_result(result_row(&mut report.results, &spec, packets), entry);
            }
            Task::Baseline { baseline, size } => {
                fill_baseline(baseline_row(&mut report.baselines, baseline, size), entry);
            }
        }
    }
    report
}

fn result_row<'a>(
    rows: &'a mut Vec<ResultRow>,
    spec: &Spec,
    packets: Packets,
) -> &'a mut ResultRow {
    let row = ResultRow {
        op: spec.op,
        service: spec.service,
        path: match packets {
            _ if spec.service.tcp().is_some() => "tcp",
            Packets::Memory => "memory",
            Packets::Wire => "udp",
        },
        size_bytes: spec.size,
        mtu_bytes: spec.mtu,
        qps: spec.qps,
        latency_us_p50: None,
        latency_us_p99: None,
        gbytes_per_s: None,
        mmsg_per_s: None,
    };
    let key = |row: &ResultRow| (row.op, row.service, row.size_bytes, row.mtu_bytes, row.qps);
    let index = rows.iter().position(|other| key(other) == key(&row)).unwrap_or_else(|| {
        rows.push(row);
        rows.len() - 1
    });
    &mut rows[index]
}

fn baseline_row(
    rows: &mut Vec<BaselineRow>,
    baseline: Baseline,
    size_bytes: u64,
) -> &mut BaselineRow {
    let (name, mtu_bytes) = (baseline.name(), baseline.mtu());
    let key = (name, size_bytes, mtu_bytes);
    let same = |row: &BaselineRow| (row.name, row.size_bytes, row.mtu_bytes) == key;
    let index = rows.iter().position(same).unwrap_or_else(|| {
        let (latency_us_p50, gbytes_per_s) = (None, None);
        rows.push(BaselineRow { name, size_bytes, mtu_bytes, latency_us_p50, gbytes_per_s });
        rows.len() - 1
    });
    &mut rows[index]
}

fn fill_result(row: &mut ResultRow, entry: &Series) {
    let medians = Medians::of(&entry.readings);
    row.latency_us_p50 = row.latency_us_p50.or(medians.p50_us.map(rounded));
    row.latency_us_p99 = row.latency_us_p99.or(medians.p99_us.map(rounded));
    row.gbytes_per_s = row.gbytes_per_s.or(medians.gbytes_per_s.map(rounded));
    row.mmsg_per_s = row.mmsg_per_s.or(medians.mmsg_per_s.map(rounded));
}

fn fill_baseline(row: &mut BaselineRow, entry: &Series) {
    let medians = Medians::of(&entry.readings);
    row.latency_us_p50 = row.latency_us_p50.or(medians.p50_us.map(rounded));
    row.gbytes_per_s = row.gbytes_per_s.or(medians.gbytes_per_s.map(rounded));
}

/// Five significant digits: more than any of these measurements has.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powf(4.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

/// Medians over rounds; `None` where a reading of the other kind was taken.
#[derive(Debug, Default)]
struct Medians {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    gbytes_per_s: Option<f64>,
    mmsg_per_s: Option<f64>,
}

impl Medians {
    fn of(readings: &[Reading]) -> Self {
        let over = |value: fn(&Reading) -> Option<f64>| median(readings.iter().filter_map(value));
        Self {
            p50_us: over(|reading| match *reading {
                Reading::Latency { p50_us, .. } => Some(p50_us),
                Reading::Throughput { .. } => None,
            }),
            p99_us: over(|reading| match *reading {
                Reading::Latency { p99_us, .. } => Some(p99_us),
                Reading::Throughput { .. } => None,
            }),
            gbytes_per_s: over(|reading| match *reading {
                Reading::Throughput { gbytes_per_s, .. } => Some(gbytes_per_s),
                Reading::Latency { .. } => None,
            }),
            mmsg_per_s: over(|reading| match *reading {
                Reading::Throughput { mmsg_per_s, .. } => Some(mmsg_per_s),
                Reading::Latency { .. } => None,
            }),
        }
    }
}

/// The sections of the text report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Latency,
    Bandwidth,
    MessageRate,
}

impl Section {
    fn of(task: &Task) -> Self {
        let (kind, size) = match *task {
            Task::Verbs(spec) => (spec.kind, spec.size),
            Task::Baseline { baseline, size } => (baseline.kind(), size),
        };
        match kind {
            Kind::Latency => Self::Latency,
            Kind::Throughput if is_message_rate(size) => Self::MessageRate,
            Kind::Throughput => Self::Bandwidth,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Latency => {
                "Latency, microseconds: one way; READ and ATOMIC, round trip; iWARP compared with TCP"
            }
            Self::Bandwidth => {
                "Bandwidth, 10^9 bytes of payload per second; compared with the fastest TCP, and with what UDP allows: \
                 packets of that MTU, copied once and checked by a CRC at either end"
            }
            Self::MessageRate => "Message rate, 10^6 messages per second",
        }
    }

    fn columns(self) -> Vec<(&'static str, Align)> {
        let mut columns = vec![
            ("", Align::Left),
            ("op", Align::Left),
            ("size", Align::Right),
            ("MTU", Align::Right),
            ("QPs", Align::Right),
        ];
        let figures = match self {
            Self::Latency => ["p50 us", "p99 us", "x UDP/TCP"].as_slice(),
            Self::Bandwidth => ["GB/s", "Mmsg/s", "x TCP", "x UDP"].as_slice(),
            Self::MessageRate => ["Mmsg/s", "GB/s", "x UDP"].as_slice(),
        };
        columns.extend(figures.iter().map(|name| (*name, Align::Right)));
        columns
    }

    fn values(self, readings: &[Reading]) -> [String; 2] {
        let medians = Medians::of(readings);
        let text = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
        };
        match self {
            Self::Latency => [text(medians.p50_us, 2), text(medians.p99_us, 2)],
            Self::Bandwidth => [text(medians.gbytes_per_s, 2), text(medians.mmsg_per_s, 3)],
            Self::MessageRate => [text(medians.mmsg_per_s, 3), text(medians.gbytes_per_s, 3)],
        }
    }
}

/// On what was measured, and how often.
pub(crate) fn heading(
    device: &vernic::DeviceInfo,
    series: &[Series],
    plan: Plan,
    packets: Packets,
) -> String {
    let rounds = series.iter().map(|entry| entry.readings.len()).max().unwrap_or(0);
    let rounds = rounds_text(rounds, plan);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let way = match packets {
        Packets::Memory => {
            "RoCE went through memory that both processes share; VERNIC_SAME_HOST=off measures UDP\n"
        }
        Packets::Wire => "",
    };
    format!(
        "vernic {} on {} ({}), {cores} cores, Linux {}; {rounds}\n{way}",
        env!("CARGO_PKG_VERSION"),
        device.name,
        device.port.netdev,
        if kernel.is_empty() { "of unknown version" } else { kernel.trim() },
    )
}

fn rounds_text(rounds: usize, plan: Plan) -> String {
    let wanted = plan.rounds as usize;
    match rounds {
        0 => "nothing was measured".into(),
        1 => "one round".into(),
        rounds if rounds < wanted => {
            format!("medians of {rounds} rounds, as many as fit {} s", plan.budget.as_secs())
        }
        rounds => format!("medians of {rounds} rounds"),
    }
}

/// The tables of `series`, and the failures below them.
pub(crate) fn text(series: &[Series], resources: Option<Resources>) -> String {
    let mut text = String::new();
    for section in [Section::Latency, Section::Bandwidth, Section::MessageRate] {
        let mut table = Table::new(&section.columns());
        let mut entries: Vec<&Series> =
            series.iter().filter(|entry| Section::of(&entry.task) == section).collect();
        if entries.iter().all(|entry| entry.readings.is_empty()) {
            // Nothing but failures, which are told below.
            continue;
        }
        // Baselines first, by name and size; what is measured follows in the order of the suite.
        entries.sort_by_key(|entry| match entry.task {
            Task::Baseline { baseline, size } => (0, Some(baseline.name()), size),
            Task::Verbs(_) => (1, None, 0),
        });
        for entry in entries {
            table.row(cells(section, entry, series));
        }
        // Writing to a String does not fail.
        let _ = write!(text, "\n{}\n{}", section.title(), table.render());
    }
    if let Some(resources) = resources {
        let Resources { qps, open_s, bytes_per_qp, bytes_per_ring_entry, idle_cpu_percent } =
            resources;
        let _ = write!(
            text,
            "\nIdle\n  {qps} RC queue pairs connected in {open_s:.2} s, {bytes_per_qp} bytes each, \
             {bytes_per_ring_entry} of them an entry of its rings\n  \
             {idle_cpu_percent:.3} % of a core used while they are idle\n"
        );
    }
    let failures = failures(series);
    if !failures.is_empty() {
        let _ = write!(text, "\n{failures}");
    }
    text
}

/// One line for each task that failed, with its explanation.
pub(crate) fn failures(series: &[Series]) -> String {
    let failed = series.iter().filter_map(|entry| Some((entry.task, entry.failure.as_ref()?)));
    failed.map(|(task, failure)| format!("failed: {task}: {failure}\n")).collect()
}

fn cells(section: Section, entry: &Series, series: &[Series]) -> Vec<String> {
    let mut cells: Vec<String> = match entry.task {
        Task::Verbs(spec) => vec![
            spec.service.to_string(),
            spec.op.to_string(),
            size_text(spec.size),
            spec.service.tcp().map_or_else(|| spec.mtu.to_string(), |_| String::new()),
            spec.qps.to_string(),
        ],
        Task::Baseline { baseline, size } => {
            let what = match baseline {
                Baseline::UdpPingPong | Baseline::TcpPingPong => "ping-pong",
                Baseline::UdpStream | Baseline::TcpStream => "stream",
                Baseline::UdpPackets { .. } => "packets",
                Baseline::Memcpy => "",
            };
            let name = match baseline {
                Baseline::Memcpy => "memcpy",
                Baseline::UdpPingPong | Baseline::UdpStream | Baseline::UdpPackets { .. } => "UDP",
                Baseline::TcpPingPong | Baseline::TcpStream => "TCP",
            };
            let mtu = baseline.mtu().map_or_else(String::new, |mtu| mtu.to_string());
            vec![name.into(), what.into(), size_text(size), mtu, String::new()]
        }
    };
    cells.extend(section.values(&entry.readings));
    let cell = |references: Vec<Task>| match (&entry.failure, ratio(entry, series, &references)) {
        (Some(_), _) => "failed".into(),
        (None, Some(ratio)) => format!("{ratio:.2}"),
        (None, None) => String::new(),
    };
    let (streams, limit) = match entry.task {
        Task::Verbs(spec) => (streams(&spec), limit(&spec)),
        Task::Baseline { .. } => (Vec::new(), None),
    };
    cells.push(cell(streams));
    if section == Section::Bandwidth {
        cells.push(cell(limit.into_iter().collect()));
    }
    cells
}

/// How `entry` compares with its baseline, round by round; of several `references`, with the one
/// that was best in the round.
fn ratio(entry: &Series, series: &[Series], references: &[Task]) -> Option<f64> {
    let Task::Verbs(spec) = entry.task else { return None };
    let baselines: Vec<&Series> =
        series.iter().filter(|other| references.contains(&other.task)).collect();
    // The ping-pong is quoted one way: a round trip compares with two of them.
    let trips = if spec.is_round_trip() { 2.0 } else { 1.0 };
    let ratios = entry.readings.iter().enumerate().map(|(round, ours)| {
        let theirs = baselines.iter().filter_map(|baseline| baseline.readings.get(round));
        let best = theirs.map(Reading::headline).reduce(match spec.kind {
            Kind::Latency => f64::min,
            Kind::Throughput => f64::max,
        });
        ours.headline() / (trips * best.unwrap_or(f64::NAN))
    });
    median(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::spec::tests::spec;

    fn series(task: Task, readings: &[Reading]) -> Series {
        Series { task, readings: readings.to_vec(), failure: None }
    }

    fn speed(gbytes_per_s: f64) -> Reading {
        Reading::Throughput { gbytes_per_s, mmsg_per_s: gbytes_per_s / 1000.0 }
    }

    fn sample() -> Vec<Series> {
        let write = spec(Op::Write, Service::Rc, 1 << 20);
        let lag = Spec { kind: Kind::Latency, ..spec(Op::Write, Service::Rc, 1 << 20) };
        let tcp = Task::Baseline { baseline: Baseline::TcpStream, size: 1 << 20 };
        vec![
            series(tcp, &[speed(4.0), speed(2.0), speed(4.0)]),
            series(Task::Verbs(write), &[speed(8.0), speed(4.0), speed(6.0)]),
            series(Task::Verbs(lag), &[Reading::Latency { p50_us: 130.0, p99_us: 140.0 }]),
        ]
    }

    fn ratio_to_streams(entry: &Series, series: &[Series]) -> Option<f64> {
        let Task::Verbs(spec) = entry.task else { return None };
        ratio(entry, series, &streams(&spec))
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let series = sample();
        assert_eq!(ratio_to_streams(&series[1], &series), Some(2.0));
        assert_eq!(ratio_to_streams(&series[0], &series), None);
    }

    #[test]
    fn the_limit_is_what_udp_allows_at_the_same_mtu() {
        let mut series = sample();
        let packets =
            |mtu| Task::Baseline { baseline: Baseline::UdpPackets { mtu }, size: 1 << 20 };
        series.push(self::series(packets(4096), &[speed(16.0), speed(8.0), speed(12.0)]));
        series.push(self::series(packets(1024), &[speed(4.0), speed(4.0), speed(4.0)]));
        let Task::Verbs(spec) = series[1].task else { panic!("no verbs") };
        let limit: Vec<Task> = limit(&spec).into_iter().collect();
        assert_eq!(ratio(&series[1], &series, &limit), Some(0.5));
        let report = report(&series, None, Packets::Wire);
        let mtus: Vec<_> = report.baselines.iter().map(|row| row.mtu_bytes).collect();
        assert_eq!(mtus, [None, Some(4096), Some(1024)]);
    }

    #[test]
    fn the_fastest_tcp_of_the_round_is_the_comparison() {
        let mut series = sample();
        let faster = Task::Baseline { baseline: Baseline::TcpStream, size: 256 << 10 };
        series.push(self::series(faster, &[speed(8.0), speed(1.0), speed(12.0)]));
        assert_eq!(ratio_to_streams(&series[1], &series), Some(1.0));
    }

    #[test]
    fn a_round_trip_is_compared_with_two_trips() {
        let read = Spec { kind: Kind::Latency, ..spec(Op::Read, Service::Rc, 64) };
        let udp = Task::Baseline { baseline: Baseline::UdpPingPong, size: 64 };
        let time = |p50_us| Reading::Latency { p50_us, p99_us: p50_us };
        let series = [series(udp, &[time(2.0)]), series(Task::Verbs(read), &[time(6.0)])];
        assert_eq!(ratio_to_streams(&series[1], &series), Some(1.5));
    }

    #[test]
    fn latency_and_throughput_of_one_thing_share_a_json_row() {
        let json = serde_json::to_value(report(&sample(), None, Packets::Wire)).unwrap();
        let expected = serde_json::json!({
            "results": [{
                "op": "WRITE", "service": "RC", "path": "udp", "size_bytes": 1_048_576,
                "mtu_bytes": 4096, "qps": 1, "latency_us_p50": 130.0, "latency_us_p99": 140.0,
                "gbytes_per_s": 6.0, "mmsg_per_s": 0.006,
            }],
            "baselines": [{ "name": "tcp", "size_bytes": 1_048_576, "gbytes_per_s": 4.0 }],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn small_figures_keep_their_digits() {
        assert_eq!(rounded(1.234_567), 1.2346);
        assert_eq!(rounded(0.000_012_345_67), 0.000_012_346);
        assert_eq!(rounded(123_456.7), 123_460.0);
        assert_eq!(rounded(0.0), 0.0);
    }

    #[test]
    fn the_heading_says_how_many_rounds_there_were_and_why_not_more() {
        use super::super::end::Extent;
        use std::time::Duration;
        let (extent, budget) = (Extent::Iterations(1), Duration::from_secs(24));
        let plan = Plan { rounds: 3, extent, budget };
        let texts = [0, 1, 2, 3].map(|rounds| rounds_text(rounds, plan));
        let expected = [
            "nothing was measured",
            "one round",
            "medians of 2 rounds, as many as fit 24 s",
            "medians of 3 rounds",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_table_of_nothing_but_failures_is_not_printed() {
        let mut series = sample();
        for entry in &mut series {
            entry.readings.clear();
            entry.failure = Some(Failure::new("no answer"));
        }
        let text = text(&series, None);
        assert!(!text.contains("GB/s") && text.contains("no answer"), "{text}");
    }

    #[test]
    fn a_failed_task_is_named_with_its_explanation() {
        let mut series = sample();
        series[1].failure = Some(Failure::new("no answer from 10.0.0.2 after 7 retries"));
        let text = text(&series, None);
        assert!(text.contains("failed: RC WRITE 1048576 B"), "{text}");
        assert!(text.contains("after 7 retries"), "{text}");
    }
}

//! The figures this project means to reach, each against its comparison in the same run.

use super::judged::Judged;
use super::schema::{Baseline, Measured, Report, Resources};

type Figure = fn(&Measured) -> Option<f64>;

/// What a figure is held against.
#[derive(Clone, Copy)]
enum Bar {
    /// At least this many times the best throughput of a TCP socket.
    TimesTcp(f64),
    /// At least this many times what UDP allows at the same path MTU.
    TimesUdpPackets(f64),
    /// At least this many times the message rate of RC WRITEs of the same size.
    TimesWrite(f64),
    /// At most this many times the median latency of a UDP ping-pong of the same size.
    TimesUdpLatency(f64),
    /// The same of a TCP ping-pong.
    TimesTcpLatency(f64),
    /// At least this, in the figure's own unit.
    AtLeast(f64, &'static str),
}

/// One row: which result, which of its figures, which bar.
#[derive(Clone, Copy)]
struct Row {
    what: &'static str,
    op: &'static str,
    service: &'static str,
    size_bytes: u64,
    mtu_bytes: Option<u64>,
    figure: Figure,
    bar: Bar,
}

const MIB: u64 = 1 << 20;
const THROUGHPUT: Figure = |f| f.gbytes_per_s;
const LATENCY: Figure = |f| f.latency_us_p50;
const RATE: Figure = |f| f.mmsg_per_s;

#[rustfmt::skip] // a table reads best one row a line
const ROWS: &[Row] = &[
    row("RC WRITE 1 MiB, MTU 4096",   "write", "rc", MIB, Some(4096), THROUGHPUT, Bar::TimesUdpPackets(0.85)),
    row("RC WRITE 1 MiB, MTU 4096",   "write", "rc", MIB, Some(4096), THROUGHPUT, Bar::TimesTcp(1.1)),
    row("RC SEND 1 MiB, MTU 4096",    "send",  "rc", MIB, Some(4096), THROUGHPUT, Bar::TimesUdpPackets(0.85)),
    row("RC SEND 1 MiB, MTU 4096",    "send",  "rc", MIB, Some(4096), THROUGHPUT, Bar::TimesTcp(1.1)),
    row("RC READ 1 MiB, MTU 4096",    "read",  "rc", MIB, Some(4096), THROUGHPUT, Bar::TimesUdpPackets(0.85)),
    row("RC READ 1 MiB, MTU 4096",    "read",  "rc", MIB, Some(4096), THROUGHPUT, Bar::TimesTcp(1.1)),
    row("RC WRITE 1 MiB, MTU 1024",   "write", "rc", MIB, Some(1024), THROUGHPUT, Bar::TimesUdpPackets(0.85)),
    row("RC SEND 1 MiB, MTU 1024",    "send",  "rc", MIB, Some(1024), THROUGHPUT, Bar::TimesUdpPackets(0.85)),
    row("RC READ 1 MiB, MTU 1024",    "read",  "rc", MIB, Some(1024), THROUGHPUT, Bar::TimesUdpPackets(0.85)),
    row("RC SEND 64 B, one way",      "send",   "rc", 64,  None,       LATENCY,    Bar::TimesUdpLatency(1.5)),
    row("UD SEND 64 B, one way",      "send",   "ud", 64,  None,       LATENCY,    Bar::TimesUdpLatency(1.5)),
    row("RC READ 8 B, message rate",  "read",   "rc", 8,   None,       RATE,       Bar::TimesWrite(0.7)),
    row("RC ATOMIC 8 B, message rate", "atomic", "rc", 8,  None,       RATE,       Bar::TimesWrite(0.7)),
    row("RC WRITE 8 B, message rate",  "write", "rc", 8,   None,       RATE,       Bar::AtLeast(5.0, "M msg/s")),
    row("UD SEND 64 B, message rate",  "send",  "ud", 64,  None,       RATE,       Bar::AtLeast(1.0, "M msg/s")),
    row("iWARP WRITE 1 MiB, no CRC",   "write", "iwarp",     MIB, None, THROUGHPUT, Bar::TimesTcp(0.9)),
    row("iWARP WRITE 1 MiB, CRC",      "write", "iwarp+crc", MIB, None, THROUGHPUT, Bar::TimesTcp(0.85)),
    row("iWARP SEND 8 B, one way",     "send",  "iwarp+crc", 8,   None, LATENCY,    Bar::TimesTcpLatency(1.25)),
];

const fn row(
    what: &'static str,
    op: &'static str,
    service: &'static str,
    size_bytes: u64,
    mtu_bytes: Option<u64>,
    figure: Figure,
    bar: Bar,
) -> Row {
    Row { what, op, service, size_bytes, mtu_bytes, figure, bar }
}

/// A cost of a device that rests, with its bar.
struct Cost {
    what: &'static str,
    bar: &'static str,
    at_most: f64,
    figure: fn(&Resources) -> f64,
    shown: fn(&Resources) -> String,
}

const COSTS: &[Cost] = &[
    Cost {
        what: "memory of an idle RC QP",
        bar: "at most 4096 bytes beyond its rings",
        at_most: 4096.0,
        figure: |r| r.bytes_per_qp.saturating_sub(r.bytes_per_ring_entry) as f64,
        shown: |r| match r.bytes_per_ring_entry {
            0 => format!("{} bytes, rings of one entry included", r.bytes_per_qp),
            entry => {
                let beside = r.bytes_per_qp.saturating_sub(entry);
                format!("{beside} bytes beside {entry} of its rings")
            }
        },
    },
    Cost {
        what: "opening 10,000 RC QPs",
        bar: "under 2 s",
        at_most: 2.0,
        figure: |r| r.open_s * 10_000.0 / r.qps as f64,
        shown: |r| format!("{:.2} s for {}, connected", r.open_s, r.qps),
    },
    Cost {
        what: "CPU of an idle device",
        bar: "under 0.5 % of a core",
        at_most: 0.5,
        figure: |r| r.idle_cpu_percent,
        shown: |r| format!("{:.3} %", r.idle_cpu_percent),
    },
];

impl Cost {
    fn judge(&self, resources: Option<&Resources>) -> Judged {
        let (measured, verdict) = match resources {
            Some(r) if (self.figure)(r) <= self.at_most => ((self.shown)(r), "reached"),
            Some(r) => ((self.shown)(r), "short"),
            None => ("-".into(), "not measured"),
        };
        Judged { what: self.what.into(), bar: self.bar.into(), measured, verdict: verdict.into() }
    }
}

/// Every bar, in order.
pub(crate) fn judge(report: &Report) -> Vec<Judged> {
    let costs = COSTS.iter().map(|cost| cost.judge(report.resources.as_ref()));
    ROWS.iter().map(|row| row.judge(report)).chain(costs).collect()
}

impl Row {
    fn judge(&self, report: &Report) -> Judged {
        let is_latency = matches!(self.bar, Bar::TimesUdpLatency(_) | Bar::TimesTcpLatency(_));
        let best = if is_latency { f64::min } else { f64::max };
        let figure =
            report.results.iter().filter(|r| self.selects(r)).filter_map(self.figure).reduce(best);
        let (bar, judged) = match self.bar {
            Bar::TimesTcp(times) => (
                format!("at least {times} x TCP"),
                figure.zip(fastest_tcp(report)).map(|(f, tcp)| {
                    let ratio = f / tcp;
                    (format!("{f:.2} GB/s, TCP {tcp:.2} GB/s: {ratio:.2} x"), ratio >= times)
                }),
            ),
            Bar::TimesUdpPackets(times) => (
                format!("at least {times} x what UDP allows"),
                figure.zip(self.udp_packets(report)).map(|(f, udp)| {
                    let ratio = f / udp;
                    (format!("{f:.2} GB/s, UDP {udp:.2} GB/s: {ratio:.2} x"), ratio >= times)
                }),
            ),
            Bar::TimesWrite(times) => (
                format!("at least {times} x the rate of WRITE"),
                figure.zip(self.write_rate(report)).map(|(f, write)| {
                    let ratio = f / write;
                    (format!("{f:.2} M msg/s, WRITE {write:.2}: {ratio:.2} x"), ratio >= times)
                }),
            ),
            Bar::TimesUdpLatency(times) => self.judge_latency(report, "UDP", times, figure),
            Bar::TimesTcpLatency(times) => self.judge_latency(report, "TCP", times, figure),
            Bar::AtLeast(least, unit) => (
                format!("at least {least} {unit}"),
                figure.map(|f| (format!("{f:.2} {unit}"), f >= least)),
            ),
        };
        let (measured, verdict) = match judged {
            Some((measured, true)) => (measured, "reached"),
            Some((measured, false)) => (measured, "short"),
            None => ("-".into(), "not measured"),
        };
        Judged { what: self.what.into(), bar, measured, verdict: verdict.into() }
    }

    /// The bar, and what there is to say of a latency beside a ping-pong of plain sockets.
    fn judge_latency(
        &self,
        report: &Report,
        socket: &str,
        times: f64,
        figure: Option<f64>,
    ) -> (String, Option<(String, bool)>) {
        let plain = ping_pong(report, &socket.to_lowercase(), self.size_bytes);
        let judged = figure.zip(plain).map(|(f, plain)| {
            let ratio = f / plain;
            (format!("{f:.2} us, {socket} {plain:.2} us: {ratio:.2} x"), ratio <= times)
        });
        (format!("at most {times} x {socket} ping-pong"), judged)
    }

    /// What UDP allows at the row's path MTU.
    fn udp_packets(&self, report: &Report) -> Option<f64> {
        let is_it = |b: &&Baseline| b.name == "udp_packets" && b.mtu_bytes == self.mtu_bytes;
        report.baselines.iter().filter(is_it).filter_map(|b| b.gbytes_per_s).reduce(f64::max)
    }

    /// The message rate of WRITEs with the row's service and size.
    fn write_rate(&self, report: &Report) -> Option<f64> {
        let write = Self { op: "write", ..*self };
        let writes = report.results.iter().filter(|result| write.selects(result));
        writes.filter_map(self.figure).reduce(f64::max)
    }

    /// One QP, this operation and size; names in any case.
    fn selects(&self, result: &Measured) -> bool {
        result.op.eq_ignore_ascii_case(self.op)
            && result.service.eq_ignore_ascii_case(self.service)
            && result.size_bytes == self.size_bytes
            && result.qps.unwrap_or(1) == 1
            && self.mtu_bytes.is_none_or(|mtu| result.mtu_bytes == Some(mtu))
    }
}

/// The fastest TCP stream at any size: the comparison that favours us least.
fn fastest_tcp(report: &Report) -> Option<f64> {
    let tcp = |b: &&Baseline| b.name == "tcp";
    report.baselines.iter().filter(tcp).filter_map(|b| b.gbytes_per_s).reduce(f64::max)
}

/// The median latency of a ping-pong over plain sockets, in us.
pub(super) fn ping_pong(report: &Report, socket: &str, size_bytes: u64) -> Option<f64> {
    let plain = |b: &&Baseline| b.name == socket && b.size_bytes == size_bytes;
    report.baselines.iter().filter(plain).filter_map(|b| b.latency_us_p50).reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::SAMPLE;
    use super::*;

    #[test]
    fn a_bar_is_reached_short_or_not_measured() {
        let judged = judge(&Report::parse(SAMPLE).unwrap());
        let verdict = |what: &str| &judged.iter().find(|j| j.what == what).unwrap().verdict;
        assert_eq!(verdict("RC WRITE 1 MiB, MTU 4096"), "short");
        assert_eq!(verdict("RC WRITE 1 MiB, MTU 1024"), "not measured");
        assert_eq!(verdict("RC READ 8 B, message rate"), "not measured");
        assert_eq!(verdict("RC WRITE 8 B, message rate"), "short");
        assert_eq!(verdict("RC SEND 64 B, one way"), "reached");
        assert_eq!(verdict("UD SEND 64 B, message rate"), "not measured");
        assert_eq!(verdict("CPU of an idle device"), "not measured");
        let later = judge(&Report::parse(&SAMPLE.replacen("2.6", "3.1", 1)).unwrap());
        let slower = judge(&Report::parse(&SAMPLE.replacen("10.0", "9.0", 1)).unwrap());
        let writes = |judged: &[Judged]| {
            let is_it = |j: &&Judged| j.what == "RC WRITE 1 MiB, MTU 4096";
            judged.iter().filter(is_it).map(|j| j.verdict.clone()).collect::<Vec<_>>()
        };
        assert_eq!(writes(&judged), ["short", "reached"]);
        assert_eq!(writes(&slower), ["reached", "reached"]);
        let send = later.iter().find(|j| j.what == "RC SEND 64 B, one way").unwrap();
        assert_eq!(
            (send.verdict.as_str(), send.bar.as_str()),
            ("short", "at most 1.5 x UDP ping-pong")
        );
    }

    #[test]
    fn costs_of_rest_are_judged() {
        let with = r#""resources": {"qps": 5000, "open_s": 0.9, "bytes_per_qp": 5000, "bytes_per_ring_entry": 800,
            "idle_cpu_percent": 0.01}, "baselines""#;
        let report = Report::parse(&SAMPLE.replacen(r#""baselines""#, with, 1)).unwrap();
        let judged = judge(&report);
        let verdicts: Vec<_> = judged.iter().rev().map(|j| j.verdict.as_str()).take(3).collect();
        assert_eq!(verdicts, ["reached", "reached", "short"]);
    }

    #[test]
    fn the_fastest_tcp_is_the_comparison() {
        let slower = r#"{"name": "tcp", "size_bytes": 64, "gbytes_per_s": 0.1},
            {"name": "tcp""#;
        let report = Report::parse(&SAMPLE.replacen(r#"{"name": "tcp""#, slower, 1)).unwrap();
        assert_eq!(fastest_tcp(&report), Some(4.0));
    }
}

//! The same work over a range: latency and bandwidth over the size of messages, the rate of small
//! ones over the number of queue pairs; what stands beside Vernic, through programs of their own.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::again;
use super::median::median;
use super::setup::{Setup, lacking};
use super::work::{Crc, Figure, Over, Pair, QPERF_SECONDS, Way};
use crate::Result;

/// Rounds of a whole run.
const ROUNDS: usize = 3;

/// Sizes of messages, in bytes.
const LATENCY_SIZES: &[u64] = &[8, 64, 512, 4096, 32_768, 262_144, 1_048_576];
const BANDWIDTH_SIZES: &[u64] = &[64, 512, 4096, 32_768, 262_144, 1_048_576, 4_194_304];
/// Numbers of queue pairs.
const QPS: &[u64] = &[1, 2, 4, 8, 16, 32, 64];

/// A chart: what is drawn over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Chart {
    Latency,
    Bandwidth,
    Rate,
}

impl Chart {
    pub(crate) const ALL: [Self; 3] = [Self::Latency, Self::Bandwidth, Self::Rate];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Latency => "Latency, one way, over the size of messages",
            Self::Bandwidth => "Bandwidth over the size of messages",
            Self::Rate => "Rate of 8-byte WRITEs over the number of queue pairs",
        }
    }

    /// What is drawn, and which way is better.
    pub(super) fn says(self) -> &'static str {
        match self {
            Self::Latency => {
                "One way over the size of messages, both ends on one machine. Lower is better"
            }
            Self::Bandwidth => {
                "Over the size of messages, both ends on one machine. Higher is better"
            }
            Self::Rate => "Over the number of queue pairs, in lists of 16. Higher is better",
        }
    }

    /// What the axes count.
    pub(super) fn axes(self) -> (&'static str, &'static str) {
        match self {
            Self::Latency => ("bytes", "us"),
            Self::Bandwidth => ("bytes", "GB/s"),
            Self::Rate => ("queue pairs", "M msg/s"),
        }
    }

    fn range(self) -> &'static [u64] {
        match self {
            Self::Latency => LATENCY_SIZES,
            Self::Bandwidth => BANDWIDTH_SIZES,
            Self::Rate => QPS,
        }
    }

    fn figure(self) -> Figure {
        match self {
            Self::Latency => Figure::Latency,
            Self::Bandwidth => Figure::Bandwidth,
            Self::Rate => Figure::Rate,
        }
    }

    /// How many messages of `x` bytes (or over `x` queue pairs) a reading takes.
    fn messages(self, x: u64) -> u32 {
        let count = match self {
            Self::Latency => (256 << 20) / x.max(16 << 10),
            Self::Bandwidth => (4 << 30) / x.max(8 << 10),
            // Each queue pair sends so many.
            Self::Rate => (1 << 20) / x,
        };
        count as u32
    }
}

/// Whoever is measured, and in which program each chart shows it.
struct Contender {
    name: &'static str,
    pair: fn(Chart, u64) -> Option<Pair>,
}

const CONTENDERS: &[Contender] = &[
    Contender { name: "Vernic, RoCEv2", pair: |chart, x| Some(roce(Way::Wire, chart, x)) },
    Contender { name: "Vernic, same host", pair: |chart, x| Some(roce(Way::SameHost, chart, x)) },
    Contender {
        name: "Vernic, same host, WRITE",
        pair: |chart, x| match chart {
            Chart::Latency => Some(perftest(Way::SameHost, format!("ib_write_lat -m 4096 -s {x}"))),
            Chart::Bandwidth => {
                Some(perftest(Way::SameHost, format!("ib_write_bw -m 4096 -s {x}")))
            }
            Chart::Rate => None,
        },
    },
    Contender {
        name: "Vernic, iWARP",
        pair: |chart, x| match chart {
            Chart::Latency => Some(Pair::Iwarp(format!("ib_send_lat -s {x}").into(), Crc::Off)),
            Chart::Bandwidth => Some(Pair::Iwarp(format!("ib_send_bw -s {x}").into(), Crc::Off)),
            Chart::Rate => None,
        },
    },
    Contender {
        name: "TCP (qperf)",
        pair: |chart, x| match chart {
            Chart::Latency => Some(Pair::Qperf("tcp_lat", x)),
            // Its servers cannot take longer messages.
            Chart::Bandwidth if x <= 1 << 20 => Some(Pair::Qperf("tcp_bw", x)),
            _ => None,
        },
    },
    Contender { name: "UCX, TCP", pair: |chart, x| ucx(Over::Tcp, chart, x) },
    Contender { name: "UCX, posix and cma", pair: |chart, x| ucx(Over::SharedMemory, chart, x) },
    Contender { name: "libfabric, tcp", pair: |chart, x| libfabric(Over::Tcp, chart, x) },
    Contender { name: "libfabric, shm", pair: |chart, x| libfabric(Over::SharedMemory, chart, x) },
];

/// SENDs, as what stands beside has two sides that take part; the rate is that of WRITEs.
fn roce(way: Way, chart: Chart, x: u64) -> Pair {
    let line = match chart {
        Chart::Latency => format!("ib_send_lat -m 4096 -s {x}"),
        Chart::Bandwidth => format!("ib_send_bw -m 4096 -s {x}"),
        Chart::Rate => format!("ib_write_bw -m 4096 -s 8 -q {x} -t 128 -l 16 -Q 16"),
    };
    perftest(way, line)
}

fn perftest(way: Way, line: String) -> Pair {
    Pair::Perftest(way, Cow::Owned(line))
}

fn ucx(over: Over, chart: Chart, x: u64) -> Option<Pair> {
    let test = match chart {
        Chart::Latency => "tag_lat",
        Chart::Bandwidth => "tag_bw",
        Chart::Rate => return None,
    };
    Some(Pair::Ucx(Some(over), Cow::Owned(format!("-t {test} -s {x}"))))
}

/// Its programs measure ping-pongs alone.
fn libfabric(over: Over, chart: Chart, x: u64) -> Option<Pair> {
    (chart == Chart::Latency).then_some(Pair::Libfabric(over, x))
}

/// One contender's line in one chart.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Curve {
    pub(crate) chart: Chart,
    pub(crate) name: String,
    /// The client's command at the first point.
    pub(crate) command: String,
    pub(crate) points: Vec<Point>,
    /// Why it ends early, if it does.
    pub(crate) failure: Option<String>,
}

/// The readings at one place of a range.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Point {
    pub(crate) x: u64,
    /// One per round.
    pub(crate) readings: Vec<f64>,
    /// Of bandwidth: processor seconds per 1e9 bytes, passive and active side.
    pub(crate) cpu: Vec<[f64; 2]>,
}

impl Point {
    pub(super) fn median(&self) -> Option<f64> {
        median(self.readings.clone())
    }

    /// Processor seconds per GB: passive, active side.
    pub(crate) fn cpu(&self) -> Option<[f64; 2]> {
        let side = |side: usize| median(self.cpu.iter().map(|both| both[side]).collect());
        Some([side(0)?, side(1)?])
    }
}

impl Curve {
    /// What types cannot say.
    pub(super) fn check(&self) -> Result {
        let readings = self.points.iter().flat_map(|point| &point.readings);
        if self.points.is_empty() && self.failure.is_none() {
            return Err(format!("{}: a line without points", self.name));
        }
        if readings.into_iter().any(|reading| !reading.is_finite() || *reading <= 0.0) {
            return Err(format!("{}: a reading that is not above zero", self.name));
        }
        Ok(())
    }
}

/// Measures every contender at every point of every chart, in rounds.
pub(super) fn measure(setup: &Setup) -> Vec<Curve> {
    let rounds = if setup.quick { 1 } else { ROUNDS };
    let mut curves: Vec<Curve> = Vec::new();
    for round in 1..=rounds {
        for chart in Chart::ALL {
            for &x in chart.range() {
                for contender in CONTENDERS {
                    let Some(pair) = (contender.pair)(chart, x) else { continue };
                    let curve = curve_of(&mut curves, chart, contender.name, setup, &pair);
                    if curve.failure.is_some() {
                        continue;
                    }
                    let name = contender.name;
                    match again(|| read(setup, &pair, chart, x)) {
                        Ok((reading, cpu)) => {
                            let unit = chart.axes().1;
                            println!("round {round} of {rounds}: {name}, {x}: {reading:.3} {unit}");
                            curve.add(x, reading, cpu);
                        }
                        Err(why) => {
                            let why = setup.without_folders(&why);
                            println!("round {round} of {rounds}: {name}, {x}: {why}");
                            curve.failure = Some(format!("at {x}: {why}"));
                        }
                    }
                }
            }
        }
    }
    curves
}

fn curve_of<'a>(
    curves: &'a mut Vec<Curve>,
    chart: Chart,
    name: &str,
    setup: &Setup,
    pair: &Pair,
) -> &'a mut Curve {
    let place = curves.iter().position(|curve| curve.chart == chart && curve.name == name);
    let place = place.unwrap_or_else(|| {
        let line = pair.client(setup, chart.messages(chart.range()[0]), chart.figure());
        curves.push(Curve {
            chart,
            name: name.into(),
            command: setup.without_folders(&line.text()),
            points: Vec::new(),
            failure: pair.program().and_then(lacking),
        });
        curves.len() - 1
    });
    &mut curves[place]
}

impl Curve {
    fn add(&mut self, x: u64, reading: f64, cpu: Option<[f64; 2]>) {
        let place = self.points.iter().position(|point| point.x == x).unwrap_or_else(|| {
            self.points.push(Point { x, readings: Vec::new(), cpu: Vec::new() });
            self.points.len() - 1
        });
        self.points[place].readings.push(reading);
        self.points[place].cpu.extend(cpu);
    }
}

/// A reading; and of bandwidth what it cost.
fn read(setup: &Setup, pair: &Pair, chart: Chart, x: u64) -> Result<(f64, Option<[f64; 2]>)> {
    let messages = setup.messages(chart.messages(x));
    let ran = pair.run(setup, messages, chart.figure())?;
    let reading = pair.read(chart.figure(), &ran.printed)?;
    let gbytes = match pair {
        Pair::Qperf(..) => reading * f64::from(QPERF_SECONDS),
        _ => f64::from(messages) * x as f64 / 1e9,
    };
    let cost = [ran.server_cpu, ran.client_cpu].map(|cpu| cpu.as_secs_f64() / gbytes);
    Ok((reading, (chart == Chart::Bandwidth).then_some(cost)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn curve(chart: Chart, name: &str, points: &[(u64, f64)]) -> Curve {
        let mut curve = Curve {
            chart,
            name: name.into(),
            command: "a command".into(),
            points: Vec::new(),
            failure: None,
        };
        for &(x, reading) in points {
            curve.add(x, reading, (chart == Chart::Bandwidth).then_some([0.1, 0.2]));
        }
        curve
    }

    #[test]
    fn readings_of_one_place_are_one_point() {
        let rate = curve(Chart::Rate, "a", &[(1, 2.0), (2, 4.0), (1, 3.0), (1, 9.0)]);
        assert_eq!(rate.points.len(), 2);
        assert_eq!((rate.points[0].median(), rate.points[0].cpu()), (Some(3.0), None));
        let bandwidth = curve(Chart::Bandwidth, "a", &[(64, 2.0)]);
        assert_eq!(bandwidth.points[0].cpu(), Some([0.1, 0.2]));
    }

    #[test]
    fn a_line_without_points_must_say_why() {
        let mut empty = curve(Chart::Rate, "a", &[]);
        assert!(empty.check().is_err());
        empty.failure = Some("not installed".into());
        assert_eq!(empty.check(), Ok(()));
        assert!(curve(Chart::Rate, "a", &[(1, 0.0)]).check().is_err());
    }

    #[test]
    fn vernic_is_in_every_chart_and_somebody_else_in_those_of_sizes() {
        for chart in Chart::ALL {
            let drawn = |c: &&Contender| (c.pair)(chart, chart.range()[0]).is_some();
            let names: Vec<_> = CONTENDERS.iter().filter(drawn).map(|c| c.name).collect();
            assert!(names.iter().any(|name| name.starts_with("Vernic")), "{chart:?}");
            assert!(chart == Chart::Rate || names.len() > 3, "{chart:?}: {names:?}");
        }
    }
}

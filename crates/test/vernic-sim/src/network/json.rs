//! The figures of a run as one JSON object. `docs/sim-net.md` says what each field is.

use super::measure::{Bin, Depths};
use super::ran::Ran;
use super::report::{Packets, Pauses, Report, Rounds};

impl Report {
    /// Writes the figures as one JSON object.
    pub fn json(&self) -> String {
        let (flows, bins) = (&self.flows, self.bins.iter().map(bin).collect::<Vec<_>>());
        let (mean, least) = self.fairness.unzip();
        let Pauses { frames, sum_us, longest_us, percent } = self.pauses;
        object(&[
            ("run", quoted(&self.ran.to_string())),
            ("setup", setup(&self.ran)),
            (
                "flows",
                object(&[
                    ("begun", flows.begun.to_string()),
                    ("ended", self.ended.to_string()),
                    ("open", self.open().to_string()),
                    ("failed", flows.failed.to_string()),
                ]),
            ),
            ("slowdown", format!("[{}]", bins.join(","))),
            ("queues", depths(&self.all)),
            ("busiest_port", quoted(&self.busiest)),
            ("busiest", depths(&self.busy)),
            (
                "pfc",
                object(&[
                    ("frames", frames.to_string()),
                    ("sum_us", format!("{sum_us:.1}")),
                    ("longest_us", format!("{longest_us:.1}")),
                    ("percent", number(Some(percent))),
                ]),
            ),
            ("fairness", object(&[("mean", number(mean)), ("least", number(least))])),
            ("goodput_gbps", format!("{:.3}", self.goodput)),
            ("capacity_gbps", format!("{:.3}", self.capacity)),
            ("rounds", self.rounds.as_ref().map_or_else(|| "null".to_owned(), rounds)),
            ("packets", packets(&self.packets)),
        ])
    }
}

/// What was run, field by field.
fn setup(ran: &Ran) -> String {
    let ecn = ran.build.ecn.map(|ecn| {
        object(&[
            ("kmin_bytes", ecn.kmin.to_string()),
            ("kmax_bytes", ecn.kmax.to_string()),
            ("pmax", number(Some(ecn.pmax))),
        ])
    });
    object(&[
        ("algorithm", quoted(&ran.algorithm.to_string())),
        ("seed", ran.seed.to_string()),
        ("time_ms", ran.time_ms().to_string()),
        ("topology", quoted(&ran.topology.to_string())),
        ("hosts", ran.hosts.to_string()),
        ("switches", ran.switches.to_string()),
        ("load", quoted(ran.load)),
        ("load_factor", number(ran.load_factor)),
        ("rate_gbps", ran.build.rate.gbps().to_string()),
        ("delay_ns", ran.build.delay_nanos.to_string()),
        ("mtu_bytes", ran.build.mtu.to_string()),
        ("buffer_bytes", ran.build.buffer.to_string()),
        ("ecn", ecn.unwrap_or_else(|| "null".to_owned())),
        ("pfc", ran.build.pfc.to_string()),
        ("keep", ran.keep.to_string()),
    ])
}

fn bin(bin: &Bin) -> String {
    let [median, p95, p99] = bin.slowdowns.map(|slowdown| format!("{slowdown:.3}"));
    object(&[
        ("size", quoted(bin.name)),
        ("flows", bin.flows.to_string()),
        ("median", median),
        ("p95", p95),
        ("p99", p99),
    ])
}

fn depths(depths: &Depths) -> String {
    object(&[
        ("median", depths.median.to_string()),
        ("p99", depths.p99.to_string()),
        ("max", depths.most.to_string()),
    ])
}

fn rounds(rounds: &Rounds) -> String {
    object(&[
        ("ended", rounds.count.to_string()),
        ("mean_us", format!("{:.1}", rounds.mean_us)),
        ("open_messages", rounds.open.to_string()),
    ])
}

fn packets(packets: &Packets) -> String {
    let named = [
        ("sent", packets.sent),
        ("delivered", packets.delivered),
        ("dropped", packets.dropped),
        ("under_way", packets.under_way),
        ("hops", packets.hops),
        ("marked", packets.marked),
        ("repeated", packets.repeated),
        ("kept", packets.kept),
        ("cnps", packets.cnps),
        ("naks", packets.naks),
        ("timeouts", packets.timeouts),
        ("probes", packets.probes),
        ("duplicates", packets.duplicates),
        ("late", packets.late),
    ];
    object(&named.map(|(name, count)| (name, count.to_string())))
}

/// An object of names and values that are JSON already.
fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// A text without control characters, which nothing here has.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A number, or `null` where there is none.
fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| format!("{value:.4}"))
}

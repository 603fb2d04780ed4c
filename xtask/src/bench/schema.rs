//! The JSON of `vernic bench --json`: one object with `results`, `baselines` and, after a run of
//! everything, `resources`. `cargo xtask bench` adds `same_host`, `programs` and `machine` before
//! it keeps it.
//!
//! The names are a contract with whoever reads the JSON by machine, so an unknown or misspelt field
//! in an entry is an error here. Fields that do not apply to an entry are left out of it.

use serde::Deserialize;

use super::programs::Programs;
use crate::Result;

/// The whole output. Further keys beside these are allowed.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) results: Vec<Measured>,
    pub(crate) baselines: Vec<Baseline>,
    pub(crate) resources: Option<Resources>,
    /// The results of another run, which went through memory; `cargo xtask bench` adds them.
    #[serde(default)]
    pub(crate) same_host: Vec<Measured>,
    /// What `cargo xtask bench` adds.
    pub(crate) programs: Option<Programs>,
    /// The machine it was measured on, as `cargo xtask bench` describes it.
    pub(crate) machine: Option<String>,
}

/// What a device costs while nothing happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resources {
    /// Idle RC queue pairs that were opened.
    pub(crate) qps: u64,
    /// Seconds until the last of them was connected.
    pub(crate) open_s: f64,
    /// Resident memory that each added.
    pub(crate) bytes_per_qp: u64,
    /// What one entry of its rings takes of that; 0 in readings from before it was measured.
    #[serde(default)]
    pub(crate) bytes_per_ring_entry: u64,
    /// Share of one core that the process used meanwhile.
    pub(crate) idle_cpu_percent: f64,
}

/// One operation at one size.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    /// `SEND`, `WRITE`, `READ`, `ATOMIC`..., in any case.
    pub(crate) op: String,
    /// `RC`, `UC`, `UD`, in any case.
    pub(crate) service: String,
    /// What lies between the ends, for example `udp`.
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) mtu_bytes: Option<u64>,
    pub(crate) qps: Option<u64>,
    /// One way, median.
    pub(crate) latency_us_p50: Option<f64>,
    /// One way, 99th percentile.
    pub(crate) latency_us_p99: Option<f64>,
    /// 1e9 bytes of payload per second.
    pub(crate) gbytes_per_s: Option<f64>,
    /// 1e6 messages per second.
    pub(crate) mmsg_per_s: Option<f64>,
}

/// A raw socket, or memory, measured in the same run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    /// `tcp`, `udp`, `udp_packets` or `memcpy`.
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Bytes of payload in a packet of `udp_packets`.
    pub(crate) mtu_bytes: Option<u64>,
    pub(crate) latency_us_p50: Option<f64>,
    pub(crate) gbytes_per_s: Option<f64>,
}

impl Report {
    /// Reads the JSON and checks what its types cannot say.
    pub(crate) fn parse(json: &str) -> Result<Self> {
        let report: Self =
            serde_json::from_str(json).map_err(|e| format!("not the JSON of vernic bench: {e}"))?;
        if report.results.is_empty() || report.baselines.is_empty() {
            return Err("the benchmark measured nothing: `results` or `baselines` is empty".into());
        }
        for entry in report.results.iter().chain(&report.same_host) {
            entry.check().map_err(|why| format!("{why} in {entry:?}"))?;
        }
        for entry in &report.baselines {
            entry.check().map_err(|why| format!("{why} in {entry:?}"))?;
        }
        if let Some(programs) = &report.programs {
            programs.check()?;
        }
        Ok(report)
    }
}

impl Measured {
    fn check(&self) -> Result {
        let mtus = [256, 512, 1024, 2048, 4096];
        if self.mtu_bytes.is_some_and(|mtu| !mtus.contains(&mtu)) {
            return Err("mtu_bytes is no InfiniBand MTU".into());
        }
        if self.op.is_empty() || self.service.is_empty() || self.path.is_empty() {
            return Err("an empty name".into());
        }
        if matches!((self.latency_us_p50, self.latency_us_p99), (Some(p50), Some(p99)) if p99 < p50)
        {
            return Err("the 99th percentile is below the median".into());
        }
        figures_are_sound(&[
            self.latency_us_p50,
            self.latency_us_p99,
            self.gbytes_per_s,
            self.mmsg_per_s,
        ])
    }
}

impl Baseline {
    fn check(&self) -> Result {
        if !matches!(self.name.as_str(), "tcp" | "udp" | "udp_packets" | "memcpy") {
            return Err("a baseline is tcp, udp, udp_packets or memcpy".into());
        }
        figures_are_sound(&[self.latency_us_p50, self.gbytes_per_s])
    }
}

fn figures_are_sound(figures: &[Option<f64>]) -> Result {
    if figures.iter().all(Option::is_none) {
        return Err("no figure at all".into());
    }
    if figures.iter().flatten().any(|f| !f.is_finite() || *f <= 0.0) {
        return Err("a figure that is not above zero".into());
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SAMPLE: &str = r#"{
        "results": [
            {"op": "WRITE", "service": "RC", "path": "udp", "size_bytes": 1048576,
             "mtu_bytes": 4096, "qps": 1, "gbytes_per_s": 8.0},
            {"op": "WRITE", "service": "RC", "path": "udp", "size_bytes": 8,
             "mtu_bytes": 4096, "qps": 1, "mmsg_per_s": 1.5},
            {"op": "SEND", "service": "RC", "path": "udp", "size_bytes": 64,
             "mtu_bytes": 4096, "qps": 1, "latency_us_p50": 2.6, "latency_us_p99": 3.9}
        ],
        "baselines": [
            {"name": "tcp", "size_bytes": 262144, "gbytes_per_s": 4.0},
            {"name": "udp_packets", "size_bytes": 1048576, "mtu_bytes": 4096, "gbytes_per_s": 10.0},
            {"name": "udp", "size_bytes": 64, "latency_us_p50": 2.0}
        ]
    }"#;

    #[test]
    fn the_sample_of_the_schema_is_accepted() {
        assert_eq!(Report::parse(SAMPLE).unwrap().results.len(), 3);
    }

    #[test]
    fn misspelt_missing_and_senseless_values_are_refused() {
        for (from, to) in [
            ("mmsg_per_s", "msgs_per_s"),
            ("\"size_bytes\": 8,", ""),
            ("8.0", "0.0"),
            ("3.9", "1.0"),
            ("\"tcp\"", "\"sctp\""),
            (", \"gbytes_per_s\": 4.0", ""),
            ("4096", "4000"),
        ] {
            assert!(SAMPLE.contains(from), "{from}");
            assert!(Report::parse(&SAMPLE.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn results_of_the_same_host_are_checked_like_others() {
        let with = |rate: f64| {
            let row = r#"{"op": "SEND", "service": "RC", "path": "memory", "size_bytes": 64"#;
            let added = format!("\"same_host\": [{row}, \"mmsg_per_s\": {rate}}}], \"baselines\"");
            SAMPLE.replacen("\"baselines\"", &added, 1)
        };
        assert_eq!(Report::parse(&with(9.5)).unwrap().same_host.len(), 1);
        assert!(Report::parse(&with(0.0)).is_err());
    }

    #[test]
    fn an_empty_measurement_is_refused() {
        assert!(Report::parse(r#"{"results": [], "baselines": []}"#).is_err());
    }
}

//! IP between two hosts, each with its interface in a network namespace of its own.

use std::path::Path;

use super::bench::{Bench, opensm};
use super::{Action, Case};
use crate::Result;

/// Runs a shell in namespaces of its own, with which all ends that it has started.
pub(super) const APART: [&str; 7] =
    ["unshare", "-rn", "-pf", "--mount-proc", "--kill-child", "sh", "-c"];

/// How interfaces send, and the longest packets that they do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    Datagram,
    Connected,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Datagram => "datagram",
            Self::Connected => "connected",
        }
    }
    /// Bytes of the longest echoes of IPv4 and IPv6.
    const fn longest(self) -> [u32; 2] {
        match self {
            Self::Datagram => [2016, 1996],
            Self::Connected => [65_492, 65_472],
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, mode| Case { name: name.to_owned(), action: Action::Ipoib(mode) };
    vec![
        case("ipoib: ping and iperf3", Mode::Datagram),
        case("ipoib: ping and iperf3 by connections", Mode::Connected),
    ]
}

/// `ping` of the longest packets of both versions, and `iperf3`, whose figure it returns. Then the
/// server's interface is killed, and another one is found in its place.
pub(super) fn run(vernic: &Path, mode: Mode) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "1,2,4"])?;
    bench.start_on("h1", &opensm(false, &[]), "osm.out")?;
    let (vernic, name) = (vernic.display(), mode.name());
    let interface = |host: usize| {
        format!(
            "{vernic} fabric ipoib xtask h{host} --mode {name} --address 10.0.0.{host}/24 \
             --address fd00::{host}/64"
        )
    };
    let [four, six] = mode.longest();
    // Sends an echo until one is answered: interfaces come up when OpenSM lets their ports in.
    let until_up =
        format!("for n in $(seq 60); do ping -M do -s {four} -c 1 -W 1 10.0.0.2 && break; done");
    let (first, again) = (interface(2), interface(2));
    // The client has its results a moment after the server has ended.
    let server = format!(
        "ip link set lo up; {first} & first=$!; iperf3 -s -1; sleep 1; kill -9 $first; exec {again}"
    );
    bench.start_on("h2", &[&APART[..], &[&server]].concat(), "server.out")?;
    let pings =
        format!("ping -M do -s {four} -c 5 -i 0.2 10.0.0.2 && ping -s {six} -c 5 -i 0.2 fd00::2");
    let client = format!(
        "ip link set lo up; {} & ({until_up}; {pings}) >&2 && iperf3 -c 10.0.0.2 -t 3 -J && \
         ({until_up}; {pings}) >&2",
        interface(4)
    );
    let said = bench.run_on("h4", &[&APART[..], &[&client]].concat())?;
    let report: serde_json::Value =
        serde_json::from_str(&said).map_err(|e| format!("iperf3 prints no JSON: {e}"))?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    let bits = bits.ok_or("iperf3 says no rate")?;
    Ok(format!("{:.0} Mb/s over three switches", bits * 1e-6))
}

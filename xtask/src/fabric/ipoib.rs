//! IP between two hosts, each with its interface in a network namespace of its own.

use std::path::Path;

use super::bench::{Bench, opensm};
use super::{Action, Case};
use crate::Result;

/// Runs a shell in namespaces of its own, with which all ends that it has started.
const APART: [&str; 7] = ["unshare", "-rn", "-pf", "--mount-proc", "--kill-child", "sh", "-c"];
/// Sends an echo until one is answered: the interfaces come up when OpenSM lets their ports in.
const UNTIL_UP: &str = "for n in $(seq 60); do ping -c 1 -W 1 10.0.0.2 && break; done";

pub(super) fn cases() -> Vec<Case> {
    vec![Case { name: "ipoib: ping and iperf3".to_owned(), action: Action::Ipoib }]
}

/// `ping` of the longest packets of both versions, and `iperf3`, whose figure it returns.
pub(super) fn run(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "1,2,4"])?;
    bench.start_on("h1", &opensm(false, &[]), "osm.out")?;
    let vernic = vernic.display();
    let interface = |host: usize| {
        format!(
            "{vernic} fabric ipoib xtask h{host} --address 10.0.0.{host}/24 \
             --address fd00::{host}/64 & ip link set lo up"
        )
    };
    let server = format!("{}; exec iperf3 -s -1", interface(2));
    bench.start_on("h2", &[&APART[..], &[&server]].concat(), "server.out")?;
    let pings = "ping -M do -s 2016 -c 5 -i 0.2 10.0.0.2 && ping -s 1996 -c 5 -i 0.2 fd00::2";
    let client =
        format!("({}; {UNTIL_UP}; {pings}) >&2 && iperf3 -c 10.0.0.2 -t 3 -J", interface(4));
    let said = bench.run_on("h4", &[&APART[..], &[&client]].concat())?;
    let report: serde_json::Value =
        serde_json::from_str(&said).map_err(|e| format!("iperf3 prints no JSON: {e}"))?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    let bits = bits.ok_or("iperf3 says no rate")?;
    Ok(format!("{:.0} Mb/s over three switches", bits * 1e-6))
}

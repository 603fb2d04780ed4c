//! `ibacm` and `ib_acme`: names of hosts and LIDs become paths, which subnet administration
//! confirms. `ibsrpdm`, which looks for targets at every port.

use std::path::Path;

use super::bench::{Bench, opensm};
use super::ipoib::APART;
use super::{Action, Case};
use crate::Result;

pub(super) fn cases() -> Vec<Case> {
    vec![Case { name: "ibacm, ib_acme, ibsrpdm".to_owned(), action: Action::Acm }]
}

/// A shell's words that set `ibacm` up for a host, in a /run of its own where its socket is.
fn set_up(host: &str) -> String {
    format!(
        "mount -t tmpfs none /run && cd /run && ib_acme -A -O -D /run >&2 && sed -i \
         's/^server_mode.*/server_mode unix/; s#^log_file.*#log_file /run/log#' ibacm_opts.cfg && \
         echo '{host} vernic_ib0 1 default' > ibacm_addr.cfg && \
         ibacm='ibacm -P -A /run/ibacm_addr.cfg -O /run/ibacm_opts.cfg'"
    )
}

/// Asks for paths by name and by LID.
pub(super) fn run(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "1,2,4"])?;
    bench.start_on("h1", &opensm(false, &[]), "osm.out")?;
    bench.wait("all ports are Active", |bench| {
        bench.active().is_ok_and(|(ports, active)| ports == active)
    })?;
    let state = bench.state()?;
    let nodes = || state["nodes"].as_array().into_iter().flatten();
    let lid = |host: &str| {
        let node = nodes().find(|node| node["name"] == host);
        node.and_then(|node| node["ports"][0]["lid"].as_u64()).ok_or(format!("{host} has no LID"))
    };
    let (own, other) = (lid("h4")?, lid("h2")?);
    let server = format!("{} && exec $ibacm", set_up("h2"));
    bench.start_on("h2", &[&APART[..], &[&server]].concat(), "acm.out")?;
    // A name is known once both services have joined the group of ACM.
    let client = format!(
        "{} && {{ $ibacm >&2 & }} && for n in $(seq 30); do sleep 0.3; ib_acme -f n -s h4 -d h2 -v && \
         break; done && ib_acme -f l -s {own} -d {other} -v",
        set_up("h4")
    );
    let said = bench.run_on("h4", &[&APART[..], &[&client]].concat())?;
    let confirmed = said.matches("SA verification: success").count();
    let paths = said.matches(&format!("dlid: {other}")).count();
    if confirmed < 2 || paths < 2 {
        return Err(format!("a path is missing, or is not the one of SA:\n{said}"));
    }
    bench.run_on("h4", &["ibsrpdm", "-c", "-d", "/dev/infiniband/umad0"])?;
    Ok(format!("{confirmed} paths, by name and by LID, as SA has them"))
}

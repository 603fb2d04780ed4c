//! The own subnet manager: beside OpenSM, which takes the subnet over by its priority and gives it
//! back when it dies, and with partitions.

use std::path::Path;

use super::bench::{Bench, opensm};
use super::{Action, Case};
use crate::Result;

/// Runs a shell in namespaces of its own, with which all ends that it has started.
const APART: [&str; 7] = ["unshare", "-rn", "-pf", "--mount-proc", "--kill-child", "sh", "-c"];

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, action| Case { name: name.into(), action };
    vec![
        case("OpenSM takes over from the own manager", Action::Takeover),
        case("partitions of the own manager", Action::Partitions),
    ]
}

/// Lets an OpenSM of a lower priority stand by, and one of a higher one take over, which is killed.
/// A connection carries data all the time.
pub(super) fn takeover(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "2,2,6", "--sm", "--sm-priority", "3"])?;
    let master = |bench: &Bench, priority: &str| {
        let said = bench.run_on("h2", &["sminfo"]);
        said.is_ok_and(|text| text.contains(priority) && text.contains("SMINFO_MASTER"))
    };
    bench.wait("the own manager is the master", |bench| master(bench, "priority 3 "))?;
    let traffic = "stdbuf -oL ib_write_bw -p 18561 -D 12";
    bench.start_on("h3", &traffic.split(' ').collect::<Vec<_>>(), "server.out")?;
    let client = until_said(traffic, "MsgRate");
    bench.start_on("h4", &client.each_ref().map(String::as_str), "client.out")?;
    bench.wait("a connection", |bench| bench.read("client.out").contains("remote address"))?;

    let low = bench.start_on("h1", &opensm(false, &["-p", "1"]), "low.out")?;
    bench.wait("OpenSM of a lower priority stands by", |bench| {
        bench.read("osm.log").contains("Entering STANDBY")
    })?;
    if !master(&bench, "priority 3 ") {
        return Err("the own manager left the subnet to one of a lower priority".into());
    }
    bench.kill(low);
    let _ = std::fs::remove_file(bench.folder.join("osm.log"));
    let high = bench.start_on("h1", &opensm(false, &["-p", "9"]), "high.out")?;
    bench.wait("OpenSM of a higher priority sets up the subnet", |bench| {
        bench.read("osm.log").contains("SUBNET UP")
    })?;
    // It is handed over to, and does not take what another one has.
    if !bench.read("osm.log").contains("Entering STANDBY") || !master(&bench, "priority 9 ") {
        return Err("OpenSM did not wait for the own manager to hand over".into());
    }
    bench.kill(high);
    bench.wait("the own manager takes over", |bench| master(bench, "priority 3 "))?;
    // A line of the table of results.
    let ended = |bench: &Bench| {
        let said = bench.read("client.out");
        said.lines().any(|line| line.trim_start().starts_with("65536 "))
    };
    bench.wait("the connection ends well", ended)?;
    Ok("to OpenSM and back, a connection in use".to_owned())
}

/// Sends within partitions, and out of them.
pub(super) fn partitions(vernic: &Path) -> Result<String> {
    let parted = ["--sm", "--partition", "0x7fff=ALL", "--partition", "0x8001=h1,h2"];
    let mut bench = Bench::new(vernic, &[&["--tree", "2,2,6"], &parted[..]].concat())?;
    bench.wait("tables of P_Keys", |bench| {
        let table = bench.run_on("h1", &["smpquery", "-D", "pkeys", "0"]);
        table.is_ok_and(|text| text.contains("0x7fff 0x8001 0x0000"))
    })?;
    let told = bench.run_on("h1", &["saquery", "NR"])?;
    let knows = |host: &str| told.lines().any(|line| line.ends_with(&format!(".{host}")));
    if !knows("h2") || !knows("h6") || knows("h3") {
        return Err(format!("h1 is to know of h2 and of the manager's h6, and not of h3: {told}"));
    }

    // Row 1 is the partition of both, row 0 the default one, where both are limited members.
    let carries = "ib_write_bw -p 18562 -n 500 --pkey_index=1";
    bench.start_on("h2", &carries.split(' ').collect::<Vec<_>>(), "within.out")?;
    let client = until_said(carries, "^ 65536 ");
    bench.run_on("h1", &client.each_ref().map(String::as_str))?;
    bench.start_on("h3", &["ibv_rc_pingpong", "-p", "18563"], "without.out")?;
    let client = until_said("ibv_rc_pingpong -p 18563", "retry counter exceeded");
    bench.run_on("h1", &client.each_ref().map(String::as_str)).map_err(|error| {
        format!("h1 and h3, which have no partition in common, are to be parted: {error}")
    })?;

    let vernic = vernic.display();
    let interface = |host: usize| {
        let address = format!("--pkey 0x8001 --address 10.0.0.{host}/24");
        format!("{vernic} fabric ipoib xtask h{host} {address}")
    };
    for host in [2, 3] {
        let name = format!("h{host}");
        let alone = format!("exec {}", interface(host));
        bench.start_on(&name, &[&APART[..], &[&alone]].concat(), &format!("{name}.out"))?;
    }
    let until_up = "for n in $(seq 60); do ping -c 1 -W 1 10.0.0.2 && break; done";
    let pings = "ping -c 3 -i 0.2 10.0.0.2 && ! ping -c 2 -W 2 10.0.0.3";
    let script = format!("{} & {until_up}; {pings}", interface(1));
    bench.run_on("h1", &[&APART[..], &[&script]].concat())?;
    let outside = bench.read("h3.out");
    if !outside.contains("is not in partition 0x8001") {
        return Err(format!("h3 does not say that it is outside: {outside}"));
    }
    Ok("ib_write_bw and ping within 0x8001, nothing out of it".to_owned())
}

/// Returns a shell that runs a client until a pattern is in what it says: its server may not listen
/// yet.
fn until_said(client: &str, pattern: &str) -> [String; 3] {
    let script = format!(
        "for n in $(seq 50); do {client} localhost 2>&1 | tee said; \
         if grep -q '{pattern}' said; then exit 0; fi; sleep 0.1; done; exit 1"
    );
    ["sh".to_owned(), "-c".to_owned(), script]
}

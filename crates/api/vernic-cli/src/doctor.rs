//! `vernic doctor`: what is in the way of RDMA on this machine, and to a peer, and what helps.
//!
//! Each check is a sentence, of one of three kinds: fine; worth knowing; a fault, without whose end
//! something does not work. Nothing is changed.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use serde::Serialize;
use vernic::cm::{CmError, Manager};
use vernic::{Device, DeviceInfo, KEYS, Origin, Settings};

use crate::failure::{Doing as _, Failure, Outcome};
use crate::run;
use crate::table::{print, print_json};

/// `vernic doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A peer: name or address of a host with a program on Vernic, `rdma_rxe` or an adapter
    host: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Ok,
    Note,
    Fault,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Finding {
    kind: Kind,
    what: String,
    /// What to do about it.
    advice: Option<String>,
}

fn ok(what: impl Into<String>) -> Finding {
    Finding { kind: Kind::Ok, what: what.into(), advice: None }
}

fn note(what: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { kind: Kind::Note, what: what.into(), advice: Some(advice.into()) }
}

fn fault(what: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { kind: Kind::Fault, what: what.into(), advice: Some(advice.into()) }
}

/// `vernic doctor`.
pub(crate) fn doctor(arguments: &Arguments, settings: &Settings) -> Outcome<()> {
    let mut findings = vec![libraries()];
    findings.extend(chosen(settings));
    findings.extend(devices()?);
    findings.extend(system(settings));
    if let Some(host) = &arguments.host {
        findings.extend(peer(host));
    }
    match arguments.json {
        true => print_json(&findings)?,
        false => print(&text(&findings))?,
    }
    match findings.iter().filter(|finding| finding.kind == Kind::Fault).count() {
        0 => Ok(()),
        1 => Err(Failure::new("a fault, listed above")),
        count => Err(Failure::new(format!("{count} faults, listed above"))),
    }
}

fn text(findings: &[Finding]) -> String {
    let line = |Finding { kind, what, advice }: &Finding| {
        let mark = match kind {
            Kind::Ok => "ok   ",
            Kind::Note => "note ",
            Kind::Fault => "FAULT",
        };
        let advice = advice.as_ref().map_or(String::new(), |advice| format!("\n       {advice}"));
        format!("{mark}  {what}{advice}\n")
    };
    findings.iter().map(line).collect()
}

/// The libraries that `vernic run` shows to programs.
fn libraries() -> Finding {
    match run::find_libraries() {
        Ok(folder) => ok(format!("libraries for programs are in {}", folder.display())),
        Err(failure) => fault(failure.what(), "`vernic run` needs them: docs/install.md"),
    }
}

/// Settings that are not the defaults.
fn chosen(settings: &Settings) -> Vec<Finding> {
    let differs = |name: &&str| !matches!(settings.origin(name), None | Some(Origin::Default));
    let names = KEYS.iter().map(|key| key.name).filter(differs);
    let of = |name| {
        let origin = settings.origin(name).map(ToString::to_string).unwrap_or_default();
        let what = format!("setting {name} comes from {origin}");
        match name {
            "capture" | "trace" => note(what, "it makes every packet go by the wire, and slower"),
            "fault" => note(what, "packets are lost or damaged on purpose"),
            "force_wire" => note(what, "processes of one host do not share memory"),
            _ => ok(what),
        }
    };
    names.map(of).collect()
}

/// The devices: whether each opens, and what its MTU allows.
fn devices() -> Outcome<Vec<Finding>> {
    let devices = Device::list().doing(|| "list the RDMA devices".into())?;
    if devices.is_empty() {
        let why = Device::why_none().doing(|| "look at the netdevs".into())?;
        return Ok(vec![fault("there is no RDMA device", why.to_string())]);
    }
    Ok(devices.iter().flat_map(device).collect())
}

fn device(info: &DeviceInfo) -> Vec<Finding> {
    let (name, netdev) = (&info.name, &info.port.netdev);
    let device = match Device::open(name) {
        Ok(device) => device,
        Err(error) => {
            return vec![fault(format!("{name} ({netdev}) does not open"), error.to_string())];
        }
    };
    let port = device.port();
    // GIDs of RoCEv1 are those of RoCEv2 once more.
    let addresses: BTreeSet<_> =
        device.gid_table().iter().map(|row| row.gid.to_ip().to_string()).collect();
    if !info.port.up {
        let advice = format!("`ip link set {netdev} up`, and its cable or peer must be there");
        return vec![note(format!("{name}: the netdev {netdev} is down"), advice)];
    }
    let mut findings = vec![ok(format!(
        "{name} ({netdev}) opens: path MTU {}, addresses {}",
        port.active_mtu.bytes(),
        addresses.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    ))];
    if addresses.is_empty() {
        let advice = "connections are by IP address: give it one (`ip addr add`)";
        findings.push(fault(format!("{netdev} has no address"), advice));
    }
    if port.active_mtu.bytes() < 4096 {
        let advice = format!(
            "if every hop allows it, `ip link set {netdev} mtu 9000` at both ends makes large messages \
             cheaper: path MTU 4096"
        );
        let mtu = port.netdev_mtu_bytes;
        findings.push(note(format!("{netdev} has an MTU of {mtu} bytes"), advice));
    }
    findings
}

/// Bytes of a socket's buffer from which on losses are rare.
const GOOD_BUFFER: u64 = 4 << 20;

/// Descriptors that many queue pairs and peers need.
const GOOD_DESCRIPTORS: u64 = 1024;

/// What the system gives.
fn system(settings: &Settings) -> Vec<Finding> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut findings = Vec::new();
    for name in ["rmem_max", "wmem_max"] {
        let Some(bytes) = number(&format!("/proc/sys/net/core/{name}")) else { continue };
        if bytes < GOOD_BUFFER {
            findings.push(note(
                format!("net.core.{name} is {bytes} bytes: a burst may find a socket full, and is sent again"),
                format!("as root: `sysctl -w net.core.{name}={GOOD_BUFFER}`; Vernic asks for `socket_buffer_bytes`"),
            ));
        }
    }
    if number("/proc/sys/kernel/yama/ptrace_scope").is_some_and(|scope| scope > 0)
        && settings.config().direct != vernic::DirectAccess::Ptrace
    {
        findings.push(note(
            "Yama keeps processes from each other's memory (kernel.yama.ptrace_scope)",
            "one-sided requests between processes of this host take packets unless memory is shared: \
             `vernic run --share-memory`, or direct=ptrace; docs/direct-access.md",
        ));
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let files = files.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    if let Some(most) = files.filter(|most| *most < GOOD_DESCRIPTORS) {
        let what = format!("a process may have {most} descriptors open");
        findings.push(note(
            what,
            format!("`ulimit -n {GOOD_DESCRIPTORS}`: each device and peer takes some"),
        ));
    }
    if findings.is_empty() {
        findings
            .push(ok("buffers, descriptors and access between processes are as they should be"));
    }
    findings
}

/// How long a peer may take to say something.
const PATIENCE: Duration = Duration::from_secs(6);

/// A port that hardly any program listens on; what counts is that somebody says so.
const PORT: u16 = 9;

/// Whether a peer can be reached, and speaks RoCE.
fn peer(host: &str) -> Vec<Finding> {
    let address = match (host, PORT).to_socket_addrs().map(|mut all| all.next()) {
        Ok(Some(address)) => address,
        Ok(None) => return vec![fault(format!("{host} has no address"), "is the name right?")],
        Err(error) => {
            let advice = "is the name right? An address works without a resolver";
            return vec![fault(format!("{host}: {error}"), advice)];
        }
    };
    let manager = match Manager::open() {
        Ok(manager) => manager,
        Err(error) => return vec![fault("connections cannot be managed", error.to_string())],
    };
    let answer = manager.find(address, &[], PATIENCE).map(drop);
    vec![of_answer(host, address, answer)]
}

/// What an answer to a question for a service that hardly anybody has says of the way there.
fn of_answer(host: &str, address: SocketAddr, answer: Result<(), CmError>) -> Finding {
    let ip = address.ip();
    match answer {
        Ok(()) | Err(CmError::NotServed { .. } | CmError::Rejected { .. }) => {
            ok(format!("{host} ({ip}) answers: RoCEv2 passes in both directions"))
        }
        Err(CmError::Timeout { .. } | CmError::Unreachable { .. }) => fault(
            format!("{host} ({ip}) does not answer"),
            "is a program that uses RDMA running there (the port is open only then)? Does a firewall on \
             the way or at either end drop UDP port 4791? Is there NAT between? `ping` says whether the \
             host is there at all",
        ),
        Err(CmError::Refused(error)) => {
            fault(format!("{host} ({ip}): {error}"), way_to(ip, &error))
        }
        Err(error) => fault(format!("{host} ({ip}): {error}"), "see docs/programs.md"),
    }
}

/// What to do where this machine has no way to a peer.
fn way_to(ip: IpAddr, error: &vernic::cm::Error) -> String {
    match error {
        vernic::cm::Error::NoRoute { .. } => format!(
            "`ip route get {ip}` says the same. Is the interface towards it up, with an address of \
             its network (`ip addr`)? If a router leads there: `ip route add {ip} via ROUTER`"
        ),
        vernic::cm::Error::Device(_) => format!(
            "`ip route get {ip}` names the interface and the address that lead there: that interface \
             has to be a device of `vernic devices`"
        ),
        _ => "see docs/programs.md".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_a_line_each_with_what_to_do_below() {
        let findings = [ok("fine"), note("slow", "faster so"), fault("broken", "mend it")];
        let expected =
            "ok     fine\nnote   slow\n       faster so\nFAULT  broken\n       mend it\n";
        assert_eq!(text(&findings), expected);
    }

    #[test]
    fn whoever_answers_at_all_can_be_reached() {
        let peer = "192.0.2.1:9".parse().unwrap();
        let of = |answer| of_answer("h", peer, answer);
        let not_served = CmError::NotServed { peer, status: 1, private_data: Vec::new() };
        assert_eq!(of(Err(not_served)).kind, Kind::Ok);
        let silent = of(Err(CmError::Timeout { peer, timeout: PATIENCE }));
        assert_eq!(silent.kind, Kind::Fault);
        assert!(silent.advice.unwrap().contains("firewall"));
    }

    #[test]
    fn where_there_is_no_route_it_says_what_to_do() {
        let peer = "192.0.2.1:9".parse().unwrap();
        let source = std::io::Error::from_raw_os_error(libc::ENETUNREACH);
        let error = vernic::cm::Error::NoRoute { src: None, dst: peer, source };
        let found = of_answer("h", peer, Err(error.into()));
        assert_eq!(found.kind, Kind::Fault);
        let advice = found.advice.unwrap();
        assert!(
            advice.contains("ip route get 192.0.2.1") && advice.contains("ip addr"),
            "{advice}"
        );
    }
}

//! Running one case: its processes with a time limit, their output in files.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::cases::{Case, Cast, Output, Ready, TCP, Troupe};
use super::fabric::{self, Taken};
use super::judge::{ended_by_loss, judge};
use super::network::{Network, Place};
use crate::{Result, root};

/// The TCP port on which pairs of verbs programs meet.
pub(crate) const PORT: u16 = 18_515;

/// How often a process is looked at.
const TICK: Duration = Duration::from_millis(2);

/// Where the output goes, relative to the root.
pub(super) const FOLDER: &str = "target/conformance";

/// How a case ended.
pub(super) struct Ended {
    /// What was wrong, if anything.
    pub(super) outcome: Result,
    /// Both outputs, to be shown for a failure.
    pub(super) output: String,
    /// Time from the first start to the last end.
    pub(super) time: Duration,
}

/// Runs a case. `number` names its files.
pub(super) fn run(case: &Case, number: usize, network: &Network, vernic: &Path) -> Ended {
    let start = Instant::now();
    let deadline = start + Duration::from_secs(case.limit_s);
    let stage = Stage { case, number, network, vernic, deadline };
    let mut sides = Vec::new();
    let outcome = stage.play(&mut sides);
    // Ends what is still there.
    let texts: Vec<(usize, String)> = sides.into_iter().map(Side::end).collect();
    let of = |side: usize| -> Vec<&str> {
        let own = texts.iter().filter(|(whose, _)| *whose == side);
        own.map(|(_, text)| text.as_str()).collect()
    };
    let [servers, clients] = [SERVER, CLIENT].map(of);
    let count = servers.len().max(clients.len());
    // As often as the larger crowd needs, so that everybody has a turn.
    let mut pairs = (0..count).map(|n| {
        let one = |texts: &[&str]| texts.get(n % texts.len().max(1)).map_or("", |t| *t).to_owned();
        (one(&servers), one(&clients))
    });
    let lost = |(server, client): (String, String)| ended_by_loss(&case.output, &server, &client);
    let outcome = match case.place == Place::Loss && pairs.clone().any(lost) {
        true => Ok(()),
        false => outcome.and_then(|()| {
            pairs.try_for_each(|(server, client)| judge(&case.output, &server, &client))
        }),
    };
    let output: String =
        texts.iter().map(|(side, t)| format!("--- {}\n{t}", NAMES[*side])).collect();
    Ended { outcome, output, time: start.elapsed() }
}

/// Which side a process is on.
const SERVER: usize = 0;
const CLIENT: usize = 1;
const NAMES: [&str; 2] = ["server", "client"];

/// A case and where it runs.
struct Stage<'a> {
    case: &'a Case,
    number: usize,
    network: &'a Network,
    vernic: &'a Path,
    deadline: Instant,
}

impl Stage<'_> {
    /// Starts every process, and waits until those that end have ended.
    fn play(&self, sides: &mut Vec<Side>) -> Result {
        let (servers, clients, ready, endless) = match self.case.cast {
            Cast::Alone => (0, 1, Ready::Tcp(PORT), false),
            Cast::Pair { .. } => (1, 1, Ready::Tcp(PORT), false),
            Cast::Troupe(Troupe { servers, clients, ready, endless, .. }) => {
                (servers, clients, ready, endless)
            }
        };
        // Programs of a fabric are known to its process, and not to the kernel.
        let is_of_fabric = self.case.place == Place::InfiniBand;
        let fabric = self.network.fabric().filter(|_| is_of_fabric);
        for n in 0..servers {
            let mut side = self.start(SERVER, n)?;
            let waited =
                side.wait_until(self.deadline, ready, |process| match fabric.zip(taken(ready)) {
                    Some((fabric, taken)) => fabric.takers(&taken) > n,
                    None => is_ready(process, ready, n + 1),
                });
            sides.push(side);
            waited?;
        }
        for n in 0..clients {
            sides.push(self.start(CLIENT, n)?);
        }
        // The side that fails first tells more than the one that waits for it, in vain.
        loop {
            let mut running = 0;
            for side in &mut *sides {
                let name = NAMES[side.side];
                match side.exited()? {
                    Some(status) if !status.success() => {
                        return Err(format!("the {name} failed: {status}"));
                    }
                    Some(_) => {}
                    None if Instant::now() > self.deadline => {
                        return Err(format!("the {name} ran past its time limit"));
                    }
                    None => running += usize::from(!(endless && side.side == SERVER)),
                }
            }
            if running == 0 {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Starts process `n` of a side.
    fn start(&self, side: usize, n: usize) -> Result<Side> {
        let case = self.case;
        let file = format!("{:04}.{}{n}.txt", self.number, NAMES[side]);
        let file = root().join(FOLDER).join(file);
        let (output, errors) = open(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        // Each program becomes the next one: the child's process id is the verbs program's.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.network.namespace(case.place, side)]);
        command.arg(self.vernic).arg("run").args(case.place.around(side));
        let program = match case.cast {
            Cast::Troupe(troupe) if side == CLIENT => troupe.client_program.unwrap_or(case.program),
            _ => case.program,
        };
        command.args(case.around.split_whitespace()).arg("--").arg(program);
        command.args(arguments(case, side, self.network));
        command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir(root());
        command.env("VERNIC_CONFIG", "/dev/null");
        command.envs(self.network.fabric_folder().map(|folder| (fabric::FOLDER_VARIABLE, folder)));
        command.process_group(0);
        command.envs(case.variables.split_whitespace().filter_map(|one| one.split_once('=')));
        let child = command.spawn().map_err(|e| format!("cannot start ip: {e}"))?;
        Ok(Side { side, child, file })
    }
}

/// One process.
struct Side {
    side: usize,
    child: Child,
    file: PathBuf,
}

impl Side {
    /// Waits until the process is there for others; `count` of its kind are there then.
    fn wait_until(
        &mut self,
        deadline: Instant,
        ready: Ready,
        is_ready: impl Fn(u32) -> bool,
    ) -> Result {
        while !is_ready(self.child.id()) {
            let name = NAMES[self.side];
            if let Some(status) = self.exited()? {
                return Err(format!("the {name} ended before it was there: {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("the {name} was never there: {ready:?}"));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|e| format!("wait: {e}"))
    }

    /// Ends the process if it runs, and returns all that it printed.
    fn end(mut self) -> (usize, String) {
        // With its children: fio's would hold its port. Errors mean that all have ended by
        // themselves.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
        let bytes = fs::read(&self.file).unwrap_or_default();
        (self.side, String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// One file for both streams.
fn open(file: &Path) -> std::io::Result<(File, File)> {
    let output = File::create(file)?;
    let errors = output.try_clone()?;
    Ok((output, errors))
}

/// The program's arguments: its options, and what the place asks for.
fn arguments(case: &Case, side: usize, network: &Network) -> Vec<String> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    match case.cast {
        Cast::Alone => words(&case.options),
        Cast::Pair { gid_option } => {
            let gid = network.gid(case.place, side);
            let mut arguments = words(&case.options);
            if matches!(case.output, Output::Table { .. }) {
                // No warning about the processor's frequency.
                arguments.push("-F".to_owned());
            }
            arguments
                .extend(gid.into_iter().flat_map(|gid| [gid_option.to_owned(), gid.to_string()]));
            if side == CLIENT {
                arguments.push(case.place.server().to_owned());
            }
            arguments
        }
        Cast::Troupe(troupe) => {
            let own = [troupe.server, troupe.client][side];
            let options = if troupe.clients_only && side == SERVER { "" } else { &case.options };
            let text = format!("{own} {options}");
            let text = text.replace("SERVER", case.place.address(SERVER));
            words(&text.replace("OWN", case.place.address(side)))
        }
    }
}

/// What programs of a fabric that are there take; `None` if the kernel knows it.
fn taken(ready: Ready) -> Option<Taken> {
    match ready {
        Ready::Service(TCP, port) => Some(Taken::Service(format!("tcp:{port}"))),
        Ready::Service(_, port) => Some(Taken::Service(format!("udp:{port}"))),
        Ready::Group(IpAddr::V4(group)) => Some(Taken::Group(group)),
        Ready::Group(IpAddr::V6(_)) | Ready::Tcp(_) | Ready::Udp(_) => None,
    }
}

/// Whether a process has entered its network namespace, and `count` of its kind are there for
/// others.
pub(crate) fn is_ready(process: u32, ready: Ready, count: usize) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    if namespace(&process.to_string()) == namespace("self") {
        return false;
    }
    let table =
        |name: &str| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    match ready {
        Ready::Tcp(port) => ["tcp", "tcp6"].iter().any(|name| has_socket(&table(name), port, "0A")),
        Ready::Udp(port) => ["udp", "udp6"].iter().any(|name| has_socket(&table(name), port, "07")),
        Ready::Service(space, port) => is_open(&table("unix"), space, port),
        Ready::Group(IpAddr::V4(group)) => members(&table("igmp"), group) >= count,
        Ready::Group(IpAddr::V6(group)) => members6(&table("igmp6"), group) >= count,
    }
}

/// Whether the kernel's table of TCP or UDP sockets has one of a port, in this state: 0A is a TCP
/// socket that listens, 07 a UDP socket that is not connected.
fn has_socket(tcp: &str, port: u16, state: &str) -> bool {
    let port = format!(":{port:04X}");
    tcp.lines().any(|line| {
        let mut words = line.split_whitespace();
        // number, local address, remote address, state
        words.nth(1).is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(state)
    })
}

/// Whether the kernel's table of Unix sockets has that of an open service.
pub(crate) fn is_open(unix: &str, space: u16, port: u16) -> bool {
    let service = format!("@vernic/service/{:x}/", u32::from(space) << 16 | u32::from(port));
    unix.lines().any(|line| line.contains(&service) && line.ends_with("/packets"))
}

/// Sockets in a group, by the kernel's table of IPv4 groups. It prints the address as a number of
/// the processor's: 010203EF is 239.3.2.1.
fn members(igmp: &str, group: Ipv4Addr) -> usize {
    let group = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let mut words = igmp.lines().map(str::split_whitespace);
    let found = words.find_map(|mut words| {
        (words.next() == Some(&group)).then(|| words.next()?.parse().ok()).flatten()
    });
    found.unwrap_or(0)
}

/// The same for IPv6: number and name of the netdev, address, sockets.
fn members6(igmp6: &str, group: Ipv6Addr) -> usize {
    let group: String = group.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut words = igmp6.lines().map(str::split_whitespace);
    let found = words.find_map(|mut words| {
        (words.nth(2) == Some(&group)).then(|| words.next()?.parse().ok()).flatten()
    });
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_tell_who_is_there() {
        let tcp = "  sl  local_address rem_address   st\n   0: 00000000:4853 00000000:0000 0A 0\n";
        assert!(has_socket(tcp, 0x4853, "0A") && !has_socket(tcp, 0x4854, "0A"));
        assert!(!has_socket(&tcp.replace("0A", "01"), 0x4853, "0A"));
        let unix = "0: 2 0 0 2 1 9 @vernic/service/1061d2f/127.0.0.1/packets\n";
        assert!(is_open(unix, 0x106, 7471) && !is_open(unix, 0x111, 7471));
        // Claimed, and not open.
        assert!(!is_open(&unix.replace("/packets", ""), 0x106, 7471));
        let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t030201EF     2 0:00000000\t\t0\n";
        assert_eq!(members(igmp, Ipv4Addr::new(239, 1, 2, 3)), 2);
        assert_eq!(members(igmp, Ipv4Addr::new(239, 1, 2, 4)), 0);
        let igmp6 = "1    lo              ff0e0000000000000000000000001234     3 0000000C 0\n";
        assert_eq!(members6(igmp6, "ff0e::1234".parse().unwrap()), 3);
    }
}

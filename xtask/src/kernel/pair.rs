//! Running one case: a process here, a process in the guest, a time limit, and what they print.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::cases::{Case, Expected, Program};
use super::guest::{Guest, Process};
use super::judge::judge;
use super::lab::Lab;
use super::peer::FOLDER;
use super::scenarios::PROBE;
use crate::conformance::{PORT, listens};
use crate::{Result, root};

/// How often a process is looked at. The guest has one processor, which has other things to do.
const TICK: Duration = Duration::from_millis(25);

/// A side that is to be killed runs for so long first.
const BEFORE_DEATH: Duration = Duration::from_millis(500);

/// Packets with a wrong ICRC that the guest sends in a case of such.
pub(super) const FORGED: u32 = 5;

/// How a case ended.
pub(super) struct Ended {
    /// What was wrong, if anything.
    pub(super) outcome: Result,
    /// Both outputs, to be shown for a failure.
    pub(super) output: String,
    /// Time from the first start to the last end.
    pub(super) time: Duration,
}

/// Runs a case. `number` names its file.
pub(super) fn run(case: &Case, number: usize, lab: &mut Lab) -> Result<Ended> {
    let start = Instant::now();
    let deadline = start + Duration::from_secs(case.limit_s);
    netem(case, lab, "add")?;
    let mut sides = Vec::new();
    let outcome = run_sides(case, number, lab, deadline, &mut sides);
    let mut texts = Vec::new();
    for side in sides {
        texts.push(side.end(&mut lab.peer.guest)?);
    }
    netem(case, lab, "del")?;
    texts.resize(2, String::new());
    let [server, client] = [&texts[0], &texts[1]];
    let outcome = judge(case, outcome, server, client);
    let output = format!("--- server\n{server}\n--- client\n{client}\n");
    Ok(Ended { outcome, output, time: start.elapsed() })
}

/// Makes the guest's network card a bad one, or good again.
fn netem(case: &Case, lab: &mut Lab, what: &str) -> Result {
    let (netem, netdev) = (case.fault.netem(), lab.netdev_of_guest(case.place.link));
    if netem.is_empty() {
        return Ok(());
    }
    let options = if what == "add" { netem } else { "" };
    lab.peer
        .guest
        .ask(&format!("/usr/bin/tc qdisc {what} dev {netdev} root netem {options}"))
        .map(drop)
}

fn run_sides(
    case: &Case,
    number: usize,
    lab: &mut Lab,
    deadline: Instant,
    sides: &mut Vec<Side>,
) -> Result {
    sides.push(Side::start(case, number, 0, lab)?);
    listen(&mut sides[0], lab, deadline)?;
    if let Expected::Forged(_) = case.expected {
        forge(case, lab)?;
    }
    sides.push(Side::start(case, number, 1, lab)?);
    let mut victim = None;
    if let Expected::Killed { side, .. } = case.expected {
        std::thread::sleep(BEFORE_DEATH);
        sides[side].kill(&mut lab.peer.guest)?;
        victim = Some(side);
    }
    // The side that fails first tells more than the one that waits for it, in vain.
    loop {
        let mut running = 0;
        for (index, side) in sides.iter_mut().enumerate() {
            let name = ["server", "client"][index];
            match side.exited(&mut lab.peer.guest)? {
                Some(status) if status != 0 && victim != Some(index) => {
                    return Err(format!("the {name} failed: exit status {status}"));
                }
                Some(_) => {}
                None if Instant::now() > deadline => {
                    return Err(format!("the {name} ran past its time limit"));
                }
                None => running += 1,
            }
        }
        if running == 0 {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
}

/// Sends Vernic packets with a wrong ICRC, from the guest.
fn forge(case: &Case, lab: &mut Lab) -> Result {
    let link = case.place.link;
    let address = if case.place.is_ipv6 { link.host6 } else { link.host4 };
    lab.peer.guest.ask(&format!("{PROBE} -n {FORGED} forge {address}")).map(drop)
}

/// Waits until the server listens.
fn listen(server: &mut Side, lab: &mut Lab, deadline: Instant) -> Result {
    while !server.listens(&mut lab.peer.guest)? {
        if let Some(status) = server.exited(&mut lab.peer.guest)? {
            return Err(format!("the server ended before it listened: exit status {status}"));
        }
        if Instant::now() > deadline {
            return Err(format!("the server never listened on TCP port {PORT}"));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// One process.
enum Side {
    Host { child: Child, file: PathBuf },
    Guest(Process),
}

impl Side {
    /// Server is 0, client 1.
    fn start(case: &Case, number: usize, side: usize, lab: &mut Lab) -> Result<Self> {
        let in_guest = (side == 0) == case.place.to_kernel;
        let arguments = arguments(case, side, in_guest, lab);
        if in_guest {
            let line = format!("{} {}", case.program, arguments.join(" "));
            return lab.peer.guest.start(&line).map(Self::Guest);
        }
        let file = root().join(FOLDER).join(format!("{number:04}.txt"));
        let why = |e| format!("{}: {e}", file.display());
        let output = File::create(&file).map_err(why)?;
        let errors = output.try_clone().map_err(why)?;
        // Each program becomes the next one: the child's process id is the verbs program's.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.peer.namespace]);
        command.arg(&lab.vernic).args(["run", "-d", case.place.link.netdev]);
        command.args(case.fault.around().split_whitespace()).arg("--");
        match case.kind {
            Program::Probe => command.arg(&lab.probe),
            _ => command.arg(case.program),
        };
        command.args(arguments).current_dir(root()).env("VERNIC_CONFIG", "/dev/null");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        if let Expected::Forged(_) = case.expected {
            // The counters, when the device is closed.
            command.env("VERNIC_LOG", "debug");
        }
        let child = command.spawn().map_err(|e| format!("cannot start ip: {e}"))?;
        Ok(Self::Host { child, file })
    }

    fn listens(&self, guest: &mut Guest) -> Result<bool> {
        match self {
            Self::Host { child, .. } => Ok(listens(child.id(), PORT)),
            Self::Guest(_) => guest.listens(PORT),
        }
    }

    fn exited(&mut self, guest: &mut Guest) -> Result<Option<i32>> {
        match self {
            Self::Host { child, .. } => {
                let status = child.try_wait().map_err(|e| format!("wait: {e}"))?;
                Ok(status.map(|status| status.code().unwrap_or(-1)))
            }
            Self::Guest(process) => guest.exited(*process),
        }
    }

    /// As `kill -9` does.
    fn kill(&mut self, guest: &mut Guest) -> Result {
        match self {
            Self::Host { child, .. } => child.kill().map_err(|e| format!("kill: {e}")),
            Self::Guest(process) => guest.kill(*process, 9),
        }
    }

    /// Ends the process if it runs, and returns all that it printed.
    fn end(mut self, guest: &mut Guest) -> Result<String> {
        match &mut self {
            Self::Host { child, file } => {
                // Errors mean that it has ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                let bytes = fs::read(file).unwrap_or_default();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::Guest(process) => guest.end(*process),
        }
    }
}

/// The program's arguments: its options, what the place asks for, and for a client its server.
fn arguments(case: &Case, side: usize, in_guest: bool, lab: &Lab) -> Vec<String> {
    let Case { place, kind, .. } = case;
    let mut words: Vec<String> = Vec::new();
    if in_guest {
        words.extend(["-d".into(), place.link.device.into()]);
    }
    let gid = lab.gid(*place, in_guest).to_string();
    let mtu = || ["-m".to_owned(), place.link.path_mtu.to_string()];
    match kind {
        // No warning about the processor's frequency.
        Program::Perftest => words.extend(["-F".into(), "-x".into(), gid]),
        Program::PingPong => {
            words.extend(["-g".into(), gid]);
            // This one takes the port's.
            if case.program != "ibv_ud_pingpong" {
                words.extend(mtu());
            }
        }
        Program::Probe => {
            words.extend(["-g".into(), gid]);
            words.extend(mtu());
        }
    }
    words.extend(case.options.split_whitespace().map(str::to_owned));
    if side == 1 {
        let server = if place.to_kernel { place.link.peer4 } else { place.link.host4 };
        words.push(server.to_owned());
    }
    words
}

//! Running one case: a process here, a process in the guest, a time limit, and what they print.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::case::Parameter;
use super::case::Roles;
use super::case::{Case, Expected, Program};
use super::guest::{Guest, Process};
use super::judge::{FORGED, judge};
use super::lab::Lab;
use super::manager::{COPIED, COPY};
use super::peer::FOLDER;
use super::scenarios::{CM_PORT, PROBE, RUNNING};
use crate::conformance::{PORT, Ready, is_ready};
use crate::shell;
use crate::{Result, root};

/// How often a process is looked at. The guest has one processor, which has other things to do.
const TICK: Duration = Duration::from_millis(25);

/// A side that is to be killed runs for so long first.
const BEFORE_DEATH: Duration = Duration::from_millis(500);

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
    disturb(case, lab, 0)?;
    agree(case, lab, true)?;
    let mut sides = Vec::new();
    let mut outcome = run_sides(case, number, lab, deadline, &mut sides);
    if let (Ok(()), Expected::Copied) = (&outcome, &case.expected) {
        outcome = has_copy(case, lab);
    }
    let mut texts = Vec::new();
    for side in sides {
        texts.push(side.end(&mut lab.peer.guest)?);
    }
    agree(case, lab, false)?;
    disturb(case, lab, 1)?;
    texts.resize(2, String::new());
    let [server, client] = [&texts[0], &texts[1]];
    let outcome = judge(case, outcome, server, client);
    let output = format!("--- server\n{server}\n--- client\n{client}\n");
    Ok(Ended { outcome, output, time: start.elapsed() })
}

/// Tells the guest's driver what it is to ask peers for, or what it asks for by itself.
fn agree(case: &Case, lab: &mut Lab, wanted: bool) -> Result {
    let Some(Parameter { name, value, default }) = case.agreed.parameter() else { return Ok(()) };
    let value = if wanted { value } else { default };
    let file = format!("/sys/module/siw/parameters/{name}");
    lab.peer.guest.ask(&format!("echo {value} >{file}")).map(drop)
}

/// Makes the guest's network card a bad one (0), or good again (1).
fn disturb(case: &Case, lab: &mut Lab, step: usize) -> Result {
    let netdev = lab.netdev_of_guest(case.place.link);
    let Some(commands) = case.fault.at_guest(&netdev) else { return Ok(()) };
    lab.peer.guest.ask(&format!("/usr/bin/tc {}", commands[step])).map(drop)
}

fn run_sides(
    case: &Case,
    number: usize,
    lab: &mut Lab,
    deadline: Instant,
    sides: &mut Vec<Side>,
) -> Result {
    let (ready, is_endless) = match case.kind {
        Program::Manager(roles) => (roles.ready, roles.is_endless),
        _ => (Ready::Tcp(PORT), false),
    };
    let ready = match ready {
        // Ports of iWARP are TCP's.
        Ready::Service(_, port) if case.place.is_iwarp() && !case.place.to_kernel => {
            Ready::Tcp(port)
        }
        ready => ready,
    };
    sides.push(Side::start(case, number, 0, lab)?);
    listen(&mut sides[0], ready, lab, deadline)?;
    if let Expected::Forged(_) = case.expected {
        forge(case, lab)?;
    }
    sides.push(Side::start(case, number, 1, lab)?);
    let mut victim = None;
    if let Expected::Killed { .. } | Expected::Reset(_) = case.expected {
        match case.kind {
            Program::Manager(_) => connected(lab, deadline)?,
            _ => sides.iter().try_for_each(|side| running(side, &mut lab.peer.guest, deadline))?,
        }
        std::thread::sleep(BEFORE_DEATH);
    }
    match case.expected {
        Expected::Killed { side, .. } => {
            sides[side].kill(&mut lab.peer.guest)?;
            victim = Some(side);
        }
        Expected::Reset(_) => reset(lab)?,
        _ => {}
    }
    // The side that fails first tells more than the one that waits for it, in vain.
    loop {
        let mut running = 0;
        for (index, side) in sides.iter_mut().enumerate() {
            let name = ["server", "client"][index];
            let must_fail = index == 1 && matches!(case.expected, Expected::Refused(_));
            match side.exited(&mut lab.peer.guest)? {
                Some(status) if (status != 0) != must_fail && victim != Some(index) => {
                    return Err(format!("the {name} ended with exit status {status}"));
                }
                Some(_) => {}
                None if index == 0 && is_endless => {}
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

/// Waits until the server is there.
fn listen(server: &mut Side, ready: Ready, lab: &mut Lab, deadline: Instant) -> Result {
    while !server.is_ready(ready, &mut lab.peer.guest)? {
        if let Some(status) = server.exited(&mut lab.peer.guest)? {
            return Err(format!("the server ended before it was there: exit status {status}"));
        }
        if Instant::now() > deadline {
            return Err(format!("the server was never there: {ready:?}"));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Waits until a side of our judge says that it runs.
fn running(side: &Side, guest: &mut Guest, deadline: Instant) -> Result {
    while !side.is_running(guest)? {
        if Instant::now() > deadline {
            return Err("one side never ran".into());
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Resets the connection of iWARP between both sides: this machine's TCP aborts it, and says so to
/// the guest's.
fn reset(lab: &Lab) -> Result {
    let line = format!("ip netns exec {} ss -HKtn", lab.peer.namespace);
    let port = format!("( sport = :{CM_PORT} or dport = :{CM_PORT} )");
    let killed = shell::run(&line).args(&["state", "established", &port]).output()?;
    match killed.trim() {
        "" => {
            Err(format!("`{line}` resets nothing: is the kernel without CONFIG_INET_DIAG_DESTROY?"))
        }
        _ => Ok(()),
    }
}

/// Waits until the guest has a connection.
fn connected(lab: &mut Lab, deadline: Instant) -> Result {
    while !lab.peer.guest.is_connecting()? {
        if Instant::now() > deadline {
            return Err("the guest never connected".into());
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Where the server's side has the copy of [`COPIED`].
fn copy(case: &Case) -> PathBuf {
    if case.place.to_kernel {
        PathBuf::from("/tmp").join(COPY)
    } else {
        root().join(FOLDER).join(format!("{}-{COPY}", case.place.link.mtu))
    }
}

/// Compares what the server has with what the client sent, and removes it.
fn has_copy(case: &Case, lab: &mut Lab) -> Result {
    let copy = copy(case);
    if case.place.to_kernel {
        let copy = copy.display();
        return lab.peer.guest.ask(&format!("cmp {COPIED} {copy} && rm {copy}")).map(drop);
    }
    let read = |path: &Path| fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let (sent, received) = (read(Path::new(COPIED))?, read(&copy)?);
    fs::remove_file(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    if sent == received { Ok(()) } else { Err("the copy is not what was sent".into()) }
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
        let program = match case.kind {
            Program::Manager(roles) if side == 1 => roles.client_program.unwrap_or(case.program),
            _ => case.program,
        };
        if in_guest {
            let line = format!("{program} {}", arguments.join(" "));
            return lab.peer.guest.start(&line).map(Self::Guest);
        }
        // Runs over different links may go on at the same time.
        let file = format!("{}-{number:04}.txt", case.place.link.mtu);
        let file = root().join(FOLDER).join(file);
        let why = |e| format!("{}: {e}", file.display());
        let output = File::create(&file).map_err(why)?;
        let errors = output.try_clone().map_err(why)?;
        // Each program becomes the next one: the child's process id is the verbs program's.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.peer.namespace]);
        command.arg(&lab.vernic).args(["run", "-d", case.place.link.netdev]);
        if case.place.is_iwarp() {
            command.arg("--iwarp");
        }
        command.args(case.agreed.around().split_whitespace());
        command.args(case.fault.around().split_whitespace()).arg("--");
        match case.kind {
            Program::Probe => command.arg(&lab.probe),
            _ => command.arg(program),
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

    fn is_ready(&self, ready: Ready, guest: &mut Guest) -> Result<bool> {
        match self {
            Self::Host { child, .. } => Ok(is_ready(child.id(), ready, 1)),
            Self::Guest(process) => guest.is_ready(*process, ready),
        }
    }

    /// Whether it has said so, as our judge does.
    fn is_running(&self, guest: &mut Guest) -> Result<bool> {
        match self {
            Self::Host { file, .. } => {
                let text = fs::read_to_string(file).unwrap_or_default();
                Ok(text.lines().any(|line| line == RUNNING))
            }
            Self::Guest(process) => guest.has_said(*process, RUNNING),
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
    let place = case.place;
    let gid = lab.gid(place, in_guest).to_string();
    let mut words: Vec<String> = match case.kind {
        Program::Manager(roles) => return by_address(case, roles, side, in_guest),
        Program::Probe if place.is_iwarp() => {
            vec!["-a".into(), place.address(place.to_kernel).into()]
        }
        // No warning about the processor's frequency.
        Program::Perftest => vec!["-F".into(), "-x".into(), gid],
        Program::PingPong | Program::Probe => vec!["-g".into(), gid],
    };
    // This one takes the port's.
    if case.kind != Program::Perftest && !place.is_iwarp() && case.program != "ibv_ud_pingpong" {
        words.extend(["-m".into(), place.link.path_mtu.to_string()]);
    }
    if in_guest && !place.is_iwarp() {
        words.extend(["-d".into(), place.link.device.into()]);
    }
    words.extend(case.options.split_whitespace().map(str::to_owned));
    if side == 1 {
        let server = if place.to_kernel { place.link.peer4 } else { place.link.host4 };
        words.push(server.to_owned());
    }
    words
}

/// The arguments of a program that finds its device by an address.
fn by_address(case: &Case, roles: Roles, side: usize, in_guest: bool) -> Vec<String> {
    // The guest is the server (0) of one direction, the client (1) of the other.
    let address = |side: usize| case.place.address((side == 0) == case.place.to_kernel);
    let text = format!("{} {}", [roles.server, roles.client][side], case.options);
    let text = text.replace("SERVER", address(0)).replace("OWN", address(side));
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if in_guest && case.program.starts_with("ib_") && case.place.is_iwarp() {
        // perftest sends what iWARP needs if the device that it looks at is one, else the first.
        words.extend(["-d".into(), case.place.link.device.into()]);
    }
    if let (Expected::Copied, 1) = (&case.expected, side) {
        words.extend([COPIED.into(), format!("{}:{}", address(0), copy(case).display())]);
    }
    words
}

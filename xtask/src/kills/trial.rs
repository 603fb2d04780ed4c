//! One kill: a server and a client in a namespace of their own, one of them killed, the other
//! watched.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::FOLDER;
use super::programs::{Program, Way};
use crate::conformance::{PREFIX, gid_index, is_ready};
use crate::shell::run as shell;
use crate::{Result, root};

/// A survivor that was connected has ended, or been told, this long after the kill.
pub(super) const BOUND: Duration = Duration::from_secs(10);

/// How long a server may take to be there.
const START: Duration = Duration::from_secs(20);

/// How often a process is looked at.
const TICK: Duration = Duration::from_millis(5);

/// Lines of the log that say that the process had a connection.
const CONNECTED: &[&str] = &["peer is on this host", " Established "];

/// Lines of the log that say that its queue pairs, and so the process, learned of its end. What the
/// program makes of that is its own: rstream asks again and again after the end of a stream.
const TOLD: &[&str] = &[
    "queue pair failed",
    "its peers' queue pairs fail",
    " Disconnected ",
    "iWARP connection over",
];

/// The line of the log that says that the connection manager ended the connection. It counts for
/// programs that hear of that, and may be the first to hear.
const ENDED_BY_MANAGER: &str = "connections with it end";

/// What is killed, how and when.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) number: u64,
    pub(super) program: &'static Program,
    pub(super) way: Way,
    pub(super) victim: Side,
    /// From the client's start to the kill.
    pub(super) delay: Duration,
}

/// A side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

/// How a trial ended.
pub(super) struct Ended {
    pub(super) verdict: Verdict,
    /// The survivor's output.
    pub(super) file: PathBuf,
}

/// What became of the survivor.
pub(super) enum Verdict {
    /// It ended, so long after the kill.
    Ended(Duration),
    /// It goes on, and its log says that it was told.
    Told,
    /// It goes on, and was never connected: a server that waits for a client.
    NotConnected,
    /// It goes on, and knows of nothing.
    Hung,
    /// It was ended by this signal.
    Crashed(i32),
    /// The pair had ended by itself before the kill, so the trial says nothing.
    Early(String),
}

impl Verdict {
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Hung | Self::Crashed(_) | Self::Early(_))
    }

    pub(super) fn time(&self) -> Option<Duration> {
        match self {
            Self::Ended(time) => Some(*time),
            _ => None,
        }
    }

    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Ended(time) => format!("ended after {:.1} s", time.as_secs_f64()),
            Self::Told => "goes on, and was told".into(),
            Self::NotConnected => "goes on, and was not connected".into(),
            Self::Hung => {
                format!("was connected, and knows of nothing after {} s", BOUND.as_secs())
            }
            Self::Crashed(signal) => format!("was ended by signal {signal}"),
            Self::Early(how) => format!("had {how} before anything was killed"),
        }
    }
}

/// Runs a trial.
pub(super) fn run(plan: &Plan, vernic: &Path) -> Result<Ended> {
    let namespace = Namespace::new(plan.number)?;
    let gid = gid_index(&namespace.0, &vernic.to_string_lossy(), "127.0.0.1")?;
    let mut server = start(plan, Side::Server, &namespace, gid, vernic)?;
    wait_until_there(&mut server, plan)?;
    let mut client = start(plan, Side::Client, &namespace, gid, vernic)?;
    std::thread::sleep(plan.delay);
    let (victim, survivor) = match plan.victim {
        Side::Server => (&mut server, &mut client),
        Side::Client => (&mut client, &mut server),
    };
    let file = survivor.file.clone();
    // A client that was refused at its very start is no failure of the survivor's.
    if let Some(status) = survivor.exited()? {
        return Ok(Ended { verdict: Verdict::Early(format!("ended ({status})")), file });
    }
    victim.kill();
    let verdict = watch(survivor, plan.program.hears_manager)?;
    drop((server, client));
    if !verdict.is_failure() {
        // A program that prints an error for ever would fill the disk.
        for side in [Side::Server, Side::Client] {
            let _ = fs::remove_file(output_of(plan, side));
        }
    }
    Ok(Ended { verdict, file })
}

/// Waits for the survivor's end, and judges.
fn watch(survivor: &mut Process, hears_manager: bool) -> Result<Verdict> {
    let killed = Instant::now();
    while killed.elapsed() < BOUND {
        if let Some(status) = survivor.exited()? {
            return Ok(match status.signal() {
                Some(signal) => Verdict::Crashed(signal),
                None => Verdict::Ended(killed.elapsed()),
            });
        }
        std::thread::sleep(TICK);
    }
    let log = fs::read(&survivor.file).unwrap_or_default();
    Ok(judge(&String::from_utf8_lossy(&log), hears_manager))
}

/// What the log of a survivor that goes on says. The program may hear of the end of a connection by
/// the connection manager alone (`hears_manager`).
fn judge(log: &str, hears_manager: bool) -> Verdict {
    let has = |marks: &[&str]| log.lines().any(|line| marks.iter().any(|mark| line.contains(mark)));
    let is_told = has(TOLD) || hears_manager && has(&[ENDED_BY_MANAGER]);
    match (has(CONNECTED), is_told) {
        (_, true) => Verdict::Told,
        (true, false) => Verdict::Hung,
        (false, false) => Verdict::NotConnected,
    }
}

fn wait_until_there(server: &mut Process, plan: &Plan) -> Result {
    let (begun, ready) = (Instant::now(), plan.program.ready(plan.way));
    while !is_ready(server.child.id(), ready, 1) {
        if let Some(status) = server.exited()? {
            let file = server.file.display();
            return Err(format!(
                "{} ended before it was there ({status}): {file}",
                plan.program.name
            ));
        }
        if begun.elapsed() > START {
            return Err(format!("{} was never there: {ready:?}", plan.program.name));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// A process, ended when it is dropped.
struct Process {
    child: Child,
    file: PathBuf,
}

impl Process {
    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|e| format!("wait: {e}"))
    }

    /// Sends SIGKILL, and waits for the end.
    fn kill(&mut self) {
        // Errors mean that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The file of a process's output.
fn output_of(plan: &Plan, side: Side) -> PathBuf {
    root().join(FOLDER).join(format!("{:05}.{}.txt", plan.number, side.name()))
}

fn start(
    plan: &Plan,
    side: Side,
    namespace: &Namespace,
    gid: u64,
    vernic: &Path,
) -> Result<Process> {
    let Plan { program, way, .. } = plan;
    let file = output_of(plan, side);
    let open = || -> std::io::Result<(File, File)> {
        let output = File::create(&file)?;
        let errors = output.try_clone()?;
        Ok((output, errors))
    };
    let (output, errors) = open().map_err(|e| format!("{}: {e}", file.display()))?;
    // Each program becomes the next one, so that the child's process id is the program's.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace.0]).arg(vernic).arg("run").args(way.around());
    command.args(program.around.split_whitespace()).arg("--").arg(program.name);
    let own = program.own[side as usize].split_whitespace();
    let gid = gid.to_string();
    let words = program.options.split_whitespace().chain(own);
    command.args(words.map(|word| if word == "GID" { gid.as_str() } else { word }));
    command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir(root());
    command.env("VERNIC_CONFIG", "/dev/null").env("VERNIC_LOG", "debug").process_group(0);
    let child = command.spawn().map_err(|e| format!("cannot start ip: {e}"))?;
    Ok(Process { child, file })
}

/// A network namespace with `lo` alone, removed when it is dropped.
struct Namespace(String);

impl Namespace {
    fn new(number: u64) -> Result<Self> {
        let namespace = Self(format!("{PREFIX}{}-{number}", std::process::id()));
        shell(&format!("ip netns add {}", namespace.0)).output()?;
        shell(&format!("ip -n {} link set lo up", namespace.0)).output()?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        shell(&format!("ip netns del {}", self.0)).succeeds();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_whether_a_survivor_was_connected_and_told() {
        let connected = "vernic[1] debug: peer is on this host own=0x708000 peer=0x454000\n";
        let told = "vernic[1] warn: queue pair failed: the peer's process has ended qpn=0x1d0000\n";
        assert!(matches!(judge("Waiting for client to connect", true), Verdict::NotConnected));
        assert!(matches!(judge(connected, true), Verdict::Hung));
        assert!(matches!(judge(&format!("{connected}{told}"), false), Verdict::Told));
        // The connection manager was first, and the program has ended its queue pair itself.
        let ended = "vernic[1] debug: a process of this host is gone: connections with it end\n";
        assert!(matches!(judge(&format!("{connected}{ended}"), true), Verdict::Told));
        assert!(matches!(judge(&format!("{connected}{ended}"), false), Verdict::Hung));
    }
}

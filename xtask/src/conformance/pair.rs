//! Running one case: two processes with a time limit, their output in files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::cases::{Case, Output};
use super::judge::{ended_by_loss, judge};
use super::network::{Network, Place};
use crate::{Result, root};

/// The TCP port on which all these programs wait for their clients.
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
    let mut sides = Vec::new();
    let outcome = run_sides(case, number, network, vernic, deadline, &mut sides);
    // Ends what is still there.
    let texts: Vec<String> = sides.into_iter().map(Side::end).collect();
    let (server, client) = match &texts[..] {
        [server, client] => (server.as_str(), client.as_str()),
        [client] => ("", client.as_str()),
        _ => ("", ""),
    };
    let outcome = if case.place == Place::Loss && ended_by_loss(&case.output, server, client) {
        Ok(())
    } else {
        outcome.and_then(|()| judge(&case.output, server, client))
    };
    let output = format!("--- server\n{server}--- client\n{client}");
    Ended { outcome, output, time: start.elapsed() }
}

fn run_sides(
    case: &Case,
    number: usize,
    network: &Network,
    vernic: &Path,
    deadline: Instant,
    sides: &mut Vec<Side>,
) -> Result {
    let alone = matches!(case.output, Output::Listing(_));
    if !alone {
        sides.push(Side::start(case, number, 0, network, vernic)?);
        sides[0].listen(deadline)?;
    }
    sides.push(Side::start(case, number, 1, network, vernic)?);
    // The side that fails first tells more than the one that waits for it, in vain.
    loop {
        let mut running = 0;
        for side in &mut *sides {
            match side.exited()? {
                Some(status) if !status.success() => {
                    return Err(format!("the {} failed: {status}", side.name));
                }
                Some(_) => {}
                None if Instant::now() > deadline => {
                    return Err(format!("the {} ran past its time limit", side.name));
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

/// One process.
struct Side {
    name: &'static str,
    child: Child,
    file: PathBuf,
}

impl Side {
    fn start(
        case: &Case,
        number: usize,
        side: usize,
        network: &Network,
        vernic: &Path,
    ) -> Result<Self> {
        let name = ["server", "client"][side];
        let file = root().join(FOLDER).join(format!("{number:04}.{name}.txt"));
        let (output, errors) = open(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        // Each program becomes the next one: the child's process id is the verbs program's.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", network.namespace(case.place, side)]);
        command.arg(vernic).arg("run").args(case.place.around(side));
        command.args(case.around.split_whitespace()).arg("--").arg(case.program);
        command.args(arguments(case, side, network));
        command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir(root());
        command.env("VERNIC_CONFIG", "/dev/null");
        let child = command.spawn().map_err(|e| format!("cannot start ip: {e}"))?;
        Ok(Self { name, child, file })
    }

    /// Waits until the process listens.
    fn listen(&mut self, deadline: Instant) -> Result {
        while !listens(self.child.id(), PORT) {
            if let Some(status) = self.exited()? {
                return Err(format!("the {} ended before it listened: {status}", self.name));
            }
            if Instant::now() > deadline {
                return Err(format!("the {} never listened on TCP port {PORT}", self.name));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|e| format!("wait: {e}"))
    }

    /// Ends the process if it runs, and returns all that it printed.
    fn end(mut self) -> String {
        // Errors mean that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let bytes = fs::read(&self.file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// One file for both streams.
fn open(file: &Path) -> std::io::Result<(File, File)> {
    let output = File::create(file)?;
    let errors = output.try_clone()?;
    Ok((output, errors))
}

/// The program's arguments: its options, what the place asks for, and for a client its server.
fn arguments(case: &Case, side: usize, network: &Network) -> Vec<String> {
    let mut words: Vec<String> = case.options.split_whitespace().map(str::to_owned).collect();
    if matches!(case.output, Output::Listing(_)) {
        return words;
    }
    let gid = network.gid(case.place, side).to_string();
    match case.output {
        // No warning about the processor's frequency.
        Output::Table { .. } => words.extend(["-F".into(), "-x".into(), gid]),
        _ => words.extend(["-g".into(), gid]),
    }
    if side == 1 {
        words.push(case.place.server().to_owned());
    }
    words
}

/// Whether a process has entered its network namespace, where a TCP socket listens on `port`.
pub(crate) fn listens(process: u32, port: u16) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    if namespace(&process.to_string()) == namespace("self") {
        return false;
    }
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let path = format!("/proc/{process}/net/{table}");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            // number, local address, remote address, state: 0A is LISTEN
            words.nth(1).is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
        })
    })
}

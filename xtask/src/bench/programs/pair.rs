//! A server and a client: started, awaited, ended.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::conformance::is_open;
use crate::{Result, root};

/// Where the programs' output lies while they run, relative to the root.
const FOLDER: &str = "target/bench";
/// No measurement of the table takes longer, on however slow a machine.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a server may take to listen, and to end after its client.
const PATIENCE: Duration = Duration::from_secs(10);
/// After so much processor time a client is certainly at work: it has started, connected and
/// exchanged addresses.
const SETTLED: Duration = Duration::from_millis(300);
/// How long the passive side is watched then.
const WATCHED: Duration = Duration::from_millis(500);
/// How often is looked whether a process has ended, or listens.
const LOOK: Duration = Duration::from_millis(2);

/// The port space of connected services (`enum rdma_port_space`).
const RDMA_PS_TCP: u16 = 0x106;

/// Where a server is found, and how it ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Server {
    /// It listens on this TCP port, and ends after its client.
    Tcp(u16),
    /// A server at this TCP port that never ends by itself.
    EndlessTcp(u16),
    /// It listens on this port through the connection manager, and never ends by itself.
    Cm(u16),
}

/// A program with its arguments, environment and core.
#[derive(Debug, Clone)]
pub(super) struct Line {
    words: Vec<String>,
    env: Vec<(&'static str, &'static str)>,
    core: Option<u32>,
}

impl Line {
    /// Split at blanks.
    pub(super) fn new(text: &str) -> Self {
        let words = text.split_whitespace().map(str::to_owned).collect();
        Self { words, env: Vec::new(), core: None }
    }

    /// With its option for a port: at the end, but qperf's precedes its tests.
    pub(super) fn port(mut self, option: &str, port: u16) -> Self {
        let place = if self.words[0] == "qperf" { 1 } else { self.words.len() };
        self.words.splice(place..place, [option.into(), port.to_string()]);
        self
    }

    pub(super) fn env(mut self, env: &[(&'static str, &'static str)]) -> Self {
        self.env.extend(env);
        self
    }

    /// Only on this core, if on a certain one.
    pub(super) fn on(mut self, core: Option<u32>) -> Self {
        self.core = core;
        self
    }

    /// As one would type it.
    pub(super) fn text(&self) -> String {
        let env = self.env.iter().map(|(key, value)| format!("{key}={value} "));
        env.collect::<String>() + &self.words.join(" ")
    }

    /// Starts it, with its output in files that `name` tells apart.
    fn start(&self, name: &str) -> Result<Running> {
        let folder = root().join(FOLDER);
        let file = |end: &str| {
            let path = folder.join(format!("{name}.{end}"));
            let file = fs::create_dir_all(&folder).and_then(|()| fs::File::create(&path));
            file.map(|file| (path.clone(), file)).map_err(|e| format!("{}: {e}", path.display()))
        };
        let ((out, stdout), (err, stderr)) = (file("out")?, file("err")?);
        let mut words = self.words.clone();
        if let Some(core) = self.core {
            words.splice(0..0, ["taskset".into(), "-c".into(), core.to_string()]);
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.env.iter().copied()).current_dir(root());
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = command.spawn().map_err(|e| format!("cannot start {}: {e}", words[0]))?;
        Ok(Running { child, text: self.text(), out, err })
    }

    /// Runs it to its end and returns what it printed.
    pub(super) fn run(&self) -> Result<String> {
        Ok(self.start("client")?.finish(LIMIT)?.0)
    }

    /// Runs it to its end, and returns how long that took and what it printed. Nothing ends it if
    /// it does not: looking for the end now and then would be in the time.
    pub(super) fn time(&self) -> Result<(Duration, String)> {
        let began = Instant::now();
        let mut running = self.start("client")?;
        running.child.wait().map_err(|e| format!("{}: {e}", running.text))?;
        let took = began.elapsed();
        Ok((took, running.finish(LIMIT)?.0))
    }
}

/// A process; ended when the value goes.
struct Running {
    child: Child,
    text: String,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    /// Waits for its good end; returns what it printed, and the processor time that it took.
    fn finish(mut self, limit: Duration) -> Result<(String, Duration)> {
        let before = children_cpu();
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => {
                    return Ok((self.printed(), children_cpu().saturating_sub(before)));
                }
                Some(status) => return Err(self.failure(&status.to_string())),
                None if Instant::now() > deadline => return Err(self.failure("no end in time")),
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Waits until it listens.
    fn listens(&mut self, at: Server) -> Result {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if at.is_there() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failure(&status.to_string()));
            }
            if Instant::now() > deadline {
                return Err(self.failure("it does not listen"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until it has taken so much processor time.
    fn works(&mut self, time: Duration) -> Result {
        let deadline = Instant::now() + PATIENCE;
        while self.cpu()? < time {
            if Instant::now() > deadline {
                return Err(self.failure("it does nothing"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Processor time of its threads until now, as the scheduler counts it.
    fn cpu(&self) -> Result<Duration> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let why = |e| format!("{tasks}: {e}");
        let mut sum = 0;
        for task in fs::read_dir(&tasks).map_err(why)? {
            let text = fs::read_to_string(task.map_err(why)?.path().join("schedstat"));
            // A thread may have ended meanwhile.
            let text = text.unwrap_or_else(|_| "0".into());
            let nanos = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            sum += nanos.ok_or_else(|| format!("{tasks}: `{text}` begins with no time"))?;
        }
        Ok(Duration::from_nanos(sum))
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// What went wrong, in one line that ends with the program's own last words.
    fn failure(&self, what: &str) -> String {
        // Complaints last: a table that stays without figures says nothing.
        let words = self.printed() + &fs::read_to_string(&self.err).unwrap_or_default();
        let said: Vec<&str> = words.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = said[said.len().saturating_sub(3)..].join("; ");
        format!("`{}`: {what}: {last}", self.text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails where it has ended already, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a client printed, and what both ends cost.
pub(super) struct Ran {
    pub(super) printed: String,
    /// Processor time of the passive and the active side, start and end included.
    pub(super) server_cpu: Duration,
    pub(super) client_cpu: Duration,
}

/// Processor time of all children that were waited for, and of theirs.
fn children_cpu() -> Duration {
    let times = getrusage(UsageWho::RUSAGE_CHILDREN).map(|usage| {
        [usage.user_time(), usage.system_time()]
            .map(|time| Duration::from_micros((time.num_microseconds()).max(0) as u64))
    });
    times.map_or(Duration::ZERO, |[user, system]| user + system)
}

/// Runs `client` against `server`, which must listen at `at`.
pub(super) fn run(server: &Line, client: &Line, at: Server) -> Result<Ran> {
    let mut server = server.start("server")?;
    server.listens(at)?;
    match (client.start("client")?.finish(LIMIT), at) {
        (Ok((printed, client_cpu)), Server::Tcp(_)) => {
            server.finish(PATIENCE).map(|(_, server_cpu)| Ran { printed, server_cpu, client_cpu })
        }
        (Ok((printed, client_cpu)), Server::EndlessTcp(_) | Server::Cm(_)) => {
            Ok(Ran { printed, server_cpu: server.cpu()?, client_cpu })
        }
        (Err(why), _) => Err(why + " | " + &server.failure("server")),
    }
}

/// The processor time of `server` in half a second in which `client` is at work, as a share of a
/// core, in per cent. Start, connection and end are not in it.
pub(super) fn passive_share(server: &Line, client: &Line, at: Server) -> Result<f64> {
    let mut server = server.start("server")?;
    server.listens(at)?;
    let mut client = client.start("client")?;
    client.works(SETTLED)?;
    let (began, before) = (Instant::now(), server.cpu()?);
    std::thread::sleep(WATCHED);
    let (took, after) = (began.elapsed(), server.cpu()?);
    if client.child.try_wait().map_err(|e| e.to_string())?.is_some() {
        return Err(client.failure("it ended while its server was watched"));
    }
    client.finish(LIMIT)?;
    server.finish(PATIENCE)?;
    Ok(100.0 * after.saturating_sub(before).as_secs_f64() / took.as_secs_f64())
}

/// A TCP port that nobody listens on.
pub(super) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|e| format!("no free TCP port: {e}"))
}

impl Server {
    /// Whether it can be connected to.
    fn is_there(self) -> bool {
        match self {
            Self::Tcp(port) | Self::EndlessTcp(port) => {
                let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
                tables.iter().flatten().any(|table| has_listener(table, port))
            }
            Self::Cm(port) => fs::read_to_string("/proc/net/unix")
                .is_ok_and(|table| is_open(&table, RDMA_PS_TCP, port)),
        }
    }
}

/// Whether a table of /proc/net has a listening socket of this port.
fn has_listener(table: &str, port: u16) -> bool {
    // sl, local_address:port in hexadecimal, rem_address, st; 0A is LISTEN.
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|local| local.rsplit(':').next());
        let local = local.and_then(|local| u16::from_str_radix(local, 16).ok());
        local == Some(port) && words.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_and_a_connection_is_none() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 0100007F:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:4854 0100007F:4853 01 00000000:00000000 00:00000000 00000000     0        0 2
";
        assert!(has_listener(table, 0x4853));
        assert!(!has_listener(table, 0x4854) && !has_listener(table, 0));
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let line = Line {
            words: ["sh", "-c", "echo why >&2; seq 9; exit 3"].map(str::to_owned).to_vec(),
            ..Line::new("")
        };
        let why = line.start("quoted").unwrap().finish(PATIENCE).map(|_| ()).unwrap_err();
        assert!(why.ends_with("exit status: 3: 8; 9; why"), "{why}");
    }

    #[test]
    fn a_client_gets_the_server_that_listens() {
        let port = free_port().unwrap();
        let code = "import socket,sys; s=socket.create_server(('',int(sys.argv[1]))); s.accept()";
        let python = |code: &str| Line {
            words: ["python3", "-c", code, &port.to_string()].map(str::to_owned).to_vec(),
            ..Line::new("")
        };
        if !crate::shell::on_path("python3") {
            return;
        }
        let client = "import socket,sys; socket.create_connection(('127.0.0.1',int(sys.argv[1]))); print('yes')";
        let ran = run(&python(code), &python(client), Server::Tcp(port)).unwrap();
        assert_eq!(ran.printed, "yes\n");
        assert!(ran.client_cpu > Duration::ZERO && ran.server_cpu > Duration::ZERO);
    }
}

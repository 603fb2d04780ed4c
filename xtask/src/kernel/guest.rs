//! Commands in the guest: lines of shell over a virtio serial port, which is a socket here.
//!
//! One line is answered before the next is sent. What takes long is started in the background of
//! the guest's shell, with its output in a file there, and asked about.

use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;
use crate::conformance::Ready;

/// An answer takes no longer, on however slow a machine: commands that take long are not waited
/// for.
const PATIENCE: Duration = Duration::from_secs(30);

/// What ends an answer, before its number and the exit status.
const MARK: &str = "@@answer";

/// Bounds what a program may print before it is cut.
const LONGEST_BYTES: usize = 1 << 20;

/// The guest's shell.
pub(crate) struct Guest {
    port: UnixStream,
    answers: u64,
    started: u64,
}

/// A process in the guest.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    id: u64,
    number: u64,
}

impl Guest {
    /// Connects to the socket, which must be there; the guest need not listen yet.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let why = |e| format!("{}: {e}", socket.display());
        let port = UnixStream::connect(socket).map_err(why)?;
        port.set_read_timeout(Some(Duration::from_millis(100))).map_err(why)?;
        Ok(Self { port, answers: 0, started: 0 })
    }

    /// Runs a line; returns what it printed, or that it failed.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        let (status, text) = self.run(line)?;
        if status == 0 { Ok(text) } else { Err(format!("in the guest, `{line}` failed: {text}")) }
    }

    /// Runs a line; returns its exit status and what it printed.
    pub(super) fn run(&mut self, line: &str) -> Result<(i32, String)> {
        assert!(!line.contains('\n'), "one line: {line}");
        self.answers += 1;
        let number = self.answers;
        let sent = writeln!(self.port, "{line}; s=$?; echo; echo {MARK} {number} $s");
        sent.map_err(|e| format!("the guest takes no commands: {e}"))?;
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = Vec::new();
        loop {
            if let Some(answer) = answer(&String::from_utf8_lossy(&bytes), number) {
                return Ok(answer);
            }
            let mut piece = [0; 4096];
            match self.port.read(&mut piece) {
                Ok(0) => return Err("the guest is gone".into()),
                Ok(len) if bytes.len() < LONGEST_BYTES => bytes.extend(&piece[..len]),
                Ok(_) => return Err(format!("in the guest, `{line}` prints without end")),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => return Err(format!("the guest does not answer: {e}")),
            }
            if Instant::now() > deadline {
                return Err(format!("in the guest, `{line}` has no end"));
            }
        }
    }

    /// Starts a program in the background.
    pub(crate) fn start(&mut self, line: &str) -> Result<Process> {
        self.started += 1;
        let number = self.started;
        let text = self.ask(&format!("{line} </dev/null >{} 2>&1 & echo $!", output(number)))?;
        let id = text.trim().parse().map_err(|_| format!("`{line}` has no number: {text}"))?;
        Ok(Process { id, number })
    }

    /// Whether a process has printed a line.
    pub(super) fn has_said(&mut self, process: Process, line: &str) -> Result<bool> {
        Ok(self.run(&format!("grep -qx '{line}' {}", output(process.number)))?.0 == 0)
    }

    /// The exit status of a process that has ended.
    pub(crate) fn exited(&mut self, process: Process) -> Result<Option<i32>> {
        let id = process.id;
        let (status, _) = self.run(&format!("kill -0 {id} 2>/dev/null"))?;
        if status == 0 {
            return Ok(None);
        }
        Ok(Some(self.run(&format!("wait {id}"))?.0))
    }

    /// Whether a server is there: this process, as far as its network namespace tells.
    pub(crate) fn is_ready(&mut self, process: Process, ready: Ready) -> Result<bool> {
        Ok(self.run(&is_ready(process.id, ready))?.0 == 0)
    }

    /// Whether a connection is made or being made.
    pub(super) fn is_connecting(&mut self) -> Result<bool> {
        Ok(self.run("rdma resource show cm_id | grep -q 'state CONNECT '")?.0 == 0)
    }

    /// Sends a process a signal; it may be gone.
    pub(super) fn kill(&mut self, process: Process, signal: u8) -> Result {
        self.run(&format!("kill -{signal} {} 2>/dev/null", process.id)).map(drop)
    }

    /// Ends a process if it runs, and returns all that it printed.
    pub(crate) fn end(&mut self, process: Process) -> Result<String> {
        let file = output(process.number);
        let line = format!("kill -9 {0} 2>/dev/null; wait {0} 2>/dev/null", process.id);
        self.run(&line)?;
        self.ask(&format!("cat {file} && rm {file}"))
    }
}

/// The file of a process's output.
fn output(number: u64) -> String {
    format!("/tmp/{number}.txt")
}

/// A line of shell that succeeds when a server is there.
fn is_ready(process: u64, ready: Ready) -> String {
    let tables =
        |protocol: &str| format!("/proc/{process}/net/{protocol} /proc/{process}/net/{protocol}6");
    match ready {
        Ready::Tcp(port) => format!("grep -q ':{port:04X} 0*:0000 0A' {}", tables("tcp")),
        Ready::Udp(port) => format!("grep -q ': [0-9A-F]*:{port:04X} ' {}", tables("udp")),
        Ready::Service(space, port) => {
            // What `rdma` calls the port spaces.
            let space = if space == 0x0106 { "TCP" } else { "UDP" };
            format!("rdma resource show cm_id | grep -q 'LISTEN ps {space} .*:{port} '")
        }
        Ready::Group(IpAddr::V4(group)) => {
            // Printed as a number of the processor's: 010203EF is 239.3.2.1.
            format!("grep -q {:08X} /proc/net/igmp", u32::from_le_bytes(group.octets()))
        }
        Ready::Group(IpAddr::V6(group)) => {
            format!("grep -q {:032x} /proc/net/igmp6", u128::from(group))
        }
    }
}

/// Exit status and text of an answer that is whole.
fn answer(text: &str, number: u64) -> Option<(i32, String)> {
    let (text, status) = text.split_once(&format!("\n{MARK} {number} "))?;
    let (status, _) = status.split_once('\n')?;
    // An earlier answer that came too late stands before this one.
    let text = match text.rsplit_once(&format!("{MARK} ")) {
        Some((_, rest)) => rest.split_once('\n').map_or("", |(_, rest)| rest),
        None => text,
    };
    Some((status.trim().parse().ok()?, text.trim_end_matches('\n').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_mark_and_status() {
        assert_eq!(answer("a\nb\n\n@@answer 7 0\n", 7), Some((0, "a\nb".into())));
        assert_eq!(answer("\n@@answer 7 127\n", 7), Some((127, String::new())));
        assert_eq!(answer("a\n\n@@answer 7 0", 7), None);
        assert_eq!(answer("a\n\n@@answer 7 0\n", 8), None);
        let late = "old\n\n@@answer 6 1\nnew\n\n@@answer 7 0\n";
        assert_eq!(answer(late, 7), Some((0, "new".into())));
    }

    #[test]
    fn a_server_is_looked_for_in_the_kernels_tables() {
        assert!(
            is_ready(71, Ready::Tcp(18_515))
                .ends_with("':4853 0*:0000 0A' /proc/71/net/tcp /proc/71/net/tcp6")
        );
        assert!(is_ready(71, Ready::Service(0x0111, 7174)).contains("'LISTEN ps UDP .*:7174 '"));
        let group = |group: &str| is_ready(71, Ready::Group(group.parse().unwrap()));
        assert!(group("239.3.2.1").contains("010203EF"));
        assert!(group("ff0e::301").contains("ff0e0000000000000000000000000301"));
    }

    #[test]
    fn a_guest_that_is_gone_is_an_error() {
        let (port, far) = UnixStream::pair().unwrap();
        let mut guest = Guest { port, answers: 0, started: 0 };
        drop(far);
        assert!(guest.ask("true").is_err());
    }
}

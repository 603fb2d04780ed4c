//! The other side of a bench, as the active side sees it: a child process of its own, or a server
//! on another host.
//!
//! No process outlives its bench. The child's control thread ends it when the connection closes,
//! whatever the reason (end, error, Ctrl-C, SIGKILL of the parent), and dropping [`Child`] waits
//! for it and kills it if it does not go by itself.

use super::control::{Control, Message, unexpected};
use crate::args::{DeviceOptions, SECOND_PROCESS};
use crate::failure::{Doing, Failure, Outcome};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Environment variable by which a child proves that it is the one that was started.
pub(crate) const TOKEN_VARIABLE: &str = "VERNIC_BENCH_TOKEN";
/// How long a child may take to start and connect.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a child may take to end after its connection has closed.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two looks at a child that starts or ends.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Where the other side of the measurements comes from.
#[derive(Debug)]
pub(crate) enum Opposite {
    /// A second process of this executable, on this machine.
    ThisMachine(DeviceOptions),
    /// `vernic bench server` on this host and port.
    Host(String, u16),
}

/// A connection to the other side, and the process behind it where it is ours.
#[derive(Debug)]
pub(crate) struct Session {
    control: Control,
    child: Option<Child>,
    max_mtu: u32,
}

impl Opposite {
    /// Starts the child, or connects to the server.
    pub(crate) fn open(&self) -> Outcome<Session> {
        let (control, child) = match self {
            Self::ThisMachine(device) => open_child(device)?,
            Self::Host(host, port) => (open_host(host, *port)?, None),
        };
        let mut session = Session { control, child, max_mtu: 0 };
        match session.control.receive() {
            Ok(Message::Ready { max_mtu }) => Ok(Session { max_mtu, ..session }),
            Ok(other) => Err(unexpected(&other)),
            Err(failure) => Err(session.explain(failure)),
        }
    }
}

impl Session {
    /// The connection.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// The largest path MTU of the other side's device, in bytes.
    pub(crate) fn max_mtu(&self) -> u32 {
        self.max_mtu
    }

    /// `failure`, with what became of the child, if it has died.
    pub(crate) fn explain(&mut self, failure: Failure) -> Failure {
        match self.child.as_mut().and_then(Child::ended) {
            // One that ends well has told why.
            Some(status) if !status.success() => Failure::new(format!(
                "the second process of the bench ended ({status}): {}",
                failure.what()
            )),
            _ => failure,
        }
    }

    /// Says goodbye and waits for the child, if there is one.
    pub(crate) fn close(self) {
        // An error means that the other side is already gone.
        let _ = self.control.send(&Message::Bye);
    }
}

/// A child process, ended when dropped. In a [`Session`] it is dropped after the connection.
#[derive(Debug)]
struct Child(std::process::Child);

impl Child {
    /// How it ended, if it has.
    fn ended(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + Duration::from_millis(50);
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                _ => return None,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let until = Instant::now() + END_TIMEOUT;
        while Instant::now() < until {
            match self.0.try_wait() {
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                _ => return,
            }
        }
        // Errors: it has ended in between.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open_child(device: &DeviceOptions) -> Outcome<(Control, Option<Child>)> {
    let attempt = || "start the second process of the bench".to_string();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .doing(attempt)
        .map_err(|failure| failure.hint("`ip link set lo up`: the two processes talk over lo"))?;
    listener.set_nonblocking(true).doing(attempt)?;
    let port = listener.local_addr().doing(attempt)?.port();
    let token = fresh_token()?;
    let mut command = Command::new(std::env::current_exe().doing(attempt)?);
    command.args(["bench", SECOND_PROCESS, "--port", &port.to_string()]);
    if let Some(name) = &device.device {
        command.args(["--ib-dev", name]);
    }
    if let Some(index) = device.gid_index {
        command.args(["--gid-index", &index.to_string()]);
    }
    // Pipes that nobody holds rather than /dev/null, which a sandbox may lack.
    command.env(TOKEN_VARIABLE, &token).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Child(command.spawn().doing(attempt)?);
    drop((child.0.stdin.take(), child.0.stdout.take()));
    let stream = accept(&listener, &mut child)?;
    stream.set_nonblocking(false).doing(attempt)?;
    let control = Control::new(stream, || ())?;
    match control.greet(&token) {
        Ok(()) => Ok((control, Some(child))),
        Err(failure) => Err(Session { control, child: Some(child), max_mtu: 0 }.explain(failure)),
    }
}

fn accept(listener: &TcpListener, child: &mut Child) -> Outcome<TcpStream> {
    let until = Instant::now() + START_TIMEOUT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).doing(|| "hear from the second process".into()),
        }
        if let Ok(Some(status)) = child.0.try_wait() {
            let what = format!("the second process of the bench ended at its start ({status})");
            return Err(Failure::new(what).hint("what it said is above"));
        }
        if Instant::now() > until {
            return Err(Failure::new("the second process of the bench did not start in time"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// 128 bits that another user of the machine cannot guess.
fn fresh_token() -> Outcome<String> {
    let word = || getrandom::u64().doing(|| "draw a random token".to_string());
    Ok(format!("{:016x}{:016x}", word()?, word()?))
}

fn open_host(host: &str, port: u16) -> Outcome<Control> {
    let advice = || {
        let option =
            if port == crate::args::DEFAULT_PORT { String::new() } else { format!(" -p {port}") };
        format!(
            "run `vernic bench server{option}` on {host}; a firewall must let TCP {port} and UDP 4791 in"
        )
    };
    let attempt = || format!("connect to the bench server {host}:{port}");
    let addresses = (host, port).to_socket_addrs().doing(attempt)?;
    let mut last = Failure::new(format!("cannot {}: the name has no address", attempt()));
    for address in addresses {
        match TcpStream::connect_timeout(&address, START_TIMEOUT) {
            Ok(stream) => {
                let control = Control::new(stream, || ())?;
                control.greet("").map_err(|failure| {
                    failure.hint("a server that is at work for another client lets this one wait")
                })?;
                return Ok(control);
            }
            Err(error) => last = Err::<(), _>(error).doing(attempt).unwrap_err().hint(advice()),
        }
    }
    Err(last)
}

/// The child's way to the bench that started it. When that bench is gone, so is this process.
pub(crate) fn connect_to_parent(port: u16) -> Outcome<Control> {
    let token = std::env::var(TOKEN_VARIABLE).map_err(|_| {
        let command = format!("`vernic bench {SECOND_PROCESS}`");
        Failure::new(format!("{command} is started by `vernic bench`, not by hand"))
            .hint("use `vernic bench`, or `vernic bench server` and `vernic bench client HOST`")
    })?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .doing(|| "reach the bench that started this process".into())?;
    let control = Control::new(stream, || std::process::exit(1))?;
    control.greet(&token)?;
    Ok(control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ() {
        assert_ne!(fresh_token().unwrap(), fresh_token().unwrap());
        assert_eq!(fresh_token().unwrap().len(), 32);
    }

    #[test]
    fn a_host_without_a_server_gives_advice() {
        // A port that was just free: nobody listens on it.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let failure = Opposite::Host("127.0.0.1".into(), port).open().unwrap_err();
        assert!(failure.to_string().contains("vernic bench server"), "{failure}");
    }
}

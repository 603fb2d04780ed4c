//! The socket of the interface: programs ask which addresses it has, and where IP addresses of its
//! link are. `rdma_cm` does (`vernic_attach::interface`).
//!
//! Limits: [`MAX_PROGRAMS`] programs, each with one question at a time. What a program sends before
//! its answer waits in its socket. A program that does not take its answers loses its connection.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use vernic_attach::hello::{Hello, Purpose};
use vernic_attach::interface::{InterfaceAnswer, InterfaceRequest};
use vernic_attach::{AttachError, Connection, Door, Refusal, RefusalKind, path};
use vernic_ipoib::{DropReason, Resolved};
use vernic_sys::{self as sys, EpollOp, OwnFd};
use vernic_wire::{Guid, Pkey, PortNum};

/// Most programs at a time.
const MAX_PROGRAMS: usize = 256;
/// Connections that are accepted at a time, so that packets have their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Bytes of the longest message that a program sends, and some more.
const MAX_REQUEST: usize = 256;
/// The key of the socket that listens; programs have others.
const DOOR: u64 = 0;

/// A program.
#[derive(Debug)]
struct Program {
    connection: Connection,
    has_said_hello: bool,
    /// What the program waits for: its messages are not read meanwhile.
    waits_for: Option<IpAddr>,
}

/// The socket, and the programs that have connected.
#[derive(Debug)]
pub(crate) struct Questions {
    door: Door,
    /// Whether connections are accepted: not after that has failed, for a while.
    is_open: bool,
    epoll: OwnFd,
    programs: BTreeMap<u64, Program>,
    last: u64,
}

impl Questions {
    /// Listens for an interface.
    ///
    /// # Errors
    /// [`AttachError`].
    pub(crate) fn open(fabric: &str, at: (Guid, PortNum, Pkey)) -> Result<Self, AttachError> {
        let door = Door::open(path::interface_in(&path::folder(), fabric, at)?)?;
        let failed = |source| AttachError::Io { doing: "waiting for programs", source };
        let epoll = sys::epoll().map_err(failed)?;
        let mut questions =
            Self { door, is_open: false, epoll, programs: BTreeMap::new(), last: DOOR };
        questions.accept_again().map_err(failed)?;
        Ok(questions)
    }
    /// Accepts connections again, after there was no descriptor for one.
    pub(crate) fn accept_again(&mut self) -> io::Result<()> {
        if !self.is_open {
            let (epoll, door) = (self.epoll.as_fd(), self.door.as_fd());
            sys::epoll_watch(epoll, EpollOp::Add, door, DOOR, libc::EPOLLIN as u32)?;
            self.is_open = true;
        }
        Ok(())
    }
    /// Takes what programs ask for, by the numbers of the programs.
    pub(crate) fn take(&mut self) -> Vec<(u64, InterfaceRequest)> {
        let mut ready = Vec::new();
        let watched = sys::epoll_ready(self.epoll.as_fd(), |key, _| ready.push(key));
        if let Err(error) = watched
            && !sys::is_for_later(&error)
        {
            tracing::warn!(%error, "programs are not heard");
        }
        let mut requests = Vec::new();
        for key in ready {
            if key == DOOR {
                self.accept();
            } else {
                match self.read(key) {
                    Ok(request) => requests.extend(request.map(|request| (key, request))),
                    Err(_) => self.end(key),
                }
            }
        }
        requests
    }
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.door.accept() {
                Ok(Some((connection, _))) => self.add(connection),
                Ok(None) => {}
                Err(error) if sys::is_for_later(&error) => return,
                Err(error) => {
                    tracing::warn!(%error, "no program is let in for a moment");
                    let (epoll, door) = (self.epoll.as_fd(), self.door.as_fd());
                    self.is_open = sys::epoll_watch(epoll, EpollOp::Remove, door, DOOR, 0).is_err();
                    return;
                }
            }
        }
    }
    fn add(&mut self, connection: Connection) {
        if self.programs.len() >= MAX_PROGRAMS {
            let text = format!("{MAX_PROGRAMS} programs ask this interface, as many as can");
            // The connection ends in any case.
            let _ = connection.send(&Refusal::new(RefusalKind::TooMany, text).emit());
            return;
        }
        let key = self.last + 1;
        let (epoll, fd) = (self.epoll.as_fd(), connection.as_fd());
        if sys::epoll_watch(epoll, EpollOp::Add, fd, key, libc::EPOLLIN as u32).is_ok() {
            let program = Program { connection, has_said_hello: false, waits_for: None };
            self.programs.insert(key, program);
            self.last = key;
        }
    }
    /// Reads a message. An error ends the connection.
    fn read(&mut self, key: u64) -> io::Result<Option<InterfaceRequest>> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let program = self.programs.get_mut(&key).ok_or_else(wrong)?;
        if program.waits_for.is_some() {
            // Only an end is told then.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut buf = [0; MAX_REQUEST];
        let message = match program.connection.recv(&mut buf) {
            Err(error) if sys::is_for_later(&error) => return Ok(None),
            other => other?,
        };
        if program.has_said_hello {
            return InterfaceRequest::parse(message).map(Some).ok_or_else(wrong);
        }
        match Hello::parse(message) {
            Some(Hello::For(Purpose::Question)) => program.has_said_hello = true,
            Some(Hello::Version(theirs)) => {
                program.connection.send(&Hello::version_refused(theirs).emit())?;
                return Err(wrong());
            }
            _ => return Err(wrong()),
        }
        Ok(None)
    }
    fn end(&mut self, key: u64) {
        // The descriptor leaves the list when it is closed.
        self.programs.remove(&key);
    }
    /// Answers a program.
    pub(crate) fn answer(&mut self, key: u64, answer: Result<InterfaceAnswer, Refusal>) {
        let Some(program) = self.programs.get_mut(&key) else { return };
        let message = match answer {
            Ok(answer) => answer.emit(),
            Err(refusal) => refusal.emit(),
        };
        let waited = program.waits_for.take().is_some();
        let fd = program.connection.as_fd();
        let sent = program.connection.send(&message).and_then(|()| match waited {
            true => watch(&self.epoll, key, fd, libc::EPOLLIN as u32),
            false => Ok(()),
        });
        if sent.is_err() {
            self.end(key);
        }
    }
    /// Lets a program wait until it is known where an address is.
    pub(crate) fn wait(&mut self, key: u64, ip: IpAddr) {
        let Some(program) = self.programs.get_mut(&key) else { return };
        program.waits_for = Some(ip);
        if watch(&self.epoll, key, program.connection.as_fd(), 0).is_err() {
            self.end(key);
        }
    }
    /// Answers the programs that wait for an address. `no_path` is why the last path that was asked
    /// for is not known.
    pub(crate) fn resolved(
        &mut self,
        ip: IpAddr,
        answer: Result<Resolved, DropReason>,
        no_path: Option<&AttachError>,
    ) {
        let waits = self.programs.iter().filter(|(_, program)| program.waits_for == Some(ip));
        for key in waits.map(|(key, _)| *key).collect::<Vec<_>>() {
            let answer = answer.map(|at| InterfaceAnswer::Resolved(at.address, at.path));
            self.answer(key, answer.map_err(|reason| refusal_of(ip, reason, no_path)));
        }
    }
}

fn watch(epoll: &OwnFd, key: u64, fd: BorrowedFd<'_>, events: u32) -> io::Result<()> {
    sys::epoll_watch(epoll.as_fd(), EpollOp::Change, fd, key, events)
}

/// The descriptor that is readable when there is something to [`take`](Questions::take).
impl AsFd for Questions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn refusal_of(ip: IpAddr, reason: DropReason, no_path: Option<&AttachError>) -> Refusal {
    let (kind, why) = match (reason, no_path) {
        (DropReason::LinkDown, _) => (
            RefusalKind::Down,
            "the interface is down: it waits for the broadcast group of its partition",
        ),
        (DropReason::NoRoute, _) => (
            RefusalKind::Unreachable,
            "no address of the interface has it on its link, and there is no router to it",
        ),
        (DropReason::NoAnswer, _) => (
            RefusalKind::Unanswered,
            "nobody on the link says to have it. Usually no interface has it (`vernic fabric ipoib`), \
             or that one is in another partition",
        ),
        (DropReason::NoPath, Some(error)) => {
            let text =
                format!("{ip} is not found: there is no path to the port that has it: {error}");
            return Refusal::new(RefusalKind::Unreachable, text);
        }
        (DropReason::NoPath, None) => {
            (RefusalKind::Unreachable, "subnet administration has no path to the port that has it")
        }
        _ => (RefusalKind::TooMany, "too many addresses are asked for"),
    };
    Refusal::new(kind, format!("{ip} is not found: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why_there_is_no_path() {
        let ip = IpAddr::from([10, 0, 0, 2]);
        let text = "no subnet manager answers at LID 7";
        let error = &AttachError::Refused(Refusal::new(RefusalKind::Unreachable, text));
        let refusal = refusal_of(ip, DropReason::NoPath, Some(error));
        assert_eq!(refusal.kind, RefusalKind::Unreachable);
        assert!(refusal.text.contains("no subnet manager answers at LID 7"), "{refusal}");
        let refusal = refusal_of(ip, DropReason::NoAnswer, Some(error));
        assert!(!refusal.text.contains("manager"), "of something else: {refusal}");
    }
}

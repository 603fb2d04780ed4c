//! Connections that programs have made, by key, and what each of them waits for.
//!
//! Owns the sockets, the list that the system wakes us by (`epoll`), and messages that did not fit
//! into a socket yet. What a connection means is in its [`Role`].
//!
//! Limits: [`MAX_CLIENTS`] connections; of messages that wait, [`MAX_WAITING`] bytes each.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use vernic_attach::Connection;
use vernic_fabric::Time;
use vernic_sys::{self as sys, EpollOp, OwnFd};
use vernic_wire::cm::ServiceId;
use vernic_wire::sa::JoinState;
use vernic_wire::{Gid, PortNum};

use crate::key::Key;
use crate::program::Program;

/// Most connections at a time: 648 hosts with a dozen programs each.
pub(crate) const MAX_CLIENTS: usize = 8192;

/// Bytes that wait for a client to take them, at most: the longest datagram and some small ones.
const MAX_WAITING: usize = 40 * 1024 * 1024;

/// What a connection is for.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing was said yet.
    New,
    /// A data connection that has not said its host yet.
    DataHello,
    /// Packets of a program.
    Program(Box<Program>),
    /// Requests about management; the open port if there is one.
    Mad(Option<OpenPort>),
    /// Datagrams of the port that another connection has opened.
    Datagrams {
        /// Key of that connection.
        requests: Key,
        /// The port.
        port: OpenPort,
        /// Puts datagrams together.
        assembler: vernic_attach::user_mad::Assembler,
    },
    /// Requests of `vernic fabric`.
    Control,
    /// The connection was refused. Its other end closes it, once it has read why: if this end did,
    /// the system would report a reset in place of the reason.
    Refused,
    /// One question; what was asked for, once it was.
    Question(Option<Asked>),
}

/// A port that was opened for management.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenPort {
    /// Index of the host.
    pub(crate) host: usize,
    /// The port.
    pub(crate) port: PortNum,
    /// Whether agents of subnet management may be registered.
    pub(crate) subnet_management: bool,
    /// Whether the opener has said that there is a subnet manager.
    pub(crate) is_sm: bool,
    /// The connection with the datagrams.
    pub(crate) datagrams: Key,
}

/// What a connection has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Index of the host.
    pub(crate) host: usize,
    pub(crate) what: What,
}

/// Kinds of questions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// A path from a port, by its ticket.
    Path(PortNum, u64),
    /// Membership of a port in a group, in one way.
    Group(PortNum, Gid, JoinState),
    /// Requests for a service.
    Service(ServiceId),
    /// Notices to a port.
    Notices(PortNum),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: Connection,
    pub(crate) role: Role,
    /// The process at the other end.
    pub(crate) pid: u32,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// Whether news of the connection are read now.
    pub(crate) reads: bool,
    /// Whether the connection waits until it can be written to.
    pub(crate) wants_room: bool,
    /// When the other end closed the connection, whose messages cannot be read yet.
    pub(crate) hung_up: Option<Time>,
    /// The events that the system was told; `None` of a connection that it does not look at.
    told: Option<u32>,
}

impl Client {
    fn new(socket: Connection, role: Role, pid: u32) -> Self {
        Self {
            socket,
            role,
            pid,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            reads: true,
            wants_room: false,
            hung_up: None,
            told: None,
        }
    }
    /// Sends a message, now or when there is room.
    ///
    /// # Errors
    /// The client does not take its messages, or has gone.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> io::Result<()> {
        if self.waiting.is_empty() {
            match self.socket.send(&message) {
                Err(error) if sys::is_for_later(&error) => {}
                other => return other,
            }
        }
        if self.waiting_bytes + message.len() > MAX_WAITING {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.waiting_bytes += message.len();
        self.waiting.push_back(message);
        self.wants_room = true;
        Ok(())
    }
    /// Sends what waits.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(message) = self.waiting.front() {
            match self.socket.send(message) {
                Err(error) if sys::is_for_later(&error) => return Ok(()),
                other => other?,
            }
            self.waiting_bytes -= message.len();
            self.waiting.pop_front();
        }
        self.wants_room = false;
        Ok(())
    }
    pub(crate) fn program(&mut self) -> Option<&mut Program> {
        match &mut self.role {
            Role::Program(program) => Some(program),
            _ => None,
        }
    }
    /// Returns the events that the connection waits for. The end of a connection is always among
    /// them, so one that has ended and is not read yet waits for none.
    fn events(&self) -> Option<u32> {
        if self.hung_up.is_some() && !self.reads {
            return None;
        }
        let event = |is_wanted: bool, event: i32| if is_wanted { event as u32 } else { 0 };
        Some(event(self.reads, libc::EPOLLIN) | event(self.wants_room, libc::EPOLLOUT))
    }
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Clients {
    epoll: OwnFd,
    slots: Vec<(u64, Option<Client>)>,
    free: Vec<usize>,
    /// Connections whose wishes may have changed.
    changed: Vec<Key>,
}

impl Clients {
    pub(crate) fn new() -> io::Result<Self> {
        let (slots, free, changed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { epoll: sys::epoll()?, slots, free, changed })
    }
    /// Waits for another descriptor, too.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        sys::epoll_watch(self.epoll.as_fd(), EpollOp::Add, fd, key, libc::EPOLLIN as u32)
    }
    /// Looks at such a descriptor again, or not any more.
    pub(crate) fn set_watched(&self, fd: BorrowedFd<'_>, key: u64, is_watched: bool) {
        let events = if is_watched { libc::EPOLLIN as u32 } else { 0 };
        // An error would be one of arguments: the descriptor is in the list.
        let _ = sys::epoll_watch(self.epoll.as_fd(), EpollOp::Change, fd, key, events);
    }
    /// Returns the descriptor that is readable when one of the connections is ready.
    pub(crate) fn epoll(&self) -> &OwnFd {
        &self.epoll
    }
    /// Checks that one more connection may be added.
    ///
    /// # Errors
    /// There are as many as can be.
    pub(crate) fn check_room(&self) -> io::Result<()> {
        let has_room = !self.free.is_empty() || self.slots.len() < MAX_CLIENTS;
        has_room.then_some(()).ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
    }
    /// Adds a connection.
    ///
    /// # Errors
    /// There are as many as can be; errors of the system.
    pub(crate) fn add(&mut self, socket: Connection, role: Role, pid: u32) -> io::Result<Key> {
        self.check_room()?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        let generation = self.slots[index].0 + 1;
        let key = Key::new(index, generation);
        let mut client = Client::new(socket, role, pid);
        client.told = client.events();
        let added = sys::epoll_watch(
            self.epoll.as_fd(),
            EpollOp::Add,
            client.socket.as_fd(),
            key.bits(),
            client.told.unwrap_or(0),
        );
        if let Err(error) = added {
            self.free.push(index);
            return Err(error);
        }
        self.slots[index] = (generation, Some(client));
        Ok(key)
    }
    pub(crate) fn get(&mut self, key: Key) -> Option<&mut Client> {
        let (generation, client) = self.slots.get_mut(key.index())?;
        client.as_mut().filter(|_| *generation == key.generation())
    }
    /// Returns a connection whose wishes the caller may change.
    pub(crate) fn change(&mut self, key: Key) -> Option<&mut Client> {
        self.changed.push(key);
        self.get(key)
    }
    /// Ends a connection.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Client> {
        self.get(key)?;
        self.free.push(key.index());
        // The descriptor leaves the list when it is closed.
        self.slots[key.index()].1.take()
    }
    /// Tells the system what the connections wait for now.
    pub(crate) fn tell_changes(&mut self) {
        for key in self.changed.drain(..) {
            let found = self.slots.get_mut(key.index());
            let found = found.filter(|(generation, _)| *generation == key.generation());
            let Some(client) = found.and_then(|(_, client)| client.as_mut()) else { continue };
            let events = client.events();
            if events != client.told {
                let op = match (client.told, events) {
                    (_, None) => EpollOp::Remove,
                    (None, Some(_)) => EpollOp::Add,
                    (Some(_), Some(_)) => EpollOp::Change,
                };
                client.told = events;
                let events = events.unwrap_or(0);
                let (epoll, fd) = (self.epoll.as_fd(), client.socket.as_fd());
                // An error would be one of arguments; the connection then ends by its next use.
                let _ = sys::epoll_watch(epoll, op, fd, key.bits(), events);
            }
        }
    }
}

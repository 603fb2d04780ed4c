//! Cables over TCP: the frames of a cable whose other end is in another fabric process.
//!
//! A stream of records in each direction, numbers with the low byte first:
//!
//! ```text
//!  byte   0      1..2     3
//!       +------+--------+----------------------------------------------------+
//!       | kind | length | hello, signal, flow control, or packet LRH to VCRC |
//!       +------+--------+----------------------------------------------------+
//! ```
//!
//! The cable is plugged in when both ends have said hello, and pulled out when the connection ends.
//! What comes in is checked as on any cable: credits, CRCs, lengths. Records that are none end the
//! connection. There is no encryption and no password: whoever can connect is part of the fabric.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use vernic_fabric::Time;
use vernic_fabric::link::{Frame, Signal};
use vernic_fabric::subnet::{NodeId, OutsideFrame, Subnet};
use vernic_sys::{self as sys, EpollOp, OwnFd};
use vernic_wire::{FlowControl, LinkPacket, PortNum};

use crate::door::is_exhausted;

/// The key of the first cable in the list of descriptors; keys of the server are below.
const FIRST_KEY: u64 = 1024;

/// Most cables.
const MAX_CABLES: usize = 256;

/// Bytes that wait to be sent, at most. Further frames stay in the subnet: credits bound them.
const MAX_OUTBOX: usize = 1 << 20;

/// Bytes that are received at a time.
const INBOX: usize = 64 * 1024;

/// Receives in one turn, at most.
const READS_PER_TURN: usize = 16;

const HEAD: usize = 3;
const HELLO: u8 = 0;
const SIGNAL: u8 = 1;
const FLOW_CONTROL: u8 = 2;
const PACKET: u8 = 3;

/// What a hello says: the protocol and its version.
const MAGIC: &[u8] = b"VNCABLE1";

/// What is known of a connection.
#[derive(Debug)]
enum Stage {
    /// Waits for the other end to connect.
    Listens(OwnFd),
    /// Is being connected.
    Connects(OwnFd),
    /// Is connected; the other end has not said hello yet.
    Connected(OwnFd),
    /// Carries frames.
    Carries(OwnFd),
    /// Has ended, for this reason.
    Ended(String),
}

/// A cable.
#[derive(Debug)]
struct Cable {
    node: NodeId,
    port: PortNum,
    address: SocketAddr,
    stage: Stage,
    /// The socket that listens, while a connection of it carries frames.
    door: Option<OwnFd>,
    /// Whether the socket that listens is not looked at for a while, for want of descriptors.
    door_rests: bool,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    /// Whether the system was told to say when there is room.
    wants_room: bool,
    /// Until when the other end of a new connection must have said what it is.
    hello_until: Time,
}

/// All cables.
#[derive(Debug, Default)]
pub(crate) struct Cables(Vec<Cable>);

/// How long the other end of a new connection may say nothing, in nanoseconds. A fabric process
/// says what it is at once; a scanner of ports says nothing, and would keep others out.
const HELLO_NS: u64 = 2_000_000_000;

/// The connection is to end, for this reason.
struct End(String);

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl Cables {
    /// Begins to connect a port to the port that listens at an address, or to listen there. A cable
    /// that was at the port is replaced.
    ///
    /// # Errors
    /// Errors of the system, and too many cables.
    pub(crate) fn add(
        &mut self,
        (node, port): (NodeId, PortNum),
        address: SocketAddr,
        listens: bool,
        subnet: &mut Subnet,
        epoll: BorrowedFd<'_>,
        now: Time,
    ) -> Result<(), String> {
        let place = self.0.iter().position(|cable| (cable.node, cable.port) == (node, port));
        if place.is_none() && self.0.len() >= MAX_CABLES {
            return Err(format!("there are {MAX_CABLES} cables over TCP, as many as can be"));
        }
        subnet.set_outside(node, port, false, now).map_err(|error| error.to_string())?;
        let at = place.unwrap_or(self.0.len());
        if let Some(old) = place.and_then(|at| self.0.get_mut(at)) {
            // Its sockets close first: the new one may listen at the same address.
            old.stage = Stage::Ended("another cable was to take its place".to_owned());
            old.door = None;
        }
        let socket = open(address, listens).map_err(|error| format!("{address}: {error}"))?;
        let events = if listens { libc::EPOLLIN } else { libc::EPOLLOUT };
        watch(epoll, EpollOp::Add, &socket, FIRST_KEY + at as u64, events as u32)
            .map_err(|error| error.to_string())?;
        let stage = if listens { Stage::Listens(socket) } else { Stage::Connects(socket) };
        let (inbox, outbox) = (Vec::new(), VecDeque::new());
        let (door, door_rests, wants_room) = (None, false, false);
        let hello_until = now;
        let cable = Cable {
            node,
            port,
            address,
            stage,
            door,
            door_rests,
            inbox,
            outbox,
            wants_room,
            hello_until,
        };
        match place {
            Some(at) => self.0[at] = cable,
            None => self.0.push(cable),
        }
        Ok(())
    }
    /// Whether a key of the list of descriptors is of a cable.
    pub(crate) fn has_key(key: u64) -> bool {
        (FIRST_KEY..FIRST_KEY + MAX_CABLES as u64).contains(&key)
    }
    /// Handles what a cable is ready for.
    pub(crate) fn handle(
        &mut self,
        subnet: &mut Subnet,
        epoll: BorrowedFd<'_>,
        key: u64,
        events: u32,
        now: Time,
    ) {
        let at = key.checked_sub(FIRST_KEY).map(|at| at as usize);
        let Some(cable) = at.and_then(|at| self.0.get_mut(at)) else { return };
        if let Err(End(reason)) = cable.handle(subnet, epoll, key, events, now) {
            cable.end(subnet, epoll, key, reason, now);
        }
    }
    /// Looks again at doors that were left alone for want of descriptors.
    pub(crate) fn look_at_doors(&mut self, epoll: BorrowedFd<'_>) {
        for (key, cable) in (FIRST_KEY..).zip(&mut self.0) {
            if std::mem::take(&mut cable.door_rests)
                && let Stage::Listens(door) = &cable.stage
            {
                // An error would be one of arguments: the door is in the list.
                let _ = watch(epoll, EpollOp::Change, door, key, libc::EPOLLIN as u32);
            }
        }
    }
    /// Sends the frames that leave the subnet.
    pub(crate) fn transmit(&mut self, subnet: &mut Subnet, epoll: BorrowedFd<'_>, now: Time) {
        for (key, cable) in (FIRST_KEY..).zip(&mut self.0) {
            let is_late = matches!(cable.stage, Stage::Connected(_)) && now >= cable.hello_until;
            let sent = match is_late {
                true => Err(End("the other end says nothing".to_owned())),
                false => cable.transmit(subnet, epoll, key),
            };
            if let Err(End(reason)) = sent {
                cable.end(subnet, epoll, key, reason, now);
            }
        }
    }
    /// Returns what is to be said of the cable at a port.
    pub(crate) fn peer(&self, node: NodeId, port: PortNum) -> Option<String> {
        let cable = self.0.iter().find(|cable| (cable.node, cable.port) == (node, port))?;
        let state = match &cable.stage {
            Stage::Listens(_) => "listens",
            Stage::Connects(_) | Stage::Connected(_) => "connects",
            Stage::Carries(_) => "carries",
            Stage::Ended(reason) => reason,
        };
        Some(format!("tcp {}: {state}", cable.address))
    }
}

fn open(address: SocketAddr, listens: bool) -> io::Result<OwnFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::socket(family, libc::SOCK_STREAM, 0)?;
    if listens {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        sys::bind(socket.as_fd(), &address)?;
        sys::listen(socket.as_fd(), 1)?;
        return Ok(socket);
    }
    match sys::connect(socket.as_fd(), &address) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

fn watch(
    epoll: BorrowedFd<'_>,
    op: EpollOp,
    socket: &OwnFd,
    key: u64,
    events: u32,
) -> io::Result<()> {
    sys::epoll_watch(epoll, op, socket.as_fd(), key, events)
}

impl Cable {
    fn handle(
        &mut self,
        subnet: &mut Subnet,
        epoll: BorrowedFd<'_>,
        key: u64,
        events: u32,
        now: Time,
    ) -> Result<(), End> {
        match std::mem::replace(&mut self.stage, Stage::Ended(String::new())) {
            Stage::Listens(door) => match sys::accept(door.as_fd()) {
                Ok(socket) => {
                    // One connection at a time: the door is looked at again when it has ended.
                    watch(epoll, EpollOp::Remove, &door, key, 0)?;
                    self.door = Some(door);
                    watch(epoll, EpollOp::Add, &socket, key, libc::EPOLLIN as u32)?;
                    self.greet(socket, now)
                }
                Err(error) => {
                    if is_exhausted(&error) {
                        watch(epoll, EpollOp::Change, &door, key, 0)?;
                        self.door_rests = true;
                    }
                    self.stage = Stage::Listens(door);
                    Ok(())
                }
            },
            Stage::Connects(socket) => {
                let error = sys::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)?;
                if error != 0 {
                    return Err(io::Error::from_raw_os_error(error).into());
                }
                watch(epoll, EpollOp::Change, &socket, key, libc::EPOLLIN as u32)?;
                self.greet(socket, now)
            }
            stage @ (Stage::Connected(_) | Stage::Carries(_)) => {
                self.stage = stage;
                if events & libc::EPOLLOUT as u32 != 0 {
                    self.flush()?;
                    self.tell_wishes(epoll, key)?;
                }
                self.read(subnet, now)
            }
            stage @ Stage::Ended(_) => {
                self.stage = stage;
                Ok(())
            }
        }
    }
    fn greet(&mut self, socket: OwnFd, now: Time) -> Result<(), End> {
        self.hello_until = now + HELLO_NS;
        sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        self.stage = Stage::Connected(socket);
        self.inbox.clear();
        self.outbox.clear();
        self.put(HELLO, MAGIC);
        self.flush()
    }
    fn socket(&self) -> Option<&OwnFd> {
        match &self.stage {
            Stage::Connected(socket) | Stage::Carries(socket) => Some(socket),
            _ => None,
        }
    }
    fn put(&mut self, kind: u8, bytes: &[u8]) {
        let [low, high] = (bytes.len() as u16).to_le_bytes();
        self.outbox.extend([kind, low, high]);
        self.outbox.extend(bytes);
    }
    fn flush(&mut self) -> Result<(), End> {
        loop {
            let Some(socket) = self.socket() else { return Ok(()) };
            let (first, _) = self.outbox.as_slices();
            if first.is_empty() {
                return Ok(());
            }
            match sys::send(socket.as_fd(), first) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if sys::is_for_later(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
    fn tell_wishes(&mut self, epoll: BorrowedFd<'_>, key: u64) -> Result<(), End> {
        let wants_room = !self.outbox.is_empty();
        if std::mem::replace(&mut self.wants_room, wants_room) != wants_room
            && let Some(socket) = self.socket()
        {
            let room = if wants_room { libc::EPOLLOUT } else { 0 };
            watch(epoll, EpollOp::Change, socket, key, (libc::EPOLLIN | room) as u32)?;
        }
        Ok(())
    }
    fn transmit(
        &mut self,
        subnet: &mut Subnet,
        epoll: BorrowedFd<'_>,
        key: u64,
    ) -> Result<(), End> {
        if !matches!(self.stage, Stage::Carries(_)) {
            return Ok(());
        }
        while self.outbox.len() < MAX_OUTBOX {
            match subnet.poll_outside(self.node, self.port) {
                Some(OutsideFrame::Signal(signal)) => self.put(SIGNAL, &[signal_code(signal)]),
                Some(OutsideFrame::FlowControl(bytes)) => self.put(FLOW_CONTROL, &bytes),
                Some(OutsideFrame::Packet(bytes)) => self.put(PACKET, &bytes),
                None => break,
            }
        }
        self.flush()?;
        self.tell_wishes(epoll, key)
    }
    fn read(&mut self, subnet: &mut Subnet, now: Time) -> Result<(), End> {
        for _ in 0..READS_PER_TURN {
            let mut inbox = std::mem::take(&mut self.inbox);
            let Some(socket) = self.socket() else { return Ok(()) };
            let had = inbox.len();
            inbox.resize(had + INBOX, 0);
            let received = sys::recv(socket.as_fd(), &mut inbox[had..]);
            inbox.truncate(had + *received.as_ref().unwrap_or(&0));
            self.inbox = inbox;
            match received {
                Ok(0) => return Err(End("the other end has closed the connection".to_owned())),
                Ok(_) => self.take_records(subnet, now)?,
                Err(error) if sys::is_for_later(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
    /// Takes the records that are complete.
    fn take_records(&mut self, subnet: &mut Subnet, now: Time) -> Result<(), End> {
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = inbox.as_slice();
        while let Some((&[kind, low, high], behind)) = rest.split_first_chunk::<HEAD>() {
            let len = usize::from(u16::from_le_bytes([low, high]));
            if len > LinkPacket::MAX_LEN {
                return Err(End("the other end sends records that are none".to_owned()));
            }
            let Some((bytes, behind)) = behind.split_at_checked(len) else { break };
            rest = behind;
            self.take_record(subnet, kind, bytes, now)?;
        }
        self.inbox = rest.to_vec();
        Ok(())
    }
    fn take_record(
        &mut self,
        subnet: &mut Subnet,
        kind: u8,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), End> {
        let end = (self.node, self.port);
        let frame = match (kind, &self.stage) {
            (HELLO, Stage::Connected(_)) if bytes == MAGIC => {
                let stage = std::mem::replace(&mut self.stage, Stage::Ended(String::new()));
                if let Stage::Connected(socket) = stage {
                    self.stage = Stage::Carries(socket);
                }
                let plugged = subnet.set_outside(end.0, end.1, true, now);
                return plugged.map_err(|error| End(error.to_string()));
            }
            (SIGNAL, Stage::Carries(_)) => match bytes {
                [code] => signal(*code).map(Frame::Signal),
                _ => None,
            },
            (FLOW_CONTROL, Stage::Carries(_)) if bytes.len() == FlowControl::LEN => {
                Some(Frame::FlowControl(bytes))
            }
            (PACKET, Stage::Carries(_)) => Some(Frame::Packet(bytes)),
            _ => None,
        };
        let frame = frame.ok_or_else(|| {
            End("the other end is no fabric of this version, or sends nonsense".to_owned())
        })?;
        subnet.handle_outside(end.0, end.1, frame, now);
        Ok(())
    }
    /// Pulls the cable out. One that listens waits for the next connection.
    fn end(
        &mut self,
        subnet: &mut Subnet,
        epoll: BorrowedFd<'_>,
        key: u64,
        reason: String,
        now: Time,
    ) {
        tracing::info!(address = %self.address, reason, "cable over TCP ended");
        // The port took the cable before, so this is no error.
        let _ = subnet.set_outside(self.node, self.port, false, now);
        self.wants_room = false;
        self.stage = match self.door.take() {
            Some(door) if watch(epoll, EpollOp::Add, &door, key, libc::EPOLLIN as u32).is_ok() => {
                Stage::Listens(door)
            }
            _ => Stage::Ended(reason),
        };
    }
}

const fn signal_code(signal: Signal) -> u8 {
    match signal {
        Signal::Silent => 0,
        Signal::Polling => 1,
        Signal::Ready => 2,
    }
}

const fn signal(code: u8) -> Option<Signal> {
    match code {
        0 => Some(Signal::Silent),
        1 => Some(Signal::Polling),
        2 => Some(Signal::Ready),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_codes() {
        for code in 0..3 {
            assert_eq!(signal(code).map(signal_code), Some(code));
        }
        assert_eq!(signal(3), None);
    }
}

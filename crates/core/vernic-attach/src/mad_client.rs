//! A program that sends and receives management datagrams: the program's end of a management
//! connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vernic_sys::{self as sys, EpollOp, OwnFd, PollFd};
use vernic_wire::PortNum;

use crate::MAX_MESSAGE;
use crate::connection::Connection;
use crate::error::AttachError;
use crate::hello::Purpose;
use crate::mad::{AgentId, MadAnswer, MadRequest, Registration};
use crate::report::AdapterReport;
use crate::user_mad::{Assembler, UserMad};

/// Most hosts of a fabric: nodes are bounded by LIDs, 0x0001 to 0xBFFF.
const MAX_HOSTS: usize = 0xBFFF;

/// A connection that asks what there is, and opens ports.
#[derive(Debug)]
pub struct MadClient(Connection);

impl MadClient {
    /// Connects to the fabric called `fabric`.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn connect(fabric: &str) -> Result<Self, AttachError> {
        Connection::connect(fabric, Purpose::Mad).map(Self)
    }
    /// Asks over a connection that is there.
    pub const fn over(connection: Connection) -> Self {
        Self(connection)
    }
    /// Returns the names of all hosts, in the order of the plan.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn hosts(&self) -> Result<Vec<String>, AttachError> {
        let mut all = Vec::new();
        loop {
            let request = MadRequest::Hosts { from: all.len() as u32 };
            match self.ask(&request)? {
                MadAnswer::Hosts { total, names } if all.len() + names.len() <= MAX_HOSTS => {
                    let is_end = names.is_empty();
                    all.extend(names);
                    if is_end || all.len() >= total as usize {
                        return Ok(all);
                    }
                }
                _ => return Err(unexpected("an answer to a request for hosts")),
            }
        }
    }
    /// Returns the adapter of a host, and its ports, as they are now.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn adapter(&self, host: &str) -> Result<AdapterReport, AttachError> {
        match self.ask(&MadRequest::Adapter { host })? {
            MadAnswer::Adapter(adapter) => Ok(*adapter),
            _ => Err(unexpected("an answer to a request for an adapter")),
        }
    }
    /// Opens a port. Agents of subnet management may be registered if `subnet_management` is true.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn open(
        self,
        host: &str,
        port: PortNum,
        subnet_management: bool,
    ) -> Result<MadPort, AttachError> {
        self.0.request(&MadRequest::Open { host, port, subnet_management }.emit())?;
        let (answer, datagrams) = self.0.answer_with_connection()?;
        match (MadAnswer::parse(&answer), datagrams) {
            (Some(MadAnswer::Done), Some(datagrams)) => {
                MadPort::new(self, datagrams).map_err(AttachError::io("opening a port"))
            }
            _ => Err(unexpected("an answer to the opening of a port")),
        }
    }
    fn ask(&self, request: &MadRequest<'_>) -> Result<MadAnswer, AttachError> {
        self.0.request(&request.emit())?;
        MadAnswer::parse(&self.0.answer()?).ok_or(unexpected("an answer"))
    }
    fn expect_done(&self, request: &MadRequest<'_>) -> Result<(), AttachError> {
        match self.ask(request)? {
            MadAnswer::Done => Ok(()),
            _ => Err(unexpected("an answer")),
        }
    }
}

/// An open port. Its agents, and the datagrams that they wait for, end when this is dropped.
///
/// One thread may receive while another one sends. Requests are made by one thread at a time, and
/// so are sends.
#[derive(Debug)]
pub struct MadPort {
    pub(crate) requests: MadClient,
    pub(crate) datagrams: Connection,
    /// Readable when there is a datagram: in the connection, or one that was put back.
    ready: OwnFd,
    /// Readable when a datagram was put back.
    bell: OwnFd,
    incoming: Mutex<Incoming>,
}

#[derive(Debug)]
struct Incoming {
    /// The datagram of which not all messages have come.
    assembler: Assembler,
    /// The place of the next message.
    buf: Vec<u8>,
    /// A datagram that was put back.
    held: Option<UserMad>,
}

impl MadPort {
    fn new(requests: MadClient, datagrams: Connection) -> io::Result<Self> {
        let (ready, bell) = (sys::epoll()?, sys::eventfd()?);
        for fd in [datagrams.as_fd(), bell.as_fd()] {
            sys::epoll_watch(ready.as_fd(), EpollOp::Add, fd, 0, libc::EPOLLIN as u32)?;
        }
        let (assembler, buf) = (Assembler::default(), vec![0; MAX_MESSAGE]);
        let incoming = Mutex::new(Incoming { assembler, buf, held: None });
        Ok(Self { requests, datagrams, ready, bell, incoming })
    }
    /// Registers an agent.
    ///
    /// # Errors
    /// [`AttachError::Refused`], of the kind `Taken` if another agent of this port takes one of the
    /// methods.
    pub fn register(&self, registration: &Registration) -> Result<AgentId, AttachError> {
        match self.requests.ask(&MadRequest::Register(*registration))? {
            MadAnswer::Registered(agent) => Ok(agent),
            _ => Err(unexpected("an answer to a registration")),
        }
    }
    /// Ends an agent.
    ///
    /// # Errors
    /// [`AttachError::Refused`] if there is none of this number.
    pub fn unregister(&self, agent: AgentId) -> Result<(), AttachError> {
        self.requests.expect_done(&MadRequest::Unregister(agent))
    }
    /// Says in the capabilities of the port that there is a subnet manager, or that there is none.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn set_issm(&self, on: bool) -> Result<(), AttachError> {
        self.requests.expect_done(&MadRequest::Issm(on))
    }
    /// Sends a datagram; waits for room in the connection.
    ///
    /// # Errors
    /// [`AttachError::Silent`], [`AttachError::Ended`], [`AttachError::TooLong`].
    pub fn send(&self, mad: &UserMad) -> Result<(), AttachError> {
        mad.messages()?.try_for_each(|message| self.datagrams.send_waiting(&message))
    }
    /// Receives the next datagram; never waits.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or if it is not complete yet. Others mean the end of the
    /// connection.
    pub fn recv(&self) -> io::Result<UserMad> {
        let mut incoming = self.incoming();
        let Incoming { assembler, buf, held } = &mut *incoming;
        if let Some(mad) = held.take() {
            // It was raised once, and is readable until it is read.
            let _ = sys::read(self.bell.as_fd(), &mut [0; 8]);
            return Ok(mad);
        }
        // Each round takes a message, and a datagram has a bounded number of them.
        loop {
            let message = self.datagrams.recv(buf)?;
            match assembler.handle(message) {
                Ok(Some(mad)) => return Ok(mad),
                Ok(None) => {}
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
    /// Puts back the datagram that was received last: it is received again.
    pub fn put_back(&self, mad: UserMad) {
        self.incoming().held = Some(mad);
        // The one error possible is a counter at its limit.
        let _ = sys::write(self.bell.as_fd(), &1_u64.to_ne_bytes());
    }
    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits until there is something to receive, or the connection has ended, or `timeout` is over
    /// (`None`: no limit). Returns whether there is something.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        sys::poll(&mut [PollFd::readable(self.ready.as_raw_fd())], timeout).map(|ready| ready > 0)
    }
}

/// The descriptor that is readable when there is a datagram.
impl AsFd for MadPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

const fn unexpected(what: &'static str) -> AttachError {
    AttachError::Malformed { what }
}

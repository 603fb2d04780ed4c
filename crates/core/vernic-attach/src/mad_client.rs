//! A program that sends and receives management datagrams: the program's end of a management
//! connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
                let incoming = (Assembler::default(), vec![0; MAX_MESSAGE]);
                Ok(MadPort { requests: self, datagrams, incoming: Mutex::new(incoming) })
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
    /// The datagram of which not all messages have come, and the place of the next one.
    incoming: Mutex<(Assembler, Vec<u8>)>,
}

impl MadPort {
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
    /// Returns the adapter of a host, and its ports, as they are now.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn adapter(&self, host: &str) -> Result<AdapterReport, AttachError> {
        self.requests.adapter(host)
    }
    /// Sends a datagram; waits for room in the connection.
    ///
    /// # Errors
    /// [`AttachError::Silent`], [`AttachError::Ended`].
    pub fn send(&self, mad: &UserMad) -> Result<(), AttachError> {
        mad.messages().try_for_each(|message| self.datagrams.send_waiting(&message))
    }
    /// Receives the next datagram; never waits.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or if it is not complete yet. Others mean the end of the
    /// connection.
    pub fn recv(&self) -> io::Result<UserMad> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let (assembler, buf) = &mut *incoming;
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
    /// Waits until there is something to receive, or the connection has ended, or `timeout` is over
    /// (`None`: no limit). Returns whether there is something.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.datagrams.wait_readable(timeout)
    }
}

/// The descriptor that is readable when there is a datagram.
impl AsFd for MadPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.datagrams.as_fd()
    }
}

const fn unexpected(what: &'static str) -> AttachError {
    AttachError::Malformed { what }
}

//! A program on a host of the fabric: the program's end of a data connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::connection::Connection;
use crate::data::{DataReport, DataRequest, Membership};
use crate::error::AttachError;
use crate::hello::Purpose;
use crate::packets::{PacketBatch, Packets};
use crate::report::{AdapterReport, PortReport};

/// How long the connection is waited for where a link joins a group and leaves it: its queue pairs
/// stand still meanwhile. A fabric process that runs makes room in microseconds.
const BRIEFLY: Duration = Duration::from_secs(1);

/// A program that is attached to an adapter. Its slot, its groups and its packets end when this is
/// dropped.
///
/// [`send`](Self::send) and [`recv`](Self::recv) never block and never allocate. The descriptor is
/// readable when `recv` has something, and when the connection has ended.
#[derive(Debug)]
pub struct DataClient {
    connection: Connection,
    slot: u16,
}

/// What a data connection brings.
#[derive(Clone, Debug)]
pub enum DataEvent<'a> {
    /// Packets that have arrived, LRH to ICRC, each with its port.
    Packets(Packets<'a>),
    /// Something of a port has changed: this is what the port is now.
    Port(Box<PortReport>),
}

impl DataClient {
    /// Attaches this process to the adapter of `host` in the fabric called `fabric`, in `slot` or,
    /// with `None`, in one that is free. Waits for the answer.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(
        fabric: &str,
        host: &str,
        slot: Option<u16>,
    ) -> Result<(Self, AdapterReport), AttachError> {
        Self::attach_over(Connection::connect(fabric, Purpose::Data)?, host, slot)
    }
    /// Attaches over a connection that is there.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_over(
        connection: Connection,
        host: &str,
        slot: Option<u16>,
    ) -> Result<(Self, AdapterReport), AttachError> {
        connection.request(&DataRequest::attach(slot, host))?;
        let answer = connection.answer()?;
        match DataReport::parse(&answer) {
            Some(DataReport::Attached { slot, adapter }) => {
                Ok((Self { connection, slot }, adapter))
            }
            _ => Err(AttachError::Malformed { what: "an answer to an attach" }),
        }
    }
    /// Returns the slot: what the QPNs of this program have above their low
    /// [`QPN_INDEX_BITS`](crate::QPN_INDEX_BITS) bits.
    pub const fn slot(&self) -> u16 {
        self.slot
    }
    /// Sends a batch of packets, all or none. An empty batch is not sent.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room: keep the batch, and try again when the descriptor can be
    /// written to. Other errors mean the end of the connection.
    #[inline]
    pub fn send(&self, batch: &PacketBatch) -> io::Result<()> {
        if batch.is_empty() { Ok(()) } else { self.connection.send(batch.message()) }
    }
    /// Receives into `buf`, which should have [`MAX_MESSAGE`](crate::MAX_MESSAGE) bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing. `UnexpectedEof` and all others mean the end of the
    /// connection.
    #[inline]
    pub fn recv<'a>(&self, buf: &'a mut [u8]) -> io::Result<DataEvent<'a>> {
        match DataReport::parse(self.connection.recv(buf)?) {
            Some(DataReport::Packets(packets)) => Ok(DataEvent::Packets(packets)),
            Some(DataReport::Port(port)) => Ok(DataEvent::Port(Box::new(port))),
            Some(DataReport::Attached { .. }) | None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
    /// Waits until there is something to receive, or the connection has ended, or `timeout` is
    /// over. Returns whether there is something.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        self.connection.wait_readable(Some(timeout))
    }
    /// Takes packets of a group from now on, in addition to what the program takes already. The
    /// fabric routes packets of the group here when a subnet manager was asked to as well.
    ///
    /// # Errors
    /// [`AttachError::Silent`], [`AttachError::Ended`].
    pub fn join(&self, membership: Membership) -> Result<(), AttachError> {
        self.connection.send_within(&DataRequest::join(membership), BRIEFLY)
    }
    /// Takes one join back.
    ///
    /// # Errors
    /// [`AttachError::Silent`], [`AttachError::Ended`].
    pub fn leave(&self, membership: Membership) -> Result<(), AttachError> {
        self.connection.send_within(&DataRequest::leave(membership), BRIEFLY)
    }
}

impl AsFd for DataClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

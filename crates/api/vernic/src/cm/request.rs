//! The passive side: from a request to a connection.

use std::net::SocketAddr;

use vernic_cm::EventKind;
use vernic_engine::QpState;

use super::connection::{Connection, checked};
use super::waiting::OwnId;
use super::{CmError, Options};
use crate::service::{Connected, Init, Reset};
use crate::{Device, Qp};

/// A peer that wants to connect. Dropping it rejects it.
#[derive(Debug)]
pub struct Request<S: Connected> {
    own: OwnId,
    device: Device,
    private_data: Vec<u8>,
    service: std::marker::PhantomData<S>,
}

impl<S: Connected> Request<S> {
    pub(super) fn new(own: OwnId, private_data: Vec<u8>) -> Result<Self, CmError> {
        let device = own.device()?;
        Ok(Self { own, device, private_data, service: std::marker::PhantomData })
    }

    /// The device that it came to: the queue pair must be one of it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address and port that it asks for.
    pub fn local_addr(&self) -> SocketAddr {
        self.own.local_addr()
    }

    /// The address and port that it comes from.
    pub fn peer_addr(&self) -> SocketAddr {
        self.own.peer_addr()
    }

    /// What its program says: 56 bytes, those that it did not use are zero.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Rejects it, with at most 148 bytes for its program.
    ///
    /// # Errors
    /// [`CmError::Refused`]: too many bytes, or the peer has given up.
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        Ok(self.own.id.reject(private_data)?)
    }

    /// Brings a queue pair of [`device`](Self::device) to Init: receives may be posted before the
    /// peer can send.
    ///
    /// # Errors
    /// [`CmError::Refused`] for a queue pair of another device. The request is rejected, then, and
    /// the queue pair destroyed.
    pub fn prepare(self, qp: Qp<S, Reset>) -> Result<Incoming<S>, CmError> {
        let Self { own, device, private_data, .. } = self;
        let (attr, mask) = own.id.init_qp_attr(QpState::Init)?;
        let qp = checked(qp, &device)?.step(&attr, mask)?;
        Ok(Incoming { own, qp, private_data })
    }
}

/// A request with the queue pair for it. Dropping it rejects the request.
#[derive(Debug)]
pub struct Incoming<S: Connected> {
    pub(super) own: OwnId,
    qp: Qp<S, Init>,
    private_data: Vec<u8>,
}

impl<S: Connected> Incoming<S> {
    /// The queue pair.
    pub fn qp(&self) -> &Qp<S, Init> {
        &self.qp
    }

    /// Accepts: brings the queue pair up, answers, and waits until the peer is ready.
    ///
    /// # Errors
    /// [`CmError`]: a value out of range, a peer that has given up or does not answer. The queue
    /// pair is destroyed.
    pub fn accept(self, options: &Options<'_>) -> Result<Connection<S>, CmError> {
        let answered = self.answer(options)?;
        answered.own().wait_for(&[EventKind::Established], options.timeout)?;
        Ok(answered)
    }

    /// The connection as it is once the peer says that it is ready.
    pub(super) fn answer(self, options: &Options<'_>) -> Result<Connection<S>, CmError> {
        let Self { own, qp, private_data } = self;
        let connection = Connection::up(own, qp, private_data, options)?;
        connection.own().id.accept(&connection.param(options))?;
        Ok(connection)
    }
}

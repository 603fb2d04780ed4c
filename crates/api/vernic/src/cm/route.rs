//! The active side: from a route to a connection.

use std::marker::PhantomData;
use std::net::SocketAddr;

use vernic_cm::{ConnParam, EventKind};
use vernic_engine::QpState;

use super::connection::{Connection, checked, qp_param};
use super::waiting::{OwnId, data_of};
use super::{CmError, Options};
use crate::service::{Connected, Init, Reset};
use crate::{Device, Qp};

/// The way to a peer.
#[derive(Debug)]
pub struct Route<S: Connected> {
    own: OwnId,
    device: Device,
    service: PhantomData<S>,
}

impl<S: Connected> Route<S> {
    pub(super) fn new(own: OwnId) -> Result<Self, CmError> {
        let device = own.device()?;
        Ok(Self { own, device, service: PhantomData })
    }

    /// The device that has the source address: the queue pair must be one of it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The source address, and the port that the peer sees.
    pub fn local_addr(&self) -> SocketAddr {
        self.own.local_addr()
    }

    /// Where it leads.
    pub fn peer_addr(&self) -> SocketAddr {
        self.own.peer_addr()
    }

    /// Brings a queue pair of [`device`](Self::device) to Init: receives may be posted before the
    /// peer can send.
    ///
    /// # Errors
    /// [`CmError::Refused`] for a queue pair of another device, which is destroyed.
    pub fn prepare(self, qp: Qp<S, Reset>) -> Result<Outgoing<S>, CmError> {
        let (attr, mask) = self.own.id.init_qp_attr(QpState::Init)?;
        let qp = checked(qp, &self.device)?.step(&attr, mask)?;
        Ok(Outgoing { own: self.own, qp })
    }
}

/// A route with the queue pair for it.
#[derive(Debug)]
pub struct Outgoing<S: Connected> {
    pub(super) own: OwnId,
    qp: Qp<S, Init>,
}

impl<S: Connected> Outgoing<S> {
    /// The queue pair.
    pub fn qp(&self) -> &Qp<S, Init> {
        &self.qp
    }

    /// Connects: asks the peer, waits for its answer, and brings the queue pair up.
    ///
    /// # Errors
    /// [`CmError`]: a value out of range, a peer that rejects or does not answer. The queue pair is
    /// destroyed.
    pub fn connect(self, options: &Options<'_>) -> Result<Connection<S>, CmError> {
        self.ask(options)?;
        let event = self.own.wait_for(&[EventKind::ConnectResponse], options.timeout)?;
        self.finish(data_of(event.param), options)
    }

    pub(super) fn ask(&self, options: &Options<'_>) -> Result<(), CmError> {
        let id = &self.own.id;
        let path = |(ours, theirs)| id.alternate_path(ours, theirs);
        let alternate = options.alternate.and_then(path);
        Ok(id.connect(&ConnParam { alternate, ..qp_param(&self.qp, options) })?)
    }

    /// The peer has accepted.
    pub(super) fn finish(
        self,
        private_data: Vec<u8>,
        options: &Options<'_>,
    ) -> Result<Connection<S>, CmError> {
        let connection = Connection::up(self.own, self.qp, private_data, options)?;
        connection.own().id.establish()?;
        Ok(connection)
    }
}

//! Ids over iWARP: a port is a TCP socket, and a connection is a stream that the queue pair gets.

use std::io::ErrorKind;
use std::net::SocketAddr;

use vernic_engine::{AttrMask, QpAttr, QpState, QpType};
use vernic_io::tcp::Bound;

use crate::device::Device;
use crate::error::Error;
use crate::event::{ConnInfo, EventKind, Param};
use crate::id::apply::Outcome;
use crate::id::connect::limited;
use crate::id::connection::{Connection, Phase};
use crate::id::{Id, Inner};
use crate::param::ConnParam;
use crate::param::Depths;
use crate::ports::Binding;
use crate::registry::StreamEvent;
use crate::state::State;
use crate::streams::{ConnectRequest, MAX_PRIVATE_DATA};
use crate::sync::lock;

impl Id {
    /// Checks that iWARP has the id's type of queue pair.
    ///
    /// # Errors
    /// [`Error::NotOverStreams`].
    pub(crate) fn check_streams(&self) -> Result<(), Error> {
        match self.qp_type() {
            QpType::Rc => Ok(()),
            qp_type => Err(Error::NotOverStreams { port_space: self.port_space(), qp_type }),
        }
    }

    /// Binds a TCP port and returns its number; the id keeps the socket.
    pub(super) fn take_socket(
        &self,
        inner: &mut Inner,
        addr: SocketAddr,
        binding: Binding,
    ) -> Result<u16, Error> {
        self.check_streams()?;
        let space = self.port_space();
        let in_use = || {
            let by = "another socket of this host (`ss -tanp` names the process)".to_owned();
            Error::InUse { port_space: space, addr, by, everywhere: addr.ip().is_unspecified() }
        };
        let os = |source: std::io::Error| match source.kind() {
            ErrorKind::AddrInUse => in_use(),
            _ => Error::Os { what: "bind a TCP socket", source },
        };
        let socket = Bound::new(&addr, binding.af_only, binding.reuse).map_err(os)?;
        let port = socket.local_addr().map_err(os)?.port();
        lock(&self.shared.ports).bind(space, port, binding, |_| false)?;
        inner.socket = Some(socket);
        Ok(port)
    }

    /// Listens at the id's socket.
    pub(super) fn listen_at_socket(
        &self,
        inner: &mut Inner,
        socket: Bound,
        local: SocketAddr,
    ) -> Result<(), Error> {
        let backlog = inner.backlog as usize;
        set_tos(&socket, inner.options.tos);
        match self.shared.streams.listen(self.key(), socket, local.port(), backlog) {
            Ok(listener) => {
                inner.listener = Some(listener);
                Ok(())
            }
            Err((socket, error)) => {
                inner.socket = socket;
                Err(match error {
                    Error::Os { source, .. } if source.kind() == ErrorKind::AddrInUse => {
                        let by = "another socket of this host (`ss -tlnp` names it)".to_owned();
                        let everywhere = local.ip().is_unspecified();
                        Error::InUse { port_space: self.port_space(), addr: local, by, everywhere }
                    }
                    error => error,
                })
            }
        }
    }

    pub(super) fn connect_stream(
        &self,
        inner: &mut Inner,
        device: &Device,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let call = "connect";
        inner.qp.as_ref().ok_or(Error::NoQp { call })?;
        let Some(peer) = inner.peer else { return Err(Error::NoDevice { call }) };
        let attr = device.context.device_attr();
        let most = Depths { ird: attr.max_qp_rd_atom, ord: attr.max_qp_init_rd_atom };
        let depths = depths(call, param, most, most)?;
        let (given, kind) = (param.private_data.len(), "a connection");
        if given > MAX_PRIVATE_DATA {
            return Err(Error::TooLong { call, kind, given, max: MAX_PRIVATE_DATA });
        }
        self.shared.start_keeper()?;
        let socket = inner.socket.take();
        let socket =
            socket.ok_or_else(|| self.wrong_state(inner, call, "has not connected before"))?;
        set_tos(&socket, inner.options.tos);
        let (id, private_data) = (self.key(), param.private_data);
        let asked = self.shared.streams.connect(ConnectRequest {
            id,
            device,
            socket,
            peer,
            depths,
            private_data,
        });
        let conn = asked.inspect_err(|_| self.retake_socket(inner))?;
        inner.connection = Some(Connection::over_stream(conn, Phase::Asking, depths));
        inner.state = State::Connect;
        Ok(())
    }

    /// Binds a new socket to the id's address after a connection could not be started and its
    /// socket is gone, so that the id may try again.
    fn retake_socket(&self, inner: &mut Inner) {
        let (Some(local), Some(binding)) = (inner.local, inner.bound) else { return };
        match Bound::new(&local, binding.af_only, binding.reuse) {
            Ok(socket) => inner.socket = Some(socket),
            Err(error) => tracing::warn!(id = ?self, %local, %error, "the port is lost"),
        }
    }

    pub(super) fn accept_stream(
        &self,
        inner: &mut Inner,
        device: &Device,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        let call = "accept";
        let qp = inner.qp.clone().ok_or(Error::NoQp { call })?;
        let Some(mut connection) = inner.connection else {
            return Err(self.wrong_state(inner, call, "came with a request"));
        };
        let attr = device.context.device_attr();
        let most = Depths { ird: attr.max_qp_rd_atom, ord: attr.max_qp_init_rd_atom };
        let usual = Depths { ird: connection.responder_resources, ord: connection.initiator_depth };
        let depths = depths(call, param, usual, most)?;
        let before = inner.connection;
        connection.responder_resources = depths.ird;
        connection.initiator_depth = depths.ord;
        connection.phase = Phase::Accepted;
        inner.connection = Some(connection);
        // Init is repeated, because only now the access rights of the peer are known.
        let accepted = self.bring(inner, &qp, QpState::Init).and_then(|()| {
            let streams = &self.shared.streams;
            streams.accept(connection.conn, depths, param.private_data, &qp)
        });
        if let Err(error) = accepted {
            inner.connection = before;
            // The program may try again with less private data.
            if !matches!(error, Error::TooLong { .. }) {
                inner.qp_to_error();
            }
            return Err(error);
        }
        Ok(())
    }

    /// Does the work that belongs to an event of a stream.
    pub(super) fn apply_stream(&self, inner: &mut Inner, event: StreamEvent) -> Option<Outcome> {
        match event {
            StreamEvent::Replied => self.apply_replied(inner),
            StreamEvent::Established => {
                inner.connection.as_mut()?.phase = Phase::Up;
                Some((EventKind::Established, 0, Param::Conn(ConnInfo::default())))
            }
            StreamEvent::Failed { kind, status, private_data } => {
                inner.fail()?;
                let info = ConnInfo { private_data, ..ConnInfo::default() };
                Some((kind, status, Param::Conn(info)))
            }
            StreamEvent::Ended if inner.connection?.phase == Phase::Accepted => {
                inner.fail()?;
                Some((EventKind::ConnectError, -libc::ECONNRESET, Param::None))
            }
            StreamEvent::Ended => Self::apply_disconnected(inner, 0),
        }
    }

    /// The peer accepted: the queue pair gets the stream, and so reaches RTS.
    fn apply_replied(&self, inner: &mut Inner) -> Option<Outcome> {
        let mut connection = inner.connection?;
        let started = match inner.qp.clone() {
            // Init is repeated, because only now the access rights of the peer are known.
            Some(qp) => self
                .bring(inner, &qp, QpState::Init)
                .and_then(|()| self.shared.streams.start(connection.conn, &qp)),
            None => Err(Error::NoQp { call: "connect" }),
        };
        match started {
            Ok(info) => {
                connection.phase = Phase::Up;
                inner.connection = Some(connection);
                Some((EventKind::Established, 0, Param::Conn(info)))
            }
            Err(error) => {
                tracing::warn!(id = ?self, %error, "the queue pair cannot have the connection");
                self.shared.streams.destroy(connection.conn);
                inner.fail();
                Some((EventKind::ConnectError, -error.errno(), Param::None))
            }
        }
    }
}

impl Inner {
    /// Closes the stream of the queue pair, if there is one: posted work is completed, and the peer
    /// sees the end of the stream.
    pub(super) fn close_stream(&self) {
        if let Some(qp) = &self.qp {
            let attr = QpAttr { state: QpState::Sqd, ..QpAttr::default() };
            // A queue pair in Error has closed its stream already.
            let _ = qp.modify(&attr, AttrMask::STATE);
        }
    }
}

/// Sets the type of service of a socket. A system that refuses (none does) sends without it.
fn set_tos(socket: &Bound, tos: u8) {
    if tos != 0
        && let Err(error) = socket.set_tos(tos)
    {
        tracing::warn!(tos, %error, "the type of service is not set");
    }
}

/// The depths that the program asks for, checked against the device's limits.
fn depths(
    call: &'static str,
    param: &ConnParam<'_>,
    usual: Depths,
    most: Depths,
) -> Result<Depths, Error> {
    let ird = limited(call, "responder_resources", param.responder_resources, usual.ird, most.ird)?;
    let ord = limited(call, "initiator_depth", param.initiator_depth, usual.ord, most.ord)?;
    Ok(Depths { ird, ord })
}

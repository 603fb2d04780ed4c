//! Connecting, accepting, rejecting, disconnecting.

use std::net::SocketAddr;
use std::sync::Arc;

use vernic_engine::{AttrMask, CmCallError, Qkey, QpAttr, QpState, QpType, Qpn};
use vernic_proto::cm::{AcceptParams, CmError, ConnId, ConnectParams, SidrParams, SidrReply};
use vernic_wire::cm::{CmaHeader, FailoverAccepted, RejReason, SidrStatus};

use crate::device::Agent;
use crate::device::Device;
use crate::error::Error;
use crate::id::Event;
use crate::id::alternate::{check_alternate, check_alternate_now};
use crate::id::connection::{Connection, Phase, random_psn};
use crate::id::{CommEstablished, Id, Inner};
use crate::param::ConnParam;
use crate::state::State;

/// Most private data of a request: the message's room, less the addresses.
const MAX_REQ: usize = 92 - CmaHeader::LEN;
/// Most private data of a datagram request.
const MAX_SIDR_REQ: usize = 216 - CmaHeader::LEN;
/// Most private data of an acceptance.
const MAX_REP: usize = 196;
/// Most private data of an answer to a datagram request.
const MAX_SIDR_REP: usize = 136;
/// Most private data of a rejection.
const MAX_REJ: usize = 148;

impl Id {
    /// Asks the peer for a connection; for a datagram id, asks for the peer's queue pair. The
    /// outcome is an event.
    ///
    /// # Errors
    /// [`Error::State`] for an id whose route is not resolved; [`Error::NoQp`] for one with neither
    /// a queue pair nor the number of one; [`Error::TooLong`], [`Error::Value`]; [`Error::Cm`]
    /// where the device has too many connections.
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        let mut inner = self.enter("connect")?;
        if inner.state != State::RouteResolved {
            return Err(self.wrong_state(&inner, "connect", "has resolved its route"));
        }
        let device = inner.device.clone().ok_or(Error::NoDevice { call: "connect" })?;
        match device.agent() {
            Some(agent) => self.connect_by_message(&mut inner, &device, agent, param),
            None => self.connect_stream(&mut inner, &device, param),
        }
    }

    fn connect_by_message(
        &self,
        inner: &mut Inner,
        device: &Device,
        agent: &Arc<dyn Agent>,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        // Addresses of InfiniBand's own leave the header's room to the program.
        let header = if inner.native.is_some() { 0 } else { CmaHeader::LEN };
        let limits = [MAX_REQ, MAX_SIDR_REQ].map(|most| most + CmaHeader::LEN - header);
        self.check_param("connect", param, limits.into())?;
        let (Some(path), Some(local), Some(peer)) = (inner.path(), inner.local, inner.peer) else {
            return Err(Error::NoDevice { call: "connect" });
        };
        let service = self.port_space().service_id(peer.port());
        let mut private_data = [0; CmaHeader::LEN + MAX_SIDR_REQ];
        if header != 0 {
            CmaHeader::new(local.port(), local.ip(), peer.ip()).emit(&mut private_data);
        }
        let len = header + param.private_data.len();
        private_data[header..len].copy_from_slice(param.private_data);
        let private_data = &private_data[..len];
        let (response_timeout, max_retries) = (None, None);
        let registry = &self.shared.registry;
        let _expecting = registry.expect();
        let mut connection = Connection::asking(random_psn());
        connection.conn = if self.qp_type() == QpType::Ud {
            let (_, pkey) = inner.pkey_row();
            let params =
                SidrParams { path, service, pkey, private_data, response_timeout, max_retries };
            agent.sidr_request(&params)?
        } else {
            let (local_qpn, srq) = self.queue_pair(inner, "connect", param)?;
            let most = device.context.device_attr();
            let limit = |what, asked, most| limited("connect", what, asked, most, most);
            connection.responder_resources =
                limit("responder_resources", param.responder_resources, most.max_qp_rd_atom)?;
            connection.initiator_depth =
                limit("initiator_depth", param.initiator_depth, most.max_qp_init_rd_atom)?;
            connection.path_mtu = inner.largest_mtu(device);
            connection.ack_timeout = inner.options.ack_timeout;
            connection.retry_count = param.retry_count;
            connection.alternate = param.alternate;
            if let Some(alternate) = &connection.alternate {
                check_alternate(device, alternate)?;
            }
            let params = ConnectParams {
                path,
                alternate: connection.alternate,
                service,
                qp_type: self.qp_type(),
                local_qpn,
                starting_psn: connection.psn,
                responder_resources: connection.responder_resources,
                initiator_depth: connection.initiator_depth,
                flow_control: param.flow_control,
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry_count,
                srq,
                path_mtu: connection.path_mtu,
                pkey: inner.pkey_row().1,
                local_ack_timeout: connection.ack_timeout,
                local_ca_guid: device.context.info().node_guid,
                private_data,
                response_timeout,
                max_retries,
            };
            match param.impatient {
                true => agent.connect_now(&params)?,
                false => agent.connect(&params)?,
            }
        };
        registry.bind_conn(self.key(), device.key(), connection.conn);
        if path.lids.is_none() {
            self.watch_silence(agent, local, peer, connection.conn);
        }
        inner.connection = Some(connection);
        inner.state = State::Connect;
        Ok(())
    }

    /// Has the worker watch the request, in case the peer stays silent.
    fn watch_silence(
        &self,
        agent: &Arc<dyn Agent>,
        local: SocketAddr,
        peer: SocketAddr,
        conn: ConnId,
    ) {
        if peer.ip().is_multicast() {
            return;
        }
        // Without the thread, the request is repeated until its own time is up.
        if self.shared.start_keeper().is_ok() {
            self.shared.silent_hosts.add(agent, conn, local, peer);
            self.shared.worker.wake();
        }
    }

    /// Accepts the request that the id was made for: brings the queue pair up to RTS and answers.
    /// For a connection, [`EventKind::Established`](crate::EventKind::Established) follows.
    ///
    /// # Errors
    /// [`Error::State`] for an id without an unanswered request; [`Error::NoQp`],
    /// [`Error::TooLong`], [`Error::Value`]; [`Error::Modify`], after which the queue pair is in
    /// Error and the request may still be rejected; [`Error::Cm`] for a request whose peer has
    /// given up.
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        let mut inner = self.enter("accept")?;
        let (device, connection) = self.asked(&inner, "accept")?;
        match device.agent() {
            Some(agent) => self.accept_by_message(&mut inner, &device, connection, agent, param),
            None => self.accept_stream(&mut inner, &device, param),
        }
    }

    fn accept_by_message(
        &self,
        inner: &mut Inner,
        device: &Device,
        mut connection: Connection,
        agent: &Arc<dyn Agent>,
        param: &ConnParam<'_>,
    ) -> Result<(), Error> {
        self.check_param("accept", param, (MAX_REP, MAX_SIDR_REP))?;
        if self.qp_type() == QpType::Ud {
            let (qpn, _) = self.queue_pair(inner, "accept", param)?;
            let qkey = if param.qkey == Qkey(0) { self.qkey(inner) } else { param.qkey };
            let (status, private_data) = (SidrStatus::SUCCESS, param.private_data);
            let reply = SidrReply { status, qpn, qkey, private_data };
            agent.sidr_reply(connection.conn, &reply)?;
            connection.phase = Phase::Up;
            inner.connection = Some(connection);
            return Ok(());
        }
        let (local_qpn, srq) = self.queue_pair(inner, "accept", param)?;
        let most = device.context.device_attr();
        let peer = connection.peer.map_or((0, 0), |p| (p.responder_resources, p.initiator_depth));
        let limit = |what, asked, usual, most| limited("accept", what, asked, usual, most);
        connection.responder_resources = limit(
            "responder_resources",
            param.responder_resources,
            peer.0.min(most.max_qp_rd_atom),
            most.max_qp_rd_atom,
        )?;
        connection.initiator_depth = limit(
            "initiator_depth",
            param.initiator_depth,
            peer.1.min(most.max_qp_init_rd_atom),
            most.max_qp_init_rd_atom,
        )?;
        // Whoever asks names this path, and the id is locked here.
        connection.alternate =
            connection.alternate.filter(|alternate| check_alternate_now(device, alternate).is_ok());
        let failover = match connection.alternate {
            Some(_) => FailoverAccepted::ACCEPTED,
            None => FailoverAccepted::REJECTED,
        };
        let before = inner.connection.replace(connection);
        let answered = self.bring_up(inner).and_then(|()| {
            let params = AcceptParams {
                local_qpn,
                starting_psn: connection.psn,
                responder_resources: connection.responder_resources,
                initiator_depth: connection.initiator_depth,
                flow_control: param.flow_control,
                rnr_retry_count: param.rnr_retry_count,
                srq,
                target_ack_delay: device.context.config().ack_delay(),
                failover,
                local_ca_guid: device.context.info().node_guid,
                private_data: param.private_data,
            };
            Ok(agent.accept(connection.conn, &params)?)
        });
        match answered {
            Ok(()) => connection.phase = Phase::Accepted,
            Err(error) => {
                inner.connection = before;
                inner.qp_to_error();
                return Err(error);
            }
        }
        inner.connection = Some(connection);
        Ok(())
    }

    /// Rejects the request that the id was made for, or the acceptance that
    /// [`EventKind::ConnectResponse`](crate::EventKind::ConnectResponse) reported.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::TooLong`], [`Error::Cm`] for a request whose peer has given up.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.reject_for(RejReason::CONSUMER, private_data)
    }

    /// Rejects as [`reject`](Self::reject) does, for a reason. The answer of a datagram id carries
    /// no reason.
    ///
    /// # Errors
    /// As those of [`reject`](Self::reject).
    pub fn reject_for(&self, reason: RejReason, private_data: &[u8]) -> Result<(), Error> {
        let mut inner = self.enter("reject")?;
        let (device, mut connection) = match self.exchange(&inner) {
            Some((device, connection))
                if matches!(connection.phase, Phase::Asked | Phase::Responded) =>
            {
                (device, connection)
            }
            _ => return Err(self.wrong_state(&inner, "reject", "waits for an answer")),
        };
        // Over a stream, the limit depends on the kind of the peer's request.
        if device.agent().is_some() {
            self.check_private_data("reject", private_data, (MAX_REJ, MAX_SIDR_REP))?;
        }
        match device.agent() {
            Some(agent) if self.qp_type() == QpType::Ud => {
                let (status, qpn, qkey) = (SidrStatus::REJECTED, Qpn::new(0), Qkey(0));
                let reply = SidrReply { status, qpn, qkey, private_data };
                agent.sidr_reply(connection.conn, &reply)?;
            }
            _ => self.shared.reject(&device, connection.conn, reason, private_data)?,
        }
        connection.phase = Phase::Over;
        inner.connection = Some(connection);
        Ok(())
    }

    /// Notifies the peer that this side's queue pair, which the program brings up itself, is ready:
    /// after [`EventKind::ConnectResponse`](crate::EventKind::ConnectResponse).
    ///
    /// # Errors
    /// [`Error::State`]; [`Error::HasQp`] for an id that brings its queue pair up itself;
    /// [`Error::Cm`].
    pub fn establish(&self) -> Result<(), Error> {
        let mut inner = self.enter("establish")?;
        if let Some(qp) = &inner.qp {
            return Err(Error::HasQp(qp.qpn()));
        }
        let (device, mut connection) = match self.exchange(&inner) {
            Some((device, connection)) if connection.phase == Phase::Responded => {
                (device, connection)
            }
            _ => return Err(self.wrong_state(&inner, "establish", "has had a ConnectResponse")),
        };
        if let Some(agent) = device.agent() {
            agent.ready_to_use(connection.conn)?;
        }
        connection.phase = Phase::Up;
        inner.connection = Some(connection);
        Ok(())
    }

    /// Notifies the connection manager that the connection is established, because the queue pair
    /// has received a packet. [`EventKind::Established`](crate::EventKind::Established) follows, if
    /// it did not come before.
    ///
    /// # Errors
    /// [`Error::State`] for an id that has accepted nothing, [`Error::Cm`].
    pub fn notify(&self, event: CommEstablished) -> Result<(), Error> {
        let CommEstablished = event;
        let inner = self.enter("notify")?;
        match self.exchange(&inner) {
            Some((device, connection))
                if matches!(connection.phase, Phase::Accepted | Phase::Up)
                    && self.qp_type() != QpType::Ud =>
            {
                // A stream needs no such hint.
                match device.agent() {
                    Some(agent) => Ok(agent.notify_established(connection.conn)?),
                    None => Ok(()),
                }
            }
            _ => Err(self.wrong_state(&inner, "notify", "has accepted a request")),
        }
    }

    /// Ends the connection, or agrees to its end: moves the queue pair to Error and notifies the
    /// peer. [`EventKind::Disconnected`](crate::EventKind::Disconnected) follows, if it did not
    /// come before; if the connection was not established yet,
    /// [`EventKind::ConnectError`](crate::EventKind::ConnectError) follows instead.
    ///
    /// # Errors
    /// [`Error::State`] for an id without a connection, [`Error::Cm`]. A connection that is ending
    /// or over is no error, because both sides may disconnect at once.
    pub fn disconnect(&self) -> Result<(), Error> {
        let inner = self.enter("disconnect")?;
        let connected = matches!(inner.state, State::Connect | State::Disconnect);
        match self.exchange(&inner) {
            Some((device, connection)) if connected && self.qp_type() != QpType::Ud => {
                let Some(agent) = device.agent() else {
                    self.shared.streams.disconnect(connection.conn);
                    inner.close_stream();
                    return Ok(());
                };
                inner.qp_to_error();
                match agent.disconnect(connection.conn) {
                    Err(CmCallError::Cm(
                        CmError::WrongState { .. } | CmError::UnknownConnection(_),
                    )) => Ok(()),
                    said => Ok(said?),
                }
            }
            _ => Err(self.wrong_state(&inner, "disconnect", "has a connection")),
        }
    }

    /// Waits for the next event of the id's channel: the outcome of the last call, for an id with
    /// its own channel.
    ///
    /// # Errors
    /// [`Error::Failed`] for an event that reports a failure; [`Error::Os`] as
    /// [`EventChannel::wait`](crate::EventChannel::wait).
    pub fn complete(&self) -> Result<Event, Error> {
        let channel = self.enter("complete")?.channel.clone();
        let event = channel.wait().map_err(|source| Error::Os { what: "wait", source })?;
        match event.status {
            0 => Ok(event),
            status => Err(Error::Failed { kind: event.kind, status }),
        }
    }

    /// The device and the exchange, if there is one.
    pub(crate) fn exchange(&self, inner: &Inner) -> Option<(Arc<Device>, Connection)> {
        Some((inner.device.clone()?, inner.connection?))
    }

    /// The device and the exchange of a request that is not answered.
    fn asked(&self, inner: &Inner, call: &'static str) -> Result<(Arc<Device>, Connection), Error> {
        let asked = self.exchange(inner).filter(|(_, connection)| connection.phase == Phase::Asked);
        asked.ok_or_else(|| self.wrong_state(inner, call, "came with a request"))
    }

    /// The number of the id's queue pair, or the number in `param`, and whether it receives from a
    /// shared receive queue.
    fn queue_pair(
        &self,
        inner: &Inner,
        call: &'static str,
        param: &ConnParam<'_>,
    ) -> Result<(Qpn, bool), Error> {
        match (&inner.qp, param.qp_num) {
            (Some(qp), _) => Ok((qp.qpn(), qp.srq().is_some())),
            (None, Some(qpn)) => Ok((qpn, param.srq)),
            (None, None) => Err(Error::NoQp { call }),
        }
    }

    fn check_param(
        &self,
        call: &'static str,
        param: &ConnParam<'_>,
        limits: (usize, usize),
    ) -> Result<(), Error> {
        self.check_private_data(call, param.private_data, limits)?;
        for (what, value) in
            [("retry_count", param.retry_count), ("rnr_retry_count", param.rnr_retry_count)]
        {
            if value > 7 {
                let allowed = "0 to 7".to_owned();
                return Err(Error::Value { what, value: value.into(), allowed });
            }
        }
        Ok(())
    }

    /// Checks the length of private data against `limits`: bytes for a connection and for
    /// datagrams.
    fn check_private_data(
        &self,
        call: &'static str,
        data: &[u8],
        limits: (usize, usize),
    ) -> Result<(), Error> {
        let datagrams = self.qp_type() == QpType::Ud;
        let max = if datagrams { limits.1 } else { limits.0 };
        let kind = if datagrams { "datagrams" } else { "a connection" };
        match data.len() > max {
            true => Err(Error::TooLong { call, kind, given: data.len(), max }),
            false => Ok(()),
        }
    }
}

impl Inner {
    /// Moves the queue pair to Error, which completes what is posted to it.
    pub(crate) fn qp_to_error(&self) {
        if let Some(qp) = &self.qp {
            let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
            // Only a destroyed queue pair refuses this.
            let _ = qp.modify(&attr, AttrMask::STATE);
        }
    }
}

/// A number of READs and atomics: `asked`, or `usual` if as many as possible are asked for.
pub(super) fn limited(
    call: &'static str,
    what: &'static str,
    asked: u8,
    usual: u8,
    most: u8,
) -> Result<u8, Error> {
    match asked {
        ConnParam::MAX => Ok(usual),
        asked if asked <= most => Ok(asked),
        asked => {
            let allowed = format!("0 to {most} in {call}, or {} for the most", ConnParam::MAX);
            Err(Error::Value { what, value: asked.into(), allowed })
        }
    }
}

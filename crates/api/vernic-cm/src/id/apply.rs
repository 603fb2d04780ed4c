//! What an event changes when it is taken.

use std::sync::Arc;

use vernic_engine::{AddressVector, PortNum, QpState, QpType};
use vernic_proto::cm::{AlternatePath, CmPath, EventKind as CmEvent, Unanswered};
use vernic_wire::cm::{CmaHeader, FailoverAccepted, RejReason, Rep, Req, SidrRep, SidrStatus};

use crate::device::Device;
use crate::event::{ConnInfo, EventKind, Param, UdInfo};
use crate::id::Event;
use crate::id::connection::{Connection, Peer, Phase, random_psn};
use crate::id::{Id, Inner, subnet};
use crate::param::UDP_QKEY;
use crate::registry::{EntryContent, Request, RequestKind, Unacked};
use crate::state::State;
use crate::sync::lock;

/// The kind, status and content of an event.
pub(super) type Outcome = (EventKind, i32, Param);

impl Id {
    /// The id that a request becomes.
    pub(crate) fn of_request(
        channel: &Arc<crate::EventChannel>,
        listener: &Self,
        request: &Request,
    ) -> Arc<Self> {
        let events = request.events.clone();
        let qp_type = match &request.kind {
            RequestKind::Datagrams(_) => QpType::Ud,
            // The request of an XRC initiator makes an XRC target.
            RequestKind::Connection(_) if listener.qp_type() == QpType::XrcIni => QpType::XrcTgt,
            RequestKind::Connection(_) | RequestKind::Stream(_) => listener.qp_type(),
        };
        let connection = match &request.kind {
            RequestKind::Connection(req) => {
                let alternate = AlternatePath::of_peer(&req.alternate, &request.path);
                Connection { alternate, ..Connection::asked(request.conn, req, random_psn()) }
            }
            RequestKind::Datagrams(_) => Connection::asked_for_datagrams(request.conn),
            RequestKind::Stream(asked) => {
                Connection::over_stream(request.conn, Phase::Asked, asked.depths)
            }
        };
        let id = Self::at(events, channel, listener.port_space(), qp_type, |inner| {
            inner.state = State::Connect;
            inner.device = Some(request.device.clone());
            inner.local = Some(request.local);
            inner.peer = Some(request.peer);
            inner.path = Some(request.path);
            inner.native = request.is_native.then_some(request.path.pkey);
            inner.connection = Some(connection);
        });
        id.set_user_context(listener.user_context());
        id
    }

    /// Does the work that belongs to an event; `None` if the event no longer matters.
    pub(crate) fn apply(self: Arc<Self>, what: EntryContent, unacked: Unacked) -> Option<Event> {
        let (kind, status, param) = {
            let mut inner = lock(&self.inner);
            if inner.state == State::Destroyed {
                return None;
            }
            match what {
                EntryContent::Decided { kind, status, param } => {
                    self.written.taken(kind);
                    (kind, status, param)
                }
                EntryContent::Joined { gid } => Self::apply_joined(&mut inner, gid)?,
                EntryContent::Cm(event) => self.apply_cm(&mut inner, event)?,
                EntryContent::Stream(event) => self.apply_stream(&mut inner, event)?,
                EntryContent::Request(_) => return None,
            }
        };
        Some(Event { id: self, listen_id: None, kind, status, param, _unacked: unacked })
    }

    /// The event of a request, with the new id.
    pub(crate) fn apply_request(
        self: Arc<Self>,
        listener: Arc<Self>,
        request: Request,
        unacked: Unacked,
    ) -> Event {
        if let Some(agent) = request.device.agent() {
            agent.request_taken(request.conn);
        }
        // Requests between GIDs have no header.
        let header = if request.is_native { 0 } else { CmaHeader::LEN };
        let param = match request.kind {
            RequestKind::Connection(req) => Param::Conn(info_of_req(&req, header)),
            RequestKind::Datagrams(req) => Param::Ud(UdInfo {
                private_data: req.private_data.as_bytes()[header..].to_vec(),
                av: vector(&request.device, &request.path),
                qp_num: vernic_engine::Qpn::new(0),
                qkey: UDP_QKEY,
                context: 0,
            }),
            RequestKind::Stream(asked) => Param::Conn(ConnInfo {
                private_data: asked.private_data,
                responder_resources: asked.depths.ird,
                initiator_depth: asked.depths.ord,
                ..ConnInfo::default()
            }),
        };
        let (kind, status) = (EventKind::ConnectRequest, 0);
        Event { id: self, listen_id: Some(listener), kind, status, param, _unacked: unacked }
    }

    fn apply_cm(&self, inner: &mut Inner, event: CmEvent) -> Option<Outcome> {
        if let Some(connection) = &inner.connection {
            // Any event shows that the host is not silent, or that the request is over.
            self.shared.silent_hosts.remove(connection.conn);
        }
        match event {
            CmEvent::Reply { rep } => self.apply_reply(inner, &rep),
            CmEvent::SidrReply { rep } => self.apply_sidr_reply(inner, &rep),
            CmEvent::Established { .. } => {
                inner.connection.as_mut()?.phase = Phase::Up;
                Some((EventKind::Established, 0, Param::Conn(ConnInfo::default())))
            }
            CmEvent::Rejected { reason, private_data, .. } => {
                if inner.fail()? {
                    return None;
                }
                let private_data = private_data.as_bytes().to_vec();
                let info = ConnInfo { private_data, ..ConnInfo::default() };
                Some((EventKind::Rejected, i32::from(reason.value()), Param::Conn(info)))
            }
            CmEvent::Unreachable { which: Unanswered::Dreq } => {
                Self::apply_disconnected(inner, -libc::ETIMEDOUT)
            }
            CmEvent::Unreachable { .. } | CmEvent::HalfOpenDropped => {
                let failed_here = inner.fail()?;
                (!failed_here).then_some((EventKind::Unreachable, -libc::ETIMEDOUT, Param::None))
            }
            CmEvent::DisconnectRequest { .. } | CmEvent::Disconnected => {
                Self::apply_disconnected(inner, 0)
            }
            CmEvent::TimewaitExit => {
                inner.connection.as_mut()?.phase = Phase::Over;
                Some((EventKind::TimewaitExit, 0, Param::None))
            }
            // Requests go to listeners, and alternate paths to the worker.
            CmEvent::Request { .. }
            | CmEvent::SidrRequest { .. }
            | CmEvent::LoadAlternatePath { .. }
            | CmEvent::AlternatePathAnswered { .. } => None,
        }
    }

    /// Ends the connection. Either side may report the end first, and both may.
    pub(super) fn apply_disconnected(inner: &mut Inner, status: i32) -> Option<Outcome> {
        if inner.state != State::Connect || inner.connection?.failed_here {
            return None;
        }
        inner.state = State::Disconnect;
        Some((EventKind::Disconnected, status, Param::Conn(ConnInfo::default())))
    }

    /// The peer accepted: brings the queue pair up, if the id has one, and answers.
    fn apply_reply(&self, inner: &mut Inner, rep: &Rep) -> Option<Outcome> {
        let (device, mut connection) = self.exchange(inner)?;
        let peer = Peer::of_rep(rep, self.qp_type() == QpType::XrcIni);
        connection.answered(peer);
        if rep.failover != FailoverAccepted::ACCEPTED {
            connection.alternate = None;
        }
        connection.phase = Phase::Responded;
        inner.connection = Some(connection);
        let info = Param::Conn(info_of_rep(rep, &peer));
        if inner.qp.is_none() {
            return Some((EventKind::ConnectResponse, 0, info));
        }
        let agent = device.agent()?;
        let up = self.bring_up(inner).and_then(|()| Ok(agent.ready_to_use(connection.conn)?));
        match up {
            Ok(()) => {
                connection.phase = Phase::Up;
                inner.connection = Some(connection);
                Some((EventKind::Established, 0, info))
            }
            Err(error) => {
                tracing::warn!(id = ?self, %error, "cannot bring the queue pair up: connection refused");
                // The peer may have given up meanwhile.
                let _ = agent.reject(connection.conn, RejReason::CONSUMER, &[], &[]);
                inner.fail();
                connection.phase = Phase::Over;
                connection.failed_here = true;
                inner.connection = Some(connection);
                Some((EventKind::ConnectError, -error.errno(), Param::None))
            }
        }
    }

    fn apply_sidr_reply(&self, inner: &mut Inner, rep: &SidrRep) -> Option<Outcome> {
        let device = inner.device.clone()?;
        let path = inner.path()?;
        let served = rep.status == SidrStatus::SUCCESS;
        inner.connection.as_mut()?.phase = if served { Phase::Up } else { Phase::Over };
        let info = UdInfo {
            private_data: rep.private_data.as_bytes().to_vec(),
            av: vector(&device, &path),
            qp_num: rep.qpn,
            qkey: rep.qkey,
            context: 0,
        };
        Some(match served {
            true => (EventKind::Established, 0, Param::Ud(info)),
            false => (EventKind::Unreachable, i32::from(rep.status.0), Param::Ud(info)),
        })
    }

    /// Brings the queue pair up from Init to RTS, if the id has one.
    pub(crate) fn bring_up(&self, inner: &Inner) -> Result<(), crate::Error> {
        if let Some(qp) = &inner.qp {
            // Init is repeated, because only now the access rights of the peer are known.
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                self.bring(inner, qp, state)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Fails the exchange. Returns whether the program knows of the failure already.
    pub(super) fn fail(&mut self) -> Option<bool> {
        self.qp_to_error();
        let connection = self.connection.as_mut()?;
        connection.phase = Phase::Over;
        Some(connection.failed_here)
    }
}

/// The address vector for datagrams to the peer.
pub(crate) fn vector(device: &Device, path: &CmPath) -> AddressVector {
    if let Some(lids) = path.lids {
        return subnet::vector(device, path, lids);
    }
    let row = device.context.gid_row_by(path.local, path.roce);
    let (port, sgid_index) = row.map_or((PortNum(1), 0), |row| (row.port, row.index));
    AddressVector {
        dgid: path.remote,
        sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        flow_label: path.flow_label,
        port,
        ..AddressVector::default()
    }
}

fn info_of_req(req: &Req, header: usize) -> ConnInfo {
    let peer = Peer::of_req(req);
    ConnInfo {
        private_data: req.private_data.as_bytes()[header..].to_vec(),
        responder_resources: peer.responder_resources,
        initiator_depth: peer.initiator_depth,
        flow_control: req.end_to_end_flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        qp_num: req.local_qpn,
    }
}

fn info_of_rep(rep: &Rep, peer: &Peer) -> ConnInfo {
    ConnInfo {
        private_data: rep.private_data.as_bytes().to_vec(),
        responder_resources: peer.responder_resources,
        initiator_depth: peer.initiator_depth,
        flow_control: rep.end_to_end_flow_control,
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        qp_num: peer.qpn,
    }
}

//! What the connection manager tells its owner: events, and errors of commands.

use vernic_wire::Gid;
use vernic_wire::cm::{
    AprStatus, Info, PrivateData, PrivateDataTooLong, RejReason, RejectedMessage, Rep, Req,
    ServiceId, SidrRep, SidrReq,
};

use super::params::{AlternatePath, CmPath, ConnId, ListenerId};

/// Something that happened to a connection or an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub conn: ConnId,
    /// What.
    pub kind: EventKind,
}

/// What happened. Those that say so are the last ones of their connection: its id means nothing
/// any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A REQ for a listener. [`accept`](super::Cm::accept), [`reject`](super::Cm::reject) or
    /// [`destroy`](super::Cm::destroy) answers it.
    Request {
        /// Whose.
        listener: ListenerId,
        /// The primary path, turned round: local is our end.
        path: CmPath,
        /// The message.
        req: Box<Req>,
    },
    /// A SIDR_REQ for a listener. [`sidr_reply`](super::Cm::sidr_reply) or
    /// [`destroy`](super::Cm::destroy) answers it.
    SidrRequest {
        /// Whose.
        listener: ListenerId,
        /// Where it came from.
        path: CmPath,
        /// The message.
        req: Box<SidrReq>,
    },
    /// A REP came: the owner brings its queue pair up and calls
    /// [`ready_to_use`](super::Cm::ready_to_use), or [`reject`](super::Cm::reject).
    Reply {
        /// The message.
        rep: Box<Rep>,
    },
    /// The connection that was accepted is up: an RTU came, or a DREQ whose RTU was lost.
    Established {
        /// Of the RTU; zeros if it was lost.
        private_data: Box<PrivateData<224>>,
    },
    /// The connection was rejected, before it was up. The last one, but TIMEWAIT follows if there
    /// was a [`Reply`](Self::Reply), or if we had accepted.
    Rejected {
        /// Why.
        reason: RejReason,
        /// Which message.
        message: RejectedMessage,
        /// What the reason needs said besides.
        info: Box<Info>,
        /// The peer's application's.
        private_data: Box<PrivateData<148>>,
    },
    /// The peer did not answer. The last one, but TIMEWAIT follows if we had accepted.
    Unreachable {
        /// What.
        which: Unanswered,
    },
    /// Nobody answered the request, and it is forgotten: because of others that came after it, or
    /// because the peer has stopped asking. The last one.
    HalfOpenDropped,
    /// A DREQ came; [`disconnect`](super::Cm::disconnect) answers it.
    DisconnectRequest {
        /// Of the DREQ.
        private_data: Box<PrivateData<220>>,
    },
    /// The connection is down: our DREQ was answered or crossed the peer's, or the
    /// peer has rejected it or knows nothing of it. TIMEWAIT follows.
    Disconnected,
    /// No packet of the connection is under way any more: its queue pair may be used again. The
    /// last one.
    TimewaitExit,
    /// The peer would load an alternate path: the owner loads it into its queue pair, and
    /// [`answer_lap`](super::Cm::answer_lap) says what became of it.
    LoadAlternatePath {
        /// The path, turned round.
        alternate: AlternatePath,
    },
    /// The peer says what became of the alternate path that
    /// [`load_alternate_path`](super::Cm::load_alternate_path) named, or the connection has ended
    /// before it did.
    AlternatePathAnswered {
        /// What: if it is loaded, the owner loads it, too.
        status: AprStatus,
    },
    /// A SIDR_REP came. The last one.
    SidrReply {
        /// The message.
        rep: Box<SidrRep>,
    },
}

/// Message that a peer did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// Our REQ.
    Req,
    /// Our REP.
    Rep,
    /// Our SIDR_REQ.
    Sidr,
    /// Our LAP: the connection stays as it is.
    Lap,
    /// Our DREQ: the connection is over all the same, and TIMEWAIT follows.
    Dreq,
}

/// Why a command was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The id names nothing.
    #[error("there is no connection {0}: it has ended, or was destroyed")]
    UnknownConnection(ConnId),
    /// The command has no meaning in the connection's state.
    #[error("connection {conn} is in {state}; {command} needs {needs}")]
    WrongState {
        /// Connection.
        conn: ConnId,
        /// Command.
        command: &'static str,
        /// State that it is in.
        state: &'static str,
        /// States in which the command is possible.
        needs: &'static str,
    },
    /// Private data or additional information does not fit the message.
    #[error("{field}: {error}")]
    TooLong {
        /// Field and message.
        field: &'static str,
        /// Length and limit.
        error: PrivateDataTooLong,
    },
    /// A value out of range.
    #[error("{field} is {value}, allowed: {allowed}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value given.
        value: u64,
        /// The range in words.
        allowed: &'static str,
    },
    /// As many connections as the configuration allows.
    #[error("{max} connections exist, and no more are allowed; disconnect some")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The service is listened on.
    #[error("service {service} is in use {}", on(.local))]
    InUse {
        /// Service.
        service: ServiceId,
        /// Address, or all.
        local: Option<Gid>,
    },
}

fn on(local: &Option<Gid>) -> String {
    local.map_or_else(|| "on all addresses".into(), |gid| format!("on {}", gid.to_ip()))
}

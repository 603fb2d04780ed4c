//! The exchange with a peer as the id knows it: its phase, and the parameters of both sides.

use vernic_engine::{AckTimeout, Mtu, Psn, Qpn, random};
use vernic_proto::cm::{AlternatePath, ConnId};
use vernic_wire::cm::{CommId, Rep, Req};

use crate::param::Depths;

/// The phase of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// This side has sent a request.
    Asking,
    /// The peer has sent a request, which the program has not answered.
    Asked,
    /// The peer accepted, and the program is bringing its queue pair up.
    Responded,
    /// This side accepted.
    Accepted,
    /// The connection is established.
    Up,
    /// The exchange is over, was rejected, or failed.
    Over,
}

/// The peer's parameters, seen from this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    /// READs and atomics of the peer that this side may have to keep.
    pub(crate) responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub(crate) initiator_depth: u8,
    pub(crate) rnr_retry_count: u8,
}

/// A random first PSN, so that late packets of another connection do not fit.
pub(crate) fn random_psn() -> Psn {
    Psn::new(random() as u32)
}

/// An exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) conn: ConnId,
    pub(crate) phase: Phase,
    pub(crate) peer: Option<Peer>,
    /// The first PSN that the peer's queue pair sends: this side chooses it.
    pub(crate) psn: Psn,
    pub(crate) path_mtu: Mtu,
    pub(crate) ack_timeout: AckTimeout,
    /// The path that the queue pair falls back on, of the request.
    pub(crate) alternate: Option<AlternatePath>,
    pub(crate) retry_count: u8,
    /// READs and atomics of the peer that this side keeps.
    pub(crate) responder_resources: u8,
    /// READs and atomics that this side has outstanding.
    pub(crate) initiator_depth: u8,
    /// Whether this side failed to bring its queue pair up, and has reported that.
    pub(crate) failed_here: bool,
}

impl Peer {
    pub(crate) fn of_req(req: &Req) -> Self {
        Self {
            qpn: req.local_qpn,
            psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            rnr_retry_count: req.rnr_retry_count,
        }
    }

    /// The peer's parameters in a reply; `xrc`: the peer's queue pair is an XRC target.
    pub(crate) fn of_rep(rep: &Rep, xrc: bool) -> Self {
        Self {
            qpn: rep.qpn(xrc),
            psn: rep.starting_psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            rnr_retry_count: rep.rnr_retry_count,
        }
    }
}

impl Connection {
    /// A request that this side is about to send; its number is not known yet.
    pub(crate) fn asking(psn: Psn) -> Self {
        Self {
            conn: ConnId(CommId::NONE, 0),
            phase: Phase::Asking,
            peer: None,
            psn,
            path_mtu: Mtu::B256,
            ack_timeout: AckTimeout::INFINITE,
            alternate: None,
            retry_count: 0,
            responder_resources: 0,
            initiator_depth: 0,
            failed_here: false,
        }
    }

    /// A connection over a stream, which has neither sequence numbers nor timeouts.
    pub(crate) fn over_stream(conn: ConnId, phase: Phase, depths: Depths) -> Self {
        Self {
            conn,
            phase,
            responder_resources: depths.ird,
            initiator_depth: depths.ord,
            ..Self::asking(Psn::new(0))
        }
    }

    /// A peer's request for this side's datagram queue pair.
    pub(crate) fn asked_for_datagrams(conn: ConnId) -> Self {
        Self { conn, phase: Phase::Asked, ..Self::asking(Psn::new(0)) }
    }

    /// A peer's request for a connection. An invalid path MTU counts as the smallest.
    pub(crate) fn asked(conn: ConnId, req: &Req, psn: Psn) -> Self {
        let peer = Peer::of_req(req);
        Self {
            conn,
            phase: Phase::Asked,
            peer: Some(peer),
            psn,
            path_mtu: Mtu::from_code(req.path_mtu).unwrap_or(Mtu::B256),
            ack_timeout: req.primary.local_ack_timeout,
            alternate: None,
            retry_count: req.retry_count,
            responder_resources: peer.responder_resources,
            initiator_depth: peer.initiator_depth,
            failed_here: false,
        }
    }

    /// Applies the peer's answer: neither side exceeds the other's limits.
    pub(crate) fn answered(&mut self, peer: Peer) {
        self.responder_resources = self.responder_resources.min(peer.responder_resources);
        self.initiator_depth = self.initiator_depth.min(peer.initiator_depth);
        self.peer = Some(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_xrc_target_is_taken_from_where_a_reply_has_it() {
        for xrc in [false, true] {
            let mut rep = Rep::default();
            rep.set_qpn(Qpn::new(7), xrc);
            assert_eq!(Peer::of_rep(&rep, xrc).qpn, Qpn::new(7), "xrc: {xrc}");
        }
    }
}

//! Connections by their CM messages: REQ, REP, RTU, REJ, DREQ, DREP over QP1.
//!
//! Owns what the messages of a connection say and when they were seen. A connection is known by the
//! two communication ids of its ends; its queue pairs follow from REQ and REP.

use std::collections::HashMap;
use std::net::IpAddr;

use vernic_wire::cm::{CmAttribute, CmMessage, CommId, RejReason, RejectedMessage, ServiceId};
use vernic_wire::{AckTimeout, Mtu, Psn, Qpn};

use crate::frame::RocePacket;
use crate::stream::{StreamKey, View};

/// Most connections that are followed; messages of further ones are counted.
pub const MAX_CONNECTIONS: usize = 16_384;
/// Most messages of a connection that a diagram shows.
const MAX_EVENTS: usize = 24;

/// A message of a connection, for diagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmEvent {
    pub(crate) time_ns: u64,
    pub(crate) is_of_active: bool,
    pub(crate) attribute: CmAttribute,
    /// Whether the same was sent before.
    pub(crate) is_repeated: bool,
}

/// A rejection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejected {
    pub(crate) reason: RejReason,
    pub(crate) message: RejectedMessage,
    pub(crate) is_by_active: bool,
}

/// What the messages of a connection say.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) active: IpAddr,
    pub(crate) passive: IpAddr,
    pub(crate) service: ServiceId,
    pub(crate) active_qpn: Qpn,
    /// Known from the REP.
    pub(crate) passive_qpn: Option<Qpn>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) ack_timeout: AckTimeout,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    /// First PSN of the passive side, as the REQ has it.
    pub(crate) passive_psn: Psn,
    /// First PSN of the active side, as the REP has it.
    pub(crate) active_psn: Option<Psn>,
    pub(crate) req_ns: u64,
    pub(crate) rep_ns: Option<u64>,
    pub(crate) rtu_ns: Option<u64>,
    pub(crate) rejected: Option<Rejected>,
    /// Time of the first DREQ, and whether the active side sent it.
    pub(crate) dreq: Option<(u64, bool)>,
    /// Messages that were sent again.
    pub(crate) repeats: u64,
    pub(crate) last_ns: u64,
    pub(crate) events: Vec<CmEvent>,
    /// By side: passive, active.
    views: [Option<View>; 2],
}

impl Connection {
    /// The streams of a connection whose queue pairs are known: of the active side, of the passive.
    pub(crate) fn streams(&self) -> Option<(StreamKey, StreamKey)> {
        let stream = |src, dst, dest_qpn| StreamKey { src, dst, dest_qpn, src_qpn: None };
        let of_active = stream(self.active, self.passive, self.passive_qpn?);
        Some((of_active, stream(self.passive, self.active, self.active_qpn)))
    }
}

/// All connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    list: Vec<Connection>,
    /// Connections by an end's address and communication id.
    by_id: HashMap<(IpAddr, CommId), usize>,
    not_followed: u64,
}

impl Connections {
    pub(crate) fn all(&self) -> &[Connection] {
        &self.list
    }

    /// Messages of connections beyond [`MAX_CONNECTIONS`], and of those whose REQ was not seen.
    pub(crate) fn not_followed(&self) -> u64 {
        self.not_followed
    }

    /// Takes a message; returns the connection whose queue pairs are known by it.
    pub(crate) fn take(
        &mut self,
        file: usize,
        packet: &RocePacket<'_>,
        message: &CmMessage,
        time_ns: u64,
    ) -> Option<usize> {
        // Datagram queue pairs are not connected.
        if matches!(message, CmMessage::SidrReq(_) | CmMessage::SidrRep(_)) {
            return None;
        }
        let Some(at) = self.find_or_begin(packet, message, time_ns) else {
            self.not_followed += 1;
            return None;
        };
        let connection = self.list.get_mut(at)?;
        let is_of_active = is_of_active(connection, packet, message);
        let view = connection.views[usize::from(is_of_active)]
            .get_or_insert(View::new(file, packet.direction));
        if !view.is_first(file, packet.direction) {
            return None;
        }
        note(connection, message.attribute(), is_of_active, time_ns);
        match message {
            CmMessage::Rep(rep) => {
                let is_new = connection.rep_ns.is_none();
                connection.rep_ns.get_or_insert(time_ns);
                connection.passive_qpn = Some(rep.local_qpn);
                connection.active_psn = Some(rep.starting_psn);
                // One id for each connection, whatever a peer makes up.
                if is_new {
                    self.by_id.insert((packet.src, rep.local_comm_id), at);
                    return Some(at);
                }
            }
            CmMessage::Rtu(_) => {
                connection.rtu_ns.get_or_insert(time_ns);
            }
            CmMessage::Rej(rej) => {
                let (reason, message) = (rej.reason, rej.message);
                let rejected = Rejected { reason, message, is_by_active: is_of_active };
                connection.rejected.get_or_insert(rejected);
            }
            CmMessage::Dreq(_) => {
                connection.dreq.get_or_insert((time_ns, is_of_active));
            }
            _ => {}
        }
        None
    }

    fn find_or_begin(
        &mut self,
        packet: &RocePacket<'_>,
        message: &CmMessage,
        time_ns: u64,
    ) -> Option<usize> {
        let CmMessage::Req(req) = message else {
            return self.by_id.get(&(packet.dst, message.receiver_comm_id()?)).copied();
        };
        let id = (packet.src, req.local_comm_id);
        if let Some(at) = self.by_id.get(&id)
            && self.list[*at].active_qpn == req.local_qpn
        {
            return Some(*at);
        }
        if self.list.len() >= MAX_CONNECTIONS {
            return None;
        }
        self.list.push(Connection {
            active: packet.src,
            passive: packet.dst,
            service: req.service_id,
            active_qpn: req.local_qpn,
            passive_qpn: None,
            mtu: Mtu::from_code(req.path_mtu),
            ack_timeout: req.primary.local_ack_timeout,
            retries: req.retry_count,
            rnr_retries: req.rnr_retry_count,
            passive_psn: req.starting_psn,
            active_psn: None,
            req_ns: time_ns,
            rep_ns: None,
            rtu_ns: None,
            rejected: None,
            dreq: None,
            repeats: 0,
            last_ns: time_ns,
            events: Vec::new(),
            views: [None; 2],
        });
        self.by_id.insert(id, self.list.len() - 1);
        Some(self.list.len() - 1)
    }
}

/// Whether the active side sent it. Both sides may have one address: then the message decides.
fn is_of_active(connection: &Connection, packet: &RocePacket<'_>, message: &CmMessage) -> bool {
    if connection.active != connection.passive {
        return packet.src == connection.active;
    }
    match message {
        CmMessage::Req(_) | CmMessage::Rtu(_) | CmMessage::Lap(_) => true,
        CmMessage::Rep(_) | CmMessage::Apr(_) => false,
        // Each end is told the number of its own queue pair.
        CmMessage::Dreq(dreq) => Some(dreq.remote_qpn) == connection.passive_qpn,
        CmMessage::Drep(_) => connection.dreq.is_some_and(|(_, by_active)| !by_active),
        _ => false,
    }
}

fn note(connection: &mut Connection, attribute: CmAttribute, is_of_active: bool, time_ns: u64) {
    let is_same =
        |event: &&CmEvent| (event.attribute, event.is_of_active) == (attribute, is_of_active);
    let is_repeated = connection.events.iter().any(|event| is_same(&event));
    connection.repeats += u64::from(is_repeated);
    connection.last_ns = time_ns;
    if connection.events.len() < MAX_EVENTS {
        connection.events.push(CmEvent { time_ns, is_of_active, attribute, is_repeated });
    }
}

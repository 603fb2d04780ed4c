//! Connections of a program, as far as its messages of connection management tell.
//!
//! Owns what a peer has to be told if the program ends without a word, as a killed one does: the
//! ids and queue pairs of each connection, and the path. [`host_cm`](crate::host_cm) says it then,
//! as the kernel of a host with hardware does.
//!
//! A connection is known from the program's REQ or REP on, until a REJ or a DREP of either end.
//!
//! Limits: [`MOST`] connections of a program. The end of others is not told.

use std::collections::BTreeMap;

use vernic_attach::QPN_INDEX_BITS;
use vernic_proto::cm::{CmPath, LidPath, Orphan};
use vernic_wire::cm::{CmMessage, CommId, Rej, Req};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Bth, Gid, Lid, Lrh, Pkey, PortNum, Qpn};

use crate::packet::{grh, transport_at};

/// Most connections of a program that are known: as many as a program has.
const MOST: usize = 65_536;

/// Bits of a communication id below the slot of its program.
const COMM_ID_SHIFT: u32 = 32 - (24 - QPN_INDEX_BITS);

/// Returns the slot of the program that has given a communication id.
pub(crate) const fn slot_of(id: CommId) -> u16 {
    (id.0 >> COMM_ID_SHIFT) as u16
}

/// The sender of a request: its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    qpn: Qpn,
    is_xrc: bool,
}

impl Asker {
    pub(crate) fn of(req: &Req) -> Self {
        Self { qpn: req.local_qpn, is_xrc: req.is_xrc() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    is_xrc: bool,
    orphan: Orphan,
}

/// The connections of a program, by its ids.
#[derive(Debug, Default)]
pub(crate) struct Connections(BTreeMap<CommId, Known>);

impl Connections {
    /// Notes a message that the program has sent from a port. `asker` yields the sender of the
    /// request that came from a LID with an id.
    pub(crate) fn note_sent(
        &mut self,
        (slot, port): (u16, PortNum),
        packet: &[u8],
        mad: &[u8; MAD_LEN],
        asker: impl Fn(Lid, CommId) -> Option<Asker>,
    ) {
        let Ok((_, message)) = CmMessage::parse(mad) else { return };
        let (id, is_xrc, qpn, guid, peer) = match &message {
            CmMessage::Req(req) => {
                (req.local_comm_id, req.is_xrc(), req.local_qpn, req.local_ca_guid, None)
            }
            CmMessage::Rep(rep) => {
                let from = Lrh::parse(packet).map_or(Lid::RESERVED, |lrh| Lid(lrh.dlid));
                let Some(asker) = asker(from, rep.remote_comm_id) else { return };
                let peer = Some((rep.remote_comm_id, asker.qpn));
                let qpn = rep.qpn(asker.is_xrc);
                (rep.local_comm_id, asker.is_xrc, qpn, rep.local_ca_guid, peer)
            }
            CmMessage::Rej(Rej { local_comm_id: id, .. }) => return self.end(*id),
            CmMessage::Drep(drep) => return self.end(drep.local_comm_id),
            _ => return,
        };
        let has_room = self.0.len() < MOST || self.0.contains_key(&id);
        if slot_of(id) == slot
            && has_room
            && let Some(path) = path_of(packet, port)
        {
            let orphan = Orphan { id, qpn, guid, peer, path };
            self.0.insert(id, Known { is_xrc, orphan });
        }
    }
    /// Notes a message that the program gets.
    pub(crate) fn note_received(&mut self, mad: &[u8; MAD_LEN]) {
        let Ok((_, message)) = CmMessage::parse(mad) else { return };
        match message {
            CmMessage::Rep(rep) => {
                if let Some(known) = self.0.get_mut(&rep.remote_comm_id) {
                    let peer = (rep.local_comm_id, rep.qpn(known.is_xrc));
                    known.orphan.peer.get_or_insert(peer);
                }
            }
            CmMessage::Rej(rej) => self.end_by(rej.remote_comm_id, rej.local_comm_id),
            CmMessage::Drep(drep) => self.end_by(drep.remote_comm_id, drep.local_comm_id),
            _ => {}
        }
    }
    /// Forgets a connection that the peer ends. A message with another id than the peer's is of
    /// somebody else.
    fn end_by(&mut self, id: CommId, theirs: CommId) {
        let of_peer = |known: &Known| known.orphan.peer.is_none_or(|(peer, _)| peer == theirs);
        if self.0.get(&id).is_some_and(of_peer) {
            self.end(id);
        }
    }
    fn end(&mut self, id: CommId) {
        self.0.remove(&id);
    }
    /// Returns what peers have to be told once the program has ended.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = &Orphan> {
        self.0.values().map(|known| &known.orphan)
    }
}

/// Returns the path of a packet, from the end of its sender at a port.
fn path_of(packet: &[u8], port: PortNum) -> Option<CmPath> {
    let lrh = Lrh::parse(packet).ok()?;
    let pkey = Bth::parse(packet.get(transport_at(&lrh)?..)?).map_or(Pkey::DEFAULT, |bth| bth.pkey);
    let grh = grh(&lrh, packet);
    let [from, to] = grh.map_or([Gid::ZERO; 2], |grh| [grh.sgid, grh.dgid]);
    let lids = LidPath {
        port,
        local: Lid(lrh.slid),
        remote: Lid(lrh.dlid),
        service_level: lrh.service_level,
        lmc: 0,
        is_global: grh.is_some(),
        rate: 0,
    };
    let path = CmPath::new(from, to);
    let path = CmPath { pkey, lids: Some(lids), ..path };
    Some(grh.map_or(path, |grh| CmPath {
        traffic_class: grh.traffic_class,
        hop_limit: grh.hop_limit,
        flow_label: grh.flow_label,
        ..path
    }))
}

#[cfg(test)]
mod tests {
    use vernic_wire::cm::{Drep, RejReason};

    use super::*;

    const OWN: CommId = CommId(7);
    const PEER: CommId = CommId(8);

    /// A connection, whose peer has this id, after the program got a message.
    fn after(peer: Option<CommId>, message: impl Into<CmMessage>) -> Connections {
        let path = CmPath::new(Gid::ZERO, Gid::ZERO);
        let peer = peer.map(|id| (id, Qpn::new(9)));
        let orphan = Orphan { id: OWN, qpn: Qpn::new(5), guid: 1, peer, path };
        let mut connections = Connections(BTreeMap::from([(OWN, Known { is_xrc: false, orphan })]));
        let mut mad = [0; MAD_LEN];
        message.into().emit(1, &mut mad);
        connections.note_received(&mad);
        connections
    }

    #[test]
    fn only_the_peer_of_a_connection_ends_it() {
        let drep = |from| Drep { local_comm_id: from, remote_comm_id: OWN, ..Drep::default() };
        let rej = |from| Rej {
            local_comm_id: from,
            remote_comm_id: OWN,
            reason: RejReason::CONSUMER,
            ..Rej::default()
        };
        let stranger = CommId(99);
        for (peer, from, ends) in [
            (Some(PEER), PEER, true),
            (Some(PEER), stranger, false),
            // Before the REP, nobody knows the peer's id.
            (None, stranger, true),
        ] {
            assert_eq!(after(peer, drep(from)).orphans().count() == 0, ends, "{peer:?}, {from:?}");
            assert_eq!(after(peer, rej(from)).orphans().count() == 0, ends, "{peer:?}, {from:?}");
        }
        let of_other = Drep { local_comm_id: PEER, remote_comm_id: PEER, ..Drep::default() };
        assert_eq!(after(Some(PEER), of_other).orphans().count(), 1);
    }
}

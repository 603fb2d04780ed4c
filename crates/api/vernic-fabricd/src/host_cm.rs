//! The connection manager of a host, beside those of its programs.
//!
//! Owns what is said in the name of nobody that runs: a DREQ for each connection of a program that
//! has ended without a word, a REJ for each of its requests, and answers to messages that are for
//! no program. A host with hardware has its kernel for that.
//!
//! | message for no program | answer |
//! |---|---|
//! | REQ for a service that is not claimed | REJ 8 (invalid service id) |
//! | SIDR_REQ for such a service | SIDR_REP, service not supported |
//! | REP, RTU of an unknown connection | REJ 6 (invalid communication id) |
//! | DREQ of an unknown connection | DREP |
//!
//! Limits: [`MAX_REPEATED`] DREQs that are repeated until they are answered; others are sent once.
//! [`MAX_HELD`] packets that wait for room at their ports; more are dropped and counted.

use std::collections::VecDeque;

use vernic_fabric::Time;
use vernic_fabric::attributes::PortAttributes;
use vernic_fabric::datagram::{Envelope, GSI_QKEY};
use vernic_fabric::link::SubmitError;
use vernic_fabric::subnet::{NodeId, Subnet};
use vernic_proto::cm::{Cm, CmConfig, CmPath, Datagram, LidPath, Orphan};
use vernic_wire::cm::CommId;
use vernic_wire::{Gid, Grh, Lid, PortNum, Psn, Qpn};

/// Most DREQs of a host that are repeated, at a time.
const MAX_REPEATED: usize = 4096;

/// Most packets of a host that wait for room at their ports, at a time.
const MAX_HELD: usize = 4096;

/// The connection manager of a host.
#[derive(Debug)]
pub(crate) struct HostCm {
    machine: Cm,
    /// Packets that their ports had no room for, LRH to ICRC.
    held: VecDeque<(PortNum, Vec<u8>)>,
    psn: Psn,
}

impl HostCm {
    pub(crate) fn new() -> Self {
        // It begins no connections, so it gives no ids.
        let config = CmConfig {
            max_connections: MAX_REPEATED,
            max_timewait: MAX_REPEATED,
            ..CmConfig::new(0, 32, 0)
        };
        Self { machine: Cm::new(config), held: VecDeque::new(), psn: Psn::new(0) }
    }
    /// Tells the peer of a connection that it is over, because its program has ended.
    pub(crate) fn end_for(&mut self, orphan: &Orphan, now: Time) {
        self.machine.end_for(now, orphan);
    }
    /// Whether a connection of a program that has ended is being ended.
    pub(crate) fn owns(&self, id: CommId) -> bool {
        self.machine.owns(id)
    }
    /// Takes a message for no program that has arrived at a port, LRH to ICRC.
    pub(crate) fn handle(
        &mut self,
        port: PortNum,
        attributes: &PortAttributes,
        packet: &[u8],
        now: Time,
    ) {
        let Some((envelope, mad)) = Envelope::open_received(&mut packet.to_vec()) else { return };
        // What is dropped there is counted there.
        let _ = self.machine.handle_mad(now, path_of(&envelope, port, attributes), &mad);
    }
    /// Sends what there is to send, and repeats what is due. Returns how many messages were dropped
    /// for want of room: peers repeat what they ask, and DREQs are repeated here.
    pub(crate) fn serve(&mut self, subnet: &mut Subnet, node: NodeId, now: Time) -> u64 {
        if self.machine.next_deadline().is_some_and(|due| due <= now) {
            self.machine.handle_timeout(now);
        }
        self.send_held(subnet, node, now);
        let mut dropped = 0;
        while let Some(datagram) = self.machine.poll_transmit() {
            self.psn = self.psn.next();
            match packet_of(&datagram, subnet, node, self.psn) {
                Some(packet) if self.held.len() < MAX_HELD => self.held.push_back(packet),
                _ => dropped += 1,
            }
            self.send_held(subnet, node, now);
        }
        dropped
    }
    fn send_held(&mut self, subnet: &mut Subnet, node: NodeId, now: Time) {
        while let Some((port, packet)) = self.held.front() {
            if subnet.submit(node, *port, packet, now) == Err(SubmitError::Full) {
                return;
            }
            self.held.pop_front();
        }
    }
    /// Returns when [`serve`](Self::serve) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        if self.machine.wants_transmit() { Some(Time(0)) } else { self.machine.next_deadline() }
    }
    /// Whether there is nothing to do now or later.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_packets() && self.machine.next_deadline().is_none()
    }
    fn has_packets(&self) -> bool {
        self.machine.wants_transmit() || !self.held.is_empty()
    }
}

/// Returns the path that a message came by.
fn path_of(envelope: &Envelope, port: PortNum, attributes: &PortAttributes) -> CmPath {
    let own = attributes.tables.pkeys.iter().find(|pkey| pkey.matches(envelope.pkey));
    let [local, remote] = envelope.grh.map_or([Gid::ZERO; 2], |grh| [grh.dgid, grh.sgid]);
    let lids = LidPath {
        port,
        local: Lid(envelope.dlid),
        remote: Lid(envelope.slid),
        service_level: envelope.service_level,
        lmc: attributes.lmc,
        is_global: envelope.grh.is_some(),
        rate: 0,
    };
    CmPath {
        traffic_class: envelope.grh.map_or(0, |grh| grh.traffic_class),
        pkey: own.copied().unwrap_or(envelope.pkey),
        lids: Some(lids),
        ..CmPath::new(local, remote)
    }
}

/// Returns the packet of a message, with its port; `None` if the host has no such port any more.
fn packet_of(
    datagram: &Datagram,
    subnet: &Subnet,
    node: NodeId,
    psn: Psn,
) -> Option<(PortNum, Vec<u8>)> {
    let (path, lids) = (&datagram.path, datagram.path.lids?);
    let port = subnet.port(node, lids.port)?;
    // The port may have another LID by now.
    let bits = (1_u16 << port.lmc.min(7)) - 1;
    let envelope = Envelope {
        is_management: false,
        service_level: lids.service_level,
        slid: port.lid.0 & !bits | lids.local.0 & bits,
        dlid: lids.remote.0,
        grh: lids.is_global.then_some(Grh {
            version: 6,
            payload_length: 0, // filled in when the packet is complete
            next_header: Grh::NEXT_HEADER_IBA,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            sgid: path.local,
            dgid: path.remote,
        }),
        pkey: path.pkey,
        source: Qpn::GSI,
        destination: Qpn::GSI,
        qkey: GSI_QKEY,
    };
    let mut packet = Vec::new();
    envelope.seal_to_send(psn, &datagram.mad, &mut packet);
    Some((lids.port, packet))
}

//! Decides which process a received CM datagram belongs to, and by which path a datagram is sent.
//!
//! All processes of a user share port 4791, and the kernel chooses one of their sockets by a hash
//! of addresses and ports. So a process may receive a datagram of another process, and then hands
//! it over. A request belongs to the process that has claimed its service's name. A REJ that
//! withdraws a request follows that request (`forwarded.rs`). Any other datagram has the
//! communication id of its receiver, with the process slot. A datagram that no process owns is
//! answered by the process that received it: a request by a REJ, after it has waited a moment for a
//! listener (`early.rs`), and any other by the machine's answer to unknown ids. No datagram is
//! handed over twice.
//!
//! A process that is stopped still has its share of port 4791, and does not handle what the kernel
//! delivers there. So a datagram to a process of this host is sent to that process's private port,
//! if the port is known. In case that fails, every second repetition goes to port 4791, and each
//! repetition leaves from another source port, so that one of them reaches a process that runs.
//! With `force_wire` everything is sent to port 4791.
//!
//! Limits: names and private ports of other processes are remembered for a second
//! (`vernic_io::host`).

use std::net::IpAddr;
use std::time::Duration;

use vernic_io::host::{Lookup, PeerProcess};
use vernic_io::udp::FLOWS;
use vernic_io::{
    Address, HandoverResult, LocalAddr, NoPath, PathId, PathRequest, ProcessId, RxMeta, RxPacket,
    ServiceName, ServiceScope, TxPath,
};
use vernic_proto::cm::{CmPath, ConnId, Datagram};
use vernic_proto::{DropReason, Time};
use vernic_wire::cm::{CmMessage, CommId, ServiceId};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Lid, Packet, RoceVersion};

use super::early::{EarlyOutcome, EarlyRequest};
use super::{CmShared, slot_of};
use crate::counters::Counted;
use crate::device::path::hash;
use crate::qp::table::QpTable;
use crate::support::events::lock;
use crate::support::packets::reason_of;

/// The process that a message is for, in terms of what the message contains.
enum For<'a> {
    /// The process that listens for this service, with the private data of the request.
    Service(ServiceId, &'a [u8]),
    /// The process that made this communication id.
    Owner(CommId),
    /// The process that received the request for the connection which the sender of the message
    /// calls by this id.
    Asked(CommId),
}

/// Returns whom a message is for, and the id that its sender uses for the connection.
fn addressee(message: &CmMessage) -> (For<'_>, Option<CommId>) {
    match message {
        CmMessage::Req(req) => {
            (For::Service(req.service_id, req.private_data.as_bytes()), Some(req.local_comm_id))
        }
        CmMessage::SidrReq(req) => {
            (For::Service(req.service_id, req.private_data.as_bytes()), Some(req.request_id))
        }
        CmMessage::Rej(rej) if rej.remote_comm_id == CommId::NONE => {
            (For::Asked(rej.local_comm_id), None)
        }
        CmMessage::Rep(rep) => (For::Owner(rep.remote_comm_id), Some(rep.local_comm_id)),
        other => (For::Owner(other.receiver_comm_id().unwrap_or(CommId::NONE)), None),
    }
}

impl CmShared {
    /// Handles a received datagram for QP1: gives it to the machine of this process, keeps it for a
    /// while, or hands it over to the process that owns it. For the thread that has the lane.
    pub(crate) fn take_mad(
        &self,
        table: &mut QpTable,
        packet: &RxPacket<'_>,
        mad: &[u8; MAD_LEN],
        now: Time,
    ) -> Result<(), DropReason> {
        let meta = packet.meta;
        // A message that does not parse goes to the machine, which counts it.
        if let Ok((_, message)) = CmMessage::parse(mad) {
            let (whose, sender) = addressee(&message);
            if !meta.handed_over {
                match self.hand_mad_over(packet, &whose) {
                    HandoverResult::Yes => {
                        self.device.counts().note(Counted::MadHandedOver);
                        self.note_forwarded(&message, meta);
                        return Ok(());
                    }
                    HandoverResult::Full => return Err(DropReason::MadOverflow),
                    HandoverResult::NoOwner => {}
                }
            }
            // This check comes after the hand-over, because another process has its own setting
            // `peers`. Peers are IP addresses there.
            if !self.has_lids() && !self.device.config().peers.contains(meta.src.ip()) {
                return Err(DropReason::PeerNotAllowed);
            }
            if !self.is_answered_here(&whose, packet) {
                let kept = lock(&self.early).keep(packet, now);
                match kept {
                    EarlyOutcome::Here => return Ok(()),
                    EarlyOutcome::Instead(displaced) => {
                        self.device.counts().note(Counted::MadEarlyRefused);
                        return self.reject_early(table, &displaced, now);
                    }
                    EarlyOutcome::Not => self.device.counts().note(Counted::MadEarlyRefused),
                }
            }
            // An answer will be sent to this sender. A lookup now may find the sender's private
            // port by then.
            if let Some(id) = sender {
                let _ = self.find_here(meta.src.ip(), id);
            }
        }
        self.give_mad(table, packet, mad, now)
    }

    /// Whether this process has a better answer to the message than a REJ that says that no process
    /// listens.
    fn is_answered_here(&self, whose: &For<'_>, packet: &RxPacket<'_>) -> bool {
        match *whose {
            For::Owner(_) | For::Asked(_) => true,
            For::Service(service, data) => {
                self.has_listener(service, self.path_of(packet).called(service, data))
            }
        }
    }

    /// Whether any process of this host has claimed the service at `local`, an address of this
    /// device.
    pub(crate) fn is_claimed(&self, service: ServiceId, local: LocalAddr) -> bool {
        let names = self.names_of(service, local);
        names.iter().any(|name| self.device.slots().is_claimed(name).unwrap_or(true))
    }

    fn note_forwarded(&self, message: &CmMessage, meta: &RxMeta) {
        if let CmMessage::Req(req) = message {
            let (id, service) = (req.local_comm_id, req.service_id);
            lock(&self.forwarded).note(meta.src.gid(), id, service);
        }
    }

    /// Checks whether a process listens by now for the requests that came too early.
    pub(crate) fn retry_early(&self, table: &mut QpTable, now: Time) {
        // Bounded, because each round takes one request, and a request that is put back is due
        // later.
        loop {
            let Some(early) = lock(&self.early).take_due(now) else { return };
            if let Err(reason) = self.retry(table, early, now) {
                self.device.counts().drop_packet(reason);
            }
        }
    }

    /// Rejects a request that came too early and must not wait any longer.
    fn reject_early(
        &self,
        table: &mut QpTable,
        early: &EarlyRequest,
        now: Time,
    ) -> Result<(), DropReason> {
        let packet = early.packet();
        let payload = Packet::parse(packet.transport()).map_err(reason_of)?.payload();
        let mad: &[u8; MAD_LEN] = payload.try_into().map_err(|_| DropReason::Length)?;
        self.give_mad(table, &packet, mad, now)
    }

    fn retry(&self, table: &mut QpTable, early: EarlyRequest, now: Time) -> Result<(), DropReason> {
        let packet = early.packet();
        let payload = Packet::parse(packet.transport()).map_err(reason_of)?.payload();
        let mad: &[u8; MAD_LEN] = payload.try_into().map_err(|_| DropReason::Length)?;
        let (_, message) = CmMessage::parse(mad).map_err(|_| DropReason::Malformed)?;
        let (whose, _) = addressee(&message);
        if !packet.meta.handed_over {
            match self.hand_mad_over(&packet, &whose) {
                HandoverResult::Yes => {
                    self.device.counts().note(Counted::MadHandedOver);
                    self.note_forwarded(&message, packet.meta);
                    return Ok(());
                }
                HandoverResult::Full if early.is_late() => return Err(DropReason::MadOverflow),
                HandoverResult::Full => {
                    lock(&self.early).put_back(early, now);
                    return Ok(());
                }
                HandoverResult::NoOwner => {}
            }
        }
        if early.is_late() || self.is_answered_here(&whose, &packet) {
            return self.give_mad(table, &packet, mad, now);
        }
        lock(&self.early).put_back(early, now);
        Ok(())
    }

    /// Returns the path that a packet came by.
    fn path_of(&self, packet: &RxPacket<'_>) -> CmPath {
        let meta = packet.meta;
        if self.has_lids() {
            return self.subnet_path_of(packet);
        }
        CmPath {
            traffic_class: meta.traffic_class & !3,
            roce: match meta.dst {
                Address::RoceV1(_) => RoceVersion::V1,
                _ => RoceVersion::V2,
            },
            ..CmPath::new(meta.dst.gid(), meta.src.gid())
        }
    }

    /// Gives a datagram to the machine of this process.
    fn give_mad(
        &self,
        table: &mut QpTable,
        packet: &RxPacket<'_>,
        mad: &[u8; MAD_LEN],
        now: Time,
    ) -> Result<(), DropReason> {
        let (path, meta) = (self.path_of(packet), packet.meta);
        let given = self.with_machine(table, |machine, table| {
            machine.handle_mad_with(now, path, mad, &|qpn| table.heard(qpn))
        });
        match given {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => tracing::debug!(src = %meta.src, %reason, "CM datagram dropped"),
            Err(error) => {
                tracing::warn!(%error, "no communication management for this process");
                return Err(DropReason::MadNoSlot);
            }
        }
        Ok(())
    }

    /// Hands a datagram over if it belongs to another process. Returns [`HandoverResult::NoOwner`]
    /// if this process has to handle it.
    fn hand_mad_over(&self, packet: &RxPacket<'_>, whose: &For<'_>) -> HandoverResult {
        if self.has_lids() {
            // The fabric process has brought the packet to the process that it is for.
            return HandoverResult::NoOwner;
        }
        match *whose {
            For::Owner(id) => {
                let slot = slot_of(id);
                if !slot.is_ordinary() || self.device.slots().is_ours(slot) {
                    return HandoverResult::NoOwner;
                }
                self.device.slots().hand_over_to_slot(slot, packet)
            }
            For::Service(service, _) => match self.has_listener(service, packet.meta.dst.gid()) {
                true => HandoverResult::NoOwner,
                false => self.hand_over_to_listener(packet, service),
            },
            For::Asked(theirs) => {
                let from = packet.meta.src.gid();
                let service = lock(&self.forwarded).service(from, theirs);
                match service.filter(|_| !self.was_asked(from, theirs)) {
                    Some(service) => self.hand_over_to_listener(packet, service),
                    None => HandoverResult::NoOwner,
                }
            }
        }
    }

    fn hand_over_to_listener(&self, packet: &RxPacket<'_>, service: ServiceId) -> HandoverResult {
        let [address, netdev] = self.names_of(service, local_of(packet.meta));
        match self.device.slots().hand_over_to_name(&address, packet) {
            HandoverResult::NoOwner => self.device.slots().hand_over_to_name(&netdev, packet),
            done => done,
        }
    }

    /// Waits until the process at the other end of a connection has answered at which port it
    /// receives. Returns at once unless that process is of this host and has been asked, which
    /// happens when its message arrives, but has not answered yet. Holds no lock while it waits.
    pub(crate) fn find_peer(&self, conn: ConnId) {
        if self.is_for_the_link() || self.device.is_orphan() {
            return;
        }
        let peer = lock(&self.state).machine.as_ref().and_then(|machine| machine.peer(conn));
        let Some((path, id)) = peer else { return };
        let (ip, slot) = (path.remote.to_ip(), slot_of(id));
        let (any, wait) = (slot.qpn(0), Duration::from_micros(self.device.config().peer_query_us));
        let mut found = self.device.slots().lookup(ip, any);
        if matches!(found, Lookup::Asked | Lookup::Pending)
            && let Some(process) = self.device.slots().query(ip, any, wait)
        {
            // The answer to the first lookup has come as well, or is about to. This call receives
            // it.
            let _ = self.device.slots().lookup(ip, any);
            found = Lookup::Here(process);
        }
        lock(&self.local_processes).note(path.remote, slot, found, self.device.now());
    }

    /// Returns the process of this host that has the address `ip` and made `id`, if it is known.
    /// Sends no query about addresses of other hosts: such an address may be forged, and a query
    /// costs system calls and takes the place of another query.
    fn find_here(&self, ip: IpAddr, id: CommId) -> Option<PeerProcess> {
        if self.is_for_the_link() || !lock(&self.host).has(ip, self.device.now()) {
            return None;
        }
        match self.device.slots().lookup(ip, slot_of(id).qpn(0)) {
            Lookup::Here(process) => Some(process),
            Lookup::NotHere | Lookup::Asked | Lookup::Pending => None,
        }
    }

    /// Returns the names that a listener for `service` may have claimed at `local`, an address of
    /// this device: for the address, and for its netdev.
    pub(crate) fn names_of(&self, service: ServiceId, local: LocalAddr) -> [ServiceName; 2] {
        let port = self.device.port_with(local.ip).unwrap_or(&self.device.ports()[0]);
        [ServiceScope::Address(local), ServiceScope::Netdev(port.netdev_index())]
            .map(|scope| ServiceName { service, scope })
    }

    /// Looks up the process of this host that listens for `service` at the other end of `path`, so
    /// that [`mad_path`](Self::mad_path) knows its port. May block; holds no lock while it waits.
    pub(crate) fn find_listener(&self, path: &CmPath, service: ServiceId) {
        if self.is_for_the_link() || self.device.is_orphan() {
            return;
        }
        let wait = Duration::from_micros(self.device.config().peer_query_us);
        let ip = path.remote.to_ip();
        let [address, netdev] = self.names_of(service, self.device.local_addr(ip));
        if self.device.slots().find_server(&address, ip, wait).is_none()
            && self.device.has_address(ip)
        {
            let _ = self.device.slots().find_server(&netdev, ip, wait);
        }
    }

    /// Whether messages to processes of this host go by the link as well.
    fn is_for_the_link(&self) -> bool {
        self.device.config().force_wire || self.has_lids()
    }

    /// Returns the path by which a datagram is sent.
    pub(crate) fn mad_path(&self, out: &Datagram) -> TxPath {
        if let Some(lids) = out.path.lids {
            return self.subnet_mad_path(&out.path, lids);
        }
        let ip = out.path.remote.to_ip();
        let message = CmMessage::parse(&out.mad).ok().map(|(_, message)| message);
        let first = message.map_or(0, |message| flow_of(&message));
        // Each repetition uses the source port five further on. The step is odd, so that
        // repetitions visit all ports. Packets of queue pairs use these ports, too.
        let flow = first.wrapping_add(u16::from(out.repeats) * 5) % FLOWS;
        let CmPath { local, remote, traffic_class, hop_limit, .. } = out.path;
        let from = self.device.port_of_gid(local);
        let (port, netdev_index) = (from.number(), from.netdev_index());
        let service_level = 0;
        let to = PathRequest {
            port,
            local,
            remote,
            netdev_index,
            traffic_class,
            hop_limit,
            service_level,
            flow_label: 0,
            dlid: Lid::RESERVED,
            path_bits: 0,
            roce: out.path.roce,
            may_wait: false,
        };
        // If there is no path, the link refuses the packet and counts it.
        let nowhere = |_: NoPath| TxPath::new(local, remote, PathId::default(), 0);
        let path = from.open_path(&to).map_or_else(nowhere, |open| open.path);
        let path = path.with_flow(flow).with_hop_limit(hop_limit);
        let straight = out.repeats.is_multiple_of(2) && !self.device.config().force_wire;
        let process = message.filter(|_| straight).and_then(|m| self.process_of(&m, ip));
        process.map_or(path, |process| {
            path.to_process(ProcessId { receiver_page: None, ..process.id() })
        })
    }

    /// Returns the process of this host that a message to the address `ip` is for, if it is known.
    fn process_of(&self, message: &CmMessage, ip: IpAddr) -> Option<PeerProcess> {
        match addressee(message).0 {
            For::Owner(id) => self.find_here(ip, id),
            For::Asked(_) => None,
            For::Service(service, _) => {
                let names = self.names_of(service, self.device.local_addr(ip));
                names.iter().find_map(|name| self.device.slots().known_server(name, ip))
            }
        }
    }
}

/// Returns the local address that a packet was sent to, with its netdev.
fn local_of(meta: &RxMeta) -> LocalAddr {
    LocalAddr::new(meta.dst.ip(), meta.netdev)
}

/// Returns the number that chooses the source port for all messages of a connection in one
/// direction. A request may use another one than the messages after it.
fn flow_of(message: &CmMessage) -> u16 {
    let id = match addressee(message) {
        // A REJ that withdraws a request uses the source port of that request.
        (For::Owner(id) | For::Asked(id), _) => id,
        (For::Service(..), id) => id.unwrap_or(CommId::NONE),
    };
    hash(id.value()) as u16
}

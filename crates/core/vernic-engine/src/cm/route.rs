//! Finds the process that a received datagram belongs to, and the path of a datagram to send.
//!
//! All processes of a user share port 4791, and the kernel chooses among their sockets by a hash of
//! addresses and ports. So any process may receive any datagram, and hands over what belongs to
//! another. A request goes to the owner of its service name, and a withdrawal follows its request
//! (`forwarded.rs`). Everything else goes by the slot in the communication id that it is for. A
//! datagram without an owner is answered here: by a REJ for a request, otherwise by the machine's
//! reply to unknown ids. No datagram is handed over twice. A request without a listener waits a
//! moment first (`early.rs`).
//!
//! A stopped process shares the port too, and swallows what is hashed to it. So a datagram to a
//! process of this host goes to its private port where that is known. A repeated datagram leaves
//! from a different source port each time, and not always to the private port. So it sooner or
//! later reaches a process that runs. With `force_wire` everything goes to port 4791.
//!
//! Limits: names and private ports of others are remembered for a second (`vernic_io::host`).

use std::net::IpAddr;
use std::time::Duration;

use vernic_io::host::{Lookup, PeerProcess};
use vernic_io::udp::FLOWS;
use vernic_io::{
    HandedOver, LocalAddr, NoPath, PathId, PathRequest, Place, ProcessId, RxMeta, RxPacket,
    ServiceName, TxPath,
};
use vernic_proto::cm::{CmPath, ConnId, Datagram};
use vernic_proto::{DropReason, Time};
use vernic_wire::Packet;
use vernic_wire::cm::{CmMessage, CommId, ServiceId};
use vernic_wire::mad::{MAD_LEN, MadHeader, MgmtClass};

use super::early::{Early, Kept};
use super::{CmShared, slot_of};
use crate::counters::Counted;
use crate::device::path::hash;
use crate::qp::table::QpTable;
use crate::support::events::lock;
use crate::support::packets::reason_of;

/// The receiver that a message names.
enum For {
    /// The process that listens for the service.
    Service(ServiceId),
    /// The process that made the id.
    Owner(CommId),
    /// The process that got the request for the connection to which the sender gave this id.
    Asked(CommId),
}

/// Returns the receiver of a message, and the id that its sender uses for the connection.
fn addressee(message: &CmMessage) -> (For, Option<CommId>) {
    match message {
        CmMessage::Req(req) => (For::Service(req.service_id), Some(req.local_comm_id)),
        CmMessage::SidrReq(req) => (For::Service(req.service_id), Some(req.request_id)),
        CmMessage::Rej(rej) if rej.remote_comm_id == CommId::NONE => {
            (For::Asked(rej.local_comm_id), None)
        }
        CmMessage::Rep(rep) => (For::Owner(rep.remote_comm_id), Some(rep.local_comm_id)),
        other => (For::Owner(other.receiver_comm_id().unwrap_or(CommId::NONE)), None),
    }
}

impl CmShared {
    /// Takes a datagram for QP1, and gives it to this process or hands it over to its owner. For
    /// the holder of the lane.
    pub(crate) fn take_mad(
        &self,
        table: &mut QpTable,
        packet: &RxPacket<'_>,
        mad: &[u8; MAD_LEN],
        now: Time,
    ) -> Result<(), DropReason> {
        let header = MadHeader::parse(mad).map_err(|_| DropReason::Malformed)?;
        if header.mgmt_class != MgmtClass::COMMUNICATION {
            return Err(DropReason::MadClass);
        }
        let meta = packet.meta;
        // The machine counts what does not parse.
        if let Ok((_, message)) = CmMessage::parse(mad) {
            let (whose, sender) = addressee(&message);
            if !meta.handed_over {
                match self.hand_mad_over(packet, &whose) {
                    HandedOver::Yes => {
                        self.device.counts().note(Counted::MadHandedOver);
                        self.note_forwarded(&message, meta);
                        return Ok(());
                    }
                    HandedOver::Full => return Err(DropReason::MadOverflow),
                    HandedOver::NoOwner => {}
                }
            }
            // Another process decides by itself which peers it allows.
            if !self.device.config().peers.contains(meta.src.ip()) {
                return Err(DropReason::PeerNotAllowed);
            }
            if !self.is_answered_here(&whose, meta) {
                let kept = lock(&self.early).keep(packet, now);
                match kept {
                    Kept::Here => return Ok(()),
                    Kept::Instead(displaced) => {
                        self.device.counts().note(Counted::MadEarlyRefused);
                        return self.reject_early(table, &displaced, now);
                    }
                    Kept::Not => self.device.counts().note(Counted::MadEarlyRefused),
                }
            }
            // The sender will be answered, and the lookup may find its port by then.
            if let Some(id) = sender {
                let _ = self.find_here(meta.src.ip(), id);
            }
        }
        self.give_mad(table, meta, mad, now)
    }

    /// Whether this process has a better answer than that nothing listens.
    fn is_answered_here(&self, whose: &For, meta: &RxMeta) -> bool {
        match *whose {
            For::Owner(_) | For::Asked(_) => true,
            For::Service(service) => self.has_listener(service, meta.dst.gid()),
        }
    }

    /// Whether any process on this host has claimed the name of a service at `local`, an address of
    /// this device.
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

    /// Checks whether there is a listener now for the requests that came too early.
    pub(crate) fn look_for_early(&self, table: &mut QpTable, now: Time) {
        // Bounded: each round takes one request, and a request that is put back is due later.
        loop {
            let Some(early) = lock(&self.early).take_due(now) else { return };
            if let Err(reason) = self.look_again(table, early, now) {
                self.device.counts().drop_packet(reason);
            }
        }
    }

    /// Rejects a request that came too early and waits no longer.
    fn reject_early(
        &self,
        table: &mut QpTable,
        early: &Early,
        now: Time,
    ) -> Result<(), DropReason> {
        let packet = early.packet();
        let payload = Packet::parse(packet.transport()).map_err(reason_of)?.payload();
        let mad: &[u8; MAD_LEN] = payload.try_into().map_err(|_| DropReason::Length)?;
        self.give_mad(table, packet.meta, mad, now)
    }

    fn look_again(&self, table: &mut QpTable, early: Early, now: Time) -> Result<(), DropReason> {
        let packet = early.packet();
        let payload = Packet::parse(packet.transport()).map_err(reason_of)?.payload();
        let mad: &[u8; MAD_LEN] = payload.try_into().map_err(|_| DropReason::Length)?;
        let (_, message) = CmMessage::parse(mad).map_err(|_| DropReason::Malformed)?;
        let (whose, _) = addressee(&message);
        if !packet.meta.handed_over {
            match self.hand_mad_over(&packet, &whose) {
                HandedOver::Yes => {
                    self.device.counts().note(Counted::MadHandedOver);
                    self.note_forwarded(&message, packet.meta);
                    return Ok(());
                }
                HandedOver::Full if early.is_late() => return Err(DropReason::MadOverflow),
                HandedOver::Full => {
                    lock(&self.early).put_back(early, now);
                    return Ok(());
                }
                HandedOver::NoOwner => {}
            }
        }
        if early.is_late() || self.is_answered_here(&whose, packet.meta) {
            return self.give_mad(table, packet.meta, mad, now);
        }
        lock(&self.early).put_back(early, now);
        Ok(())
    }

    /// Gives a datagram to the machine.
    fn give_mad(
        &self,
        table: &mut QpTable,
        meta: &RxMeta,
        mad: &[u8; MAD_LEN],
        now: Time,
    ) -> Result<(), DropReason> {
        let path = CmPath {
            traffic_class: meta.traffic_class & !3,
            ..CmPath::new(meta.dst.gid(), meta.src.gid())
        };
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

    /// Hands a datagram over if it belongs to another process; [`HandedOver::NoOwner`] if it must
    /// be handled here.
    fn hand_mad_over(&self, packet: &RxPacket<'_>, whose: &For) -> HandedOver {
        match *whose {
            For::Owner(id) => {
                let slot = slot_of(id);
                if !slot.is_ordinary() || self.device.slots().is_ours(slot) {
                    return HandedOver::NoOwner;
                }
                self.device.slots().hand_over_to_slot(slot, packet)
            }
            For::Service(service) => match self.has_listener(service, packet.meta.dst.gid()) {
                true => HandedOver::NoOwner,
                false => self.hand_over_to_listener(packet, service),
            },
            For::Asked(theirs) => {
                let from = packet.meta.src.gid();
                let service = lock(&self.forwarded).service(from, theirs);
                match service.filter(|_| !self.was_asked(from, theirs)) {
                    Some(service) => self.hand_over_to_listener(packet, service),
                    None => HandedOver::NoOwner,
                }
            }
        }
    }

    fn hand_over_to_listener(&self, packet: &RxPacket<'_>, service: ServiceId) -> HandedOver {
        let [address, netdev] = self.names_of(service, local_of(packet.meta));
        match self.device.slots().hand_over_to_name(&address, packet) {
            HandedOver::NoOwner => self.device.slots().hand_over_to_name(&netdev, packet),
            done => done,
        }
    }

    /// Waits until the process at the other end of a connection says where it receives. Only if
    /// that process is of this host, was asked when its message came, and has not answered yet.
    /// Holds no lock meanwhile.
    pub(crate) fn find_peer(&self, conn: ConnId) {
        if self.device.config().force_wire || self.device.is_orphan() {
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
            // The answer to the first lookup has come too, or will come; this call takes it in.
            let _ = self.device.slots().lookup(ip, any);
            found = Lookup::Here(process);
        }
        lock(&self.neighbours).meet(path.remote, slot, found, self.device.now());
    }

    /// Returns the process of this host that serves `ip` and has made `id`, if it is known. Asks no
    /// process about addresses of other hosts. Such an address may be forged, and a query costs
    /// system calls and displaces another query.
    fn find_here(&self, ip: IpAddr, id: CommId) -> Option<PeerProcess> {
        if self.device.config().force_wire || !lock(&self.host).has(ip, self.device.now()) {
            return None;
        }
        match self.device.slots().lookup(ip, slot_of(id).qpn(0)) {
            Lookup::Here(process) => Some(process),
            Lookup::NotHere | Lookup::Asked | Lookup::Pending => None,
        }
    }

    /// Returns the names that a listener for `service` at `local`, an address of this device, may
    /// have.
    pub(crate) fn names_of(&self, service: ServiceId, local: LocalAddr) -> [ServiceName; 2] {
        [Place::Address(local), Place::Netdev(self.device.info().netdev_index)]
            .map(|place| ServiceName { service, place })
    }

    /// Looks for the process of this host that listens for `service` at the other end of `path`, so
    /// that [`mad_path`](Self::mad_path) knows it. May wait, and holds no lock meanwhile.
    pub(crate) fn find_listener(&self, path: &CmPath, service: ServiceId) {
        if self.device.config().force_wire || self.device.is_orphan() {
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

    /// Returns the path that a datagram goes out by.
    pub(crate) fn mad_path(&self, out: &Datagram) -> TxPath {
        let ip = out.path.remote.to_ip();
        let message = CmMessage::parse(&out.mad).ok().map(|(_, message)| message);
        let first = message.map_or(0, |message| flow_of(&message));
        // Steps of an odd size visit as many source ports; queue pairs use these ports too.
        let flow = first.wrapping_add(u16::from(out.repeats) * 5) % FLOWS;
        let CmPath { local, remote, traffic_class, hop_limit, .. } = out.path;
        let netdev_index = self.device.info().netdev_index;
        let service_level = 0;
        let to =
            PathRequest { local, remote, netdev_index, traffic_class, hop_limit, service_level };
        // The link refuses a path that leads nowhere, and counts it.
        let nowhere = |NoPath| TxPath::new(local, remote, PathId::default(), 0);
        let path = self.device.port().open_path(&to).map_or_else(nowhere, |open| open.path);
        let path = path.with_flow(flow).with_hop_limit(hop_limit);
        let straight = out.repeats.is_multiple_of(2) && !self.device.config().force_wire;
        let process = message.filter(|_| straight).and_then(|m| self.process_of(&m, ip));
        process.map_or(path, |process| path.to_process(ProcessId { intake: None, ..process.id() }))
    }

    /// Returns the process of this host that a message to `ip` is for, if it is known.
    fn process_of(&self, message: &CmMessage, ip: IpAddr) -> Option<PeerProcess> {
        match addressee(message).0 {
            For::Owner(id) => self.find_here(ip, id),
            For::Asked(_) => None,
            For::Service(service) => {
                let names = self.names_of(service, self.device.local_addr(ip));
                names.iter().find_map(|name| self.device.slots().known_server(name, ip))
            }
        }
    }
}

/// Returns the local address that a packet came to.
fn local_of(meta: &RxMeta) -> LocalAddr {
    LocalAddr::new(meta.dst.ip(), meta.netdev)
}

/// Returns the flow of the messages of a connection in one direction. A request may have a flow of
/// its own.
fn flow_of(message: &CmMessage) -> u16 {
    let id = match addressee(message) {
        // A withdrawal uses the flow of its request.
        (For::Owner(id) | For::Asked(id), _) => id,
        (For::Service(_), id) => id.unwrap_or(CommId::NONE),
    };
    hash(id.value()) as u16
}

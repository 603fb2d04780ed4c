//! Whose a datagram is that came in, and by which path one goes out.
//!
//! All processes of a user share port 4791, and the kernel chooses among their sockets by a hash of
//! addresses and ports. So any process may receive any datagram, and sends on what is another's: a
//! request by the name of its service, and what takes one back the same way (`forwarded.rs`),
//! everything else by the slot in the communication id that it is for. What nobody has is answered
//! here: REJ for a request, what the machine says to unknown ids for the rest. No datagram is sent
//! on twice. A request that nobody listens for waits a moment first (`early.rs`).
//!
//! A process that is stopped shares the port too, and swallows what is hashed to it. So a datagram
//! to a process of this host goes to its private port where that is known; and one that was not
//! answered leaves from other source ports each time, and not always to the private port, so that
//! sooner or later it reaches somebody who lives. With `force_wire` everything goes to port 4791.
//!
//! Limits: the names and private ports of others are known for a second (`vernic_io::host`).

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
use crate::device::path::hash;
use crate::qp::table::QpTable;
use crate::support::events::lock;
use crate::support::packets::reason_of;

/// What a message says about whom it is for.
enum For {
    /// The process that listens for the service.
    Service(ServiceId),
    /// The process that made the id.
    Owner(CommId),
    /// The process that was asked for the connection that the sender calls so.
    Asked(CommId),
}

/// Whom a message is for, and the id that its sender has for what it is about.
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
    /// Takes a datagram for QP1: hands it to its owner, this process or another. The holder of the
    /// lane calls.
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
        // What does not parse is counted by the machine.
        if let Ok((_, message)) = CmMessage::parse(mad) {
            let (whose, sender) = addressee(&message);
            if !meta.handed_over {
                match self.hand_mad_over(packet, &whose) {
                    HandedOver::Yes => {
                        self.device.counts().mads_handed_over.add(1);
                        self.note_forwarded(&message, meta);
                        return Ok(());
                    }
                    HandedOver::Full => return Err(DropReason::MadOverflow),
                    HandedOver::NoOwner => {}
                }
            }
            // What is another process's, that decides about.
            if !self.device.config().peers.contains(meta.src.ip()) {
                return Err(DropReason::PeerNotAllowed);
            }
            if !self.is_answered_here(&whose, meta) {
                let kept = lock(&self.early).keep(packet, now);
                match kept {
                    Kept::Here => return Ok(()),
                    Kept::Instead(displaced) => {
                        self.device.counts().mads_early_refused.add(1);
                        return self.reject_early(table, &displaced, now);
                    }
                    Kept::Not => self.device.counts().mads_early_refused.add(1),
                }
            }
            // The sender will be answered: where it is may be known by then.
            if let Some(id) = sender {
                let _ = self.find_here(meta.src.ip(), id);
            }
        }
        self.give_mad(table, meta, mad, now)
    }

    /// Whether this process has an answer other than that nobody listens.
    fn is_answered_here(&self, whose: &For, meta: &RxMeta) -> bool {
        match *whose {
            For::Owner(_) | For::Asked(_) => true,
            For::Service(service) => self.has_listener(service, meta.dst.gid()),
        }
    }

    /// Whether anybody on this host has the name of a service at `local`, an address of this
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

    /// Looks whether somebody listens now for the requests that came too early.
    pub(crate) fn look_for_early(&self, table: &mut QpTable, now: Time) {
        // Each turn takes one, and what is put back is due later.
        loop {
            let Some(early) = lock(&self.early).take_due(now) else { return };
            if let Err(reason) = self.look_again(table, early, now) {
                self.device.counts().drop_packet(reason);
            }
        }
    }

    /// A request that came too early waits no longer.
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
                    self.device.counts().mads_handed_over.add(1);
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

    /// Sends a datagram on if it is another process's; [`HandedOver::NoOwner`] if it is to be
    /// handled here.
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

    /// Waits for the process of this host that is the other end of a connection to say where it
    /// receives, if it was asked when its message came and has not answered yet. Holds no lock
    /// meanwhile.
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
            // The answer to the first question is there too, or will be; it is taken in by this.
            let _ = self.device.slots().lookup(ip, any);
            found = Lookup::Here(process);
        }
        lock(&self.neighbours).meet(path.remote, slot, found, self.device.now());
    }

    /// The process of this host that serves `ip` and has made an id, if that is known. Asks nobody
    /// about addresses that are none of this host: anybody may write them into a packet, and a
    /// question costs system calls and the place of another.
    fn find_here(&self, ip: IpAddr, id: CommId) -> Option<PeerProcess> {
        if self.device.config().force_wire || !lock(&self.host).has(ip, self.device.now()) {
            return None;
        }
        match self.device.slots().lookup(ip, slot_of(id).qpn(0)) {
            Lookup::Here(process) => Some(process),
            Lookup::NotHere | Lookup::Asked | Lookup::Pending => None,
        }
    }

    /// The names that a listener for `service` at `local`, an address of this device, may have.
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

    /// By which path a datagram goes out.
    pub(crate) fn mad_path(&self, out: &Datagram) -> TxPath {
        let ip = out.path.remote.to_ip();
        let message = CmMessage::parse(&out.mad).ok().map(|(_, message)| message);
        let first = message.map_or(0, |message| flow_of(&message));
        // An odd step visits as many source ports; queue pairs use them, too.
        let flow = first.wrapping_add(u16::from(out.repeats) * 5) % FLOWS;
        let CmPath { local, remote, traffic_class, hop_limit, .. } = out.path;
        let netdev_index = self.device.info().netdev_index;
        let service_level = 0;
        let to =
            PathRequest { local, remote, netdev_index, traffic_class, hop_limit, service_level };
        // The link refuses what leads nowhere, and counts it.
        let nowhere = |NoPath| TxPath::new(local, remote, PathId::default(), 0);
        let path = self.device.port().open_path(&to).map_or_else(nowhere, |open| open.path);
        let path = path.with_flow(flow).with_hop_limit(hop_limit);
        let straight = out.repeats.is_multiple_of(2) && !self.device.config().force_wire;
        let process = message.filter(|_| straight).and_then(|m| self.process_of(&m, ip));
        process.map_or(path, |process| path.to_process(ProcessId { intake: None, ..process.id() }))
    }

    /// The process of this host that a message to `ip` is for, if that is known.
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

/// An address that a packet came to.
fn local_of(meta: &RxMeta) -> LocalAddr {
    LocalAddr::new(meta.dst.ip(), meta.netdev)
}

/// The flow of the messages of a connection in one direction; requests may have one of their own.
fn flow_of(message: &CmMessage) -> u16 {
    let id = match addressee(message) {
        // As that of the request that it is about.
        (For::Owner(id) | For::Asked(id), _) => id,
        (For::Service(_), id) => id.unwrap_or(CommId::NONE),
    };
    hash(id.value()) as u16
}

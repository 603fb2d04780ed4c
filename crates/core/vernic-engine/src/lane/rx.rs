//! Receiving: from the link to the machines of the queue pairs.
//!
//! Per packet: check the ICRC, parse, look up the destination, compare the source of connected
//! services, and hand the packet to the machine. Every packet that stops on the way is counted
//! under one [`DropReason`], and some are told (`drop_log.rs`). Consecutive packets of one queue
//! pair, the usual case, take its lock once.

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};

use vernic_io::host::{Lookup, ReceiverPage, Slot};
use vernic_io::{Address, Door, Icrc, Nanos, RxPacket};
use vernic_local::{BYTES_PER_POLL, RingSource, SenderMemory};
use vernic_local::{LocalPeerId, MAX_RING_BYTES, Record, rx_packet};
use vernic_proto::{Disposition, DropReason, RxMeta, Time};
use vernic_wire::{LocalRoute, Packet, Qpn, Service};

use crate::counters::Counted;
use crate::device::book::{DROPPED_PACKETS, more};
use crate::device::grh;
use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::lane::drop_log::DropLog;
use crate::lane::groups::Groups;
use crate::lane::packets::Packets;
use crate::qp::arrivals::Arrivals;
use crate::qp::source::Sender;
use crate::qp::state::{QpCore, QpInner};
use crate::qp::table::QpTable;
use crate::qp::xrc::SrqTable;
use crate::sched::{Event, Scheduler};
use crate::support::events::lock;
use crate::support::packets::reason_of;

mod messages;

/// `wc.sl` of a RoCEv2 datagram over IPv4: what an adapter reports as packet type.
const PACKET_TYPE_IPV4: u8 = 0xA;
/// `wc.sl` of a RoCEv2 datagram over IPv6.
const PACKET_TYPE_IPV6: u8 = 0x9;

impl Packets {
    /// Receives one batch and handles its packets; returns how many there were.
    #[inline]
    pub(super) fn receive_batch(
        &mut self,
        lane: &mut LaneState,
        engine: &Device,
        now: Time,
    ) -> usize {
        let from_rings = lane.receive_rings(engine, now);
        if from_rings >= RING_ACKS {
            // The next poll may be far off: the application first takes what has come.
            lane.sched.release_ring_acks();
            self.transmit_ready(lane, engine, now);
        }
        if !lane.local_peers.is_time_for_link(from_rings, now) {
            return from_rings;
        }
        let count = lane.link.recv(Nanos(now.nanos()), &mut self.rx);
        lane.local_peers.link_had(count);
        if count == 0 {
            if let Some(receiver_page) = &lane.receiver_page {
                receiver_page.settle(&mut self.receiver_page_seen, now.nanos());
            }
            return from_rings;
        }
        lane.sched.count_received(count);
        let LaneState { link, table, srqs, sched, arrivals, groups, gsi, drop_log, .. } = lane;
        let (locked, mads, paced, via, sender_memory, pulled) =
            (None, Vec::new(), 0, None, None, 0);
        let mut noted = None;
        let mut demux = Demux {
            engine,
            now,
            table,
            srqs,
            groups,
            sched,
            arrivals,
            locked,
            mads,
            paced,
            via,
            sender_memory,
            pulled,
            accepted: 0,
            drop_log,
        };
        for packet in self.rx.packets() {
            let before = demux.accepted;
            let result = match link.verify(&packet) {
                Icrc::Bad => Err(DropReason::Icrc),
                Icrc::Good | Icrc::Unchecked => demux.handle(&packet),
            };
            if let Err(reason) = result {
                demux.drop_packet(&packet, reason);
            }
            // Noted once for each buffer.
            let buffer = std::ptr::from_ref(packet.meta);
            if packet.meta.handed_over && demux.accepted != before && noted != Some(buffer) {
                noted = Some(buffer);
                link.note_accepted(&packet, Nanos(now.nanos()));
            }
        }
        demux.unlock();
        let (mads, paced) = (std::mem::take(&mut demux.mads), demux.paced);
        drop(demux);
        if !mads.is_empty() {
            gsi.handle(engine, table, &mads, now);
        }
        if let Some(receiver_page) = lane.receiver_page.as_ref().filter(|_| paced != 0) {
            receiver_page.take(paced);
        }
        from_rings + count
    }
}

impl LaneState {
    /// Receives from the rings, and handles their packets; returns how many there were.
    #[inline]
    fn receive_rings(&mut self, engine: &Device, now: Time) -> usize {
        let mut count = 0;
        for nth in 0..self.local_peers.len() {
            if let Some(index) = self.local_peers.news_of(nth) {
                count += self.receive_ring(engine, index, RING_BYTES, now);
            }
        }
        count
    }

    /// Receives what is left in the ring of a local peer that is gone.
    pub(crate) fn receive_rest(&mut self, engine: &Device, id: LocalPeerId, now: Time) {
        if self.local_peers.peer(id).is_some() {
            self.receive_ring(engine, id.index() as u16, u64::from(MAX_RING_BYTES), now);
        }
    }

    /// Receives up to `bytes` from the ring of one local peer.
    fn receive_ring(&mut self, engine: &Device, index: u16, bytes: u64, now: Time) -> usize {
        let Self { local_peers, table, srqs, sched, arrivals, groups, drop_log, .. } = self;
        let all_pulled = &mut self.pulled;
        let (mut buffer, mut count, mut total, mut broken) =
            (local_peers.take_buffer(), 0, 0, None);
        let Some((reader, via)) = local_peers.reading(index) else { return 0 };
        let sender_memory = via.sender_memory();
        let (locked, mads, paced, via, pulled) = (None, Vec::new(), 0, Some(via), 0);
        let mut demux = Demux {
            engine,
            now,
            table,
            srqs,
            groups,
            sched,
            arrivals,
            locked,
            mads,
            paced,
            via,
            sender_memory,
            pulled,
            accepted: 0,
            drop_log,
        };
        let is_rest = bytes > RING_BYTES;
        let may_go_on = |demux: &Demux<'_, '_>, count| {
            is_rest || (demux.pulled < BYTES_PER_POLL && count < RING_RECORDS)
        };
        while reader.unreleased() < bytes && may_go_on(&demux, count) {
            match reader.next(&mut buffer) {
                Ok(Some(Record::Message(head, len))) => {
                    count += 1;
                    total += demux.handle_message(head, &buffer[..len]) as u64;
                }
                Ok(Some(Record::Packet(len))) => {
                    count += 1;
                    total += len as u64;
                    let packet = rx_packet(&buffer, len, reader.origin());
                    if let Err(reason) = demux.handle_from_ring(&packet) {
                        demux.drop_packet(&packet, reason);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        demux.unlock();
        *all_pulled += demux.pulled;
        drop(demux);
        reader.release();
        local_peers.give_buffer(buffer);
        sched.count_received(count);
        engine.counts().add(Counted::NearRxPacket, count as u64);
        engine.counts().add(Counted::NearRxByte, total);
        if let Some(error) = broken {
            local_peers.break_off(index, &error);
        }
        count
    }
}

/// Bytes that one call takes from a ring: few enough to stay in the second-level cache, and to keep
/// no other ring waiting.
const RING_BYTES: u64 = 64 * 1024;

/// The number of records that one call takes from a ring: a quarter of what programs usually have
/// in flight. While the application handles their completions, their sender goes on, and so neither
/// waits for the other.
const RING_RECORDS: usize = 32;

/// The number of records that a poll takes out of rings from which on it acknowledges them itself.
/// The senders of so many may be waiting for that. An acknowledgement through a ring costs no
/// system call, and as much as two small messages.
const RING_ACKS: usize = 16;

/// The queue pair whose lock is held between two packets.
struct LockedQp<'a> {
    qp: &'a Arc<QpInner>,
    core: MutexGuard<'a, QpCore>,
    /// Whether there was a request among its packets.
    requests: bool,
    /// Whether the machine took one of them.
    heard: bool,
}

/// Returns the ECN field of a packet with a mark, 0 of others: the field means something only where
/// a router may have written it.
#[inline]
fn ecn_of(engine: &Device, packet: &RxPacket<'_>) -> u8 {
    let marked = packet.meta.is_congestion_experienced();
    if marked && engine.carries_marks(&packet.meta.src) { packet.meta.traffic_class & 3 } else { 0 }
}

struct Demux<'a, 'p> {
    engine: &'a Device,
    now: Time,
    table: &'a QpTable,
    srqs: &'a SrqTable,
    groups: &'a Groups,
    sched: &'a mut Scheduler,
    arrivals: &'a mut Arrivals,
    locked: Option<LockedQp<'a>>,
    /// Packets for QP1: handled when no queue pair is held. Allocates, off the data path.
    mads: Vec<RxPacket<'p>>,
    /// The cost, as [`ReceiverPage::cost`] has it, of the packets that are subject to UDP
    /// backpressure.
    paced: u64,
    /// The local peer whose ring the packets come from.
    via: Option<RingSource<'a>>,
    /// The memory of that peer, if bytes are copied out of it.
    sender_memory: Option<&'a SenderMemory>,
    /// Bytes that rendezvous copied out of that memory. A copy that failed counts in full, and a
    /// short one as one of the least bytes that a sender names.
    pulled: u64,
    /// Packets that machines took as the next of their sequence.
    accepted: u64,
    drop_log: &'a mut DropLog,
}

impl<'a, 'p> Demux<'a, 'p> {
    fn handle(&mut self, packet: &RxPacket<'p>) -> Result<(), DropReason> {
        let parsed = Packet::parse(packet.transport()).map_err(reason_of)?;
        let service = parsed.info().service;
        if service == Service::Cnp {
            return self.handle_cnp(packet, &parsed);
        }
        if ecn_of(self.engine, packet) != 0 {
            self.engine.counts().note(Counted::EcnMarked);
        }
        self.paced += paced_cost(packet, service);
        let qpn = parsed.dest_qpn();
        match qpn {
            Qpn::MULTICAST => self.handle_multicast(packet, &parsed),
            Qpn::GSI => {
                self.keep_mad(packet, service);
                Ok(())
            }
            _ => self.deliver(qpn, packet, &parsed),
        }
    }

    /// Hands a congestion notification to the queue pair that it names, if that queue pair's peer
    /// sent it. The notification counts as a drop, for nothing else is done with it.
    #[cold]
    fn handle_cnp(&mut self, packet: &RxPacket<'p>, parsed: &Packet<'_>) -> Result<(), DropReason> {
        self.engine.counts().note(Counted::Cnp);
        let qpn = parsed.dest_qpn();
        self.table.find(qpn).ok_or(DropReason::Cnp)?;
        self.deliver(qpn, packet, parsed)
    }

    /// Handles a packet out of a ring. No packets of QP1 or of a multicast group come out of a
    /// ring: they go by UDP.
    #[inline]
    fn handle_from_ring(&mut self, packet: &RxPacket<'_>) -> Result<(), DropReason> {
        let parsed = Packet::parse(packet.transport()).map_err(reason_of)?;
        self.deliver(parsed.dest_qpn(), packet, &parsed)
    }

    /// Hands a packet to one queue pair.
    #[inline]
    fn deliver(
        &mut self,
        qpn: Qpn,
        packet: &RxPacket<'_>,
        parsed: &Packet<'_>,
    ) -> Result<(), DropReason> {
        self.lock(qpn)?;
        let Some(LockedQp { qp, core, requests, heard }) = &mut self.locked else { return Ok(()) };
        let is_request = parsed.info().is_request();
        *requests |= is_request;
        let mut sender = Sender::Peer;
        let ecn = ecn_of(self.engine, packet);
        let mut meta = RxMeta { grh: None, ecn, route: LocalRoute::NONE, is_peer: true };
        // A datagram completes nothing but its receive, so those of a batch may complete together.
        let is_datagram = qp.service() == Service::Ud;
        if is_datagram {
            // Queue pairs of other services receive from their peers alone, which were checked
            // against this setting when they were connected.
            if !self.engine.config().peers.contains(packet.meta.src.ip()) {
                return Err(DropReason::PeerNotAllowed);
            }
            describe_datagram(packet, &mut meta);
        } else if let Some(matches) =
            core.side.peer.has_addresses(&packet.meta.src, &packet.meta.dst)
        {
            if !matches && !follows(self.engine, qp, core, packet, parsed, self.now) {
                return Err(DropReason::WrongSource);
            }
            if self.via.is_none() {
                if core.side.peer.route().excludes_link(is_request) {
                    return Err(DropReason::WrongWay);
                }
                // The sender of a congestion notification chooses its port freely, so that port
                // teaches nothing.
                if !core.side.peer.has_port(is_request, packet.meta.flow)
                    && parsed.info().service != Service::Cnp
                {
                    // What is credible depends on what has been answered.
                    qp.with_host(self.engine, self.now, core, |machine, host| {
                        machine.end_run(self.now, host);
                    });
                    sender = identify(self.engine, qp, core, packet, parsed, self.now)?;
                    meta.is_peer = sender == Sender::Peer && self.engine.config().pin_source_ports;
                }
            }
        }
        let (engine, srqs, now) = (self.engine, Some(self.srqs), self.now);
        let hosted = (srqs, None, is_datagram);
        let disposition = qp.with_parts(engine, hosted, now, core, |machine, host| {
            machine.handle_packet_of_run(now, parsed, &meta, host)
        });
        if sender != Sender::Peer && disposition == Disposition::Accepted {
            core.side.peer.learn_port(sender, is_request, packet.meta.flow, qp.qpn());
        }
        // A packet that the machine did not take says nothing of where the peer is.
        if !matches!(disposition, Disposition::Drop(_)) && !is_datagram {
            let via = self.via.as_ref().map(RingSource::id);
            if core.side.peer.note_arrival(is_request, via) {
                choose_response_route(engine, core, self.via.as_mut());
            }
        }
        if disposition == Disposition::Accepted {
            self.accepted += 1;
        } else {
            count_disposition(engine, disposition, packet.meta.src)?;
        }
        *heard = true;
        if core.machine.has_kept() {
            self.handle_kept(packet.meta.src);
        }
        Ok(())
    }

    /// Hands the locked queue pair what it has kept and what is next in its sequence now.
    #[cold]
    fn handle_kept(&mut self, src: Address) {
        let (engine, srqs, now) = (self.engine, Some(self.srqs), self.now);
        let Some(LockedQp { qp, core, requests, .. }) = &mut self.locked else { return };
        // Bounded: a queue pair keeps a bounded number of packets.
        loop {
            let hosted = (srqs, None, false);
            let disposition = qp.with_parts(engine, hosted, now, core, |machine, host| {
                let machine = machine.packets()?;
                let kept = machine.take_kept()?;
                Some(machine.handle_kept(now, &kept, host))
            });
            let Some(disposition) = disposition else { return };
            *requests = true;
            self.accepted += u64::from(disposition == Disposition::Accepted);
            engine.counts().note(Counted::KeptHandled);
            if let Err(reason) = count_disposition(engine, disposition, src) {
                engine.drop_from(src, reason);
            }
        }
    }

    /// Counts a packet that is dropped, and tells of it if it shows a mistake.
    #[cold]
    fn drop_packet(&mut self, packet: &RxPacket<'_>, reason: DropReason) {
        self.engine.drop_from(packet.meta.src, reason);
        let Ok(parsed) = Packet::parse(packet.transport()) else { return };
        let qpn = parsed.dest_qpn();
        // A response is late rather than wrong, and a queue pair of another process is not ours to
        // speak of.
        let is_ours = self.engine.slots().is_ours(Slot::of(qpn));
        if !parsed.info().is_request() || !is_ours {
            return;
        }
        let locked = self.locked.as_ref().filter(|locked| locked.qp.qpn() == qpn);
        let state = locked.map(|locked| locked.core.machine.state());
        if let Some(advice) = self.drop_log.note(reason, (qpn, state), self.now) {
            let (from, count) = (packet.meta.src, self.engine.counts().drops(reason));
            let more = more(DROPPED_PACKETS).map(tracing::field::display);
            tracing::warn!(%from, %qpn, drops = count, more, "packets are dropped: {advice}");
        }
    }

    /// Locks a queue pair, unless it is locked since the packet before.
    #[inline]
    fn lock(&mut self, qpn: Qpn) -> Result<(), DropReason> {
        match &self.locked {
            Some(locked) if locked.qp.qpn() == qpn => Ok(()),
            _ => self.lock_other(qpn),
        }
    }

    /// Locks a queue pair in place of the one that is locked. Not inlined, so that a packet of the
    /// same queue pair as the one before saves no registers for it.
    #[inline(never)]
    fn lock_other(&mut self, qpn: Qpn) -> Result<(), DropReason> {
        let qp = self.table.find(qpn).ok_or(DropReason::UnknownQpn)?;
        self.unlock();
        self.locked = Some(LockedQp { qp, core: lock(&qp.core), requests: false, heard: false });
        Ok(())
    }

    /// Keeps a packet for QP1, which is in no table, until the batch has been handled.
    #[cold]
    fn keep_mad(&mut self, packet: &RxPacket<'p>, service: Service) {
        // Management datagrams are not subject to UDP backpressure.
        self.paced -= paced_cost(packet, service);
        self.mads.push(*packet);
    }

    /// Hands a packet to every member of its group (IBTA 10.5.2.1).
    fn handle_multicast(
        &mut self,
        packet: &RxPacket<'p>,
        parsed: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let gid = packet.meta.dst.gid();
        let groups = self.groups;
        let mut is_taken = false;
        for member in groups.members(gid, packet.meta.netdev) {
            is_taken = true;
            // A refusal counts for that member alone; the others still get the packet.
            if let Err(reason) = self.deliver(member, packet, parsed) {
                self.drop_packet(packet, reason);
            }
        }
        if is_taken { Ok(()) } else { Err(DropReason::NotAttached) }
    }

    /// Ends the run of packets of the locked queue pair, and unlocks it. The scheduler sees to what
    /// the queue pair wants to send, and to its timer.
    fn unlock(&mut self) {
        let Some(LockedQp { qp, mut core, requests, heard }) = self.locked.take() else { return };
        if core.machine.has_run() {
            let (srqs, now) = (Some(self.srqs), self.now);
            qp.with_lane_host(self.engine, srqs, now, &mut core, |machine, host| {
                machine.end_run(now, host);
            });
        }
        qp.settle(self.engine, self.now, &mut core, self.arrivals);
        if heard {
            core.side.peer.note_heard(self.now);
        }
        if requests {
            note_receipt(self.engine, qp, &core);
        }
        self.sched.after(self.engine, qp, &mut core, Event::Packets { requests }, self.now);
    }
}

/// Notes what the queue pair has received of a peer of this host, for the case that this process
/// ends before the ACK leaves.
#[inline]
fn note_receipt(engine: &Device, qp: &QpInner, core: &QpCore) {
    if let (Some(local), Some(_), Some(next)) =
        (engine.local(), core.side.peer.pid(), core.machine.received_until())
    {
        local.receipts().note(qp.qpn(), core.machine.attr().dest_qpn, next);
    }
}

/// Notes what the completion and the GRH area of a datagram tell of its way (IBTA 11.4.2.1).
#[inline(never)]
fn describe_datagram(packet: &RxPacket<'_>, meta: &mut RxMeta) {
    let route = packet.meta.route;
    if route.is_some() {
        meta.route = route;
        meta.grh = matches!(packet.meta.src, Address::Gid(_)).then(|| grh::global(packet));
        return;
    }
    if matches!(packet.meta.src, Address::RoceV1(_)) {
        meta.grh = Some(grh::global(packet));
        return;
    }
    meta.grh = Some(grh::area(packet));
    meta.route.service_level = match packet.meta.dst.ip() {
        IpAddr::V4(_) => PACKET_TYPE_IPV4,
        IpAddr::V6(_) => PACKET_TYPE_IPV6,
    };
}

/// Counts what a machine did with a packet or a part of a message from `src`.
#[inline]
fn count_disposition(
    engine: &Device,
    disposition: Disposition,
    src: Address,
) -> Result<(), DropReason> {
    let counters = engine.counts();
    match disposition {
        Disposition::Accepted => {}
        Disposition::Duplicate => counters.note(Counted::Duplicate),
        Disposition::Nak(class) => {
            counters.note(Counted::NakSent);
            if class.row().fatal {
                engine.note_nak(src, class);
            }
        }
        Disposition::Rnr => counters.note(Counted::RnrNakSent),
        Disposition::Kept => counters.note(Counted::PacketKept),
        Disposition::Drop(reason) => return Err(reason),
    }
    Ok(())
}

/// Whether a packet that has not the addresses of the queue pair's path says that the peer has
/// migrated, and the queue pair has followed it to the alternate path.
#[cold]
fn follows(
    engine: &Device,
    qp: &QpInner,
    core: &mut QpCore,
    packet: &RxPacket<'_>,
    parsed: &Packet<'_>,
    now: Time,
) -> bool {
    let by_alternate = core.side.peer.is_by_alternate(&packet.meta.src, &packet.meta.dst);
    qp.with_host(engine, now, core, |machine, host| {
        machine.follows(now, parsed, by_alternate, host)
    })
}

/// Returns the sender of a packet that has the peer's address, but not the port that the peer was
/// heard from.
#[cold]
fn identify(
    engine: &Device,
    qp: &QpInner,
    core: &mut QpCore,
    packet: &RxPacket<'_>,
    parsed: &Packet<'_>,
    now: Time,
) -> Result<Sender, DropReason> {
    if !engine.config().pin_source_ports {
        return Ok(Sender::Peer);
    }
    let is_request = parsed.info().is_request();
    let QpCore { machine, side } = core;
    let from = (is_request, packet.meta.flow);
    let sender = side.peer.identify(from, qp.qpn(), now, || machine.is_credible(parsed));
    sender.ok_or(DropReason::WrongPort)
}

/// Chooses the route of responses after a request has come by another route than the one before.
/// Responses take the request's route, if it leads to the process that the queue pair is connected
/// to. The check is needed because a packet of a local peer may name any queue pair.
#[cold]
fn choose_response_route(engine: &Device, core: &mut QpCore, via: Option<&mut RingSource<'_>>) {
    core.side.peer.answer_through(None);
    if let Some(via) = via
        && is_from_peer(engine, core, via)
    {
        core.side.peer.answer_through(Some(via.id()));
    }
}

/// Whether the process of the queue pair's peer is the one that writes to this ring.
#[cold]
fn is_from_peer(engine: &Device, core: &mut QpCore, via: &mut RingSource<'_>) -> bool {
    let QpCore { machine, side } = core;
    let Some(path) = side.peer.path() else { return false };
    let peer = machine.attr().dest_qpn;
    if side.peer.route().is_peer_gone() || !via.has(peer) {
        return false;
    }
    if !path.is_local() {
        // Either the peer was too busy to say that it is of this host, or it is of another host,
        // and only has the same slot there. A queue pair that only responds never asks again.
        if engine.slots().lookup(path.remote().to_ip(), peer) == Lookup::NotHere {
            return false;
        }
        if let Some((better, process)) = engine.local_path(path, peer) {
            via.found(peer, process.pid());
            if machine.packets().is_some_and(|machine| !machine.has_unacknowledged()) {
                side.peer.switch_to_local_path(engine, better, peer, process);
            }
        }
    }
    true
}

/// Whether the process that writes to this ring may be that of the queue pair's peer: the peer is
/// of this host, and the kernel has named no other process of its slot.
#[cold]
fn may_be_from_peer(core: &QpCore, via: &RingSource<'_>) -> bool {
    let QpCore { machine, side } = core;
    side.peer.path().is_some_and(|path| path.is_local())
        && !side.peer.route().is_peer_gone()
        && via.may_have(machine.attr().dest_qpn)
}

/// Returns what a packet counts under UDP backpressure. Senders do not count packets to the shared
/// port.
#[inline]
fn paced_cost(packet: &RxPacket<'_>, service: Service) -> u64 {
    let paced = matches!(service, Service::Uc | Service::Ud) && packet.meta.door != Door::Shared;
    if paced { ReceiverPage::cost(packet.transport().len()) } else { 0 }
}

#[cfg(test)]
mod tests;

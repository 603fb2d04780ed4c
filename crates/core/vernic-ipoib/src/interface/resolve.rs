//! Where IP addresses are: questions and answers of ARP (RFC 826) and of Neighbor Discovery (RFC
//! 4861), and paths of the SA to what they say.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vernic_wire::ipoib::{
    Arp, ArpOperation, Encapsulation, HardwareAddress, NeighborFlags, NeighborKind, NeighborMessage,
};
use vernic_wire::net::{EtherType, Ipv6, PROTOCOL_ICMPV6};
use vernic_wire::sa::PathRecord;
use vernic_wire::{Gid, Lid};

use super::send::Step;
use super::{Due, Interface};
use crate::Time;
use crate::addresses::{Hop, solicited_node};
use crate::counters::DropReason;
use crate::icmp::Why;
use crate::neighbors::{self, MAX_QUESTIONS, Neighbor, NeighborState, QUESTION_INTERVAL};
use crate::output::{Event, Request, Resolved, Route, Source};
use crate::paths::{self, Path};
use crate::waiting::{Frame, WaitsFor};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

impl Interface {
    /// Asks where an IP address is, by the router if it is not on the link. The answer is
    /// [`Event::Resolved`], at once if it is known. Returns the address that the answer is about:
    /// that of the router, if there is one on the way.
    pub fn resolve(&mut self, now: Time, ip: IpAddr) -> IpAddr {
        let next = match self.addresses.hop(ip) {
            Hop::Neighbor(next) => next,
            _ if self.addresses.is_own(ip) => ip,
            _ => {
                self.answer(ip, Err(DropReason::NoRoute));
                return ip;
            }
        };
        if self.link.group().is_none() {
            self.answer(next, Err(DropReason::LinkDown));
            return next;
        }
        if next == ip && self.addresses.is_own(ip) {
            let address = self.config.address();
            self.insert(ip, Neighbor::new(NeighborState::Known(address)));
            self.timers.set(Due::Neighbor(ip), now + neighbors::HOLDS);
        }
        match self.look_up(now, next) {
            Err(reason) => self.answer(next, Err(reason)),
            Ok(_) => {
                if let Some(neighbor) = self.neighbors.get_mut(&next) {
                    neighbor.is_asked_for = true;
                }
                self.advance(now, next);
            }
        }
        next
    }

    fn answer(&mut self, ip: IpAddr, answer: Result<Resolved, DropReason>) {
        self.events.push_back(Event::Resolved { ip, answer });
    }

    /// Address of a neighbor and route to it, if both are known; else they are asked for.
    pub(super) fn look_up(
        &mut self,
        now: Time,
        ip: IpAddr,
    ) -> Result<Option<(HardwareAddress, Route)>, DropReason> {
        let Some(neighbor) = self.neighbors.get_mut(&ip) else {
            self.insert(ip, Neighbor::new(NeighborState::Asking { questions: 0 }));
            self.neighbor_is_due(now, ip);
            return Ok(None);
        };
        neighbor.is_used = true;
        let Some(address) = neighbor.address() else { return Ok(None) };
        Ok(self.path_to(address.gid)?.map(|path| (address, Route::of_path(&path))))
    }

    /// The path to a GID, if it is known; else the SA is asked.
    fn path_to(&mut self, dgid: Gid) -> Result<Option<PathRecord>, DropReason> {
        match self.paths.get_mut(&dgid) {
            Some(Path::Known { record, is_used }) => {
                *is_used = true;
                Ok(Some(*record))
            }
            Some(Path::Asked) => Ok(None),
            Some(Path::Absent) => Err(DropReason::NoPath),
            None => {
                if self.paths.len() >= self.config.max_neighbors {
                    let gid = self.least_path().ok_or(DropReason::NoRoom)?;
                    self.forget_path(gid);
                }
                self.paths.insert(dgid, Path::Asked);
                self.requests.push_back(Request::Path { dgid, pkey: self.config.pkey });
                Ok(None)
            }
        }
    }

    /// Returns the GID whose path is missed least. Anybody can ask with a GID of nobody, so those
    /// without a path go first. An answer that is under way is waited for.
    fn least_path(&self) -> Option<Gid> {
        let worth = |path: &Path| match path {
            Path::Asked => None,
            Path::Absent => Some(0),
            Path::Known { is_used, .. } => Some(1 + u8::from(*is_used)),
        };
        let all = self.paths.iter().filter_map(|(gid, path)| Some((worth(path)?, *gid)));
        all.min_by_key(|(worth, _)| *worth).map(|(_, gid)| gid)
    }

    /// Forgets the path to a GID, which may have moved: the next packet asks for it again.
    pub fn forget_path(&mut self, gid: Gid) {
        if matches!(self.paths.get(&gid), Some(Path::Known { .. } | Path::Absent)) {
            self.paths.remove(&gid);
            self.timers.cancel(Due::Path(gid));
        }
    }

    /// Takes the SA's answer to a [`Request::Path`]. `None`: the SA has no path, or did not answer.
    pub fn handle_path(&mut self, now: Time, dgid: Gid, answer: Option<PathRecord>) {
        if self.paths.get(&dgid) != Some(&Path::Asked) {
            return;
        }
        let (path, until) = match answer {
            Some(record) => (Path::Known { record, is_used: true }, now + paths::UNUSED),
            None => (Path::Absent, now + paths::PAUSE),
        };
        self.paths.insert(dgid, path);
        self.timers.set(Due::Path(dgid), until);
        let to_dgid = |neighbor: &Neighbor| neighbor.address().is_some_and(|at| at.gid == dgid);
        for ip in self.neighbors_that(to_dgid) {
            self.advance(now, ip);
        }
        let is_key = |key| matches!(key, WaitsFor::Path(address) if address.gid == dgid);
        for (key, frame) in self.waiting.take_if(is_key) {
            let WaitsFor::Path(address) = key else { continue };
            self.send_resolution(address, frame);
        }
    }

    pub(super) fn path_is_due(&mut self, now: Time, gid: Gid) {
        let stays = match self.paths.get_mut(&gid) {
            Some(Path::Known { is_used, .. }) => std::mem::take(is_used),
            Some(Path::Asked) => return,
            Some(Path::Absent) | None => false,
        };
        match stays {
            true => self.timers.set(Due::Path(gid), now + paths::UNUSED),
            false => self.forget_path(gid),
        }
    }

    pub(super) fn neighbors_that(&self, is_one: impl Fn(&Neighbor) -> bool) -> Vec<IpAddr> {
        let all = self.neighbors.iter();
        all.filter(|(_, neighbor)| is_one(neighbor)).map(|(ip, _)| *ip).collect()
    }

    /// Adds a neighbor, in place of another if there is no room: one that is not in use, or else
    /// any.
    fn insert(&mut self, ip: IpAddr, neighbor: Neighbor) {
        let is_new = !self.neighbors.contains_key(&ip);
        if is_new && self.neighbors.len() >= self.config.max_neighbors {
            let idle = self.neighbors.iter().find(|(_, n)| !n.is_used && !n.is_asked_for);
            let other = idle.or(self.neighbors.iter().next()).map(|(ip, _)| *ip);
            if let Some(other) = other {
                self.give_up(other, DropReason::NoRoom);
            }
        }
        self.neighbors.insert(ip, neighbor);
    }

    /// Forgets a neighbor, and drops what has waited for it.
    fn give_up(&mut self, ip: IpAddr, reason: DropReason) {
        self.timers.cancel(Due::Neighbor(ip));
        let neighbor = self.neighbors.remove(&ip);
        if neighbor.is_some_and(|neighbor| neighbor.is_asked_for) {
            self.answer(ip, Err(reason));
        }
        for frame in self.waiting.take(WaitsFor::Neighbor(ip)) {
            self.drop_frame(&frame, reason, Why::Unreachable);
        }
    }

    /// Something new is known of a neighbor: sends what waits for it, once all is known.
    pub(super) fn advance(&mut self, now: Time, ip: IpAddr) {
        let Some(neighbor) = self.neighbors.get(&ip).copied() else { return };
        let frames = self.waiting.take(WaitsFor::Neighbor(ip));
        let Some(address) = neighbor.address().filter(|_| {
            // A path that nobody needs is not asked for.
            neighbor.is_asked_for || !frames.is_empty()
        }) else {
            return self.release(frames, |_, _| Step::Wait(WaitsFor::Neighbor(ip)));
        };
        let path = self.path_to(address.gid);
        let answer = match path {
            Ok(Some(path)) => Some(Ok(Resolved { address, path })),
            Ok(None) => None,
            Err(reason) => Some(Err(reason)),
        };
        if let Some(answer) = answer.filter(|_| neighbor.is_asked_for) {
            self.answer(ip, answer);
            if let Some(neighbor) = self.neighbors.get_mut(&ip) {
                neighbor.is_asked_for = false;
            }
        }
        self.release(frames, |machine, frame| match (path, frame.ip) {
            (Ok(Some(path)), Some(_)) => {
                let len = frame.bytes.len().saturating_sub(Encapsulation::LEN);
                machine.step_to_address(now, address, Route::of_path(&path), len)
            }
            (Ok(Some(path)), None) => {
                Step::Send(machine.datagram(Route::of_path(&path), address.qpn))
            }
            (Ok(None), _) => Step::Wait(WaitsFor::Neighbor(ip)),
            (Err(reason), _) => Step::Drop(reason),
        });
    }

    pub(super) fn neighbor_is_due(&mut self, now: Time, ip: IpAddr) {
        let Some(neighbor) = self.neighbors.get_mut(&ip) else { return };
        let was_used = std::mem::take(&mut neighbor.is_used);
        let (state, holds) = match neighbor.state {
            NeighborState::Asking { questions } if questions < MAX_QUESTIONS => {
                (NeighborState::Asking { questions: questions + 1 }, true)
            }
            NeighborState::Known(address) if was_used => {
                (NeighborState::Probing { address, questions: 1 }, true)
            }
            NeighborState::Probing { address, questions } if questions < MAX_QUESTIONS => {
                (NeighborState::Probing { address, questions: questions + 1 }, true)
            }
            state => (state, false),
        };
        if !holds {
            return self.give_up(ip, DropReason::NoAnswer);
        }
        neighbor.state = state;
        self.timers.set(Due::Neighbor(ip), now + QUESTION_INTERVAL);
        match state {
            NeighborState::Probing { address, questions } => {
                // Not the neighbor may be gone but the path.
                if questions > 1 {
                    self.forget_path(address.gid);
                }
                if let Some((_, frame)) = self.question(ip, Some(address)) {
                    self.send_resolution(address, frame);
                }
            }
            _ => {
                if let Some((group, frame)) = self.question(ip, None) {
                    let step = self.step_to_group(group);
                    self.release(vec![frame], |_, _| step);
                }
            }
        }
    }

    /// A question for an address, and the group that all members hear it on. `None` without an
    /// address of our own.
    fn question(&self, ip: IpAddr, known: Option<HardwareAddress>) -> Option<(IpAddr, Frame)> {
        let source = self.addresses.source_for(ip)?;
        match (ip, source) {
            (IpAddr::V4(ip), IpAddr::V4(source)) => {
                let target = known.unwrap_or_default();
                let frame = self.arp(ArpOperation::REQUEST, source, target, ip);
                Some((IpAddr::V4(Ipv4Addr::BROADCAST), frame))
            }
            (IpAddr::V6(ip), IpAddr::V6(source)) => {
                let group = solicited_node(ip);
                let dst = if known.is_some() { ip } else { group };
                let (kind, flags) = (NeighborKind::Solicitation, NeighborFlags::empty());
                Some((group.into(), self.neighbor_message(kind, flags, ip, source, dst)))
            }
            _ => None,
        }
    }

    fn arp(
        &self,
        operation: ArpOperation,
        sender_ip: Ipv4Addr,
        target: HardwareAddress,
        target_ip: Ipv4Addr,
    ) -> Frame {
        let sender = self.config.address();
        let mut bytes = vec![0; Encapsulation::LEN + Arp::LEN];
        Encapsulation::new(EtherType::ARP).emit(&mut bytes);
        let arp = Arp { operation, sender, sender_ip, target, target_ip };
        arp.emit(&mut bytes[Encapsulation::LEN..]);
        Frame { bytes, ip: None }
    }

    fn neighbor_message(
        &self,
        kind: NeighborKind,
        flags: NeighborFlags,
        target: Ipv6Addr,
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) -> Frame {
        let address = Some(self.config.address());
        let message = NeighborMessage { kind, flags, target, address };
        let ip = Ipv6 {
            traffic_class: 0,
            flow_label: 0,
            payload_length: message.len() as u16,
            next_header: PROTOCOL_ICMPV6,
            hop_limit: NeighborMessage::HOP_LIMIT,
            src,
            dst,
        };
        let mut bytes = vec![0; Encapsulation::LEN + Ipv6::LEN + message.len()];
        Encapsulation::new(EtherType::IPV6).emit(&mut bytes);
        ip.emit(&mut bytes[Encapsulation::LEN..]);
        message.emit(src, dst, &mut bytes[Encapsulation::LEN + Ipv6::LEN..]);
        Frame { bytes, ip: None }
    }

    /// Sends a question or an answer to one interface, as a datagram in every mode (RFC 4755,
    /// section 7).
    fn send_resolution(&mut self, to: HardwareAddress, frame: Frame) {
        match self.path_to(to.gid) {
            Ok(Some(path)) => {
                let destination = self.datagram(Route::of_path(&path), to.qpn);
                self.transmit(destination, frame);
            }
            Ok(None) => self.wait(WaitsFor::Path(to), frame),
            Err(reason) => self.drop_frame(&frame, reason, Why::Unreachable),
        }
    }

    /// Notes where a neighbor is. One that we have not asked for is added only if it asks for us.
    fn learn(&mut self, now: Time, ip: IpAddr, address: HardwareAddress, asks_for_us: bool) {
        if ip.is_unspecified() || ip.is_multicast() || self.addresses.is_own(ip) {
            return;
        }
        let state = NeighborState::Known(address);
        match self.neighbors.get_mut(&ip) {
            Some(neighbor) => neighbor.state = state,
            None if asks_for_us => self.insert(ip, Neighbor::new(state)),
            None => return,
        }
        self.timers.set(Due::Neighbor(ip), now + neighbors::HOLDS);
        self.advance(now, ip);
    }

    pub(super) fn handle_arp(&mut self, now: Time, source: Source, arp: &Arp) {
        let is_for_us = self.addresses.is_own(arp.target_ip.into());
        if arp.sender_ip == arp.target_ip {
            self.note_move(source, arp.sender.gid);
        }
        let asks = is_for_us && arp.operation == ArpOperation::REQUEST;
        self.learn(now, arp.sender_ip.into(), arp.sender, asks);
        if asks && arp.sender_ip != arp.target_ip {
            let reply = self.arp(ArpOperation::REPLY, arp.target_ip, arp.sender, arp.sender_ip);
            self.send_resolution(arp.sender, reply);
        }
    }

    /// An announcement came from another LID than the one that our path leads to.
    fn note_move(&mut self, source: Source, gid: Gid) {
        let known = self.paths.get(&gid);
        let is_known = source.slid != Lid::RESERVED;
        if matches!(known, Some(Path::Known { record, .. }) if is_known && record.dlid != source.slid)
        {
            self.forget_path(gid);
        }
    }

    pub(super) fn handle_neighbor_message(
        &mut self,
        now: Time,
        source: Source,
        src: Ipv6Addr,
        message: &NeighborMessage,
    ) {
        let target = message.target;
        match message.kind {
            NeighborKind::Solicitation if self.addresses.is_own(target.into()) => {
                if let Some(address) = message.address {
                    self.learn(now, src.into(), address, true);
                }
                self.answer_solicitation(now, src, target);
            }
            NeighborKind::Solicitation => {}
            NeighborKind::Advertisement => {
                if let Some(address) = message.address {
                    self.note_move(source, address.gid);
                }
                self.take_advertisement(now, message);
            }
        }
    }

    fn answer_solicitation(&mut self, now: Time, asker: Ipv6Addr, target: Ipv6Addr) {
        let kind = NeighborKind::Advertisement;
        if asker.is_unspecified() {
            // Somebody is about to take our address: all are told whose it is.
            let flags = NeighborFlags::OVERRIDE;
            let frame = self.neighbor_message(kind, flags, target, target, ALL_NODES);
            let step = self.step_to_group(ALL_NODES.into());
            return self.release(vec![frame], |_, _| step);
        }
        let flags = NeighborFlags::SOLICITED | NeighborFlags::OVERRIDE;
        let frame = self.neighbor_message(kind, flags, target, target, asker);
        match self.neighbors.get(&asker.into()).and_then(Neighbor::address) {
            Some(address) => self.send_resolution(address, frame),
            None => {
                let step = self.step_to_neighbor(now, asker.into(), 0);
                self.release(vec![frame], |_, _| step);
            }
        }
    }

    /// An answer, or an announcement (RFC 4861, section 7.2.5).
    fn take_advertisement(&mut self, now: Time, message: &NeighborMessage) {
        let ip = IpAddr::V6(message.target);
        let Some(known) = self.neighbors.get(&ip).map(Neighbor::address) else { return };
        let overrides = message.flags.contains(NeighborFlags::OVERRIDE);
        match (known, message.address) {
            (None, Some(address)) => self.learn(now, ip, address, false),
            (Some(known), Some(address)) if overrides || known == address => {
                self.learn(now, ip, address, false);
            }
            (Some(known), None) if message.flags.contains(NeighborFlags::SOLICITED) => {
                self.learn(now, ip, known, false);
            }
            _ => {}
        }
    }

    /// Tells all of the link where an address of ours is.
    pub(super) fn announce(&mut self, ip: IpAddr) {
        if self.link.group().is_none() {
            return;
        }
        let (group, frame) = match ip {
            IpAddr::V4(ip) => {
                let frame = self.arp(ArpOperation::REQUEST, ip, HardwareAddress::default(), ip);
                (IpAddr::V4(Ipv4Addr::BROADCAST), frame)
            }
            IpAddr::V6(ip) => {
                let (kind, flags) = (NeighborKind::Advertisement, NeighborFlags::OVERRIDE);
                let frame = self.neighbor_message(kind, flags, ip, ip, ALL_NODES);
                (ALL_NODES.into(), frame)
            }
        };
        let step = self.step_to_group(group);
        self.release(vec![frame], |_, _| step);
    }
    pub(super) fn announce_all(&mut self) {
        for address in self.addresses.own().to_vec() {
            self.announce(address.ip);
        }
    }
}

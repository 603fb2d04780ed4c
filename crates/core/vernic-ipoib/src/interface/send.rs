//! Packets of the host, and packets that have waited.

use std::net::IpAddr;

use vernic_wire::Qpn;
use vernic_wire::ipoib::{Encapsulation, HardwareAddress};

use super::Interface;
use crate::Time;
use crate::addresses::Hop;
use crate::counters::DropReason;
use crate::icmp::{self, Why};
use crate::ip::IpPacket;
use crate::membership;
use crate::output::{Destination, Forward, Route, Transmit};
use crate::waiting::{Frame, WaitsFor};

/// What a step on the way of a packet comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Send(Destination),
    Wait(WaitsFor),
    TooBig { mtu: u32 },
    Drop(DropReason),
}

impl Interface {
    /// Takes an IP packet of the host. What is behind the length that its header says is ignored.
    pub fn handle_ip(&mut self, now: Time, packet: &[u8]) -> Forward {
        let Some(packet) = IpPacket::parse(packet) else {
            return self.dropped(DropReason::NotIp);
        };
        self.note_membership(&packet);
        let Some(link_mtu) = self.link.mtu() else { return self.dropped(DropReason::LinkDown) };
        let step = match self.addresses.hop(packet.dst) {
            Hop::Group(_) if packet.bytes.len() as u64 > u64::from(link_mtu) => {
                Step::TooBig { mtu: link_mtu }
            }
            Hop::Group(group) => self.step_to_group(group),
            Hop::Neighbor(next) => self.step_to_neighbor(now, next, packet.bytes.len()),
            Hop::Nowhere => Step::Drop(DropReason::NoRoute),
        };
        self.take_step(step, &packet)
    }

    fn take_step(&mut self, step: Step, packet: &IpPacket<'_>) -> Forward {
        let encapsulation = Encapsulation::new(packet.ethertype());
        match step {
            Step::Send(destination) => {
                self.count_sent(destination);
                Forward::Send(destination, encapsulation)
            }
            Step::Wait(key) => {
                let mut bytes = vec![0; Encapsulation::LEN];
                encapsulation.emit(&mut bytes);
                bytes.extend_from_slice(packet.bytes);
                self.wait(key, Frame { bytes, ip: Some(packet.dst) });
                Forward::Waits
            }
            Step::TooBig { mtu } => {
                self.tell_host(packet, Why::TooBig { mtu });
                self.dropped(DropReason::TooBig)
            }
            Step::Drop(reason) => {
                self.tell_host(packet, Why::Unreachable);
                self.dropped(reason)
            }
        }
    }

    /// A group that the host joins or leaves by this packet.
    fn note_membership(&mut self, packet: &IpPacket<'_>) {
        let changes = membership::changes(packet);
        if changes.is_empty() {
            return;
        }
        for (group, is_member) in changes.into_iter().filter(|(group, _)| group.is_multicast()) {
            match is_member {
                true if self.host_groups.len() < self.config.max_groups => {
                    self.host_groups.insert(group);
                }
                true => self.counters.note_drop(DropReason::NoRoom),
                false => {
                    self.host_groups.remove(&group);
                }
            }
        }
        self.sync_groups();
    }

    pub(super) fn step_to_neighbor(&mut self, now: Time, next: IpAddr, len: usize) -> Step {
        match self.look_up(now, next) {
            Ok(Some((address, route))) => self.step_to_address(now, address, route, len),
            Ok(None) => Step::Wait(WaitsFor::Neighbor(next)),
            Err(reason) => Step::Drop(reason),
        }
    }

    /// To an interface whose address and path are known: by its connection or as a datagram.
    pub(super) fn step_to_address(
        &mut self,
        now: Time,
        address: HardwareAddress,
        route: Route,
        len: usize,
    ) -> Step {
        if let Some(step) = self.step_by_connection(now, address, len) {
            return step;
        }
        let mtu = self.link.mtu().unwrap_or_default();
        match len as u64 <= u64::from(mtu) {
            true => Step::Send(self.datagram(route, address.qpn)),
            false => Step::TooBig { mtu },
        }
    }

    /// Sends packets that have waited, now that `step` says what becomes of each.
    pub(super) fn release(
        &mut self,
        frames: Vec<Frame>,
        mut step: impl FnMut(&mut Self, &Frame) -> Step,
    ) {
        for frame in frames {
            match step(self, &frame) {
                Step::Send(destination) => self.transmit(destination, frame),
                Step::Wait(key) => self.wait(key, frame),
                Step::TooBig { mtu } => {
                    self.drop_frame(&frame, DropReason::TooBig, Why::TooBig { mtu });
                }
                Step::Drop(reason) => self.drop_frame(&frame, reason, Why::Unreachable),
            }
        }
    }
    pub(super) fn transmit(&mut self, destination: Destination, frame: Frame) {
        match frame.ip {
            Some(_) => self.count_sent(destination),
            None => self.counters.sent_resolution += 1,
        }
        self.transmits.push_back(Transmit { destination, bytes: frame.bytes });
    }
    pub(super) fn wait(&mut self, key: WaitsFor, frame: Frame) {
        for _ in 0..self.waiting.push(key, frame) {
            self.counters.note_drop(DropReason::NoRoom);
        }
    }
    /// Drops a packet that has waited, and tells the host if it was its own.
    pub(super) fn drop_frame(&mut self, frame: &Frame, reason: DropReason, why: Why) {
        self.counters.note_drop(reason);
        let packet = frame.bytes.get(Encapsulation::LEN..).and_then(IpPacket::parse);
        if let (Some(packet), Some(_)) = (packet, frame.ip) {
            self.tell_host(&packet, why);
        }
    }
    fn tell_host(&mut self, packet: &IpPacket<'_>, why: Why) {
        if let Some(message) = icmp::error(packet, why) {
            self.deliver(message);
        }
    }
    pub(super) fn dropped(&mut self, reason: DropReason) -> Forward {
        self.counters.note_drop(reason);
        Forward::Dropped(reason)
    }
    fn count_sent(&mut self, destination: Destination) {
        match destination {
            Destination::Datagram { qpn: Qpn::MULTICAST, .. } => self.counters.sent_multicast += 1,
            Destination::Datagram { .. } => self.counters.sent_datagrams += 1,
            Destination::Connection(_) => self.counters.sent_messages += 1,
        }
    }
}

//! Datagrams and messages of the link.

use std::net::IpAddr;

use vernic_wire::ipoib::{Arp, Encapsulation, NeighborMessage};
use vernic_wire::net::{EtherType, PROTOCOL_ICMPV6};

use super::Interface;
use crate::Time;
use crate::connections::ConnectionId;
use crate::counters::DropReason;
use crate::ip::IpPacket;
use crate::output::{Received, Source};

impl Interface {
    /// Takes what a datagram of the interface's queue pair carried, without a GRH.
    pub fn handle_datagram<'a>(
        &mut self,
        now: Time,
        source: Source,
        bytes: &'a [u8],
    ) -> Received<'a> {
        if (source.slid, source.qpn) == (self.config.lid, self.config.qpn) {
            return self.refuse(DropReason::Own);
        }
        let Ok(header) = Encapsulation::parse(bytes) else {
            return self.refuse(DropReason::Malformed);
        };
        let payload = &bytes[Encapsulation::LEN..];
        if header.ethertype == EtherType::ARP {
            let Ok(arp) = Arp::parse(payload) else { return self.refuse(DropReason::Malformed) };
            self.counters.received_resolution += 1;
            self.handle_arp(now, source, &arp);
            return Received::Taken;
        }
        let packet = match self.ip_of(header, payload) {
            Ok(packet) => packet,
            Err(reason) => return self.refuse(reason),
        };
        if packet.protocol == PROTOCOL_ICMPV6 && NeighborMessage::is_one(packet.payload) {
            return self.take_neighbor_message(now, source, &packet);
        }
        self.counters.received_datagrams += 1;
        Received::Deliver(packet.bytes)
    }

    /// Takes a message of a connection: IP, and nothing else (RFC 4755, section 4).
    pub fn handle_message<'a>(&mut self, id: ConnectionId, bytes: &'a [u8]) -> Received<'a> {
        if !self.note_received(id) {
            return self.refuse(DropReason::NoConnection);
        }
        let Ok(header) = Encapsulation::parse(bytes) else {
            return self.refuse(DropReason::Malformed);
        };
        match self.ip_of(header, &bytes[Encapsulation::LEN..]) {
            Ok(packet) => {
                self.counters.received_messages += 1;
                Received::Deliver(packet.bytes)
            }
            Err(reason) => self.refuse(reason),
        }
    }

    fn ip_of<'a>(
        &self,
        header: Encapsulation,
        payload: &'a [u8],
    ) -> Result<IpPacket<'a>, DropReason> {
        if !matches!(header.ethertype, EtherType::IPV4 | EtherType::IPV6) {
            return Err(DropReason::UnknownType);
        }
        let packet = IpPacket::parse(payload).ok_or(DropReason::Malformed)?;
        let is_same = packet.ethertype() == header.ethertype;
        is_same.then_some(packet).ok_or(DropReason::Malformed)
    }

    /// A solicitation or an advertisement; only valid ones are heeded (RFC 4861, section 7.1).
    fn take_neighbor_message(
        &mut self,
        now: Time,
        source: Source,
        packet: &IpPacket<'_>,
    ) -> Received<'static> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) else {
            return self.refuse(DropReason::Malformed);
        };
        let message = NeighborMessage::parse(packet.payload, src, dst);
        let is_of_link = packet.hops == NeighborMessage::HOP_LIMIT;
        match message {
            Ok(message) if is_of_link && !message.target.is_multicast() => {
                self.counters.received_resolution += 1;
                self.handle_neighbor_message(now, source, src, &message);
                Received::Taken
            }
            _ => self.refuse(DropReason::Malformed),
        }
    }

    fn refuse<'a>(&mut self, reason: DropReason) -> Received<'a> {
        self.counters.note_drop(reason);
        Received::Dropped(reason)
    }
}

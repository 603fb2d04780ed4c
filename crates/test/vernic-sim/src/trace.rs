//! Packets in words, and what scenario tests order.
//!
//! A line reads `SEND_FIRST psn=0`, `ACK psn=2`, `NAK psn=1 seq`, `RNR psn=0 timer=12`: what a
//! person wants to see of a packet, not all of it.

use vernic_proto::MessagePart;
use vernic_wire::opcode::Kind;
use vernic_wire::{AethCode, NakCode, Packet, Psn};

/// A packet in words.
pub(crate) fn line(packet: &Packet<'_>) -> String {
    let psn = packet.psn();
    if packet.info().kind == Kind::Ack {
        let code = packet.aeth().map(|aeth| aeth.syndrome.decode());
        return match code {
            Some(AethCode::Ack { credits }) => match credits.count() {
                Some(n) => format!("ACK psn={psn} credits={n}"),
                None => format!("ACK psn={psn}"),
            },
            Some(AethCode::RnrNak(timer)) => format!("RNR psn={psn} timer={}", timer.code()),
            Some(AethCode::Nak(NakCode::PSN_SEQUENCE)) => format!("NAK psn={psn} seq"),
            Some(AethCode::Nak(code)) => format!("NAK psn={psn} {code}"),
            other => format!("ACK psn={psn} {other:?}"),
        };
    }
    let name = packet.info().name;
    let name = name.split_once('_').map_or(name, |(_, rest)| rest);
    match packet.xrceth() {
        Some(header) => format!("{name} psn={psn} srqn={}", header.srqn.value()),
        None => format!("{name} psn={psn}"),
    }
}

/// A part of a message in words, with the sequence numbers that it takes.
pub(crate) fn part(part: &MessagePart, mtu: u32) -> String {
    let name = if part.is_rendezvous { "RENDEZVOUS" } else { "PART" };
    let place = match (part.starts, part.ends) {
        (true, true) => "",
        (true, false) => "_FIRST",
        (false, false) => "_MIDDLE",
        (false, true) => "_LAST",
    };
    let more = part.length.div_ceil(mtu).max(1) - 1;
    let numbers = match more {
        0 => part.psn.to_string(),
        _ => format!("{}..{}", part.psn, part.psn.add(more)),
    };
    let queue = part.srqn.map_or(String::new(), |srqn| format!(" srqn={}", srqn.value()));
    format!("{name}{place} psn={numbers} {} bytes{queue}", part.length)
}

/// What a scenario orders the network to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Lose,
    /// A second copy so many nanoseconds later.
    Duplicate(u64),
}

/// An order for the next packets of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) deed: Deed,
    /// Side that sends it.
    pub(crate) from: usize,
    pub(crate) psn: Psn,
    /// A request, or a response.
    pub(crate) request: bool,
    /// How many more times.
    pub(crate) times: u32,
}

/// What the scenario wants done with this packet.
pub(crate) fn ordered(orders: &mut [Order], from: usize, packet: &Packet<'_>) -> Option<Deed> {
    let request = packet.info().is_request();
    let order = orders.iter_mut().find(|order| {
        order.times > 0 && (order.from, order.psn, order.request) == (from, packet.psn(), request)
    })?;
    order.times -= 1;
    Some(order.deed)
}

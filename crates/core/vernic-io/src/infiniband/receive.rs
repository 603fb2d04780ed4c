//! Packets of a message of the fabric process, as parts of the buffer that the message came into.

use vernic_attach::Packets;
use vernic_wire::{Grh, Lid, LocalRoute, Lrh, PortNum, icrc};

use crate::address::Address;
use crate::batch::{Door, Icrc, RxMeta};
use crate::link::LinkCounters;
use crate::link_port::LinkPort;

use super::route;

/// The most packets of a message: the shortest has an LRH, a BTH and an ICRC.
pub(super) const MAX_PACKETS: usize = vernic_attach::MAX_MESSAGE / (4 + Lrh::LEN + 12 + icrc::LEN);

/// A packet that was checked: where its BTH is, and how it came.
pub(super) struct Arrival {
    /// Bytes before the BTH.
    start: usize,
    meta: RxMeta,
}

/// Reads the headers of a packet, LRH to ICRC, and checks its ICRC. `None` for a packet that is
/// none of the transport's, and `Some(Err)` if the ICRC is wrong.
fn read(packet: &[u8], number: PortNum, port: Option<&LinkPort>) -> Option<Result<Arrival, ()>> {
    let lrh = Lrh::parse(packet).ok()?;
    let (grh, start) = match lrh.next_header {
        Lrh::NEXT_BTH => (None, Lrh::LEN),
        Lrh::NEXT_GRH => (Some(Grh::parse(packet.get(Lrh::LEN..)?).ok()?), Lrh::LEN + Grh::LEN),
        _ => return None,
    };
    let (transport, stamped) = packet.get(start..)?.split_last_chunk::<{ icrc::LEN }>()?;
    if icrc::of_infiniband(&lrh, grh.as_ref(), transport) != u32::from_le_bytes(*stamped) {
        return Some(Err(()));
    }
    let is_to_group = Lid(lrh.dlid).is_multicast();
    let path_bits = port.filter(|_| !is_to_group).map_or(0, route::own_bits) & lrh.dlid as u8;
    let [src, dst] = match &grh {
        Some(grh) => [grh.sgid, grh.dgid].map(Address::Gid),
        None if is_to_group => [lrh.slid, lrh.dlid].map(Address::Lid),
        // The adapter takes packets to LIDs of the port only.
        None => [Address::Lid(lrh.slid), Address::OwnLid { port: number.value(), path_bits }],
    };
    let route = LocalRoute { slid: Lid(lrh.slid), service_level: lrh.service_level, path_bits };
    let meta = RxMeta {
        src,
        dst,
        flow: 0,
        door: Door::Shared,
        netdev: 0,
        traffic_class: grh.map_or(0, |grh| grh.traffic_class),
        hop_limit: grh.map_or(0, |grh| grh.hop_limit),
        flow_label: grh.map_or(0, |grh| grh.flow_label),
        route,
        icrc: Icrc::Good,
        handed_over: false,
    };
    Some(Ok(Arrival { start, meta }))
}

/// Checks the packets of a message. Calls `found` for each good one with where its BTH is in the
/// message, how many bytes follow up to the ICRC, and how it came.
pub(super) fn sort(
    packets: Packets<'_>,
    ports: &[LinkPort],
    counters: &mut LinkCounters,
    mut found: impl FnMut(usize, usize, RxMeta),
) {
    for (number, packet, at) in packets.with_offsets() {
        let port = ports.get(usize::from(number.value()).wrapping_sub(1));
        match read(packet, number, port) {
            Some(Ok(Arrival { start, meta })) => found(at + start, packet.len() - start, meta),
            Some(Err(())) => counters.icrc_errors += 1,
            None => counters.rx_errors += 1,
        }
    }
}

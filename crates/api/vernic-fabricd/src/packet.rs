//! What a packet between a host and its programs says, LRH to ICRC.

use vernic_wire::mad::{MAD_LEN, MgmtClass};
use vernic_wire::{Bth, Deth, Grh, Lrh, Pkey, Qpn};

/// Returns the partition key of a packet; `None` for one without a transport.
pub(crate) fn pkey(lrh: &Lrh, packet: &[u8]) -> Option<Pkey> {
    let at = transport_at(lrh)?;
    packet.get(at..).and_then(|bytes| Bth::parse(bytes).ok()).map(|bth| bth.pkey)
}

/// Returns where the transport of a packet begins; `None` for a raw packet.
pub(crate) const fn transport_at(lrh: &Lrh) -> Option<usize> {
    match lrh.next_header {
        Lrh::NEXT_BTH => Some(Lrh::LEN),
        Lrh::NEXT_GRH => Some(Lrh::LEN + Grh::LEN),
        _ => None,
    }
}

/// Returns the global route header of a packet, if it has one.
pub(crate) fn grh(lrh: &Lrh, packet: &[u8]) -> Option<Grh> {
    let is_global = lrh.next_header == Lrh::NEXT_GRH;
    packet.get(Lrh::LEN..).filter(|_| is_global).and_then(|bytes| Grh::parse(bytes).ok())
}

/// Returns the message of connection management that a packet has, if it has one.
pub(crate) fn connection_message(packet: &[u8]) -> Option<&[u8; MAD_LEN]> {
    let at = transport_at(&Lrh::parse(packet).ok()?)?;
    let transport = packet.get(at..)?;
    let is_for_agents = Bth::parse(transport).is_ok_and(|bth| bth.dest_qpn == Qpn::GSI);
    let mad: &[u8; MAD_LEN] = transport.get(Bth::LEN + Deth::LEN..)?.first_chunk()?;
    (is_for_agents && MgmtClass(mad[1]) == MgmtClass::COMMUNICATION).then_some(mad)
}

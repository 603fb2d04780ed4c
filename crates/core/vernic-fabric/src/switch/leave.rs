//! Whether a packet may leave by a port, and on which lane (IBTA 18.2.4.4 to 18.2.4.6).

use vernic_wire::{PortNum, VirtualLane};

use super::view::{Refusal, View};
use crate::attributes::{PortAttributes, PortState};
use crate::link::{Header, fits, lane_for};

/// Returns the lane that a packet leaves by.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn lane_of(
    view: &View<'_>,
    ingress: PortNum,
    egress: PortNum,
    header: &Header,
) -> Result<VirtualLane, Refusal> {
    let attributes = view.ports.get(usize::from(egress.0)).ok_or(Refusal::Relay)?;
    if header.lane.is_management() {
        let is_up = attributes.state > PortState::Down;
        return if is_up { Ok(header.lane) } else { Err(Refusal::Discard) };
    }
    let lane = lane_for(attributes, ingress, header.service_level).ok_or(Refusal::Relay)?;
    if attributes.state != PortState::Active
        || !fits(usize::from(header.bytes), attributes.neighbor_mtu)
    {
        return Err(Refusal::Discard);
    }
    if attributes.enforces_outbound && !is_member(attributes, header) {
        return Err(Refusal::Partition);
    }
    Ok(lane)
}

/// Returns whether a port lets a packet pass by its partition (IBTA 18.2.4.2). Packets without a
/// partition pass, and so does subnet management.
pub(crate) fn is_member(attributes: &PortAttributes, header: &Header) -> bool {
    let pkey = header.pkey.filter(|_| !header.lane.is_management());
    pkey.is_none_or(|pkey| attributes.takes_pkey(pkey))
}

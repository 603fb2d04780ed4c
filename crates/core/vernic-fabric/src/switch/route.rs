//! The ports that a packet leaves by (IBTA 18.2.4.3).

use vernic_wire::{Lid, PortNum};

use super::port_set::PortSet;
use super::view::View;
use crate::attributes::Forwarding;
use crate::link::Header;

/// The tables lead nowhere, or back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoute;

/// Returns the ports that a packet leaves by; port 0 is the switch itself. A packet that came by
/// `ingress` never leaves by it. The set is empty for a group that nobody else has joined here.
///
/// # Errors
/// [`NoRoute`].
pub(crate) fn ports_of(
    view: &View<'_>,
    ingress: PortNum,
    header: &Header,
) -> Result<PortSet, NoRoute> {
    let dlid = header.dlid;
    if dlid == Lid::PERMISSIVE {
        // Only subnet management does without LIDs (IBTA 14.2.2).
        return header.lane.is_management().then(|| PortSet::of(PortNum(0))).ok_or(NoRoute);
    }
    if dlid.is_multicast() {
        if header.lane.is_management() {
            return Err(NoRoute);
        }
        return group(view.forwarding, ingress, dlid);
    }
    if is_own(view, dlid) {
        return Ok(PortSet::of(PortNum(0)));
    }
    let egress = unicast(view.forwarding, dlid).ok_or(NoRoute)?;
    let is_there = usize::from(egress.0) < view.ports.len();
    // The owner's own packets come by port 0, and leave by another one.
    let turns_back = egress == ingress;
    if is_there && !turns_back { Ok(PortSet::of(egress)) } else { Err(NoRoute) }
}

/// Returns whether a LID is of the switch itself.
fn is_own(view: &View<'_>, dlid: Lid) -> bool {
    let Some(own) = view.ports.first().filter(|own| own.lid.is_unicast()) else { return false };
    dlid.0 >> own.lmc.min(7) == own.lid.0 >> own.lmc.min(7)
}

fn unicast(forwarding: &Forwarding, dlid: Lid) -> Option<PortNum> {
    if !dlid.is_unicast() || dlid > forwarding.top {
        return None;
    }
    let port = PortNum(*forwarding.linear.get(usize::from(dlid.0))?);
    Some(port).filter(|port| *port != Forwarding::NOWHERE)
}

/// Returns the ports of a group: those of its entry, or of a group without one the default.
fn group(forwarding: &Forwarding, ingress: PortNum, dlid: Lid) -> Result<PortSet, NoRoute> {
    let at = usize::from(dlid.0 - Lid::FIRST_MULTICAST.0);
    let mut ports = forwarding.multicast.get(at).map(PortSet::of_masks).unwrap_or_default();
    if ports.is_empty() {
        let primary = PortNum(forwarding.default_multicast_primary);
        let other = PortNum(forwarding.default_multicast_other);
        let port = if ingress == primary { other } else { primary };
        if port == Forwarding::NOWHERE || port == ingress {
            return Err(NoRoute);
        }
        ports.insert(port);
    }
    ports.remove(ingress);
    Ok(ports)
}

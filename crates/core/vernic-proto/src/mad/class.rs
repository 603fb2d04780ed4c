//! What the management class of a datagram says of it: where its data begin, whether it may be a
//! transfer of several segments, and whether it is an answer (IBTA 13.4.4, 13.4.5, 13.6.2).

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::{Qpn, Rmpp, RmppFlags};

/// Device administration, a class with RMPP.
const DEVICE_ADMINISTRATION: u8 = 0x10;
/// Boot management's successor in the table of classes: BIS, with RMPP.
const BIS: u8 = 0x12;
/// Vendor classes whose datagrams name the vendor by an OUI and have an RMPP header.
const VENDOR_WITH_OUI: core::ops::RangeInclusive<u8> = 0x30..=0x4F;
/// Place of the OUI in these: behind the RMPP header and a reserved byte.
const OUI_AT: usize = MadHeader::LEN + Rmpp::LEN + 1;
/// Bit of the attribute modifier that makes a datagram of baseboard management an answer.
const BASEBOARD_RESPONSE: u32 = 1;

/// Returns whether datagrams of the class name their vendor.
pub fn has_oui(class: MgmtClass) -> bool {
    VENDOR_WITH_OUI.contains(&class.0)
}

/// Returns whether datagrams of the class have an RMPP header.
pub(super) fn has_rmpp(class: MgmtClass) -> bool {
    matches!(class.0, 0x03 | DEVICE_ADMINISTRATION | BIS) || has_oui(class)
}

/// Returns whether the class is subnet management's, which is of QP 0 alone.
pub(super) fn is_subnet_management(class: MgmtClass) -> bool {
    matches!(class, MgmtClass::SUBNET_LID_ROUTED | MgmtClass::SUBNET_DIRECTED_ROUTE)
}

/// Returns the queue pair that datagrams of the class go to.
pub(super) fn queue_pair(class: MgmtClass) -> Qpn {
    if is_subnet_management(class) { Qpn::SMI } else { Qpn::GSI }
}

/// Returns the bytes of the headers of a class with RMPP: those that each segment has again.
pub(super) fn header_len(class: MgmtClass) -> usize {
    let own = match class.0 {
        0x03 => 20,
        DEVICE_ADMINISTRATION | BIS => 28,
        _ => 4,
    };
    MadHeader::LEN + Rmpp::LEN + own
}

/// Returns the OUI of a datagram whose class names its vendor; 0 for other classes.
pub fn oui_of(class: MgmtClass, mad: &[u8; MAD_LEN]) -> u32 {
    if has_oui(class) { oui(mad) } else { 0 }
}

/// Returns the OUI of a vendor's datagram.
pub(super) fn oui(mad: &[u8; MAD_LEN]) -> u32 {
    u32::from_be_bytes([0, mad[OUI_AT], mad[OUI_AT + 1], mad[OUI_AT + 2]])
}

/// Returns the RMPP header of a datagram whose class has one, if it is in use.
pub(super) fn active_rmpp(class: MgmtClass, mad: &[u8]) -> Option<Rmpp> {
    let rmpp = mad.get(MadHeader::LEN..).filter(|_| has_rmpp(class))?;
    let rmpp = Rmpp::parse(rmpp).ok()?;
    rmpp.flags.contains(RmppFlags::ACTIVE).then_some(rmpp)
}

/// Returns whether a datagram answers another one of the same transaction id.
pub(super) fn is_response(header: &MadHeader) -> bool {
    let baseboard = header.mgmt_class == MgmtClass::BASEBOARD
        && header.attribute_modifier & BASEBOARD_RESPONSE != 0;
    header.method.is_response() || header.method == Method::TRAP_REPRESS || baseboard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_classes_are_as_long_as_their_formats_say() {
        let lens = [0x03, 0x10, 0x32].map(|class| header_len(MgmtClass(class)));
        assert_eq!(lens, [56, 64, 40]);
        assert!(has_rmpp(MgmtClass::SUBNET_ADMIN) && has_rmpp(MgmtClass(0x4F)));
        assert!(!has_rmpp(MgmtClass::PERFORMANCE) && !has_rmpp(MgmtClass(0x50)));
        assert!(!has_rmpp(MgmtClass(0x09)) && !has_oui(MgmtClass(0x10)));
    }

    #[test]
    fn answers_have_a_bit_in_their_method_or_are_known_by_it() {
        let header = |class, method, modifier| MadHeader {
            mgmt_class: class,
            method,
            attribute_modifier: modifier,
            ..MadHeader::default()
        };
        assert!(is_response(&header(MgmtClass::SUBNET_ADMIN, Method::GET_RESP, 0)));
        assert!(is_response(&header(MgmtClass::SUBNET_LID_ROUTED, Method::TRAP_REPRESS, 0)));
        assert!(is_response(&header(MgmtClass::BASEBOARD, Method::SEND, 1)));
        assert!(!is_response(&header(MgmtClass::PERFORMANCE, Method::SEND, 1)));
        assert!(!is_response(&header(MgmtClass::SUBNET_LID_ROUTED, Method::TRAP, 0)));
    }
}

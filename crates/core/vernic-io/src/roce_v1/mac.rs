//! Ethernet addresses that follow from GIDs (IBTA A16.4, RFC 1112 section 6.4, RFC 2464 section 7).

use std::net::Ipv6Addr;

use vernic_wire::Gid;
use vernic_wire::net::MacAddr;

/// Returns the address that frames to a GID go to, if it follows from the GID: that of a group, or
/// one in a link-local GID.
pub(crate) fn of_gid(gid: Gid) -> Option<MacAddr> {
    if gid.is_multicast() { Some(of_group(gid)) } else { of_link_local(gid) }
}

/// Returns the address in a link-local GID that was made from one: the modified EUI-64 of RFC 4291,
/// appendix A. `None` for any other GID: privacy extensions make link-local addresses as well.
fn of_link_local(gid: Gid) -> Option<MacAddr> {
    let is_link_local = Ipv6Addr::from(gid.0).is_unicast_link_local();
    let [.., a, b, c, 0xFF, 0xFE, d, e, f] = gid.0 else { return None };
    is_link_local.then_some(MacAddr([a ^ 2, b, c, d, e, f]))
}

/// Returns the address of a multicast group: 33:33 and the last four bytes of the GID, or that of
/// an IPv4 group.
pub(crate) fn of_group(gid: Gid) -> MacAddr {
    let [.., a, b, c, d] = gid.0;
    match gid.to_ipv4() {
        Some(_) => MacAddr([0x01, 0x00, 0x5E, b & 0x7F, c, d]),
        None => MacAddr([0x33, 0x33, a, b, c, d]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(ip: &str) -> Gid {
        Gid::from_ip(ip.parse().unwrap())
    }

    #[test]
    fn a_link_local_gid_has_the_address_of_its_station() {
        let mac = MacAddr([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(of_gid(gid("fe80::11:22ff:fe33:4455")), Some(mac));
        for other in ["fe80::1", "2001:db8::11:22ff:fe33:4455", "10.0.0.1", "fe80::11:22ff:ff33:1"]
        {
            assert_eq!(of_gid(gid(other)), None, "{other}");
        }
    }

    #[test]
    fn a_group_has_its_multicast_address() {
        let of = |ip| of_gid(gid(ip)).unwrap().to_string();
        assert_eq!(of("ff0e::4711:aabb:ccdd"), "33:33:aa:bb:cc:dd");
        assert_eq!(of("239.129.3.4"), "01:00:5e:01:03:04");
    }
}

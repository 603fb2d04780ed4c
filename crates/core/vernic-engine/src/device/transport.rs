//! How RoCE, InfiniBand and iWARP differ for the control path: one trait, with an implementation
//! for each.
//!
//! [`Transport::rules`] is the only place that chooses. How they differ for the data path is the
//! trait `WireProtocol` of the lane.

use std::net::Ipv6Addr;

use vernic_io::LocalAddr;
use vernic_proto::QpType;
use vernic_wire::{Gid, PortNum};

use crate::config::Config;
use crate::device::gid::{GidEntry, GidType};
use crate::device::limits::{
    DeviceAttr, MAX_GIDS, MAX_INFINIBAND_GIDS, MAX_INFINIBAND_PKEYS, MAX_PKEYS,
};
use crate::error::OpenError;

/// Number behind `uverbs` of the first iWARP device. There are fewer RoCE devices than that, and
/// programs see more of the numbers of RoCE devices.
const FIRST_IWARP_UVERBS: u32 = 256;
/// Number behind `uverbs` of the first InfiniBand device, behind those of iWARP.
const FIRST_INFINIBAND_UVERBS: u32 = 512;

/// The transport of a device's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Packets of RoCEv2.
    #[default]
    Roce,
    /// Connections of TCP (RFC 5040).
    Iwarp,
    /// Packets on InfiniBand links: the hosts of a fabric (docs/fabric.md).
    InfiniBand,
}

/// What verbs ask of the transport of a device.
pub(crate) trait TransportRules: Sync {
    /// Returns the name of the device with this number.
    fn device_name(&self, number: u32) -> String;

    /// Returns the number behind `uverbs` of the device with this number.
    fn uverbs(&self, number: u32) -> u32;

    /// Refuses settings that have no effect on a device of this transport.
    ///
    /// # Errors
    /// [`OpenError::NoPackets`].
    fn check_settings(&self, device: &str, config: &Config) -> Result<(), OpenError> {
        let _ = (device, config);
        Ok(())
    }

    /// Whether GIDs say where packets go: in address vectors of queue pairs and address handles,
    /// and in multicast groups. If not, each queue pair has a TCP connection.
    fn uses_gids(&self) -> bool {
        true
    }

    /// Whether LIDs say where packets go within the subnet, and a subnet manager sets up ports. No
    /// peer is then reached but by the link, not even one of the same host.
    fn has_lids(&self) -> bool {
        false
    }

    /// Returns the type of the GIDs of ports' addresses.
    fn gid_type(&self) -> GidType {
        GidType::RoceV2
    }

    /// Returns the number of rows of a port's P_Key table, empty ones included.
    fn pkey_table_len(&self) -> u16 {
        MAX_PKEYS
    }

    /// Returns the rows of a device's GID tables: `by_address` returns those for the addresses of
    /// its ports. `ifindex` is the index of the netdev of port 1.
    fn gids(
        &self,
        node_guid: u64,
        ifindex: u32,
        by_address: &dyn Fn() -> Vec<GidEntry>,
    ) -> Vec<GidEntry> {
        let _ = (node_guid, ifindex);
        by_address()
    }

    /// Returns the number of rows of a port's GID table, empty ones included.
    fn gid_table_len(&self) -> usize {
        MAX_GIDS
    }

    /// Returns what is wrong with a port without a link, and where to look.
    fn down_text(&self, number: PortNum, netdev: &str, config: &Config) -> String {
        let _ = (number, config);
        format!("{netdev} is down: see `ip link show {netdev}`")
    }

    /// Returns what else may keep packets from a peer that has never answered.
    fn silence_text(&self, config: &Config) -> Option<String> {
        let _ = config;
        None
    }

    /// Whether there are queue pairs of this type.
    fn has_qps(&self, qp_type: QpType) -> bool {
        let _ = qp_type;
        true
    }

    /// Returns the attributes of a device, without those of objects that there are not.
    fn device_attr(&self, attr: DeviceAttr) -> DeviceAttr {
        attr
    }
}

impl Transport {
    /// Returns how the transport differs from others for the control path.
    #[inline]
    pub(crate) fn rules(self) -> &'static dyn TransportRules {
        match self {
            Self::Roce => &Roce,
            Self::Iwarp => &Iwarp,
            Self::InfiniBand => &InfiniBand,
        }
    }
}

/// RoCEv2 (IBTA annex A17).
struct Roce;

impl TransportRules for Roce {
    fn device_name(&self, number: u32) -> String {
        format!("vernic{number}")
    }

    fn uverbs(&self, number: u32) -> u32 {
        number
    }

    fn silence_text(&self, _config: &Config) -> Option<String> {
        Some("or a firewall keeps out UDP port 4791, that of RoCEv2".to_owned())
    }
}

/// InfiniBand links (IBTA chapter 7).
struct InfiniBand;

impl TransportRules for InfiniBand {
    fn device_name(&self, number: u32) -> String {
        format!("vernic_ib{number}")
    }

    fn uverbs(&self, number: u32) -> u32 {
        FIRST_INFINIBAND_UVERBS + number
    }

    /// Refuses what only packets of UDP have.
    fn check_settings(&self, device: &str, config: &Config) -> Result<(), OpenError> {
        let (setting, instead) = ("capture", "`vernic fabric capture NAME FILE` captures a fabric");
        match config.capture.is_empty() {
            true => Ok(()),
            false => Err(OpenError::NoPackets { device: device.to_owned(), setting, instead }),
        }
    }

    fn has_lids(&self) -> bool {
        true
    }

    fn gid_type(&self) -> GidType {
        GidType::InfiniBand
    }

    fn pkey_table_len(&self) -> u16 {
        MAX_INFINIBAND_PKEYS
    }

    fn gid_table_len(&self) -> usize {
        MAX_INFINIBAND_GIDS
    }

    fn device_attr(&self, attr: DeviceAttr) -> DeviceAttr {
        DeviceAttr { max_pkeys: MAX_INFINIBAND_PKEYS, ..attr }
    }

    fn down_text(&self, number: PortNum, _netdev: &str, config: &Config) -> String {
        let Config { fabric, host, .. } = config;
        format!(
            "port {number} of host {host:?} is not active, or the fabric {fabric:?} has ended: see \
             `vernic fabric show {fabric} {host}`"
        )
    }

    fn silence_text(&self, config: &Config) -> Option<String> {
        let fabric = &config.fabric;
        Some(format!(
            "or a wrong LID, or a partition (P_Key) that only one has, or both as limited members: \
             `vernic fabric show {fabric} HOST` counts what is dropped at a host"
        ))
    }
}

/// iWARP (RFC 5040): the system's TCP carries the bytes of RC queue pairs.
struct Iwarp;

impl TransportRules for Iwarp {
    fn device_name(&self, number: u32) -> String {
        format!("viw{number}")
    }

    fn uverbs(&self, number: u32) -> u32 {
        FIRST_IWARP_UVERBS + number
    }

    fn check_settings(&self, device: &str, config: &Config) -> Result<(), OpenError> {
        let refused = [
            (!config.capture.is_empty(), "capture", "`tcpdump` captures TCP"),
            (!config.fault.is_empty(), "fault", "`tc qdisc add dev ... root netem` damages TCP"),
            (config.trace, "trace", "`tcpdump` shows TCP"),
        ];
        let refused = refused.into_iter().find(|(is_set, ..)| *is_set);
        refused.map_or(Ok(()), |(_, setting, instead)| {
            Err(OpenError::NoPackets { device: device.to_owned(), setting, instead })
        })
    }

    fn uses_gids(&self) -> bool {
        false
    }

    /// One row: the MAC address. The node GUID holds it (RFC 4291, appendix A), or what replaces
    /// it.
    fn gids(
        &self,
        node_guid: u64,
        ifindex: u32,
        _by_address: &dyn Fn() -> Vec<GidEntry>,
    ) -> Vec<GidEntry> {
        let [a, b, c, _, _, d, e, f] = node_guid.to_be_bytes();
        let mut gid = Gid([0; 16]);
        gid.0[..6].copy_from_slice(&[a ^ 2, b, c, d, e, f]);
        let local = LocalAddr::new(Ipv6Addr::UNSPECIFIED.into(), ifindex);
        let (port, kind) = (PortNum(1), GidType::Mac);
        vec![GidEntry { port, index: 0, gid, kind, ifindex, local }]
    }

    fn gid_table_len(&self) -> usize {
        1
    }

    fn has_qps(&self, qp_type: QpType) -> bool {
        qp_type == QpType::Rc
    }

    /// Without address handles and multicast groups.
    fn device_attr(&self, attr: DeviceAttr) -> DeviceAttr {
        DeviceAttr { max_ah: 0, max_mcast_groups: 0, max_mcast_qps: 0, ..attr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_in_the_words_of_the_transport() {
        let mut config = Config::default();
        config.set("fabric", "lab").unwrap();
        config.set("host", "h7").unwrap();
        let told = |transport: Transport| {
            let rules = transport.rules();
            let down = rules.down_text(PortNum(2), "eth7", &config);
            (down, rules.silence_text(&config).unwrap_or_default())
        };
        let (down, silence) = told(Transport::InfiniBand);
        assert!(down.contains("port 2 of host \"h7\"") && down.contains("show lab h7"), "{down}");
        assert!(silence.contains("P_Key") && !silence.contains("UDP"), "{silence}");
        let (down, silence) = told(Transport::Roce);
        assert!(down.contains("ip link show eth7") && silence.contains("UDP port 4791"), "{down}");
        assert_eq!(told(Transport::Iwarp).1, "");
    }
}

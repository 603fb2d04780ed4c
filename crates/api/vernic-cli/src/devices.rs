//! `vernic devices`, `vernic info`: what there is, in words and in JSON.
//!
//! Each command fills a plain view from the `vernic` crate; views are rendered here, in words by
//! `text`, and nowhere else.

mod text;

use crate::failure::{Doing, Failure, Outcome};
use crate::select::Chosen;
use crate::table::{print, print_json};
use serde::Serialize;
use std::net::IpAddr;
use vernic::{
    Device, DeviceAttr, DeviceCounters, DeviceInfo, DeviceTransport, GidEntry, GidType,
    PORT_COUNTERS, PortState, ProcessStatus, QpStatus, Settings,
};

/// One line of `vernic devices`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct DeviceLine {
    name: String,
    /// `RoCE` or `iWARP`.
    transport: &'static str,
    netdev: String,
    /// `active` or `down`.
    state: String,
    netdev_mtu_bytes: u32,
    addresses: Vec<IpAddr>,
}

/// Everything about one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct DeviceView {
    name: String,
    transport: &'static str,
    netdev: String,
    /// Host and fabric, of an InfiniBand device.
    fabric: Option<FabricView>,
    node_guid: String,
    version: String,
    vendor_id: String,
    vendor_part_id: u32,
    port: PortView,
    /// How packets go to other processes of this host.
    same_host: String,
    /// Which GIDs are of RoCEv1, or why none is.
    roce_v1: String,
    gids: Vec<GidView>,
    limits: Vec<Named>,
    counters: Vec<Named>,
    /// Other processes that have the device open; none if one of them did not tell.
    processes: Option<Vec<ProcessView>>,
}

/// Where an InfiniBand device is.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct FabricView {
    name: String,
    host: String,
    lid: u16,
    sm_lid: u16,
}

/// The port.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PortView {
    number: u8,
    state: String,
    link_layer: &'static str,
    netdev_mtu_bytes: u32,
    active_mtu_bytes: u32,
    /// What decides the active MTU: `netdev`, `setting`, or `subnet`.
    active_mtu_by: &'static str,
    max_mtu_bytes: u32,
    max_message_bytes: u64,
    pkeys: Vec<String>,
}

/// A row of the GID table.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct GidView {
    index: u32,
    gid: String,
    /// None of an iWARP device, whose GID is its MAC.
    ip: Option<IpAddr>,
    #[serde(rename = "type")]
    kind: &'static str,
    netdev: String,
    reach: &'static str,
}

/// A process that has the device open.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ProcessView {
    pid: u32,
    /// Counters of the port, in the words of `ports/1/counters`.
    counters: Vec<Named>,
    qps: Vec<QpView>,
}

/// A queue pair of a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct QpView {
    number: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    state: &'static str,
    /// The peer's queue pair.
    peer: Option<u32>,
}

/// A number with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Named {
    name: String,
    value: u64,
}

/// `vernic devices`.
pub(crate) fn list(settings: &Settings, json: bool) -> Outcome<()> {
    let devices = all(settings)?;
    let lines: Vec<DeviceLine> = devices.iter().map(DeviceLine::of).collect();
    match json {
        true => print_json(&lines),
        false if lines.is_empty() => Err(no_device()),
        false => print(&text::devices(&lines)),
    }
}

/// The devices of both transports that netdevs have; on a host of a fabric, that of the host.
fn all(settings: &Settings) -> Outcome<Vec<DeviceInfo>> {
    if is_on_fabric(settings) {
        return Device::list_for(settings.config()).doing(|| "list the RDMA devices".into());
    }
    let roce = Device::list().doing(|| "list the RDMA devices".into())?;
    let iwarp: Vec<DeviceInfo> = roce.iter().cloned().map(DeviceInfo::into_iwarp).collect();
    Ok([roce, iwarp].concat())
}

fn is_on_fabric(settings: &Settings) -> bool {
    !settings.config().fabric.is_empty()
}

/// What a device's queue pairs are carried by.
fn transport(info: &DeviceInfo) -> &'static str {
    match info.transport {
        DeviceTransport::Roce => "RoCE",
        DeviceTransport::Iwarp => "iWARP",
        DeviceTransport::InfiniBand => "InfiniBand",
        _ => "other",
    }
}

/// Why there is no device, and what helps.
pub(crate) fn no_device() -> Failure {
    match Device::why_none() {
        Ok(why) | Err(why) => Failure::new(why.to_string()),
    }
}

/// `vernic info`: of the device that the command line or the settings name, else of all.
pub(crate) fn info(name: Option<&str>, settings: &Settings, json: bool) -> Outcome<()> {
    let chosen = match Chosen::find(name, settings) {
        Some(chosen) => vec![chosen],
        None => all(settings)?.into_iter().map(|info| Chosen::by_option(&info.name)).collect(),
    };
    if chosen.is_empty() && !json {
        return Err(no_device());
    }
    let (mut views, mut failed) = (Vec::new(), None);
    for named in chosen {
        match named.open() {
            Ok(device) => views.push(DeviceView::of(&device)),
            // The others are shown all the same.
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    if views.is_empty() && failed.is_some() {
        // Nothing to show beside the failure.
    } else if json {
        print_json(&views)?;
    } else {
        let texts: Vec<String> = views.iter().map(text::device).collect();
        print(&texts.join("\n"))?;
    }
    failed.map_or(Ok(()), Err)
}

impl DeviceLine {
    fn of(info: &DeviceInfo) -> Self {
        Self {
            name: info.name.clone(),
            transport: transport(info),
            netdev: info.port.netdev.clone(),
            state: if info.port.up { "active" } else { "down" }.into(),
            netdev_mtu_bytes: info.port.netdev_mtu_bytes,
            addresses: info.port.addresses.iter().map(|address| address.ip).collect(),
        }
    }
}

impl DeviceView {
    fn of(device: &Device) -> Self {
        let (info, attributes) = (device.info(), device.attributes());
        Self {
            name: info.name.clone(),
            transport: transport(info),
            netdev: info.port.netdev.clone(),
            fabric: device.port().link.map(|link| FabricView {
                name: device.config().fabric.clone(),
                host: device.config().host.clone(),
                lid: link.lid.value(),
                sm_lid: link.sm_lid.value(),
            }),
            node_guid: guid_text(attributes.node_guid),
            version: attributes.firmware.into(),
            vendor_id: format!("{:#x}", attributes.vendor_id),
            vendor_part_id: attributes.vendor_part_id,
            port: PortView::of(device),
            same_host: match device.why_wire() {
                None => "through shared memory".into(),
                Some(why) => format!("by the wire: {why}"),
            },
            roce_v1: match (info.transport, info.port.why_no_roce_v1()) {
                (DeviceTransport::Roce, Some(why)) => format!("no: {why}"),
                (DeviceTransport::Roce, None) => "GIDs of index 32 and up".into(),
                _ => "no: the device is not one of RoCE".into(),
            },
            gids: device
                .gid_table()
                .iter()
                .map(|row| GidView::of(row, &info.port.netdev))
                .collect(),
            limits: limits(&attributes),
            counters: counters(&device.counters()),
            processes: Device::processes(&info.name).ok().map(|all| {
                let others = all.iter().filter(|status| status.pid != std::process::id());
                others.map(ProcessView::of).collect()
            }),
        }
    }
}

impl ProcessView {
    fn of(status: &ProcessStatus) -> Self {
        let named = |(name, value): (&&str, &u64)| Named { name: (*name).into(), value: *value };
        Self {
            pid: status.pid,
            counters: PORT_COUNTERS.iter().zip(&status.port).map(named).collect(),
            qps: status.qps.iter().map(QpView::of).collect(),
        }
    }
}

impl QpView {
    fn of(qp: &QpStatus) -> Self {
        let peer = qp.dest_qpn.value();
        Self {
            number: qp.qpn.value(),
            kind: qp_kind(qp.qp_type),
            state: qp_state(qp.state),
            peer: (peer != 0).then_some(peer),
        }
    }
}

/// The name of a type of queue pairs, by its number in `ibv_qp_type`.
pub(crate) fn qp_kind(number: u8) -> &'static str {
    match number {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        9 => "XRC initiator",
        10 => "XRC target",
        _ => "other",
    }
}

/// The name of a state of queue pairs, by its number in `ibv_qp_state`.
pub(crate) fn qp_state(number: u8) -> &'static str {
    const STATES: [&str; 7] = ["Reset", "Init", "RTR", "RTS", "SQD", "SQE", "Error"];
    STATES.get(usize::from(number)).unwrap_or(&"other")
}

impl PortView {
    fn of(device: &Device) -> Self {
        let port = device.port();
        Self {
            number: port.port.0,
            state: match port.state {
                PortState::Active => "active",
                PortState::Armed => "armed",
                PortState::Init => "init",
                PortState::Down => "down",
            }
            .into(),
            link_layer: if port.link.is_some() { "InfiniBand" } else { "Ethernet" },
            netdev_mtu_bytes: port.netdev_mtu_bytes,
            active_mtu_bytes: port.active_mtu.bytes(),
            active_mtu_by: match device.config().mtu {
                Some(allowed) if allowed == port.active_mtu => "setting",
                _ if port.link.is_some() => "subnet",
                _ => "netdev",
            },
            max_mtu_bytes: port.max_mtu.bytes(),
            max_message_bytes: port.max_msg_bytes.into(),
            pkeys: match &port.link {
                // One row, the default partition, on every RoCE device.
                None => vec!["0xffff".into()],
                Some(link) => {
                    let rows = link.pkeys.iter().filter(|pkey| pkey.value() != 0);
                    rows.map(|pkey| format!("{:#06x}", pkey.value())).collect()
                }
            },
        }
    }
}

impl GidView {
    fn of(row: &GidEntry, netdev: &str) -> Self {
        let is_ip = matches!(row.kind, GidType::RoceV1 | GidType::RoceV2);
        let ip = is_ip.then(|| row.gid.to_ip());
        Self {
            index: row.index.into(),
            gid: row.gid.to_string(),
            ip,
            kind: match row.kind {
                GidType::RoceV1 => "RoCEv1",
                GidType::RoceV2 => "RoCEv2",
                GidType::Mac => "MAC",
                GidType::InfiniBand => "InfiniBand",
                _ => "other",
            },
            netdev: netdev.into(),
            reach: match (row.kind, ip) {
                (GidType::RoceV1, _) => "hosts on the same Ethernet",
                (GidType::InfiniBand, _) => "ports of the subnet",
                (_, ip) => ip.map_or("nobody: connections are by IP address", reach),
            },
        }
    }
}

/// The form of `ibv_devinfo`: four groups of four hexadecimal digits.
fn guid_text(guid: u64) -> String {
    let group = |shift: u32| format!("{:04x}", guid >> shift & 0xffff);
    [48, 32, 16, 0].map(group).join(":")
}

fn limits(attributes: &DeviceAttr) -> Vec<Named> {
    let a = attributes;
    let rows: [(&str, u64); 19] = [
        ("max_qp", a.max_qp.into()),
        ("max_qp_wr", a.max_qp_wr.into()),
        ("max_sge", a.max_sge.into()),
        ("max_inline", a.max_inline.into()),
        ("max_qp_rd_atom", a.max_qp_rd_atom.into()),
        ("max_qp_init_rd_atom", a.max_qp_init_rd_atom.into()),
        ("max_cq", a.max_cq.into()),
        ("max_cqe", a.max_cqe.into()),
        ("max_srq", a.max_srq.into()),
        ("max_srq_wr", a.max_srq_wr.into()),
        ("max_srq_sge", a.max_srq_sge.into()),
        ("max_pd", a.max_pd.into()),
        ("max_mr", a.max_mr.into()),
        ("max_mr_bytes", a.max_mr_bytes),
        ("max_mw", a.max_mw.into()),
        ("max_ah", a.max_ah.into()),
        ("max_mcast_groups", a.max_mcast_groups.into()),
        ("max_mcast_qps", a.max_mcast_qps.into()),
        ("max_pkeys", a.max_pkeys.into()),
    ];
    named(&rows)
}

fn named(rows: &[(&str, u64)]) -> Vec<Named> {
    rows.iter().map(|&(name, value)| Named { name: name.into(), value }).collect()
}

fn counters(counters: &DeviceCounters) -> Vec<Named> {
    counters.iter().map(|(name, value)| Named { name: name.into_owned(), value }).collect()
}

/// The counters of `device` that are not 0.
pub(crate) fn counters_text(device: &Device) -> String {
    text::counted(&counters(&device.counters()))
}

/// What an address is good for: the answer to "which GID index?".
fn reach(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(ip) if ip.is_loopback() => "this machine only",
        IpAddr::V4(ip) if ip.is_link_local() => "hosts on the same link",
        IpAddr::V4(_) => "any host that IPv4 reaches; the usual choice",
        IpAddr::V6(ip) if ip.is_loopback() => "this machine only",
        IpAddr::V6(ip) if ip.is_unicast_link_local() => "hosts on the same link, without routers",
        IpAddr::V6(ip) if ip.is_unique_local() => "hosts of the same site that have IPv6",
        IpAddr::V6(_) => "any host that IPv6 reaches",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_written_as_ibv_devinfo_writes_them() {
        assert_eq!(guid_text(0x0011_22ff_fe33_4455), "0011:22ff:fe33:4455");
    }

    #[test]
    fn each_kind_of_address_says_whom_it_reaches() {
        for (ip, word) in [
            ("127.0.0.1", "this machine"),
            ("::1", "this machine"),
            ("192.168.1.2", "usual choice"),
            ("169.254.1.1", "same link"),
            ("fe80::1", "same link"),
            ("fd00::1", "site"),
            ("2001:db8::1", "IPv6 reaches"),
        ] {
            assert!(reach(ip.parse().unwrap()).contains(word), "{ip}");
        }
    }
}

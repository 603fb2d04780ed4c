//! The files of devices, as the kernel shows them for its own.
//!
//! Contents follow the kernel's documentation of `/sys/class/infiniband`
//! (stable/sysfs-class-infiniband). They are a snapshot: addresses that come later are seen by the
//! library, and here by the next `vernic run`. Files of counters are empty: `libvernic_paths.so`
//! puts the values of now in their place when they are opened, the sums over the processes of this
//! user that have the device open.

use super::Entry;
use vernic::{
    DeviceCounters, DeviceInfo, DeviceTransport, GidType, LinkPort, PORT_COUNTERS, PortState,
    limits,
};

/// Folder of the files, in the user's folder: what `VERNIC_PATHS` names.
pub(super) const FOLDER: &str = "files";

/// Files of these devices. A program that opens a node of `/dev` gets one that takes and gives
/// nothing; what matters is that it is a character device.
pub(super) fn of_devices(devices: &[DeviceInfo]) -> Vec<Entry> {
    let at = |path: &str| format!("{FOLDER}/{path}");
    let mut entries = vec![
        Entry::file(at("sys/class/infiniband_mad/abi_version"), "5\n"),
        Entry::file(at("sys/class/infiniband_verbs/abi_version"), "6\n"),
        Entry::link(at("dev/infiniband/rdma_cm"), "/dev/null"),
    ];
    if devices.is_empty() {
        entries.push(Entry::folder(at("sys/class/infiniband")));
    }
    for device in devices {
        let (name, number) = (&device.name, device.uverbs());
        let verbs = at(&format!("sys/class/infiniband_verbs/uverbs{number}"));
        entries.extend([
            Entry::link(at(&format!("dev/infiniband/uverbs{number}")), "/dev/null"),
            Entry::file(format!("{verbs}/ibdev"), format!("{name}\n")),
            Entry::file(format!("{verbs}/abi_version"), "1\n"),
            Entry::file(format!("{verbs}/dev"), "1:3\n"), // of /dev/null
            Entry::link(format!("{verbs}/device"), format!("../../infiniband/{name}/device")),
        ]);
        entries.extend(of_device(&at(&format!("sys/class/infiniband/{name}")), device));
    }
    let managed = devices.iter().filter(|device| device.transport != DeviceTransport::Iwarp);
    let ports = managed.flat_map(|device| device.ports().map(|(port, _)| (&device.name, port)));
    for (number, (name, port)) in ports.enumerate() {
        let umad = at(&format!("sys/class/infiniband_mad/umad{number}"));
        entries.extend([
            Entry::link(at(&format!("dev/infiniband/umad{number}")), "/dev/null"),
            Entry::file(format!("{umad}/ibdev"), format!("{name}\n")),
            Entry::file(format!("{umad}/port"), format!("{port}\n")),
            Entry::file(format!("{umad}/dev"), "1:3\n"), // of /dev/null
        ]);
    }
    entries
}

fn of_device(folder: &str, device: &DeviceInfo) -> Vec<Entry> {
    let (name, netdev) = (&device.name, &device.port.netdev);
    let guid = format!("{}\n", groups(&device.node_guid.to_be_bytes()));
    let port = format!("{folder}/ports/1");
    if device.transport == DeviceTransport::InfiniBand {
        return of_adapter(folder, device);
    }
    let node_type = match device.transport {
        DeviceTransport::Iwarp => "4: RNIC\n",
        _ => "1: CA\n",
    };
    let (state, phys_state) = if device.port.up {
        ("4: ACTIVE\n", "5: LinkUp\n")
    } else {
        ("1: DOWN\n", "3: Disabled\n")
    };
    let mut entries = vec![
        Entry::file(format!("{folder}/node_type"), node_type),
        Entry::file(format!("{folder}/node_guid"), guid.clone()),
        Entry::file(format!("{folder}/sys_image_guid"), guid),
        Entry::file(format!("{folder}/node_desc"), format!("{name}\n")),
        Entry::file(format!("{folder}/fw_ver"), concat!(env!("CARGO_PKG_VERSION"), "\n")),
        Entry::file(format!("{folder}/hca_type"), "vernic\n"),
        Entry::file(format!("{folder}/uevent"), format!("NAME={name}\n")),
        Entry::link(format!("{folder}/device/net/{netdev}"), format!("/sys/class/net/{netdev}")),
        Entry::file(format!("{port}/state"), state),
        Entry::file(format!("{port}/phys_state"), phys_state),
        Entry::file(format!("{port}/link_layer"), "Ethernet\n"),
        Entry::file(format!("{port}/rate"), "40 Gb/sec (4X QDR)\n"),
        Entry::file(format!("{port}/lid"), "0x0\n"),
        Entry::file(format!("{port}/lid_mask_count"), "0\n"),
        Entry::file(format!("{port}/sm_lid"), "0x0\n"),
        Entry::file(format!("{port}/sm_sl"), "0\n"),
        Entry::file(format!("{port}/cap_mask"), format!("{:#010x}\n", limits::PORT_CAP_FLAGS)),
        Entry::file(format!("{port}/pkeys/0"), "0xffff\n"),
    ];
    let counters = DeviceCounters::default();
    let hardware = counters.iter().map(|(name, _)| format!("{port}/hw_counters/{name}"));
    let port_counters = PORT_COUNTERS.iter().map(|name| format!("{port}/counters/{name}"));
    entries.extend(port_counters.chain(hardware).map(|path| Entry::file(path, "")));
    for row in device.gids() {
        let (index, gid) = (row.index, groups(&row.gid.0));
        let gid_type = match row.kind {
            GidType::RoceV2 => "RoCE v2\n",
            _ => "IB/RoCE v1\n",
        };
        entries.extend([
            Entry::file(format!("{port}/gids/{index}"), format!("{gid}\n")),
            Entry::file(format!("{port}/gid_attrs/types/{index}"), gid_type),
            Entry::file(format!("{port}/gid_attrs/ndevs/{index}"), format!("{netdev}\n")),
        ]);
    }
    entries
}

/// Files of the adapter of a fabric's host, with all of its ports.
fn of_adapter(folder: &str, device: &DeviceInfo) -> Vec<Entry> {
    let guid = format!("{}\n", groups(&device.node_guid.to_be_bytes()));
    let host = &device.port.netdev;
    let mut entries = vec![
        Entry::file(format!("{folder}/node_type"), "1: CA\n"),
        Entry::file(format!("{folder}/node_guid"), guid.clone()),
        Entry::file(format!("{folder}/sys_image_guid"), guid),
        Entry::file(format!("{folder}/node_desc"), format!("{host} {}\n", device.name)),
        Entry::file(format!("{folder}/fw_ver"), concat!(env!("CARGO_PKG_VERSION"), "\n")),
        Entry::file(format!("{folder}/hca_type"), "vernic\n"),
        Entry::file(format!("{folder}/uevent"), format!("NAME={}\n", device.name)),
        Entry::folder(format!("{folder}/device")),
    ];
    for (number, port) in device.ports() {
        let Some(link) = &port.link else { continue };
        entries.extend(of_port(&format!("{folder}/ports/{number}"), link));
    }
    entries
}

/// Files of a port that a subnet manager sets up.
fn of_port(port: &str, link: &LinkPort) -> Vec<Entry> {
    let state = match link.state {
        PortState::Down => "1: DOWN",
        PortState::Init => "2: INIT",
        PortState::Armed => "3: ARMED",
        PortState::Active => "4: ACTIVE",
    };
    let physical = match link.physical_state {
        1 => "1: Sleep",
        2 => "2: Polling",
        4 => "4: PortConfigurationTraining",
        5 => "5: LinkUp",
        6 => "6: LinkErrorRecovery",
        _ => "3: Disabled",
    };
    let mut entries = vec![
        Entry::file(format!("{port}/state"), format!("{state}\n")),
        Entry::file(format!("{port}/phys_state"), format!("{physical}\n")),
        Entry::file(format!("{port}/link_layer"), "InfiniBand\n"),
        Entry::file(format!("{port}/rate"), rate(link)),
        Entry::file(format!("{port}/lid"), format!("{:#x}\n", link.lid.value())),
        Entry::file(format!("{port}/lid_mask_count"), format!("{}\n", link.lmc)),
        Entry::file(format!("{port}/sm_lid"), format!("{:#x}\n", link.sm_lid.value())),
        Entry::file(format!("{port}/sm_sl"), format!("{}\n", link.sm_service_level)),
        Entry::file(format!("{port}/cap_mask"), format!("{:#010x}\n", link.capabilities)),
    ];
    for (index, pkey) in link.pkeys.iter().enumerate() {
        entries
            .push(Entry::file(format!("{port}/pkeys/{index}"), format!("{:#06x}\n", pkey.value())));
    }
    for (index, gid) in link.gids.iter().enumerate() {
        entries.extend([
            Entry::file(format!("{port}/gids/{index}"), format!("{}\n", groups(&gid.0))),
            Entry::file(format!("{port}/gid_attrs/types/{index}"), "IB/RoCE v1\n"),
        ]);
    }
    entries
}

/// The rate of a link as the kernel writes it.
fn rate(link: &LinkPort) -> String {
    let lanes = match link.active_width {
        1 => 1,
        4 => 8,
        8 => 12,
        _ => 4,
    };
    // In units of 0.5 Gb/s.
    let (halves, name) = match link.active_speed {
        1 => (5, " SDR"),
        2 => (10, " DDR"),
        4 => (20, " QDR"),
        16 => (28, " FDR"),
        _ => (50, " EDR"),
    };
    let total = halves * lanes;
    let half = if total % 2 == 1 { ".5" } else { "" };
    format!("{}{half} Gb/sec ({lanes}X{name})\n", total / 2)
}

/// Groups of four hexadecimal digits, none left out.
fn groups(bytes: &[u8]) -> String {
    let groups = bytes.chunks(2).map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect());
    groups.collect::<Vec<String>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic::{Config, Device, Gid, TransportChoice};

    #[test]
    fn identifiers_are_written_in_full() {
        assert_eq!(groups(&[0, 2, 0xc9, 0xff]), "0002:c9ff");
        let gid = Gid::from_ip("10.0.0.1".parse().unwrap());
        assert_eq!(groups(&gid.0), "0000:0000:0000:0000:0000:ffff:0a00:0001");
    }

    #[test]
    fn each_device_has_its_port_its_netdev_and_its_node() {
        let config = Config { transport: TransportChoice::Both, ..Config::default() };
        let devices = Device::list_for(&config).unwrap();
        let entries = of_devices(&devices);
        let mut paths: Vec<_> = entries.iter().map(|entry| &entry.path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), entries.len(), "two devices share a file");
        let has = |path: &str| entries.iter().any(|entry| entry.path == format!("{FOLDER}/{path}"));
        for device in &devices {
            let folder = format!("sys/class/infiniband/{}", device.name);
            assert!(has(&format!("{folder}/ports/1/state")));
            assert!(has(&format!("{folder}/device/net/{}", device.port.netdev)));
            assert!(has(&format!("dev/infiniband/uverbs{}", device.uverbs())));
        }
        let text = |path: &str| {
            let path = format!("{FOLDER}/sys/class/infiniband_mad/{path}");
            entries.iter().find(|entry| entry.path == path).and_then(Entry::text)
        };
        let managed = devices.iter().filter(|one| one.transport == DeviceTransport::Roce);
        for (number, device) in managed.clone().enumerate() {
            assert!(has(&format!("dev/infiniband/umad{number}")));
            assert_eq!(text(&format!("umad{number}/ibdev")), Some(&*format!("{}\n", device.name)));
            assert_eq!(text(&format!("umad{number}/port")), Some("1\n"));
        }
        assert_eq!(text(&format!("umad{}/port", managed.count())), None, "iWARP has none");
    }

    #[test]
    fn files_say_of_the_port_what_the_open_device_says() {
        for (transport, node_type, gid_type) in [
            (TransportChoice::Roce, "1: CA", "RoCE v2"),
            (TransportChoice::Iwarp, "4: RNIC", "IB/RoCE v1"),
        ] {
            check_files(transport, node_type, gid_type);
        }
    }

    fn check_files(transport: TransportChoice, node_type: &str, gid_type: &str) {
        let config = Config { device: "lo".into(), transport, ..Config::default() };
        let entries = of_devices(&Device::list_for(&config).unwrap());
        let device = Device::open_with(config).unwrap();
        let folder = format!("{FOLDER}/sys/class/infiniband/{}", device.info().name);
        let at = |path: String| {
            let entry = entries.iter().find(|entry| entry.path == path);
            entry.and_then(Entry::text).unwrap_or_else(|| panic!("no {path}")).trim_end()
        };
        let text = |path: &str| at(format!("{folder}/ports/1/{path}"));
        assert_eq!(at(format!("{folder}/node_type")), node_type);
        assert_eq!(text("cap_mask"), format!("{:#010x}", device.port().cap_flags));
        let table = device.gid_table();
        assert!(!table.is_empty());
        for row in &table {
            assert_eq!(text(&format!("gids/{}", row.index)), groups(&row.gid.0));
            assert_eq!(text(&format!("gid_attrs/types/{}", row.index)), gid_type);
        }
        let shown = entries.iter().filter(|entry| entry.path.contains("/gids/")).count();
        assert_eq!(shown, table.len());
    }
}

//! Views of devices in words.

use std::fmt::Write as _;

use super::{DeviceLine, DeviceView, Named, ProcessView, QpView};
use crate::table::{Align, Table, size_text};

pub(super) fn devices(lines: &[DeviceLine]) -> String {
    let columns = ["device", "transport", "netdev", "state"].map(|name| (name, Align::Left));
    let mut table =
        Table::new(&[&columns[..], &[("MTU", Align::Right), ("addresses", Align::Left)]].concat());
    for line in lines {
        let addresses: Vec<String> = line.addresses.iter().map(ToString::to_string).collect();
        table.row([
            line.name.clone(),
            line.transport.into(),
            line.netdev.clone(),
            line.state.clone(),
            line.netdev_mtu_bytes.to_string(),
            addresses.join(" "),
        ]);
    }
    table.render()
}

pub(super) fn device(view: &DeviceView) -> String {
    let port = &view.port;
    let mut text = String::new();
    // Writing to a String does not fail.
    let place = match &view.fabric {
        Some(fabric) => format!("on host {} of fabric {}", fabric.host, fabric.name),
        None => format!("on netdev {}", view.netdev),
    };
    let lids = match &view.fabric {
        Some(fabric) => format!(", LID {}, SM LID {}", fabric.lid, fabric.sm_lid),
        None => String::new(),
    };
    let _ = writeln!(text, "{} ({}) {place}", view.name, view.transport);
    let facts = [
        ("version", view.version.clone()),
        ("vendor, part", format!("{}, {}", view.vendor_id, view.vendor_part_id)),
        ("node GUID", view.node_guid.clone()),
        ("port", format!("{}, {}, {}{lids}", port.number, port.state, port.link_layer)),
        (
            "MTU",
            format!(
                "{} active, {} at most; {}",
                port.active_mtu_bytes,
                port.max_mtu_bytes,
                match port.active_mtu_by {
                    "setting" => "the setting mtu (VERNIC_MTU) decides".into(),
                    "subnet" => "the subnet manager decides".into(),
                    _ => format!("the netdev's {} bytes decide", port.netdev_mtu_bytes),
                }
            ),
        ),
        ("longest message", size_text(port.max_message_bytes)),
        ("P_Keys", port.pkeys.join(" ")),
        ("same host", view.same_host.clone()),
        ("RoCEv1", view.roce_v1.clone()),
    ];
    let is_roce = |name: &str| view.fabric.is_none() || name != "RoCEv1";
    for (name, value) in facts.into_iter().filter(|(name, _)| is_roce(name)) {
        let _ = writeln!(text, "  {name:<16} {value}");
    }
    let mut gids = Table::new(&[
        ("index", Align::Right),
        ("GID", Align::Left),
        ("type", Align::Left),
        ("address", Align::Left),
        ("netdev", Align::Left),
        ("reaches", Align::Left),
    ]);
    for row in &view.gids {
        let address = row.ip.map_or("-".into(), |ip| ip.to_string());
        gids.row([&row.index.to_string(), &row.gid, row.kind, &address, &row.netdev, row.reach]);
    }
    let _ = write!(text, "\n{}", gids.render());
    let _ = write!(text, "\nlimits\n{}", named(&view.limits));
    let _ = write!(text, "\n{}", counted(&view.counters));
    let _ = write!(text, "\n{}", processes(view.processes.as_deref()));
    text
}

/// Most queue pairs of a process that are listed.
const LISTED_QPS: usize = 20;

fn processes(processes: Option<&[ProcessView]>) -> String {
    let Some(processes) = processes else {
        return "other processes: one of them does not tell what it has; is it stopped?\n".into();
    };
    if processes.is_empty() {
        return "other processes of this user: none has the device open\n".into();
    }
    let mut text = String::from("other processes of this user\n");
    for ProcessView { pid, counters, qps } in processes {
        let counted = counters.iter().filter(|counter| counter.value > 0);
        let counted: Vec<_> =
            counted.map(|Named { name, value }| format!("{name} {value}")).collect();
        let counted = if counted.is_empty() { "no packets".into() } else { counted.join(", ") };
        // Writing to a String does not fail.
        let _ = writeln!(text, "  pid {pid}: {counted}");
        for QpView { number, kind, state, peer } in qps.iter().take(LISTED_QPS) {
            let peer = peer.map_or(String::new(), |peer| format!(", peer {peer}"));
            let _ = writeln!(text, "    queue pair {number}: {kind}, {state}{peer}");
        }
        if let Some(more) = qps.len().checked_sub(LISTED_QPS + 1) {
            let _ = writeln!(text, "    and {} more", more + 1);
        }
    }
    text
}

pub(super) fn counted(counters: &[Named]) -> String {
    let counted: Vec<Named> =
        counters.iter().filter(|counter| counter.value > 0).cloned().collect();
    let heading = "counters of this process since it opened the device";
    if counted.is_empty() {
        return format!("{heading}: all are 0\n");
    }
    format!("{heading}; those not listed are 0\n{}", named(&counted))
}

fn named(rows: &[Named]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Named { name, value } in rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {name:<width$}  {value}");
    }
    text
}

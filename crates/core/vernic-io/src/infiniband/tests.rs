use std::thread;

use vernic_attach::data::{DataReport, DataRequest};
use vernic_attach::{Connection, PortReport};
use vernic_sys as sys;
use vernic_wire::{Lrh, Mtu, Pkey, RoceVersion, ServiceLevel, VirtualLane};

use super::*;
use crate::address::Address;
use crate::link::PathRequest;

/// The prefix of the first subnet's GIDs.
const PREFIX: u64 = 0xFE80 << 48;
const ONE: PortNum = PortNum(1);
const GROUP: Gid = Gid([0xFF; 16]);
const MLID: Lid = Lid(0xC001);

fn port(lid: u16, gid_prefix: u64) -> PortReport {
    PortReport {
        number: ONE,
        lid: Lid(lid),
        lmc: 1,
        sm_lid: Lid(1),
        sm_service_level: ServiceLevel::new(0),
        state: 4,
        physical_state: 5,
        mtu_capability: Mtu::B4096,
        active_mtu: Mtu::B4096,
        width: 2,
        speed: 4,
        capabilities: 0,
        subnet_timeout: 18,
        lanes_supported: 8,
        operational_lanes: 4,
        gid_prefix,
        guids: vec![Guid(7)],
        pkeys: vec![Pkey::DEFAULT],
        service_lanes: std::array::from_fn(|at| VirtualLane::new(at as u8)),
        p_key_violations: 0,
        q_key_violations: 0,
        management_dropped: 0,
        reregisters: 0,
    }
}

/// Returns a link of a port with LID 4 and 5, and the fabric's end of its connection.
fn link() -> (InfinibandLink, Connection) {
    let (ours, theirs) = sys::packet_pair().unwrap();
    let fabric = Connection::new(theirs);
    let adapter = AdapterReport {
        host: "h1".to_owned(),
        description: String::new(),
        guid: Guid(6),
        system_guid: Guid(6),
        vendor_id: 0,
        device_id: 0,
        revision: 0,
        ports: vec![port(4, PREFIX)],
    };
    fabric.send(&DataReport::attached(5, &adapter)).unwrap();
    let attached = DataClient::attach_over(Connection::new(ours), "h1", Some(5)).unwrap();
    assert!(matches!(
        DataRequest::parse(fabric.recv(&mut [0; MAX_MESSAGE]).unwrap()),
        Some(DataRequest::Attach { .. })
    ));
    let host = FabricHost { fabric: "lab".to_owned(), host: "h1".to_owned() };
    let slots = SlotTable::with_scope(&format!("vi{}", std::process::id())).unwrap();
    let link = InfinibandLink::new(Arc::new(Attacher::new(host)), attached, slots).unwrap();
    (link, fabric)
}

/// Opens the path to LID 9 from the second LID of the port.
fn path(link: &InfinibandLink) -> TxPath {
    let request = PathRequest {
        port: ONE,
        local: Gid::default(),
        remote: Gid::default(),
        netdev_index: 0,
        traffic_class: 0,
        hop_limit: 0,
        service_level: 0,
        flow_label: 0,
        dlid: Lid(9),
        path_bits: 1,
        roce: RoceVersion::default(),
        may_wait: false,
    };
    let open = link.paths().open_path(&request).unwrap();
    assert_eq!(open.local, Address::OwnLid { port: 1, path_bits: 1 });
    open.path
}

fn append(batch: &mut TxBatch, path: &TxPath, size: usize) {
    batch.room().unwrap()[..size].fill(0);
    batch.push(path, size);
}

/// Returns the source LIDs of the packets of a message.
fn sources(message: &[u8]) -> Vec<u16> {
    let Some(DataRequest::Packets(packets)) = DataRequest::parse(message) else {
        panic!("packets")
    };
    let ports = [LinkPort { lmc: 1, ..LinkPort::default() }];
    let mut counters = LinkCounters::default();
    let mut count = 0;
    receive::sort(packets, &ports, &mut counters, |_, _, _| count += 1);
    assert_eq!(count, packets.count(), "the ICRCs are right");
    packets.map(|(_, packet)| Lrh::parse(packet).unwrap().slid).collect()
}

#[test]
fn packets_have_the_lid_that_the_subnet_manager_gave_last() {
    let (mut link, fabric) = link();
    let (mut batch, mut arrivals) = (TxBatch::new(&link.limits()), RxBatch::new());
    let mut buf = vec![0; MAX_MESSAGE];
    let path = path(&link);
    append(&mut batch, &path, 16);
    link.send(Nanos(0), &mut batch);
    assert_eq!(sources(fabric.recv(&mut buf).unwrap()), [5]);
    // One was stamped before the news came.
    append(&mut batch, &path, 16);
    link.stamp(&mut batch);
    fabric.send(&DataReport::port(&port(32, PREFIX))).unwrap();
    link.recv(Nanos(0), &mut arrivals);
    append(&mut batch, &path, 16);
    link.send(Nanos(0), &mut batch);
    assert_eq!(sources(fabric.recv(&mut buf).unwrap()), [33, 33]);
}

#[test]
fn a_group_is_left_though_its_address_has_gone() {
    let (mut link, fabric) = link();
    let (mut arrivals, mut buf) = (RxBatch::new(), vec![0; MAX_MESSAGE]);
    let local = |prefix| {
        let halves = [u128::from(prefix) << 64, 7];
        LocalAddr::new(Gid((halves[0] | halves[1]).to_be_bytes()).to_ip(), 0)
    };
    let (before, after) = (local(PREFIX), local(PREFIX | 1));
    link.join(before, GROUP.to_ip(), MLID).unwrap();
    fabric.send(&DataReport::port(&port(4, PREFIX | 1))).unwrap();
    link.recv(Nanos(0), &mut arrivals);
    // What the engine does then.
    link.deactivate(before);
    link.join(after, GROUP.to_ip(), MLID).unwrap();
    link.leave(after, GROUP.to_ip(), MLID);
    link.leave(after, GROUP.to_ip(), MLID);
    let mut joins = 0;
    let mut seen = Vec::new();
    while let Ok(message) = fabric.recv(&mut buf) {
        let group = match DataRequest::parse(message) {
            Some(DataRequest::Join(group)) => (joins += 1, group).1,
            Some(DataRequest::Leave(group)) => (joins -= 1, group).1,
            other => panic!("{other:?}"),
        };
        assert_eq!(group, Membership { port: ONE, mlid: MLID, mgid: GROUP });
        seen.push(joins);
    }
    assert_eq!(seen, [1, 0, 1, 0]);
}

#[test]
fn what_a_full_connection_left_behind_is_sent_when_the_link_ends() {
    let (mut link, fabric) = link();
    let mut batch = TxBatch::new(&link.limits());
    let path = path(&link);
    let mut sent = 0;
    while !link.send(Nanos(0), &mut batch).blocked {
        append(&mut batch, &path, 4000);
        sent += 1;
    }
    assert!(!link.outbox.is_empty());
    let reader = thread::spawn(move || {
        let (mut buf, mut received) = (vec![0; MAX_MESSAGE], 0);
        while fabric.wait_readable(None).is_ok() {
            let Ok(message) = fabric.recv(&mut buf) else { break };
            received += sources(message).len();
        }
        received
    });
    link.flush();
    let left = batch.packets();
    drop(link);
    assert_eq!(reader.join().unwrap(), sent - left);

    // Nobody reads: the packets are given up, and counted.
    let (mut link, _fabric) = self::link();
    batch.clear();
    while !link.send(Nanos(0), &mut batch).blocked {
        append(&mut batch, &path, 4000);
    }
    let (lost, since) = (link.outbox.len() as u64, Instant::now());
    link.flush();
    assert!(since.elapsed() >= FLUSH_PATIENCE);
    assert_eq!((link.counters().tx_errors, link.outbox.is_empty()), (lost, true));
}

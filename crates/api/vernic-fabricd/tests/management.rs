//! Management over a fabric: ports that are opened, agents, datagrams, and what ends with them.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::thread;
use std::time::Duration;

use common::{Fabric, Manager, ONE, eventually, receive};
use vernic_attach::hello::Purpose;
use vernic_attach::{
    AgentId, AttachError, MadClient, MadPort, RefusalKind, Registration, UserMad, path,
};
use vernic_fabric::topology::Topology;
use vernic_wire::mad::{MAD_LEN, MadAddress, MadGrh, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{NodeInfo, PortInfo, SmAttribute, Smp};
use vernic_wire::{Lid, PortNum, Qkey, Qpn};

const GSI_QKEY: Qkey = Qkey(0x8001_0000);
/// A class of vendors, as `ibping` has it.
const VENDOR: MgmtClass = MgmtClass(0x32);
const OUI: [u8; 3] = [0x00, 0x14, 0x05];

fn tree() -> Fabric {
    Fabric::start(Topology::tree("lab", 2, 2, 4).unwrap())
}

fn kind_of<T: std::fmt::Debug>(result: Result<T, AttachError>) -> RefusalKind {
    match result {
        Err(AttachError::Refused(refusal)) => refusal.kind,
        other => panic!("{other:?}"),
    }
}

fn vendor(methods: u32) -> Registration {
    let methods = [methods, 0, 0, 0];
    Registration { class: VENDOR, class_version: 1, oui: OUI, methods, ..Registration::default() }
}

fn capabilities(fabric: &Fabric, host: &str) -> u32 {
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    client.adapter(host).unwrap().ports[0].capabilities
}

#[test]
fn hosts_and_their_adapters_are_listed() {
    let fabric = tree();
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    assert_eq!(client.hosts().unwrap(), ["h1", "h2", "h3", "h4"]);
    let adapter = client.adapter("h3").unwrap();
    assert_eq!((adapter.host.as_str(), adapter.description.as_str()), ("h3", "h3"));
    assert_eq!(kind_of(client.adapter("h5")), RefusalKind::NoSuchNode);
    let open = |host: &str, port| {
        let client = MadClient::over(fabric.connect(Purpose::Mad));
        kind_of(client.open(host, PortNum(port), true))
    };
    assert_eq!(open("h1", 2), RefusalKind::NoSuchPort);
    assert_eq!(open("h1", 0), RefusalKind::NoSuchPort);
    assert_eq!(open("h9", 1), RefusalKind::NoSuchNode);
    fabric.stop();
}

#[test]
fn a_directed_route_is_answered_by_the_node_at_its_end_or_by_silence() {
    let fabric = Fabric::start(Topology::single("lab", 3).unwrap());
    let mut manager = Manager::bring_up(&fabric, 3);
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    for (path, host) in [(&[][..], "h1"), (&[1, 2], "h2"), (&[1, 3], "h3")] {
        let answer = manager.ask(&Smp::by_route(path, SmAttribute::NODE_INFO, 0)).unwrap();
        let info = NodeInfo::parse(&answer.data).unwrap();
        assert_eq!(info.node_guid, client.adapter(host).unwrap().guid);
    }
    // Nobody is there: the datagram comes back when its time is over.
    assert_eq!(manager.ask(&Smp::by_route(&[1, 200], SmAttribute::NODE_INFO, 0)), None);
    fabric.stop();
}

#[test]
fn a_port_says_that_it_has_a_manager_while_its_file_is_open() {
    let fabric = tree();
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    let guid = client.adapter("h2").unwrap().guid;
    let path = path::issm_in(&fabric.folder, &fabric.name, guid, ONE).unwrap();
    assert_eq!(path::issm_in(&fabric.folder, &fabric.name, guid, ONE).unwrap(), path);
    let is_manager = || capabilities(&fabric, "h2") & PortInfo::CAPABILITY_SM != 0;
    assert!(!is_manager());
    // As OpenSM does.
    let open = || OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let (first, second) = (open().unwrap(), open().unwrap());
    eventually("the port has a manager", || is_manager().then_some(()));
    drop(first);
    thread::sleep(Duration::from_millis(20));
    assert!(is_manager(), "the second one is there");
    drop(second);
    eventually("the port has no manager", || (!is_manager()).then_some(()));
    assert_eq!(capabilities(&fabric, "h1") & PortInfo::CAPABILITY_SM, 0);
    let folder = path.parent().unwrap().to_owned();
    assert!(folder.is_dir());
    fabric.stop();
    assert!(!folder.exists());
}

#[test]
fn agents_of_two_hosts_talk_and_each_method_has_one_agent_of_a_port() {
    let fabric = Fabric::start(Topology::single("lab", 2).unwrap());
    let _manager = Manager::bring_up(&fabric, 2);
    let (mut asks, mut answers) = (fabric.open("h1"), fabric.open("h2"));
    let asker = asks.register(&vendor(0)).unwrap();
    let server = answers.register(&vendor(1 << Method::GET.0)).unwrap();
    let second = fabric.open("h2");
    assert_eq!(kind_of(second.register(&vendor(1 << Method::GET.0))), RefusalKind::Taken);
    second.register(&vendor(1 << Method::SET.0)).unwrap();
    assert_eq!(kind_of(second.unregister(server)), RefusalKind::Invalid, "not its own");

    let ask = |port: &MadPort, tid| {
        let mut mad = vec![0; MAD_LEN];
        let header = MadHeader {
            base_version: 1,
            mgmt_class: VENDOR,
            class_version: 1,
            method: Method::GET,
            transaction_id: tid,
            ..MadHeader::default()
        };
        header.emit(&mut mad);
        mad[37..40].copy_from_slice(&OUI);
        mad[40..45].copy_from_slice(b"hello");
        let (qpn, qkey, lid) = (Qpn::GSI, GSI_QKEY, Lid(2));
        let address = MadAddress { qpn, qkey, lid, ..MadAddress::default() };
        let (timeout_ms, retries) = (2000, 0);
        let mad = UserMad { agent: asker, status: 0, timeout_ms, retries, address, mad };
        port.send(&mad).unwrap();
    };
    ask(&asks, 9);
    let mut got = receive(&mut answers);
    assert_eq!((got.agent, got.status, &got.mad[40..45]), (server, 0, &b"hello"[..]));
    assert_eq!((got.address.lid, got.address.qpn), (Lid(1), Qpn::GSI));
    got.mad[3] = Method::GET_RESP.0;
    got.mad[40..45].copy_from_slice(b"world");
    (got.timeout_ms, got.retries) = (0, 0);
    answers.send(&got).unwrap();
    let answer = receive(&mut asks);
    assert_eq!((answer.agent, answer.status, &answer.mad[40..45]), (asker, 0, &b"world"[..]));

    // With a partition or a GID that the port has not, a datagram comes back at once.
    let nowhere = MadGrh { gid_index: 1, ..MadGrh::default() };
    for (pkey_index, grh) in [(1, None), (200, None), (0, Some(nowhere))] {
        let address = MadAddress { pkey_index, grh, ..got.address };
        answers.send(&UserMad { address, ..got.clone() }).unwrap();
        assert_eq!(receive(&mut answers).status, libc::EINVAL as u32);
    }

    // An agent of nobody: the datagram comes back at once.
    let mad = UserMad { agent: AgentId(77), mad: vec![0; MAD_LEN], ..UserMad::default() };
    asks.send(&mad).unwrap();
    assert_eq!(receive(&mut asks).status, libc_einval());

    // The server goes; its method is free again.
    drop(answers);
    eventually("the method is free", || second.register(&vendor(1 << Method::GET.0)).ok());
    fabric.stop();
}

fn libc_einval() -> u32 {
    22
}

#[test]
fn a_manager_is_told_in_the_capabilities_as_long_as_it_is_there() {
    let fabric = tree();
    let (port, other) = (fabric.open("h2"), fabric.open("h2"));
    let is_manager = || capabilities(&fabric, "h2") & PortInfo::CAPABILITY_SM != 0;
    assert!(!is_manager());
    port.set_issm(true).unwrap();
    port.set_issm(true).unwrap();
    other.set_issm(true).unwrap();
    assert!(is_manager());
    port.set_issm(false).unwrap();
    assert!(is_manager(), "the other one is there yet");
    drop(other);
    eventually("the capability is gone", || (!is_manager()).then_some(()));
    fabric.stop();
}

#[test]
fn subnet_management_needs_a_port_that_was_opened_for_it() {
    let fabric = tree();
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    let port = client.open("h1", ONE, false).unwrap();
    let smp = Registration {
        class: MgmtClass::SUBNET_LID_ROUTED,
        class_version: 1,
        ..Registration::default()
    };
    assert_eq!(kind_of(port.register(&smp)), RefusalKind::NotAllowed);
    assert_eq!(
        kind_of(port.register(&Registration { class: MgmtClass(0xEE), ..smp })),
        RefusalKind::Invalid
    );
    fabric.stop();
}

//! Questions of programs: paths and groups by subnet administration, and claims of services.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd as _;

use common::{Fabric, Manager, ONE, datagram, eventually, receive_batch, send};
use vernic_attach::hello::Purpose;
use vernic_attach::question::Question;
use vernic_attach::{
    AttachError, DataClient, GroupJoin, MAX_MESSAGE, MadClient, Notices, PathAsked, PathQuestion,
    Refusal, RefusalKind, Registration, ServiceClaim,
};
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, LinkChange, Request};
use vernic_fabricd::{ManagerOptions, Options};
use vernic_wire::cm::{
    CmMessage, CmaHeader, CommId, Drep, Dreq, GSI_QKEY, Rej, RejReason, Rep, Req, ServiceId,
    SidrReq, SidrStatus,
};
use vernic_wire::mad::{MAD_LEN, Method, MgmtClass};
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::smp::TrapNumber;
use vernic_wire::{Gid, Lid, Pkey, PortNum, Qkey, Qpn};

const GROUP: Gid = Gid([0xFF, 0x12, 0xA0, 0x1B, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

/// A fabric of one switch with its own subnet manager, and with all ports up.
fn managed(test: &str, hosts: usize) -> Fabric {
    let folder = std::env::temp_dir().join(format!("vernic-{test}-{}", std::process::id()));
    let manager = Some(ManagerOptions::new(Routing::default()));
    let options = Options { folder, manager, ..Options::new("lab") };
    let fabric = Fabric::start_with(Topology::single("lab", hosts).unwrap(), options);
    for host in 1..=hosts {
        active(&fabric, &format!("h{host}"));
    }
    fabric
}

fn active(fabric: &Fabric, host: &str) {
    eventually("an active port", || (port(fabric, host).state == 4).then_some(()));
}

fn port(fabric: &Fabric, host: &str) -> vernic_attach::PortReport {
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    client.adapter(host).unwrap().ports.remove(0)
}

fn gid(fabric: &Fabric, host: &str) -> Gid {
    let port = port(fabric, host);
    let halves = [port.gid_prefix.to_be_bytes(), port.guids[0].0.to_be_bytes()];
    Gid(halves.concat().try_into().unwrap())
}

fn path_asked(fabric: &Fabric, from: &str, dgid: Gid) -> PathAsked {
    let sgid = gid(fabric, from);
    PathAsked { sgid, dgid, pkey: Pkey::DEFAULT, service: None, traffic_class: None }
}

fn ask_path(fabric: &Fabric, from: &str, asked: &PathAsked) -> Result<PathRecord, Refusal> {
    let connection = fabric.connect(Purpose::Question);
    let mut question = PathQuestion::ask_over(connection, from, ONE, asked).unwrap();
    refused_or(eventually("an answer", || question.poll()))
}

fn refused_or<T: std::fmt::Debug>(answer: Result<T, AttachError>) -> Result<T, Refusal> {
    answer.map_err(|error| match error {
        AttachError::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    })
}

fn kind<T>(answer: Result<T, Refusal>) -> Result<T, RefusalKind> {
    answer.map_err(|refusal| refusal.kind)
}

/// Asks to be a full member of a group. With all components, the group is made.
fn join(fabric: &Fabric, host: &str, components: MemberComponents) -> GroupJoin {
    let record = McMemberRecord {
        mgid: GROUP,
        port_gid: gid(fabric, host),
        qkey: Qkey(0x0B1B),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let connection = fabric.connect(Purpose::Question);
    GroupJoin::ask_over(connection, host, ONE, &record, components).unwrap()
}

const KNOWN: MemberComponents =
    MemberComponents::MGID.union(MemberComponents::PORT_GID).union(MemberComponents::JOIN_STATE);
const MADE: MemberComponents = KNOWN
    .union(MemberComponents::QKEY)
    .union(MemberComponents::PKEY)
    .union(MemberComponents::TRAFFIC_CLASS)
    .union(MemberComponents::SERVICE_LEVEL)
    .union(MemberComponents::FLOW_LABEL);

fn joined(join: &mut GroupJoin) -> Result<McMemberRecord, Refusal> {
    refused_or(eventually("an answer to a join", || join.poll()))
}

/// Whether the group exists: only then it is joined without all values.
fn exists(fabric: &Fabric, host: &str) -> bool {
    let answer = joined(&mut join(fabric, host, KNOWN));
    if let Err(refusal) = &answer {
        assert_eq!(refusal.kind, RefusalKind::Unreachable, "{refusal}");
    }
    answer.is_ok()
}

#[test]
fn paths_are_what_subnet_administration_says() {
    let fabric = managed("paths", 3);
    let asked = path_asked(&fabric, "h1", gid(&fabric, "h2"));
    let lids = ["h1", "h2"].map(|host| port(&fabric, host).lid);
    let with = PathAsked { service: Some(ServiceId(0x0106_1234)), traffic_class: Some(0), ..asked };
    for asked in [asked, with] {
        let path = ask_path(&fabric, "h1", &asked).unwrap();
        assert_eq!((path.slid, path.dlid, path.pkey), (lids[0], lids[1], Pkey::DEFAULT));
        assert_eq!((path.sgid, path.dgid), (asked.sgid, asked.dgid));
    }
    let own = PathAsked { dgid: asked.sgid, ..asked };
    assert_eq!(ask_path(&fabric, "h1", &own).unwrap().dlid, lids[0]);
    let nobody = PathAsked { dgid: Gid([9; 16]), ..asked };
    let refusal = ask_path(&fabric, "h1", &nobody).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Unreachable);
    assert!(refusal.text.contains("refused"), "{refusal}");
    let foreign = PathAsked { sgid: asked.dgid, ..asked };
    assert_eq!(kind(ask_path(&fabric, "h1", &foreign)), Err(RefusalKind::Invalid));
    assert_eq!(kind(ask_path(&fabric, "h1", &asked)).map(|path| path.dlid), Ok(lids[1]));
    let strange = |host: &str, port| {
        let connection = fabric.connect(Purpose::Question);
        let mut question = PathQuestion::ask_over(connection, host, port, &asked).unwrap();
        kind(refused_or(eventually("a refusal", || question.poll())))
    };
    assert_eq!(strange("h9", ONE), Err(RefusalKind::NoSuchNode));
    assert_eq!(strange("h1", PortNum(2)), Err(RefusalKind::NoSuchPort));
    fabric.stop();
}

#[test]
fn many_ask_at_once_and_some_are_killed_meanwhile() {
    let fabric = managed("many", 8);
    let asked: Vec<_> = (0..400)
        .map(|at| {
            let (from, to) = (format!("h{}", at % 8 + 1), format!("h{}", at / 8 % 8 + 1));
            (from.clone(), path_asked(&fabric, &from, gid(&fabric, &to)), to)
        })
        .collect();
    let questions = asked.iter().map(|(from, asked, to)| {
        let connection = fabric.connect(Purpose::Question);
        (PathQuestion::ask_over(connection, from, ONE, asked).unwrap(), to)
    });
    let mut at = 0;
    let mut questions: Vec<_> = questions.collect();
    questions.retain(|_| {
        at += 1;
        at % 3 != 0
    });
    for (question, to) in &mut questions {
        let path = eventually("an answer", || question.poll()).unwrap();
        assert_eq!(path.dlid, port(&fabric, to).lid);
    }
    fabric.stop();
}

#[test]
fn without_a_link_or_a_manager_the_answer_says_so() {
    let fabric = Fabric::start(Topology::single("lab", 2).unwrap());
    let asked = path_asked(&fabric, "h2", gid(&fabric, "h1"));
    let refusal = ask_path(&fabric, "h2", &asked).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Down);
    assert!(refusal.text.contains("no subnet manager"), "{refusal}");
    assert_eq!(kind(joined(&mut join(&fabric, "h2", MADE))), Err(RefusalKind::Down));
    // One that sets ports up, and is a subnet administration without answers.
    let _manager = Manager::bring_up(&fabric, 2);
    let registration = Registration {
        class: MgmtClass::SUBNET_ADMIN,
        class_version: 2,
        methods: [!0; 4],
        ..Registration::default()
    };
    let port = fabric.open("h1");
    port.register(&registration).unwrap();
    active(&fabric, "h2");
    let mut silent = join(&fabric, "h2", MADE);
    assert_eq!(kind(ask_path(&fabric, "h2", &asked)), Err(RefusalKind::Unanswered));
    assert_eq!(kind(joined(&mut silent)), Err(RefusalKind::Unanswered));
    fabric.stop();
}

#[test]
fn a_port_is_a_member_until_the_last_program_has_left() {
    let fabric = managed("groups", 3);
    assert!(!exists(&fabric, "h1"));
    let mut first = join(&fabric, "h2", MADE);
    let record = joined(&mut first).unwrap();
    assert!(record.mlid.is_multicast() && record.mgid == GROUP);
    // A second program has the same group, whatever it says of it.
    let mut second = join(&fabric, "h2", KNOWN);
    assert_eq!(joined(&mut second).unwrap().mlid, record.mlid);
    drop(first);
    // What a port has asked for comes in order: the leave is done when this is answered.
    ask_path(&fabric, "h2", &path_asked(&fabric, "h2", gid(&fabric, "h1"))).unwrap();
    assert!(exists(&fabric, "h1") && second.poll().is_none());
    drop(second);
    eventually("the group has gone", || (!exists(&fabric, "h1")).then_some(()));
    fabric.stop();
}

#[test]
fn a_port_that_was_down_joins_again() {
    let fabric = managed("again", 3);
    let mut member = join(&fabric, "h2", MADE);
    joined(&mut member).unwrap();
    let link = |change| {
        let request = Request::Link { node: "sw1".to_owned(), port: 2, change };
        assert_eq!(fabric.ask(&request), Answer::Done);
    };
    link(LinkChange::Down);
    eventually("the group has gone", || (!exists(&fabric, "h1")).then_some(()));
    link(LinkChange::Up);
    active(&fabric, "h2");
    eventually("the group is there again", || exists(&fabric, "h1").then_some(()));
    assert!(member.poll().is_none_or(|news| news.is_ok()), "the membership is not lost");
    fabric.stop();
}

#[test]
fn joins_that_make_no_sense_are_refused() {
    let fabric = managed("senseless", 2);
    let good = McMemberRecord {
        mgid: GROUP,
        port_gid: gid(&fabric, "h1"),
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let bad = [
        McMemberRecord { mgid: Gid::ZERO, ..good },
        McMemberRecord { port_gid: gid(&fabric, "h2"), ..good },
        McMemberRecord { join_state: JoinState::empty(), ..good },
        McMemberRecord { join_state: JoinState::FULL_MEMBER | JoinState::NON_MEMBER, ..good },
        McMemberRecord { join_state: JoinState::from_bits_retain(0x80), ..good },
    ];
    for record in bad {
        let connection = fabric.connect(Purpose::Question);
        let mut join = GroupJoin::ask_over(connection, "h1", ONE, &record, MADE).unwrap();
        assert_eq!(kind(joined(&mut join)), Err(RefusalKind::Invalid), "{record:?}");
    }
    fabric.stop();
}

fn claim(
    fabric: &Fabric,
    client: &DataClient,
    service: u64,
    address: Option<IpAddr>,
) -> Result<ServiceClaim, Refusal> {
    let (connection, slot) = (fabric.connect(Purpose::Question), client.slot());
    let claim = ServiceClaim::claim_over(connection, "h2", slot, ServiceId(service), address);
    refused_or(claim)
}

/// A request for a service that its sender calls `id`, to an address if there is one.
fn request(lids: [Lid; 2], id: CommId, service: u64, to: Option<IpAddr>, is_sidr: bool) -> Vec<u8> {
    let mut data = [0; CmaHeader::LEN];
    if let Some(to) = to {
        let from = if to.is_ipv4() { IpAddr::from([10, 0, 0, 9]) } else { [9_u16; 8].into() };
        CmaHeader::new(99, from, to).emit(&mut data);
    }
    let service_id = ServiceId(service);
    let message = if is_sidr {
        let private_data = data[..].try_into().unwrap();
        CmMessage::SidrReq(SidrReq {
            request_id: id,
            service_id,
            private_data,
            ..SidrReq::default()
        })
    } else {
        let private_data = data[..].try_into().unwrap();
        CmMessage::Req(Req {
            local_comm_id: id,
            service_id,
            path_mtu: 3,
            private_data,
            ..Req::default()
        })
    };
    packet_of(lids, message)
}

fn packet_of(lids: [Lid; 2], message: CmMessage) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    message.emit(7, &mut mad);
    datagram((lids[0].0, lids[1].0), (1, GSI_QKEY), &mad)
}

#[test]
fn requests_come_to_the_program_with_the_nearest_claim() {
    let fabric = managed("claims", 2);
    let (from, _) = fabric.attach("h1");
    let (second, _) = fabric.attach("h2");
    let (third, _) = fabric.attach("h2");
    let lids = ["h1", "h2"].map(|host| port(&fabric, host).lid);
    let (here, there) = (IpAddr::from([10, 0, 0, 2]), IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 2]));
    let mapped: IpAddr = Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().into();
    let service = 0x0106_1234;
    let mut id = id_of(&from, 0);
    let mut ask = |service, to, is_sidr| {
        id.0 += 1;
        send(&from, &[request(lids, id, service, to, is_sidr)]);
    };
    let mut arrives = |client: &DataClient, service, to, is_sidr| {
        ask(service, to, is_sidr);
        let came = receive_batch(client);
        let (_, message) = CmMessage::parse(&came[0]).unwrap();
        assert_eq!(came.len(), 1);
        assert_eq!(matches!(message, CmMessage::SidrReq(_)), is_sidr);
    };
    let for_here = claim(&fabric, &second, service, Some(here)).unwrap();
    let for_there = claim(&fabric, &third, service, Some(there)).unwrap();
    for is_sidr in [false, true] {
        arrives(&second, service, Some(here), is_sidr);
        arrives(&second, service, Some(mapped), is_sidr);
        arrives(&third, service, Some(there), is_sidr);
    }
    for (client, address) in [(&third, Some(here)), (&second, Some(mapped)), (&third, None)] {
        let refusal = claim(&fabric, client, service, address).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Taken, "{address:?}");
    }
    drop(for_there);
    let for_all =
        eventually("the claim is given up", || claim(&fabric, &second, service, None).ok());
    arrives(&second, service, Some(there), false);
    arrives(&second, service, None, false);
    // A program that ends has no claims, though their connections are still there.
    drop(second);
    eventually("the program is gone", || (fabric.programs("h2") == 1).then_some(()));
    let _again = claim(&fabric, &third, service, None).unwrap();
    drop((for_here, for_all));
    arrives(&third, service, Some(here), false);
    let gone =
        ServiceClaim::claim_over(fabric.connect(Purpose::Question), "h2", 999, ServiceId(1), None);
    assert_eq!(kind(refused_or(gone)).unwrap_err(), RefusalKind::Invalid);
    fabric.stop();
}

#[test]
fn all_programs_of_a_port_hear_notices() {
    let fabric = managed("notices", 2);
    let hear = || Notices::ask_over(fabric.connect(Purpose::Question), "h1", ONE).unwrap();
    let (mut first, mut second) = (hear(), hear());
    let notice_of = |notices: &mut Notices, number| {
        eventually("a notice", || {
            let notice = refused_or(notices.poll()?).unwrap();
            let gid: [u8; 16] = notice.details[6..22].try_into().unwrap();
            (notice.number == TrapNumber(number) && Gid(gid) == GROUP).then_some(())
        });
    };
    // Subscriptions are under way: a group is made until each program has heard of one.
    let made = |notices: &mut [&mut Notices]| {
        eventually("subscriptions", || {
            let mut member = join(&fabric, "h2", MADE);
            joined(&mut member).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            notices.iter_mut().all(|notices| notices.poll().is_some()).then_some(())
        });
    };
    made(&mut [&mut first, &mut second]);
    eventually("the group has gone", || (!exists(&fabric, "h2")).then_some(()));
    let mut member = join(&fabric, "h2", MADE);
    joined(&mut member).unwrap();
    for notices in [&mut first, &mut second] {
        notice_of(notices, 66);
    }
    // One that ends takes nothing from the others.
    drop(first);
    drop(member);
    notice_of(&mut second, 67);
    // The last one gives up the reports, which then may be a program's.
    let reports = || {
        let mads = MadClient::over(fabric.connect(Purpose::Mad)).open("h1", ONE, false).unwrap();
        let mut methods = [0; 4];
        methods[0] = 1 << Method::REPORT.0;
        let class = MgmtClass::SUBNET_ADMIN;
        let wanted = Registration { class, class_version: 2, methods, ..Registration::default() };
        mads.register(&wanted).map(|_| mads)
    };
    assert!(reports().is_err());
    drop(second);
    let taken = eventually("reports are free", || reports().ok());
    let refused = eventually("an answer", || hear().poll());
    assert_eq!(kind(refused_or(refused)).unwrap_err(), RefusalKind::Taken);
    drop(taken);
    fabric.stop();
}

/// A communication id of a program.
fn id_of(program: &DataClient, low: u32) -> CommId {
    CommId((u32::from(program.slot()) << 22) | low)
}

/// The next message of connection management that comes to a program.
fn next_message(program: &DataClient) -> CmMessage {
    let came = receive_batch(program);
    assert_eq!(came.len(), 1);
    CmMessage::parse(&came[0]).unwrap().1
}

#[test]
fn a_host_rejects_what_is_for_no_program() {
    let fabric = managed("nobody", 2);
    let (from, _) = fabric.attach("h1");
    let lids = ["h1", "h2"].map(|host| port(&fabric, host).lid);
    let (service, here) = (0x0106_1234, IpAddr::from([10, 0, 0, 2]));
    let rejected = |id, to, service, reason| {
        send(&from, &[request(lids, id, service, to, false)]);
        let CmMessage::Rej(rej) = next_message(&from) else { panic!("a REJ") };
        assert_eq!((rej.remote_comm_id, rej.reason), (id, reason));
        let request_id = CommId(id.0 | 1 << 20);
        send(&from, &[request(lids, request_id, service, to, true)]);
        let CmMessage::SidrRep(rep) = next_message(&from) else { panic!("a SIDR_REP") };
        assert_eq!((rep.request_id, rep.status), (request_id, SidrStatus::UNSUPPORTED_SERVICE));
    };
    let no_service = RejReason::INVALID_SERVICE_ID;
    rejected(id_of(&from, 1), Some(here), service, no_service);
    let (program, _) = fabric.attach("h2");
    let _claimed = claim(&fabric, &program, service, Some(here)).unwrap();
    // Without an address, to another one, for another service.
    rejected(id_of(&from, 2), None, service, no_service);
    rejected(id_of(&from, 3), Some([10, 0, 0, 3].into()), service, no_service);
    rejected(id_of(&from, 4), Some(here), service + 1, no_service);
    for slot_is_free in [false, true] {
        let theirs = if slot_is_free { CommId(999 << 22) } else { CommId(5) };
        let rep = Rep { local_comm_id: id_of(&from, 5), remote_comm_id: theirs, ..Rep::default() };
        send(&from, &[packet_of(lids, rep.into())]);
        let CmMessage::Rej(rej) = next_message(&from) else { panic!("a REJ") };
        assert_eq!(rej.reason, RejReason::INVALID_COMM_ID);
        let ids = (id_of(&from, 5), theirs);
        let dreq = Dreq { local_comm_id: ids.0, remote_comm_id: ids.1, ..Dreq::default() };
        send(&from, &[packet_of(lids, dreq.into())]);
        let CmMessage::Drep(drep) = next_message(&from) else { panic!("a DREP") };
        assert_eq!((drep.remote_comm_id, drep.local_comm_id), ids);
    }
    fabric.stop();
}

#[test]
fn peers_of_a_program_that_is_gone_hear_that_their_connections_are_over() {
    let fabric = managed("killed", 2);
    let (active, _) = fabric.attach("h1");
    let (passive, _) = fabric.attach("h2");
    let lids = ["h1", "h2"].map(|host| port(&fabric, host).lid);
    let back = [lids[1], lids[0]];
    let service = 0x0106_1234;
    let _claimed = claim(&fabric, &passive, service, None).unwrap();
    let req = |low| Req {
        local_comm_id: id_of(&active, low),
        service_id: ServiceId(service),
        local_qpn: Qpn::new(0x111),
        ..Req::default()
    };
    let rep = |low| Rep {
        local_comm_id: id_of(&passive, low),
        remote_comm_id: id_of(&active, low),
        local_qpn: Qpn::new(0x222),
        ..Rep::default()
    };
    // The first connection is up; the second one is ended in order; the third one is not answered.
    for low in 1..=3 {
        send(&active, &[packet_of(lids, req(low).into())]);
        assert_eq!(next_message(&passive), req(low).into());
    }
    for low in 1..=2 {
        send(&passive, &[packet_of(back, rep(low).into())]);
        assert_eq!(next_message(&active), rep(low).into());
    }
    let ids = |low| (id_of(&active, low), id_of(&passive, low));
    let drep = Drep { local_comm_id: ids(2).0, remote_comm_id: ids(2).1, ..Drep::default() };
    send(&active, &[packet_of(lids, drep.into())]);
    assert_eq!(next_message(&passive), drep.into());
    let (first, third) = (ids(1), ids(3));
    drop(active);
    let mut came = Vec::new();
    while came.len() < 2 {
        let batch = receive_batch(&passive);
        came.extend(batch.iter().map(|mad| CmMessage::parse(mad).unwrap().1));
    }
    let dreq = came.iter().find_map(|message| match message {
        CmMessage::Dreq(dreq) => Some((dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn)),
        _ => None,
    });
    assert_eq!(dreq, Some((first.0, first.1, Qpn::new(0x222))), "{came:?}");
    let rej = came.iter().find_map(|message| match message {
        CmMessage::Rej(rej) => Some((rej.local_comm_id, rej.reason)),
        _ => None,
    });
    assert_eq!(rej, Some((third.0, RejReason::TIMEOUT)), "{came:?}");
    assert_eq!(came.len(), 2, "{came:?}");
    // The host repeats the DREQ until it is answered, and answers copies of what it has answered.
    let drep = Drep { local_comm_id: first.1, remote_comm_id: first.0, ..Drep::default() };
    let repeated = next_message(&passive);
    assert!(matches!(repeated, CmMessage::Dreq(_)), "{repeated:?}");
    send(&passive, &[packet_of(back, drep.into())]);
    fabric.stop();
}

#[test]
fn the_passive_side_is_told_for_as_well() {
    let fabric = managed("killed-passive", 2);
    let (active, _) = fabric.attach("h1");
    let (passive, _) = fabric.attach("h2");
    let lids = ["h1", "h2"].map(|host| port(&fabric, host).lid);
    let service = 0x0106_1234;
    let _claimed = claim(&fabric, &passive, service, None).unwrap();
    let (ours, theirs) = (id_of(&active, 1), id_of(&passive, 1));
    let req = Req {
        local_comm_id: ours,
        service_id: ServiceId(service),
        local_qpn: Qpn::new(0x111),
        ..Req::default()
    };
    send(&active, &[packet_of(lids, req.into())]);
    assert_eq!(next_message(&passive), req.into());
    let rep = Rep { local_comm_id: theirs, remote_comm_id: ours, ..Rep::default() };
    send(&passive, &[packet_of([lids[1], lids[0]], rep.into())]);
    assert_eq!(next_message(&active), rep.into());
    drop(passive);
    let CmMessage::Dreq(dreq) = next_message(&active) else { panic!("a DREQ") };
    let said = (dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn);
    assert_eq!(said, (theirs, ours, Qpn::new(0x111)));
    fabric.stop();
}

#[test]
fn what_follows_a_request_comes_to_its_program() {
    let fabric = managed("follows", 2);
    let (from, _) = fabric.attach("h1");
    let (first, _) = fabric.attach("h2");
    let (second, _) = fabric.attach("h2");
    let lids = ["h1", "h2"].map(|host| port(&fabric, host).lid);
    let service = ServiceId(0x0106_1234);
    let arrives = |client: &DataClient, message: CmMessage| {
        send(&from, &[packet_of(lids, message)]);
        let came = receive_batch(client);
        assert_eq!(came.len(), 1);
        assert_eq!(CmMessage::parse(&came[0]).unwrap().1, message);
    };
    let req = |id| Req { service_id: service, local_comm_id: CommId(id), ..Req::default() };
    let sidr = SidrReq { service_id: service, request_id: CommId(1), ..SidrReq::default() };
    let withdrawn = |id| Rej { local_comm_id: CommId(id), ..Rej::default() }.into();
    let early = req(9);
    send(&from, &[packet_of(lids, early.into())]);
    let claimed = claim(&fabric, &second, service.0, None).unwrap();
    assert_eq!(CmMessage::parse(&receive_batch(&second)[0]).unwrap().1, early.into());
    arrives(&second, req(1).into());
    arrives(&second, sidr.into());
    drop(claimed);
    // Another program has the service now: new requests come to it, copies do not.
    let _other =
        eventually("the claim is given up", || claim(&fabric, &first, service.0, None).ok());
    for copy in [early.into(), req(1).into(), sidr.into()] {
        arrives(&second, copy);
    }
    arrives(&first, req(2).into());
    let of_same_id = Req { local_qpn: Qpn::new(77), ..req(9) };
    arrives(&first, of_same_id.into());
    arrives(&second, withdrawn(1));
    arrives(&first, withdrawn(9));
    let about = |id| {
        let (rep, dreq) = (Rep { remote_comm_id: id, ..Rep::default() }, Dreq::default());
        [rep.into(), Dreq { remote_comm_id: id, ..dreq }.into()]
    };
    for message in about(id_of(&second, 5)) {
        arrives(&second, message);
    }
    fabric.stop();
}

#[test]
fn a_connection_has_one_question_and_understands_nothing_else() {
    let fabric = managed("hostile", 2);
    let (good, _) = fabric.attach("h2");
    let claimed = claim(&fabric, &good, 7, None).unwrap();
    let path = path_asked(&fabric, "h1", gid(&fabric, "h2"));
    let question = Question::Path { host: "h1", port: ONE, query: path };
    let twice = fabric.connect(Purpose::Question);
    for _ in 0..2 {
        let _ = twice.send(&question.emit());
    }
    let mut buf = vec![0; MAX_MESSAGE];
    let ended = |connection: &vernic_attach::Connection, buf: &mut [u8]| {
        eventually("the connection ends", || match connection.recv(buf) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) => Some(()),
            Ok(_) => None,
        });
    };
    ended(&twice, &mut buf);
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    let asked = [
        question.emit(),
        Question::Service { host: "h2", slot: good.slot(), service: ServiceId(7), address: None }
            .emit(),
        Question::Group {
            host: "h1",
            port: ONE,
            record: McMemberRecord { mgid: GROUP, port_gid: path.sgid, ..Default::default() },
            components: MADE,
        }
        .emit(),
    ];
    for _ in 0..600 {
        let connection = fabric.connect(Purpose::Question);
        let mut message = asked[random() % 3].clone();
        for _ in 0..random() % 3 {
            let at = random() % message.len();
            message[at] = random() as u8;
        }
        message.truncate(1 + random() % (2 * message.len()));
        let _ = connection.send(&message);
        // Half of them are gone before their answer.
        if random() % 2 == 0 {
            ended_or_answered(&connection);
        }
    }
    assert!(ask_path(&fabric, "h1", &path).is_ok());
    assert_eq!(kind(claim(&fabric, &good, 7, None)).unwrap_err(), RefusalKind::Taken);
    drop(claimed);
    fabric.stop();
}

fn ended_or_answered(connection: &vernic_attach::Connection) {
    use std::os::fd::AsFd as _;
    let fd = connection.as_fd().as_raw_fd();
    // A claim or a join that makes sense after all is told so; nothing here waits for long.
    vernic_sys::poll(&mut [vernic_sys::PollFd::readable(fd)], Some(common::PATIENCE)).unwrap();
}

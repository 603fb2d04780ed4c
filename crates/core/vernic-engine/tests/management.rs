//! Management agents on RoCE devices: two devices of this process on the loopback netdev.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use vernic_engine::management::{
    AgentId, Delivery, MadAddress, MadAgents, MadError, MadGrh, Outcome, Registration,
};
use vernic_engine::*;
use vernic_wire::cm::GSI_QKEY;
use vernic_wire::mad::{MadHeader, Method, MgmtClass};
use vernic_wire::{Rmpp, RmppFlags, RmppType};

/// A table of subnet administration: a request of one datagram, an answer of many.
const TABLE: Method = Method(0x12);
const TABLE_RESP: Method = Method(0x92);
/// Bytes of the headers of subnet administration.
const SA_HEADER: usize = 56;

struct Side {
    context: Arc<Context>,
    agents: MadAgents,
}

impl Side {
    fn new() -> Self {
        let context = Context::open(Some("lo"), test_config()).unwrap();
        let agents = context.management().unwrap();
        Self { context, agents }
    }

    /// The next datagram, which must come.
    fn next(&self) -> Delivery {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            self.agents.about_to_wait();
            if let Some(delivery) = self.agents.receive().unwrap() {
                return delivery;
            }
            assert!(Instant::now() < until, "no datagram came");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Side {
    /// Queue pair 1 of this host, by its IPv4 address.
    fn home(&self) -> MadAddress {
        let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
        let gid_index = self.context.gid_row(gid).unwrap().index;
        let grh = Some(MadGrh { gid, gid_index, ..MadGrh::default() });
        MadAddress { qpn: Qpn::GSI, qkey: GSI_QKEY, grh, ..MadAddress::default() }
    }
}

fn administration(methods: u128) -> Registration {
    let (class, class_version) = (MgmtClass::SUBNET_ADMIN, 2);
    Registration { qpn: Qpn::GSI, class, class_version, methods, oui: 0, rmpp: true }
}

fn datagram(method: Method, transaction_id: u64, len: usize) -> Vec<u8> {
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        mgmt_class: MgmtClass::SUBNET_ADMIN,
        class_version: 2,
        method,
        transaction_id,
        ..MadHeader::default()
    };
    let mut mad = vec![0; len];
    header.emit(&mut mad);
    mad
}

#[test]
fn a_table_of_many_segments_comes_back_whole() {
    let (server, client) = (Side::new(), Side::new());
    let serves = server.agents.register(&administration(1 << TABLE.0)).unwrap();
    let asks = client.agents.register(&administration(0)).unwrap();
    assert_ne!(serves, asks, "ids tell processes apart");
    client.agents.send(asks, client.home(), &datagram(TABLE, 7, 256), 2000, 3).unwrap();
    let request = server.next();
    assert_eq!((request.agent, request.outcome), (serves, Outcome::Received));
    let source = request.address.grh.unwrap();
    assert_eq!((source.gid, request.address.qpn), (client.home().grh.unwrap().gid, Qpn::GSI));

    let asked = MadHeader::parse(&request.mad).unwrap().transaction_id;
    let mut answer = datagram(TABLE_RESP, asked, SA_HEADER + 20_000);
    let rmpp = Rmpp {
        version: Rmpp::VERSION,
        kind: RmppType::DATA,
        flags: RmppFlags::ACTIVE,
        ..Rmpp::default()
    };
    rmpp.emit(&mut answer[MadHeader::LEN..]);
    let table = pattern(20_000, 5);
    answer[SA_HEADER..].copy_from_slice(&table);
    let back = MadAddress { qkey: GSI_QKEY, ..request.address };
    server.agents.send(serves, back, &answer, 2000, 3).unwrap();
    let received = client.next();
    assert_eq!((received.agent, received.outcome), (asks, Outcome::Received));
    assert_eq!(MadHeader::parse(&received.mad).unwrap().transaction_id as u32, 7);
    assert_eq!(received.mad[SA_HEADER..], table);
    assert!(!client.agents.has_delivery() && !server.agents.has_delivery());
}

#[test]
fn a_class_belongs_to_one_process_until_its_agent_goes() {
    let (first, second) = (Side::new(), Side::new());
    // Of another class than the other tests' agents, which run beside this one.
    let class = MgmtClass(0x0A);
    let wanted = Registration { class, rmpp: false, ..administration(1 << Method::GET.0) };
    let agent = first.agents.register(&wanted).unwrap();
    let more = Registration { methods: 1 << Method::SET.0, ..wanted };
    let another = first.agents.register(&more).unwrap();
    assert!(matches!(second.agents.register(&wanted), Err(MadError::Taken(_))));
    assert!(matches!(first.agents.register(&wanted), Err(MadError::Register(_))));
    assert!(first.agents.unregister(agent) && !first.agents.unregister(agent));
    assert!(matches!(second.agents.register(&more), Err(MadError::Taken(_))));
    assert!(first.agents.unregister(another));
    second.agents.register(&wanted).unwrap();
    let smi = Registration { qpn: Qpn::SMI, class: MgmtClass::SUBNET_LID_ROUTED, ..wanted };
    assert!(matches!(first.agents.register(&smi), Err(MadError::NoSubnetManagement)));
}

#[test]
fn what_nobody_answers_comes_back_and_what_cannot_be_sent_does_not_leave() {
    let side = Side::new();
    let agent = side.agents.register(&administration(0)).unwrap();
    let gid = Gid::from_ip("127.77.0.1".parse().unwrap());
    let home = side.home();
    let grh = home.grh.map(|grh| MadGrh { gid, ..grh });
    // Method 3 is no Get and no Set, so nobody refuses it.
    let lost = MadAddress { grh, ..home };
    side.agents.send(agent, lost, &datagram(Method(3), 1, 256), 20, 1).unwrap();
    let back = side.next();
    assert_eq!((back.outcome, back.address, back.mad.len()), (Outcome::TimedOut, lost, 24));
    let mad = datagram(Method::GET, 2, 256);
    let send = |agent, to| side.agents.send(agent, to, &mad, 20, 0);
    let lid = MadAddress { lid: Lid(5), grh: None, ..home };
    assert!(matches!(send(agent, lid), Err(MadError::NoGrh(Lid(5)))));
    let row = Some(MadGrh { gid_index: 200, ..grh.unwrap() });
    assert!(matches!(send(agent, MadAddress { grh: row, ..home }), Err(MadError::NoGid(200))));
    assert!(matches!(send(AgentId(1), home), Err(MadError::Send(_))));
    side.context.close();
    let iwarp = Context::open_iwarp(Some("lo"), test_config()).unwrap();
    assert!(matches!(iwarp.management(), Err(MadError::NoAgents(_))));
}

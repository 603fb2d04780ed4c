//! A client, and a toy of an administrator that its test speaks for.

use vernic_wire::cm::ServiceId;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::sa::{
    DATA_LEN, InformInfo, JoinState, McMemberRecord, MemberComponents, PathRecord, SaAttribute,
    SaHeader, SaMad, SaStatus, ServiceRecord,
};
use vernic_wire::smp::{MadStatus, Notice, NoticeKind, TrapNumber};
use vernic_wire::{Gid, Lid, Pkey, Qpn, Rmpp, ServiceLevel};

use super::*;
use crate::mad::{Agents, AgentsConfig, MadAddress, Outcome, Registration};
use crate::time::Time;

const SECOND: u64 = 1_000_000_000;
const PORT: SaPort = SaPort { is_active: true, sm_lid: Lid(7), sm_sl: ServiceLevel::new(3) };
const NOW: Time = Time(SECOND);
const A: SaUser = SaUser(1);
const B: SaUser = SaUser(2);
const FULL: JoinState = JoinState::FULL_MEMBER;
const SENDS: JoinState = JoinState::SEND_ONLY_NON_MEMBER;

struct Toy {
    client: SaClient,
    now: Time,
    asked: Vec<SaMad>,
}

impl Toy {
    fn new() -> Self {
        Self::with(SaConfig::default())
    }
    fn with(config: SaConfig) -> Self {
        let mut client = SaClient::new(config);
        client.handle_port(PORT);
        Self { client, now: NOW, asked: Vec::new() }
    }
    /// What is asked, by method and attribute; later answered in its order.
    fn asks(&mut self) -> Vec<(Method, SaAttribute)> {
        let from = self.asked.len();
        while let Some(send) = self.client.poll_send() {
            assert_eq!((send.address.lid, send.address.service_level), (PORT.sm_lid, PORT.sm_sl));
            assert_eq!(send.address.qpn, Qpn::GSI);
            self.asked.push(SaMad::parse(&send.mad).unwrap());
        }
        let new = self.asked[from..].iter();
        new.map(|mad| (mad.mad.method, SaAttribute(mad.mad.attribute_id))).collect()
    }
    /// Answers the oldest request with that status and with `change`d data.
    fn answer_with(&mut self, status: u16, change: impl FnOnce(&mut [u8; DATA_LEN])) {
        self.asks();
        let mut mad = self.asked.remove(0);
        mad.mad.method.0 |= 0x80;
        mad.mad.status = status;
        // As an agent does.
        mad.mad.transaction_id |= 9 << 32;
        change(&mut mad.data);
        let mut bytes = [0; MAD_LEN];
        mad.emit(&mut bytes);
        self.client.handle_outcome(self.now, Outcome::Received, &bytes);
    }
    fn accept(&mut self) {
        self.answer_with(0, |_| {});
    }
    fn accept_group(&mut self, mlid: u16) {
        self.answer_with(0, |data| data[36..38].copy_from_slice(&mlid.to_be_bytes()));
    }
    fn refuse(&mut self, status: SaStatus) {
        self.answer_with(status.to_mad_status(), |_| {});
    }
    fn keep_silent(&mut self) {
        self.asks();
        let mad = self.asked.remove(0);
        let mut bytes = [0; MadHeader::LEN];
        mad.mad.emit(&mut bytes);
        self.client.handle_outcome(self.now, Outcome::TimedOut, &bytes);
    }
    fn events(&mut self) -> Vec<SaEvent> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }
    fn join(&mut self, user: SaUser, how: JoinState) {
        let components = MemberComponents::MGID | MemberComponents::JOIN_STATE;
        self.client.join(user, group(how), components).unwrap();
    }
}

fn gid(last: u8) -> Gid {
    Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}
fn group(how: JoinState) -> McMemberRecord {
    let mgid = Gid([0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    McMemberRecord { mgid, port_gid: gid(1), join_state: how, ..McMemberRecord::default() }
}
fn joined(user: SaUser, mlid: u16, how: JoinState) -> SaEvent {
    SaEvent::Joined { user, record: McMemberRecord { mlid: Lid(mlid), ..group(how) } }
}
fn not_joined(user: SaUser, error: SaError) -> SaEvent {
    SaEvent::NotJoined { user, mgid: group(FULL).mgid, how: FULL, error }
}
fn query() -> PathQuery {
    PathQuery::new(gid(1), gid(2), Pkey::DEFAULT)
}
fn path_answers(events: &[SaEvent]) -> Vec<(u64, Result<u16, SaError>)> {
    let all = events.iter().map(|event| match event {
        SaEvent::Path { ticket, answer } => (ticket.0, answer.map(|path| path.dlid.0)),
        other => panic!("{other:?}"),
    });
    all.collect()
}

const GET_PATH: (Method, SaAttribute) = (Method::GET, SaAttribute::PATH_RECORD);
const SET_MEMBER: (Method, SaAttribute) = (Method::SET, SaAttribute::MC_MEMBER_RECORD);
const DELETE_MEMBER: (Method, SaAttribute) = (Method::DELETE, SaAttribute::MC_MEMBER_RECORD);

#[test]
fn one_question_answers_all_that_ask_the_same_and_later_ones_for_a_while() {
    let mut toy = Toy::new();
    for ticket in 1..=2 {
        toy.client.query_path(toy.now, Ticket(ticket), &query(), true).unwrap();
    }
    assert_eq!(toy.asks(), [GET_PATH]);
    let asked = PathRecord::parse(&toy.asked[0].data).unwrap();
    assert_eq!((asked.sgid, asked.dgid, asked.pkey), (gid(1), gid(2), Pkey::DEFAULT));
    assert_eq!((asked.reversible, asked.path_count), (true, 1));
    assert_eq!(toy.asked[0].sa.component_mask, 0x380C);
    toy.answer_with(0, |data| data[41] = 5);
    assert_eq!(path_answers(&toy.events()), [(1, Ok(5)), (2, Ok(5))]);
    toy.client.query_path(toy.now, Ticket(3), &query(), true).unwrap();
    assert_eq!((toy.asks(), path_answers(&toy.events())), (vec![], vec![(3, Ok(5))]));
    // One that must be new; one for another service level; one when the answer is old; one that
    // was forgotten.
    toy.client.query_path(toy.now, Ticket(4), &query(), false).unwrap();
    let level = PathQuery { service_level: Some(ServiceLevel::new(1)), ..query() };
    toy.client.query_path(toy.now, Ticket(5), &level, true).unwrap();
    assert_eq!(toy.asks(), [GET_PATH, GET_PATH]);
    toy.accept();
    toy.accept();
    toy.now = toy.now + 600 * SECOND;
    toy.client.query_path(toy.now, Ticket(6), &query(), true).unwrap();
    toy.accept();
    toy.client.forget_paths(gid(2));
    toy.client.query_path(toy.now, Ticket(7), &query(), true).unwrap();
    assert_eq!(toy.asks(), [GET_PATH]);
}

#[test]
fn errors_say_what_is_wrong_and_are_not_kept() {
    let mut toy = Toy::new();
    for ticket in 1..=5 {
        toy.client.query_path(toy.now, Ticket(ticket), &query(), true).unwrap();
        match ticket {
            1 => toy.refuse(SaStatus::NO_RECORDS),
            2 => toy.answer_with(MadStatus::BAD_VERSION.0, |_| {}),
            3 => toy.keep_silent(),
            4 => toy.answer_with(MadStatus::ATTRIBUTE_NOT_SUPPORTED.0, |_| {}),
            _ => {
                toy.asks();
                toy.asked[0].mad.attribute_id = 1;
                toy.accept();
            }
        }
    }
    let expected = [
        (1, Err(SaError::Refused(SaStatus::NO_RECORDS))),
        (2, Err(SaError::NotUnderstood(MadStatus::BAD_VERSION))),
        (3, Err(SaError::Unanswered(PORT.sm_lid))),
        (4, Err(SaError::NoAdministration(PORT.sm_lid))),
        (5, Err(SaError::Malformed)),
    ];
    assert_eq!(path_answers(&toy.events()), expected);
    toy.client.handle_port(SaPort { sm_lid: Lid(0), ..PORT });
    let refused = toy.client.query_path(toy.now, Ticket(6), &query(), true);
    assert_eq!(refused, Err(SaError::NoManager));
}

#[test]
fn a_port_is_a_member_as_long_as_one_of_its_users_is() {
    let mut toy = Toy::new();
    toy.join(A, FULL);
    toy.join(B, FULL);
    assert_eq!(toy.asks(), [SET_MEMBER]);
    toy.accept_group(0xC001);
    assert_eq!(toy.events(), [joined(A, 0xC001, FULL), joined(B, 0xC001, FULL)]);
    // It hears so again.
    toy.join(A, FULL);
    assert_eq!((toy.asks(), toy.events()), (vec![], vec![joined(A, 0xC001, FULL)]));
    toy.client.leave(A, group(FULL).mgid, FULL);
    toy.client.leave(A, group(FULL).mgid, FULL);
    assert_eq!(toy.asks(), []);
    toy.client.end_user(B);
    assert_eq!(toy.asks(), [DELETE_MEMBER]);
    let left = McMemberRecord::parse(&toy.asked[0].data).unwrap();
    assert_eq!((left.mgid, left.port_gid, left.join_state), (group(FULL).mgid, gid(1), FULL));
    toy.accept();
    assert_eq!((toy.asks(), toy.events()), (vec![], vec![]));
    assert!(toy.client.next_deadline().is_none());
}

#[test]
fn ways_of_taking_part_are_set_and_ended_each_for_itself() {
    let mut toy = Toy::new();
    toy.join(A, SENDS);
    toy.join(B, FULL);
    assert_eq!(toy.asks(), [SET_MEMBER], "one at a time");
    toy.accept_group(0xC001);
    assert_eq!(toy.asks(), [SET_MEMBER]);
    toy.accept_group(0xC001);
    let mut events = toy.events();
    events.sort_by_key(SaEvent::user);
    assert_eq!(events, [joined(A, 0xC001, SENDS), joined(B, 0xC001, FULL)]);
    toy.client.leave(B, group(FULL).mgid, FULL);
    toy.asks();
    assert_eq!(McMemberRecord::parse(&toy.asked[0].data).unwrap().join_state, FULL);
    toy.accept();
    toy.client.leave(A, group(FULL).mgid, SENDS);
    assert_eq!(toy.asks(), [DELETE_MEMBER]);
}

#[test]
fn what_is_wanted_when_an_answer_comes_counts() {
    let mut toy = Toy::new();
    toy.join(A, FULL);
    toy.asks();
    toy.client.leave(A, group(FULL).mgid, FULL);
    assert_eq!(toy.asks(), []);
    toy.accept_group(0xC001);
    assert_eq!((toy.asks(), toy.events()), (vec![DELETE_MEMBER], vec![]));
    toy.join(B, FULL);
    assert_eq!(toy.asks(), []);
    toy.accept();
    assert_eq!(toy.asks(), [SET_MEMBER]);
    toy.accept_group(0xC002);
    assert_eq!(toy.events(), [joined(B, 0xC002, FULL)]);
}

#[test]
fn a_new_manager_is_told_all_again_and_users_hear_of_what_is_other() {
    let mut toy = Toy::new();
    toy.join(A, FULL);
    toy.accept_group(0xC001);
    toy.events();
    for (mlid, events) in [(0xC001, vec![]), (0xC002, vec![joined(A, 0xC002, FULL)])] {
        toy.client.handle_reregister();
        assert_eq!(toy.asks(), [SET_MEMBER]);
        toy.accept_group(mlid);
        assert_eq!(toy.events(), events);
    }
    // What was under way then is not believed.
    toy.client.leave(A, group(FULL).mgid, FULL);
    toy.asks();
    toy.client.handle_reregister();
    toy.accept();
    assert_eq!(toy.asks(), []);
    toy.join(B, FULL);
    assert_eq!(toy.asks(), [SET_MEMBER]);
    toy.client.handle_reregister();
    toy.accept_group(0xC003);
    assert_eq!((toy.asks(), toy.events()), (vec![SET_MEMBER], vec![]));
    toy.refuse(SaStatus::NO_RESOURCES);
    let error = SaError::Refused(SaStatus::NO_RESOURCES);
    assert_eq!(toy.events(), [not_joined(B, error)]);
    assert_eq!(toy.asks(), []);
}

#[test]
fn a_port_that_was_down_registers_all_again() {
    let mut toy = Toy::new();
    toy.join(A, FULL);
    toy.accept_group(0xC001);
    toy.client.handle_port(SaPort { is_active: false, ..PORT });
    toy.join(B, FULL);
    assert_eq!(toy.asks(), []);
    toy.client.handle_port(PORT);
    assert_eq!(toy.asks(), [SET_MEMBER]);
    toy.accept_group(0xC001);
    assert_eq!(toy.events(), [joined(A, 0xC001, FULL), joined(B, 0xC001, FULL)]);
    // What is wanted no more while it is down is forgotten at once.
    toy.client.handle_port(SaPort { is_active: false, ..PORT });
    toy.client.end_user(A);
    toy.client.end_user(B);
    toy.client.handle_port(PORT);
    assert_eq!(toy.asks(), []);
}

#[test]
fn refusals_and_silence_end_a_wish() {
    let mut toy = Toy::new();
    toy.join(A, FULL);
    toy.refuse(SaStatus::REQUEST_INVALID);
    let error = SaError::Refused(SaStatus::REQUEST_INVALID);
    assert_eq!(toy.events(), [not_joined(A, error)]);
    toy.join(A, FULL);
    toy.keep_silent();
    assert_eq!(toy.events(), [not_joined(A, SaError::Unanswered(PORT.sm_lid))]);
    assert_eq!(toy.asks(), []);
}

#[test]
fn a_service_is_registered_again_before_its_lease_ends() {
    let mut toy = Toy::new();
    let (service_id, pkey) = (ServiceId(0x1234), Pkey::DEFAULT);
    let key = ServiceKey { service_id, gid: gid(1), pkey };
    let record =
        ServiceRecord { service_id, gid: gid(1), pkey, lease_s: 60, ..ServiceRecord::default() };
    toy.client.offer_service(A, record).unwrap();
    let set = (Method::SET, SaAttribute::SERVICE_RECORD);
    assert_eq!(toy.asks(), [set]);
    toy.accept();
    assert_eq!(toy.events(), [SaEvent::Service { user: A, key, answer: Ok(()) }]);
    let due = toy.client.next_deadline().unwrap();
    assert_eq!(due, NOW + 30 * SECOND);
    toy.now = due;
    toy.client.handle_timeout(due);
    assert_eq!(toy.asks(), [set]);
    toy.accept();
    assert_eq!((toy.events(), toy.client.next_deadline()), (vec![], Some(due + 30 * SECOND)));
    toy.client.withdraw_service(A, &key);
    assert_eq!(toy.asks(), [(Method::DELETE, SaAttribute::SERVICE_RECORD)]);
    let deleted = ServiceRecord::parse(&toy.asked[0].data).unwrap();
    assert_eq!((deleted.service_id, deleted.gid), (service_id, gid(1)));
    toy.accept();
    toy.client.handle_timeout(due + 100 * SECOND);
    assert_eq!((toy.asks(), toy.client.next_deadline()), (vec![], None));
}

#[test]
fn notices_come_to_those_that_have_subscribed_and_are_answered() {
    let mut toy = Toy::new();
    let number = TrapNumber(66);
    for user in [A, B] {
        toy.client.subscribe(user, number).unwrap();
    }
    let set = (Method::SET, SaAttribute::INFORM_INFO);
    assert_eq!(toy.asks(), [set]);
    let info = InformInfo::parse(&toy.asked[0].data).unwrap();
    assert_eq!((info.subscribe, info.trap_number, info.lid_begin), (1, 66, Lid(0xFFFF)));
    toy.accept();
    assert_eq!(toy.events().len(), 2);
    let notice = Notice {
        generic: true,
        kind: NoticeKind::INFORMATIONAL,
        producer: 4,
        number,
        issuer: Lid(7),
        toggle: false,
        count: 0,
        details: [5; Notice::DETAILS_LEN],
    };
    let mad = MadHeader {
        base_version: 1,
        mgmt_class: MgmtClass::SUBNET_ADMIN,
        class_version: 2,
        method: Method::REPORT,
        transaction_id: 77,
        attribute_id: SaAttribute::NOTICE.0,
        ..MadHeader::default()
    };
    let mut data = [0; DATA_LEN];
    notice.emit(&mut data);
    let mut report = [0; MAD_LEN];
    SaMad { mad, rmpp: Rmpp::default(), sa: SaHeader::default(), data }.emit(&mut report);
    let source = MadAddress { qpn: Qpn::GSI, lid: Lid(7), ..MadAddress::default() };
    toy.client.handle_report(source, &report);
    let heard = [A, B].map(|user| SaEvent::Notice { user, notice });
    assert_eq!(toy.events(), heard);
    let answer = toy.client.poll_send().unwrap();
    assert_eq!((answer.address.lid, answer.timeout_ms), (Lid(7), 0));
    let header = MadHeader::parse(&answer.mad).unwrap();
    assert_eq!((header.method, header.transaction_id), (Method::REPORT_RESP, 77));
    toy.client.unsubscribe(A, number);
    toy.client.end_user(B);
    assert_eq!(toy.asks(), [set]);
    let info = InformInfo::parse(&toy.asked[0].data).unwrap();
    assert_eq!((info.subscribe, info.trap_number, info.qpn), (0, 66, Qpn::GSI));
    toy.accept();
    // Nobody is told any more, and the report is answered all the same.
    toy.client.handle_report(source, &report);
    assert_eq!((toy.events(), toy.client.poll_send().is_some()), (vec![], true));
    // What is no report is neither.
    for len in [0, 24, 255] {
        toy.client.handle_report(source, &report[..len]);
    }
    report[3] = Method::TRAP.0;
    toy.client.handle_report(source, &report);
    assert_eq!((toy.events(), toy.client.poll_send()), (vec![], None));
}

#[test]
fn tables_and_wishes_have_bounds() {
    let config =
        SaConfig { max_questions: 3, max_registrations: 2, max_paths: 1, ..SaConfig::default() };
    let mut toy = Toy::with(config);
    let ask = |toy: &mut Toy, dgid| {
        let query = PathQuery { dgid: gid(dgid), ..query() };
        toy.client.query_path(toy.now, Ticket(u64::from(dgid)), &query, true)
    };
    for dgid in [1, 2, 2] {
        ask(&mut toy, dgid).unwrap();
    }
    assert_eq!(ask(&mut toy, 3), Err(SaError::TooMany(3)));
    assert_eq!(toy.asks().len(), 2);
    toy.accept();
    toy.accept();
    toy.events();
    // The last answer is kept, and no other.
    ask(&mut toy, 2).unwrap();
    ask(&mut toy, 1).unwrap();
    assert_eq!((toy.asks().len(), toy.events().len()), (1, 1));
    toy.join(A, FULL);
    toy.join(A, SENDS);
    let more = toy.client.subscribe(B, TrapNumber(64));
    assert_eq!(more, Err(SaError::TooMany(2)));
    toy.client.end_user(A);
    toy.client.subscribe(B, TrapNumber(64)).unwrap();
}

/// Two ports: the client behind its agent, and an administrator that answers with a table of more
/// than one segment.
#[test]
fn a_table_of_many_segments_comes_by_the_agent() {
    const RECORDS: usize = 100;
    let mut ports = [Agents::new(AgentsConfig::default()), Agents::new(AgentsConfig::default())];
    let registration = |methods: &[Method]| Registration {
        qpn: Qpn::GSI,
        class: MgmtClass::SUBNET_ADMIN,
        class_version: 2,
        methods: methods.iter().fold(0, |mask, method| mask | 1 << method.0),
        oui: 0,
        rmpp: true,
    };
    let ours = ports[0].register(&registration(&[Method::REPORT])).unwrap();
    let theirs = ports[1].register(&registration(&[Method::GET_TABLE])).unwrap();
    let mut client = SaClient::new(SaConfig::default());
    client.handle_port(PORT);
    client.query_table(Ticket(5), SaAttribute::PATH_RECORD, 4, &[1; PathRecord::LEN]).unwrap();
    let mut now = NOW;
    for _ in 0..1000 {
        while let Some(send) = client.poll_send() {
            let SaSend { address, mad, timeout_ms, retries } = send;
            ports[0].send(ours, address, &mad, timeout_ms, retries).unwrap();
        }
        while let Some(asked) = ports[1].poll_deliver(theirs) {
            let mut mad = SaMad::parse(&asked.mad).unwrap();
            mad.mad.method = Method::GET_TABLE_RESP;
            mad.sa.attribute_offset = SaHeader::offset_of(PathRecord::LEN);
            mad.rmpp = Rmpp::data(1, 0, 0, 0);
            let mut bytes = vec![0; MAD_LEN];
            mad.emit(&mut bytes);
            bytes.truncate(MAD_LEN - DATA_LEN);
            bytes.extend((0..RECORDS).flat_map(|index| [index as u8; PathRecord::LEN]));
            ports[1].send(theirs, asked.address, &bytes, 1000, 3).unwrap();
        }
        while let Some(delivery) = ports[0].poll_deliver(ours) {
            client.handle_outcome(now, delivery.outcome, &delivery.mad);
        }
        for from in 0..2 {
            while let Some(sent) = ports[from].poll_transmit(now) {
                let source = MadAddress { lid: Lid(from as u16 + 6), ..sent.address };
                let _ = ports[1 - from].handle_mad(now, sent.address.qpn, source, &sent.mad);
            }
        }
        now = now + SECOND / 1000;
    }
    let Some(SaEvent::Table { ticket: Ticket(5), answer: Ok(table) }) = client.poll_event() else {
        panic!("no table")
    };
    let records: Vec<_> = table.records().map(<[u8]>::to_vec).collect();
    assert_eq!(records.len(), RECORDS);
    assert!(records.iter().zip(0..).all(|(record, index)| record[..] == [index; 64]));
}

use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::path::ReceiverPageId;

const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn scope(name: &str) -> String {
    format!("vt{}{name}", std::process::id())
}

#[test]
fn slot_and_index_make_the_qpn_and_leave_out_the_special_ones() {
    let slot = Slot::of(Qpn::new(0x12_3456));
    assert_eq!(slot.qpn(0x12_3456), Qpn::new(0x12_3456));
    assert!(!Slot::of(Qpn::SMI).is_ordinary());
    assert!(!Slot::of(Qpn::GSI).is_ordinary());
    assert!(!Slot::of(Qpn::MULTICAST).is_ordinary());
    assert!(Slot::of(Slot::LAST.qpn(Slot::QPNS - 1)).is_ordinary());
}

#[test]
fn claimed_slots_are_distinct_and_free_again_after_release() {
    let table = SlotTable::with_scope(&scope("claim")).unwrap();
    let (a, b) = (table.claim().unwrap(), table.claim().unwrap());
    assert_ne!(a, b);
    assert!(table.is_ours(a) && table.is_ours(b));
    let other = SlotTable::with_scope(&scope("claim")).unwrap();
    assert!(other.is_taken(a).unwrap());
    table.release(a);
    assert!(!table.is_ours(a));
    assert!(!other.is_taken(a).unwrap() && other.is_taken(b).unwrap());
    let name = table.control_name(a);
    new_socket(name.as_bytes()).expect("the name of a released slot is free");
}

/// Takes one slot in three, until it is full.
#[derive(Debug, Default)]
struct Picky(Mutex<Vec<Slot>>);

impl SlotKeeper for Picky {
    fn take(&self, slot: Slot) -> io::Result<bool> {
        let mut taken = self.0.lock().unwrap();
        if taken.len() == 3 {
            return Err(io::Error::other("full"));
        }
        let takes = slot.value().is_multiple_of(3);
        taken.extend(takes.then_some(slot));
        Ok(takes)
    }
}

#[test]
fn a_slot_that_the_keeper_refuses_is_nobodys() {
    let table = SlotTable::with_scope(&scope("keeper")).unwrap();
    let keeper = Arc::new(Picky::default());
    table.set_keeper(keeper.clone());
    // What is prepared is claimed next, and is prepared once.
    table.prepare().unwrap();
    table.prepare().unwrap();
    let prepared = table.own_slots();
    let claimed = [(); 3].map(|()| table.claim().unwrap());
    assert_eq!(prepared, claimed[..1]);
    assert_eq!((table.own_slots(), &*keeper.0.lock().unwrap()), (claimed.into(), &claimed.into()));
    for refused in [table.claim().map(drop), table.prepare()] {
        let text = refused.unwrap_err().to_string();
        assert_eq!(text, "the link has no place for more queue pairs: full");
    }
    let other = SlotTable::with_scope(&scope("keeper")).unwrap();
    let last = Slot::LAST.value();
    let all = (Slot::FIRST.value()..=last).filter_map(Slot::new);
    let taken: Vec<_> = all.filter(|slot| other.is_taken(*slot).unwrap()).collect();
    assert_eq!(taken.len(), 3, "the others are free");
}

/// Takes every slot, and its time.
#[derive(Debug, Default)]
struct Slow(Mutex<Vec<Slot>>);

impl SlotKeeper for Slow {
    fn take(&self, slot: Slot) -> io::Result<bool> {
        std::thread::sleep(Duration::from_millis(50));
        self.0.lock().unwrap().push(slot);
        Ok(true)
    }
}

#[test]
fn threads_that_prepare_at_once_take_one_slot() {
    let table = SlotTable::with_scope(&scope("at-once")).unwrap();
    let keeper = Arc::new(Slow::default());
    table.set_keeper(keeper.clone());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| table.prepare().unwrap());
        }
    });
    let prepared = table.own_slots();
    assert_eq!((prepared.len(), &prepared), (1, &*keeper.0.lock().unwrap()));
    assert_eq!(table.claim().unwrap(), prepared[0]);
}

#[test]
fn a_closed_table_has_given_everything_back_and_takes_nothing_more() {
    let table = SlotTable::with_scope(&scope("close")).unwrap();
    table.publish(LOCALHOST.into(), 5);
    let slot = table.claim().unwrap();
    let service = ServiceName {
        service: vernic_wire::cm::ServiceId(7),
        scope: ServiceScope::Address(LOCALHOST.into()),
    };
    table.claim_name(&service).unwrap();
    table.open_name(&service).unwrap();
    let lent = table.sockets();
    assert_eq!(lent.len(), 2);
    table.close();
    table.close();
    assert!(lent.iter().all(|(one, two)| one.get().is_none() && two.get().is_none()));
    assert!(!table.is_ours(slot) && table.sockets().is_empty());
    assert!(table.claim().is_err() && table.claim_name(&service).is_err());
    let qpn = slot.qpn(7);
    assert_eq!(table.lookup(LOCALHOST, qpn), Lookup::NotHere);
    assert_eq!(table.query(LOCALHOST, qpn, Duration::ZERO), None);
    let other = SlotTable::with_scope(&scope("close")).unwrap();
    other.claim_name(&service).expect("another table has the name");
    new_socket(table.control_name(slot).as_bytes()).expect("and the slot is free");
    // The sockets that questions and packets were on their way to are gone.
    table.serve();
}

#[test]
fn a_slot_whose_second_name_is_still_taken_is_passed_over() {
    let table = SlotTable::with_scope(&scope("second")).unwrap();
    let alike = |slot: &Slot| slot.is_ordinary() && slot.class() == table.class;
    let mut all = (0..=Slot::LAST.value()).filter_map(Slot::new).filter(alike);
    let (first, second) = (all.next().unwrap(), all.next().unwrap());
    let taken = new_socket(table.packets_name(first).as_bytes()).unwrap();
    assert_eq!(table.claim_from(0).unwrap(), second);
    drop(taken);
    assert_eq!(table.claim_from(0).unwrap(), first, "nothing of it was kept");
}

#[test]
fn slots_of_a_table_are_of_one_class_and_those_of_several_tables_of_several() {
    let name = scope("class");
    let tables: Vec<_> = (0..3).map(|_| SlotTable::with_scope(&name).unwrap()).collect();
    // Another process has all slots of the first table's class but one.
    let class = tables[0].class;
    let alike: Vec<_> = (Slot::FIRST.value()..=Slot::LAST.value())
        .filter_map(Slot::new)
        .filter(|slot| slot.class() == class)
        .collect();
    let other = |slot: &Slot| new_socket(tables[0].control_name(*slot).as_bytes()).unwrap();
    let _others: Vec<_> = alike[1..].iter().map(other).collect();
    assert_eq!(tables[0].claim().unwrap(), alike[0]);
    assert_ne!(tables[0].claim().unwrap().class(), class, "there are others left");
    for table in &tables[1..] {
        let classes = [table.claim().unwrap().class(), table.claim().unwrap().class()];
        assert_eq!(classes, [table.class; 2]);
    }
}

#[test]
fn tables_of_a_process_have_different_classes_while_there_are_any() {
    let all = || 0..Slot::CLASSES;
    assert_eq!(rarest_class(all().filter(|&class| class != 5)), 5);
    assert_eq!(rarest_class(all().chain(all().filter(|&class| class != 9))), 9);
    assert!(rarest_class(all()) < Slot::CLASSES);
}

#[test]
fn a_query_for_a_slot_of_this_process_needs_no_socket() {
    let name = scope("self");
    let here = SlotTable::with_scope(&name).unwrap();
    let there = SlotTable::with_scope(&name).unwrap();
    let slot = there.claim().unwrap();
    let none = Duration::ZERO;
    assert_eq!(here.query(LOCALHOST, slot.qpn(5), none), None);
    there.publish(LOCALHOST.into(), 777);
    let receiver_page = ReceiverPageId::new(1);
    let peer = PeerProcess { pid: std::process::id(), private_port: 777, receiver_page };
    assert_eq!(here.query(LOCALHOST, slot.qpn(5), none), Some(peer));
    assert_eq!(here.lookup(LOCALHOST, slot.qpn(5)), Lookup::Here(peer));
    there.withdraw(LOCALHOST.into());
    assert_eq!(here.lookup(LOCALHOST, slot.qpn(5)), Lookup::NotHere);
}

#[test]
fn a_query_for_a_slot_that_nobody_has_returns_at_once() {
    let table = SlotTable::with_scope(&scope("nobody")).unwrap();
    let long = Duration::from_secs(3600);
    assert_eq!(table.query(LOCALHOST, Slot::FIRST.qpn(1), long), None);
    assert_eq!(table.lookup(LOCALHOST, Slot::FIRST.qpn(1)), Lookup::NotHere);
    assert_eq!(table.query(LOCALHOST, Qpn::GSI, long), None);
}

#[test]
fn messages_that_are_no_questions_are_ignored() {
    for bytes in [&b""[..], b"VQ", &[0; 22], &[0xFF; 24], b"VQ\x00\x01aaaaaaaaaaaaaaaaaaaaaaaaaa"] {
        assert_eq!(Question::parse(bytes), None);
        assert_eq!(Answer::parse(bytes), None);
    }
    let question = Question { ip: LOCALHOST, slot: Slot::new(9).unwrap() };
    assert_eq!(Question::parse(&question.emit()), Some(question));
    let answer =
        Answer { ip: "fe80::1".parse().unwrap(), slot: Slot::new(9).unwrap(), private_port: 80 };
    assert_eq!(Answer::parse(&answer.emit()), Some(answer));
    assert_eq!(Question::parse(&answer.emit()), None);
}

#[test]
fn slots_that_nobody_has_any_more_are_told_from_those_that_somebody_has() {
    let [asker, other] = [(); 2].map(|()| SlotTable::with_scope(&scope("vacant")).unwrap());
    let [own, kept, given] = [&asker, &other, &other].map(|table| table.claim().unwrap());
    let all = [given, own, kept];
    assert_eq!(asker.vacant(all.into_iter()).unwrap(), []);
    other.release(given);
    assert_eq!(asker.vacant(all.into_iter()).unwrap(), [given]);
    let page =
        asker.receiver_page_of(asker.receiver_pages.add(other.receiver_page().unwrap())).unwrap();
    assert!(!page.has_left());
    other.close();
    assert_eq!(asker.vacant(all.into_iter()).unwrap(), [given, kept]);
    assert!(page.has_left());
}

//! Programs that ask interfaces, of hosts without devices: which addresses there are, and where an
//! address is.

mod common;

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use common::{Fabric, PATIENCE};
use vernic_attach::hello::{Hello, Purpose};
use vernic_attach::interface::InterfaceRequest;
use vernic_attach::{
    AddressQuestion, AttachError, Connection, GroupJoin, IpInterface, MadClient, PathAsked,
    PathQuestion, RefusalKind, interfaces, path,
};
use vernic_fabricd::control::{Answer, LinkChange, Request};
use vernic_ipoibd::{Address, IpoibError, Options, Owner};
use vernic_wire::ipoib::HardwareAddress;
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::{Pkey, PortNum};

type Place = (HardwareAddress, PathRecord);

/// A host whose interface runs in a thread of its own.
struct Running {
    stop: UnixDatagram,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(fabric: &Fabric, host: u8) -> Self {
        let (stop, stopped) = UnixDatagram::pair().unwrap();
        let options = Options::new(&fabric.name, &format!("h{host}"));
        let thread = thread::spawn(move || {
            let address = Address { ip: v4(host), prefix_len: 24 };
            let mut owner = Owner::without_device(options, &[address]).unwrap();
            owner.run(stopped.as_fd(), |_| {}).unwrap();
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let told = self.stop.send(&[1]);
        let ended = self.thread.take().unwrap().join();
        let is_fine = told.is_ok() && ended.is_ok();
        assert!(is_fine || thread::panicking(), "the interface has failed");
    }
}

fn v4(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what} did not happen in {PATIENCE:?}");
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The interface of a host, once its link is up.
fn interface(fabric: &Fabric, host: u8) -> IpInterface {
    let client = MadClient::connect(&fabric.name).unwrap();
    let guid = client.adapter(&format!("h{host}")).unwrap().guid;
    eventually("an interface comes up", || {
        let found = interfaces(&fabric.name, guid).unwrap();
        assert!(found.len() <= 1);
        found.into_iter().next().filter(|interface| interface.mtu.is_some())
    })
}

fn resolve(fabric: &Fabric, by: &IpInterface, ip: IpAddr) -> Result<Place, RefusalKind> {
    let mut question = AddressQuestion::ask(&fabric.name, by, ip).unwrap();
    eventually("an answer", || question.poll()).map_err(|error| match error {
        AttachError::Refused(refusal) => {
            assert!(refusal.text.contains(&ip.to_string()), "{refusal}");
            refusal.kind
        }
        other => panic!("{other:?}"),
    })
}

#[test]
fn programs_learn_where_addresses_are() {
    let fabric = Fabric::start(3);
    let _hosts = [Running::start(&fabric, 1), Running::start(&fabric, 2)];
    let [one, two] = [1, 2].map(|host| interface(&fabric, host));
    for (interface, host) in [(&one, 1), (&two, 2)] {
        let group = interface.group.unwrap();
        assert_eq!((interface.port, interface.pkey), (PortNum(1), Pkey::DEFAULT));
        assert_eq!(interface.addresses[0], (v4(host), 24));
        assert!(group.mlid.is_multicast() && interface.mtu == Some(2044));
        let IpAddr::V6(local) = interface.addresses[1].0 else { panic!("{interface:?}") };
        assert_eq!(local.octets()[9..], interface.gid.0[9..]);
    }
    for _ in 0..2 {
        let (address, path) = resolve(&fabric, &one, v4(2)).unwrap();
        assert_eq!((address.gid, path.dgid, path.sgid), (two.gid, two.gid, one.gid));
        assert!(path.dlid.is_unicast() && path.dlid != path.slid);
        // By the link-local address as well, which nobody has given.
        let (by_local, _) = resolve(&fabric, &one, two.addresses[1].0).unwrap();
        assert_eq!(by_local, address);
        let (own, own_path) = resolve(&fabric, &one, v4(1)).unwrap();
        assert_eq!((own.gid, own_path.dlid), (one.gid, path.slid));
        assert_eq!(resolve(&fabric, &two, v4(1)).unwrap().0, own);
    }
    let away = IpAddr::from([192, 168, 1, 1]);
    assert_eq!(resolve(&fabric, &one, away), Err(RefusalKind::Unreachable));
    assert_eq!(resolve(&fabric, &one, v4(77)), Err(RefusalKind::Unanswered));
}

#[test]
fn a_program_that_leaves_the_group_of_an_interface_does_not_take_it_along() {
    let fabric = Fabric::start(3);
    let _hosts = [Running::start(&fabric, 1), Running::start(&fabric, 2)];
    let [one, two] = [1, 2].map(|host| interface(&fabric, host));
    let group = two.group.unwrap();
    let record = McMemberRecord {
        mgid: group.mgid,
        port_gid: two.gid,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let components =
        MemberComponents::MGID | MemberComponents::PORT_GID | MemberComponents::JOIN_STATE;
    let mut join = GroupJoin::ask(&fabric.name, "h2", PortNum(1), &record, components).unwrap();
    assert_eq!(eventually("the program joins", || join.poll()).unwrap().mlid, group.mlid);
    drop(join);
    // What the port has asked for comes in order: the leave is done when this is answered.
    let (sgid, dgid, pkey) = (two.gid, one.gid, Pkey::DEFAULT);
    let query = PathAsked { sgid, dgid, pkey, service: None, traffic_class: None };
    let mut path = PathQuestion::ask(&fabric.name, "h2", PortNum(1), &query).unwrap();
    eventually("a path", || path.poll()).unwrap();
    // Nobody has asked for h2 before, so all of the link are asked now.
    assert_eq!(resolve(&fabric, &one, v4(2)).unwrap().0.gid, two.gid);
}

#[test]
fn an_interface_that_is_down_says_so_and_one_that_has_ended_is_none() {
    let fabric = Fabric::start(3);
    let host = Running::start(&fabric, 1);
    let one = interface(&fabric, 1);
    let options = Options::new(&fabric.name, "h1");
    let address = Address { ip: v4(9), prefix_len: 24 };
    let second = Owner::without_device(options, &[address]).map(drop).unwrap_err();
    assert!(matches!(second, IpoibError::Taken { .. }), "{second}");
    let request = Request::Link { node: "h1".to_owned(), port: 1, change: LinkChange::Down };
    assert_eq!(fabric.ask(&request), Answer::Done);
    eventually("the link is down", || {
        interfaces(&fabric.name, one.guid).unwrap()[0].mtu.is_none().then_some(())
    });
    assert_eq!(resolve(&fabric, &one, v4(2)), Err(RefusalKind::Down));
    drop(host);
    assert!(interfaces(&fabric.name, one.guid).unwrap().is_empty());
    let gone = AddressQuestion::ask(&fabric.name, &one, v4(2)).unwrap_err();
    assert!(matches!(gone, AttachError::NoInterface { .. }), "{gone}");
}

#[test]
fn programs_that_are_killed_hostile_or_too_many_do_no_harm() {
    let fabric = Fabric::start(2);
    let _hosts = [Running::start(&fabric, 1), Running::start(&fabric, 2)];
    let [one, two] = [1, 2].map(|host| interface(&fabric, host));
    let at = (one.guid, one.port, one.pkey);
    let socket = path::interface_in(&path::folder(), &fabric.name, at).unwrap();
    let connect = || Connection::connect_path(&fabric.name, &socket, Purpose::Question);
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for round in 0..500 {
        let connection = connect().unwrap();
        for _ in 0..1 + random() % 4 {
            let mut message = match random() % 4 {
                0 => InterfaceRequest::About.emit(),
                1 => InterfaceRequest::Resolve(v4(random() as u8)).emit(),
                2 => Hello::emit(Purpose::Question),
                _ => vec![1; 1 + random() % 1000],
            };
            if random() % 2 == 0 {
                let at = random() % message.len();
                message[at] = random() as u8;
            }
            let _ = connection.send(&message);
        }
        if round % 3 == 0 {
            // Gone before its answer.
            drop(connection);
        } else if round % 100 == 1 {
            assert!(resolve(&fabric, &one, v4(2)).is_ok());
        }
    }
    let many: Vec<_> = (0..300).map(|_| connect()).collect();
    let refused = many.iter().flatten().filter(|connection| {
        let answer = connection.wait_readable(Some(std::time::Duration::from_millis(20)));
        answer.unwrap()
    });
    assert!(refused.count() >= 300 - 256);
    drop(many);
    let place = eventually("there is room again", || {
        let mut question = AddressQuestion::ask(&fabric.name, &one, v4(2)).unwrap();
        eventually("an answer", || question.poll()).ok()
    });
    assert_eq!(place.0.gid, two.gid);
}

//! Ids without a peer: addresses, ports, states, events, channels.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vernic_cm::{
    Config, ConnParam, Error, EventChannel, EventKind, Id, IdOption, JoinState, Manager, Param,
    PortSpace, QpType, State,
};
use vernic_engine::PortNum;

const SOON: Duration = Duration::from_secs(2);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn setup() -> (Arc<Manager>, Arc<EventChannel>) {
    let manager = Manager::new(Config::default());
    let channel = manager.create_channel().unwrap();
    (manager, channel)
}

fn tcp(manager: &Manager, channel: &Arc<EventChannel>) -> Arc<Id> {
    manager.create_id(Some(channel), PortSpace::TCP, QpType::Rc).unwrap()
}

fn readable(channel: &EventChannel) -> bool {
    let mut fd = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which the channel keeps open.
    unsafe { libc::poll(&mut fd, 1, 0) == 1 }
}

#[test]
fn calls_in_the_wrong_state_say_which_they_need() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    let error = id.resolve_route(SOON).unwrap_err();
    assert!(matches!(error, Error::State { state: State::Idle, .. }), "{error}");
    assert_eq!(error.errno(), libc::EINVAL);
    assert_eq!(id.connect(&ConnParam::default()).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(id.accept(&ConnParam::default()).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(id.disconnect().unwrap_err().errno(), libc::EINVAL);
    id.bind_addr(addr("127.0.0.1:0")).unwrap();
    let error = id.bind_addr(addr("127.0.0.1:0")).unwrap_err();
    assert!(error.to_string().contains("Bound") && error.to_string().contains("127.0.0.1"));
    id.destroy();
    let error = id.bind_addr(addr("127.0.0.1:0")).unwrap_err();
    assert!(matches!(error, Error::State { state: State::Destroyed, .. }), "{error}");
}

#[test]
fn an_id_without_a_port_space_for_its_type_is_refused() {
    let (manager, channel) = setup();
    for (space, qp_type) in
        [(PortSpace::TCP, QpType::Ud), (PortSpace::UDP, QpType::Rc), (PortSpace(7), QpType::Rc)]
    {
        let error = manager.create_id(Some(&channel), space, qp_type).unwrap_err();
        assert_eq!(error.errno(), libc::EPROTONOSUPPORT, "{error}");
    }
}

#[test]
fn resolving_binds_to_the_source_and_tells_each_step_by_an_event() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    assert!(!readable(&channel));
    id.resolve_addr(None, addr("127.0.0.1:7471"), SOON).unwrap();
    assert!(readable(&channel));
    let event = channel.wait().unwrap();
    assert!(Arc::ptr_eq(&event.id, &id));
    assert_eq!((event.kind, event.status), (EventKind::AddrResolved, 0));
    assert_eq!(event.param, Param::None);
    assert!(!readable(&channel));
    let local = id.local_addr().unwrap();
    assert_eq!(local.ip(), addr("127.0.0.1:0").ip());
    assert!(local.port() >= 1024 && id.port() == local.port());
    assert_eq!(id.peer_addr(), Some(addr("127.0.0.1:7471")));
    assert_eq!(id.context().unwrap().info().port.netdev, "lo");
    let row = id.context().unwrap().gid_entry(PortNum(1), id.local_gid_index().unwrap()).unwrap();
    assert_eq!(row.local.ip, local.ip());
    id.set_option(IdOption::Tos(0x20)).unwrap();
    id.resolve_route(SOON).unwrap();
    assert_eq!(channel.wait().unwrap().kind, EventKind::RouteResolved);
    let path = id.path().unwrap();
    assert_eq!((path.local, path.traffic_class), (row.gid, 0x20));
    assert!(channel.try_next().is_none());
}

#[test]
fn an_address_of_nobody_names_the_devices_and_their_addresses() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    let error = id.bind_addr(addr("192.0.2.77:1")).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    assert!(error.to_string().contains("(lo): ") && error.to_string().contains("127.0.0.1"));
    // Nothing changed: it can be bound still.
    id.bind_addr(addr("127.0.0.1:0")).unwrap();
    let other = tcp(&manager, &channel);
    let error = other.bind_addr(id.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    id.destroy();
    assert_eq!(id.state(), State::Destroyed);
    other.bind_addr(id.local_addr().unwrap()).unwrap();
}

#[test]
fn ids_share_a_port_if_both_say_so() {
    let (manager, channel) = setup();
    let [a, b] = [0; 2].map(|_| tcp(&manager, &channel));
    a.set_option(IdOption::ReuseAddr(true)).unwrap();
    a.bind_addr(addr("127.0.0.1:0")).unwrap();
    let place = a.local_addr().unwrap();
    assert_eq!(b.bind_addr(place).unwrap_err().errno(), libc::EADDRINUSE);
    b.set_option(IdOption::ReuseAddr(true)).unwrap();
    b.bind_addr(place).unwrap();
}

#[test]
fn options_that_come_too_late_or_make_no_sense_are_refused() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    assert_eq!(id.set_option(IdOption::AckTimeout(32)).unwrap_err().errno(), libc::EINVAL);
    id.set_option(IdOption::AckTimeout(14)).unwrap();
    let ud = manager.create_id(Some(&channel), PortSpace::UDP, QpType::Ud).unwrap();
    assert_eq!(ud.set_option(IdOption::AckTimeout(14)).unwrap_err().errno(), libc::EINVAL);
    id.resolve_addr(None, addr("127.0.0.1:1"), SOON).unwrap();
    assert_eq!(id.set_option(IdOption::AfOnly(true)).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn events_that_wait_move_with_their_id_to_another_channel_in_their_order() {
    let (manager, channel) = setup();
    let [stays, moves] = [0; 2].map(|_| tcp(&manager, &channel));
    for id in [&moves, &stays] {
        id.resolve_addr(None, addr("127.0.0.1:1"), SOON).unwrap();
        id.resolve_route(SOON).unwrap();
    }
    let other = manager.create_channel().unwrap();
    moves.migrate(&other).unwrap();
    assert!(Arc::ptr_eq(&moves.channel().unwrap(), &other));
    for (channel, id) in [(&other, &moves), (&channel, &stays)] {
        let events: Vec<_> = std::iter::from_fn(|| channel.try_next()).collect();
        assert!(events.iter().all(|event| Arc::ptr_eq(&event.id, id)));
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::AddrResolved, EventKind::RouteResolved]);
        assert!(!readable(channel));
    }
}

#[test]
fn destroying_waits_for_taken_events_and_takes_back_the_others() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    id.resolve_addr(None, addr("127.0.0.1:1"), SOON).unwrap();
    id.resolve_route(SOON).unwrap();
    let taken = channel.wait().unwrap();
    let dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while id.state() != State::Destroyed {
                std::thread::yield_now();
            }
            dropped.store(true, Ordering::SeqCst);
            drop(taken);
        });
        id.destroy();
        assert!(dropped.load(Ordering::SeqCst));
    });
    assert!(!readable(&channel));
    assert!(channel.try_next().is_none());
}

#[test]
fn an_id_that_is_dropped_gives_its_port_back_and_has_no_events() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    id.bind_addr(addr("127.0.0.1:0")).unwrap();
    let place = id.local_addr().unwrap();
    id.resolve_addr(None, addr("127.0.0.1:1"), SOON).unwrap();
    drop(id);
    assert!(channel.try_next().is_none());
    tcp(&manager, &channel).bind_addr(place).unwrap();
}

#[test]
fn a_group_is_joined_with_where_to_send_and_left_once() {
    let (manager, channel) = setup();
    let id = manager.create_id(Some(&channel), PortSpace::UDP, QpType::Ud).unwrap();
    let group = addr("239.7.4.1:0");
    let early = id.join_multicast(group, JoinState::FullMember, 7).unwrap_err();
    assert!(matches!(early, Error::NoDevice { .. }), "{early}");
    id.bind_addr(addr("127.0.0.1:0")).unwrap();
    let error = id.join_multicast(addr("10.0.0.1:0"), JoinState::FullMember, 7).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    id.join_multicast(group, JoinState::FullMember, 7).unwrap();
    let event = channel.wait().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::MulticastJoin, 0));
    let Param::Ud(info) = &event.param else { panic!("{event:?}") };
    assert_eq!((info.context, info.qkey), (7, vernic_cm::UDP_QKEY));
    assert_eq!(info.qp_num.value(), 0xFF_FFFF);
    assert_eq!(info.av.dgid.to_string(), "::ffff:239.7.4.1");
    assert_eq!(Some(info.av.sgid_index), id.local_gid_index());
    assert!(id.join_multicast(group, JoinState::FullMember, 7).is_err());
    id.leave_multicast(group).unwrap();
    assert_eq!(id.leave_multicast(group).unwrap_err().errno(), libc::EADDRNOTAVAIL);
    // Left before the event was taken: there is none.
    id.join_multicast(group, JoinState::SendOnlyFullMember, 7).unwrap();
    id.leave_multicast(group).unwrap();
    assert!(!readable(&channel));
}

#[test]
fn private_data_and_counts_out_of_range_are_refused_with_their_limit() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    id.resolve_addr(None, addr("127.0.0.1:1"), SOON).unwrap();
    id.resolve_route(SOON).unwrap();
    let long = ConnParam { private_data: &[0; 57], ..ConnParam::default() };
    let error = id.connect(&long).unwrap_err();
    assert!(matches!(error, Error::TooLong { given: 57, max: 56, .. }), "{error}");
    let eight = ConnParam { rnr_retry_count: 8, ..ConnParam::default() };
    assert!(matches!(id.connect(&eight), Err(Error::Value { what: "rnr_retry_count", .. })));
}

#[test]
fn events_of_the_programs_own_come_as_they_were_written() {
    let (manager, channel) = setup();
    let id = tcp(&manager, &channel);
    let error = id.write_event(EventKind::Established, 0, 0).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    id.write_event(EventKind::User, -7, u64::MAX).unwrap();
    let event = channel.wait().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::User, -7));
    assert_eq!(event.param, Param::Arg(u64::MAX));
    drop(event);
    // Bounded; and there is room again for each that is taken.
    let written = (0..2000).filter(|_| id.write_event(EventKind::User, 0, 1).is_ok()).count();
    assert_eq!(written, 1024);
    let error = id.write_event(EventKind::User, 0, 1).unwrap_err();
    assert_eq!(error.errno(), libc::ENOBUFS);
    channel.wait().unwrap();
    id.write_event(EventKind::Internal, 0, 1).unwrap();
    id.destroy();
    assert!(!readable(&channel));
}

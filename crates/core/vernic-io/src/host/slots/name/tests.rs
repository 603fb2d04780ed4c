use std::os::fd::AsFd;

use vernic_sys as sys;

use super::*;
use crate::batch::Icrc;
use crate::batch::RxMeta;
use crate::endpoint;
use crate::host::handoff;

const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const NO_TIME: Duration = Duration::ZERO;

fn table(name: &str) -> Arc<SlotTable> {
    SlotTable::with_scope(&format!("vt{}{name}", std::process::id())).unwrap()
}

fn at(service: u64, scope: ServiceScope) -> ServiceName {
    ServiceName { service: ServiceId(service), scope }
}

fn here(service: u64) -> ServiceName {
    at(service, ServiceScope::Address(LOCALHOST.into()))
}

#[test]
fn a_name_is_claimed_once_and_free_again_after_release() {
    let (a, b) = (table("once"), table("once"));
    let name = here(0x0106_1388);
    assert!(!b.is_claimed(&name).unwrap());
    a.claim_name(&name).unwrap();
    assert!(a.is_claimed(&name).unwrap() && b.is_claimed(&name).unwrap());
    for table in [&a, &b] {
        let error = table.claim_name(&name).unwrap_err();
        assert!(matches!(error, NameError::InUse(_)), "{error}");
        assert!(error.to_string().contains("tcp:5000 is taken at 127.0.0.1"), "{error}");
    }
    // Neither another service, nor another place, nor all of the netdev is the same name.
    b.claim_name(&here(0x0106_1389)).unwrap();
    b.claim_name(&at(0x0106_1388, ServiceScope::Netdev(1))).unwrap();
    a.release_name(&name);
    assert!(!b.is_claimed(&name).unwrap());
    b.claim_name(&name).unwrap();
}

#[test]
fn the_longest_name_is_whole() {
    let table = table(&"x".repeat(80));
    let ip = "fe80:1111:2222:3333:4444:5555:6666:7777".parse().unwrap();
    let mut name = at(u64::MAX, ServiceScope::Address(LocalAddr::new(ip, u32::MAX)));
    let text = table.service_name(&name, QUESTIONS);
    assert!(text.as_bytes().ends_with(b"%4294967295/questions"));
    table.claim_name(&name).unwrap();
    table.open_name(&name).unwrap();
    name.service.0 -= 1;
    table.claim_name(&name).unwrap();
}

#[test]
fn a_claimed_name_is_found_only_while_it_is_open() {
    let (a, b) = (table("open"), table("open"));
    let name = here(7);
    let error = a.open_name(&name).unwrap_err();
    assert!(matches!(error, NameError::NotClaimed(_)), "{error}");
    a.claim_name(&name).unwrap();
    a.publish(LOCALHOST.into(), 777);
    let generation = a.generation();
    assert_eq!(b.find_server(&name, LOCALHOST, NO_TIME), None);
    assert!(a.sockets().is_empty(), "the link has nothing to look at");
    a.open_name(&name).unwrap();
    a.open_name(&name).unwrap();
    assert_eq!(a.generation(), generation + 1);
    let [(control, packets)] = &a.sockets()[..] else { panic!("one name is open") };
    assert!(control.get().is_some() && packets.get().is_some());
    let found = b.find_server(&name, LOCALHOST, NO_TIME).unwrap();
    assert_eq!((found.private_port, found.pid), (777, std::process::id()));
    assert_eq!(b.find_server(&name, [127, 0, 0, 2].into(), NO_TIME), None, "not its address");
    a.close_name(&name);
    assert_eq!(b.find_server(&name, LOCALHOST, NO_TIME), None);
    assert!(a.sockets().is_empty() && b.is_claimed(&name).unwrap());
    assert!(packets.get().is_none(), "free for others even while the link has not noticed");
    assert_eq!(a.generation(), generation + 2);
}

#[test]
fn a_packet_is_handed_over_to_who_has_the_name_open_and_to_nobody_else() {
    let (a, b) = (table("hand"), table("hand"));
    let name = here(9);
    let src = "127.0.0.1:50000".parse().unwrap();
    let dst = "127.0.0.1:4791".parse().unwrap();
    let icrc = Icrc::Unchecked;
    let meta = RxMeta { icrc, ..endpoint::arrival(src, dst) };
    let packet = RxPacket { bytes: &[5; 280], meta: &meta, segment: 3 };
    assert_eq!(b.hand_over_to_name(&name, &packet), HandoverResult::NoOwner);
    a.claim_name(&name).unwrap();
    assert_eq!(b.hand_over_to_name(&name, &packet), HandoverResult::NoOwner, "claimed, not open");
    a.open_name(&name).unwrap();
    assert_eq!(b.hand_over_to_name(&name, &packet), HandoverResult::Yes);
    let packets = a.sockets()[0].1.get().unwrap();
    let mut buffer = [0; 300];
    let handoff::HandoverReceived::Packets(head, len) = handoff::recv(packets.as_fd(), &mut buffer)
    else {
        panic!("no packet");
    };
    assert_eq!((&buffer[..len], head.stride, head.first_segment), (packet.bytes, 280, 3));
    assert_eq!((head.meta.icrc, head.meta.handed_over), (Icrc::Good, true));
    // The owner does not keep up, which is another result than a name that no process has.
    let sent = (0..10_000).find(|_| b.hand_over_to_name(&name, &packet) != HandoverResult::Yes);
    assert!(sent.is_some());
    assert_eq!(b.hand_over_to_name(&name, &packet), HandoverResult::Full);
}

#[test]
fn a_name_is_free_at_once_though_a_thread_sleeps_on_its_sockets() {
    let (a, b) = (table("asleep"), table("asleep"));
    let name = here(11);
    a.claim_name(&name).unwrap();
    a.open_name(&name).unwrap();
    let sockets = a.sockets();
    let asleep = Arc::new(std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let polled: Vec<_> = sockets.iter().flat_map(|(q, p)| [q.raw(), p.raw()]).collect();
        let sleeper_asleep = asleep.clone();
        scope.spawn(move || {
            let mut polls: Vec<_> = polled.into_iter().map(sys::PollFd::readable).collect();
            sleeper_asleep.wait();
            sys::poll(&mut polls, Some(Duration::from_millis(40))).unwrap();
        });
        asleep.wait();
        std::thread::sleep(Duration::from_millis(10));
        a.release_name(&name);
        b.claim_name(&name).unwrap();
        b.open_name(&name).unwrap();
    });
}

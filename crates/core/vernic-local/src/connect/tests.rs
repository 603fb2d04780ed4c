use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vernic_io::batch::MAX_PACKET_BYTES;
use vernic_io::host::SlotTable;
use vernic_io::wait::Sleeper;
use vernic_io::{Nanos, TxPath};
use vernic_sys::OwnFd;

use crate::hello::{Hello, PeerMessage};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use vernic_sys as sys;

use super::*;
use crate::hello::MAX_PAYLOAD_BYTES;
use crate::page::PAGE_BYTES;
use crate::process::MAX_LOCAL_PEERS;
use crate::ring::{MAX_RING_BYTES, MIN_RING_BYTES, Record, RingMemory, rx_packet};
use crate::rules::AccessRules;

const RING: u32 = MIN_RING_BYTES;

/// The part of a process's device that deals with local peers.
struct Engine {
    peers: Connections,
    slots: Arc<SlotTable>,
    events: Vec<Event>,
    now: Nanos,
}

fn scope(name: &str) -> String {
    format!("nb{}{name}", std::process::id())
}

impl Engine {
    fn new(scope: &str) -> Self {
        let slots = SlotTable::with_scope(scope).unwrap();
        slots.claim().unwrap();
        let mut peers = Connections::new(slots.clone(), RING, AccessRules::default()).unwrap();
        peers.follow_slots(Nanos(1));
        Self { peers, slots, events: Vec::new(), now: Nanos(1) }
    }

    fn slot(&self) -> Slot {
        self.slots.own_slots()[0]
    }

    fn connect(&mut self, slot: Slot) {
        self.peers.connect(slot, std::process::id(), self.now, &mut self.events);
    }

    fn serve(&mut self) {
        self.peers.serve(self.now, &mut self.events);
    }

    fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

/// Everything that an engine has of a local peer.
struct Met {
    local_peer: Arc<PeerProcess>,
    reader: RingReader,
    writer: RingWriter,
}

/// Returns the one local peer that `events` are about, from `Met` to `Slots`.
fn met(events: Vec<Event>) -> Met {
    let (mut found, mut ready) = (None, None);
    for event in events {
        match event {
            Event::Connected { process: local_peer, reader } => {
                assert!(found.replace((local_peer, reader)).is_none(), "met twice");
            }
            Event::Ready { from, writer } => {
                assert_eq!(found.as_ref().map(|(n, _)| n.id()), Some(from));
                assert!(ready.replace(writer).is_none(), "ready twice");
            }
            Event::Slots { .. } => assert!(found.is_some()),
            other => panic!("{other:?}"),
        }
    }
    let (local_peer, reader) = found.expect("nobody was met");
    Met { local_peer, reader, writer: ready.expect("it is not ready") }
}

/// Serves both until neither has anything more to do.
fn settle(a: &mut Engine, b: &mut Engine) {
    for _ in 0..10 {
        a.serve();
        b.serve();
    }
}

fn pair(name: &str) -> (Engine, Met, Engine, Met) {
    let scope = scope(name);
    let (mut a, mut b) = (Engine::new(&scope), Engine::new(&scope));
    a.connect(b.slot());
    settle(&mut a, &mut b);
    let (at_a, at_b) = (met(a.take()), met(b.take()));
    (a, at_a, b, at_b)
}

fn path() -> TxPath {
    let home = IpAddr::from([127, 0, 0, 1]);
    vernic_io::udp::path(home, (home, vernic_io::ROCE_PORT).into())
}

fn send(from: &mut Met, text: &[u8]) {
    assert!(from.writer.has_room(0).unwrap());
    from.writer.push(&path(), text);
    assert!(from.writer.publish());
}

fn receive(at: &mut Met) -> Option<Vec<u8>> {
    let mut buffer = [0; MAX_PACKET_BYTES];
    let Record::Packet(len) = at.reader.next(&mut buffer).unwrap()? else { return None };
    let meta = *at.reader.origin();
    let packet = rx_packet(&buffer, len, &meta).transport().to_vec();
    at.reader.release();
    Some(packet)
}

#[test]
fn packets_go_both_ways_once_two_engines_have_met() {
    let (a, mut at_a, b, mut at_b) = pair("both");
    send(&mut at_a, b"ping");
    assert_eq!(receive(&mut at_b).as_deref(), Some(&b"ping"[..]));
    send(&mut at_b, b"pong");
    assert_eq!(receive(&mut at_a).as_deref(), Some(&b"pong"[..]));
    assert_eq!(receive(&mut at_b), None);
    assert_eq!(at_a.local_peer.pid(), std::process::id());
    assert_eq!(a.peers.find(b.slot()).unwrap().id(), at_a.local_peer.id());
    assert_eq!(b.peers.find(a.slot()).unwrap().id(), at_b.local_peer.id());
    assert_eq!(a.peers.counters(), LocalPeerCounters { met: 1, ..LocalPeerCounters::default() });
}

#[test]
fn the_words_that_say_who_is_inside_are_seen_by_the_other_and_are_not_each_others() {
    let (_a, at_a, _b, at_b) = pair("inside");
    at_a.local_peer.inside().store(7, Ordering::SeqCst);
    assert_eq!(at_b.local_peer.inside_us().load(Ordering::SeqCst), 7);
    assert_eq!(at_b.local_peer.inside().load(Ordering::SeqCst), 0);
    assert_eq!(at_a.local_peer.inside_us().load(Ordering::SeqCst), 0);
}

#[test]
fn two_that_call_each_other_at_once_meet_once() {
    for round in 0..20 {
        let scope = scope(&format!("t{round}"));
        let (mut a, mut b) = (Engine::new(&scope), Engine::new(&scope));
        a.connect(b.slot());
        b.connect(a.slot());
        if round % 2 == 0 {
            settle(&mut a, &mut b);
        } else {
            settle(&mut b, &mut a);
        }
        let (mut at_a, mut at_b) = (met(a.take()), met(b.take()));
        send(&mut at_a, b"once");
        assert_eq!(receive(&mut at_b).as_deref(), Some(&b"once"[..]));
        assert_eq!(a.peers.counters().refused + b.peers.counters().refused, 0);
    }
}

#[test]
fn an_engine_is_its_own_local_peer() {
    let mut a = Engine::new(&scope("self"));
    a.connect(a.slot());
    a.serve();
    let mut own = met(a.take());
    send(&mut own, b"to me");
    assert_eq!(receive(&mut own).as_deref(), Some(&b"to me"[..]));
    own.local_peer.send(b"hear", None).unwrap();
    a.serve();
    assert!(matches!(&a.take()[..], [Event::Message { bytes, .. }] if bytes == b"hear"));
    assert!(!own.local_peer.has_hung_up());
}

#[test]
fn a_slot_that_is_taken_later_is_told_and_leads_to_the_same_local_peer() {
    let (mut a, at_a, mut b, _at_b) = pair("later");
    let later = b.slots.claim().unwrap();
    assert!(a.peers.find(later).is_none());
    b.peers.follow_slots(Nanos(1));
    a.serve();
    assert!(matches!(&a.take()[..], [Event::Slots { slots, .. }] if slots.contains(&later)));
    assert_eq!(a.peers.find(later).unwrap().id(), at_a.local_peer.id());
    a.connect(later);
    settle(&mut a, &mut b);
    assert!(a.take().is_empty() && b.take().is_empty(), "they know each other");
    b.slots.release(later);
    b.peers.follow_slots(Nanos(1));
    settle(&mut b, &mut a);
    assert!(a.peers.find(later).is_none());
}

#[test]
fn what_is_told_arrives_in_order_with_its_file() {
    let (mut a, at_a, _b, at_b) = pair("tell");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    at_b.local_peer.send(b"first", Some(file.as_fd())).unwrap();
    at_b.local_peer.send(&[5; MAX_PAYLOAD_BYTES], None).unwrap();
    assert!(at_b.local_peer.send(&[5; MAX_PAYLOAD_BYTES + 1], None).is_err());
    a.serve();
    let events = a.take();
    let [first, second] = &events[..] else { panic!("{events:?}") };
    let Event::Message { from, bytes, file: Some(got) } = first else { panic!("{first:?}") };
    assert_eq!((*from, &bytes[..]), (at_a.local_peer.id(), &b"first"[..]));
    let inode = |fd| vernic_sys::inode_of(fd).unwrap();
    assert_eq!(inode(got.as_fd()), inode(file.as_fd()));
    assert!(
        matches!(second, Event::Message { bytes, file: None, .. } if bytes.len() == MAX_PAYLOAD_BYTES)
    );
}

#[test]
fn a_local_peer_that_never_stops_talking_is_heard_a_little_at_a_time() {
    let (mut a, _at_a, _b, mut at_b) = pair("talk");
    let mut sleeper = Sleeper::new().unwrap();
    sleeper.watch([a.peers.raw_fd()]);
    let mut heard = Vec::new();
    for _ in 0..3 {
        while at_b.local_peer.send(b"look at me", None).is_ok() {}
        // However often `a` polls in a millisecond.
        (0..100).for_each(|_| a.serve());
        heard.push(a.take().len());
        assert!(!sleeper.sleep(Some(Duration::ZERO)).by_fd, "nobody is kept awake by it");
        a.now = a.peers.deadline(a.now).unwrap();
    }
    assert_eq!(heard, [heard[0]; 3]);
    assert!((1..=32).contains(&heard[0]), "{heard:?}");
    // The latest list of slots is the one that counts.
    for _ in 0..100 {
        a.serve();
        a.now = a.now.plus(1_000_000);
    }
    a.take();
    for _ in 0..8 {
        at_b.local_peer.send_message(&PeerMessage::Slots(vec![Slot::LAST]), &[]).unwrap();
    }
    a.serve();
    assert!(matches!(&a.take()[..], [Event::Slots { slots, .. }] if slots == &[Slot::LAST]));
    // Bells do not count as messages.
    a.peers.sleep_flag().announce();
    send(&mut at_b, b"wake up");
    assert!(sleeper.sleep(Some(Duration::from_secs(60))).by_fd);
}

#[test]
fn who_does_not_listen_is_not_told_for_ever() {
    let (_a, _at_a, _b, at_b) = pair("full");
    let refused = (0..100_000).find_map(|_| at_b.local_peer.send(b"x", None).err());
    assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn who_closes_in_order_says_so_and_who_ends_does_not() {
    for in_order in [true, false] {
        let (mut a, at_a, mut b, at_b) = pair(if in_order { "bye" } else { "killed" });
        let mut events = Vec::new();
        if in_order {
            b.peers.close(&mut events);
            assert!(matches!(events[..], [Event::Gone { in_order: true, .. }]));
            assert!(at_b.local_peer.is_gone());
        } else {
            drop((b, at_b));
        }
        assert!(at_a.local_peer.has_hung_up() && !at_a.local_peer.is_gone());
        a.serve();
        let id = at_a.local_peer.id();
        assert!(
            matches!(a.take()[..], [Event::Gone { from, in_order: o }] if from == id && o == in_order)
        );
        assert!(at_a.local_peer.is_gone());
        assert_eq!(
            at_a.local_peer.send(b"?", None).unwrap_err().kind(),
            io::ErrorKind::NotConnected
        );
        // Shared memory stays mapped as long as something refers to it.
        at_a.local_peer.inside_us().load(Ordering::Relaxed);
    }
}

#[test]
fn a_good_bye_is_heard_though_something_was_left_unread() {
    // The kernel then reports a reset connection before it delivers the good-bye.
    let (mut a, at_a, mut b, _at_b) = pair("unread");
    at_a.local_peer.send(b"never read", None).unwrap();
    b.peers.close(&mut Vec::new());
    a.serve();
    assert!(matches!(a.take()[..], [Event::Gone { in_order: true, .. }]));
}

#[test]
fn a_place_that_is_free_again_is_anothers_with_another_id() {
    let (mut a, at_a, b, at_b) = pair("place");
    let former = at_a.local_peer.id();
    drop((b, at_b, at_a));
    a.serve();
    a.take();
    let mut c = Engine::new(&scope("place"));
    c.connect(a.slot());
    settle(&mut a, &mut c);
    let now = met(a.take()).local_peer.id();
    assert_eq!(now.index(), former.index());
    assert_ne!(now, former);
}

#[test]
fn a_bell_wakes_who_sleeps_on_the_descriptor() {
    let (mut a, _at_a, _b, mut at_b) = pair("bell");
    let mut sleeper = Sleeper::new().unwrap();
    sleeper.watch([a.peers.raw_fd()]);
    assert!(!sleeper.sleep(Some(Duration::ZERO)).by_fd);
    send(&mut at_b, b"nobody sleeps");
    assert!(!sleeper.sleep(Some(Duration::ZERO)).by_fd);
    a.peers.sleep_flag().announce();
    send(&mut at_b, b"wake up");
    assert!(sleeper.sleep(Some(Duration::from_secs(60))).by_fd);
    a.serve();
    a.peers.sleep_flag().awake();
    assert!(!sleeper.sleep(Some(Duration::ZERO)).by_fd, "it was heard");
}

#[test]
fn an_expelled_local_peer_is_gone_at_both_ends() {
    let (mut a, at_a, mut b, at_b) = pair("expel");
    let mut events = Vec::new();
    a.peers.expel(at_a.local_peer.id(), &mut events);
    a.peers.expel(at_a.local_peer.id(), &mut events);
    assert!(matches!(events[..], [Event::Gone { in_order: false, .. }]));
    b.serve();
    assert!(at_b.local_peer.is_gone());
    assert!(matches!(b.take()[..], [Event::Gone { in_order: false, .. }]));
    assert_eq!(a.peers.counters().expelled, 1);
}

/// Connects to `engine` as a process that knows the name of its socket.
fn knock(engine: &Engine) -> OwnFd {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
    let name = engine.slots.neighbour_name(engine.slot());
    sys::connect_abstract(socket.as_fd(), &name).unwrap();
    socket
}

fn hello(ring_bytes: u32) -> PeerMessage {
    hello_of(4711, ring_bytes)
}

fn hello_of(engine: u64, ring_bytes: u32) -> PeerMessage {
    PeerMessage::Hello(Hello { engine, ring_bytes, slots: vec![Slot::LAST] })
}

/// Whether the other end of a connection was closed.
fn is_closed(socket: &OwnFd) -> bool {
    let mut buf = [0; 64];
    loop {
        match sys::recv_packet(socket.as_fd(), &mut buf) {
            Ok(packet) if packet.len == 0 => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn lies_in_a_hello_are_refused() {
    let len = RingMemory::file_bytes(RING);
    let ring = sys::memory_file(len).unwrap();
    let small = sys::memory_file(4096).unwrap();
    let page = sys::memory_file(PAGE_BYTES).unwrap();
    let unsealed = std::fs::File::open("/proc/self/exe").unwrap();
    let cases: [(&str, PeerMessage, Vec<BorrowedFd<'_>>); 12] = [
        ("no files", hello(RING), vec![]),
        ("one file", hello(RING), vec![ring.as_fd()]),
        ("three files", hello(RING), vec![ring.as_fd(), page.as_fd(), page.as_fd()]),
        ("a ring that is too short", hello(RING), vec![small.as_fd(), page.as_fd()]),
        ("a ring that is no memory file", hello(RING), vec![unsealed.as_fd(), page.as_fd()]),
        ("a page that is too long", hello(RING), vec![ring.as_fd(), ring.as_fd()]),
        ("a capacity that is not the file's", hello(2 * RING), vec![ring.as_fd(), page.as_fd()]),
        ("no capacity", hello(0), vec![ring.as_fd(), page.as_fd()]),
        ("no power of two", hello(RING + 64), vec![ring.as_fd(), page.as_fd()]),
        ("a huge ring", hello(1 << 31), vec![ring.as_fd(), page.as_fd()]),
        ("a welcome to nobody", PeerMessage::Ready, vec![]),
        ("something told", PeerMessage::Payload(vec![1]), vec![]),
    ];
    let mut a = Engine::new(&scope("lies"));
    for (n, (what, message, list)) in cases.iter().enumerate() {
        let socket = knock(&a);
        sys::send_packet(socket.as_fd(), &message.emit(), list).unwrap();
        settle_one(&mut a);
        assert!(is_closed(&socket), "{what} with {} files", list.len());
        assert!(a.take().is_empty(), "{what}");
        assert_eq!(a.peers.counters().refused, n as u64 + 1, "{what}");
    }
    // The same with correct files and sizes.
    let socket = knock(&a);
    sys::send_packet(socket.as_fd(), &hello(RING).emit(), &[ring.as_fd(), page.as_fd()]).unwrap();
    settle_one(&mut a);
    assert!(!is_closed(&socket));
    assert_eq!(a.peers.counters().met, 1);
}

fn settle_one(engine: &mut Engine) {
    for _ in 0..5 {
        engine.serve();
    }
}

#[test]
fn a_local_peer_that_says_what_nobody_says_is_expelled() {
    for message in [&b""[..], b"VN\x00\x03\x02", &[0xFF; 4096], &PeerMessage::Ready.emit()] {
        let mut a = Engine::new(&scope("nonsense"));
        let ring = sys::memory_file(RingMemory::file_bytes(RING)).unwrap();
        let page = sys::memory_file(PAGE_BYTES).unwrap();
        let socket = knock(&a);
        let files = [ring.as_fd(), page.as_fd()];
        sys::send_packet(socket.as_fd(), &hello(RING).emit(), &files).unwrap();
        sys::send_packet(socket.as_fd(), &PeerMessage::Ready.emit(), &[]).unwrap();
        settle_one(&mut a);
        assert_eq!(a.peers.counters().met, 1);
        if message.is_empty() {
            // A file with a message that must not have one.
            sys::send_packet(socket.as_fd(), &PeerMessage::Ring.emit(), &files[..1]).unwrap();
        } else {
            sys::send_packet(socket.as_fd(), message, &[]).unwrap();
        }
        settle_one(&mut a);
        assert!(is_closed(&socket), "{message:?}");
        let events = a.take();
        assert!(matches!(events.last(), Some(Event::Gone { in_order: false, .. })), "{events:?}");
        assert_eq!(a.peers.counters().expelled, 1);
    }
}

#[test]
fn who_calls_and_says_nothing_is_given_up_and_many_of_them_keep_nobody_out() {
    let mut a = Engine::new(&scope("silent"));
    let mut silent: Vec<_> = Vec::new();
    for _ in 0..MAX_PENDING_PEERS + 10 {
        silent.push(knock(&a));
        a.serve();
    }
    assert_eq!(a.peers.counters().refused, 10);
    assert!(silent[..10].iter().all(is_closed) && !silent[10..].iter().any(is_closed));
    let mut b = Engine::new(&scope("silent"));
    // With so many calls pending, `a` calls nothing more, but still accepts calls.
    a.connect(b.slot());
    assert_eq!(a.peers.connect_failure(b.slot()), Some(ConnectFailure::TooManyConnects));
    b.connect(a.slot());
    settle(&mut a, &mut b);
    let both = (met(a.take()), met(b.take()));
    assert_eq!(a.peers.deadline(a.now), Some(Nanos(1).plus(PATIENCE.as_nanos() as u64)));
    a.now = a.peers.deadline(a.now).unwrap();
    a.serve();
    assert!(silent.iter().all(is_closed));
    assert_eq!(a.peers.deadline(a.now), None);
    drop(both);
}

#[test]
fn one_more_than_there_can_be_is_refused_before_it_is_welcome_and_met_once_there_is_room() {
    let scope = scope("crowd");
    let (mut a, mut b) = (Engine::new(&scope), Engine::new(&scope));
    let ring = sys::memory_file(RingMemory::file_bytes(RING)).unwrap();
    let page = sys::memory_file(PAGE_BYTES).unwrap();
    let files = [ring.as_fd(), page.as_fd()];
    let mut crowd: Vec<_> = (0..MAX_LOCAL_PEERS as u64)
        .map(|n| {
            let socket = knock(&a);
            sys::send_packet(socket.as_fd(), &hello_of(n, RING).emit(), &files).unwrap();
            settle_one(&mut a);
            socket
        })
        .collect();
    let known = LocalPeerCounters { met: MAX_LOCAL_PEERS as u64, ..LocalPeerCounters::default() };
    assert_eq!(a.peers.counters(), known);
    b.connect(a.slot());
    settle(&mut a, &mut b);
    assert_eq!(a.peers.counters(), LocalPeerCounters { refused: 1, ..known });
    // If `b` had been welcomed first and cut off then, it would take the hang-up for a death.
    assert!(b.take().is_empty() && b.peers.find(a.slot()).is_none());
    assert_eq!(b.peers.connect_failure(a.slot()), Some(ConnectFailure::HungUp));
    // `a` does not call either: it has no room for the answer.
    a.connect(b.slot());
    assert_eq!(a.peers.connect_failure(b.slot()), Some(ConnectFailure::TooManyPeers));
    crowd.pop();
    settle_one(&mut a);
    b.now = b.peers.deadline(b.now).unwrap();
    a.take();
    b.serve();
    settle(&mut a, &mut b);
    met(b.take());
    assert_eq!(a.peers.find(b.slot()).map(|met| met.pid()), Some(std::process::id()));
}

#[test]
fn a_process_that_takes_the_call_and_never_answers_is_given_up_and_left_alone_for_a_while() {
    let scope = scope("mute");
    let mut a = Engine::new(&scope);
    let mute = SlotTable::with_scope(&scope).unwrap();
    let slot = mute.claim().unwrap();
    let door = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
    sys::bind_abstract(door.as_fd(), &mute.neighbour_name(slot)).unwrap();
    sys::listen(door.as_fd(), 5).unwrap();
    a.connect(slot);
    a.connect(slot);
    let mut held = Vec::new();
    let mut calls = |door: &OwnFd| {
        let before = held.len();
        held.extend(std::iter::from_fn(|| sys::accept(door.as_fd()).ok()));
        held.len() - before
    };
    assert_eq!(calls(&door), 1, "one call at a time");
    a.now = a.peers.deadline(a.now).unwrap();
    a.serve();
    a.connect(slot);
    assert_eq!((calls(&door), a.peers.counters().refused), (0, 1));
    a.now = a.now.plus(2_000_000_000);
    a.connect(slot);
    assert_eq!(calls(&door), 1);
}

#[test]
fn a_slot_that_nobody_has_or_that_has_no_door_costs_a_call_and_no_local_peer() {
    let scope = scope("nobody");
    let mut a = Engine::new(&scope);
    let other = SlotTable::with_scope(&scope).unwrap();
    let slot = other.claim().unwrap();
    let none = Slot::of(vernic_wire::Qpn::GSI);
    for slot in [slot, none] {
        a.connect(slot);
        a.serve();
        assert!(a.take().is_empty());
        // A process that may open a socket later is tried again, and a slot that no process can
        // have is not.
        assert_eq!(a.peers.connect_failure(slot).is_some(), slot.is_ordinary());
    }
}

#[test]
fn a_ring_of_another_size_than_a_power_of_two_is_not_made() {
    let slots = SlotTable::with_scope(&scope("size")).unwrap();
    for bytes in [0, 1, 4096, MIN_RING_BYTES - 1, MIN_RING_BYTES + 1, 3 << 16, MAX_RING_BYTES * 2] {
        assert!(Connections::new(slots.clone(), bytes, AccessRules::default()).is_err(), "{bytes}");
    }
}

#[test]
fn two_threads_that_sleep_and_wake_lose_nothing() {
    let (mut a, mut at_a, mut b, mut at_b) = pair("race");
    const MESSAGES: u32 = 20_000;
    let end = Instant::now() + Duration::from_secs(120);
    // Each side answers what it receives, and sleeps when there is nothing to receive.
    let play = |engine: &mut Engine, at: &mut Met, begins: bool| {
        let mut sleeper = Sleeper::new().unwrap();
        sleeper.watch([engine.peers.raw_fd()]);
        let sleep_flag = engine.peers.sleep_flag();
        let mut heard = 0;
        if begins {
            send(at, &0_u32.to_ne_bytes());
        }
        while heard < MESSAGES {
            if let Some(packet) = receive(at) {
                assert_eq!(packet, heard.to_ne_bytes());
                heard += 1;
                let answer = if begins { heard } else { heard - 1 };
                if answer < MESSAGES {
                    send(at, &answer.to_ne_bytes());
                }
                continue;
            }
            sleep_flag.announce();
            if !at.reader.has_news() {
                let woken = sleeper.sleep(Some(end.saturating_duration_since(Instant::now())));
                assert!(woken.by_fd, "a wake-up was lost after {heard} messages");
            }
            sleep_flag.awake();
            engine.serve();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&mut a, &mut at_a, true));
        scope.spawn(|| play(&mut b, &mut at_b, false));
    });
}

//! Local peers of a process that has no descriptors left, or may not share memory: it stays on the
//! wire, says why, does not spin, and connects to them later. Apart from the other tests: limits
//! are the process's.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use vernic_io::Nanos;
use vernic_io::host::{Slot, SlotTable};
use vernic_io::wait::Sleeper;
use vernic_local::{AccessRules, ConnectFailure, Connections, Event, MIN_RING_BYTES, PeerProcess};

fn set_limit(resource: libc::__rlimit_resource_t, value: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to `limit`, which lives through both calls.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, value);
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
        before
    }
}

/// Takes all descriptors that there are, but so many.
fn take_all_but(left: usize) -> Vec<File> {
    let mut taken: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - left);
    taken
}

struct Engine {
    peers: Connections,
    slots: Arc<SlotTable>,
    sleeper: Sleeper,
    events: Vec<Event>,
    now: Nanos,
}

impl Engine {
    fn new(scope: &str) -> Self {
        let slots = SlotTable::with_scope(scope).unwrap();
        slots.claim().unwrap();
        let peers =
            Connections::new(slots.clone(), MIN_RING_BYTES, AccessRules::default()).unwrap();
        let mut sleeper = Sleeper::new().unwrap();
        sleeper.watch([peers.raw_fd()]);
        let mut this = Self { peers, slots, sleeper, events: Vec::new(), now: Nanos(1) };
        this.peers.follow_slots(this.now);
        this
    }

    /// Looks for the slot that the other has.
    fn slot_of(&self, table: &SlotTable) -> Slot {
        let numbers =
            (1..=Slot::LAST.value()).map(|n| Slot::of(vernic_wire::Qpn::new(u32::from(n) << 14)));
        numbers.into_iter().find(|&slot| table.is_ours(slot)).unwrap()
    }

    fn meet(&mut self, other: &Self) {
        let slot = self.slot_of(&other.slots);
        self.peers.connect(slot, std::process::id(), self.now, &mut self.events);
    }

    fn serve(&mut self) {
        self.peers.serve(self.now, &mut self.events);
    }

    /// Serves until nothing is readable any more, which takes a few rounds.
    fn serve_all(&mut self) {
        let rounds = (0..20).find(|_| {
            self.serve();
            !self.sleeper.sleep(Some(Duration::ZERO)).by_fd
        });
        assert!(rounds.is_some(), "it would spin: something stays readable");
    }

    /// Sleeps until it has planned to do something.
    fn wait_for_plan(&mut self) {
        let due = self.peers.deadline(self.now).expect("nothing is planned");
        assert!(due.0 - self.now.0 <= 64_000_000_000, "{due:?}");
        self.now = due;
    }

    fn short(&self) -> u64 {
        self.peers.counters().short
    }

    fn met(&self) -> Vec<&Arc<PeerProcess>> {
        let met = self.events.iter().filter_map(|event| match event {
            Event::Connected { process: local_peer, .. } => Some(local_peer),
            _ => None,
        });
        met.collect()
    }

    fn is_left(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Gone { .. }))
    }
}

fn pair(name: &str) -> (Engine, Engine) {
    let scope = format!("vs{}{name}", std::process::id());
    (Engine::new(&scope), Engine::new(&scope))
}

fn settle(a: &mut Engine, b: &mut Engine) {
    for _ in 0..5 {
        b.serve_all();
        a.serve_all();
    }
}

fn assert_met(a: &Engine, b: &Engine) {
    assert_eq!((a.met().len(), b.met().len()), (1, 1));
    assert!(a.peers.find(a.slot_of(&b.slots)).is_some());
    assert_eq!(a.peers.connect_failure(a.slot_of(&b.slots)), None);
}

fn who_cannot_accept_a_call_takes_it_later() {
    let (mut a, mut b) = pair("accept");
    a.meet(&b);
    let taken = take_all_but(0);
    b.serve_all();
    assert_eq!(b.short(), 1);
    drop(taken);
    b.serve();
    assert!(b.met().is_empty(), "it is not tried before its time");
    b.wait_for_plan();
    settle(&mut a, &mut b);
    assert_met(&a, &b);
}

fn who_has_no_descriptor_for_the_files_of_a_hello_is_called_again() {
    let (mut a, mut b) = pair("hello");
    a.meet(&b);
    let taken = take_all_but(1);
    settle(&mut a, &mut b);
    assert_eq!((b.short(), b.peers.counters().refused), (1, 0));
    let slot = a.slot_of(&b.slots);
    assert_eq!(a.peers.connect_failure(slot), Some(ConnectFailure::HungUp));
    drop(taken);
    a.wait_for_plan();
    settle(&mut a, &mut b);
    assert_met(&a, &b);
}

fn who_has_no_descriptor_for_a_call_calls_later() {
    let (mut a, mut b) = pair("call");
    let slot = a.slot_of(&b.slots);
    let taken = take_all_but(0);
    for tries in 1..=3 {
        a.meet(&b);
        a.meet(&b);
        assert_eq!(
            (a.peers.connect_failure(slot), a.short()),
            (Some(ConnectFailure::Descriptors), tries)
        );
        let before = a.now;
        a.wait_for_plan();
        assert_eq!(a.now.0 - before.0, 1_000_000_000 << (tries - 1), "each time later");
    }
    assert!(ConnectFailure::Descriptors.to_string().contains("ulimit -n"));
    drop(taken);
    settle(&mut a, &mut b);
    assert_met(&a, &b);
}

fn what_runs_out_here_is_not_taken_for_the_peers_fault() {
    // Which of two calls at once ends is drawn at random.
    for round in 0..8 {
        let (mut a, mut b) = pair(&format!("own{round}"));
        a.meet(&b);
        b.meet(&a);
        let taken = take_all_but(1);
        a.serve_all();
        assert_eq!(a.short(), 1, "the files of the call are lost");
        drop(taken);
        b.serve_all();
        a.serve_all();
        let why = a.peers.connect_failure(a.slot_of(&b.slots));
        assert!(matches!(why, None | Some(ConnectFailure::Descriptors)), "{why:?}");
    }
}

fn a_file_of_a_local_peer_that_finds_no_descriptor_is_lost_and_the_local_peer_stays() {
    let (mut a, mut b) = pair("told");
    a.meet(&b);
    settle(&mut a, &mut b);
    let file = File::open("/dev/null").unwrap();
    let teller = b.met()[0].clone();
    let taken = take_all_but(0);
    teller.send(b"lost", Some(file.as_fd())).unwrap();
    teller.send(b"heard", None).unwrap();
    a.serve_all();
    drop(taken);
    teller.send(b"with a file", Some(file.as_fd())).unwrap();
    a.serve_all();
    let told = a.events.iter().filter_map(|event| match event {
        Event::Message { bytes, file, .. } => Some((&bytes[..], file.is_some())),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(&b"heard"[..], false), (b"with a file", true)]);
    assert!(!a.is_left());
    assert_eq!((a.short(), a.peers.counters().expelled), (1, 0));
}

fn a_slot_without_a_socket_gets_one_later() {
    let (mut a, mut b) = pair("door");
    let later = b.slots.claim().unwrap();
    let taken = take_all_but(0);
    b.peers.follow_slots(b.now);
    assert_eq!(b.short(), 1);
    b.wait_for_plan();
    b.serve();
    assert_eq!(b.short(), 2);
    drop(taken);
    a.peers.connect(later, std::process::id(), a.now, &mut a.events);
    assert_eq!(a.peers.connect_failure(later), Some(ConnectFailure::NoListener));
    b.wait_for_plan();
    b.serve();
    a.wait_for_plan();
    settle(&mut a, &mut b);
    assert_eq!((a.met().len(), b.met().len()), (1, 1));
    assert_eq!(a.peers.connect_failure(later), None);
}

fn a_limit_of_file_sizes_is_told_and_ends_nobody() {
    let (mut a, mut b) = pair("size");
    let slot = a.slot_of(&b.slots);
    // The kernel would send a signal that ends the process.
    let before = set_limit(libc::RLIMIT_FSIZE, u64::from(MIN_RING_BYTES));
    a.meet(&b);
    assert_eq!((a.peers.connect_failure(slot), a.short()), (Some(ConnectFailure::Memory), 1));
    set_limit(libc::RLIMIT_FSIZE, before);
    a.wait_for_plan();
    settle(&mut a, &mut b);
    assert_met(&a, &b);
}

#[test]
fn who_runs_out_of_something_stays_on_the_wire_and_tries_again_later() {
    set_limit(libc::RLIMIT_NOFILE, 128);
    who_cannot_accept_a_call_takes_it_later();
    who_has_no_descriptor_for_the_files_of_a_hello_is_called_again();
    who_has_no_descriptor_for_a_call_calls_later();
    what_runs_out_here_is_not_taken_for_the_peers_fault();
    a_file_of_a_local_peer_that_finds_no_descriptor_is_lost_and_the_local_peer_stays();
    a_slot_without_a_socket_gets_one_later();
    a_limit_of_file_sizes_is_told_and_ends_nobody();
}

//! Tests of the revocation protocol: all orders of its steps by exhaustive search, and its code by
//! threads that race.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use super::*;

/// One state of the protocol in the module's head. The model is sequentially consistent, because
/// the fences give that order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    gate: u64,
    inside: u64,
    visitor: u8,
    owner: u8,
    /// The owner uses the memory as its own.
    owned: bool,
    visits_left: u8,
}

/// The state after the next step of the process with the grant; `None` if it has finished.
fn visitor_step(s: &State, announce_first: bool) -> Option<State> {
    let mut next = s.clone();
    next.visitor += 1;
    match (s.visitor, announce_first) {
        (0, true) | (1, false) => next.inside = 1,
        (1, true) | (0, false) if s.gate == 0 => next.visitor = 3,
        (1, true) | (0, false) => {}
        (2, _) => assert!(s.gate == 0 || !s.owned, "the gate opened again"),
        (3, _) => next.inside = 0,
        _ if s.visits_left == 0 => return None,
        _ => (next.visitor, next.visits_left) = (0, s.visits_left - 1),
    }
    Some(next)
}

fn owner_step(s: &State) -> Option<State> {
    let mut next = s.clone();
    match s.owner {
        0 => next.gate = 0,
        1 if s.inside != 0 => return None,
        1 => next.owned = true,
        _ => return None,
    }
    next.owner += 1;
    Some(next)
}

/// Whether, in any order of the steps, a copy happens while the memory is the owner's own.
fn ever_meet(announce_first: bool) -> bool {
    let start = State { gate: 7, inside: 0, visitor: 0, owner: 0, owned: false, visits_left: 2 };
    let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(state) = open.pop() {
        if state.visitor == 2 && state.owned {
            return true;
        }
        for next in [visitor_step(&state, announce_first), owner_step(&state)] {
            if let Some(next) = next
                && seen.insert(next.clone())
            {
                open.push(next);
            }
        }
    }
    false
}

#[test]
fn no_order_of_steps_lets_a_visitor_copy_what_is_the_owners_again() {
    assert!(!ever_meet(true));
    // The search can find errors: reading the revocation word before the announcement is one.
    assert!(ever_meet(false));
}

/// A process with grants that runs in the test's own process.
#[derive(Debug, Default)]
struct Guest {
    word: AtomicU64,
    gone: AtomicBool,
    cut: AtomicBool,
    /// Whether notifications of the process fail.
    deaf: AtomicBool,
    told: AtomicU64,
}

impl Visitor for Guest {
    fn inside(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
    fn cut_off(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }
    fn tell_ended(&self) -> bool {
        self.told.fetch_add(1, Ordering::Relaxed);
        !self.deaf.load(Ordering::Relaxed)
    }
}

const QP: Qpn = Qpn::new(0x11);

/// The process that [`rig`] registers.
const FIRST: VisitorId = VisitorId(1);

fn rig() -> (RevocationWords, PeerGates, Arc<Guest>) {
    let gates = RevocationWords::new().unwrap();
    let peer = PeerGates::open(gates.file()).unwrap();
    let guest = Arc::new(Guest::default());
    assert_eq!(gates.add_process(guest.clone()), FIRST);
    (gates, peer, guest)
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn a_ticket_opens_its_gates_until_either_is_closed() {
    let (gates, peer, guest) = rig();
    let (key, qp) = (gates.issue_key(5).unwrap(), gates.issue_qp(QP, FIRST).unwrap());
    assert_eq!((gates.issue_key(5), gates.issue_qp(QP, FIRST)), (Some(key), Some(qp)));
    let enter = |key, qp| peer.enter(&guest.word, key, qp).is_some();
    assert!(enter(key, qp));
    assert!(!enter(GatePass { value: key.value ^ 2, ..key }, qp));
    assert!(!enter(key, GatePass { number: MAX_GATES, ..qp }));
    assert!(!enter(key, GatePass { number: u32::MAX, ..qp }));
    gates.revoke_qp(QP);
    assert!(!enter(key, qp) && peer.lets(key) && !peer.lets(qp));
    gates.revoke_key(5);
    gates.wait();
    // The words are used again, with other values.
    let (key_2, qp_2) = (gates.issue_key(6).unwrap(), gates.issue_qp(QP, FIRST).unwrap());
    assert_eq!((key_2.number, qp_2.number), (key.number, qp.number));
    assert!(!enter(key, qp) && enter(key_2, qp_2));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn who_was_given_files_is_told_once_when_their_keys_gates_are_closed() {
    let (gates, _, guest) = rig();
    let told = |closed: &[u32]| {
        closed.iter().for_each(|&index| gates.revoke_key(index));
        gates.wait();
        guest.told.swap(0, Ordering::Relaxed)
    };
    let open = |indexes: &[u32]| {
        for &index in indexes {
            gates.issue_key(index).unwrap();
            gates.add_file_holder(index, FIRST);
            gates.add_file_holder(index, FIRST);
        }
    };
    open(&[5, 6, 7]);
    gates.issue_key(8).unwrap();
    assert_eq!(told(&[8]), 0, "it was given no file");
    assert_eq!((told(&[5, 6]), told(&[])), (1, 0), "of two at once");
    // A notification that failed is repeated later.
    guest.deaf.store(true, Ordering::Relaxed);
    assert_eq!(told(&[7]), 1);
    guest.deaf.store(false, Ordering::Relaxed);
    gates.issue_key(8).unwrap();
    assert_eq!(told(&[8]), 1);
    // Nothing is left of another process's grants.
    open(&[5]);
    gates.remove_process(FIRST);
    gates.add_file_holder(5, FIRST);
    assert!(lock(&gates.state).keys[&5].file_holders.is_empty());
    assert_eq!(told(&[5]), 0);
}

/// Revokes while an access is in progress, which ends after a while.
fn closing_waits(close: impl FnOnce(&RevocationWords)) {
    let (gates, peer, guest) = rig();
    let (key, qp) = (gates.issue_key(5).unwrap(), gates.issue_qp(QP, FIRST).unwrap());
    let visit = peer.enter(&guest.word, key, qp).unwrap();
    let left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            left.store(true, Ordering::SeqCst);
            drop(visit);
        });
        close(&gates);
        gates.wait();
        assert!(left.load(Ordering::SeqCst));
    });
    assert!(!guest.cut.load(Ordering::Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn closing_either_gate_waits_for_who_is_inside() {
    closing_waits(|gates| gates.revoke_key(5));
    closing_waits(|gates| gates.revoke_qp(QP));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn closing_other_gates_does_not_wait() {
    let (gates, peer, guest) = rig();
    let (key, qp) = (gates.issue_key(5).unwrap(), gates.issue_qp(QP, FIRST).unwrap());
    gates.issue_key(6).unwrap();
    gates.issue_qp(Qpn::new(0x12), FIRST).unwrap();
    let _visit = peer.enter(&guest.word, key, qp).unwrap();
    gates.revoke_key(6);
    gates.revoke_key(7);
    gates.revoke_qp(Qpn::new(0x12));
    gates.wait();
    assert!(!guest.cut.load(Ordering::Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn who_is_gone_is_not_waited_for_and_who_stays_is_cut_off() {
    let (gates, peer, guest) = rig();
    let (key, qp) = (gates.issue_key(5).unwrap(), gates.issue_qp(QP, FIRST).unwrap());
    std::mem::forget(peer.enter(&guest.word, key, qp).unwrap());
    guest.gone.store(true, Ordering::Relaxed);
    gates.revoke_key(5);
    gates.wait();
    assert!(!guest.cut.load(Ordering::Relaxed));
    guest.gone.store(false, Ordering::Relaxed);
    gates.revoke_qp(QP);
    let since = Instant::now();
    gates.wait();
    assert!(guest.cut.load(Ordering::Relaxed) && since.elapsed() >= PATIENCE);
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn who_was_cut_off_enters_nothing_is_granted_nothing_and_is_never_waited_for_again() {
    let (gates, peer, guest) = rig();
    let other = Arc::new(Guest::default());
    let second = gates.add_process(other.clone());
    let (qp_2, qp_3) = (Qpn::new(0x12), Qpn::new(0x13));
    let (key, other_key) = (gates.issue_key(5).unwrap(), gates.issue_key(6).unwrap());
    let (qp, own_2) = (gates.issue_qp(QP, FIRST).unwrap(), gates.issue_qp(qp_2, FIRST).unwrap());
    let others = gates.issue_qp(qp_3, second).unwrap();
    std::mem::forget(peer.enter(&guest.word, key, qp).unwrap());
    gates.revoke_key(5);
    gates.wait();
    assert!(guest.cut.swap(false, Ordering::Relaxed));
    // All grants of the process are revoked, through every queue pair. Those of other processes are
    // not.
    assert!(!peer.lets(qp) && !peer.lets(own_2) && peer.lets(others));
    assert!(peer.enter(&other.word, other_key, own_2).is_none());
    assert!(gates.issue_qp(qp_2, FIRST).is_none() && !gates.has_process(FIRST));
    // The access is still in progress, and nobody waits for it: neither for the same word, which
    // another process uses now, nor for another word.
    let again = gates.issue_key(7).unwrap().number;
    assert!([key.number, qp.number, own_2.number].contains(&again));
    for index in [6, 7] {
        gates.revoke_key(index);
        gates.wait();
    }
    assert!(!guest.cut.load(Ordering::Relaxed) && !other.cut.load(Ordering::Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn several_who_stay_cost_one_patience() {
    let (gates, peer, guest) = rig();
    let more: Vec<_> = (0..3).map(|_| Arc::new(Guest::default())).collect();
    let key = gates.issue_key(5).unwrap();
    let qp = gates.issue_qp(QP, FIRST).unwrap();
    std::mem::forget(peer.enter(&guest.word, key, qp).unwrap());
    for (i, other) in more.iter().enumerate() {
        let id = gates.add_process(other.clone());
        let qp = gates.issue_qp(Qpn::new(0x20 + i as u32), id).unwrap();
        std::mem::forget(peer.enter(&other.word, key, qp).unwrap());
    }
    gates.revoke_key(5);
    let since = Instant::now();
    gates.wait();
    let took = since.elapsed();
    assert!(more.iter().chain([&guest]).all(|guest| guest.cut.load(Ordering::Relaxed)));
    assert!(PATIENCE <= took && took < 3 * PATIENCE, "{took:?}");
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn a_queue_pair_that_is_another_visitors_now_lets_the_first_no_longer_in() {
    let (gates, peer, guest) = rig();
    let second = gates.add_process(Arc::new(Guest::default()));
    let key = gates.issue_key(5).unwrap();
    let (before, after) = (gates.issue_qp(QP, FIRST).unwrap(), gates.issue_qp(QP, second).unwrap());
    assert!(peer.enter(&guest.word, key, before).is_none());
    assert!(peer.enter(&guest.word, key, after).is_some());
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn racing_visitors_are_never_inside_once_closing_is_over() {
    let (gates, peer, guest) = rig();
    // Odd while the memory is the owner's own.
    let epoch = AtomicU64::new(0);
    let ticket = Mutex::new((gates.issue_key(5).unwrap(), gates.issue_qp(QP, FIRST).unwrap()));
    let (done, visits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (key, qp) = *lock(&ticket);
                for _ in 0..100 {
                    if let Some(_visit) = peer.enter(&guest.word, key, qp) {
                        let before = epoch.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        let after = epoch.load(Ordering::Relaxed);
                        assert!(before == after && before.is_multiple_of(2), "{before} {after}");
                        visits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        for round in 0..20_000_u32 {
            if round % 2 == 0 {
                gates.revoke_key(5);
            } else {
                gates.revoke_qp(QP);
            }
            gates.wait();
            epoch.fetch_add(1, Ordering::Relaxed);
            std::hint::spin_loop();
            epoch.fetch_add(1, Ordering::Relaxed);
            *lock(&ticket) = (gates.issue_key(5).unwrap(), gates.issue_qp(QP, FIRST).unwrap());
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
        while visits.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!guest.cut.load(Ordering::Relaxed));
}

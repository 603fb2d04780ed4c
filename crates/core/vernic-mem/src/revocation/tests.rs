//! Tests of the revocation protocol: all orders of its steps by exhaustive search, and its code by
//! threads that race.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use super::*;

/// One state of the protocol that `revocation` describes. The model is sequentially consistent,
/// because the fences give that order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    word: u64,
    inside: u64,
    process: u8,
    owner: u8,
    /// The owner uses the memory as its own.
    owned: bool,
    accesses_left: u8,
}

/// The state after the next step of the process with the grant; `None` if it has finished.
fn process_step(s: &State, announce_first: bool) -> Option<State> {
    let mut next = s.clone();
    next.process += 1;
    match (s.process, announce_first) {
        (0, true) | (1, false) => next.inside = 1,
        (1, true) | (0, false) if s.word == 0 => next.process = 3,
        (1, true) | (0, false) => {}
        (2, _) => assert!(s.word == 0 || !s.owned, "the word was set again"),
        (3, _) => next.inside = 0,
        _ if s.accesses_left == 0 => return None,
        _ => (next.process, next.accesses_left) = (0, s.accesses_left - 1),
    }
    Some(next)
}

fn owner_step(s: &State) -> Option<State> {
    let mut next = s.clone();
    match s.owner {
        0 => next.word = 0,
        1 if s.inside != 0 => return None,
        1 => next.owned = true,
        _ => return None,
    }
    next.owner += 1;
    Some(next)
}

/// Whether, in any order of the steps, a copy happens while the memory is the owner's own.
fn can_copy_owned_memory(announce_first: bool) -> bool {
    let start = State { word: 7, inside: 0, process: 0, owner: 0, owned: false, accesses_left: 2 };
    let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(state) = open.pop() {
        if state.process == 2 && state.owned {
            return true;
        }
        for next in [process_step(&state, announce_first), owner_step(&state)] {
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
fn in_no_order_of_steps_is_memory_copied_after_its_revocation() {
    assert!(!can_copy_owned_memory(true));
    // The search can find errors: reading the revocation word before the announcement is one.
    assert!(can_copy_owned_memory(false));
}

/// A process with grants that runs in the test's own process.
#[derive(Debug, Default)]
struct TestProcess {
    word: AtomicU64,
    gone: AtomicBool,
    cut: AtomicBool,
    /// Whether notifications of the process fail.
    unreachable: AtomicBool,
    told: AtomicU64,
}

impl GrantedProcess for TestProcess {
    fn access_word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
    fn cut_off(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }
    fn notify_revoked(&self) -> bool {
        self.told.fetch_add(1, Ordering::Relaxed);
        !self.unreachable.load(Ordering::Relaxed)
    }
}

const QP: Qpn = Qpn::new(0x11);

/// The process that [`rig`] registers.
const FIRST: GrantedProcessId = GrantedProcessId(1);

fn rig() -> (RevocationWords, PeerRevocationWords, Arc<TestProcess>) {
    let words = RevocationWords::new().unwrap();
    let peer = PeerRevocationWords::open(words.file()).unwrap();
    let process = Arc::new(TestProcess::default());
    assert_eq!(words.add_process(process.clone()), FIRST);
    (words, peer, process)
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn a_grant_is_valid_until_either_token_is_revoked() {
    let (words, peer, process) = rig();
    let (key, qp) = (words.issue_key(5).unwrap(), words.issue_qp(QP, FIRST).unwrap());
    assert_eq!((words.issue_key(5), words.issue_qp(QP, FIRST)), (Some(key), Some(qp)));
    let enter = |key, qp| peer.begin_access(&process.word, key, qp).is_some();
    assert!(enter(key, qp));
    assert!(!enter(RevocationToken { value: key.value ^ 2, ..key }, qp));
    assert!(!enter(key, RevocationToken { number: MAX_REVOCATION_WORDS, ..qp }));
    assert!(!enter(key, RevocationToken { number: u32::MAX, ..qp }));
    words.revoke_qp(QP);
    assert!(!enter(key, qp) && peer.is_valid(key) && !peer.is_valid(qp));
    words.revoke_key(5);
    words.wait();
    // The words are used again, with other values.
    let (key_2, qp_2) = (words.issue_key(6).unwrap(), words.issue_qp(QP, FIRST).unwrap());
    assert_eq!((key_2.number, qp_2.number), (key.number, qp.number));
    assert!(!enter(key, qp) && enter(key_2, qp_2));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn processes_with_files_are_notified_once_when_keys_are_revoked() {
    let (words, _, process) = rig();
    let told = |closed: &[u32]| {
        closed.iter().for_each(|&index| words.revoke_key(index));
        words.wait();
        process.told.swap(0, Ordering::Relaxed)
    };
    let open = |indexes: &[u32]| {
        for &index in indexes {
            words.issue_key(index).unwrap();
            words.add_file_holder(index, FIRST);
            words.add_file_holder(index, FIRST);
        }
    };
    open(&[5, 6, 7]);
    words.issue_key(8).unwrap();
    assert_eq!(told(&[8]), 0, "it was given no file");
    assert_eq!((told(&[5, 6]), told(&[])), (1, 0), "of two at once");
    // A notification that failed is repeated later.
    process.unreachable.store(true, Ordering::Relaxed);
    assert_eq!(told(&[7]), 1);
    process.unreachable.store(false, Ordering::Relaxed);
    words.issue_key(8).unwrap();
    assert_eq!(told(&[8]), 1);
    // A process that was removed is not recorded as a holder of files.
    open(&[5]);
    words.remove_process(FIRST);
    words.add_file_holder(5, FIRST);
    assert!(lock(&words.state).keys[&5].file_holders.is_empty());
    assert_eq!(told(&[5]), 0);
}

/// Revokes while an access is in progress, which ends after a while.
fn revoking_waits(close: impl FnOnce(&RevocationWords)) {
    let (words, peer, process) = rig();
    let (key, qp) = (words.issue_key(5).unwrap(), words.issue_qp(QP, FIRST).unwrap());
    let access = peer.begin_access(&process.word, key, qp).unwrap();
    let left = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            left.store(true, Ordering::SeqCst);
            drop(access);
        });
        close(&words);
        words.wait();
        assert!(left.load(Ordering::SeqCst));
    });
    assert!(!process.cut.load(Ordering::Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn revoking_either_token_waits_for_accesses_in_progress() {
    revoking_waits(|words| words.revoke_key(5));
    revoking_waits(|words| words.revoke_qp(QP));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn revoking_other_tokens_does_not_wait() {
    let (words, peer, process) = rig();
    let (key, qp) = (words.issue_key(5).unwrap(), words.issue_qp(QP, FIRST).unwrap());
    words.issue_key(6).unwrap();
    words.issue_qp(Qpn::new(0x12), FIRST).unwrap();
    let _access = peer.begin_access(&process.word, key, qp).unwrap();
    words.revoke_key(6);
    words.revoke_key(7);
    words.revoke_qp(Qpn::new(0x12));
    words.wait();
    assert!(!process.cut.load(Ordering::Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn a_process_that_is_gone_is_not_waited_for_and_one_that_stays_is_cut_off() {
    let (words, peer, process) = rig();
    let (key, qp) = (words.issue_key(5).unwrap(), words.issue_qp(QP, FIRST).unwrap());
    std::mem::forget(peer.begin_access(&process.word, key, qp).unwrap());
    process.gone.store(true, Ordering::Relaxed);
    words.revoke_key(5);
    words.wait();
    assert!(!process.cut.load(Ordering::Relaxed));
    process.gone.store(false, Ordering::Relaxed);
    words.revoke_qp(QP);
    let since = Instant::now();
    words.wait();
    assert!(process.cut.load(Ordering::Relaxed) && since.elapsed() >= REVOKE_TIMEOUT);
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn a_process_that_was_cut_off_gets_no_access_and_is_never_waited_for_again() {
    let (words, peer, process) = rig();
    let other = Arc::new(TestProcess::default());
    let second = words.add_process(other.clone());
    let (qp_2, qp_3) = (Qpn::new(0x12), Qpn::new(0x13));
    let (key, other_key) = (words.issue_key(5).unwrap(), words.issue_key(6).unwrap());
    let (qp, own_2) = (words.issue_qp(QP, FIRST).unwrap(), words.issue_qp(qp_2, FIRST).unwrap());
    let others = words.issue_qp(qp_3, second).unwrap();
    std::mem::forget(peer.begin_access(&process.word, key, qp).unwrap());
    words.revoke_key(5);
    words.wait();
    assert!(process.cut.swap(false, Ordering::Relaxed));
    // All grants of the process are revoked, through every queue pair. Those of other processes are
    // not.
    assert!(!peer.is_valid(qp) && !peer.is_valid(own_2) && peer.is_valid(others));
    assert!(peer.begin_access(&other.word, other_key, own_2).is_none());
    assert!(words.issue_qp(qp_2, FIRST).is_none() && !words.has_process(FIRST));
    // The access is still in progress, and the owner does not wait for it: neither when it revokes
    // the same word, which another process uses now, nor when it revokes another word.
    let again = words.issue_key(7).unwrap().number;
    assert!([key.number, qp.number, own_2.number].contains(&again));
    for index in [6, 7] {
        words.revoke_key(index);
        words.wait();
    }
    assert!(!process.cut.load(Ordering::Relaxed) && !other.cut.load(Ordering::Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn several_processes_that_do_not_stop_cost_one_timeout() {
    let (words, peer, process) = rig();
    let more: Vec<_> = (0..3).map(|_| Arc::new(TestProcess::default())).collect();
    let key = words.issue_key(5).unwrap();
    let qp = words.issue_qp(QP, FIRST).unwrap();
    std::mem::forget(peer.begin_access(&process.word, key, qp).unwrap());
    for (i, other) in more.iter().enumerate() {
        let id = words.add_process(other.clone());
        let qp = words.issue_qp(Qpn::new(0x20 + i as u32), id).unwrap();
        std::mem::forget(peer.begin_access(&other.word, key, qp).unwrap());
    }
    words.revoke_key(5);
    let since = Instant::now();
    words.wait();
    let took = since.elapsed();
    assert!(more.iter().chain([&process]).all(|process| process.cut.load(Ordering::Relaxed)));
    assert!(REVOKE_TIMEOUT <= took && took < 3 * REVOKE_TIMEOUT, "{took:?}");
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn a_queue_pair_of_another_process_revokes_the_tokens_of_the_first() {
    let (words, peer, process) = rig();
    let second = words.add_process(Arc::new(TestProcess::default()));
    let key = words.issue_key(5).unwrap();
    let (before, after) = (words.issue_qp(QP, FIRST).unwrap(), words.issue_qp(QP, second).unwrap());
    assert!(peer.begin_access(&process.word, key, before).is_none());
    assert!(peer.begin_access(&process.word, key, after).is_some());
}

#[test]
#[cfg_attr(miri, ignore = "it has no memory files")]
fn no_racing_access_continues_after_a_revocation() {
    let (words, peer, process) = rig();
    // Odd while the memory is the owner's own.
    let epoch = AtomicU64::new(0);
    let tokens = Mutex::new((words.issue_key(5).unwrap(), words.issue_qp(QP, FIRST).unwrap()));
    let (done, accesses) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (key, qp) = *lock(&tokens);
                for _ in 0..100 {
                    if let Some(_access) = peer.begin_access(&process.word, key, qp) {
                        let before = epoch.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        let after = epoch.load(Ordering::Relaxed);
                        assert!(before == after && before.is_multiple_of(2), "{before} {after}");
                        accesses.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        for round in 0..20_000_u32 {
            if round % 2 == 0 {
                words.revoke_key(5);
            } else {
                words.revoke_qp(QP);
            }
            words.wait();
            epoch.fetch_add(1, Ordering::Relaxed);
            std::hint::spin_loop();
            epoch.fetch_add(1, Ordering::Relaxed);
            *lock(&tokens) = (words.issue_key(5).unwrap(), words.issue_qp(QP, FIRST).unwrap());
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
        while accesses.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!process.cut.load(Ordering::Relaxed));
}

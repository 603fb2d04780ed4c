//! RevocationWords: how the owner of memory ends accesses that another process makes by itself.
//!
//! A process of this host that was granted access to a region or window ([`Memory::grant`]) reaches
//! the bytes without the owner's help, and nobody checks its accesses one by one. What it holds is
//! a ticket, and a ticket names *gates*: the key's, and the queue pair's. A gate is a word in a
//! file that the owner writes and others map read-only: 0 is closed, another value is that of the
//! tickets that it lets through, drawn at random, so that a ticket of an earlier use of the gate
//! opens nothing.
//!
//! # Why nobody is inside after a gate was closed
//!
//! A visitor says in a word of its own ([`Visit`]), which the owner can read, that it is inside
//! before it looks at the gates, and takes the word back when it has copied:
//!
//! ```text
//!   visitor                                   owner
//!   V1 inside = both gates' numbers           O1 gate = 0
//!   V2 fence(SeqCst)                          O2 fence(SeqCst)
//!   V3 gates have the ticket's values?        O3 inside names the gate? wait
//!   V4 copies                                 O4 the memory is its own again
//!   V5 inside = nothing (release)
//! ```
//!
//! Both fences are in one total order. If O2 comes first, V3 sees the gate closed, and V4 does not
//! happen. If V2 comes first, O3 sees V1 or something later: while the visitor is inside the owner
//! waits, and the release of V5 makes what it copied visible to the owner, and over before O4. A
//! visitor whose V1 comes after O3 comes after O2. Neither's copies move up before V3: an acquire
//! fence follows it. The word of a visitor changes with each visit (it carries a count), so the
//! owner does not wait for a later visit to another use of the gate.
//!
//! # Who does not leave
//!
//! A visit is bounded by what it copies (some 50 us), but a visitor may be stopped or lie. The
//! owner waits for [`PATIENCE`], for all that are inside at once, then cuts off who is still there
//! ([`Visitor::cut_off`]): the gate of every queue pair through which it was granted anything is
//! closed, so that none of its tickets opens anything any more, it is granted nothing more, and it
//! is never waited for again. One that is gone is not waited for.
//!
//! What a visitor that was cut off may still do is end the piece that it was copying when it was
//! stopped: it looks at its gates again before each ([`Visit::holds`]).
//!
//! # The gate of a send queue
//!
//! A neighbour may copy the bytes of SENDs out of this process's memory by itself
//! ([`Memory::locate`](crate::Memory::locate)), into a receive that it completes afterwards. Nobody
//! waits for it: the gate of the queue pair's send queue, of which each message names the pass
//! ([`Memory::open_send_gate`](crate::Memory::open_send_gate)), is looked at *after* the copy.
//!
//! ```text
//!   reader                                    owner
//!   R1 copies                                 S1 gate = 0
//!   R2 fence(Acquire)                         S2 the send completes in error (release)
//!   R3 gate has the value? completes          S3 the application writes other bytes there
//! ```
//!
//! If R1 has read a byte that S3 wrote, R3 sees S1, which S2 ordered before S3: what was copied is
//! dropped. If R3 sees the value, all that R1 read was there before S1. A send that succeeds does
//! so after the reader's acknowledgement, and that is after R3.
//!
//! # Files of what has ended
//!
//! A visitor that was given the file of a region is told, once its key's gate is closed, to look
//! at its tickets again ([`Visitor::tell_ended`]), so that it does not keep the file mapped. It is
//! told of no key: the gates say which ones have ended, also if an earlier message was lost.
//!
//! The keys of windows have no gates ([`GrantError::Window`](crate::GrantError::Window)): a work
//! request or a packet ends or changes them, in the middle of the work of all queue pairs, and
//! nothing waits there.
//!
//! Limits: [`MAX_GATES`] open at a time, 8 bytes of file each, used from the first on.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vernic_wire::Qpn;

use crate::racy::{LivenessPage, Sentinel, SharedWords};
use crate::random::Random;

/// RevocationWords open at a time: keys and queue pairs that other processes hold tickets of. 8 MiB of file.
pub const MAX_GATES: u32 = 1 << 20;

/// How long a visitor may stay inside a gate that was closed: a thousand times what a visit takes,
/// as long as the longest stall of a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// RevocationWords that memory is taken for at once: a page of most machines.
const WORDS_AT_ONCE: u32 = 512;

/// Bits of a gate in a visitor's word: one more than its number, 0 is none. The key's is lowest,
/// the queue pair's next, then a count of visits.
const NUMBER_BITS: u32 = 21;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const _: () = assert!((MAX_GATES as u64) <= NUMBER_MASK);

/// Looks at a visitor's word before the owner lets others run in between: some 2 us.
const SPIN_LIMIT: u32 = 100;

/// What a ticket says of a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatePass {
    /// Which gate, below [`MAX_GATES`].
    pub number: u32,
    /// What it shows while the ticket is good; never 0.
    pub value: u64,
}

/// Names a visitor of one device. Never used again for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisitorId(u64);

/// Another process that was granted access, as the owner of the memory sees it.
pub trait Visitor: Send + Sync + fmt::Debug {
    /// The word of its [`Visit`]s.
    fn inside(&self) -> u64;
    /// Its process has ended, or is no longer the one that was granted access.
    fn is_gone(&self) -> bool;
    /// It did not leave in time: it was granted no more, and is not waited for any more. Called
    /// once.
    fn cut_off(&self);
    /// The gates of regions are closed of which it was given files. False if it could not be told:
    /// it is, with the next that ends. Does not block.
    fn tell_ended(&self) -> bool;
}

/// The owner's side. See the module's head.
#[derive(Debug)]
pub(crate) struct RevocationWords {
    words: SharedWords,
    sentinel: LivenessPage,
    file: OwnedFd,
    state: Mutex<State>,
    /// Closed, and not known to be empty of visitors.
    revoked: Mutex<Vec<u32>>,
    /// Held while visitors are waited for.
    waiting: Mutex<()>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// By the index part of the key.
    keys: HashMap<u32, KeyWord>,
    /// With the one visitor that it was opened for: the process that the queue pair is connected
    /// to.
    qps: HashMap<Qpn, (u32, VisitorId)>,
    /// Of send queues.
    sends: HashMap<Qpn, u32>,
    free: Vec<u32>,
    /// RevocationWords from here on were never used.
    next_unused: u32,
    /// Those that are waited for.
    processes: Vec<(VisitorId, Arc<dyn Visitor>)>,
    last_id: u64,
    /// Those that are to be told that regions of which they were given files have ended.
    unnotified: Vec<VisitorId>,
}

#[derive(Debug)]
struct KeyWord {
    number: u32,
    /// Those that were given the region's file.
    file_holders: Vec<VisitorId>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics between two changes that belong together.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RevocationWords {
    pub(crate) fn new() -> io::Result<Self> {
        let (words, file) = SharedWords::create(MAX_GATES as usize)?;
        let state = State {
            random: Random::new(),
            keys: HashMap::new(),
            qps: HashMap::new(),
            sends: HashMap::new(),
            free: Vec::new(),
            next_unused: 0,
            processes: Vec::new(),
            last_id: 0,
            unnotified: Vec::new(),
        };
        Ok(Self {
            words,
            sentinel: LivenessPage::new()?,
            file,
            state: Mutex::new(state),
            revoked: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The word by which a visitor knows this process.
    pub(crate) fn sentinel(&self) -> Sentinel {
        self.sentinel.sentinel()
    }

    /// Opens the gate of a key, unless it is open; `None` if there are too many.
    pub(crate) fn issue_key(&self, index: u32) -> Option<GatePass> {
        let mut state = lock(&self.state);
        let number = match state.keys.get(&index) {
            Some(gate) => gate.number,
            None => {
                let number = self.allocate(&mut state)?;
                state.keys.insert(index, KeyWord { number, file_holders: Vec::new() });
                number
            }
        };
        self.issue(&mut state, number)
    }

    /// Notes that the visitor is given the file of a key's region: it is told when the key's gate
    /// is closed.
    pub(crate) fn add_file_holder(&self, index: u32, visitor: VisitorId) {
        let mut state = lock(&self.state);
        if !state.has_process(visitor) {
            return;
        }
        if let Some(gate) = state.keys.get_mut(&index) {
            add(&mut gate.file_holders, visitor);
        }
    }

    /// Opens the gate of a queue pair for a visitor, unless it is open for it; `None` if there are
    /// too many, or if nobody waits for the visitor (any more).
    pub(crate) fn issue_qp(&self, qpn: Qpn, visitor: VisitorId) -> Option<GatePass> {
        let mut state = lock(&self.state);
        if !state.has_process(visitor) {
            return None;
        }
        if let Some(&(number, known)) = state.qps.get(&qpn) {
            if known == visitor {
                return self.issue(&mut state, number);
            }
            // Connected to another process since.
            state.qps.remove(&qpn);
            self.revoke(&mut state, number);
        }
        let number = self.allocate(&mut state)?;
        state.qps.insert(qpn, (number, visitor));
        self.issue(&mut state, number)
    }

    /// Opens the gate of a queue pair's send queue, unless it is open; `None` if there are too
    /// many.
    pub(crate) fn issue_send(&self, qpn: Qpn) -> Option<GatePass> {
        let mut state = lock(&self.state);
        let number = match state.sends.get(&qpn) {
            Some(&number) => number,
            None => {
                let number = self.allocate(&mut state)?;
                state.sends.insert(qpn, number);
                number
            }
        };
        self.issue(&mut state, number)
    }

    /// Closes the gate of a queue pair's send queue, if it is open. Nobody goes inside, so nobody
    /// is waited for.
    pub(crate) fn revoke_send(&self, qpn: Qpn) {
        let mut state = lock(&self.state);
        if let Some(number) = state.sends.remove(&qpn) {
            if let Some(word) = self.words.word(number) {
                word.store(0, Ordering::SeqCst);
            }
            state.free.push(number);
        }
    }

    /// A gate that nobody uses, of which there is memory; `None` if there is none.
    fn allocate(&self, state: &mut State) -> Option<u32> {
        if let Some(number) = state.free.pop() {
            return Some(number);
        }
        let number = state.next_unused;
        if number >= MAX_GATES {
            return None;
        }
        if number.is_multiple_of(WORDS_AT_ONCE) {
            SharedWords::reserve(&self.file, number, WORDS_AT_ONCE).ok()?;
        }
        state.next_unused += 1;
        Some(number)
    }

    fn issue(&self, state: &mut State, number: u32) -> Option<GatePass> {
        let word = self.words.word(number)?;
        // The owner alone writes.
        let mut value = word.load(Ordering::Relaxed);
        if value == 0 {
            value = state.random.next() | 1;
            word.store(value, Ordering::Release);
        }
        Some(GatePass { number, value })
    }

    /// Closes the gate of a key, if it is open. [`wait`](Self::wait) waits for who is inside.
    pub(crate) fn revoke_key(&self, index: u32) {
        let mut state = lock(&self.state);
        if let Some(gate) = state.keys.remove(&index) {
            self.revoke(&mut state, gate.number);
            gate.file_holders.into_iter().for_each(|visitor| add(&mut state.unnotified, visitor));
        }
    }

    /// Closes the gate of a queue pair, if it is open. [`wait`](Self::wait) waits for who is
    /// inside.
    pub(crate) fn revoke_qp(&self, qpn: Qpn) {
        let mut state = lock(&self.state);
        if let Some((number, _)) = state.qps.remove(&qpn) {
            self.revoke(&mut state, number);
        }
    }

    fn revoke(&self, state: &mut State, number: u32) {
        if let Some(word) = self.words.word(number) {
            word.store(0, Ordering::SeqCst);
        }
        lock(&self.revoked).push(number);
        state.free.push(number);
    }

    /// Closes every gate.
    pub(crate) fn revoke_all(&self) {
        let mut state = lock(&self.state);
        let open: Vec<u32> = state.keys.drain().map(|(_, gate)| gate.number).collect();
        let qps: Vec<u32> = state.qps.drain().map(|(_, (number, _))| number).collect();
        let sends: Vec<u32> = state.sends.drain().map(|(_, number)| number).collect();
        open.into_iter().chain(qps).chain(sends).for_each(|number| self.revoke(&mut state, number));
    }

    /// Returns when nobody is inside a gate that was closed before the call: within [`PATIENCE`],
    /// however many do not leave, or twice that if another thread waits already.
    pub(crate) fn wait(&self) {
        // Whoever holds it may be waiting for a gate of ours.
        let _waiting = lock(&self.waiting);
        let closed = std::mem::take(&mut *lock(&self.revoked));
        if closed.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        let (visitors, unnotified) = {
            let mut state = lock(&self.state);
            (state.processes.clone(), std::mem::take(&mut state.unnotified))
        };
        // Before anybody is waited for: one that is stopped hears of it when it goes on.
        for (id, visitor) in visitors.iter().filter(|(id, _)| unnotified.contains(id)) {
            if !visitor.tell_ended() {
                add(&mut lock(&self.state).unnotified, *id);
            }
        }
        let since = Instant::now();
        for (id, visitor) in visitors {
            if !wait_for(&*visitor, &closed, since) {
                self.remove_process(id);
                visitor.cut_off();
            }
        }
    }

    /// Whether the visitor is waited for.
    pub(crate) fn has_process(&self, visitor: VisitorId) -> bool {
        lock(&self.state).has_process(visitor)
    }

    pub(crate) fn add_process(&self, visitor: Arc<dyn Visitor>) -> VisitorId {
        let mut state = lock(&self.state);
        state.last_id += 1;
        let id = VisitorId(state.last_id);
        state.processes.push((id, visitor));
        id
    }

    /// Closes what was opened for it, so that it enters nothing any more, and waits for it no
    /// longer.
    pub(crate) fn remove_process(&self, id: VisitorId) {
        let mut state = lock(&self.state);
        let opened = state.qps.iter().filter(|(_, (_, visitor))| *visitor == id);
        for qpn in opened.map(|(&qpn, _)| qpn).collect::<Vec<_>>() {
            if let Some((number, _)) = state.qps.remove(&qpn) {
                self.revoke(&mut state, number);
            }
        }
        state.keys.values_mut().for_each(|gate| gate.file_holders.retain(|holder| *holder != id));
        state.unnotified.retain(|visitor| *visitor != id);
        let at = state.processes.iter().position(|(known, _)| *known == id);
        let gone = at.map(|at| state.processes.swap_remove(at));
        // Outside the lock: it may be the last to hold on to the neighbour.
        drop(state);
        drop(gone);
    }
}

impl Drop for RevocationWords {
    /// Visitors have the file mapped for longer than we do.
    fn drop(&mut self) {
        self.revoke_all();
    }
}

impl State {
    fn has_process(&self, visitor: VisitorId) -> bool {
        self.processes.iter().any(|(id, _)| *id == visitor)
    }
}

/// Adds a visitor that is not there.
fn add(visitors: &mut Vec<VisitorId>, visitor: VisitorId) {
    if !visitors.contains(&visitor) {
        visitors.push(visitor);
    }
}

/// Waits until the visitor is in none of the gates, or is gone; false if it loses our patience,
/// which began at `since`.
fn wait_for(visitor: &dyn Visitor, closed: &[u32], since: Instant) -> bool {
    let seen = visitor.inside();
    if !words_in(seen).any(|number| closed.contains(&number)) {
        return true;
    }
    let mut looks = 0;
    // Any change of the word is the end of that visit.
    while visitor.inside() == seen {
        looks += 1;
        if looks < SPIN_LIMIT {
            std::hint::spin_loop();
            continue;
        }
        if visitor.is_gone() {
            return true;
        }
        if since.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// The gates that a visitor's word names.
fn words_in(inside: u64) -> impl Iterator<Item = u32> {
    [inside, inside >> NUMBER_BITS].into_iter().filter_map(|part| {
        let number = (part & NUMBER_MASK).checked_sub(1)?;
        Some(number as u32)
    })
}

/// The gates of another process, as its visitor sees them.
#[derive(Debug)]
pub struct PeerGates(SharedWords);

impl PeerGates {
    /// Maps the file of [`Memory::gates_file`](crate::Memory::gates_file) of another process.
    ///
    /// # Errors
    /// `InvalidData` if it is anything else, and what `mmap` says.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        SharedWords::open(file, MAX_GATES as usize).map(Self)
    }

    #[inline(always)]
    fn is_open(&self, pass: GatePass) -> bool {
        self.0.word(pass.number).is_some_and(|word| word.load(Ordering::Relaxed) == pass.value)
    }

    /// Whether the gate still lets this ticket through: what is seen now may be over at once.
    pub fn lets(&self, pass: GatePass) -> bool {
        self.is_open(pass)
    }

    /// As [`lets`](Self::lets), for who has read what the gate is for: if it does, what was read
    /// was there while it was open.
    #[inline]
    pub fn still_lets(&self, pass: GatePass) -> bool {
        // No read before moves down behind the look.
        fence(Ordering::Acquire);
        self.is_open(pass)
    }

    /// Goes inside, if both gates of a ticket let it. `inside` is the visitor's word, which the
    /// owner sees and no other thread writes. Accesses are permitted until the visit is dropped,
    /// and only while it [holds](Visit::holds).
    #[inline]
    pub fn enter<'w>(
        &'w self,
        inside: &'w AtomicU64,
        key: GatePass,
        qp: GatePass,
    ) -> Option<Visit<'w>> {
        const ONE: u64 = 1 << (2 * NUMBER_BITS);
        let count = (inside.load(Ordering::Relaxed) & !(ONE - 1)).wrapping_add(ONE);
        let numbers = ((u64::from(qp.number) + 1) << NUMBER_BITS) | (u64::from(key.number) + 1);
        if numbers >= ONE {
            // No number that an owner gives out.
            return None;
        }
        inside.store(count | numbers, Ordering::Relaxed);
        let visit = Visit { inside, count, gates: self, key, qp };
        fence(Ordering::SeqCst);
        visit.holds().then_some(visit)
    }
}

/// A visitor is inside.
#[derive(Debug)]
pub struct Visit<'w> {
    inside: &'w AtomicU64,
    count: u64,
    gates: &'w PeerGates,
    key: GatePass,
    qp: GatePass,
}

impl Visit<'_> {
    /// Whether both gates are open still. If not, the owner waits for the end of the visit, or has
    /// lost its patience with a visitor that was stopped meanwhile: nothing may be accessed any
    /// more.
    #[inline]
    pub fn holds(&self) -> bool {
        let open = self.gates.is_open(self.key) && self.gates.is_open(self.qp);
        // No access that follows moves up before the look.
        fence(Ordering::Acquire);
        open
    }
}

impl Drop for Visit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.inside.store(self.count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;

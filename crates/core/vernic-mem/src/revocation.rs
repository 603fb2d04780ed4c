//! Revocation words: how the owner of memory ends the direct accesses of another process.
//!
//! A process of this host that was granted access to a region
//! ([`Memory::grant`](crate::Memory::grant)) copies the bytes without the owner's help, and the
//! owner does not check each access. A grant holds tokens ([`RevocationToken`]) for two *revocation
//! words*: one of the key, one of the queue pair. The words lie in a file that the owner writes and
//! the other processes map read-only. A word is 0 while everything is revoked. Otherwise it has the
//! value of the valid tokens. The owner draws the value at random, so a token from an earlier use
//! of the word is invalid.
//!
//! # Why no access continues after a revocation
//!
//! The process with the grant has an *access word* ([`PeerAccess`]) that the owner can read. Before
//! it looks at the revocation words, it stores there that an access is in progress. After the copy,
//! it clears the access word:
//!
//! ```text
//!   process with the grant                    owner
//!   P1 access word = numbers of both words    O1 revocation word = 0
//!   P2 fence(SeqCst)                          O2 fence(SeqCst)
//!   P3 both words have the tokens' values?    O3 access word names the word? wait
//!   P4 copy                                   O4 the memory is the owner's own again
//!   P5 access word = none (release)
//! ```
//!
//! Both fences are in one total order. If O2 comes first, P3 sees the 0, and P4 does not happen. If
//! P2 comes first, O3 sees the value of P1 or a later one. So the owner waits while the access is
//! in progress. The release of P5 makes the copied bytes visible to the owner, and completes the
//! copy before O4. If P1 comes after O3, then P2 comes after O2. No copy moves up before P3,
//! because an acquire fence follows P3. The access word contains a counter and so changes with each
//! access. So the owner does not wait for a later access by another use of the same revocation
//! word.
//!
//! # Processes that do not stop
//!
//! An access is short: some 50 us for the largest copy. But the process may be stopped, or may lie.
//! The owner waits for at most [`REVOKE_TIMEOUT`], for all processes at once, and then cuts the
//! remaining ones off ([`GrantedProcess::cut_off`]). It revokes the word of every queue pair
//! through which such a process was granted anything, so all tokens of the process are invalid. The
//! process gets no more grants, and the owner never waits for it again. The owner does not wait for
//! a process that is gone.
//!
//! A process that was cut off can still do one thing: complete the piece that it was copying when
//! it was stopped. It checks the revocation words again before each piece
//! ([`PeerAccess::is_valid`]).
//!
//! # The revocation word of a send queue
//!
//! A process on the same host may copy the bytes of SENDs out of this process's memory
//! ([`LocalPart::locate`](crate::LocalPart::locate)) into a receive buffer, and then complete the
//! receive. The owner does not wait for such copies. Each message carries a token of the queue
//! pair's send queue ([`Memory::send_token`](crate::Memory::send_token)), and the reader checks it
//! *after* the copy.
//!
//! ```text
//!   reader                                    owner
//!   R1 copy                                   S1 revocation word = 0
//!   R2 fence(Acquire)                         S2 the send completes in error (release)
//!   R3 word has the token's value? complete   S3 the application writes other bytes there
//! ```
//!
//! If R1 has read a byte that S3 wrote, R3 sees S1, because S2 ordered S1 before S3. The reader
//! then drops the copied bytes. If R3 sees the value, all bytes that R1 read were there before S1.
//! A send that succeeds does so after the reader's acknowledgement, which comes after R3.
//!
//! # Files of regions that have ended
//!
//! A process may have received the file of a region. When the key is revoked, the owner notifies
//! the process ([`GrantedProcess::notify_revoked`]). The process then checks its tokens and unmaps
//! what was revoked. The notification names no key. The revocation words show which keys were
//! revoked, even if an earlier notification was lost.
//!
//! The keys of windows have no revocation words
//! ([`GrantError::Window`](crate::GrantError::Window)). A work request or a packet ends or changes
//! a window, while all queue pairs of the lane are being served, and nothing may wait there.
//!
//! Limits: [`MAX_REVOCATION_WORDS`] words in use at a time. Each takes 8 bytes of the file from its
//! first use on.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vernic_wire::Qpn;

use crate::racy::{LivenessPage, LivenessWord, SharedWords};
use crate::random::Random;

/// Number of revocation words: one for each key and queue pair that other processes hold tokens
/// for. The file has 8 MiB.
pub const MAX_REVOCATION_WORDS: u32 = 1 << 20;

/// How long an access may continue after its revocation. It is a thousand times the usual duration
/// of an access, and as long as the longest stall of a busy machine.
pub const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of revocation words for which the file's memory is reserved at once: one page of most
/// machines.
const WORDS_AT_ONCE: u32 = 512;

/// Bits of a revocation word's number in an access word. The field holds the number plus one, 0
/// means none. The key's field is lowest, the queue pair's is next, then comes the counter of
/// accesses.
const NUMBER_BITS: u32 = 21;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const _: () = assert!((MAX_REVOCATION_WORDS as u64) <= NUMBER_MASK);

/// How often the owner reads an access word before it lets other threads run: some 2 us.
const SPIN_LIMIT: u32 = 100;

/// A token for a revocation word. A grant is valid while all its tokens are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RevocationToken {
    /// Number of the revocation word, below [`MAX_REVOCATION_WORDS`].
    pub number: u32,
    /// Value of the word while the token is valid; never 0.
    pub value: u64,
}

/// Identifies a process with grants, per device. An id is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedProcessId(u64);

/// Another process that may have grants, as the owner of the memory sees it.
pub trait GrantedProcess: Send + Sync + fmt::Debug {
    /// The present value of the process's access word (see [`PeerAccess`]).
    fn access_word(&self) -> u64;
    /// Whether the process has ended, or is no longer the one that was granted access.
    fn is_gone(&self) -> bool;
    /// Called once, when the process did not stop its access in time. It gets no more grants, and
    /// the owner no longer waits for it.
    fn cut_off(&self);
    /// Notifies the process that keys were revoked whose files it had received. Returns false if it
    /// could not be notified; the next revocation tries again. Does not block.
    fn notify_revoked(&self) -> bool;
    /// Called after tokens were revoked, and accesses by them have ended. The function says which
    /// tokens are still valid. Does not block.
    fn handle_revocation(&self, _is_valid: &dyn Fn(RevocationToken) -> bool) {}
}

/// The revocation words of one device, as the owner of the memory uses them: see the head of this
/// module.
#[derive(Debug)]
pub(crate) struct RevocationWords {
    words: SharedWords,
    liveness: LivenessPage,
    file: OwnedFd,
    state: Mutex<State>,
    /// Words that were revoked, and on which accesses may still be in progress.
    revoked: Mutex<Vec<u32>>,
    /// Held while a thread waits for accesses to end.
    waiting: Mutex<()>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Words of keys, by the index part of the key.
    keys: HashMap<u32, KeyWord>,
    /// Words of queue pairs. Each has the one process that may hold tokens for it: the process of
    /// the connected queue pair.
    qps: HashMap<Qpn, (u32, GrantedProcessId)>,
    /// Words of send queues.
    sends: HashMap<Qpn, u32>,
    free: Vec<u32>,
    /// The lowest number of a word that was never used.
    next_unused: u32,
    /// The registered processes. A revocation waits until their accesses have ended.
    processes: Vec<(GrantedProcessId, Arc<dyn GrantedProcess>)>,
    last_id: u64,
    /// Processes that hold files of revoked keys, and were not notified.
    unnotified: Vec<GrantedProcessId>,
}

#[derive(Debug)]
struct KeyWord {
    number: u32,
    /// Processes that received the region's file.
    file_holders: Vec<GrantedProcessId>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is safe to use: no code panics between two changes that belong together.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RevocationWords {
    pub(crate) fn new() -> io::Result<Self> {
        let (words, file) = SharedWords::create(MAX_REVOCATION_WORDS as usize)?;
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
            liveness: LivenessPage::new()?,
            file,
            state: Mutex::new(state),
            revoked: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The liveness word of this process.
    pub(crate) fn liveness_word(&self) -> LivenessWord {
        self.liveness.liveness_word()
    }

    /// Returns a token for a key. `None` if no word is free.
    pub(crate) fn issue_key(&self, index: u32) -> Option<RevocationToken> {
        let mut state = lock(&self.state);
        let number = match state.keys.get(&index) {
            Some(word) => word.number,
            None => {
                let number = self.allocate(&mut state)?;
                state.keys.insert(index, KeyWord { number, file_holders: Vec::new() });
                number
            }
        };
        self.issue(&mut state, number)
    }

    /// Records that the process receives the file of the key's region, to notify it when the key is
    /// revoked.
    pub(crate) fn add_file_holder(&self, index: u32, process: GrantedProcessId) {
        let mut state = lock(&self.state);
        if !state.has_process(process) {
            return;
        }
        if let Some(word) = state.keys.get_mut(&index) {
            add(&mut word.file_holders, process);
        }
    }

    /// Returns a token for a queue pair, to be given to the process. `None` if no word is free, or
    /// the process is not registered (any more).
    pub(crate) fn issue_qp(&self, qpn: Qpn, process: GrantedProcessId) -> Option<RevocationToken> {
        let mut state = lock(&self.state);
        if !state.has_process(process) {
            return None;
        }
        if let Some(&(number, known)) = state.qps.get(&qpn) {
            if known == process {
                return self.issue(&mut state, number);
            }
            // The queue pair was connected to another process before.
            state.qps.remove(&qpn);
            self.revoke(&mut state, number);
        }
        let number = self.allocate(&mut state)?;
        state.qps.insert(qpn, (number, process));
        self.issue(&mut state, number)
    }

    /// Returns a token for the send queue of a queue pair. `None` if no word is free.
    pub(crate) fn issue_send(&self, qpn: Qpn) -> Option<RevocationToken> {
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

    /// Revokes the tokens of a send queue. No process announces an access to a send queue, so there
    /// is nothing to wait for.
    pub(crate) fn revoke_send(&self, qpn: Qpn) {
        let mut state = lock(&self.state);
        if let Some(number) = state.sends.remove(&qpn) {
            if let Some(word) = self.words.word(number) {
                word.store(0, Ordering::SeqCst);
            }
            state.free.push(number);
        }
    }

    /// Takes an unused revocation word, and makes sure that its memory is reserved. `None` if no
    /// word or no memory is left.
    fn allocate(&self, state: &mut State) -> Option<u32> {
        if let Some(number) = state.free.pop() {
            return Some(number);
        }
        let number = state.next_unused;
        if number >= MAX_REVOCATION_WORDS {
            return None;
        }
        if number.is_multiple_of(WORDS_AT_ONCE) {
            SharedWords::reserve(&self.file, number, WORDS_AT_ONCE).ok()?;
        }
        state.next_unused += 1;
        Some(number)
    }

    fn issue(&self, state: &mut State, number: u32) -> Option<RevocationToken> {
        let word = self.words.word(number)?;
        // Relaxed is enough: only the owner writes, under the lock of `state`.
        let mut value = word.load(Ordering::Relaxed);
        if value == 0 {
            value = state.random.next() | 1;
            word.store(value, Ordering::Release);
        }
        Some(RevocationToken { number, value })
    }

    /// Whether a token that was issued here was not revoked since.
    pub(crate) fn is_valid(&self, token: RevocationToken) -> bool {
        let word = self.words.word(token.number);
        word.is_some_and(|word| word.load(Ordering::SeqCst) == token.value)
    }

    /// Revokes the tokens of a key. [`wait`](Self::wait) waits for accesses in progress.
    pub(crate) fn revoke_key(&self, index: u32) {
        let mut state = lock(&self.state);
        if let Some(word) = state.keys.remove(&index) {
            self.revoke(&mut state, word.number);
            word.file_holders.into_iter().for_each(|process| add(&mut state.unnotified, process));
        }
    }

    /// Revokes the tokens of a queue pair. [`wait`](Self::wait) waits for accesses in progress.
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

    /// Revokes all tokens.
    pub(crate) fn revoke_all(&self) {
        let mut state = lock(&self.state);
        let open: Vec<u32> = state.keys.drain().map(|(_, word)| word.number).collect();
        let qps: Vec<u32> = state.qps.drain().map(|(_, (number, _))| number).collect();
        let sends: Vec<u32> = state.sends.drain().map(|(_, number)| number).collect();
        open.into_iter().chain(qps).chain(sends).for_each(|number| self.revoke(&mut state, number));
    }

    /// Waits until no process accesses memory by a token that was revoked before this call. Takes
    /// at most [`REVOKE_TIMEOUT`], however many processes do not stop, or twice that if another
    /// thread is already waiting.
    pub(crate) fn wait(&self) {
        // The thread that holds this lock may be waiting for a word that the caller has revoked.
        let _waiting = lock(&self.waiting);
        let revoked = std::mem::take(&mut *lock(&self.revoked));
        if revoked.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        let (processes, unnotified) = {
            let mut state = lock(&self.state);
            (state.processes.clone(), std::mem::take(&mut state.unnotified))
        };
        // Notify before waiting, so that a stopped process finds the notification when it
        // continues.
        for (id, process) in processes.iter().filter(|(id, _)| unnotified.contains(id)) {
            if !process.notify_revoked() {
                add(&mut lock(&self.state).unnotified, *id);
            }
        }
        let since = Instant::now();
        for (id, process) in processes {
            if wait_for(&*process, &revoked, since) {
                process.handle_revocation(&|token| self.is_valid(token));
            } else {
                self.remove_process(id);
                process.cut_off();
            }
        }
    }

    /// Whether the process is registered, so that revocations wait for it.
    pub(crate) fn has_process(&self, process: GrantedProcessId) -> bool {
        lock(&self.state).has_process(process)
    }

    pub(crate) fn add_process(&self, process: Arc<dyn GrantedProcess>) -> GrantedProcessId {
        let mut state = lock(&self.state);
        state.last_id += 1;
        let id = GrantedProcessId(state.last_id);
        state.processes.push((id, process));
        id
    }

    /// Unregisters a process. Revokes the words of its queue pairs, so that it starts no new
    /// access, and stops waiting for it.
    pub(crate) fn remove_process(&self, id: GrantedProcessId) {
        let mut state = lock(&self.state);
        let opened = state.qps.iter().filter(|(_, (_, process))| *process == id);
        for qpn in opened.map(|(&qpn, _)| qpn).collect::<Vec<_>>() {
            if let Some((number, _)) = state.qps.remove(&qpn) {
                self.revoke(&mut state, number);
            }
        }
        state.keys.values_mut().for_each(|word| word.file_holders.retain(|holder| *holder != id));
        state.unnotified.retain(|process| *process != id);
        let at = state.processes.iter().position(|(known, _)| *known == id);
        let gone = at.map(|at| state.processes.swap_remove(at));
        // Dropped after the lock is released: this may be the last reference to the process's
        // record.
        drop(state);
        drop(gone);
    }
}

impl Drop for RevocationWords {
    /// Revokes all tokens, because other processes may keep the file mapped for longer.
    fn drop(&mut self) {
        self.revoke_all();
    }
}

impl State {
    fn has_process(&self, process: GrantedProcessId) -> bool {
        self.processes.iter().any(|(id, _)| *id == process)
    }
}

/// Adds a process to the list, unless it is already there.
fn add(processes: &mut Vec<GrantedProcessId>, process: GrantedProcessId) {
    if !processes.contains(&process) {
        processes.push(process);
    }
}

/// Waits until the process's access uses none of the revoked words, or the process is gone. Returns
/// false if the access is still in progress [`REVOKE_TIMEOUT`] after `since`.
fn wait_for(process: &dyn GrantedProcess, revoked: &[u32], since: Instant) -> bool {
    let seen = process.access_word();
    if !words_in(seen).any(|number| revoked.contains(&number)) {
        return true;
    }
    let mut looks = 0;
    // Each access changes the word, so any change means that the access has ended.
    while process.access_word() == seen {
        looks += 1;
        if looks < SPIN_LIMIT {
            std::hint::spin_loop();
            continue;
        }
        if process.is_gone() {
            return true;
        }
        if since.elapsed() > REVOKE_TIMEOUT {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// The numbers of the revocation words that an access word names.
fn words_in(access_word: u64) -> impl Iterator<Item = u32> {
    [access_word, access_word >> NUMBER_BITS].into_iter().filter_map(|part| {
        let number = (part & NUMBER_MASK).checked_sub(1)?;
        Some(number as u32)
    })
}

/// The revocation words of another process, mapped read-only.
#[derive(Debug)]
pub struct PeerRevocationWords(SharedWords);

impl PeerRevocationWords {
    /// Maps the file that another process got from
    /// [`Memory::revocation_file`](crate::Memory::revocation_file).
    ///
    /// # Errors
    /// `InvalidData` for any other file; errors of `mmap`.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        SharedWords::open(file, MAX_REVOCATION_WORDS as usize).map(Self)
    }

    /// Whether the token is valid now. It may be revoked at any moment.
    #[inline(always)]
    pub fn is_valid(&self, token: RevocationToken) -> bool {
        self.0.word(token.number).is_some_and(|word| word.load(Ordering::Relaxed) == token.value)
    }

    /// Whether the token is still valid after the caller has read memory. If so, the memory
    /// belonged to the grant during the whole read.
    #[inline]
    pub fn is_valid_after_read(&self, token: RevocationToken) -> bool {
        // The fence keeps earlier reads before the check.
        fence(Ordering::Acquire);
        self.is_valid(token)
    }

    /// Begins an access, if both tokens are valid. `access_word` is the access word of this
    /// process. The owner reads it, and no other thread writes it. The access ends when the
    /// returned value is dropped. Memory may be accessed only while [`PeerAccess::is_valid`]
    /// returns true.
    #[inline]
    pub fn begin_access<'w>(
        &'w self,
        access_word: &'w AtomicU64,
        key: RevocationToken,
        qp: RevocationToken,
    ) -> Option<PeerAccess<'w>> {
        const ONE: u64 = 1 << (2 * NUMBER_BITS);
        let count = (access_word.load(Ordering::Relaxed) & !(ONE - 1)).wrapping_add(ONE);
        let numbers = ((u64::from(qp.number) + 1) << NUMBER_BITS) | (u64::from(key.number) + 1);
        if numbers >= ONE {
            // An owner never issues such a number.
            return None;
        }
        access_word.store(count | numbers, Ordering::Relaxed);
        let access = PeerAccess { access_word, count, words: self, key, qp };
        fence(Ordering::SeqCst);
        access.is_valid().then_some(access)
    }
}

/// An access in progress to memory of another process, whose owner can see it in the access word.
#[derive(Debug)]
pub struct PeerAccess<'w> {
    access_word: &'w AtomicU64,
    count: u64,
    words: &'w PeerRevocationWords,
    key: RevocationToken,
    qp: RevocationToken,
}

impl PeerAccess<'_> {
    /// Whether both tokens are still valid. If not, the caller must access nothing more. The owner
    /// then waits for the end of this access, or has stopped waiting because this process was
    /// stopped too long.
    #[inline]
    pub fn is_valid(&self) -> bool {
        let valid = self.words.is_valid(self.key) && self.words.is_valid(self.qp);
        // The fence keeps later accesses after the check.
        fence(Ordering::Acquire);
        valid
    }
}

impl Drop for PeerAccess<'_> {
    #[inline]
    fn drop(&mut self) {
        self.access_word.store(self.count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;

//! Whose turn it is to have a connection go over to RDMA: one process's at a time, since it listens
//! on the port of all.
//!
//! The turn is a semaphore of the system, known by name to all processes and to rdma-core's
//! library. A process that is killed in its turn does not give it back. So processes of this
//! library keep an account beside it: a file that is locked by whose turn it is, which the system
//! unlocks when that process ends, and in which it says that it has the semaphore. Who gets the
//! lock and reads so has inherited the turn.
//!
//! Limits: a process of another library leaves no account, nor does one that is killed in the few
//! instructions between the two. After [`PATIENCE`] a process goes on without the turn: a port that
//! somebody listens on cannot be taken in any case. The semaphore stays as it is then
//! (`/dev/shm/sem.rsocket_fork`; who removes it ends the waits, if nobody uses it).

use std::ffi::{CStr, c_int};
use std::time::{Duration, Instant, SystemTime};

use crate::real::{errno, next};

const SEMAPHORE: &CStr = c"/rsocket_fork";

/// The account.
const ACCOUNT: &CStr = c"/dev/shm/vernic.rsocket_fork";

/// For the user and the group, as the semaphore.
const RIGHTS: libc::mode_t = 0o660;

/// What is in the account of one who has the semaphore, and of one who has given it back.
const HAS: u8 = b'1';
const HAS_NOT: u8 = b'0';

/// How long the turn is waited for. An exchange takes some round trips, unless the peer makes it
/// wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// Pause between two looks at the lock.
const PAUSE: Duration = Duration::from_micros(200);

/// A turn, until it is dropped.
pub(crate) struct Turn {
    semaphore: *mut libc::sem_t,
    /// A descriptor; -1 if this user has no account, or waited in vain for its lock.
    account: c_int,
    has_semaphore: bool,
}

impl Turn {
    /// Waits for it, and after [`PATIENCE`] goes on without. `None` where there is no semaphore.
    pub(crate) fn take() -> Option<Self> {
        let flags = libc::O_CREAT | libc::O_RDWR;
        // SAFETY: a C string; a mode, and the value of a new one.
        let semaphore = unsafe { libc::sem_open(SEMAPHORE.as_ptr(), flags, RIGHTS, 1) };
        if semaphore == libc::SEM_FAILED {
            return None;
        }
        let deadline = Instant::now() + PATIENCE;
        let account = open_account(deadline);
        let mut turn = Self { semaphore, account, has_semaphore: false };
        turn.has_semaphore = turn.wait(Duration::ZERO)
            || turn.is_heir()
            || turn.wait(deadline.saturating_duration_since(Instant::now()));
        if turn.has_semaphore {
            turn.note(HAS);
        }
        Some(turn)
    }

    /// Whether no other process of the same custom has its turn now.
    pub(crate) fn is_alone(&self) -> bool {
        self.has_semaphore
    }

    /// Waits for the semaphore, for `patience` at most; whether it is this process's now.
    fn wait(&self, patience: Duration) -> bool {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let until = since_1970.unwrap_or_default() + patience;
        let until = libc::timespec {
            tv_sec: until.as_secs() as libc::time_t,
            tv_nsec: until.subsec_nanos().into(),
        };
        loop {
            // SAFETY: opened, and closed only with the value; a time.
            match unsafe { libc::sem_timedwait(self.semaphore, &raw const until) } {
                0 => return true,
                // Interrupted by a signal it has to be asked again.
                _ if errno() == libc::EINTR => {}
                _ => return false,
            }
        }
    }

    /// Whether the one before ended without giving the semaphore back.
    fn is_heir(&self) -> bool {
        let mut says = HAS_NOT;
        // SAFETY: room for one byte.
        let count = unsafe { libc::pread(self.account, (&raw mut says).cast(), 1, 0) };
        count == 1 && says == HAS
    }

    fn note(&self, says: u8) {
        // Who has no account leaves none.
        // SAFETY: one byte.
        unsafe { libc::pwrite(self.account, (&raw const says).cast(), 1, 0) };
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: opened by `take`, not used afterwards.
        unsafe {
            if self.has_semaphore {
                libc::sem_post(self.semaphore);
                // One that is killed before this has an heir, who finds the semaphore there.
                self.note(HAS_NOT);
            }
            if self.account >= 0 {
                // Also for copies that a child of `fork` has.
                libc::flock(self.account, libc::LOCK_UN);
                next::close(self.account);
            }
            libc::sem_close(self.semaphore);
        }
    }
}

/// The account, locked; -1 if this user may have none, or another has it at `deadline` still.
fn open_account(deadline: Instant) -> c_int {
    let flags = libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a C string, and the mode of a new file.
    let account = unsafe { libc::open(ACCOUNT.as_ptr(), flags, RIGHTS) };
    // SAFETY: no pointers.
    while account >= 0 && unsafe { libc::flock(account, libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        if Instant::now() >= deadline || !matches!(errno(), libc::EWOULDBLOCK | libc::EINTR) {
            // SAFETY: as above; not used afterwards.
            unsafe { next::close(account) };
            return -1;
        }
        std::thread::sleep(PAUSE);
    }
    account
}

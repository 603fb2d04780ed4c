//! The one process that may copy from and to this process's memory because this process says so
//! (`PR_SET_PTRACER`).
//!
//! Only this file makes that system call. It does so for the setting `direct = ptrace` alone: the
//! engine takes a [`PtracePermit`] for a local peer, and drops it when the peer disconnects or its
//! last grant ends.
//!
//! Yama is a part of Linux that keeps processes of one user apart. Where its `ptrace_scope` is 1,
//! process A may copy from and to process B if B descends from A, if A has `CAP_SYS_PTRACE`, or if
//! B has named A or an ancestor of A. The last of these gives A all that `ptrace` gives, not only
//! copies. Whether one of the others holds, only a try by A tells for certain.
//!
//! The kernel keeps one named process for each process. What the application has named itself is
//! replaced, and not named again afterwards, because the kernel does not tell it.

use std::sync::{Mutex, OnceLock, PoisonError};

/// The setting of Yama, if this system has it.
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// The process that this process has named, if any.
static NAMED: Mutex<Option<Named>> = Mutex::new(None);

/// Whether Yama lets a process into this one at this process's word: its `ptrace_scope` is 1. Read
/// once. With other values, or without Yama, naming a process would change nothing.
pub fn asks_traced_process() -> bool {
    static ASKS: OnceLock<bool> = OnceLock::new();
    *ASKS.get_or_init(|| is_asking(std::fs::read_to_string(PTRACE_SCOPE).ok().as_deref()))
}

fn is_asking(ptrace_scope: Option<&str>) -> bool {
    ptrace_scope.is_some_and(|scope| scope.trim() == "1")
}

/// Returns the process that may trace this process because of a [`PtracePermit`].
pub fn permitted_ptracer() -> Option<u32> {
    let named = *NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    named.filter(|named| named.by == std::process::id()).map(|named| named.pid)
}

/// Permission for one process to copy from and to this process. It ends when the last permit for
/// that process is dropped.
#[derive(Debug)]
pub struct PtracePermit {
    by: u32,
    pid: u32,
}

impl PtracePermit {
    /// Names process `pid`. `None` if another process has the permission, or the kernel refuses.
    pub fn take(pid: u32) -> Option<Self> {
        let by = std::process::id();
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        // A value that is made and dropped would release what it has not.
        take(&mut named, by, pid, set_ptracer).then(|| Self { by, pid })
    }
}

impl Drop for PtracePermit {
    fn drop(&mut self) {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        // A child of `fork` has a copy of this value, and has named no process.
        if self.by == std::process::id() && release(&mut named, self.pid) {
            set_ptracer(0);
        }
    }
}

/// Lets one process trace this process, in place of any other; 0 lets none. Returns whether the
/// kernel has done so.
fn set_ptracer(pid: u32) -> bool {
    // SAFETY: the call passes no pointers. It is needed because `std` has no form of it.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) == 0 }
}

/// The named process (`pid`), the process that has named it (`by`), and the number of permits.
/// After `fork`, a child finds its parent in `by`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Named {
    by: u32,
    pid: u32,
    permits: u32,
}

/// Notes one more permit of process `by` for process `pid`. Names that process by `set` each time,
/// because the application may have named another. Returns false, and changes nothing, if another
/// process has the permission or `set` fails.
fn take(named: &mut Option<Named>, by: u32, pid: u32, set: impl FnOnce(u32) -> bool) -> bool {
    let permits = match *named {
        Some(now) if now.by == by && now.pid != pid => return false,
        Some(now) if now.by == by => now.permits + 1,
        _ => 1,
    };
    let is_set = set(pid);
    if is_set {
        *named = Some(Named { by, pid, permits });
    }
    is_set
}

/// Notes that a permit for process `pid` was dropped. Returns whether it was the last.
fn release(named: &mut Option<Named>, pid: u32) -> bool {
    let Some(now) = named.as_mut().filter(|now| now.pid == pid) else { return false };
    now.permits -= 1;
    let is_last = now.permits == 0;
    if is_last {
        *named = None;
    }
    is_last
}

#[cfg(test)]
mod tests {
    use super::{Named, is_asking, release, take};

    #[test]
    fn one_process_has_the_permission_until_its_last_permit_ends() {
        let mut named = None;
        assert!(take(&mut named, 1, 5, |pid| pid == 5));
        assert!(take(&mut named, 1, 5, |pid| pid == 5), "it is named again");
        assert_eq!(named, Some(Named { by: 1, pid: 5, permits: 2 }));
        assert!(!take(&mut named, 1, 6, |_| unreachable!()), "another has it");
        assert!(!release(&mut named, 5));
        assert!(!take(&mut named, 1, 6, |_| unreachable!()));
        assert!(release(&mut named, 5), "the last one revokes");
        assert_eq!(named, None);
        assert!(take(&mut named, 1, 6, |pid| pid == 6));
    }

    #[test]
    fn a_child_has_named_no_process_and_a_refusal_leaves_no_trace() {
        let of_parent = Named { by: 1, pid: 5, permits: 3 };
        let mut named = Some(of_parent);
        assert!(!take(&mut named, 2, 6, |_| false));
        assert_eq!(named, Some(of_parent));
        assert!(take(&mut named, 2, 6, |_| true));
        assert_eq!(named, Some(Named { by: 2, pid: 6, permits: 1 }));
    }

    #[test]
    fn a_process_is_named_only_where_the_kernel_asks() {
        assert!(is_asking(Some("1\n")));
        assert!(
            ![None, Some("0\n"), Some("2\n"), Some("3\n"), Some("")].map(is_asking).contains(&true)
        );
    }
}

//! Users of processes: whether another process belongs to the same user as this one.
//!
//! Processes of one user trust each other: they say where they receive, hand packets over, share
//! rings and memory. The kernel names the user of each message and connection; this module checks
//! the name.

use std::fs;
use std::sync::OnceLock;

/// The id that stands for all users that a user namespace does not know, unless the system says
/// otherwise.
const OVERFLOW_UID: u32 = 65_534;

/// Whether a process of user `uid`, as the kernel names it, is of this process's user. Always false
/// while this process acts for another user than the one that started it: the kernel names the
/// former for connections and the latter for datagrams. Also false for an id that stands for many
/// users.
pub fn is_own(uid: u32) -> bool {
    uid == crate::uid() && uid == crate::effective_uid() && !stands_for_many(uid)
}

/// Whether processes of several users may have this id: the id of all users that this user
/// namespace does not know.
fn stands_for_many(uid: u32) -> bool {
    static OVERFLOW: OnceLock<Option<u32>> = OnceLock::new();
    let overflow = OVERFLOW.get_or_init(|| {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        overflow_of(&read("/proc/sys/kernel/overflowuid"), &read("/proc/self/uid_map"))
    });
    Some(uid) == *overflow
}

/// Returns the id that stands for unknown users; `None` if all are known: each has its own number.
fn overflow_of(overflow_uid: &str, uid_map: &str) -> Option<u32> {
    let all = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    (!all).then(|| overflow_uid.trim().parse().unwrap_or(OVERFLOW_UID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_unknown_users_is_nobodys_own_where_there_are_such_users() {
        let initial = "         0          0 4294967295\n";
        assert_eq!(overflow_of("65534\n", initial), None);
        for map in ["0 1000 1\n", "0 100000 65536\n", "0 0 4294967294\n", "0 0 10\n10 20 5\n", ""] {
            assert_eq!(overflow_of("65534\n", map), Some(65_534), "{map}");
        }
        assert_eq!(overflow_of("99\n", ""), Some(99));
        assert_eq!(overflow_of("", ""), Some(OVERFLOW_UID));
    }

    #[test]
    fn a_process_trusts_its_own_user_and_nobody_elses() {
        assert!(is_own(crate::uid()));
        assert!(!is_own(crate::uid() + 1));
    }
}

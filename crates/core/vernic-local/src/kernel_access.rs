//! Whether a local peer may copy from and to the memory of this process that it has not mapped.
//! There the kernel copies, and checks what it checks for a debugger.
//!
//! Usually the user decides, and this process is not asked. Where Yama asks this process
//! (`vernic_mem::asks_traced_process`), it permits nothing by itself: with the setting `direct=on`
//! the peer tries to read the liveness word, and says whether it can. With `direct=ptrace` this
//! process permits one peer at a time to trace it (`vernic_mem::PtracePermit`), and takes the
//! permission back when the peer has no more use for it.
//!
//! Called by the lane, and by control threads that end grants.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vernic_mem::{PtracePermit, RevocationToken, asks_traced_process};

use crate::rules::DirectAccess;

/// The tokens of a grant: of the key, and of the queue pair.
type Tokens = (RevocationToken, RevocationToken);

/// Whether a local peer may copy by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// As far as this process decides, the peer may.
    Open,
    /// The peer is to try whether it may.
    Try,
    /// The peer may not, because the setting `direct` does not permit it.
    Forbidden,
    /// The peer may not as long as another process has the permission.
    Busy,
}

/// What decides about a local peer.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Whether Yama lets the peer in at this process's word.
    asks: bool,
    setting: DirectAccess,
    /// Whether the peer has the permission of this process.
    has_permit: bool,
    /// What the peer has said of its try, if it has tried.
    can_copy: Option<bool>,
}

/// Decides about a local peer. `take` gives it the permission of this process, if that is free.
fn admit(facts: Facts, take: impl FnOnce() -> bool) -> Admission {
    match facts {
        Facts { asks: false, .. } | Facts { has_permit: true, .. } => Admission::Open,
        Facts { can_copy: Some(true), .. } => Admission::Open,
        Facts { setting: DirectAccess::Ptrace, .. } if take() => Admission::Open,
        Facts { can_copy: None, .. } => Admission::Try,
        Facts { setting: DirectAccess::Ptrace, .. } => Admission::Busy,
        _ => Admission::Forbidden,
    }
}

/// Access of one local peer to the memory of this process by the kernel.
#[derive(Debug)]
pub(crate) struct KernelAccess {
    pid: u32,
    /// Whether Yama lets the peer in at this process's word.
    asks: bool,
    setting: DirectAccess,
    use_of_permit: Mutex<UseOfPermit>,
}

/// The permission that this process gave the peer, and what it is used for. Empty where none is
/// needed.
#[derive(Debug, Default)]
struct UseOfPermit {
    permit: Option<PtracePermit>,
    /// The grants that need the permission. Those at the end are valid; others may have ended.
    grants: Vec<Tokens>,
    /// Whether SENDs need the permission.
    for_sends: bool,
    /// Whether the peer has disconnected, or was cut off: it gets no permission any more.
    is_closed: bool,
}

impl UseOfPermit {
    fn take(&mut self, pid: u32) -> bool {
        if !self.is_closed {
            self.permit = PtracePermit::take(pid);
        }
        self.permit.is_some()
    }

    /// Takes the permission back if nothing needs it.
    fn tidy(&mut self) {
        if self.grants.is_empty() && !self.for_sends {
            self.permit = None;
        }
    }

    /// Notes a grant that needs the permission. The list grows with the grants that are valid.
    fn add(&mut self, tokens: Tokens, is_valid: impl Fn(RevocationToken) -> bool) {
        if self.grants.contains(&tokens) {
            return;
        }
        if self.grants.len() == self.grants.capacity() {
            self.grants.retain(|&(key, qp)| is_valid(key) && is_valid(qp));
        }
        self.grants.push(tokens);
    }

    /// Forgets grants that have ended, from the end of the list up to the first that is valid. So
    /// many that end one after the other cost little.
    fn forget_ended(&mut self, is_valid: impl Fn(RevocationToken) -> bool) {
        while self.grants.pop_if(|(key, qp)| !is_valid(*key) || !is_valid(*qp)).is_some() {}
    }
}

impl KernelAccess {
    /// Access of process `pid`, of which nothing is known yet.
    pub(crate) fn new(pid: u32, setting: DirectAccess) -> Self {
        let asks = pid != std::process::id() && asks_traced_process();
        Self { pid, asks, setting, use_of_permit: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, UseOfPermit> {
        // Its state is valid between any two statements.
        self.use_of_permit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, can_copy: Option<bool>) -> (Admission, Option<MutexGuard<'_, UseOfPermit>>) {
        let Self { pid, asks, setting, .. } = *self;
        if !asks {
            return (Admission::Open, None);
        }
        let mut held = self.lock();
        let facts = Facts { asks, setting, has_permit: held.permit.is_some(), can_copy };
        let admission = admit(facts, || held.take(pid));
        let needs = held.permit.is_some().then_some(held);
        (admission, needs)
    }

    /// Whether a grant with these tokens can be offered. `can_copy` is what the peer has said of
    /// its try.
    pub(crate) fn admit_grant(
        &self,
        can_copy: Option<bool>,
        tokens: Tokens,
        is_valid: impl Fn(RevocationToken) -> bool,
    ) -> Admission {
        let (admission, needs) = self.admit(can_copy);
        if let Some(mut held) = needs {
            held.add(tokens, &is_valid);
            // A thread that has just revoked the grant may have looked before it was noted.
            held.forget_ended(is_valid);
            held.tidy();
        }
        admission
    }

    /// Whether SENDs can be offered to be copied by the peer. `can_copy` is what the peer has said
    /// of its try.
    pub(crate) fn admit_sends(&self, can_copy: Option<bool>) -> Admission {
        let (admission, needs) = self.admit(can_copy);
        if let Some(mut held) = needs {
            held.for_sends = true;
        }
        admission
    }

    /// Notes that the peer copies no SENDs, or no more. Returns whether that needed the permission.
    pub(crate) fn end_sends(&self) -> bool {
        if !self.asks {
            return false;
        }
        let mut held = self.lock();
        let was = std::mem::take(&mut held.for_sends);
        held.tidy();
        was
    }

    /// Notes that grants have ended.
    pub(crate) fn handle_revocation(&self, is_valid: &dyn Fn(RevocationToken) -> bool) {
        if self.asks {
            let mut held = self.lock();
            held.forget_ended(is_valid);
            held.tidy();
        }
    }

    /// Takes the permission back for good, because the peer has disconnected or was cut off.
    pub(crate) fn close(&self) {
        if self.asks {
            *self.lock() = UseOfPermit { is_closed: true, ..UseOfPermit::default() };
        }
    }

    /// What becomes of a peer that has tried to copy and cannot. `None` where that is not Yama's
    /// doing at this process's word.
    pub(crate) fn refusal(&self) -> Option<Admission> {
        let is_refused = self.asks && self.lock().permit.is_none();
        is_refused.then_some(match self.setting {
            DirectAccess::Ptrace => Admission::Busy,
            DirectAccess::Off | DirectAccess::On => Admission::Forbidden,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_setting_ptrace_gives_the_permission_and_only_where_the_kernel_asks() {
        use DirectAccess::{On, Ptrace};
        // `take`: whether the permission is free; `None` if it must not be taken.
        for (asks, setting, has_permit, can_copy, take, expected) in [
            (false, On, false, None, None, Admission::Open),
            (false, On, false, Some(false), None, Admission::Open),
            (false, Ptrace, false, None, None, Admission::Open),
            (true, On, false, None, None, Admission::Try),
            (true, On, false, Some(true), None, Admission::Open),
            (true, On, false, Some(false), None, Admission::Forbidden),
            (true, Ptrace, false, None, Some(true), Admission::Open),
            (true, Ptrace, false, Some(false), Some(true), Admission::Open),
            (true, Ptrace, true, Some(false), None, Admission::Open),
            (true, Ptrace, true, None, None, Admission::Open),
            // Who can copy anyway, as a parent can, does not take the permission from others.
            (true, Ptrace, false, Some(true), None, Admission::Open),
            (true, Ptrace, false, None, Some(false), Admission::Try),
            (true, Ptrace, false, Some(false), Some(false), Admission::Busy),
        ] {
            let facts = Facts { asks, setting, has_permit, can_copy };
            let taken = || take.unwrap_or_else(|| panic!("{facts:?}: taken"));
            assert_eq!(admit(facts, taken), expected, "{facts:?} {take:?}");
        }
    }

    fn token(number: u32) -> RevocationToken {
        RevocationToken { number, value: 1 }
    }

    #[test]
    fn the_last_grant_that_ends_is_noticed_in_whatever_order_they_end() {
        let grants = [(token(1), token(9)), (token(2), token(9)), (token(3), token(8))];
        for order in [[1, 2, 3], [3, 2, 1], [2, 9, 8], [8, 9, 1]] {
            let mut held = UseOfPermit::default();
            for tokens in grants {
                held.add(tokens, |_| true);
                held.add(tokens, |_| true);
            }
            assert_eq!(held.grants.len(), 3, "each is noted once");
            let mut ended = Vec::new();
            for number in order {
                ended.push(number);
                let is_valid = |token: RevocationToken| !ended.contains(&token.number);
                held.forget_ended(is_valid);
                let is_left = grants.iter().any(|&(key, qp)| is_valid(key) && is_valid(qp));
                assert_eq!(!held.grants.is_empty(), is_left, "{ended:?}");
            }
            assert!(held.grants.is_empty());
        }
    }

    #[test]
    fn grants_that_have_ended_take_no_room() {
        let mut held = UseOfPermit::default();
        held.add((token(0), token(0)), |_| true);
        for number in 1..10_000 {
            held.add((token(number), token(0)), |token| token.number == 0);
        }
        assert!(held.grants.capacity() <= 8, "{}", held.grants.capacity());
    }
}

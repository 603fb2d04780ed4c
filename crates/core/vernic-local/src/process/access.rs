//! A process of this host in two roles: as a grantee that accesses our memory, and as the owner of
//! memory that we access.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use vernic_mem::{Grant, GrantedProcess, Memory, RevocationToken};
use vernic_proto::Time;
use vernic_wire::{Qpn, Rkey};

use super::PeerProcess;
use crate::grant_message::{Denial, GrantMessage};
use crate::kernel_access::{Admission, KernelAccess};
use crate::rules::AccessRules;

/// Time between two checks whether the connection of a process is open, in nanoseconds. A check
/// takes 0.2 us, which is 0.2 % of this time.
const LOOK_NANOS: u64 = 100_000;

/// What is known of access between this process and a local peer.
#[derive(Debug)]
pub(super) struct ProcessAccess {
    /// Whether access is possible at all.
    is_possible: bool,
    /// The time of the last check whether the peer's connection is still open, in nanoseconds of
    /// the engine's clock.
    checked_at: AtomicU64,
    /// Whether the kernel refused to let us copy from or to the peer's memory. After one refusal no
    /// such copy is tried again.
    is_forbidden: AtomicBool,
    /// Whether the peer has sent the file with its revocation words.
    has_words: AtomicBool,
    /// Whether the peer copies the payload of our large SENDs out of our memory; holds a
    /// [`RendezvousSupport`].
    rendezvous: AtomicU8,
    /// Whether the peer may copy from and to our memory where the kernel copies.
    kernel_access: KernelAccess,
    /// Whether the peer has said that Yama keeps us from its memory, as long as its setting
    /// `direct` is not `ptrace`.
    is_kept_out: AtomicBool,
    /// Number of queue pairs that are connected to the peer.
    qps: AtomicU32,
    rules: AccessRules,
}

/// Whether a local peer copies the payload of our large SENDs out of our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum RendezvousSupport {
    NotAsked,
    Asked,
    Yes,
    No,
    /// Not asked again since the permission that this needs was taken back.
    Withdrawn,
    /// No, as long as another process has the permission that this needs.
    Busy,
}

impl RendezvousSupport {
    fn of(value: u8) -> Self {
        let all = [Self::NotAsked, Self::Asked, Self::Yes, Self::No, Self::Withdrawn, Self::Busy];
        all.into_iter().find(|known| *known as u8 == value).unwrap_or(Self::No)
    }
}

impl ProcessAccess {
    pub(super) fn new(pid: u32, rules: &AccessRules) -> Self {
        Self {
            is_possible: rules.setting.is_on() && pid != 0,
            checked_at: AtomicU64::new(0),
            is_forbidden: AtomicBool::new(false),
            has_words: AtomicBool::new(false),
            rendezvous: AtomicU8::new(RendezvousSupport::NotAsked as u8),
            kernel_access: KernelAccess::new(pid, rules.setting),
            is_kept_out: AtomicBool::new(false),
            qps: AtomicU32::new(0),
            rules: rules.clone(),
        }
    }
}

impl PeerProcess {
    /// Whether the two processes may access each other's memory, if the kernel permits it. Not if
    /// the setting says no, or if the process has no number in this PID namespace. Such a process
    /// cannot be identified. It may send packets, as any process of this user may.
    #[inline]
    pub fn may_access(&self) -> bool {
        self.access.is_possible
    }

    /// Whether the process still runs. Asks the kernel if the last check is older than
    /// 100 us.
    #[inline]
    pub fn is_there(&self, now: Time) -> bool {
        let checked_at = Time(self.access.checked_at.load(Ordering::Relaxed));
        if now.since(checked_at) < LOOK_NANOS {
            return true;
        }
        self.access.checked_at.store(now.nanos(), Ordering::Relaxed);
        !self.has_hung_up()
    }

    /// Whether the kernel has refused to let us copy from or to the process's memory.
    #[inline]
    pub fn is_forbidden(&self) -> bool {
        self.access.is_forbidden.load(Ordering::Relaxed)
    }

    /// Notes that the kernel refuses to let us copy from or to the process's memory.
    pub fn forbid(&self) {
        self.access.is_forbidden.store(true, Ordering::Relaxed);
    }

    /// Notes that the peer has sent the file with its revocation words.
    pub fn note_words(&self) {
        self.access.has_words.store(true, Ordering::Relaxed);
    }

    /// Whether the peer copies the payload of our large SENDs out of our memory.
    #[inline]
    pub fn supports_rendezvous(&self) -> bool {
        self.access.rendezvous.load(Ordering::Relaxed) == RendezvousSupport::Yes as u8
    }

    /// Offers to let the peer copy the payload of our SENDs out of our memory, unless that was
    /// offered before.
    #[inline]
    pub fn want_rendezvous(&self, memory: &Memory) {
        use RendezvousSupport::{Busy, NotAsked, Withdrawn};
        if matches!(self.rendezvous(), NotAsked | Withdrawn | Busy) {
            self.offer_rendezvous(memory);
        }
    }

    fn rendezvous(&self) -> RendezvousSupport {
        RendezvousSupport::of(self.access.rendezvous.load(Ordering::Relaxed))
    }

    #[cold]
    fn offer_rendezvous(&self, memory: &Memory) {
        match self.access.kernel_access.admit_sends(self.can_copy()) {
            Admission::Open | Admission::Try => self.send_rendezvous_offer(memory),
            Admission::Forbidden => self.set_rendezvous(RendezvousSupport::No),
            Admission::Busy => self.set_rendezvous(RendezvousSupport::Busy),
        }
    }

    /// Tells the peer where our liveness word is, so that it tries to read it.
    fn send_rendezvous_offer(&self, memory: &Memory) {
        let words =
            memory.liveness_word().and_then(|liveness| Ok((liveness, memory.revocation_file()?)));
        let next = match words {
            Ok((liveness, file)) => {
                match self.send(&GrantMessage::RendezvousOffer { liveness }.emit(), Some(file)) {
                    Ok(()) => RendezvousSupport::Asked,
                    // The peer takes no message now: the next SEND makes the offer again.
                    Err(_) => RendezvousSupport::NotAsked,
                }
            }
            // There are no revocation words.
            Err(_) => RendezvousSupport::No,
        };
        self.set_rendezvous(next);
    }

    /// Sets whether the peer copies the payload of our SENDs. A permission that this needed is
    /// taken back if the peer does not.
    fn set_rendezvous(&self, next: RendezvousSupport) {
        use RendezvousSupport::{Asked, Yes};
        self.access.rendezvous.store(next as u8, Ordering::Relaxed);
        if !matches!(next, Asked | Yes) {
            self.access.kernel_access.end_sends();
        }
    }

    /// What the peer has said of its try to read our memory; `None` if it has not tried.
    fn can_copy(&self) -> Option<bool> {
        match self.rendezvous() {
            RendezvousSupport::Yes => Some(true),
            RendezvousSupport::No | RendezvousSupport::Busy => Some(false),
            _ => None,
        }
    }

    /// Notes the peer's answer whether it can copy the payload of our SENDs. Returns false if
    /// nothing was offered to the peer.
    pub fn note_rendezvous_reply(&self, can: bool) -> bool {
        tracing::debug!(pid = self.pid(), can, "large SENDs to a local peer by one copy");
        use RendezvousSupport::{Asked, Busy, No, NotAsked, Withdrawn, Yes};
        match self.rendezvous() {
            Asked | Yes => {}
            NotAsked => return false,
            // A peer that said once that it cannot copy is not asked again.
            No | Busy => return !can,
            Withdrawn => return true,
        }
        self.set_rendezvous(match self.access.kernel_access.refusal() {
            _ if can => Yes,
            Some(Admission::Busy) => Busy,
            _ => No,
        });
        if can && self.access.qps.load(Ordering::Relaxed) == 0 {
            self.withdraw_rendezvous();
        }
        true
    }

    /// Takes the permission back that SENDs needed, because no queue pair is left to send.
    fn withdraw_rendezvous(&self) {
        // While the peer's answer is awaited, the permission is kept for it to try.
        if self.supports_rendezvous() && self.access.kernel_access.end_sends() {
            self.set_rendezvous(RendezvousSupport::Withdrawn);
        }
    }

    /// Notes that one more queue pair is connected to the peer.
    pub(crate) fn add_qp(&self) {
        self.access.qps.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a queue pair is connected to the peer no more.
    pub(crate) fn remove_qp(&self) {
        if self.access.qps.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.withdraw_rendezvous();
        }
    }

    /// Whether the kernel lets the peer copy where a grant's memory lies, as far as that is known.
    ///
    /// # Errors
    /// Why not, for the peer; `None` if the peer is asked to try, and asks for the grant again.
    pub fn admit_grant(&self, memory: &Memory, grant: &Grant) -> Result<(), Option<Denial>> {
        let (tokens, is_valid) = ((grant.key, grant.qp), |token| memory.is_valid(token));
        match self.access.kernel_access.admit_grant(self.can_copy(), tokens, is_valid) {
            Admission::Open => Ok(()),
            Admission::Forbidden => Err(Some(Denial::NotPermitted)),
            Admission::Busy => Err(Some(Denial::Unreachable)),
            Admission::Try => {
                self.send_rendezvous_offer(memory);
                Err(None)
            }
        }
    }

    /// Whether the peer has tried to copy from our memory, and Yama keeps it out.
    pub fn keeps_out(&self) -> bool {
        self.can_copy() == Some(false) && self.access.kernel_access.refusal().is_some()
    }

    /// Takes all permissions back, because the peer has disconnected.
    pub fn end_kernel_access(&self) {
        self.access.kernel_access.close();
    }

    /// Notes that Yama keeps us from the peer's memory, as the peer says.
    pub fn note_kept_out(&self) {
        self.access.is_kept_out.store(true, Ordering::Relaxed);
    }

    /// Whether Yama keeps us from the peer's memory where that is not mapped, as the peer says.
    pub fn is_kept_out(&self) -> bool {
        self.access.is_kept_out.load(Ordering::Relaxed)
    }

    /// Sends a grant request to the peer. Does nothing if the peer takes no message now. The caller
    /// repeats the request after a while, which also helps if the file in the answer was lost
    /// because this process had no free descriptor for it.
    pub fn ask(&self, asker: Qpn, target: Qpn, rkey: Rkey) {
        let has_words = self.access.has_words.load(Ordering::Relaxed);
        let _ = self.send(&GrantMessage::Request { asker, target, rkey, has_words }.emit(), None);
    }
}

impl GrantedProcess for PeerProcess {
    fn access_word(&self) -> u64 {
        self.inside_us().load(Ordering::Acquire)
    }

    fn is_gone(&self) -> bool {
        self.has_hung_up()
    }

    fn cut_off(&self) {
        self.end_kernel_access();
        self.access.rules.counts.note_cut_off();
        tracing::warn!(
            pid = self.pid(),
            "a process of this host stays inside memory that was taken back: it is granted no more"
        );
    }

    fn handle_revocation(&self, is_valid: &dyn Fn(RevocationToken) -> bool) {
        self.access.kernel_access.handle_revocation(is_valid);
    }

    fn notify_revoked(&self) -> bool {
        let Err(error) = self.send(&GrantMessage::Revoked.emit(), None) else {
            return true;
        };
        if self.is_gone() {
            return true;
        }
        self.access.rules.counts.note_untold();
        let pid = self.pid();
        tracing::debug!(pid, %error, "a process of this host was not told to unmap memory");
        false
    }
}

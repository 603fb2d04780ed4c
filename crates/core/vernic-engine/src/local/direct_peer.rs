//! A local peer, as queue pairs and the key table know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use vernic_local::PeerProcess;
use vernic_mem::{Grant, GrantedProcess, Memory, RevocationToken};
use vernic_wire::{Qpn, Rkey};

use super::kernel_access::{Admission, KernelAccess};
use super::messages::{Denial, GrantMessage};
use crate::config::DirectAccess;
use crate::counters::{DirectCounts, RevocationCounts};

/// A local peer in two roles: as a grantee that accesses our memory, and as the owner of memory
/// that we access.
#[derive(Debug)]
pub(crate) struct DirectPeer {
    pub(crate) local_peer: Arc<PeerProcess>,
    /// The time of the last check whether the peer's connection is still open, in nanoseconds of
    /// the engine's clock.
    pub(crate) checked_at: AtomicU64,
    /// Whether the kernel refused to let us copy from or to the peer's memory. After one refusal no
    /// such copy is tried again.
    pub(crate) is_forbidden: AtomicBool,
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
    revocations: Arc<RevocationCounts>,
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

impl DirectPeer {
    pub(crate) fn new(
        local_peer: Arc<PeerProcess>,
        counts: &DirectCounts,
        setting: DirectAccess,
    ) -> Self {
        Self {
            kernel_access: KernelAccess::new(local_peer.pid(), setting),
            is_kept_out: AtomicBool::new(false),
            qps: AtomicU32::new(0),
            local_peer,
            checked_at: AtomicU64::new(0),
            is_forbidden: AtomicBool::new(false),
            has_words: AtomicBool::new(false),
            rendezvous: AtomicU8::new(RendezvousSupport::NotAsked as u8),
            revocations: counts.revocations().clone(),
        }
    }

    /// Notes that the peer has sent the file with its revocation words.
    pub(crate) fn note_words(&self) {
        self.has_words.store(true, Ordering::Relaxed);
    }

    /// Whether the peer copies the payload of our large SENDs out of our memory.
    #[inline]
    pub(crate) fn supports_rendezvous(&self) -> bool {
        self.rendezvous.load(Ordering::Relaxed) == RendezvousSupport::Yes as u8
    }

    /// Offers to let the peer copy the payload of our SENDs out of our memory, unless that was
    /// offered before.
    #[inline]
    pub(crate) fn want_rendezvous(&self, memory: &Memory) {
        use RendezvousSupport::{Busy, NotAsked, Withdrawn};
        if matches!(self.rendezvous(), NotAsked | Withdrawn | Busy) {
            self.offer_rendezvous(memory);
        }
    }

    fn rendezvous(&self) -> RendezvousSupport {
        RendezvousSupport::of(self.rendezvous.load(Ordering::Relaxed))
    }

    #[cold]
    fn offer_rendezvous(&self, memory: &Memory) {
        match self.kernel_access.admit_sends(self.can_copy()) {
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
                match self
                    .local_peer
                    .send(&GrantMessage::RendezvousOffer { liveness }.emit(), Some(file))
                {
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
        self.rendezvous.store(next as u8, Ordering::Relaxed);
        if !matches!(next, Asked | Yes) {
            self.kernel_access.end_sends();
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
    pub(crate) fn note_rendezvous_reply(&self, can: bool) -> bool {
        tracing::debug!(
            pid = self.local_peer.pid(),
            can,
            "large SENDs to a local peer by one copy"
        );
        use RendezvousSupport::{Asked, Busy, No, NotAsked, Withdrawn, Yes};
        match self.rendezvous() {
            Asked | Yes => {}
            NotAsked => return false,
            // A peer that said once that it cannot copy is not asked again.
            No | Busy => return !can,
            Withdrawn => return true,
        }
        self.set_rendezvous(match self.kernel_access.refusal() {
            _ if can => Yes,
            Some(Admission::Busy) => Busy,
            _ => No,
        });
        if can && self.qps.load(Ordering::Relaxed) == 0 {
            self.withdraw_rendezvous();
        }
        true
    }

    /// Takes the permission back that SENDs needed, because no queue pair is left to send.
    fn withdraw_rendezvous(&self) {
        // While the peer's answer is awaited, the permission is kept for it to try.
        if self.supports_rendezvous() && self.kernel_access.end_sends() {
            self.set_rendezvous(RendezvousSupport::Withdrawn);
        }
    }

    /// Notes that one more queue pair is connected to the peer.
    pub(super) fn add_qp(&self) {
        self.qps.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a queue pair is connected to the peer no more.
    pub(super) fn remove_qp(&self) {
        if self.qps.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.withdraw_rendezvous();
        }
    }

    /// Whether the kernel lets the peer copy where a grant's memory lies, as far as that is known.
    ///
    /// # Errors
    /// Why not, for the peer; `None` if the peer is asked to try, and asks for the grant again.
    pub(crate) fn admit_grant(&self, memory: &Memory, grant: &Grant) -> Result<(), Option<Denial>> {
        let (tokens, is_valid) = ((grant.key, grant.qp), |token| memory.is_valid(token));
        match self.kernel_access.admit_grant(self.can_copy(), tokens, is_valid) {
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
    pub(crate) fn keeps_out(&self) -> bool {
        self.can_copy() == Some(false) && self.kernel_access.refusal().is_some()
    }

    /// Takes all permissions back, because the peer has disconnected.
    pub(crate) fn end_kernel_access(&self) {
        self.kernel_access.close();
    }

    /// Notes that Yama keeps us from the peer's memory, as the peer says.
    pub(crate) fn note_kept_out(&self) {
        self.is_kept_out.store(true, Ordering::Relaxed);
    }

    /// Whether Yama keeps us from the peer's memory where that is not mapped, as the peer says.
    pub(crate) fn is_kept_out(&self) -> bool {
        self.is_kept_out.load(Ordering::Relaxed)
    }

    /// Sends a grant request to the peer. Does nothing if the peer takes no message now. The caller
    /// repeats the request after a while, which also helps if the file in the answer was lost
    /// because this process had no free descriptor for it.
    pub(crate) fn ask(&self, asker: Qpn, target: Qpn, rkey: Rkey) {
        let has_words = self.has_words.load(Ordering::Relaxed);
        let _ = self
            .local_peer
            .send(&GrantMessage::Request { asker, target, rkey, has_words }.emit(), None);
    }
}

impl GrantedProcess for DirectPeer {
    fn access_word(&self) -> u64 {
        self.local_peer.inside_us().load(Ordering::Acquire)
    }

    fn is_gone(&self) -> bool {
        self.local_peer.has_hung_up()
    }

    fn cut_off(&self) {
        self.end_kernel_access();
        self.revocations.note_cut_off();
        tracing::warn!(
            pid = self.local_peer.pid(),
            "a process of this host stays inside memory that was taken back: it is granted no more"
        );
    }

    fn handle_revocation(&self, is_valid: &dyn Fn(RevocationToken) -> bool) {
        self.kernel_access.handle_revocation(is_valid);
    }

    fn notify_revoked(&self) -> bool {
        let Err(error) = self.local_peer.send(&GrantMessage::Revoked.emit(), None) else {
            return true;
        };
        if self.is_gone() {
            return true;
        }
        self.revocations.note_untold();
        let pid = self.local_peer.pid();
        tracing::debug!(pid, %error, "a process of this host was not told to unmap memory");
        false
    }
}

//! A local peer, as queue pairs and the key table know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use vernic_io::local::LocalPeer;
use vernic_mem::{GrantedProcess, Memory, permit_ptrace};
use vernic_wire::{Qpn, Rkey};

use super::messages::GrantMessage;
use crate::counters::{DirectCounts, RevocationCounts};

/// A local peer in two roles: as a grantee that accesses our memory, and as the owner of memory
/// that we access.
#[derive(Debug)]
pub(crate) struct DirectPeer {
    pub(crate) local_peer: Arc<LocalPeer>,
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
}

impl DirectPeer {
    pub(crate) fn new(local_peer: Arc<LocalPeer>, counts: &DirectCounts) -> Self {
        Self {
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
        if self.rendezvous.load(Ordering::Relaxed) == RendezvousSupport::NotAsked as u8 {
            self.offer_rendezvous(memory);
        }
    }

    #[cold]
    fn offer_rendezvous(&self, memory: &Memory) {
        let pid = self.local_peer.pid();
        let words =
            memory.liveness_word().and_then(|liveness| Ok((liveness, memory.revocation_file()?)));
        let next = match words {
            Ok((liveness, file)) if permit_ptrace(pid) => {
                match self
                    .local_peer
                    .send(&GrantMessage::RendezvousOffer { liveness }.emit(), Some(file))
                {
                    Ok(()) => RendezvousSupport::Asked,
                    // The peer takes no message now: the next SEND makes the offer again.
                    Err(_) => RendezvousSupport::NotAsked,
                }
            }
            // Either there are no revocation words, or the kernel cannot let this peer in, because
            // it already lets another process in.
            _ => RendezvousSupport::No,
        };
        self.rendezvous.store(next as u8, Ordering::Relaxed);
    }

    /// Notes the peer's answer whether it can copy the payload of our SENDs. Returns false if
    /// nothing was offered to the peer.
    pub(crate) fn note_rendezvous_reply(&self, can: bool) -> bool {
        tracing::debug!(
            pid = self.local_peer.pid(),
            can,
            "large SENDs to a local peer by one copy"
        );
        let now = self.rendezvous.load(Ordering::Relaxed);
        let next = if can { RendezvousSupport::Yes } else { RendezvousSupport::No };
        // A peer that said once that it cannot copy is not asked again.
        let was_asked = [RendezvousSupport::Asked, RendezvousSupport::Yes]
            .iter()
            .any(|known| now == *known as u8);
        if was_asked {
            self.rendezvous.store(next as u8, Ordering::Relaxed);
        }
        was_asked || now == RendezvousSupport::No as u8 && !can
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
        self.revocations.note_cut_off();
        tracing::warn!(
            pid = self.local_peer.pid(),
            "a process of this host stays inside memory that was taken back: it is granted no more"
        );
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

//! Local peers of a lane with which memory accesses are possible, in either direction.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use vernic_local::{LocalPeerId, PeerProcess};
use vernic_mem::{
    Access, GrantedProcessId, LivenessWord, Memory, PeerMapping, PeerRange, PeerRegion,
    PeerRevocationWords, RevocationToken,
};

use super::direct_peer::DirectPeer;
use super::messages::{GrantMessage, GrantOffer};
use super::rendezvous::SenderMemory;
use crate::config::DirectAccess;
use crate::counters::{DirectCounts, Refusal};

/// A local peer, as the lane knows it: the peer's access to our memory, and ours to the peer's.
#[derive(Debug)]
pub(crate) struct PeerEntry {
    peer: Arc<DirectPeer>,
    /// The peer's id as a grantee; `None` until it is granted something. When memory is revoked,
    /// the revoking thread waits for the peer's accesses, until it gives up and cuts the peer off.
    grantee: Option<GrantedProcessId>,
    /// The revocation words of the peer; `None` until their file has come.
    words: Option<Arc<PeerRevocationWords>>,
    /// The peer's memory, if we copy the payload of the peer's SENDs out of it.
    sender_memory: Option<SenderMemory>,
    /// Ways to access the peer's memory that grants of queue pairs share. Each entry has the
    /// revocation token of the key, and whether the memory may be written. An entry is dropped when
    /// no grant uses it any more.
    regions: Vec<(RevocationToken, bool, Weak<PeerRegion>)>,
}

/// The local peers of a lane with which memory accesses are possible.
#[derive(Debug, Default)]
pub(crate) struct DirectPeers(Vec<PeerEntry>);

impl DirectPeers {
    pub(crate) fn find(&mut self, id: LocalPeerId) -> Option<&mut PeerEntry> {
        self.0.iter_mut().find(|entry| entry.peer.local_peer.id() == id)
    }

    /// Adds a local peer that has just connected.
    pub(crate) fn add(
        &mut self,
        counts: &DirectCounts,
        local_peer: Arc<PeerProcess>,
        setting: DirectAccess,
    ) {
        let peer = Arc::new(DirectPeer::new(local_peer, counts, setting));
        self.0.push(PeerEntry {
            peer,
            grantee: None,
            words: None,
            sender_memory: None,
            regions: Vec::new(),
        });
    }

    /// Returns a local peer by its id.
    pub(crate) fn get(&self, id: LocalPeerId) -> Option<&Arc<DirectPeer>> {
        self.0.iter().map(|entry| &entry.peer).find(|peer| peer.local_peer.id() == id)
    }

    /// Returns the memory of a local peer, if we copy the payload of its SENDs out of it.
    pub(crate) fn sender_memory(&self, id: LocalPeerId) -> Option<&SenderMemory> {
        let entry = self.0.iter().find(|entry| entry.peer.local_peer.id() == id)?;
        entry.sender_memory.as_ref()
    }

    /// Removes all local peers, because the device is closed.
    pub(crate) fn close(&mut self, memory: &Memory) {
        self.0.drain(..).for_each(|entry| entry.end(memory));
    }

    /// Removes a local peer that is gone. Revocations no longer wait for its accesses.
    pub(crate) fn remove(&mut self, memory: &Memory, id: LocalPeerId) {
        let Some(at) = self.0.iter().position(|entry| entry.peer.local_peer.id() == id) else {
            return;
        };
        self.0.swap_remove(at).end(memory);
    }
}

impl PeerEntry {
    /// Ends the peer's access to our memory.
    fn end(self, memory: &Memory) {
        if let Some(grantee) = self.grantee {
            memory.remove_process(grantee);
        }
        self.peer.end_kernel_access();
    }

    /// Returns the peer, as queue pairs know it.
    pub(crate) fn peer(&self) -> &Arc<DirectPeer> {
        &self.peer
    }

    pub(crate) fn local_peer(&self) -> &Arc<PeerProcess> {
        &self.peer.local_peer
    }

    pub(crate) fn words(&self) -> Option<&Arc<PeerRevocationWords>> {
        self.words.as_ref()
    }

    /// Opens the file with the peer's revocation words. Returns false if the file has none.
    pub(crate) fn take_words(&mut self, file: OwnedFd) -> bool {
        if self.words.is_some() {
            // The file was requested again before it came the first time. The words that are open
            // already stay in use, because grants refer to them.
            return true;
        }
        match PeerRevocationWords::open(file.as_fd()) {
            Ok(words) => {
                self.words = Some(Arc::new(words));
                self.peer.note_words();
                true
            }
            Err(error) => {
                tracing::debug!(pid = self.local_peer().pid(), %error, "gates that are none");
                false
            }
        }
    }

    /// Notes that the peer offers its memory to copy SENDs out of. Returns whether that memory can
    /// be read.
    pub(crate) fn accept_rendezvous(&mut self, liveness: LivenessWord) -> bool {
        let local_peer = self.local_peer().clone();
        self.sender_memory =
            self.words.clone().and_then(|words| SenderMemory::new(local_peer, liveness, words));
        self.sender_memory.is_some()
    }

    /// Whether some grant that is in use has ended: the revocation word of its key is cleared.
    /// `None` if the peer has sent no revocation words.
    pub(crate) fn has_revoked_region(&mut self) -> Option<bool> {
        let words = self.words.as_ref()?;
        self.regions.retain(|(_, _, region)| region.strong_count() != 0);
        Some(self.regions.iter().any(|&(key, ..)| !words.is_valid(key)))
    }

    /// Makes the peer a grantee: from now on revocations wait for its accesses. Before that, sends
    /// the file with our revocation words unless `has_words` says that the peer has it. Returns
    /// `None` if either step fails.
    pub(crate) fn add_grantee(
        &mut self,
        memory: &Memory,
        has_words: bool,
    ) -> Option<GrantedProcessId> {
        if !has_words {
            let file = memory.revocation_file().ok()?;
            self.peer.local_peer.send(&GrantMessage::RevocationFile.emit(), Some(file)).ok()?;
        }
        if self.grantee.is_none() {
            self.grantee = memory.add_process(self.peer.clone()).ok();
        }
        self.grantee
    }

    /// Returns a way to access the offered memory: the one that an earlier grant of the same key
    /// uses, or a new one.
    pub(crate) fn region_of(
        &mut self,
        offer: &GrantOffer,
        file: Option<OwnedFd>,
    ) -> Result<Arc<PeerRegion>, Refusal> {
        let writable = writes(offer.access);
        self.regions.retain(|(_, _, region)| region.strong_count() != 0);
        let is_it = |known: &&(RevocationToken, bool, Weak<PeerRegion>)| {
            (known.0, known.1) == (offer.key, writable)
        };
        if let Some(region) = self.regions.iter().find(is_it).and_then(|known| known.2.upgrade()) {
            return Ok(region);
        }
        let pid = self.peer.local_peer.pid();
        let region = match file.filter(|_| offer.is_mapped) {
            Some(file) => {
                let memory = PeerMapping::map(file.as_fd(), offer.at, offer.len, writable);
                PeerRegion::Mapped(memory.map_err(|error| {
                    tracing::debug!(pid, %error, "memory that was offered is not mapped");
                    Refusal::Unreachable
                })?)
            }
            None => {
                // The pid is 0 if the peer's process is not visible in this process's PID
                // namespace.
                let named = i32::try_from(pid).ok().filter(|&pid| pid > 0);
                let pid = named.ok_or(Refusal::NotPermitted)?;
                let GrantOffer { at: addr, len, liveness, .. } = *offer;
                PeerRegion::ByKernel(PeerRange { pid, addr, len, liveness })
            }
        };
        let region = Arc::new(region);
        self.regions.push((offer.key, writable, Arc::downgrade(&region)));
        Ok(region)
    }
}

/// Whether these access rights allow to change memory.
pub(crate) fn writes(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

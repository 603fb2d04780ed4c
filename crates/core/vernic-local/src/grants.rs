//! Grants between this process and a local peer, as the lane keeps them: what the peer may access
//! here, and how this process accesses the peer's memory.
//!
//! The lane decides which queue pair may be granted what, and hands the messages of the peer
//! (`grant_message.rs`) to this module.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use vernic_mem::{
    Access, Grant, GrantedProcessId, LivenessWord, Memory, PeerMapping, PeerRange,
    PeerRevocationWords, RemoteMemory, RevocationToken, SharedRange,
};
use vernic_wire::{Qpn, Rkey};

use crate::grant_message::{Denial, GrantMessage, GrantOffer};
use crate::process::PeerProcess;
use crate::qp_grants::PeerGrant;
use crate::rendezvous::SenderMemory;
use crate::rules::Refusal;

/// Access of a local peer to our memory, and ours to the peer's.
#[derive(Debug)]
pub struct Grants {
    process: Arc<PeerProcess>,
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
    regions: Vec<(RevocationToken, bool, Weak<dyn RemoteMemory>)>,
}

/// What becomes of a grant request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantAnswer {
    /// The memory was granted, and the peer was told so.
    Granted,
    /// The peer was told why it is granted nothing.
    Denied,
    /// The peer tries whether the kernel lets it copy, and asks again.
    Tries,
}

impl Grants {
    pub(crate) fn new(process: Arc<PeerProcess>) -> Self {
        Self { process, grantee: None, words: None, sender_memory: None, regions: Vec::new() }
    }

    /// Ends the peer's access to our memory.
    pub(crate) fn end(&mut self, memory: &Memory) {
        if let Some(grantee) = self.grantee.take() {
            memory.remove_process(grantee);
        }
        self.process.end_kernel_access();
    }

    /// Returns the peer's memory, if we copy the payload of its SENDs out of it.
    #[inline]
    pub fn sender_memory(&self) -> Option<&SenderMemory> {
        self.sender_memory.as_ref()
    }

    /// Whether a revocation word of the peer still has the token's value.
    pub fn is_valid(&self, token: RevocationToken) -> bool {
        self.words.as_ref().is_some_and(|words| words.is_valid(token))
    }

    /// Opens the file with the peer's revocation words. Returns false if there is none in it.
    pub fn take_words(&mut self, file: OwnedFd) -> bool {
        if self.words.is_some() {
            // The file was requested again before it came the first time. The words that are open
            // already stay in use, because grants refer to them.
            return true;
        }
        match PeerRevocationWords::open(file.as_fd()) {
            Ok(words) => {
                self.words = Some(Arc::new(words));
                self.process.note_words();
                true
            }
            Err(error) => {
                let pid = self.process.pid();
                tracing::debug!(pid, %error, "a file of revocation words that has none");
                false
            }
        }
    }

    /// Handles the peer's offer of its memory for rendezvous: answers whether that memory can be
    /// read. Returns false if the offer breaks the rules.
    pub fn accept_rendezvous(&mut self, liveness: LivenessWord, file: Option<OwnedFd>) -> bool {
        // Without a descriptor for the file there are no revocation words, and the answer is no.
        if file.is_some_and(|file| !self.take_words(file)) {
            return false;
        }
        let words = self.words.clone();
        self.sender_memory =
            words.and_then(|words| SenderMemory::new(self.process.clone(), liveness, words));
        let can = self.sender_memory.is_some();
        // If the peer takes no message now, it waits for the answer, and sends packets meanwhile.
        self.tell(&GrantMessage::RendezvousReply { can }, None);
        true
    }

    fn tell(&self, message: &GrantMessage, file: Option<std::os::fd::BorrowedFd<'_>>) {
        if let Err(error) = self.process.send(&message.emit(), file) {
            let pid = self.process.pid();
            tracing::debug!(pid, %error, "a process of this host takes no message");
        }
    }

    /// Whether some grant that is in use has ended: the revocation word of its key is cleared.
    /// `None` if the peer has sent no revocation words.
    pub fn has_revoked_region(&mut self) -> Option<bool> {
        let words = self.words.as_ref()?;
        self.regions.retain(|(_, _, region)| region.strong_count() != 0);
        Some(self.regions.iter().any(|&(key, ..)| !words.is_valid(key)))
    }

    /// Makes the peer a grantee: from now on revocations wait for its accesses. Before that, sends
    /// the file with our revocation words unless `has_words` says that the peer has it. Returns
    /// `None` if either step fails.
    pub fn add_grantee(&mut self, memory: &Memory, has_words: bool) -> Option<GrantedProcessId> {
        if !has_words {
            let file = memory.revocation_file().ok()?;
            self.process.send(&GrantMessage::RevocationFile.emit(), Some(file)).ok()?;
        }
        if self.grantee.is_none() {
            self.grantee = memory.add_process(self.process.clone()).ok();
        }
        self.grantee
    }

    /// Answers the grant request for `rkey` of the peer's queue pair `asker`. `decision` has what
    /// may be granted, with which rights.
    pub fn answer(
        &self,
        memory: &Memory,
        (asker, rkey): (Qpn, Rkey),
        decision: Result<(Grant, Access), Denial>,
    ) -> GrantAnswer {
        let decision = decision.map_err(Some).and_then(|(grant, access)| {
            let (grant, file) = file_for(grant, access);
            if grant.share.is_none() {
                self.process.admit_grant(memory, &grant)?;
            }
            Ok((grant, access, file))
        });
        // A peer that takes no message now asks again after a while.
        match decision {
            Ok((grant, access, read_only)) => {
                let writable = || grant.share.as_ref().map(SharedRange::file);
                let file = read_only.as_ref().map(AsFd::as_fd).or_else(writable);
                let offer = offer_of(&grant, access);
                self.tell(&GrantMessage::Offer { asker, rkey, offer }, file);
                GrantAnswer::Granted
            }
            Err(Some(why)) => {
                self.tell(&GrantMessage::Deny { asker, rkey, why }, None);
                GrantAnswer::Denied
            }
            Err(None) => GrantAnswer::Tries,
        }
    }

    /// Sets up access to the memory that the peer offers. `None` if the offer breaks the rules.
    ///
    /// # Errors
    /// Why the memory cannot be accessed. The key need not be asked for again.
    pub fn accept_offer(
        &mut self,
        offer: &GrantOffer,
        file: Option<OwnedFd>,
    ) -> Option<Result<PeerGrant, Refusal>> {
        let words = self.words.as_ref()?.clone();
        if offer.is_mapped && file.is_none() {
            return None;
        }
        let region = self.region_of(offer, file);
        Some(region.map(|region| PeerGrant { offer: *offer, words, region }))
    }

    /// Returns a way to access the offered memory: the one that an earlier grant of the same key
    /// uses, or a new one.
    fn region_of(
        &mut self,
        offer: &GrantOffer,
        file: Option<OwnedFd>,
    ) -> Result<Arc<dyn RemoteMemory>, Refusal> {
        let writable = writes(offer.access);
        self.regions.retain(|(_, _, region)| region.strong_count() != 0);
        let is_it = |known: &&(RevocationToken, bool, Weak<dyn RemoteMemory>)| {
            (known.0, known.1) == (offer.key, writable)
        };
        if let Some(region) = self.regions.iter().find(is_it).and_then(|known| known.2.upgrade()) {
            return Ok(region);
        }
        let pid = self.process.pid();
        let region: Arc<dyn RemoteMemory> = match file.filter(|_| offer.is_mapped) {
            Some(file) => {
                let memory = PeerMapping::map(file.as_fd(), offer.at, offer.len, writable);
                Arc::new(memory.map_err(|error| {
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
                Arc::new(PeerRange { pid, addr, len, liveness })
            }
        };
        self.regions.push((offer.key, writable, Arc::downgrade(&region)));
        Ok(region)
    }
}

/// Whether these access rights allow to change memory.
fn writes(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// Returns a grant, and the file to hand over for it: a read-only descriptor for a peer that may
/// only read. Where no such descriptor can be had, the memory is not shared by file.
fn file_for(grant: Grant, access: Access) -> (Grant, Option<OwnedFd>) {
    let Some(share) = grant.share.as_ref().filter(|_| !writes(access)) else {
        return (grant, None);
    };
    match share.file_to_read() {
        Ok(file) => (grant, Some(file)),
        Err(error) => {
            tracing::debug!(%error, "memory that may only be read is not shared by file");
            (Grant { share: None, ..grant }, None)
        }
    }
}

fn offer_of(grant: &Grant, access: Access) -> GrantOffer {
    let at = grant.share.as_ref().map_or(grant.base, SharedRange::offset);
    GrantOffer {
        iova: grant.iova,
        len: grant.len,
        access,
        key: grant.key,
        qp: grant.qp,
        is_mapped: grant.share.is_some(),
        at,
        liveness: grant.liveness,
    }
}

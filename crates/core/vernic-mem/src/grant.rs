//! Grants: direct access to a region for another process of this host.
//!
//! A grant passes the same checks as an access on the data path, once. Every change that could make
//! a check fail later revokes the grant (module `revocation`). This crate sees the changes of the
//! key. The owner of the queue pair reports those of the queue pair ([`Memory::revoke_qp`]).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vernic_wire::{Qpn, Rkey};

use crate::data::permit;
use crate::racy::{Kind, find_share};
use crate::revocation::{GrantedProcess, GrantedProcessId, RevocationToken, RevocationWords};
use crate::{Access, Check, LivenessWord, Memory, PdId, SharedRange};

/// The rights that a process can use by direct access, without packets.
const DIRECT: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// All that another process needs for direct access to a region.
#[derive(Debug)]
pub struct Grant {
    /// I/O virtual address of the region's first byte.
    pub iova: u64,
    /// Length of the region in bytes, at least 1.
    pub len: u64,
    /// The key's rights to WRITE, READ or run atomics, at least one of them.
    pub access: Access,
    /// Address of the first byte in the owner's address space.
    pub base: u64,
    /// Token for the key's revocation word.
    pub key: RevocationToken,
    /// Token for the queue pair's revocation word.
    pub qp: RevocationToken,
    /// The memory file, if the region is all of a file. A process that receives a file can map all
    /// of it, so a region that is only a part of a file is not granted as a file.
    pub share: Option<SharedRange>,
    /// The owner's liveness word, for copies by the kernel.
    pub liveness: LivenessWord,
}

/// Why no access is granted. The requesting process then sends packets instead, and the responder
/// reports those cases that are errors of the request.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The key cannot be used through this queue pair.
    #[error("the key opens nothing: {0:?}")]
    Check(Check),
    /// The key has none of the rights that direct access can use.
    #[error("the key gives no right to write, read or run atomics")]
    Rights,
    /// The key is the key of a window. A packet or a work request may end a window: see the head of
    /// module `revocation`.
    #[error("the key is of a memory window")]
    Window,
    /// The region has no bytes, or is the whole address space, which is not one range of memory.
    #[error("the key names no range of memory")]
    Range,
    /// The process was removed, or was cut off because it did not stop its access in time.
    #[error("the process was cut off")]
    Process,
    /// All [`MAX_REVOCATION_WORDS`](crate::MAX_REVOCATION_WORDS) revocation words are in use.
    #[error("too many keys and queue pairs are reached by other processes")]
    Full,
    /// The file of revocation words could not be created.
    #[error("no shared memory for revocation words: {0}")]
    RevocationWords(io::Error),
}

impl Memory {
    /// Returns the revocation words, and creates them at the first call.
    fn make_revocations(&self) -> io::Result<&RevocationWords> {
        if let Some(words) = self.revocations.get() {
            return Ok(words);
        }
        let made = RevocationWords::new()?;
        // If two threads create them at the same time, one result is kept.
        Ok(self.revocations.get_or_init(|| made))
    }

    /// The file of this device's revocation words. The caller passes it to each process that is
    /// granted access.
    ///
    /// # Errors
    /// An error of the system about memory files.
    pub fn revocation_file(&self) -> io::Result<BorrowedFd<'_>> {
        self.make_revocations().map(RevocationWords::file)
    }

    /// The liveness word of this process. A process with a grant checks it to know that this
    /// process is still the one that granted access.
    ///
    /// # Errors
    /// An error of the system about memory or memory files.
    pub fn liveness_word(&self) -> io::Result<LivenessWord> {
        self.make_revocations().map(RevocationWords::liveness_word)
    }

    /// Grants a process direct access to the region of `rkey`. The checks are those for a packet
    /// that arrives at the queue pair.
    ///
    /// The grant ends when the key is invalidated or changed, which waits for accesses in progress.
    /// It also ends with [`revoke_qp`](Self::revoke_qp), and when the process is removed or
    /// cut off.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn grant(
        &self,
        process: GrantedProcessId,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
    ) -> Result<Grant, GrantError> {
        let words = self.make_revocations().map_err(GrantError::RevocationWords)?;
        // The control lock is kept until the revocation words are set. So a change of the entry
        // either comes before the check, or revokes the grant.
        let _control = self.control();
        let entry = self.find_open(pd, qpn, rkey).map_err(GrantError::Check)?;
        let checked =
            permit(&entry, pd, entry.iova, 0, Access::empty()).map_err(GrantError::Check)?;
        if entry.kind != Kind::Region {
            return Err(GrantError::Window);
        }
        let (region, access) = (checked.region, entry.access & DIRECT);
        if access.is_empty() {
            return Err(GrantError::Rights);
        }
        let len = region.len();
        if region.is_special() || len == 0 {
            return Err(GrantError::Range);
        }
        if !words.has_process(process) {
            return Err(GrantError::Process);
        }
        let key = words.issue_key(rkey.value() >> 8).ok_or(GrantError::Full)?;
        let qp = words.issue_qp(qpn, process).ok_or(GrantError::Full)?;
        let base = region.addr();
        let share = find_share(base, len).filter(|share| share.is_all(len));
        if share.is_some() {
            words.add_file_holder(rkey.value() >> 8, process);
        }
        let liveness = words.liveness_word();
        Ok(Grant { iova: entry.iova, len, access, base: base as u64, key, qp, share, liveness })
    }

    /// Whether a token of a grant was not revoked since.
    pub fn is_valid(&self, token: RevocationToken) -> bool {
        self.revocations.get().is_some_and(|words| words.is_valid(token))
    }

    /// Revokes all that was granted through a queue pair. The owner of the queue pair calls this
    /// before the queue pair stops taking requests, or its rights change.
    /// [`wait_for_revocations`](Self::wait_for_revocations) waits for accesses in progress.
    pub fn revoke_qp(&self, qpn: Qpn) {
        if let Some(words) = self.revocations.get() {
            words.revoke_qp(qpn);
        }
    }

    /// Returns a token for sends of this queue pair whose bytes another process copies out of this
    /// process's memory. While the token is valid, the bytes in memory are the bytes that were
    /// sent. `None` if there is no free revocation word.
    pub fn send_token(&self, qpn: Qpn) -> Option<RevocationToken> {
        self.make_revocations().ok()?.issue_send(qpn)
    }

    /// Revokes the token that [`send_token`](Self::send_token) returned. The caller does so before
    /// it completes sends in error: the application may then change the send buffers, although the
    /// peer has not acknowledged the sends.
    pub fn revoke_send(&self, qpn: Qpn) {
        if let Some(words) = self.revocations.get() {
            words.revoke_send(qpn);
        }
    }

    /// Waits until no process accesses memory by a grant that was revoked before this call. Usually
    /// returns at once. If processes do not stop, returns after
    /// [`REVOKE_TIMEOUT`](crate::REVOKE_TIMEOUT), or twice that.
    pub fn wait_for_revocations(&self) {
        if let Some(words) = self.revocations.get() {
            words.wait();
        }
    }

    /// Revokes all grants, and waits for accesses in progress.
    pub fn revoke_all(&self) {
        if let Some(words) = self.revocations.get() {
            words.revoke_all();
            words.wait();
        }
    }

    /// Registers a process that may be granted access. From now on, revocations wait for its
    /// accesses.
    ///
    /// # Errors
    /// An error of the system about memory files.
    pub fn add_process(&self, process: Arc<dyn GrantedProcess>) -> io::Result<GrantedProcessId> {
        Ok(self.make_revocations()?.add_process(process))
    }

    /// Unregisters a process that is gone, and revokes its grants.
    pub fn remove_process(&self, process: GrantedProcessId) {
        if let Some(words) = self.revocations.get() {
            words.remove_process(process);
        }
    }
}

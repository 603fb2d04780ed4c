//! Access for another process of this host: what a ticket to a region says.
//!
//! The checks are those of the data path, made once. What they depend on closes the key's gate when
//! it changes (`gates`); the queue pair's part of it is its owner's concern
//! ([`Memory::close_qp_gate`]).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vernic_wire::{Qpn, Rkey};

use crate::data::permit;
use crate::racy::{Kind, find_share};
use crate::revocation::{GatePass, RevocationWords, Visitor, VisitorId};
use crate::{Access, Check, Memory, PdId, Sentinel, SharedRange};

/// The rights that can be used without packets.
const DIRECT: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// What another process needs to know to reach a region by itself.
#[derive(Debug)]
pub struct Grant {
    /// The address by which the first byte is known to work requests.
    pub iova: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// Rights to WRITE, READ or run atomics that the key gives, at least one.
    pub access: Access,
    /// Address of the first byte in this process.
    pub base: u64,
    /// The key's gate.
    pub key: GatePass,
    /// The queue pair's gate.
    pub qp: GatePass,
    /// The file that the memory is, if it is all of one: who has a file can map all of it.
    pub share: Option<SharedRange>,
    /// By what the kernel knows this process, where it copies.
    pub sentinel: Sentinel,
}

/// Why no access is granted. Requests that take packets instead are told of the faults among these.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The key does not open anything for this queue pair.
    #[error("the key opens nothing: {0:?}")]
    Check(Check),
    /// The key gives none of the rights in question.
    #[error("the key gives no right to write, read or run atomics")]
    Rights,
    /// It is the key of a window, which a packet or a work request may end: see the head of
    /// `gates`.
    #[error("the key is of a memory window")]
    Window,
    /// It has no bytes, or is no memory of its own: the whole address space.
    #[error("the key names no range of memory")]
    Range,
    /// The visitor was removed, or cut off.
    #[error("the process was cut off")]
    Visitor,
    /// [`MAX_GATES`](crate::MAX_GATES) are open.
    #[error("too many keys and queue pairs are reached by other processes")]
    Full,
    /// There can be no gates.
    #[error("no shared memory for gates: {0}")]
    Gates(io::Error),
}

impl Memory {
    /// The gates, made if there are none.
    fn make_revocations(&self) -> io::Result<&RevocationWords> {
        if let Some(words) = self.revocations.get() {
            return Ok(words);
        }
        let made = RevocationWords::new()?;
        // Of two that are made at once, one stays.
        Ok(self.revocations.get_or_init(|| made))
    }

    /// The file of this device's gates, to be passed to those who are granted access.
    ///
    /// # Errors
    /// What the system says about memory files.
    pub fn gates_file(&self) -> io::Result<BorrowedFd<'_>> {
        self.make_revocations().map(RevocationWords::file)
    }

    /// By what a visitor of this device knows that this process is still the one that granted it
    /// access.
    ///
    /// # Errors
    /// What the system says about memory, and memory files.
    pub fn sentinel(&self) -> io::Result<Sentinel> {
        self.make_revocations().map(RevocationWords::sentinel)
    }

    /// Grants a visitor access to what `rkey` opens for packets of the queue pair, by the same
    /// checks. It ends when the key dies or changes, which waits for visitors that are inside, with
    /// [`close_qp_gate`](Self::close_qp_gate), or when the visitor is removed or cut off.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn grant(
        &self,
        visitor: VisitorId,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
    ) -> Result<Grant, GrantError> {
        let words = self.make_revocations().map_err(GrantError::Gates)?;
        // The entry cannot change before its gate is open, nor unseen afterwards.
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
        if !words.has_process(visitor) {
            return Err(GrantError::Visitor);
        }
        let key = words.issue_key(rkey.value() >> 8).ok_or(GrantError::Full)?;
        let qp = words.issue_qp(qpn, visitor).ok_or(GrantError::Full)?;
        let base = region.addr();
        let share = find_share(base, len).filter(|share| share.is_all(len));
        if share.is_some() {
            words.add_file_holder(rkey.value() >> 8, visitor);
        }
        let sentinel = words.sentinel();
        Ok(Grant { iova: entry.iova, len, access, base: base as u64, key, qp, share, sentinel })
    }

    /// Ends what was granted through a queue pair, for it is about to leave the states in which it
    /// takes requests, or its rights change. [`settle_gates`](Self::settle_gates) waits for who is
    /// inside.
    pub fn close_qp_gate(&self, qpn: Qpn) {
        if let Some(words) = self.revocations.get() {
            words.revoke_qp(qpn);
        }
    }

    /// The pass that says of bytes of a queue pair's sends, while another process copies them by
    /// itself, that they are what was sent. Opens the gate of its send queue unless it is open;
    /// `None` if there are no gates (left).
    pub fn open_send_gate(&self, qpn: Qpn) -> Option<GatePass> {
        self.make_revocations().ok()?.issue_send(qpn)
    }

    /// Ends what that pass says: the application is about to be told that it may change the bytes
    /// though nobody has acknowledged them.
    pub fn close_send_gate(&self, qpn: Qpn) {
        if let Some(words) = self.revocations.get() {
            words.revoke_send(qpn);
        }
    }

    /// Returns when nobody is inside a gate that was closed before the call: at once, mostly, or
    /// after [`PATIENCE`](crate::PATIENCE), or twice that, where visitors do not leave.
    pub fn settle_gates(&self) {
        if let Some(words) = self.revocations.get() {
            words.wait();
        }
    }

    /// Ends all that was granted, and returns when nobody is inside.
    pub fn close_gates(&self) {
        if let Some(words) = self.revocations.get() {
            words.revoke_all();
            words.wait();
        }
    }

    /// From now on gates wait for this process, which may be granted access.
    ///
    /// # Errors
    /// What the system says about memory files.
    pub fn add_visitor(&self, visitor: Arc<dyn Visitor>) -> io::Result<VisitorId> {
        Ok(self.make_revocations()?.add_process(visitor))
    }

    /// It is gone: what it was granted is over.
    pub fn remove_visitor(&self, visitor: VisitorId) {
        if let Some(words) = self.revocations.get() {
            words.remove_process(visitor);
        }
    }
}

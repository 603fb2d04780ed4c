//! Local peers of a lane with which memory accesses are possible, in either direction.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use vernic_io::neighbour::{Neighbour, NeighbourId};
use vernic_mem::{
    Access, GrantedProcessId, LivenessWord, Memory, PeerMapping, PeerRange, PeerRegion,
    PeerRevocationWords, RevocationToken,
};

use super::guest::Guest;
use super::messages::{Offer, Told};
use super::pull::Lender;
use crate::counters::{DirectCounts, Refusal};

/// A local peer, as the lane knows it: the peer's access to our memory, and ours to the peer's.
#[derive(Debug)]
pub(crate) struct Host {
    guest: Arc<Guest>,
    /// The peer's id as a grantee; `None` until it is granted something. When memory is revoked,
    /// the revoking thread waits for the peer's accesses, until it gives up and cuts the peer off.
    visitor: Option<GrantedProcessId>,
    /// The revocation words of the peer; `None` until their file has come.
    gates: Option<Arc<PeerRevocationWords>>,
    /// The peer's memory, if we copy the payload of the peer's SENDs out of it.
    lender: Option<Lender>,
    /// Ways to access the peer's memory that grants of queue pairs share. Each entry has the
    /// revocation token of the key, and whether the memory may be written. An entry is dropped when
    /// no grant uses it any more.
    reaches: Vec<(RevocationToken, bool, Weak<PeerRegion>)>,
}

/// The local peers of a lane with which memory accesses are possible.
#[derive(Debug, Default)]
pub(crate) struct Guests(Vec<Host>);

impl Guests {
    pub(crate) fn find(&mut self, id: NeighbourId) -> Option<&mut Host> {
        self.0.iter_mut().find(|host| host.guest.neighbour.id() == id)
    }

    /// Adds a local peer that has just connected.
    pub(crate) fn add(&mut self, counts: &DirectCounts, neighbour: Arc<Neighbour>) {
        let guest = Arc::new(Guest::new(neighbour, counts));
        self.0.push(Host { guest, visitor: None, gates: None, lender: None, reaches: Vec::new() });
    }

    /// Returns a local peer by its id.
    pub(crate) fn get(&self, id: NeighbourId) -> Option<&Arc<Guest>> {
        self.0.iter().map(|host| &host.guest).find(|guest| guest.neighbour.id() == id)
    }

    /// Returns the memory of a local peer, if we copy the payload of its SENDs out of it.
    pub(crate) fn lender(&self, id: NeighbourId) -> Option<&Lender> {
        let host = self.0.iter().find(|host| host.guest.neighbour.id() == id)?;
        host.lender.as_ref()
    }

    /// Removes all local peers, because the device is closed.
    pub(crate) fn close(&mut self, memory: &Memory) {
        for visitor in self.0.drain(..).filter_map(|host| host.visitor) {
            memory.remove_process(visitor);
        }
    }

    /// Removes a local peer that is gone. Revocations no longer wait for its accesses.
    pub(crate) fn remove(&mut self, memory: &Memory, id: NeighbourId) {
        let Some(at) = self.0.iter().position(|host| host.guest.neighbour.id() == id) else {
            return;
        };
        if let Some(visitor) = self.0.swap_remove(at).visitor {
            memory.remove_process(visitor);
        }
    }
}

impl Host {
    pub(crate) fn neighbour(&self) -> &Arc<Neighbour> {
        &self.guest.neighbour
    }

    pub(crate) fn gates(&self) -> Option<&Arc<PeerRevocationWords>> {
        self.gates.as_ref()
    }

    /// Opens the file with the peer's revocation words. Returns false if the file has none.
    pub(crate) fn take_gates(&mut self, file: OwnedFd) -> bool {
        if self.gates.is_some() {
            // The file was requested again before it came the first time. The words that are open
            // already stay in use, because grants refer to them.
            return true;
        }
        match PeerRevocationWords::open(file.as_fd()) {
            Ok(gates) => {
                self.gates = Some(Arc::new(gates));
                self.guest.note_gates();
                true
            }
            Err(error) => {
                tracing::debug!(pid = self.neighbour().pid(), %error, "gates that are none");
                false
            }
        }
    }

    /// Notes that the peer offers its memory to copy SENDs out of. Returns whether that memory can
    /// be read.
    pub(crate) fn borrow(&mut self, liveness: LivenessWord) -> bool {
        let neighbour = self.neighbour().clone();
        self.lender = self.gates.clone().and_then(|gates| Lender::new(neighbour, liveness, gates));
        self.lender.is_some()
    }

    /// Whether some grant that is in use has ended: the revocation word of its key is cleared.
    /// `None` if the peer has sent no revocation words.
    pub(crate) fn has_closed_reach(&mut self) -> Option<bool> {
        let gates = self.gates.as_ref()?;
        self.reaches.retain(|(_, _, reach)| reach.strong_count() != 0);
        Some(self.reaches.iter().any(|&(key, ..)| !gates.is_valid(key)))
    }

    /// Makes the peer a grantee: from now on revocations wait for its accesses. Before that, sends
    /// the file with our revocation words unless `has_gates` says that the peer has it. Returns
    /// `None` if either step fails.
    pub(crate) fn welcome(&mut self, memory: &Memory, has_gates: bool) -> Option<GrantedProcessId> {
        if !has_gates {
            let file = memory.revocation_file().ok()?;
            self.guest.neighbour.tell(&Told::Gates.emit(), Some(file)).ok()?;
        }
        if self.visitor.is_none() {
            self.visitor = memory.add_process(self.guest.clone()).ok();
        }
        self.visitor
    }

    /// Returns a way to access the offered memory: the one that an earlier grant of the same key
    /// uses, or a new one.
    pub(crate) fn reach(
        &mut self,
        offer: &Offer,
        file: Option<OwnedFd>,
    ) -> Result<Arc<PeerRegion>, Refusal> {
        let writable = writes(offer.access);
        self.reaches.retain(|(_, _, reach)| reach.strong_count() != 0);
        let is_it = |known: &&(RevocationToken, bool, Weak<PeerRegion>)| {
            (known.0, known.1) == (offer.key, writable)
        };
        if let Some(reach) = self.reaches.iter().find(is_it).and_then(|known| known.2.upgrade()) {
            return Ok(reach);
        }
        let pid = self.guest.neighbour.pid();
        let reach = match file.filter(|_| offer.is_mapped) {
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
                let Offer { at: addr, len, liveness, .. } = *offer;
                PeerRegion::ByKernel(PeerRange { pid, addr, len, liveness })
            }
        };
        let reach = Arc::new(reach);
        self.reaches.push((offer.key, writable, Arc::downgrade(&reach)));
        Ok(reach)
    }
}

/// Whether these access rights allow to change memory.
pub(crate) fn writes(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

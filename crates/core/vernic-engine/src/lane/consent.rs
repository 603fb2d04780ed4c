//! Grant requests: which local peers may access this process's memory, and what they answer to the
//! requests of this process.
//!
//! Called by the lane when a local peer has sent a message. No peer is granted what its packets
//! would not be. The queue pair must be connected to the peer that asks, and in a state that takes
//! requests. The checks of key, domain, queue pair and rights are the responder's
//! (`vernic_mem::Memory::grant`). A grant ends with its revocation words: the key's is cleared when
//! the key changes or dies, the queue pair's when the queue pair leaves those states.

use std::os::fd::{AsFd, OwnedFd};

use vernic_io::neighbour::NeighbourId;
use vernic_mem::{
    Access, Grant, GrantError, LivenessWord, RevocationToken, SharedRange, permit_ptrace,
};
use vernic_proto::QpType;
use vernic_wire::{Qpn, Rkey};

use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::local::guests::writes;
use crate::local::messages::{Denial, Offer, Told};
use crate::local::tickets::{Consent, Ticket};
use crate::qp::state::{QpCore, QpInner, takes_requests};
use crate::support::events::lock;

impl LaneState {
    /// Handles a message of a local peer about grants.
    pub(crate) fn handle_told(
        &mut self,
        engine: &Device,
        from: NeighbourId,
        bytes: &[u8],
        file: Option<OwnedFd>,
    ) {
        if !engine.config().direct {
            // A peer that gets no answer asks less and less often.
            return;
        }
        let understood = match Told::parse(bytes) {
            Some(Told::Ask { asker, target, rkey, has_gates }) => {
                let consent = self.consent(engine, from, (asker, target), rkey, has_gates);
                self.tell_consent(engine, from, (asker, rkey), consent)
            }
            Some(Told::Gates) => self.take_gates(from, file),
            // Either the grant has ended already, which an earlier message said, or the file of
            // revocation words was lost. The file is asked for with the key, when the key is asked
            // for again.
            Some(Told::Offer { asker, offer, .. }) if !self.is_let(from, offer.key) => {
                self.is_asked_by(from, asker)
            }
            Some(Told::Offer { asker, rkey, offer }) => {
                let consent = self.accept(engine, from, &offer, file);
                self.note_answer(from, asker, rkey, consent)
            }
            Some(Told::Deny { asker, rkey, why }) => {
                tracing::debug!(qpn = %asker, %rkey, ?why, "a process of this host grants no access");
                // The key is asked for again after a while: what is in the way may go.
                self.is_asked_by(from, asker)
            }
            Some(Told::Ended) => self.let_go(from),
            Some(Told::Lend { liveness }) => self.borrow(from, liveness, file),
            Some(Told::Pulls { can }) => {
                tracing::debug!(neighbour = %from, can, "large SENDs by one copy");
                self.guests.get(from).is_some_and(|guest| guest.note_pulls(can))
            }
            None => false,
        };
        if !understood {
            engine.counts().direct.note_bad_message();
        }
    }

    /// Decides whether the peer that asks may have access; returns what is granted.
    fn consent(
        &mut self,
        engine: &Device,
        from: NeighbourId,
        (asker, target): (Qpn, Qpn),
        rkey: Rkey,
        has_gates: bool,
    ) -> Result<(Grant, Access), Denial> {
        let host = self.guests.find(from).ok_or(Denial::NotConnected)?;
        let visitor = host.welcome(engine.memory(), has_gates).ok_or(Denial::Unreachable)?;
        let qp = self.table.find(target).ok_or(Denial::NotConnected)?;
        let mut core = lock(&qp.core);
        let QpCore { machine, side } = &mut *core;
        let machine = machine.packets().ok_or(Denial::NotConnected)?;
        if !takes_requests(machine.state()) || machine.attr().dest_qpn != asker {
            return Err(Denial::NotConnected);
        }
        // The peer may have been too busy to say that it is of this host when the queue pair went
        // to RTR. A queue pair that only responds has no timeout at which it would ask again.
        if !machine.has_unacknowledged()
            && let Some(path) = side.peer.path()
            && let Some((path, process)) = engine.local_path(path, asker)
        {
            self.near.note_found(asker, process.pid());
            side.peer.switch_to_local_path(engine, path, asker, process);
        }
        // The kernel decides which process has the peer's slot, not the message of the peer that
        // asks.
        let path = side.peer.path().filter(|_| !side.peer.route().is_peer_gone());
        let peer = path.and_then(|path| self.near.neighbour_of(path, asker));
        if peer != Some(from) {
            return Err(Denial::NotConnected);
        }
        let rights = rights_of(qp, machine.attr().access);
        // Granted under the queue pair's lock, under which its revocation word is cleared, too.
        let grant = engine.memory().grant(visitor, qp.pd(), qp.qpn(), rkey).map_err(|error| {
            tracing::debug!(qpn = %target, %rkey, %error, "no access for another process");
            match error {
                GrantError::Check(_) | GrantError::Rights => Denial::Refused,
                _ => Denial::Unreachable,
            }
        })?;
        let access = grant.access & rights;
        if access.is_empty() { Err(Denial::Refused) } else { Ok((grant, access)) }
    }

    fn tell_consent(
        &mut self,
        engine: &Device,
        from: NeighbourId,
        (asker, rkey): (Qpn, Rkey),
        consent: Result<(Grant, Access), Denial>,
    ) -> bool {
        let Some(host) = self.guests.find(from) else { return false };
        let neighbour = host.neighbour();
        let counts = &engine.counts().direct;
        let consent = consent.and_then(|(grant, access)| {
            let (grant, file) = file_for(grant, access);
            let reachable = grant.share.is_some() || permit_ptrace(neighbour.pid());
            reachable.then_some((grant, access, file)).ok_or(Denial::Unreachable)
        });
        counts.note_answer(consent.is_ok());
        let told = match &consent {
            Ok((grant, access, read_only)) => {
                let writable = || grant.share.as_ref().map(SharedRange::file);
                let file = read_only.as_ref().map(AsFd::as_fd).or_else(writable);
                let offer = offer_of(grant, *access);
                neighbour.tell(&Told::Offer { asker, rkey, offer }.emit(), file)
            }
            Err(why) => neighbour.tell(&Told::Deny { asker, rkey, why: *why }.emit(), None),
        };
        if let Err(error) = told {
            // The peer asks again after a while.
            tracing::debug!(pid = neighbour.pid(), %error, "a process of this host does not listen");
        }
        true
    }

    /// Takes the file of a local peer's revocation words.
    fn take_gates(&mut self, from: NeighbourId, file: Option<OwnedFd>) -> bool {
        let (Some(host), Some(file)) = (self.guests.find(from), file) else { return false };
        host.take_gates(file)
    }

    /// Handles a local peer's offer of its memory for rendezvous: answers whether that memory can
    /// be read.
    fn borrow(&mut self, from: NeighbourId, liveness: LivenessWord, file: Option<OwnedFd>) -> bool {
        // Without a descriptor for the file there are no revocation words, and the answer is no.
        let is_lost = file.is_none();
        if !self.take_gates(from, file) && !is_lost {
            return false;
        }
        let Some(host) = self.guests.find(from) else { return false };
        let can = host.borrow(liveness);
        if let Err(error) = host.neighbour().tell(&Told::Pulls { can }.emit(), None) {
            // The peer waits for the answer, and sends packets meanwhile.
            let pid = host.neighbour().pid();
            tracing::debug!(pid, %error, "a process of this host does not listen");
        }
        true
    }

    /// Whether a local peer's revocation word still has the value of the token `pass`.
    fn is_let(&mut self, from: NeighbourId, pass: RevocationToken) -> bool {
        let gates = self.guests.find(from).and_then(|host| host.gates());
        gates.is_some_and(|gates| gates.is_valid(pass))
    }

    /// Gives up access to regions of a local peer that have ended, and their mapping with the last
    /// grant. Returns false if the peer never granted any. Looks at queue pairs only if there is
    /// access to give up.
    fn let_go(&mut self, from: NeighbourId) -> bool {
        let Some(host) = self.guests.find(from) else { return false };
        match host.has_closed_reach() {
            None => return false,
            Some(false) => return true,
            Some(true) => {}
        }
        for qp in self.table.iter() {
            let mut core = lock(&qp.core);
            let tickets = core.side.peer.tickets_mut();
            if tickets.guest().is_some_and(|guest| guest.neighbour.id() == from) {
                tickets.end_closed();
            }
        }
        true
    }

    /// Sets up access to the memory that was offered; where that is not possible, the key is never
    /// asked for again. Returns `None` if the offer breaks the rules.
    fn accept(
        &mut self,
        engine: &Device,
        from: NeighbourId,
        offer: &Offer,
        file: Option<OwnedFd>,
    ) -> Option<Consent> {
        let host = self.guests.find(from)?;
        let gates = host.gates()?.clone();
        if offer.is_mapped && file.is_none() {
            return None;
        }
        Some(match host.reach(offer, file) {
            Ok(reach) => Consent::Ticket(Ticket { offer: *offer, gates, reach }),
            Err(why) => {
                engine.counts().direct.note_refusal(why);
                Consent::Never
            }
        })
    }

    /// Gives the answer to the queue pair that has asked; returns whether the queue pair expected
    /// it.
    fn note_answer(
        &mut self,
        from: NeighbourId,
        asker: Qpn,
        rkey: Rkey,
        consent: Option<Consent>,
    ) -> bool {
        let Some(qp) = self.table.find(asker) else { return false };
        let mut core = lock(&qp.core);
        let tickets = core.side.peer.tickets_mut();
        let connected = tickets.guest().is_some_and(|guest| guest.neighbour.id() == from);
        connected && consent.is_some_and(|consent| tickets.answer(rkey, consent))
    }

    fn is_asked_by(&self, from: NeighbourId, asker: Qpn) -> bool {
        let Some(qp) = self.table.find(asker) else { return false };
        let core = lock(&qp.core);
        core.side.peer.tickets().guest().is_some_and(|guest| guest.neighbour.id() == from)
    }
}

/// Returns what a queue pair's own rights (`ibv_access_flags`) permit. Only RC permits anything:
/// its acknowledgements say when nothing sent before is in flight any more.
fn rights_of(qp: &QpInner, access: u32) -> Access {
    let service = match qp.qp_type() {
        QpType::Rc => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        _ => Access::empty(),
    };
    Access::from_bits_truncate(access) & service
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

fn offer_of(grant: &Grant, access: Access) -> Offer {
    let at = grant.share.as_ref().map_or(grant.base, SharedRange::offset);
    Offer {
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

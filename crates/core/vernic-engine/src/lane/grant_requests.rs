//! Grant requests: which local peers may access this process's memory, and what they answer to the
//! requests of this process.
//!
//! Called by the lane when a local peer has sent a message. No peer is granted what its packets
//! would not be. The queue pair must be connected to the peer that asks, and in a state that takes
//! requests. The checks of key, domain, queue pair and rights are the responder's
//! (`vernic_mem::Memory::grant`). A grant ends with its revocation words: the key's is cleared when
//! the key changes or dies, the queue pair's when the queue pair leaves those states.

use std::os::fd::OwnedFd;

use vernic_local::{
    Denial, GrantAnswer, GrantMessage, GrantOffer, GrantState, Grants, LocalPeer, LocalPeerId,
    Refusal,
};
use vernic_mem::{Access, Grant, GrantError};
use vernic_proto::QpType;
use vernic_wire::{Qpn, Rkey};

use crate::config::DirectAccess;
use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::qp::state::{QpCore, QpInner, takes_requests};
use crate::support::events::lock;

impl LaneState {
    /// Handles a message of a local peer about grants.
    pub(crate) fn handle_grant_message(
        &mut self,
        engine: &Device,
        from: LocalPeerId,
        bytes: &[u8],
        file: Option<OwnedFd>,
    ) {
        if !engine.config().direct.is_on() {
            // A peer that gets no answer asks less and less often.
            return;
        }
        let understood = match GrantMessage::parse(bytes) {
            Some(GrantMessage::Request { asker, target, rkey, has_words }) => {
                let decision = self.decide_grant(engine, from, (asker, target), rkey, has_words);
                let grants = self.grants_of(from);
                let answer =
                    grants.map(|grants| grants.answer(engine.memory(), (asker, rkey), decision));
                if let Some(GrantAnswer::Granted | GrantAnswer::Denied) = answer {
                    engine.counts().direct.note_answer(answer == Some(GrantAnswer::Granted));
                }
                answer.is_some()
            }
            Some(GrantMessage::RevocationFile) => {
                let (grants, file) = (self.grants_of(from), file);
                grants.zip(file).is_some_and(|(grants, file)| grants.take_words(file))
            }
            // Either the grant has ended already, which an earlier message said, or the file of
            // revocation words was lost. The file is asked for with the key, when the key is asked
            // for again.
            Some(GrantMessage::Offer { asker, offer, .. })
                if !self.grants_of(from).is_some_and(|grants| grants.is_valid(offer.key)) =>
            {
                self.is_asked_by(from, asker)
            }
            Some(GrantMessage::Offer { asker, rkey, offer }) => {
                let answer = self.accept_offer(engine, from, &offer, file);
                self.note_answer(from, asker, rkey, answer)
            }
            Some(GrantMessage::Deny { asker, rkey, why: Denial::NotPermitted }) => {
                self.note_kept_out(engine, from, asker, rkey)
            }
            Some(GrantMessage::Deny { asker, rkey, why }) => {
                tracing::debug!(qpn = %asker, %rkey, ?why, "a process of this host grants no access");
                // The key is asked for again after a while: what is in the way may go.
                self.is_asked_by(from, asker)
            }
            Some(GrantMessage::Revoked) => self.drop_revoked(from),
            Some(GrantMessage::RendezvousOffer { liveness }) => {
                let grants = self.grants_of(from);
                grants.is_some_and(|grants| grants.accept_rendezvous(liveness, file))
            }
            Some(GrantMessage::RendezvousReply { can }) => {
                self.note_rendezvous_reply(engine, from, can)
            }
            None => false,
        };
        if !understood {
            engine.counts().direct.note_bad_message();
        }
    }

    /// Returns the grants of a local peer, if memory accesses are possible with it.
    fn grants_of(&mut self, peer: LocalPeerId) -> Option<&mut Grants> {
        self.local_peers.accessible(peer).map(LocalPeer::grants_mut)
    }

    /// Decides whether the peer that asks may have access; returns what is granted.
    fn decide_grant(
        &mut self,
        engine: &Device,
        from: LocalPeerId,
        (asker, target): (Qpn, Qpn),
        rkey: Rkey,
        has_words: bool,
    ) -> Result<(Grant, Access), Denial> {
        let grants = self.grants_of(from).ok_or(Denial::NotConnected)?;
        let grantee = grants.add_grantee(engine.memory(), has_words).ok_or(Denial::Unreachable)?;
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
            self.local_peers.note_found(asker, process.pid());
            side.peer.switch_to_local_path(engine, path, asker, process);
        }
        // The kernel decides which process has the peer's slot, not the message of the peer that
        // asks.
        let path = side.peer.path().filter(|_| !side.peer.route().is_peer_gone());
        let peer = path.and_then(|path| self.local_peers.peer_of(path, asker));
        if peer != Some(from) {
            return Err(Denial::NotConnected);
        }
        let rights = rights_of(qp, machine.attr().access);
        // Granted under the queue pair's lock, under which its revocation word is cleared, too.
        let grant = engine.memory().grant(grantee, qp.pd(), qp.qpn(), rkey).map_err(|error| {
            tracing::debug!(qpn = %target, %rkey, %error, "no access for another process");
            match error {
                GrantError::Check(_) | GrantError::Rights => Denial::Refused,
                _ => Denial::Unreachable,
            }
        })?;
        let access = grant.access & rights;
        if access.is_empty() { Err(Denial::Refused) } else { Ok((grant, access)) }
    }

    /// Takes a local peer's answer whether it can read our memory. Says once what keeps peers out,
    /// and what to do.
    fn note_rendezvous_reply(&mut self, engine: &Device, from: LocalPeerId, can: bool) -> bool {
        let Some(peer) = self.local_peers.accessible(from).map(|peer| peer.process()) else {
            return false;
        };
        let (pid, kept_out) = (peer.pid(), peer.keeps_out());
        let is_expected = peer.note_rendezvous_reply(can);
        if !kept_out && peer.keeps_out() && engine.counts().direct.note_kept_out() {
            log_kept_out(pid, engine.config().direct);
        }
        is_expected
    }

    /// Handles a denial because Yama keeps us out: requests with the key take packets for good.
    fn note_kept_out(
        &mut self,
        engine: &Device,
        from: LocalPeerId,
        asker: Qpn,
        rkey: Rkey,
    ) -> bool {
        if !self.note_answer(from, asker, rkey, Some(GrantState::Never)) {
            // The key was asked for twice.
            return self.is_asked_by(from, asker);
        }
        let Some(peer) = self.local_peers.accessible(from).map(|peer| peer.process()) else {
            return false;
        };
        let pid = peer.pid();
        tracing::debug!(qpn = %asker, %rkey, pid, "Yama keeps this process out: requests with this key take packets");
        peer.note_kept_out();
        engine.counts().direct.note_refusal(Refusal::NotPermitted);
        true
    }

    /// Gives up access to regions of a local peer that have ended, and their mapping with the last
    /// grant. Returns false if the peer never granted any. Looks at queue pairs only if there is
    /// access to give up.
    fn drop_revoked(&mut self, from: LocalPeerId) -> bool {
        let Some(grants) = self.grants_of(from) else { return false };
        match grants.has_revoked_region() {
            None => return false,
            Some(false) => return true,
            Some(true) => {}
        }
        for qp in self.table.iter() {
            let mut core = lock(&qp.core);
            let grants = core.side.peer.grants_mut();
            if grants.peer().is_some_and(|peer| peer.id() == from) {
                grants.drop_revoked();
            }
        }
        true
    }

    /// Sets up access to the memory that was offered; where that is not possible, the key is never
    /// asked for again. Returns `None` if the offer breaks the rules.
    fn accept_offer(
        &mut self,
        engine: &Device,
        from: LocalPeerId,
        offer: &GrantOffer,
        file: Option<OwnedFd>,
    ) -> Option<GrantState> {
        Some(match self.grants_of(from)?.accept_offer(offer, file)? {
            Ok(grant) => GrantState::Granted(grant),
            Err(why) => {
                engine.counts().direct.note_refusal(why);
                GrantState::Never
            }
        })
    }

    /// Gives the answer to the queue pair that has asked; returns whether the queue pair expected
    /// it.
    fn note_answer(
        &mut self,
        from: LocalPeerId,
        asker: Qpn,
        rkey: Rkey,
        answer: Option<GrantState>,
    ) -> bool {
        let Some(qp) = self.table.find(asker) else { return false };
        let mut core = lock(&qp.core);
        let grants = core.side.peer.grants_mut();
        let connected = grants.peer().is_some_and(|peer| peer.id() == from);
        connected && answer.is_some_and(|answer| grants.answer(rkey, answer))
    }

    fn is_asked_by(&self, from: LocalPeerId, asker: Qpn) -> bool {
        let Some(qp) = self.table.find(asker) else { return false };
        let core = lock(&qp.core);
        core.side.peer.grants().peer().is_some_and(|peer| peer.id() == from)
    }
}

/// Says what keeps a peer from our memory, and what to do.
#[cold]
fn log_kept_out(pid: u32, setting: DirectAccess) {
    const WHAT: &str = "Yama (kernel.yama.ptrace_scope is 1) keeps a process of this host from memory of this process that it has not mapped: WRITEs, READs and atomics there, and SENDs of 128 KiB or more, take packets";
    const MAPPED: &str = "register memory that the Vernic API allocates, or set share_memory=on";
    if setting == DirectAccess::Ptrace {
        tracing::info!(
            pid,
            "{WHAT} as long as another process has the permission of direct=ptrace; {MAPPED}"
        );
    } else {
        tracing::info!(
            pid,
            "{WHAT}; {MAPPED}; or set direct=ptrace, which permits one process at a time to do to this process all that ptrace can, until it disconnects or its last grant ends"
        );
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

//! Grants, as the initiator keeps them: the permission of a local peer to access its memory without
//! packets. A grant is requested for each pair of queue pair and key, by the messages of
//! `grant_message.rs`.
//!
//! Where a program uses each key only once, a grant would come too late, and requesting it would
//! cost the target more than the packets. So after [`ONCE`] such keys a queue pair requests a grant
//! only at the second use of a key.
//!
//! Requests take packets until the grant comes, and if it is denied. No error is reported here: if
//! an access is not allowed, the responder finds that when it gets the packets. A grant ends when
//! the owner of the memory clears its revocation word (`vernic_mem`), which needs no message. A
//! message follows only so that this process unmaps files that it needs no longer.

use std::sync::Arc;

use vernic_mem::{Access, PeerRevocationWords, RemoteMemory};
use vernic_proto::{Direct, DirectOp};
use vernic_wire::Rkey;

use crate::grant_message::GrantOffer;
use crate::process::PeerProcess;

/// Largest number of keys for which one queue pair keeps a grant. Beyond that the key used longest
/// ago is dropped.
const MAX_GRANTS: usize = 64;

/// The number of requests with a key that take packets until the grant is requested a second time.
/// The first request may come before the peer knows of the connection. The number doubles each
/// time.
const FIRST_PAUSE: u32 = 8;
/// The largest number of requests between two grant requests. With small requests this is about one
/// grant request per millisecond.
const LONGEST_PAUSE: u32 = 1024;

/// The number of keys that a queue pair may have used only once before it requests the grant of
/// each new key only at the key's second use. A program that registers memory anew for each
/// transfer uses each key once; a program that merely has many keys uses them again.
const ONCE: usize = 8;

/// A grant, and what is needed to use it.
#[derive(Debug)]
pub struct PeerGrant {
    /// What is granted.
    pub offer: GrantOffer,
    /// The revocation words of the memory's owner.
    pub words: Arc<PeerRevocationWords>,
    /// The memory.
    pub region: Arc<dyn RemoteMemory>,
}

impl PeerGrant {
    /// Returns the offset at which the request begins in the granted range; `None` if the grant
    /// does not cover the whole request.
    #[inline]
    pub fn place(&self, direct: &Direct) -> Option<u64> {
        let needs = match direct.op {
            DirectOp::Write => Access::REMOTE_WRITE,
            DirectOp::Read => Access::REMOTE_READ,
            DirectOp::Atomic(_) => Access::REMOTE_ATOMIC,
        };
        self.offer.place(direct.remote.addr, direct.length, needs)
    }
}

/// The state of the grant for one key of the peer.
#[derive(Debug)]
pub enum GrantState {
    /// Requested or denied. The grant is requested again after `left` more requests with the key;
    /// `pause` is the value that `left` began with.
    No {
        /// Requests until the grant is requested again.
        left: u32,
        /// What `left` began with.
        pause: u32,
    },
    /// Granted, and not ended.
    Granted(PeerGrant),
    /// Not to be requested again: the kernel does not let us access the memory, or the memory
    /// cannot be reached.
    Never,
}

/// The local peer that a queue pair is connected to, and the grants that the peer gave.
#[derive(Debug, Default)]
pub struct QpGrants {
    peer: Option<CountedPeer>,
    /// The keys, most recently used first.
    list: Vec<KeyGrant>,
}

/// A local peer that a queue pair is connected to; the peer counts its queue pairs.
#[derive(Debug)]
struct CountedPeer(Arc<PeerProcess>);

impl CountedPeer {
    fn new(peer: Arc<PeerProcess>) -> Self {
        peer.add_qp();
        Self(peer)
    }
}

impl Drop for CountedPeer {
    fn drop(&mut self) {
        self.0.remove_qp();
    }
}

/// A key of the peer, and the state of its grant.
#[derive(Debug)]
struct KeyGrant {
    rkey: Rkey,
    state: GrantState,
    /// Whether the key was used more than once.
    again: bool,
}

impl QpGrants {
    /// Sets the local peer, and forgets all grants of the former peer.
    pub fn connect(&mut self, peer: Option<Arc<PeerProcess>>) {
        self.list.clear();
        self.peer = peer.map(CountedPeer::new);
    }

    /// Forgets all grants because the path has changed. They are requested anew.
    pub fn renew(&mut self) {
        self.list.clear();
    }

    /// Returns the process of the local peer.
    #[inline]
    pub fn peer(&self) -> Option<&Arc<PeerProcess>> {
        self.peer.as_ref().map(|peer| &peer.0)
    }

    /// Returns the local peer and the state of the grant for a key; `None` if there is no local
    /// peer. The state is `None` if the caller has to send a grant request now; it is noted as
    /// sent.
    #[inline]
    pub fn find(&mut self, rkey: Rkey) -> Option<(&PeerProcess, Option<&GrantState>)> {
        Some((&self.peer.as_ref()?.0, known(&mut self.list, rkey)))
    }

    /// Notes the peer's answer to the grant request for a key. Returns false, and drops the answer,
    /// if no request is open.
    pub fn answer(&mut self, rkey: Rkey, state: GrantState) -> bool {
        let waiting = self.list.iter_mut().find(|known| known.rkey == rkey);
        let Some(KeyGrant { state: place @ GrantState::No { .. }, .. }) = waiting else {
            return false;
        };
        *place = state;
        true
    }

    /// Forgets the grants for keys with a cleared revocation word. They are requested anew.
    pub fn drop_revoked(&mut self) {
        self.list.retain(|known| match &known.state {
            GrantState::Granted(grant) => grant.words.is_valid(grant.offer.key),
            GrantState::No { .. } | GrantState::Never => true,
        });
    }

    /// Forgets the grant for a key. It is requested anew, or with `never` not any more.
    pub fn end(&mut self, rkey: Rkey, never: bool) {
        if never {
            let found = self.list.iter_mut().find(|known| known.rkey == rkey);
            found.into_iter().for_each(|known| known.state = GrantState::Never);
        } else {
            self.list.retain(|known| known.rkey != rkey);
        }
    }
}

#[inline]
fn known(list: &mut Vec<KeyGrant>, rkey: Rkey) -> Option<&GrantState> {
    let Some(at) = list.iter().position(|known| known.rkey == rkey) else {
        return note(list, rkey);
    };
    if at != 0 {
        list[..=at].rotate_right(1);
    }
    let KeyGrant { state, again, .. } = &mut list[0];
    *again = true;
    if let GrantState::No { left, pause } = state {
        *left -= 1;
        if *left == 0 {
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            *left = *pause;
            return None;
        }
    }
    Some(state)
}

/// Adds a key at its first use. Returns `None` if the grant is to be requested now, otherwise the
/// state of a key whose grant is requested at its next use.
#[cold]
fn note(list: &mut Vec<KeyGrant>, rkey: Rkey) -> Option<&GrantState> {
    let asks = list.iter().filter(|known| !known.again).count() < ONCE;
    list.truncate(MAX_GRANTS - 1);
    let left = if asks { FIRST_PAUSE } else { 1 };
    // A grant that is first requested at the second use has [`FIRST_PAUSE`] as its next pause, too,
    // because the pause doubles at that use.
    let pause = if asks { FIRST_PAUSE } else { FIRST_PAUSE / 2 };
    list.insert(0, KeyGrant { rkey, state: GrantState::No { left, pause }, again: false });
    if asks { None } else { Some(&list[0].state) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_asked_for_again_less_and_less_often_until_it_is_answered() {
        let mut grants = QpGrants::default();
        let mut asked = Vec::new();
        for request in 0..6000 {
            if known(&mut grants.list, Rkey(1)).is_none() {
                asked.push(request);
            }
        }
        assert_eq!(asked, [0, 8, 24, 56, 120, 248, 504, 1016, 2040, 3064, 4088, 5112]);
        assert!(!grants.answer(Rkey(2), GrantState::Never), "nobody asked");
        assert!(grants.answer(Rkey(1), GrantState::Never));
        assert!(!grants.answer(Rkey(1), GrantState::Never), "answered before");
        assert!((0..6000).all(|_| known(&mut grants.list, Rkey(1)).is_some()));
        grants.end(Rkey(1), false);
        assert!(known(&mut grants.list, Rkey(1)).is_none());
    }

    /// Whether the use of a key makes the caller request its grant.
    fn asks(grants: &mut QpGrants, key: u32) -> bool {
        known(&mut grants.list, Rkey(key)).is_none()
    }

    #[test]
    fn keys_that_are_used_once_each_are_asked_for_some_times_only() {
        let mut grants = QpGrants::default();
        let asked = (0..10_000).filter(|&key| asks(&mut grants, key)).count();
        assert_eq!(asked, ONCE);
        // One of these keys is used again and again: its grant is requested again as for any other
        // key.
        let asked: Vec<_> = (0..60).filter(|_| asks(&mut grants, 9_999)).collect();
        assert_eq!(asked, [0, 8, 24, 56]);
    }

    #[test]
    fn keys_that_come_again_are_asked_for_however_many_there_are() {
        let mut grants = QpGrants::default();
        let at_first = (0..60).filter(|&key| asks(&mut grants, key)).count();
        assert_eq!(at_first, ONCE);
        let then = (0..60).filter(|&key| asks(&mut grants, key)).count();
        assert_eq!(then, 60 - ONCE);
        // All keys were used again, so none counts as used only once, and a new key's grant is
        // requested at its first use.
        assert!(asks(&mut grants, 60));
    }

    #[test]
    fn the_key_used_longest_ago_gives_way() {
        let mut grants = QpGrants::default();
        for key in 0..MAX_GRANTS as u32 {
            assert!(asks(&mut grants, key));
            assert!(!asks(&mut grants, key), "asked for");
        }
        assert!(known(&mut grants.list, Rkey(0)).is_some());
        assert!(known(&mut grants.list, Rkey(1000)).is_none());
        assert!(known(&mut grants.list, Rkey(0)).is_some());
        assert!(known(&mut grants.list, Rkey(1)).is_none(), "it gave way");
    }
}

//! Grants: a local peer's permission to be accessed without packets. A grant is requested once per
//! queue pair and key, by the messages of `messages.rs`.
//!
//! Where each key is used only once, the answer would come too late, and would cost the target more
//! than the packets. A queue pair that has seen [`ONCE`] such keys requests grants only for keys
//! that are used again.
//!
//! Until the answer comes, and if it is a denial, requests take packets. The responder then says
//! what is wrong with them: nothing here reports an error. A grant ends when its revocation word is
//! cleared (`vernic_mem`), without a message. A message is sent afterwards so that files do not
//! stay mapped.

use std::sync::Arc;

use vernic_mem::{Access, PeerRegion, PeerRevocationWords};
use vernic_proto::{Direct, DirectOp};
use vernic_wire::Rkey;

use super::guest::Guest;
use super::messages::Offer;

/// Largest number of grants of one queue pair. Beyond that the one used longest ago is dropped.
const MAX_TICKETS: usize = 64;

/// The number of requests that take packets before a grant is requested again: the peer may not
/// know us yet. The number doubles each time.
const FIRST_PAUSE: u32 = 8;
/// The largest such number: a grant is requested about once per millisecond of small requests.
const LONGEST_PAUSE: u32 = 1024;

/// The number of a queue pair's keys that may be used only once before later keys must wait for
/// their second use. A program that registers memory for each transfer never uses a key again; a
/// program that has many keys does.
const ONCE: usize = 8;

/// A grant, and the means to use it.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) offer: Offer,
    pub(crate) gates: Arc<PeerRevocationWords>,
    pub(crate) reach: Arc<PeerRegion>,
}

impl Ticket {
    /// Returns where in the range the request begins; `None` if the grant does not cover all of it.
    #[inline]
    pub(crate) fn place(&self, direct: &Direct) -> Option<u64> {
        let needs = match direct.op {
            DirectOp::Write => Access::REMOTE_WRITE,
            DirectOp::Read => Access::REMOTE_READ,
            DirectOp::Atomic(_) => Access::REMOTE_ATOMIC,
        };
        self.offer.place(direct.remote.addr, direct.length, needs)
    }
}

/// The state of the grant for a key.
#[derive(Debug)]
pub(crate) enum Consent {
    /// Requested, or denied: requested again after `left` more requests, out of `pause`.
    No { left: u32, pause: u32 },
    /// Granted.
    Ticket(Ticket),
    /// A grant of no use: the kernel does not let us access the memory, or the memory is not there.
    Never,
}

/// The local peer that a queue pair is connected to, and the grants of that peer.
#[derive(Debug, Default)]
pub(crate) struct QpTickets {
    guest: Option<Arc<Guest>>,
    /// The keys, the one used last first.
    list: Vec<Known>,
}

/// The state of a key.
#[derive(Debug)]
struct Known {
    rkey: Rkey,
    consent: Consent,
    /// Whether the key was used more than once.
    again: bool,
}

impl QpTickets {
    /// Sets the local peer, and forgets the grants of the one before.
    pub(crate) fn connect(&mut self, guest: Option<Arc<Guest>>) {
        self.list.clear();
        self.guest = guest;
    }

    /// Forgets the grants of the path before; they are requested anew.
    pub(crate) fn renew(&mut self) {
        self.list.clear();
    }

    #[inline]
    pub(crate) fn guest(&self) -> Option<&Arc<Guest>> {
        self.guest.as_ref()
    }

    /// Returns the local peer, and the state of the grant for a key. The latter is `None` if the
    /// caller has to request the grant, which is then noted.
    #[inline]
    pub(crate) fn find(&mut self, rkey: Rkey) -> Option<(&Guest, Option<&Consent>)> {
        Some((self.guest.as_ref()?, known(&mut self.list, rkey)))
    }

    /// Notes the answer about a key. Returns false, and drops the answer, if none was waited for.
    pub(crate) fn answer(&mut self, rkey: Rkey, consent: Consent) -> bool {
        let waiting = self.list.iter_mut().find(|known| known.rkey == rkey);
        let Some(Known { consent: place @ Consent::No { .. }, .. }) = waiting else { return false };
        *place = consent;
        true
    }

    /// Forgets grants if the revocation word of their key is cleared: they are requested anew.
    pub(crate) fn end_closed(&mut self) {
        self.list.retain(|known| match &known.consent {
            Consent::Ticket(ticket) => ticket.gates.is_valid(ticket.offer.key),
            Consent::No { .. } | Consent::Never => true,
        });
    }

    /// Ends a grant: it is requested anew, or never.
    pub(crate) fn end(&mut self, rkey: Rkey, never: bool) {
        if never {
            let found = self.list.iter_mut().find(|known| known.rkey == rkey);
            found.into_iter().for_each(|known| known.consent = Consent::Never);
        } else {
            self.list.retain(|known| known.rkey != rkey);
        }
    }
}

#[inline]
fn known(list: &mut Vec<Known>, rkey: Rkey) -> Option<&Consent> {
    let Some(at) = list.iter().position(|known| known.rkey == rkey) else {
        return note(list, rkey);
    };
    if at != 0 {
        list[..=at].rotate_right(1);
    }
    let Known { consent, again, .. } = &mut list[0];
    *again = true;
    if let Consent::No { left, pause } = consent {
        *left -= 1;
        if *left == 0 {
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            *left = *pause;
            return None;
        }
    }
    Some(consent)
}

/// Adds a key at its first use. The grant is requested at once, or when the key is used again.
#[cold]
fn note(list: &mut Vec<Known>, rkey: Rkey) -> Option<&Consent> {
    let asks = list.iter().filter(|known| !known.again).count() < ONCE;
    list.truncate(MAX_TICKETS - 1);
    let left = if asks { FIRST_PAUSE } else { 1 };
    // A grant that is requested at the second use has the same next pause as one requested at the
    // first.
    let pause = if asks { FIRST_PAUSE } else { FIRST_PAUSE / 2 };
    list.insert(0, Known { rkey, consent: Consent::No { left, pause }, again: false });
    if asks { None } else { Some(&list[0].consent) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_asked_for_again_less_and_less_often_until_it_is_answered() {
        let mut tickets = QpTickets::default();
        let mut asked = Vec::new();
        for request in 0..6000 {
            if known(&mut tickets.list, Rkey(1)).is_none() {
                asked.push(request);
            }
        }
        assert_eq!(asked, [0, 8, 24, 56, 120, 248, 504, 1016, 2040, 3064, 4088, 5112]);
        assert!(!tickets.answer(Rkey(2), Consent::Never), "nobody asked");
        assert!(tickets.answer(Rkey(1), Consent::Never));
        assert!(!tickets.answer(Rkey(1), Consent::Never), "answered before");
        assert!((0..6000).all(|_| known(&mut tickets.list, Rkey(1)).is_some()));
        tickets.end(Rkey(1), false);
        assert!(known(&mut tickets.list, Rkey(1)).is_none());
    }

    /// Whether a grant is requested for a key.
    fn asks(tickets: &mut QpTickets, key: u32) -> bool {
        known(&mut tickets.list, Rkey(key)).is_none()
    }

    #[test]
    fn keys_that_are_used_once_each_are_asked_for_some_times_only() {
        let mut tickets = QpTickets::default();
        let asked = (0..10_000).filter(|&key| asks(&mut tickets, key)).count();
        assert_eq!(asked, ONCE);
        // One of the keys is used again and again: it is treated as any that was not answered.
        let asked: Vec<_> = (0..60).filter(|_| asks(&mut tickets, 9_999)).collect();
        assert_eq!(asked, [0, 8, 24, 56]);
    }

    #[test]
    fn keys_that_come_again_are_asked_for_however_many_there_are() {
        let mut tickets = QpTickets::default();
        let at_first = (0..60).filter(|&key| asks(&mut tickets, key)).count();
        assert_eq!(at_first, ONCE);
        let then = (0..60).filter(|&key| asks(&mut tickets, key)).count();
        assert_eq!(then, 60 - ONCE);
        // The keys are used again, so the next key is no longer one of many that are used once.
        assert!(asks(&mut tickets, 60));
    }

    #[test]
    fn the_key_used_longest_ago_gives_way() {
        let mut tickets = QpTickets::default();
        for key in 0..MAX_TICKETS as u32 {
            assert!(asks(&mut tickets, key));
            assert!(!asks(&mut tickets, key), "asked for");
        }
        assert!(known(&mut tickets.list, Rkey(0)).is_some());
        assert!(known(&mut tickets.list, Rkey(1000)).is_none());
        assert!(known(&mut tickets.list, Rkey(0)).is_some());
        assert!(known(&mut tickets.list, Rkey(1)).is_none(), "it gave way");
    }
}

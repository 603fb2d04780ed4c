//! Requests for connections that programs have got.
//!
//! A peer repeats its request until it has an answer, and may take it back (a REJ) before it knows
//! the connection's other id. Both are for the program that got the request, whoever has claimed
//! the service by then. So the request is noted with its program.
//!
//! A peer may use an id again. So only the very same datagram is a copy of a request, and a later
//! request with the id replaces the one before. A program that has ended is not found any more.
//!
//! Limits: [`MOST`] requests of all hosts together; the oldest is forgotten. Its copies then go to
//! whoever has claimed the service, and its withdrawal goes to nobody.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use vernic_wire::cm::CommId;
use vernic_wire::mad::MAD_LEN;

use crate::connections::Asker;
use crate::key::Key;

/// Most requests that are known, at all hosts together.
const MOST: usize = 4096;

/// What names a request: the host that it came to, and who calls it how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RequestName {
    pub(crate) host: usize,
    pub(crate) slid: u16,
    pub(crate) comm_id: CommId,
    /// Whether it asks for a queue pair of datagrams: such requests have ids of their own.
    pub(crate) is_sidr: bool,
}

/// A program that got a request.
#[derive(Clone, Copy, Debug)]
struct Taken {
    program: Key,
    /// The sender; `None` of a request for a queue pair of datagrams.
    asker: Option<Asker>,
    /// A hash of the request, which all copies have.
    hash: u64,
    /// The request's number, in the order of arrival.
    number: u64,
}

/// The programs that got requests, by the names of the requests.
#[derive(Debug, Default)]
pub(crate) struct KnownRequests {
    taken: BTreeMap<RequestName, Taken>,
    /// All names in the order of arrival, those of replaced requests too.
    order: VecDeque<(u64, RequestName)>,
    next_number: u64,
}

fn hash(mad: &[u8; MAD_LEN]) -> u64 {
    let mut hasher = DefaultHasher::new();
    mad.hash(&mut hasher);
    hasher.finish()
}

impl KnownRequests {
    /// Notes the program that got a request. A request without an id is not noted: it is none.
    pub(crate) fn note(
        &mut self,
        name: RequestName,
        mad: &[u8; MAD_LEN],
        asker: Option<Asker>,
        program: Key,
    ) {
        if name.comm_id == CommId::NONE {
            return;
        }
        if self.order.len() >= MOST
            && let Some((number, oldest)) = self.order.pop_front()
            && self.taken.get(&oldest).is_some_and(|taken| taken.number == number)
        {
            self.taken.remove(&oldest);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.order.push_back((number, name));
        self.taken.insert(name, Taken { program, asker, hash: hash(mad), number });
    }
    /// Returns the program that got a request of which this is a copy.
    pub(crate) fn program_of_copy(&self, name: RequestName, mad: &[u8; MAD_LEN]) -> Option<Key> {
        let taken = self.taken.get(&name).filter(|taken| taken.hash == hash(mad));
        taken.map(|taken| taken.program)
    }
    /// Returns the sender of the last request for a connection that came to a host from a LID.
    pub(crate) fn asker(&self, (host, slid): (usize, u16), comm_id: CommId) -> Option<Asker> {
        self.taken.get(&RequestName { host, slid, comm_id, is_sidr: false })?.asker
    }
    /// Returns the program that got the last request of a name.
    pub(crate) fn program(&self, name: RequestName) -> Option<Key> {
        self.taken.get(&name).map(|taken| taken.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAMS: [Key; 2] = [Key::from_bits(1 << 20), Key::from_bits(2 << 20)];

    fn name(comm_id: u32) -> RequestName {
        RequestName { host: 0, slid: 1, comm_id: CommId(comm_id), is_sidr: false }
    }

    #[test]
    fn a_copy_is_the_same_datagram_and_a_later_request_replaces_one() {
        let mut known = KnownRequests::default();
        let (first, second) = ([1; MAD_LEN], [2; MAD_LEN]);
        known.note(name(7), &first, None, PROGRAMS[0]);
        assert_eq!(known.program_of_copy(name(7), &first), Some(PROGRAMS[0]));
        assert_eq!(known.program_of_copy(name(7), &second), None);
        assert_eq!(known.program(name(7)), Some(PROGRAMS[0]));
        for other in [
            RequestName { host: 1, ..name(7) },
            RequestName { slid: 2, ..name(7) },
            RequestName { is_sidr: true, ..name(7) },
            name(8),
        ] {
            assert_eq!(known.program(other), None, "{other:?}");
        }
        known.note(name(7), &second, None, PROGRAMS[1]);
        assert_eq!(known.program_of_copy(name(7), &first), None);
        assert_eq!(known.program(name(7)), Some(PROGRAMS[1]));
        known.note(name(0), &first, None, PROGRAMS[0]);
        assert_eq!(known.program(name(0)), None);
    }

    #[test]
    fn a_flood_forgets_the_oldest_and_no_replacement() {
        let mut known = KnownRequests::default();
        let mad = [1; MAD_LEN];
        for _ in 0..2 * MOST {
            known.note(name(1), &mad, None, PROGRAMS[0]);
        }
        assert_eq!((known.taken.len(), known.order.len()), (1, MOST));
        for id in 2..=MOST as u32 {
            known.note(name(id), &mad, None, PROGRAMS[1]);
        }
        assert_eq!(known.program(name(1)), Some(PROGRAMS[0]), "noted last of {MOST}");
        known.note(name(u32::MAX), &mad, None, PROGRAMS[1]);
        assert_eq!(known.program(name(1)), None);
        assert_eq!((known.taken.len(), known.order.len()), (MOST, MOST));
    }
}

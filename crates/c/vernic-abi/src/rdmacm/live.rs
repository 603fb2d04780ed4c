//! Which ids there are.
//!
//! An id is an address that a program keeps, and may go on using after it has destroyed the id:
//! perftest does where its second connection is refused. Calls on what is no id are refused, and
//! nothing there is looked at. The places of the ids that were destroyed last are kept, so that
//! their addresses are not soon those of others.
//!
//! Locked behind the gate only, so that no child of `fork` inherits the lock. A child knows its
//! parent's ids, which are told apart by what they are.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use vernic_engine::Gate;

use super::id::IdObject;
use crate::boundary::Failure;
use crate::layout::cm::rdma_cm_id;
use crate::object::lock;
use crate::pointer::{Handle, Place};

/// As many places are kept, of some 800 bytes each.
const KEPT: usize = 256;

struct Ids {
    /// Their addresses.
    live: BTreeSet<usize>,
    /// Places of destroyed ones, the latest last.
    places: VecDeque<Place<IdObject>>,
}

static IDS: Mutex<Ids> = Mutex::new(Ids { live: BTreeSet::new(), places: VecDeque::new() });

/// Whether there is an id at this address.
pub(super) fn is_live(address: usize) -> bool {
    let _gate = Gate::enter();
    lock(&IDS).live.contains(&address)
}

/// From now on there is this one.
pub(super) fn add(id: Handle<rdma_cm_id>) {
    let _gate = Gate::enter();
    lock(&IDS).live.insert(id.raw().addr());
}

/// From now on it is none for calls that begin.
///
/// # Errors
/// `EINVAL` if it is none already.
pub(super) fn remove(id: Handle<rdma_cm_id>) -> Result<(), Failure> {
    let _gate = Gate::enter();
    match lock(&IDS).live.remove(&id.raw().addr()) {
        true => Ok(()),
        false => Err(Failure::invalid("the id is being destroyed by another thread")),
    }
}

/// Keeps the place of a destroyed id for a while.
pub(super) fn keep(place: Place<IdObject>) {
    let _gate = Gate::enter();
    let mut ids = lock(&IDS);
    ids.places.push_back(place);
    let oldest = if ids.places.len() > KEPT { ids.places.pop_front() } else { None };
    drop(ids);
    drop(oldest);
}

//! What an id of the connection manager holds of a queue pair: found by the address in the id's
//! field `qp`, which is never followed.
//!
//! A program may destroy a queue pair in one thread while another takes an event of its id, and
//! may leave the address in the field. So each queue pair is in a table from its making to its
//! destruction, and an id finds there what it needs, or nothing.
//!
//! Locked behind the gate only, so that no child of `fork` inherits the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vernic_cm::Id;
use vernic_engine::{Gate, Qp};

use crate::layout::qp::ibv_qp;
use crate::object::lock;
use crate::pointer::Handle;

/// The queue pairs of this process, by the addresses of their structs of C.
static QPS: Mutex<BTreeMap<usize, HeldQp>> = Mutex::new(BTreeMap::new());

/// The id that has a queue pair.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) id: Weak<Id>,
    /// What its field `qp` said when it was looked at last.
    pub(crate) heeded: Arc<AtomicPtr<ibv_qp>>,
}

impl Owner {
    /// The id has this queue pair no more.
    fn forget(&self, qp: &Arc<Qp>) {
        let has_it = |id: &Arc<Id>| id.qp().is_some_and(|own| Arc::ptr_eq(&own, qp));
        self.id.upgrade().filter(has_it).map(|id| id.detach_qp());
    }
}

/// A queue pair, and the id that has it, if one has.
#[derive(Clone)]
pub(crate) struct HeldQp {
    pub(crate) engine: Arc<Qp>,
    owner: Arc<Mutex<Option<Owner>>>,
}

impl HeldQp {
    /// A queue pair that no id has.
    pub(crate) fn new(engine: Arc<Qp>) -> Self {
        Self { engine, owner: Arc::default() }
    }

    /// Makes it findable at the address of its struct.
    pub(crate) fn show_at(&self, qp: Handle<ibv_qp>) {
        let of_id = self.clone();
        let _gate = Gate::enter();
        lock(&QPS).insert(qp.raw().addr(), of_id);
    }

    /// The queue pair at an address; `None` for NULL, and for one that was destroyed.
    pub(crate) fn find(qp: Handle<ibv_qp>) -> Option<Self> {
        let _gate = Gate::enter();
        lock(&QPS).get(&qp.raw().addr()).cloned()
    }

    /// Notes whose queue pair it is from now on, and takes it away from the id that had it.
    pub(crate) fn belong_to(&self, owner: Owner) {
        let had = lock(&self.owner).replace(owner.clone());
        if let Some(had) = had.filter(|had| !Weak::ptr_eq(&had.id, &owner.id)) {
            had.forget(&self.engine);
            had.heeded.store(std::ptr::null_mut(), Ordering::Release);
        }
    }

    /// The queue pair is being destroyed: no id finds it from now on, and the id that has it loses
    /// it.
    pub(crate) fn end(&self, qp: Handle<ibv_qp>) {
        let gate = Gate::enter();
        let shown = lock(&QPS).remove(&qp.raw().addr());
        drop(gate);
        drop(shown);
        let owner = lock(&self.owner).clone();
        owner.inspect(|owner| owner.forget(&self.engine));
    }
}

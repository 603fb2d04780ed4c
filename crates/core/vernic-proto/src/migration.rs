//! What a queue pair keeps of its alternate path beside the attributes, and which states of path
//! migration an application may ask for (IBTA 17.2.8).
//!
//! ```text
//!                application: Rearm, with an alternate path
//!      Migrated ----------------------------------------------> Rearm
//!         ^  ^------------------ application: Migrated ---------'  |
//!         |                                                        | a packet with MigReq 0
//!         |   the path failed; the peer migrated;                  v
//!         '------------------ application: Migrated ------------ Armed
//! ```
//!
//! The bit MigReq of all packets that leave is 1 in Migrated, and 0 in Rearm and Armed. So two ends
//! arm each other by whatever they send. What travels without packets has no such bit, so a queue
//! pair that was asked for Rearm sends packets alone from then on. A packet with MigReq 1 that
//! comes by the alternate path says that the peer has migrated, and this end follows it. That is so
//! in Rearm too: the peer was armed, by a packet of this end, and only its own packets were lost.
//!
//! [`Qp`](crate::Qp) owns a [`Migration`] and calls [`Migration::wanted`] in a modify.

use vernic_wire::Pkey;

use crate::state::{AttrMask, ModifyError, PathMigState, QpAttr};

/// What is known of the alternate path beside the attributes.
#[derive(Debug)]
pub(crate) struct Migration {
    /// The partition on the alternate path.
    pub(crate) pkey: Pkey,
    /// Since the alternate path was loaded, the peer was reported to have changed to another one.
    pub(crate) has_failed: bool,
}

impl Default for Migration {
    fn default() -> Self {
        Self { pkey: Pkey::DEFAULT, has_failed: false }
    }
}

impl Migration {
    /// The state of path migration that a modify asks for; `None` if it stays as it is.
    ///
    /// # Errors
    /// [`ModifyError::Migration`] for a state that an application cannot ask for now.
    pub(crate) fn wanted(
        now: &QpAttr,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Option<PathMigState>, ModifyError> {
        use PathMigState::{Armed, Migrated, Rearm};
        let (from, loads) = (now.path_mig_state, mask.contains(AttrMask::ALT_PATH));
        let is_named = mask.contains(AttrMask::PATH_MIG_STATE);
        let to = if is_named { attr.path_mig_state } else { from };
        let rule = match (from, to) {
            (Armed, Migrated | Armed) if loads => {
                "the alternate path is in use by both ends; ask for Rearm to load another one"
            }
            (Armed, Migrated) if mask.contains(AttrMask::AV) => {
                "AV names another path than the alternate one"
            }
            (Migrated | Rearm, Armed) => "only a packet of the peer arms it; ask for Rearm",
            (_, Rearm) if !loads && !now.has_alternate() => {
                "no alternate path is loaded; name ALT_PATH as well"
            }
            _ => return Ok(is_named.then_some(to)),
        };
        Err(ModifyError::Migration { from, to, rule })
    }
}

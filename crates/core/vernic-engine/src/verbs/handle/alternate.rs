//! The alternate path of a queue pair, which automatic path migration leads to (IBTA 17.2.8).

use vernic_proto::{AddressVector, AttrMask, QpAttr};
use vernic_wire::{Pkey, Service};

use super::Qp;
use crate::device::path::Resolved;
use crate::error::ModifyError;
use crate::qp::state::QpCore;

/// An alternate path that may be loaded.
pub(super) struct Alternate {
    resolved: Resolved,
    pkey: Pkey,
}

impl Qp {
    /// Returns the alternate path that a modify names; `None` if it names none, or the queue pair
    /// can have none.
    pub(super) fn alternate(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Option<Alternate>, ModifyError> {
        let (qpn, engine) = (self.inner.qpn(), self.engine());
        let can_have = self.inner.service() != Service::Ud && engine.rules().uses_gids();
        if !can_have || !mask.contains(AttrMask::ALT_PATH) {
            return Ok(None);
        }
        let path_error = |source| ModifyError::Path { qpn, source };
        let port = engine.port(attr.alt_port).map_err(path_error)?;
        let (index, rows) = (attr.alt_pkey_index, engine.rules().pkey_table_len());
        let pkey = port.pkey(index).filter(|pkey| pkey.value() != 0);
        let pkey = pkey.ok_or(ModifyError::Pkey { qpn, index, rows })?;
        let now = self.query();

        let mtu = if mask.contains(AttrMask::PATH_MTU) { attr.path_mtu } else { now.path_mtu };
        engine.check_mtu(port, mtu).map_err(path_error)?;
        let peer = if mask.contains(AttrMask::DEST_QPN) { attr.dest_qpn } else { now.dest_qpn };
        let av = AddressVector { port: attr.alt_port, ..attr.alt_av };
        let resolved = engine.resolve_peer(&av, qpn, peer).map_err(path_error)?;
        engine.watch_peer(resolved.peer.ip(), peer, &resolved.location);
        Ok(Some(Alternate { resolved, pkey }))
    }

    /// Loads the path that a migration leads to, which the protocol machine has admitted.
    pub(super) fn load_alternate(&self, core: &mut QpCore, alternate: Alternate) {
        core.machine.set_alternate_pkey(alternate.pkey);
        core.side.peer.load_alternate(alternate.resolved);
    }
}

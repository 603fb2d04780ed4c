//! Address handles: where datagrams go (IBTA 11.2.2).

use std::sync::Arc;

use vernic_engine as engine;

use crate::{AddressVector, CreateError, Endpoint, Gid, Path, Pd, Qkey, Qpn};

/// A destination of datagrams: a host or a multicast group, with the path to it.
#[derive(Clone, Debug)]
pub struct Ah {
    inner: Arc<engine::Ah>,
    gid: Gid,
}

impl Pd {
    /// An address handle: where datagrams go.
    ///
    /// # Errors
    /// [`CreateError::Path`] if there is no way from this device.
    pub fn create_ah(&self, gid: Gid) -> Result<Ah, CreateError> {
        Ah::new(self, gid, &Path::default())
    }

    /// An address handle with a chosen path.
    ///
    /// # Errors
    /// As [`Pd::create_ah`].
    pub fn create_ah_with(&self, gid: Gid, path: &Path) -> Result<Ah, CreateError> {
        Ah::new(self, gid, path)
    }

    /// An address handle of an address vector. On an InfiniBand link that has a LID, and a GID
    /// where packets are to have a GRH.
    ///
    /// # Errors
    /// As [`Pd::create_ah`].
    pub fn create_ah_at(&self, av: AddressVector) -> Result<Ah, CreateError> {
        Ok(Ah { inner: self.inner().create_ah(av)?, gid: av.dgid })
    }
}

impl Ah {
    pub(crate) fn new(pd: &Pd, dgid: Gid, path: &Path) -> Result<Self, CreateError> {
        let av = pd.context().vector(dgid, path)?;
        Ok(Self { inner: pd.inner().create_ah(av)?, gid: dgid })
    }

    /// The destination's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// A queue pair there. The Q_Key must be that queue pair's; with its top bit set, the sending
    /// queue pair's own is sent instead (IBTA 10.2.5).
    pub fn to(&self, qpn: Qpn, qkey: Qkey) -> Destination<'_> {
        Destination { ah: self, qpn, qkey }
    }

    /// The queue pair of an endpoint that is there.
    pub fn to_endpoint(&self, endpoint: &Endpoint, qkey: Qkey) -> Destination<'_> {
        self.to(endpoint.qpn, qkey)
    }

    /// The members of the multicast group that the handle names.
    pub fn to_group(&self, qkey: Qkey) -> Destination<'_> {
        self.to(Qpn::MULTICAST, qkey)
    }

    pub(crate) fn inner(&self) -> &Arc<engine::Ah> {
        &self.inner
    }
}

/// A queue pair at the end of an [`Ah`].
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    pub(crate) ah: &'a Ah,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
}

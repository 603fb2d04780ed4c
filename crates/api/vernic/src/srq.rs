//! Shared receive queues: one queue of receives for many queue pairs (IBTA 10.2.9.2).

use std::marker::PhantomData;
use std::sync::Arc;

use vernic_engine::{self as engine, SrqInit};

use crate::error::{PostRecvError, ResizeError};
use crate::mr::Scatter;
use crate::recv::{RecvBatch, RecvTarget};
use crate::service::Sealed;
use crate::{Cq, CreateError, Pd, Srqn, WrId, Xrcd};

/// A shared receive queue. A clone is another handle to it; the last one destroys it.
///
/// ```
/// use vernic::{Access, Buffer, Device, Rc, WrId};
/// let device = Device::open("lo")?;
/// let pd = device.alloc_pd()?;
/// let cq = device.create_cq(64)?;
/// let mr = pd.register(Buffer::zeroed(4096)?, Access::NONE.local_write())?;
/// let srq = pd.create_srq(16, 1)?;
/// srq.post_recv(WrId(0), mr.slice(..1024)?)?;
/// srq.arm_limit(1)?; // an event when no receive is left
/// let qps = (0..4)
///     .map(|_| pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).srq(&srq).create())
///     .collect::<Result<Vec<_>, _>>()?;
/// # assert_eq!(qps.len(), 4);
/// # Ok::<(), vernic::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Srq<K: SrqKind = Basic> {
    inner: Arc<engine::Srq>,
    kind: PhantomData<K>,
}

/// Whose a shared receive queue is: [`Basic`] or [`Xrc`].
pub trait SrqKind: Sealed {}

/// A shared receive queue of queue pairs, which were made with it.
#[derive(Clone, Copy, Debug)]
pub struct Basic;

/// A shared receive queue of an [XRC domain](Xrcd), which senders name by its number.
#[derive(Clone, Copy, Debug)]
pub struct Xrc;

impl Sealed for Basic {}
impl Sealed for Xrc {}
impl SrqKind for Basic {}
impl SrqKind for Xrc {}

impl Pd {
    /// A shared receive queue of `max_wr` receives (1 to 32,768) of up to `max_sge` pieces (0 to
    /// 32).
    ///
    /// # Errors
    /// [`CreateError::Limit`].
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, CreateError> {
        Srq::new(self, max_wr, max_sge)
    }

    /// A shared receive queue of an XRC domain, whose receives complete on `cq`. Requests that name
    /// it reach memory of this protection domain.
    ///
    /// # Errors
    /// [`CreateError::Limit`]; [`CreateError::OtherDevice`] if domain or completion queue are
    /// another's.
    pub fn create_xrc_srq(
        &self,
        domain: &Xrcd,
        cq: &Cq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Srq<Xrc>, CreateError> {
        Srq::new_xrc(self, domain, cq, max_wr, max_sge)
    }
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, CreateError> {
        let inner = pd.inner().create_srq(SrqInit { max_wr, max_sge, limit: 0 })?;
        Ok(Self { inner, kind: PhantomData })
    }
}

impl Srq<Xrc> {
    pub(crate) fn new_xrc(
        pd: &Pd,
        domain: &Xrcd,
        cq: &Cq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self, CreateError> {
        let init = SrqInit { max_wr, max_sge, limit: 0 };
        let inner = pd.inner().create_xrc_srq(init, domain.inner(), cq.inner())?;
        Ok(Self { inner, kind: PhantomData })
    }

    /// The number by which initiators name it: to be told to them.
    pub fn number(&self) -> Srqn {
        // Every queue of a domain has one.
        self.inner.number().unwrap_or_default()
    }
}

impl<K: SrqKind> Srq<K> {
    /// Posts one receive.
    ///
    /// # Errors
    /// [`PostRecvError`]: the queue is full, or has room for fewer pieces.
    pub fn post_recv(&self, wr_id: WrId, scatter: impl Scatter) -> Result<(), PostRecvError> {
        let mut batch = self.recv_batch();
        batch.recv(wr_id, scatter);
        batch.commit()
    }

    /// Collects receives to be posted together.
    pub fn recv_batch(&self) -> RecvBatch<'_> {
        RecvBatch::new(RecvTarget::Srq(&self.inner))
    }

    /// Raises [`EventKind::SrqLimitReached`](crate::EventKind) once, when fewer than `limit`
    /// receives remain; at once if that is so already; 0 disarms.
    ///
    /// # Errors
    /// [`ResizeError::SrqLimit`] if the limit exceeds the queue's size.
    pub fn arm_limit(&self, limit: u32) -> Result<(), ResizeError> {
        self.inner.arm_limit(limit)
    }

    /// The armed limit; 0 when disarmed or raised.
    pub fn limit(&self) -> u32 {
        self.inner.query().limit
    }

    /// Receives that it holds at most.
    pub fn max_wr(&self) -> u32 {
        self.inner.query().max_wr
    }

    /// Its name in asynchronous events.
    pub fn id(&self) -> engine::SrqId {
        self.inner.id()
    }

    pub(crate) fn inner(&self) -> &Arc<engine::Srq> {
        &self.inner
    }
}

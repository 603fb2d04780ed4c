//! Shared receive queues: one queue of receives for many queue pairs (IBTA 10.2.9.2).

use std::sync::Arc;

use vernic_engine::{self as engine, SrqInit};

use crate::error::{PostRecvError, ResizeError};
use crate::mr::Scatter;
use crate::qp::RecvBatch;
use crate::{CreateError, Pd, WrId};

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
pub struct Srq {
    inner: Arc<engine::Srq>,
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, CreateError> {
        Ok(Self { inner: pd.inner().create_srq(SrqInit { max_wr, max_sge, limit: 0 })? })
    }

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
        RecvBatch::new(crate::qp::RecvTarget::Srq(&self.inner))
    }

    /// Raises [`EventKind::SrqLimitReached`](crate::EventKind) once, when fewer than `limit` receives remain; at
    /// once if that is so already; 0 disarms.
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

//! XRC, the extended reliable connection (IBTA A14): one connection feeds many shared receive
//! queues.

use std::sync::Arc;

use vernic_engine::{self as engine, XrcdError, XrcdOpen};

use crate::{CreateError, Device};

/// An XRC domain: targets, and the shared receive queues that their peers may name. A clone is
/// another handle to it; what was made in it keeps it.
///
/// With RC, two hosts that run n threads each, which all talk to each other, need n times n
/// connections, or must agree on who receives for whom. With XRC each thread has a shared receive
/// queue, with a completion queue and a protection domain of its own, and a connection is for all
/// of them: the sender names the queue. A connection goes one way, from an
/// [initiator](crate::Pd::xrc_ini) to a [target](Self::create_tgt).
///
/// ```
/// use std::time::Duration;
/// use vernic::{Access, Device, Inline, WrId};
///
/// let device = Device::open("lo")?;
/// // The receiving side: two threads, each with its queue ...
/// let domain = device.create_xrcd()?;
/// let pd = device.alloc_pd()?;
/// let mr = pd.alloc_mr(64, Access::NONE.local_write())?;
/// let cqs = [device.create_cq(16)?, device.create_cq(16)?];
/// let first = pd.create_xrc_srq(&domain, &cqs[0], 8, 1)?;
/// let queues = [first, pd.create_xrc_srq(&domain, &cqs[1], 8, 1)?];
/// queues[1].post_recv(WrId(1), &mr)?;
/// let target = domain.create_tgt()?; // ... and one connection for both.
/// // The sending side.
/// let cq = device.create_cq(16)?;
/// let initiator = pd.xrc_ini().send_cq(&cq).create()?;
/// let (at_initiator, at_target) = (initiator.endpoint(), target.endpoint());
/// let _target = target.connect(at_initiator)?;
/// let initiator = initiator.connect(at_target)?;
///
/// let mut batch = initiator.send_batch_to(queues[1].number());
/// batch.send(WrId(2), Inline(b"to the second")).signaled();
/// batch.commit()?;
/// cq.wait_one(Duration::from_secs(5))?;
/// let received = cqs[1].wait_one(Duration::from_secs(5))?;
/// assert_eq!(mr.to_vec(..received.byte_len() as usize)?, b"to the second");
/// # Ok::<(), vernic::Error>(())
/// ```
///
/// What does not apply does not exist. An initiator receives nothing:
/// ```compile_fail,E0599
/// # use vernic::*;
/// fn receive(qp: &Qp<XrcIni, Rts>, mr: &Mr) {
///     let _ = qp.post_recv(WrId(1), mr);
/// }
/// ```
/// It always names a queue:
/// ```compile_fail,E0599
/// # use vernic::*;
/// fn anywhere(qp: &Qp<XrcIni, Rts>) {
///     let _ = qp.send_batch();
/// }
/// ```
/// A target sends nothing:
/// ```compile_fail,E0599
/// # use vernic::*;
/// fn send(qp: Qp<XrcTgt, Rtr>, attr: RcRts) {
///     let _ = qp.rts(attr);
/// }
/// ```
/// A queue of a domain is not one that other queue pairs take receives from:
/// ```compile_fail,E0308
/// # use vernic::*;
/// fn share(pd: &Pd, cq: &Cq, srq: &Srq<Xrc>) {
///     let _ = pd.qp::<Rc>().send_cq(cq).recv_cq(cq).srq(srq);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Xrcd {
    inner: Arc<engine::Xrcd>,
    device: Device,
}

impl Device {
    /// An XRC domain of this process alone.
    ///
    /// # Errors
    /// [`CreateError::Orphan`] in a child of the process that opened the device.
    pub fn create_xrcd(&self) -> Result<Xrcd, CreateError> {
        Xrcd::new(self)
    }
}

impl Xrcd {
    pub(crate) fn new(device: &Device) -> Result<Self, CreateError> {
        let private = XrcdOpen { file: None, create: true, exclusive: false };
        let inner = device.context().open_xrcd(private).map_err(|error| match error {
            XrcdError::Closed => CreateError::Closed,
            // One of this process alone is refused for nothing else.
            _ => CreateError::Orphan,
        })?;
        Ok(Self { inner, device: device.clone() })
    }

    pub(crate) fn inner(&self) -> &Arc<engine::Xrcd> {
        &self.inner
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

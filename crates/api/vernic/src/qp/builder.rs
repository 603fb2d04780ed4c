//! Creation of queue pairs.

use std::marker::PhantomData;
use std::sync::Arc;

use vernic_engine::{self as engine, QpCap, QpInit, XrcIniInit, random};

use super::{Qp, Shared};
use crate::congestion::Algorithm;
use crate::service::{Reset, Sealed, Service, Transport, XrcIni, XrcTgt};
use crate::{Cq, CreateError, Device, Pd, Psn, RateLimit, Srq};

/// Stands in [`QpBuilder`] for a completion queue that is not named yet.
#[derive(Clone, Copy, Debug)]
pub struct Missing;

/// What [`QpBuilder::send_cq`] was given: a completion queue.
#[diagnostic::on_unimplemented(
    message = "the queue pair has no completion queue for its sends",
    label = "`send_cq` was not called before",
    note = "name one: `.send_cq(&cq)`; sends and receives may complete in the same queue"
)]
pub trait NamedSendCq: Sealed {
    #[doc(hidden)]
    fn cq(&self) -> &Cq;
}

/// What [`QpBuilder::recv_cq`] was given: a completion queue.
#[diagnostic::on_unimplemented(
    message = "the queue pair has no completion queue for its receives",
    label = "`recv_cq` was not called before",
    note = "name one: `.recv_cq(&cq)`; sends and receives may complete in the same queue"
)]
pub trait NamedRecvCq: Sealed {
    #[doc(hidden)]
    fn cq(&self) -> &Cq;
}

impl Sealed for &Cq {}
impl NamedSendCq for &Cq {
    fn cq(&self) -> &Cq {
        self
    }
}
impl NamedRecvCq for &Cq {
    fn cq(&self) -> &Cq {
        self
    }
}

/// Says in [`QpBuilder`] that the queue pair has a receive queue of its own.
#[derive(Clone, Copy, Debug)]
pub struct OwnQueue;

/// Says in [`QpBuilder`] that receives come from a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SharedQueue;

/// What a queue pair is to be. Made by [`Pd::qp`] and [`Pd::xrc_ini`].
///
/// Both completion queues must be named, which the types see to:
/// ```compile_fail,E0277
/// # use vernic::*;
/// fn no_recv_cq(pd: &Pd, cq: &Cq) {
///     let _ = pd.qp::<Rc>().send_cq(cq).create();
/// }
/// ```
/// With a shared receive queue there is no own one to be sized:
/// ```compile_fail,E0599
/// # use vernic::*;
/// fn no_own_queue(pd: &Pd, srq: &Srq) {
///     let _ = pd.qp::<Rc>().srq(srq).max_recv_wr(16);
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a queue pair is made by `create`"]
pub struct QpBuilder<'a, S: Transport, SendCq = Missing, RecvCq = Missing, Queue = OwnQueue> {
    pd: &'a Pd,
    send_cq: SendCq,
    recv_cq: RecvCq,
    srq: Option<&'a Srq>,
    cap: QpCap,
    gid_index: Option<u8>,
    psn: Option<Psn>,
    congestion: Option<Algorithm>,
    rate_limit: RateLimit,
    of_type: PhantomData<(S, Queue)>,
}

impl Pd {
    /// A queue pair of service `S`: [`Rc`](crate::Rc), [`Uc`](crate::Uc) or [`Ud`](crate::Ud).
    pub fn qp<S: Service>(&self) -> QpBuilder<'_, S> {
        QpBuilder::new(self)
    }

    /// The initiator of an XRC connection; see [`Xrcd`](crate::Xrcd).
    pub fn xrc_ini(&self) -> QpBuilder<'_, XrcIni> {
        QpBuilder::new(self)
    }
}

impl<'a, S: Transport> QpBuilder<'a, S> {
    pub(crate) fn new(pd: &'a Pd) -> Self {
        Self {
            pd,
            send_cq: Missing,
            recv_cq: Missing,
            srq: None,
            cap: QpCap::default(),
            gid_index: None,
            psn: None,
            congestion: None,
            rate_limit: RateLimit::NONE,
            of_type: PhantomData,
        }
    }
}

impl<'a, S: Service, SendCq, RecvCq> QpBuilder<'a, S, SendCq, RecvCq, OwnQueue> {
    /// Receives come from this shared queue instead of an own one.
    pub fn srq(self, srq: &'a Srq) -> QpBuilder<'a, S, SendCq, RecvCq, SharedQueue> {
        let Self { pd, send_cq, recv_cq, mut cap, gid_index, psn, congestion, rate_limit, .. } =
            self;
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        let (srq, of_type) = (Some(srq), PhantomData);
        QpBuilder {
            pd,
            send_cq,
            recv_cq,
            srq,
            cap,
            gid_index,
            psn,
            congestion,
            rate_limit,
            of_type,
        }
    }

    /// Receives that may be posted: 0 to 32,768, 64 if not said.
    pub fn max_recv_wr(mut self, count: u32) -> Self {
        self.cap.max_recv_wr = count;
        self
    }

    /// Pieces of memory in a receive: 0 to 32, 1 if not said.
    pub fn max_recv_sge(mut self, count: u32) -> Self {
        self.cap.max_recv_sge = count;
        self
    }
}

impl<'a, S: Service, SendCq, RecvCq, Queue> QpBuilder<'a, S, SendCq, RecvCq, Queue> {
    /// Where receives complete.
    pub fn recv_cq(self, recv_cq: &'a Cq) -> QpBuilder<'a, S, SendCq, &'a Cq, Queue> {
        let Self { pd, send_cq, srq, cap, gid_index, psn, congestion, rate_limit, of_type, .. } =
            self;
        QpBuilder {
            pd,
            send_cq,
            recv_cq,
            srq,
            cap,
            gid_index,
            psn,
            congestion,
            rate_limit,
            of_type,
        }
    }
}

impl<'a, S: Transport, SendCq, RecvCq, Queue> QpBuilder<'a, S, SendCq, RecvCq, Queue> {
    /// Where sends complete.
    pub fn send_cq(self, send_cq: &'a Cq) -> QpBuilder<'a, S, &'a Cq, RecvCq, Queue> {
        let Self { pd, recv_cq, srq, cap, gid_index, psn, congestion, rate_limit, of_type, .. } =
            self;
        QpBuilder {
            pd,
            send_cq,
            recv_cq,
            srq,
            cap,
            gid_index,
            psn,
            congestion,
            rate_limit,
            of_type,
        }
    }

    /// Send requests that may be outstanding: 0 to 32,768, 64 if not said.
    pub fn max_send_wr(mut self, count: u32) -> Self {
        self.cap.max_send_wr = count;
        self
    }

    /// Pieces of memory in a send: 0 to 32, 1 if not said.
    pub fn max_send_sge(mut self, count: u32) -> Self {
        self.cap.max_send_sge = count;
        self
    }

    /// Bytes of an [`Inline`](crate::Inline) send: 0 to 1024, 64 if not said.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline = bytes;
        self
    }

    /// Row of the port's GID table that is its address. If not said, the device's default row:
    /// see [`Device::default_gid_index`](crate::Device::default_gid_index).
    pub fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// First sequence number that it sends. If not said, a random one, so that packets of an
    /// earlier connection are not taken for its own (IBTA 12.9.7).
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Congestion control of an RC queue pair; a UC one heeds [`Algorithm::Dcqcn`] and no other. If
    /// not said, that of the setting `congestion`. That
    /// routers may mark packets is said by the setting `ecn`, for all queue pairs of the device:
    /// with `on` for a queue pair that has [`Algorithm::Dcqcn`] on a device that has not.
    pub fn congestion(mut self, algorithm: Algorithm) -> Self {
        self.congestion = Some(algorithm);
        self
    }

    /// The largest rate at which it sends requests, 1 kb/s to 400 Gb/s; none if not said. It is in
    /// force from RTR on. [`Qp::set_rate_limit`] changes it.
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = limit;
        self
    }
}

impl<S: Service, SendCq, RecvCq, Queue> QpBuilder<'_, S, SendCq, RecvCq, Queue> {
    /// Makes the queue pair.
    ///
    /// # Errors
    /// [`CreateError`]: a size or rate beyond the device's limits, objects of another device, a GID
    /// index that names no row, no number left.
    pub fn create(self) -> Result<Qp<S, Reset>, CreateError>
    where
        SendCq: NamedSendCq,
        RecvCq: NamedRecvCq,
    {
        check_rate(self.rate_limit)?;
        let inner = self.pd.inner().create_qp(QpInit {
            service: S::SERVICE,
            send_cq: self.send_cq.cq().inner().clone(),
            recv_cq: self.recv_cq.cq().inner().clone(),
            srq: self.srq.map(|srq| srq.inner().clone()),
            cap: self.cap,
            signal_all: false,
            congestion: self.congestion,
        })?;
        self.wrap(inner)
    }
}

impl QpBuilder<'_, XrcIni, &Cq> {
    /// Makes the initiator.
    ///
    /// # Errors
    /// [`CreateError`]: a size or rate beyond the device's limits, a completion queue of another
    /// device, a GID index that names no row, no number left.
    pub fn create(self) -> Result<Qp<XrcIni, Reset>, CreateError> {
        check_rate(self.rate_limit)?;
        let send_cq = self.send_cq.inner().clone();
        let init =
            XrcIniInit { send_cq, cap: self.cap, signal_all: false, congestion: self.congestion };
        let inner = self.pd.inner().create_xrc_ini(init)?;
        self.wrap(inner)
    }
}

impl<S: Transport, SendCq, RecvCq, Queue> QpBuilder<'_, S, SendCq, RecvCq, Queue> {
    /// The queue pair with what only this crate knows of it.
    fn wrap(self, inner: Arc<engine::Qp>) -> Result<Qp<S, Reset>, CreateError> {
        let psn = self.psn.unwrap_or_else(random_psn);
        let mut qp = wrap(inner, self.pd.context(), self.gid_index, psn)?;
        qp.shared.rate_limit = self.rate_limit;
        Ok(qp)
    }
}

/// Refuses a rate that no queue pair takes, before there is one.
fn check_rate(limit: RateLimit) -> Result<(), CreateError> {
    let (what, value, max) = match limit {
        RateLimit { kbps: 0, burst_bytes } => ("burst of no rate limit", burst_bytes, 0),
        RateLimit { kbps, .. } => ("rate limit in kb/s", kbps, RateLimit::MAX_KBPS),
    };
    if value <= max {
        return Ok(());
    }
    Err(CreateError::Limit { what, value: value.into(), min: 0, max: max.into() })
}

/// A queue pair with what only this crate knows of it.
fn wrap<S: Transport>(
    inner: Arc<engine::Qp>,
    device: &Device,
    gid_index: Option<u8>,
    psn: Psn,
) -> Result<Qp<S, Reset>, CreateError> {
    let gid_index = match gid_index {
        None => device.default_gid_index().unwrap_or(0),
        Some(index) if device.gid(index).is_some() => index,
        Some(index) => {
            let rows = device.gid_table().len();
            return Err(engine::PathError::NoSuchGid { index, rows }.into());
        }
    };
    Ok(Qp::new(Shared::new(inner, device.clone(), gid_index, psn)))
}

impl Qp<XrcTgt, Reset> {
    pub(crate) fn target(
        inner: Arc<engine::Qp>,
        device: &Device,
        gid_index: Option<u8>,
    ) -> Result<Self, CreateError> {
        wrap(inner, device, gid_index, random_psn())
    }
}

/// A starting point that late packets of another connection do not fit.
fn random_psn() -> Psn {
    Psn::new(random() as u32)
}

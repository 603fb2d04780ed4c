//! Queue pairs (IBTA 10.2.4, 11.2.4).
//!
//! | file | owns |
//! |---|---|
//! | this one | the handle: what every queue pair can be asked, in every state |
//! | `builder` | creation |
//! | `bringup` | Reset -> Init -> RTR -> RTS, and `connect`, which is all of it |
//! | `xrc` | both for the ends of XRC connections |
//! | `batch` | send requests collected for one doorbell |
//! | `post` | one send request at a time |
//! | `recv` | receives |

mod batch;
mod bringup;
mod builder;
mod post;
mod recv;
mod xrc;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use vernic_engine::{self as engine, Explanation};
use vernic_engine::{AttrMask, QpAttr, QpCounters, QpState};

use crate::error::{McastError, ModifyError};
use crate::service::{Reset, Responds, Rts, State, Transport, Ud};
use crate::{Access, Device, Endpoint, Gid, Lid, Psn, Qpn, RateLimit, Route};

pub use batch::{Kind, Message, OneSided, SendBatch, Wr};
pub use bringup::{Connect, InitAttr, RcOptions, RcRtr, RcRts, UcOptions, UcRtr, UdInit};
pub use builder::{Missing, NamedRecvCq, NamedSendCq, OwnQueue, QpBuilder, SharedQueue};
pub use xrc::{XrcIniOptions, XrcIniRtr, XrcIniRts, XrcTgtOptions, XrcTgtRtr};

use batch::Scratch;

/// A queue pair of service `S`, brought up as far as `St` says. Destroyed when dropped: its number
/// is free, and nothing of it completes any more.
///
/// Made by [`Pd::qp`](crate::Pd::qp). The way up is in the type, so work cannot be posted to a
/// queue pair that takes none:
///
/// ```
/// use std::time::Duration;
/// use vernic::{Access, Buffer, Device, InitAttr, Inline, Rc, WrId};
///
/// let device = Device::open("lo")?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
/// let mr = pd.register(Buffer::zeroed(64)?, Access::NONE.local_write())?;
/// let make = || pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create();
///
/// let (a, b) = (make()?, make()?); // in real life, b is another process's
/// let (at_a, at_b) = (a.endpoint(), b.endpoint());
/// let b = b.init(InitAttr::default())?;
/// b.post_recv(WrId(1), &mr)?; // before the peer can send
/// let b = b.connect(at_a)?;
/// let a = a.connect(at_b)?;
///
/// a.post_send(WrId(2), Inline(b"hello"))?;
/// for _ in 0..2 {
///     let wc = cq.wait_one(Duration::from_secs(5))?;
///     if wc.is_recv() {
///         assert_eq!(mr.to_vec(..wc.byte_len() as usize)?, b"hello");
///     }
/// }
/// # drop(b);
/// # Ok::<(), vernic::Error>(())
/// ```
///
/// What does not apply does not compile. Work is sent only from RTS:
/// ```compile_fail,E0277
/// # use vernic::*;
/// fn too_early(qp: Qp<Rc, Init>) {
///     let _ = qp.post_send(WrId(1), Inline(b"x"));
/// }
/// ```
/// Unreliable connections have no READ:
/// ```compile_fail,E0277
/// # use vernic::*;
/// fn read(qp: &Qp<Uc, Rts>, mr: &Mr, remote: RemoteMr) {
///     let _ = qp.post_read(WrId(1), mr, remote.at(0));
/// }
/// ```
/// Datagrams need a destination, and reach no remote memory:
/// ```compile_fail,E0599
/// # use vernic::*;
/// fn write(qp: &Qp<Ud, Rts>, mr: &Mr, remote: RemoteMr) {
///     let _ = qp.post_write(WrId(1), mr, remote.at(0));
/// }
/// ```
/// Receives are posted from Init on:
/// ```compile_fail,E0277
/// # use vernic::*;
/// fn too_early(qp: &Qp<Rc, Reset>, mr: &Mr) {
///     let _ = qp.post_recv(WrId(1), mr);
/// }
/// ```
/// States are entered once, in order:
/// ```compile_fail,E0382
/// # use vernic::*;
/// fn twice(qp: Qp<Rc, Reset>, remote: Endpoint) -> Result<(), Error> {
///     let _a = qp.connect(remote)?;
///     let _b = qp.connect(remote)?;
///     Ok(())
/// }
/// ```
pub struct Qp<S: Transport, St: State> {
    shared: Shared,
    of_type: PhantomData<(S, St)>,
}

/// The state in which requests are posted: [`Rts`].
#[diagnostic::on_unimplemented(
    message = "a queue pair in `{Self}` sends nothing",
    label = "requests are posted in `Rts`",
    note = "bring it up first: `qp.connect(remote)?`, or `init`, `rtr` and `rts` in this order"
)]
pub trait CanSend: State {
    #[doc(hidden)]
    fn rts<S: Transport>(qp: &Qp<S, Self>) -> &Qp<S, Rts>
    where
        Self: Sized;
}

impl CanSend for Rts {
    fn rts<S: Transport>(qp: &Qp<S, Self>) -> &Qp<S, Rts> {
        qp
    }
}

/// All of a queue pair but its type.
#[derive(Debug)]
struct Shared {
    inner: Arc<engine::Qp>,
    device: Device,
    gid_index: u8,
    pkey_index: u16,
    psn: Psn,
    /// The rate to be limited to from RTR on.
    rate_limit: RateLimit,
    /// Storage of batches, kept from one to the next.
    scratch: Mutex<Scratch>,
}

impl Shared {
    fn new(inner: Arc<engine::Qp>, device: Device, gid_index: u8, psn: Psn) -> Self {
        let (rate_limit, scratch) = (RateLimit::NONE, Mutex::default());
        Self { inner, device, gid_index, pkey_index: 0, psn, rate_limit, scratch }
    }

    fn take_scratch(&self) -> Scratch {
        std::mem::take(&mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn give_scratch(&self, scratch: Scratch) {
        *self.scratch.lock().unwrap_or_else(PoisonError::into_inner) = scratch;
    }
}

impl<S: Transport, St: State> fmt::Debug for Qp<S, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp<{:?}>({}, {:?})", S::SERVICE, self.qpn(), self.state())
    }
}

impl<S: Transport, St: State> Qp<S, St> {
    fn new(shared: Shared) -> Self {
        Self { shared, of_type: PhantomData }
    }

    /// The same queue pair in its next state.
    pub(crate) fn step<Next: State>(
        self,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Qp<S, Next>, ModifyError> {
        let rate_limit = self.shared.rate_limit;
        if attr.state == QpState::Rtr && rate_limit != RateLimit::NONE {
            let attr = QpAttr { rate_limit, ..*attr };
            self.shared.inner.modify(&attr, mask | AttrMask::RATE_LIMIT)?;
        } else {
            self.shared.inner.modify(attr, mask)?;
        }
        Ok(Qp::new(self.shared))
    }

    /// The same queue pair once a connection carries it.
    pub(crate) fn carried<E>(
        self,
        take: impl FnOnce(&engine::Qp) -> Result<(), E>,
    ) -> Result<Qp<S, Rts>, E> {
        take(&self.shared.inner)?;
        let qp = Qp::new(self.shared);
        let limit = qp.shared.rate_limit;
        if limit != RateLimit::NONE {
            // The value was checked before. A connection that has ended meanwhile sends nothing.
            let _ = qp.set_rate_limit(limit);
        }
        Ok(qp)
    }

    /// The engine's queue pair.
    pub(crate) fn engine_qp(&self) -> &Arc<engine::Qp> {
        &self.shared.inner
    }
    fn inner(&self) -> &engine::Qp {
        &self.shared.inner
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner().qpn()
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Whether it receives from a shared queue.
    pub(crate) fn has_srq(&self) -> bool {
        self.inner().srq().is_some()
    }

    /// What the peer needs to connect to it (or to send datagrams to it). The same in every state.
    pub fn endpoint(&self) -> Endpoint {
        let gid = self.shared.device.gid(self.shared.gid_index).unwrap_or_default();
        let mtu = self.shared.device.port().active_mtu;
        Endpoint { qpn: self.qpn(), psn: self.shared.psn, gid, mtu }
    }

    /// Its state now. A failure moves it without the type's knowledge: to `Error`, or for UC and UD
    /// to `Sqe`.
    pub fn state(&self) -> QpState {
        self.inner().state()
    }

    /// Its attributes as last modified.
    pub fn attributes(&self) -> QpAttr {
        self.inner().query()
    }

    /// Its sizes, exactly as asked for.
    pub fn capacity(&self) -> engine::QpCap {
        self.inner().cap()
    }

    /// Its counters since it was last in Reset.
    pub fn counters(&self) -> QpCounters {
        self.inner().counters()
    }

    /// The way that its packets go at present, shared memory or the wire, and why not the other.
    /// Briefly stops the device: not for the data path.
    pub fn route(&self) -> Route {
        self.inner().route()
    }

    /// Why it failed, if it did: peer, packet, check, transmissions. Prints as a sentence.
    pub fn explain(&self) -> Option<Explanation> {
        self.inner().explain()
    }

    /// Back to Reset: everything posted is forgotten, its completions too. The number stays.
    ///
    /// # Errors
    /// [`ModifyError`]: not for a queue pair that lives.
    pub fn reset(self) -> Result<Qp<S, Reset>, ModifyError> {
        self.step(&to(QpState::Reset), AttrMask::STATE)
    }

    /// To Error: everything posted completes as flushed.
    ///
    /// # Errors
    /// [`ModifyError`] from Reset.
    pub fn fail(&self) -> Result<(), ModifyError> {
        self.inner().modify(&to(QpState::Error), AttrMask::STATE)
    }
}

impl<S: Transport> Qp<S, Rts> {
    /// To SQD: no further request is started; those under way are finished, then
    /// [`EventKind::SqDrained`](crate::EventKind) comes (IBTA 10.3.1.5). Requests may still be
    /// posted.
    ///
    /// # Errors
    /// [`ModifyError`] if it is not in RTS any more.
    pub fn drain(&self) -> Result<(), ModifyError> {
        let attr = QpAttr { sqd_async_notify: true, ..to(QpState::Sqd) };
        self.inner().modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY)
    }

    /// Limits the rate at which requests leave, or ends that ([`RateLimit::NONE`]). What has left
    /// already is paid for at the new rate.
    ///
    /// It holds for packets to any peer, this host's processes included: with a limit nothing is
    /// copied without packets. On an iWARP device the kernel's TCP keeps to it, with bursts of its
    /// own choice, for everything that the connection carries.
    ///
    /// ```
    /// # use vernic::{ModifyError, Qp, RateLimit, Rc, Rts};
    /// fn share_the_line(qp: &Qp<Rc, Rts>) -> Result<(), ModifyError> {
    ///     qp.set_rate_limit(RateLimit::kbps(100_000)) // 100 Mb/s
    /// }
    /// ```
    ///
    /// # Errors
    /// [`ModifyError`]: a rate above [`RateLimit::MAX_KBPS`], a burst without a rate, or a queue
    /// pair that is neither in RTS nor in SQD any more.
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<(), ModifyError> {
        let attr = QpAttr { rate_limit: limit, ..QpAttr::default() };
        self.inner().modify(&attr, AttrMask::RATE_LIMIT)
    }

    /// Whether requests are still under way after [`Qp::drain`].
    pub fn is_draining(&self) -> bool {
        self.inner().is_draining()
    }

    /// Back to RTS, from SQD or, for UC and UD, from SQE after a send has failed.
    ///
    /// # Errors
    /// [`ModifyError`] from other states.
    pub fn resume(&self) -> Result<(), ModifyError> {
        self.inner().modify(&to(QpState::Rts), AttrMask::STATE)
    }
}

impl<S: Responds> Qp<S, Rts> {
    /// Changes what the peer may do.
    ///
    /// # Errors
    /// [`ModifyError`] if it is not in RTS any more.
    pub fn set_remote_access(&self, access: Access) -> Result<(), ModifyError> {
        let attr = QpAttr { access: access.bits(), ..to(QpState::Rts) };
        self.inner().modify(&attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS)
    }
}

impl<St: State> Qp<Ud, St> {
    /// Receives what is sent to a multicast group (IBTA 10.5).
    ///
    /// # Errors
    /// [`McastError`]: no group, or no address of its IP version.
    pub fn join(&self, group: Gid) -> Result<(), McastError> {
        self.inner().attach_mcast(group)
    }

    /// Receives what is sent to a multicast group of an InfiniBand subnet, whose LID subnet
    /// administration tells those that join.
    ///
    /// # Errors
    /// As [`Qp::join`].
    pub fn join_at(&self, group: Gid, lid: Lid) -> Result<(), McastError> {
        self.inner().attach_mcast_at(group, lid)
    }

    /// Undoes [`Qp::join`] and [`Qp::join_at`].
    ///
    /// # Errors
    /// [`McastError::NotAttached`].
    pub fn leave(&self, group: Gid) -> Result<(), McastError> {
        self.inner().detach_mcast(group)
    }
}

/// Attributes that name a target state and nothing else.
fn to(state: QpState) -> QpAttr {
    QpAttr { state, ..QpAttr::default() }
}

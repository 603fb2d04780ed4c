//! The ends of XRC connections: bringing them up, and sending to shared receive queues by number
//! (IBTA A14).

use vernic_engine::{AttrMask, QpAttr, QpState};

use super::bringup::{Connect, InitAttr, RcRtr, RcRts, TO_INIT, UcRtr};
use super::{Qp, SendBatch, to};
use crate::error::ModifyError;
use crate::service::{Init, Reset, Rtr, Rts, XrcIni, XrcTgt};
use crate::{AckTimeout, CreateError, Endpoint, Mtu, Path, RnrTimer, Srqn, Xrcd};

/// Attributes of RTR, for XRC initiators: they answer nothing.
pub type XrcIniRtr = UcRtr;
/// Attributes of RTS, for XRC initiators.
pub type XrcIniRts = RcRts;
/// Attributes of RTR, for XRC targets.
pub type XrcTgtRtr = RcRtr;

impl Xrcd {
    /// The target of a connection, in Reset. It answers for every shared receive queue of the
    /// domain, those that are made later included.
    ///
    /// # Errors
    /// [`CreateError::NoQpn`]: no number left.
    pub fn create_tgt(&self) -> Result<Qp<XrcTgt, Reset>, CreateError> {
        Qp::target(self.inner().create_tgt()?, self.device(), None)
    }

    /// As [`create_tgt`](Self::create_tgt), with the row of the port's GID table that is its
    /// address.
    ///
    /// # Errors
    /// [`CreateError::NoQpn`]; [`CreateError::Path`] if the index names no row.
    pub fn create_tgt_at(&self, gid_index: u8) -> Result<Qp<XrcTgt, Reset>, CreateError> {
        Qp::target(self.inner().create_tgt()?, self.device(), Some(gid_index))
    }
}

/// Choices of [`Qp::connect_with`] for XRC initiators; their meaning and defaults are those of
/// [`RcOptions`](crate::RcOptions).
#[derive(Clone, Copy, Debug)]
pub struct XrcIniOptions {
    /// How to get to the peer: source address, hop limit, traffic class.
    pub path: Path,
    /// Payload of a packet; `None` takes the smaller of both ports' active MTUs.
    pub path_mtu: Option<Mtu>,
    /// ACK timeout.
    pub timeout: AckTimeout,
    /// Repetitions after loss.
    pub retry_cnt: u8,
    /// Repetitions after "receiver not ready".
    pub rnr_retry: u8,
    /// READs and atomics outstanding.
    pub max_rd_atomic: u8,
}

/// Choices of [`Qp::connect_with`] for XRC targets; their meaning and defaults are those of
/// [`RcOptions`](crate::RcOptions).
#[derive(Clone, Copy, Debug)]
pub struct XrcTgtOptions {
    /// How to get to the peer: source address, hop limit, traffic class.
    pub path: Path,
    /// Payload of a packet; `None` takes the smaller of both ports' active MTUs.
    pub path_mtu: Option<Mtu>,
    /// Delay asked for when the queue that a request names has no receive.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics of the peer outstanding.
    pub max_dest_rd_atomic: u8,
}

impl Default for XrcIniOptions {
    fn default() -> Self {
        let crate::RcOptions {
            path, path_mtu, timeout, retry_cnt, rnr_retry, max_rd_atomic, ..
        } = crate::RcOptions::default();
        Self { path, path_mtu, timeout, retry_cnt, rnr_retry, max_rd_atomic }
    }
}

impl Default for XrcTgtOptions {
    fn default() -> Self {
        let crate::RcOptions { path, path_mtu, min_rnr_timer, max_dest_rd_atomic, .. } =
            crate::RcOptions::default();
        Self { path, path_mtu, min_rnr_timer, max_dest_rd_atomic }
    }
}

impl Qp<XrcIni, Reset> {
    /// To Init.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn init(self) -> Result<Qp<XrcIni, Init>, ModifyError> {
        let pkey_index = self.shared.pkey_index;
        let attr = QpAttr { pkey_index, port: self.device().port_num(), ..to(QpState::Init) };
        self.step(&attr, TO_INIT | AttrMask::ACCESS_FLAGS)
    }
}

impl Qp<XrcIni, Init> {
    /// To RTR.
    ///
    /// # Errors
    /// [`ModifyError`]: a path or value that cannot be; the queue pair is destroyed.
    pub fn rtr(self, attr: XrcIniRtr) -> Result<Qp<XrcIni, Rtr>, ModifyError> {
        let attr = self.rtr_attr(&attr.remote, &attr.path, attr.path_mtu)?;
        self.step(&attr, super::bringup::TO_RTR)
    }
}

impl Qp<XrcTgt, Init> {
    /// To RTR: the peer's requests are answered. A target goes no further.
    ///
    /// # Errors
    /// [`ModifyError`]: a path or value that cannot be; the queue pair is destroyed.
    pub fn rtr(self, attr: XrcTgtRtr) -> Result<Qp<XrcTgt, Rtr>, ModifyError> {
        self.answering(attr)
    }
}

impl Connect for XrcIni {
    type Options = XrcIniOptions;
    type Up = Rts;

    fn begin(qp: Qp<Self, Reset>) -> Result<Qp<Self, Init>, ModifyError> {
        qp.init()
    }

    fn up(
        qp: Qp<Self, Init>,
        remote: Endpoint,
        mtu: Mtu,
        options: &XrcIniOptions,
    ) -> Result<Qp<Self, Rts>, ModifyError> {
        let path_mtu = options.path_mtu.unwrap_or(mtu);
        qp.rtr(XrcIniRtr { remote, path: options.path, path_mtu })?.rts(XrcIniRts {
            timeout: options.timeout,
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
        })
    }
}

impl Connect for XrcTgt {
    type Options = XrcTgtOptions;
    type Up = Rtr;

    fn begin(qp: Qp<Self, Reset>) -> Result<Qp<Self, Init>, ModifyError> {
        qp.init(InitAttr::default())
    }

    fn up(
        qp: Qp<Self, Init>,
        remote: Endpoint,
        mtu: Mtu,
        options: &XrcTgtOptions,
    ) -> Result<Qp<Self, Rtr>, ModifyError> {
        qp.rtr(XrcTgtRtr {
            remote,
            path: options.path,
            path_mtu: options.path_mtu.unwrap_or(mtu),
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
        })
    }
}

impl Qp<XrcIni, Rts> {
    /// Collects send requests for the shared receive queue of this number, to be posted together.
    /// All of them name it, also those that consume no receive: it decides which memory they reach.
    pub fn send_batch_to(&self, srqn: Srqn) -> SendBatch<'_, XrcIni> {
        SendBatch::new(self, Some(srqn))
    }
}

impl SendBatch<'_, XrcIni> {
    /// The requests that follow go to this shared receive queue.
    pub fn to(&mut self, srqn: Srqn) -> &mut Self {
        self.set_srqn(srqn);
        self
    }
}

//! Bring-up: Reset -> Init -> RTR -> RTS (IBTA 10.3.1, 11.2.5.2), one struct of attributes for each
//! step, or [`Qp::connect`] for all of them.
//!
//! A refused step destroys the queue pair, which the type could not describe any more.

use vernic_engine::{AttrMask, QpAttr, QpState};

use super::{Qp, to};
use crate::error::{ConnectError, ModifyError};
use crate::service::{
    Init, Peered, Rc, Reliable, Reset, Responds, Rtr, Rts, State, Transport, Uc, Ud,
};
use crate::{Access, AckTimeout, Endpoint, Mtu, Path, Psn, Qkey, RnrTimer};

/// Attributes of Init, for connected services.
#[derive(Clone, Copy, Debug, Default)]
pub struct InitAttr {
    /// What the peer may do at all: an upper bound of what regions and windows grant it. Nothing
    /// by default: SEND needs no right, READ, WRITE and atomics do.
    pub remote_access: Access,
}

impl InitAttr {
    /// The peer may do what `remote_access` says.
    pub const fn granting(remote_access: Access) -> Self {
        Self { remote_access }
    }
}

/// Attributes of Init, for datagrams.
#[derive(Clone, Copy, Debug)]
pub struct UdInit {
    /// Key that datagrams must carry to be received.
    pub qkey: Qkey,
}

/// Attributes of RTR, for RC.
#[derive(Clone, Copy, Debug)]
pub struct RcRtr {
    /// The peer.
    pub remote: Endpoint,
    /// How to get there.
    pub path: Path,
    /// Payload of a packet: at most what both ports carry.
    pub path_mtu: Mtu,
    /// READs and atomics of the peer that may be outstanding: 0 to 128, at least the peer's
    /// `max_rd_atomic`.
    pub max_dest_rd_atomic: u8,
    /// Delay that the peer is asked for when no receive is posted. Code 0 is 655 ms, the longest.
    pub min_rnr_timer: RnrTimer,
}

/// Attributes of RTR, for UC.
#[derive(Clone, Copy, Debug)]
pub struct UcRtr {
    /// The peer.
    pub remote: Endpoint,
    /// How to get there.
    pub path: Path,
    /// Payload of a packet: at most what both ports carry.
    pub path_mtu: Mtu,
}

/// Attributes of RTS, for RC.
#[derive(Clone, Copy, Debug)]
pub struct RcRts {
    /// Time without an answer after which packets are sent again: 4.096 us * 2^n, 0 for never.
    pub timeout: AckTimeout,
    /// Repetitions after loss before giving up: 0 to 7.
    pub retry_cnt: u8,
    /// Repetitions after "receiver not ready" before giving up: 0 to 6, 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding: 0 to 128, at most the peer's
    /// `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
}

/// Choices of [`Qp::connect_with`] for RC. The default is what [`Qp::connect`] takes.
#[derive(Clone, Copy, Debug)]
pub struct RcOptions {
    /// How to get to the peer: source address, hop limit, traffic class.
    pub path: Path,
    /// Payload of a packet; `None` takes the smaller of both ports' active MTUs.
    pub path_mtu: Option<Mtu>,
    /// ACK timeout; 14: 67 ms, well above any round trip, eight of them about half a second.
    pub timeout: AckTimeout,
    /// Repetitions after loss: 7, the most.
    pub retry_cnt: u8,
    /// Repetitions after "receiver not ready": 7, for ever. A peer that is slow to post receives is
    /// no reason to break a connection.
    pub rnr_retry: u8,
    /// Delay asked for when no receive is posted: code 12, 0.64 ms. Not code 0, which is 655 ms
    /// and the most common reason why "RDMA is slow".
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics outstanding, as requester: 16.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding, as responder: 16.
    pub max_dest_rd_atomic: u8,
}

impl Default for RcOptions {
    fn default() -> Self {
        Self {
            path: Path::default(),
            path_mtu: None,
            timeout: AckTimeout::new(14),
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }
}

/// Choices of [`Qp::connect_with`] for UC. The default is what [`Qp::connect`] takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct UcOptions {
    /// How to get to the peer: source address, hop limit, traffic class.
    pub path: Path,
    /// Payload of a packet; `None` takes the smaller of both ports' active MTUs.
    pub path_mtu: Option<Mtu>,
}

pub(super) const TO_INIT: AttrMask =
    AttrMask::STATE.union(AttrMask::PKEY_INDEX).union(AttrMask::PORT);
pub(super) const TO_RTR: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);
const TO_RTS: AttrMask = AttrMask::STATE.union(AttrMask::SQ_PSN);

impl<S: Responds> Qp<S, Reset> {
    /// To Init: receives may be posted, where there are any.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn init(self, attr: InitAttr) -> Result<Qp<S, Init>, ModifyError> {
        let attr = QpAttr {
            access: attr.remote_access.remote_part().bits(),
            pkey_index: self.shared.pkey_index,
            port: self.device().port_num(),
            ..to(QpState::Init)
        };
        self.step(&attr, TO_INIT | AttrMask::ACCESS_FLAGS)
    }
}

impl<S: Transport> Qp<S, Reset> {
    /// Chooses the partition, for Init: a place in the port's table of partition keys, 0 if not
    /// said. Ports of RoCE have one key; on an InfiniBand port the subnet manager fills the table.
    #[must_use]
    pub fn with_pkey_index(mut self, index: u16) -> Self {
        self.shared.pkey_index = index;
        self
    }
}

impl Qp<Ud, Reset> {
    /// To Init: receives may be posted.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn init(self, attr: UdInit) -> Result<Qp<Ud, Init>, ModifyError> {
        let attr = QpAttr {
            qkey: attr.qkey,
            pkey_index: self.shared.pkey_index,
            port: self.device().port_num(),
            ..to(QpState::Init)
        };
        self.step(&attr, TO_INIT | AttrMask::QKEY)
    }
}

impl<S: Peered> Qp<S, Init> {
    /// What RTR needs of all that have a peer.
    pub(super) fn rtr_attr(
        &self,
        remote: &Endpoint,
        path: &Path,
        path_mtu: Mtu,
    ) -> Result<QpAttr, ModifyError> {
        let gid_index = path.gid_index.or(Some(self.shared.gid_index));
        let pkey_index = match path.pkey_index {
            0 => self.shared.pkey_index,
            chosen => chosen,
        };
        let path = Path { gid_index, pkey_index, ..*path };
        let av = self.shared.device.vector(remote.gid, &path);
        let qpn = self.qpn();
        Ok(QpAttr {
            av: av.map_err(|source| ModifyError::Path { qpn, source })?,
            path_mtu,
            dest_qpn: remote.qpn,
            rq_psn: remote.psn,
            ..to(QpState::Rtr)
        })
    }
}

impl Qp<Rc, Init> {
    /// To RTR: the peer's requests are answered.
    ///
    /// # Errors
    /// [`ModifyError`]: a path or value that cannot be; the queue pair is destroyed.
    pub fn rtr(self, attr: RcRtr) -> Result<Qp<Rc, Rtr>, ModifyError> {
        self.answering(attr)
    }
}

impl<S: Responds> Qp<S, Init> {
    /// To RTR, of a reliable responder.
    pub(super) fn answering(self, attr: RcRtr) -> Result<Qp<S, Rtr>, ModifyError> {
        let attr = QpAttr {
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            ..self.rtr_attr(&attr.remote, &attr.path, attr.path_mtu)?
        };
        let mask = TO_RTR | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        self.step(&attr, mask)
    }
}

impl Qp<Uc, Init> {
    /// To RTR: what the peer sends is received.
    ///
    /// # Errors
    /// [`ModifyError`]: a path or value that cannot be; the queue pair is destroyed.
    pub fn rtr(self, attr: UcRtr) -> Result<Qp<Uc, Rtr>, ModifyError> {
        let attr = self.rtr_attr(&attr.remote, &attr.path, attr.path_mtu)?;
        self.step(&attr, TO_RTR)
    }
}

impl Qp<Ud, Init> {
    /// To RTR: datagrams are received.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn rtr(self) -> Result<Qp<Ud, Rtr>, ModifyError> {
        self.step(&to(QpState::Rtr), AttrMask::STATE)
    }

    /// To RTR and RTS: datagrams are received and may be sent.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn activate(self) -> Result<Qp<Ud, Rts>, ModifyError> {
        self.rtr()?.rts()
    }
}

impl<S: Reliable> Qp<S, Rtr> {
    /// Chooses the PSN of the first packet, for RTS. In messages of communication management it is
    /// the peer that says it.
    #[must_use]
    pub fn with_psn(mut self, psn: Psn) -> Self {
        self.shared.psn = psn;
        self
    }

    /// To RTS: requests may be sent.
    ///
    /// # Errors
    /// [`ModifyError`]: a value out of range; the queue pair is destroyed.
    pub fn rts(self, attr: RcRts) -> Result<Qp<S, Rts>, ModifyError> {
        let attr = QpAttr {
            sq_psn: self.shared.psn,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
            ..to(QpState::Rts)
        };
        let mask = TO_RTS
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_RD_ATOMIC;
        self.step(&attr, mask)
    }
}

impl Qp<Uc, Rtr> {
    /// To RTS: requests may be sent.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn rts(self) -> Result<Qp<Uc, Rts>, ModifyError> {
        let attr = QpAttr { sq_psn: self.shared.psn, ..to(QpState::Rts) };
        self.step(&attr, TO_RTS)
    }
}

impl Qp<Ud, Rtr> {
    /// To RTS: datagrams may be sent.
    ///
    /// # Errors
    /// [`ModifyError`]; the queue pair is destroyed.
    pub fn rts(self) -> Result<Qp<Ud, Rts>, ModifyError> {
        let attr = QpAttr { sq_psn: self.shared.psn, ..to(QpState::Rts) };
        self.step(&attr, TO_RTS)
    }
}

/// What [`Qp::connect`] knows how to bring up.
pub trait Connect: Peered {
    /// What can be chosen: [`RcOptions`], [`UcOptions`],
    /// [`XrcIniOptions`](super::XrcIniOptions) or [`XrcTgtOptions`](super::XrcTgtOptions).
    type Options: Default;
    /// The state in which it is up: [`Rts`], or [`Rtr`] of what only answers.
    type Up: State;

    #[doc(hidden)]
    fn begin(qp: Qp<Self, Reset>) -> Result<Qp<Self, Init>, ModifyError>
    where
        Self: Sized;

    #[doc(hidden)]
    fn up(
        qp: Qp<Self, Init>,
        remote: Endpoint,
        mtu: Mtu,
        options: &Self::Options,
    ) -> Result<Qp<Self, Self::Up>, ModifyError>
    where
        Self: Sized;
}

impl Connect for Rc {
    type Options = RcOptions;
    type Up = Rts;

    fn begin(qp: Qp<Self, Reset>) -> Result<Qp<Self, Init>, ModifyError> {
        qp.init(InitAttr::default())
    }

    fn up(
        qp: Qp<Self, Init>,
        remote: Endpoint,
        mtu: Mtu,
        options: &RcOptions,
    ) -> Result<Qp<Self, Rts>, ModifyError> {
        qp.rtr(RcRtr {
            remote,
            path: options.path,
            path_mtu: options.path_mtu.unwrap_or(mtu),
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
        })?
        .rts(RcRts {
            timeout: options.timeout,
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
        })
    }
}

impl Connect for Uc {
    type Options = UcOptions;
    type Up = Rts;

    fn begin(qp: Qp<Self, Reset>) -> Result<Qp<Self, Init>, ModifyError> {
        qp.init(InitAttr::default())
    }

    fn up(
        qp: Qp<Self, Init>,
        remote: Endpoint,
        mtu: Mtu,
        options: &UcOptions,
    ) -> Result<Qp<Self, Rts>, ModifyError> {
        let path_mtu = options.path_mtu.unwrap_or(mtu);
        qp.rtr(UcRtr { remote, path: options.path, path_mtu })?.rts()
    }
}

impl<S: Connect> Qp<S, Init> {
    /// To RTS, with the defaults of [`RcOptions`] or [`UcOptions`]: the path MTU is the smaller of
    /// both ports'; for RC, lost packets are repeated 7 times after 67 ms each, and a receiver that
    /// is not ready is asked again for ever, every 0.64 ms.
    ///
    /// # Errors
    /// [`ConnectError`]: no path to the peer; the queue pair is destroyed.
    pub fn connect(self, remote: Endpoint) -> Result<Qp<S, S::Up>, ConnectError> {
        self.connect_with(remote, &S::Options::default())
    }

    /// To RTS, with choices.
    ///
    /// # Errors
    /// [`ConnectError`]: no path to the peer, or a value out of range; the queue pair is destroyed.
    pub fn connect_with(
        self,
        remote: Endpoint,
        options: &S::Options,
    ) -> Result<Qp<S, S::Up>, ConnectError> {
        let mtu = self.shared.device.port().active_mtu.min(remote.mtu);
        S::up(self, remote, mtu, options).map_err(|source| ConnectError { remote, source })
    }
}

impl<S: Connect> Qp<S, Reset> {
    /// To RTS in one call, with the defaults and no rights for the peer: enough for
    /// SEND and for a requester of READ, WRITE and atomics. A responder of those grants them with
    /// `qp.init(InitAttr::granting(access))?.connect(remote)`.
    ///
    /// # Errors
    /// [`ConnectError`]: no path to the peer; the queue pair is destroyed.
    pub fn connect(self, remote: Endpoint) -> Result<Qp<S, S::Up>, ConnectError> {
        self.connect_with(remote, &S::Options::default())
    }

    /// To RTS in one call, with choices.
    ///
    /// # Errors
    /// [`ConnectError`]: no path to the peer, or a value out of range; the queue pair is destroyed.
    pub fn connect_with(
        self,
        remote: Endpoint,
        options: &S::Options,
    ) -> Result<Qp<S, S::Up>, ConnectError> {
        S::begin(self)
            .map_err(|source| ConnectError { remote, source })?
            .connect_with(remote, options)
    }
}

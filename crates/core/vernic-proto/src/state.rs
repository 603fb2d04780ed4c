//! Types, states and attributes of a queue pair (IBTA 10.3, 11.2.5.2); the transitions are in
//! `transition`.

use bitflags::bitflags;
use vernic_wire::{
    AckTimeout, Gid, Lid, Mtu, PortNum, Psn, Qkey, Qpn, RnrTimer, Service, StaticRate,
};

use crate::rate::RateLimit;

/// Type of a queue pair. Values are those of `ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Initiator of an XRC connection: a send queue alone (IBTA A14).
    XrcIni = 9,
    /// Target of an XRC connection: no queue of its own; each request names the shared receive
    /// queue that it is for (IBTA A14).
    XrcTgt = 10,
}

impl QpType {
    /// The transport service.
    pub const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
            Self::XrcIni | Self::XrcTgt => Service::Xrc,
        }
    }
    /// Whether it sends requests.
    pub const fn sends(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }
    /// Whether it takes requests.
    pub const fn receives(self) -> bool {
        !matches!(self, Self::XrcIni)
    }
}

/// State of a queue pair (IBTA 10.3.1). Values are those of `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Created; nothing may be posted.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drains or is drained.
    Sqd = 4,
    /// Send queue error (UC and UD).
    Sqe = 5,
    /// Everything posted is flushed.
    Error = 6,
}

impl QpState {
    /// All states, by their numbers.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Error];
}

bitflags! {
    /// Which attributes a modify names. Values are those of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    pub struct AttrMask: u32 {
        /// `state`.
        const STATE = 1 << 0;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_RD_ATOMIC = 1 << 13;
        /// `alt_av`, `alt_pkey_index`, `alt_port` and `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// Capabilities: refused, queues are not resized.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

/// State of automatic path migration (IBTA 17.2.8.1). Values are those of `ibv_mig_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PathMigState {
    /// One path is used, and packets ask a peer that is armed to do the same. So it begins.
    Migrated = 0,
    /// An alternate path is loaded, and the peer's is waited for.
    Rearm = 1,
    /// Both ends have an alternate path: either may migrate.
    Armed = 2,
}

/// Where packets go: an address vector (IBTA 11.2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AddressVector {
    /// Destination.
    pub dgid: Gid,
    /// Row of the port's GID table that is the source.
    pub sgid_index: u8,
    /// Hop limit; 0 means 64.
    pub hop_limit: u8,
    /// IP traffic class (DSCP and ECN).
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; entropy for the UDP source port.
    pub flow_label: u32,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Destination within the subnet: InfiniBand links only. The address vector is global, and its
    /// packets have a GRH, if `dgid` is not zero.
    pub dlid: Lid,
    /// The low bits of the source LID, which the port's LMC leaves free: InfiniBand links only.
    pub path_bits: u8,
    /// Static rate, which holds for what goes by the link.
    pub static_rate: StaticRate,
    /// Local port.
    pub port: PortNum,
}

/// Attributes of a queue pair. A modify reads those that its mask names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// Target state; in a query the present one.
    pub state: QpState,
    /// State that the caller believes in (checked).
    pub cur_state: QpState,
    /// Path MTU (RC, UC).
    pub path_mtu: Mtu,
    /// Rights granted to the peer, as `ibv_access_flags` (RC, UC).
    pub access: u32,
    /// Row of the P_Key table.
    pub pkey_index: u16,
    /// Port.
    pub port: PortNum,
    /// Queue key (UD).
    pub qkey: Qkey,
    /// Path to the peer (RC, UC).
    pub av: AddressVector,
    /// The peer's queue pair (RC, UC).
    pub dest_qpn: Qpn,
    /// First expected sequence number (RC, UC).
    pub rq_psn: Psn,
    /// First sequence number sent.
    pub sq_psn: Psn,
    /// READs and atomics that may be outstanding as requester (RC).
    pub max_rd_atomic: u8,
    /// READs and atomics that are kept for replay as responder (RC).
    pub max_dest_rd_atomic: u8,
    /// Delay asked for when no receive is posted (RC).
    pub min_rnr_timer: RnrTimer,
    /// ACK timeout (RC).
    pub timeout: AckTimeout,
    /// Repetitions after loss, 0 to 7 (RC).
    pub retry_cnt: u8,
    /// Repetitions after RNR NAK, 0 to 6, 7 = for ever (RC).
    pub rnr_retry: u8,
    /// Raise an event when the send queue has drained.
    pub sqd_async_notify: bool,
    /// Alternate path to the peer (RC, UC): what `av` becomes by migration. Its port is `alt_port`.
    pub alt_av: AddressVector,
    /// Row of the alternate port's P_Key table (RC, UC).
    pub alt_pkey_index: u16,
    /// Port of the alternate path, 0 if none is loaded (RC, UC).
    pub alt_port: PortNum,
    /// ACK timeout on the alternate path (RC).
    pub alt_timeout: AckTimeout,
    /// State of path migration (RC, UC).
    pub path_mig_state: PathMigState,
    /// The largest rate at which requests leave.
    pub rate_limit: RateLimit,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::B1024,
            access: 0,
            pkey_index: 0,
            port: PortNum(1),
            qkey: Qkey(0),
            av: AddressVector::default(),
            dest_qpn: Qpn::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0),
            timeout: AckTimeout::new(0),
            retry_cnt: 0,
            rnr_retry: 0,
            sqd_async_notify: false,
            alt_av: AddressVector::default(),
            alt_pkey_index: 0,
            alt_port: PortNum(0),
            alt_timeout: AckTimeout::new(0),
            path_mig_state: PathMigState::Migrated,
            rate_limit: RateLimit::NONE,
        }
    }
}

impl QpAttr {
    /// Takes over the fields that `mask` names, but for the states, and that of path migration.
    pub(crate) fn merge(&mut self, from: &Self, mask: AttrMask) {
        macro_rules! take {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$bit) { self.$field = from.$field; })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY => sqd_async_notify,
            ACCESS_FLAGS => access,
            PKEY_INDEX => pkey_index,
            PORT => port,
            QKEY => qkey,
            AV => av,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            RQ_PSN => rq_psn,
            MAX_RD_ATOMIC => max_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            SQ_PSN => sq_psn,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            DEST_QPN => dest_qpn,
            ALT_PATH => alt_pkey_index,
            ALT_PATH => alt_port,
            ALT_PATH => alt_timeout,
            RATE_LIMIT => rate_limit,
        }
        if mask.contains(AttrMask::ALT_PATH) {
            self.alt_av = AddressVector { port: from.alt_port, ..from.alt_av };
        }
    }

    /// Whether an alternate path is loaded.
    pub(crate) fn has_alternate(&self) -> bool {
        self.alt_port != PortNum(0)
    }

    /// The alternate path becomes the path, and there is no alternate any more.
    pub(crate) fn take_alternate(&mut self) {
        let none = Self::default();
        *self = Self {
            av: self.alt_av,
            pkey_index: self.alt_pkey_index,
            port: self.alt_port,
            timeout: self.alt_timeout,
            alt_av: none.alt_av,
            alt_pkey_index: none.alt_pkey_index,
            alt_port: none.alt_port,
            alt_timeout: none.alt_timeout,
            path_mig_state: PathMigState::Migrated,
            ..*self
        };
    }

    /// The bit MigReq of the packets that leave (IBTA 17.2.8.1).
    #[inline]
    pub(crate) fn migreq(&self) -> bool {
        self.path_mig_state == PathMigState::Migrated
    }
}

/// Why a modify was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The table has no such transition for the type.
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Type.
        qp_type: QpType,
        /// Present state.
        from: QpState,
        /// Asked for.
        to: QpState,
    },
    /// The caller's `cur_state` is not the state.
    #[error("cur_state says {claimed:?}, but the queue pair is in {actual:?}")]
    CurState {
        /// Claimed.
        claimed: QpState,
        /// Actual.
        actual: QpState,
    },
    /// Required attributes are missing.
    #[error("{from:?} -> {to:?} needs {missing:?} as well")]
    Missing {
        /// Present state.
        from: QpState,
        /// Asked for.
        to: QpState,
        /// The attributes.
        missing: AttrMask,
    },
    /// Attributes that this transition does not take.
    #[error("{from:?} -> {to:?} does not take {forbidden:?}")]
    Forbidden {
        /// Present state.
        from: QpState,
        /// Asked for.
        to: QpState,
        /// The attributes.
        forbidden: AttrMask,
    },
    /// A value out of range.
    #[error("{attribute} is {value}, allowed: {allowed}")]
    Value {
        /// Name of the field.
        attribute: &'static str,
        /// Value given.
        value: u64,
        /// The range in words.
        allowed: &'static str,
    },
    /// The state of path migration cannot change so.
    #[error("path migration cannot go from {from:?} to {to:?}: {rule}")]
    Migration {
        /// Present state.
        from: PathMigState,
        /// Asked for.
        to: PathMigState,
        /// What is to be done instead.
        rule: &'static str,
    },
    /// `max_rd_atomic` is to become 0 while requests are queued that it makes impossible.
    #[error(
        "max_rd_atomic cannot become 0: {queued} READs, atomics, FLUSHes or ATOMIC WRITEs are queued and could never be sent, work request {wr_id} the first; let them complete, or move the queue pair to Error"
    )]
    ReadsQueued {
        /// How many.
        queued: u32,
        /// The oldest of them.
        wr_id: u64,
    },
}

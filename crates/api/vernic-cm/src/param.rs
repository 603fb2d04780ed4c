//! The parameters of a connection.

use vernic_proto::cm::AlternatePath;
use vernic_wire::{Qkey, Qpn};

/// The Q_Key of datagram ids whose program names none (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Parameters of a connection (`rdma_conn_param`).
///
/// The default is what `rdma_connect` and `rdma_accept` use without parameters: as much as the
/// device and the peer allow, and seven retries of each kind.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// The path that both queue pairs fall back on, to connect with: loaded and ready to be armed,
    /// if the peer accepts it.
    pub alternate: Option<AlternatePath>,
    /// Bytes for the peer's event. At most 56 to connect and 196 to accept; for datagram ids 180
    /// and 136.
    pub private_data: &'a [u8],
    /// READs and atomics of the peer that this side keeps for replay; [`ConnParam::MAX`] stands for
    /// what device and peer allow.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding; [`ConnParam::MAX`] stands for what device
    /// and peer allow.
    pub initiator_depth: u8,
    /// Whether this side's receive queue gives credits (IBTA 9.7.7.2).
    pub flow_control: bool,
    /// Retries after silence, 0 to 7. Ignored by accept: the active side decides.
    pub retry_count: u8,
    /// Retries after RNR NAK, 0 to 6; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether `qp_num` receives from a shared receive queue. Ignored if the id has a queue pair.
    pub srq: bool,
    /// The number of a queue pair that the program brings up itself, for an id without one.
    pub qp_num: Option<Qpn>,
    /// The Q_Key of a datagram id, which accept reports to the peer; 0 stands for that of the port
    /// space.
    pub qkey: Qkey,
    /// Whether connect fails at once where nothing listens and this can be known, even if a
    /// listener is about to start. Ignored by accept and for datagrams; iWARP always does so.
    pub impatient: bool,
}

impl ConnParam<'_> {
    /// As much as device and peer allow (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
    pub const MAX: u8 = 0xFF;
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self {
            alternate: None,
            private_data: &[],
            responder_resources: Self::MAX,
            initiator_depth: Self::MAX,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: None,
            qkey: Qkey(0),
            impatient: false,
        }
    }
}

/// Numbers of READs and atomics in flight: the device's limits, or those of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    /// READs and atomics of the peer that this side serves (IRD).
    pub(crate) ird: u8,
    /// READs and atomics that this side may have outstanding (ORD).
    pub(crate) ord: u8,
}

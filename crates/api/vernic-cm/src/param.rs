//! What callers name: the parameters of a connection.

use vernic_wire::{Qkey, Qpn};

/// Q_Key of datagram ids that name none (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Parameters of a connection (`rdma_conn_param`).
///
/// The default is what `rdma_connect` and `rdma_accept` use without parameters: as much as the
/// device and the peer allow, seven repetitions of each kind.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Bytes that the peer's event carries. At most 56 to connect, 196 to accept; of datagram ids
    /// 180 and 136.
    pub private_data: &'a [u8],
    /// READs and atomics of the peer that this side keeps for replay; [`ConnParam::MAX`] takes what
    /// device and peer allow.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding; [`ConnParam::MAX`] takes what device and
    /// peer allow.
    pub initiator_depth: u8,
    /// Whether this side's receive queue gives credits (IBTA 9.7.7.2).
    pub flow_control: bool,
    /// Repetitions after silence, 0 to 7. Not looked at by accept: the active side's counts.
    pub retry_count: u8,
    /// Repetitions after RNR NAK, 0 to 6, 7 = for ever.
    pub rnr_retry_count: u8,
    /// Whether `qp_num` receives from a shared queue. Not looked at where the id has a queue pair.
    pub srq: bool,
    /// A queue pair that the program brings up itself, for an id without one.
    pub qp_num: Option<Qpn>,
    /// Q_Key of a datagram id, told to the peer by accept; 0 takes that of the port space.
    pub qkey: Qkey,
    /// Not to wait for somebody to listen: where it can be known that nobody does, connect is
    /// refused at once, even if somebody would in a moment. Not looked at by accept, nor for
    /// datagrams; over iWARP it is always so.
    pub impatient: bool,
}

impl ConnParam<'_> {
    /// As much as device and peer allow (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
    pub const MAX: u8 = 0xFF;
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self {
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

/// READs and atomics in flight: what a device has at most, and what an id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Of the peer's, that this side takes.
    pub(crate) ird: u8,
    /// That this side may have.
    pub(crate) ord: u8,
}

//! What the owner tells the connection manager: its limits, paths, and the parameters of commands.

use vernic_wire::cm::{
    CmaHeader, CommId, FailoverAccepted, ReqPath, ServiceId, SidrStatus, timeout_nanos,
};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{AckTimeout, Gid, Lid, Mtu, Pkey, PortNum, Psn, Qkey, Qpn, RoceVersion};

use crate::state::QpType;
use crate::time::Time;

/// A connection, or an exchange of SIDR messages: our communication id, and the how-manieth entry
/// it is. Communication ids come back when all have had their turn, and what somebody holds of an
/// earlier connection must not be taken for the present one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub CommId, pub u32);

impl core::fmt::Display for ConnId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// A listener, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// LID of a port that has none: RoCE.
const NO_LID: u16 = 0xFFFF;

/// Where a datagram comes from and goes to, as we see it: local is our end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmPath {
    /// Our GID.
    pub local: Gid,
    /// The peer's GID.
    pub remote: Gid,
    /// Traffic class, TOS.
    pub traffic_class: u8,
    /// Hop limit, time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits; IPv6 only.
    pub flow_label: u32,
    /// The version of RoCE.
    pub roce: RoceVersion,
    /// Partition of the datagrams.
    pub pkey: Pkey,
    /// LIDs of both ends, on InfiniBand.
    pub lids: Option<LidPath>,
}

/// What a path within an InfiniBand subnet has beside its GIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LidPath {
    /// Number of our port.
    pub port: PortNum,
    /// LID of our port, with the path bits.
    pub local: Lid,
    /// LID of the peer's port, with the path bits.
    pub remote: Lid,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// How many low bits of a LID choose among the paths to a port, 0 to 7: a subnet manager gives
    /// all ports the same number.
    pub lmc: u8,
    /// Packets have a GRH: the path leaves the subnet.
    pub is_global: bool,
    /// Code of the path's rate (IBTA 15.2.5); 0 where it is not known.
    pub rate: u8,
}

impl LidPath {
    /// Bits of our LID that choose among the paths to our port.
    pub const fn path_bits(&self) -> u8 {
        self.local.value() as u8 & self.free_bits()
    }
    const fn free_bits(&self) -> u8 {
        (1u8 << if self.lmc > 7 { 7 } else { self.lmc }) - 1
    }
}

impl CmPath {
    /// Hop limit where nobody said anything else: the usual one of IP.
    pub const HOP_LIMIT: u8 = 64;

    /// A path of traffic class 0.
    pub const fn new(local: Gid, remote: Gid) -> Self {
        Self {
            local,
            remote,
            traffic_class: 0,
            hop_limit: Self::HOP_LIMIT,
            flow_label: 0,
            roce: RoceVersion::V2,
            pkey: Pkey::DEFAULT,
            lids: None,
        }
    }
    /// A path of a peer's message, turned round; `seen` is the path of the message.
    pub const fn of_peer(said: &ReqPath, seen: &Self) -> Self {
        let hop_limit = if said.hop_limit == 0 { Self::HOP_LIMIT } else { said.hop_limit };
        let lids = match seen.lids {
            None => None,
            Some(lids) => Some(LidPath {
                port: lids.port,
                local: Lid(said.remote_lid),
                remote: Lid(said.local_lid),
                service_level: said.sl,
                lmc: lids.lmc,
                is_global: !said.subnet_local,
                rate: said.packet_rate,
            }),
        };
        Self {
            local: said.remote_gid,
            remote: said.local_gid,
            traffic_class: said.traffic_class,
            hop_limit,
            flow_label: said.flow_label,
            roce: seen.roce,
            pkey: seen.pkey,
            lids,
        }
    }
    /// The path as a message has it.
    pub(super) fn to_req_path(self, local_ack_timeout: AckTimeout) -> ReqPath {
        let lids = self.lids;
        ReqPath {
            local_lid: lids.map_or(NO_LID, |lids| lids.local.value()),
            remote_lid: lids.map_or(NO_LID, |lids| lids.remote.value()),
            local_gid: self.local,
            remote_gid: self.remote,
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: lids.map_or(0, |lids| lids.service_level),
            packet_rate: lids.map_or(0, |lids| lids.rate),
            subnet_local: lids.map_or(self.hop_limit <= 1, |lids| !lids.is_global),
            local_ack_timeout,
            ..ReqPath::default()
        }
    }
    /// The name of the peer's port, by which peers are told apart: its GID. On InfiniBand packets
    /// within a subnet have LIDs alone, so there it is `fe80::` and the lowest LID of the port.
    pub fn peer(&self) -> Gid {
        match self.lids {
            None => self.remote,
            Some(lids) => {
                let base = lids.remote.value() & !u16::from(lids.free_bits());
                let [high, low] = base.to_be_bytes();
                Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low])
            }
        }
    }
    /// Whether both have the same ends. Of InfiniBand the peer's end counts: a subnet manager may
    /// give our port another LID meanwhile.
    pub(super) fn same_ends(&self, other: &Self) -> bool {
        self.peer() == other.peer() && (self.lids.is_some() || self.local == other.local)
    }
    /// The address that a request is for: our GID. On InfiniBand several IP addresses may share a
    /// port, so there it is what the request of `rdma_cm` says (IBTA annex A11).
    pub fn called(&self, service: ServiceId, private_data: &[u8]) -> Gid {
        if self.lids.is_none() || service.port_space().is_none() {
            return self.local;
        }
        CmaHeader::parse(private_data).map_or(self.local, |header| Gid::from_ip(header.dst))
    }
}

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// From where to where.
    pub path: CmPath,
    /// All of it.
    pub mad: [u8; MAD_LEN],
    /// How often it was sent before: what did not help may take another way the next time. Of
    /// answers that are not kept an even number, another one each time.
    pub repeats: u8,
}

/// What the owner knows of the peer of a queue pair: that a packet came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// When a valid one came last.
    pub at: Time,
    /// How long the queue pair tries to reach its peer before it gives it up, in nanoseconds.
    pub patience: u64,
}

impl Heard {
    /// Until when the peer counts as there.
    pub(super) fn until(self) -> Time {
        self.at + self.patience.clamp(MIN_DOUBT, MAX_DOUBT)
    }
}

/// Tells what was heard on a queue pair of ours: nothing, or nothing lately, counts as a peer that
/// is gone.
pub type Ears<'a> = &'a dyn Fn(Qpn) -> Option<Heard>;

/// Shortest silence after which a peer may be gone, in nanoseconds: queue pairs whose timers are of
/// microseconds send nothing for longer than that all the time.
const MIN_DOUBT: u64 = 100_000_000;

/// Longest, in nanoseconds: what ACK timeouts and retries come to may be hours, and a connection
/// that is stale is to end while its peer still asks for the next.
const MAX_DOUBT: u64 = 4_000_000_000;

/// Limits and defaults of a [`Cm`](super::Cm). Timeouts are exponents: `4.096 us * 2^n`, n up to
/// 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// Bits that all our communication ids have; those of the low `id_bits` are ignored.
    pub id_base: u32,
    /// How many low bits of a communication id count, 8 to 32.
    pub id_bits: u32,
    /// Key of the order in which ids are given out: random and secret, so that nobody can tell the
    /// ids of others by his own, and no peer takes our ids for those of our predecessor.
    pub seed: u128,
    /// REQs and SIDR_REQs that the owner has not answered, and REPs that the peer has not. One
    /// more, and the oldest is dropped of the peer that has most.
    pub max_half_open: usize,
    /// Connections and exchanges of all states but TIMEWAIT. Beyond, REQs are rejected.
    pub max_connections: usize,
    /// Connections in TIMEWAIT, rejected ones and answered SIDR_REQs, which are remembered for
    /// their duplicates. One more, and the oldest is forgotten early.
    pub max_timewait: usize,
    /// How fast the peer and we are to answer a message; exponent. It is repeated earlier the first
    /// times: after 0.5 s, 1.1 s and so on.
    pub response_timeout: u8,
    /// How often a message is repeated, 0 to 15.
    pub max_retries: u8,
    /// How much longer we ask for in an MRA; exponent. 20 is 4.3 s.
    pub service_timeout: u8,
    /// How long a datagram takes through the network at most; exponent. 14 is 67 ms.
    pub packet_lifetime: u8,
    /// Longest TIMEWAIT, whatever the ACK timeouts say; exponent. 20 is 4.3 s.
    pub max_timewait_time: u8,
}

impl CmConfig {
    /// Ids `id_base | n` with `id_bits` bits of `n`, in the order of `seed`; everything else as
    /// usual.
    pub const fn new(id_base: u32, id_bits: u32, seed: u128) -> Self {
        Self {
            id_base,
            id_bits,
            seed,
            // A program may accept as many at once, and each takes some 2 KiB.
            max_half_open: 8192,
            max_connections: 65_536,
            max_timewait: 16_384,
            response_timeout: 17,
            max_retries: 15,
            service_timeout: 20,
            packet_lifetime: 14,
            max_timewait_time: 20,
        }
    }
    /// Events that may wait to be fetched before requests are dropped. The owner fetches them after
    /// each call, so this is for one that does not: it need not be tight, and must not be in the
    /// way of a few.
    pub(super) fn max_events(&self) -> usize {
        2 * self.max_half_open.max(1024)
    }
    /// Nanoseconds between repeats of a message whose answer may take `response_timeout`: that, and
    /// the way there and back.
    pub(super) const fn wait(&self, response_timeout: u8) -> u64 {
        timeout_nanos(clamp(response_timeout)) + 2 * timeout_nanos(self.packet_lifetime)
    }
    /// Nanoseconds after which a message is repeated for the first time, if its answer may take
    /// longer.
    pub(super) const fn first_wait(&self) -> u64 {
        self.wait(FIRST_TIMEOUT)
    }
    /// Nanoseconds of TIMEWAIT: until no packet of the connection is in the network any more (IBTA
    /// chapter 12): twice the packet lifetime and the peer's delay. The ACK timeout is made of
    /// these.
    pub(super) fn timewait(&self, ack_timeout: AckTimeout, ack_delay: u8) -> u64 {
        let path = ack_timeout.nanos().unwrap_or(2 * timeout_nanos(self.packet_lifetime));
        let delay = timeout_nanos(clamp(ack_delay));
        path.saturating_add(delay).min(timeout_nanos(self.max_timewait_time))
    }
}

/// What the first repeat of a message waits for, as exponent: 537 ms, so that a datagram that was
/// lost costs no more, however long the peer may take.
const FIRST_TIMEOUT: u8 = 17;

/// Longest time that a peer may ask for, as exponent: 69 s, which rdma_cm of Linux asks for. Longer
/// ones are cut, so that no field makes an entry stay for hours.
const MAX_PEER_TIMEOUT: u8 = 24;

/// Longest time that all repeats of an answer to a peer may take, as exponent: 137 s, which is more
/// than Linux asks for (15 repeats of 4.3 s).
const MAX_PEER_PATIENCE: u8 = 25;

/// How often an answer is repeated every `wait` nanoseconds: as often as the peer asks for, unless
/// that takes too long.
pub(super) fn repeats(wait: u64, asked: u8) -> u8 {
    let most = timeout_nanos(MAX_PEER_PATIENCE) / wait.max(1);
    asked.min(u8::try_from(most).unwrap_or(u8::MAX))
}

/// A timeout from a peer's message, cut.
pub(super) const fn clamp(exponent: u8) -> u8 {
    if exponent > MAX_PEER_TIMEOUT { MAX_PEER_TIMEOUT } else { exponent }
}

/// Parameters of [`Cm::connect`](super::Cm::connect).
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// To whom.
    pub path: CmPath,
    /// Another path, for the queue pairs to fall back on.
    pub alternate: Option<AlternatePath>,
    /// To what.
    pub service: ServiceId,
    /// RC, UC or one of XRC.
    pub qp_type: QpType,
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// First PSN that it receives: the peer is to start with it.
    pub starting_psn: Psn,
    /// READs and atomics that it takes at once.
    pub responder_resources: u8,
    /// READs and atomics that it would have outstanding.
    pub initiator_depth: u8,
    /// It gives end-to-end credits.
    pub flow_control: bool,
    /// Retries of the peer's queue pair, 0 to 7.
    pub retry_count: u8,
    /// RNR retries of the peer's queue pair, 0 to 7.
    pub rnr_retry_count: u8,
    /// It has a shared receive queue.
    pub srq: bool,
    /// MTU of the path.
    pub path_mtu: Mtu,
    /// Partition.
    pub pkey: Pkey,
    /// What our queue pair waits for an acknowledgement.
    pub local_ack_timeout: AckTimeout,
    /// GUID of our device.
    pub local_ca_guid: u64,
    /// At most 92 bytes, with the header of rdma_cm where there is one.
    pub private_data: &'a [u8],
    /// Instead of [`CmConfig::response_timeout`].
    pub response_timeout: Option<u8>,
    /// Instead of [`CmConfig::max_retries`].
    pub max_retries: Option<u8>,
}

/// Parameters of [`Cm::accept`](super::Cm::accept).
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// First PSN that it receives: the peer is to start with it.
    pub starting_psn: Psn,
    /// READs and atomics that it takes at once.
    pub responder_resources: u8,
    /// READs and atomics that it will have outstanding.
    pub initiator_depth: u8,
    /// It gives end-to-end credits.
    pub flow_control: bool,
    /// RNR retries of the peer's queue pair, 0 to 7.
    pub rnr_retry_count: u8,
    /// It has a shared receive queue.
    pub srq: bool,
    /// How long it takes to acknowledge at most; exponent.
    pub target_ack_delay: u8,
    /// What became of the alternate path of the REQ, if it had one.
    pub failover: FailoverAccepted,
    /// GUID of our device.
    pub local_ca_guid: u64,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

/// A second path of a connection, which its queue pairs change to when the first one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The path.
    pub path: CmPath,
    /// What our queue pair waits for an acknowledgement on it.
    pub local_ack_timeout: AckTimeout,
}

impl AlternatePath {
    /// The path of a peer's message, turned round; `None` if the message has none.
    pub fn of_peer(said: &ReqPath, seen: &CmPath) -> Option<Self> {
        let path = || CmPath::of_peer(said, seen);
        let local_ack_timeout = said.local_ack_timeout;
        (!said.is_none()).then(|| Self { path: path(), local_ack_timeout })
    }
    /// The path as a message has it.
    pub(super) fn to_req_path(self) -> ReqPath {
        self.path.to_req_path(self.local_ack_timeout)
    }
}

/// Parameters of [`Cm::load_alternate_path`](super::Cm::load_alternate_path).
#[derive(Clone, Copy, Debug)]
pub struct LapParams {
    /// The path to load.
    pub alternate: AlternatePath,
    /// Instead of [`CmConfig::response_timeout`].
    pub response_timeout: Option<u8>,
    /// Instead of [`CmConfig::max_retries`].
    pub max_retries: Option<u8>,
}

/// Parameters of [`Cm::sidr_request`](super::Cm::sidr_request).
#[derive(Clone, Copy, Debug)]
pub struct SidrParams<'a> {
    /// To whom.
    pub path: CmPath,
    /// For what.
    pub service: ServiceId,
    /// Partition.
    pub pkey: Pkey,
    /// At most 216 bytes, with the header of rdma_cm where there is one.
    pub private_data: &'a [u8],
    /// Instead of [`CmConfig::response_timeout`].
    pub response_timeout: Option<u8>,
    /// Instead of [`CmConfig::max_retries`].
    pub max_retries: Option<u8>,
}

/// Parameters of [`Cm::sidr_reply`](super::Cm::sidr_reply).
#[derive(Clone, Copy, Debug)]
pub struct SidrReply<'a> {
    /// Whether the queue pair and the key are valid, or why not.
    pub status: SidrStatus,
    /// Queue pair that has the service.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// At most 136 bytes.
    pub private_data: &'a [u8],
}

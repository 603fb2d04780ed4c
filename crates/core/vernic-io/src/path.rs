//! Paths: where packets go, and how.

use std::net::SocketAddr;

use vernic_wire::Gid;

/// Receiver pages that a link knows at a time: as many as there may be processes. Beyond that the
/// oldest is replaced.
pub const MAX_RECEIVER_PAGES: usize = 1023;

/// The id of the receiver page that a path leads to, in the [`SlotTable`](crate::SlotTable) that
/// knows the page: 1 to [`MAX_RECEIVER_PAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiverPageId(u16);

impl ReceiverPageId {
    /// Makes an id from its number; `None` for 0 and numbers above [`MAX_RECEIVER_PAGES`].
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number as usize > MAX_RECEIVER_PAGES { None } else { Some(Self(number)) }
    }

    /// Returns the id of the page at `index` of a list of [`MAX_RECEIVER_PAGES`] at most.
    pub(crate) const fn at(index: usize) -> Self {
        Self(index as u16 + 1)
    }

    /// Returns the number of the id.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Returns the index of the page in the list of `ReceiverPages::copy_to`.
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }
}

/// A number that a link gives a path in [`open_path`](crate::Paths::open_path) beside its
/// addresses. Only the link knows what the number means: the netdev of link-local addresses, or a
/// LID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathId(pub u32);

impl PathId {
    /// The bit of paths by RoCEv1; the others are then the number of a station.
    const FRAMES: u32 = 1 << 31;

    /// Returns the id of a path by RoCEv1 to the station of this number.
    pub(crate) const fn of_frames(station: u32) -> Self {
        Self(station | Self::FRAMES)
    }

    /// Whether packets of the path are frames of RoCEv1.
    #[inline]
    pub(crate) const fn is_frames(self) -> bool {
        self.0 & Self::FRAMES != 0
    }

    /// Returns the number of the station that frames of the path go to; `None` for a path by UDP.
    pub(crate) fn frames(self) -> Option<u32> {
        self.is_frames().then_some(self.0 & !Self::FRAMES)
    }
}

/// The receiver of the packets of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The owner of the address: another host, or an unknown process of this host.
    Remote,
    /// This process of this host.
    LocalProcess(ProcessId),
}

/// The address of a process of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// The number of the door on which the process receives packets of other processes of this
    /// host. The process's link chose the number; for UDP it is a port.
    pub door: u16,
    /// The receiver page, which says how much is on its way to the process.
    pub receiver_page: Option<ReceiverPageId>,
}

/// The value of [`TxPath::process`] for a process without a receiver page; other values are a
/// page's id.
const NO_RECEIVER_PAGE: u16 = u16::MAX;

/// A path: where packets go and how; all that the packets of a run have in common.
///
/// Small, `Copy`, and compared as plain integers: the batch compares one path per packet. A link
/// makes a path ([`Paths::open_path`](crate::Paths::open_path)); the engine sets the receiver and
/// the flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TxPath {
    local: u128,
    remote: u128,
    id: PathId,
    door: u16,
    flow: u16,
    /// Number of the process's receiver page, or [`NO_RECEIVER_PAGE`]; 0 for no process of this
    /// host.
    process: u16,
    traffic_class: u8,
    hop_limit: u8,
    lane: u8,
    priority: u8,
}

impl TxPath {
    /// Hop limit (TTL) of a path that sets none: what Linux uses for its own packets.
    pub const DEFAULT_HOP_LIMIT: u8 = 64;

    /// For links: makes a path between two GIDs, to the receiver at `door` there. Flow 0, virtual
    /// lane 0, traffic class 0, priority 0.
    pub fn new(local: Gid, remote: Gid, id: PathId, door: u16) -> Self {
        Self {
            local: u128::from_be_bytes(local.0),
            remote: u128::from_be_bytes(remote.0),
            id,
            door,
            flow: 0,
            process: 0,
            traffic_class: 0,
            hop_limit: Self::DEFAULT_HOP_LIMIT,
            lane: 0,
            priority: 0,
        }
    }

    /// Returns the same path with another flow. A flow is a number that spreads traffic over source
    /// ports, for the sake of ECMP hashing in the network and of receive queues at the peer. The
    /// link maps the flow onto the source ports it has open. Packets of one QP must keep one flow.
    /// See [`Slot::flow`](crate::host::Slot::flow).
    #[must_use]
    pub fn with_flow(mut self, flow: u16) -> Self {
        self.flow = flow;
        self
    }

    /// Returns the same path with another traffic class (the whole TOS byte: DSCP in the upper six
    /// bits, ECN in the lower two; ECT(0) is 2).
    #[must_use]
    pub fn with_traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Returns the same path with another hop limit (TTL), 1 to 255.
    #[must_use]
    pub fn with_hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// For links: returns the same path with another priority, for the queues of the system and the
    /// network: the service level, 0 to 15.
    #[must_use]
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// For links: returns the same path on a virtual lane, one of
    /// [`LinkLimits::lanes`](crate::LinkLimits::lanes).
    #[must_use]
    pub fn with_lane(mut self, lane: u8) -> Self {
        self.lane = lane;
        self
    }

    /// Returns the same path, to a process of this host.
    #[must_use]
    #[inline]
    pub fn to_process(mut self, process: ProcessId) -> Self {
        self.door = process.door;
        self.process = process.receiver_page.map_or(NO_RECEIVER_PAGE, ReceiverPageId::value);
        self
    }

    /// Returns the receiver of the packets.
    #[inline]
    pub fn peer(&self) -> Peer {
        match self.process {
            0 => Peer::Remote,
            number => Peer::LocalProcess(ProcessId {
                door: self.door,
                receiver_page: ReceiverPageId::new(number),
            }),
        }
    }

    /// Whether the path leads to a process of this host.
    #[inline]
    pub fn is_local(&self) -> bool {
        self.process != 0
    }

    /// Returns the GID that the packets come from.
    #[inline]
    pub fn local(&self) -> Gid {
        Gid(self.local.to_be_bytes())
    }

    /// Returns the GID that the packets go to.
    #[inline]
    pub fn remote(&self) -> Gid {
        Gid(self.remote.to_be_bytes())
    }

    /// Returns both GIDs as numbers, the local one first.
    #[inline]
    pub fn gid_bits(&self) -> (u128, u128) {
        (self.local, self.remote)
    }

    /// Returns the number that the link gave the path.
    #[inline]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// Returns the receiving end at the destination: a number of the link's; for UDP a port.
    #[inline]
    pub fn door(&self) -> u16 {
        self.door
    }

    /// Returns the flow.
    #[inline]
    pub fn flow(&self) -> u16 {
        self.flow
    }

    /// Returns the virtual lane.
    #[inline]
    pub fn lane(&self) -> u8 {
        self.lane
    }

    /// Returns the priority.
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// Returns the traffic class (TOS byte).
    pub fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// Returns the hop limit (TTL).
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Returns the destination as text: its address, and its door where it has one.
    pub fn destination(&self) -> impl std::fmt::Display {
        Destination(SocketAddr::new(self.remote().to_ip(), self.door))
    }

    /// Returns the receiver page that the path leads to, if that is known.
    #[inline]
    pub fn receiver_page(&self) -> Option<ReceiverPageId> {
        ReceiverPageId::new(self.process)
    }
}

impl std::fmt::Debug for TxPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self} flow {}", self.flow)
    }
}

impl std::fmt::Display for TxPath {
    /// Writes source and destination, one word of a line in a log: `10.0.0.1->10.0.0.2:4791`. An
    /// InfiniBand path without GIDs is written with its path bits and LID: `LID:+0->LID:7`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.local == 0 && self.remote == 0 {
            return write!(f, "LID:+{}->LID:{}", self.id.0 >> 16, self.id.0 & 0xFFFF);
        }
        write!(f, "{}->{}", self.local().to_ip(), self.destination())
    }
}

struct Destination(SocketAddr);

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.port() {
            0 => write!(f, "{}", self.0.ip()),
            _ => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_with_the_addresses_that_it_has() {
        let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| Gid::from_ip(ip.into()));
        let by_udp = TxPath::new(local, remote, PathId(0), 4791);
        assert_eq!(by_udp.to_string(), "10.0.0.1->10.0.0.2:4791");
        let none = Gid::default();
        assert_eq!(
            TxPath::new(none, none, PathId(1 << 16 | 7), 0x1000).to_string(),
            "LID:+1->LID:7"
        );
    }
}

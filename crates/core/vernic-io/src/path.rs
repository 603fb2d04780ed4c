//! Where packets go, and how.

use std::net::SocketAddr;

use vernic_wire::Gid;

/// Intakes that a link knows at a time: as many as there may be processes. After that the oldest
/// gives way.
pub const MAX_INTAKES: usize = 1023;

/// Which intake a path leads to, in the [`SlotTable`](crate::SlotTable) that knows it: 1 to
/// [`MAX_INTAKES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntakeId(u16);

impl IntakeId {
    /// From the number; `None` for 0 and what is above [`MAX_INTAKES`].
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number as usize > MAX_INTAKES { None } else { Some(Self(number)) }
    }

    /// The one at place `index` of a list of [`MAX_INTAKES`] at most.
    pub(crate) const fn at(index: usize) -> Self {
        Self(index as u16 + 1)
    }

    /// The number.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Its place in `IntakeTable::copy_to`'s list.
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }
}

/// What a link says of a path in [`open_path`](crate::Paths::open_path) beside its addresses. What
/// the number means the link alone knows: the netdev of link-local addresses, a LID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathId(pub u32);

/// Who receives the packets of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Whoever has the address: another host, or a process of this one that is not known.
    Remote,
    /// This process of this host.
    LocalProcess(ProcessId),
}

/// A process of this host, as packets find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// Where it receives what other processes of this host send: a number of its link's, of UDP a
    /// port.
    pub door: u16,
    /// The page that tells how much is on its way there.
    pub intake: Option<IntakeId>,
}

/// Stands in [`TxPath::process`] for a process without an intake; other numbers are an intake's.
const NO_INTAKE: u16 = u16::MAX;

/// Where packets go and how: all that a run has in common.
///
/// Small, `Copy`, and compared as plain integers: the batch compares one per packet. A link makes
/// it ([`Paths::open_path`](crate::Paths::open_path)), the engine says who receives and by which
/// flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TxPath {
    local: u128,
    remote: u128,
    id: PathId,
    door: u16,
    flow: u16,
    /// Number of the process's intake, or [`NO_INTAKE`]; 0 for no process of this host.
    process: u16,
    traffic_class: u8,
    hop_limit: u8,
    lane: u8,
}

impl TxPath {
    /// Hop limit (TTL) of a path that names none: what Linux uses for its own packets.
    pub const DEFAULT_HOP_LIMIT: u8 = 64;

    /// For links: a path between two GIDs, to whoever receives at `door` there. Flow 0, virtual
    /// lane 0, traffic class 0.
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
        }
    }

    /// The same path with another flow: a number that spreads traffic over source ports, for
    /// the sake of ECMP hashing in the network and of receive queues at the peer. The link maps
    /// it onto the source ports it has open; packets of one QP must keep one flow. See
    /// [`Slot::flow`](crate::host::Slot::flow).
    #[must_use]
    pub fn with_flow(mut self, flow: u16) -> Self {
        self.flow = flow;
        self
    }

    /// The same path with another traffic class (the whole TOS byte: DSCP in the upper six
    /// bits, ECN in the lower two; ECT(0) is 2).
    #[must_use]
    pub fn with_traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// The same path with another hop limit (TTL), 1 to 255.
    #[must_use]
    pub fn with_hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// For links: the same path on a virtual lane, one of
    /// [`LinkLimits::lanes`](crate::LinkLimits::lanes).
    #[must_use]
    pub fn with_lane(mut self, lane: u8) -> Self {
        self.lane = lane;
        self
    }

    /// The same path, to a process of this host.
    #[must_use]
    #[inline]
    pub fn to_process(mut self, process: ProcessId) -> Self {
        self.door = process.door;
        self.process = process.intake.map_or(NO_INTAKE, IntakeId::value);
        self
    }

    /// Who receives.
    #[inline]
    pub fn peer(&self) -> Peer {
        match self.process {
            0 => Peer::Remote,
            number => {
                Peer::LocalProcess(ProcessId { door: self.door, intake: IntakeId::new(number) })
            }
        }
    }

    /// Whether it leads to a process of this host.
    #[inline]
    pub fn is_local(&self) -> bool {
        self.process != 0
    }

    /// The GID that the packets come from.
    #[inline]
    pub fn local(&self) -> Gid {
        Gid(self.local.to_be_bytes())
    }

    /// The GID that they go to.
    #[inline]
    pub fn remote(&self) -> Gid {
        Gid(self.remote.to_be_bytes())
    }

    /// Both GIDs as numbers, the local one first.
    #[inline]
    pub fn gid_bits(&self) -> (u128, u128) {
        (self.local, self.remote)
    }

    /// What the link that made it knows.
    #[inline]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// The receiving end at the destination: a number of the link's, of UDP a port.
    #[inline]
    pub fn door(&self) -> u16 {
        self.door
    }

    /// The flow.
    #[inline]
    pub fn flow(&self) -> u16 {
        self.flow
    }

    /// The virtual lane.
    #[inline]
    pub fn lane(&self) -> u8 {
        self.lane
    }

    /// The traffic class (TOS byte).
    pub fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// The hop limit (TTL).
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// The destination in words: its address, and its door where it has one.
    pub fn destination(&self) -> impl std::fmt::Display {
        Destination(SocketAddr::new(self.remote().to_ip(), self.door))
    }

    /// Whose intake it leads to, if that is known.
    #[inline]
    pub fn intake(&self) -> Option<IntakeId> {
        IntakeId::new(self.process)
    }
}

impl std::fmt::Debug for TxPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self} flow {}", self.flow)
    }
}

impl std::fmt::Display for TxPath {
    /// From where to where: `10.0.0.1->10.0.0.2:4791`, one word of a line in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

//! What subnet management reads and writes of a node, as plain values (IBTA 14.2.5).
//!
//! The data path follows these values, and the management agents change them; neither keeps a
//! copy. A value that only one of the two knows is not here. The bytes of the attributes, as they
//! travel in management datagrams, are in `vernic-wire`.

use vernic_wire::{Gid, Guid, Lid, Mtu, Pkey, PortNum, ServiceLevel, VirtualLane};

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A channel adapter: where packets begin and end.
    Adapter,
    /// A switch: forwards packets within a subnet.
    Switch,
}

/// A node as a whole (NodeInfo, NodeDescription; IBTA 14.2.5.2, 14.2.5.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAttributes {
    /// Whether it is a switch or an adapter.
    pub kind: NodeKind,
    /// The GUID of the node.
    pub guid: Guid,
    /// The GUID of the box that the node is part of.
    pub system_guid: Guid,
    /// How many external ports it has, from port 1 on. A switch has port 0 besides, which is its
    /// own.
    pub ports: u8,
    /// IEEE vendor id, 24 bits.
    pub vendor_id: u32,
    /// The vendor's number of the model.
    pub device_id: u16,
    /// The vendor's number of the revision.
    pub revision: u32,
    /// What people call it: UTF-8, up to 64 bytes.
    pub description: String,
}

/// The logical state of a port (PortInfo.PortState; IBTA 7.2.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum PortState {
    /// No link: nothing is sent or received.
    #[default]
    Down = 1,
    /// There is a link, which carries subnet management alone.
    Init = 2,
    /// Packets of others are received, but not sent.
    Armed = 3,
    /// Everything is sent and received.
    Active = 4,
}

/// The physical state of a port (PortInfo.PortPhysicalState; IBTA 14.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum PhysicalState {
    /// Waits, and does not look for the other end.
    Sleep = 1,
    /// Looks for the other end.
    #[default]
    Polling = 2,
    /// Switched off.
    Disabled = 3,
    /// A link is up: the other end is there.
    LinkUp = 5,
}

/// The speed of one lane of a cable, by its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum LinkSpeed {
    /// Single data rate.
    Sdr,
    /// Double data rate.
    Ddr,
    /// Quadruple data rate.
    #[default]
    Qdr,
    /// Fourteen data rate.
    Fdr,
    /// Enhanced data rate.
    Edr,
}

/// The width of a cable in lanes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum LinkWidth {
    /// One lane.
    X1 = 1,
    /// Four lanes.
    #[default]
    X4 = 2,
    /// Eight lanes.
    X8 = 4,
    /// Twelve lanes.
    X12 = 8,
}

/// A port (PortInfo; IBTA 14.2.5.6). Of a switch, port 0 has the fields that are said to be of the
/// node, and the others those of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAttributes {
    /// The port's GUID. All ports of a switch have that of port 0.
    pub guid: Guid,
    /// The logical state.
    pub state: PortState,
    /// The physical state.
    pub physical: PhysicalState,
    /// The physical state that the port takes when its link goes down: polling or sleep.
    pub link_down_default: PhysicalState,
    /// The node's first LID.
    pub lid: Lid,
    /// The node has 2 to the power of this many LIDs, 0 to 7.
    pub lmc: u8,
    /// The LID of the node's subnet manager.
    pub sm_lid: Lid,
    /// The service level of the node's packets to the subnet manager.
    pub sm_service_level: ServiceLevel,
    /// The first half of the node's GIDs.
    pub gid_prefix: u64,
    /// The node's capabilities (PortInfo.CapabilityMask).
    pub capabilities: u32,
    /// The key that a subnet manager of the node must present, or 0.
    pub m_key: u64,
    /// How much of the node is protected by that key, 0 to 3 (IBTA 14.2.4.1).
    pub m_key_protection: u8,
    /// How many seconds after a wrong key the node's protection ends; 0: never.
    pub m_key_lease_s: u16,
    /// The node answers a request within 4.096 us times 2 to the power of this, 0 to 31.
    pub response_time: u8,
    /// The node's traps leave at most once in 4.096 us times 2 to the power of this, 0 to 31.
    pub subnet_timeout: u8,
    /// The longest packet that the port can take, in bytes of payload.
    pub mtu_capability: Mtu,
    /// The longest packet that the other end takes.
    pub neighbor_mtu: Mtu,
    /// How many data lanes the port has: 1, 2, 4, 8 or 15.
    pub lanes_supported: u8,
    /// How many of them are in use.
    pub operational_lanes: u8,
    /// The width of the link while it is up.
    pub width: LinkWidth,
    /// The speed of the link while it is up.
    pub speed: LinkSpeed,
    /// A switch discards a packet that waits at the head of its queue for 4.096 us times 2 to the
    /// power of this; from 20 on, never (IBTA 18.2.5.4).
    pub head_of_queue_life: u8,
    /// A switch stalls the lane after so many such discards in a row, 0 to 7.
    pub stall_count: u8,
    /// Whether a switch checks that packets which enter have a partition key of the port's table.
    pub enforces_inbound: bool,
    /// Whether a switch checks the same of packets that leave.
    pub enforces_outbound: bool,
    /// Whether the client of the node must register anew with the subnet administrator.
    pub client_reregister: bool,
    /// How many packets had a wrong key of the subnet manager, up to 65,535.
    pub m_key_violations: u16,
    /// How many had a partition key that is not in the table, up to 65,535.
    pub p_key_violations: u16,
    /// How many had a wrong queue key, up to 65,535.
    pub q_key_violations: u16,
    /// The lanes' tables.
    pub tables: PortTables,
    /// The counters of performance management.
    pub counters: PortCounters,
}

impl PortAttributes {
    /// Returns the attributes of a port before a link and a manager have changed them: it is down,
    /// has no LID and no keys, and has so many data lanes in operation.
    pub fn new(guid: Guid, mtu: Mtu, lanes: u8, tables: PortTables) -> Self {
        Self {
            guid,
            state: PortState::Down,
            physical: PhysicalState::Polling,
            link_down_default: PhysicalState::Polling,
            lid: Lid(0),
            lmc: 0,
            sm_lid: Lid(0),
            sm_service_level: ServiceLevel::new(0),
            gid_prefix: 0,
            capabilities: 0,
            m_key: 0,
            m_key_protection: 0,
            m_key_lease_s: 0,
            response_time: 0,
            subnet_timeout: 0,
            mtu_capability: mtu,
            neighbor_mtu: mtu,
            lanes_supported: lanes,
            operational_lanes: lanes,
            width: LinkWidth::default(),
            speed: LinkSpeed::default(),
            head_of_queue_life: 20,
            stall_count: 0,
            enforces_inbound: false,
            enforces_outbound: false,
            client_reregister: false,
            m_key_violations: 0,
            p_key_violations: 0,
            q_key_violations: 0,
            tables,
            counters: PortCounters::default(),
        }
    }
    /// Whether a packet with this partition key may come in: an entry of the table is of the same
    /// partition, and not both are of limited members (IBTA 10.9.3).
    pub fn takes_pkey(&self, pkey: Pkey) -> bool {
        is_partition(pkey) && self.tables.pkeys.iter().any(|entry| entry.matches(pkey))
    }
    /// Returns a GID of the port, which has one.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        let halves = [self.gid_prefix.to_be_bytes(), self.guid.0.to_be_bytes()];
        (index == 0).then(|| Gid(core::array::from_fn(|at| halves[at / 8][at % 8])))
    }
    /// Whether the port's own packets may have this partition key: it is in the table.
    pub fn has_pkey(&self, pkey: Pkey) -> bool {
        is_partition(pkey) && self.tables.pkeys.contains(&pkey)
    }
}

/// Whether a partition key is one of a partition: the number 0 is of none (IBTA 10.9.1.2).
const fn is_partition(pkey: Pkey) -> bool {
    pkey.value() & 0x7FFF != 0
}

/// One entry of a table of arbitration: the lane, and how many units of 64 bytes it may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArbitrationEntry {
    /// The lane.
    pub lane: VirtualLane,
    /// Units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

/// The tables of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortTables {
    /// Partition keys (P_KeyTable). An entry of 0 is empty.
    pub pkeys: Vec<Pkey>,
    /// Which lane a packet takes out of this port, by the port that it came in by (0 for packets of
    /// the node itself) and its service level. Lane 15 discards.
    pub lanes: Vec<[VirtualLane; ServiceLevel::COUNT]>,
    /// Arbitration among lanes of low priority, 1 to 64 entries.
    pub low: Vec<ArbitrationEntry>,
    /// Arbitration among lanes of high priority, 1 to 64 entries.
    pub high: Vec<ArbitrationEntry>,
    /// Units of 4,096 bytes that lanes of high priority may send while one of low priority waits;
    /// 255: without limit. 0: one packet.
    pub high_limit: u8,
}

/// The tables of a switch (SwitchInfo, LinearForwardingTable, MulticastForwardingTable).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forwarding {
    /// The port that packets to a LID leave by, up to [`top`](Self::top): 255 discards.
    pub linear: Vec<u8>,
    /// The last LID of the linear table that counts.
    pub top: Lid,
    /// The ports of each multicast LID, from 0xC000 on, a bit for each port.
    pub multicast: Vec<[u16; 16]>,
    /// The port that packets to a multicast LID without an entry leave by, if they came by a port
    /// that is not it; 255 for none (DefaultMulticastPrimaryPort).
    pub default_multicast_primary: u8,
    /// The port for packets that came by that one (DefaultMulticastNotPrimaryPort).
    pub default_multicast_other: u8,
    /// A packet is discarded that is in the switch for 4.096 us times 2 to the power of this; from
    /// 20 on, never (IBTA 18.2.5.4).
    pub life_time: u8,
    /// Whether a port has changed its state since this was last cleared.
    pub port_changed: bool,
}

impl Forwarding {
    /// The port that discards.
    pub const NOWHERE: PortNum = PortNum(255);
    /// LIDs that the linear table of a switch holds.
    pub const LINEAR_LIDS: usize = 0xC000;
    /// LIDs that the multicast table of a switch holds.
    pub const MULTICAST_LIDS: usize = 1024;
}

/// What performance management counts at a port (IBTA 16.1.3.5). Counters that are shorter in a
/// datagram stop at their largest value there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Units of 4 bytes sent, on data lanes.
    pub xmit_data: u64,
    /// Units of 4 bytes received, on data lanes.
    pub rcv_data: u64,
    /// Packets sent, on data lanes.
    pub xmit_packets: u64,
    /// Packets received, on data lanes.
    pub rcv_packets: u64,
    /// Packets to one receiver that were sent.
    pub unicast_xmit: u64,
    /// Packets to one receiver that were received.
    pub unicast_rcv: u64,
    /// Packets to a group that were sent.
    pub multicast_xmit: u64,
    /// Packets to a group that were received.
    pub multicast_rcv: u64,
    /// Small errors of the link.
    pub symbol_errors: u64,
    /// How often the link recovered by itself.
    pub link_recovers: u64,
    /// How often the link went down.
    pub link_downed: u64,
    /// Packets received with an error of the link: a wrong CRC or length.
    pub rcv_errors: u64,
    /// Packets received that were marked as bad by the sender of the link before.
    pub rcv_remote_physical: u64,
    /// Packets received that the switch cannot forward.
    pub rcv_switch_relay: u64,
    /// Packets that were to be sent and were discarded: the port is down, or they waited for too
    /// long.
    pub xmit_discards: u64,
    /// Packets that were not sent because of a constraint: a wrong partition.
    pub xmit_constraint: u64,
    /// Packets that were received and dropped because of a constraint.
    pub rcv_constraint: u64,
    /// Times that local link errors passed their threshold.
    pub local_link_integrity: u64,
    /// Buffer overruns.
    pub buffer_overruns: u64,
    /// Packets of subnet management that were dropped because their buffer was full.
    pub management_dropped: u64,
    /// Ticks of the port in which a packet waited and none could be sent: 64 bytes' time each.
    pub xmit_wait: u64,
}

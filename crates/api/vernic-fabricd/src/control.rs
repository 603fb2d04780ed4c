//! What `vernic fabric` asks of a fabric, and what it gets: values that travel as JSON.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Asks for the state of everything.
    Show,
    /// Asks for a picture of the plan with the load of the cables.
    Picture,
    /// Changes the cable at a port.
    Link {
        /// Name of the node.
        node: String,
        /// Port of the node.
        port: u8,
        /// What is to become of the cable.
        change: LinkChange,
    },
    /// Plugs a cable over TCP in at a port that has none in the plan.
    Join {
        /// Name of the node.
        node: String,
        /// Port of the node.
        port: u8,
        /// Address of the other fabric process, which listens, or to listen at.
        address: SocketAddr,
        /// Whether the other process connects to this one.
        listens: bool,
    },
    /// Begins to capture packets to a file, or ends with `None`.
    Capture {
        /// The file, as the fabric process sees it.
        path: Option<PathBuf>,
    },
    /// Ends the fabric process.
    Stop,
}

/// A change of a cable.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkChange {
    /// The cable is pulled out.
    Down,
    /// The cable is plugged in.
    Up,
    /// So many bits of all are wrong: 0 to 1.
    BitErrorRate(f64),
    /// The cable carries so many bits per second, as `10g`; `None`: what width and speed allow.
    Rate(Option<String>),
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The state of everything.
    State(Box<State>),
    /// A picture, as SVG.
    Picture(String),
    /// What was asked for is done.
    Done,
    /// What was asked for is not done, for this reason.
    Refused(String),
}

/// The state of a fabric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Name of the fabric.
    pub name: String,
    /// Process that it is.
    pub pid: u32,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// The subnet manager that ports know, if there was one yet.
    pub manager: Option<SubnetManager>,
    /// The nodes, in the order of the plan.
    pub nodes: Vec<NodeState>,
    /// The cables, in the order of the plan.
    pub cables: Vec<CableState>,
}

/// The subnet manager that set ports up. They know it until another one takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SubnetManager {
    /// LID of the manager.
    pub lid: u16,
    /// Whether a manager is there still, as the port of that LID says.
    pub is_there: bool,
}

impl fmt::Display for SubnetManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_gone = if self.is_there { "" } else { " is gone" };
        write!(f, "SM at LID {}{is_gone}", self.lid)
    }
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeState {
    /// Name of the node.
    pub name: String,
    /// `switch` or `adapter`.
    pub kind: String,
    /// GUID, as hexadecimal text.
    pub guid: String,
    /// Programs of a host.
    pub programs: Vec<ProgramState>,
    /// Packets that ended at the node and at no program of it, by reason.
    pub undelivered: Undelivered,
    /// The ports, from port 0 on at a switch, and from port 1 on at an adapter.
    pub ports: Vec<PortState>,
}

/// Packets that ended at a node and at no program of it. Those of a switch are for management.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Undelivered {
    /// For a queue pair of no program.
    pub no_program: u64,
    /// To a group that no program has joined.
    pub no_member: u64,
    /// Raw packets.
    pub raw: u64,
    /// Messages of connection management for no program, or for one without room.
    pub no_connection: u64,
    /// Datagrams that no agent took.
    pub no_agent: u64,
    /// Packets for queue pairs of management that were no datagrams.
    pub no_datagram: u64,
    /// Packets to LIDs of other ports, which the tables of switches have led here.
    pub misdirected: u64,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramState {
    /// Process, as the system numbers it.
    pub pid: u32,
    /// Slot: the high bits of its queue pair numbers.
    pub slot: u16,
    /// Packets that it has sent.
    pub sent: u64,
    /// Packets that it got.
    pub received: u64,
    /// Packets for it that were dropped because it took none for too long.
    pub not_taken: u64,
    /// Packets that it must not send.
    pub refused: u64,
    /// Packets that its port did not carry.
    pub discarded: u64,
    /// Whether it does not take its packets now.
    pub blocked: bool,
    /// Services whose requests for connections come to it, such as `tcp:7174`, with the address if
    /// it is for one alone.
    pub services: Vec<String>,
    /// Groups whose packets it takes: their GIDs.
    pub groups: Vec<String>,
}

/// A port.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PortState {
    /// Number of the port.
    pub port: u8,
    /// Port at the other end of its cable, as `node:port`.
    pub peer: Option<String>,
    /// `Down`, `Init`, `Armed` or `Active`.
    pub state: String,
    /// `Sleep`, `Polling`, `Disabled` or `LinkUp`.
    pub physical: String,
    /// LID; 0 for none.
    pub lid: u16,
    /// LMC.
    pub lmc: u8,
    /// LID of the subnet manager; 0 for none.
    pub sm_lid: u16,
    /// Gigabits of data per second that the link carries at most.
    pub gbit_per_s: f64,
    /// Longest payload of a packet, in bytes.
    pub mtu: u32,
    /// Agents of management that programs have registered.
    pub agents: usize,
    /// The lanes.
    pub lanes: Vec<LaneState>,
    /// The counters of performance management that are not 0, by name.
    pub counters: Vec<(String, u64)>,
}

/// A lane of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaneState {
    /// Number of the lane.
    pub lane: u8,
    /// Blocks of 64 bytes that wait to leave.
    pub queued_blocks: u32,
    /// Blocks that the other end has room for.
    pub credits: u16,
    /// Free blocks of the receive buffer.
    pub free_blocks: u16,
}

/// A cable.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CableState {
    /// The two ends, as `node:port`.
    pub ends: [String; 2],
    /// Whether it is plugged in.
    pub up: bool,
    /// How many bits of all are wrong.
    pub bit_error_rate: f64,
    /// Packets that it carried when it was pulled out.
    pub lost: u64,
    /// How busy its busier direction was in the last second, 0 to 1.
    pub load: f32,
}

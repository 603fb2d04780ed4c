//! The process that is an InfiniBand fabric: switches and cables of a plan, hosts that programs
//! attach to, management by whatever subnet manager they run.
//!
//! Owns the sockets, the clock and the loop around a [`Subnet`](vernic_fabric::subnet::Subnet), and
//! what programs of a host share: slots of queue pair numbers, groups, services, agents. `vernic
//! fabric up` is this; what programs say to it is in `vernic-attach` (docs/fabric-process.md).
//!
//! | module | owns |
//! |---|---|
//! | `server` | the loop: what is ready, what is due, when to sleep |
//! | `door`, `clients`, `key` | the socket; connections, what waits for them; their keys |
//! | `requests`, `issm` | what programs ask for; files that subnet managers open |
//! | `questions` | paths, groups and services: a connection for each |
//! | `administration` | the client of subnet administration of a port |
//! | `world`, `host` | the subnet with its hosts; one host |
//! | `program`, `packet` | one program: packets in both directions; what a packet says |
//! | `deliver` | which program or agent gets a packet that ended at a host |
//! | `early` | requests for connections that come before their service is claimed |
//! | `known`, `connections` | requests that programs have got; their connections |
//! | `host_cm` | what is said for programs that have ended, and for none |
//! | `agents` | management agents of a port, over `vernic_proto::mad` |
//! | `manager` | the own subnet manager, at a host |
//! | `report` | what programs are told of adapters |
//! | [`control`], `commands` | what `vernic fabric` asks for; how that is done |
//! | `state`, `load` | the state of everything; how busy cables are |
//! | `cables` | cables to other fabric processes, over TCP |
//! | `capture` | packets to a file |
//!
//! One thread does all of this. A program that is killed, stopped or hostile costs itself: its
//! messages are checked, what waits for it is bounded, and all that it has done ends with its
//! connection.
#![forbid(unsafe_code)]

mod administration;
mod agents;
mod cables;
mod capture;
mod clients;
mod commands;
mod connections;
pub mod control;
mod deliver;
mod door;
mod early;
mod error;
mod host;
mod host_cm;
mod issm;
mod key;
mod known;
mod load;
mod manager;
mod packet;
mod program;
mod questions;
mod report;
mod requests;
mod server;
mod state;
mod world;

pub use error::FabricError;
pub use manager::ManagerOptions;
pub use server::{Options, Server, Summary};

//! Processes of one host: which process owns a queue pair number, and how packets get from one
//! process to another.
//!
//! This module owns the abstract sockets of slots and service names. It also owns the memory that
//! processes share for packets that are handed over, and for what is on its way into their sockets.
//! It knows packets and batches, but no link. A link says where it receives (`SlotTable::publish`),
//! serves the sockets, and asks this module for the process that a packet is for.
//!
//! | file | what |
//! |---|---|
//! | `slot.rs` | slots: the high bits of queue pair numbers |
//! | `receiver_page.rs`, `receiver_page/` | how full the sockets of each process are |
//! | `handoff.rs`, `handoff/` | packets for another process: their form, and queues in memory |
//! | `slots.rs`, `slots/` | the slots and names of a link; questions about those of other links |

pub(crate) mod handoff;
pub mod receiver_page;
mod slot;
pub(crate) mod slots;

pub use handoff::HandoverResult;
pub use receiver_page::ReceiverPage;
pub use slot::Slot;
pub use slots::{
    Lookup, MAX_NAMES, NameError, PeerProcess, ServiceName, ServiceScope, SlotError, SlotKeeper,
    SlotTable,
};

//! Processes of one host: whose a queue pair number is, and how packets get from one to another.
//!
//! What this room owns: the abstract sockets of slots and service names, the memory that processes
//! share for packets that are handed over and for what is on its way into their sockets. It knows
//! packets and batches, no link: a link says where it receives (`SlotTable::publish`), serves the
//! sockets, and looks in here for the process that a packet is for.
//!
//! | file | what |
//! |---|---|
//! | `slot.rs` | slots: the high bits of queue pair numbers |
//! | `intake.rs`, `intake/` | the page of memory that tells how full a process's sockets are |
//! | `handoff.rs`, `handoff/` | packets for another process: their form, and queues in memory |
//! | `slots.rs`, `slots/` | the slots and names of a link; questions about those of others |

pub(crate) mod handoff;
pub mod intake;
mod slot;
pub(crate) mod slots;

pub use handoff::HandedOver;
pub use intake::Intake;
pub use slot::Slot;
pub use slots::{
    Lookup, MAX_NAMES, NameError, PeerProcess, Place, ServiceName, SlotError, SlotTable,
};

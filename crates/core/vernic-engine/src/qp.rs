//! A queue pair as the lane sees it: the protocol machine, and everything that the machine leaves
//! to the engine (memory, queues, paths, completions).

pub(crate) mod ack_delay;
pub(crate) mod arrivals;
pub(crate) mod cap;
pub(crate) mod completions;
pub(crate) mod direct;
pub(crate) mod host;
pub(crate) mod in_flight;
pub(crate) mod machine;
pub(crate) mod payload;
pub(crate) mod peer;
pub(crate) mod receives;
pub(crate) mod recv_queue;
pub(crate) mod request_trace;
pub(crate) mod run;
pub(crate) mod send_slots;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod xrc;

//! The plan of a fabric: nodes, and the cables between their ports.
//!
//! Owns the plan itself ([`Topology`]), which is checked once when it is built. Owns the text of
//! plans too, as `ibnetdiscover` prints and `ibsim` reads it, plans of usual shapes, and a picture
//! ([`svg`]).
//! Whatever runs a fabric takes the plan from here. Nothing here changes while the fabric runs.
//!
//! ```
//! use vernic_fabric::topology::Topology;
//!
//! let fabric = Topology::parse("Switch 8 \"sw1\"\n[3] \"h1\"[1]\n\nHca 2 \"h1\"\n", "lab")?;
//! assert_eq!((fabric.nodes().len(), fabric.cables().len()), (2, 1));
//! assert_eq!(Topology::parse(&fabric.to_string(), "lab")?, fabric);
//!
//! let error = Topology::parse("Switch 8 \"sw1\"\n[3] \"h1\"[1]\n", "lab").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "line 2: port 3 of \"sw1\" has a cable to \"h1\", which the text does not describe; \
//!      usually its record is missing, or the two names are spelled differently"
//! );
//! # Ok::<(), vernic_fabric::topology::TopologyError>(())
//! ```
//!
//! The text has a record for each node: lines with its numbers, and a line with its kind, number
//! of ports and id. Then comes a line for each of its ports with a cable.
//!
//! ```text
//! vendid=0x2c9
//! devid=0x5a44
//! sysimgguid=0x100003
//! caguid=0x100000
//! Ca      2 "H-0000000000100000"          # "h1"
//! [1](100001)     "S-0000000000200000"[4] w=2 s=4         # lid 4 lmc 0 "sw1" lid 1 4xQDR rate 10g
//! ```
//!
//! - A cable is listed at one of its ends or at both. Both must say the same.
//! - `vendid=` and `devid=` hold for all records that follow, `width=` and `speed=` for all their
//!   ports, the other numbers for the next record alone.
//! - `w=` and `s=` are masks, as in PortInfo. A cable has the best that both of its ends offer.
//!   What stands behind the name, as `4xQDR`, is exact and counts more. Without either: 4x QDR.
//! - `rate` is ours: the bits per second that a model of the cable carries ([`Rate`]).
//! - A line `port 2(100002) lid 5 lmc 0` is ours: a port without a cable that has a LID, or a GUID
//!   other than the node's plus the port's number. `ibsim` skips such a line.
//! - A GUID that the text does not give is made of the fabric's name and the node's place.
//!
//! Not read: routers, and ibsim's `include`, `do`, `module` and aliases. Each is an error that says
//! so. Not kept: whether port 0 of a switch is enhanced, chassis numbers, and the names of the
//! other ends of cables, which are comments.

mod check;
mod error;
mod graph;
mod guid;
mod join;
mod link;
mod rate;
mod read;
mod scan;
mod shapes;
mod svg;
mod tail;
mod write;

#[cfg(test)]
mod tests;

pub use error::{Problem, TopologyError};
pub use graph::{
    Cable, End, EndPort, MAX_CABLES, MAX_END_PORTS, MAX_NODES, MAX_PORTS, Node, Topology,
};
pub use rate::{Rate, RateError};
pub use read::MAX_LINE_BYTES;
pub use svg::svg;

//! What is wrong with a plan or its text: which line, which node and port, and what is usually the
//! cause.

use std::fmt;

use vernic_wire::Guid;

/// A plan that does not hold together, or a text that is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologyError {
    /// Line of the text, from 1; `None` if the plan was not read from a text.
    pub line: Option<usize>,
    /// What is wrong.
    pub problem: Box<Problem>,
}

impl TopologyError {
    pub(super) fn new(line: Option<usize>, problem: Problem) -> Self {
        Self { line, problem: Box::new(problem) }
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        self.problem.fmt(f)
    }
}

impl std::error::Error for TopologyError {}

/// Kinds of [`TopologyError`]. Lines in them are those of an earlier statement that the new one
/// contradicts; `None` if there is no text.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A line is too long to be read.
    LongLine {
        /// Length of the line.
        bytes: usize,
        /// The longest line that is read.
        limit: usize,
    },
    /// A line is not of the form that it must have.
    Form {
        /// The line, or its beginning.
        text: String,
        /// The form that was expected.
        expected: &'static str,
        /// What is usually wrong, or what to do.
        hint: String,
    },
    /// Two records have the same id.
    IdTwice {
        /// The id.
        id: String,
        /// Line of the first record.
        first_line: usize,
    },
    /// A cable leads to a node that has no record.
    UnknownNode {
        /// Name of the node at the near end.
        node: String,
        /// Port at the near end.
        port: u8,
        /// Id of the node at the far end.
        id: String,
    },
    /// Two lines say different things of one port or cable.
    Disagree {
        /// Name of the node.
        node: String,
        /// Port of the node.
        port: u8,
        /// What is said differently.
        what: &'static str,
        /// What this line says.
        here: String,
        /// What the other line says.
        there: String,
        /// Number of that other line.
        other_line: usize,
    },
    /// A port is listed twice in one record.
    ListedTwice {
        /// Name of the node.
        node: String,
        /// The port.
        port: u8,
    },
    /// A port has two cables.
    PortTwice {
        /// Name of the node.
        node: String,
        /// The port.
        port: u8,
        /// Far ends of the two cables.
        peers: [String; 2],
        /// Line of the other cable.
        other_line: Option<usize>,
    },
    /// A cable ends at a port that its node does not have.
    NoSuchPort {
        /// Name of the node.
        node: String,
        /// The port.
        port: u8,
        /// Number of ports of the node.
        ports: u8,
    },
    /// Both ends of a cable are one port.
    OnePort {
        /// Name of the node.
        node: String,
        /// The port.
        port: u8,
    },
    /// A cable ends at a node that does not exist.
    NoSuchNode {
        /// Index of the node.
        index: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A node has no ports, or more than a node can have.
    PortCount {
        /// Name of the node.
        node: String,
        /// Number of ports.
        ports: u64,
    },
    /// The list of a node's end ports is too long or too short.
    EndPortCount {
        /// Name of the node.
        node: String,
        /// Length of the list.
        have: usize,
        /// Length that it must have.
        need: usize,
    },
    /// A node's name cannot be one.
    Name {
        /// GUID of the node.
        guid: Guid,
        /// The name.
        name: String,
        /// What a name must be.
        must: &'static str,
    },
    /// A GUID is 0.
    NoGuid {
        /// Name of the node.
        node: String,
        /// Port, or `None` for the node's own GUID.
        port: Option<u8>,
    },
    /// Two nodes, or two ports, have the same GUID.
    GuidTwice {
        /// The GUID.
        guid: Guid,
        /// Names of the two nodes.
        nodes: [String; 2],
        /// Whether the GUID is of ports, not of nodes.
        is_of_ports: bool,
        /// Line of the other node's record.
        other_line: Option<usize>,
    },
    /// A vendor id has more than 24 bits.
    VendorId {
        /// Name of the node.
        node: String,
        /// The id.
        vendor_id: u32,
    },
    /// LID and LMC of a port do not go together.
    Lid {
        /// Name of the node.
        node: String,
        /// Port of the node.
        port: u8,
        /// First LID, 0 for none.
        lid: u16,
        /// Exponent of the number of LIDs.
        lmc: u8,
    },
    /// Two ports have the same LID.
    LidTwice {
        /// The LID.
        lid: u16,
        /// Names of the two nodes.
        nodes: [String; 2],
        /// Line of the other node's record.
        other_line: Option<usize>,
    },
    /// There are more of something than a fabric can have.
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The most there can be.
        limit: usize,
        /// Where the limit comes from.
        reason: &'static str,
    },
    /// A number that makes a shape is too small or too large.
    Shape {
        /// What the number counts.
        what: &'static str,
        /// The number.
        have: usize,
        /// The least it can be.
        least: usize,
        /// The most it can be.
        most: usize,
        /// Where the limits come from.
        reason: &'static str,
    },
}

/// "on line 7", where there is a line.
struct OnLine(Option<usize>);

impl fmt::Display for OnLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, " on line {line}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LongLine { .. }
            | Self::Form { .. }
            | Self::IdTwice { .. }
            | Self::UnknownNode { .. }
            | Self::Disagree { .. }
            | Self::ListedTwice { .. } => self.fmt_text(f),
            Self::PortTwice { .. }
            | Self::NoSuchPort { .. }
            | Self::OnePort { .. }
            | Self::NoSuchNode { .. } => self.fmt_cable(f),
            Self::TooMany { .. } | Self::Shape { .. } => self.fmt_limit(f),
            _ => self.fmt_node(f),
        }
    }
}

impl Problem {
    fn fmt_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LongLine { bytes, limit } => write!(
                f,
                "the line has {bytes} bytes, at most {limit} are read; usually the file is no \
                 topology, or has lost its line breaks"
            ),
            Self::Form { text, expected, hint } => {
                write!(f, "{text:?}: expected {expected}; {hint}")
            }
            Self::IdTwice { id, first_line } => write!(
                f,
                "{id:?} has a record on line {first_line} already; usually two files were put \
                 together, or a record was copied and its id not changed"
            ),
            Self::UnknownNode { node, port, id } => write!(
                f,
                "port {port} of {node:?} has a cable to {id:?}, which the text does not describe; \
                 usually its record is missing, or the two names are spelled differently"
            ),
            Self::Disagree { node, port, what, here, there, other_line } => write!(
                f,
                "{what} of port {port} of {node:?} is {here} here, and {there} on line \
                 {other_line}; usually one of the two lines was changed and the other forgotten"
            ),
            Self::ListedTwice { node, port } => write!(
                f,
                "port {port} of {node:?} is listed twice in its record, and a port has one cable; \
                 usually a line was copied and its port not changed"
            ),
            _ => Ok(()),
        }
    }

    fn fmt_cable(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortTwice { node, port, peers: [one, other], other_line } => write!(
                f,
                "port {port} of {node:?} has two cables: to {one}, and to {other}{}; usually one \
                 end of a cable names the wrong port",
                OnLine(*other_line)
            ),
            Self::NoSuchPort { node, port, ports } => write!(
                f,
                "{node:?} has no port {port}: its ports are 1 to {ports}; usually the number of \
                 ports in its record is too small"
            ),
            Self::OnePort { node, port } => write!(
                f,
                "the cable leads from port {port} of {node:?} to the same port; usually the far \
                 end was meant to be another node or port"
            ),
            Self::NoSuchNode { index, nodes } => write!(
                f,
                "a cable ends at node {index}, and there are {nodes} nodes, counted from 0"
            ),
            _ => Ok(()),
        }
    }

    fn fmt_node(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortCount { node, ports } => write!(
                f,
                "{node:?} has {ports} ports, and a node has 1 to 254: the tables of a switch have \
                 8 bits for a port, and 255 means none"
            ),
            Self::EndPortCount { node, have, need } => write!(
                f,
                "{node:?} has {have} end ports and needs {need}: a switch one, an adapter one for \
                 each port"
            ),
            Self::Name { guid, name, must } => {
                write!(f, "the node with GUID {guid} cannot be called {name:?}: a name must {must}")
            }
            Self::NoGuid { node, port: None } => write!(
                f,
                "{node:?} has the GUID 0, which means none; without a line for its GUID, one is made"
            ),
            Self::NoGuid { node, port: Some(port) } => {
                write!(f, "port {port} of {node:?} has the GUID 0, which means none")
            }
            Self::GuidTwice { guid, nodes: [one, other], is_of_ports, other_line } => write!(
                f,
                "{one:?} has {}the GUID {guid}, as {other:?}{} has; usually a record was copied and \
                 its GUID not changed",
                if *is_of_ports { "a port with " } else { "" },
                OnLine(*other_line)
            ),
            Self::VendorId { node, vendor_id } => write!(
                f,
                "{node:?} has the vendor id {vendor_id:#x}, and vendor ids have 24 bits: at most \
                 0xffffff"
            ),
            Self::Lid { node, port, lid: 0, lmc } => write!(
                f,
                "port {port} of {node:?} has LMC {lmc} without a LID; usually the LID was left out"
            ),
            Self::Lid { node, port, lid, lmc } => write!(
                f,
                "port {port} of {node:?} has LID {lid} and LMC {lmc}; LIDs of ports are 1 to 49151, \
                 LMCs 0 to 7, and a LID is a multiple of 2 to the power of its LMC"
            ),
            Self::LidTwice { lid, nodes: [one, other], other_line } => write!(
                f,
                "{one:?} has LID {lid}, which is of {other:?}{} already; with an LMC above 0, a \
                 port has all LIDs up to the next multiple of 2 to the power of the LMC",
                OnLine(*other_line)
            ),
            _ => Ok(()),
        }
    }

    fn fmt_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { what, limit, reason } => {
                write!(f, "there are more than {limit} {what}: {reason}")
            }
            Self::Shape { what, have, least, most, reason } => {
                write!(f, "{have} {what}, and there must be {least} to {most}: {reason}")
            }
            _ => Ok(()),
        }
    }
}

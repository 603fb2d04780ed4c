//! Text to records: one for each node, with the sides of cables that it lists.

use std::collections::BTreeMap;

use vernic_wire::PortNum;

use super::check::{CABLES_REASON, END_PORTS_REASON, NODES_REASON};
use super::error::{Problem, TopologyError};
use super::graph::{MAX_CABLES, MAX_END_PORTS, MAX_NAME_BYTES, MAX_NODES, MAX_PORTS, Topology};
use super::join::{self, Draft, EndDraft, NodeGuids, Side};
use super::link::Offer;
use super::scan::{Scan, guid, number};
use super::tail::{Flaw, MASKS, MASKS_HINT, Tail};
use crate::attributes::NodeKind;

/// The longest line of a text that is read, in bytes. `ibsim` itself reads 254.
pub const MAX_LINE_BYTES: usize = 1024;

/// How much of a line an error shows, in characters.
const SHOWN: usize = 120;

impl Topology {
    /// Reads a plan from the text that `ibnetdiscover` prints and `ibsim` reads; the head of this
    /// module has its form. `fabric` is any name of the fabric, for GUIDs that the text lacks.
    ///
    /// # Errors
    /// [`TopologyError`] with the line, for a line that is not of that form, lines that contradict
    /// each other, and whatever [`Topology::build`] refuses.
    pub fn parse(text: &str, fabric: &str) -> Result<Self, TopologyError> {
        let mut reader = Reader::default();
        for (at, line) in text.split('\n').enumerate() {
            let line = line.trim();
            reader.line = at + 1;
            let problem = if line.len() > MAX_LINE_BYTES {
                Err(Problem::LongLine { bytes: line.len(), limit: MAX_LINE_BYTES }.into())
            } else {
                reader.handle_line(line)
            };
            problem.map_err(|stop| stop.at(reader.line, line))?;
        }
        if let Some(guids) = reader.guids {
            let flaw = Flaw::new("a record behind the GUID of a node", NO_RECORD);
            return Err(Stop::Flaw(flaw).at(guids.line, "the end of the text"));
        }
        join::join(reader.drafts, &reader.sides, &reader.ids, fabric)
    }
}

/// Why reading stops at a line.
enum Stop {
    /// The line is not of the form that it must have.
    Flaw(Flaw),
    /// The line cannot be true.
    Problem(Problem),
}

impl From<Flaw> for Stop {
    fn from(flaw: Flaw) -> Self {
        Self::Flaw(flaw)
    }
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl Stop {
    fn at(self, line: usize, text: &str) -> TopologyError {
        let problem = match self {
            Self::Problem(problem) => problem,
            Self::Flaw(Flaw { expected, hint }) => {
                let mut shown: String = text.chars().take(SHOWN).collect();
                if shown.len() < text.len() {
                    shown.push_str("...");
                }
                Problem::Form { text: shown, expected, hint }
            }
        };
        TopologyError::new(Some(line), problem)
    }
}

/// What was read so far.
#[derive(Default)]
struct Reader<'a> {
    /// Number of the line, from 1.
    line: usize,
    /// Vendor id of the records that follow.
    vendor_id: u32,
    /// Number of the model of the records that follow.
    device_id: u16,
    /// Widths and speeds that ports offer from here on, if their lines do not say.
    defaults: Offer,
    /// GUID of the box that the next record's node is part of.
    system_guid: Option<u64>,
    /// GUIDs of the next record's node.
    guids: Option<NodeGuids>,
    drafts: Vec<Draft<'a>>,
    /// End ports of all drafts.
    end_ports: usize,
    /// Which draft has an id.
    ids: BTreeMap<&'a str, usize>,
    sides: Vec<Side<'a>>,
}

const NO_RECORD: &str = "usually the text was cut off";
const RECORD: &str = "a record, as: Switch 8 \"sw1\"";
const PORT: &str = "a port with its cable, as: [1] \"sw1\"[3]";

impl<'a> Reader<'a> {
    fn handle_line(&mut self, line: &'a str) -> Result<(), Stop> {
        let mut scan = Scan::new(line);
        if line.starts_with('[') {
            return self.handle_port(scan);
        }
        match scan.word() {
            "Switch" => self.handle_record(NodeKind::Switch, scan),
            "Ca" | "Hca" => self.handle_record(NodeKind::Adapter, scan),
            "port" => self.handle_spare_port(scan),
            // Headings of `ibnetdiscover -g`.
            "" | "Chassis" | "Non-Chassis" => Ok(()),
            word if word.starts_with('#') => Ok(()),
            "Rt" => Err(Flaw::new(RECORD, "routers are not modelled; leave the record out").into()),
            "include" | "do" => Err(Flaw::new(
                RECORD,
                "the commands of ibsim are not known here; put the text of an included file in its \
                 place, and use a script for what `do` does",
            )
            .into()),
            word if word.starts_with('@') => {
                Err(Flaw::new(PORT, "aliases of ibsim are not known; write the node's id").into())
            }
            _ => match line.split_once('=') {
                Some((key, value)) => self.handle_number(key.trim_end(), value),
                None => {
                    let hint = "usually the file is no topology; a comment begins with #";
                    Err(Flaw::new(RECORD, hint).into())
                }
            },
        }
    }

    /// Reads a line with a number of the records that follow.
    fn handle_number(&mut self, key: &str, value: &str) -> Result<(), Stop> {
        let value = value.split('#').next().unwrap_or_default().trim();
        match key {
            "vendid" => {
                let id = number(value, u64::from(u32::MAX));
                self.vendor_id = id.ok_or_else(|| Flaw::new("a vendor id of 24 bits", HEX))? as u32;
            }
            "devid" => {
                let id = number(value, u64::from(u16::MAX));
                self.device_id = id.ok_or_else(|| Flaw::new("a device id of 16 bits", HEX))? as u16;
            }
            "sysimgguid" => self.system_guid = Some(one_guid(value)?),
            "switchguid" | "switchguids" => self.handle_guids(NodeKind::Switch, value)?,
            "caguid" | "caguids" | "hcaguid" | "hcaguids" => {
                self.handle_guids(NodeKind::Adapter, value)?;
            }
            "width" => self.defaults.width = Some(mask(value, Offer::WIDTHS)?),
            "speed" => self.defaults.speed = Some(mask(value, Offer::SPEEDS)?),
            "rtguid" => {
                let hint = "routers are not modelled; leave the record out";
                return Err(Flaw::new(NUMBERS, hint).into());
            }
            _ => {
                let hint = "what else ibsim knows, as `module`, is not known here; a port's line \
                            begins with [";
                return Err(Flaw::new(NUMBERS, hint).into());
            }
        }
        Ok(())
    }

    /// Reads `0x200001(200001)`: the GUID of the node, and perhaps that of port 0.
    fn handle_guids(&mut self, kind: NodeKind, value: &str) -> Result<(), Stop> {
        if self.guids.is_some() {
            return Err(Flaw::new(RECORD, "the line before gave the GUID of a node already").into());
        }
        let (node, rest) = value.split_once('(').unwrap_or((value, ""));
        let port = match rest {
            "" => None,
            rest => Some(one_guid(rest.strip_suffix(')').unwrap_or_default())?),
        };
        self.guids = Some(NodeGuids { kind, node: one_guid(node)?, port, line: self.line });
        Ok(())
    }

    /// Reads the first line of a record behind its kind.
    fn handle_record(&mut self, kind: NodeKind, mut scan: Scan<'a>) -> Result<(), Stop> {
        scan.skip_space();
        let count = number(scan.word(), u64::MAX)
            .ok_or_else(|| Flaw::new(RECORD, "the number of ports stands before the id"))?;
        scan.skip_space();
        let id = id_of(&mut scan).ok_or_else(|| {
            let hint = "the id of 1 to 64 bytes stands in quotes behind the number of ports";
            Flaw::new(RECORD, hint)
        })?;
        let tail = Tail::parse(scan, &["base", "enhanced", "port", "0"])?;
        if tail.name.is_some_and(|name| name.len() > MAX_NAME_BYTES) {
            let expected = "a name of at most 64 bytes of UTF-8 behind #";
            return Err(Flaw::new(expected, "that is the length of a node description").into());
        }
        if count == 0 || count > MAX_PORTS as u64 {
            return Err(Problem::PortCount { node: id.to_owned(), ports: count }.into());
        }
        let guids = self.guids.take();
        if guids.is_some_and(|guids| guids.kind != kind) {
            let expected = "`switchguid` before a switch and `caguid` before an adapter";
            return Err(Flaw::new(expected, "usually two records were mixed up").into());
        }
        if let Some(first) = self.ids.get(id) {
            let first_line = self.drafts[*first].line;
            return Err(Problem::IdTwice { id: id.to_owned(), first_line }.into());
        }
        let end_ports = if kind == NodeKind::Switch { 1 } else { count as usize };
        self.end_ports += end_ports;
        too_many(self.drafts.len() + 1, MAX_NODES, "nodes", NODES_REASON)?;
        too_many(self.end_ports, MAX_END_PORTS, "end ports", END_PORTS_REASON)?;
        self.ids.insert(id, self.drafts.len());
        let mut draft = Draft {
            kind,
            name: tail.name.filter(|name| !name.is_empty()).unwrap_or(id),
            line: self.line,
            ports: count as u8,
            guid: guids.map(|guids| guids.node).or_else(|| guid_of_id(id)),
            system_guid: self.system_guid.take(),
            vendor_id: self.vendor_id,
            device_id: self.device_id,
            end_ports: vec![EndDraft::default(); end_ports],
            listed: [0; 4],
        };
        if kind == NodeKind::Switch {
            let address = if tail.name.is_some() { tail.far } else { tail.near };
            draft.say(PortNum(0), guids.and_then(|guids| guids.port), address, self.line)?;
        }
        self.drafts.push(draft);
        Ok(())
    }

    /// Reads the line of a port with a cable.
    fn handle_port(&mut self, mut scan: Scan<'a>) -> Result<(), Stop> {
        let near = port_of(&mut scan)?;
        let near_guid = guid_of(&mut scan)?;
        scan.skip_space();
        let far_id = id_of(&mut scan).ok_or_else(|| {
            let hint = "the far end's id of 1 to 64 bytes stands in quotes behind the port";
            Flaw::new(PORT, hint)
        })?;
        // As for ibsim, port 1 need not be written.
        let mut ahead = scan;
        ahead.skip_space();
        let far = if ahead.eat("[") { port_of(&mut scan)? } else { 1 };
        let far_guid = guid_of(&mut scan)?;
        let tail = Tail::parse(scan, &[])?;
        let line = self.line;
        let node = self.drafts.len().wrapping_sub(1);
        let draft = self.current()?;
        draft.list(near)?;
        draft.say(PortNum(near), near_guid, tail.near, line)?;
        let offer = tail.offer.or(self.defaults);
        let (far_address, rate) = (tail.far, tail.rate);
        too_many(self.sides.len() + 1, 2 * MAX_CABLES, "ends of cables", CABLES_REASON)?;
        self.sides.push(Side { node, near, far_id, far, far_guid, far_address, offer, rate, line });
        Ok(())
    }

    /// Reads the line of a port without a cable: `port 2(100002) lid 5 lmc 0`.
    fn handle_spare_port(&mut self, mut scan: Scan<'a>) -> Result<(), Stop> {
        const SPARE: &str = "a port of an adapter without a cable, as: port 2(100002) lid 5 lmc 0";
        scan.skip_space();
        let mut word = Scan::new(scan.word());
        let digits = word.between("", '(');
        let (digits, guid) = match digits {
            Some(digits) => (digits, Some(word.word().strip_suffix(')').unwrap_or_default())),
            None => (word.word(), None),
        };
        let port = number(digits, MAX_PORTS as u64)
            .ok_or_else(|| Flaw::new(SPARE, "ports are 1 to 254"))? as u8;
        let guid = guid.map(one_guid).transpose()?;
        let tail = Tail::parse(scan, &[])?;
        let line = self.line;
        let draft = self.current()?;
        if draft.kind == NodeKind::Switch {
            let hint = "the ports of a switch have no GUIDs and LIDs of their own";
            return Err(Flaw::new(SPARE, hint).into());
        }
        draft.say(PortNum(port), guid, tail.near, line)?;
        Ok(())
    }

    /// The record that a port's line belongs to.
    fn current(&mut self) -> Result<&mut Draft<'a>, Stop> {
        let hint = "a record begins with its kind, number of ports and id, and its ports follow";
        self.drafts.last_mut().ok_or_else(|| Flaw::new(RECORD, hint).into())
    }
}

const NUMBERS: &str = "vendid, devid, sysimgguid, switchguid, caguid, width or speed before =";
const HEX: &str = "a number is decimal, or hexadecimal after 0x";

fn one_guid(text: &str) -> Result<u64, Flaw> {
    let hint = "a GUID has up to 16 hexadecimal digits";
    guid(text).ok_or_else(|| Flaw::new("a GUID, as 0x2c9000100d050", hint))
}

fn mask(text: &str, limit: u64) -> Result<u8, Flaw> {
    let mask = number(text, limit).filter(|mask| *mask != 0);
    mask.map(|mask| mask as u8).ok_or_else(|| Flaw::new(MASKS, MASKS_HINT))
}

/// The GUID in an id as `ibnetdiscover` makes them: `S-` or `H-` and 16 digits.
fn guid_of_id(id: &str) -> Option<u64> {
    let digits = id.strip_prefix("S-").or_else(|| id.strip_prefix("H-"))?;
    if digits.len() == 16 { guid(digits) } else { None }
}

/// Reads an id in quotes, which `ibsim` wants no longer than a name.
fn id_of<'a>(scan: &mut Scan<'a>) -> Option<&'a str> {
    scan.between("\"", '"').filter(|id| (1..=MAX_NAME_BYTES).contains(&id.len()))
}

/// Reads `[3]`, and skips the number on the case that may follow, as `[ext 3]`.
fn port_of(scan: &mut Scan<'_>) -> Result<u8, Flaw> {
    scan.skip_space();
    let digits = scan.between("[", ']').unwrap_or_default();
    let mut ahead = *scan;
    if ahead.eat("[ext ") {
        let closed = scan.between("[", ']');
        closed.ok_or_else(|| Flaw::new(PORT, "the number on the case is not closed by ]"))?;
    }
    number(digits, MAX_PORTS as u64)
        .filter(|port| *port != 0)
        .map(|port| port as u8)
        .ok_or_else(|| Flaw::new(PORT, "ports are 1 to 254, each in square brackets"))
}

/// Reads `(100001)`, if it is next.
fn guid_of(scan: &mut Scan<'_>) -> Result<Option<u64>, Flaw> {
    let mut ahead = *scan;
    if !ahead.eat("(") {
        return Ok(None);
    }
    one_guid(scan.between("(", ')').unwrap_or_default()).map(Some)
}

fn too_many(
    count: usize,
    limit: usize,
    what: &'static str,
    reason: &'static str,
) -> Result<(), Problem> {
    if count > limit { Err(Problem::TooMany { what, limit, reason }) } else { Ok(()) }
}

impl Draft<'_> {
    /// Notes that a port's line was read; each port has one.
    fn list(&mut self, port: u8) -> Result<(), Problem> {
        let node = || self.name.to_owned();
        if port > self.ports {
            return Err(Problem::NoSuchPort { node: node(), port, ports: self.ports });
        }
        let (word, bit) = (usize::from(port / 64), 1 << (port % 64));
        if self.listed[word] & bit != 0 {
            return Err(Problem::ListedTwice { node: node(), port });
        }
        self.listed[word] |= bit;
        Ok(())
    }
}

//! Partitions: which ports may talk to each other, and the tables that say so (IBTA 10.9, 14.4.8).
//!
//! Every end port has a table of its P_Keys, and the port of a switch that leads to an adapter has
//! the adapter's table, by which the switch drops what does not belong there. The default partition
//! always exists: without another word all ports are full members. If its members are named, all
//! other ports are limited ones, which reach the subnet manager and not each other.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use vernic_wire::smp::{NodeDescription, PkeyTable, SmAttribute};
use vernic_wire::{Guid, Lid, Pkey, ServiceLevel};

use super::Manager;
use super::lanes;
use super::map::{End, Map, Node, Port};

/// The bit of a P_Key that says that its owner is a full member.
const FULL: u16 = 0x8000;
/// The default partition (IBTA 10.9.1.2).
const DEFAULT: u16 = 0x7FFF;
/// Partitions at most: as many as a table of an adapter has rows.
const MOST: usize = 128;

/// What a partition names as a member.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Name {
    All,
    Guid(Guid),
    /// The description of the node.
    Node(String),
}

/// A partition with its members.
///
/// ```
/// use vernic_fabric::manager::Partition;
///
/// let partition: Partition = "0x8001=h1,h2,h3:limited".parse()?;
/// assert_eq!(partition.pkey().value(), 0x8001);
/// assert!("0x8001".parse::<Partition>().is_err());
/// # Ok::<(), vernic_fabric::manager::BadPartition>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// The number of the partition, 1 to 0x7FFF.
    base: u16,
    /// Service level of its packets and the weight of that, if they have one of their own.
    level: Option<(ServiceLevel, u8)>,
    /// Members, and whether each is a full one.
    members: Vec<(Name, bool)>,
}

/// A text that is no partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadPartition(String);

impl fmt::Display for BadPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadPartition {}

impl FromStr for Partition {
    type Err = BadPartition;

    /// Reads a partition: `P_KEY=MEMBER,...`, or `P_KEY@SL=MEMBER,...` for one whose packets have a
    /// service level, or `P_KEY@SL:WEIGHT=MEMBER,...` with its weight beside others, 1 to 255, of
    /// which 64 is the usual one. Members are full ones if the P_Key has its top bit,
    /// else limited ones, unless `:full` or `:limited` says otherwise. A member is the name of a
    /// node, the GUID of a port, or `ALL`.
    fn from_str(text: &str) -> Result<Self, BadPartition> {
        let bad = |why: &str| {
            BadPartition(format!("{text:?}: {why}; write P_KEY=MEMBER,..., as in 0x8001=h1,h2"))
        };
        let (key, members) = text.split_once('=').ok_or_else(|| bad("there is no `=`"))?;
        let (key, level) = match key.split_once('@') {
            None => (key, None),
            Some((key, level)) => {
                let level = read_level(level.trim());
                (key, Some(level.ok_or_else(|| bad("SL is 0 to 14, and its weight 1 to 255"))?))
            }
        };
        let digits = key.trim().strip_prefix("0x").unwrap_or(key.trim());
        let key =
            u16::from_str_radix(digits, 16).map_err(|_| bad("the P_Key is 16 bits in hex"))?;
        if key & !FULL == 0 {
            return Err(bad("the partition 0 is none"));
        }
        let mut named = Vec::new();
        for member in members.split(',').map(str::trim) {
            let (name, is_full) = match member.rsplit_once(':') {
                Some((name, "full")) => (name, true),
                Some((name, "limited")) => (name, false),
                Some(_) => return Err(bad("behind a member's `:` is full or limited")),
                None => (member, key & FULL != 0),
            };
            let guid = name.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
            let name = match guid {
                _ if name.is_empty() => return Err(bad("a member has no name")),
                Some(Ok(guid)) => Name::Guid(Guid(guid)),
                Some(Err(_)) => return Err(bad("a GUID has up to 16 digits in hex")),
                None if name == "ALL" => Name::All,
                None => Name::Node(name.to_owned()),
            };
            named.push((name, is_full));
        }
        Ok(Self { base: key & !FULL, level, members: named })
    }
}

impl Partition {
    /// Returns the P_Key of a full member.
    pub const fn pkey(&self) -> Pkey {
        Pkey(self.base | FULL)
    }
    /// Returns the names of nodes among the members.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter_map(|(name, _)| match name {
            Name::Node(name) => Some(name.as_str()),
            Name::All | Name::Guid(_) => None,
        })
    }
    /// Returns whether a port is a member, and whether a full one. A name is stronger than `ALL`.
    fn membership(&self, node: &Node, guid: Guid) -> Option<bool> {
        let names = |name: &Name| match name {
            Name::All => false,
            Name::Guid(named) => *named == guid,
            Name::Node(named) => is_called(&node.description, named),
        };
        let named = self.members.iter().filter(|(name, _)| names(name));
        // Named twice: the stronger membership holds.
        let named = named.map(|(_, is_full)| *is_full).max();
        let all = self.members.iter().filter(|(name, _)| *name == Name::All);
        named.or(all.map(|(_, is_full)| *is_full).max())
    }
}

/// Reads a service level and its weight. Level 15 is subnet management's lane by itself.
fn read_level(text: &str) -> Option<(ServiceLevel, u8)> {
    let (level, weight) = text.split_once(':').map_or((text, None), |(l, w)| (l, Some(w)));
    let level = level.parse().ok().filter(|level: &u8| *level < 15)?;
    let weight = weight.map_or(Some(lanes::WEIGHT), |weight| weight.parse().ok())?;
    (weight > 0).then_some((ServiceLevel::new(level), weight))
}

/// Returns whether a description, which ends with zeros, begins with a name as a word.
fn is_called(description: &[u8; NodeDescription::LEN], name: &str) -> bool {
    let rest = description.strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(0 | b' ')))
}

/// All partitions of a manager.
#[derive(Clone, Debug)]
pub(super) struct Partitions {
    /// The default partition, if its members are named.
    default: Option<Partition>,
    others: Vec<Partition>,
    /// Tables as they were written, by the GUID of a port, or of a switch and the port's number.
    written: BTreeMap<(Guid, u8), Vec<Pkey>>,
    /// Tables of the end ports of the sweep, by the GUID of the port.
    tables: BTreeMap<Guid, Vec<Pkey>>,
}

/// Returns whether two P_Keys let their owners talk: one partition, and not both limited.
fn can_talk(one: Pkey, other: Pkey) -> bool {
    (one.0 ^ other.0) & !FULL == 0 && (one.0 | other.0) & FULL != 0 && one.0 & !FULL != 0
}

impl Partitions {
    /// Takes partitions; those of one number are one.
    pub(super) fn new(list: Vec<Partition>) -> Self {
        let (mut default, mut others): (_, Vec<Partition>) = (None::<Partition>, Vec::new());
        for partition in list {
            let has_room = others.len() + 1 < MOST; // One row is the default partition's.
            let known = match partition.base {
                DEFAULT => default.as_mut(),
                base => others.iter_mut().find(|other| other.base == base),
            };
            match known {
                Some(known) => {
                    known.members.extend(partition.members);
                    known.level = known.level.or(partition.level);
                }
                None if partition.base == DEFAULT => default = Some(partition),
                None if has_room => others.push(partition),
                None => {}
            }
        }
        Self { default, others, written: BTreeMap::new(), tables: BTreeMap::new() }
    }
    /// Returns the P_Keys of full members with their service levels, the default partition first.
    pub(super) fn groups(&self) -> impl Iterator<Item = (Pkey, ServiceLevel)> + '_ {
        let all = [Pkey::DEFAULT].into_iter().chain(self.others.iter().map(Partition::pkey));
        all.map(|pkey| (pkey, self.service_level(pkey)))
    }
    fn named(&self) -> impl Iterator<Item = &Partition> {
        self.default.iter().chain(&self.others)
    }
    /// Returns the service level of a partition's packets.
    pub(super) fn service_level(&self, pkey: Pkey) -> ServiceLevel {
        let mut own = self.named().filter(|own| own.base == pkey.0 & !FULL);
        let level = own.next().and_then(|own| own.level);
        level.map_or(ServiceLevel::new(0), |(level, _)| level)
    }
    /// Returns the service levels that partitions have, and their weights.
    pub(super) fn weights(&self) -> impl Iterator<Item = (ServiceLevel, u8)> + '_ {
        self.named().filter_map(|partition| partition.level)
    }
    /// Whether switches have something to enforce.
    fn are_enforced(&self) -> bool {
        self.default.is_some() || !self.others.is_empty()
    }
    /// Returns the table of an end port. Switches and the manager are full members of the default
    /// partition, so that all reach them.
    fn table_of(&self, node: &Node, guid: Guid, is_manager: bool) -> Vec<Pkey> {
        let default = match &self.default {
            Some(default) if !is_manager && !node.is_switch() => {
                default.membership(node, guid).unwrap_or(false)
            }
            _ => true,
        };
        let others = self
            .others
            .iter()
            .filter_map(|partition| Some((partition.base, partition.membership(node, guid)?)));
        let all = [(DEFAULT, default)].into_iter().chain(others);
        all.map(|(base, is_full)| Pkey(if is_full { base | FULL } else { base })).collect()
    }
    /// Works out the tables of all end ports of a map.
    fn follow(&mut self, map: &Map, manager: Guid) {
        let tables = map.end_ports().map(|((at, _), port)| {
            (port.guid, self.table_of(&map.nodes[at], port.guid, port.guid == manager))
        });
        self.tables = tables.collect();
    }
    fn table(&self, guid: Guid) -> &[Pkey] {
        self.tables.get(&guid).map_or(&[], Vec::as_slice)
    }
    /// Returns the P_Key of a port by which it can talk to another one, of this partition if one is
    /// asked for.
    pub(super) fn common(&self, from: Guid, to: Guid, asked: Option<Pkey>) -> Option<Pkey> {
        let is_asked = |key: &&Pkey| asked.is_none_or(|asked| (asked.0 ^ key.0) & !FULL == 0);
        let to = self.table(to);
        let mut own = self.table(from).iter().filter(is_asked);
        own.find(|own| to.iter().any(|other| can_talk(**own, *other))).copied()
    }
    /// Returns whether a port is a member of a partition.
    pub(super) fn is_member(&self, guid: Guid, pkey: Pkey) -> bool {
        self.table(guid).iter().any(|own| (own.0 ^ pkey.0) & !FULL == 0)
    }
    /// Forgets what was written: another manager may have written since.
    pub(super) fn forget_written(&mut self) {
        self.written.clear();
    }
}

impl Manager {
    /// Writes the tables of P_Keys that are not as they should be.
    pub(super) fn write_partitions(&mut self) {
        self.partitions.follow(&self.map, self.config.guid);
        let ends: Vec<End> = self.map.end_ports().map(|(end, _)| end).collect();
        for end in ends {
            let Some(port) = self.map.port(end) else { continue };
            let (guid, lid, path) = (port.guid, port.info.lid, port.path.clone());
            let cap = usize::from(self.map.nodes[end.0].info.partition_cap);
            let table = self.partitions.table(guid).to_vec();
            self.write_table((guid, 0), &table, cap, lid, (&path, 0));
            if let Some(((switch, number), cap)) = self.enforcer(end) {
                let node = &self.map.nodes[switch];
                let (guid, path) = (node.info.node_guid, node.path.clone());
                let lid = node.ports.get(&0).map_or(Lid(0), |home| home.info.lid);
                let modifier = u32::from(number) << 16;
                // A switch looks at numbers alone: else no packet of a limited member would pass.
                let table: Vec<_> = table.iter().map(|key| Pkey(key.0 | FULL)).collect();
                self.write_table((guid, number), &table, cap, lid, (&path, modifier));
            }
        }
    }
    /// Returns the port of a switch that leads to an adapter, if it can enforce partitions, with
    /// the rows of its table.
    fn enforcer(&self, end: End) -> Option<(End, usize)> {
        if self.map.is_switch(end.0) {
            return None;
        }
        let at = self.map.attachment(end)?;
        let info = self.map.nodes[at.0].switch?;
        let cap = usize::from(info.enforcement_cap);
        (cap > 0 && info.enforces_inbound && info.enforces_outbound).then_some((at, cap))
    }
    /// Returns whether a port of a switch is to drop what is of no partition of the adapter there.
    pub(super) fn enforces(&self, end: End) -> bool {
        let peer = self.map.links.get(&end).copied();
        let peer = peer.filter(|_| self.partitions.are_enforced() && end.1 > 0);
        let Some(peer) = peer.filter(|_| self.map.is_switch(end.0)) else { return false };
        let rows =
            self.map.port(peer).map_or(0, |port: &Port| self.partitions.table(port.guid).len());
        // A switch whose table is too short for all of them lets everything pass.
        self.enforcer(peer).is_some_and(|(_, cap)| rows <= cap)
    }
    /// Writes the blocks of a table that are other than before. A port without a LID has never been
    /// managed: it has the default partition alone (IBTA 10.9.2).
    fn write_table(
        &mut self,
        key: (Guid, u8),
        table: &[Pkey],
        cap: usize,
        lid: Lid,
        (path, modifier): (&[u8], u32),
    ) {
        let written = match self.partitions.written.get(&key) {
            _ if lid == Lid(0) => Some(vec![Pkey::DEFAULT]),
            written => written.cloned(),
        };
        let table = &table[..table.len().min(cap)];
        let rows = cap.min(MOST);
        for block in 0..rows.div_ceil(PkeyTable::ENTRIES) {
            let of = |table: &[Pkey]| {
                let row = |at: usize| table.get(block * PkeyTable::ENTRIES + at);
                core::array::from_fn(|at| row(at).copied().unwrap_or(Pkey(0)))
            };
            let keys = of(table);
            if written.as_ref().is_none_or(|before| of(before) != keys) {
                let modifier = modifier | block as u32;
                let emit = |buf: &mut [u8]| PkeyTable { keys }.emit(buf);
                self.push_write(path, SmAttribute::PKEY_TABLE, modifier, emit);
            }
        }
        self.partitions.written.insert(key, table.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        let mut description = [0; NodeDescription::LEN];
        description[..name.len()].copy_from_slice(name.as_bytes());
        Node {
            info: vernic_wire::smp::NodeInfo::from_bytes(&[0; 40]),
            description,
            switch: None,
            path: Vec::new(),
            ports: BTreeMap::new(),
        }
    }

    fn partitions(list: &[&str]) -> Partitions {
        Partitions::new(list.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn table(partitions: &Partitions, name: &str) -> Vec<u16> {
        let table = partitions.table_of(&node(name), Guid(7), name == "sm");
        table.iter().map(|key| key.0).collect()
    }

    #[test]
    fn all_are_full_members_of_the_default_partition_unless_it_names_its_own() {
        assert_eq!(table(&partitions(&[]), "h1"), [0xFFFF]);
        let named = partitions(&["0x7fff=h1:full"]);
        assert_eq!(["h1", "h2", "sm"].map(|name| table(&named, name)[0]), [0xFFFF, 0x7FFF, 0xFFFF]);
    }

    #[test]
    fn members_are_full_by_the_top_bit_or_by_their_word() {
        let list = partitions(&["0x8001=h1,h2:limited", "0x2=ALL,h1:full", "8003=0x7"]);
        assert_eq!(table(&list, "h1"), [0xFFFF, 0x8001, 0x8002, 0x8003]);
        assert_eq!(table(&list, "h2"), [0xFFFF, 0x0001, 0x0002, 0x8003]);
        // A name is a whole word.
        assert_eq!(table(&list, "h10"), [0xFFFF, 0x0002, 0x8003]);
        assert_eq!(table(&list, "h1 HCA-1"), [0xFFFF, 0x8001, 0x8002, 0x8003]);
    }

    #[test]
    fn two_limited_members_have_nothing_in_common() {
        let mut list = partitions(&["0x7fff=ALL", "0x8001=h1,h2"]);
        let tables = [(1, "h1"), (2, "h2"), (3, "h3")];
        let tables =
            tables.map(|(guid, name)| (Guid(guid), list.table_of(&node(name), Guid(guid), false)));
        list.tables = tables.into();
        let common = |from, to| list.common(Guid(from), Guid(to), None).map(|key| key.0);
        assert_eq!([common(1, 2), common(1, 3), common(2, 3)], [Some(0x8001), None, None]);
        assert_eq!(list.common(Guid(1), Guid(2), Some(Pkey(0xFFFF))), None);
        assert_eq!(list.common(Guid(1), Guid(2), Some(Pkey(1))), Some(Pkey(0x8001)));
        assert!(list.is_member(Guid(3), Pkey::DEFAULT) && !list.is_member(Guid(3), Pkey(0x8001)));
    }

    #[test]
    fn what_is_no_partition_says_why() {
        for (text, why) in [
            ("0x8001", "no `=`"),
            ("0x8001=", "no name"),
            ("0x8000=h1", "is none"),
            ("0x18001=h1", "16 bits"),
            ("0x8001=h1,,h2", "no name"),
            ("0x8001=0xyz", "up to 16 digits"),
            ("0x8001=h1:fulll", "full or limited"),
            ("0x8001@15=h1", "SL is 0 to 14"),
            ("0x8001@1:0=h1", "its weight 1 to 255"),
        ] {
            let error = text.parse::<Partition>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("0x8001=h1,h2"), "{error}");
        }
    }

    #[test]
    fn more_partitions_than_a_table_has_rows_are_left_out() {
        let texts: Vec<_> = (1..=200).map(|key| format!("{key:x}=ALL")).collect();
        let list = partitions(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(list.groups().count(), MOST);
    }
}

//! Path records (IBTA 15.2.5.16): where a port's packets to another one go, how long they may be.

use std::collections::BTreeMap;

use vernic_wire::sa::{PathComponents, PathRecord, Selected};
use vernic_wire::smp::PortInfo;
use vernic_wire::{Gid, Guid, Lid, Pkey};

use super::Manager;
use super::map::{ACTIVE, End, Map, Port, gid, guid_of};
use super::query::{Records, satisfies};

/// Exponent of how long a packet can be on its way: 1 s, as switches have it.
const LIFE: u8 = 18;
/// Switches of a path at most.
const MOST_HOPS: usize = 64;

/// The best codes, which a path without links between two ports has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limits {
    mtu: u8,
    rate: u8,
}

/// Bits per second of a code of a rate in units of 0.5 Gb/s, for comparison (IBTA table 205).
const RATES: [(u8, u32); 17] = [
    (2, 5),
    (5, 10),
    (3, 20),
    (11, 28),
    (6, 40),
    (15, 50),
    (4, 60),
    (7, 80),
    (12, 112),
    (8, 120),
    (9, 160),
    (16, 200),
    (13, 224),
    (10, 240),
    (14, 336),
    (17, 400),
    (18, 600),
];

/// Returns a rate in units of 0.5 Gb/s.
fn speed(code: u8) -> u32 {
    RATES.iter().find(|(rate, _)| *rate == code).map_or(0, |(_, speed)| *speed)
}

/// Returns the code of the rate of a link.
fn rate_of(info: &PortInfo) -> u8 {
    let lanes = match info.width_active {
        1 => 1,
        2 => 4,
        4 => 8,
        _ => 12,
    };
    let lane = match (info.extended_speed_active, info.speed_active) {
        (1, _) => 28,
        (2, _) => 50,
        (_, 1) => 5,
        (_, 2) => 10,
        _ => 20,
    };
    let speed = lanes * lane;
    let slower = RATES.iter().rev().find(|(_, rate)| *rate <= speed);
    slower.map_or(2, |(code, _)| *code)
}

/// Returns the MTU and rate of a port's link.
fn limits(port: &Port) -> Limits {
    Limits { mtu: port.info.neighbor_mtu, rate: rate_of(&port.info) }
}

impl Limits {
    fn min(self, other: Self) -> Self {
        let rate = if speed(self.rate) <= speed(other.rate) { self.rate } else { other.rate };
        Self { mtu: self.mtu.min(other.mtu), rate }
    }
}

impl Manager {
    /// Follows the tables from a switch to a port. `None` if they do not lead there.
    fn follow(&self, mut switch: usize, to: End, lid: Lid) -> Option<Limits> {
        let map = &self.subnet;
        let mut so_far = limits(map.port(to)?);
        for _ in 0..MOST_HOPS {
            let guid = map.nodes.get(switch)?.info.node_guid;
            let out = *self.written.get(&guid)?.get(usize::from(lid.0))?;
            if out == 0 {
                return (switch == to.0).then_some(so_far);
            }
            let port = map.port((switch, out)).filter(|port| port.info.state == ACTIVE)?;
            so_far = so_far.min(limits(port));
            let next = *map.links.get(&(switch, out))?;
            if next == to {
                return Some(so_far);
            }
            switch = map.is_switch(next.0).then_some(next.0)?;
        }
        None
    }
    /// Returns the path between LIDs of two ports. `known` has what was found before, from a switch
    /// to a LID: most ports share a switch.
    fn path(
        &self,
        from: (End, &Port),
        to: (End, &Port),
        (slid, dlid): (Lid, Lid),
        asked: Option<Pkey>,
        known: &mut BTreeMap<(usize, Lid), Option<Limits>>,
    ) -> Option<PathRecord> {
        let pkey = self.partitions.common(from.1.guid, to.1.guid, asked);
        // A port talks to itself whatever its partitions are.
        let itself = (from.0 == to.0).then_some(Pkey::DEFAULT).filter(|_| asked.is_none());
        let pkey = pkey.or(itself)?;
        let own = limits(from.1);
        let limits = if from.0 == to.0 {
            own
        } else {
            let (switch, _) = self.subnet.attachment(from.0)?;
            let find = || self.follow(switch, to.0, dlid);
            known.entry((switch, dlid)).or_insert_with(find).map(|limits| own.min(limits))?
        };
        Some(PathRecord {
            dgid: gid(self.config.prefix, to.1.guid),
            sgid: gid(self.config.prefix, from.1.guid),
            dlid,
            slid,
            reversible: true,
            pkey,
            service_level: self.partitions.service_level(pkey),
            mtu: Selected::exactly(limits.mtu),
            rate: Selected::exactly(limits.rate),
            life_time: Selected::exactly(LIFE),
            ..PathRecord::default()
        })
    }
    /// Returns the path from a port to a group.
    fn group_path(
        &self,
        from: &Port,
        asked: &PathRecord,
        mask: PathComponents,
    ) -> Option<PathRecord> {
        let mgid = mask.contains(PathComponents::DGID).then_some(asked.dgid);
        let groups = self.members.records(self.config.prefix);
        let mut groups = groups.filter(|group| match mgid {
            Some(mgid) => group.mgid == mgid,
            None => group.mlid == asked.dlid,
        });
        let group = groups.find(|group| self.partitions.is_member(from.guid, group.pkey))?;
        Some(PathRecord {
            dgid: group.mgid,
            sgid: gid(self.config.prefix, from.guid),
            dlid: group.mlid,
            slid: from.info.lid,
            flow_label: group.flow_label,
            hop_limit: group.hop_limit,
            traffic_class: group.traffic_class,
            pkey: group.pkey,
            service_level: group.service_level,
            mtu: group.mtu,
            rate: group.rate,
            life_time: group.life_time,
            ..PathRecord::default()
        })
    }
    /// Returns the ports that a request means by a GID or a LID; `None` for all.
    fn ends_meant(&self, by_gid: Option<Gid>, by_lid: Option<Lid>) -> Option<Vec<(End, &Port)>> {
        let map: &Map = &self.subnet;
        let named = by_gid.map(|gid| {
            guid_of(self.config.prefix, gid).and_then(|guid: Guid| map.by_port_guid(guid))
        });
        let at = by_lid.map(|lid| map.by_lid(lid));
        match (named, at) {
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => Some(one.into_iter().collect()),
            (Some(one), Some(other)) => {
                let both = one.zip(other).filter(|(one, other)| one.0 == other.0);
                Some(both.map(|(one, _)| one).into_iter().collect())
            }
        }
    }
    /// Answers a request for paths. A request that names no source means its sender.
    pub(super) fn find_paths(
        &self,
        asked: &PathRecord,
        mask: PathComponents,
        sender: Lid,
        table: bool,
    ) -> Records {
        let has = |component| mask.contains(component);
        let mut records = Records::of(PathRecord::LEN);
        let sgid = has(PathComponents::SGID).then_some(asked.sgid);
        let slid = has(PathComponents::SLID).then_some(asked.slid);
        let sources = self.ends_meant(sgid, slid);
        let sources = match (sources, table) {
            (Some(sources), _) => sources,
            (None, false) => self.subnet.by_lid(sender).into_iter().collect(),
            (None, true) => self.subnet.end_ports().collect(),
        };
        let is_group = has(PathComponents::DGID) && asked.dgid.is_multicast()
            || has(PathComponents::DLID) && asked.dlid.is_multicast();
        if is_group {
            let paths = sources.iter().filter_map(|(_, from)| self.group_path(from, asked, mask));
            for path in paths {
                if !records.push(|buf| path.emit(buf)) {
                    break;
                }
            }
            return records;
        }
        let dgid = has(PathComponents::DGID).then_some(asked.dgid);
        let dlid = has(PathComponents::DLID).then_some(asked.dlid);
        let targets = self.ends_meant(dgid, dlid);
        let targets = targets.unwrap_or_else(|| self.subnet.end_ports().collect());
        let pairs = sources.iter().flat_map(|from| targets.iter().map(move |to| (*from, *to)));
        let mut known = BTreeMap::new();
        let pkey = has(PathComponents::PKEY).then_some(asked.pkey);
        let count = match (table, has(PathComponents::PATH_COUNT)) {
            (false, _) => 1,
            (true, true) => usize::from(asked.path_count),
            (true, false) => usize::MAX,
        };
        let wanted_lids = (slid, dlid);
        let paths = pairs.flat_map(|(from, to)| {
            let lids = lids_between(from.1, to.1, wanted_lids).take(count);
            let path = |lids| self.path(from, to, lids, pkey, &mut known);
            lids.filter_map(path).collect::<Vec<_>>()
        });
        for path in paths.filter(|path| is_wanted(asked, mask, path)) {
            if !records.push(|buf| path.emit(buf)) {
                break;
            }
        }
        records
    }
}

/// Returns the LIDs of the paths between two ports: each LID of one with one of the other, the base
/// LIDs first, or those that are asked for.
fn lids_between(
    from: &Port,
    to: &Port,
    (slid, dlid): (Option<Lid>, Option<Lid>),
) -> impl Iterator<Item = (Lid, Lid)> + use<> {
    let [sources, targets]: [Vec<Lid>; 2] = [from, to].map(|port| port.lids().collect());
    let count = sources.len().max(targets.len());
    let pairs =
        (0..count).map(move |at| (sources[at % sources.len()], targets[at % targets.len()]));
    let is_asked = |asked: Option<Lid>, lid| asked.is_none_or(|asked| asked == lid);
    // Both asked for: any two belong together.
    let both = slid.zip(dlid);
    let others = pairs
        .filter(move |pair| both.is_none() && is_asked(slid, pair.0) && is_asked(dlid, pair.1));
    both.into_iter().chain(others)
}

/// Returns whether a path is as a request wants it.
fn is_wanted(asked: &PathRecord, mask: PathComponents, path: &PathRecord) -> bool {
    let has = |component| mask.contains(component);
    let both = |selector, value| has(selector) && has(value);
    let rate = Selected { value: 0, ..asked.rate };
    let faster = speed(path.rate.value).cmp(&speed(asked.rate.value)) as i8 + 1;
    (!has(PathComponents::PKEY) || path.pkey.value() & 0x7FFF == asked.pkey.value() & 0x7FFF)
        && (!has(PathComponents::SERVICE_LEVEL) || path.service_level == asked.service_level)
        && (!both(PathComponents::MTU_SELECTOR, PathComponents::MTU)
            || satisfies(asked.mtu, path.mtu.value))
        // Codes of rates are not in order: compare what they stand for, as 0, 1 and 2.
        && (!both(PathComponents::RATE_SELECTOR, PathComponents::RATE)
            || satisfies(Selected { value: 1, ..rate }, faster as u8))
        && (!both(PathComponents::LIFE_TIME_SELECTOR, PathComponents::LIFE_TIME)
            || satisfies(asked.life_time, path.life_time.value))
}

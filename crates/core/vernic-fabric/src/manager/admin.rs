//! Subnet administration: takes requests, finds what they ask for, answers (IBTA 15.2).

use vernic_proto::mad::{Delivery, MadAddress};
use vernic_wire::mad::{MAD_LEN, MadHeader, Method};
use vernic_wire::pma::ClassPortInfo;
use vernic_wire::sa::{
    self, InformInfo, McMemberRecord, MemberComponents, NodeComponents, NodeRecord, PathComponents,
    PathRecord, PortInfoComponents, PortInfoRecord, SaAttribute, SaMad, SaStatus,
    ServiceComponents, ServiceRecord,
};
use vernic_wire::{Guid, PortNum};

use super::map::{Port, gid, guid_of};
use super::notices::{GROUP_ENDED, GROUP_MADE};
use super::query::{self, Records};
use super::{Manager, Via, services};
use crate::Time;

/// Milliseconds until segments of an answer are sent again.
const SEGMENT_MS: u32 = 1000;
/// Capabilities of the class: groups (IBTA 15.2.4).
const HAS_GROUPS: u16 = 1 << 9;
/// Longest time to an answer: 4.096 us times 2 to the power of this, about 1 s.
const RESPONSE_TIME: u8 = 18;

impl Manager {
    /// Answers a request of subnet administration. A manager that is not the master has none.
    pub(super) fn handle_admin(&mut self, delivery: &Delivery, now: Time) {
        let Ok(mut asked) = SaMad::parse(&delivery.mad) else { return };
        if asked.mad.method.is_response() || !self.is_master() || self.sweeps == 0 {
            return;
        }
        // A request in segments is one record all the same.
        asked.rmpp = vernic_wire::Rmpp::default();
        let answer = self.answer_admin(&asked, delivery.address, now);
        let timeout_ms = if answer.len() > MAD_LEN { SEGMENT_MS } else { 0 };
        self.send(Via::Admin, delivery.address, answer, timeout_ms);
    }
    fn answer_admin(&mut self, asked: &SaMad, from: MadAddress, now: Time) -> Vec<u8> {
        let reads = matches!(asked.mad.method, Method::GET | Method::GET_TABLE);
        match (SaAttribute(asked.mad.attribute_id), asked.mad.method) {
            (SaAttribute::CLASS_PORT_INFO, Method::GET) => class_port_info(asked),
            (SaAttribute::NODE_RECORD, _) if reads => self.find_nodes(asked, from).answer(asked),
            (SaAttribute::PORT_INFO_RECORD, _) if reads => {
                self.find_ports(asked, from).answer(asked)
            }
            (SaAttribute::PATH_RECORD, method) if reads => {
                let Ok(record) = PathRecord::parse(&asked.data) else { return invalid(asked) };
                let mask = PathComponents::from_bits_truncate(asked.sa.component_mask);
                let table = method == Method::GET_TABLE;
                self.find_paths(&record, mask, from.lid, table).answer(asked)
            }
            (SaAttribute::MC_MEMBER_RECORD, _) if reads => {
                self.find_members(asked, from).answer(asked)
            }
            (SaAttribute::MC_MEMBER_RECORD, method @ (Method::SET | Method::DELETE)) => {
                self.change_member(asked, from, method == Method::SET)
            }
            (SaAttribute::SERVICE_RECORD, _) if reads => self.find_services(asked).answer(asked),
            (SaAttribute::SERVICE_RECORD, method @ (Method::SET | Method::DELETE)) => {
                self.change_service(asked, method == Method::SET, now)
            }
            (SaAttribute::INFORM_INFO, Method::SET) => {
                let Ok(info) = InformInfo::parse(&asked.data) else { return invalid(asked) };
                match self.notices.set(&info, from) {
                    true => query::one(asked, &asked.data[..InformInfo::LEN]),
                    false => query::refuse(asked, SaStatus::NO_RESOURCES),
                }
            }
            _ => {
                let mut mad = invalid(asked);
                let status = vernic_wire::smp::MadStatus::ATTRIBUTE_NOT_SUPPORTED.0;
                let mut header = asked.mad;
                header.method = Method(header.method.0 | 0x80);
                MadHeader { status, ..header }.emit(&mut mad);
                mad
            }
        }
    }
    /// Returns whether a port is to know of another one: they can talk to each other (IBTA
    /// 15.4.1.2).
    fn may_know(&self, sender: Option<Guid>, port: &Port) -> bool {
        sender.is_some_and(|sender| {
            sender == port.guid || self.partitions.common(sender, port.guid, None).is_some()
        })
    }
    fn sender(&self, from: MadAddress) -> Option<Guid> {
        self.subnet.by_lid(from.lid).map(|(_, port)| port.guid)
    }
    fn find_nodes(&self, asked: &SaMad, from: MadAddress) -> Records {
        let sender = self.sender(from);
        let mut records = Records::of(NodeRecord::LEN);
        let Ok(wanted) = NodeRecord::parse(&asked.data) else { return records };
        let mask = NodeComponents::from_bits_truncate(asked.sa.component_mask);
        let ends = self.subnet.end_ports().filter(|(_, port)| self.may_know(sender, port));
        for ((at, number), port) in ends {
            let node = &self.subnet.nodes[at];
            let mut info = node.info;
            (info.port_guid, info.local_port) = (port.guid, PortNum(number));
            let mut bytes = [0; 40];
            info.emit(&mut bytes);
            let record = NodeRecord {
                lid: port.info.lid,
                reserved2: 0,
                node_info: bytes,
                description: node.description,
            };
            let same = |component, range: std::ops::Range<usize>| {
                !mask.contains(component) || wanted.node_info[range.clone()] == bytes[range]
            };
            let is_wanted = (!mask.contains(NodeComponents::LID) || wanted.lid == record.lid)
                && same(NodeComponents::NODE_TYPE, 2..3)
                && same(NodeComponents::PORT_COUNT, 3..4)
                && same(NodeComponents::SYSTEM_GUID, 4..12)
                && same(NodeComponents::NODE_GUID, 12..20)
                && same(NodeComponents::PORT_GUID, 20..28)
                && same(NodeComponents::DEVICE_ID, 30..32)
                && same(NodeComponents::PORT_NUM, 36..37)
                && same(NodeComponents::VENDOR_ID, 37..40)
                && (!mask.contains(NodeComponents::DESCRIPTION)
                    || wanted.description == record.description);
            if is_wanted && !records.push(|buf| record.emit(buf)) {
                break;
            }
        }
        records
    }
    fn find_ports(&self, asked: &SaMad, from: MadAddress) -> Records {
        let sender = self.sender(from);
        let mut records = Records::of(PortInfoRecord::LEN);
        let Ok(wanted) = PortInfoRecord::parse(&asked.data) else { return records };
        let mask = PortInfoComponents::from_bits_truncate(asked.sa.component_mask);
        let has = |component| mask.contains(component);
        let wanted_info = vernic_wire::smp::PortInfo::from_bytes(&wanted.port_info);
        for (at, node) in self.subnet.nodes.iter().enumerate() {
            for (number, port) in &node.ports {
                let home = self.subnet.port(self.subnet.home((at, *number)));
                let home = home.filter(|home| self.may_know(sender, home));
                let Some(lid) = home.map(|home| home.info.lid) else { continue };
                let is_wanted = (!has(PortInfoComponents::LID) || wanted.lid == lid)
                    && (!has(PortInfoComponents::PORT_NUM) || wanted.port.0 == *number)
                    && (!has(PortInfoComponents::BASE_LID) || wanted_info.lid == port.info.lid)
                    && (!has(PortInfoComponents::CAPABILITY_MASK)
                        || wanted_info.capabilities & port.info.capabilities
                            == wanted_info.capabilities)
                    && (!has(PortInfoComponents::PORT_STATE)
                        || wanted_info.state == port.info.state);
                let mut port_info = [0; 64];
                port.info.emit(&mut port_info);
                let (options, port) = (0, PortNum(*number));
                let record = PortInfoRecord { lid, port, options, port_info };
                if is_wanted && !records.push(|buf| record.emit(buf)) {
                    return records;
                }
            }
        }
        records
    }
    fn find_members(&self, asked: &SaMad, from: MadAddress) -> Records {
        let sender = self.sender(from);
        let may_know = |record: &McMemberRecord| {
            sender.is_some_and(|sender| self.partitions.is_member(sender, record.pkey))
        };
        let mut records = Records::of(McMemberRecord::LEN);
        let Ok(wanted) = McMemberRecord::parse(&asked.data) else { return records };
        let mask = MemberComponents::from_bits_truncate(asked.sa.component_mask);
        let has = |component| mask.contains(component);
        if asked.mad.method == Method::GET {
            // One record stands for the group.
            let group = self.members.group(wanted.mgid).filter(|_| has(MemberComponents::MGID));
            let group = group.filter(|group| may_know(group));
            if let Some(group) = group.filter(|_| !has(MemberComponents::PORT_GID)) {
                records.push(|buf| group.emit(buf));
                return records;
            }
        }
        for record in self.members.records(self.config.prefix).filter(|record| may_know(record)) {
            let is_wanted = (!has(MemberComponents::MGID) || wanted.mgid == record.mgid)
                && (!has(MemberComponents::PORT_GID) || wanted.port_gid == record.port_gid)
                && (!has(MemberComponents::MLID) || wanted.mlid == record.mlid)
                && (!has(MemberComponents::PKEY)
                    || wanted.pkey.value() & 0x7FFF == record.pkey.value() & 0x7FFF)
                && (!has(MemberComponents::QKEY) || wanted.qkey == record.qkey);
            if is_wanted && !records.push(|buf| record.emit(buf)) {
                break;
            }
        }
        records
    }
    /// Lets a port join a group or leave it. Only ports of the subnet can.
    fn change_member(&mut self, asked: &SaMad, from: MadAddress, joins: bool) -> Vec<u8> {
        let Ok(record) = McMemberRecord::parse(&asked.data) else { return invalid(asked) };
        let mask = MemberComponents::from_bits_truncate(asked.sa.component_mask);
        let named = mask.contains(MemberComponents::PORT_GID).then_some(record.port_gid);
        let port = match named {
            Some(gid) => {
                guid_of(self.config.prefix, gid).and_then(|guid| self.subnet.by_port_guid(guid))
            }
            None => self.subnet.by_lid(from.lid),
        };
        let Some((_, port)) = port else {
            return query::refuse(asked, SaStatus::INVALID_GID);
        };
        let guid = port.guid;
        let record = McMemberRecord { port_gid: gid(self.config.prefix, guid), ..record };
        let done = match joins {
            true => {
                let sender = self.sender(from);
                let partitions = &self.partitions;
                let is_member = |pkey| {
                    let mut ports = [Some(guid), sender].into_iter().flatten();
                    ports.all(|port| partitions.is_member(port, pkey))
                };
                self.members.join(&record, mask, guid, is_member)
            }
            false => self.members.leave(&record, mask, guid),
        };
        let done = match done {
            Ok(done) => done,
            Err(status) => return query::refuse(asked, status),
        };
        if self.phase == super::sweep::Phase::Idle {
            self.phase = super::sweep::Phase::Groups;
            self.write_groups();
        } else {
            // The sweep under way may have written the groups already.
            self.sweep_wanted.get_or_insert(Time(0));
        }
        if done.made {
            self.report_gid(GROUP_MADE, done.record.mgid);
        }
        if done.ended {
            self.report_gid(GROUP_ENDED, done.record.mgid);
        }
        let mut bytes = [0; McMemberRecord::LEN];
        done.record.emit(&mut bytes);
        query::one(asked, &bytes)
    }
    fn find_services(&self, asked: &SaMad) -> Records {
        let mut records = Records::of(ServiceRecord::LEN);
        let Ok(wanted) = ServiceRecord::parse(&asked.data) else { return records };
        let mask = ServiceComponents::from_bits_truncate(asked.sa.component_mask);
        for record in self.services.records().filter(|has| services::matches(&wanted, mask, has)) {
            // The key is for those who have it.
            let record = ServiceRecord { key: [0; 16], ..*record };
            if !records.push(|buf| record.emit(buf)) {
                break;
            }
        }
        records
    }
    fn change_service(&mut self, asked: &SaMad, sets: bool, now: Time) -> Vec<u8> {
        let Ok(record) = ServiceRecord::parse(&asked.data) else { return invalid(asked) };
        let mask = ServiceComponents::from_bits_truncate(asked.sa.component_mask);
        let done = match sets {
            true => self.services.set(record, now).map(|()| record),
            false => self.services.remove(&record, mask),
        };
        match done {
            Ok(record) => {
                let mut bytes = [0; ServiceRecord::LEN];
                record.emit(&mut bytes);
                query::one(asked, &bytes)
            }
            Err(status) => query::refuse(asked, status),
        }
    }
}

fn invalid(asked: &SaMad) -> Vec<u8> {
    query::refuse(asked, SaStatus::REQUEST_INVALID)
}

fn class_port_info(asked: &SaMad) -> Vec<u8> {
    let mut info = ClassPortInfo::from_bytes(&[0; ClassPortInfo::LEN]);
    (info.base_version, info.class_version) = (MadHeader::BASE_VERSION, sa::CLASS_VERSION);
    (info.capabilities, info.response_time) = (HAS_GROUPS, RESPONSE_TIME);
    let mut bytes = [0; ClassPortInfo::LEN];
    info.emit(&mut bytes);
    query::one(asked, &bytes)
}

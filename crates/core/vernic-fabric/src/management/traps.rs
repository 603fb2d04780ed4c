//! Traps: notices that a node sends to its subnet manager (IBTA 13.4.9, 14.3.7 to 14.3.13).
//!
//! A notice waits in a queue of [`CAPACITY`] until the manager's TrapRepress. It is sent
//! [`MAX_SENDS`] times at most, and the node sends one trap in its subnet timeout at most.

use std::collections::VecDeque;

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{
    BadKey, BadPkeyAtSwitch, CLASS_VERSION, Change, LinkState, Notice, NoticeKind, PortInfo,
    SmAttribute, Smp, TrapNumber,
};
use vernic_wire::{Lid, PortNum, ServiceLevel};

use super::{Agent, ManagedNode, home};
use crate::Time;
use crate::attributes::{NodeKind, PortState};

/// Notices that wait at most. Further ones are lost; their counters stay.
pub(super) const CAPACITY: usize = 16;
/// Times that a notice is sent at most: a manager that does not answer so often is gone.
pub(super) const MAX_SENDS: u8 = 16;
/// Nanoseconds of a timeout of exponent 0.
const TIMEOUT_UNIT_NS: u64 = 4096;

/// A trap that is to be sent from QP 0 to QP 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// The port that has the notice: 0 at a switch, which sends by its forwarding table.
    pub port: PortNum,
    /// LID of the subnet manager, which may be at the node itself.
    pub dlid: Lid,
    /// Service level of the packet.
    pub service_level: ServiceLevel,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

#[derive(Debug)]
struct Pending {
    transaction_id: u64,
    port: PortNum,
    kind: NoticeKind,
    number: TrapNumber,
    details: [u8; Notice::DETAILS_LEN],
    sends: u8,
}

/// Notices that wait for their TrapRepress, the next to be sent first.
#[derive(Debug, Default)]
pub(super) struct TrapQueue {
    pending: VecDeque<Pending>,
    /// No trap leaves before this.
    not_before: Time,
    last_transaction_id: u64,
    lost: u64,
}

impl TrapQueue {
    /// Takes a notice of a port, unless nobody is there to be told. A notice that waits already is
    /// not taken twice.
    pub(super) fn push(
        &mut self,
        node: &dyn ManagedNode,
        port: PortNum,
        kind: NoticeKind,
        number: TrapNumber,
        details: [u8; Notice::DETAILS_LEN],
        now: Time,
    ) {
        let is_told = node.port(port).is_some_and(|attributes| {
            attributes.sm_lid.is_unicast()
                && attributes.capabilities & PortInfo::CAPABILITY_TRAPS != 0
        });
        if !is_told {
            return;
        }
        let same = |p: &Pending| p.port == port && p.number == number && p.details == details;
        if self.pending.iter().any(|p| same(p) && p.sends == 0) {
            return;
        }
        // One that was sent is told anew: its TrapRepress may be under way.
        self.pending.retain(|p| !same(p));
        if self.pending.len() == CAPACITY {
            self.lost += 1;
            return;
        }
        if self.pending.is_empty() {
            self.not_before = self.not_before.max(now);
        }
        self.last_transaction_id += 1;
        let transaction_id = self.last_transaction_id;
        self.pending.push_back(Pending { transaction_id, port, kind, number, details, sends: 0 });
    }
    /// Forgets the notice with this transaction id.
    pub(super) fn repress(&mut self, transaction_id: u64) {
        self.pending.retain(|p| p.transaction_id != transaction_id);
    }
    pub(super) fn next_deadline(&self) -> Option<Time> {
        (!self.pending.is_empty()).then_some(self.not_before)
    }
    fn poll(&mut self, node: &dyn ManagedNode, now: Time) -> Option<Trap> {
        if now < self.not_before {
            return None;
        }
        while let Some(mut pending) = self.pending.pop_front() {
            let Some(port) = node.port(pending.port) else { continue };
            let is_linked =
                node.attributes().kind == NodeKind::Switch || port.state != PortState::Down;
            if !is_linked || !port.sm_lid.is_unicast() || pending.sends == MAX_SENDS {
                self.lost += 1;
                continue;
            }
            let trap = Trap {
                port: pending.port,
                dlid: port.sm_lid,
                service_level: port.sm_service_level,
                mad: pending.datagram(node, port.lid),
            };
            self.not_before = now + (TIMEOUT_UNIT_NS << (port.subnet_timeout & 31));
            pending.sends += 1;
            self.pending.push_back(pending);
            return Some(trap);
        }
        None
    }
}

impl Pending {
    fn datagram(&self, node: &dyn ManagedNode, lid: Lid) -> [u8; MAD_LEN] {
        let notice = Notice {
            generic: true,
            kind: self.kind,
            producer: match node.attributes().kind {
                NodeKind::Adapter => 1,
                NodeKind::Switch => 2,
            },
            number: self.number,
            issuer: lid,
            toggle: false,
            count: 0,
            details: self.details,
        };
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            mgmt_class: MgmtClass::SUBNET_LID_ROUTED,
            class_version: CLASS_VERSION,
            method: Method::TRAP,
            transaction_id: self.transaction_id,
            attribute_id: SmAttribute::NOTICE.0,
            ..MadHeader::default()
        };
        let mut mad = [0; MAD_LEN];
        header.emit(&mut mad);
        notice.emit(&mut mad[Smp::DATA_AT..]);
        mad
    }
}

impl Agent {
    /// The next trap that is to be sent now, if any.
    pub fn poll_trap(&mut self, node: &dyn ManagedNode, now: Time) -> Option<Trap> {
        self.traps.poll(node, now)
    }
    /// How many notices the subnet manager was not told of, or did not confirm.
    pub fn lost_traps(&self) -> u64 {
        self.traps.lost
    }
    /// Handles that a link of a switch came up or went down without being told to by an SMP: trap
    /// 128, and SwitchInfo says that a port has changed. Does nothing at an adapter.
    pub fn handle_link_change(&mut self, node: &mut dyn ManagedNode, now: Time) {
        let Some(forwarding) = node.forwarding_mut() else { return };
        forwarding.port_changed = true;
        let Some(lid) = node.port(PortNum(0)).map(|port| port.lid) else { return };
        let (kind, number) = (NoticeKind::URGENT, TrapNumber::LINK_STATE);
        self.traps.push(node, PortNum(0), kind, number, LinkState { lid }.details(), now);
    }
    /// Handles that the capabilities of a port changed, or with [`Change::DESCRIPTION`] in `flags`
    /// the description of the node: trap 144.
    pub fn handle_node_change(
        &mut self,
        node: &dyn ManagedNode,
        port: PortNum,
        flags: u16,
        now: Time,
    ) {
        let port = home(node, port);
        let Some(attributes) = node.port(port) else { return };
        let (lid, capabilities) = (attributes.lid, attributes.capabilities);
        let details = Change { lid, capabilities, flags, capabilities2: 0 }.details();
        let (kind, number) = (NoticeKind::INFORMATIONAL, TrapNumber::CHANGE);
        self.traps.push(node, port, kind, number, details, now);
    }
    /// Handles a packet with a wrong partition key at a port of an adapter: trap 257. The counter
    /// of the port is the caller's.
    pub fn handle_bad_pkey(
        &mut self,
        node: &dyn ManagedNode,
        port: PortNum,
        bad: &BadKey,
        now: Time,
    ) {
        let (kind, number) = (NoticeKind::SECURITY, TrapNumber::BAD_P_KEY);
        self.traps.push(node, port, kind, number, bad.details(), now);
    }
    /// Handles a packet with a wrong queue key at a port of an adapter: trap 258. The counter of
    /// the port is the caller's.
    pub fn handle_bad_qkey(
        &mut self,
        node: &dyn ManagedNode,
        port: PortNum,
        bad: &BadKey,
        now: Time,
    ) {
        let (kind, number) = (NoticeKind::SECURITY, TrapNumber::BAD_Q_KEY);
        self.traps.push(node, port, kind, number, bad.details(), now);
    }
    /// Handles a packet with a wrong partition key at a switch: trap 259. The counter of the port
    /// is the caller's.
    pub fn handle_bad_pkey_at_switch(
        &mut self,
        node: &dyn ManagedNode,
        bad: &BadPkeyAtSwitch,
        now: Time,
    ) {
        let (kind, number) = (NoticeKind::SECURITY, TrapNumber::BAD_P_KEY_AT_SWITCH);
        self.traps.push(node, PortNum(0), kind, number, bad.details(), now);
    }
}

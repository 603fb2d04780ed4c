//! PortInfo (IBTA 14.2.5.6): which fields a port has, and which of them can be written.
//!
//! | fields | adapter | port 0 of a switch | other ports of a switch |
//! |---|---|---|---|
//! | of the node: LIDs, M_Key, prefix, capabilities, timeouts | yes | yes | 0 |
//! | of the link: states, MTU, lanes, widths, speeds | yes | state as it is | yes |
//! | of forwarding: head of queue life, stall count, enforcement | as they are | as they are | yes |
//!
//! A write changes all or nothing: fields that cannot be written are ignored, and any other field
//! that is out of range refuses the whole.

use vernic_wire::smp::{DATA_LEN, MadStatus, PortInfo};
use vernic_wire::{Lid, Mtu, PortNum, ServiceLevel};

use super::{Agent, Answer, Ask, ManagedNode, PortChange, PortSettings, data, keys};
use crate::attributes::{LinkSpeed, LinkWidth, NodeKind, PhysicalState, PortAttributes, PortState};

/// Which fields a port has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Adapter,
    /// Port 0 of a switch.
    SwitchOwn,
    /// Another port of a switch.
    SwitchLink,
}

impl Role {
    const fn is_of_node(self) -> bool {
        !matches!(self, Self::SwitchLink)
    }
    const fn has_link(self) -> bool {
        !matches!(self, Self::SwitchOwn)
    }
}

/// Bit of the modifier by which a manager says that it knows extended speeds.
const KNOWS_EXTENDED_SPEEDS: u32 = 1 << 31;

impl Agent {
    /// The port that a request is about; 0 is, at an adapter, the port that it came in by.
    fn port_asked(&self, node: &dyn ManagedNode, ask: Ask) -> Result<(PortNum, Role), MadStatus> {
        let number = u8::try_from(ask.modifier & !KNOWS_EXTENDED_SPEEDS);
        let number = PortNum(number.map_err(|_| MadStatus::INVALID_FIELD)?);
        let (port, role) = match (node.attributes().kind, number) {
            (NodeKind::Adapter, PortNum(0)) => (ask.ingress, Role::Adapter),
            (NodeKind::Adapter, port) => (port, Role::Adapter),
            (NodeKind::Switch, PortNum(0)) => (PortNum(0), Role::SwitchOwn),
            (NodeKind::Switch, port) => (port, Role::SwitchLink),
        };
        match node.port(port).is_some() && self.settings.of(port).is_some() {
            true => Ok((port, role)),
            false => Err(MadStatus::INVALID_FIELD),
        }
    }
    pub(super) fn port_info(&self, node: &dyn ManagedNode, ask: Ask) -> Answer {
        let (number, role) = self.port_asked(node, ask)?;
        let port = node.port(number).ok_or(MadStatus::INVALID_FIELD)?;
        let settings = self.settings.of(number).ok_or(MadStatus::INVALID_FIELD)?;
        let info = tell(port, settings, role, ask);
        Ok(data(|buf| info.emit(buf)))
    }
    pub(super) fn set_port_info(
        &mut self,
        node: &mut dyn ManagedNode,
        ask: Ask,
        data: &[u8; DATA_LEN],
    ) -> Answer {
        let (number, role) = self.port_asked(node, ask)?;
        let info = PortInfo::from_bytes(data);
        let port = node.port_mut(number).ok_or(MadStatus::INVALID_FIELD)?;
        let settings = self.settings.of_mut(number).ok_or(MadStatus::INVALID_FIELD)?;
        check(port, role, &info)?;
        let change = change(port, role, &info)?;
        if role.is_of_node() {
            set_of_node(port, &info);
        }
        if role.has_link() {
            set_of_link(port, settings, &info);
        }
        if role == Role::SwitchLink {
            port.head_of_queue_life = info.head_of_queue_life;
            port.stall_count = info.stall_count;
            port.enforces_inbound = info.enforces_inbound;
            port.enforces_outbound = info.enforces_outbound;
        }
        if info.p_key_violations == 0 {
            port.p_key_violations = 0;
        }
        if let Some(change) = change {
            node.change_port(number, change);
        }
        // The manager that wrote the key sees it in the answer.
        let m_key = if role.is_of_node() { info.m_key } else { ask.m_key };
        let mut answer = self.port_info(node, Ask { m_key, ..ask })?;
        if info.client_reregister && role.is_of_node() {
            // The bit returns in the answer to the write, and reads as 0 (IBTA 14.4.11).
            let mut echo = PortInfo::from_bytes(&answer);
            echo.client_reregister =
                echo.capabilities & PortInfo::CAPABILITY_CLIENT_REREGISTER != 0;
            echo.emit(&mut answer);
        }
        Ok(answer)
    }
}

/// PortInfo of a port.
fn tell(port: &PortAttributes, settings: &PortSettings, role: Role, ask: Ask) -> PortInfo {
    let of_node = match role.is_of_node() {
        true => PortInfo {
            m_key: if keys::shows_key(port, ask.m_key) { port.m_key } else { 0 },
            gid_prefix: port.gid_prefix,
            lid: port.lid,
            sm_lid: port.sm_lid,
            capabilities: port.capabilities,
            m_key_lease_s: port.m_key_lease_s,
            m_key_protection: port.m_key_protection,
            lmc: port.lmc,
            sm_service_level: port.sm_service_level.value(),
            m_key_violations: port.m_key_violations,
            q_key_violations: port.q_key_violations,
            guid_cap: 1,
            subnet_timeout: port.subnet_timeout,
            response_time: port.response_time,
            ..PortInfo::default()
        },
        false => PortInfo::default(),
    };
    let speeds = Speeds::of(port.speed);
    let widths = widths_up_to(port.width);
    PortInfo {
        local_port: ask.ingress,
        width_enabled: settings.width_enabled.unwrap_or(widths),
        width_supported: widths,
        width_active: port.width as u8,
        speed_supported: speeds.supported,
        speed_enabled: settings.speed_enabled.unwrap_or(speeds.supported),
        speed_active: speeds.active,
        state: port.state as u8,
        physical_state: port.physical as u8,
        link_down_default: port.link_down_default as u8,
        neighbor_mtu: port.neighbor_mtu as u8,
        lanes_supported: lanes_code(port.lanes_supported),
        init_type: settings.init_type,
        high_limit: port.tables.high_limit,
        high_cap: cap8(port.tables.high.len()),
        low_cap: cap8(port.tables.low.len()),
        mtu_cap: port.mtu_capability as u8,
        stall_count: port.stall_count,
        head_of_queue_life: port.head_of_queue_life,
        operational_lanes: lanes_code(port.operational_lanes),
        enforces_inbound: port.enforces_inbound,
        enforces_outbound: port.enforces_outbound,
        p_key_violations: port.p_key_violations,
        physical_errors: settings.physical_errors,
        overrun_errors: settings.overrun_errors,
        extended_speed_active: speeds.extended_active,
        extended_speed_supported: speeds.extended,
        extended_speed_enabled: settings.extended_speed_enabled.unwrap_or(speeds.extended),
        ..of_node
    }
}

/// Refuses a write with a field that is out of range.
fn check(port: &PortAttributes, role: Role, info: &PortInfo) -> Result<(), MadStatus> {
    let speeds = Speeds::of(port.speed);
    let widths = widths_up_to(port.width);
    let is_of_node = !role.is_of_node()
        || (is_lid(info.sm_lid, port.sm_lid)
            && is_lid(info.lid, port.lid)
            && is_lid_range(info.lid, info.lmc)
            && (info.lmc == 0 || role == Role::Adapter));
    let is_of_link = !role.has_link()
        || (Mtu::from_code(info.neighbor_mtu).is_some_and(|mtu| mtu <= port.mtu_capability)
            && info.operational_lanes <= lanes_code(port.lanes_supported)
            && info.link_down_default <= PhysicalState::Polling as u8
            && is_enabled(info.width_enabled, widths, 255)
            && is_enabled(info.speed_enabled, speeds.supported, 15)
            && (info.extended_speed_enabled == NO_EXTENDED_SPEED
                || is_enabled(info.extended_speed_enabled, speeds.extended, 31)));
    match is_of_node && is_of_link {
        true => Ok(()),
        false => Err(MadStatus::INVALID_FIELD),
    }
}

/// Value of LinkSpeedExtEnabled that enables none.
const NO_EXTENDED_SPEED: u8 = 30;

/// Whether a field of enabled widths or speeds has a value that may be written: 0 for no change,
/// all ones for everything, or some of what is supported.
fn is_enabled(value: u8, supported: u8, all: u8) -> bool {
    value == all || value & !supported == 0
}

/// Whether a LID may be written: one of a port, or the same as before.
fn is_lid(lid: Lid, before: Lid) -> bool {
    lid.is_unicast() || lid == before
}

/// Whether a port can have this LID and those that its LMC adds: they begin at a multiple of their
/// number and end below the multicast LIDs.
fn is_lid_range(lid: Lid, lmc: u8) -> bool {
    let more = (1 << lmc) - 1;
    lid == Lid::RESERVED || lid.0 & more == 0 && Lid(lid.0 | more).is_unicast()
}

/// The change of state that a write asks for (IBTA 7.2.7, table 46).
fn change(
    port: &PortAttributes,
    role: Role,
    info: &PortInfo,
) -> Result<Option<PortChange>, MadStatus> {
    if !role.has_link() {
        let stays = |value, now| value == 0 || value == now;
        return match stays(info.state, port.state as u8)
            && stays(info.physical_state, port.physical as u8)
        {
            true => Ok(None),
            false => Err(MadStatus::INVALID_FIELD),
        };
    }
    const NO_CHANGE: u8 = 0;
    const DOWN: u8 = PortState::Down as u8;
    const ARMED: u8 = PortState::Armed as u8;
    const ACTIVE: u8 = PortState::Active as u8;
    let when_down = physical(info.link_down_default).unwrap_or(port.link_down_default);
    match (info.state, info.physical_state) {
        (NO_CHANGE, NO_CHANGE) => Ok(None),
        // A port that is switched off stays so.
        (DOWN, NO_CHANGE) if port.state == PortState::Down => Ok(None),
        (DOWN, NO_CHANGE) => Ok(Some(PortChange::Down(when_down))),
        (NO_CHANGE | DOWN, code) => physical(code)
            .map(|state| Some(PortChange::Down(state)))
            .ok_or(MadStatus::INVALID_FIELD),
        (ARMED, NO_CHANGE) => match port.state {
            PortState::Init => Ok(Some(PortChange::Arm)),
            PortState::Armed => Ok(None),
            _ => Err(MadStatus::INVALID_FIELD),
        },
        (ACTIVE, NO_CHANGE) => match port.state {
            PortState::Armed => Ok(Some(PortChange::Activate)),
            PortState::Active => Ok(None),
            _ => Err(MadStatus::INVALID_FIELD),
        },
        _ => Err(MadStatus::INVALID_FIELD),
    }
}

/// The physical state of a code that may be written.
fn physical(code: u8) -> Option<PhysicalState> {
    match code {
        1 => Some(PhysicalState::Sleep),
        2 => Some(PhysicalState::Polling),
        3 => Some(PhysicalState::Disabled),
        _ => None,
    }
}

fn set_of_node(port: &mut PortAttributes, info: &PortInfo) {
    port.m_key = info.m_key;
    port.m_key_protection = info.m_key_protection;
    port.m_key_lease_s = info.m_key_lease_s;
    port.gid_prefix = info.gid_prefix;
    port.lid = info.lid;
    port.lmc = info.lmc;
    port.sm_lid = info.sm_lid;
    port.sm_service_level = ServiceLevel::new(info.sm_service_level);
    port.subnet_timeout = info.subnet_timeout;
    if info.m_key_violations == 0 {
        port.m_key_violations = 0;
    }
    if info.q_key_violations == 0 {
        port.q_key_violations = 0;
    }
    port.client_reregister |=
        info.client_reregister && port.capabilities & PortInfo::CAPABILITY_CLIENT_REREGISTER != 0;
}

fn set_of_link(port: &mut PortAttributes, settings: &mut PortSettings, info: &PortInfo) {
    if let Some(mtu) = Mtu::from_code(info.neighbor_mtu) {
        port.neighbor_mtu = mtu;
    }
    if let Some(lanes) = lanes_of(info.operational_lanes) {
        port.operational_lanes = lanes;
    }
    if let Some(state) = physical(info.link_down_default) {
        port.link_down_default = state;
    }
    port.tables.high_limit = info.high_limit;
    settings.physical_errors = info.physical_errors;
    settings.overrun_errors = info.overrun_errors;
    settings.init_type = info.init_type;
    enable(&mut settings.width_enabled, info.width_enabled, 255);
    enable(&mut settings.speed_enabled, info.speed_enabled, 15);
    match info.extended_speed_enabled {
        NO_EXTENDED_SPEED => settings.extended_speed_enabled = Some(0),
        some => enable(&mut settings.extended_speed_enabled, some, 31),
    }
}

fn enable(enabled: &mut Option<u8>, value: u8, all: u8) {
    if value != 0 {
        *enabled = (value != all).then_some(value);
    }
}

/// The speeds of a link, as PortInfo tells them.
struct Speeds {
    supported: u8,
    active: u8,
    extended: u8,
    extended_active: u8,
}

impl Speeds {
    const fn of(speed: LinkSpeed) -> Self {
        let (supported, active, extended, extended_active) = match speed {
            LinkSpeed::Sdr => (1, 1, 0, 0),
            LinkSpeed::Ddr => (3, 2, 0, 0),
            LinkSpeed::Qdr => (7, 4, 0, 0),
            LinkSpeed::Fdr => (7, 4, 1, 1),
            LinkSpeed::Edr => (7, 4, 3, 2),
        };
        Self { supported, active, extended, extended_active }
    }
}

/// Bits of a width and all that are narrower.
const fn widths_up_to(width: LinkWidth) -> u8 {
    ((width as u8) << 1) - 1
}

/// Code of a number of data lanes.
const fn lanes_code(lanes: u8) -> u8 {
    match lanes {
        0..=1 => 1,
        2..=3 => 2,
        4..=7 => 3,
        8..=14 => 4,
        15.. => 5,
    }
}

/// Number of data lanes of a code; `None` for 0, which changes nothing.
const fn lanes_of(code: u8) -> Option<u8> {
    match code {
        1 => Some(1),
        2 => Some(2),
        3 => Some(4),
        4 => Some(8),
        5 => Some(15),
        _ => None,
    }
}

/// A length as a field of 8 bits tells it.
fn cap8(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}

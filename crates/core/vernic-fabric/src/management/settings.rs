//! What only management knows of a port, and the lease of its M_Key.

use vernic_wire::PortNum;

use super::ManagedNode;
use crate::Time;

/// What only management knows of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSettings {
    /// Widths that the link may have when it comes up next, or `None` for all that are supported:
    /// bits as in PortInfo.LinkWidthEnabled.
    pub width_enabled: Option<u8>,
    /// Speeds that the link may have when it comes up next, or `None` for all that are supported:
    /// bits as in PortInfo.LinkSpeedEnabled.
    pub speed_enabled: Option<u8>,
    /// Extended speeds that the link may have when it comes up next, or `None` for all that are
    /// supported: bits as in PortInfo.LinkSpeedExtEnabled.
    pub extended_speed_enabled: Option<u8>,
    /// Threshold of local errors of the link, 0 to 15.
    pub physical_errors: u8,
    /// Threshold of buffer overruns, 0 to 15.
    pub overrun_errors: u8,
    /// What the manager asked to keep over an initialization, 4 bits.
    pub init_type: u8,
    /// When the lease of the M_Key ends, while it runs.
    pub(super) lease: Option<Time>,
}

/// Settings of each port, from port 0 on.
#[derive(Debug)]
pub(super) struct Settings(Vec<PortSettings>);

impl Settings {
    pub(super) fn new(ports: u8) -> Self {
        Self(vec![PortSettings::default(); usize::from(ports) + 1])
    }
    pub(super) fn of(&self, port: PortNum) -> Option<&PortSettings> {
        self.0.get(usize::from(port.0))
    }
    pub(super) fn of_mut(&mut self, port: PortNum) -> Option<&mut PortSettings> {
        self.0.get_mut(usize::from(port.0))
    }
    /// When the next lease ends.
    pub(super) fn next_lease(&self) -> Option<Time> {
        self.0.iter().filter_map(|port| port.lease).min()
    }
    /// Ends the protection by M_Keys whose lease is over (IBTA 14.2.4.2).
    pub(super) fn end_leases(&mut self, node: &mut dyn ManagedNode, now: Time) {
        for (number, settings) in (0..=u8::MAX).zip(&mut self.0) {
            if settings.lease.is_some_and(|end| end <= now) {
                settings.lease = None;
                if let Some(port) = node.port_mut(PortNum(number)) {
                    port.m_key_protection = 0;
                }
            }
        }
    }
}

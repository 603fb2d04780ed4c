//! The M_Key: who may read and write what a node has (IBTA 14.2.4).
//!
//! | protection | without the key |
//! |---|---|
//! | 0 | everything can be read |
//! | 1 | everything can be read, but the key in PortInfo |
//! | 2, 3 | nothing can be read |
//!
//! Nothing can be written without the key, whatever the protection. A key of 0 protects nothing.

use vernic_wire::PortNum;
use vernic_wire::mad::Method;
use vernic_wire::smp::{BadManagementKey, NoticeKind, SmAttribute, Smp, TrapNumber};

use super::{Agent, Ingress, ManagedNode, home};
use crate::Time;
use crate::attributes::{NodeKind, PortAttributes};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Whether a packet has the key of a port.
pub(super) fn has_key(port: &PortAttributes, m_key: u64) -> bool {
    port.m_key == 0 || port.m_key == m_key
}

/// Whether PortInfo shows the key of a port to a packet with this one.
pub(super) fn shows_key(port: &PortAttributes, m_key: u64) -> bool {
    port.m_key_protection == 0 || has_key(port, m_key)
}

impl Agent {
    /// Checks the key of a request, counts a wrong one and tells the subnet manager of it. The
    /// lease starts with a wrong key and ends with the right one.
    pub(super) fn check_m_key(
        &mut self,
        node: &mut dyn ManagedNode,
        ingress: Ingress,
        smp: &Smp,
        now: Time,
    ) -> bool {
        let home = home(node, ingress.port);
        let others = other_port(node, ingress, smp);
        [Some(home), others].into_iter().flatten().all(|port| {
            let passes = self.check_at(node, port, smp, now);
            if !passes {
                self.tell(node, port, ingress, smp, now);
            }
            passes
        })
    }
    fn check_at(
        &mut self,
        node: &mut dyn ManagedNode,
        number: PortNum,
        smp: &Smp,
        now: Time,
    ) -> bool {
        let (Some(port), Some(settings)) = (node.port_mut(number), self.settings.of_mut(number))
        else {
            return true;
        };
        if has_key(port, smp.m_key) {
            settings.lease = None;
            return true;
        }
        if smp.header.method == Method::GET && port.m_key_protection < 2 {
            return true;
        }
        port.m_key_violations = port.m_key_violations.saturating_add(1);
        if settings.lease.is_none() && port.m_key_lease_s > 0 {
            settings.lease = Some(now + u64::from(port.m_key_lease_s) * NANOS_PER_SECOND);
        }
        false
    }
    fn tell(
        &mut self,
        node: &dyn ManagedNode,
        port: PortNum,
        ingress: Ingress,
        smp: &Smp,
        now: Time,
    ) {
        let path = smp.is_directed().then(|| {
            let ports = core::array::from_fn(|hop| smp.return_path[hop + 1]);
            (smp.hop_count(), ports)
        });
        let bad = BadManagementKey {
            lid: ingress.slid,
            dr_slid: smp.dr_slid,
            method: smp.header.method.0,
            attribute: smp.header.attribute_id,
            modifier: smp.header.attribute_modifier,
            m_key: smp.m_key,
            path,
        };
        let details = bad.details();
        self.traps.push(node, port, NoticeKind::SECURITY, TrapNumber::BAD_M_KEY, details, now);
    }
}

/// The port of an adapter that PortInfo is about, if it is not the one that the packet came by: its
/// key counts too.
fn other_port(node: &dyn ManagedNode, ingress: Ingress, smp: &Smp) -> Option<PortNum> {
    let port = PortNum(smp.header.attribute_modifier as u8);
    let is_other = node.attributes().kind == NodeKind::Adapter
        && smp.attribute() == SmAttribute::PORT_INFO
        && port != ingress.port;
    is_other.then_some(port)
}

//! How busy cables and the whole fabric are, by counters that are read every second.

use vernic_fabric::Time;
use vernic_fabric::attributes::{PortAttributes, PortState};
use vernic_fabric::subnet::{NodeId, Subnet};
use vernic_wire::PortNum;
use vernic_wire::smp::PortInfo;

use crate::control::SubnetManager;
use crate::world::World;

/// Nanoseconds between two looks at the counters.
const INTERVAL_NS: u64 = 1_000_000_000;

/// What is known of the load.
#[derive(Debug, Default)]
pub(crate) struct Load {
    last: Option<Time>,
    /// Units of 4 bytes that both ends of each cable have sent.
    sent: Vec<[u64; 2]>,
    loads: Vec<f32>,
    totals: Totals,
}

/// Sums over all cables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Cables with both ends Active.
    pub(crate) active: usize,
    /// Bytes of data per second that left adapters and switches.
    pub(crate) bytes_per_s: f64,
    /// Packets per second of the same.
    pub(crate) packets_per_s: f64,
    /// Packets since the start.
    packets: u64,
}

impl Load {
    /// Reads the counters, if it is time.
    pub(crate) fn look(&mut self, subnet: &Subnet, now: Time) {
        let Some(last) = self.last else {
            self.last = Some(now);
            return self.read(subnet, 0.0);
        };
        if now.since(last) >= INTERVAL_NS {
            self.last = Some(now);
            self.read(subnet, now.since(last) as f64 * 1e-9);
        }
    }
    /// Returns how busy a cable was, 0 to 1.
    pub(crate) fn of(&self, cable: usize) -> f32 {
        self.loads.get(cable).copied().unwrap_or(0.0)
    }
    pub(crate) const fn totals(&self) -> Totals {
        self.totals
    }
    fn read(&mut self, subnet: &Subnet, seconds: f64) {
        let mut totals = Totals::default();
        let (mut words, cables) = (0, subnet.cables().map(|cable| cable.ends));
        for (at, ends) in cables.enumerate() {
            let mut sent = [0; 2];
            let mut is_active = true;
            let mut busiest = 0.0_f64;
            for (i, (node, port)) in ends.into_iter().enumerate() {
                let Some(attributes) = subnet.port(node, port) else { continue };
                sent[i] = attributes.counters.xmit_data;
                is_active &= attributes.state == PortState::Active;
                totals.packets += attributes.counters.xmit_packets;
                if let Some(before) = self.sent.get(at)
                    && seconds > 0.0
                {
                    let new = sent[i].saturating_sub(before[i]);
                    words += new;
                    let rate = subnet.port_view(node, port).map_or(0, |view| view.bytes_per_s);
                    busiest = busiest.max(new as f64 * 4.0 / seconds / rate.max(1) as f64);
                }
            }
            totals.active += usize::from(is_active);
            if let Some(place) = self.sent.get_mut(at) {
                *place = sent;
                self.loads[at] = busiest as f32;
            } else {
                self.sent.push(sent);
                self.loads.push(0.0);
            }
        }
        if seconds > 0.0 {
            totals.bytes_per_s = words as f64 * 4.0 / seconds;
            let new = totals.packets.saturating_sub(self.totals.packets);
            totals.packets_per_s = new as f64 / seconds;
        }
        self.totals = totals;
    }
}

/// Returns the subnet manager, as the first end of a cable has it that has one.
pub(crate) fn manager(world: &World) -> Option<SubnetManager> {
    let subnet = &world.subnet;
    let ends = subnet.cables().flat_map(|cable| cable.ends);
    let home = |(node, port): (NodeId, PortNum)| {
        // All ports of a switch have the LIDs of port 0.
        subnet.port(node, PortNum(0)).or_else(|| subnet.port(node, port))
    };
    let lid = ends.filter_map(home).map(|port| port.sm_lid).find(|lid| lid.is_unicast())?;
    let ports = world.hosts.iter().flat_map(|host| {
        let numbers = (1..=host.ports.len()).map(|number| PortNum(number as u8));
        numbers.filter_map(|number| subnet.port(host.node, number))
    });
    let has_lid =
        |port: &&PortAttributes| port.lid.0 <= lid.0 && lid.0 - port.lid.0 < 1 << port.lmc;
    // A manager that is at no host of this plan is at a fabric that a cable leads to.
    let is_there =
        ports.filter(has_lid).all(|port| port.capabilities & PortInfo::CAPABILITY_SM != 0);
    Some(SubnetManager { lid: lid.value(), is_there })
}

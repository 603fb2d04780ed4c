//! Which data lanes a port has in operation, and which of them a packet takes (IBTA 7.6.5, 7.6.6).

use vernic_wire::{PortNum, ServiceLevel, VirtualLane};

use crate::attributes::PortAttributes;

/// How many data lanes a link can have: lane 15 is that of management.
pub(crate) const DATA_LANES: usize = 15;

/// Returns how many data lanes are in operation.
pub(crate) fn data_lanes(attributes: &PortAttributes) -> u8 {
    attributes.operational_lanes.min(DATA_LANES as u8)
}

/// Returns the lane by which a packet leaves a port, by the port that it came in by and its service
/// level. `None` discards: the table says lane 15, or a lane without operation, or nothing. A port
/// with one data lane has no table.
pub(crate) fn lane_for(
    attributes: &PortAttributes,
    ingress: PortNum,
    service_level: ServiceLevel,
) -> Option<VirtualLane> {
    if attributes.operational_lanes <= 1 {
        return Some(VirtualLane::new(0));
    }
    let row = attributes.tables.lanes.get(usize::from(ingress.0))?;
    let lane = row[usize::from(service_level.value())];
    (lane.value() < data_lanes(attributes)).then_some(lane)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::port::tests::attributes;

    #[test]
    fn a_packet_takes_the_lane_of_its_table_or_none() {
        let mut attributes = attributes();
        attributes.tables.lanes.truncate(2);
        for (level, lane) in [(1, 1), (2, 2), (3, 15)] {
            attributes.tables.lanes[1][level] = VirtualLane::new(lane);
        }
        let lane = |port, level| {
            lane_for(&attributes, PortNum(port), ServiceLevel::new(level)).map(VirtualLane::value)
        };
        assert_eq!([0, 1, 2, 3].map(|level| lane(1, level)), [Some(0), Some(1), None, None]);
        assert_eq!((lane(0, 1), lane(2, 0)), (Some(0), None));
        attributes.operational_lanes = 1;
        assert_eq!(
            lane_for(&attributes, PortNum(1), ServiceLevel::new(3)),
            Some(VirtualLane::new(0))
        );
    }
}

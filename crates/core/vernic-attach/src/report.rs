//! What a program learns of an adapter and its ports.

use vernic_wire::{Guid, Lid, Mtu, Pkey, PortNum, ServiceLevel, VirtualLane};

use crate::bytes::{Reader, Writer};

/// Most ports of an adapter.
const MAX_PORTS: usize = 254;
/// Most GUIDs of a port.
const MAX_GUIDS: usize = 256;
/// Most partition keys of a port.
const MAX_PKEYS: usize = 1024;

/// A port of an adapter, as it is now. Codes are those of PortInfo (IBTA 14.2.5.6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortReport {
    /// Number of the port, from 1.
    pub number: PortNum,
    /// First LID; 0 until a subnet manager gave one.
    pub lid: Lid,
    /// The port has 2 to the power of this many LIDs, 0 to 7.
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level of packets to the subnet manager.
    pub sm_service_level: ServiceLevel,
    /// Logical state: 1 Down, 2 Init, 3 Armed, 4 Active.
    pub state: u8,
    /// Physical state: 1 Sleep, 2 Polling, 3 Disabled, 5 LinkUp.
    pub physical_state: u8,
    /// The longest packet that the port can take.
    pub mtu_capability: Mtu,
    /// The longest packet that the link carries.
    pub active_mtu: Mtu,
    /// Width of the link: 1 is 1x, 2 is 4x, 4 is 8x, 8 is 12x.
    pub width: u8,
    /// Speed of a lane of the link, as verbs code it: 1 SDR, 2 DDR, 4 QDR, 16 FDR, 32 EDR.
    pub speed: u8,
    /// CapabilityMask.
    pub capabilities: u32,
    /// SubnetTimeOut.
    pub subnet_timeout: u8,
    /// Data lanes of the port: 1, 2, 4, 8 or 15.
    pub lanes_supported: u8,
    /// Data lanes in use.
    pub operational_lanes: u8,
    /// First half of the port's GIDs.
    pub gid_prefix: u64,
    /// GUIDs, the port's own first. With the prefix they are the port's GIDs, by index.
    pub guids: Vec<Guid>,
    /// Partition keys, by index; 0 is an empty entry.
    pub pkeys: Vec<Pkey>,
    /// The lane of each service level, for packets of this adapter.
    pub service_lanes: [VirtualLane; ServiceLevel::COUNT],
    /// Packets with a wrong partition key.
    pub p_key_violations: u16,
    /// Packets with a wrong queue key.
    pub q_key_violations: u16,
    /// Management datagrams that were dropped because their buffer was full (VL15Dropped).
    pub management_dropped: u64,
    /// How often the subnet manager has asked the clients of the port to register anew.
    pub reregisters: u32,
}

impl PortReport {
    pub(crate) fn write(&self, to: Writer) -> Writer {
        let to = to.u8(self.number.0).u16(self.lid.0).u8(self.lmc).u16(self.sm_lid.0);
        let to = to.u8(self.sm_service_level.value()).u8(self.state).u8(self.physical_state);
        let to = to.u8(self.mtu_capability as u8).u8(self.active_mtu as u8);
        let to = to.u8(self.width).u8(self.speed).u32(self.capabilities).u8(self.subnet_timeout);
        let to = to.u8(self.lanes_supported).u8(self.operational_lanes).u64(self.gid_prefix);
        let guids = &self.guids[..self.guids.len().min(MAX_GUIDS)];
        let to = guids.iter().fold(to.u16(guids.len() as u16), |to, guid| to.u64(guid.0));
        let pkeys = &self.pkeys[..self.pkeys.len().min(MAX_PKEYS)];
        let to = pkeys.iter().fold(to.u16(pkeys.len() as u16), |to, pkey| to.u16(pkey.0));
        let to = self.service_lanes.iter().fold(to, |to, lane| to.u8(lane.value()));
        let to = to.u16(self.p_key_violations).u16(self.q_key_violations);
        to.u64(self.management_dropped).u32(self.reregisters)
    }
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            number: PortNum(from.u8()?),
            lid: Lid(from.u16()?),
            lmc: from.u8().filter(|lmc| *lmc < 8)?,
            sm_lid: Lid(from.u16()?),
            sm_service_level: ServiceLevel::new(from.u8()?),
            state: from.u8()?,
            physical_state: from.u8()?,
            mtu_capability: Mtu::from_code(from.u8()?)?,
            active_mtu: Mtu::from_code(from.u8()?)?,
            width: from.u8()?,
            speed: from.u8()?,
            capabilities: from.u32()?,
            subnet_timeout: from.u8()?,
            lanes_supported: from.u8()?,
            operational_lanes: from.u8()?,
            gid_prefix: from.u64()?,
            guids: many(from, MAX_GUIDS, |from| from.u64().map(Guid))?,
            pkeys: many(from, MAX_PKEYS, |from| from.u16().map(Pkey))?,
            service_lanes: from.array()?.map(VirtualLane::new),
            p_key_violations: from.u16()?,
            q_key_violations: from.u16()?,
            management_dropped: from.u64()?,
            reregisters: from.u32()?,
        })
    }
}

/// Reads a list behind its length; `None` if it is longer than `most`.
fn many<'a, T>(
    from: &mut Reader<'a>,
    most: usize,
    mut one: impl FnMut(&mut Reader<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::from(from.u16()?);
    if count > most {
        return None;
    }
    (0..count).map(|_| one(from)).collect()
}

/// A channel adapter of the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterReport {
    /// Name of the host, as the plan has it.
    pub host: String,
    /// NodeDescription.
    pub description: String,
    /// GUID of the adapter.
    pub guid: Guid,
    /// GUID of the box.
    pub system_guid: Guid,
    /// IEEE vendor id.
    pub vendor_id: u32,
    /// The vendor's number of the model.
    pub device_id: u16,
    /// The vendor's number of the revision.
    pub revision: u32,
    /// The ports, from 1 on.
    pub ports: Vec<PortReport>,
}

impl AdapterReport {
    pub(crate) fn write(&self, to: Writer) -> Writer {
        let to = to.text(&self.host).text(&self.description);
        let to = to.u64(self.guid.0).u64(self.system_guid.0).u32(self.vendor_id);
        let to = to.u16(self.device_id).u32(self.revision);
        let ports = &self.ports[..self.ports.len().min(MAX_PORTS)];
        ports.iter().fold(to.u16(ports.len() as u16), |to, port| port.write(to))
    }
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            host: from.text()?.to_owned(),
            description: from.text()?.to_owned(),
            guid: Guid(from.u64()?),
            system_guid: Guid(from.u64()?),
            vendor_id: from.u32()?,
            device_id: from.u16()?,
            revision: from.u32()?,
            ports: many(from, MAX_PORTS, PortReport::read)?,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn some_adapter() -> AdapterReport {
        let port = |number| PortReport {
            number: PortNum(number),
            lid: Lid(17),
            lmc: 2,
            sm_lid: Lid(1),
            sm_service_level: ServiceLevel::new(3),
            state: 4,
            physical_state: 5,
            mtu_capability: Mtu::B4096,
            active_mtu: Mtu::B2048,
            width: 2,
            speed: 4,
            capabilities: 0x1234_5678,
            subnet_timeout: 18,
            lanes_supported: 8,
            operational_lanes: 4,
            gid_prefix: 0xFE80_0000_0000_0000,
            guids: vec![Guid(u64::from(number))],
            pkeys: (0..128).map(Pkey).collect(),
            service_lanes: std::array::from_fn(|i| VirtualLane::new(i as u8)),
            p_key_violations: 1,
            q_key_violations: 2,
            management_dropped: 3,
            reregisters: 4,
        };
        AdapterReport {
            host: "h1".to_owned(),
            description: "h1 of lab".to_owned(),
            guid: Guid(0xABCD),
            system_guid: Guid(0xEF),
            vendor_id: 0x2C9,
            device_id: 1,
            revision: 2,
            ports: vec![port(1), port(2)],
        }
    }

    #[test]
    fn codes_that_are_none_are_refused() {
        let port = some_adapter().ports.remove(0);
        let bytes = port.write(Writer::new(0)).done();
        let read = |bytes: &[u8]| PortReport::read(&mut Reader::new(bytes)?.1);
        assert_eq!(read(&bytes), Some(port));
        // LMC; the two MTUs; lengths of the two lists.
        for (at, value) in [(7, 8), (13, 6), (14, 0), (33, 0xFF), (43, 0xFF)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(read(&bad), None, "{at}");
        }
    }
}

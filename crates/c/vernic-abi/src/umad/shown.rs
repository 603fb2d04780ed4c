//! Devices with their ports as this library shows them: the adapter of the process's host in a
//! fabric, or where there is no fabric, RoCE devices.

use vernic_attach::{AdapterReport, MadClient, PortReport};
use vernic_engine::limits::PORT_CAP_FLAGS;
use vernic_engine::{Config, DeviceInfo, Gid, OpenError, Pkey, Transport};
use vernic_wire::PortNum;

use crate::boundary::Failure;
use crate::ibverbs::device::shown;
use crate::layout::umad::{MAX_PORTS, NAME_BYTES};

/// Name of the adapter of a host in a fabric. It is the only one there.
const FABRIC_DEVICE: &str = "vernic_ib0";
/// Gb/s of a RoCE port, as the port says of itself (`ibverbs/query.rs`).
const ROCE_RATE: u32 = 40;
/// `ACTIVE` and `LinkUp` of a RoCE device that packets can pass; else `DOWN` and `Disabled`.
const UP: [u32; 2] = [4, 5];
const DOWN: [u32; 2] = [1, 3];
/// `ACTIVE`, and the state below it that a subnet manager begins with.
const ACTIVE: u32 = 4;
const INIT: u32 = 2;

/// Place of this process in a fabric.
pub(super) struct Seat {
    fabric: String,
    host: String,
}

/// Returns the place that the settings name; `None` if they name no fabric.
///
/// # Errors
/// A setting is wrong.
pub(super) fn seat() -> Result<Option<Seat>, Failure> {
    let config = Config::load().map_err(|error| Failure::from(OpenError::from(error)).fatal())?;
    let (fabric, host) = (config.fabric, config.host);
    Ok((!fabric.is_empty()).then_some(Seat { fabric, host }))
}

impl Seat {
    /// Connects to the fabric.
    fn connect(&self) -> Result<MadClient, Failure> {
        MadClient::connect(&self.fabric).map_err(|error| Failure::from(error).fatal())
    }

    /// Returns the adapter as it is now.
    pub(super) fn adapter(&self) -> Result<AdapterReport, Failure> {
        let adapter = self.connect()?.adapter(&self.host);
        adapter.map_err(|error| Failure::from(error).fatal())
    }

    /// Opens a port for datagrams.
    pub(super) fn open(&self, port: PortNum) -> Result<vernic_attach::MadPort, Failure> {
        Ok(self.connect()?.open(&self.host, port, true)?)
    }

    /// Returns the name of the fabric.
    pub(super) fn fabric(&self) -> &str {
        &self.fabric
    }
}

/// A device.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) node_guid: u64,
    pub(super) system_guid: u64,
    /// Revision of the hardware.
    pub(super) revision: u32,
    /// Ports from 1 on, without a gap.
    pub(super) ports: Vec<Port>,
}

/// A port.
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) lid: u16,
    pub(super) lmc: u8,
    pub(super) sm_lid: u16,
    pub(super) sm_sl: u8,
    pub(super) state: u32,
    pub(super) physical_state: u32,
    pub(super) rate: u32,
    pub(super) capabilities: u32,
    pub(super) gid_prefix: u64,
    pub(super) guid: u64,
    pub(super) pkeys: Vec<u16>,
    pub(super) link_layer: &'static str,
}

/// Returns the devices of InfiniBand's kind, by name: iWARP has nothing to manage.
pub(super) fn devices() -> Result<Vec<Device>, Failure> {
    if let Some(seat) = seat()? {
        return Ok(vec![of_adapter(&seat.adapter()?)]);
    }
    let mut devices = shown()?;
    devices.retain(|device| device.transport == Transport::Roce && device.name.len() < NAME_BYTES);
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(devices.iter().map(of_roce).collect())
}

/// Returns the device of this name; for none, the first with a port that packets can pass, or the
/// first.
pub(super) fn device(name: Option<&str>) -> Result<Device, Failure> {
    let mut devices = devices()?;
    let at = match name {
        Some(name) => devices.iter().position(|device| device.name == name),
        None => devices.iter().position(|device| device.best_port().is_some()).or(Some(0)),
    };
    let at = at.filter(|at| *at < devices.len()).ok_or_else(|| {
        let there: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        let (name, there) = (name.unwrap_or("of any name"), there.join(", "));
        Failure::new(libc::ENODEV, format!("there is no device {name}, of: {there}"))
    })?;
    Ok(devices.swap_remove(at))
}

impl Device {
    /// Returns the port that is used if a program names none: the first that is active, or else
    /// that is up.
    fn best_port(&self) -> Option<&Port> {
        let with = |least| self.ports.iter().find(move |port| port.state >= least);
        with(ACTIVE).or_else(|| with(INIT))
    }

    /// Returns the port of this number, or for 0 the best there is.
    pub(super) fn port(&self, number: i32) -> Result<&Port, Failure> {
        let found = match number {
            0 => self.best_port().or(self.ports.first()),
            number => self.ports.iter().find(|port| i32::from(port.number) == number),
        };
        found.ok_or_else(|| {
            let (name, count) = (&self.name, self.ports.len());
            let why = format!("{name} has no port {number}: it has {count}, from 1 on");
            Failure::new(libc::ENODEV, why)
        })
    }
}

fn of_adapter(adapter: &AdapterReport) -> Device {
    Device {
        name: FABRIC_DEVICE.to_owned(),
        node_guid: adapter.guid.0,
        system_guid: adapter.system_guid.0,
        revision: adapter.revision,
        // Port 0 has a place in C's array, too.
        ports: adapter.ports.iter().take(MAX_PORTS - 1).map(of_report).collect(),
    }
}

fn of_report(port: &PortReport) -> Port {
    Port {
        number: port.number.0,
        lid: port.lid.0,
        lmc: port.lmc,
        sm_lid: port.sm_lid.0,
        sm_sl: port.sm_service_level.value(),
        state: port.state.into(),
        physical_state: port.physical_state.into(),
        rate: rate(port),
        capabilities: port.capabilities,
        gid_prefix: port.gid_prefix,
        guid: port.guids.first().map_or(0, |guid| guid.0),
        pkeys: port.pkeys.iter().map(|pkey| pkey.0).collect(),
        link_layer: "InfiniBand",
    }
}

/// Returns the Gb/s of a link: lanes times the rate of one, before coding, rounded down.
fn rate(port: &PortReport) -> u32 {
    let lanes = match port.width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let tenths = match port.speed {
        1 => 25,
        2 => 50,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        // QDR and FDR-10.
        _ => 100,
    };
    lanes * tenths / 10
}

fn of_roce(device: &DeviceInfo) -> Device {
    let gid = device.gids().first().map_or(Gid([0; 16]), |row| row.gid);
    let half = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| gid.0[at + byte]));
    let [state, physical_state] = if device.port.up { UP } else { DOWN };
    let port = Port {
        number: 1,
        lid: 0,
        lmc: 0,
        sm_lid: 0,
        sm_sl: 0,
        state,
        physical_state,
        rate: ROCE_RATE,
        capabilities: PORT_CAP_FLAGS,
        gid_prefix: half(0),
        guid: half(8),
        pkeys: vec![Pkey::DEFAULT.value()],
        link_layer: "Ethernet",
    };
    Device {
        name: device.name.clone(),
        node_guid: device.node_guid,
        system_guid: device.node_guid,
        revision: 0,
        ports: vec![port],
    }
}

//! The verbs side of the bench: what is measured, written against the safe API as a user would.
//!
//! `pipes` owns the verbs objects of one measurement, `flavor` what differs between services;
//! `latency` and `throughput` are the workloads and know no verb; `resources` counts what idle
//! objects cost.

mod flavor;
mod latency;
mod pipes;
pub(crate) mod resources;
mod throughput;

use super::end::{Active, Passive};
use crate::failure::{Doing, Failure, Outcome};
use crate::select::Chosen;
use crate::spec::{Kind, Op, Service, Spec};
use flavor::{End, Flavor};
use pipes::Pipes;
use vernic::{Device, DeviceInfo, DeviceTransport, Rc, Uc, Ud};

/// How the packets of RoCE's device went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Packets {
    /// Through memory that both processes share.
    Memory,
    /// By UDP.
    Wire,
}

/// An open device, and the address of it that queue pairs use.
#[derive(Debug)]
pub(crate) struct Verbs {
    device: Device,
    gid_index: Option<u8>,
}

/// Where the other side is, which decides the device when none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// On this machine: the device with the largest MTU is the fastest.
    ThisMachine,
    /// At the other end of a connection from this address: its device leads there.
    Via(std::net::IpAddr),
}

impl Verbs {
    /// Opens the device with this name, or else the one for `reach`. A GID index that the device
    /// does not have is wrong usage.
    pub(crate) fn open(
        named: Option<&Chosen>,
        gid_index: Option<u32>,
        reach: Reach,
    ) -> Outcome<Self> {
        let device = match (named, reach) {
            (Some(named), _) => named.open()?,
            (None, reach) => match reach {
                Reach::Via(address) => Device::open_for(address),
                Reach::ThisMachine => match widest()? {
                    Some(name) => Device::open(&name),
                    None => Device::open_default(),
                },
            }
            .doing(|| "open an RDMA device".into())?,
        };
        let gid_index = match gid_index.map(u8::try_from) {
            None => None,
            Some(Ok(index)) if device.gid(index).is_some() => Some(index),
            Some(_) => return Err(no_such_gid(&device)),
        };
        Ok(Self { device, gid_index })
    }

    /// Its name and netdev.
    pub(crate) fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// Largest path MTU in bytes.
    pub(crate) fn max_mtu(&self) -> u32 {
        self.device.port().active_mtu.bytes()
    }

    /// The counters of the device that are not 0.
    pub(crate) fn counters_text(&self) -> String {
        crate::devices::counters_text(&self.device)
    }

    /// How its packets went so far.
    pub(crate) fn packets(&self) -> Packets {
        let counters = self.device.counters();
        match counters.near_tx_packets + counters.near_rx_packets {
            0 => Packets::Wire,
            _ => Packets::Memory,
        }
    }

    /// What idle queue pairs of the device cost.
    pub(crate) fn resources(&self) -> Outcome<resources::Resources> {
        resources::measure(&self.device)
    }

    /// The active end of `spec`.
    pub(crate) fn active(&self, spec: &Spec) -> Outcome<Box<dyn Active>> {
        match spec.service {
            Service::Rc | Service::Iwarp | Service::IwarpCrc => self.active_of::<Rc>(spec),
            Service::Uc => self.active_of::<Uc>(spec),
            Service::Ud => self.active_of::<Ud>(spec),
        }
    }

    /// The passive end of `spec`.
    pub(crate) fn passive(&self, spec: &Spec) -> Outcome<Box<dyn Passive>> {
        match spec.service {
            Service::Rc | Service::Iwarp | Service::IwarpCrc => self.passive_of::<Rc>(spec),
            Service::Uc => self.passive_of::<Uc>(spec),
            Service::Ud => self.passive_of::<Ud>(spec),
        }
    }

    /// The device of `spec`: where TCP carries it, the one of iWARP on the same netdev.
    fn pipes<S: Flavor>(&self, spec: &Spec, end: End) -> Outcome<Pipes<S>> {
        if spec.service.tcp().is_none() {
            if self.info().transport == DeviceTransport::Iwarp {
                let DeviceInfo { name, number, .. } = self.info();
                let service = spec.service;
                return Err(Failure::new(format!(
                    "{name} is a device of iWARP, whose queue pairs TCP connects, and has no {service} of RoCE: -d \
                     vernic{number} does, and -c iwarp or iwarp+crc measures this one"
                )));
            }
            return Pipes::open(&self.device, self.gid_index, spec, end);
        }
        let name = self.device.info().clone().into_iwarp().name;
        let device = Device::open(&name).doing(|| format!("open {name}"))?;
        Pipes::open(&device, None, spec, end)
    }

    fn active_of<S: Flavor>(&self, spec: &Spec) -> Outcome<Box<dyn Active>> {
        let pipes = self.pipes::<S>(spec, End::Active)?;
        Ok(match spec.kind {
            Kind::Latency => Box::new(latency::Pinger::new(pipes)),
            Kind::Throughput => Box::new(throughput::Pusher::new(pipes)),
        })
    }

    fn passive_of<S: Flavor>(&self, spec: &Spec) -> Outcome<Box<dyn Passive>> {
        let pipes = self.pipes::<S>(spec, End::Passive)?;
        Ok(match (spec.kind, spec.op) {
            (Kind::Latency, Op::Send | Op::Write) => Box::new(latency::Ponger::new(pipes)),
            _ => Box::new(throughput::Puller::new(pipes)),
        })
    }
}

fn no_such_gid(device: &Device) -> Failure {
    let row = |row: vernic::GidEntry| format!("{} ({})", row.index, row.gid.to_ip());
    let rows: Vec<String> = device.gid_table().into_iter().map(row).collect();
    let name = &device.info().name;
    Failure::usage(format!(
        "{name} has no GID with the index asked for by -x; it has: {}",
        rows.join(", ")
    ))
}

/// The name of the device with the largest path MTU, the first of several.
fn widest() -> Outcome<Option<String>> {
    let devices = Device::list().doing(|| "list the RDMA devices".into())?;
    let mtu = |info: &DeviceInfo| info.port.active_mtu.map_or(0, vernic::Mtu::bytes);
    let usable = devices.into_iter().filter(|info| info.port.up && !info.port.addresses.is_empty());
    Ok(usable.rev().max_by_key(mtu).map(|info| info.name))
}

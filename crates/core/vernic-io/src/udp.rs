//! The link of RoCE. RoCEv2 goes by UDP sockets (IBTA annex A17), with no privilege and no kernel
//! module. RoCEv1 goes by packet sockets (`roce_v1.rs`), on paths that ask for it.
//!
//! Owns the sockets of one device. Per active address these are one for port 4791, a private one
//! for peers on this host, and one to send from. Up to [`MAX_FLOW_SOCKETS`] more sockets to send
//! from are opened in all. Each socket to send from has another beside it that keeps its port from
//! other users. Called by the engine through [`Link`]; calls `sys` and `vernic-wire`'s ICRC.
//!
//! | file | what |
//! |---|---|
//! | `tx.rs` | stamping and sending of runs, falling back to single packets |
//! | `rx.rs` | which sockets to poll when, receiving, sorting out packets for other processes |
//! | `exchange.rs` | packets that are handed over to other processes, and taken over from them |
//! | `steer.rs` | flows that keep coming to the wrong process |
//! | `socket.rs` | the kinds of sockets and their options |
//! | `gso.rs` `gro.rs` `ecn.rs` `pmtu.rs` | one feature of the system each |
//! | `holder.rs` | which process has port 4791 |
//!
//! Limits: [`MAX_ADDRESSES`] active addresses, [`MAX_GROUPS`] multicast groups.

mod ecn;
mod exchange;
mod gro;
mod gso;
mod holder;
mod pmtu;
mod priority;
mod rx;
mod socket;
mod steer;
mod trial;
mod tx;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, RawFd};
use std::sync::Arc;

use vernic_sys::random;
use vernic_wire::{Lid, RoceVersion};

use crate::address::LocalAddr;
use crate::batch::{Icrc, LinkLimits};
use crate::batch::{RxBatch, RxPacket, TxBatch};
use crate::buffer;
use crate::host::{Slot, SlotTable};
use crate::icrc::{Found, IcrcChecker};
use crate::link::{
    Departure, Link, LinkCounters, LinkError, Nanos, NoPath, OpenPath, PathRequest, Paths,
    SendReport,
};
use crate::path::TxPath;
use crate::roce_v1;

pub use crate::endpoint::{arrival, destination_of, local_of, path, receiver_of, sender_of};
pub use socket::check_route;

/// Most addresses active at a time.
pub const MAX_ADDRESSES: usize = 1024;

/// Most multicast groups joined at a time.
pub const MAX_GROUPS: usize = 256;

/// Flows that packets to slots of one class are spread over.
pub const FLOWS: u16 = 16;

/// Source ports per address if each flow has its own. Opened when a flow first needs one.
pub const SOURCE_PORTS: usize = (FLOWS * Slot::CLASSES) as usize;

/// Sockets that a link sends flows from, beside one for each address. With the sockets that keep
/// their ports, they take an eighth of the descriptors that a process may have by default (1024).
/// The second and further flows of a class of slots get half of them, so that some are left for
/// other classes. Beyond that flows share sockets, first with their own class.
pub const MAX_FLOW_SOCKETS: usize = 64;

/// The settings of a [`UdpLink`].
#[derive(Clone, Copy, Debug)]
pub struct UdpConfig {
    /// Receive buffer of each socket in bytes; the system may grant less. A full window of a few
    /// dozen QPs must fit while the process is not scheduled. Default 4 MiB.
    pub receive_buffer_bytes: u32,
    /// Send buffer of each socket in bytes; the system may grant less. Default 4 MiB.
    pub send_buffer_bytes: u32,
    /// Whether to receive packets of RoCEv1 before a path by RoCEv1 was opened. Default false.
    pub receive_roce_v1: bool,
    /// False to do without GSO and GRO, as on systems that have none. Default true.
    pub offload: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            receive_roce_v1: false,
            offload: true,
        }
    }
}

#[derive(Debug)]
struct Active {
    local: LocalAddr,
    uses: u32,
}

#[derive(Debug)]
struct Group {
    local: LocalAddr,
    group: IpAddr,
    ifindex: u32,
    uses: u32,
}

/// The RoCEv2 link. See [`Link`] for what it does.
#[derive(Debug)]
pub struct UdpLink {
    config: UdpConfig,
    limits: LinkLimits,
    slots: Arc<SlotTable>,
    active: Vec<Active>,
    groups: Vec<Group>,
    tx: tx::Transmit,
    rx: rx::Receive,
    frames: Arc<roce_v1::Shared>,
    frames_tx: roce_v1::tx::Transmit,
    checker: IcrcChecker,
    counters: LinkCounters,
}

impl UdpLink {
    /// Makes a link without addresses: finds out what the system can do, and opens no port yet. The
    /// link publishes its private ports in `slots`, and hands packets of other slots over to their
    /// processes.
    pub fn open(config: UdpConfig, slots: Arc<SlotTable>) -> Self {
        let max_segments = if config.offload {
            let homes = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            homes.into_iter().map(|ip| gso::probe((ip, 0).into())).max().unwrap_or(1)
        } else {
            1
        };
        tracing::debug!(max_segments, "UDP link opened");
        let frames =
            Arc::new(roce_v1::Shared::new(Arc::clone(&slots), config.receive_buffer_bytes));
        Self {
            frames_tx: roce_v1::tx::Transmit::new(frames.clone(), config.send_buffer_bytes),
            limits: LinkLimits { max_segments, ..LinkLimits::default() },
            tx: tx::Transmit::new(max_segments > 1, random() as u32),
            rx: rx::Receive::new(Arc::clone(&slots), frames.clone()),
            frames,
            slots,
            config,
            active: Vec::new(),
            groups: Vec::new(),
            checker: IcrcChecker::new(),
            counters: LinkCounters::default(),
        }
    }

    fn activate_new(&mut self, local: LocalAddr) -> Result<(), LinkError> {
        if self.active.len() == MAX_ADDRESSES {
            return Err(LinkError::TooMany { what: "addresses", limit: MAX_ADDRESSES });
        }
        let public = socket::public(local, &self.config)?;
        let (private, port) = socket::private(local, &self.config)?;
        if let Some(receiver_page) = self.slots.receiver_page() {
            // All private sockets of a link are alike.
            receiver_page.set_capacity(buffer::receive_capacity(private.as_fd()));
        }
        self.tx.add(local, &self.config)?;
        self.rx.add(rx::Kind::Public, local, local, crate::ROCE_PORT, public);
        self.rx.add(rx::Kind::Private, local, local, port, private);
        self.slots.publish(local, port);
        self.active.push(Active { local, uses: 1 });
        self.rx.frame_addresses().locals.push(local);
        if self.config.receive_roce_v1 {
            self.receive_roce_v1(local);
        }
        tracing::debug!(%local, private_port = port, "address active");
        Ok(())
    }
}

/// Packets of RoCEv1.
impl UdpLink {
    /// Receives packets of RoCEv1 on the netdev that has an address, if it is an Ethernet and the
    /// system permits that.
    fn receive_roce_v1(&self, local: LocalAddr) {
        let ifindex = crate::netdev::index_of(local).map_err(|error| error.to_string());
        let opened = ifindex
            .and_then(|index| self.frames.open_netdev(index).map_err(|error| error.to_string()));
        if let Err(error) = opened {
            tracing::warn!(%local, error, "RoCEv1 is not received");
        }
    }

    #[cold]
    fn stamp_both(&mut self, batch: &mut TxBatch) {
        let Self { tx, config, .. } = self;
        batch.stamp_with(|path, first, bytes, stride| match path.id().is_frames() {
            true => roce_v1::tx::stamp(path, bytes, stride),
            false => tx.stamp_run(path, first, bytes, stride, config),
        });
    }

    /// Sends a batch that may have packets of either version.
    #[cold]
    fn send_both(&mut self, batch: &mut TxBatch) -> SendReport {
        self.stamp_both(batch);
        let mut all = SendReport::default();
        // Each round sends or drops a run, or ends the loop.
        while !batch.is_empty() && !all.blocked {
            let by_udp = batch.runs().take_while(|run| !run.path.id().is_frames()).count();
            let report = match by_udp {
                0 => self.frames_tx.send(batch, &mut self.counters),
                count => {
                    batch.with_first_runs(count, |batch| self.tx.send(batch, &mut self.counters))
                }
            };
            all.packets += report.packets;
            all.bytes += report.bytes;
            all.failed += report.failed;
            all.blocked = report.blocked;
            all.failure = report.failure.or(all.failure);
        }
        all
    }
}

/// Opens paths of either version of RoCE.
#[derive(Debug)]
struct RocePaths(Arc<roce_v1::Shared>);

impl Paths for RocePaths {
    fn open_path(&self, to: &PathRequest) -> Result<OpenPath, NoPath> {
        match to.roce {
            RoceVersion::V1 => self.0.open_path(to, || Self::open_udp(to)),
            RoceVersion::V2 => Self::open_udp(to),
        }
    }

    fn receive_datagrams(&self, netdev_index: u32) -> bool {
        let opened = self.0.open_netdev(netdev_index);
        opened.unwrap_or_else(|error| {
            tracing::debug!(netdev_index, %error, "datagrams of RoCEv1 are not received");
            false
        })
    }
}

impl RocePaths {
    fn open_udp(to: &PathRequest) -> Result<OpenPath, NoPath> {
        let (local, remote) = (to.local.to_ip(), to.remote.to_ip());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(NoPath::Family);
        }
        let dst = LocalAddr::new(remote, to.netdev_index).with_port(crate::ROCE_PORT);
        let mut path =
            path(local, dst).with_traffic_class(to.traffic_class).with_priority(to.service_level);
        if to.hop_limit != 0 {
            path = path.with_hop_limit(to.hop_limit);
        }
        Ok(OpenPath { path, remote: remote.into(), local: local.into() })
    }
}

impl Link for UdpLink {
    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn stamp(&mut self, batch: &mut TxBatch) {
        if self.frames.is_used() {
            return self.stamp_both(batch);
        }
        self.tx.stamp(batch, &self.config);
    }

    fn send(&mut self, _now: Nanos, batch: &mut TxBatch) -> SendReport {
        if self.frames.is_used() {
            return self.send_both(batch);
        }
        self.tx.stamp(batch, &self.config);
        self.tx.send(batch, &mut self.counters)
    }

    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize {
        self.rx.recv(now, &self.config, batch, &mut self.counters)
    }

    fn note_accepted(&mut self, packet: &RxPacket<'_>, now: Nanos) {
        self.rx.note_accepted(packet.meta, now, &self.config, &mut self.counters);
    }

    fn verify(&mut self, packet: &RxPacket<'_>) -> Icrc {
        if packet.meta.icrc != Icrc::Unchecked {
            return packet.meta.icrc;
        }
        let found = self.checker.check(packet);
        match found {
            Found::Guessed(_) => {}
            Found::Solved(_) => self.counters.icrc_solved += 1,
            Found::Bad => self.counters.icrc_errors += 1,
        }
        found.icrc()
    }

    fn poll_fds(&self) -> &[RawFd] {
        self.rx.poll_fds()
    }

    fn poll_generation(&self) -> u64 {
        self.rx.poll_generation()
    }

    fn deadline(&self) -> Option<Nanos> {
        self.rx.back_at()
    }

    fn leave_shared_port(&mut self, now: Nanos) {
        self.rx.leave_shared_port(now);
    }

    fn paths(&self) -> Arc<dyn Paths> {
        Arc::new(RocePaths(self.frames.clone()))
    }

    fn activate(&mut self, local: LocalAddr) -> Result<(), LinkError> {
        match self.active.iter_mut().find(|a| a.local == local) {
            Some(active) => {
                active.uses += 1;
                Ok(())
            }
            None => self.activate_new(local),
        }
    }

    fn deactivate(&mut self, local: LocalAddr) {
        let Some(at) = self.active.iter().position(|a| a.local == local) else { return };
        self.active[at].uses -= 1;
        if self.active[at].uses == 0 {
            self.active.swap_remove(at);
            for group in self.groups.extract_if(.., |group| group.local == local) {
                self.rx.leave_frames(group.ifindex, group.group);
            }
            self.slots.withdraw(local);
            self.tx.remove(local);
            self.rx.remove(local);
            self.rx.frame_addresses().locals.retain(|known| *known != local);
        }
    }

    fn join(&mut self, local: LocalAddr, group: IpAddr, _lid: Lid) -> Result<(), LinkError> {
        if !self.active.iter().any(|a| a.local == local) {
            return Err(LinkError::NotActive { addr: local });
        }
        if let Some(known) = self.groups.iter_mut().find(|g| g.local == local && g.group == group) {
            known.uses += 1;
            return Ok(());
        }
        if self.groups.len() == MAX_GROUPS {
            return Err(LinkError::TooMany { what: "multicast groups", limit: MAX_GROUPS });
        }
        if local.ip.is_loopback() {
            socket::check_route(local, group)?;
        }
        let ifindex = crate::netdev::index_of(local)?;
        let socket = socket::group(group, ifindex, &self.config)?;
        let bound = LocalAddr::new(group, ifindex);
        self.rx.add(rx::Kind::Group, local, bound, crate::ROCE_PORT, socket);
        self.rx.join_frames(ifindex, group);
        self.groups.push(Group { local, group, ifindex, uses: 1 });
        Ok(())
    }

    fn leave(&mut self, local: LocalAddr, group: IpAddr, _lid: Lid) {
        let found = self.groups.iter().position(|g| g.local == local && g.group == group);
        let Some(at) = found else { return };
        self.groups[at].uses -= 1;
        if self.groups[at].uses == 0 {
            let gone = self.groups.swap_remove(at);
            self.rx.remove_group(local, group);
            self.rx.leave_frames(gone.ifindex, group);
        }
    }

    fn departure(&mut self, path: &TxPath) -> Option<Departure> {
        if path.id().is_frames() {
            return None;
        }
        self.tx.departure(path, &self.config)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;

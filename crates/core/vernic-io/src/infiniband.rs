//! The link of a host of an InfiniBand fabric: packets between a program and the fabric process,
//! which has the adapter, the cables and the switches (docs/fabric.md).
//!
//! Owns the headers that are before the BTH (LRH, and GRH where the path is global) and the ICRC;
//! the VCRC is the cable's. Called by the engine, as any link; `vernic-attach` has the connection.
//!
//! | file | what |
//! |---|---|
//! | `route.rs` | paths: LIDs, service level and GRH in a `TxPath` |
//! | `receive.rs` | packets of a message into a batch |
//! | `ports.rs` | what a subnet manager has set up, and its changes |
//!
//! The link has a connection for each process slot, for the fabric process brings packets by slot.
//! It has one virtual lane: the adapter chooses the lane by the service level.
//!
//! Limits: one message of packets (64 KiB) waits in the link when the connection is full.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vernic_attach::data::Membership;
use vernic_attach::{
    AdapterReport, DataClient, DataEvent, MAX_MESSAGE, MadClient, PacketBatch, PathQuestion,
};
use vernic_sys::{self as sys, PollFd};
use vernic_wire::sa::PathRecord;
use vernic_wire::{Gid, Guid, Lid, PortNum};

use crate::address::LocalAddr;
use crate::batch::{Icrc, LinkLimits, RxBatch, RxMeta, RxPacket, TxBatch, TxRun};
use crate::factory::{LinkFactory, LinkSetup};
use crate::host::{Slot, SlotError, SlotKeeper, SlotTable};
use crate::link::{Departure, Link, LinkCounters, LinkError, Nanos, Paths, SendReport};
use crate::link_port::{LinkPort, PortWatch};
use crate::path::TxPath;

pub use vernic_attach::{AttachError, PathAsked, ServiceClaim};

mod ports;
mod receive;
mod route;
#[cfg(test)]
mod tests;

use ports::SharedPorts;
use route::Headers;

/// Messages that one call receives at most from a connection: as many as fill a batch.
const MESSAGES_PER_CALL: usize = 16;
/// How soon a full connection is tried again, in nanoseconds: the fabric process takes a message of
/// 64 KiB in about so long, and programs that poll would try in each call.
const AGAIN_NANOS: u64 = 10_000;

/// How long packets that the connection has no room for are kept when the link ends. A fabric
/// process that is not stopped takes them in much less.
const FLUSH_PATIENCE: Duration = Duration::from_millis(100);
/// How soon is tried again meanwhile: a message takes about so long.
const FLUSH_REST: Duration = Duration::from_micros(50);

/// How long the answer of subnet administration is waited for: longer than its client repeats the
/// question.
const PATH_PATIENCE: Duration = Duration::from_secs(30);

/// A host of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricHost {
    /// The name of the fabric.
    pub fabric: String,
    /// The name of the host.
    pub host: String,
}

/// The adapter of a host.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// The name of the host.
    pub host: String,
    /// The GUID of the adapter.
    pub guid: Guid,
    /// The ports, that of number 1 first.
    pub ports: Vec<LinkPort>,
}

impl FabricHost {
    /// Asks the fabric process for the adapter.
    ///
    /// # Errors
    /// [`io::ErrorKind::Other`] with what is wrong, as text: no such fabric, no such host.
    pub fn adapter(&self) -> io::Result<Adapter> {
        let report = MadClient::connect(&self.fabric).and_then(|client| client.adapter(&self.host));
        let report = report.map_err(io::Error::other)?;
        let ports = report.ports.iter().map(ports::of_report).collect();
        Ok(Adapter { host: report.host, guid: report.guid, ports })
    }
}

impl FabricHost {
    /// Asks subnet administration for a path that leaves by a port, and waits for the answer, 30 s
    /// at most.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn path(&self, port: PortNum, asked: &PathAsked) -> Result<PathRecord, AttachError> {
        let mut question = PathQuestion::ask(&self.fabric, &self.host, port, asked)?;
        let until = Instant::now() + PATH_PATIENCE;
        loop {
            if let Some(answer) = question.poll() {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(AttachError::Silent { seconds: PATH_PATIENCE.as_secs() });
            }
            let mut fds = [PollFd::readable(question.as_fd().as_raw_fd())];
            let failed = |source| AttachError::Io { doing: "waiting for a path", source };
            sys::poll(&mut fds, Some(left)).map_err(failed)?;
        }
    }
}

/// The factory of the links of one host.
#[derive(Clone, Debug)]
pub struct InfinibandFactory(FabricHost);

impl InfinibandFactory {
    /// Returns the factory of a host's links.
    pub const fn new(host: FabricHost) -> Self {
        Self(host)
    }
}

impl LinkFactory for InfinibandFactory {
    fn open(&self, setup: &LinkSetup) -> io::Result<Box<dyn Link>> {
        let slots = setup.slots.clone();
        let attacher = Arc::new(Attacher::new(self.0.clone()));
        slots.set_keeper(attacher.clone());
        slots.prepare().map_err(|error| match error {
            SlotError::Keeper(error) => error,
            error => io::Error::other(error),
        })?;
        let attached = attacher.take_fresh().pop();
        let attached = attached.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Box::new(InfinibandLink::new(attacher, attached, slots)?))
    }
}

/// Attaches process slots to the fabric process before queue pairs have numbers in them. So a slot
/// that the fabric process refuses is a queue pair that is not made. Another program of the host
/// may have a slot that is free in this network namespace.
#[derive(Debug)]
struct Attacher {
    host: FabricHost,
    /// Connections that the link has not taken yet.
    fresh: Mutex<Vec<(DataClient, AdapterReport)>>,
}

impl Attacher {
    fn new(host: FabricHost) -> Self {
        Self { host, fresh: Mutex::default() }
    }

    fn take_fresh(&self) -> Vec<(DataClient, AdapterReport)> {
        std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SlotKeeper for Attacher {
    fn take(&self, slot: Slot) -> io::Result<bool> {
        let FabricHost { fabric, host } = &self.host;
        match DataClient::attach(fabric, host, Some(slot.value())) {
            Ok(attached) => {
                self.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(attached);
                Ok(true)
            }
            Err(error) if error.errno() == libc::EBUSY => Ok(false),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// The link; see the head of this module.
struct InfinibandLink {
    attacher: Arc<Attacher>,
    /// A connection for each process slot. None is left once the fabric process has ended.
    clients: Vec<DataClient>,
    fds: Vec<RawFd>,
    slots: Arc<SlotTable>,
    /// The generation of the slots at which each of them had a connection.
    slots_generation: u64,
    poll_generation: u64,
    ports: Vec<LinkPort>,
    /// Whether a port has another LID since the packets that wait in the batch were stamped: the
    /// ICRC covers it.
    lids_changed: bool,
    /// Groups that were joined, each with the address that it was joined by: a subnet manager may
    /// take the address away before the group is left.
    joins: Vec<(LocalAddr, Membership)>,
    shared: Arc<SharedPorts>,
    /// Packets that the connection had no room for, and those that are being gathered.
    outbox: PacketBatch,
    /// The time at which the outbox is sent again, after the connection had no room for it.
    again: Nanos,
    /// The connection that is received from next.
    next: usize,
    /// The packets of a message: where each begins, its length, and how it came.
    found: Vec<(usize, usize, RxMeta)>,
    counters: LinkCounters,
}

impl std::fmt::Debug for InfinibandLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InfinibandLink({:?})", self.attacher.host)
    }
}

impl InfinibandLink {
    fn new(
        attacher: Arc<Attacher>,
        (client, report): (DataClient, AdapterReport),
        slots: Arc<SlotTable>,
    ) -> io::Result<Self> {
        let ports: Vec<_> = report.ports.iter().map(ports::of_report).collect();
        let shared = Arc::new(SharedPorts::new(ports.clone())?);
        let generation = slots.generation();
        Ok(Self {
            attacher,
            fds: vec![client.as_fd().as_raw_fd()],
            clients: vec![client],
            slots,
            slots_generation: generation,
            poll_generation: 0,
            ports,
            lids_changed: false,
            joins: Vec::new(),
            shared,
            outbox: PacketBatch::new(),
            again: Nanos(0),
            next: 0,
            found: Vec::with_capacity(receive::MAX_PACKETS),
            counters: LinkCounters::default(),
        })
    }

    /// Takes the connections of the process slots that were taken since the last call.
    #[inline]
    fn follow_slots(&mut self) {
        let generation = self.slots.generation();
        if generation != self.slots_generation {
            self.slots_generation = generation;
            self.take_clients();
        }
    }

    #[cold]
    fn take_clients(&mut self) {
        let fresh = self.attacher.take_fresh();
        // None is of use once the fabric process has ended.
        if !self.clients.is_empty() && !fresh.is_empty() {
            self.clients.extend(fresh.into_iter().map(|(client, _)| client));
            self.renew_fds();
        }
    }

    fn renew_fds(&mut self) {
        self.fds = self.clients.iter().map(|client| client.as_fd().as_raw_fd()).collect();
        self.poll_generation += 1;
    }

    /// Notes that the fabric process has ended.
    #[cold]
    fn end(&mut self, error: &io::Error) {
        tracing::debug!(host = ?self.attacher.host, %error, "the fabric is gone");
        self.clients.clear();
        self.renew_fds();
        self.counters.tx_errors += self.outbox.len() as u64;
        self.outbox.clear();
        self.shared.set(None);
    }

    /// Sends what waits in the outbox. Returns whether it is empty now.
    fn flush_outbox(&mut self, now: Nanos) -> bool {
        let Some(client) = self.clients.first() else {
            self.outbox.clear();
            return true;
        };
        if self.outbox.is_empty() {
            return true;
        }
        if now < self.again {
            return false;
        }
        self.counters.tx_calls += 1;
        match client.send(&self.outbox) {
            Ok(()) => self.outbox.clear(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.counters.tx_blocked += 1;
                self.again = now.plus(AGAIN_NANOS);
                return false;
            }
            Err(error) => self.end(&error),
        }
        true
    }

    /// Moves packets of a run to the outbox. Returns how many found room.
    fn gather(outbox: &mut PacketBatch, ports: &[LinkPort], run: &TxRun<'_>) -> usize {
        let mut headers = Headers::of(run.path, ports);
        let (port, start) = (route::port_of(run.path), headers.len());
        let mut count = 0;
        for packet in run.packets() {
            let Some(room) = outbox.reserve(port, start + packet.len()) else { break };
            headers.emit(packet.len(), room);
            room[start..].copy_from_slice(packet);
            count += 1;
        }
        count
    }

    /// Receives messages of a connection into a batch.
    fn receive(&mut self, at: usize, batch: &mut RxBatch) {
        for _ in 0..MESSAGES_PER_CALL {
            if batch.free() == 0 || batch.free_parts() < receive::MAX_PACKETS {
                return;
            }
            let Self { clients, found, ports, counters, .. } = self;
            let Some(client) = clients.get(at) else { return };
            counters.rx_calls += 1;
            match client.recv(&mut batch.spare()[..MAX_MESSAGE]) {
                Ok(DataEvent::Packets(packets)) => {
                    counters.rx_buffers += 1;
                    found.clear();
                    receive::sort(packets, ports, counters, |start, len, meta| {
                        found.push((start, len, meta));
                    });
                    for &(start, len, meta) in &*found {
                        counters.rx_bytes += len as u64;
                        batch.commit_part(start, len, len, 0, meta);
                    }
                    batch.next_buffer();
                }
                Ok(DataEvent::Port(port)) => {
                    if let Some(place) = ports.get_mut(usize::from(port.number.0).wrapping_sub(1)) {
                        let before = std::mem::replace(place, ports::of_report(&port));
                        self.lids_changed |= (before.lid, before.lmc) != (place.lid, place.lmc);
                        self.shared.set(Some(self.ports.clone()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.end(&error),
            }
        }
    }

    fn leave_group(&self, membership: Membership) {
        if let Some(client) = self.clients.first()
            && let Err(error) = client.leave(membership)
        {
            tracing::debug!(group = %membership.mgid, %error, "multicast group not left");
        }
    }

    fn membership(&self, local: LocalAddr, group: IpAddr, mlid: Lid) -> Option<Membership> {
        let gid = Gid::from_ip(local.ip);
        let at = self.ports.iter().position(|port| port.gids.contains(&gid))?;
        Some(Membership { port: PortNum(at as u8 + 1), mlid, mgid: Gid::from_ip(group) })
    }
}

/// Writes the ICRCs of packets of one path.
fn stamp(path: &TxPath, ports: &[LinkPort], packets: &mut [u8], stride: usize) {
    let mut headers = Headers::of(path, ports);
    for packet in packets.chunks_mut(stride) {
        if let Some((transport, icrc)) = packet.split_last_chunk_mut::<4>() {
            *icrc = headers.icrc(transport).to_le_bytes();
        }
    }
}

impl Link for InfinibandLink {
    fn limits(&self) -> LinkLimits {
        LinkLimits { max_run_bytes: MAX_MESSAGE as u32, ..LinkLimits::default() }
    }

    fn stamp(&mut self, batch: &mut TxBatch) {
        let ports = &self.ports;
        if std::mem::take(&mut self.lids_changed) {
            batch.rewrite_stamped(|path, packets, stride| stamp(path, ports, packets, stride));
        }
        batch.stamp_with(|path, _, packets, stride| stamp(path, ports, packets, stride));
    }

    fn send(&mut self, now: Nanos, batch: &mut TxBatch) -> SendReport {
        self.follow_slots();
        let mut report = SendReport::default();
        self.stamp(batch);
        while let Some(run) = batch.first_run() {
            if self.clients.is_empty() {
                report.failed += run.count();
                self.counters.tx_errors += run.count() as u64;
                batch.retire(1);
                continue;
            }
            let (all, path) = (run.count(), *run.path);
            let count = Self::gather(&mut self.outbox, &self.ports, &run);
            let bytes: usize = run.packets().take(count).map(<[u8]>::len).sum();
            report.packets += count;
            report.bytes += bytes;
            self.counters.tx_packets += count as u64;
            self.counters.tx_bytes += bytes as u64;
            match count == all {
                true => {
                    self.counters.tx_runs += 1;
                    batch.retire(1);
                }
                false => batch.retire_part(count),
            }
            if count < all && !self.flush_outbox(now) {
                report.blocked = true;
                report.failure = None;
                tracing::trace!(%path, "the fabric takes no packets for the moment");
                return report;
            }
        }
        report.blocked = !self.flush_outbox(now);
        report
    }

    fn flush(&mut self) {
        let until = Instant::now() + FLUSH_PATIENCE;
        while !self.flush_outbox(self.again) {
            if Instant::now() >= until {
                self.counters.tx_errors += self.outbox.len() as u64;
                return self.outbox.clear();
            }
            std::thread::sleep(FLUSH_REST);
        }
    }

    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize {
        self.follow_slots();
        batch.clear();
        if !self.outbox.is_empty() {
            self.flush_outbox(now);
        }
        let count = self.clients.len();
        for step in 0..count {
            self.receive((self.next + step) % count, batch);
        }
        self.next = (self.next + 1) % count.max(1);
        let packets = batch.len();
        self.counters.rx_packets += packets as u64;
        packets
    }

    fn verify(&mut self, packet: &RxPacket<'_>) -> Icrc {
        packet.meta.icrc
    }

    fn poll_fds(&self) -> &[RawFd] {
        &self.fds
    }

    fn poll_generation(&self) -> u64 {
        self.poll_generation
    }

    /// Packets that the connection had no room for are no batch's any more.
    fn deadline(&self) -> Option<Nanos> {
        (!self.outbox.is_empty()).then_some(self.again)
    }

    fn paths(&self) -> Arc<dyn Paths> {
        self.shared.clone()
    }

    fn activate(&mut self, addr: LocalAddr) -> Result<(), LinkError> {
        let gid = Gid::from_ip(addr.ip);
        let is_own = self.ports.iter().any(|port| port.gids.contains(&gid));
        if is_own { Ok(()) } else { Err(LinkError::NoSuchAddress { addr }) }
    }

    /// Leaves the groups that were joined by the address, as a socket does that is closed.
    fn deactivate(&mut self, local: LocalAddr) {
        let lost = self.joins.extract_if(.., |(by, _)| *by == local).collect::<Vec<_>>();
        lost.iter().for_each(|(_, membership)| self.leave_group(*membership));
    }

    fn join(&mut self, local: LocalAddr, group: IpAddr, lid: Lid) -> Result<(), LinkError> {
        let membership =
            self.membership(local, group, lid).ok_or(LinkError::NotActive { addr: local })?;
        let Some(client) = self.clients.first() else {
            return Err(LinkError::Closed { addr: local });
        };
        client.join(membership).map_err(|error| LinkError::Os {
            what: "join a multicast group",
            addr: local,
            source: io::Error::other(error),
        })?;
        self.joins.push((local, membership));
        Ok(())
    }

    fn leave(&mut self, local: LocalAddr, group: IpAddr, lid: Lid) {
        let mgid = Gid::from_ip(group);
        let is_it = |(by, joined): &(LocalAddr, Membership)| {
            (*by, joined.mgid, joined.mlid) == (local, mgid, lid)
        };
        if let Some(at) = self.joins.iter().position(is_it) {
            let (_, membership) = self.joins.swap_remove(at);
            self.leave_group(membership);
        }
    }

    fn port_watch(&self) -> Option<Arc<dyn PortWatch>> {
        Some(self.shared.clone())
    }

    fn departure(&mut self, _path: &TxPath) -> Option<Departure> {
        None
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

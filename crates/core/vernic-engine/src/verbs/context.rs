//! An open device: the root of every object.
//!
//! Owns the engine and its background thread. Each object holds a reference, so the device closes
//! when the last object is gone. Sockets are made only here, when a device is opened.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use vernic_io::host::SlotTable;
use vernic_io::infiniband::PathAsked;
use vernic_io::netdev::{ChangeWatcher, HEADER_ALLOWANCE_BYTES};
use vernic_io::{
    Link, LinkError, LinkFactory, LinkSetup, LocalAddr, NextHop, NoLink, PortState, Sleeper,
    StatusSocket, UdpFactory,
};
use vernic_proto::congestion::Congestion;
use vernic_proto::{AddressVector, DropReason, QpState, Time};
use vernic_wire::sa::PathRecord;
use vernic_wire::{Gid, Lid, Mtu, Pkey, PortNum, Qpn, RoceVersion};

use crate::agent::CmAgent;
use crate::config::Config;
use crate::counters::DeviceCounters;
use crate::device::alarms::Offender;
use crate::device::explanation::Explanation;
use crate::device::gid::{GidEntry, GidTable};
use crate::device::infiniband;
use crate::device::limits::{DeviceAttr, MAX_MSG_BYTES, PORT_CAP_FLAGS, PortAttr};
use crate::device::listing::{
    DeviceInfo, PortInfo, choose, choose_for, choose_iwarp, fabric_device,
};
use crate::device::middleware::wrap_link;
use crate::device::opened::{Clocks, Device};
use crate::device::port::Port;
use crate::device::transport::Transport;
use crate::error::{OpenError, PathError, orphan_io};
use crate::lane::packets::Packets;
use crate::lane::protocol::WireProtocol;
use crate::management::{MadAgents, MadError};
use crate::progress::background::{Background, WatchedFds};
use crate::progress::engine::Engine;
use crate::streams::Streams;
use crate::support::events::{AsyncEvent, EventQueue, lock};

/// An open device.
#[derive(Debug)]
pub struct Context {
    engine: Arc<Engine>,
    cm: CmAgent,
    /// The background thread, until it is stopped.
    thread: Mutex<Option<JoinHandle<()>>>,
    ids: AtomicU64,
}

impl Context {
    /// Opens a device by its own name, or by its netdev's name and the transport of the settings.
    /// `None` opens the configured device, or the first one.
    ///
    /// # Errors
    /// [`OpenError`]: no such device, no address, MTU too small, UDP port 4791 held by another user
    /// or by a kernel driver.
    pub fn open(name: Option<&str>, config: Config) -> Result<Arc<Self>, OpenError> {
        let info = choose_for(name.unwrap_or(&config.device), &config)?;
        Self::open_on(&info.port.netdev, info.transport, config)
    }

    /// Opens the device of the given transport on a netdev.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub fn open_on(
        netdev: &str,
        transport: Transport,
        config: Config,
    ) -> Result<Arc<Self>, OpenError> {
        match transport {
            Transport::Roce => Self::open_over(choose(netdev)?, &UdpFactory, config),
            Transport::Iwarp => Self::open_iwarp(Some(netdev), config),
            Transport::InfiniBand => Self::open_infiniband(config),
        }
    }

    /// Opens a device whose packets are carried by a link of any kind. `info` gives the name of the
    /// device and its addresses. With netdev index 0, the device has no netdev and its addresses
    /// never change.
    ///
    /// # Errors
    /// [`OpenError`]: no descriptor left, an address that the link cannot use.
    pub fn open_over(
        info: DeviceInfo,
        factory: &dyn LinkFactory,
        config: Config,
    ) -> Result<Arc<Self>, OpenError> {
        config.check()?;
        check_mtus(&info, &config)?;
        check_roce_version(&info, &config)?;
        let mut wire = Wire::new(&info, factory, &config, Box::new(Packets::new()))?;
        wire.link = wrap_link(wire.link, &config, &info.name)?;
        let tables = activate(&info, wire.link.as_mut())?;
        Self::assemble(info, config, tables, wire)
    }

    /// Opens the adapter of the host of a fabric that the settings name (`fabric`, `host`).
    ///
    /// # Errors
    /// [`OpenError::Fabric`] if the fabric or the host is not there;
    /// [`OpenError::NoPackets`]; no descriptor left.
    pub fn open_infiniband(config: Config) -> Result<Arc<Self>, OpenError> {
        let info = fabric_device(&config)?;
        info.check_settings(&config)?;
        let factory = infiniband::factory(&config);
        Self::open_over(info, &factory, config)
    }

    /// Opens an iWARP device by its own name (`viw0`, beside `vernic0`) or by the name of its
    /// netdev. `None` opens the first one. TCP connections carry its queue pairs: see
    /// [`iwarp`](crate::iwarp).
    ///
    /// The device has no packets. Settings that change how packets are sent (window, flows,
    /// offload, pacing) have no effect on it. Settings that show or damage packets are refused.
    ///
    /// # Errors
    /// [`OpenError`]: no such device, no descriptor left; [`OpenError::NoPackets`].
    pub fn open_iwarp(name: Option<&str>, config: Config) -> Result<Arc<Self>, OpenError> {
        let info = choose_iwarp(name.unwrap_or_default())?;
        info.check_settings(&config)?;
        check_mtus(&info, &config)?;
        let streams = Streams::new()
            .map_err(|source| OpenError::Os { what: "make an epoll descriptor", source })?;
        let wire = Wire::new(&info, &NoLink, &config, Box::new(streams))?;
        let kind = info.transport.rules().gid_type();
        let tables = info.ports().map(|(number, port)| port.gid_table(number, kind)).collect();
        Self::assemble(info, config, tables, wire)
    }

    fn assemble(
        info: DeviceInfo,
        config: Config,
        tables: Vec<GidTable>,
        wire: Wire,
    ) -> Result<Arc<Self>, OpenError> {
        let os = |what| move |source| OpenError::Os { what, source };
        let events = EventQueue::new().map_err(os("make an eventfd for events"))?;
        let sleeper = Sleeper::new().map_err(os("make an eventfd for wake-ups"))?;
        let Wire { slots, link, protocol } = wire;
        let mut ports = Vec::new();
        for ((_, port), gids) in info.ports().zip(tables) {
            let active_mtu = choose_mtu(&info.name, port, &config)?;
            ports.push(Port::new(port, active_mtu, gids, link.paths()));
        }
        let shared = (slots, sleeper.waker());
        let device = Arc::new(Device::new(info, config, ports.into(), events, shared));
        let engine = Arc::new(Engine::new(device, link, protocol));
        let has_netdev = engine.ports().iter().any(|port| port.netdev_index() != 0);
        // Without netlink (a sandbox may refuse it) address changes go unnoticed.
        let watcher = has_netdev.then(ChangeWatcher::new).and_then(|watcher| {
            watcher
                .inspect_err(|error| tracing::warn!(%error, "address changes will not be noticed"))
                .ok()
        });
        let ports = engine.with_lane(|lane| lane.link().port_watch());
        if let Some(ports) = &ports {
            // They may have changed between the listing of the device and the opening of its link.
            engine.refresh_link_ports(ports.take());
        }
        let status = StatusSocket::open(&engine.info().name)
            .inspect_err(
                |error| tracing::warn!(%error, "counters of this process are shown nowhere"),
            )
            .ok();
        let cm = CmAgent::new(engine.clone());
        let weak = Arc::downgrade(&engine);
        engine.mads.set_ring(move || {
            if let Some(engine) = weak.upgrade() {
                engine.kick_mads();
            }
        });
        let thread =
            Background::spawn(engine.clone(), sleeper, WatchedFds::new(watcher, ports, status))
                .map_err(os("start the background thread"))?;
        let (thread, ids) = (Mutex::new(Some(thread)), AtomicU64::new(1));
        let context = Arc::new(Self { engine, cm, thread, ids });
        for port in context.engine.ports() {
            let (device, active_mtu) = (&context.info().name, port.active_mtu());
            tracing::debug!(device, netdev = port.netdev(), %active_mtu, "device open");
        }
        Ok(context)
    }

    /// Whether the device was opened before this process was forked. Such a device, and every
    /// object made on it, belongs to the parent process, which continues undisturbed. In this
    /// process, calls on them fail, return nothing or do nothing. Destroying them succeeds, and
    /// what they hold is leaked. To use the device in this process, open it again.
    #[inline]
    pub fn is_orphan(&self) -> bool {
        self.engine().is_orphan()
    }

    /// Returns the description of the device as it was when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        self.engine().info()
    }

    /// Returns the settings that the device was opened with.
    pub fn config(&self) -> &Config {
        self.engine().config()
    }

    /// Returns the attributes and limits of the device (IBTA 11.2.1.2).
    pub fn device_attr(&self) -> DeviceAttr {
        let info = self.engine().info();
        let attr = DeviceAttr::new(
            info.node_guid,
            info.more_ports.len() as u8 + 1,
            self.engine().config(),
        );
        info.transport.rules().device_attr(attr)
    }

    /// Returns the attributes of a port (IBTA 11.2.1.2).
    ///
    /// # Errors
    /// [`PathError::Port`] for a port that the device does not have.
    pub fn port_attr(&self, number: PortNum) -> Result<PortAttr, PathError> {
        let port = self.engine().port(number)?;
        Ok(PortAttr {
            port: number,
            state: if self.is_orphan() { PortState::Down } else { port.state() },
            max_mtu: Mtu::B4096,
            active_mtu: port.active_mtu(),
            netdev_mtu_bytes: port.netdev_mtu_bytes(),
            cap_flags: PORT_CAP_FLAGS,
            gid_table_len: self.engine().rules().gid_table_len(),
            pkey_table_len: self.engine().rules().pkey_table_len(),
            max_msg_bytes: MAX_MSG_BYTES,
            default_gid: self.gid_table().iter().find(|row| row.port == number).map(|row| row.gid),
            bad_pkey_count: self.engine().counts().drops(DropReason::Pkey),
            bad_qkey_count: self.engine().counts().drops(DropReason::Qkey),
            link: port.link(),
        })
    }

    /// Returns the present MTU of a port, the same as in [`port_attr`](Self::port_attr); that of
    /// port 1 if the device has no port of that number. Takes no lock, so it may be called while
    /// locks of the engine are held.
    pub fn active_mtu(&self, number: PortNum) -> Mtu {
        let engine = self.engine();
        engine.port(number).unwrap_or(&engine.ports()[0]).active_mtu()
    }

    /// Returns the filled rows of the GID tables of all ports, those of port 1 first. For an iWARP
    /// device this is its MAC address, in row 0.
    pub fn gid_table(&self) -> Vec<GidEntry> {
        let device = self.engine();
        if self.is_orphan() {
            return Vec::new();
        }
        let info = device.info();
        device.rules().gids(info.node_guid, info.port.netdev_index, &|| device.gid_rows())
    }

    /// Returns a row of the GID table of a port, if it is filled.
    pub fn gid_entry(&self, port: PortNum, index: u8) -> Option<GidEntry> {
        self.gid_table().into_iter().find(|row| (row.port, row.index) == (port, index))
    }

    /// Returns the row that has a GID, of whichever port; the first one, which is of RoCEv2.
    pub fn gid_row(&self, gid: Gid) -> Option<GidEntry> {
        self.gid_table().into_iter().find(|row| row.gid == gid)
    }

    /// Returns the row that has a GID, for this version of RoCE if there is one.
    pub fn gid_row_by(&self, gid: Gid, version: RoceVersion) -> Option<GidEntry> {
        let rows = self.gid_table().into_iter().filter(|row| row.gid == gid);
        rows.min_by_key(|row| row.kind.roce_version() != version)
    }

    /// Checks that packets can be sent by the path that `av` describes. May wait until the system
    /// knows the next hop.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn check_path(&self, av: &AddressVector) -> Result<(), PathError> {
        self.engine().resolve(av, 0).map(|_| ())
    }

    /// Checks a path as [`check_path`](Self::check_path) does, but never waits: a next hop that the
    /// system does not know is an error, and the system begins to ask for it. Meant for paths that
    /// a peer has named, who could otherwise make the caller wait.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn check_path_now(&self, av: &AddressVector) -> Result<(), PathError> {
        self.engine().check_path_now(av)
    }

    /// Returns the management agents of this process on the device.
    ///
    /// # Errors
    /// [`MadError`]: the device has none, or the process may have no more slots or descriptors.
    pub fn management(&self) -> Result<MadAgents, MadError> {
        MadAgents::new(self.engine().clone())
    }

    /// Returns the next hop on the path that `av` describes, if the system does not know its
    /// hardware address. The system then begins to ask for that address. Returns `None` if packets
    /// can be sent now, if `av` cannot be used, and for an iWARP device. Never waits.
    pub fn unknown_next_hop(&self, av: &AddressVector) -> Option<NextHop> {
        let (engine, row) = (self.engine(), self.gid_entry(av.port, av.sgid_index)?);
        if !engine.rules().uses_gids() || engine.rules().has_lids() {
            return None;
        }
        let to = engine.path_request(av).ok()?;
        let peer = LocalAddr::new(to.remote.to_ip(), to.netdev_index).with_port(0);
        NextHop::seek(row.local, to.netdev_index, peer)
    }

    /// Whether a netdev of the device has this address now.
    pub fn has_address(&self, local: LocalAddr) -> bool {
        let has = |port: &Port| port.gids().iter().any(|row| row.local == local);
        !self.is_orphan() && self.engine().ports().iter().any(has)
    }

    /// Returns a row of the P_Key table of a port; row 0 is the default partition.
    pub fn pkey(&self, port: PortNum, index: u16) -> Option<Pkey> {
        self.engine().port(port).ok()?.pkey(index)
    }

    /// Returns the row of a port's P_Key table that has a partition, as a full or limited member.
    pub fn pkey_row(&self, port: PortNum, pkey: Pkey) -> Option<(u16, Pkey)> {
        self.engine().port(port).ok()?.pkey_row(pkey)
    }

    /// Asks subnet administration for the path from row `sgid_index` of a port's GID table to
    /// `dgid`, in the partition of row `pkey_index` of its P_Key table, and waits for the answer:
    /// InfiniBand links only.
    ///
    /// # Errors
    /// [`PathError`]: no such row, no answer.
    pub fn path_to(
        &self,
        port: PortNum,
        sgid_index: u8,
        pkey_index: u16,
        dgid: Gid,
    ) -> Result<PathRecord, PathError> {
        let row = self.gid_entry(port, sgid_index);
        let rows = self.gid_table().len();
        let sgid = row.ok_or(PathError::NoSuchGid { index: sgid_index, rows })?.gid;
        let pkey = self.pkey(port, pkey_index).unwrap_or_default();
        let asked = PathAsked { sgid, dgid, pkey, service: None, traffic_class: None };
        infiniband::path(self.config(), port, &asked)
            .map_err(|error| PathError::NoRecord { dgid, why: error.to_string() })
    }

    /// Returns the number of the port that has a LID, with any path bits: InfiniBand links only.
    pub fn port_of_lid(&self, lid: Lid) -> Option<PortNum> {
        self.engine().port_of_lid(lid).map(Port::number)
    }

    /// Returns the connection manager of the device.
    pub fn cm(&self) -> &CmAgent {
        &self.cm
    }

    /// Returns the descriptor that is readable while an asynchronous event waits.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.engine().events().fd()
    }

    /// Returns the descriptor of [`async_fd`](Self::async_fd) as a number.
    pub fn async_raw_fd(&self) -> RawFd {
        self.engine().events().fd().as_raw_fd()
    }

    /// Waits for the next asynchronous event. On a blocking descriptor there is no time limit.
    ///
    /// # Errors
    /// `WouldBlock` if the application made the descriptor non-blocking and there is no event,
    /// `Interrupted` if a signal came.
    pub fn wait_async_event(&self) -> std::io::Result<AsyncEvent> {
        if self.is_orphan() {
            return Err(orphan_io());
        }
        self.engine().events().wait(|event| event)
    }

    /// Puts an event that was taken behind the waiting ones, so that it is delivered again: each
    /// handle of an XRC target gets the event. Returns false if there is no room for the event
    /// ([`MAX_EVENTS`](crate::MAX_EVENTS)).
    pub fn repeat_async_event(&self, event: AsyncEvent) -> bool {
        !self.is_orphan() && self.engine().events().push(event)
    }

    /// Takes the next asynchronous event if there is one; never waits.
    pub fn try_async_event(&self) -> Option<AsyncEvent> {
        if self.is_orphan() { None } else { self.engine().events().try_next(|event| event) }
    }

    /// Returns totals since the device was opened. Waits for the lane, so not for use on the data
    /// path.
    pub fn counters(&self) -> DeviceCounters {
        if self.is_orphan() { self.engine().own_counters() } else { self.engine().counters() }
    }

    /// Returns the same as [`counters`](Self::counters) without waiting, or `None` while a lock of
    /// the counters' owners is held. Meant for the end of a process: the calling thread itself may
    /// have been interrupted while it held such a lock.
    pub fn try_counters(&self) -> Option<DeviceCounters> {
        let engine = self.engine();
        let mut total = engine.own_counters();
        if self.is_orphan() {
            return Some(total);
        }
        total.cm += engine.cm.try_counters()?;
        total.link += engine.try_link_counters()?;
        if let Some(local) = &engine.local() {
            total.neighbours += local.try_counters()?;
        }
        Some(total)
    }

    /// Returns the last 64 peers that sent something they must not send.
    pub fn offenders(&self) -> Vec<Offender> {
        if self.is_orphan() { Vec::new() } else { self.engine().alarms().offenders() }
    }

    /// Returns the number of open queue pairs. Waits for the lane.
    pub fn open_qps(&self) -> usize {
        if self.is_orphan() { 0 } else { self.engine().with_lane(|lane| lane.table().len()) }
    }

    /// Returns why a queue pair failed, if it did. For queue pairs that were reset or destroyed
    /// since, the last 64 failures are kept, each until its number is in use again. Waits for the
    /// lane.
    pub fn explain(&self, qpn: Qpn) -> Option<Explanation> {
        if self.is_orphan() {
            return None;
        }
        match self.engine().with_lane(|lane| lane.table().find(qpn).cloned()) {
            Some(qp) if !qp.has_state(QpState::Reset) => qp.explain(self.engine()),
            _ => lock(self.engine().past_failures()).find(qpn).cloned(),
        }
    }

    /// Sends and receives once on the calling thread, for programs that poll something other than a
    /// completion queue (such as their own memory). Never blocks.
    pub fn progress(&self) {
        self.try_progress();
    }

    /// Does the same as [`progress`](Self::progress). Returns false if nothing was done because
    /// another thread is making progress.
    pub fn try_progress(&self) -> bool {
        !self.is_orphan() && self.engine().progress_inline()
    }

    /// Does the same as [`progress`](Self::progress), for a process about to end without dropping
    /// the context, and completes a packet capture. Returns false if another thread is making
    /// progress.
    pub fn last_progress(&self) -> bool {
        !self.is_orphan() && self.engine().last_progress()
    }

    /// Gives each destination of the device a congestion controller that `make` returns, in place
    /// of the default one: the controller bounds what all queue pairs of RC and XRC together have
    /// in flight to one address and port. A turn of a queue pair is the unit of both its answers: a
    /// queue pair that finds room, or the time come, sends up to 64 packets.
    ///
    /// The window limits queue pairs while several have packets in flight. One that is alone does
    /// not wait for room: its own controller limits it. One that has waited for 20 ms, or whose
    /// timer fired, is let in, too. [`Congestion::not_before`] holds back all of them. Packets
    /// through shared memory are not governed.
    ///
    /// `make` is called 256 times before this returns, while the lane is held, so it must not call
    /// the device. Destinations whose addresses hash to the same of these controllers share it. A
    /// controller may hear of acknowledgements of packets that were sent before it was put in. If
    /// it panics, the thread that makes progress does.
    pub fn set_destination_control(&self, make: impl Fn() -> Box<dyn Congestion>) {
        if !self.is_orphan() {
            self.engine().with_lane(|lane| lane.set_destination_control(make));
        }
    }

    /// Returns the time of the device: nanoseconds since it was opened.
    pub fn now(&self) -> Time {
        self.engine().now()
    }

    /// Returns the present time of the completions' clock and the time of day
    /// (`ibv_query_rt_values_ex`).
    pub fn clocks(&self) -> Clocks {
        Clocks::read()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the background thread.
    pub(crate) fn stop_background(&self) {
        self.engine.stop_background();
        let thread = lock(&self.thread).take();
        // The background thread itself may drop the last object. It cannot wait for its own end,
        // and ends by the flag.
        let own = std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_orphan() {
            // The thread is not in this process, and nothing that the lane holds may be touched
            // here.
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(thread.take());
            std::mem::forget(self.engine.clone());
            return;
        }
        self.close();
    }
}

/// The parts with which an engine reaches its peers.
struct Wire {
    slots: Arc<SlotTable>,
    link: Box<dyn Link>,
    protocol: Box<dyn WireProtocol>,
}

impl Wire {
    /// Makes process slots for the device, and a link with the factory.
    fn new(
        info: &DeviceInfo,
        factory: &dyn LinkFactory,
        config: &Config,
        protocol: Box<dyn WireProtocol>,
    ) -> Result<Self, OpenError> {
        let slot_error = |source| OpenError::Slot { device: info.name.clone(), source };
        let slots = SlotTable::new().map_err(slot_error)?;
        let setup = LinkSetup {
            slots: slots.clone(),
            offload: config.offload,
            receive_roce_v1: config.roce == RoceVersion::V1,
            socket_buffer_bytes: config.socket_buffer_bytes,
        };
        let link = factory
            .open(&setup)
            .map_err(|source| OpenError::Os { what: "open the device's link", source })?;
        Ok(Self { slots, link, protocol })
    }
}

/// Refuses a device without RoCEv1 if the settings ask for it. A device on `lo` needs none, since
/// no packets leave the host there.
fn check_roce_version(info: &DeviceInfo, config: &Config) -> Result<(), OpenError> {
    let has_none = |port: &&PortInfo| !port.has_roce_v1;
    let port = info.ports().map(|(_, port)| port).find(has_none);
    let is_meant = info.transport == Transport::Roce && !info.loopback;
    let Some(port) = port.filter(|_| config.roce == RoceVersion::V1 && is_meant) else {
        return Ok(());
    };
    let (device, netdev) = (info.name.clone(), port.netdev.clone());
    let reason = port.why_no_roce_v1().unwrap_or_default();
    Err(OpenError::NoRoceV1 { device, netdev, reason })
}

/// Refuses a device one of whose ports has a netdev with too small an MTU.
fn check_mtus(info: &DeviceInfo, config: &Config) -> Result<(), OpenError> {
    info.ports().try_for_each(|(_, port)| choose_mtu(&info.name, port, config).map(drop))
}

fn choose_mtu(device: &str, port: &PortInfo, config: &Config) -> Result<Mtu, OpenError> {
    let netdev_mtu_bytes = port.netdev_mtu_bytes;
    let (device, netdev) = (device.to_owned(), port.netdev.clone());
    let Some(fits) = port.active_mtu else {
        let needed_bytes = Mtu::B256.bytes() + HEADER_ALLOWANCE_BYTES;
        return Err(OpenError::MtuTooSmall { device, netdev, netdev_mtu_bytes, needed_bytes });
    };
    match config.mtu {
        Some(wanted) if wanted > fits => {
            Err(OpenError::MtuTooLarge { device, netdev, wanted, fits, netdev_mtu_bytes })
        }
        Some(wanted) => Ok(wanted),
        None => Ok(fits),
    }
}

/// Returns the GID tables of the ports, without the addresses that the link cannot use now.
fn activate(info: &DeviceInfo, link: &mut dyn Link) -> Result<Vec<GidTable>, OpenError> {
    let mut tables = Vec::new();
    for (number, port) in info.ports() {
        let mut gids = port.gid_table(number, info.transport.rules().gid_type());
        let mut refused = None;
        for &local in &port.addresses {
            match link.activate(local) {
                Ok(()) => {}
                // The address is gone again, or is an IPv6 address that the system still checks for
                // duplicates. The watcher reports when the address is usable.
                Err(error @ LinkError::NoSuchAddress { .. }) => {
                    tracing::debug!(%local, %error, "address not usable yet");
                    gids.remove(local);
                    refused = Some(error);
                }
                Err(source) => return Err(OpenError::Link { device: info.name.clone(), source }),
            }
        }
        if gids.iter().next().is_none() {
            let (device, netdev) = (info.name.clone(), port.netdev.clone());
            // `ip address add` helps where a netdev has the addresses. Else the link says why.
            return Err(match refused {
                Some(source) if port.netdev_index == 0 => OpenError::Link { device, source },
                _ => OpenError::NoAddress { device, netdev },
            });
        }
        tables.push(gids);
    }
    Ok(tables)
}

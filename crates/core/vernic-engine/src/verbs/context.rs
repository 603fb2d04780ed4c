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
use vernic_io::netdev::{ChangeWatcher, HEADER_ALLOWANCE_BYTES};
use vernic_io::{
    Link, LinkError, LinkFactory, LinkSetup, LocalAddr, NextHop, NoLink, Sleeper, StatusSocket,
    UdpFactory,
};
use vernic_proto::{AddressVector, DropReason, QpState, Time};
use vernic_wire::{Gid, Mtu, Pkey, PortNum, Qpn};

use crate::agent::CmAgent;
use crate::config::Config;
use crate::counters::DeviceCounters;
use crate::device::alarms::Offender;
use crate::device::explanation::Explanation;
use crate::device::gid::{GidEntry, GidTable};
use crate::device::limits::{
    DeviceAttr, MAX_GIDS, MAX_MSG_BYTES, MAX_PKEYS, PORT_CAP_FLAGS, PortAttr, PortState,
};
use crate::device::listing::{DeviceInfo, Transport, choose, choose_for, choose_iwarp};
use crate::device::middleware::wrap_link;
use crate::device::opened::{Clocks, Device};
use crate::error::{OpenError, PathError, orphan_io};
use crate::progress::background::{Background, Ears};
use crate::progress::engine::Engine;
use crate::streams::Streams;
use crate::support::events::{AsyncEvent, EventQueue, lock};

/// The only port of a device.
pub(crate) const PORT: PortNum = PortNum(1);

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
        Self::open_on(&info.netdev, info.transport, config)
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
        let active_mtu = choose_mtu(&info, &config)?;
        let mut wire = Wire::new(&info, factory, &config, None)?;
        wire.link = wrap_link(wire.link, &config, &info.name)?;
        let gids = activate(&info, wire.link.as_mut(), info.gid_table())?;
        Self::assemble(info, config, active_mtu, gids, wire)
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
        let active_mtu = choose_mtu(&info, &config)?;
        let streams = Streams::new()
            .map_err(|source| OpenError::Os { what: "make an epoll descriptor", source })?;
        let wire = Wire::new(&info, &NoLink, &config, Some(streams))?;
        let gids = info.gid_table();
        Self::assemble(info, config, active_mtu, gids, wire)
    }

    fn assemble(
        info: DeviceInfo,
        config: Config,
        active_mtu: Mtu,
        gids: GidTable,
        wire: Wire,
    ) -> Result<Arc<Self>, OpenError> {
        let os = |what| move |source| OpenError::Os { what, source };
        let events = EventQueue::new().map_err(os("make an eventfd for events"))?;
        let sleeper = Sleeper::new().map_err(os("make an eventfd for wake-ups"))?;
        let Wire { slots, link, streams } = wire;
        let shared = (slots, link.paths(), sleeper.waker());
        let device = Arc::new(Device::new(info, config, active_mtu, gids, events, shared));
        let engine = Arc::new(Engine::new(device, link, streams));
        // Without netlink (a sandbox may refuse it) address changes go unnoticed.
        let watcher =
            (engine.info().netdev_index != 0).then(ChangeWatcher::new).and_then(|watcher| {
                watcher
                    .inspect_err(
                        |error| tracing::warn!(%error, "address changes will not be noticed"),
                    )
                    .ok()
            });
        let status = StatusSocket::open(&engine.info().name)
            .inspect_err(
                |error| tracing::warn!(%error, "counters of this process are shown nowhere"),
            )
            .ok();
        let cm = CmAgent::new(engine.clone());
        let thread = Background::spawn(engine.clone(), sleeper, Ears { watcher, status })
            .map_err(os("start the background thread"))?;
        let (thread, ids) = (Mutex::new(Some(thread)), AtomicU64::new(1));
        let context = Arc::new(Self { engine, cm, thread, ids });
        let info = context.info();
        tracing::debug!(device = info.name, netdev = info.netdev, %active_mtu, "device open");
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
        let attr = DeviceAttr::new(self.engine().info().node_guid, self.engine().config());
        match self.engine().info().transport {
            Transport::Roce => attr,
            Transport::Iwarp => attr.of_iwarp(),
        }
    }

    /// Returns the attributes of the port.
    ///
    /// # Errors
    /// [`PathError::Port`] for a port other than 1.
    pub fn port_attr(&self, port: PortNum) -> Result<PortAttr, PathError> {
        self.engine().check_port(port)?;
        let up = !self.is_orphan() && self.engine().port().is_up();
        Ok(PortAttr {
            port,
            state: if up { PortState::Active } else { PortState::Down },
            max_mtu: Mtu::B4096,
            active_mtu: self.engine().port().active_mtu(),
            netdev_mtu_bytes: self.engine().port().netdev_mtu_bytes(),
            cap_flags: PORT_CAP_FLAGS,
            gid_table_len: match self.engine().info().transport {
                Transport::Roce => MAX_GIDS,
                Transport::Iwarp => 1,
            },
            pkey_table_len: MAX_PKEYS,
            max_msg_bytes: MAX_MSG_BYTES,
            default_gid: self.gid_table().first().map(|row| row.gid),
            bad_pkey_count: self.engine().counts().drops(DropReason::Pkey),
            bad_qkey_count: self.engine().counts().drops(DropReason::Qkey),
        })
    }

    /// Returns the present MTU of the port, the same as in [`port_attr`](Self::port_attr). Takes no
    /// lock, so it may be called while locks of the engine are held.
    pub fn active_mtu(&self) -> Mtu {
        self.engine().port().active_mtu()
    }

    /// Returns the filled rows of the GID table. For an iWARP device this is its MAC address, in
    /// row 0.
    pub fn gid_table(&self) -> Vec<GidEntry> {
        let rows = match self.engine().info().transport {
            Transport::Roce => self.gids(|gids| gids.iter().cloned().collect()),
            Transport::Iwarp => self.gids(|_| vec![self.engine().info().mac_gid()]),
        };
        rows.unwrap_or_default()
    }

    /// Returns a row of the GID table, if it is filled.
    pub fn gid_entry(&self, index: u8) -> Option<GidEntry> {
        self.gid_table().into_iter().find(|row| row.index == index)
    }

    /// Returns the index of a GID in the table.
    pub fn gid_index(&self, gid: Gid) -> Option<u8> {
        self.gid_table().into_iter().find(|row| row.gid == gid).map(|row| row.index)
    }

    /// Returns the next hop on the path that `av` describes, if the system does not know its
    /// hardware address. The system then begins to ask for that address. Returns `None` if packets
    /// can be sent now, if `av` cannot be used, and for an iWARP device. Never waits.
    pub fn unknown_next_hop(&self, av: &AddressVector) -> Option<NextHop> {
        let (engine, row) = (self.engine(), self.gid_entry(av.sgid_index)?);
        if engine.info().transport != Transport::Roce {
            return None;
        }
        let to = engine.path_request(av).ok()?;
        let peer = engine.local_addr(to.remote.to_ip()).with_port(0);
        NextHop::seek(row.local, to.netdev_index, peer)
    }

    /// Whether the device's netdev has this address now.
    pub fn has_address(&self, local: LocalAddr) -> bool {
        let has = |gids: &GidTable| gids.iter().any(|row| row.local == local);
        self.gids(has).unwrap_or(false)
    }

    /// Runs `look` on the GID table, under its lock; returns `None` on an orphan.
    fn gids<T>(&self, look: impl FnOnce(&GidTable) -> T) -> Option<T> {
        (!self.is_orphan()).then(|| look(&self.engine().port().gids()))
    }

    /// Returns a row of the P_Key table; row 0 is the default partition.
    pub fn pkey(&self, index: u16) -> Option<Pkey> {
        (index < MAX_PKEYS).then_some(Pkey::DEFAULT)
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
        if let Some(near) = &engine.near() {
            total.neighbours += near.try_counters()?;
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
        self.engine.stop.store(true, Ordering::Release);
        self.engine.waker().wake();
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
    /// The TCP connections of an iWARP device; `None` for RoCE.
    streams: Option<Streams>,
}

impl Wire {
    /// Makes process slots for the device, and a link with the factory.
    fn new(
        info: &DeviceInfo,
        factory: &dyn LinkFactory,
        config: &Config,
        streams: Option<Streams>,
    ) -> Result<Self, OpenError> {
        let slot_error = |source| OpenError::Slot { device: info.name.clone(), source };
        let slots = SlotTable::new().map_err(slot_error)?;
        let setup = LinkSetup {
            slots: slots.clone(),
            offload: config.offload,
            socket_buffer_bytes: config.socket_buffer_bytes,
        };
        let link = factory
            .open(&setup)
            .map_err(|source| OpenError::Os { what: "open the device's link", source })?;
        Ok(Self { slots, link, streams })
    }
}

fn choose_mtu(info: &DeviceInfo, config: &Config) -> Result<Mtu, OpenError> {
    let netdev_mtu_bytes = info.netdev_mtu_bytes;
    let (device, netdev) = (info.name.clone(), info.netdev.clone());
    let Some(fits) = info.active_mtu else {
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

/// Removes from the GID table the addresses that the link cannot use now.
fn activate(
    info: &DeviceInfo,
    link: &mut dyn Link,
    mut gids: GidTable,
) -> Result<GidTable, OpenError> {
    for &local in &info.addresses {
        match link.activate(local) {
            Ok(()) => {}
            // The address is gone again, or is an IPv6 address that the system still checks for
            // duplicates. The watcher reports when the address is usable.
            Err(error @ LinkError::NoSuchAddress { .. }) => {
                tracing::debug!(%local, %error, "address not usable yet");
                gids.remove(local);
            }
            Err(source) => return Err(OpenError::Link { device: info.name.clone(), source }),
        }
    }
    if gids.iter().next().is_none() {
        let (device, netdev) = (info.name.clone(), info.netdev.clone());
        return Err(OpenError::NoAddress { device, netdev });
    }
    Ok(gids)
}

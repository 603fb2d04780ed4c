//! An open device: the root of every object.
//!
//! Owns the engine and its background thread. Objects hold a reference each, so the device closes
//! when the last of them is gone. Opening is the only place where sockets are made.

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
    /// Opens a device by its name, or by that of its netdev and the settings' transport. `None`
    /// takes the configured one, or the first.
    ///
    /// # Errors
    /// [`OpenError`]: no such device, no address, MTU too small, UDP port 4791 held by another
    /// user or by a kernel driver.
    pub fn open(name: Option<&str>, config: Config) -> Result<Arc<Self>, OpenError> {
        let info = choose_for(name.unwrap_or(&config.device), &config)?;
        Self::open_on(&info.netdev, info.transport, config)
    }

    /// Opens the device of a transport on a netdev.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
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

    /// Opens a device whose packets are carried by links of any kind: `info` says what it is
    /// called, and which addresses it has. One with netdev 0 has none, and keeps its addresses.
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

    /// Opens an iWARP device by its name (`viw0`, beside `vernic0`) or that of its netdev. `None`
    /// takes the first. Its queue pairs are carried by TCP connections: see
    /// [`iwarp`](crate::iwarp). It has no packets: settings that change how packets are sent
    /// (window, flows, offload, pacing) mean nothing to it, and those that show or damage them are
    /// refused.
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
        // Without netlink (a sandbox may refuse it) addresses stay as they are now.
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

    /// Whether it was opened before this process was forked. Such a device and everything made on
    /// it belong to the parent, which goes on undisturbed: here their calls fail, return nothing or
    /// do nothing, their destruction succeeds, and what they hold is leaked. Open the device again
    /// to use it in this process.
    #[inline]
    pub fn is_orphan(&self) -> bool {
        self.engine().is_orphan()
    }

    /// What was opened, as it was then.
    pub fn info(&self) -> &DeviceInfo {
        self.engine().info()
    }

    /// The settings it was opened with.
    pub fn config(&self) -> &Config {
        self.engine().config()
    }

    /// Attributes and limits (IBTA 11.2.1.2).
    pub fn device_attr(&self) -> DeviceAttr {
        let attr = DeviceAttr::new(self.engine().info().node_guid, self.engine().config());
        match self.engine().info().transport {
            Transport::Roce => attr,
            Transport::Iwarp => attr.of_iwarp(),
        }
    }

    /// Attributes of the port.
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

    /// The MTU that the port has now, as [`port_attr`](Self::port_attr) has it. Takes no lock, so
    /// it may be asked for under those of the engine.
    pub fn active_mtu(&self) -> Mtu {
        self.engine().port().active_mtu()
    }

    /// The filled rows of the GID table; of an iWARP device its MAC, in row 0.
    pub fn gid_table(&self) -> Vec<GidEntry> {
        let rows = match self.engine().info().transport {
            Transport::Roce => self.gids(|gids| gids.iter().cloned().collect()),
            Transport::Iwarp => self.gids(|_| vec![self.engine().info().mac_gid()]),
        };
        rows.unwrap_or_default()
    }

    /// A row of the GID table, if it is filled.
    pub fn gid_entry(&self, index: u8) -> Option<GidEntry> {
        self.gid_table().into_iter().find(|row| row.index == index)
    }

    /// The index of a GID in the table.
    pub fn gid_index(&self, gid: Gid) -> Option<u8> {
        self.gid_table().into_iter().find(|row| row.gid == gid).map(|row| row.index)
    }

    /// The next hop on the way that `av` says, if the system does not know its hardware address and
    /// asks for it from now on; `None` if packets may go, and of an iWARP device. Never waits.
    pub fn unknown_next_hop(&self, av: &AddressVector) -> Option<NextHop> {
        let (engine, row) = (self.engine(), self.gid_entry(av.sgid_index)?);
        if engine.info().transport != Transport::Roce {
            return None;
        }
        let to = engine.path_request(av).ok()?;
        let peer = engine.local_addr(to.remote.to_ip()).with_port(0);
        NextHop::seek(row.local, to.netdev_index, peer)
    }

    /// Whether its netdev has this address now.
    pub fn has_address(&self, local: LocalAddr) -> bool {
        let has = |gids: &GidTable| gids.iter().any(|row| row.local == local);
        self.gids(has).unwrap_or(false)
    }

    /// Looks at the GID table, unless it is an orphan's.
    fn gids<T>(&self, look: impl FnOnce(&GidTable) -> T) -> Option<T> {
        (!self.is_orphan()).then(|| look(&self.engine().port().gids()))
    }

    /// A row of the P_Key table: the default partition in row 0.
    pub fn pkey(&self, index: u16) -> Option<Pkey> {
        (index < MAX_PKEYS).then_some(Pkey::DEFAULT)
    }

    /// Its connection manager.
    pub fn cm(&self) -> &CmAgent {
        &self.cm
    }

    /// The descriptor that is readable while an asynchronous event waits.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.engine().events().fd()
    }

    /// As [`async_fd`](Self::async_fd), as a number.
    pub fn async_raw_fd(&self) -> RawFd {
        self.engine().events().fd().as_raw_fd()
    }

    /// Waits for the next asynchronous event; waits for ever on a blocking descriptor.
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

    /// Puts an event that was taken behind those that wait: an XRC target has it told to each of
    /// its handles. False if there is no room for it ([`MAX_EVENTS`](crate::MAX_EVENTS)).
    pub fn repeat_async_event(&self, event: AsyncEvent) -> bool {
        !self.is_orphan() && self.engine().events().push(event)
    }

    /// Takes the next asynchronous event if there is one; never waits.
    pub fn try_async_event(&self) -> Option<AsyncEvent> {
        if self.is_orphan() { None } else { self.engine().events().try_next(|event| event) }
    }

    /// Totals since the device was opened. Waits for the lane: not for the data path.
    pub fn counters(&self) -> DeviceCounters {
        if self.is_orphan() { self.engine().own_counters() } else { self.engine().counters() }
    }

    /// As [`counters`](Self::counters), without waiting: `None` if somebody is at what they are
    /// read from. For the end of a process, which may have interrupted that one on the very thread
    /// that calls this.
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

    /// Peers that sent what they must not, the last 64 of them.
    pub fn offenders(&self) -> Vec<Offender> {
        if self.is_orphan() { Vec::new() } else { self.engine().alarms().offenders() }
    }

    /// Queue pairs that are open. Waits for the lane.
    pub fn open_qps(&self) -> usize {
        if self.is_orphan() { 0 } else { self.engine().with_lane(|lane| lane.table.len()) }
    }

    /// Why a queue pair failed, if it did. Of those that were reset or destroyed since, the last 64
    /// are known, each until its number is in use again. Waits for the lane.
    pub fn explain(&self, qpn: Qpn) -> Option<Explanation> {
        if self.is_orphan() {
            return None;
        }
        match self.engine().with_lane(|lane| lane.table.find(qpn).cloned()) {
            Some(qp) if !qp.has_state(QpState::Reset) => qp.explain(self.engine()),
            _ => lock(self.engine().past_failures()).find(qpn).cloned(),
        }
    }

    /// Sends and receives once on this thread, for programs that poll something else than a
    /// completion queue (their own memory, say). Never blocks.
    pub fn progress(&self) {
        self.try_progress();
    }

    /// As [`progress`](Self::progress); false if another thread is at it, and so nothing was done
    /// here.
    pub fn try_progress(&self) -> bool {
        !self.is_orphan() && self.engine().progress_inline()
    }

    /// As [`progress`](Self::progress), for a process that is about to end without dropping the
    /// context: a capture has all of its packets then. False if another thread is at it.
    pub fn last_progress(&self) -> bool {
        !self.is_orphan() && self.engine().last_progress()
    }

    /// Time of the device: nanoseconds since it was opened.
    pub fn now(&self) -> Time {
        self.engine().now()
    }

    /// The clock of completions and the time of day, both now (`ibv_query_rt_values_ex`).
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
        // The last object may be let go of by that thread itself; it cannot wait for its own end,
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
            // The thread is not in this process, and nobody may touch what the lane holds.
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(thread.take());
            std::mem::forget(self.engine.clone());
            return;
        }
        self.close();
    }
}

/// How an engine reaches others.
struct Wire {
    slots: Arc<SlotTable>,
    link: Box<dyn Link>,
    /// Of an iWARP device.
    streams: Option<Streams>,
}

impl Wire {
    /// Slots of its own, and a link that the factory makes.
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

/// Leaves the addresses in the GID table that the link can use now.
fn activate(
    info: &DeviceInfo,
    link: &mut dyn Link,
    mut gids: GidTable,
) -> Result<GidTable, OpenError> {
    for &local in &info.addresses {
        match link.activate(local) {
            Ok(()) => {}
            // Gone again, or an IPv6 address that the system still checks for duplicates: the
            // watcher will tell when it is there.
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

//! The state of an open device apart from its lane: names, memory, events, addresses, states of the
//! port, process slots, and what is known of other processes.
//!
//! Owns [`Device`], which the [`Engine`](crate::progress::engine::Engine) holds and gives access
//! to. Nothing of it is written on the data path.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};
use vernic_io::host::SlotTable;
use vernic_io::{Clock, LocalAddr, Origin, TxPath, Waker};
use vernic_mem::{Memory, MwHandle};
use vernic_proto::{KeepBudget, Keeping, Time};
use vernic_wire::{Gid, Lid, PortNum, Rkey};

use crate::config::{Config, PeerRefused};
use crate::counters::Counters;
use crate::device::alarms::{Alarms, Offence};
use crate::device::explanation::PastFailures;
use crate::device::file_objects::FileObjects;
use crate::device::gid::GidEntry;
use crate::device::in_use::InUse;
use crate::device::listing::DeviceInfo;
use crate::device::port::Port;
use crate::device::transport::TransportRules;
use crate::error::PathError;
use crate::local::control::LocalControl;
use crate::local::watch::PeerWatch;
use crate::policy::Cells;
use crate::support::events::{AsyncEvent, CqId, EventQueue};

/// The state of an open device apart from its lane.
pub(crate) struct Device {
    info: DeviceInfo,
    config: Config,
    /// The process that opened the device.
    origin: Origin,
    memory: Memory,
    windows: Mutex<HashMap<u32, MwHandle>>,
    /// The ports, that of number 1 first. There is at least one.
    ports: Box<[Port]>,
    xrcds: FileObjects,
    counters: Counters,
    slots: Arc<SlotTable>,
    local: Option<LocalControl>,
    watch: PeerWatch,
    policy: Cells,
    waker: Waker,
    events: EventQueue<AsyncEvent>,
    past_failures: Mutex<PastFailures>,
    cq_overflows: AtomicU64,
    alarms: Alarms,
    refused_peers: AtomicU64,
    /// How much a queue pair keeps of what comes ahead of a gap.
    keeping: Option<Keeping>,
    in_use: InUse,
    /// CLOCK_MONOTONIC when the device was opened, in nanoseconds.
    started_ns: u64,
    closed: AtomicBool,
    channels: Mutex<Vec<Weak<EventQueue<CqId>>>>,
}

/// The device's clock and the time of day at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The clock of [`Wc::timestamp_ns`](crate::Wc::timestamp_ns): CLOCK_MONOTONIC, nanoseconds.
    pub device_ns: u64,
    /// Time of day: nanoseconds since 1970, UTC.
    pub wall_ns: u64,
}

impl Clocks {
    /// Reads both clocks now.
    pub(crate) fn read() -> Self {
        let device_ns = monotonic_ns();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self { device_ns, wall_ns: since_1970.map_or(0, |since| since.as_nanos() as u64) }
    }

    /// Returns the time of day at which the device's clock showed `timestamp_ns`. It is right
    /// unless the time of day was set in between.
    pub const fn wall_of(&self, timestamp_ns: u64) -> u64 {
        // The addition wraps, because the difference may be negative.
        self.wall_ns.wrapping_add(timestamp_ns.wrapping_sub(self.device_ns))
    }
}

/// Returns CLOCK_MONOTONIC, in nanoseconds. Every Linux has it.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.info.name)
    }
}

impl Device {
    pub(crate) fn new(
        info: DeviceInfo,
        config: Config,
        ports: Box<[Port]>,
        events: EventQueue<AsyncEvent>,
        (slots, waker): (Arc<SlotTable>, Waker),
    ) -> Self {
        let rules = info.transport.rules();
        let shares = rules.uses_gids() && !rules.has_lids();
        let counters = Counters::default();
        let keeping = config.selective_recovery.then(|| {
            let budget = Arc::new(KeepBudget::new(config.keep_bytes as usize));
            Keeping { packets: config.keep_packets, budget }
        });
        let local = shares.then(|| LocalControl::new(&config, &slots, &counters.direct)).flatten();
        Self {
            counters,
            slots,
            local,
            watch: PeerWatch::default(),
            policy: Cells::default(),
            waker,
            ports,
            info,
            config,
            origin: Origin::here(),
            memory: Memory::new(),
            windows: Mutex::default(),
            xrcds: FileObjects::default(),
            events,
            past_failures: Mutex::default(),
            cq_overflows: AtomicU64::new(0),
            alarms: Alarms::default(),
            refused_peers: AtomicU64::new(0),
            keeping,
            in_use: InUse::default(),
            started_ns: monotonic_ns(),
            closed: AtomicBool::new(false),
            channels: Mutex::default(),
        }
    }

    /// Returns the names of the device and of its netdev.
    #[inline]
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns how the transport of the device differs from others.
    #[inline]
    pub(crate) fn rules(&self) -> &'static dyn TransportRules {
        self.info.transport.rules()
    }

    /// Returns the settings that the device was opened with.
    #[inline]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the domains, regions and windows.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the windows by the part of their key that binds do not change.
    #[inline]
    pub(crate) fn windows(&self) -> &Mutex<HashMap<u32, MwHandle>> {
        &self.windows
    }

    /// Returns the ports, that of number 1 first. There is at least one.
    #[inline]
    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the port of a number.
    ///
    /// # Errors
    /// [`PathError::Port`] if the device has no port of that number.
    #[inline]
    pub(crate) fn port(&self, number: PortNum) -> Result<&Port, PathError> {
        let index = usize::from(number.value()).wrapping_sub(1);
        let ports = self.ports.len();
        self.ports.get(index).ok_or(PathError::Port { port: number.value(), ports })
    }

    /// Returns the port that has an IP address.
    pub(crate) fn port_with(&self, ip: IpAddr) -> Option<&Port> {
        self.ports.iter().find(|port| port.gids().iter().any(|row| row.local.ip == ip))
    }

    /// Returns the port that a path leaves from; port 1 if the path's source GID is gone.
    pub(crate) fn port_of(&self, path: &TxPath) -> &Port {
        self.port_of_gid(path.local())
    }

    /// Returns the port that has a GID; port 1 if none has it.
    pub(crate) fn port_of_gid(&self, gid: Gid) -> &Port {
        self.ports.iter().find(|port| port.has_gid(gid)).unwrap_or(&self.ports[0])
    }

    /// Returns the port that has a LID, with any path bits.
    pub(crate) fn port_of_lid(&self, lid: Lid) -> Option<&Port> {
        self.ports.iter().find(|port| port.has_lid(lid))
    }

    /// Returns the filled rows of all GID tables, those of port 1 first.
    pub(crate) fn gid_rows(&self) -> Vec<GidEntry> {
        let mut rows = Vec::new();
        for port in &self.ports {
            rows.extend(port.gids().iter().cloned());
        }
        rows
    }

    /// Returns an address of this device as other processes of the host name it: on the netdev of
    /// the port that has it.
    pub(crate) fn local_addr(&self, ip: IpAddr) -> LocalAddr {
        self.port_with(ip).unwrap_or(&self.ports[0]).local_addr(ip)
    }

    /// Returns the XRC domains, by the files that stand for them (`verbs/xrc.rs`).
    #[inline]
    pub(crate) fn xrcds(&self) -> &FileObjects {
        &self.xrcds
    }

    /// Returns the counters of the data path.
    #[inline]
    pub(crate) fn counts(&self) -> &Counters {
        &self.counters
    }

    /// Returns the process slots of the host.
    #[inline]
    pub(crate) fn slots(&self) -> &Arc<SlotTable> {
        &self.slots
    }

    /// Returns the processes of this host that memory is shared with.
    #[inline]
    pub(crate) fn local(&self) -> Option<&LocalControl> {
        self.local.as_ref()
    }

    /// Returns the processes of this host that queue pairs are connected to.
    #[inline]
    pub(crate) fn watch(&self) -> &PeerWatch {
        &self.watch
    }

    /// Returns the state through which threads inform each other about progress.
    #[inline]
    pub(crate) fn policy(&self) -> &Cells {
        &self.policy
    }

    /// Returns the waker of the background thread.
    #[inline]
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the queue of asynchronous events.
    #[inline]
    pub(crate) fn events(&self) -> &EventQueue<AsyncEvent> {
        &self.events
    }

    /// Returns the failures of queue pairs that were reset or destroyed.
    #[inline]
    pub(crate) fn past_failures(&self) -> &Mutex<PastFailures> {
        &self.past_failures
    }

    /// Returns the number of completion queues that overflowed.
    pub(crate) fn cq_overflows(&self) -> u64 {
        self.cq_overflows.load(Ordering::Relaxed)
    }

    /// Counts a completion queue that overflowed.
    pub(crate) fn note_cq_overflow(&self) {
        self.cq_overflows.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the peers that send what they must not.
    #[inline]
    pub(crate) fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// Returns how much a queue pair keeps of what comes ahead of a gap.
    pub(crate) fn keeping(&self) -> Option<Keeping> {
        self.keeping.clone()
    }

    /// Returns the number of refused TCP connections: their peers are outside of the setting
    /// `peers`.
    pub(crate) fn refused_peers(&self) -> u64 {
        self.refused_peers.load(Ordering::Relaxed)
    }

    /// Returns how much of the device is in use.
    #[inline]
    pub(crate) fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// Whether the device was closed (`verbs/close.rs`).
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Notes that the device is closed; returns whether it was before.
    pub(crate) fn set_closed(&self) -> bool {
        self.closed.swap(true, Ordering::AcqRel)
    }

    /// Returns the completion channels, including destroyed ones.
    #[inline]
    pub(crate) fn channels(&self) -> &Mutex<Vec<Weak<EventQueue<CqId>>>> {
        &self.channels
    }

    /// Refuses a connection of TCP from outside of the setting `peers`, and counts it.
    pub(crate) fn check_connection(&self, peer: IpAddr) -> Result<(), PeerRefused> {
        self.config.peers.check(peer).inspect_err(|_| {
            self.refused_peers.fetch_add(1, Ordering::Relaxed);
            self.note_offence(peer, Offence::NotAllowed);
        })
    }

    /// Counts an offence of a peer.
    #[cold]
    pub(crate) fn note_offence(&self, peer: IpAddr, offence: Offence) {
        self.alarms.note(&self.info.name, peer, offence, self.now());
    }

    /// Whether the device was opened before this process was forked. Then its sockets are closed,
    /// its threads are gone, and any of its locks may be held by a thread that is gone. Nothing but
    /// atomics and what never changes may be touched then.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        !self.origin.is_here()
    }

    /// Returns how long the background thread leaves the lane to application threads that call now
    /// and then, in nanoseconds.
    pub(crate) fn patience(&self) -> u64 {
        self.config.takeover_us * 1000
    }

    /// Notes that an armed completion queue has raised its event, or is gone.
    pub(crate) fn cq_disarmed(&self) {
        self.policy.disarm();
    }

    /// Returns the nanoseconds since the device was opened.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time(monotonic_ns().saturating_sub(self.started_ns))
    }

    /// Returns the same of the clock of a lane, which is read faster.
    #[inline]
    pub(crate) fn now_by(&self, clock: &mut Clock) -> Time {
        Time(clock.now_ns(monotonic_ns).saturating_sub(self.started_ns))
    }

    /// Returns `now` as completions report it: nanoseconds of CLOCK_MONOTONIC.
    #[inline]
    pub(crate) fn timestamp_ns(&self, now: Time) -> u64 {
        self.started_ns + now.nanos()
    }
}

/// Returns the part of a window's key that its binds do not change.
pub(crate) fn window_index(rkey: Rkey) -> u32 {
    rkey.value() >> 8
}

//! What an open device is beside its lane: names, memory, events, addresses, states of the port,
//! process slots, and what is known of other processes.
//!
//! Owns [`Device`], which the [`Engine`](crate::progress::engine::Engine) holds and is looked at
//! through. Nothing of it is written on the data path.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};
use vernic_io::host::SlotTable;
use vernic_io::{Origin, Paths, Waker};
use vernic_mem::{Memory, MwHandle};
use vernic_proto::Time;
use vernic_wire::{Mtu, Rkey};

use crate::config::{Config, PeerRefused};
use crate::counters::Counters;
use crate::device::alarms::{Alarms, Offence};
use crate::device::explanation::PastFailures;
use crate::device::file_objects::FileObjects;
use crate::device::gid::GidTable;
use crate::device::in_use::InUse;
use crate::device::listing::{DeviceInfo, Transport};
use crate::device::port::Port;
use crate::local::control::NearControl;
use crate::local::watch::Watch;
use crate::policy::Cells;
use crate::support::events::{AsyncEvent, CqId, EventQueue};

/// See the module's head.
pub(crate) struct Device {
    pub(crate) info: DeviceInfo,
    pub(crate) config: Config,
    /// The process that opened the device.
    origin: Origin,
    pub(crate) memory: Memory,
    /// Windows by the part of their key that binds do not change.
    pub(crate) windows: Mutex<HashMap<u32, MwHandle>>,
    pub(crate) port: Port,
    /// XRC domains that files stand for (`verbs/xrc.rs`).
    pub(crate) xrcds: FileObjects,
    pub(crate) counters: Counters,
    pub(crate) slots: Arc<SlotTable>,
    /// Processes of this host that memory is shared with.
    pub(crate) near: Option<NearControl>,
    /// Processes of this host that queue pairs are connected to.
    pub(crate) watch: Watch,
    /// What threads tell each other about progress.
    pub(crate) policy: Cells,
    /// Wakes the background thread.
    pub(crate) waker: Waker,
    pub(crate) events: EventQueue<AsyncEvent>,
    pub(crate) past_failures: Mutex<PastFailures>,
    /// Completion queues that overflowed.
    pub(crate) cq_overflows: AtomicU64,
    /// Peers that send what they must not.
    pub(crate) alarms: Alarms,
    /// Connections of TCP from outside of the setting `peers`.
    pub(crate) refused_peers: AtomicU64,
    pub(crate) in_use: InUse,
    /// CLOCK_MONOTONIC when the device was opened, nanoseconds.
    started_ns: u64,
    /// See `close.rs`.
    pub(crate) closed: AtomicBool,
    /// Completion channels, those that are gone among them.
    pub(crate) channels: Mutex<Vec<Weak<EventQueue<CqId>>>>,
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
    /// Both clocks now.
    pub(crate) fn read() -> Self {
        let device_ns = monotonic_ns();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self { device_ns, wall_ns: since_1970.map_or(0, |since| since.as_nanos() as u64) }
    }

    /// The time of day at which the device's clock showed `timestamp_ns`, as far as nobody has set
    /// the time of day since.
    pub const fn wall_of(&self, timestamp_ns: u64) -> u64 {
        // Wraps back: the difference may be negative.
        self.wall_ns.wrapping_add(timestamp_ns.wrapping_sub(self.device_ns))
    }
}

/// CLOCK_MONOTONIC, nanoseconds. Every Linux has it.
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
        active_mtu: Mtu,
        gids: GidTable,
        events: EventQueue<AsyncEvent>,
        (slots, paths, waker): (Arc<SlotTable>, Arc<dyn Paths>, Waker),
    ) -> Self {
        let shares = info.transport == Transport::Roce;
        let near = shares.then(|| NearControl::new(&config, &slots)).flatten();
        Self {
            counters: Counters::default(),
            slots,
            near,
            watch: Watch::default(),
            policy: Cells::default(),
            waker,
            port: Port::new(&info, active_mtu, gids, paths),
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
            in_use: InUse::default(),
            started_ns: monotonic_ns(),
            closed: AtomicBool::new(false),
            channels: Mutex::default(),
        }
    }

    /// Refuses a connection of TCP from outside of the setting `peers`, and counts it.
    pub(crate) fn check_connection(&self, peer: IpAddr) -> Result<(), PeerRefused> {
        self.config.peers.check(peer).inspect_err(|_| {
            self.refused_peers.fetch_add(1, Ordering::Relaxed);
            self.note_offence(peer, Offence::NotAllowed);
        })
    }

    /// A peer did what it must not.
    #[cold]
    pub(crate) fn note_offence(&self, peer: IpAddr, offence: Offence) {
        self.alarms.note(&self.info.name, peer, offence, self.now());
    }

    /// Whether the device was opened before this process was forked: its sockets are closed, its
    /// threads are gone, and any of its locks may be held by a thread that is gone. Nothing but
    /// atomics and what never changes may be touched then.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        !self.origin.is_here()
    }

    /// How long the background thread leaves the lane to application threads that call now and
    /// then, in nanoseconds.
    pub(crate) fn patience(&self) -> u64 {
        self.config.takeover_us * 1000
    }

    /// An armed completion queue has raised its event, or is gone.
    pub(crate) fn cq_disarmed(&self) {
        self.policy.disarm();
    }

    /// Nanoseconds since the device was opened.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time(monotonic_ns().saturating_sub(self.started_ns))
    }

    /// `now` as completions tell it: nanoseconds of CLOCK_MONOTONIC.
    #[inline]
    pub(crate) fn timestamp_ns(&self, now: Time) -> u64 {
        self.started_ns + now.nanos()
    }
}

/// The part of a window's key that its binds do not change.
pub(crate) fn window_index(rkey: Rkey) -> u32 {
    rkey.value() >> 8
}

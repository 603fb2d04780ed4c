//! What the engines of an open device share: names, memory, events, addresses, states of the port.
//!
//! Owns [`Device`], which every [`Engine`](crate::progress::engine::Engine) holds and is looked at through.
//! Nothing of it is written on the data path.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};
use vernic_io::Origin;
use vernic_mem::{Memory, MwHandle};
use vernic_proto::Time;
use vernic_wire::Mtu;

use crate::config::{Config, PeerRefused};
use crate::counters::DeviceCounters;
use crate::device::alarms::{Alarms, Offence};
use crate::device::gid::GidTable;
use crate::device::listing::DeviceInfo;
use crate::local::control::NearControl;
use crate::progress::engine::Engine;
use crate::qp::explanation::PastFailures;
use crate::support::events::{AsyncEvent, EventQueue};
use crate::verbs::channel::CompChannel;
use crate::verbs::tables::GroupMembers;
use crate::verbs::xrc::XrcdFiles;

/// See the module's head.
pub(crate) struct Device {
    pub(crate) info: DeviceInfo,
    pub(crate) config: Config,
    /// The process that opened the device.
    origin: Origin,
    pub(crate) memory: Memory,
    /// Windows by the part of their key that binds do not change.
    pub(crate) windows: Mutex<HashMap<u32, MwHandle>>,
    pub(crate) gids: Mutex<GidTable>,
    /// Queue pairs in multicast groups.
    pub(crate) group_members: Mutex<GroupMembers>,
    /// XRC domains that files stand for.
    pub(crate) xrcds: XrcdFiles,
    pub(crate) events: EventQueue<AsyncEvent>,
    pub(crate) past_failures: Mutex<PastFailures>,
    /// Completion queues that overflowed.
    pub(crate) cq_overflows: AtomicU64,
    /// Peers that send what they must not.
    pub(crate) alarms: Alarms,
    /// Connections of TCP from outside of the setting `peers`.
    pub(crate) refused_peers: AtomicU64,
    /// Completion queues that are open.
    pub(crate) cqs: AtomicUsize,
    /// Shared receive queues that are open.
    pub(crate) srqs: AtomicUsize,
    /// Bytes of device memory in use.
    pub(crate) dm_bytes: AtomicU64,
    pub(crate) port_up: AtomicBool,
    /// The netdev is gone, and the application knows.
    pub(crate) removed: AtomicBool,
    /// Code of the active MTU.
    pub(crate) active_mtu: AtomicU8,
    pub(crate) netdev_mtu_bytes: AtomicU64,
    /// CLOCK_MONOTONIC when the device was opened, nanoseconds.
    started_ns: u64,
    /// See `close.rs`.
    pub(crate) closed: AtomicBool,
    /// Completion channels, those that are gone among them.
    pub(crate) channels: Mutex<Vec<Weak<CompChannel>>>,
    /// All of them, from when the device is open until it is dropped.
    engines: OnceLock<Box<[Weak<Engine>]>>,
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

impl Device {
    pub(crate) fn new(
        info: DeviceInfo,
        config: Config,
        active_mtu: Mtu,
        gids: GidTable,
        events: EventQueue<AsyncEvent>,
    ) -> Self {
        Self {
            port_up: AtomicBool::new(info.up),
            removed: AtomicBool::new(false),
            netdev_mtu_bytes: AtomicU64::new(u64::from(info.netdev_mtu_bytes)),
            active_mtu: AtomicU8::new(active_mtu as u8),
            info,
            config,
            origin: Origin::here(),
            memory: Memory::new(),
            windows: Mutex::default(),
            gids: Mutex::new(gids),
            group_members: Mutex::default(),
            xrcds: XrcdFiles::default(),
            events,
            past_failures: Mutex::default(),
            cq_overflows: AtomicU64::new(0),
            alarms: Alarms::default(),
            refused_peers: AtomicU64::new(0),
            cqs: AtomicUsize::new(0),
            srqs: AtomicUsize::new(0),
            dm_bytes: AtomicU64::new(0),
            started_ns: monotonic_ns(),
            closed: AtomicBool::new(false),
            channels: Mutex::default(),
            engines: OnceLock::new(),
        }
    }

    /// Makes its engines known, once.
    pub(crate) fn know(&self, engines: &[Arc<Engine>]) {
        let _ = self.engines.set(engines.iter().map(Arc::downgrade).collect());
    }

    /// Its engines; the first is the one that has QP1.
    pub(crate) fn engines(&self) -> impl Iterator<Item = Arc<Engine>> {
        self.engines.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Totals since it was opened. Waits for the lanes.
    pub(crate) fn counters(&self) -> DeviceCounters {
        let mut total = self.own_counters();
        for engine in self.engines() {
            total.cm += engine.cm.counters();
            total.link += engine.with_lane(|lane| lane.link.counters());
            total.neighbours += engine.near.as_ref().map(NearControl::counters).unwrap_or_default();
        }
        total
    }

    /// Those of the counters that are read without a lock.
    pub(crate) fn own_counters(&self) -> DeviceCounters {
        let mut total = DeviceCounters::default();
        self.engines().for_each(|engine| engine.counters.add_to(&mut total));
        total.cq_overflows = self.cq_overflows.load(Ordering::Relaxed);
        total.async_events_dropped = self.events.dropped();
        total.refused_peers = self.refused_peers.load(Ordering::Relaxed);
        total
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

    /// Returns when every access to memory that was in flight in a lane is over.
    pub(crate) fn barrier(&self) {
        self.engines().for_each(|engine| engine.with_lane(|_| ()));
    }

    /// Whether the device was opened before this process was forked: its sockets are closed, its
    /// threads are gone, and any of its locks may be held by a thread that is gone. Nothing but
    /// atomics and what never changes may be touched then.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        !self.origin.is_here()
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

    /// Largest path MTU that fits the netdev now.
    pub(crate) fn active_mtu(&self) -> Mtu {
        Mtu::from_code(self.active_mtu.load(Ordering::Relaxed)).unwrap_or(Mtu::B256)
    }
}

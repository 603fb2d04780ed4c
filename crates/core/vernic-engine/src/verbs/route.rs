//! The route of a queue pair's packets, as it is reported to applications.

use std::fmt;
use std::sync::Arc;

use vernic_io::host::Slot;
use vernic_local::ConnectFailure;
use vernic_local::{LocalPeer, LocalPeers, PeerProcess, RequestRoute};
use vernic_mem::Access;
use vernic_wire::Service;

use crate::config::Config;
use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::handle::Qp;

/// The route of the requests of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Through memory that is shared with the peer's process.
    SharedMemory {
        /// The process id of the peer; 0 if the process is not visible in this process's PID
        /// namespace.
        pid: u32,
        /// Which requests take packets through that memory because Yama forbids better; `None` if
        /// that is not known of any.
        yama: Option<YamaForbids>,
    },
    /// By UDP or, on an iWARP device, by TCP.
    Wire(WhyWire),
}

/// Requests that take packets because Yama (`kernel.yama.ptrace_scope` is 1) keeps processes of one
/// user from each other's memory. The setting `direct=ptrace` of the process that owns the memory
/// lifts that, for one process at a time. Memory that is mapped is not concerned: what the Vernic
/// API allocates, and what `share_memory` moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum YamaForbids {
    /// WRITEs, READs and atomics to memory of the peer that is not mapped.
    OneSided,
    /// SENDs of 128 KiB or more, which the peer would copy out of this process's memory.
    LargeSends,
    /// Both.
    Both,
}

impl YamaForbids {
    fn of(peer: &PeerProcess) -> Option<Self> {
        match (peer.is_kept_out(), peer.keeps_out()) {
            (false, false) => None,
            (true, false) => Some(Self::OneSided),
            (false, true) => Some(Self::LargeSends),
            (true, true) => Some(Self::Both),
        }
    }
}

/// The reason why a queue pair does not use shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyWire {
    /// The queue pair is not connected to a peer.
    NotConnected,
    /// The queue pair is of UD, where each datagram has a route of its own; the device's counters
    /// show them.
    Datagrams,
    /// `same_host` is off, or `force_wire` is on.
    Settings,
    /// The settings `capture`, `trace` or `fault` are on, which observe or change packets of the
    /// wire.
    Watched,
    /// The device is an iWARP device, which has no packets.
    Iwarp,
    /// The device is one of a fabric, whose process carries all packets.
    Fabric,
    /// This process could not make memory that can be shared. The log says why, at level `warn`.
    NoMemory,
    /// The peer is not a process of this host and user, or has not answered yet that it is.
    NotHere,
    /// The local connection to the peer's process has not been set up yet.
    NotMet,
    /// The local connection to the peer's process could not be set up. Another try is made in the
    /// next minutes, and for each new queue pair.
    Hindered(ConnectFailure),
    /// The local connection to the peer's process is set up, but packets of the queue pair are
    /// still on the wire, or the queue pair has sent nothing since.
    NotYet,
    /// The peer's process is gone.
    Gone,
}

impl Route {
    /// Returns the route in one word: `memory`, `link` (UDP, or frames of RoCEv1), `tcp`, `fabric`,
    /// or `none`.
    pub fn way(&self) -> &'static str {
        match self {
            Self::SharedMemory { .. } => "memory",
            Self::Wire(WhyWire::Iwarp) => "tcp",
            Self::Wire(WhyWire::Fabric) => "fabric",
            Self::Wire(WhyWire::NotConnected) => "none",
            Self::Wire(_) => "link",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedMemory { pid: 0, .. } => {
                f.write_str("memory shared with a process of another PID namespace")
            }
            Self::SharedMemory { pid, yama: None } => {
                write!(f, "memory shared with process {pid}")
            }
            Self::SharedMemory { pid, yama: Some(yama) } => {
                write!(f, "memory shared with process {pid}; {yama}")
            }
            Self::Wire(why) => write!(f, "wire: {why}"),
        }
    }
}

impl fmt::Display for YamaForbids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ONE_SIDED: &str = "one-sided requests to memory that is not mapped take packets, as Yama forbids more: the peer's direct=ptrace lifts it, memory of the Vernic API or share_memory avoids it";
        const LARGE_SENDS: &str = "large SENDs take packets, as Yama forbids more: direct=ptrace here lifts it, for one process at a time";
        match self {
            Self::OneSided => f.write_str(ONE_SIDED),
            Self::LargeSends => f.write_str(LARGE_SENDS),
            Self::Both => write!(f, "{ONE_SIDED}; {LARGE_SENDS}"),
        }
    }
}

impl fmt::Display for WhyWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => "not connected",
            Self::Datagrams => "each datagram goes its own way",
            Self::Settings => "same_host is off or force_wire is on",
            Self::Watched => "packets are captured, traced or damaged on purpose",
            Self::Iwarp => "iWARP",
            Self::Fabric => "the fabric process carries all packets",
            Self::NoMemory => "no memory or descriptor was left to share when the device was opened (`VERNIC_LOG=warn` says why)",
            Self::NotHere => "the peer is no process of this host and user",
            Self::NotMet => "the peer's process is not met yet",
            Self::Hindered(why) => return why.fmt(f),
            Self::NotYet => "nothing was sent yet since the peer's process was met",
            Self::Gone => "the peer's process is gone",
        })
    }
}

impl Config {
    /// Whether the settings allow packets to go through shared memory.
    pub(crate) fn shares_memory(&self) -> bool {
        self.same_host && !self.force_wire && !self.watches_packets()
    }

    /// Whether the settings want memory with these rights to be moved to where other processes can
    /// map it.
    pub(crate) fn moves_memory(&self, access: Access) -> bool {
        self.share_memory
            && self.direct.is_on()
            && self.shares_memory()
            && access.intersects(Access::REMOTE)
    }

    fn watches_packets(&self) -> bool {
        self.trace || !self.capture.is_empty() || !self.fault.is_empty()
    }
}

impl Qp {
    /// Returns the present route of the queue pair's requests. Waits for the lane, so it is not for
    /// the data path.
    pub fn route(&self) -> Route {
        let engine = self.engine();
        let orphaned = Route::Wire(WhyWire::NotConnected);
        if engine.is_orphan() { orphaned } else { engine.route(self.inner()) }
    }
}

impl Context {
    /// Returns why no packet of this device goes through shared memory; `None` if packets do
    /// whenever the peer is a process of this host that also shares memory.
    pub fn why_wire(&self) -> Option<WhyWire> {
        self.engine().why_wire()
    }
}

impl Engine {
    fn why_wire(&self) -> Option<WhyWire> {
        let config = &self.config();
        match () {
            () if !self.rules().uses_gids() => Some(WhyWire::Iwarp),
            () if self.rules().has_lids() => Some(WhyWire::Fabric),
            () if !config.same_host || config.force_wire => Some(WhyWire::Settings),
            () if config.watches_packets() => Some(WhyWire::Watched),
            () => self.local().is_none().then_some(WhyWire::NoMemory),
        }
    }

    fn route(&self, qp: &QpInner) -> Route {
        match self.why_wire() {
            Some(why) => Route::Wire(why),
            None if qp.service() == Service::Ud => Route::Wire(WhyWire::Datagrams),
            None => self.told(self.with_lane(|lane| local_route(lane.local_peers(), qp)), qp),
        }
    }

    /// Returns the routes of several queue pairs. Takes the lane once.
    pub(super) fn routes(&self, qps: &[Arc<QpInner>]) -> Vec<Route> {
        if let Some(why) = self.why_wire() {
            return vec![Route::Wire(why); qps.len()];
        }
        let routes = self.with_lane(|lane| {
            let of = |qp: &Arc<QpInner>| match qp.service() {
                Service::Ud => Route::Wire(WhyWire::Datagrams),
                _ => local_route(lane.local_peers(), qp),
            };
            qps.iter().map(of).collect::<Vec<_>>()
        });
        routes.into_iter().zip(qps).map(|(route, qp)| self.told(route, qp)).collect()
    }

    /// Adds to the route the reason why shared memory with the peer's process could not be
    /// connected, if that is known.
    fn told(&self, route: Route, qp: &QpInner) -> Route {
        let peer = lock(&qp.core).machine.attr().dest_qpn;
        let failure = || self.local()?.connect_failure(Slot::of(peer));
        match route {
            Route::Wire(WhyWire::NotMet) => {
                Route::Wire(failure().map_or(WhyWire::NotMet, WhyWire::Hindered))
            }
            route => route,
        }
    }
}

fn local_route(local_peers: &LocalPeers, qp: &QpInner) -> Route {
    let mut core = lock(&qp.core);
    let is_idle = core.machine.packets().is_some_and(|machine| !machine.has_unacknowledged());
    let Some(path) = core.side.peer.path() else { return Route::Wire(WhyWire::NotConnected) };
    let shared = |id| local_peers.peer(id).map(LocalPeer::pid);
    let yama = core.side.peer.grants().peer().and_then(|peer| YamaForbids::of(peer));
    let dest = core.machine.attr().dest_qpn;
    let known = local_peers.peer_of(path, dest);
    let route = core.side.peer.route();
    if route.requests() == RequestRoute::Wire
        && is_idle
        && let Some(pid) = route.answer_ring().and_then(shared)
    {
        // What the peer sends comes through memory. So will requests go, since none is on the wire.
        return Route::SharedMemory { pid, yama };
    }
    match route.requests() {
        RequestRoute::Ring(id) => {
            shared(id).map_or(Route::Wire(WhyWire::Gone), |pid| Route::SharedMemory { pid, yama })
        }
        RequestRoute::PeerGone => Route::Wire(WhyWire::Gone),
        RequestRoute::Wire if !path.is_local() => Route::Wire(WhyWire::NotHere),
        RequestRoute::Wire if known.is_none() => Route::Wire(WhyWire::NotMet),
        // UC changes to the ring when the peer has taken all that was sent to it by UDP: see the
        // head of `peers.rs` in `vernic-local`.
        RequestRoute::Wire => match known.and_then(|id| local_peers.peer(id)) {
            Some(peer) if qp.service() == Service::Uc && peer.takes_datagrams() => {
                Route::SharedMemory { pid: peer.pid(), yama }
            }
            _ => Route::Wire(WhyWire::NotYet),
        },
    }
}

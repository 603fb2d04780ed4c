//! The peer of a connected queue pair: the path, its alternate, the routes to the peer, its process
//! if it is of this host, the addresses and ports of its packets, and the grants that it has given.
//!
//! Set when the queue pair goes to RTR, and empty before. The lane changes it when a local peer
//! connects or goes, and as it learns from packets. Protected by the lock of the queue pair's core.

use std::sync::Arc;

use vernic_io::{Address, Peer, TxPath};
use vernic_local::{LocalPeerId, PeerProcess, QpGrants, QpRoute};
use vernic_proto::{PathMigState, QpAttr, Time};
use vernic_wire::Qpn;

use crate::config::Config;
use crate::device::explanation::LivePeer;
use crate::device::opened::Device;
use crate::device::path::Resolved;
use crate::device::peer_end::PeerEnd;
use crate::device::peer_qp::{self, Asked, PeerQp};
use crate::local::watch::{HostProcess, PeerLocation};
use crate::qp::source::{Sender, Source};

/// The peer of a connected queue pair; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct QpPeer {
    /// The path to the peer, from RTR on.
    path: Option<TxPath>,
    /// The addresses that packets must have: the peer's and our own.
    ends: Option<(Address, Address)>,
    /// The path that a migration leads to.
    alternate: Option<Box<Resolved>>,
    /// The UDP ports that the peer sends from.
    source: Source,
    /// The process of this host that the queue pair is connected to. This process had the peer's
    /// slot when the path was found.
    process: Option<HostProcess>,
    /// The peer's queue pair.
    dest: Option<Qpn>,
    /// When the process was noticed to have closed its device in order.
    left_at: Option<Time>,
    /// The routes of packets: by the wire or through memory.
    route: QpRoute,
    /// The grants of a peer on this host.
    grants: QpGrants,
    /// The time at which a packet of the peer was last taken.
    heard: Option<Time>,
    /// What the peer's process was asked about the peer when it did not answer.
    asked: Option<Box<Asked>>,
}

impl QpPeer {
    /// Sets the path to a peer that was not heard yet. Grants of the local peer on the last path
    /// are of no use any more. The caller ends the grants that were given to that peer here.
    pub(super) fn connect(&mut self, resolved: &Resolved, dest: Option<Qpn>) {
        self.grants.connect(None);
        self.path = Some(resolved.path);
        self.route = QpRoute::default();
        self.process = resolved.location.process().cloned();
        self.ends = Some((resolved.peer, resolved.local));
        self.source = Source::default();
        (self.dest, self.left_at, self.asked) = (dest, None, None);
    }

    /// Changes the path to the same peer, as in SQD. What goes through memory still does, whatever
    /// path is underneath: once the peer has heard this queue pair through memory, it takes nothing
    /// by the link.
    pub(super) fn change_path(&mut self, resolved: &Resolved) {
        let ends = (resolved.peer, resolved.local);
        let (Some(old), true) = (self.path, self.ends == Some(ends)) else {
            return self.connect(resolved, self.dest);
        };
        match (&resolved.location, self.pid()) {
            (PeerLocation::Here(process), before)
                if before.is_none_or(|pid| pid == process.pid()) =>
            {
                self.path = Some(resolved.path);
                self.name_process(process);
            }
            (PeerLocation::Here(_), _) => return self.connect(resolved, self.dest),
            // The peer did not say in time that it is of this host, but that is known.
            (_, Some(_)) => {
                self.path = Some(match old.peer() {
                    Peer::Remote => resolved.path,
                    Peer::LocalProcess(process) => resolved.path.to_process(process),
                });
            }
            (_, None) => self.path = Some(resolved.path),
        }
        self.grants.renew();
        self.heard = None;
    }

    /// Loads the path that a migration leads to.
    pub(crate) fn load_alternate(&mut self, resolved: Resolved) {
        self.alternate = Some(Box::new(resolved));
    }

    /// Takes the path that a migration leads to; there is none any more.
    pub(super) fn take_alternate(&mut self) -> Option<Box<Resolved>> {
        self.alternate.take()
    }

    /// Whether a packet that came from `src` to `dst` has the addresses of the path that a
    /// migration leads to.
    pub(crate) fn is_by_alternate(&self, src: &Address, dst: &Address) -> bool {
        self.alternate.as_ref().is_some_and(|to| to.peer == *src && to.local == *dst)
    }

    /// Whether packets have the same addresses by the path that a migration leads to.
    pub(crate) fn is_alternate_alike(&self) -> bool {
        self.ends.as_ref().is_some_and(|(peer, own)| self.is_by_alternate(peer, own))
    }

    /// Switches to the local path: the path to the queue pair's `peer` was found to lead to this
    /// process of this host.
    pub(crate) fn switch_to_local_path(
        &mut self,
        engine: &Device,
        path: TxPath,
        peer: Qpn,
        to: HostProcess,
    ) {
        self.path = Some(path);
        self.name_process(&to);
        engine.watch_peer(path.remote().to_ip(), peer, &PeerLocation::Here(to));
    }

    /// Notes that the queue pair is connected to this process of this host.
    pub(crate) fn name_process(&mut self, process: &HostProcess) {
        self.process = Some(process.clone());
    }

    /// Returns the path to the peer.
    #[inline]
    pub(crate) fn path(&self) -> Option<&TxPath> {
        self.path.as_ref()
    }

    /// Returns the process of this host that the queue pair is connected to; 0 if the process
    /// cannot be seen.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(HostProcess::pid)
    }

    /// Whether the peer's process has left in order.
    pub(crate) fn has_left(&self) -> bool {
        self.process.as_ref().is_some_and(HostProcess::has_left)
    }

    /// Notes that the peer's process has closed its device in order.
    pub(crate) fn note_left(&mut self, now: Time) {
        self.left_at.get_or_insert(now);
    }

    /// Returns what is known of the end of a peer of this host; `None` if the peer is there, or of
    /// another host.
    pub(super) fn end(&self, now: Time) -> Option<PeerEnd> {
        let (process, dest) = (self.process.as_ref()?, self.dest?);
        let pid = process.pid();
        if process.has_left() {
            let before_ms = self.left_at.map(|at| now.since(at) / 1_000_000);
            return Some(PeerEnd::Left { pid, before_ms });
        }
        (!process.has(dest)).then_some(PeerEnd::QpAway { pid })
    }

    /// Returns how long a silent peer is waited for, in nanoseconds: as long as its process and its
    /// queue pair are known to be there. `Engine::check_peers` finds out that the process is
    /// gone.
    pub(super) fn patience(&self, config: &Config, attr: &QpAttr) -> u64 {
        let is_there = self.process.as_ref().is_some_and(|process| process.has(attr.dest_qpn));
        // Without retries the application wants to hear of a loss. A ring loses nothing.
        let is_repaired = attr.retry_cnt != 0 || self.route.is_ring();
        // It is better to look for the peer by the alternate path than to wait on this one.
        let has_alternate = attr.path_mig_state == PathMigState::Armed && !self.route.is_ring();
        // If packets are lost on purpose, the user wants to see the result.
        match is_there && is_repaired && !has_alternate && config.fault.is_empty() {
            true => u64::from(config.live_peer_timeout_s) * 1_000_000_000,
            false => 0,
        }
    }

    /// Asks the peer's process, if it is one of this host, what is wrong with the peer, after so
    /// many silences of it. The answer comes later: [`told`](Self::told).
    #[cold]
    pub(crate) fn ask(&mut self, own: Qpn, attr: &QpAttr, timeouts: u64, now: Time) {
        let Some(pid) = self.pid() else { return };
        let silence = (timeouts, self.heard.is_some());
        let asked = peer_qp::ask(self.asked.as_deref(), (pid, own, attr), silence, now);
        if let Some(asked) = asked {
            self.asked = Some(Box::new(asked));
        }
    }

    /// Returns what the peer's process has told of the peer.
    pub(crate) fn told(&self) -> Option<&PeerQp> {
        self.asked.as_ref().and_then(|asked| asked.answer())
    }

    /// Returns the peer's process, if it is waited for.
    pub(crate) fn live_peer(&self, config: &Config, attr: &QpAttr) -> Option<LivePeer> {
        let pid = self.pid().filter(|_| self.patience(config, attr) != 0)?;
        Some(LivePeer::look(pid, config.live_peer_timeout_s))
    }
}

/// Packets of the peer.
impl QpPeer {
    /// Whether a packet that came from `src` to `dst` has the addresses of the connection; `None`
    /// without a connection.
    #[inline]
    pub(crate) fn has_addresses(&self, src: &Address, dst: &Address) -> Option<bool> {
        self.ends.as_ref().map(|(peer, own)| peer == src && own == dst)
    }

    /// Returns the address that packets of the peer come from; `None` without a connection.
    pub(crate) fn address(&self) -> Option<Address> {
        self.ends.as_ref().map(|(peer, _)| *peer)
    }

    /// Whether a packet by the link comes from the port that the peer was heard from.
    #[inline]
    pub(crate) fn has_port(&self, is_request: bool, port: u16) -> bool {
        self.source.is_peer(is_request, port)
    }

    /// Returns the sender of a packet that has the peer's address, but not the port that the peer
    /// was heard from; `None` if the packet is to be refused. A stranger's packet must be
    /// `credible`.
    #[cold]
    pub(crate) fn identify(
        &mut self,
        (is_request, port): (bool, u16),
        own: Qpn,
        now: Time,
        credible: impl FnOnce() -> bool,
    ) -> Option<Sender> {
        let sender = self.source.admit(is_request, now);
        let sender = sender.filter(|&sender| sender != Sender::Stranger || credible());
        if sender.is_none() {
            self.source.log_refusal(is_request, port, own);
        }
        sender
    }

    /// Notes that the machine accepted a packet from a port that was not the peer's: now it is.
    pub(crate) fn learn_port(&mut self, sender: Sender, is_request: bool, port: u16, own: Qpn) {
        self.source.learn(sender, is_request, port, own);
    }

    /// Notes that a packet of the peer was taken.
    #[inline]
    pub(crate) fn note_heard(&mut self, now: Time) {
        self.heard = Some(now);
    }

    /// Returns when a packet of the peer was last taken on this path.
    pub(crate) fn heard(&self) -> Option<Time> {
        self.heard
    }
}

/// Routes, and access without packets.
impl QpPeer {
    /// Returns the routes of packets.
    #[inline]
    pub(crate) fn route(&self) -> &QpRoute {
        &self.route
    }

    /// Notes the route that a packet came by; see [`QpRoute::note_arrival`].
    #[inline]
    pub(crate) fn note_arrival(&mut self, is_request: bool, via: Option<LocalPeerId>) -> bool {
        self.route.note_arrival(is_request, via)
    }

    /// Sends responses through the ring of this local peer from now on, or by the link.
    pub(crate) fn answer_through(&mut self, ring: Option<LocalPeerId>) {
        self.route.answer_through(ring);
    }

    /// Sends requests through the ring to this local peer from now on. If the peer is a `peer`,
    /// its memory may be accessed without packets.
    pub(crate) fn switch_to(&mut self, id: LocalPeerId, peer: Option<Arc<PeerProcess>>) {
        self.route.switch_to(id);
        if peer.is_some() {
            self.grants.connect(peer);
        }
    }

    /// Ends the use of a local peer that is gone. Returns true if packets went through its ring.
    pub(crate) fn lose(&mut self, id: LocalPeerId) -> bool {
        let used = self.route.uses(id);
        self.route.bar();
        self.grants.connect(None);
        used
    }

    /// Forgets the local peer and its grants, when this device disconnects from local peers.
    pub(crate) fn end_grants(&mut self) {
        self.grants.connect(None);
    }

    /// Returns the grants of a peer on this host.
    #[inline]
    pub(crate) fn grants(&self) -> &QpGrants {
        &self.grants
    }

    /// Returns the grants of a peer on this host, for a request that uses one or asks for one.
    #[inline]
    pub(crate) fn grants_mut(&mut self) -> &mut QpGrants {
        &mut self.grants
    }
}

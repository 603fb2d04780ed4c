//! Peers: their queue pairs, and the ways there.
//!
//! On RoCE an IP address is all that a way needs. On InfiniBand an id of the connection manager
//! resolves address and route, and the service thread takes its events. So no call waits for a
//! way: datagrams to a peer go through the UDP socket meanwhile. Those that come through a queue
//! pair are held meanwhile, since nothing but the way tells whether their sender says the truth.
//!
//! Limits: [`MAX_ASKED`] ways of a socket are asked for at once; each step has [`STEP`]. A way
//! that was not found is not asked for again for [`PAUSE`]. Each held datagram has a slot.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_cm::{EventKind, Id, PortSpace, QpType};
use vernic_engine::Qpn;

use super::{Arrived, DatagramSocket, Destination, MAX_PEERS, Port, Waiting};
use crate::Error;
use crate::family::unmapped;
use crate::wake::lock;

/// Ways that a socket asks for at once: a datagram of a stranger begins a question.
const MAX_ASKED: usize = 64;

/// How long each step may take: what rdma-core's datagram sockets grant.
const STEP: Duration = Duration::from_secs(2);

/// Time from a way that was not found to the next question for it.
const PAUSE: Duration = Duration::from_secs(1);

/// The way to a peer.
#[derive(Clone, Debug)]
enum Way {
    /// Nobody knows, and nothing is asked before this.
    Unknown(Option<Instant>),
    Asked,
    Known(Arc<Destination>),
}

/// A peer.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) port: Arc<Port>,
    /// The queue pair, once the peer has named it.
    qpn: Option<Qpn>,
    way: Way,
}

impl Peer {
    /// The way to the peer and its queue pair, if both are known.
    pub(super) fn known(&self) -> Option<(&Destination, Qpn)> {
        match &self.way {
            Way::Known(at) => Some((at, self.qpn?)),
            _ => None,
        }
    }
}

/// A way that is being asked for.
#[derive(Debug)]
pub(super) struct Asked {
    peer: SocketAddr,
    id: Arc<Id>,
}

/// Whether a datagram is what it says to be.
enum Verdict {
    True,
    /// The way to the peer is being asked for.
    Open,
    /// The way to the peer is not known.
    NoWay,
    False(Error),
}

impl DatagramSocket {
    /// What is known of a peer; it is made known if it is new.
    pub(super) fn peer(&self, addr: SocketAddr) -> Result<Peer, Error> {
        if let Some(peer) = lock(&self.core).peers.get(&addr) {
            return Ok(peer.clone());
        }
        let source = self.source_for(addr)?;
        let port = self.port(source)?;
        let mut core = lock(&self.core);
        let peer = Peer { port, qpn: None, way: Way::Unknown(None) };
        if core.peers.len() >= MAX_PEERS
            && let Some(oldest) = core.order.pop_front()
        {
            core.peers.remove(&oldest);
        }
        if core.peers.insert(addr, peer.clone()).is_none() {
            core.order.push_back(addr);
        }
        Ok(peer)
    }

    /// The own address from which a peer is reached.
    fn source_for(&self, addr: SocketAddr) -> Result<SocketAddr, Error> {
        let bound = unmapped(self.local_addr()?);
        if !bound.ip().is_unspecified() {
            return Ok(bound);
        }
        let mut source = self.shared.manager.source_address(None, addr)?;
        source.set_port(bound.port());
        Ok(source)
    }

    /// Notes the queue pair that a peer has named. If that is another one than before, the peer may
    /// be somewhere else, too.
    pub(super) fn name_queue_pair(&self, peer: &Peer, addr: SocketAddr, qpn: Qpn) {
        if peer.qpn != Some(qpn)
            && let Some(peer) = lock(&self.core).peers.get_mut(&addr)
        {
            peer.qpn = Some(qpn);
            if let Way::Known(_) = peer.way {
                peer.way = Way::Unknown(None);
            }
        }
        self.find(addr);
    }

    /// Finds the way to a peer, or begins to, unless it is known, asked for, or was asked for in
    /// vain just now.
    fn find(&self, addr: SocketAddr) {
        let now = Instant::now();
        let found = {
            let mut core = lock(&self.core);
            let Some(peer) = core.peers.get(&addr) else { return };
            if !matches!(peer.way, Way::Unknown(before) if before.is_none_or(|time| time <= now)) {
                return;
            }
            let port = peer.port.clone();
            let begun = match port.has_subnet() {
                false => port.destination(addr.ip()).map(|at| (Way::Known(Arc::new(at)), None)),
                true if core.asked.len() >= MAX_ASKED => {
                    Err(Error::Asking { to: addr, most: MAX_ASKED })
                }
                true => self.new_question().map(|id| (Way::Asked, Some((id, port)))),
            };
            begun.map(|(way, question)| {
                if let Some((id, _)) = &question {
                    core.asked.push(Asked { peer: addr, id: id.clone() });
                }
                if let Some(peer) = core.peers.get_mut(&addr) {
                    peer.way = way;
                }
                question
            })
        };
        match found {
            Ok(None) => {}
            // Its end may come before this returns.
            Ok(Some((id, port))) => {
                let mut home = port.source;
                home.set_port(0);
                if let Err(error) = id.resolve_addr(Some(home), addr, STEP) {
                    self.end_question(&id, Err(error.into()));
                }
            }
            Err(error) => tracing::warn!(peer = %addr, %error, "datagrams go by UDP"),
        }
    }

    /// An id that finds a way.
    fn new_question(&self) -> Result<Arc<Id>, Error> {
        let shared = &self.shared;
        let id = shared.manager.create_id(Some(&shared.channel), PortSpace::UDP, QpType::Ud)?;
        id.set_user_context(self.key);
        Ok(id)
    }

    /// Handles an event of an id that finds a way: called by the service thread.
    pub(crate) fn handle_way(&self, id: &Arc<Id>, kind: EventKind, status: i32) {
        let outcome = match kind {
            EventKind::AddrResolved => match id.resolve_route(STEP) {
                Ok(()) => return,
                Err(error) => Err(error.into()),
            },
            EventKind::RouteResolved => {
                let asked = |core: &super::Core| {
                    let asked = core.asked.iter().find(|asked| Arc::ptr_eq(&asked.id, id))?;
                    Some(core.peers.get(&asked.peer)?.port.clone())
                };
                let port = asked(&lock(&self.core)).ok_or(Error::NotConnected);
                port.and_then(|port| port.destination_of(id))
            }
            _ => {
                let errno = if status < 0 { -status } else { libc::ENETDOWN };
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Error::Os { what: "find the path to a peer", source })
            }
        };
        self.end_question(id, outcome);
    }

    /// Ends the question of an id, unless the socket has dropped it, and decides about the
    /// datagrams that were held.
    fn end_question(&self, id: &Arc<Id>, outcome: Result<Destination, Error>) {
        let mut core = lock(&self.core);
        let is_it = |asked: &Asked| Arc::ptr_eq(&asked.id, id);
        let Some(at) = core.asked.iter().position(is_it) else { return };
        let Asked { peer: addr, .. } = core.asked.swap_remove(at);
        let way = outcome.map_or_else(
            |error| {
                tracing::warn!(peer = %addr, %error, "no path: datagrams go by UDP");
                Way::Unknown(Some(Instant::now() + PAUSE))
            },
            |at| Way::Known(Arc::new(at)),
        );
        if let Some(peer) = core.peers.get_mut(&addr) {
            peer.way = way;
        }
        let (held, others): (Vec<_>, Vec<_>) = std::mem::take(&mut core.held)
            .into_iter()
            .partition(|(_, arrived)| arrived.source == addr);
        core.held = others;
        let mut dropped = Vec::new();
        for (port, arrived) in held {
            match judge(core.peers.get(&addr), &port, &arrived) {
                Verdict::True => core.waiting.push_back(Waiting::Slot(port, arrived)),
                Verdict::False(error) => dropped.push((port, arrived, error)),
                _ => dropped.push((port, arrived, Error::NoPath { from: addr })),
            }
        }
        drop(core);
        for (port, arrived, error) in dropped {
            self.drop_one(&error);
            let _ = port.post_recv(arrived.slot);
        }
        self.wakers.wake();
    }

    /// Keeps a datagram that came through a queue pair, unless a socket is known to be behind the
    /// address that it names, and this is not its queue pair or not its port. Holds it while the
    /// way there is asked for. Returns whether its slot is kept.
    pub(super) fn keep(&self, port: &Arc<Port>, arrived: Arrived) -> bool {
        let claimed = arrived.source;
        // The second time, the way is asked for or was found.
        for is_last in [false, true] {
            let mut core = lock(&self.core);
            if core.closed {
                return false;
            }
            let why = match judge(core.peers.get(&claimed), port, &arrived) {
                Verdict::True => {
                    core.waiting.push_back(Waiting::Slot(port.clone(), arrived));
                    return true;
                }
                Verdict::Open => {
                    core.held.push((port.clone(), arrived));
                    return true;
                }
                Verdict::NoWay if !is_last => {
                    drop(core);
                    // Why there is none is told where the datagram is dropped.
                    if self.peer(claimed).is_ok() {
                        self.find(claimed);
                    }
                    continue;
                }
                Verdict::NoWay => Error::NoPath { from: claimed },
                Verdict::False(error) => error,
            };
            drop(core);
            self.drop_one(&why);
            return false;
        }
        false
    }
}

/// Whether a datagram is from the peer that it names.
fn judge(peer: Option<&Peer>, port: &Port, arrived: &Arrived) -> Verdict {
    let Arrived { source: claimed, src_qpn, origin, .. } = *arrived;
    if peer.and_then(|peer| peer.qpn).is_some_and(|qpn| qpn != src_qpn) {
        let sender = (!port.has_subnet()).then_some(claimed.ip());
        return Verdict::False(match sender {
            Some(_) => Error::Forged { claimed, sender, src_qpn },
            None => Error::Elsewhere { claimed, slid: origin.slid, src_qpn },
        });
    }
    match peer.map(|peer| &peer.way) {
        _ if !port.has_subnet() => Verdict::True,
        Some(Way::Known(at)) if at.is_at(&origin) => Verdict::True,
        Some(Way::Known(_)) => {
            Verdict::False(Error::Elsewhere { claimed, slid: origin.slid, src_qpn })
        }
        Some(Way::Asked) => Verdict::Open,
        Some(Way::Unknown(_)) | None => Verdict::NoWay,
    }
}

//! Connections of connected mode: one with each interface that takes them (RFC 4755).

use std::collections::BTreeMap;

use vernic_wire::ipoib::HardwareAddress;

/// Nanoseconds after which a connection without traffic is ended.
pub(crate) const UNUSED: u64 = 120_000_000_000;
/// Nanoseconds for which an interface that refused is sent datagrams.
pub(crate) const PAUSE: u64 = 10_000_000_000;

/// A connection, by number. No two of an interface have the same at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionState {
    /// We have asked for it.
    Asked,
    /// The peer has asked for it, and we agreed. It takes IP packets up to this length.
    Accepted {
        /// The longest IP packet.
        mtu: u32,
    },
    /// Carries IP packets up to this length.
    Up {
        /// The longest IP packet.
        mtu: u32,
    },
    /// There is none: the peer refused, or did not answer.
    Refused,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) state: ConnectionState,
    /// Whether it carried a packet since the last look.
    pub(crate) is_used: bool,
}

/// Connections by their peer's address, which is without modes, and by number.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_peer: BTreeMap<HardwareAddress, Connection>,
    by_id: BTreeMap<ConnectionId, HardwareAddress>,
    last: u32,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.by_peer.len()
    }
    /// A number that is not in use. There are fewer connections than numbers.
    pub(crate) fn next_id(&mut self) -> ConnectionId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = ConnectionId(self.last);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
    /// Sets the connection with a peer; returns the one before.
    pub(crate) fn set(&mut self, peer: HardwareAddress, new: Connection) -> Option<Connection> {
        let old = self.remove(peer);
        self.by_id.insert(new.id, peer);
        self.by_peer.insert(peer, new);
        old
    }
    pub(crate) fn remove(&mut self, peer: HardwareAddress) -> Option<Connection> {
        let old = self.by_peer.remove(&peer)?;
        self.by_id.remove(&old.id);
        Some(old)
    }
    pub(crate) fn with(&mut self, peer: HardwareAddress) -> Option<&mut Connection> {
        self.by_peer.get_mut(&peer)
    }
    pub(crate) fn peer_of(&self, id: ConnectionId) -> Option<HardwareAddress> {
        self.by_id.get(&id).copied()
    }
    pub(crate) fn peers(&self) -> Vec<HardwareAddress> {
        self.by_peer.keys().copied().collect()
    }
}

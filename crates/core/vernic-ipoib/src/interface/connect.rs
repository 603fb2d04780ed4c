//! Connections of connected mode (RFC 4755).

use vernic_wire::Gid;
use vernic_wire::ipoib::{ConnectedData, ConnectedModes, Encapsulation, HardwareAddress};

use super::send::Step;
use super::{Due, Interface};
use crate::Time;
use crate::addresses::Hop;
use crate::config::Mode;
use crate::connections::{self, Connection, ConnectionId, ConnectionState};
use crate::counters::DropReason;
use crate::output::{Destination, Request};
use crate::paths::Path;
use crate::waiting::WaitsFor;

impl Interface {
    /// The longest IP packet that connections bring us.
    pub(super) fn connected_mtu(&self) -> Option<u32> {
        let header = Encapsulation::LEN as u32;
        self.config.receive_mtu.map(|mtu| mtu.saturating_sub(header))
    }
    /// The longest IP packet of a connection, if the peer takes messages of `receive_mtu` bytes.
    fn mtu_with(&self, receive_mtu: u32) -> u32 {
        let peers = receive_mtu.saturating_sub(Encapsulation::LEN as u32);
        self.connected_mtu().unwrap_or_default().min(peers)
    }
    /// Private data of what we say about connections.
    fn connected_data(&self) -> ConnectedData {
        let receive_mtu = self.config.receive_mtu.unwrap_or_default();
        ConnectedData { reserved: 0, qpn: self.config.qpn, receive_mtu }
    }

    /// By the connection with an interface, if there is one or is to be one; else `None`.
    pub(super) fn step_by_connection(
        &mut self,
        now: Time,
        address: HardwareAddress,
        len: usize,
    ) -> Option<Step> {
        let takes_any = address.modes.contains(ConnectedModes::RC);
        if self.config.mode != Mode::Connected || !takes_any {
            return None;
        }
        let peer = address.without_modes();
        let fits_datagram = len as u64 <= u64::from(self.link.mtu().unwrap_or_default());
        if self.connections.with(peer).is_none() {
            self.open(now, address)?;
        }
        let connection = self.connections.with(peer)?;
        connection.is_used = true;
        match connection.state {
            ConnectionState::Up { mtu } if len as u64 <= u64::from(mtu) => {
                Some(Step::Send(Destination::Connection(connection.id)))
            }
            ConnectionState::Up { mtu } => Some(Step::TooBig { mtu }),
            ConnectionState::Asked | ConnectionState::Accepted { .. } if !fits_datagram => {
                Some(Step::Wait(WaitsFor::Connection(peer)))
            }
            _ => None,
        }
    }

    /// Asks for a connection; `None` if there is no room.
    fn open(&mut self, now: Time, address: HardwareAddress) -> Option<()> {
        let Some(Path::Known { record, .. }) = self.paths.get(&address.gid) else { return None };
        let path = *record;
        if self.config.receive_mtu.is_none()
            || self.connections.len() >= self.config.max_connections
        {
            return None;
        }
        let id = self.connections.next_id();
        self.set_connection(now, address.without_modes(), id, ConnectionState::Asked);
        let private_data = self.connected_data();
        self.requests.push_back(Request::Connect { id, peer: address, path, private_data });
        Some(())
    }

    fn set_connection(
        &mut self,
        now: Time,
        peer: HardwareAddress,
        id: ConnectionId,
        state: ConnectionState,
    ) {
        let old = self.connections.set(peer, Connection { id, state, is_used: true });
        if let Some(old) = old.filter(|old| old.state != ConnectionState::Refused) {
            self.requests.push_back(Request::Disconnect { id: old.id });
        }
        self.timers.set(Due::Connection(peer), now + connections::UNUSED);
    }

    /// Decides on a peer's request for a connection. `gid` is the requester's.
    ///
    /// # Errors
    /// The private data of the refusal, which is "consumer reject".
    pub fn handle_connect_request(
        &mut self,
        now: Time,
        gid: Gid,
        data: ConnectedData,
    ) -> Result<(ConnectionId, ConnectedData), ConnectedData> {
        let peer = HardwareAddress::new(data.qpn, gid);
        let own = self.config.address().without_modes();
        let crosses = matches!(
            self.connections.with(peer),
            Some(Connection { state: ConnectionState::Asked, .. })
        );
        let is_new = self.connections.with(peer).is_none();
        let has_room = !is_new || self.connections.len() < self.config.max_connections;
        let is_taken = self.link.group().is_some()
            && self.config.receive_mtu.is_some()
            && has_room
            // Of two requests that cross, the one of the larger address is accepted (section 3.3).
            && (!crosses || own < peer);
        if !is_taken {
            return Err(self.connected_data());
        }
        let id = self.connections.next_id();
        let mtu = self.mtu_with(data.receive_mtu);
        self.set_connection(now, peer, id, ConnectionState::Accepted { mtu });
        Ok((id, self.connected_data()))
    }

    /// A connection is up. `data` is the private data of the peer's answer where we have asked,
    /// `None` where the peer has.
    pub fn handle_connected(&mut self, now: Time, id: ConnectionId, data: Option<ConnectedData>) {
        let Some(peer) = self.connections.peer_of(id) else {
            self.requests.push_back(Request::Disconnect { id });
            return;
        };
        let asked_mtu = data.map(|data| self.mtu_with(data.receive_mtu));
        let Some(connection) = self.connections.with(peer) else { return };
        let mtu = match connection.state {
            ConnectionState::Asked => asked_mtu.unwrap_or_default(),
            ConnectionState::Accepted { mtu } | ConnectionState::Up { mtu } => mtu,
            ConnectionState::Refused => return,
        };
        connection.state = ConnectionState::Up { mtu };
        self.timers.set(Due::Connection(peer), now + connections::UNUSED);
        self.release_connection(now, peer);
    }

    /// A connection has ended, or did not come about: refused, no answer, an error of its queue
    /// pair.
    pub fn handle_disconnected(&mut self, now: Time, id: ConnectionId) {
        let Some(peer) = self.connections.peer_of(id) else { return };
        let Some(connection) = self.connections.with(peer) else { return };
        match connection.state {
            ConnectionState::Asked | ConnectionState::Accepted { .. } => {
                connection.state = ConnectionState::Refused;
                self.timers.set(Due::Connection(peer), now + connections::PAUSE);
            }
            ConnectionState::Up { .. } | ConnectionState::Refused => {
                self.connections.remove(peer);
                self.timers.cancel(Due::Connection(peer));
            }
        }
        self.release_connection(now, peer);
    }

    /// Sends what has waited for a connection, by it or as datagrams.
    fn release_connection(&mut self, now: Time, peer: HardwareAddress) {
        let frames = self.waiting.take(WaitsFor::Connection(peer));
        self.release(frames, |machine, frame| {
            let Some(ip) = frame.ip else { return Step::Drop(DropReason::NoConnection) };
            let len = frame.bytes.len().saturating_sub(Encapsulation::LEN);
            match machine.addresses.hop(ip) {
                Hop::Neighbor(next) => machine.step_to_neighbor(now, next, len),
                _ => Step::Drop(DropReason::NoRoute),
            }
        });
    }

    /// Notes that a connection brought something; `false` if there is no such connection.
    pub(super) fn note_received(&mut self, id: ConnectionId) -> bool {
        let Some(peer) = self.connections.peer_of(id) else { return false };
        if let Some(connection) = self.connections.with(peer) {
            connection.is_used = true;
        }
        true
    }

    pub(super) fn end_connection(&mut self, peer: HardwareAddress) {
        self.timers.cancel(Due::Connection(peer));
        if let Some(old) = self.connections.remove(peer)
            && old.state != ConnectionState::Refused
        {
            self.requests.push_back(Request::Disconnect { id: old.id });
        }
    }

    pub(super) fn connection_is_due(&mut self, now: Time, peer: HardwareAddress) {
        let Some(connection) = self.connections.with(peer) else { return };
        let was_used = std::mem::take(&mut connection.is_used);
        let is_up = matches!(connection.state, ConnectionState::Up { .. });
        if is_up && was_used {
            self.timers.set(Due::Connection(peer), now + connections::UNUSED);
        } else {
            self.end_connection(peer);
            self.release_connection(now, peer);
        }
    }
}

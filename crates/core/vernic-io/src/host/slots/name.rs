//! Names of services: which process of this host listens for which service of connection
//! management.
//!
//! Part of [`SlotTable`]. Processes share QP1 as they share port 4791, so a connection request may
//! reach any of them. Its service id (IBTA A11.2) and the address that it came to make the name of
//! an abstract socket, `\0vernic/service/<service id>/<address>`. For a listener on all addresses
//! of a netdev the last part is `netdev<index>`. As with slots the kernel keeps the list: the first
//! process to bind the name has it, and the name vanishes with the process.
//!
//! A name has two stages:
//! - *claimed*: no other process of the host can take the name. Its socket is bound, and not read,
//!   like a port that is bound and not listened on.
//! - *open*: as with a slot, a second socket, `.../questions`, answers questions ("on which private
//!   UDP port do you receive for this address?"). A third, `.../packets`, takes packets that
//!   reached another process.
//!
//! A thread that sleeps on a socket keeps it bound for some microseconds after it was closed. No
//! thread sleeps on the first socket, so a name is free as soon as it is given back. The process
//! that opens the name then waits until the other two sockets are free.
//!
//! Questions and packets of other users are ignored. Names of services hold no user id: a name is
//! of no use without port 4791 of its address, and that port belongs to one user.
//!
//! Limits: [`MAX_NAMES`] names per table; a descriptor for each, three if it is open.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_sys::OwnFd;
use vernic_wire::cm::ServiceId;

use super::super::handoff::{HandoverResult, Head};
use super::lookup::{LOOKUP_LIFE, MAX_LOOKUPS};
use super::message::Question;
use super::{Name, PeerProcess, Slot, SlotTable, State, is_taken, new_socket, tables};
use crate::address::LocalAddr;
use crate::batch::RxPacket;

/// The most names that a table has at a time. It is the number of descriptors that a process may
/// have where the system's limit is a high one (4096 is the usual hard limit).
pub const MAX_NAMES: usize = 4096;

/// How long `open_name` waits for the sockets of a name's former owner to close. A thread of that
/// owner that sleeps on them must run once, for which it may have to wait for a core.
const CLOSING: Duration = Duration::from_millis(100);
/// The pause between two tries.
const CLOSING_PAUSE: Duration = Duration::from_micros(100);

/// The suffix of the name of the socket for questions.
const QUESTIONS: &str = "/questions";
/// The suffix of the name of the socket for packets.
const PACKETS: &str = "/packets";

/// The place where a service is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceScope {
    /// One address.
    Address(LocalAddr),
    /// All addresses of the netdev of this index, later ones included.
    Netdev(u32),
}

impl fmt::Display for ServiceScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(local) => local.fmt(f),
            Self::Netdev(index) => write!(f, "netdev{index}"),
        }
    }
}

/// A name by which a listener is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceName {
    /// The service that is offered.
    pub service: ServiceId,
    /// The place where it is offered.
    pub scope: ServiceScope,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}/{}", self.service.value(), self.scope)
    }
}

/// The reason why a name cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// A process of this host has the name, perhaps this one.
    #[error(
        "{service} is taken at {scope}: `ss -xap | grep vernic/service/{name}` names the process",
        service = .0.service, scope = .0.scope, name = .0
    )]
    InUse(ServiceName),
    /// The table is full.
    #[error(
        "{} cannot be taken at {}: this device has all of its {MAX_NAMES} names in use",
        name.service, name.scope
    )]
    TooMany {
        /// The name wanted.
        name: ServiceName,
    },
    /// The name was not claimed before it was opened.
    #[error("{} was not claimed at {}", .0.service, .0.scope)]
    NotClaimed(ServiceName),
    /// The operating system refused.
    #[error("cannot open the socket of {} at {}: {source}", name.service, name.scope)]
    Os {
        /// The name wanted.
        name: ServiceName,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl NameError {
    fn of(name: ServiceName, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse(name),
            _ => Self::Os { name, source },
        }
    }
}

/// A name of this table.
#[derive(Debug)]
pub(super) struct Named {
    name: ServiceName,
    /// Bound as long as the name is claimed.
    _claim: OwnFd,
    /// The sockets for questions and for packets, while the name is open.
    open: Option<(Arc<OwnFd>, Arc<OwnFd>)>,
}

impl Named {
    /// Returns both sockets of an open name.
    pub(super) fn sockets(&self) -> Option<(&Arc<OwnFd>, &Arc<OwnFd>)> {
        self.open.as_ref().map(|(questions, packets)| (questions, packets))
    }

    /// Returns the socket for questions of an open name.
    pub(super) fn control(&self) -> Option<&Arc<OwnFd>> {
        self.sockets().map(|(questions, _)| questions)
    }
}

/// A process that has a name, as the process answered.
#[derive(Debug)]
pub(super) struct Server {
    name: ServiceName,
    ip: IpAddr,
    since: Instant,
    peer: PeerProcess,
}

impl SlotTable {
    fn service_name(&self, name: &ServiceName, suffix: &str) -> Name {
        use fmt::Write as _;
        let mut text = Name::new();
        // Fits: the scope was cut when the table was made.
        let _ = write!(text, "{}/service/{name}{suffix}", self.scope);
        text
    }

    /// Claims a name, so that no other process of this host, and no other table of this one, can.
    ///
    /// # Errors
    /// [`NameError::InUse`], [`NameError::TooMany`], [`NameError::Os`].
    pub fn claim_name(&self, name: &ServiceName) -> Result<(), NameError> {
        let mut state = self.state();
        if state.names.len() == MAX_NAMES {
            return Err(NameError::TooMany { name: *name });
        }
        let claim = new_socket(self.service_name(name, "").as_bytes())
            .map_err(|source| NameError::of(*name, source))?;
        self.check_open().map_err(|source| NameError::of(*name, source))?;
        state.names.push(Named { name: *name, _claim: claim, open: None });
        Ok(())
    }

    /// Opens a claimed name. From now on this table's link receives the packets that others hand
    /// over to the name, and answers questions about it. A name that is open stays open. May wait
    /// for a moment for the sockets of the name's former owner.
    ///
    /// # Errors
    /// [`NameError::NotClaimed`]; [`NameError::InUse`] if a process has the name open that did not
    /// claim it; [`NameError::Os`].
    pub fn open_name(&self, name: &ServiceName) -> Result<(), NameError> {
        let is_open = |state: &State| {
            let named = state.names.iter().find(|named| named.name == *name);
            named.map(|named| named.open.is_some()).ok_or(NameError::NotClaimed(*name))
        };
        if is_open(&self.state())? {
            return Ok(());
        }
        let questions = Arc::new(self.open_socket(name, QUESTIONS)?);
        let packets = Arc::new(self.open_socket(name, PACKETS)?);
        let mut state = self.state();
        let named = state.names.iter_mut().find(|named| named.name == *name);
        named.ok_or(NameError::NotClaimed(*name))?.open = Some((questions, packets));
        drop(state);
        self.changed();
        Ok(())
    }

    fn open_socket(&self, name: &ServiceName, suffix: &str) -> Result<OwnFd, NameError> {
        let text = self.service_name(name, suffix);
        let end = Instant::now() + CLOSING;
        loop {
            match new_socket(text.as_bytes()) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                    std::thread::sleep(CLOSING_PAUSE);
                }
                result => return result.map_err(|source| NameError::of(*name, source)),
            }
        }
    }

    /// Undoes [`open_name`](Self::open_name): the name stays claimed.
    pub fn close_name(&self, name: &ServiceName) {
        let closed = {
            let mut state = self.state();
            let named = state.names.iter_mut().find(|named| named.name == *name);
            named.and_then(|named| named.open.take())
        };
        if closed.is_some() {
            self.changed();
        }
    }

    /// Gives a name back, closed or open. Unknown names are ignored.
    pub fn release_name(&self, name: &ServiceName) {
        let mut state = self.state();
        let Some(at) = state.names.iter().position(|named| named.name == *name) else { return };
        let named = state.names.swap_remove(at);
        drop(state);
        if named.open.is_some() {
            self.changed();
        }
    }

    /// Whether the name is claimed on this host: by this table, or by any process of any user.
    ///
    /// # Errors
    /// [`NameError::Os`] when the process has no descriptor left to ask with.
    pub fn is_claimed(&self, name: &ServiceName) -> Result<bool, NameError> {
        let taken = is_taken(self.service_name(name, "").as_bytes());
        taken.map_err(|source| NameError::Os { name: *name, source })
    }

    /// Looks for the process of this host and user that has the name open, and where it receives
    /// for `ip`. Waits up to `timeout` for its answer, which is valid for a second. If no process
    /// has the name, one system call finds that out, without waiting. For the control path.
    pub fn find_server(
        &self,
        name: &ServiceName,
        ip: IpAddr,
        timeout: Duration,
    ) -> Option<PeerProcess> {
        // A process that was known a moment ago may be gone, and its name with it.
        let known = self.known_server(name, ip);
        if known.is_some() && self.is_claimed(name).unwrap_or(true) {
            return known;
        }
        self.state().servers.retain(|server| server.name != *name);
        let question = Question { ip, slot: Slot::NONE };
        let peer = self.ask(self.service_name(name, QUESTIONS).as_bytes(), question, timeout)?;
        let mut state = self.state();
        if state.servers.len() == MAX_LOOKUPS {
            state.servers.swap_remove(0);
        }
        state.servers.push(Server { name: *name, ip, since: Instant::now(), peer });
        Some(peer)
    }

    /// Does what [`find_server`](Self::find_server) does, but sends no question: knows the names of
    /// this process, and for a second the answers of others.
    pub fn known_server(&self, name: &ServiceName, ip: IpAddr) -> Option<PeerProcess> {
        let tables = tables();
        if let Some(owner) = tables.iter().find(|t| t.scope == self.scope && t.has_open(name)) {
            return self.port_in(owner, ip);
        }
        let now = Instant::now();
        let mut state = self.state();
        state.servers.retain(|server| now.duration_since(server.since) < LOOKUP_LIFE);
        state.servers.iter().find(|s| s.name == *name && s.ip == ip).map(|server| server.peer)
    }

    fn has_open(&self, name: &ServiceName) -> bool {
        self.state().names.iter().any(|named| named.name == *name && named.open.is_some())
    }

    /// Sends a packet on to the process that has the name open. The packet's ICRC must have been
    /// found good: the receiver does not check it. Never blocks or allocates.
    pub fn hand_over_to_name(&self, name: &ServiceName, packet: &RxPacket<'_>) -> HandoverResult {
        let to = self.service_name(name, PACKETS);
        self.send(&to, &Head::of_verified(packet), packet.bytes)
    }
}

#[cfg(test)]
mod tests;

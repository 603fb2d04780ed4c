//! Listening sockets for local peers, one for each slot of the device. This module opens them,
//! accepts calls, and stops accepting for a while where there is no descriptor for a caller.

use std::io;
use std::os::fd::AsFd;

use vernic_io::Nanos;
use vernic_io::host::Slot;
use vernic_sys::{self as sys, EpollOp, OwnFd};

use super::{Connections, READABLE};
use crate::connect::MAX_PENDING_PEERS;
use crate::connect::connecting::PendingPeer;
use crate::connect::failure::ConnectFailure;
use crate::connect::warning::WarningSubject;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long no calls are accepted after the system had no descriptor for one. A caller waits for a
/// second.
const SHUT_NANOS: u64 = 200_000_000;
/// The first and the longest pause before a slot's socket that could not be opened is tried again.
const LISTENER_PAUSE_NANOS: [u64; 2] = [1_000_000_000, 64_000_000_000];

/// A listening socket that local peers connect to.
#[derive(Debug)]
pub(super) struct SlotListener {
    pub(super) slot: Slot,
    pub(super) key: u64,
    socket: OwnFd,
}

impl Connections {
    /// Opens a socket for each new slot of this device and closes those of former slots. To be
    /// called when there is something that can be connected to in a slot.
    pub fn follow_slots(&mut self, now: Nanos) {
        let generation = self.slots.generation();
        if self.closed || self.followed == Some(generation) {
            return;
        }
        self.followed = Some(generation);
        self.listeners_due = None;
        self.open_listeners(LISTENER_PAUSE_NANOS[0], now);
        self.connected.iter_mut().flatten().for_each(|peer| peer.owed_slots = true);
        self.pay_slots();
    }

    /// Opens the sockets that are missing; if that fails, another try is due after `pause`.
    fn open_listeners(&mut self, pause: u64, now: Nanos) {
        let own = self.slots.own_slots();
        self.listeners.retain(|listener| own.contains(&listener.slot));
        for slot in own {
            if self.listeners.iter().all(|listener| listener.slot != slot)
                && let Err(error) = self.open_listener(slot)
            {
                // The slot's former owner may be about to end; others send by UDP until then.
                tracing::debug!(slot = slot.value(), %error, "local peers cannot find this slot");
                let why = ConnectFailure::of(&error);
                if why.is_shortage() {
                    self.warnings.note(WarningSubject::All, why, 1);
                }
                self.count_shortage(why, None, now);
                self.listeners_due = Some((pause, now.plus(pause)));
            }
        }
    }

    /// Tries again what could not be done at the sockets before and may be possible now.
    pub(super) fn try_listeners(&mut self, now: Nanos) {
        if let Some((pause, _)) = self.listeners_due.filter(|(_, due)| *due <= now) {
            self.listeners_due = None;
            self.open_listeners((2 * pause).min(LISTENER_PAUSE_NANOS[1]), now);
        }
        if self.shut_until.is_some_and(|until| until <= now) {
            self.shut_until = None;
            self.set_listeners(READABLE);
        }
    }

    fn set_listeners(&self, events: u32) {
        for listener in &self.listeners {
            let (epoll, op, fd) = (self.epoll.as_fd(), EpollOp::Change, listener.socket.as_fd());
            // This cannot fail for a socket that is watched.
            let _ = sys::epoll_watch(epoll, op, fd, listener.key, events);
        }
    }

    fn open_listener(&mut self, slot: Slot) -> io::Result<()> {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?;
        sys::bind_abstract(socket.as_fd(), &self.slots.neighbour_name(slot))?;
        sys::listen(socket.as_fd(), BACKLOG)?;
        let key = self.next_key();
        self.watch(&socket, key)?;
        self.listeners.push(SlotListener { slot, key, socket });
        Ok(())
    }

    /// Accepts one call; the calls behind it keep the socket readable. (Without a free descriptor
    /// the kernel refuses even to say whether there is another call.)
    pub(super) fn accept(&mut self, listener: usize, now: Nanos) {
        let connection = match sys::accept(self.listeners[listener].socket.as_fd()) {
            Ok(connection) => connection,
            Err(error) if ConnectFailure::of(&error).is_shortage() => {
                return self.shut(&error, now);
            }
            Err(_) => return,
        };
        let Ok(pid) = PendingPeer::check(connection.as_fd()) else {
            self.counters.refused += 1;
            return;
        };
        let key = self.next_key();
        if let Err(error) = self.watch(&connection, key) {
            tracing::debug!(pid, %error, "a process that calls cannot be heard");
            let why = ConnectFailure::of(&error);
            self.warnings.note(WarningSubject::Process(pid), why, 1);
            self.count_shortage(why, Some(pid), now);
            return;
        }
        if self.pending.len() >= MAX_PENDING_PEERS {
            // The oldest pending peer comes first.
            self.pending.remove(0);
            self.counters.refused += 1;
        }
        self.pending.push(PendingPeer { key, connection, pid, since: now, call: None });
    }

    /// Stops accepting calls for a while: there is no descriptor for them. A thread that sleeps
    /// until a call comes would otherwise wake all the time.
    fn shut(&mut self, error: &io::Error, now: Nanos) {
        tracing::debug!(%error, "processes that call cannot be answered");
        let why = ConnectFailure::of(error);
        self.count_shortage(why, None, now);
        self.warnings.note(WarningSubject::All, why, 1);
        self.shut_until = Some(now.plus(SHUT_NANOS));
        self.set_listeners(0);
    }
}

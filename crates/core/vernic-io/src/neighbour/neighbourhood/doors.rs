//! The sockets that neighbours connect to, one for each slot of the device: opened, listened at,
//! shut for a while where there is no descriptor for who calls.

use std::io;
use std::os::fd::AsFd;

use super::{Neighbourhood, READABLE};
use crate::host::Slot;
use crate::link::Nanos;
use crate::neighbour::MAX_STRANGERS;
use crate::neighbour::complaint::Whose;
use crate::neighbour::hindrance::Hindrance;
use crate::neighbour::meeting::Stranger;
use crate::sys::{self, EpollOp, OwnFd};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long calls are not taken where the system had no descriptor for one: a caller waits for a
/// second.
const SHUT_NANOS: u64 = 200_000_000;
/// How long after it a slot's socket that could not be opened is tried again at first, and at last.
const DOOR_PAUSE_NANOS: [u64; 2] = [1_000_000_000, 64_000_000_000];

/// A socket that neighbours connect to.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) slot: Slot,
    pub(super) key: u64,
    socket: OwnFd,
}

impl Neighbourhood {
    /// Opens a socket for each new slot of this device and closes those of former ones. To be
    /// called when there is something that can be connected to in a slot.
    pub fn follow_slots(&mut self, now: Nanos) {
        let generation = self.slots.generation();
        if self.closed || self.followed == Some(generation) {
            return;
        }
        self.followed = Some(generation);
        self.doors_due = None;
        self.open_doors(DOOR_PAUSE_NANOS[0], now);
        self.open.iter_mut().flatten().for_each(|open| open.owed_slots = true);
        self.pay_slots();
    }

    /// Opens what is missing; if that fails it is tried again after `pause`.
    fn open_doors(&mut self, pause: u64, now: Nanos) {
        let own = self.slots.own_slots();
        self.doors.retain(|door| own.contains(&door.slot));
        for slot in own {
            if self.doors.iter().all(|door| door.slot != slot)
                && let Err(error) = self.open_door(slot)
            {
                // Whoever had it before may be about to end; others send by UDP until then.
                tracing::debug!(slot = slot.value(), %error, "neighbours cannot find this slot");
                let why = Hindrance::of(&error);
                if why.is_shortage() {
                    self.complaints.hear(Whose::All, why, 1);
                }
                self.count_shortage(why, None, now);
                self.doors_due = Some((pause, now.plus(pause)));
            }
        }
    }

    /// What could not be done at the doors before, and may be possible now.
    pub(super) fn try_doors(&mut self, now: Nanos) {
        if let Some((pause, _)) = self.doors_due.filter(|(_, due)| *due <= now) {
            self.doors_due = None;
            self.open_doors((2 * pause).min(DOOR_PAUSE_NANOS[1]), now);
        }
        if self.shut_until.is_some_and(|until| until <= now) {
            self.shut_until = None;
            self.set_doors(READABLE);
        }
    }

    fn set_doors(&self, events: u32) {
        for door in &self.doors {
            let (epoll, op, fd) = (self.epoll.as_fd(), EpollOp::Change, door.socket.as_fd());
            // Possible for what is watched.
            let _ = sys::epoll_watch(epoll, op, fd, door.key, events);
        }
    }

    fn open_door(&mut self, slot: Slot) -> io::Result<()> {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?;
        sys::bind_abstract(socket.as_fd(), &self.slots.neighbour_name(slot))?;
        sys::listen(socket.as_fd(), BACKLOG)?;
        let key = self.next_key();
        self.watch(&socket, key)?;
        self.doors.push(Door { slot, key, socket });
        Ok(())
    }

    /// Takes one call; those behind it keep the socket readable. (Without a descriptor the kernel
    /// refuses to look whether there is another.)
    pub(super) fn accept(&mut self, door: usize, now: Nanos) {
        let connection = match sys::accept(self.doors[door].socket.as_fd()) {
            Ok(connection) => connection,
            Err(error) if Hindrance::of(&error).is_shortage() => return self.shut(&error, now),
            Err(_) => return,
        };
        let Ok(pid) = Stranger::check(connection.as_fd()) else {
            self.counters.refused += 1;
            return;
        };
        let key = self.next_key();
        if let Err(error) = self.watch(&connection, key) {
            tracing::debug!(pid, %error, "a process that calls cannot be heard");
            let why = Hindrance::of(&error);
            self.complaints.hear(Whose::Process(pid), why, 1);
            self.count_shortage(why, Some(pid), now);
            return;
        }
        if self.strangers.len() >= MAX_STRANGERS {
            // The oldest comes first.
            self.strangers.remove(0);
            self.counters.refused += 1;
        }
        self.strangers.push(Stranger { key, connection, pid, since: now, call: None });
    }

    /// No calls are taken for a while: there is no descriptor for them, and who sleeps until
    /// somebody calls would not sleep.
    fn shut(&mut self, error: &io::Error, now: Nanos) {
        tracing::debug!(%error, "processes that call cannot be answered");
        let why = Hindrance::of(error);
        self.count_shortage(why, None, now);
        self.complaints.hear(Whose::All, why, 1);
        self.shut_until = Some(now.plus(SHUT_NANOS));
        self.set_doors(0);
    }
}

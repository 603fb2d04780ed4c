//! Finding the process that has a slot: the asking side.
//!
//! Part of [`SlotTable`]. [`SlotTable::query`] waits for the answer, for the control path.
//! [`SlotTable::lookup`] never waits and remembers answers, for the data path.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use vernic_sys::user;
use vernic_sys::{self as sys, Gate, OwnFd};
use vernic_wire::Qpn;

use super::message::{Answer, MAX_MESSAGE_BYTES, Question};
use super::{MAX_SERVED, Slot, SlotTable, new_socket, tables};
use crate::address::LocalAddr;
use crate::path::{ProcessId, ReceiverPageId};

/// The most answers that [`SlotTable::lookup`] remembers.
pub(super) const MAX_LOOKUPS: usize = 256;
/// How long an answer is valid, and how long an asker waits for one.
pub(super) const LOOKUP_LIFE: Duration = Duration::from_secs(1);
/// The longest pause between two polls of the sockets while waiting.
const QUERY_PAUSE: Duration = Duration::from_millis(20);

/// A process of this host that serves an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// The process id, as the kernel names it.
    pub pid: u32,
    /// UDP port, on the address asked for, that only this process receives on.
    pub private_port: u16,
    /// The receiver page of the process, if the process passed one.
    pub receiver_page: Option<ReceiverPageId>,
}

impl PeerProcess {
    /// Returns the id by which a path to the process names it.
    pub fn id(&self) -> ProcessId {
        ProcessId { door: self.private_port, receiver_page: self.receiver_page }
    }
}

/// The present result of [`SlotTable::lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The peer is this process of this host.
    Here(PeerProcess),
    /// Not a process of this host (or not of this user): use the standard port.
    NotHere,
    /// Asked just now, for the first time. Use the standard port meanwhile.
    Asked,
    /// Asked before, and again each second; no answer yet. Use the standard port meanwhile.
    Pending,
}

#[derive(Debug)]
pub(super) struct Remembered {
    ip: IpAddr,
    slot: Slot,
    since: Instant,
    state: Lookup,
}

impl SlotTable {
    /// Looks for the process that has `qpn` on the address `ip`, if it is one of this host and this
    /// user. Waits up to `timeout` for its answer. If no process of this host has the slot, one
    /// system call finds that out, without waiting.
    ///
    /// To be called when a QP goes to RTR; [`lookup`](Self::lookup) is for the data path.
    pub fn query(&self, ip: IpAddr, qpn: Qpn, timeout: Duration) -> Option<PeerProcess> {
        let slot = Slot::of(qpn);
        if !slot.is_ordinary() {
            return None;
        }
        if let Some(known) = self.find_in_this_process(ip, slot) {
            return known;
        }
        self.check_open().ok()?;
        let name = self.control_name(slot);
        match new_socket(b"") {
            Ok(socket) => self.ask_by(&socket, name.as_bytes(), Question { ip, slot }, timeout),
            // No descriptor is left: the table's own socket can ask, too.
            Err(_) => self.await_lookup(ip, qpn, timeout),
        }
    }

    /// Calls [`lookup`](Self::lookup) until there is an answer.
    fn await_lookup(&self, ip: IpAddr, qpn: Qpn, timeout: Duration) -> Option<PeerProcess> {
        let end = Instant::now() + timeout;
        loop {
            match self.lookup(ip, qpn) {
                Lookup::Here(process) => return Some(process),
                Lookup::NotHere => return None,
                Lookup::Asked | Lookup::Pending => wait_at(self.ask.get()?.as_fd(), end)?,
            }
        }
    }

    /// Asks the process that has the socket called `name`. Waits `timeout` at most for its answer,
    /// and not at all if there is no such socket.
    pub(super) fn ask(
        &self,
        name: &[u8],
        question: Question,
        timeout: Duration,
    ) -> Option<PeerProcess> {
        self.check_open().ok()?;
        self.ask_by(&new_socket(b"").ok()?, name, question, timeout)
    }

    fn ask_by(
        &self,
        socket: &OwnFd,
        name: &[u8],
        question: Question,
        timeout: Duration,
    ) -> Option<PeerProcess> {
        sys::send_abstract(socket.as_fd(), name, &question.emit(), &[]).ok()?;
        let end = Instant::now() + timeout;
        loop {
            while let Some((answer, peer)) = self.receive_answer(socket.as_fd()) {
                if answer.ip == question.ip && answer.slot == question.slot {
                    return peer;
                }
            }
            wait_at(socket.as_fd(), end)?;
        }
    }

    /// Does what [`query`](Self::query) does, but never waits: the first call sends the question,
    /// and a later one finds the answer. An answer is asked for again after a second. It stays
    /// valid until the new one is there or its process is gone.
    pub fn lookup(&self, ip: IpAddr, qpn: Qpn) -> Lookup {
        let slot = Slot::of(qpn);
        if !slot.is_ordinary() {
            return Lookup::NotHere;
        }
        if let Some(known) = self.find_in_this_process(ip, slot) {
            return known.map_or(Lookup::NotHere, Lookup::Here);
        }
        let Some(socket) = self.ask.get() else { return Lookup::NotHere };
        let now = Instant::now();
        let mut state = self.state();
        for _ in 0..MAX_SERVED {
            let Some((answer, peer)) = self.receive_answer(socket.as_fd()) else { break };
            let asked =
                state.lookups.iter_mut().find(|l| l.ip == answer.ip && l.slot == answer.slot);
            if let Some(asked) = asked {
                asked.state = peer.map_or(Lookup::NotHere, Lookup::Here);
            }
        }
        let mut before = Lookup::Asked;
        if let Some(at) = state.lookups.iter().position(|l| l.ip == ip && l.slot == slot) {
            before = state.lookups[at].state;
            if now.duration_since(state.lookups[at].since) < LOOKUP_LIFE {
                return before;
            }
            state.lookups.swap_remove(at);
        }
        let question = Question { ip, slot }.emit();
        let name = self.control_name(slot);
        let sent = sys::send_abstract(socket.as_fd(), name.as_bytes(), &question, &[]);
        let answer = match sent {
            Ok(()) => before,
            // No process has the name.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Lookup::NotHere,
            // The peer's queue is full of questions, or this process lacks something: not asked
            // now.
            Err(_) if before == Lookup::Asked => return Lookup::Pending,
            Err(_) => before,
        };
        let state_now = if answer == Lookup::Asked { Lookup::Pending } else { answer };
        if state_now == Lookup::NotHere {
            // A name that no process has costs one system call to ask for, and is not remembered: a
            // sender may name any slot in its packets.
            return answer;
        }
        if state.lookups.len() == MAX_LOOKUPS {
            let oldest = (0..MAX_LOOKUPS).min_by_key(|&at| state.lookups[at].since);
            state.lookups.swap_remove(oldest.unwrap_or(0));
        }
        state.lookups.push(Remembered { ip, slot, since: now, state: state_now });
        answer
    }

    /// Receives the next answer of a process of this user, and the process if it serves the
    /// address.
    fn receive_answer(&self, fd: BorrowedFd<'_>) -> Option<(Answer, Option<PeerProcess>)> {
        for _ in 0..MAX_SERVED {
            let mut buf = [0; MAX_MESSAGE_BYTES];
            // No child inherits the file that comes along.
            let _gate = Gate::enter();
            let incoming = sys::recv_abstract(fd, &mut buf, &mut []).ok()?;
            let Some(from) = incoming.credentials.filter(|c| user::is_own(c.uid)) else { continue };
            let Some(answer) = Answer::parse(&buf[..incoming.len.min(buf.len())]) else { continue };
            let receiver_page = || self.receiver_pages.add_file(incoming.file.as_ref()?.as_fd());
            let peer = (answer.private_port != 0).then(|| PeerProcess {
                pid: from.pid,
                private_port: answer.private_port,
                receiver_page: receiver_page(),
            });
            return Some((answer, peer));
        }
        None
    }

    /// Looks for the slot in this process. `None` if the slot is not of this process; `Some(None)`
    /// if it is, but the address is not.
    fn find_in_this_process(&self, ip: IpAddr, slot: Slot) -> Option<Option<PeerProcess>> {
        if self.is_ours(slot) {
            return Some(self.port_in(self, ip));
        }
        let tables = tables();
        let owner = tables.iter().find(|t| t.scope == self.scope && t.is_ours(slot))?;
        Some(self.port_in(owner, ip))
    }

    /// Returns this process as a peer: where `table`, one of this process's tables, receives for
    /// `ip`.
    pub(super) fn port_in(&self, table: &Self, ip: IpAddr) -> Option<PeerProcess> {
        let private_port = find_port(&table.state().served, ip)?;
        let receiver_page =
            table.receiver_page().map(|receiver_page| self.receiver_pages.add(receiver_page));
        Some(PeerProcess { pid: std::process::id(), private_port, receiver_page })
    }
}

/// Waits a while for an answer at `socket`, and answers others' questions meanwhile: the process
/// that is asked may be asking us, and wait as we do. `None` once `end` is reached.
fn wait_at(socket: BorrowedFd<'_>, end: Instant) -> Option<()> {
    let tables = tables();
    tables.iter().for_each(|table| table.serve());
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return None;
    }
    let mut fds = vec![sys::PollFd::readable(socket.as_raw_fd())];
    for table in &tables {
        let state = table.state();
        fds.extend(state.controls().map(|(fd, _)| sys::PollFd::readable(fd.as_raw_fd())));
    }
    sys::poll(&mut fds, Some(left.min(QUERY_PAUSE))).ok().map(drop)
}

pub(super) fn find_port(served: &[(LocalAddr, u16)], ip: IpAddr) -> Option<u16> {
    served.iter().find(|(addr, _)| addr.ip == ip).map(|&(_, port)| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_answer_is_asked_again_and_waited_for_once() {
        let scope = format!("silent-{}", std::process::id());
        let table = SlotTable::with_scope(&scope).unwrap();
        let ip = IpAddr::from([127, 0, 0, 1]);
        let qpn = Slot::LAST.qpn(1);
        let silent = new_socket(table.control_name(Slot::LAST).as_bytes()).unwrap();
        let questions = || {
            let mut buf = [0; MAX_MESSAGE_BYTES];
            std::iter::from_fn(|| sys::recv_abstract(silent.as_fd(), &mut buf, &mut []).ok())
                .count()
        };
        assert_eq!(table.lookup(ip, qpn), Lookup::Asked);
        assert_eq!(table.lookup(ip, qpn), Lookup::Pending);
        assert_eq!(questions(), 1);
        table.state().lookups[0].since -= LOOKUP_LIFE;
        assert_eq!(table.lookup(ip, qpn), Lookup::Pending);
        assert_eq!(questions(), 1, "it may answer now");
    }

    #[test]
    fn slots_that_nobody_has_take_no_place_of_those_that_are_asked() {
        let scope = format!("nobody-{}", std::process::id());
        let table = SlotTable::with_scope(&scope).unwrap();
        let ip = IpAddr::from([127, 0, 0, 1]);
        let silent: Vec<_> = [1, 2, 3]
            .map(|value| Slot::of(Qpn::new(value << Slot::INDEX_BITS)))
            .map(|slot| (slot, new_socket(table.control_name(slot).as_bytes()).unwrap()))
            .into_iter()
            .collect();
        for (slot, _) in &silent {
            assert_eq!(table.lookup(ip, slot.qpn(1)), Lookup::Asked);
        }
        for value in 10..10 + 2 * MAX_LOOKUPS as u32 {
            let nobodys = Slot::of(Qpn::new(value << Slot::INDEX_BITS));
            assert_eq!(table.lookup(ip, nobodys.qpn(1)), Lookup::NotHere);
        }
        for (slot, _) in &silent {
            assert_eq!(table.lookup(ip, slot.qpn(1)), Lookup::Pending, "asked once");
        }
    }
}

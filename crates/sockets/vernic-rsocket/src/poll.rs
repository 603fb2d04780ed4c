//! `poll` over sockets of RDMA and other descriptors.
//!
//! Looks again and again for a while ([`Patience`]), then arms every socket, looks once more, and
//! sleeps on the descriptors of all.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::patience::{Patience, looked};
use crate::socket::{Socket, deadline_of};
use crate::sys;
use crate::wake::{Entered, Sleeper, Wake};
use crate::{Error, Readiness};

/// Up to so many sockets each makes progress by itself at every look. Of more, one does, in turn:
/// sockets of one device share its progress, and looking at the network for each would cost a
/// system call for each.
const FEW: usize = 4;

/// What is waited for.
#[derive(Clone, Debug)]
pub enum Polled {
    /// A socket over RDMA.
    Socket(Socket),
    /// Another descriptor of the process; a negative one is not looked at.
    Other(RawFd),
}

/// An entry of [`poll`].
#[derive(Clone, Debug)]
pub struct PollItem {
    /// What is waited for.
    pub what: Polled,
    /// For which events, as of `poll`.
    pub events: i16,
    /// Which there are.
    pub revents: i16,
}

/// Waits until an entry has an event that it asks for, for `timeout` at most (`None` for ever). How
/// many have one.
///
/// # Errors
/// [`Error::Interrupted`], [`Error::Os`].
pub fn poll(
    items: &mut [PollItem],
    timeout: Option<Duration>,
    polling_time: Duration,
) -> Result<usize, Error> {
    let deadline = deadline_of(timeout);
    let patience = Patience::new(polling_time);
    let mut turn = 0;
    loop {
        let ready = look(items, Some(turn))?;
        offer_core(items, ready);
        if ready > 0 || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(ready);
        }
        if !patience.lasts() {
            break;
        }
        turn += 1;
    }
    let sleeper = Sleeper::own()?;
    let who: std::sync::Arc<dyn Wake> = sleeper.clone();
    let sockets: Vec<Socket> = items.iter().filter_map(|item| item.socket().cloned()).collect();
    let _entered: Vec<Entered<'_>> =
        sockets.iter().map(|socket| Entered::new(socket.wakers(), who.clone(), 0)).collect();
    // Each turn sleeps until something has changed.
    loop {
        sleeper.reset();
        let mut fds = vec![sleeper.fd().as_raw_fd()];
        sockets.iter().for_each(|socket| socket.arm(&mut fds));
        let ready = look(items, None)?;
        if ready > 0 || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(ready);
        }
        let mut entries: Vec<_> = fds.iter().map(|fd| sys::entry(*fd, libc::POLLIN)).collect();
        entries.extend(items.iter().filter_map(PollItem::entry));
        sys::poll(&mut entries, deadline)?;
        sockets.iter().for_each(Socket::take_events);
    }
}

impl PollItem {
    fn socket(&self) -> Option<&Socket> {
        match &self.what {
            Polled::Socket(socket) => Some(socket),
            Polled::Other(_) => None,
        }
    }

    fn entry(&self) -> Option<libc::pollfd> {
        match self.what {
            Polled::Other(fd) if fd >= 0 => Some(sys::entry(fd, self.events)),
            _ => None,
        }
    }
}

/// Lets others run after looks that found nothing, if there is a socket and none whose look does
/// that.
fn offer_core(items: &[PollItem], ready: usize) {
    let mut sockets = items.iter().filter_map(PollItem::socket).peekable();
    if ready > 0 || sockets.peek().is_some() && !sockets.any(Socket::makes_progress) {
        looked(ready > 0);
    }
}

/// Looks at every entry, without waiting. `turn`: make progress, too.
fn look(items: &mut [PollItem], turn: Option<usize>) -> Result<usize, Error> {
    let sockets = items.iter().filter(|item| item.socket().is_some()).count();
    let mut entries: Vec<_> = items.iter().filter_map(PollItem::entry).collect();
    if !entries.is_empty() {
        sys::poll(&mut entries, Some(Instant::now()))?;
    }
    let (mut ready, mut number, mut entries) = (0, 0, entries.iter());
    for item in items {
        item.revents = match &item.what {
            Polled::Socket(socket) => {
                let own_turn = |turn: usize| sockets <= FEW || turn % sockets == number;
                let progress = turn.is_some_and(own_turn);
                number += 1;
                let found: Readiness = socket.look(progress);
                found.among(u32::from(item.events as u16)).bits() as i16
            }
            Polled::Other(fd) if *fd >= 0 => entries.next().map_or(0, |entry| entry.revents),
            Polled::Other(_) => 0,
        };
        ready += usize::from(item.revents != 0);
    }
    Ok(ready)
}

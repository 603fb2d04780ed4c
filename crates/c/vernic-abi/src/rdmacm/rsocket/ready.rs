//! `rpoll`, `rselect`, `repoll_create`, `repoll_ctl`, `repoll_wait`.
//!
//! Numbers that are no sockets over RDMA are descriptors of the system's.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::Arc;
use std::time::Duration;

use libc::{EBADF, EFAULT, EINVAL, epoll_event, pollfd, timeval};
use vernic_rsocket::{
    Epoll, EpollReport, EpollTarget, Numbered, PollItem, Polled, Settings, Socket, poll,
};

use super::{End, made, number, numbered, sockets};
use crate::boundary::Failure;
use crate::pointer::{Out, OutArray};

/// Most descriptors of one call: far beyond what a process can have.
const MOST: usize = 1 << 20;

/// What a number stands for, if it is a socket over RDMA of this process.
fn find(number: c_int) -> Option<Socket> {
    match made().filter(|made| made.origin.is_here())?.table.find(number)? {
        Numbered::Socket(socket) => Some(socket),
        Numbered::Epoll(_) => None,
    }
}

fn polled(number: c_int) -> Polled {
    find(number).map_or(Polled::Other(number), Polled::Socket)
}

fn polling_time() -> Duration {
    let made = made().filter(|made| made.origin.is_here());
    made.map_or_else(Duration::default, |made| made.runtime.settings().polling_time)
}

/// Milliseconds; negative for ever.
fn timeout(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// `rpoll`.
pub(crate) extern "C" fn rpoll(
    mut entries: OutArray<pollfd>,
    count: c_ulong,
    timeout_ms: c_int,
) -> c_int {
    number("rpoll", || {
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST);
        let count = count.ok_or_else(|| Failure::invalid("too many entries"))?;
        let entries = entries.slice(count).ok_or_else(|| Failure::new(EFAULT, "no entries"))?;
        let item =
            |entry: &pollfd| PollItem { what: polled(entry.fd), events: entry.events, revents: 0 };
        let mut items: Vec<PollItem> = entries.iter().map(item).collect();
        let ready = poll(&mut items, timeout(timeout_ms), polling_time())?;
        for (entry, item) in entries.iter_mut().zip(&items) {
            entry.revents = item.revents;
        }
        Ok(ready as i64)
    })
}

/// A `fd_set`: a bit per descriptor, in words.
struct FdSet(OutArray<c_ulong>, usize);

const WORD_BITS: usize = c_ulong::BITS as usize;

impl FdSet {
    fn new(start: *mut c_void, descriptors: usize) -> Self {
        Self(OutArray::told(start), descriptors.div_ceil(WORD_BITS))
    }

    fn words(&mut self) -> &mut [c_ulong] {
        let Self(words, count) = self;
        match words.is_null() {
            true => &mut [],
            false => words.slice(*count).unwrap_or(&mut []),
        }
    }

    fn has(&mut self, descriptor: usize) -> bool {
        let word = self.words().get(descriptor / WORD_BITS).copied().unwrap_or(0);
        word >> (descriptor % WORD_BITS) & 1 != 0
    }

    fn clear(&mut self) {
        self.words().fill(0);
    }

    /// Whether the set is there, and has it now.
    fn add(&mut self, descriptor: usize) -> bool {
        match self.words().get_mut(descriptor / WORD_BITS) {
            Some(word) => {
                *word |= 1 << (descriptor % WORD_BITS);
                true
            }
            None => false,
        }
    }
}

/// For which events `select` reports a descriptor: as the kernel has it.
const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

/// `rselect`.
pub(crate) extern "C" fn rselect(
    descriptors: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: Out<timeval>,
) -> c_int {
    number("rselect", || {
        let count = usize::try_from(descriptors).ok().filter(|count| *count <= MOST);
        let count = count.ok_or_else(|| Failure::invalid("descriptors below 0"))?;
        let timeout = match timeout.is_null() {
            true => None,
            false => Some(duration(timeout.require("a timeout")?)?),
        };
        let mut sets = [read, write, except].map(|set| FdSet::new(set, count));
        let wanted = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let mut items = Vec::new();
        let mut named = Vec::new();
        for descriptor in 0..count {
            let mut events = 0;
            for (set, event) in sets.iter_mut().zip(wanted) {
                events |= if set.has(descriptor) { event } else { 0 };
            }
            if events != 0 {
                items.push(PollItem { what: polled(descriptor as c_int), events, revents: 0 });
                named.push(descriptor);
            }
        }
        poll(&mut items, timeout, polling_time())?;
        if items.iter().any(|item| item.revents & libc::POLLNVAL != 0) {
            return Err(Failure::new(EBADF, "a descriptor that is not open").into());
        }
        sets.iter_mut().for_each(FdSet::clear);
        let mut ready = 0;
        for (item, descriptor) in items.iter().zip(named) {
            for ((set, event), reported) in sets.iter_mut().zip(wanted).zip([READ, WRITE, EXCEPT]) {
                if item.events & event != 0 && item.revents & reported != 0 {
                    ready += i64::from(set.add(descriptor));
                }
            }
        }
        Ok(ready)
    })
}

fn duration(time: timeval) -> Result<Duration, Failure> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Failure::invalid("a negative time"))?;
    let micros = u64::try_from(time.tv_usec).map_err(|_| Failure::invalid("a negative time"))?;
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// `repoll_create`.
pub(crate) extern "C" fn repoll_create(_flags: c_int) -> c_int {
    number("repoll_create", || {
        let sockets = sockets()?;
        let settings: &Settings = sockets.runtime.settings();
        let epoll = Epoll::new(settings.polling_time)?;
        Ok(sockets.table.insert(Numbered::Epoll(Arc::new(epoll))))
    })
}

fn epoll(number: c_int) -> Result<Arc<Epoll>, End> {
    match numbered(number)? {
        Numbered::Epoll(epoll) => Ok(epoll),
        Numbered::Socket(_) => Err(Failure::new(EINVAL, "a socket, and no set of them").into()),
    }
}

/// `repoll_ctl`.
pub(crate) extern "C" fn repoll_ctl(
    set: c_int,
    op: c_int,
    descriptor: c_int,
    event: Out<epoll_event>,
) -> c_int {
    number("repoll_ctl", || {
        let (events, data) = match op {
            libc::EPOLL_CTL_DEL => (0, 0),
            _ => {
                let event = event.require("an event")?;
                (event.events, event.u64)
            }
        };
        let target = find(descriptor).map_or(EpollTarget::Other(descriptor), EpollTarget::Socket);
        epoll(set)?.ctl(op, &target, events, data)?;
        Ok(0)
    })
}

/// Events that find room without an allocation.
const FEW: usize = 64;

/// `repoll_wait`.
pub(crate) extern "C" fn repoll_wait(
    set: c_int,
    mut events: OutArray<epoll_event>,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    number("repoll_wait", || {
        let room = usize::try_from(room).ok().filter(|room| *room > 0);
        let room = room.ok_or_else(|| Failure::invalid("no room for events"))?.min(MOST);
        let none = EpollReport { events: 0, data: 0 };
        let (mut few, mut many) = ([none; FEW], Vec::new());
        let reports = match room {
            ..=FEW => &mut few[..room],
            _ => {
                many.resize(room, none);
                &mut many[..]
            }
        };
        let count = epoll(set)?.wait(reports, timeout(timeout_ms))?;
        let events = events.slice(count).ok_or_else(|| Failure::new(EFAULT, "no events"))?;
        for (place, report) in events.iter_mut().zip(&reports[..count]) {
            *place = epoll_event { events: report.events, u64: report.data };
        }
        Ok(count as i64)
    })
}

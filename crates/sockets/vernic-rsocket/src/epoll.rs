//! `epoll` over sockets of RDMA and other descriptors.
//!
//! Other descriptors are in an epoll descriptor of the kernel's, whose number this has; the
//! channels of the sockets are in a second one, which is in the first. A socket is looked at again
//! when its channel has an event, when somebody changed it ([`Wake`]), or when it was ready at the
//! last look; all others are armed and cost nothing.
//!
//! Limits: as many sockets as the process has; a wait reports as many events as it has room for,
//! and others the next time, so that none is starved.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event};

use crate::Error;
use crate::patience::{Patience, looked};
use crate::socket::{Socket, deadline_of};
use crate::sys::KernelEpoll;
use crate::wake::{Sleeper, Wake, lock};

/// The data of the kernel's event that stands for sockets; other descriptors have their number.
const SOCKETS: u64 = u64::MAX;
/// The data of the event that stands for a changed socket; channels have the number of their
/// socket.
const CHANGED: u64 = u64::MAX;

/// Events of the kernel that are taken at once.
const BATCH: usize = 64;

/// One in so many turns of polling looks at other descriptors.
const OTHERS_EVERY: usize = 8;

/// Among so many members one is looked for that makes progress: listeners do not.
const CANDIDATES: usize = 8;

/// One in so many turns of polling looks at the channels of sockets that are armed since an earlier
/// wait.
const CHANNELS_EVERY: usize = 4;

/// An event that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollReport {
    /// Bits of `epoll`.
    pub events: u32,
    /// What the program attached to the descriptor.
    pub data: u64,
}

/// A socket in the set.
#[derive(Debug)]
struct Member {
    socket: Socket,
    events: u32,
    data: u64,
    /// Descriptors of it that the kernel watches.
    watched: Vec<RawFd>,
    /// What was reported last, and when, of a socket that reports changes only.
    reported: u32,
    news: u64,
    /// Reported once, and silent until it is changed.
    spent: bool,
}

#[derive(Debug, Default)]
struct Core {
    members: HashMap<RawFd, Member>,
    /// What the program attached to other descriptors.
    others: HashMap<RawFd, u64>,
    /// Sockets to look at, each once.
    due: VecDeque<RawFd>,
    is_due: HashSet<RawFd>,
}

impl Core {
    fn make_due(&mut self, number: RawFd) {
        if self.members.contains_key(&number) && self.is_due.insert(number) {
            self.due.push_back(number);
        }
    }
}

/// Sockets that were changed by somebody else than who waits.
#[derive(Debug)]
struct Changes {
    sleeper: Arc<Sleeper>,
    numbers: Mutex<HashSet<RawFd>>,
    /// The thread that looks at the sockets just now, under the lock of the set: it sees what it
    /// changes.
    looker: AtomicUsize,
}

/// No thread.
const NOBODY: usize = 0;

/// A number that no other thread has at the same time.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.try_with(|place| std::ptr::from_ref(place).addr()).unwrap_or(NOBODY)
}

impl Wake for Changes {
    fn wake(&self, token: usize) {
        lock(&self.numbers).insert(token as RawFd);
        let looker = self.looker.load(Ordering::Relaxed);
        if looker == NOBODY || looker != this_thread() {
            self.sleeper.rouse();
        }
    }
}

/// A set of sockets and other descriptors to wait for.
#[derive(Debug)]
pub struct Epoll {
    kernel: KernelEpoll,
    channels: KernelEpoll,
    core: Mutex<Core>,
    changes: Arc<Changes>,
    polling_time: Duration,
}

/// A descriptor in a set.
#[derive(Clone, Debug)]
pub enum EpollTarget {
    /// A socket over RDMA.
    Socket(Socket),
    /// Another descriptor of the process.
    Other(RawFd),
}

impl Epoll {
    /// An empty set. `polling_time` as of [`Settings`](crate::Settings).
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor left.
    pub fn new(polling_time: Duration) -> Result<Self, Error> {
        let (kernel, channels) = (KernelEpoll::new()?, KernelEpoll::new()?);
        let sleeper = Sleeper::new()?;
        let (add, input) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32);
        channels.ctl(add, sleeper.fd().as_raw_fd(), input, CHANGED)?;
        kernel.ctl(add, channels.number(), input, SOCKETS)?;
        let numbers = Mutex::default();
        let changes = Arc::new(Changes { sleeper, numbers, looker: AtomicUsize::new(NOBODY) });
        Ok(Self { kernel, channels, core: Mutex::default(), changes, polling_time })
    }

    /// Its number: that of the kernel's descriptor in it.
    pub fn number(&self) -> RawFd {
        self.kernel.number()
    }

    /// `epoll_ctl`.
    ///
    /// # Errors
    /// [`Error::Os`] as the kernel says it, of sockets as of other descriptors: ENOENT, EEXIST,
    /// EINVAL.
    pub fn ctl(
        &self,
        op: c_int,
        target: &EpollTarget,
        events: u32,
        data: u64,
    ) -> Result<(), Error> {
        match target {
            EpollTarget::Socket(socket) => self.ctl_socket(op, socket, events, data),
            EpollTarget::Other(fd) => {
                let mut core = lock(&self.core);
                self.kernel.ctl(op, *fd, events, *fd as u64)?;
                match op {
                    libc::EPOLL_CTL_DEL => _ = core.others.remove(fd),
                    _ => _ = core.others.insert(*fd, data),
                }
                Ok(())
            }
        }
    }

    fn ctl_socket(&self, op: c_int, socket: &Socket, events: u32, data: u64) -> Result<(), Error> {
        let number = socket.number();
        let refuse = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            Err(Error::Os { what: "change a set of sockets", source })
        };
        let who: Arc<dyn Wake> = self.changes.clone();
        let mut core = lock(&self.core);
        let known = core.members.contains_key(&number);
        match op {
            libc::EPOLL_CTL_ADD if known => return refuse(libc::EEXIST),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !known => return refuse(libc::ENOENT),
            libc::EPOLL_CTL_ADD => {
                let socket = socket.clone();
                socket.wakers().enter(who, number as usize);
                let (watched, reported, news, spent) = (Vec::new(), 0, 0, false);
                let member = Member { socket, events, data, watched, reported, news, spent };
                core.members.insert(number, member);
            }
            libc::EPOLL_CTL_MOD => {
                if let Some(member) = core.members.get_mut(&number) {
                    (member.events, member.data) = (events, data);
                    (member.reported, member.spent) = (0, false);
                }
            }
            libc::EPOLL_CTL_DEL => {
                if let Some(member) = core.members.remove(&number) {
                    self.let_go(&member);
                }
            }
            _ => return refuse(libc::EINVAL),
        }
        core.make_due(number);
        drop(core);
        // A thread that waits looks at it.
        self.changes.sleeper.rouse();
        Ok(())
    }

    fn let_go(&self, member: &Member) {
        let who: Arc<dyn Wake> = self.changes.clone();
        member.socket.wakers().leave(&who, member.socket.number() as usize);
        for fd in &member.watched {
            // It may be closed by now, and then the kernel has forgotten it.
            let _ = self.channels.ctl(libc::EPOLL_CTL_DEL, *fd, 0, 0);
        }
    }

    /// A socket was closed: it leaves the set, as the kernel does it.
    pub fn forget(&self, number: RawFd) {
        let member = lock(&self.core).members.remove(&number);
        if let Some(member) = member {
            self.let_go(&member);
        }
    }

    /// Waits until something in the set is ready, for `timeout` at most (`None` for ever), and
    /// fills `reports`: how many.
    ///
    /// # Errors
    /// [`Error::Interrupted`], [`Error::Os`].
    pub fn wait(
        &self,
        reports: &mut [EpollReport],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let deadline = deadline_of(timeout);
        let has_sockets = !lock(&self.core).members.is_empty();
        let patience = Patience::new(self.polling_time);
        let mut turn: usize = 0;
        // Each turn after those that poll sleeps until something has changed.
        loop {
            let over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let polls = !over && has_sockets && patience.lasts();
            let (mut filled, has_progressed) = self.look(reports, polls.then_some(turn));
            turn += 1;
            // A turn that polls leaves other descriptors out now and then: they cost a system call.
            if !(polls && filled == 0) || turn.is_multiple_of(OTHERS_EVERY) {
                let sleeps_until = match filled > 0 || polls || over {
                    true => Some(Instant::now()),
                    false => deadline,
                };
                filled += self.ask_kernel(&mut reports[filled..], sleeps_until)?;
            }
            if filled > 0 || has_sockets && !has_progressed {
                looked(filled > 0);
            }
            if filled > 0 || over {
                return Ok(filled);
            }
        }
    }

    /// Makes progress, and looks at the sockets that are due. Those that are not ready stay due in
    /// a `turn` of those that poll; else they are armed. How many are ready, and whether there was
    /// one that makes progress.
    fn look(&self, reports: &mut [EpollReport], turn: Option<usize>) -> (usize, bool) {
        let mut guard = lock(&self.core);
        let core = &mut *guard;
        self.changes.looker.store(this_thread(), Ordering::Relaxed);
        // Sockets of one device share its progress; what completes makes channels of armed ones
        // readable.
        let recent = core.due.iter().filter_map(|number| core.members.get(number));
        let mut candidates = recent.chain(core.members.values()).take(CANDIDATES);
        let progressing = candidates.find(|member| member.socket.makes_progress());
        if let Some(member) = progressing {
            member.socket.look(true);
        }
        let has_progressed = progressing.is_some();
        if turn.is_none_or(|turn| turn.is_multiple_of(CHANNELS_EVERY)) {
            self.take_events(core);
        }
        for number in lock(&self.changes.numbers).drain() {
            core.make_due(number);
        }
        let filled = self.look_at_due(core, reports, turn.is_some());
        self.changes.looker.store(NOBODY, Ordering::Relaxed);
        (filled, has_progressed)
    }

    fn look_at_due(&self, core: &mut Core, reports: &mut [EpollReport], polls: bool) -> usize {
        let mut filled = 0;
        // Each once: those that stay due come behind these.
        for _ in 0..core.due.len() {
            if filled == reports.len() {
                break;
            }
            let Some(number) = core.due.pop_front() else { break };
            core.is_due.remove(&number);
            let Some(member) = core.members.get_mut(&number) else { continue };
            if member.spent {
                continue;
            }
            let (mut ready, mut news) = member.ready();
            if ready == 0 && polls {
                core.make_due(number);
                continue;
            }
            if ready == 0 {
                self.watch(number, member);
                (ready, news) = member.ready();
            }
            if ready == 0 {
                continue;
            }
            reports[filled] = EpollReport { events: ready, data: member.data };
            filled += 1;
            member.spent = member.events & libc::EPOLLONESHOT as u32 != 0;
            (member.reported, member.news) = (ready, news);
            if member.events & libc::EPOLLET as u32 != 0 {
                // The next change is to be noticed.
                self.watch(number, member);
            } else {
                core.make_due(number);
            }
        }
        filled
    }

    /// Arms a socket, and has the kernel watch its descriptors.
    fn watch(&self, number: RawFd, member: &mut Member) {
        let mut fds = Vec::new();
        member.socket.arm(&mut fds);
        for fd in fds {
            if !member.watched.contains(&fd) {
                let input = libc::EPOLLIN as u32;
                let added = self.channels.ctl(libc::EPOLL_CTL_ADD, fd, input, number as u64);
                if added.is_ok() {
                    member.watched.push(fd);
                }
            }
        }
    }

    /// Sockets whose channels have events, or that somebody has changed, become due.
    fn take_events(&self, core: &mut Core) {
        if core.members.is_empty() {
            return;
        }
        let mut events = [epoll_event { events: 0, u64: 0 }; BATCH];
        // As many turns as the sockets have events, each of which is taken.
        while let Ok(count @ 1..) = self.channels.wait(&mut events, Some(Instant::now())) {
            for event in &events[..count] {
                let data = event.u64;
                if data == CHANGED {
                    self.changes.sleeper.reset();
                    continue;
                }
                let number = data as RawFd;
                if let Some(member) = core.members.get(&number) {
                    member.socket.take_events();
                }
                core.make_due(number);
            }
            if count < BATCH {
                break;
            }
        }
    }

    /// Waits for what the kernel has, and reports the events of other descriptors.
    fn ask_kernel(
        &self,
        reports: &mut [EpollReport],
        deadline: Option<Instant>,
    ) -> Result<usize, Error> {
        let mut events = [epoll_event { events: 0, u64: 0 }; BATCH];
        let room = reports.len().min(BATCH);
        let count = self.kernel.wait(&mut events[..room], deadline)?;
        let core = lock(&self.core);
        let mut filled = 0;
        for event in &events[..count] {
            let (events, number) = (event.events, event.u64);
            if number != SOCKETS
                && let Some(data) = core.others.get(&(number as RawFd))
            {
                reports[filled] = EpollReport { events, data: *data };
                filled += 1;
            }
        }
        Ok(filled)
    }
}

impl Member {
    /// What is to be reported now, and the number of the news that it is.
    fn ready(&self) -> (u32, u64) {
        let ready = u32::from(self.socket.look(false).among(self.events).bits());
        let news = self.socket.wakers().news(self.events & libc::EPOLLOUT as u32 != 0);
        let edge = self.events & libc::EPOLLET as u32 != 0;
        let known = ready & !self.reported == 0 && news == self.news;
        (if edge && known { 0 } else { ready }, news)
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let members = std::mem::take(&mut lock(&self.core).members);
        members.values().for_each(|member| self.let_go(member));
    }
}

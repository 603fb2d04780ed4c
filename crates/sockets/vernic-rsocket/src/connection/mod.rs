//! A connected stream: the machine, its memory, its queue pair, and the calls of a user.
//!
//! Who locks what: `core` is the machine and what goes with it; it is held to look, to poll
//! completions and to post, and not while many bytes are copied. A sender holds the turn of senders
//! during its call, a reader that of readers, so that bytes of two calls do not mix; control
//! messages need neither. Lock order: turn, core, engine. Whoever changes the core tells the
//! [`Wakers`].
//!
//! Completions are polled by whoever calls; a thread that finds nothing to do polls for a while
//! ([`Patience`]), then arms the queue and sleeps on its channel.
//!
//! | file | what |
//! |---|---|
//! | `mod` | making, completions, failures, waiting |
//! | `transfer` | sending and receiving |
//! | `direct` | mapped buffers and direct writes |

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use vernic_engine::iwarp::{Ending, ending};
use vernic_engine::{
    Cause, CompChannel, Context, Cq, EMPTY_WC, Explanation, Payload, Pd, Qp, QpCap, QpInit, RecvWr,
    Remote, SendFlags, SendOp, SendWr, Service, Tag, Transport, Wc, WcStatus,
};

use crate::memory::StreamMemory;
use crate::patience::Patience;
use crate::stream::{Limits, Shutdown, Source, Stream, Write, WriteId};
use crate::sys;
use crate::wake::{Entered, Sleeper, Wakers, lock};
use crate::wire::{ConnData, Message};
use crate::{Error, Failure, Readiness};

mod direct;
mod transfer;

pub(crate) use transfer::RecvMode;

/// Completions taken at once.
const BATCH: usize = 16;

/// Of the number of every receive work request. What is below is where a message goes that comes as
/// a SEND; other receives carry no memory, so none is told from another.
const RECV: u64 = 1 << 63;

/// Number of a WRITE whose message follows in a SEND: that has the name, and completes later.
const BEFORE_MESSAGE: u64 = 1 << 62;

/// What changes of a connection.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) stream: Stream,
    /// The queue will raise an event with its next completion.
    armed: bool,
    /// Why it failed, until a call has told so.
    failure: Option<Failure>,
    /// It failed, told or not.
    failed: bool,
    /// What it was ready for when it changed last.
    ready: Readiness,
    /// Data has come since then.
    has_news: bool,
    /// Of messages that come as SENDs: where the next one goes.
    next_message: u16,
    mappings: direct::Mappings,
}

/// A connected stream, or one that is about to be.
pub(crate) struct Connection {
    pub(crate) core: Mutex<Core>,
    sender: Mutex<()>,
    reader: Mutex<()>,
    pub(crate) wakers: Arc<Wakers>,
    polling_time: Duration,
    /// The peer, for messages.
    peer: String,
    /// Messages go as SENDs behind their WRITEs: iWARP has no WRITE with immediate data.
    sends_messages: bool,
    /// Peers on this host may write into each other's memory.
    places: bool,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    pd: Arc<Pd>,
    /// After what refers to it, so that it is dropped later.
    memory: StreamMemory,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?} to {})", self.qp, self.peer)
    }
}

impl Connection {
    /// A queue pair with its rings. `peer` is for messages.
    pub(crate) fn new(
        context: &Arc<Context>,
        limits: Limits,
        polling_time: Duration,
        wakers: &Arc<Wakers>,
        peer: String,
    ) -> Result<Self, Error> {
        let limits = limits.clamped();
        let inline_bytes = limits.inline_bytes.min(vernic_engine::limits::MAX_INLINE);
        let limits = Limits { inline_bytes, ..limits };
        let pd = context.alloc_pd();
        let sends_messages = context.info().transport == Transport::Iwarp;
        let config = context.config();
        let places = config.same_host && config.direct.is_on() && !sends_messages;
        let memory = StreamMemory::new(&pd, &limits, sends_messages, places)?;
        let channel = context.create_channel()?;
        let per_write = if sends_messages { 2 } else { 1 };
        let sends = u32::from(limits.send_requests) * per_write;
        let recvs = u32::from(limits.recv_messages);
        let cq = context.create_cq(sends + recvs, Some(&channel))?;
        let qp = pd.create_qp(QpInit {
            service: Service::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: sends,
                max_recv_wr: recvs,
                max_send_sge: 2,
                max_recv_sge: u32::from(sends_messages),
                max_inline: inline_bytes.max(crate::stream::Small::MAX as u32),
            },
            signal_all: true,
            congestion: None,
        })?;
        let core = Core {
            stream: Stream::new(limits, memory.places()),
            armed: false,
            failure: None,
            failed: false,
            ready: Readiness::default(),
            has_news: false,
            next_message: 0,
            mappings: direct::Mappings::default(),
        };
        Ok(Self {
            core: Mutex::new(core),
            sender: Mutex::default(),
            reader: Mutex::default(),
            wakers: wakers.clone(),
            polling_time,
            peer,
            sends_messages,
            places,
            qp,
            cq,
            channel,
            pd,
            memory,
        })
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Posts the receives: once the queue pair is in Init, before the peer knows of it.
    pub(crate) fn post_receives(&self) -> Result<(), Error> {
        let mut core = lock(&self.core);
        let receives = usize::from(core.stream.limits().recv_messages);
        self.post_recv(&mut core, receives)
    }

    fn post_recv(&self, core: &mut Core, count: usize) -> Result<(), Error> {
        if !self.sends_messages {
            let receive = RecvWr { wr_id: RECV, sges: &[] };
            return Ok(self.qp.post_recv_from(std::iter::repeat_n(receive, count))?);
        }
        for _ in 0..count {
            let index = core.next_message;
            core.next_message = (index + 1) % core.stream.limits().recv_messages;
            let wr_id = RECV | u64::from(index);
            let sge = self.memory.message_sge(index);
            self.qp.post_recv(&[RecvWr { wr_id, sges: sge.as_slice() }])?;
        }
        Ok(())
    }

    /// What the peer has to know.
    pub(crate) fn conn_data(&self) -> ConnData {
        lock(&self.core).stream.conn_data()
    }

    /// The peer's connection data has come, and the queue pair is up.
    pub(crate) fn connect(&self, peer: ConnData) -> Result<(), Error> {
        let mut core = lock(&self.core);
        core.stream.connect(peer)?;
        self.changed(&mut core);
        Ok(())
    }

    /// What it is ready for; polls completions if any wait.
    pub(crate) fn readiness(&self) -> Readiness {
        let mut core = lock(&self.core);
        self.progress(&mut core);
        core.readiness()
    }

    /// The same, without making progress on the caller's thread: only what has completed counts.
    pub(crate) fn readiness_now(&self) -> Readiness {
        let mut core = lock(&self.core);
        if self.cq.waiting() != 0 {
            self.progress(&mut core);
        }
        core.readiness()
    }

    /// Takes the reason of a failure that nobody was told of.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        let mut core = lock(&self.core);
        self.progress(&mut core);
        core.failure.take()
    }

    /// Looks at the machine.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Stream) -> T) -> T {
        let mut core = lock(&self.core);
        self.progress(&mut core);
        look(&core.stream)
    }

    /// The channel's descriptor: readable when an armed queue has completions.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Makes sure that the next completion raises an event. Look at what is waited for after that.
    pub(crate) fn arm(&self) {
        self.arm_core(&mut lock(&self.core));
    }

    fn arm_core(&self, core: &mut Core) {
        if !core.armed {
            core.armed = true;
            self.cq.req_notify(false);
        }
    }

    /// Takes the events that the channel has.
    pub(crate) fn take_events(&self) {
        let mut core = lock(&self.core);
        // At most one per arming, and none without: a look at the descriptor costs system calls.
        if core.armed && self.channel.try_next().is_some() {
            core.armed = false;
        }
        self.stay_awake(&core);
    }

    /// Where the peer writes directly, a program may wait by looking at its memory, and calls
    /// nobody. As long as a queue is armed the device's thread receives whatever comes at once;
    /// armed for solicited completions, of which there are none, it raises no event.
    fn stay_awake(&self, core: &Core) {
        if core.mappings.are_for_peer() {
            self.cq.req_notify(true);
        }
    }

    /// The connection is over, as the connection manager says. What has come can still be read;
    /// behind it is an error if a connection of iWARP was lost, as over TCP, and not the end that
    /// the peer would have made.
    pub(crate) fn handle_disconnected(&self) {
        let mut core = lock(&self.core);
        // What came before is in the queue: a few turns, as each takes some of its bounded entries.
        while self.poll_completions(&mut core) {}
        if let (true, Some(Ending::Lost(how))) = (core.stream.may_receive(), ending(&self.qp)) {
            let why = format!("the connection to {} was lost: {how}", self.peer);
            self.fail(&mut core, Failure::new(libc::ECONNRESET, why));
        }
        core.stream.handle_disconnected();
        self.changed(&mut core);
    }

    /// Begins to shut down; what was sent before goes out first.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // Not between two pieces of a message: a sender that waits gives its turn up.
        let mut core = lock(&self.core);
        core.stream.shutdown(how);
        self.progress(&mut core);
        self.changed(&mut core);
    }

    /// Sends a sign of life, whose failure to arrive will be noticed.
    pub(crate) fn keep_alive(&self) {
        let mut core = lock(&self.core);
        // The one before is answered by now, or fails.
        self.progress(&mut core);
        core.stream.keep_alive();
        self.changed(&mut core);
    }

    /// Whether everything sent has arrived, or never will.
    pub(crate) fn is_flushed(&self) -> bool {
        let mut core = lock(&self.core);
        self.progress(&mut core);
        core.failed || core.stream.is_flushed()
    }

    /// Takes what has completed, and posts what is due.
    fn progress(&self, core: &mut Core) {
        // Each turn takes some entries of the bounded queue; others may add to it meanwhile, which
        // is work that would have to be done in any case.
        while self.poll_completions(core) {}
        self.changed(core);
    }

    /// Takes a batch of completions; whether there may be more.
    fn poll_completions(&self, core: &mut Core) -> bool {
        let mut wcs = [EMPTY_WC; BATCH];
        let count = match self.cq.poll(&mut wcs) {
            Ok(count) => count,
            Err(overrun) => {
                self.fail(core, Failure::new(libc::EIO, overrun.to_string()));
                return false;
            }
        };
        let mut received = 0;
        for wc in &wcs[..count] {
            if wc.wr_id & RECV != 0 {
                received += usize::from(wc.status == WcStatus::Success);
                self.handle_received(core, wc);
            } else {
                if wc.wr_id != BEFORE_MESSAGE {
                    core.stream.handle_sent(WriteId::of(wc.wr_id));
                }
                if wc.status != WcStatus::Success && core.stream.is_connected() {
                    match self.has_ended_in_order(core, wc) {
                        true => core.stream.handle_disconnected(),
                        false => self.fail(core, self.failure_of(wc)),
                    }
                }
            }
        }
        if received != 0
            && let Err(error) = self.post_recv(core, received)
            && core.stream.is_connected()
        {
            self.fail(core, Failure::from(&error));
        }
        count == BATCH
    }

    fn handle_received(&self, core: &mut Core, wc: &Wc) {
        if wc.status != WcStatus::Success {
            return;
        }
        let message = match wc.tag {
            Tag::Imm(imm) => Message::parse(imm),
            // Shorter ones are none.
            _ if self.sends_messages && wc.byte_len as usize == Message::LEN => {
                self.memory.message(wc.wr_id as u16)
            }
            _ => return,
        };
        core.has_news |= matches!(message, Message::Data(_));
        let result = core.stream.handle_message(message, &mut &self.memory);
        if let Err(error) = result {
            let why = format!("{} broke the protocol: {error}", self.peer);
            self.fail(core, Failure::new(libc::EPROTO, why));
        }
    }

    /// Whether a failure is the end of the stream: the peer's process, one of this host, has ended,
    /// and no bytes of the user are lost by that.
    fn has_ended_in_order(&self, core: &Core, wc: &Wc) -> bool {
        let is_data = wc.wr_id == BEFORE_MESSAGE || WriteId::of(wc.wr_id).is_data();
        let is_gone = |found: Explanation| matches!(found.failure.cause, Cause::PeerGone);
        !is_data && !core.stream.has_data_in_flight() && self.qp.explain().is_some_and(is_gone)
    }

    /// Why a work request failed.
    fn failure_of(&self, wc: &Wc) -> Failure {
        let errno = match wc.status {
            WcStatus::LocalLength | WcStatus::LocalQpOperation | WcStatus::LocalProtection => {
                libc::EIO
            }
            // The peer is gone, or has no such memory or queue pair any more.
            _ => libc::ECONNRESET,
        };
        let why = match self.qp.explain() {
            Some(explanation) => format!("the connection to {} broke: {explanation}", self.peer),
            None => format!("the connection to {} broke: {:?}", self.peer, wc.status),
        };
        Failure::new(errno, why)
    }

    fn fail(&self, core: &mut Core, failure: Failure) {
        if core.failed {
            return;
        }
        tracing::info!(%failure, "stream failed");
        core.failed = true;
        core.failure = Some(failure);
        core.stream.handle_disconnected();
    }

    /// Posts what the machine has for the peer, and wakes who may now go on.
    fn changed(&self, core: &mut Core) {
        // Ends: control messages and credits are few, and come back only by completions.
        while let Some(write) = core.stream.poll_write() {
            self.post(core, &write, &[]);
        }
        let ready = core.readiness();
        let before = std::mem::replace(&mut core.ready, ready);
        if std::mem::take(&mut core.has_news) || ready.is_more_than(before | Readiness::WRITE) {
            self.wakers.wake();
        } else if ready.is_more_than(before) {
            self.wakers.wake_writers();
        }
    }

    /// Posts a write of the machine's. `user` are the user's bytes of one that does not go through
    /// the ring.
    fn post(&self, core: &mut Core, write: &Write, user: &[u8]) {
        let remote = Remote { addr: write.addr, rkey: write.rkey };
        let sges;
        let payload = match &write.source {
            Source::Nothing => Payload::Sges(&[]),
            Source::Bytes(small) => Payload::InlineBytes(small.as_slice()),
            Source::User(_) => Payload::InlineBytes(user),
            Source::Ring(spans) => {
                sges = self.memory.sges(*spans);
                Payload::Sges(if spans.second.len == 0 { &sges[..1] } else { &sges })
            }
        };
        let wr = |wr_id, op, payload| {
            let flags = SendFlags::SIGNALED;
            SendWr { wr_id, op, flags, payload, dest: None, srqn: None }
        };
        let id = write.id.number();
        let posted = match write.message {
            Some(message) if self.sends_messages => {
                let bytes = message.to_send();
                let last = wr(id, SendOp::Send, Payload::InlineBytes(&bytes));
                match write.source {
                    Source::Nothing => self.qp.post_send(&[last]),
                    _ => {
                        let first = wr(BEFORE_MESSAGE, SendOp::Write(remote), payload);
                        self.qp.post_send(&[first, last])
                    }
                }
            }
            Some(message) => {
                self.qp.post_send(&[wr(id, SendOp::WriteImm(remote, message.to_imm()), payload)])
            }
            None => self.qp.post_send(&[wr(id, SendOp::Write(remote), payload)]),
        };
        if let Err(error) = posted {
            core.stream.handle_sent(write.id);
            self.fail(core, Failure::new(libc::EIO, error.to_string()));
        }
    }

    /// Waits until the machine is as `ready` says, or failed, or `deadline` has passed
    /// ([`Error::WouldBlock`]).
    fn wait(&self, deadline: Option<Instant>, ready: impl Fn(&Core) -> bool) -> Result<(), Error> {
        let is_ready = |core: &mut MutexGuard<'_, Core>| {
            self.progress(core);
            core.failed || ready(core)
        };
        let patience = Patience::new(self.polling_time);
        loop {
            if is_ready(&mut lock(&self.core)) {
                return Ok(());
            }
            if !patience.lasts() {
                break;
            }
        }
        let sleeper = Sleeper::own()?;
        let _entered = Entered::new(&self.wakers, sleeper.clone(), 0);
        // Each turn sleeps until something has changed.
        loop {
            sleeper.reset();
            {
                let mut core = lock(&self.core);
                self.arm_core(&mut core);
                if is_ready(&mut core) {
                    return Ok(());
                }
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::WouldBlock);
            }
            let entry = |fd: BorrowedFd<'_>| sys::entry(fd.as_raw_fd(), libc::POLLIN);
            sys::sleep(&mut [entry(sleeper.fd()), entry(self.fd())], deadline)?;
            self.take_events();
        }
    }
}

impl Core {
    fn readiness(&self) -> Readiness {
        let stream = &self.stream;
        let ended = !stream.may_receive() && (stream.peer().is_some() || self.failed);
        let closed = stream.is_disconnected() || self.failed;
        Readiness::READ.when(stream.unread() != 0 || ended)
            | Readiness::WRITE.when(stream.can_send() || stream.is_write_shut() || closed)
            | Readiness::READ_ENDED.when(ended)
            // Not before all is read that came: programs take it for the end, as of TCP, where a
            // peer that closes does not hang up as long as this side has not closed.
            | Readiness::HUNG_UP.when(closed && stream.unread() == 0)
            | Readiness::ERROR.when(self.failure.is_some())
    }
}

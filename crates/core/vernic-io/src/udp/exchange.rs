//! Handing packets over to other processes of this host, and taking packets over from them. There
//! is one connection and one queue in memory (`handoff/queue.rs`) per process and direction.
//!
//! ```text
//!      process that got another's packets                  owner of the packets
//!   socket(SOCK_SEQPACKET), connect  ---------->  \0vernic/<slot>/queue
//!   checks the owner's user                       checks the caller's user
//!   a byte, with the file of the queue  ------->  maps it
//!   packets: through memory; a byte where the queue was empty
//!   hang-up: no more packets come    ---------->  takes what is left, drops the queue
//! ```
//!
//! Neither side waits: packets are in the queue before the owner knows of the queue. The writer
//! closes the connection after [`IDLE_NANOS`] without a packet; the owner can still take what is
//! left in the queue. The writer notices an owner that ended by its hang-up, or by the next bell.
//!
//! Polling the queues is no system call, so each receive polls all of them. It does so first:
//! packets in a queue are older than those of a flow that was steered since.
//!
//! Limits: [`MAX_OUTLETS`] and [`MAX_INLETS`] at a time.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use vernic_sys::{self as sys, OwnFd};

use crate::batch::{RX_BUFFER_BYTES, RX_BUFFERS, RX_MAX_RANGES, RxBatch};
use crate::host::handoff::queue::{Broken, Next, QueueReader, QueueWriter, Written};
use crate::host::handoff::{HandoverResult, Head};
use crate::host::slots::{SharedFd, check_user};
use crate::host::{Slot, SlotTable};
use crate::link::{LinkCounters, Nanos};
use crate::udp::steer::IDLE_NANOS;

/// The most processes that packets are handed over to. Beyond that, the process that got no packet
/// for the longest time gives way.
const MAX_OUTLETS: usize = 64;

/// The most processes that packets are taken over from: as many as there may be. Memory and
/// descriptors run out before.
const MAX_INLETS: usize = 1 << Slot::BITS;

/// Connections accepted at a time.
const MAX_ACCEPTED: usize = 32;

/// How long no queue is made after making one failed, for want of memory or descriptors: a second.
const SHORT_NANOS: u64 = 1_000_000_000;

/// Buffers and parts of a batch that are left to the sockets: half of them.
const BUFFERS_LEFT: usize = RX_BUFFERS / 2;
const PARTS_LEFT: usize = RX_MAX_RANGES / 2;

/// Bells handled at a time: an honest process has never more than two unhandled ones.
const MAX_HEARD: usize = 4;

/// The bytes of each message on a connection: the first has the file of the queue, the others are
/// bells.
const BELL: [u8; 1] = [0];

#[derive(Debug)]
struct Outlet {
    slot: Slot,
    connection: OwnFd,
    writer: QueueWriter,
    used: Nanos,
}

#[derive(Debug)]
struct Inlet {
    /// The slot of this process whose packets come through the queue.
    slot: Slot,
    connection: OwnFd,
    /// The queue, once its file has come.
    reader: Option<QueueReader>,
    /// Whether the connection has ended, so that nothing more comes.
    ended: bool,
}

/// The queues to and from other processes. See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    outlets: Vec<Outlet>,
    inlets: Vec<Inlet>,
    /// The index of the inlet that is polled first.
    first: usize,
    short_until: Nanos,
    deaf_until: Option<Nanos>,
    generation: u64,
}

impl Exchange {
    /// Returns a number that changes whenever [`fds`](Self::fds) does.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the connections, to be polled for reading.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let outlets = self.outlets.iter().map(|outlet| outlet.connection.as_raw_fd());
        outlets.chain(self.inlets.iter().map(|inlet| inlet.connection.as_raw_fd()))
    }

    /// Hands packets over to the process that has `slot`, which is not this one.
    pub(crate) fn hand_over(
        &mut self,
        slots: &SlotTable,
        slot: Slot,
        head: &Head,
        packets: &[u8],
        now: Nanos,
    ) -> HandoverResult {
        let known = self.outlets.iter().position(|outlet| outlet.slot == slot);
        let at = match known.map_or_else(|| self.open(slots, slot, now), Ok) {
            Ok(at) => at,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return HandoverResult::NoOwner;
            }
            // The process has no such socket, or no queue can be made: send the packets one by one,
            // if the kernel names a process of this user.
            Err(_) => return slots.hand_over_checked(slot, head, packets),
        };
        let outlet = &mut self.outlets[at];
        outlet.used = now;
        let written = outlet.writer.push(head, packets);
        let (handed_over, is_open) = match written {
            Ok(Written::Yes) => (HandoverResult::Yes, true),
            Ok(Written::Full) => (HandoverResult::Full, true),
            Ok(Written::MustRing) => {
                match sys::send_packet(outlet.connection.as_fd(), &BELL, &[]) {
                    Ok(()) => (HandoverResult::Yes, true),
                    Err(error) if is_gone(&error) => (HandoverResult::NoOwner, false),
                    // The bell failed, but closing the connection wakes the owner.
                    Err(_) => (HandoverResult::Yes, false),
                }
            }
            Err(Broken) => {
                tracing::warn!(
                    slot = slot.value(),
                    "the process of this host that has this slot broke the rules of the queue of \
                     packets that it is handed: a new one is made"
                );
                (HandoverResult::Full, false)
            }
        };
        if !is_open {
            self.close_outlet(at);
        }
        handed_over
    }

    fn open(&mut self, slots: &SlotTable, slot: Slot, now: Nanos) -> io::Result<usize> {
        if now < self.short_until {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let make = || {
            let connection = slots.connect(slot)?;
            let (writer, file) = QueueWriter::new()?;
            sys::send_packet(connection.as_fd(), &BELL, &[file.as_fd()])?;
            Ok(Outlet { slot, connection, writer, used: now })
        };
        let outlet = make().inspect_err(|error: &io::Error| {
            let is_theirs =
                matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied);
            if !is_theirs {
                tracing::debug!(%error, "packets are handed over without a queue");
                self.short_until = now.plus(SHORT_NANOS);
            }
        })?;
        if self.outlets.len() == MAX_OUTLETS {
            let oldest = (0..MAX_OUTLETS).min_by_key(|&at| self.outlets[at].used);
            oldest.into_iter().for_each(|at| self.close_outlet(at));
        }
        tracing::debug!(slot = slot.value(), "packets are handed over to this process");
        self.outlets.push(outlet);
        self.generation += 1;
        Ok(self.outlets.len() - 1)
    }

    fn close_outlet(&mut self, at: usize) {
        self.outlets.swap_remove(at);
        self.generation += 1;
    }

    /// Closes the queues that had no packet for long, and lets the listening sockets be polled
    /// again. To be called about once a second.
    pub(crate) fn close_idle(&mut self, now: Nanos) {
        let before = self.outlets.len();
        self.outlets.retain(|outlet| now < outlet.used.plus(IDLE_NANOS));
        let hears_again = self.deaf_until.take_if(|until| *until <= now).is_some();
        self.generation += u64::from(self.outlets.len() != before || hears_again);
    }

    /// Accepts the connections that wait at a listening socket.
    pub(crate) fn accept(
        &mut self,
        slot: Slot,
        door: &SharedFd,
        now: Nanos,
        counters: &mut LinkCounters,
    ) {
        // If the slot was given back, the list of sockets is made anew the next time.
        let Some(door) = door.get() else { return };
        for _ in 0..MAX_ACCEPTED {
            let connection = match sys::accept(door.as_fd()) {
                Ok(connection) => connection,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The connection waits until there is a descriptor for it.
                Err(error) => {
                    tracing::debug!(%error, "packets that others hand over have to wait");
                    self.deaf_until = Some(now.plus(SHORT_NANOS));
                    self.generation += 1;
                    return;
                }
            };
            if check_user(connection.as_fd()).is_err() || self.inlets.len() == MAX_INLETS {
                counters.hand_over_rejects += 1;
                continue;
            }
            let mut inlet = Inlet { slot, connection, reader: None, ended: false };
            inlet.listen(counters);
            self.inlets.push(inlet);
            self.generation += 1;
        }
    }

    /// Closes the queues that lead to slots this process has given up. Their writers notice the
    /// hang-up.
    pub(crate) fn leave(&mut self, is_left: impl Fn(Slot) -> bool) {
        let before = self.inlets.len();
        self.inlets.retain(|inlet| !is_left(inlet.slot));
        self.generation += u64::from(self.inlets.len() != before);
    }

    /// Whether the listening sockets are not polled, because there was no descriptor for a
    /// connection.
    pub(crate) fn is_deaf(&self) -> bool {
        self.deaf_until.is_some()
    }

    /// Handles a connection on which something has come, or which was closed.
    pub(crate) fn listen(&mut self, fd: RawFd, counters: &mut LinkCounters) {
        let inlet = self.inlets.iter_mut().find(|inlet| inlet.connection.as_raw_fd() == fd);
        if let Some(inlet) = inlet {
            inlet.listen(counters);
        } else if let Some(at) =
            self.outlets.iter().position(|outlet| outlet.connection.as_raw_fd() == fd)
        {
            // The owner of a queue sends nothing, so only a hang-up makes its connection readable.
            if has_hung_up(&self.outlets[at].connection) {
                self.close_outlet(at);
            }
        }
    }

    /// Takes the packets that others have handed over.
    #[inline]
    pub(crate) fn take(&mut self, batch: &mut RxBatch, counters: &mut LinkCounters) {
        if !self.inlets.is_empty() {
            self.take_some(batch, counters);
        }
    }

    fn take_some(&mut self, batch: &mut RxBatch, counters: &mut LinkCounters) {
        let (count, mut used) = (self.inlets.len(), 0);
        self.first = (self.first + 1) % count;
        for index in 0..count {
            self.inlets[(self.first + index) % count].take(batch, &mut used, counters);
        }
        if used != 0 {
            batch.next_buffer();
        }
        // What is left in the queue of an ended connection is taken before the queue is dropped.
        self.inlets.retain_mut(|inlet| !inlet.ended || inlet.has_more());
        self.generation += u64::from(self.inlets.len() != count);
    }
}

impl Inlet {
    fn has_more(&mut self) -> bool {
        self.reader.as_mut().is_some_and(|reader| reader.has_more() == Ok(true))
    }

    /// Reads what has come over the connection: the file of the queue, and bells whose packets were
    /// taken.
    fn listen(&mut self, counters: &mut LinkCounters) {
        for _ in 0..MAX_HEARD {
            if let Some(reader) = &mut self.reader {
                match reader.release() {
                    // The packets must be taken first; until then the bell may stay.
                    Ok(None) => return,
                    Ok(Some(0)) => {
                        self.ended |= has_hung_up(&self.connection);
                        return;
                    }
                    Ok(Some(_)) => {}
                    Err(Broken) => return self.reject(counters),
                }
            }
            let mut bytes = [0; BELL.len()];
            match sys::recv_packet(self.connection.as_fd(), &mut bytes) {
                Ok(packet) if packet.len != 0 => match &mut self.reader {
                    Some(reader) => reader.hear(),
                    None => match packet.files.first().map(|file| QueueReader::map(file.as_fd())) {
                        Some(Ok(reader)) => self.reader = Some(reader),
                        _ => return self.reject(counters),
                    },
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The other process is gone; what it left in the queue can still be read.
                _ => self.ended = true,
            }
            if self.ended {
                return;
            }
        }
    }

    fn reject(&mut self, counters: &mut LinkCounters) {
        counters.hand_over_rejects += 1;
        (self.reader, self.ended) = (None, true);
    }

    /// Copies packets to the batch, whose first free buffer holds `used` bytes already.
    fn take(&mut self, batch: &mut RxBatch, used: &mut usize, counters: &mut LinkCounters) {
        let Some(reader) = &mut self.reader else { return };
        let mut count = 0;
        let is_sound = loop {
            if batch.free() <= BUFFERS_LEFT || batch.free_parts() <= PARTS_LEFT {
                break true;
            }
            match reader.next(&mut batch.spare()[*used..RX_BUFFER_BYTES]) {
                Ok(Next::Packets(head, len)) => {
                    let stride = usize::from(head.stride);
                    batch.commit_part(*used, len, stride, head.first_segment, head.meta);
                    *used += len;
                    count += len.div_ceil(stride) as u64;
                    counters.rx_buffers += 1;
                }
                Ok(Next::NoRoom) => {
                    batch.next_buffer();
                    *used = 0;
                }
                Ok(Next::Empty) => break true,
                Err(Broken) => break false,
            }
        };
        counters.taken_over += count;
        if !is_sound {
            self.reject(counters);
        } else if count != 0 {
            self.listen(counters);
        }
    }
}

fn has_hung_up(connection: &OwnFd) -> bool {
    let mut fds = [sys::PollFd::hang_up(connection.as_raw_fd())];
    !matches!(sys::poll(&mut fds, Some(Duration::ZERO)), Ok(0))
}

fn is_gone(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotConnected)
}

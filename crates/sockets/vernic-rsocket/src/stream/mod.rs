//! The machine of a stream: messages and completions in, RDMA WRITEs out. No memory, no queue pair.
//!
//! Owns the numbers of one connection: what is in the two rings, what the peer may send and what we
//! may, who has shut down what. Its owner has the memory and the queue pair: it copies the user's
//! bytes to the places that the machine names, posts the [`Write`]s in the order in which the
//! machine gives them out, and tells it of completions.
//!
//! ```text
//!   send:    next_len -> place -> (copy in) -> send -> post
//!            completion -> handle_sent -> room in the ring
//!   receive: message -> handle_message -> poll_write -> post
//!            peek -> (copy out) -> consume -> poll_write -> post
//! ```
//!
//! How data flows: each side has a *target list* in registered memory, two entries, into which its
//! peer RDMA-writes where the peer wants data next. Data is an RDMA WRITE with immediate data to
//! the oldest target; the immediate data ([`Message`]) says how many bytes. Since each message
//! takes a receive at the peer there are credits. Credits themselves and control messages take none
//! and are few, so that they get through where data does not; where receives are short for a
//! moment, RNR NAKs bridge it.
//!
//! Limits: every queue is bounded by [`Limits`]; what a peer sends beyond them is a
//! [`ProtocolError`].
//!
//! | file | what |
//! |---|---|
//! | `sender` `receiver` | the two halves |
//! | `iomap` | mapped buffers, for direct writes |
//! | `ring` | positions in a ring of bytes |
//! | `write` | what is to be posted, and the names of completions |

mod iomap;
mod receiver;
mod ring;
mod sender;
mod write;

pub use ring::{Span, Spans};
pub use write::{Small, Source, Write, WriteId};

use crate::wire::{ConnData, Control, IomapEntry, IomapScale, Message, RemoteSge, WireError};
use iomap::Iomaps;
use receiver::{Grant, Receiver};
use sender::{CONTROL_REQUESTS, Sender};
use write::Sent;

/// Entries of a target list: the two halves of the peer's ring.
pub const TARGETS: usize = 2;

/// Sizes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the send ring.
    pub send_bytes: u32,
    /// Bytes of the receive ring, even.
    pub recv_bytes: u32,
    /// Requests of the send queue.
    pub send_requests: u16,
    /// Messages that may wait to be read.
    pub recv_messages: u16,
    /// Data up to this length does not go through the ring, bytes.
    pub inline_bytes: u32,
    /// Entries of our table of the peer's mapped buffers.
    pub iomap: IomapScale,
}

impl Limits {
    /// Fewest requests and messages of a queue.
    pub const MIN_QUEUE: u16 = 16;
    /// Most: numbers of messages have 16 bits.
    pub const MAX_QUEUE: u16 = 0x7FFF;
    /// Fewest bytes of a ring.
    pub const MIN_RING: u32 = 2048;
    /// Most, so that a half is a length of a message.
    pub const MAX_RING: u32 = 1 << 29;

    /// The nearest that a stream can have.
    #[must_use]
    pub fn clamped(self) -> Self {
        let queue = |n: u16| n.clamp(Self::MIN_QUEUE, Self::MAX_QUEUE);
        let ring = |n: u32| n.clamp(Self::MIN_RING, Self::MAX_RING) & !1;
        Self {
            send_bytes: ring(self.send_bytes),
            recv_bytes: ring(self.recv_bytes),
            send_requests: queue(self.send_requests),
            recv_messages: queue(self.recv_messages),
            ..self
        }
    }
}

/// Why the peer's messages cannot be those of this protocol. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// More data than there was room for.
    #[error("the peer announced {len} bytes, it may write {granted}")]
    Overrun {
        /// Bytes announced.
        len: u32,
        /// Bytes that it may write.
        granted: u32,
    },
    /// More messages than there were credits for.
    #[error("the peer sent more than its {limit} messages")]
    Messages {
        /// Most.
        limit: u16,
    },
    /// Credits for messages that were never sent.
    #[error("the peer gave credits up to message {limit}, message {sent} is the next")]
    Credits {
        /// What it said.
        limit: u16,
        /// The next message.
        sent: u16,
    },
    /// More receive buffers than a list has entries.
    #[error("the peer announced a third receive buffer")]
    Targets,
    /// A message that is not defined, or before the connection is there.
    #[error("the peer sent an unexpected message: {0}")]
    Unexpected(Message),
    /// A target list without entries.
    #[error("the peer's target list has no entries")]
    NoTargets,
    /// Connection data that cannot be read.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// What of a stream to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// What comes is no longer wanted.
    Read,
    /// No more data will be sent.
    Write,
    /// Both.
    Both,
}

/// Memory of the target list, which the peer writes.
pub trait TargetList {
    /// Reads entry `index`, below [`TARGETS`], and makes it empty if it is not: one without a
    /// length may be just being written.
    fn take(&mut self, index: usize) -> RemoteSge;
}

/// Where the memory of a stream is, for its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The target list; its length is set here.
    pub target_list: RemoteSge,
    /// The receive ring; its length is set here.
    pub recv_ring: RemoteSge,
}

/// Who has ended what.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    /// We send no more.
    write_shut: bool,
    /// We want no more.
    read_shut: bool,
    /// The peer sends no more.
    peer_shut: bool,
    /// Neither side sends any more.
    disconnected: bool,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    limits: Limits,
    places: Places,
    peer: Option<ConnData>,
    /// The entry of the peer's target list that is filled next.
    peer_entry: u32,
    sender: Sender,
    receiver: Receiver,
    iomaps: Iomaps,
    ends: Ends,
    /// A control message that waits for its turn.
    control: Option<Control>,
    keepalive: bool,
    /// Requests left for credits and control.
    control_requests: u16,
    /// Posted and not complete.
    in_flight: u32,
}

impl Stream {
    /// A stream that is not connected yet. `limits` are those of [`Limits::clamped`].
    pub fn new(limits: Limits, places: Places) -> Self {
        let limits = limits.clamped();
        Self {
            limits,
            places,
            peer: None,
            peer_entry: 0,
            sender: Sender::new(&limits),
            receiver: Receiver::new(&limits),
            iomaps: Iomaps::default(),
            ends: Ends::default(),
            control: None,
            keepalive: false,
            control_requests: CONTROL_REQUESTS,
            in_flight: 0,
        }
    }

    /// Its sizes.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the peer has to know.
    pub fn conn_data(&self) -> ConnData {
        let list = RemoteSge { length: TARGETS as u32, ..self.places.target_list };
        let data = RemoteSge { length: self.receiver.first_buffer(), ..self.places.recv_ring };
        ConnData::new(self.limits.recv_messages, self.limits.iomap, list, data)
    }

    /// The peer's connection data has come. Data may be sent and received from now on.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn connect(&mut self, peer: ConnData) -> Result<(), ProtocolError> {
        if peer.target_list.length == 0 {
            return Err(ProtocolError::NoTargets);
        }
        self.peer_entry = 1 % peer.target_list.length;
        self.sender.connect(peer.credits, peer.data_buffer);
        self.iomaps.connect(peer.iomap_entries());
        self.peer = Some(peer);
        Ok(())
    }

    /// The peer's connection data, once it has come.
    pub fn peer(&self) -> Option<&ConnData> {
        self.peer.as_ref()
    }

    /// Whether there is a connection that has not ended.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some() && !self.ends.disconnected
    }

    /// Whether both sides have said that nothing more will come, or the connection broke.
    pub fn is_disconnected(&self) -> bool {
        self.ends.disconnected
    }

    /// Whether this side may send.
    pub fn may_send(&self) -> bool {
        self.is_connected() && !self.ends.write_shut
    }

    /// Whether this side has shut down sending.
    pub fn is_write_shut(&self) -> bool {
        self.ends.write_shut
    }

    /// Whether more data may come.
    pub fn may_receive(&self) -> bool {
        self.is_connected() && !self.ends.read_shut && !self.ends.peer_shut
    }

    /// Whether data could be sent now.
    pub fn can_send(&self) -> bool {
        self.may_send() && self.sender.can_send()
    }

    /// Bytes of the next message, at most `want`; 0 if none can be sent now. Mapped buffers that
    /// the peer was not told of come first.
    pub fn next_len(&self, want: u32) -> u32 {
        if !self.may_send() || self.iomaps.is_waiting() {
            return 0;
        }
        self.sender.next_len(want)
    }

    /// Where the next `len` bytes have to be in the send ring; `None` if they are so few that they
    /// do not go through it.
    pub fn place(&self, len: u32) -> Option<Spans> {
        self.sender.place(len)
    }

    /// Sends the next `len` bytes, which are in their [`place`](Self::place): at most what
    /// [`next_len`](Self::next_len) says, else `None` and nothing is sent.
    pub fn send(&mut self, len: u32) -> Option<Write> {
        if len == 0 || self.next_len(len) != len {
            return None;
        }
        let write = self.sender.send(len)?;
        self.in_flight += 1;
        Some(write)
    }

    /// Where the next bytes go in the peer's memory, if it is known.
    pub fn target(&self) -> Option<RemoteSge> {
        self.sender.target()
    }

    /// Sends the next `len` bytes, which are at the [`target`](Self::target) already: at most what
    /// [`next_len`](Self::next_len) says, else `None` and nothing is sent.
    pub fn send_placed(&mut self, len: u32) -> Option<Write> {
        if len == 0 || self.next_len(len) != len {
            return None;
        }
        let write = self.sender.send_placed(len)?;
        self.in_flight += 1;
        Some(write)
    }

    /// Whether anything that was sent has not arrived yet.
    pub fn is_busy(&self) -> bool {
        self.in_flight != 0
    }

    /// Bytes of the next direct write, at most `want`; 0 if none can be sent now.
    pub fn next_direct_len(&self, want: u32) -> u32 {
        if !self.may_send() || self.iomaps.is_waiting() || !self.sender.can_write_direct() {
            return 0;
        }
        want.min(self.sender.ring_bytes() - self.sender.unsent())
    }

    /// Writes the next `len` bytes, which are in their [`place`](Self::place), to memory of the
    /// peer: at most what [`next_direct_len`](Self::next_direct_len) says, else `None`.
    pub fn write_direct(&mut self, len: u32, to: RemoteSge) -> Option<Write> {
        if len == 0 || self.next_direct_len(len) != len || to.length < len {
            return None;
        }
        self.in_flight += 1;
        Some(self.sender.write_direct(len, to))
    }

    /// Bytes that have come and were not read.
    pub fn unread(&self) -> u32 {
        self.receiver.unread()
    }

    /// Bytes of the send ring that are in flight.
    pub fn unsent(&self) -> u32 {
        self.sender.unsent()
    }

    /// Whether data is in flight, of the ring or of mapped buffers.
    pub fn has_data_in_flight(&self) -> bool {
        self.in_flight > u32::from(CONTROL_REQUESTS - self.control_requests)
    }

    /// Where unread bytes are, leaving out the first `skip`, at most `len`.
    pub fn peek(&self, skip: u32, len: u32) -> Spans {
        self.receiver.peek(skip, len)
    }

    /// The user has read the first `len` unread bytes.
    pub fn consume(&mut self, len: u32) {
        self.receiver.consume(len);
    }

    /// Takes an entry of the peer's table for a buffer; the peer is told before the next data.
    /// `None` if its table is full.
    pub fn map(&mut self, entry: IomapEntry) -> Option<u16> {
        self.iomaps.map(entry)
    }

    /// Gives an entry of the peer's table back.
    pub fn unmap(&mut self, index: u16) {
        self.iomaps.unmap(index);
    }

    /// A message has come.
    ///
    /// # Errors
    /// [`ProtocolError`]: the connection has to end.
    pub fn handle_message(
        &mut self,
        message: Message,
        list: &mut dyn TargetList,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::Data(len) => {
                self.receiver.handle_data(len)?;
                if self.ends.read_shut {
                    self.receiver.consume(u32::MAX);
                }
            }
            Message::Credits(limit) => {
                self.sender.handle_credits(limit)?;
                let target = list.take(self.sender.next_entry());
                if target.length != 0 {
                    self.sender.handle_target(target)?;
                }
            }
            // The entry is in memory. Its message took a credit, which comes back.
            Message::Iomap(_) => self.receiver.count_message(),
            Message::Control(Control::DISCONNECT) => self.handle_disconnected(),
            Message::Control(Control::SHUTDOWN) if self.ends.write_shut => {
                self.handle_disconnected();
            }
            Message::Control(Control::SHUTDOWN) => self.ends.peer_shut = true,
            // Of newer versions, as far as they have no meaning here.
            Message::Control(_) => {}
            Message::Reserved(_) => return Err(ProtocolError::Unexpected(message)),
        }
        Ok(())
    }

    /// The connection is gone: the peer ended it, or it broke. What has come can still be read.
    pub fn handle_disconnected(&mut self) {
        self.ends.disconnected = true;
        self.control = None;
        self.keepalive = false;
    }

    /// A posted write is complete, well or not.
    pub fn handle_sent(&mut self, id: WriteId) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match id.sent() {
            Sent::Ring(bytes) => self.sender.give_back(bytes),
            Sent::Iomap => self.sender.give_back(0),
            Sent::Quiet => self.control_requests += 1,
            Sent::Control(control) => {
                self.control_requests += 1;
                if control == Control::DISCONNECT {
                    self.handle_disconnected();
                }
            }
        }
    }

    /// Shuts down one direction or both; the peer is told.
    pub fn shutdown(&mut self, how: Shutdown) {
        if how != Shutdown::Write {
            self.ends.read_shut = true;
            self.receiver.consume(u32::MAX);
        }
        let ends_writing = how != Shutdown::Read && !self.ends.write_shut;
        self.ends.write_shut |= ends_writing;
        if !self.is_connected() || !self.ends.write_shut {
            return;
        }
        let is_over = self.ends.read_shut || self.ends.peer_shut;
        match (is_over, ends_writing) {
            (true, _) => self.control = Some(Control::DISCONNECT),
            (false, true) => self.control = Some(Control::SHUTDOWN),
            (false, false) => {}
        }
    }

    /// Asks for a sign of life: a write that only has to arrive. What is in flight is one by
    /// itself.
    pub fn keep_alive(&mut self) {
        self.keepalive = self.is_connected() && self.in_flight == 0;
    }

    /// The next write that is due without the user's doing: credits, mapped buffers, control. To be
    /// called until there is none, after anything else was called.
    pub fn poll_write(&mut self) -> Option<Write> {
        if !self.is_connected() {
            return None;
        }
        let write =
            self.poll_credits().or_else(|| self.poll_iomap()).or_else(|| self.poll_control())?;
        self.in_flight += 1;
        Some(write)
    }

    fn poll_credits(&mut self) -> Option<Write> {
        if self.control_requests == 0 {
            return None;
        }
        let peer = *self.peer()?;
        let Grant { limit, buffer } = self.receiver.poll_grant()?;
        self.control_requests -= 1;
        let (id, message) = (WriteId::new(Sent::Quiet), Some(Message::Credits(limit)));
        let Some((at, length)) = buffer else {
            let RemoteSge { addr, rkey, .. } = RemoteSge::default();
            return Some(Write { id, source: Source::Nothing, addr, rkey, message });
        };
        let RemoteSge { addr, rkey, .. } = self.places.recv_ring;
        let entry = RemoteSge { addr: addr.wrapping_add(u64::from(at)), rkey, length };
        let source = Source::Bytes(Small::new(entry.to_bytes(peer.byte_order())));
        let list = peer.target_list;
        let addr = list.addr.wrapping_add(u64::from(self.peer_entry) * RemoteSge::LEN as u64);
        self.peer_entry = (self.peer_entry + 1) % list.length;
        Some(Write { id, source, addr, rkey: list.rkey, message })
    }

    fn poll_iomap(&mut self) -> Option<Write> {
        if !self.may_send() || !self.sender.can_send_iomap() {
            return None;
        }
        let write = self.iomaps.poll(self.peer.as_ref()?)?;
        self.sender.take_for_iomap();
        Some(write)
    }

    fn poll_control(&mut self) -> Option<Write> {
        if self.control_requests == 0 {
            return None;
        }
        let (sent, message) = if let Some(control) = self.control.take() {
            (Sent::Control(control), Some(Message::Control(control)))
        } else if std::mem::take(&mut self.keepalive) {
            (Sent::Quiet, None)
        } else {
            return None;
        };
        self.control_requests -= 1;
        let RemoteSge { addr, rkey, .. } = RemoteSge::default();
        Some(Write { id: WriteId::new(sent), source: Source::Nothing, addr, rkey, message })
    }

    /// Whether nothing is left to be sent, nor in flight.
    pub fn is_flushed(&self) -> bool {
        let waits = self.is_connected() && (self.control.is_some() || self.iomaps.is_waiting());
        self.in_flight == 0 && !waits
    }
}

#[cfg(test)]
mod tests;

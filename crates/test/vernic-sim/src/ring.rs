//! Shared memory between two processes of one host: a ring of records for each direction.
//!
//! Owns the records that were written and not read. Nothing in a ring is lost and nothing overtakes
//! another record. A full ring holds the writer back. Called by [`crate::local`]; calls nothing.

use std::collections::VecDeque;

use vernic_proto::{MessagePart, PartAck};

use crate::net::Tag;
use crate::plan::RingFate;

/// Records that a ring holds, whatever their size: its reader takes them all within a small part of
/// an ACK timeout.
const MOST_RECORDS: usize = 64;
/// Bytes of a record beside its packet or payload.
const HEAD: usize = 64;

/// A part of a message with what travels along: its payload, or where that lies.
#[derive(Clone, Debug)]
pub(crate) struct PartRecord {
    pub(crate) part: MessagePart,
    pub(crate) payload: Vec<u8>,
    /// Which piece of which message it begins with.
    pub(crate) tag: Tag,
}

/// Sequence numbers that a part takes.
pub(crate) fn numbers_of(part: &MessagePart, mtu: u32) -> u64 {
    u64::from(part.length.div_ceil(mtu).max(1))
}

/// What was polled, and its bytes in the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Polled {
    Packet(usize),
    Part(MessagePart, usize),
}

impl Polled {
    pub(crate) fn len(&self) -> usize {
        match *self {
            Self::Packet(len) | Self::Part(_, len) => len,
        }
    }
}

/// What a record holds.
#[derive(Debug)]
pub(crate) enum Body {
    Packet(Vec<u8>, Tag),
    Part(PartRecord),
    /// The acknowledgement that the next part carries, and the ACK packet that says the same.
    Ack(PartAck, Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) body: Body,
    /// A request, or a response.
    pub(crate) is_request: bool,
    /// The connection's, when it was written.
    pub(crate) incarnation: u32,
}

impl Record {
    fn size(&self) -> usize {
        let bytes = match &self.body {
            Body::Packet(bytes, _) | Body::Ack(_, bytes) => bytes,
            Body::Part(record) => &record.payload,
        };
        HEAD + bytes.len()
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    records: VecDeque<Record>,
    used: usize,
    /// The reader comes.
    pub(crate) is_read: bool,
}

impl Ring {
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn has_rendezvous(&self) -> bool {
        let is_one = |body: &Body| matches!(body, Body::Part(record) if record.part.is_rendezvous);
        self.records.iter().any(|record| is_one(&record.body))
    }

    /// Bytes that a record may have beside its head, in a ring of `capacity` bytes.
    pub(crate) fn room(&self, capacity: usize) -> usize {
        if self.len() < MOST_RECORDS { capacity.saturating_sub(self.used + HEAD) } else { 0 }
    }

    pub(crate) fn push(&mut self, record: Record) {
        self.used += record.size();
        self.records.push_back(record);
    }

    pub(crate) fn take(&mut self) -> Option<Record> {
        let record = self.records.pop_front()?;
        self.used -= record.size();
        Some(record)
    }

    /// Keeps the first `keep` records and returns the others.
    pub(crate) fn cut(&mut self, keep: usize) -> VecDeque<Record> {
        let lost = self.records.split_off(keep.min(self.len()));
        self.used -= lost.iter().map(Record::size).sum::<usize>();
        lost
    }
}

/// Both rings of a connection.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// `written[s]`: what side `s` writes.
    pub(crate) written: [Ring; 2],
    /// Whether they may be written.
    pub(crate) are_up: bool,
    /// Whether they were lost, with records in them, since the connection was made.
    pub(crate) were_lost: bool,
    /// Whether requests of this connection went by the network before.
    pub(crate) were_joined: bool,
    /// What is to happen once so many records are in what a side has written: to that side.
    pub(crate) armed: Option<(usize, RingFate, usize)>,
    /// Rendezvous that a scenario wants to fail.
    pub(crate) unreachable: u32,
}

impl Rings {
    pub(crate) fn new(are_up: bool) -> Self {
        Self { are_up, ..Self::default() }
    }
}

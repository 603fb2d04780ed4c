//! A queue of packets that are handed over, in memory that both processes have mapped.
//!
//! ```text
//!  byte  0      8       16           256      ...  4096               4096 + QUEUE_BYTES
//!       +------+-------+------+-----+--------+----+------------------+
//!       | tail | bells | base |     | head   |    | records          |
//!       +------+-------+------+-----+--------+----+------------------+
//!        writer                      reader        at multiples of 64
//!
//!  record: head of a hand-over message (60 bytes), length of the packets (4, big-endian), packets
//! ```
//!
//! There is one writer, the process that got packets for another one, and one reader, the packets'
//! owner. Positions count bytes and never go back. A record at position p lies at p - `base`,
//! modulo the size. The writer moves `base` only while the queue is empty, so that a queue that is
//! never deep touches little memory.
//!
//! # Waking the reader
//!
//! The writer sends a byte over the connection (the bell) with a record that finds the queue empty,
//! and only then. `bells` counts those bytes, each before it is sent. The reader takes bytes back
//! only after it found the queue empty, and only those that it had counted before it looked:
//!
//! ```text
//!   writer                                reader
//!   W1 the record                         R1 the records; head (SeqCst)
//!   W2 tail (SeqCst)                      R2 n = bells
//!   W3 is head where the record began?    R3 is tail where head is? take back n - heard bytes
//!   W4 bells + 1, a byte
//! ```
//!
//! If R3 does not see a record, that record's W3 sees R1 and rings; its byte is counted after R2
//! and stays. So as long as something is in the queue, a byte is on the connection, or about to be.
//! A thread that sleeps on the connection wakes, even if it left records behind for want of room.
//!
//! # Fair shares
//!
//! A record is accepted only if its flow would not have more of the queue than is free, where a
//! small record counts as [`LEAST_COST`] bytes. A flow alone gets half of the queue. If n flows
//! flood the queue, each gets the n + 1st part. A flow that sends little finds room at all times.
//!
//! The other end may write anything at any time, as in a ring. So headers are copied
//! out before they are checked, and an impossible value is reported as [`Broken`].
//!
//! Limits: [`QUEUE_BYTES`], and [`MAX_FLOWS`]; further flows share one share.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use vernic_sys::Circle;
use vernic_sys::{self as sys, OwnFd, SharedMemory};

use super::{HEAD_BYTES, Head};
use crate::address::Address;
use crate::batch::RX_BUFFER_BYTES;

/// Bytes for records. Half of them, what a flow alone may fill, is more than a socket of an
/// ordinary user holds (`net.core.rmem_max`, 208 KiB, doubled by the kernel).
pub(crate) const QUEUE_BYTES: u64 = 2 << 20;

/// The least bytes that a record counts as, so that there are at most [`MAX_RECORDS`].
const LEAST_COST: u64 = 512;

/// The most records in a queue.
const MAX_RECORDS: usize = (QUEUE_BYTES / LEAST_COST) as usize;

/// Flows with a share of their own.
const MAX_FLOWS: usize = 64;

/// Records begin at multiples of this: a cache line.
const ALIGN: usize = 64;
/// Bytes before the packets of a record.
const RECORD_HEAD: usize = HEAD_BYTES + 4;
/// Bytes before the records.
const FILE_HEAD: usize = 4096;
const FILE_BYTES: usize = FILE_HEAD + QUEUE_BYTES as usize;

const TAIL: usize = 0;
const BELLS: usize = 1;
const BASE: usize = 2;
const HEAD: usize = 32;

/// An error: the other process has written what no honest process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

const fn record_bytes(packets: usize) -> u64 {
    (RECORD_HEAD + packets).next_multiple_of(ALIGN) as u64
}

#[derive(Debug)]
struct Memory(SharedMemory);

impl Memory {
    fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        SharedMemory::map(file, FILE_BYTES).map(Self)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0.words()[index]
    }

    fn records(&self) -> Circle<'_> {
        Circle(&self.0.words()[FILE_HEAD / 8..])
    }
}

/// A flow: source, number of the flow there, destination.
type Flow = (Address, u16, Address);

/// The share that a flow has of the queue.
#[derive(Clone, Copy, Debug)]
struct Share {
    flow: Flow,
    cost: u64,
}

/// A record that the reader has not taken yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    bytes: u64,
    flow: usize,
}

impl Waiting {
    fn cost(self) -> u64 {
        self.bytes.max(LEAST_COST)
    }
}

/// The result of writing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The record is in the queue.
    Yes,
    /// The record is in the queue, and the bell must be rung.
    MustRing,
    /// The queue is full, or the record's flow has its share.
    Full,
}

/// The writer's end of a queue.
#[derive(Debug)]
pub(crate) struct QueueWriter {
    memory: Memory,
    tail: u64,
    /// The position behind the records that were taken out of `waiting`.
    head: u64,
    base: u64,
    bells: u64,
    /// The cost of the records in `waiting`.
    used: u64,
    waiting: VecDeque<Waiting>,
    flows: Vec<Share>,
}

impl QueueWriter {
    /// Makes a new queue, and the file to pass to its reader.
    pub(crate) fn new() -> io::Result<(Self, OwnFd)> {
        let file = sys::memory_file(FILE_BYTES)?;
        let memory = Memory::map(file.as_fd())?;
        let (waiting, flows) = (VecDeque::with_capacity(MAX_RECORDS), Vec::new());
        Ok((Self { memory, tail: 0, head: 0, base: 0, bells: 0, used: 0, waiting, flows }, file))
    }

    /// Removes from `waiting` the records that the reader has taken.
    fn settle(&mut self) -> Result<(), Broken> {
        let head = self.memory.word(HEAD).load(Ordering::Acquire);
        if head.wrapping_sub(self.head) > self.tail - self.head {
            return Err(Broken);
        }
        while let Some(first) = self.waiting.front().filter(|r| self.head + r.bytes <= head) {
            self.head += first.bytes;
            self.flows[first.flow].cost -= first.cost();
            self.used -= first.cost();
            self.waiting.pop_front();
        }
        if self.head == self.tail {
            self.base = self.tail;
            self.flows.clear();
        }
        Ok(())
    }

    /// Returns the index of a flow's share: its own, else that of a flow with nothing in the queue,
    /// else the last.
    fn share(&mut self, flow: Flow) -> usize {
        let is_it = |share: &Share| share.flow == flow;
        if let Some(known) = self.flows.iter().position(is_it) {
            return known;
        }
        let fresh = Share { flow, cost: 0 };
        if self.flows.len() < MAX_FLOWS {
            self.flows.push(fresh);
            return self.flows.len() - 1;
        }
        let free = self.flows.iter().position(|share| share.cost == 0);
        if let Some(free) = free {
            self.flows[free] = fresh;
        }
        free.unwrap_or(MAX_FLOWS - 1)
    }

    /// Writes packets, at most [`RX_BUFFER_BYTES`] of them.
    pub(crate) fn push(&mut self, head: &Head, packets: &[u8]) -> Result<Written, Broken> {
        self.settle()?;
        let flow = self.share((head.meta.src, head.meta.flow, head.meta.dst));
        let record = Waiting { bytes: record_bytes(packets.len()), flow };
        if self.flows[flow].cost + record.cost() > QUEUE_BYTES - self.used {
            return Ok(Written::Full);
        }
        let mut header = [0; RECORD_HEAD];
        header[..HEAD_BYTES].copy_from_slice(&head.emit());
        header[HEAD_BYTES..].copy_from_slice(&(packets.len() as u32).to_be_bytes());
        let (at, records) = (self.tail - self.base, self.memory.records());
        records.copy_in(at, &header);
        records.copy_in(at + RECORD_HEAD as u64, packets);
        self.flows[flow].cost += record.cost();
        self.used += record.cost();
        self.waiting.push_back(record);
        let start = self.tail;
        self.tail += record.bytes;
        self.memory.word(BASE).store(self.base, Ordering::Relaxed);
        self.memory.word(TAIL).store(self.tail, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.memory.word(HEAD).load(Ordering::SeqCst) != start {
            return Ok(Written::Yes);
        }
        self.bells += 1;
        self.memory.word(BELLS).store(self.bells, Ordering::Release);
        Ok(Written::MustRing)
    }
}

/// The reader's end of a queue.
#[derive(Debug)]
pub(crate) struct QueueReader {
    memory: Memory,
    head: u64,
    /// The writer's position as last seen.
    tail: u64,
    base: u64,
    heard: u64,
}

impl QueueReader {
    /// Maps the file that a writer passed.
    ///
    /// # Errors
    /// `InvalidData` if the file is no such queue.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { memory: Memory::map(file)?, head: 0, tail: 0, base: 0, heard: 0 })
    }

    /// Whether there is a record. Loads the writer's words only where it has to.
    pub(crate) fn has_more(&mut self) -> Result<bool, Broken> {
        if self.head != self.tail {
            return Ok(true);
        }
        self.tail = self.memory.word(TAIL).load(Ordering::SeqCst);
        self.base = self.memory.word(BASE).load(Ordering::Relaxed);
        let news = self.tail.wrapping_sub(self.head);
        let is_aligned = |position: u64| position.is_multiple_of(ALIGN as u64);
        if news > QUEUE_BYTES || !is_aligned(self.tail) || !is_aligned(self.base) {
            return Err(Broken);
        }
        Ok(news != 0)
    }

    /// Copies the packets of the next record to the start of `buffer`. If they do not fit, the
    /// record stays in the queue.
    pub(crate) fn next(&mut self, buffer: &mut [u8]) -> Result<Next, Broken> {
        if !self.has_more()? {
            return Ok(Next::Empty);
        }
        let (at, records) = (self.head.wrapping_sub(self.base), self.memory.records());
        let mut record = [0; RECORD_HEAD];
        records.copy_out(at, &mut record);
        let (head, len) = record.split_first_chunk::<HEAD_BYTES>().ok_or(Broken)?;
        let len = len.first_chunk().map(|&len| u32::from_be_bytes(len) as usize).ok_or(Broken)?;
        let bytes = record_bytes(len.min(RX_BUFFER_BYTES));
        if len == 0 || len > RX_BUFFER_BYTES || bytes > self.tail.wrapping_sub(self.head) {
            return Err(Broken);
        }
        let head = Head::parse(head).ok_or(Broken)?;
        let Some(packets) = buffer.get_mut(..len) else { return Ok(Next::NoRoom) };
        records.copy_out(at.wrapping_add(RECORD_HEAD as u64), packets);
        self.head = self.head.wrapping_add(bytes);
        Ok(Next::Packets(head, len))
    }

    /// Lets the writer overwrite what was read. Returns how many bytes of the connection may be
    /// taken back if the queue is empty, and `None` if it is not. See the module's documentation.
    pub(crate) fn release(&mut self) -> Result<Option<u64>, Broken> {
        self.memory.word(HEAD).store(self.head, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let bells = self.memory.word(BELLS).load(Ordering::Acquire);
        Ok(if self.has_more()? { None } else { Some(bells.wrapping_sub(self.heard)) })
    }

    /// Counts one byte that was taken back.
    pub(crate) fn hear(&mut self) {
        self.heard = self.heard.wrapping_add(1);
    }
}

/// The result of [`QueueReader::next`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Packets: their head, and how many bytes they have.
    Packets(Head, usize),
    /// The packets do not fit into the buffer.
    NoRoom,
    /// The queue is empty.
    Empty,
}

#[cfg(test)]
mod tests;

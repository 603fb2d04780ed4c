//! The ring to a local peer, while a turn of a queue pair is written to it.

use vernic_io::TxPath;
use vernic_proto::{MessagePart, PartAck, Time};
use vernic_wire::Qpn;

use crate::message_head::{TAIL_BYTES, head_of, put_tail};
use crate::peer::{LocalPeer, PATIENCE_NANOS, RingFaults, WAKE_NANOS};
use crate::ring::{message_bytes, record_bytes};
use crate::staging::StagingBuffer;

/// What a turn has written to a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Packets and parts of messages.
    pub records: u64,
    /// Bytes of the packets, and of the payload of the parts.
    pub bytes: u64,
    /// Packets that were lost, because the ring was full for too long.
    pub lost: u64,
}

/// The ring to a local peer, while the packets of one turn of a queue pair are written to it.
#[derive(Debug)]
pub struct RingOut<'a> {
    peer: &'a mut LocalPeer,
    staging: &'a mut StagingBuffer,
    faults: &'a mut RingFaults,
    budget: &'a mut usize,
    now: Time,
    /// Whether no packet may be lost, however long the ring stays full.
    waits: bool,
    /// Whether the next packet will be lost because the ring has been full for too long.
    drops: bool,
    written: Written,
    /// Bytes of the ring that the records take.
    spent: usize,
}

impl<'a> RingOut<'a> {
    #[inline]
    pub(crate) fn new(
        peer: &'a mut LocalPeer,
        staging: &'a mut StagingBuffer,
        faults: &'a mut RingFaults,
        budget: &'a mut usize,
        now: Time,
    ) -> Self {
        let (waits, drops, written, spent) = (false, false, Written::default(), 0);
        Self { peer, staging, faults, budget, now, waits, drops, written, spent }
    }
}

impl RingOut<'_> {
    /// Makes packets wait for room however long it takes. For queue pairs that never repeat a
    /// packet.
    pub fn wait_for_ever(&mut self) {
        self.waits = true;
    }

    /// Whether the ring has room for one more packet of any size.
    #[inline]
    fn has_room(&mut self) -> bool {
        let Some(writer) = &mut self.peer.ring.writer else { return false };
        match writer.has_room(self.staging.record_bytes()) {
            Ok(free) => free,
            Err(error) => {
                let id = self.peer.break_off(&error);
                self.faults.broken.push(id);
                false
            }
        }
    }

    /// Returns space for one more packet, or for the payload of one more part of a message: as much
    /// as the longest packet takes; `None` if the ring is full. A packet that `may_be_lost` has
    /// space all the same: see [`is_given_up`](Self::is_given_up). What is written behind a payload
    /// has space of its own.
    #[inline]
    pub fn room(&mut self, may_be_lost: bool) -> Option<&mut [u8]> {
        if self.has_room() {
            (self.peer.ring.full_since, self.drops) = (None, false);
        } else {
            self.peer.ring.full_since.get_or_insert(self.now);
            if !may_be_lost {
                return None;
            }
            self.drops = true;
        }
        let room = self.staging.room();
        let len = room.len() - TAIL_BYTES;
        Some(&mut room[..len])
    }

    /// Whether the ring has been full for 100 ms, so that packets to it are lost.
    #[inline]
    pub fn is_given_up(&self) -> bool {
        let full = self.peer.ring.full_since.map(|since| self.now.since(since));
        !self.waits && full.is_some_and(|nanos| nanos >= PATIENCE_NANOS)
    }

    /// Sends the packet that was written to the space of [`room`](Self::room), or counts it as
    /// lost.
    #[inline]
    pub fn push(&mut self, path: &TxPath, len: usize) {
        if self.drops {
            self.written.lost += 1;
        } else {
            self.written.records += 1;
            self.written.bytes += len as u64;
            self.spent += record_bytes(len);
            if self.staging.push(path, len) {
                self.staging.flush(self.peer.ring.writer.as_mut());
            }
        }
    }

    /// Sends the part whose payload, `len` bytes, was written to the space of
    /// [`room`](Self::room), to the queue pair `dest` of the peer. The part may carry an
    /// acknowledgement, unless it is of XRC.
    #[inline]
    pub fn push_message(
        &mut self,
        dest: Qpn,
        part: &MessagePart,
        ack: Option<PartAck>,
        len: usize,
    ) {
        self.written.records += 1;
        self.written.bytes += len as u64;
        let len = len + put_tail(part, ack, &mut self.staging.room()[len..]);
        self.spent += message_bytes(len);
        if self.staging.push_message(head_of(dest, part, ack), len) {
            self.staging.flush(self.peer.ring.writer.as_mut());
        }
    }

    /// Ends the turn: lets the peer see what was written, and wakes the peer if it sleeps. Returns
    /// what was written.
    #[inline]
    pub fn finish(self) -> Written {
        let Written { records, .. } = self.written;
        if records != 0 {
            self.staging.flush(self.peer.ring.writer.as_mut());
            if let Some(writer) = &mut self.peer.ring.writer
                && !writer.publish()
            {
                self.faults.wake_at.get_or_insert(self.now + WAKE_NANOS);
            }
            *self.budget = self.budget.saturating_sub(self.spent);
        }
        self.written
    }
}

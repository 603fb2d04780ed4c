//! The only module with `unsafe`: telling the engine which memory it may access.
//!
//! Owns [`StreamMemory`], what a stream has registered (rings and tables, in two mappings: what the
//! peer writes, and the rest), [`SlotMemory`], the same for datagrams, and [`UserMemory`], a buffer
//! that the user has mapped for direct writes, for which the user vouches. All accesses to the
//! former are racy copies: the peer may write the receive ring and the tables at any time.
#![allow(unsafe_code)]

use std::sync::Arc;

use vernic_engine::{Access, Lkey, Mr, Pd, Sge};
use vernic_mem::HostBuffer;

use crate::Error;
use crate::stream::{Limits, Places, Span, Spans, TARGETS, TargetList};
use crate::wire::{ByteOrder, IomapEntry, Message, RemoteSge};

/// Registered rings and tables of a stream.
///
/// What the peer writes, the receive ring and the tables behind it, is one region and all of its
/// mapping, so that a process of this host can be given the file of it: of a part it would not be.
///
/// Invariant: `send` and `messages` lie in `own`, `target` in `shared`; each is referred to from
/// here alone, and is dropped before its buffer (fields drop in the order in which they are
/// declared).
#[derive(Debug)]
pub(crate) struct StreamMemory {
    send: Arc<Mr>,
    target: Arc<Mr>,
    /// Messages that come as SENDs, where they do.
    messages: Option<Arc<Mr>>,
    tables_at: usize,
    messages_at: usize,
    iomap_entries: u16,
    own: HostBuffer,
    shared: HostBuffer,
}

/// Bytes to which parts of a mapping are aligned, so that no two share a cache line.
const ALIGN: usize = 64;

/// Address of the first byte of each region, for the peer: it does not have to know ours.
const IOVA: u64 = 0;

impl StreamMemory {
    /// With `messages`, there is room for those that come as SENDs, too. If `shared`, a peer on
    /// this host may map what it writes, which takes a descriptor.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        limits: &Limits,
        messages: bool,
        shared: bool,
    ) -> Result<Self, Error> {
        let (send_len, recv_len) = (limits.send_bytes as usize, limits.recv_bytes as usize);
        let iomap_entries = limits.iomap.entries();
        let tables_len = iomap_at() + usize::from(iomap_entries) * IomapEntry::LEN;
        let tables_at = recv_len.next_multiple_of(ALIGN);
        let messages_at = send_len.next_multiple_of(ALIGN);
        let messages_len =
            if messages { usize::from(limits.recv_messages) * Message::LEN } else { 0 };
        let failed = |error| Error::os("allocate the rings of a stream", error);
        let own = HostBuffer::private(messages_at + messages_len).map_err(failed)?;
        let target_len = tables_at + tables_len;
        let shared =
            if shared { HostBuffer::new(target_len) } else { HostBuffer::private(target_len) }
                .map_err(failed)?;
        let region = |buffer: &HostBuffer, at: usize, len: usize, access| {
            let addr = buffer.as_mut_ptr().wrapping_add(at);
            // SAFETY: the range is inside the buffer's mapping, readable and writable. The buffer
            // lives longer than the region (invariant; an error below drops the regions before it,
            // too). There are no references into it: all accesses are the buffer's racy copies.
            unsafe { pd.reg_mr(addr, len as u64, IOVA, access) }
        };
        let peers = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let send = region(&own, 0, send_len, Access::empty())?;
        let target = region(&shared, 0, target_len, peers)?;
        let messages = messages
            .then(|| region(&own, messages_at, messages_len, Access::LOCAL_WRITE))
            .transpose()?;
        Ok(Self { send, target, messages, tables_at, messages_at, iomap_entries, own, shared })
    }

    /// Where a message goes that comes as a SEND; `None` where none do.
    pub(crate) fn message_sge(&self, index: u16) -> Option<Sge> {
        let lkey = self.messages.as_ref()?.lkey();
        let addr = IOVA + u64::from(index) * Message::LEN as u64;
        Some(Sge { addr, length: Message::LEN as u32, lkey })
    }

    /// A message that came as a SEND.
    pub(crate) fn message(&self, index: u16) -> Message {
        let mut bytes = [0; Message::LEN];
        let read =
            self.own.read_at(self.messages_at + usize::from(index) * Message::LEN, &mut bytes);
        debug_assert!(read.is_ok(), "{index} is no message");
        Message::of_send(bytes)
    }

    /// Where the peer finds the target list and the receive ring.
    pub(crate) fn places(&self) -> Places {
        let (first, rkey) = (self.target.iova(), self.target.rkey());
        let at = |offset: usize| RemoteSge { addr: first + offset as u64, rkey, length: 0 };
        Places { target_list: at(self.tables_at), recv_ring: at(0) }
    }

    /// Pieces of the send ring for a work request.
    pub(crate) fn sges(&self, spans: Spans) -> [Sge; 2] {
        let lkey: Lkey = self.send.lkey();
        let sge = |span: Span| Sge { addr: IOVA + u64::from(span.at), length: span.len, lkey };
        spans.pieces().map(sge)
    }

    /// Copies into the send ring. Spans of the machine are inside.
    pub(crate) fn write_send(&self, span: Span, from: &[u8]) {
        let written = self.own.write_at(span.at as usize, from);
        debug_assert!(written.is_ok(), "{span:?} is not in the send ring");
    }

    /// Copies out of the receive ring. Spans of the machine are inside.
    pub(crate) fn read_recv(&self, span: Span, to: &mut [u8]) {
        let read = self.shared.read_at(span.at as usize, to);
        debug_assert!(read.is_ok(), "{span:?} is not in the receive ring");
    }

    /// The entry of the table of mapped buffers that holds `offset`, if any.
    pub(crate) fn find_iomap(&self, offset: u64) -> Option<IomapEntry> {
        let at = self.tables_at + iomap_at();
        let mut bytes = [0; IomapEntry::LEN];
        let entry = |index: u16| {
            let at = at + usize::from(index) * IomapEntry::LEN;
            self.shared.read_at(at, &mut bytes).ok()?;
            IomapEntry::parse(&bytes, ByteOrder::HOST).ok()
        };
        let mut entries = (0..self.iomap_entries).filter_map(entry);
        entries.find(|entry| entry.room_at(offset).is_some())
    }
}

/// The table of mapped buffers stands behind the target list.
const fn iomap_at() -> usize {
    TARGETS * RemoteSge::LEN
}

impl TargetList for &StreamMemory {
    fn take(&mut self, index: usize) -> RemoteSge {
        let mut bytes = [0; RemoteSge::LEN];
        let at = self.tables_at + index * RemoteSge::LEN;
        if self.shared.read_at(at, &mut bytes).is_err() {
            return RemoteSge::default();
        }
        let entry = RemoteSge::from_bytes(&bytes, ByteOrder::HOST);
        // The peer writes the length last. An entry without one may be half written: it stays.
        if entry.length != 0 {
            let _ = self.shared.write_at(at, &[0; RemoteSge::LEN]);
        }
        entry
    }
}

/// Memory of the user that work requests or the peer may access, while this lives.
#[derive(Debug)]
pub(crate) struct UserMemory {
    mr: Arc<Mr>,
}

impl UserMemory {
    /// Registers memory of the user, for the peer to write, or for nothing.
    ///
    /// # Safety
    /// The contract of [`Pd::reg_mr`], until the value has been dropped.
    pub(crate) unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        for_peer: bool,
    ) -> Result<Self, Error> {
        let access = match for_peer {
            true => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            false => Access::LOCAL_WRITE,
        };
        // SAFETY: the caller's promise.
        let mr = unsafe { pd.reg_mr(addr, len as u64, addr.addr() as u64, access) }?;
        Ok(Self { mr })
    }

    /// As the peer knows it.
    pub(crate) fn remote(&self) -> Option<RemoteSge> {
        let length = u32::try_from(self.mr.len()).ok()?;
        Some(RemoteSge { addr: self.mr.iova(), rkey: self.mr.rkey(), length })
    }

    /// Whether it is this memory.
    pub(crate) fn is(&self, addr: usize, len: usize) -> bool {
        self.mr.addr() == addr && self.mr.len() == len as u64
    }
}

/// Registered slots of equal size for datagrams.
///
/// Invariant: as of [`StreamMemory`].
#[derive(Debug)]
pub(crate) struct SlotMemory {
    mr: Arc<Mr>,
    slot_bytes: usize,
    buffer: HostBuffer,
}

/// Bytes before each datagram that comes: the GRH, or what stands for it (IBTA 11.4.1.2).
pub(crate) const GRH_BYTES: usize = 40;

impl SlotMemory {
    /// So many slots, each behind room for a GRH.
    pub(crate) fn new(pd: &Arc<Pd>, slots: usize, slot_bytes: usize) -> Result<Self, Error> {
        let buffer = HostBuffer::private(slots * (GRH_BYTES + slot_bytes))
            .map_err(|error| Error::os("allocate slots for datagrams", error))?;
        let len = buffer.len() as u64;
        // SAFETY: the buffer's mapping, readable and writable, which lives longer than the region
        // (invariant; an error drops it only after there was no region). All accesses to it are the
        // buffer's racy copies.
        let mr = unsafe { pd.reg_mr(buffer.as_mut_ptr(), len, IOVA, Access::LOCAL_WRITE) }?;
        Ok(Self { mr, slot_bytes, buffer })
    }

    /// Where a slot's GRH begins.
    fn start(&self, slot: usize) -> usize {
        slot * (GRH_BYTES + self.slot_bytes)
    }

    /// The first bytes of a slot, for a work request that sends.
    pub(crate) fn sge(&self, slot: usize, len: usize) -> Sge {
        let addr = IOVA + (self.start(slot) + GRH_BYTES) as u64;
        Sge { addr, length: len.min(self.slot_bytes) as u32, lkey: self.mr.lkey() }
    }

    /// A slot with its GRH, for a work request that receives.
    pub(crate) fn recv_sge(&self, slot: usize) -> Sge {
        let length = (GRH_BYTES + self.slot_bytes) as u32;
        Sge { addr: IOVA + self.start(slot) as u64, length, lkey: self.mr.lkey() }
    }

    /// The GRH of what was received into a slot.
    pub(crate) fn grh(&self, slot: usize) -> [u8; GRH_BYTES] {
        let mut grh = [0; GRH_BYTES];
        let read = self.buffer.read_at(self.start(slot), &mut grh);
        debug_assert!(read.is_ok(), "slot {slot}");
        grh
    }

    /// Copies into a slot. Callers keep inside.
    pub(crate) fn write(&self, slot: usize, at: usize, from: &[u8]) {
        let written = self.buffer.write_at(self.start(slot) + GRH_BYTES + at, from);
        debug_assert!(written.is_ok(), "slot {slot}, byte {at}");
    }

    /// Copies out of a slot. Callers keep inside.
    pub(crate) fn read(&self, slot: usize, at: usize, to: &mut [u8]) {
        let read = self.buffer.read_at(self.start(slot) + GRH_BYTES + at, to);
        debug_assert!(read.is_ok(), "slot {slot}, byte {at}");
    }
}

//! What the engine keeps of posted sends: scatter lists, inline data and datagram paths. Each slot
//! of the protocol's send queue has an entry for each of these.
//!
//! The arrays have a fixed size and are allocated when the queue pair is created. Storing a request
//! copies into the request's slot and allocates nothing.

use vernic_io::TxPath;
use vernic_local::{MAX_PIECES, RendezvousRecord};
use vernic_mem::{
    AccessError, Check, Holds, InlineData, Memory, PdId, PeerAtomic, PeerCopyError, PeerPiece,
    RemoteMemory, RevocationToken, SgCursor, Sge,
};
use vernic_proto::SendOp;
use vernic_wire::{Qpn, Service};

use crate::device::limits::MAX_MSG_BYTES;
use crate::qp::cap::QpCap;
use crate::qp::payload::{Payload, SendRefusal};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Sges(u8),
    Inline(u16),
}

/// What a slot keeps of a request's payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// A position in the scatter list of one slot, to continue from without a search.
#[derive(Clone, Copy, Debug, Default)]
struct ListSpan {
    slot: u32,
    cursor: SgCursor,
}

/// The scatter lists, inline data and paths of posted sends, in arrays with an entry for each slot.
#[derive(Debug)]
pub(crate) struct SendSlots {
    kinds: Box<[Kind]>,
    /// Scatter/gather entries: `max_sge` for each slot.
    sges: Box<[Sge]>,
    /// Inline data: `max_inline` bytes for each slot.
    inline: Box<[u8]>,
    /// The path of each slot's datagram; empty for services other than UD.
    paths: Box<[Option<TxPath>]>,
    max_sge: u32,
    max_inline: u32,
    gathered: ListSpan,
    scattered: ListSpan,
    /// The revocation token in messages of which the peer copies the payload; `None` without such.
    token: Option<RevocationToken>,
}

impl SendSlots {
    pub(crate) fn new(slots: u32, cap: &QpCap, service: Service) -> Self {
        let slots = if cap.max_send_wr == 0 { 0 } else { slots as usize };
        let paths = if service == Service::Ud { slots } else { 0 };
        Self {
            kinds: vec![Kind::Sges(0); slots].into(),
            sges: vec![Sge::default(); slots * cap.max_send_sge as usize].into(),
            inline: vec![0; slots * cap.max_inline as usize].into(),
            paths: vec![None; paths].into(),
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline,
            gathered: ListSpan::default(),
            scattered: ListSpan::default(),
            token: None,
        }
    }

    /// Copies the payload of a request into its slot, and returns the message's length in bytes.
    pub(crate) fn store(
        &mut self,
        slot: u32,
        payload: &Payload<'_>,
        op: &SendOp,
    ) -> Result<u32, SendRefusal> {
        let length = match *payload {
            Payload::Sges(sges) => self.store_sges(slot, sges)?,
            Payload::Inline(pieces) => self.store_inline(slot, pieces, op)?,
            Payload::InlineBytes(piece) => self.store_inline(slot, &[piece], op)?,
            Payload::InlineList(list) => self.store_list(slot, list, op)?,
            Payload::Range(length) => {
                self.store_sges(slot, &[])?;
                u64::from(length)
            }
        };
        for place in [&mut self.gathered, &mut self.scattered] {
            if place.slot == slot {
                place.cursor = SgCursor::default();
            }
        }
        if length > u64::from(MAX_MSG_BYTES) {
            return Err(SendRefusal::Length { length, limit: MAX_MSG_BYTES });
        }
        match op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_) => {
                if length < 8 {
                    return Err(SendRefusal::AtomicLength { given: length });
                }
                Ok(8)
            }
            SendOp::LocalInv(_) | SendOp::BindMw(_) => Ok(0),
            _ => Ok(length as u32),
        }
    }

    fn store_sges(&mut self, slot: u32, sges: &[Sge]) -> Result<u64, SendRefusal> {
        if sges.len() > self.max_sge as usize {
            return Err(SendRefusal::TooManySges { given: sges.len(), max: self.max_sge });
        }
        let at = slot as usize * self.max_sge as usize;
        self.sges[at..at + sges.len()].copy_from_slice(sges);
        self.kinds[slot as usize] = Kind::Sges(sges.len() as u8);
        Ok(vernic_mem::total_len(sges))
    }

    fn store_inline(
        &mut self,
        slot: u32,
        pieces: &[&[u8]],
        op: &SendOp,
    ) -> Result<u64, SendRefusal> {
        let given = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let mut place = self.inline_place(slot, given, op)?;
        for piece in pieces {
            let (now, rest) = place.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            place = rest;
        }
        Ok(given as u64)
    }

    fn store_list(
        &mut self,
        slot: u32,
        list: InlineData<'_>,
        op: &SendOp,
    ) -> Result<u64, SendRefusal> {
        // The cast loses nothing on supported targets, because a list's length fits in 37 bits.
        let given = list.total_len() as usize;
        list.copy_to(self.inline_place(slot, given, op)?);
        Ok(given as u64)
    }

    /// Returns the space for `given` bytes of inline data in a slot, and notes that the slot has
    /// them.
    fn inline_place(
        &mut self,
        slot: u32,
        given: usize,
        op: &SendOp,
    ) -> Result<&mut [u8], SendRefusal> {
        let stores =
            matches!(op, SendOp::Read(_) | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. });
        let max = if stores { 0 } else { self.max_inline };
        if given > max as usize {
            return Err(SendRefusal::Inline { given, max });
        }
        let at = slot as usize * self.max_inline as usize;
        self.kinds[slot as usize] = Kind::Inline(given as u16);
        Ok(&mut self.inline[at..at + given])
    }

    pub(crate) fn set_path(&mut self, slot: u32, path: TxPath) {
        if let Some(place) = self.paths.get_mut(slot as usize) {
            *place = Some(path);
        }
    }

    pub(crate) fn path(&self, slot: u32) -> Option<&TxPath> {
        self.paths.get(slot as usize)?.as_ref()
    }

    /// Copies bytes of the message in `slot` into `buf`, from byte `offset` of the message on.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        memory: &Memory,
        pd: PdId,
        slot: u32,
        offset: u32,
        buf: &mut [u8],
    ) -> Result<(), AccessError> {
        match self.kinds[slot as usize] {
            Kind::Sges(count) => {
                let at = slot as usize * self.max_sge as usize;
                let sges = &self.sges[at..at + usize::from(count)];
                let cursor = self.gathered.cursor_for(slot);
                memory.read_local(pd, sges, cursor, u64::from(offset), buf)
            }
            Kind::Inline(len) => {
                let from = slot as usize * self.max_inline as usize + offset as usize;
                let (offset, wanted) = (offset as usize, buf.len());
                if offset + wanted > usize::from(len) {
                    let (check, addr, len) = (Check::ListTooShort, offset as u64, wanted as u64);
                    return Err(AccessError { check, key: 0, addr, len });
                }
                buf.copy_from_slice(&self.inline[from..from + wanted]);
                Ok(())
            }
        }
    }

    /// Returns a rendezvous record with the addresses of `length` bytes of the message in `slot`,
    /// from byte `offset` on. Returns `None` if another process cannot copy them: they are inline
    /// data, lie in too many pieces, or are not in plain memory of this process.
    pub(crate) fn name(
        &mut self,
        (memory, pd): (&Memory, PdId),
        own: Qpn,
        slot: u32,
        (offset, length): (u32, u32),
    ) -> Result<Option<RendezvousRecord>, AccessError> {
        self.token = self.token.or_else(|| memory.send_token(own));
        let Some(token) = self.token else { return Ok(None) };
        let Some((sges, cursor)) = self.gather_list(slot) else { return Ok(None) };
        let mut pieces = [PeerPiece::default(); MAX_PIECES];
        let (at, bytes) = (u64::from(offset), u64::from(length));
        let count = memory.part(pd, sges, cursor, at, bytes).locate(&mut pieces)?;
        Ok(count.map(|count| RendezvousRecord::new(length, token, pieces, count)))
    }

    /// Revokes the access of queue pair `own`'s peer to messages that it has not copied yet: the
    /// application may change them from now on.
    #[inline]
    pub(crate) fn revoke_sends(&mut self, memory: &Memory, own: Qpn) {
        if self.token.take().is_some() {
            memory.revoke_send(own);
        }
    }

    /// Returns the scatter list or the inline data of the request in `slot`.
    #[inline]
    pub(crate) fn stored(&self, slot: u32) -> Stored<'_> {
        match self.kinds[slot as usize] {
            Kind::Sges(count) => {
                let at = slot as usize * self.max_sge as usize;
                Stored::Sges(&self.sges[at..at + usize::from(count)])
            }
            Kind::Inline(len) => {
                let at = slot as usize * self.max_inline as usize;
                Stored::Inline(&self.inline[at..at + usize::from(len)])
            }
        }
    }

    /// Copies `len` bytes of the message in `slot`, from byte `offset` on, to a local peer's
    /// memory. Stops when `holds` returns false, because the grant was revoked.
    #[inline]
    pub(crate) fn write_peer(
        &mut self,
        (memory, pd): (&Memory, PdId),
        slot: u32,
        offset: u32,
        len: u32,
        (to, at): (&dyn RemoteMemory, u64),
        holds: Holds<'_>,
    ) -> Result<(), PeerCopyError> {
        if let Stored::Inline(stored) = self.stored(slot) {
            let (offset, len) = (offset as usize, len as usize);
            let short = || {
                let check = Check::ListTooShort;
                AccessError { check, key: 0, addr: offset as u64, len: len as u64 }
            };
            return to.write_bytes(stored.get(offset..offset + len).ok_or_else(short)?, at);
        }
        let (offset, len) = (u64::from(offset), u64::from(len));
        // The message has no inline data, because that case has returned above.
        let Some((sges, cursor)) = self.gather_list(slot) else { return Ok(()) };
        to.write(memory.part(pd, sges, cursor, offset, len), at, holds)
    }

    /// Copies `len` bytes of a local peer's memory into the memory of the READ in `slot`, from byte
    /// `offset` of the message on. Stops when `holds` returns false, because the grant was revoked.
    #[inline]
    pub(crate) fn read_peer(
        &mut self,
        (memory, pd): (&Memory, PdId),
        slot: u32,
        offset: u32,
        len: u32,
        (from, at): (&dyn RemoteMemory, u64),
        holds: Holds<'_>,
    ) -> Result<(), PeerCopyError> {
        let (offset, len) = (u64::from(offset), u64::from(len));
        let (sges, cursor) = self.scatter_list(slot);
        from.read(memory.part(pd, sges, cursor, offset, len), at, holds)
    }

    /// Carries out an atomic in a local peer's memory, and stores the former value in the memory of
    /// the request in `slot`.
    pub(crate) fn atomic_peer(
        &mut self,
        (memory, pd): (&Memory, PdId),
        slot: u32,
        (on, at): (&dyn RemoteMemory, u64),
        op: PeerAtomic,
    ) -> Result<(), PeerCopyError> {
        let (sges, cursor) = self.scatter_list(slot);
        memory.part(pd, sges, cursor, 0, 8).fetch(on, at, op)
    }

    /// Stores response data in the memory of the request in `slot`, from byte `offset` on.
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        memory: &Memory,
        pd: PdId,
        slot: u32,
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let (sges, cursor) = self.scatter_list(slot);
        memory.write_local(pd, sges, cursor, u64::from(offset), data)
    }

    /// Returns the scatter list where response data of the request in `slot` is stored.
    #[inline]
    pub(crate) fn scatter_list(&mut self, slot: u32) -> (&[Sge], &mut SgCursor) {
        let count = match self.kinds[slot as usize] {
            Kind::Sges(count) => usize::from(count),
            Kind::Inline(_) => 0,
        };
        let at = slot as usize * self.max_sge as usize;
        (&self.sges[at..at + count], self.scattered.cursor_for(slot))
    }

    /// Returns the list from which the message in `slot` is gathered; `None` if it is inline data.
    #[inline]
    pub(crate) fn gather_list(&mut self, slot: u32) -> Option<(&[Sge], &mut SgCursor)> {
        let Kind::Sges(count) = self.kinds[slot as usize] else { return None };
        let at = slot as usize * self.max_sge as usize;
        Some((&self.sges[at..at + usize::from(count)], self.gathered.cursor_for(slot)))
    }
}

impl ListSpan {
    #[inline]
    fn cursor_for(&mut self, slot: u32) -> &mut SgCursor {
        if self.slot != slot {
            *self = Self { slot, cursor: SgCursor::default() };
        }
        &mut self.cursor
    }
}

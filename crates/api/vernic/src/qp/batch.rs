//! Send requests collected for one doorbell.
//!
//! Owns [`SendBatch`] and its storage, which a queue pair keeps from one batch to the next: in a
//! steady state nothing is allocated.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use vernic_engine::Sge;
use vernic_engine::{self as engine, Dest, Payload, SendWr};
use vernic_engine::{Remote, SendFlags, SendOp};

use super::{CanSend, Qp};
use crate::ah::Destination;
use crate::error::PostError;
use crate::mr::{Gather, Scatter};
use crate::service::{Peered, Reliable, Rts, Sealed, Service, State, Transport, Ud};
use crate::{Qkey, Qpn, RemoteAddr, Rkey, Srqn, WrId};

/// A collected request; its lists lie in the vectors of [`Scratch`].
#[derive(Debug)]
pub(super) struct Entry {
    wr_id: WrId,
    op: SendOp,
    flags: SendFlags,
    bytes: Bytes,
    dest: Option<(Arc<engine::Ah>, Qpn, Qkey)>,
    srqn: Option<Srqn>,
}

#[derive(Debug)]
enum Bytes {
    Sges(Range<usize>),
    Inline(Range<usize>),
    Remote(u32),
}

/// Storage of a batch.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    entries: Vec<Entry>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    refused: Option<PostError>,
    /// Of XRC: where the next request goes.
    srqn: Option<Srqn>,
}

impl Scratch {
    fn clear(&mut self) {
        self.entries.clear();
        self.sges.clear();
        self.inline.clear();
        self.refused = None;
        self.srqn = None;
    }

    fn gather(&mut self, from: &impl Gather) -> Bytes {
        match from.inline() {
            Some(bytes) => {
                let start = self.inline.len();
                self.inline.extend_from_slice(bytes);
                Bytes::Inline(start..self.inline.len())
            }
            None => {
                let start = self.sges.len();
                from.for_each(&mut |sge| self.sges.push(sge));
                Bytes::Sges(start..self.sges.len())
            }
        }
    }

    fn len_of(&self, bytes: &Bytes) -> u64 {
        match bytes {
            Bytes::Sges(range) => vernic_mem::total_len(&self.sges[range.clone()]),
            Bytes::Inline(range) => range.len() as u64,
            Bytes::Remote(len) => u64::from(*len),
        }
    }

    /// Notes the first request that would leave the peer's region.
    fn check_room(&mut self, wr_id: WrId, remote: RemoteAddr, len: u64) {
        if len > remote.room() && self.refused.is_none() {
            let (addr, room) = (remote.addr(), remote.room());
            self.refused = Some(PostError::RemoteRange { wr_id, addr, len, room });
        }
    }

    fn push(&mut self, wr_id: WrId, op: SendOp, bytes: Bytes) -> &mut Entry {
        let (flags, srqn) = (SendFlags::empty(), self.srqn);
        self.entries.push(Entry { wr_id, op, flags, bytes, dest: None, srqn });
        let last = self.entries.len() - 1;
        &mut self.entries[last]
    }
}

impl Entry {
    fn to_wr<'a>(&'a self, sges: &'a [Sge], inline: &'a [u8]) -> SendWr<'a> {
        SendWr {
            wr_id: self.wr_id.0,
            op: self.op,
            flags: self.flags,
            payload: match &self.bytes {
                Bytes::Sges(range) => Payload::Sges(&sges[range.clone()]),
                Bytes::Inline(range) => Payload::InlineBytes(&inline[range.clone()]),
                Bytes::Remote(len) => Payload::Range(*len),
            },
            dest: self.dest.as_ref().map(|(ah, qpn, qkey)| Dest { ah, qpn: *qpn, qkey: *qkey }),
            srqn: self.srqn,
        }
    }
}

/// Send requests that are collected, then posted together with one doorbell by
/// [`SendBatch::commit`]. Dropping the batch posts nothing.
///
/// Each request returns a [`Wr`] on which its flags are set. Requests are *unsignaled* unless said
/// otherwise: they complete silently, and their places in the send queue become free with the next
/// signaled one. So signal at least one of every `max_send_wr`, usually the last of a batch.
///
/// ```
/// # use vernic::*;
/// # fn f(qp: &Qp<Rc, Rts>, mr: &Mr, remote: RemoteMr) -> Result<(), Error> {
/// let mut batch = qp.send_batch();
/// for i in 0..8 {
///     batch.write(WrId(i), mr.slice(..64)?, remote.at(64 * i));
/// }
/// batch.send(WrId(8), Inline(b"done")).signaled().solicited();
/// batch.commit()?;
/// # Ok(()) }
/// ```
///
/// Flags that do not apply do not exist: a WRITE without immediate raises no event at the peer.
/// ```compile_fail,E0599
/// # use vernic::*;
/// # fn f(qp: &Qp<Rc, Rts>, mr: &Mr, remote: RemoteMr) {
/// let mut batch = qp.send_batch();
/// batch.write(WrId(1), mr, remote.at(0)).solicited();
/// # }
/// ```
/// Inline bytes are a source, not a place to put a result:
/// ```compile_fail,E0277
/// # use vernic::*;
/// # fn f(qp: &Qp<Rc, Rts>, remote: RemoteMr) {
/// let mut batch = qp.send_batch();
/// batch.read(WrId(1), Inline(b"xxxxxxxx"), remote.at(0));
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is posted before `commit`"]
pub struct SendBatch<'q, S: Transport> {
    qp: &'q Qp<S, Rts>,
    scratch: Scratch,
}

impl<S: Service, St: State> Qp<S, St> {
    /// Collects send requests to be posted together.
    pub fn send_batch(&self) -> SendBatch<'_, S>
    where
        St: CanSend,
    {
        SendBatch::new(St::rts(self), None)
    }
}

impl<'q, S: Transport> SendBatch<'q, S> {
    /// An empty one; of XRC, whose requests go to `srqn`.
    pub(super) fn new(qp: &'q Qp<S, Rts>, srqn: Option<Srqn>) -> Self {
        let mut scratch = qp.shared.take_scratch();
        scratch.clear();
        scratch.srqn = srqn;
        SendBatch { qp, scratch }
    }

    /// From here on requests go to `srqn`.
    pub(super) fn set_srqn(&mut self, srqn: Srqn) {
        self.scratch.srqn = Some(srqn);
    }
}

impl<S: Transport> SendBatch<'_, S> {
    /// Requests collected.
    pub fn len(&self) -> usize {
        self.scratch.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.scratch.entries.is_empty()
    }

    /// Posts all requests, in order, with one doorbell.
    ///
    /// # Errors
    /// [`PostError::RemoteRange`]: nothing was posted. [`PostError::Refused`] names the first
    /// request that the queue pair did not take (no room, too many pieces, wrong state); those
    /// before it were posted, and their buffers are in use.
    pub fn commit(self) -> Result<(), PostError> {
        self.commit_ref()
    }

    /// As [`SendBatch::commit`], and leaves an empty batch to be filled again.
    ///
    /// # Errors
    /// As [`SendBatch::commit`].
    pub fn commit_and_clear(&mut self) -> Result<(), PostError> {
        let (result, srqn) = (self.commit_ref(), self.scratch.srqn);
        self.scratch.clear();
        self.scratch.srqn = srqn;
        result
    }

    fn commit_ref(&self) -> Result<(), PostError> {
        let Scratch { entries, sges, inline, refused, .. } = &self.scratch;
        if let Some(error) = refused {
            return Err(*error);
        }
        let wrs = entries.iter().map(|entry| entry.to_wr(sges, inline));
        self.qp.inner().post_send_from(wrs).map_err(|error| PostError::Refused {
            // The place of a refusal is that of one of our entries.
            wr_id: entries.get(error.index).map_or(WrId(0), |entry| entry.wr_id),
            index: error.index,
            source: error.source,
        })
    }

    fn push<K: Kind>(&mut self, wr_id: WrId, op: SendOp, bytes: Bytes) -> Wr<'_, S, K> {
        Wr { entry: self.scratch.push(wr_id, op, bytes), of_type: PhantomData }
    }

    fn push_remote<K: Kind>(
        &mut self,
        wr_id: WrId,
        to: RemoteAddr,
        bytes: Bytes,
        op: impl FnOnce(Remote) -> SendOp,
    ) -> Wr<'_, S, K> {
        let len = self.scratch.len_of(&bytes);
        self.scratch.check_room(wr_id, to, len);
        self.push(wr_id, op(remote(to)), bytes)
    }
}

impl<S: Transport> Drop for SendBatch<'_, S> {
    fn drop(&mut self) {
        self.scratch.clear();
        self.qp.shared.give_scratch(std::mem::take(&mut self.scratch));
    }
}

const fn remote(place: RemoteAddr) -> Remote {
    Remote { addr: place.addr(), rkey: place.rkey() }
}

impl<S: Peered> SendBatch<'_, S> {
    /// SEND: the message goes into the peer's next receive.
    pub fn send(&mut self, wr_id: WrId, from: impl Gather) -> Wr<'_, S, Message> {
        let bytes = self.scratch.gather(&from);
        self.push(wr_id, SendOp::Send, bytes)
    }

    /// SEND with 32 bits of immediate data, which arrive as the same number.
    pub fn send_imm(&mut self, wr_id: WrId, from: impl Gather, imm: u32) -> Wr<'_, S, Message> {
        let bytes = self.scratch.gather(&from);
        self.push(wr_id, SendOp::SendImm(imm), bytes)
    }

    /// RDMA WRITE: the bytes go into the peer's memory, which learns nothing of it.
    pub fn write(&mut self, wr_id: WrId, from: impl Gather, to: RemoteAddr) -> Wr<'_, S, OneSided> {
        let bytes = self.scratch.gather(&from);
        self.push_remote(wr_id, to, bytes, SendOp::Write)
    }

    /// RDMA WRITE with immediate data: also completes the peer's next receive.
    pub fn write_imm(
        &mut self,
        wr_id: WrId,
        from: impl Gather,
        to: RemoteAddr,
        imm: u32,
    ) -> Wr<'_, S, Message> {
        let bytes = self.scratch.gather(&from);
        self.push_remote(wr_id, to, bytes, |remote| SendOp::WriteImm(remote, imm))
    }
}

impl<S: Reliable> SendBatch<'_, S> {
    /// SEND that also invalidates a key of the peer: that of a type 2 window (IBTA 9.4.1.1.3).
    pub fn send_inv(&mut self, wr_id: WrId, from: impl Gather, rkey: Rkey) -> Wr<'_, S, Message> {
        let bytes = self.scratch.gather(&from);
        self.push(wr_id, SendOp::SendInv(rkey), bytes)
    }

    /// RDMA READ: as many bytes of the peer's memory as `into` holds.
    pub fn read(
        &mut self,
        wr_id: WrId,
        into: impl Scatter,
        from: RemoteAddr,
    ) -> Wr<'_, S, OneSided> {
        let bytes = self.scratch.gather(&into);
        self.push_remote(wr_id, from, bytes, SendOp::Read)
    }

    /// Compare and swap of 8 bytes: stores `swap` if the value is `compare`, and puts the value
    /// before into `into` (8 bytes), as a host-endian number. `at` must be a multiple of 8.
    pub fn cmp_swap(
        &mut self,
        wr_id: WrId,
        into: impl Scatter,
        at: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Wr<'_, S, OneSided> {
        let bytes = self.scratch.gather(&into);
        self.push_remote(wr_id, at, bytes, |remote| SendOp::CmpSwap { remote, compare, swap })
    }

    /// Fetch and add on 8 bytes, modulo 2^64; puts the value before into `into` (8 bytes), as a
    /// host-endian number. `at` must be a multiple of 8.
    pub fn fetch_add(
        &mut self,
        wr_id: WrId,
        into: impl Scatter,
        at: RemoteAddr,
        add: u64,
    ) -> Wr<'_, S, OneSided> {
        let bytes = self.scratch.gather(&into);
        self.push_remote(wr_id, at, bytes, |remote| SendOp::FetchAdd { remote, add })
    }

    /// ATOMIC WRITE: 8 bytes that appear at once (IBTA A19). `to` must be a multiple of 8.
    pub fn atomic_write(
        &mut self,
        wr_id: WrId,
        from: impl Gather,
        to: RemoteAddr,
    ) -> Wr<'_, S, OneSided> {
        let bytes = self.scratch.gather(&from);
        self.push_remote(wr_id, to, bytes, SendOp::AtomicWrite)
    }

    /// FLUSH: completes when earlier WRITEs to `len` bytes at `from` are visible to everyone there
    /// and, with `persistent`, survive a loss of power (IBTA A19).
    pub fn flush(
        &mut self,
        wr_id: WrId,
        from: RemoteAddr,
        len: u32,
        persistent: bool,
    ) -> Wr<'_, S, OneSided> {
        // Placement types of the FETH: bit 0 global visibility, bit 1 persistence.
        let placement = if persistent { 2 } else { 1 };
        let op = |remote| SendOp::Flush { remote, placement, selectivity: 0 };
        self.push_remote(wr_id, from, Bytes::Remote(len), op)
    }

    /// Invalidates a key of this side: that of a type 2 window, which can be bound again then.
    pub fn local_inv(&mut self, wr_id: WrId, rkey: Rkey) -> Wr<'_, S, OneSided> {
        self.push(wr_id, SendOp::LocalInv(rkey), Bytes::Sges(0..0))
    }
}

impl SendBatch<'_, Ud> {
    /// A datagram of up to one path MTU.
    pub fn send_to(
        &mut self,
        wr_id: WrId,
        from: impl Gather,
        to: Destination<'_>,
    ) -> Wr<'_, Ud, Message> {
        let bytes = self.scratch.gather(&from);
        let wr = self.push(wr_id, SendOp::Send, bytes);
        wr.entry.dest = Some((to.ah.inner().clone(), to.qpn, to.qkey));
        wr
    }

    /// A datagram with 32 bits of immediate data.
    pub fn send_to_imm(
        &mut self,
        wr_id: WrId,
        from: impl Gather,
        to: Destination<'_>,
        imm: u32,
    ) -> Wr<'_, Ud, Message> {
        let bytes = self.scratch.gather(&from);
        let wr = self.push(wr_id, SendOp::SendImm(imm), bytes);
        wr.entry.dest = Some((to.ah.inner().clone(), to.qpn, to.qkey));
        wr
    }
}

/// Whether a request consumes a receive of the peer: [`Message`] does, [`OneSided`] does not.
pub trait Kind: Sealed {}
/// The request consumes a receive and can raise an event there.
#[derive(Clone, Copy, Debug)]
pub struct Message;
/// The peer does not learn of the request.
#[derive(Clone, Copy, Debug)]
pub struct OneSided;

impl Sealed for Message {}
impl Sealed for OneSided {}
impl Kind for Message {}
impl Kind for OneSided {}

/// A request of a [`SendBatch`], whose flags may be set.
#[derive(Debug)]
pub struct Wr<'b, S: Transport, K: Kind> {
    entry: &'b mut Entry,
    of_type: PhantomData<(S, K)>,
}

impl<S: Transport, K: Kind> Wr<'_, S, K> {
    /// It produces a completion on success too.
    pub fn signaled(self) -> Self {
        self.flag(SendFlags::SIGNALED)
    }

    fn flag(self, flag: SendFlags) -> Self {
        self.entry.flags |= flag;
        self
    }
}

impl<S: Reliable, K: Kind> Wr<'_, S, K> {
    /// It waits until all earlier READs and atomics of this queue pair are complete (IBTA
    /// 10.8.3.3).
    pub fn fence(self) -> Self {
        self.flag(SendFlags::FENCE)
    }
}

impl<S: Transport> Wr<'_, S, Message> {
    /// Its arrival wakes a peer that armed its queue with
    /// [`Cq::arm_solicited`](crate::Cq::arm_solicited).
    pub fn solicited(self) -> Self {
        self.flag(SendFlags::SOLICITED)
    }
}

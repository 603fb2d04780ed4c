//! What is done on a connection: one call, one work request, one completion.

use vernic_engine::{Payload, RecvWr, Remote, SendFlags, SendOp, SendRefusal, SendWr};
use vernic_mem::Sge;

use super::connection::{Connection, Inner};
use super::in_flight::{InFlight, Ticket};
use super::region::{Bytes, Part, Sink, Source};
use crate::error::{Operation, OperationError, OperationFailure};
use crate::mr::Piece;
use crate::raw::Registered;
use crate::{RemoteAddr, Rkey, Wc};

/// Bytes of an atomic.
const WORD: u32 = 8;

/// This side's memory of a send request.
enum Local<'b> {
    Memory(Sge),
    Inline(&'b [u8]),
    Nothing,
    /// The place for the result of an atomic in this slot.
    Result,
}

/// Memory, and what keeps it registered.
fn local(bytes: Bytes<'_>) -> (Local<'_>, Option<Registered>) {
    match bytes {
        Bytes::Part(Part { sge, kept }) => (Local::Memory(sge), Some(kept)),
        Bytes::Inline(bytes) => (Local::Inline(bytes), None),
    }
}

impl Inner {
    fn post(&self, ticket: &Ticket<'_>, op: SendOp, local: &Local<'_>) -> Result<(), SendRefusal> {
        let one;
        let payload = match local {
            Local::Memory(sge) => {
                one = [*sge];
                Payload::Sges(&one)
            }
            Local::Result => {
                let Sge { addr, lkey, .. } = Piece::sge(&&self.results);
                let addr = addr + u64::from(ticket.index() * WORD);
                one = [Sge { addr, length: WORD, lkey }];
                Payload::Sges(&one)
            }
            Local::Inline(bytes) => Payload::InlineBytes(bytes),
            Local::Nothing => Payload::Sges(&[]),
        };
        let (wr_id, flags) = (ticket.index().into(), SendFlags::SIGNALED);
        let wr = SendWr { wr_id, op, flags, payload, dest: None, srqn: None };
        self.qp().engine_qp().post_send(&[wr]).map_err(|error| error.source)
    }

    /// Posts a send request and waits until it is complete.
    async fn run(
        &self,
        operation: Operation,
        op: SendOp,
        local: Local<'_>,
        kept: Option<Registered>,
    ) -> Result<Ticket<'_>, OperationError> {
        let queue = &self.queues.send;
        let ticket = queue.reserve(kept).await;
        if let Err(refusal) = self.post(&ticket, op, &local) {
            ticket.withdraw();
            return Err(self.refused(operation, refusal));
        }
        let wc = ticket.completed().await;
        self.check(operation, queue, &wc)?;
        Ok(ticket)
    }

    /// What an atomic has found.
    async fn atomic(&self, operation: Operation, op: SendOp) -> Result<u64, OperationError> {
        let ticket = self.run(operation, op, Local::Result, None).await?;
        // The slot is this operation's until the ticket is dropped.
        match self.results.load_u64((ticket.index() * WORD) as usize) {
            Ok(before) => Ok(before),
            Err(error) => unreachable!("there is a result for each slot: {error}"),
        }
    }

    fn check(&self, operation: Operation, queue: &InFlight, wc: &Wc) -> Result<(), OperationError> {
        let Err(error) = queue.cq().check(wc) else { return Ok(()) };
        // A queue pair that did not fail itself was ended by one of the sides.
        let ended = self.ending.reason().filter(|_| error.explanation().is_none());
        Err(self.failed(operation, ended.unwrap_or(OperationFailure::Completion(Box::new(error)))))
    }

    fn refused(
        &self,
        operation: Operation,
        refusal: impl Into<OperationFailure>,
    ) -> OperationError {
        // It takes nothing any more once a side has ended the connection.
        self.failed(operation, self.ending.reason().unwrap_or_else(|| refusal.into()))
    }

    fn failed(&self, operation: Operation, cause: OperationFailure) -> OperationError {
        OperationError { operation, peer: self.peer, cause }
    }

    /// The peer's memory, if `len` bytes are inside its region.
    fn remote(
        &self,
        operation: Operation,
        place: RemoteAddr,
        len: u64,
    ) -> Result<Remote, OperationError> {
        match place.room() {
            room if len > room => {
                Err(self.failed(operation, OperationFailure::RemoteRange { room }))
            }
            _ => Ok(Remote { addr: place.addr(), rkey: place.rkey() }),
        }
    }

    /// Posts a WRITE of no bytes, unless something is under way anyway. If nobody acknowledges it,
    /// the queue pair fails, and so do all operations that wait.
    pub(super) fn send_sign_of_life(&self) {
        let Some(ticket) = self.queues.send.reserve_if_idle() else { return };
        let nowhere = Remote { addr: 0, rkey: Rkey(0) };
        if self.post(&ticket, SendOp::Write(nowhere), &Local::Nothing).is_err() {
            ticket.withdraw();
        }
    }
}

impl Connection {
    /// SEND: the message goes into the peer's next receive. Returns when the peer has it.
    ///
    /// # Errors
    /// [`OperationError`], as of all operations: the queue pair refuses the request, the peer
    /// refuses or does not answer, the connection has ended. A peer that has no receive posted is
    /// waited for.
    pub async fn send(&self, from: impl Source) -> Result<(), OperationError> {
        let bytes = from.bytes();
        let operation = Operation::Send { len: bytes.len() };
        let (local, kept) = local(bytes);
        self.0.run(operation, SendOp::Send, local, kept).await.map(drop)
    }

    /// SEND with 32 bits of immediate data: [`Wc::imm`] of the peer's receive.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_imm(&self, from: impl Source, imm: u32) -> Result<(), OperationError> {
        let bytes = from.bytes();
        let operation = Operation::Send { len: bytes.len() };
        let (local, kept) = local(bytes);
        self.0.run(operation, SendOp::SendImm(imm), local, kept).await.map(drop)
    }

    /// Receives the next message, or the immediate data of a WRITE; [`Wc::byte_len`] and
    /// [`Wc::imm`] of the result tell how much and what. Several may be posted: they are filled in
    /// the order in which they were first polled.
    ///
    /// A receive stays posted when its future is dropped. The message that fills it is lost then,
    /// so a receive that is given up (in `select!`, by a timeout) is for programs that give up the
    /// connection too, or whose peer sends again.
    ///
    /// # Errors
    /// As [`send`](Self::send); also a message that is longer than `into`, which breaks the
    /// connection.
    pub async fn recv(&self, into: impl Sink) -> Result<Wc, OperationError> {
        let part = into.part();
        let (sge, kept) = part.map(|Part { sge, kept }| (sge, kept)).unzip();
        let operation = Operation::Recv { room: sge.map_or(0, |sge| sge.length.into()) };
        let queue = &self.0.queues.recv;
        let ticket = queue.reserve(kept).await;
        let wr = RecvWr { wr_id: ticket.index().into(), sges: sge.as_slice() };
        if let Err(error) = self.qp().engine_qp().post_recv(&[wr]) {
            ticket.withdraw();
            return Err(self.0.refused(operation, error.source));
        }
        let wc = ticket.completed().await;
        self.0.check(operation, queue, &wc)?;
        Ok(wc)
    }

    /// RDMA WRITE: the bytes go into the peer's memory. Returns when they are there.
    ///
    /// # Errors
    /// As [`send`](Self::send); also bytes that would leave the peer's region.
    pub async fn write(&self, from: impl Source, to: RemoteAddr) -> Result<(), OperationError> {
        let bytes = from.bytes();
        let operation = Operation::Write { len: bytes.len(), to };
        let remote = self.0.remote(operation, to, bytes.len())?;
        let (local, kept) = local(bytes);
        self.0.run(operation, SendOp::Write(remote), local, kept).await.map(drop)
    }

    /// RDMA WRITE with immediate data: also completes the peer's next receive.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_imm(
        &self,
        from: impl Source,
        to: RemoteAddr,
        imm: u32,
    ) -> Result<(), OperationError> {
        let bytes = from.bytes();
        let operation = Operation::Write { len: bytes.len(), to };
        let remote = self.0.remote(operation, to, bytes.len())?;
        let (local, kept) = local(bytes);
        self.0.run(operation, SendOp::WriteImm(remote, imm), local, kept).await.map(drop)
    }

    /// RDMA READ: as many bytes of the peer's memory as `into` holds.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn read(&self, into: impl Sink, from: RemoteAddr) -> Result<(), OperationError> {
        let part = into.part();
        let len = part.as_ref().map_or(0, |part| part.sge.length.into());
        let operation = Operation::Read { len, from };
        let remote = self.0.remote(operation, from, len)?;
        let (local, kept) = match part {
            Some(part) => local(Bytes::Part(part)),
            None => (Local::Nothing, None),
        };
        self.0.run(operation, SendOp::Read(remote), local, kept).await.map(drop)
    }

    /// Fetch and add on 8 bytes of the peer's memory, modulo 2^64: the value before. `at` must be a
    /// multiple of 8.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn fetch_add(&self, at: RemoteAddr, add: u64) -> Result<u64, OperationError> {
        let operation = Operation::FetchAdd { at };
        let remote = self.0.remote(operation, at, WORD.into())?;
        self.0.atomic(operation, SendOp::FetchAdd { remote, add }).await
    }

    /// Compare and swap of 8 bytes of the peer's memory: stores `swap` if the value is `compare`,
    /// and returns the value before. `at` must be a multiple of 8.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn compare_swap(
        &self,
        at: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<u64, OperationError> {
        let operation = Operation::CompareSwap { at };
        let remote = self.0.remote(operation, at, WORD.into())?;
        self.0.atomic(operation, SendOp::CmpSwap { remote, compare, swap }).await
    }
}

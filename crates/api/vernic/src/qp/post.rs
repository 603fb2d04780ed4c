//! One signaled send request at a time: the short form of a batch of one.

use std::ops::RangeBounds;

use vernic_engine::{MwBind, SendFlags, SendOp};
use vernic_engine::{Payload, SendWr};

use super::{CanSend, Qp};
use crate::ah::Destination;
use crate::error::{Error, PostError};
use crate::mr::{Gather, Scatter};
use crate::mw::Target;
use crate::service::{Connected, Reliable, State, Ud};
use crate::{Access, Mr, Mw, RemoteAddr, RemoteMr, Type2, WrId};

/// Posts a batch of the one request that is named, signaled.
macro_rules! post {
    ($qp:expr, $request:ident($($argument:expr),*)) => {{
        let mut batch = $qp.send_batch();
        let _ = batch.$request($($argument),*).signaled();
        batch.commit()
    }};
}

impl<S: Connected, St: State> Qp<S, St> {
    /// SEND, signaled. See [`SendBatch::send`](super::SendBatch::send).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send(&self, wr_id: WrId, from: impl Gather) -> Result<(), PostError>
    where
        St: CanSend,
    {
        post!(self, send(wr_id, from))
    }

    /// SEND with immediate data, signaled. See [`SendBatch::send_imm`](super::SendBatch::send_imm).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send_imm(&self, wr_id: WrId, from: impl Gather, imm: u32) -> Result<(), PostError>
    where
        St: CanSend,
    {
        post!(self, send_imm(wr_id, from, imm))
    }

    /// RDMA WRITE, signaled. See [`SendBatch::write`](super::SendBatch::write).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_write(
        &self,
        wr_id: WrId,
        from: impl Gather,
        to: RemoteAddr,
    ) -> Result<(), PostError>
    where
        St: CanSend,
    {
        post!(self, write(wr_id, from, to))
    }

    /// RDMA WRITE with immediate data, signaled. See
    /// [`SendBatch::write_imm`](super::SendBatch::write_imm).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_write_imm(
        &self,
        wr_id: WrId,
        from: impl Gather,
        to: RemoteAddr,
        imm: u32,
    ) -> Result<(), PostError>
    where
        St: CanSend,
    {
        post!(self, write_imm(wr_id, from, to, imm))
    }
}

impl<S: Connected, St: State> Qp<S, St> {
    /// RDMA READ, signaled. See [`SendBatch::read`](super::SendBatch::read).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_read(
        &self,
        wr_id: WrId,
        into: impl Scatter,
        from: RemoteAddr,
    ) -> Result<(), PostError>
    where
        S: Reliable,
        St: CanSend,
    {
        post!(self, read(wr_id, into, from))
    }

    /// Compare and swap, signaled. See [`SendBatch::cmp_swap`](super::SendBatch::cmp_swap).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_cmp_swap(
        &self,
        wr_id: WrId,
        into: impl Scatter,
        at: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<(), PostError>
    where
        S: Reliable,
        St: CanSend,
    {
        post!(self, cmp_swap(wr_id, into, at, compare, swap))
    }

    /// Fetch and add, signaled. See [`SendBatch::fetch_add`](super::SendBatch::fetch_add).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_fetch_add(
        &self,
        wr_id: WrId,
        into: impl Scatter,
        at: RemoteAddr,
        add: u64,
    ) -> Result<(), PostError>
    where
        S: Reliable,
        St: CanSend,
    {
        post!(self, fetch_add(wr_id, into, at, add))
    }

    /// Binds a type 2 window, signaled and in the order of this queue: what is posted later finds
    /// it bound. Returns what the peer needs to reach it, which may be sent by a later SEND of this
    /// queue pair. A window that is bound must be invalidated first (IBTA 10.6.7.2.2).
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Post`]: nothing was posted. A region without the right to bind is
    /// found when the request is executed, and fails it.
    pub fn post_bind(
        &self,
        wr_id: WrId,
        window: &mut Mw<Type2>,
        mr: &Mr,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<RemoteMr, Error>
    where
        S: Reliable,
        St: CanSend,
    {
        let target = Target::new(mr, range, access)?;
        let inner = window.inner();
        let new_rkey = inner.next_rkey();
        let bind = MwBind {
            mw: inner.rkey(),
            new_rkey,
            mr: mr.lkey(),
            addr: target.addr,
            length: target.len,
            access: target.bits.bits(),
        };
        let wr = SendWr {
            wr_id: wr_id.0,
            op: SendOp::BindMw(bind),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[]),
            dest: None,
            srqn: None,
        };
        self.inner().post_send(&[wr]).map_err(|error| PostError::Refused {
            wr_id,
            index: error.index,
            source: error.source,
        })?;
        inner.set_rkey(new_rkey);
        Ok(target.remote(new_rkey))
    }
}

impl<St: State> Qp<Ud, St> {
    /// A datagram, signaled. See [`SendBatch::send_to`](super::SendBatch::send_to).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send_to(
        &self,
        wr_id: WrId,
        from: impl Gather,
        to: Destination<'_>,
    ) -> Result<(), PostError>
    where
        St: CanSend,
    {
        post!(self, send_to(wr_id, from, to))
    }

    /// A datagram with immediate data, signaled. See
    /// [`SendBatch::send_to_imm`](super::SendBatch::send_to_imm).
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send_to_imm(
        &self,
        wr_id: WrId,
        from: impl Gather,
        to: Destination<'_>,
        imm: u32,
    ) -> Result<(), PostError>
    where
        St: CanSend,
    {
        post!(self, send_to_imm(wr_id, from, to, imm))
    }
}

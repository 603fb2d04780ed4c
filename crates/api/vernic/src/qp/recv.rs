//! Receives of a queue pair.

use vernic_engine::RecvWr;

use super::Qp;
use crate::WrId;
use crate::error::PostRecvError;
use crate::mr::{Scatter, SgeList};
use crate::recv::{RecvBatch, RecvTarget};
use crate::service::{CanReceive, Service, State};

impl<S: Service, St: State> Qp<S, St> {
    /// Posts one receive.
    ///
    /// A datagram is received with 40 bytes before it: the IP header (IBTA 11.4.1.2).
    ///
    /// # Errors
    /// [`PostRecvError`]: the queue is full, has room for fewer pieces, or is a shared one.
    pub fn post_recv(&self, wr_id: WrId, scatter: impl Scatter) -> Result<(), PostRecvError>
    where
        St: CanReceive,
    {
        let mut list = SgeList::default();
        scatter.for_each(&mut |sge| list.push(sge));
        self.inner().post_recv(&[RecvWr { wr_id: wr_id.0, sges: list.as_slice() }])
    }

    /// Collects receives to be posted together.
    pub fn recv_batch(&self) -> RecvBatch<'_>
    where
        St: CanReceive,
    {
        RecvBatch::new(RecvTarget::Qp(self.inner()))
    }
}

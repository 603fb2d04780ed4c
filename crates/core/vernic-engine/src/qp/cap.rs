//! The sizes of a queue pair's queues and work requests.

/// The sizes of a queue pair's queues and work requests, as the application asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests that may be outstanding, 0 to [`MAX_QP_WR`](crate::limits::MAX_QP_WR).
    pub max_send_wr: u32,
    /// Receives that may be posted, 0 to [`MAX_QP_WR`](crate::limits::MAX_QP_WR). Ignored for a
    /// queue pair with a shared receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send, 0 to [`MAX_SGE`](crate::limits::MAX_SGE).
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive, 0 to [`MAX_SGE`](crate::limits::MAX_SGE).
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send, 0 to [`MAX_INLINE`](crate::limits::MAX_INLINE).
    pub max_inline: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 }
    }
}

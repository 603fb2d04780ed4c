//! Connection requests that fail at once if no process listens, for callers that have an
//! alternative. An example is a program that tries RDMA first and then TCP.
//!
//! Usually, a request without an answer is repeated for seconds, and a request that reaches a host
//! before any process listens for it waits there for a moment (`early.rs`). Both are useless if it
//! is known that no process listens:
//!
//! - *On this host*, at an address of this device, this is known before anything is sent: a process
//!   that listens has claimed the name of the service at the address or at the netdev, and any
//!   process can look up names. With `force_wire` names are not looked up.
//! - On another host, names cannot be looked up. But if that host does not receive RoCE at all, it
//!   answers with ICMP errors. The connection manager notices them and calls [`CmAgent::refuse`].

use vernic_proto::cm::{CmPath, ConnId, ConnectParams};
use vernic_wire::cm::ServiceId;

use super::{CmAgent, CmCallError};
use crate::progress::engine::Engine;

impl Engine {
    /// Whether it is certain that no process of this host listens for `service` at the remote
    /// address of `path`. Always false if that is not an address of this device.
    fn nobody_listens_here(&self, path: &CmPath, service: ServiceId) -> bool {
        let ip = path.remote.to_ip();
        if path.lids.is_some() || self.config().force_wire || !self.has_address(ip) {
            return false;
        }
        !self.cm.is_claimed(service, self.local_addr(ip))
    }
}

impl CmAgent {
    /// Requests a connection as [`connect`](Self::connect) does, but does not wait for a listener.
    /// If no process listens now, the request fails with a REJ (invalid service id) as soon as that
    /// is known, even if a listener would come in a moment. At an address of this device, it fails
    /// before anything is sent.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn connect_now(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        let engine = &*self.engine;
        if engine.is_orphan() {
            return Err(CmCallError::Orphan);
        }
        engine.check_peer(&params.path)?;
        if engine.nobody_listens_here(&params.path, params.service) {
            return engine.command(|machine, now| {
                let conn = machine.connect(now, params)?;
                machine.refuse(now, conn)?;
                Ok(conn)
            });
        }
        self.connect(params)
    }

    /// Ends a request that has no answer yet, as if the peer had rejected it (invalid service id).
    /// For requests to a host that is known not to receive them. If there was an answer, does
    /// nothing and returns false.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn refuse(&self, conn: ConnId) -> Result<bool, CmCallError> {
        self.engine.command(|machine, now| machine.refuse(now, conn))
    }

    /// How often a request was sent that has no answer at all; `None` once there is one.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn sent_unanswered(&self, conn: ConnId) -> Result<Option<u32>, CmCallError> {
        self.engine.command(|machine, _| machine.sent_unanswered(conn))
    }
}

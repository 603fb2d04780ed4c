//! Requests that must not wait for a listener, because the requester has an alternative. An example
//! is a TCP program that tries RDMA first.
//!
//! A request without an answer is repeated for seconds. A request that reaches a host before
//! anything listens there waits for a moment (`early.rs`). Where it is known that nothing listens,
//! both are in vain:
//!
//! - *On this host*, at an address of this device, the names of services show it before anything is
//!   sent. A listener has claimed its name, or that of the netdev, since it was bound. With
//!   `force_wire` the names are not checked.
//! - On another host the names show nothing. If that host does not take RoCE at all, the connection
//!   manager learns it by ICMP, and then calls [`CmAgent::refuse`].

use vernic_proto::cm::{CmPath, ConnId, ConnectParams};
use vernic_wire::cm::ServiceId;

use super::{CmAgent, CmCallError};
use crate::progress::engine::Engine;

impl Engine {
    /// Whether it is certain that no process of this host listens for `service` at the other end of
    /// `path`, an address of this device.
    fn nobody_listens_here(&self, path: &CmPath, service: ServiceId) -> bool {
        let ip = path.remote.to_ip();
        if self.config().force_wire || !self.has_address(ip) {
            return false;
        }
        !self.cm.is_claimed(service, self.local_addr(ip))
    }
}

impl CmAgent {
    /// Connects like [`connect`](Self::connect), but does not wait for a listener. If nothing
    /// listens now, the request is rejected (invalid service id) as soon as that is known, even if
    /// a listener would come in a moment. At an address of this device, that is before anything is
    /// sent.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn connect_now(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        let engine = &*self.engine;
        if engine.is_orphan() {
            return Err(CmCallError::Orphan);
        }
        engine.config().peers.check(params.path.remote.to_ip())?;
        if engine.nobody_listens_here(&params.path, params.service) {
            return engine.command(|machine, now| {
                let conn = machine.connect(now, params)?;
                machine.refuse(now, conn)?;
                Ok(conn)
            });
        }
        self.connect(params)
    }

    /// Ends a request that has no answer, as if the peer had rejected it (invalid service id). For
    /// requests to a host that is known not to receive them. Returns false, and does nothing, if
    /// there was an answer.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn refuse(&self, conn: ConnId) -> Result<bool, CmCallError> {
        self.engine.command(|machine, now| machine.refuse(now, conn))
    }
}

//! Requests that shall not wait for somebody to listen: who asks has another way, as a program of
//! TCP that tries RDMA first.
//!
//! A request that nobody hears is repeated for seconds, and one that somebody hears before anybody
//! listens waits for a moment (`early.rs`). Where it can be known that nobody listens, both are in
//! vain:
//!
//! - *Here*, at an address of this device, the names of services tell before anything is sent: a
//!   listener has claimed its name, or that of the netdev, since it was bound. With `force_wire`
//!   names are not looked at.
//! - On another host nobody can tell by names; that nothing there takes RoCE at all the connection
//!   manager hears by ICMP, and then calls [`CmAgent::refuse`].

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
    /// As [`connect`](Self::connect), but where nobody listens now the request is rejected as soon
    /// as that is known (invalid service id), even if somebody would in a moment: at an address of
    /// this device, before anything is sent.
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

    /// Ends a request that has no answer, as if the peer had rejected it (invalid service id): its
    /// host is known to have nobody who hears it. False, and nothing is done, if there was an
    /// answer.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn refuse(&self, conn: ConnId) -> Result<bool, CmCallError> {
        self.engine.command(|machine, now| machine.refuse(now, conn))
    }
}

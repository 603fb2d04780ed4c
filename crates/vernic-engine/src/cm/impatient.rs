//! Requests that shall not wait for somebody to listen: who asks has another way, as a program of TCP that
//! tries RDMA first.
//!
//! A request that nobody hears is repeated for seconds, and one that somebody hears before anybody listens
//! waits for a moment (`early.rs`). Where it can be known that nobody listens, both are in vain:
//!
//! - *Here*, at an address of this device, the names of services tell before anything is sent: a listener
//!   has claimed its name, or that of the netdev, since it was bound. With `force_wire` names are not looked at.
//! - *On another host* a listener is a process that receives on port 4791. Where none does, that host says so to
//!   any datagram ([`Probe`]), and no process of it listens. Its answer is looked for after
//!   [`FIRST_LOOK_NANOS`], then each time after twice as long, [`LOOKS`] times.
//! - Where a process of another host hears the request, that one decides (`route.rs`).
//!
//! Limits: [`MAX_ASKED`] requests are looked after, each with a descriptor; further ones wait as all others do.

use vernic_io::ROCE_PORT;
use vernic_io::presence::Probe;
use vernic_proto::Time;
use vernic_proto::cm::{CmPath, ConnId, ConnectParams};
use vernic_wire::cm::ServiceId;

use super::{CmAgent, CmCallError};
use crate::events::lock;
use crate::progress::Engine;

/// Requests that are looked after at a time: programs connect to one or a few peers at once.
const MAX_ASKED: usize = 64;

/// When an answer is looked for first, in nanoseconds: the round trip of a rack.
const FIRST_LOOK_NANOS: u64 = 100_000;

/// How often it is looked for: for 409 ms, more than the round trip to any place on earth.
const LOOKS: u32 = 12;

/// A request to a host that was asked whether anybody receives there.
#[derive(Debug)]
struct Asked {
    conn: ConnId,
    probe: Probe,
    due: Time,
    looks: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Impatient(Vec<Asked>);

impl Impatient {
    fn add(&mut self, conn: ConnId, probe: Probe, now: Time) {
        if self.0.len() < MAX_ASKED {
            self.0.push(Asked { conn, probe, due: now + FIRST_LOOK_NANOS, looks: 0 });
        }
    }

    /// When one is to be looked at.
    pub(super) fn due(&self) -> Option<Time> {
        self.0.iter().map(|asked| asked.due).min()
    }

    /// Looks at those that are due; returns the requests that nobody hears.
    fn look(&mut self, now: Time) -> Vec<ConnId> {
        let mut refused = Vec::new();
        self.0.retain_mut(|asked| {
            if asked.due > now {
                return true;
            }
            if asked.probe.is_refused() {
                refused.push(asked.conn);
                return false;
            }
            asked.looks += 1;
            asked.due = now + (FIRST_LOOK_NANOS << asked.looks);
            asked.looks < LOOKS
        });
        refused
    }
}

impl Engine {
    /// Whether it is certain that no process of this host listens for `service` at the other end of `path`,
    /// an address of this device.
    fn nobody_listens_here(&self, path: &CmPath, service: ServiceId) -> bool {
        let ip = path.remote.to_ip();
        if self.config.force_wire || !self.has_address(ip) {
            return false;
        }
        !self.is_claimed(service, self.local_addr(ip))
    }

    /// For the holder of the lane: ends requests that nobody hears.
    pub(crate) fn look_for_refusals(&self, now: Time) {
        let refused = lock(&self.cm.impatient).look(now);
        if refused.is_empty() {
            return;
        }
        let mut state = lock(&self.cm.state);
        if let Some(machine) = &mut state.machine {
            for conn in refused {
                // An unknown one was destroyed meanwhile.
                let _ = machine.refuse(now, conn);
            }
            state.tell();
        }
    }
}

impl CmAgent {
    /// As [`connect`](Self::connect), but where nobody listens now the request is rejected as soon as that
    /// is known (invalid service id), even if somebody would in a moment: before anything is sent at an address of
    /// this device, after a round trip where no process of the peer's host receives, and by that host where
    /// a TCP socket listens on a port of the service's number.
    ///
    /// # Errors
    /// [`CmCallError`].
    pub fn connect_now(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        let engine = &*self.engine;
        if engine.is_orphan() {
            return Err(CmCallError::Orphan);
        }
        if engine.nobody_listens_here(&params.path, params.service) {
            return engine.command(|machine, now| {
                let conn = machine.connect(now, params)?;
                machine.refuse(now, conn)?;
                Ok(conn)
            });
        }
        let conn = self.connect(params)?;
        let (local, ip) = (params.path.local.to_ip(), params.path.remote.to_ip());
        if !engine.has_address(ip) {
            let there = engine.local_addr(ip).with_port(ROCE_PORT);
            match Probe::send(local, there) {
                Ok(probe) => {
                    lock(&engine.cm.impatient).add(conn, probe, engine.now());
                    // There is another deadline.
                    engine.kick_cm();
                }
                Err(error) => {
                    tracing::debug!(%error, %there, "cannot ask whether anybody is there");
                }
            }
        }
        Ok(conn)
    }
}

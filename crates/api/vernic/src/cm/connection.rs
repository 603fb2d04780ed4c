//! Connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vernic_cm::{ConnParam, EventKind};
use vernic_engine::{AttrMask, QpState};

use super::waiting::{OwnId, Told};
use super::{CmError, Options, PATIENCE};
use crate::service::{Connected, Init, Reset, Rts, State};
use crate::{Device, Qp};

/// A connection: a queue pair in RTS, and what the peer said. Dropping it disconnects, without
/// waiting for the peer, and destroys the queue pair.
///
/// A peer whose process dies says nothing: the connection stays until the queue pair's own
/// repetitions are used up.
#[derive(Debug)]
pub struct Connection<S: Connected> {
    // Dropped first: the peer hears of it while there is a queue pair yet.
    own: OwnId,
    qp: Qp<S, Rts>,
    private_data: Vec<u8>,
    disconnected: AtomicBool,
}

impl<S: Connected> Connection<S> {
    /// Brings the queue pair up, for the peer that the id knows by now.
    pub(super) fn up(
        own: OwnId,
        qp: Qp<S, Init>,
        private_data: Vec<u8>,
        options: &Options<'_>,
    ) -> Result<Self, CmError> {
        let bounded = |asked: Option<u8>, usual: u8| asked.map_or(usual, |asked| asked.min(usual));
        let (mut attr, mut mask) = own.id.init_qp_attr(QpState::Rtr)?;
        attr.access = options.remote_access.bits();
        mask |= AttrMask::ACCESS_FLAGS;
        attr.max_dest_rd_atomic = bounded(options.responder_resources, attr.max_dest_rd_atomic);
        let qp: Qp<S, crate::Rtr> = qp.step(&attr, mask)?;
        let (mut attr, mask) = own.id.init_qp_attr(QpState::Rts)?;
        attr.max_rd_atomic = bounded(options.initiator_depth, attr.max_rd_atomic);
        let qp = qp.step(&attr, mask)?;
        own.id.name_qp(qp.engine_qp())?;
        Ok(Self { own, qp, private_data, disconnected: AtomicBool::new(false) })
    }

    pub(super) fn own(&self) -> &OwnId {
        &self.own
    }

    pub(super) fn param<'a>(&self, options: &Options<'a>) -> ConnParam<'a> {
        qp_param(&self.qp, options)
    }

    /// The queue pair.
    pub fn qp(&self) -> &Qp<S, Rts> {
        &self.qp
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.qp.device()
    }

    /// Our address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.own.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.own.peer_addr()
    }

    /// What the peer's program said: 56 bytes if it connected, 196 if it accepted; those that it
    /// did not use are zero.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Whether the peer has disconnected. Never waits.
    pub fn is_disconnected(&self) -> bool {
        while let Some(event) = self.own.channel.try_next() {
            self.note(event.kind);
        }
        self.has_ended()
    }

    /// Loads an alternate path into the queue pairs of both sides, from our address to the peer's:
    /// addresses of the devices that have the connection. They fall back on it when their path
    /// fails, and `IBV_EVENT_PATH_MIG` of the device says so (IBTA 17.2.8); then there is none, and
    /// another one may be loaded. Waits for the peer, as long as a connection is waited for.
    ///
    /// # Errors
    /// [`CmError::Refused`]: this is not the side that connected, a device cannot use the path, the
    /// peer refuses or does not answer. The connection stays as it is.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), vernic::Error> {
    /// # let manager = vernic::cm::Manager::open()?;
    /// # let route = manager.resolve::<vernic::Rc>("10.0.0.2:7174".parse().unwrap())?;
    /// # let (pd, cq) = (route.device().alloc_pd()?, route.device().create_cq(16)?);
    /// # let qp = pd.qp().send_cq(&cq).recv_cq(&cq).create()?;
    /// let connection = route.prepare(qp)?.connect(&vernic::cm::Options::default())?;
    /// let (ours, theirs) = ("10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap());
    /// connection.load_alternate_path(ours, theirs)?;
    /// # Ok(()) }
    /// ```
    pub fn load_alternate_path(&self, ours: IpAddr, theirs: IpAddr) -> Result<(), CmError> {
        let id = &self.own.id;
        let path = id.alternate_path(ours, theirs).ok_or(vernic_cm::Error::Orphan)?;
        Ok(id.load_alternate_path(path, PATIENCE)?)
    }

    /// Waits until the peer disconnects; false if it does not within `timeout`.
    ///
    /// # Errors
    /// [`CmError::Wait`].
    pub fn wait_disconnected(&mut self, timeout: Option<Duration>) -> Result<bool, CmError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        while !self.has_ended() {
            match self.own.wait(until)? {
                Told::Event(event) => self.note(event.kind),
                Told::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Disconnects: what is posted and not complete is flushed, and the peer is told. Returns when
    /// it has answered.
    ///
    /// # Errors
    /// [`CmError::Refused`] if the peer has broken the connection off meanwhile,
    /// [`CmError::Timeout`] if it does not answer. It is over in any case.
    pub fn disconnect(mut self) -> Result<(), CmError> {
        let is_over = self.is_disconnected();
        self.leave()?;
        match is_over || self.wait_disconnected(Some(PATIENCE))? {
            true => Ok(()),
            false => Err(self.no_farewell()),
        }
    }

    /// Ends what is posted, and tells the peer, or agrees.
    pub(crate) fn leave(&self) -> Result<(), CmError> {
        self.qp.fail()?;
        Ok(self.own.id.disconnect()?)
    }

    /// The peer does not say that it agrees to the end.
    pub(super) fn no_farewell(&self) -> CmError {
        CmError::Timeout { peer: self.peer_addr(), timeout: PATIENCE }
    }

    pub(super) fn note(&self, kind: EventKind) {
        if matches!(kind, EventKind::Disconnected | EventKind::DeviceRemoval) {
            self.disconnected.store(true, Ordering::Relaxed);
        }
    }

    /// Whether an event of its end was noted.
    pub(super) fn has_ended(&self) -> bool {
        self.disconnected.load(Ordering::Relaxed)
    }
}

/// The queue pair, if it is one of the device.
pub(super) fn checked<S: Connected>(
    qp: Qp<S, Reset>,
    device: &Device,
) -> Result<Qp<S, Reset>, CmError> {
    if Arc::ptr_eq(qp.device().context(), device.context()) {
        return Ok(qp);
    }
    let (own, other) = (&qp.device().info().name, &device.info().name);
    let what = format!(
        "was made on another handle of {own} than the connection's, {other}: make it on the device that \
         the route or request names"
    );
    Err(vernic_cm::Error::WrongQp { qpn: qp.qpn(), what }.into())
}

/// Parameters for a queue pair.
pub(super) fn qp_param<'a, S: Connected, St: State>(
    qp: &Qp<S, St>,
    options: &Options<'a>,
) -> ConnParam<'a> {
    ConnParam {
        private_data: options.private_data,
        responder_resources: options.responder_resources.unwrap_or(ConnParam::MAX),
        initiator_depth: options.initiator_depth.unwrap_or(ConnParam::MAX),
        retry_count: options.retry_count,
        rnr_retry_count: options.rnr_retry,
        srq: qp.has_srq(),
        qp_num: Some(qp.qpn()),
        ..ConnParam::default()
    }
}

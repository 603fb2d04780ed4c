//! Alternate paths of connections: loading them into the queue pair, and asking the peer to.
//!
//! Programs hear no events of alternate paths. A peer's LAP is answered by the worker, which loads
//! the path before it says so. When the peer answers, the worker loads the path, too, and the call
//! that asked returns then.

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vernic_engine::{
    AddressVector, AttrMask, Context, ModifyError, PathError, PathMigState, Qp, QpAttr,
};
use vernic_proto::cm::{AlternatePath, CmPath, EventKind as CmEvent, LapParams};
use vernic_wire::Gid;
use vernic_wire::cm::AprStatus;

use crate::device::Device;
use crate::error::Error;
use crate::event::EventKind;
use crate::id::apply::vector;
use crate::id::connection::Phase;
use crate::id::{Id, Inner};
use crate::sync::lock;

/// The alternate path that an id has asked its peer to load, and the outcome.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum Progress {
    /// Nothing is asked for.
    #[default]
    Idle,
    /// The peer has not answered.
    Asked(AlternatePath),
    /// The outcome, which no call has returned yet.
    Done(Result<(), Error>),
}

impl Loading {
    /// Sets the outcome, if one is waited for.
    fn finish(&self, outcome: Result<(), Error>) {
        let mut progress = lock(&self.progress);
        if matches!(*progress, Progress::Asked(_)) {
            *progress = Progress::Done(outcome);
            self.changed.notify_all();
        }
    }

    /// The id is destroyed.
    pub(crate) fn end(&self) {
        self.finish(Err(Error::NotLoaded(AprStatus::INVALID_COMM_ID)));
    }

    fn asked(&self) -> Option<AlternatePath> {
        match &*lock(&self.progress) {
            Progress::Asked(path) => Some(*path),
            _ => None,
        }
    }

    /// Waits for the outcome until `until`; `None` if there is none by then.
    fn wait(&self, until: Instant) -> Option<Result<(), Error>> {
        let mut progress = lock(&self.progress);
        // A turn per wake-up.
        loop {
            if let Progress::Done(_) = *progress {
                let Progress::Done(outcome) = std::mem::take(&mut *progress) else { return None };
                return Some(outcome);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Id {
    /// An alternate path between two addresses for the id's connection, of the kind that its path
    /// is; `None` before the peer is resolved.
    pub fn alternate_path(&self, local: IpAddr, remote: IpAddr) -> Option<AlternatePath> {
        self.look(|inner| {
            let (local, remote) = (Gid::from_ip(local), Gid::from_ip(remote));
            let path = CmPath { local, remote, flow_label: 0, ..inner.path()? };
            Some(AlternatePath { path, local_ack_timeout: inner.options.ack_timeout })
        })
        .flatten()
    }

    /// Asks the peer of a connection that this id asked for to load `alternate` into its queue
    /// pair, and loads it into this side's when the peer has. The queue pairs arm each other by
    /// their next packets; then they fall back on the path when theirs fails. Waits for the peer
    /// for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::State`] for an id without an established connection, [`Error::NoQp`] for one whose
    /// queue pair is not known ([`name_qp`](Self::name_qp)); [`Error::NotOfDevice`] and
    /// [`Error::AlternatePath`] for a path that this side cannot use; [`Error::NotLoaded`] if the
    /// peer refuses; [`Error::Failed`] with ETIMEDOUT if it does not answer; [`Error::Modify`];
    /// [`Error::Cm`] on the passive side, and while the peer has not answered the last time.
    pub fn load_alternate_path(
        &self,
        alternate: AlternatePath,
        timeout: Duration,
    ) -> Result<(), Error> {
        const CALL: &str = "load_alternate_path";
        let until = Instant::now() + timeout;
        self.shared.start_keeper()?;
        let agent = {
            let inner = self.enter(CALL)?;
            let (device, connection) = self
                .exchange(&inner)
                .filter(|(_, connection)| connection.phase == Phase::Up)
                .ok_or_else(|| self.wrong_state(&inner, CALL, "is connected"))?;
            let Some(agent) = device.agent().cloned() else {
                return Err(self.wrong_state(&inner, CALL, "has no TCP connection below it"));
            };
            if inner.connected_qp().is_none() {
                return Err(Error::NoQp { call: CALL });
            }
            check_alternate(&device, &alternate)?;
            let (response_timeout, max_retries) = (None, None);
            let params = LapParams { alternate, response_timeout, max_retries };
            // The answer may be here before the call returns.
            let before =
                std::mem::replace(&mut *lock(&self.loading.progress), Progress::Asked(alternate));
            if let Err(error) = agent.load_alternate_path(connection.conn, &params) {
                *lock(&self.loading.progress) = before;
                return Err(error.into());
            }
            agent
        };
        agent.about_to_wait();
        let late = || {
            let (kind, status) = (EventKind::Unreachable, -libc::ETIMEDOUT);
            Err(Error::Failed { kind, status })
        };
        self.loading.wait(until).unwrap_or_else(late)
    }

    /// Names the queue pair of a connection that the program brings up itself: alternate paths are
    /// loaded into it. The id does nothing else to it, and does not keep it.
    ///
    /// # Errors
    /// [`Error::State`] for a destroyed id, [`Error::Orphan`].
    pub fn name_qp(&self, qp: &Arc<Qp>) -> Result<(), Error> {
        self.enter("name_qp")?.own_qp = Arc::downgrade(qp);
        Ok(())
    }

    /// Does the work of a message about an alternate path, or of none for too long. On the worker.
    pub(crate) fn apply_alternate(&self, event: &CmEvent) {
        let (device, connection, qp) = {
            let inner = lock(&self.inner);
            let Some((device, connection)) = self.exchange(&inner) else { return };
            (device, connection, inner.connected_qp())
        };
        match event {
            CmEvent::LoadAlternatePath { alternate } => {
                let status = match qp {
                    None => AprStatus::UNSUPPORTED,
                    Some(qp) => match load(&device, &qp, alternate) {
                        Ok(()) => AprStatus::LOADED,
                        Err(error) => {
                            tracing::warn!(id = ?self, %error, "a peer's alternate path is refused");
                            status_of(&error)
                        }
                    },
                };
                if let Some(agent) = device.agent() {
                    // The connection may have ended meanwhile.
                    let _ = agent.answer_lap(connection.conn, status);
                }
            }
            CmEvent::AlternatePathAnswered { status } if *status == AprStatus::LOADED => {
                let Some(alternate) = self.loading.asked() else { return };
                let loaded = match qp {
                    Some(qp) => load(&device, &qp, &alternate),
                    None => Err(Error::NoQp { call: "load_alternate_path" }),
                };
                self.loading.finish(loaded);
            }
            CmEvent::AlternatePathAnswered { status } => {
                self.loading.finish(Err(Error::NotLoaded(*status)));
            }
            _ => {
                let (kind, status) = (EventKind::Unreachable, -libc::ETIMEDOUT);
                self.loading.finish(Err(Error::Failed { kind, status }));
            }
        }
    }
}

impl Inner {
    /// The queue pair that alternate paths are loaded into.
    fn connected_qp(&self) -> Option<Arc<Qp>> {
        self.qp.clone().or_else(|| self.own_qp.upgrade())
    }

    /// Forgets the alternate path of a request if this side cannot use it now.
    pub(super) fn drop_unusable_alternate(&mut self) {
        let (Some(device), Some(connection)) = (&self.device, &mut self.connection) else { return };
        connection.alternate =
            connection.alternate.filter(|alternate| check_alternate_now(device, alternate).is_ok());
    }
}

/// Checks that packets can be sent from this side by an alternate path that the program has named.
/// May wait until the system knows the next hop.
pub(super) fn check_alternate(device: &Device, alternate: &AlternatePath) -> Result<(), Error> {
    check_by(device, alternate, Context::check_path)
}

/// Checks the same without waiting: a path whose next hop is not known is refused. For paths of
/// peers, who could otherwise make a call, or the worker, wait for stations that do not exist.
pub(super) fn check_alternate_now(device: &Device, alternate: &AlternatePath) -> Result<(), Error> {
    check_by(device, alternate, Context::check_path_now)
}

fn check_by(
    device: &Device,
    alternate: &AlternatePath,
    check: impl FnOnce(&Context, &AddressVector) -> Result<(), PathError>,
) -> Result<(), Error> {
    let path = &alternate.path;
    let (local, remote) = (path.local, path.remote);
    if device.context.gid_row_by(local, path.roce).is_none() {
        let device = device.context.info().name.clone();
        return Err(Error::NotOfDevice { device, local });
    }
    let checked = check(&device.context, &vector(device, path));
    checked.map_err(|source| Error::AlternatePath { local, remote, source })
}

/// Puts an alternate path into the attributes of a queue pair, to be armed; returns their mask.
pub(super) fn put_alternate(
    device: &Device,
    alternate: &AlternatePath,
    attr: &mut QpAttr,
) -> AttrMask {
    attr.alt_av = vector(device, &alternate.path);
    attr.alt_port = attr.alt_av.port;
    attr.alt_timeout = alternate.local_ack_timeout;
    attr.path_mig_state = PathMigState::Rearm;
    AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE
}

/// Loads an alternate path into a queue pair, to be armed. For the worker: the path's next hop must
/// be known, since other ids wait meanwhile.
fn load(device: &Device, qp: &Qp, alternate: &AlternatePath) -> Result<(), Error> {
    check_alternate_now(device, alternate)?;
    let mut attr = QpAttr::default();
    let mask = put_alternate(device, alternate, &mut attr);
    Ok(qp.modify(&attr, mask)?)
}

/// What the peer is told of a path that could not be loaded.
fn status_of(error: &Error) -> AprStatus {
    match error {
        Error::NotOfDevice { .. }
        | Error::AlternatePath { .. }
        | Error::Modify(ModifyError::Path { .. }) => AprStatus::INVALID_GID,
        _ => AprStatus::REJECTED,
    }
}

#[cfg(test)]
mod tests {
    use vernic_proto::cm::Unanswered;

    use super::*;
    use crate::testing::Lab;
    use crate::tests::reply;

    /// What a call returns that waits for the peer of connection 1 when `end` happens.
    fn outcome(timeout: Duration, end: impl FnOnce(&Lab, &Id)) -> Error {
        let lab = Lab::new();
        let id = lab.connecting();
        lab.tell(1, reply(9));
        lab.kinds();
        id.establish().unwrap();
        let qp = lab.qp();
        id.name_qp(&qp).unwrap();
        lab.agent.asked();
        let home: IpAddr = "127.0.0.1".parse().unwrap();
        let path = id.alternate_path(home, home).unwrap();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| id.load_alternate_path(path, timeout).unwrap_err());
            let until = Instant::now() + Duration::from_secs(10);
            while lab.agent.asked() != ["load 1"] {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
            end(&lab, &id);
            call.join().unwrap()
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    fn is_timeout(error: &Error) -> bool {
        matches!(error, Error::Failed { .. }) && error.errno() == libc::ETIMEDOUT
    }

    #[test]
    fn a_call_that_waits_returns_whatever_happens() {
        let silent =
            |lab: &Lab, _: &Id| lab.tell(1, CmEvent::Unreachable { which: Unanswered::Lap });
        assert!(is_timeout(&outcome(LONG, silent)));
        assert!(is_timeout(&outcome(Duration::from_millis(10), |_, _| ())));
        let status = AprStatus::REJECTED;
        let refused = |lab: &Lab, _: &Id| lab.tell(1, CmEvent::AlternatePathAnswered { status });
        assert_eq!(outcome(LONG, refused).errno(), libc::ECONNREFUSED);
        let gone = outcome(LONG, |_, id| id.destroy());
        assert!(matches!(gone, Error::NotLoaded(AprStatus::INVALID_COMM_ID)), "{gone}");
        // The queue pair is in Reset.
        let status = AprStatus::LOADED;
        let loaded = |lab: &Lab, _: &Id| lab.tell(1, CmEvent::AlternatePathAnswered { status });
        assert!(matches!(outcome(LONG, loaded), Error::Modify(_)));
    }
}

//! Alternate paths of connections: loading them into the queue pair, and asking the peer to.
//!
//! Programs hear no events of alternate paths. A peer's LAP is answered by the worker, which loads
//! the path before it says so. When the peer answers, the worker loads the path, too, and the call
//! that asked returns then.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vernic_engine::{
    AddressVector, AttrMask, Context, ModifyError, PathError, PathMigState, Qp, QpAttr,
};
use vernic_proto::cm::{AlternatePath, CmPath, ConnId, EventKind as CmEvent, LapParams};
use vernic_wire::Gid;
use vernic_wire::cm::AprStatus;

use crate::device::Device;
use crate::error::Error;
use crate::event::EventKind;
use crate::id::apply::vector;
use crate::id::connection::Phase;
use crate::id::{Id, Inner};
use crate::sync::lock;

/// The alternate paths that an id has asked its peer to load, and the outcomes.
///
/// The engine has one exchange at a time, and tells the end of each once. A call may return before
/// that, when its time is over, and the worker may be behind. So outcomes belong to exchanges in
/// the order in which the engine accepted them, and not to the latest call.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Exchanges whose end the worker has not seen, in their order.
    asked: VecDeque<Asked>,
    /// The calls that wait.
    waiting: Vec<u64>,
    /// Outcomes that calls wait for.
    done: Vec<(u64, Result<(), Error>)>,
    /// The number of the last exchange.
    last: u64,
}

/// An exchange.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    conn: ConnId,
    alternate: AlternatePath,
}

impl Progress {
    fn finish(&mut self, asked: Asked, outcome: Result<(), Error>) {
        if self.waiting.contains(&asked.number) {
            self.done.push((asked.number, outcome));
        }
    }
}

impl Loading {
    /// Begins an exchange by `ask`, if that succeeds; returns its number, for a call that will wait
    /// for it.
    fn begin<E>(
        &self,
        conn: ConnId,
        alternate: AlternatePath,
        ask: impl FnOnce() -> Result<(), E>,
    ) -> Result<u64, E> {
        // The answer may be here before `ask` returns, so the worker has to wait for the number.
        let mut progress = lock(&self.progress);
        ask()?;
        progress.last += 1;
        let number = progress.last;
        // An exchange that ended with its connection has no other end.
        progress.asked.retain(|asked| asked.conn == conn);
        progress.asked.push_back(Asked { number, conn, alternate });
        progress.waiting.push(number);
        Ok(number)
    }

    /// Returns the exchange whose end the engine has told.
    fn ended(&self) -> Option<Asked> {
        lock(&self.progress).asked.pop_front()
    }

    /// Sets the outcome of an exchange, if it is waited for.
    fn finish(&self, asked: Asked, outcome: Result<(), Error>) {
        lock(&self.progress).finish(asked, outcome);
        self.changed.notify_all();
    }

    /// The id is destroyed.
    pub(crate) fn end(&self) {
        let mut progress = lock(&self.progress);
        while let Some(asked) = progress.asked.pop_front() {
            progress.finish(asked, Err(Error::NotLoaded(AprStatus::INVALID_COMM_ID)));
        }
        self.changed.notify_all();
    }

    /// Waits for the outcome of an exchange until `until`, or for ever; `None` if there is none by
    /// then.
    fn wait(&self, number: u64, until: Option<Instant>) -> Option<Result<(), Error>> {
        let mut progress = lock(&self.progress);
        // A turn per wake-up.
        let outcome = loop {
            if let Some(at) = progress.done.iter().position(|(of, _)| *of == number) {
                break Some(progress.done.swap_remove(at).1);
            }
            let Some(until) = until else {
                let waited = self.changed.wait(progress);
                progress = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break None;
            }
            let waited = self.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        progress.waiting.retain(|of| *of != number);
        outcome
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
        // The longest times have no end that a clock can tell.
        let until = Instant::now().checked_add(timeout);
        self.shared.start_keeper()?;
        let (agent, number) = {
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
            let conn = connection.conn;
            let ask = || agent.load_alternate_path(conn, &params);
            let number = self.loading.begin(conn, alternate, ask)?;
            (agent, number)
        };
        agent.about_to_wait();
        let late = || {
            let (kind, status) = (EventKind::Unreachable, -libc::ETIMEDOUT);
            Err(Error::Failed { kind, status })
        };
        self.loading.wait(number, until).unwrap_or_else(late)
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
            _ => {
                let Some(asked) = self.loading.ended() else { return };
                let outcome = match (event, qp) {
                    (CmEvent::AlternatePathAnswered { status: AprStatus::LOADED }, Some(qp)) => {
                        load(&device, &qp, &asked.alternate)
                    }
                    (CmEvent::AlternatePathAnswered { status: AprStatus::LOADED }, None) => {
                        Err(Error::NoQp { call: "load_alternate_path" })
                    }
                    (CmEvent::AlternatePathAnswered { status }, _) => {
                        Err(Error::NotLoaded(*status))
                    }
                    _ => {
                        let (kind, status) = (EventKind::Unreachable, -libc::ETIMEDOUT);
                        Err(Error::Failed { kind, status })
                    }
                };
                self.loading.finish(asked, outcome);
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
    use vernic_engine::AckTimeout;
    use vernic_proto::cm::Unanswered;
    use vernic_wire::cm::CommId;

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
        for timeout in [LONG, Duration::MAX] {
            assert_eq!(outcome(timeout, refused).errno(), libc::ECONNREFUSED);
        }
        let gone = outcome(LONG, |_, id| id.destroy());
        assert!(matches!(gone, Error::NotLoaded(AprStatus::INVALID_COMM_ID)), "{gone}");
        // The queue pair is in Reset.
        let status = AprStatus::LOADED;
        let loaded = |lab: &Lab, _: &Id| lab.tell(1, CmEvent::AlternatePathAnswered { status });
        assert!(matches!(outcome(LONG, loaded), Error::Modify(_)));
    }

    #[test]
    fn an_answer_is_to_the_path_that_was_asked_for_then() {
        let loading = Loading::default();
        let conn = |n| ConnId(CommId(n), 0);
        let path = |n| {
            let gid = Gid([n; 16]);
            AlternatePath { path: CmPath::new(gid, gid), local_ack_timeout: AckTimeout::INFINITE }
        };
        let begin = |of, n| loading.begin(conn(of), path(n), || Ok::<_, Error>(())).unwrap();
        let now = || Some(Instant::now());
        let loaded = |n| {
            let asked = loading.ended().unwrap();
            assert_eq!(asked.alternate, path(n));
            loading.finish(asked, Ok(()));
        };
        // A call that returned early, and one that the engine refuses meanwhile.
        assert!(loading.wait(begin(1, 1), now()).is_none());
        let refused = loading.begin(conn(1), path(2), || Err(Error::NoSubnet));
        assert!(matches!(refused, Err(Error::NoSubnet)));
        loaded(1);
        assert!(loading.ended().is_none());
        // One that the engine accepts before the worker has seen the end of the last.
        assert!(loading.wait(begin(1, 3), now()).is_none());
        let fourth = begin(1, 4);
        loaded(3);
        assert!(lock(&loading.progress).done.is_empty(), "not to the call that waits");
        loaded(4);
        assert!(matches!(loading.wait(fourth, None), Some(Ok(()))));
        // Exchanges of a connection that is gone are forgotten.
        begin(1, 5);
        let sixth = begin(2, 6);
        loaded(6);
        assert!(matches!(loading.wait(sixth, None), Some(Ok(()))));
    }
}

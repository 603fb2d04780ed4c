//! Alternate paths of a connection that is up: LAP, APR (IBTA 12.8).
//!
//! The active side asks and the passive side answers, one path at a time. A connection has at most
//! one such exchange, with a timer of its own beside the connection's. The exchange ends with its
//! answer, and with the connection; an answer is remembered for as long as the peer may repeat its
//! LAP.

use vernic_wire::cm::{AckedMessage, Apr, AprStatus, CmMessage, CommId, Lap, Mra, timeout_nanos};
use vernic_wire::mad::MAD_LEN;

use super::active::{MAX_EXTENSION, check_path, patience};
use super::event::{CmError, EventKind, Unanswered};
use super::exchange::{Exchange, Progress};
use super::params::{AlternatePath, ConnId, LapParams, clamp};
use super::state::State;
use super::{Cm, CmDrop, CmPath};
use crate::time::Time;

/// What a LAP is to its connection.
enum Examined {
    /// A new one, with this path.
    New(AlternatePath),
    /// Refused at once, for this reason.
    Refused(AprStatus),
    /// A copy of one that has come before, of which this has become.
    Copy(Progress),
}

impl Cm {
    /// Asks the peer of a connection that we asked for, and that is up, to load an alternate path
    /// into its queue pair. The answer is [`EventKind::AlternatePathAnswered`] or
    /// [`EventKind::Unreachable`]; neither changes the connection.
    ///
    /// # Errors
    /// Unknown connection, wrong state, the passive side, a LAP that is not answered, a value out
    /// of range.
    pub fn load_alternate_path(
        &mut self,
        now: Time,
        conn: ConnId,
        params: &LapParams,
    ) -> Result<(), CmError> {
        let (timeout, retries) = patience(self, params.response_timeout, params.max_retries)?;
        check_path(&params.alternate.path)?;
        let entry = self.owned(conn)?;
        let wrong = |state| {
            let (command, needs) = ("load_alternate_path", "Established, of the active side");
            Err(CmError::WrongState { conn, command, state, needs })
        };
        match (entry.state, entry.req, &entry.lap) {
            (State::Established, None, None) => {}
            (State::Established, None, Some(_)) => return wrong("LAP sent"),
            (State::Established, Some(_), _) => return wrong("Established, of the passive side"),
            (state, ..) => return wrong(state.name()),
        }
        let lap = Lap {
            local_comm_id: conn.0,
            remote_comm_id: entry.remote_id,
            remote_qpn: entry.remote_qpn,
            remote_response_timeout: timeout,
            alternate: params.alternate.to_req_path(),
            ..Lap::default()
        };
        // The messages that made the connection have its id alone.
        self.laps = self.laps.wrapping_add(1);
        let transaction_id = u64::from(self.laps) << 32 | u64::from(conn.0.value());
        let path = params.alternate.path;
        let mut exchange = Exchange::new(Progress::Sent, path, transaction_id, Lap::default());
        (exchange.wait, exchange.max_retries) = (self.config.wait(timeout), retries);
        let deadline = now + exchange.wait.min(self.config.first_wait());
        self.table.begin_lap(conn.0, exchange, deadline);
        self.send_of_lap(conn.0, &lap.into());
        Ok(())
    }

    /// Says what became of the path of [`EventKind::LoadAlternatePath`].
    ///
    /// # Errors
    /// Unknown connection, no LAP that waits for an answer.
    pub fn answer_lap(
        &mut self,
        now: Time,
        conn: ConnId,
        status: AprStatus,
    ) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        let progress = entry.lap.as_ref().map(|lap| lap.progress);
        if !matches!(progress, Some(Progress::Asked | Progress::AskedForTime)) {
            let (command, needs) = ("answer_lap", "LAP received");
            return Err(CmError::WrongState { conn, command, state: entry.state.name(), needs });
        }
        let (local_comm_id, remote_comm_id) = (conn.0, entry.remote_id);
        let apr = Apr { local_comm_id, remote_comm_id, status, ..Apr::default() };
        self.send_apr(now, conn.0, apr);
        Ok(())
    }

    fn send_apr(&mut self, now: Time, id: CommId, apr: Apr) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let Some(exchange) = &mut conn.lap else { return };
        exchange.progress = Progress::Answered;
        // Two copies of the LAP may be under way when the APR is lost.
        let (alternate, until) = (exchange.alternate, now + 2 * exchange.wait);
        if apr.status == AprStatus::LOADED {
            conn.agree_on(alternate);
        }
        self.send_of_lap(id, &apr.into());
        self.table.set_lap_deadline(id, until);
    }

    /// Sends a message of the exchange, and keeps it for timer and duplicates.
    fn send_of_lap(&mut self, id: CommId, message: &CmMessage) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let path = conn.path;
        let Some(exchange) = &mut conn.lap else { return };
        let mut mad = [0; MAD_LEN];
        message.emit(exchange.transaction_id, &mut mad);
        (exchange.last, exchange.repeats) = (Some(mad), 0);
        self.push(path, &mad, 0);
    }

    /// Sends the last message of the exchange again.
    fn send_of_lap_again(&mut self, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let Some(exchange) = &mut conn.lap else { return };
        exchange.repeats = exchange.repeats.saturating_add(1);
        let (last, repeats) = (exchange.last, exchange.repeats);
        let path = conn.way(repeats);
        if let Some(last) = last {
            self.push(path, &last, repeats);
        }
    }

    pub(super) fn handle_lap(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        lap: &Lap,
    ) -> Result<(), CmDrop> {
        let (id, theirs) = (lap.remote_comm_id, lap.local_comm_id);
        let alternate = match self.examine_lap(path, transaction_id, lap)? {
            Examined::New(alternate) => alternate,
            Examined::Refused(status) => {
                let apr =
                    Apr { local_comm_id: id, remote_comm_id: theirs, status, ..Apr::default() };
                self.send(path, transaction_id, &apr.into());
                return Ok(());
            }
            Examined::Copy(progress) => {
                self.counters.duplicates_answered += 1;
                match progress {
                    Progress::Asked => self.ask_for_time_of_lap(now, id),
                    _ => self.send_of_lap_again(id),
                }
                return Ok(());
            }
        };
        if self.events.len() >= self.config.max_events() {
            return Err(CmDrop::EventsFull);
        }
        let mut exchange = Exchange::new(Progress::Asked, alternate.path, transaction_id, *lap);
        exchange.wait = self.config.wait(lap.remote_response_timeout);
        let half = timeout_nanos(clamp(lap.remote_response_timeout)) / 2;
        self.table.begin_lap(id, exchange, now + half);
        self.event(id, EventKind::LoadAlternatePath { alternate });
        Ok(())
    }

    /// What a LAP is to the connection that it names.
    fn examine_lap(
        &self,
        path: CmPath,
        transaction_id: u64,
        lap: &Lap,
    ) -> Result<Examined, CmDrop> {
        let conn = match self.find(path, lap.remote_comm_id, lap.local_comm_id) {
            Ok(conn) => conn,
            Err(CmDrop::UnknownConnection) => {
                return Ok(Examined::Refused(AprStatus::INVALID_COMM_ID));
            }
            Err(drop) => return Err(drop),
        };
        if conn.state != State::Established {
            return Err(CmDrop::WrongState);
        }
        // Only the active side asks (IBTA 12.8.1).
        if conn.req.is_none() {
            return Ok(Examined::Refused(AprStatus::REJECTED));
        }
        if conn.local_qpn != lap.remote_qpn {
            return Ok(Examined::Refused(AprStatus::INVALID_QPN));
        }
        if let Some(before) = &conn.lap {
            let is_copy = before.transaction_id == transaction_id && before.lap == *lap;
            match (before.progress, is_copy) {
                (progress, true) => return Ok(Examined::Copy(progress)),
                (Progress::Answered, false) => {}
                _ => return Err(CmDrop::WrongState),
            }
        }
        let alternate = AlternatePath::of_peer(&lap.alternate, &path);
        Ok(alternate.map_or(Examined::Refused(AprStatus::INVALID_GID), Examined::New))
    }

    /// The owner takes its time: sends an MRA of the LAP.
    fn ask_for_time_of_lap(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let remote_comm_id = conn.remote_id;
        let Some(exchange) = &mut conn.lap else { return };
        exchange.progress = Progress::AskedForTime;
        let service_timeout = self.config.service_timeout;
        let until = now + 2 * (timeout_nanos(clamp(service_timeout)) + exchange.wait);
        let message = AckedMessage::LAP;
        let mra =
            Mra { local_comm_id: id, remote_comm_id, message, service_timeout, ..Mra::default() };
        self.send_of_lap(id, &mra.into());
        self.table.set_lap_deadline(id, until);
    }

    /// The peer needs time to answer our LAP.
    pub(super) fn wait_longer_for_apr(
        &mut self,
        now: Time,
        id: CommId,
        mra: &Mra,
    ) -> Result<(), CmDrop> {
        let exchange = self.table.conn_mut(id).and_then(|conn| conn.lap.as_mut());
        let exchange = exchange.filter(|exchange| exchange.progress == Progress::Sent);
        let Some(exchange) = exchange else { return Err(CmDrop::WrongState) };
        let room = MAX_EXTENSION.saturating_sub(exchange.extended);
        if exchange.mras > exchange.max_retries || room == 0 {
            return Err(CmDrop::Duplicate);
        }
        let from = exchange.deadline.max(now);
        let asked = now + timeout_nanos(clamp(mra.service_timeout)) + exchange.wait;
        let longer = asked.since(from).min(room);
        exchange.mras += 1;
        exchange.extended += longer;
        self.table.set_lap_deadline(id, from + longer);
        Ok(())
    }

    pub(super) fn handle_apr(
        &mut self,
        path: CmPath,
        transaction_id: u64,
        apr: &Apr,
    ) -> Result<(), CmDrop> {
        let id = apr.remote_comm_id;
        self.find(path, id, apr.local_comm_id)?;
        let conn = self.table.conn_mut(id).ok_or(CmDrop::UnknownConnection)?;
        let alternate = match &conn.lap {
            Some(lap) if lap.progress == Progress::Sent && lap.transaction_id == transaction_id => {
                lap.alternate
            }
            // Late, or a copy.
            _ => return Err(CmDrop::Duplicate),
        };
        if apr.status == AprStatus::LOADED {
            conn.agree_on(alternate);
        }
        self.table.end_lap(id);
        self.event(id, EventKind::AlternatePathAnswered { status: apr.status });
        Ok(())
    }

    pub(super) fn handle_lap_timer(&mut self, now: Time, id: CommId) {
        let first = self.config.first_wait();
        let Some(conn) = self.table.conn_mut(id) else { return };
        let remote_comm_id = conn.remote_id;
        let Some(exchange) = &mut conn.lap else { return };
        match exchange.progress {
            Progress::Sent if exchange.retries < exchange.max_retries => {
                exchange.retries += 1;
                let wait = exchange.wait.min(first << exchange.retries.min(8));
                self.counters.retries += 1;
                self.send_of_lap_again(id);
                self.table.set_lap_deadline(id, now + wait);
            }
            Progress::Sent => {
                self.table.end_lap(id);
                self.unanswered(id, Unanswered::Lap);
            }
            Progress::Asked => self.ask_for_time_of_lap(now, id),
            Progress::AskedForTime => {
                let (local_comm_id, status) = (id, AprStatus::REJECTED);
                let apr = Apr { local_comm_id, remote_comm_id, status, ..Apr::default() };
                self.send_apr(now, id, apr);
            }
            Progress::Answered => self.table.end_lap(id),
        }
    }

    /// The connection is up: the path that the REQ offered, and that the REP accepted, is one of
    /// its paths.
    pub(super) fn agree_on_offered(&mut self, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        if let Some(path) = conn.offered.take() {
            conn.agree_on(path);
        }
    }
}

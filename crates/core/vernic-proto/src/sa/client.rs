//! The client: commands, answers, reports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vernic_wire::mad::{MadHeader, Method};
use vernic_wire::sa::{
    JoinState, McMemberRecord, MemberComponents, PathRecord, SaAttribute, ServiceRecord,
};
use vernic_wire::smp::{MadStatus, Notice, TrapNumber};
use vernic_wire::{Gid, Lid};

use super::params::{
    PathQuery, SaConfig, SaError, SaEvent, SaPort, SaSend, SaTable, SaUser, ServiceKey, Ticket,
};
use super::paths::{PathKey, Paths, key_of};
use super::records::{Request, address_of, read};
use super::registrations::{Change, Key, PLAIN, Registration, UnderWay, Wish};
use crate::mad::{MadAddress, Outcome};
use crate::time::Time;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Path(PathKey),
    Table(Ticket, SaAttribute),
    Registration(Key),
}

/// A client of subnet administration. See the head of the module.
#[derive(Debug)]
pub struct SaClient {
    config: SaConfig,
    port: SaPort,
    paths: Paths,
    registrations: BTreeMap<Key, Registration>,
    /// What all users want.
    wishes: usize,
    /// When the lease of a service is half over.
    leases: BTreeSet<(Time, Key)>,
    /// Requests that wait for an answer, by their transaction.
    asked: BTreeMap<u32, Purpose>,
    /// Questions among these, and those that wait for the answer of another.
    questions: usize,
    last_transaction: u32,
    sends: VecDeque<SaSend>,
    events: VecDeque<SaEvent>,
}

impl SaClient {
    /// Returns the client of a port that is down.
    pub fn new(config: SaConfig) -> Self {
        Self {
            config,
            port: SaPort::default(),
            paths: Paths::default(),
            registrations: BTreeMap::new(),
            wishes: 0,
            leases: BTreeSet::new(),
            asked: BTreeMap::new(),
            questions: 0,
            last_transaction: 0,
            sends: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Takes the state of the port. What is registered is lost while the port is down, and is set
    /// again when it is up.
    pub fn handle_port(&mut self, port: SaPort) {
        let had = std::mem::replace(&mut self.port, port);
        if had == port {
            return;
        }
        self.paths.forget_all();
        if had.is_active != port.is_active {
            self.handle_reregister();
        } else {
            self.change_all();
        }
    }

    /// Returns the LID of the subnet manager that the client asks.
    pub const fn manager(&self) -> Lid {
        self.port.sm_lid
    }

    /// The subnet manager wants all to be registered again (ClientReregister).
    pub fn handle_reregister(&mut self) {
        self.paths.forget_all();
        for registration in self.registrations.values_mut() {
            registration.set = JoinState::empty();
            if let Some(under_way) = &mut registration.under_way {
                under_way.is_stale = true;
            }
        }
        self.change_all();
    }

    /// Asks for a path. The answer is [`SaEvent::Path`]; at once if it is known and `may_be_old`.
    ///
    /// # Errors
    /// [`SaError::NoManager`], [`SaError::TooMany`].
    pub fn query_path(
        &mut self,
        now: Time,
        ticket: Ticket,
        query: &PathQuery,
        may_be_old: bool,
    ) -> Result<(), SaError> {
        let key = key_of(query);
        if let Some(path) = self.paths.find(&key, now).filter(|_| may_be_old) {
            self.events.push_back(SaEvent::Path { ticket, answer: Ok(path) });
            return Ok(());
        }
        self.admit_question()?;
        if self.paths.wait(key, ticket) {
            self.ask(Purpose::Path(key), Request::path(query));
        }
        Ok(())
    }

    /// Forgets the paths to a GID, whose port may have moved.
    pub fn forget_paths(&mut self, dgid: Gid) {
        self.paths.forget(dgid);
    }

    /// Asks for all records that match one: the components of `record` that the mask has. The
    /// answer is [`SaEvent::Table`].
    ///
    /// # Errors
    /// [`SaError::NoManager`], [`SaError::TooMany`].
    pub fn query_table(
        &mut self,
        ticket: Ticket,
        attribute: SaAttribute,
        component_mask: u64,
        record: &[u8],
    ) -> Result<(), SaError> {
        self.admit_question()?;
        let request = Request::new(Method::GET_TABLE, attribute, component_mask, record);
        self.ask(Purpose::Table(ticket, attribute), request);
        Ok(())
    }

    fn admit_question(&mut self) -> Result<(), SaError> {
        if !self.has_manager() {
            return Err(SaError::NoManager);
        }
        if self.questions >= self.config.max_questions {
            return Err(SaError::TooMany(self.config.max_questions));
        }
        self.questions += 1;
        Ok(())
    }
    fn has_manager(&self) -> bool {
        self.port.is_active && self.port.sm_lid != Lid::RESERVED
    }

    /// Makes a user a member of a group in one way: the one bit of `record.join_state`. The answer
    /// is [`SaEvent::Joined`] or [`SaEvent::NotJoined`]. The first member's record and components
    /// may create the group. A user that is a member hears so again.
    ///
    /// # Errors
    /// [`SaError::TooMany`].
    pub fn join(
        &mut self,
        user: SaUser,
        record: McMemberRecord,
        components: MemberComponents,
    ) -> Result<(), SaError> {
        let key = Key::Group(record.mgid);
        self.want(user, key, record.join_state, Wish::Member(record, components))
    }
    /// Ends what [`join`](Self::join) has begun. There is no answer.
    pub fn leave(&mut self, user: SaUser, mgid: Gid, how: JoinState) {
        self.unwant(user, Key::Group(mgid), how);
    }

    /// Registers a service of a user, and keeps it registered when its lease ends. The answer is
    /// [`SaEvent::Service`].
    ///
    /// # Errors
    /// [`SaError::TooMany`].
    pub fn offer_service(&mut self, user: SaUser, record: ServiceRecord) -> Result<(), SaError> {
        let ServiceRecord { service_id, gid, pkey, .. } = record;
        let key = Key::of_service(&ServiceKey { service_id, gid, pkey });
        self.want(user, key, PLAIN, Wish::Service(record))
    }
    /// Ends what [`offer_service`](Self::offer_service) has begun. There is no answer.
    pub fn withdraw_service(&mut self, user: SaUser, key: &ServiceKey) {
        self.unwant(user, Key::of_service(key), PLAIN);
    }

    /// Lets a user have the notices of a number. The answer is [`SaEvent::Subscription`].
    ///
    /// # Errors
    /// [`SaError::TooMany`].
    pub fn subscribe(&mut self, user: SaUser, number: TrapNumber) -> Result<(), SaError> {
        self.want(user, Key::Notices(number.0), PLAIN, Wish::Notices)
    }
    /// Ends what [`subscribe`](Self::subscribe) has begun. There is no answer.
    pub fn unsubscribe(&mut self, user: SaUser, number: TrapNumber) {
        self.unwant(user, Key::Notices(number.0), PLAIN);
    }

    /// The user is gone: nothing is registered for it any more.
    pub fn end_user(&mut self, user: SaUser) {
        let is_users = |registration: &&mut Registration| {
            registration.users.keys().any(|(other, _)| *other == user)
        };
        let mut ended = Vec::new();
        for (key, registration) in &mut self.registrations {
            if is_users(&registration) {
                let before = registration.users.len();
                registration.users.retain(|(other, _), _| *other != user);
                self.wishes -= before - registration.users.len();
                ended.push(*key);
            }
        }
        for key in ended {
            self.change(key);
        }
        self.events.retain(|event| event.user() != Some(user));
    }

    fn want(&mut self, user: SaUser, key: Key, how: JoinState, wish: Wish) -> Result<(), SaError> {
        let known = self.registrations.get(&key);
        let is_new = known.is_none_or(|known| !known.users.contains_key(&(user, how.bits())));
        if is_new && self.wishes >= self.config.max_registrations {
            return Err(SaError::TooMany(self.config.max_registrations));
        }
        self.wishes += usize::from(is_new);
        let registration = self.registrations.entry(key).or_insert(Registration::new());
        registration.users.insert((user, how.bits()), (wish, false));
        if registration.set.contains(how) {
            self.tell_set(key, how, false);
        }
        self.change(key);
        Ok(())
    }

    fn unwant(&mut self, user: SaUser, key: Key, how: JoinState) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        if registration.users.remove(&(user, how.bits())).is_some() {
            self.wishes -= 1;
            self.change(key);
        }
    }

    fn change_all(&mut self) {
        for key in self.registrations.keys().copied().collect::<Vec<_>>() {
            self.change(key);
        }
    }

    /// Asks for the next change of a registration, or forgets it when nobody wants it.
    fn change(&mut self, key: Key) {
        let has_manager = self.has_manager();
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        if registration.under_way.is_some() {
            return;
        }
        let Some(what) = registration.next_change() else {
            if registration.users.is_empty() {
                self.registrations.remove(&key);
            }
            return;
        };
        let request = match what {
            _ if !has_manager => None,
            Change::Set(how) => registration.wish_for(how).map(|wish| set_request(key, &wish)),
            Change::Unset(how) => Some(unset_request(key, how, registration.group.as_ref())),
        };
        if let Some(request) = request {
            registration.under_way = Some(UnderWay { what, is_stale: false });
            // Whatever the answer will be: what the data base does not know is as good as unset.
            if let Change::Unset(how) = what {
                registration.set.remove(how);
            }
            self.ask(Purpose::Registration(key), request);
        } else if registration.users.is_empty() {
            // What is set ends with the port.
            self.registrations.remove(&key);
        }
    }

    fn ask(&mut self, purpose: Purpose, request: Request) {
        // Fewer requests are under way than there are numbers.
        loop {
            self.last_transaction = self.last_transaction.wrapping_add(1);
            if !self.asked.contains_key(&self.last_transaction) {
                break;
            }
        }
        self.asked.insert(self.last_transaction, purpose);
        self.sends.push_back(SaSend {
            address: address_of(&self.port),
            mad: request.to_mad(self.last_transaction),
            timeout_ms: self.config.timeout_ms,
            retries: self.config.retries,
        });
    }

    /// Takes how a request ended: `mad` is the answer, or the header of the request. Of what is not
    /// asked for, nothing happens.
    pub fn handle_outcome(&mut self, now: Time, outcome: Outcome, mad: &[u8]) {
        let Ok(header) = MadHeader::parse(mad) else { return };
        // The upper half is the agent's.
        let Some(purpose) = self.asked.remove(&(header.transaction_id as u32)) else { return };
        let manager = self.port.sm_lid;
        let answer = match outcome {
            Outcome::Received => read(mad),
            Outcome::TimedOut => Err(SaError::Unanswered(manager)),
            Outcome::Aborted(_) => Err(SaError::Malformed),
        };
        // Every data base has paths and registrations: only the agents of another port refuse them.
        let answer = answer.map_err(|error| match (error, purpose) {
            (SaError::NotUnderstood(_), Purpose::Table(..)) => error,
            (SaError::NotUnderstood(MadStatus::ATTRIBUTE_NOT_SUPPORTED), _) => {
                SaError::NoAdministration(manager)
            }
            _ => error,
        });
        let of = |attribute: SaAttribute| {
            answer.and_then(|(header, sa, data)| {
                let is_it = header.attribute_id == attribute.0;
                is_it.then_some((sa, data)).ok_or(SaError::Malformed)
            })
        };
        match purpose {
            Purpose::Path(key) => {
                let path = of(SaAttribute::PATH_RECORD)
                    .and_then(|(_, data)| PathRecord::parse(data).map_err(|_| SaError::Malformed));
                self.answer_path(now, key, path);
            }
            Purpose::Table(ticket, attribute) => {
                let answer =
                    of(attribute).map(|(header, data)| SaTable::new(header, data.to_vec()));
                self.questions -= 1;
                self.events.push_back(SaEvent::Table { ticket, answer });
            }
            Purpose::Registration(key) => {
                let group = answer.and_then(|(_, _, data)| match key {
                    Key::Group(_) => {
                        McMemberRecord::parse(data).map(Some).map_err(|_| SaError::Malformed)
                    }
                    _ => Ok(None),
                });
                self.answer_registration(now, key, group);
            }
        }
    }

    fn answer_path(&mut self, now: Time, key: PathKey, answer: Result<PathRecord, SaError>) {
        if let Ok(path) = answer {
            let until = now + self.config.path_life_s * NANOS_PER_SECOND;
            self.paths.keep(key, path, until, now, self.config.max_paths);
        }
        for ticket in self.paths.take_waiting(&key) {
            self.questions -= 1;
            self.events.push_back(SaEvent::Path { ticket, answer });
        }
    }

    fn answer_registration(
        &mut self,
        now: Time,
        key: Key,
        answer: Result<Option<McMemberRecord>, SaError>,
    ) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        let Some(under_way) = registration.under_way.take() else { return };
        match (under_way.what, answer) {
            _ if under_way.is_stale => {}
            (Change::Unset(_), _) => {}
            (Change::Set(how), Ok(group)) => {
                registration.set |= how;
                let is_other = values_of(group) != values_of(registration.group);
                registration.group = group;
                self.note_lease(now, key, how);
                self.tell_set(key, how, is_other);
            }
            (Change::Set(how), Err(error)) => self.tell_refused(key, how, error),
        }
        self.change(key);
    }

    /// When to register a service again.
    fn note_lease(&mut self, now: Time, key: Key, how: JoinState) {
        let wish = self.registrations.get(&key).and_then(|known| known.wish_for(how));
        let Some(Wish::Service(record)) = wish else { return };
        if record.lease_s != ServiceRecord::LEASE_FOREVER {
            let half = u64::from(record.lease_s.max(2)) * NANOS_PER_SECOND / 2;
            self.leases.retain(|(_, other)| *other != key);
            self.leases.insert((now + half, key));
        }
    }

    /// Tells those that want it in that way that they have it: all if the group `is_other`, else
    /// those that do not know.
    fn tell_set(&mut self, key: Key, how: JoinState, is_other: bool) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        let group = registration.group.unwrap_or_default();
        for ((user, bits), (_, knows)) in &mut registration.users {
            if *bits != how.bits() || std::mem::replace(knows, true) && !is_other {
                continue;
            }
            let record = McMemberRecord { join_state: how, ..group };
            self.events.push_back(event(key, *user, how, Ok(record)));
        }
    }
    fn tell_refused(&mut self, key: Key, how: JoinState, error: SaError) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        for user in registration.users_of(how) {
            registration.users.remove(&(user, how.bits()));
            self.wishes -= 1;
            self.events.push_back(event(key, user, how, Err(error)));
        }
    }

    /// Takes a report of a notice, and answers it. Whether `source` is the subnet manager is the
    /// owner's to say: others report nothing.
    pub fn handle_report(&mut self, source: MadAddress, mad: &[u8]) {
        let Ok((header, _, data)) = read(mad) else { return };
        let is_notice = header.attribute_id == SaAttribute::NOTICE.0;
        let (true, Method::REPORT) = (is_notice, header.method) else { return };
        let Ok(notice) = Notice::parse(data) else { return };
        let mut answer = mad.to_vec();
        MadHeader { method: Method::REPORT_RESP, ..header }.emit(&mut answer);
        let address = MadAddress { qkey: address_of(&self.port).qkey, ..source };
        self.sends.push_back(SaSend { address, mad: answer, timeout_ms: 0, retries: 0 });
        let key = Key::Notices(notice.number.0);
        let users = self.registrations.get(&key).map(|known| known.users_of(PLAIN));
        for user in users.unwrap_or_default() {
            self.events.push_back(SaEvent::Notice { user, notice });
        }
    }

    /// The next datagram to send.
    pub fn poll_send(&mut self) -> Option<SaSend> {
        self.sends.pop_front()
    }
    /// The next event.
    pub fn poll_event(&mut self) -> Option<SaEvent> {
        self.events.pop_front()
    }
    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.leases.first().map(|(at, _)| *at)
    }
    /// Registers services again whose lease is half over.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((at, key)) = self.leases.first().copied().filter(|(at, _)| *at <= now) {
            self.leases.remove(&(at, key));
            if let Some(registration) = self.registrations.get_mut(&key) {
                registration.set = JoinState::empty();
                self.change(key);
            }
        }
    }
}

/// What of a group matters to its members.
fn values_of(group: Option<McMemberRecord>) -> Option<McMemberRecord> {
    let member = JoinState::empty();
    group.map(|group| McMemberRecord { join_state: member, port_gid: Gid::ZERO, ..group })
}

fn set_request(key: Key, wish: &Wish) -> Request {
    match (key, wish) {
        (_, Wish::Member(record, components)) => {
            Request::member(Method::SET, record, components.bits())
        }
        (_, Wish::Service(record)) => Request::service(Method::SET, record),
        (Key::Notices(number), Wish::Notices) => Request::inform(TrapNumber(number), true),
        // A wish is of its key's kind.
        (_, Wish::Notices) => Request::inform(TrapNumber(0), true),
    }
}

fn unset_request(key: Key, how: JoinState, group: Option<&McMemberRecord>) -> Request {
    match key {
        Key::Group(mgid) => {
            let record =
                McMemberRecord { mgid, join_state: how, ..group.copied().unwrap_or_default() };
            let mask =
                MemberComponents::MGID | MemberComponents::PORT_GID | MemberComponents::JOIN_STATE;
            Request::member(Method::DELETE, &record, mask.bits())
        }
        Key::Service(service_id, gid, pkey) => {
            let record = ServiceRecord {
                service_id: vernic_wire::cm::ServiceId(service_id),
                gid,
                pkey: vernic_wire::Pkey(pkey),
                ..ServiceRecord::default()
            };
            Request::service(Method::DELETE, &record)
        }
        Key::Notices(number) => Request::inform(TrapNumber(number), false),
    }
}

fn event(
    key: Key,
    user: SaUser,
    how: JoinState,
    answer: Result<McMemberRecord, SaError>,
) -> SaEvent {
    match (key, answer) {
        (Key::Group(_), Ok(record)) => SaEvent::Joined { user, record },
        (Key::Group(mgid), Err(error)) => SaEvent::NotJoined { user, mgid, how, error },
        (Key::Service(service_id, gid, pkey), answer) => {
            let service_id = vernic_wire::cm::ServiceId(service_id);
            let key = ServiceKey { service_id, gid, pkey: vernic_wire::Pkey(pkey) };
            SaEvent::Service { user, key, answer: answer.map(|_| ()) }
        }
        (Key::Notices(number), answer) => {
            let number = TrapNumber(number);
            SaEvent::Subscription { user, number, answer: answer.map(|_| ()) }
        }
    }
}

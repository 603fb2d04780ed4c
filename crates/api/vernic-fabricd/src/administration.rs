//! The client of subnet administration of a port: what all programs of the host ask there.
//!
//! Owns the port's [`SaClient`], the agent that its datagrams go by, and which connection waits for
//! which path. There is one client for a port, since subnet administration knows ports and no
//! programs: the port leaves a group when the last program has left it. Made with the first
//! question of a program, and there to stay.
//!
//! Reports of notices come to a second agent, which is there while somebody wants them: one agent
//! of a port may take them.

use std::collections::{BTreeMap, BTreeSet};

use vernic_attach::question::Answer;
use vernic_attach::{Refusal, RefusalKind};
use vernic_fabric::Time;
use vernic_fabric::attributes::{PortAttributes, PortState};
use vernic_proto::mad::{AgentId, Agents, Outcome, RegisterError, Registration};
use vernic_proto::sa::{PathQuery, SaClient, SaConfig, SaError, SaEvent, SaPort, SaUser, Ticket};
use vernic_wire::mad::{Method, MgmtClass};
use vernic_wire::sa::{CLASS_VERSION, JoinState, McMemberRecord, MemberComponents, SaStatus};
use vernic_wire::smp::TrapNumber;
use vernic_wire::{Gid, Lid, Qpn};

use crate::key::Key;

/// The client of a port.
#[derive(Debug)]
pub(crate) struct PortAdministration {
    client: SaClient,
    agent: AgentId,
    /// Name of the fabric, for words about it.
    fabric: String,
    /// Connections that wait for a path, by ticket, and what they asked for.
    paths: BTreeMap<u64, (Key, PathQuery)>,
    last_ticket: u64,
    /// The agent that takes reports, while there are connections that want notices.
    reports: Option<AgentId>,
    listeners: BTreeSet<Key>,
}

/// Notices that connections get: ports that come and go, groups that are made and deleted (IBTA
/// 13.4.8.2).
const NOTICES: [TrapNumber; 4] = [TrapNumber(64), TrapNumber(65), TrapNumber(66), TrapNumber(67)];

fn registration(methods: u128) -> Registration {
    Registration {
        qpn: Qpn::GSI,
        class: MgmtClass::SUBNET_ADMIN,
        class_version: CLASS_VERSION,
        methods,
        oui: 0,
        rmpp: true,
    }
}

impl PortAdministration {
    /// Makes the client of a port, with an agent among those of the port.
    ///
    /// # Errors
    /// The port has as many agents as can be.
    pub(crate) fn start(
        agents: &mut Agents,
        attributes: &PortAttributes,
        fabric: &str,
    ) -> Result<Self, RegisterError> {
        let agent = agents.register(&registration(0))?;
        let mut client = SaClient::new(SaConfig::default());
        client.handle_port(port_of(attributes));
        let (fabric, paths) = (fabric.to_owned(), BTreeMap::new());
        let listeners = BTreeSet::new();
        Ok(Self { client, agent, fabric, paths, last_ticket: 0, reports: None, listeners })
    }
    /// Takes a port that has changed, and whether the subnet manager wants all to be registered
    /// again.
    pub(crate) fn handle_port(&mut self, attributes: &PortAttributes, reregister: bool) {
        self.client.handle_port(port_of(attributes));
        if reregister {
            self.client.handle_reregister();
        }
    }
    /// Asks for a path. Returns the ticket by which the question is withdrawn.
    ///
    /// # Errors
    /// The refusal to be told.
    pub(crate) fn ask_path(
        &mut self,
        asker: Key,
        query: &PathQuery,
        now: Time,
    ) -> Result<u64, Refusal> {
        let ticket = self.last_ticket + 1;
        // Nothing here hears of ports that have moved, so each question is asked.
        let asked = self.client.query_path(now, Ticket(ticket), query, false);
        asked.map_err(|error| no_path(query, error, &self.fabric))?;
        self.last_ticket = ticket;
        self.paths.insert(ticket, (asker, *query));
        Ok(ticket)
    }
    /// Forgets who waits for a path.
    pub(crate) fn withdraw(&mut self, ticket: u64) {
        self.paths.remove(&ticket);
    }
    /// Asks for a membership.
    ///
    /// # Errors
    /// The refusal to be told.
    pub(crate) fn join(
        &mut self,
        asker: Key,
        record: &McMemberRecord,
        components: MemberComponents,
        attributes: &PortAttributes,
    ) -> Result<(), Refusal> {
        let port = port_of(attributes);
        let asked = if port.is_active && port.sm_lid != Lid::RESERVED {
            self.client.join(SaUser(asker.bits()), *record, components)
        } else {
            // The client would wait until there is somebody to ask.
            Err(SaError::NoManager)
        };
        asked.map_err(|error| no_member(record.mgid, error, &self.fabric))
    }
    /// Ends a membership.
    pub(crate) fn leave(&mut self, asker: Key, mgid: Gid, how: JoinState) {
        self.client.leave(SaUser(asker.bits()), mgid, how);
    }
    /// Lets a connection have notices.
    ///
    /// # Errors
    /// The refusal to be told: another program has registered for reports, for one.
    pub(crate) fn hear_notices(&mut self, agents: &mut Agents, asker: Key) -> Result<(), Refusal> {
        if self.reports.is_none() {
            let agent = agents.register(&registration(1 << Method::REPORT.0));
            self.reports = Some(agent.map_err(|error| {
                let text = format!("the port does not take reports of notices: {error}");
                Refusal::new(RefusalKind::Taken, text)
            })?);
        }
        self.listeners.insert(asker);
        for number in NOTICES {
            if let Err(error) = self.client.subscribe(SaUser(asker.bits()), number) {
                self.end_notices(agents, asker);
                return Err(no_notices(number, error, &self.fabric));
            }
        }
        Ok(())
    }
    /// Gives a connection no notices any more. Returns whether it had them.
    pub(crate) fn end_notices(&mut self, agents: &mut Agents, asker: Key) -> bool {
        if !self.listeners.remove(&asker) {
            return false;
        }
        for number in NOTICES {
            self.client.unsubscribe(SaUser(asker.bits()), number);
        }
        if self.listeners.is_empty()
            && let Some(agent) = self.reports.take()
        {
            agents.unregister(agent);
        }
        true
    }
    /// Takes what the agent has got, gives it what is to be sent, and yields answers for
    /// connections. Returns whether there is something to be sent.
    pub(crate) fn serve(
        &mut self,
        agents: &mut Agents,
        now: Time,
        mut tell: impl FnMut(Key, Result<Answer, Refusal>),
    ) -> bool {
        while let Some(delivery) = agents.poll_deliver(self.agent) {
            self.client.handle_outcome(now, delivery.outcome, &delivery.mad);
        }
        while let Some(delivery) = self.reports.and_then(|agent| agents.poll_deliver(agent)) {
            if delivery.address.lid == self.client.manager() {
                self.client.handle_report(delivery.address, &delivery.mad);
            }
        }
        self.client.handle_timeout(now);
        let mut has_sent = false;
        while let Some(out) = self.client.poll_send() {
            let sent = agents.send(self.agent, out.address, &out.mad, out.timeout_ms, out.retries);
            match sent {
                Ok(()) => has_sent = true,
                // As if nobody had answered.
                Err(_) => self.client.handle_outcome(now, Outcome::TimedOut, &out.mad),
            }
        }
        while let Some(event) = self.client.poll_event() {
            match event {
                SaEvent::Path { ticket, answer } => {
                    let Some((asker, query)) = self.paths.remove(&ticket.0) else { continue };
                    let answer = answer.map(Answer::Path);
                    tell(asker, answer.map_err(|error| no_path(&query, error, &self.fabric)));
                }
                SaEvent::Joined { user, record } => {
                    tell(Key::from_bits(user.0), Ok(Answer::Group(record)));
                }
                SaEvent::NotJoined { user, mgid, error, .. } => {
                    tell(Key::from_bits(user.0), Err(no_member(mgid, error, &self.fabric)));
                }
                SaEvent::Notice { user, notice } => {
                    tell(Key::from_bits(user.0), Ok(Answer::Notice(notice)));
                }
                SaEvent::Subscription { user, number, answer: Err(error) } => {
                    let asker = Key::from_bits(user.0);
                    if self.end_notices(agents, asker) {
                        tell(asker, Err(no_notices(number, error, &self.fabric)));
                    }
                }
                SaEvent::Subscription { answer: Ok(()), .. } => {}
                // Nobody here asks for them.
                SaEvent::Table { .. } | SaEvent::Service { .. } => {}
            }
        }
        has_sent
    }
}

fn port_of(attributes: &PortAttributes) -> SaPort {
    SaPort {
        is_active: attributes.state == PortState::Active,
        sm_lid: attributes.sm_lid,
        sm_sl: attributes.sm_service_level,
    }
}

fn no_path(query: &PathQuery, error: SaError, fabric: &str) -> Refusal {
    let PathQuery { dgid, pkey, .. } = query;
    let hint = match error {
        SaError::Refused(SaStatus::NO_RECORDS) => {
            ". Usually one of the two ports is not in the partition, or both are limited members, or \
             no port has the GID; `vernic fabric up --partition` makes partitions"
                .to_owned()
        }
        _ => hint(error, fabric),
    };
    let text = format!("there is no path to {dgid} in partition {pkey}: {error}{hint}");
    Refusal::new(kind_of(error), text)
}

fn no_member(mgid: Gid, error: SaError, fabric: &str) -> Refusal {
    let hint = hint(error, fabric);
    Refusal::new(kind_of(error), format!("the port is no member of group {mgid}: {error}{hint}"))
}

/// Returns what to do when there is nobody to ask.
fn hint(error: SaError, fabric: &str) -> String {
    match error {
        SaError::NoManager | SaError::Unanswered(_) | SaError::NoAdministration(_) => format!(
            "; start one at a host of the fabric (`vernic run --fabric {fabric} --host HOST -- \
             opensm`), or start the fabric with `vernic fabric up --sm`"
        ),
        _ => String::new(),
    }
}

fn no_notices(number: TrapNumber, error: SaError, fabric: &str) -> Refusal {
    let hint = hint(error, fabric);
    Refusal::new(kind_of(error), format!("notices {} do not come: {error}{hint}", number.0))
}

const fn kind_of(error: SaError) -> RefusalKind {
    match error {
        SaError::NoManager => RefusalKind::Down,
        SaError::Unanswered(_) | SaError::NoAdministration(_) => RefusalKind::Unanswered,
        SaError::Refused(_) | SaError::NotUnderstood(_) => RefusalKind::Unreachable,
        SaError::Malformed => RefusalKind::Other,
        SaError::TooMany(_) => RefusalKind::TooMany,
    }
}

//! Management agents of a port: who sends which datagram, who gets which, and transfers of more
//! than one datagram (IBTA 13.4, 13.6).
//!
//! Owns the agents that programs register on the two management queue pairs of a port, the
//! datagrams that wait for an answer, and the segments of longer messages (RMPP). Called with
//! datagrams, commands of programs, and time; it answers with datagrams ([`Agents::poll_transmit`])
//! and deliveries ([`Agents::poll_deliver`]), to be fetched after each call. What a datagram says
//! is not its business.
//!
//! # Who gets a datagram
//!
//! | datagram | agent |
//! |---|---|
//! | an answer: response bit, TrapRepress | the one that has asked: high half of the transaction id |
//! | a request, also of vendors' classes | the one registered for class, version, method and OUI |
//! | Get or Set that no agent takes | none; answered: attribute not supported (IBTA 13.4.7) |
//! | anything else | none, counted |
//!
//! The high half of the transaction id of a request that an agent sends is replaced by the agent's
//! id, so that agents need not agree on ids. The agent sees that in the answer. An answer reaches
//! its agent only while the request waits for it.
//!
//! # Repeats
//!
//! A datagram with a timeout is sent again when no answer came, as often as its agent said; then
//! the agent gets it back ([`Outcome::TimedOut`]). One without is forgotten once it is sent.
//!
//! # Transfers
//!
//! The classes 0x03, 0x10, 0x12 and 0x30 to 0x4F have an RMPP header. If the agent wants it so,
//! and the header of what it sends is active, the message leaves in segments; see `segments`,
//! `receives`. A request in segments that is answered in segments (double-sided) has its answer
//! after the segment ACK 0 that turns the direction (IBTA 13.6.6.3).
//!
//! # Limits
//!
//! All tables are bounded by [`AgentsConfig`]; what finds no room is refused with an error, or
//! counted. Nothing here protects against a forged answer: management datagrams have no
//! authentication but the keys of their classes.

mod class;
mod counters;
mod params;
mod receives;
mod registry;
mod segments;
mod sends;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{MadStatus, Smp};
use vernic_wire::{Qkey, Qpn, Rmpp, RmppStatus, RmppType};

pub use class::{has_oui, oui_of};
pub use counters::{MadCounters, MadDrop};
pub use params::{
    AgentId, AgentsConfig, Delivery, MadTransmit, Outcome, RegisterError, Registration, SendError,
};
pub use vernic_wire::mad::{MadAddress, MadGrh};

use crate::time::Time;
use receives::{Receives, TransferKey, control};
use registry::Registry;
use sends::{Control, Sends};

/// Answers that may wait to be sent: ACKs, ABORTs, refusals. Their askers repeat.
const MAX_ANSWERS: usize = 1024;

/// Timers that one call serves at most, so that the owner can send in between.
const TIMEOUTS_PER_CALL: usize = 256;

/// Q_Key of queue pair 1 (IBTA 3.9.5.3).
const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// Agents of a port. See the head of the module.
#[derive(Debug)]
pub struct Agents {
    config: AgentsConfig,
    registry: Registry,
    sends: Sends,
    receives: Receives,
    answers: VecDeque<MadTransmit>,
    /// Deliveries that agents have not fetched; no queue is empty.
    inboxes: BTreeMap<AgentId, VecDeque<Delivery>>,
    inbox_bytes: usize,
    counters: MadCounters,
}

impl Agents {
    /// Returns a port without agents.
    pub fn new(config: AgentsConfig) -> Self {
        Self {
            config,
            registry: Registry::new(config.id_base, config.id_bits),
            sends: Sends::new(&config),
            receives: Receives::new(&config),
            answers: VecDeque::new(),
            inboxes: BTreeMap::new(),
            inbox_bytes: 0,
            counters: MadCounters::default(),
        }
    }

    /// Whether there is an agent.
    pub fn has_agents(&self) -> bool {
        self.registry.len() != 0
    }

    /// Adds an agent.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn register(&mut self, registration: &Registration) -> Result<AgentId, RegisterError> {
        if self.registry.len() >= self.config.max_agents {
            return Err(RegisterError::TooMany(self.config.max_agents));
        }
        self.registry.add(registration)
    }

    /// Removes an agent, with all that it has sent and not fetched. Returns whether there was one.
    pub fn unregister(&mut self, agent: AgentId) -> bool {
        self.sends.remove_agent(agent);
        self.receives.remove_agent(agent);
        if let Some(inbox) = self.inboxes.remove(&agent) {
            self.inbox_bytes -= inbox.iter().map(|one| one.mad.len()).sum::<usize>();
        }
        self.registry.remove(agent)
    }

    /// Returns what an agent registered for.
    pub fn registration(&self, agent: AgentId) -> Option<&Registration> {
        self.registry.get(agent)
    }

    /// Sends a datagram, or with RMPP a message: all headers of its class, then its data. A timeout
    /// of 0 says that no answer is expected. `retries` are sent after the first.
    ///
    /// # Errors
    /// Why not; nothing was sent then.
    pub fn send(
        &mut self,
        agent: AgentId,
        address: MadAddress,
        message: &[u8],
        timeout_ms: u32,
        retries: u32,
    ) -> Result<(), SendError> {
        let registration = self.registry.get(agent).ok_or(SendError::NoAgent(agent))?;
        self.sends.add(agent, registration, address, message, timeout_ms, retries)
    }

    /// Takes a datagram that came to `qpn`, which is 0 or 1, from `source`.
    ///
    /// # Errors
    /// Why it reached no agent; counted here. Segments that do not complete their message are no
    /// error.
    pub fn handle_mad(
        &mut self,
        now: Time,
        qpn: Qpn,
        source: MadAddress,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), MadDrop> {
        self.counters.received += 1;
        let taken = self.take(now, qpn, source, mad);
        if let Err(drop) = taken {
            self.counters.dropped[drop as usize] += 1;
        }
        taken
    }

    fn take(
        &mut self,
        now: Time,
        qpn: Qpn,
        source: MadAddress,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), MadDrop> {
        let header = MadHeader::from_bytes(&core::array::from_fn(|at| mad[at]));
        if header.base_version != MadHeader::BASE_VERSION {
            return Err(MadDrop::BadVersion);
        }
        if qpn != class::queue_pair(header.mgmt_class) {
            return Err(MadDrop::WrongQueuePair);
        }
        let Some((agent, registration)) = self.registry.find(qpn, &header, mad) else {
            if class::is_response(&header) {
                return Err(MadDrop::Unasked);
            }
            self.refuse(qpn, source, header, mad);
            return Err(MadDrop::NoAgent);
        };
        match class::active_rmpp(header.mgmt_class, mad).filter(|_| registration.rmpp) {
            Some(rmpp) => self.take_rmpp(now, agent, source, &header, &rmpp, mad),
            None => self.deliver_received(agent, source, &header, mad.to_vec()),
        }
    }

    /// Answers a Get or Set that nobody here understands, so that the asker need not wait.
    fn refuse(&mut self, qpn: Qpn, source: MadAddress, asked: MadHeader, mad: &[u8; MAD_LEN]) {
        if !matches!(asked.method, Method::GET | Method::SET) {
            return;
        }
        let directed = asked.mgmt_class == MgmtClass::SUBNET_DIRECTED_ROUTE;
        let returns = if directed { Smp::RETURNS } else { 0 };
        let status = MadStatus::ATTRIBUTE_NOT_SUPPORTED.0 | returns;
        let mut answer = *mad;
        MadHeader { method: Method::GET_RESP, status, ..asked }.emit(&mut answer);
        self.counters.refused += 1;
        self.answer(qpn, source, answer);
    }

    fn answer(&mut self, qpn: Qpn, to: MadAddress, mad: [u8; MAD_LEN]) {
        if self.answers.len() >= MAX_ANSWERS {
            self.counters.answers_withheld += 1;
            return;
        }
        let qkey = if qpn == Qpn::GSI { GSI_QKEY } else { Qkey(0) };
        self.answers.push_back(MadTransmit { qpn, address: MadAddress { qkey, ..to }, mad });
    }

    fn take_rmpp(
        &mut self,
        now: Time,
        agent: AgentId,
        source: MadAddress,
        header: &MadHeader,
        rmpp: &Rmpp,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), MadDrop> {
        let key = TransferKey::new(agent, &source, header);
        let wrong = match rmpp.kind {
            _ if rmpp.version != Rmpp::VERSION => Some(RmppStatus::UNSUPPORTED_VERSION),
            RmppType::DATA | RmppType::ACK | RmppType::STOP | RmppType::ABORT => None,
            _ => Some(RmppStatus::BAD_TYPE),
        };
        if let Some(status) = wrong {
            let abort = control(mad, &Rmpp::end(RmppType::ABORT, status));
            self.answer(Qpn::GSI, source, abort);
            return Err(MadDrop::BadRmpp);
        }
        if rmpp.kind == RmppType::DATA {
            return self.take_segment(now, key, source, header, rmpp, mad);
        }
        match self.sends.handle_control(now, agent, &source, header, rmpp) {
            Control::Taken => Ok(()),
            Control::Turn => {
                self.answer(Qpn::GSI, source, control(mad, &Rmpp::ack(0, 1)));
                Ok(())
            }
            Control::Nothing if rmpp.kind == RmppType::ACK => Err(MadDrop::Duplicate),
            Control::Nothing if self.receives.handle_end(&key) => Ok(()),
            Control::Nothing => Err(MadDrop::NoTransfer),
            Control::Wrong(status, delivery) => {
                self.answer(Qpn::GSI, source, control(mad, &Rmpp::end(RmppType::ABORT, status)));
                self.counters.aborted += 1;
                delivery.map_or(Ok(()), |delivery| self.deliver(delivery))?;
                Err(MadDrop::BadRmpp)
            }
            Control::Ended(delivery) => {
                self.counters.aborted += 1;
                self.deliver(delivery)
            }
        }
    }

    fn take_segment(
        &mut self,
        now: Time,
        key: TransferKey,
        source: MadAddress,
        header: &MadHeader,
        rmpp: &Rmpp,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), MadDrop> {
        // An answer that comes in segments may take longer than its first one may.
        let is_response = class::is_response(header);
        let waits = is_response && self.sends.handle_progress(now, key.agent(), header);
        if is_response && !waits && !self.receives.knows(&key) {
            return Err(MadDrop::Unasked);
        }
        let step = self.receives.handle_data(now, key, &source, rmpp, mad);
        if let Some(rmpp) = step.answer {
            self.answer(Qpn::GSI, source, control(mad, &rmpp));
        }
        if let Some(drop) = step.drop {
            return Err(drop);
        }
        match step.message {
            Some(message) => self.deliver_received(key.agent(), source, header, message),
            None => Ok(()),
        }
    }

    /// Delivers what came, if the agent has asked for it or takes requests.
    fn deliver_received(
        &mut self,
        agent: AgentId,
        source: MadAddress,
        header: &MadHeader,
        mad: Vec<u8>,
    ) -> Result<(), MadDrop> {
        if class::is_response(header) && !self.sends.handle_answer(agent, header) {
            // An agent that makes its own transfers gets their segments: the request is done by
            // the first of them.
            let is_segment = class::active_rmpp(header.mgmt_class, &mad).is_some();
            let is_own = self.registry.get(agent).is_some_and(|agent| !agent.rmpp);
            if !(is_segment && is_own) {
                return Err(MadDrop::Unasked);
            }
        }
        let outcome = Outcome::Received;
        self.deliver(Delivery { agent, outcome, address: source, mad })
    }

    fn deliver(&mut self, delivery: Delivery) -> Result<(), MadDrop> {
        let waiting = self.inboxes.get(&delivery.agent).map_or(0, VecDeque::len);
        let bytes = self.inbox_bytes + delivery.mad.len();
        if waiting >= self.config.max_deliveries || bytes > self.config.max_bytes {
            return Err(MadDrop::QueueFull);
        }
        self.inbox_bytes = bytes;
        self.counters.delivered += 1;
        self.inboxes.entry(delivery.agent).or_default().push_back(delivery);
        Ok(())
    }

    /// Returns the next datagram to be sent. Timeouts begin when it is fetched.
    pub fn poll_transmit(&mut self, now: Time) -> Option<MadTransmit> {
        let next = self.answers.pop_front().or_else(|| self.sends.poll(now));
        self.counters.sent += u64::from(next.is_some());
        next
    }

    /// Yields the agents that have something to fetch.
    pub fn ready(&self) -> impl Iterator<Item = AgentId> + '_ {
        self.inboxes.keys().copied()
    }

    /// Returns the next datagram for an agent.
    pub fn poll_deliver(&mut self, agent: AgentId) -> Option<Delivery> {
        let inbox = self.inboxes.get_mut(&agent)?;
        let delivery = inbox.pop_front();
        if inbox.is_empty() {
            self.inboxes.remove(&agent);
        }
        self.inbox_bytes -= delivery.as_ref().map_or(0, |delivery| delivery.mad.len());
        delivery
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        self.sends.next_deadline().into_iter().chain(self.receives.next_deadline()).min()
    }

    /// Does what is due. Serves 256 timers at most: [`next_deadline`](Self::next_deadline) is still
    /// in the past then, and the owner calls again after it has fetched what there is.
    pub fn handle_timeout(&mut self, now: Time) {
        for _ in 0..TIMEOUTS_PER_CALL {
            match self.sends.take_due(now) {
                Some(None) => self.counters.retries += 1,
                Some(Some(delivery)) => {
                    self.counters.timed_out += 1;
                    if let Err(drop) = self.deliver(delivery) {
                        self.counters.dropped[drop as usize] += 1;
                    }
                }
                None => break,
            }
        }
        for _ in 0..TIMEOUTS_PER_CALL {
            let Some(stalled) = self.receives.take_due(now) else { break };
            self.counters.stalled += 1;
            let abort = Rmpp::end(RmppType::ABORT, RmppStatus::TOTAL_TIME_TOO_LONG);
            if self.registry.get(stalled.agent).is_some() {
                self.answer(Qpn::GSI, stalled.source, control(&stalled.first, &abort));
            }
        }
    }

    /// Returns what has been counted.
    pub fn counters(&self) -> &MadCounters {
        &self.counters
    }
}

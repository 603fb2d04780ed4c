//! Datagrams of agents that are to be sent, to be answered, or to be acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use vernic_wire::mad::{MAD_LEN, MadHeader, MgmtClass};
use vernic_wire::{Qpn, Rmpp, RmppStatus, RmppType};

use super::MadAddress;
use super::class;
use super::params::{
    AgentId, AgentsConfig, Delivery, MadTransmit, Outcome, Registration, SendError,
};
use super::segments::{Acked, Segments};
use crate::time::Time;

const MS: u64 = 1_000_000;
/// The longest that is waited for an ACK: the other end answers a segment at once, while a
/// request may take its responder a long time.
const ACK_WAIT: u64 = 2_000 * MS;

/// Names a datagram. Ids are counted up, so the order of ids is the order of the sends.
type SendId = u64;

/// Where a datagram stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// In the queue of those that something is to be sent of, at this place.
    Ready(u64),
    /// Until then.
    Waiting(Time),
}

#[derive(Debug)]
struct Sending {
    agent: AgentId,
    qpn: Qpn,
    address: MadAddress,
    header: MadHeader,
    message: Vec<u8>,
    /// Nanoseconds that each answer may take; 0 if there is none.
    wait: u64,
    max_retries: u32,
    retries: u32,
    segments: Option<Segments>,
    stage: Stage,
}

impl Sending {
    fn is_response(&self) -> bool {
        class::is_response(&self.header)
    }

    /// How long to wait now for what is to come.
    fn patience(&self) -> u64 {
        match &self.segments {
            Some(segments) if !segments.is_acked() => match self.wait {
                0 => ACK_WAIT,
                wait => wait.min(ACK_WAIT),
            },
            _ => self.wait,
        }
    }

    fn into_delivery(self, outcome: Outcome) -> Delivery {
        let mut mad = self.message;
        mad.truncate(MadHeader::LEN);
        Delivery { agent: self.agent, outcome, address: self.address, mad }
    }
}

/// What a control datagram of a transfer did.
#[derive(Debug)]
pub(super) enum Control {
    /// There is no such transfer, or nothing was new.
    Nothing,
    /// The transfer goes on.
    Taken,
    /// All segments of a request have arrived, and its answer may begin: the other end is told so
    /// (IBTA 13.6.6.3).
    Turn,
    /// A mistake of the other end. The transfer is over; the other end is told why.
    Wrong(RmppStatus, Option<Delivery>),
    /// An end by the other end, which gave up.
    Ended(Delivery),
}

/// Table of what is to be sent.
#[derive(Debug)]
pub(super) struct Sends {
    by_id: BTreeMap<SendId, Sending>,
    /// By agent, transaction id, and whether it is an answer.
    by_tid: BTreeSet<(AgentId, u64, bool, SendId)>,
    ready: BTreeMap<u64, SendId>,
    timers: BTreeSet<(Time, SendId)>,
    next_id: SendId,
    next_turn: u64,
    bytes: usize,
    max_sends: usize,
    max_bytes: usize,
}

impl Sends {
    pub(super) fn new(config: &AgentsConfig) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_tid: BTreeSet::new(),
            ready: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_id: 0,
            next_turn: 0,
            bytes: 0,
            max_sends: config.max_sends,
            max_bytes: config.max_bytes,
        }
    }

    /// Takes a datagram or a message of an agent. The high half of a request's transaction id
    /// becomes the agent's id, which the answer brings back.
    pub(super) fn add(
        &mut self,
        agent: AgentId,
        registration: &Registration,
        address: MadAddress,
        message: &[u8],
        timeout_ms: u32,
        retries: u32,
    ) -> Result<(), SendError> {
        let qpn = registration.qpn;
        let too_short = |class, need| SendError::TooShort { class, need, have: message.len() };
        let mut header =
            MadHeader::parse(message).map_err(|_| too_short(MgmtClass(0), MadHeader::LEN))?;
        let class = header.mgmt_class;
        if qpn != class::queue_pair(class) {
            return Err(SendError::WrongQueuePair { class, qpn });
        }
        // Programs set the flag alone: version, type and lengths are this sender's to write.
        let is_transfer = registration.rmpp && class::active_rmpp(class, message).is_some();
        let segments = match is_transfer {
            true => {
                let need = class::header_len(class);
                if message.len() < need {
                    return Err(too_short(class, need));
                }
                Some(Segments::new(need, message.len()))
            }
            false if message.len() > MAD_LEN => {
                return Err(SendError::TooLong { have: message.len() });
            }
            false => None,
        };
        if self.by_id.len() >= self.max_sends || self.bytes + message.len() > self.max_bytes {
            return Err(SendError::TooMany { sends: self.by_id.len(), bytes: self.bytes });
        }
        let is_response = class::is_response(&header);
        if !is_response {
            header.transaction_id =
                u64::from(agent.0) << 32 | header.transaction_id & u64::from(u32::MAX);
        }
        let tid = header.transaction_id;
        let is_there = self.find(agent, tid, class, is_response).any(|id| {
            !is_response || self.by_id.get(&id).is_some_and(|old| is_same_port(old, &address))
        });
        if is_there {
            return Err(SendError::Duplicate { class, tid });
        }
        let mut message = message.to_vec();
        header.emit(&mut message);
        let id = self.next_id;
        self.next_id += 1;
        self.bytes += message.len();
        self.by_tid.insert((agent, tid, is_response, id));
        let stage = Stage::Ready(self.take_turn(id));
        let wait = u64::from(timeout_ms) * MS;
        let (max_retries, sent) = (retries, 0);
        self.by_id.insert(
            id,
            Sending {
                agent,
                qpn,
                address,
                header,
                message,
                wait,
                max_retries,
                retries: sent,
                segments,
                stage,
            },
        );
        Ok(())
    }

    fn find(
        &self,
        agent: AgentId,
        tid: u64,
        class: MgmtClass,
        is_response: bool,
    ) -> impl Iterator<Item = SendId> + '_ {
        let key = |id| (agent, tid, is_response, id);
        self.by_tid.range(key(0)..=key(SendId::MAX)).map(|(.., id)| *id).filter(move |id| {
            self.by_id.get(id).is_some_and(|sending| sending.header.mgmt_class == class)
        })
    }

    fn take_turn(&mut self, id: SendId) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.ready.insert(turn, id);
        turn
    }

    /// Moves a datagram to another stage: out of the queue or the timers that it was in.
    fn set_stage(&mut self, id: SendId, deadline: Option<Time>) {
        let Some(old) = self.by_id.get(&id).map(|sending| sending.stage) else { return };
        let stage = match (deadline, old) {
            (None, Stage::Ready(_)) => return,
            (None, Stage::Waiting(_)) => Stage::Ready(self.take_turn(id)),
            (Some(deadline), _) => Stage::Waiting(deadline),
        };
        self.leave(id, old);
        if let Stage::Waiting(deadline) = stage {
            self.timers.insert((deadline, id));
        }
        if let Some(sending) = self.by_id.get_mut(&id) {
            sending.stage = stage;
        }
    }

    fn leave(&mut self, id: SendId, stage: Stage) {
        match stage {
            Stage::Ready(turn) => drop(self.ready.remove(&turn)),
            Stage::Waiting(deadline) => drop(self.timers.remove(&(deadline, id))),
        }
    }

    fn remove(&mut self, id: SendId) -> Option<Sending> {
        let sending = self.by_id.remove(&id)?;
        self.leave(id, sending.stage);
        let tid = sending.header.transaction_id;
        self.by_tid.remove(&(sending.agent, tid, sending.is_response(), id));
        self.bytes -= sending.message.len();
        Some(sending)
    }

    /// Forgets everything of an agent.
    pub(super) fn remove_agent(&mut self, agent: AgentId) {
        let of_agent = (agent, 0, false, 0)..=(agent, u64::MAX, true, SendId::MAX);
        let ids: Vec<_> = self.by_tid.range(of_agent).map(|(.., id)| *id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// Returns the next datagram to be sent.
    pub(super) fn poll(&mut self, now: Time) -> Option<MadTransmit> {
        let (_, id) = self.ready.pop_first()?;
        let sending = self.by_id.get_mut(&id)?;
        let (qpn, address) = (sending.qpn, sending.address);
        let mad = match &mut sending.segments {
            Some(segments) => segments.next(&sending.message),
            None => {
                let mut mad = [0; MAD_LEN];
                mad[..sending.message.len()].copy_from_slice(&sending.message);
                mad
            }
        };
        let patience = sending.patience();
        if sending.segments.is_some_and(|segments| segments.may_send()) {
            // Others take their turn before its next segment.
            sending.stage = Stage::Ready(self.next_turn);
            self.take_turn(id);
        } else if patience == 0 {
            self.remove(id);
        } else {
            sending.stage = Stage::Waiting(now + patience);
            self.timers.insert((now + patience, id));
        }
        Some(MadTransmit { qpn, address, mad })
    }

    /// Ends the request that an answer is of. Returns whether there was one.
    pub(super) fn handle_answer(&mut self, agent: AgentId, header: &MadHeader) -> bool {
        let found = self.find(agent, header.transaction_id, header.mgmt_class, false).next();
        found.and_then(|id| self.remove(id)).is_some()
    }

    /// Puts off the end of a request whose answer has begun to come. Returns whether there is one.
    pub(super) fn handle_progress(
        &mut self,
        now: Time,
        agent: AgentId,
        header: &MadHeader,
    ) -> bool {
        let found = self.find(agent, header.transaction_id, header.mgmt_class, false).next();
        let Some(id) = found else { return false };
        let Some(sending) = self.by_id.get_mut(&id) else { return false };
        sending.retries = 0;
        if let Stage::Waiting(_) = sending.stage {
            let deadline = now + sending.wait;
            self.set_stage(id, Some(deadline));
        }
        true
    }

    /// Takes an ACK, a STOP or an ABORT of a transfer of ours, whose method has the response bit
    /// the other way round.
    pub(super) fn handle_control(
        &mut self,
        now: Time,
        agent: AgentId,
        source: &MadAddress,
        header: &MadHeader,
        rmpp: &Rmpp,
    ) -> Control {
        let is_response = !class::is_response(header);
        let matches =
            |sending: &Sending| sending.segments.is_some() && is_same_port(sending, source);
        let found = self
            .find(agent, header.transaction_id, header.mgmt_class, is_response)
            .find(|id| self.by_id.get(id).is_some_and(matches));
        let Some(id) = found else { return Control::Nothing };
        if rmpp.kind != RmppType::ACK {
            let ended = self.remove(id);
            return ended.map_or(Control::Nothing, |sending| {
                Control::Ended(sending.into_delivery(Outcome::Aborted(rmpp.status)))
            });
        }
        let status = match rmpp.status {
            RmppStatus::NORMAL => self.handle_ack(now, id, rmpp),
            _ => Err(RmppStatus::ILLEGAL_STATUS),
        };
        status.unwrap_or_else(|status| {
            let delivery = self.remove(id).map(|s| s.into_delivery(Outcome::Aborted(status)));
            Control::Wrong(status, delivery)
        })
    }

    fn handle_ack(&mut self, now: Time, id: SendId, rmpp: &Rmpp) -> Result<Control, RmppStatus> {
        let Some(sending) = self.by_id.get_mut(&id) else { return Ok(Control::Nothing) };
        let Some(segments) = &mut sending.segments else { return Ok(Control::Nothing) };
        let acked = segments.handle_ack(rmpp.data1, rmpp.data2)?;
        match acked {
            Acked::Old => return Ok(Control::Nothing),
            Acked::More => sending.retries = 0,
            Acked::All if sending.wait == 0 => {
                self.remove(id);
                return Ok(Control::Taken);
            }
            Acked::All => sending.retries = 0,
        }
        let may_send = segments.may_send();
        let deadline = now + sending.patience();
        self.set_stage(id, (!may_send).then_some(deadline));
        Ok(if acked == Acked::All { Control::Turn } else { Control::Taken })
    }

    /// Returns when something is due.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// Does what is due, one datagram at a time: `None` if nothing is; else whether it is sent
    /// again, or what its agent gets.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Option<Delivery>> {
        let (deadline, id) = *self.timers.first()?;
        if deadline > now {
            return None;
        }
        let sending = self.by_id.get_mut(&id)?;
        if sending.retries < sending.max_retries {
            sending.retries += 1;
            let waits = match &mut sending.segments {
                // Everything has arrived, so there is nothing to repeat.
                Some(segments) if segments.is_acked() => Some(now + sending.wait),
                Some(segments) => {
                    segments.rewind();
                    None
                }
                None => None,
            };
            self.set_stage(id, waits);
            return Some(None);
        }
        let sending = self.remove(id)?;
        Some(Some(sending.into_delivery(Outcome::TimedOut)))
    }
}

/// Whether a datagram goes to the port that another one came from, or goes to.
fn is_same_port(sending: &Sending, other: &MadAddress) -> bool {
    match (&sending.address.grh, &other.grh) {
        (Some(one), Some(other)) => one.gid == other.gid,
        (None, None) => sending.address.lid == other.lid,
        _ => false,
    }
}

//! Messages that come in segments, as their receiver sees them (IBTA 13.6.6).
//!
//! The first segment begins a transfer. Segments may come in any order within the window, and each
//! more than once. The receiver acknowledges the first, the one that fills the window, the last,
//! and all that it has had before: their ACK was lost. What is complete is remembered for a while,
//! for the same reason.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::{Gid, Lid, Qpn, Rmpp, RmppFlags, RmppStatus, RmppType};

use super::MadAddress;
use super::class;
use super::counters::MadDrop;
use super::params::{AgentId, AgentsConfig};
use crate::time::Time;

const S: u64 = 1_000_000_000;
/// Segments that the sender may be ahead of the last ACK: enough for the bytes that are on their
/// way in a subnet, and few enough to be kept out of their order.
const WINDOW: u32 = 64;
/// A transfer of which nothing comes for so long is given up: the sender's timeouts and repeats
/// are over by then.
const STALLED: u64 = 40 * S;
/// How long a complete transfer is remembered: the last ACK may be lost as often as senders repeat
/// within that time.
const REMEMBERED: u64 = 10 * S;

/// Names a transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct TransferKey {
    agent: AgentId,
    tid: u64,
    class: u8,
    version: u8,
    method: u8,
    lid: Lid,
    qpn: Qpn,
    gid: Option<Gid>,
}

impl TransferKey {
    pub(super) fn new(agent: AgentId, source: &MadAddress, header: &MadHeader) -> Self {
        Self {
            agent,
            tid: header.transaction_id,
            class: header.mgmt_class.0,
            version: header.class_version,
            method: header.method.0,
            lid: source.lid,
            qpn: source.qpn,
            gid: source.grh.map(|grh| grh.gid),
        }
    }

    /// Returns the agent that the message is for.
    pub(super) fn agent(&self) -> AgentId {
        self.agent
    }
}

/// What a segment leads to.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Header of what is sent back.
    pub(super) answer: Option<Rmpp>,
    /// The whole message, which is complete by this segment.
    pub(super) message: Option<Vec<u8>>,
    /// Why the segment was of no use.
    pub(super) drop: Option<MadDrop>,
}

impl Step {
    fn drop(drop: MadDrop) -> Self {
        Self { drop: Some(drop), ..Self::default() }
    }
    fn end(kind: RmppType, status: RmppStatus, drop: MadDrop) -> Self {
        Self { answer: Some(Rmpp::end(kind, status)), message: None, drop: Some(drop) }
    }
    fn abort(status: RmppStatus) -> Self {
        Self::end(RmppType::ABORT, status, MadDrop::BadRmpp)
    }
}

#[derive(Debug)]
struct Transfer {
    header_len: usize,
    /// The first segment, and the data of those that followed it without a gap.
    message: Vec<u8>,
    /// Last of these.
    got: u32,
    /// Segments behind a gap.
    ahead: BTreeMap<u32, [u8; MAD_LEN]>,
    /// Last segment that may be sent.
    window: u32,
    source: MadAddress,
    deadline: Time,
}

/// Table of transfers.
#[derive(Debug)]
pub(super) struct Receives {
    transfers: BTreeMap<TransferKey, Transfer>,
    /// Transfers that are complete: their last segment, and until when they are remembered.
    done: BTreeMap<TransferKey, u32>,
    forget: VecDeque<(Time, TransferKey)>,
    timers: BTreeSet<(Time, TransferKey)>,
    bytes: usize,
    max_transfers: usize,
    max_bytes: usize,
}

/// Transfer that stopped in the middle.
#[derive(Debug)]
pub(super) struct Stalled {
    /// Agent that it was for.
    pub(super) agent: AgentId,
    /// Source.
    pub(super) source: MadAddress,
    /// First segment.
    pub(super) first: [u8; MAD_LEN],
}

impl Receives {
    pub(super) fn new(config: &AgentsConfig) -> Self {
        Self {
            transfers: BTreeMap::new(),
            done: BTreeMap::new(),
            forget: VecDeque::new(),
            timers: BTreeSet::new(),
            bytes: 0,
            max_transfers: config.max_receives,
            max_bytes: config.max_bytes,
        }
    }

    /// Returns whether a transfer has begun, or was complete not long ago.
    pub(super) fn knows(&self, key: &TransferKey) -> bool {
        self.transfers.contains_key(key) || self.done.contains_key(key)
    }

    /// Takes a segment.
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        key: TransferKey,
        source: &MadAddress,
        rmpp: &Rmpp,
        mad: &[u8; MAD_LEN],
    ) -> Step {
        let number = rmpp.data1;
        if rmpp.status != RmppStatus::NORMAL {
            return self.abort(&key, RmppStatus::ILLEGAL_STATUS);
        }
        if number == 0 || rmpp.flags.contains(RmppFlags::FIRST) != (number == 1) {
            return self.abort(&key, RmppStatus::INCONSISTENT_FIRST);
        }
        let class = MgmtClass(key.class);
        let header_len = class::header_len(class);
        if rmpp.flags.contains(RmppFlags::LAST) {
            // The length counts the class's own header of this segment.
            let own = header_len - (MAD_LEN - Rmpp::SEGMENT_LEN);
            let most = if number == 1 { Rmpp::SEGMENT_LEN } else { usize::MAX };
            let len = rmpp.data2 as usize;
            if !(own..=Rmpp::SEGMENT_LEN.min(most)).contains(&len) {
                return self.abort(&key, RmppStatus::INCONSISTENT_LAST);
            }
        }
        if let Some(&last) = self.done.get(&key) {
            let answer = Some(Rmpp::ack(last, last.saturating_add(WINDOW)));
            return Step { answer, ..Step::drop(MadDrop::Duplicate) };
        }
        if !self.transfers.contains_key(&key) {
            if number != 1 {
                return Step::drop(MadDrop::NoTransfer);
            }
            if self.transfers.len() >= self.max_transfers {
                let status = RmppStatus::RESOURCES_EXHAUSTED;
                return Step::end(RmppType::STOP, status, MadDrop::NoRoom);
            }
            self.begin(now, key, *source, header_len);
        }
        self.handle_segment(now, key, rmpp, mad)
    }

    fn begin(&mut self, now: Time, key: TransferKey, source: MadAddress, header_len: usize) {
        let deadline = now + STALLED;
        self.timers.insert((deadline, key));
        let transfer = Transfer {
            header_len,
            message: Vec::new(),
            got: 0,
            ahead: BTreeMap::new(),
            window: 1,
            source,
            deadline,
        };
        self.transfers.insert(key, transfer);
    }

    fn handle_segment(
        &mut self,
        now: Time,
        key: TransferKey,
        rmpp: &Rmpp,
        mad: &[u8; MAD_LEN],
    ) -> Step {
        let number = rmpp.data1;
        let Some(transfer) = self.transfers.get_mut(&key) else {
            return Step::drop(MadDrop::NoTransfer);
        };
        if number <= transfer.got {
            let answer = Some(Rmpp::ack(transfer.got, transfer.window));
            return Step { answer, ..Step::drop(MadDrop::Duplicate) };
        }
        if number > transfer.window {
            return Step::drop(MadDrop::BeyondWindow);
        }
        if self.bytes + MAD_LEN > self.max_bytes {
            self.remove(&key);
            let status = RmppStatus::RESOURCES_EXHAUSTED;
            return Step::end(RmppType::STOP, status, MadDrop::NoRoom);
        }
        if transfer.ahead.insert(number, *mad).is_some() {
            return Step::drop(MadDrop::Duplicate);
        }
        self.bytes += MAD_LEN;
        let deadline = now + STALLED;
        self.timers.remove(&(transfer.deadline, key));
        self.timers.insert((deadline, key));
        transfer.deadline = deadline;
        let last = transfer.advance();
        match last {
            Some(_) if !transfer.ahead.is_empty() => {
                self.abort(&key, RmppStatus::INCONSISTENT_LAST)
            }
            Some(len) => self.complete(now, key, len),
            None if transfer.got == transfer.window => {
                transfer.window = transfer.window.saturating_add(WINDOW);
                let answer = Some(Rmpp::ack(transfer.got, transfer.window));
                Step { answer, ..Step::default() }
            }
            None => Step::default(),
        }
    }

    fn complete(&mut self, now: Time, key: TransferKey, len: usize) -> Step {
        let Some(mut transfer) = self.remove(&key) else {
            return Step::drop(MadDrop::NoTransfer);
        };
        transfer.message.truncate(len);
        if self.forget.len() >= self.max_transfers
            && let Some((_, old)) = self.forget.pop_front()
        {
            self.done.remove(&old);
        }
        self.forget.push_back((now + REMEMBERED, key));
        self.done.insert(key, transfer.got);
        let answer = Some(Rmpp::ack(transfer.got, transfer.window));
        Step { answer, message: Some(transfer.message), drop: None }
    }

    fn abort(&mut self, key: &TransferKey, status: RmppStatus) -> Step {
        self.remove(key);
        Step::abort(status)
    }

    fn remove(&mut self, key: &TransferKey) -> Option<Transfer> {
        let transfer = self.transfers.remove(key)?;
        self.timers.remove(&(transfer.deadline, *key));
        self.bytes -= MAD_LEN * transfer.segments();
        Some(transfer)
    }

    /// Ends a transfer whose sender gave it up. Returns whether there was one.
    pub(super) fn handle_end(&mut self, key: &TransferKey) -> bool {
        self.remove(key).is_some()
    }

    /// Forgets everything of an agent.
    pub(super) fn remove_agent(&mut self, agent: AgentId) {
        let keys: Vec<_> =
            self.transfers.keys().filter(|key| key.agent == agent).copied().collect();
        for key in keys {
            self.remove(&key);
        }
        self.forget.retain(|(_, key)| key.agent != agent);
        self.done.retain(|key, _| key.agent != agent);
    }

    /// Returns when something is due.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let stalled = self.timers.first().map(|(deadline, _)| *deadline);
        let forget = self.forget.front().map(|(deadline, _)| *deadline);
        stalled.into_iter().chain(forget).min()
    }

    /// Does what is due; returns one transfer that stopped, until there is none.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Stalled> {
        while let Some((deadline, key)) = self.forget.front().copied()
            && deadline <= now
        {
            self.forget.pop_front();
            self.done.remove(&key);
        }
        let (deadline, key) = *self.timers.first()?;
        if deadline > now {
            return None;
        }
        let transfer = self.remove(&key)?;
        let mut first = [0; MAD_LEN];
        let len = transfer.message.len().min(MAD_LEN);
        first[..len].copy_from_slice(&transfer.message[..len]);
        Some(Stalled { agent: key.agent, source: transfer.source, first })
    }
}

impl Transfer {
    fn segments(&self) -> usize {
        self.got as usize + self.ahead.len()
    }

    /// Takes the segments that follow without a gap. Returns the length of the message if the last
    /// is among them.
    fn advance(&mut self) -> Option<usize> {
        while let Some(mad) = self.ahead.remove(&(self.got + 1)) {
            self.got += 1;
            let skip = if self.got == 1 { 0 } else { self.header_len };
            self.message.extend_from_slice(&mad[skip..]);
            let rmpp = Rmpp::parse(&mad[MadHeader::LEN..]).unwrap_or_default();
            if rmpp.flags.contains(RmppFlags::LAST) {
                let pad = Rmpp::SEGMENT_LEN.saturating_sub(rmpp.data2 as usize);
                return Some(self.message.len().saturating_sub(pad));
            }
        }
        None
    }
}

/// Returns the datagram that answers one of a transfer: with the headers of its class, and the
/// response bit the other way round.
pub(super) fn control(mad: &[u8; MAD_LEN], rmpp: &Rmpp) -> [u8; MAD_LEN] {
    let mut header = MadHeader::from_bytes(&core::array::from_fn(|at| mad[at]));
    let header_len = class::header_len(header.mgmt_class);
    let mut answer = [0; MAD_LEN];
    answer[..header_len].copy_from_slice(&mad[..header_len]);
    header.method = Method(header.method.0 ^ 0x80);
    header.emit(&mut answer);
    rmpp.emit(&mut answer[MadHeader::LEN..]);
    answer
}

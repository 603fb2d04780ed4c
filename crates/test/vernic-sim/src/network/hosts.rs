//! Hosts: the ends of connections at each of them, and which one sends next.
//!
//! Owns all ends. A host has one link. When that is free, ends with a response go first (they are
//! acknowledgements, 86 bytes on the wire), then ends with requests, one packet each in turn. That
//! is the round robin of a NIC without further classes.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_proto::congestion::Algorithm;
use vernic_proto::{KeepBudget, Keeping, QpCounters, Time};

use super::end::{End, Terms, end_of};
use super::events::Events;
use super::forward::{CAPABLE, MARKED, Network};
use super::packet::{KEPT, Label, Packet, Parcel};
use super::units::PICOS;

/// Transport bytes of the longest packet: 4096 of payload, and all headers.
const LONGEST: usize = 4096 + 64;

/// What queue pairs keep of packets ahead of a gap: packets of each, bytes of all of a host. The
/// defaults of `VERNIC_KEEP_PACKETS` and `VERNIC_KEEP_BYTES`.
const KEPT_PACKETS: u32 = 1024;
const KEPT_BYTES: usize = 8 << 20;

/// An end and its generation, in a line.
type Waiting = VecDeque<(u32, u32)>;

/// All hosts.
#[derive(Debug)]
pub(super) struct Hosts {
    ends: Vec<End>,
    /// Connections that are free, by number: ends `2n` and `2n + 1`.
    free: Vec<u32>,
    /// By host: ends with a response, ends with a request.
    responses: Vec<Waiting>,
    requests: Vec<Waiting>,
    /// Where queue pairs write packets, and where they are put together again for the receiver.
    /// Only their first bytes are ever touched.
    sent: Vec<u8>,
    came: Vec<u8>,
    algorithm: Algorithm,
    /// By host: memory for packets ahead of a gap; none where those are dropped.
    budgets: Vec<Arc<KeepBudget>>,
    counters: QpCounters,
    /// Packets that came for a connection that had ended.
    pub(super) late: u64,
}

impl Hosts {
    /// Hosts without connections. With `keeps` their queue pairs keep what is ahead of a gap.
    pub(super) fn new(hosts: u32, algorithm: Algorithm, keeps: bool) -> Self {
        let budgets = if keeps { hosts } else { 0 };
        let lines = || (0..hosts).map(|_| VecDeque::new()).collect();
        Self {
            ends: Vec::new(),
            free: Vec::new(),
            responses: lines(),
            requests: lines(),
            sent: vec![0; LONGEST],
            came: vec![0; LONGEST],
            algorithm,
            budgets: (0..budgets).map(|_| Arc::new(KeepBudget::new(KEPT_BYTES))).collect(),
            counters: QpCounters::default(),
            late: 0,
        }
    }

    /// Makes a connection. Returns its number: the sender is the end `2n`.
    pub(super) fn connect(&mut self, now: u64, terms: &Terms) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = self.ends.len() as u32;
            self.ends.extend([number, number + 1].map(|end| End::new(end, self.algorithm)));
            number / 2
        });
        let ([from, to], [psn, other]) = (terms.hosts, terms.psns);
        let back = Terms { hosts: [to, from], psns: [other, psn], ..*terms };
        for (end, terms) in [(2 * number, terms), (2 * number + 1, &back)] {
            let budget = self.budgets.get(terms.hosts[0] as usize).cloned();
            let keeping = budget.map(|budget| Keeping { packets: KEPT_PACKETS, budget });
            self.ends[end as usize].connect(Time(now / PICOS), end, terms, keeping);
        }
        number
    }

    /// Ends a connection.
    pub(super) fn disconnect(&mut self, now: u64, number: u32) {
        for end in [2 * number, 2 * number + 1] {
            let end = &mut self.ends[end as usize];
            add(&mut self.counters, end.counters());
            end.disconnect(Time(now / PICOS));
        }
        self.free.push(number);
    }

    /// What all queue pairs have counted.
    pub(super) fn counters(&self) -> QpCounters {
        let mut sum = self.counters;
        for end in &self.ends {
            add(&mut sum, end.counters());
        }
        sum
    }

    #[inline]
    pub(super) fn end(&self, end: u32) -> &End {
        &self.ends[end as usize]
    }

    #[inline]
    pub(super) fn end_mut(&mut self, end: u32) -> &mut End {
        &mut self.ends[end as usize]
    }

    /// The end that is the next to send a request from a host.
    #[inline]
    pub(super) fn first_waiting(&self, host: u32) -> Option<u32> {
        self.requests[host as usize].front().map(|(end, _)| *end)
    }

    /// A packet has come. Returns the end that it was for, unless it is late.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        now: u64,
        (packet, Parcel { place, label }): (&Packet, Parcel),
        network: &mut Network,
        events: &mut Events,
    ) -> Option<u32> {
        self.came[..KEPT].copy_from_slice(&packet.head);
        if packet.has_tail
            && let Some(tail) = network.take_tail(place)
        {
            self.came[KEPT..KEPT + tail.len()].copy_from_slice(&tail);
        }
        let end = end_of(packet.dest_qpn());
        let to = &mut self.ends[end as usize];
        if to.generation != packet.generation {
            self.late += 1;
            return None;
        }
        let bytes = &self.came[..label.len() as usize];
        to.handle_packet(Time(now / PICOS), bytes, label.ecn());
        let host = to.host;
        // A request changes what there is to answer; a mark on it may concern both sides.
        let is_request = packet.is_request();
        if is_request || label.ecn() == MARKED {
            self.note_response(end);
        }
        if !is_request || label.ecn() == MARKED {
            self.note_request(now, end, events);
        }
        self.send(now, host, network, events);
        Some(end)
    }

    /// A timer's event has come, of a use of an end. Returns whether the queue pair was asked.
    #[inline]
    pub(super) fn handle_timer(
        &mut self,
        now: u64,
        (end, generation): (u32, u32),
        network: &mut Network,
        events: &mut Events,
    ) -> bool {
        let to = &mut self.ends[end as usize];
        if to.generation != generation {
            return false;
        }
        let called = to.handle_timer(now, Time(now / PICOS));
        self.settle(now, end, network, events);
        called
    }

    /// Follows up a call of an end as a requester: whether it has something to send, and when it
    /// wants to be asked again.
    #[inline]
    pub(super) fn settle(
        &mut self,
        now: u64,
        end: u32,
        network: &mut Network,
        events: &mut Events,
    ) {
        self.note_request(now, end, events);
        self.send(now, self.ends[end as usize].host, network, events);
    }

    /// Puts an end into its host's line if it has a response.
    #[inline]
    fn note_response(&mut self, number: u32) {
        let end = &mut self.ends[number as usize];
        if !end.has_response && end.wants_responses() {
            end.has_response = true;
            self.responses[end.host as usize].push_back((number, end.generation));
        }
    }

    /// Puts an end into its host's line if it has a request, and sets its timer.
    #[inline]
    fn note_request(&mut self, now: u64, number: u32, events: &mut Events) {
        let end = &mut self.ends[number as usize];
        if !end.has_request && end.wants_requests() {
            end.has_request = true;
            self.requests[end.host as usize].push_back((number, end.generation));
        }
        if let Some(due) = end.timer_due(now) {
            events.push_timer(end.host, due, (number, end.generation));
        }
    }

    /// Sends the next packet of a host, if its link is free.
    #[inline]
    pub(super) fn send(&mut self, now: u64, host: u32, network: &mut Network, events: &mut Events) {
        if self.is_idle(host) || !network.may_send(now, host, events) {
            return;
        }
        // Bounded: each round takes one end off a line.
        while let Some((number, is_response)) = self.next_end(host) {
            let end = &mut self.ends[number as usize];
            let len = end.poll(Time(now / PICOS), is_response, &mut self.sent);
            let packet = len.map(|len| packet_of(end, len, &self.sent));
            if is_response {
                self.note_response(number);
            } else {
                self.note_request(now, number, events);
            }
            if let Some(packet) = packet {
                let tail = &self.sent[KEPT..len.unwrap_or_default().max(KEPT)];
                network.send(now, host, packet, tail, events);
                break;
            }
        }
        if !self.is_idle(host) {
            // The link is busy now: this asks for the event of its end.
            network.may_send(now, host, events);
        }
    }

    #[inline]
    fn is_idle(&self, host: u32) -> bool {
        self.requests[host as usize].is_empty() && self.responses[host as usize].is_empty()
    }

    /// Takes the next end that has something to send off its line, and whether it is a response.
    #[inline]
    fn next_end(&mut self, host: u32) -> Option<(u32, bool)> {
        loop {
            let (line, is_response) = match self.responses[host as usize].pop_front() {
                Some(first) => (first, true),
                None => (self.requests[host as usize].pop_front()?, false),
            };
            let (number, generation) = line;
            let end = &mut self.ends[number as usize];
            if end.generation == generation {
                let flag = if is_response { &mut end.has_response } else { &mut end.has_request };
                *flag = false;
                return Some((number, is_response));
            }
        }
    }
}

/// The packet that an end wrote.
#[inline]
fn packet_of(end: &End, len: usize, bytes: &[u8]) -> (Packet, Label) {
    let mut head = [0; KEPT];
    head.copy_from_slice(&bytes[..KEPT]);
    // Both ends of a connection have been of as many.
    let mut packet = Packet { head, generation: end.generation, has_tail: false };
    let is_request = packet.is_request();
    packet.has_tail = len > KEPT && !is_request;
    // A mark on an acknowledgement or a CNP would say nothing of the way that data takes.
    let ecn = if is_request { CAPABLE } else { 0 };
    (packet, Label::new(end.peer_host, end.hash, len as u32, ecn))
}

/// Adds what is reported of counters.
fn add(sum: &mut QpCounters, more: &QpCounters) {
    sum.tx_packets += more.tx_packets;
    sum.rx_packets += more.rx_packets;
    sum.retransmitted_packets += more.retransmitted_packets;
    sum.ack_timeouts += more.ack_timeouts;
    sum.tail_probes += more.tail_probes;
    sum.sequence_naks_sent += more.sequence_naks_sent;
    sum.duplicates_received += more.duplicates_received;
    sum.ecn_marked_received += more.ecn_marked_received;
    sum.packets_kept += more.packets_kept;
    sum.cnps_sent += more.cnps_sent;
    sum.cnps_received += more.cnps_received;
}

//! One end of a cable: what arrives and what may leave (IBTA 7.2.7).
//!
//! | state | passes |
//! |---|---|
//! | Down | nothing |
//! | Init | credits, and the lane of management |
//! | Armed | besides, data packets that arrive; the first makes the port Active |
//! | Active | everything |

use std::num::NonZeroU64;

use vernic_wire::{FlowControl, LinkLimits, LinkPacket, VirtualLane};

use super::arbiter::{Arbiter, LaneSet};
use super::buffer::ReceiveBuffers;
use super::config::LinkConfig;
use super::flow::{self, LaneFlow};
use super::frame::{Header, Signal};
use super::lanes::{DATA_LANES, data_lanes};
use super::line::Line;
use super::next::Next;
use super::queue::{Lifetimes, Queued, Queues};
use super::training::{Step, Training};
use crate::Time;
use crate::attributes::{PhysicalState, PortAttributes, PortState};

/// One end of a cable.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    config: LinkConfig,
    training: Training,
    buffers: ReceiveBuffers,
    flows: [LaneFlow; DATA_LANES],
    queues: Queues,
    arbiter: Arbiter,
    line: Line,
    /// When credits are to be told next, of so many lanes, while nothing changes that.
    telling: Option<(u8, Time)>,
    /// The lane whose credits are looked at first, so that each has its turn.
    first_lane: u8,
    /// Whether credits left last: then packets go first, or a slow line would carry credits alone.
    credits_last: bool,
    /// Since when packets wait that may not leave for want of credits.
    waiting_since: Option<Time>,
    /// Whether the link came up or went down since it was last asked.
    changed: bool,
}

impl Port {
    /// Makes a port without a cable.
    pub(crate) fn new(config: LinkConfig) -> Self {
        Self {
            config,
            training: Training::new(config.training_ns),
            buffers: ReceiveBuffers::new(config.data_blocks(), config.management_blocks),
            flows: [LaneFlow::default(); DATA_LANES],
            queues: Queues::default(),
            arbiter: Arbiter::new(),
            line: Line::new(config.bytes_per_s, config.paced),
            telling: None,
            first_lane: 0,
            credits_last: false,
            waiting_since: None,
            changed: false,
        }
    }
    /// Returns whether the link came up or went down by itself since this was last called.
    pub(crate) fn poll_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
    /// Returns when the line is free.
    pub(crate) const fn free_at(&self) -> Time {
        self.line.free_at()
    }
    /// Changes the bytes per second that the link carries at most.
    pub(crate) const fn set_rate(&mut self, bytes_per_s: Option<NonZeroU64>) {
        self.line.set_limit(bytes_per_s);
    }
    /// Returns the bytes of data per second that the link carries at most.
    pub(crate) fn rate(&self, attributes: &PortAttributes) -> u64 {
        self.line.rate(attributes)
    }
    /// Returns the blocks of 64 bytes that the other end has room for, in a data lane.
    pub(crate) fn credits(&self, lane: VirtualLane) -> u16 {
        self.flows.get(usize::from(lane.value())).map_or(0, LaneFlow::credits)
    }
    /// Returns the blocks that wait in a lane.
    pub(crate) fn queued_blocks(&self, lane: VirtualLane) -> u32 {
        self.queues.blocks(lane)
    }
    /// Returns the free blocks of a lane's receive buffer.
    pub(crate) fn free_blocks(&self, lane: VirtualLane) -> u16 {
        self.buffers.free(lane)
    }

    /// Takes the news that a cable leads to another port, or that it does not any more.
    pub(crate) fn handle_cable(
        &mut self,
        attributes: &mut PortAttributes,
        plugged: bool,
        now: Time,
    ) {
        if self.training.plug(plugged) == Step::Down {
            self.go_down(attributes, Cause::Link);
        }
        self.follow(attributes, now);
    }
    /// Takes a signal.
    pub(crate) fn handle_signal(
        &mut self,
        attributes: &mut PortAttributes,
        signal: Signal,
        now: Time,
    ) {
        self.follow(attributes, now);
        match self.training.handle(signal, attributes.physical, now) {
            Step::Up => {
                (attributes.physical, attributes.state) = (PhysicalState::LinkUp, PortState::Init);
                self.changed = true;
            }
            Step::Down => self.go_down(attributes, Cause::Link),
            Step::Stay if self.training.is_looking() => {
                attributes.physical = PhysicalState::Polling;
            }
            Step::Stay => {}
        }
    }
    /// Takes a flow-control packet. A wrong CRC is counted; a lane without operation is ignored.
    pub(crate) fn handle_flow_control(
        &mut self,
        attributes: &mut PortAttributes,
        bytes: &[u8],
        now: Time,
    ) {
        self.follow(attributes, now);
        if !self.training.is_up() {
            self.training.handle_stray();
            return;
        }
        let packet = FlowControl::parse(bytes).ok().filter(|packet| packet.op.is_known());
        let Some(packet) = packet else {
            attributes.counters.symbol_errors += 1;
            return;
        };
        let lane = packet.virtual_lane;
        if lane.value() >= attributes.operational_lanes {
            return;
        }
        if self.flow_mut(lane).is_some_and(|flow| flow.handle(&packet).is_err()) {
            attributes.counters.local_link_integrity += 1;
            self.fail(attributes, now);
        }
    }
    /// Takes a packet into the receive buffer of its lane. `None` if it is dropped, which is
    /// counted.
    pub(crate) fn handle_packet(
        &mut self,
        attributes: &mut PortAttributes,
        bytes: &[u8],
        now: Time,
    ) -> Option<Header> {
        self.follow(attributes, now);
        let header = check(attributes, bytes).filter(|_| self.training.is_up());
        let Some(header) = header else {
            attributes.counters.rcv_errors += 1;
            return None;
        };
        if header.lane.is_management() {
            let fits = self.buffers.take(header.lane, header.blocks());
            attributes.counters.management_dropped += u64::from(!fits);
            return fits.then_some(header);
        }
        if attributes.state == PortState::Init {
            // The sender believes that the link is active: nothing here can hold its data.
            attributes.counters.rcv_errors += 1;
            self.flow_mut(header.lane)?.received(header.blocks());
            return None;
        }
        self.take_data(attributes, header, now)
    }
    fn take_data(
        &mut self,
        attributes: &mut PortAttributes,
        header: Header,
        now: Time,
    ) -> Option<Header> {
        if !self.buffers.take(header.lane, header.blocks()) {
            attributes.counters.buffer_overruns += 1;
            self.fail(attributes, now);
            return None;
        }
        self.flow_mut(header.lane)?.received(header.blocks());
        if attributes.state == PortState::Armed {
            attributes.state = PortState::Active;
        }
        let counters = &mut attributes.counters;
        counters.rcv_packets += 1;
        counters.rcv_data += header.words();
        let multicast = u64::from(header.dlid.is_multicast());
        counters.multicast_rcv += multicast;
        counters.unicast_rcv += 1 - multicast;
        Some(header)
    }
    /// Gives back what a packet took of a receive buffer.
    pub(crate) fn release(&mut self, lane: VirtualLane, blocks: u16) {
        self.buffers.release(lane, blocks);
        self.telling = None;
    }
    /// Appends a packet to the queue of its lane.
    pub(crate) fn enqueue(&mut self, queued: Queued, now: Time) {
        self.queues.push(queued, now);
    }

    /// Returns a packet that is discarded, which is counted: its lane must not send in this state,
    /// or it has waited too long. To be asked until there is none, before [`poll`](Self::poll).
    pub(crate) fn poll_discard(
        &mut self,
        attributes: &mut PortAttributes,
        lifetimes: &Lifetimes,
        now: Time,
    ) -> Option<Queued> {
        if self.queues.is_empty() {
            return None;
        }
        self.follow(attributes, now);
        let (state, lanes) = (attributes.state, attributes.operational_lanes);
        let may_send = |lane: VirtualLane| match lane.is_management() {
            true => state > PortState::Down,
            false => state == PortState::Active && lane.value() < lanes,
        };
        let evicted = self.queues.evict(may_send, now);
        let discarded = evicted.or_else(|| self.queues.expire(lifetimes, now))?;
        attributes.counters.xmit_discards += 1;
        Some(discarded)
    }
    /// Returns what leaves now, and takes the line for it.
    pub(crate) fn poll(&mut self, attributes: &mut PortAttributes, now: Time) -> Option<Next> {
        self.follow(attributes, now);
        if let Some(signal) = self.training.poll(now) {
            return Some(Next::Signal(signal));
        }
        if !self.training.is_up() || now < self.line.free_at() {
            return None;
        }
        if !self.credits_last
            && let Some(next) = self.poll_flow_control(attributes, now)
        {
            return Some(next);
        }
        match self.poll_packet(attributes, now) {
            Some(queued) => Some(Next::Packet(queued)),
            None => self.poll_flow_control(attributes, now),
        }
    }
    fn poll_flow_control(&mut self, attributes: &PortAttributes, now: Time) -> Option<Next> {
        let initializes = attributes.state == PortState::Init;
        let count = data_lanes(attributes);
        let due = self.telling(count);
        self.telling = Some((count, due));
        if now < due {
            return None;
        }
        self.telling = None;
        let (lane, counts) = (0..count).find_map(|step| {
            let lane = VirtualLane::new((self.first_lane + step) % count);
            let (free, config) = (self.buffers.free(lane), &self.config);
            let flow = self.flows.get_mut(usize::from(lane.value()))?;
            Some((lane, flow.poll(config, free, now)?))
        })?;
        let bytes = flow::packet(initializes, lane, counts);
        (self.first_lane, self.credits_last) = (lane.value() + 1, true);
        self.line.take(attributes, now, bytes.len());
        Some(Next::FlowControl(bytes))
    }
    /// Returns when credits are to be told next.
    fn telling(&self, lanes: u8) -> Time {
        if let Some((_, at)) = self.telling.filter(|(of, _)| *of == lanes) {
            return at;
        }
        let flows = self.flows.iter().take(usize::from(lanes)).zip(0..);
        let due = flows
            .map(|(flow, lane)| flow.due(&self.config, self.buffers.free(VirtualLane::new(lane))));
        due.min().unwrap_or(Time(u64::MAX))
    }
    /// Takes the packet that the arbiter chooses out of its queue.
    fn poll_packet(&mut self, attributes: &mut PortAttributes, now: Time) -> Option<Queued> {
        let (tables, lanes) = (&attributes.tables, attributes.operational_lanes);
        let ready = self.ready(attributes);
        let Some(choice) = self.arbiter.choose(tables, lanes, ready) else {
            if !self.queues.is_empty() && self.waiting_since.is_none() {
                self.waiting_since = Some(now);
            }
            return None;
        };
        let queued = self.queues.pop(choice.lane, now)?;
        self.credits_last = false;
        let header = queued.header;
        self.arbiter.charge(choice, header.bytes);
        if let Some(since) = self.waiting_since.take() {
            attributes.counters.xmit_wait += self.line.ticks(attributes, now.since(since));
        }
        self.line.take(attributes, now, usize::from(header.bytes));
        if let Some(flow) = self.flow_mut(choice.lane) {
            flow.sent(header.blocks());
            count_sent(attributes, header);
        }
        Some(queued)
    }
    /// Returns the lanes whose first packet may leave.
    fn ready(&self, attributes: &PortAttributes) -> LaneSet {
        let mut ready = LaneSet::default();
        for Queued { header, .. } in self.queues.heads() {
            let may_send = match self.flows.get(usize::from(header.lane.value())) {
                Some(flow) => {
                    attributes.state == PortState::Active && flow.may_send(header.blocks())
                }
                None => attributes.state > PortState::Down,
            };
            if may_send {
                ready.insert(header.lane);
            }
        }
        ready
    }
    /// Returns when [`poll_discard`](Self::poll_discard) or [`poll`](Self::poll) is due next. News
    /// that the node brings makes them due at once.
    pub(crate) fn due(&self, attributes: &PortAttributes, lifetimes: &Lifetimes) -> Option<Time> {
        let mut due = [self.training.due(), self.queues.expiry(lifetimes), None, None];
        if self.training.is_up() {
            let free_at = self.line.free_at();
            due[2] = Some(self.telling(data_lanes(attributes)).max(free_at));
            due[3] = (!self.ready(attributes).is_empty()).then_some(free_at);
        }
        due.into_iter().flatten().min()
    }

    /// Brings training in line with what management has set.
    fn follow(&mut self, attributes: &mut PortAttributes, now: Time) {
        let is_up = self.training.is_up();
        let is_wanted = is_up && attributes.state != PortState::Down;
        if attributes.physical == PhysicalState::LinkUp && !is_wanted {
            attributes.physical = attributes.link_down_default;
        }
        match self.training.follow(attributes.physical, now) {
            Step::Down => self.go_down(attributes, Cause::Management),
            _ if !self.training.is_up() => attributes.state = PortState::Down,
            _ => {}
        }
    }
    /// Gives the link up because of an error of the other end, and trains anew.
    fn fail(&mut self, attributes: &mut PortAttributes, now: Time) {
        self.training.fail(now);
        self.go_down(attributes, Cause::Link);
    }
    fn go_down(&mut self, attributes: &mut PortAttributes, cause: Cause) {
        if attributes.physical == PhysicalState::LinkUp {
            attributes.physical = attributes.link_down_default;
        }
        attributes.state = PortState::Down;
        self.flows = [LaneFlow::default(); DATA_LANES];
        self.telling = None;
        self.waiting_since = None;
        if cause == Cause::Link {
            attributes.counters.link_downed += 1;
            self.changed = true;
        }
    }
    /// Returns the credits of a lane, which are going to change.
    fn flow_mut(&mut self, lane: VirtualLane) -> Option<&mut LaneFlow> {
        self.telling = None;
        self.flows.get_mut(usize::from(lane.value()))
    }
}

/// What took a link down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// The link itself, or the other end.
    Link,
    /// Management of this end.
    Management,
}

/// Checks a packet by itself and against the port (IBTA 7.3).
fn check(attributes: &PortAttributes, bytes: &[u8]) -> Option<Header> {
    let limits =
        LinkLimits { mtu: attributes.mtu_capability, data_lanes: attributes.operational_lanes };
    let packet = LinkPacket::parse(bytes).ok()?;
    packet.check_limits(limits).ok()?;
    Some(Header::of(&packet))
}

fn count_sent(attributes: &mut PortAttributes, header: Header) {
    let counters = &mut attributes.counters;
    counters.xmit_packets += 1;
    counters.xmit_data += header.words();
    let multicast = u64::from(header.dlid.is_multicast());
    counters.multicast_xmit += multicast;
    counters.unicast_xmit += 1 - multicast;
}

#[cfg(test)]
pub(crate) mod tests;

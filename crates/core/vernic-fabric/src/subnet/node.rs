//! A node: its data plane, its attributes, and the agents between the two.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use vernic_wire::mad::{MAD_LEN, Method, MgmtClass};
use vernic_wire::{Lid, Lrh, PortNum, Psn, Qpn, VirtualLane, vcrc};

use crate::Time;
use crate::adapter::AdapterPort;
use crate::attributes::{PhysicalState, PortAttributes, PortState};
use crate::datagram::{Envelope, GSI_QKEY};
use crate::link::{Frame, Life, SubmitError, Transmit};
use crate::management::{Agent, Ingress, Route};
use crate::switch::Switch;

use super::state::State;

/// Datagrams that wait for the clients of a port at most. Further ones are dropped and counted, as
/// a queue pair of management without a receive buffer drops them.
const MOST_DATAGRAMS: usize = 1024;

/// A port of an adapter with what waits for its clients.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) port: AdapterPort,
    /// Datagrams that no agent took, LRH to ICRC.
    pub(super) datagrams: VecDeque<Vec<u8>>,
    /// Whether the owner was told that packets are there, and has not asked yet.
    pub(super) is_told: bool,
    /// How many packets had arrived when the owner was last told.
    told_arrivals: u64,
    arrivals: u64,
    /// The states that were told last.
    told_states: (PortState, PhysicalState),
    /// Whether attributes have changed since they were last told.
    is_changed: bool,
    /// Whether the owner was told of a change, and has not asked yet.
    pub(super) is_change_told: bool,
}

/// What the owner of a subnet is told of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct News {
    pub(super) has_packet: bool,
    pub(super) has_changed: bool,
}

/// Where packets are.
#[derive(Debug)]
pub(super) enum Plane {
    Switch(Box<Switch>),
    /// Ports from 1 on.
    Adapter(Vec<Attachment>),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) state: State,
    pub(super) plane: Plane,
    agent: Agent,
    agent_due: Option<Time>,
    psn: Psn,
    /// Packets to queue pairs of management that are no datagram, or come with a wrong key.
    pub(super) bad_datagrams: u64,
}

impl Attachment {
    pub(super) fn new(port: AdapterPort) -> Self {
        Self {
            port,
            datagrams: VecDeque::new(),
            is_told: false,
            told_arrivals: 0,
            arrivals: 0,
            told_states: (PortState::Down, PhysicalState::Polling),
            is_changed: false,
            is_change_told: false,
        }
    }
    /// Takes a datagram for the clients, LRH to ICRC. Returns whether there was room.
    fn deliver(&mut self, packet: &[u8]) -> bool {
        let fits = self.datagrams.len() < MOST_DATAGRAMS;
        if fits {
            self.datagrams.push_back(packet.to_vec());
            self.arrivals += 1;
        }
        fits
    }
    /// Returns what the owner is to be told, once.
    fn poll_news(&mut self, attributes: &PortAttributes) -> News {
        let states = (attributes.state, attributes.physical);
        self.is_changed |= std::mem::replace(&mut self.told_states, states) != states;
        let arrivals = self.arrivals + self.port.arrivals();
        let has_packet = !self.is_told && arrivals != self.told_arrivals;
        let has_changed = self.is_changed && !self.is_change_told;
        if has_packet {
            (self.is_told, self.told_arrivals) = (true, arrivals);
        }
        if has_changed {
            (self.is_changed, self.is_change_told) = (false, true);
        }
        News { has_packet, has_changed }
    }
}

impl Node {
    pub(super) fn new(state: State, plane: Plane) -> Self {
        let agent = Agent::new(state.attributes.ports);
        let (agent_due, psn) = (None, Psn::new(0));
        Self { state, plane, agent, agent_due, psn, bad_datagrams: 0 }
    }
    pub(super) fn handle_cable(&mut self, port: PortNum, plugged: bool, now: Time) {
        match &mut self.plane {
            Plane::Switch(switch) => {
                let Some(mut view) = self.state.view() else { return };
                switch.handle_cable(&mut view, port, plugged, now);
            }
            Plane::Adapter(ports) => {
                let attached = attachment(ports, port);
                if let Some((attached, port)) = attached.zip(self.state.external(port)) {
                    attached.port.handle_cable(port, plugged, now);
                }
            }
        }
    }
    pub(super) fn set_rate(&mut self, port: PortNum, bytes_per_s: Option<NonZeroU64>) {
        match &mut self.plane {
            Plane::Switch(switch) => switch.set_rate(port, bytes_per_s),
            Plane::Adapter(ports) => {
                if let Some(attached) = attachment(ports, port) {
                    attached.port.set_rate(bytes_per_s);
                }
            }
        }
    }
    /// Takes a signal or a flow-control packet.
    pub(super) fn handle_frame(&mut self, port: PortNum, frame: Frame<'_>, now: Time) {
        match &mut self.plane {
            Plane::Switch(switch) => {
                let Some(mut view) = self.state.view() else { return };
                switch.handle_frame(&mut view, port, frame, now);
            }
            Plane::Adapter(ports) => {
                let attached = attachment(ports, port);
                if let Some((attached, port)) = attached.zip(self.state.external(port)) {
                    attached.port.handle_frame(port, frame, now);
                }
            }
        }
    }
    /// Takes a packet, LRH to VCRC.
    pub(super) fn handle_packet(&mut self, port: PortNum, bytes: Vec<u8>, life: Life, now: Time) {
        match &mut self.plane {
            Plane::Switch(switch) => {
                let Some(mut view) = self.state.view() else { return };
                switch.handle_packet(&mut view, port, bytes, life, now);
            }
            Plane::Adapter(ports) => {
                let attached = attachment(ports, port);
                if let Some((attached, port)) = attached.zip(self.state.external(port)) {
                    attached.port.handle_packet(port, bytes, life, now);
                }
            }
        }
    }
    /// Counts a bit that was wrong in a packet.
    pub(super) fn count_wrong_bit(&mut self, port: PortNum) {
        if let Some(port) = self.state.external(port) {
            port.counters.symbol_errors += 1;
        }
    }
    /// Takes a packet of a client of a port of an adapter, LRH to ICRC.
    pub(super) fn submit(
        &mut self,
        port: PortNum,
        packet: &[u8],
        scratch: &mut Vec<u8>,
        now: Time,
    ) -> Result<(), SubmitError> {
        if begins_directed_route(packet) {
            scratch.clear();
            scratch.extend_from_slice(packet);
            scratch.extend([0; vcrc::LEN]);
            vcrc::stamp(scratch);
            let opened = Envelope::open(scratch).ok_or(SubmitError::Malformed)?;
            self.external(port).ok_or(SubmitError::NoPort)?;
            self.consult(port, true, opened, scratch, now);
            return Ok(());
        }
        let (attached, attributes) = self.external(port).ok_or(SubmitError::NoPort)?;
        attached.port.submit(attributes, packet, now)
    }
    /// Moves the next frame to leave to `out` alone, once the agents have had what is theirs.
    pub(super) fn poll_transmit(
        &mut self,
        out: &mut Vec<u8>,
        now: Time,
    ) -> Option<(PortNum, Transmit)> {
        loop {
            self.serve_agents(out, now);
            let next = match &mut self.plane {
                Plane::Switch(switch) => switch.poll_transmit(&mut self.state.view()?, now, out),
                Plane::Adapter(ports) => {
                    let numbered = (1..).map(PortNum).zip(ports);
                    numbered.into_iter().find_map(|(number, attached)| {
                        let attributes = self.state.external(number)?;
                        let transmit = attached.port.poll_transmit(attributes, now, out)?;
                        Some((number, transmit))
                    })
                }
            };
            if next.is_some() || !self.tell_changes(now) {
                return next;
            }
        }
    }
    /// Returns when [`poll_transmit`](Self::poll_transmit) is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let plane = match &self.plane {
            Plane::Switch(switch) => switch.poll_timeout(),
            Plane::Adapter(ports) => {
                let due = ports.iter().zip(self.state.ports.iter().skip(1));
                due.filter_map(|(attached, port)| attached.port.poll_timeout(port)).min()
            }
        };
        [plane, self.agent_due].into_iter().flatten().min()
    }
    /// Returns what the owner is to be told of a port of an adapter, if anything.
    pub(super) fn poll_news(&mut self) -> Option<(PortNum, News)> {
        let Plane::Adapter(ports) = &mut self.plane else { return None };
        let with_attributes = ports.iter_mut().zip(self.state.ports.iter().skip(1));
        let mut numbered = (1..).map(PortNum).zip(with_attributes);
        numbered.find_map(|(number, (attached, attributes))| {
            let news = attached.poll_news(attributes);
            (news.has_packet || news.has_changed).then_some((number, news))
        })
    }
    /// Gives a vector back that packets left in.
    pub(super) fn recycle(&mut self, port: PortNum, bytes: Vec<u8>) {
        if let Some((attached, _)) = self.external(port) {
            attached.port.recycle(bytes);
        }
    }
    pub(super) fn agent(&mut self) -> (&mut Agent, &State) {
        (&mut self.agent, &self.state)
    }
    /// Notes when the agent is due next. To be called when it was told something.
    pub(super) fn plan_agent(&mut self) {
        self.agent_due = self.agent.next_deadline();
    }
    /// Looks at all ports anew, whose attributes have changed.
    pub(super) fn refresh(&mut self) {
        match &mut self.plane {
            Plane::Switch(switch) => switch.refresh(),
            Plane::Adapter(ports) => ports.iter_mut().for_each(|port| port.is_changed = true),
        }
    }
    /// Returns a port of an adapter with its attributes.
    pub(super) fn external(
        &mut self,
        port: PortNum,
    ) -> Option<(&mut Attachment, &mut PortAttributes)> {
        match &mut self.plane {
            Plane::Switch(_) => None,
            Plane::Adapter(ports) => attachment(ports, port).zip(self.state.external(port)),
        }
    }

    /// Tells the agent of links that came up or went down. Returns whether there were any.
    fn tell_changes(&mut self, now: Time) -> bool {
        let mut any = false;
        match &mut self.plane {
            Plane::Switch(switch) => {
                while switch.poll_change().is_some() {
                    any = true;
                    self.agent.handle_link_change(&mut self.state, now);
                }
            }
            Plane::Adapter(ports) => {
                for attached in ports {
                    attached.is_changed |= attached.port.poll_change();
                }
            }
        }
        if any {
            self.plan_agent();
        }
        any
    }
    /// Lets the agents answer what has arrived for them, and send traps.
    fn serve_agents(&mut self, buffer: &mut Vec<u8>, now: Time) {
        while let Some(port) = self.poll_management(buffer) {
            match Envelope::open(buffer) {
                Some(opened) => self.consult(port, false, opened, buffer, now),
                None => self.bad_datagrams += 1,
            }
        }
        if self.agent_due.is_some_and(|due| due <= now) {
            self.agent.handle_timeout(&mut self.state, now);
            while let Some(trap) = self.agent.poll_trap(&self.state, now) {
                let slid = self.state.ports[usize::from(trap.port.0)].lid.0;
                let sl = trap.service_level.value();
                let envelope = Envelope::of_smp(slid, trap.dlid.0, sl);
                self.send(trap.port, None, envelope, &trap.mad, buffer, now);
            }
            self.plan_agent();
        }
    }
    fn poll_management(&mut self, out: &mut Vec<u8>) -> Option<PortNum> {
        match &mut self.plane {
            Plane::Switch(switch) => switch.poll_management(out),
            Plane::Adapter(ports) => {
                let mut numbered = (1..).map(PortNum).zip(ports);
                numbered.find_map(|(number, attached)| {
                    attached.port.poll_management(out).then_some(number)
                })
            }
        }
    }
    /// Hands a datagram to the agents, and does with it what they say.
    fn consult(
        &mut self,
        port: PortNum,
        local: bool,
        (envelope, mut mad): (Envelope, [u8; MAD_LEN]),
        buffer: &mut Vec<u8>,
        now: Time,
    ) {
        let class = MgmtClass(mad[1]);
        let is_agents = match envelope.destination {
            Qpn::SMI => true,
            Qpn::GSI => class == MgmtClass::PERFORMANCE && !Method(mad[3]).is_response(),
            _ => false,
        };
        if envelope.destination == Qpn::GSI && !self.check_key(port, &envelope) {
            return;
        }
        if !is_agents {
            self.deliver(port, envelope, &mad, buffer);
            return;
        }
        let slid = Lid(envelope.slid);
        let ingress = Ingress { port, slid, queue_pair: envelope.destination, local };
        let writes = Method(mad[3]) == Method::SET;
        let route = self.agent.handle(&mut self.state, ingress, &mut mad, now);
        self.plan_agent();
        if writes {
            self.refresh();
        }
        let own = |port: PortNum| self.state.ports.get(usize::from(port.0)).map_or(0, |p| p.lid.0);
        match route {
            Route::Local => self.deliver(port, envelope, &mad, buffer),
            Route::Port(out) => {
                let envelope =
                    Envelope::of_smp(Lid::PERMISSIVE.0, Lid::PERMISSIVE.0, envelope.service_level);
                self.send(port, Some(out), envelope, &mad, buffer, now);
            }
            Route::Lid(lid) if envelope.destination == Qpn::SMI => {
                let envelope =
                    Envelope::of_smp(own(self.home(port)), lid.0, envelope.service_level);
                self.send(port, None, envelope, &mad, buffer, now);
            }
            Route::Lid(_) => self.send(port, None, envelope.answer(), &mad, buffer, now),
            Route::Done | Route::Drop(_) => {}
        }
    }
    fn home(&self, port: PortNum) -> PortNum {
        if matches!(self.plane, Plane::Switch(_)) { PortNum(0) } else { port }
    }
    /// Checks the keys of a datagram to queue pair 1. A wrong one is counted.
    fn check_key(&mut self, port: PortNum, envelope: &Envelope) -> bool {
        let home = self.home(port);
        let Some(port) = self.state.ports.get_mut(usize::from(home.0)) else { return false };
        let is_member = port.takes_pkey(envelope.pkey);
        if !is_member {
            port.p_key_violations = port.p_key_violations.saturating_add(1);
        } else if envelope.qkey != GSI_QKEY {
            port.q_key_violations = port.q_key_violations.saturating_add(1);
        }
        is_member && envelope.qkey == GSI_QKEY
    }
    /// Gives a datagram to the clients of a port. A switch has none.
    fn deliver(
        &mut self,
        port: PortNum,
        envelope: Envelope,
        mad: &[u8; MAD_LEN],
        buffer: &mut Vec<u8>,
    ) {
        let psn = self.next_psn();
        envelope.seal(psn, mad, buffer);
        buffer.truncate(buffer.len() - vcrc::LEN);
        match self.external(port) {
            Some((attached, attributes)) => {
                let fits = attached.deliver(buffer);
                attributes.counters.management_dropped += u64::from(!fits);
            }
            None => self.bad_datagrams += 1,
        }
    }
    /// Sends a datagram of the node: by a port, or where its LID leads.
    fn send(
        &mut self,
        ingress: PortNum,
        out: Option<PortNum>,
        envelope: Envelope,
        mad: &[u8; MAD_LEN],
        buffer: &mut Vec<u8>,
        now: Time,
    ) {
        let psn = self.next_psn();
        envelope.seal(psn, mad, buffer);
        let packet = &buffer[..buffer.len() - vcrc::LEN];
        let sent = match &mut self.plane {
            Plane::Switch(switch) => {
                let Some(mut view) = self.state.view() else { return };
                match out {
                    Some(port) => switch.send_management(&mut view, port, packet, now),
                    None => switch.submit(&mut view, packet, now),
                }
            }
            Plane::Adapter(_) => match self.external(out.unwrap_or(ingress)) {
                Some((attached, port)) => attached.port.submit(port, packet, now),
                None => Err(SubmitError::NoPort),
            },
        };
        // What a port discards it has counted. The sender of the datagram repeats it.
        let home = self.home(ingress);
        if sent == Err(SubmitError::Full)
            && let Some(port) = self.state.ports.get_mut(usize::from(home.0))
        {
            port.counters.management_dropped += 1;
        }
    }
    fn next_psn(&mut self) -> Psn {
        self.psn = self.psn.next();
        self.psn
    }
}

/// Returns whether a packet of a client is one of a directed route, which begins at the agent.
fn begins_directed_route(packet: &[u8]) -> bool {
    const CLASS_AT: usize = Lrh::LEN + vernic_wire::Bth::LEN + vernic_wire::Deth::LEN + 1;
    // With another LID the route begins where that leads to (IBTA 14.2.2.1).
    Lrh::parse(packet).is_ok_and(|lrh| {
        VirtualLane::new(lrh.virtual_lane).is_management() && lrh.dlid == Lid::PERMISSIVE.0
    }) && packet.get(CLASS_AT) == Some(&MgmtClass::SUBNET_DIRECTED_ROUTE.0)
}

fn attachment(ports: &mut [Attachment], port: PortNum) -> Option<&mut Attachment> {
    ports.get_mut(usize::from(port.0).checked_sub(1)?)
}

//! Two ports with agents and a wire between them, in virtual time. The wire is asked what becomes
//! of each datagram.

mod limits;
mod random;
mod routing;
mod transfers;

use std::collections::VecDeque;

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::{Lid, Qkey, Qpn, Rmpp, RmppFlags, RmppType};

use super::{
    AgentId, Agents, AgentsConfig, Delivery, MadAddress, MadDrop, MadTransmit, Outcome,
    Registration,
};
use crate::time::Time;

pub(super) const MS: u64 = 1_000_000;
/// LIDs of the two ports.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

/// What becomes of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Arrives,
    Lost,
    Twice,
    /// Behind those that are sent later, up to the next silence.
    Late,
}

/// Two ports.
pub(super) struct Pair {
    pub(super) ports: [Agents; 2],
    pub(super) now: Time,
    /// What was sent, in order.
    pub(super) sent: Vec<MadTransmit>,
    /// Why datagrams reached no agent.
    pub(super) drops: Vec<MadDrop>,
}

pub(super) fn lid(port: usize) -> Lid {
    Lid(port as u16 + 1)
}

pub(super) fn to(port: usize) -> MadAddress {
    MadAddress { qpn: Qpn::GSI, qkey: Qkey(0x8001_0000), lid: lid(port), ..MadAddress::default() }
}

pub(super) fn methods(methods: &[Method]) -> u128 {
    methods.iter().fold(0, |mask, method| mask | 1 << method.0)
}

/// An agent of subnet administration with RMPP.
pub(super) fn sa(methods: u128) -> Registration {
    Registration {
        qpn: Qpn::GSI,
        class: MgmtClass::SUBNET_ADMIN,
        class_version: 2,
        methods,
        oui: 0,
        rmpp: true,
    }
}

pub(super) fn header(class: MgmtClass, method: Method, tid: u64) -> MadHeader {
    MadHeader {
        base_version: 1,
        mgmt_class: class,
        class_version: if class == MgmtClass::SUBNET_ADMIN { 2 } else { 1 },
        method,
        transaction_id: tid,
        attribute_id: 0x35,
        ..MadHeader::default()
    }
}

/// A datagram of the header, with a number in its data.
pub(super) fn mad(header: MadHeader) -> Vec<u8> {
    let mut mad = vec![0; MAD_LEN];
    header.emit(&mut mad);
    mad[MAD_LEN - 1] = 0x5A;
    mad
}

/// A message of subnet administration in segments: so many bytes of data.
pub(super) fn message(method: Method, tid: u64, data: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..56 + data).map(|at| (at * 7 / 3) as u8).collect();
    header(MgmtClass::SUBNET_ADMIN, method, tid).emit(&mut message);
    active().emit(&mut message[MadHeader::LEN..]);
    message
}

/// The RMPP header of a message that is to be sent in segments: programs set no more than this.
pub(super) fn active() -> Rmpp {
    Rmpp { flags: RmppFlags::ACTIVE, ..Rmpp::default() }
}

pub(super) fn header_of(mad: &[u8]) -> MadHeader {
    MadHeader::parse(mad).unwrap()
}

pub(super) fn rmpp_of(mad: &[u8]) -> Rmpp {
    Rmpp::parse(&mad[MadHeader::LEN..]).unwrap()
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(AgentsConfig::default())
    }
    pub(super) fn with(config: AgentsConfig) -> Self {
        let ports = [Agents::new(config), Agents::new(config)];
        Self { ports, now: Time(0), sent: Vec::new(), drops: Vec::new() }
    }

    #[track_caller]
    pub(super) fn register(&mut self, port: usize, registration: &Registration) -> AgentId {
        self.ports[port].register(registration).unwrap()
    }
    #[track_caller]
    pub(super) fn send(&mut self, port: usize, agent: AgentId, mad: &[u8], timeout_ms: u32) {
        self.ports[port].send(agent, to(1 - port), mad, timeout_ms, 3).unwrap();
    }

    fn arrive(&mut self, from: usize, sent: &MadTransmit) {
        assert!(sent.address.lid == lid(A) || sent.address.lid == lid(B), "{:?}", sent.address);
        let port = usize::from(sent.address.lid.0 - 1);
        let source = MadAddress { qpn: sent.qpn, lid: lid(from), ..sent.address };
        let taken = self.ports[port].handle_mad(self.now, sent.address.qpn, source, &sent.mad);
        self.drops.extend(taken.err());
    }

    /// Moves datagrams until both ports are silent.
    pub(super) fn settle(&mut self, fate: &mut dyn FnMut(&MadTransmit) -> Fate) {
        loop {
            let (mut late, mut moved) = (VecDeque::new(), false);
            for from in [A, B] {
                while let Some(sent) = self.ports[from].poll_transmit(self.now) {
                    moved = true;
                    self.sent.push(sent);
                    match fate(&sent) {
                        Fate::Lost => {}
                        Fate::Late => late.push_back((from, sent)),
                        Fate::Arrives => self.arrive(from, &sent),
                        Fate::Twice => {
                            self.arrive(from, &sent);
                            self.arrive(from, &sent);
                        }
                    }
                }
            }
            for (from, sent) in late.iter().rev() {
                self.arrive(*from, sent);
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass up to the next timer, and serves it.
    pub(super) fn wait(&mut self) -> bool {
        let next = self.ports.iter().filter_map(Agents::next_deadline).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        self.ports.iter_mut().for_each(|port| port.handle_timeout(self.now));
        true
    }

    /// Runs until there are no timers, or for as long as the test allows.
    pub(super) fn run(&mut self, fate: &mut dyn FnMut(&MadTransmit) -> Fate) {
        for _ in 0..10_000 {
            self.settle(fate);
            if !self.wait() {
                return;
            }
        }
        panic!("timers never end");
    }

    pub(super) fn take(&mut self, port: usize, agent: AgentId) -> Option<Delivery> {
        self.ports[port].poll_deliver(agent)
    }
    /// The next delivery, which must have come from the other port.
    #[track_caller]
    pub(super) fn expect(&mut self, port: usize, agent: AgentId) -> Delivery {
        let delivery = self.take(port, agent).expect("a delivery");
        assert_eq!(delivery.outcome, Outcome::Received);
        delivery
    }
}

pub(super) fn arrives(_: &MadTransmit) -> Fate {
    Fate::Arrives
}

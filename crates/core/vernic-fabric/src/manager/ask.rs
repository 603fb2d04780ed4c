//! Requests of a subnet manager: what is on its way, and what each is for.

use std::collections::{BTreeMap, VecDeque};

use vernic_proto::mad::MadAddress;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method};
use vernic_wire::smp::{DATA_LEN, SmAttribute, Smp};
use vernic_wire::{Lid, Qpn};

use super::map::End;

/// What an answer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// NodeInfo of what is behind a port, or of the manager's own node.
    Node(Option<End>),
    Description(usize),
    Switch(usize),
    Port(End),
    /// A write that need only succeed.
    Write,
    /// Whether a switch has news.
    News,
    /// The state of the manager's own port.
    Own,
    /// SMInfo of another manager.
    Peer,
    /// A write of SMInfo that hands the subnet over.
    Handover,
    /// SMInfo of the master.
    Master,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) purpose: Purpose,
    /// The ports that lead to the node.
    pub(super) path: Vec<u8>,
    pub(super) method: Method,
    pub(super) attribute: SmAttribute,
    pub(super) modifier: u32,
    pub(super) data: [u8; DATA_LEN],
}

impl Ask {
    pub(super) fn read(
        purpose: Purpose,
        path: &[u8],
        attribute: SmAttribute,
        modifier: u32,
    ) -> Self {
        let (method, data) = (Method::GET, [0; DATA_LEN]);
        Self { purpose, path: path.to_vec(), method, attribute, modifier, data }
    }
    pub(super) fn write(
        purpose: Purpose,
        path: &[u8],
        attribute: SmAttribute,
        modifier: u32,
        emit: impl FnOnce(&mut [u8]),
    ) -> Self {
        let mut ask = Self::read(purpose, path, attribute, modifier);
        ask.method = Method::SET;
        emit(&mut ask.data);
        ask
    }
    fn datagram(&self, transaction_id: u64, m_key: u64) -> [u8; MAD_LEN] {
        // Longer paths are not asked.
        let mut smp = Smp::by_route(&self.path, self.attribute, self.modifier);
        smp.header.method = self.method;
        smp.header.transaction_id = transaction_id;
        (smp.m_key, smp.data) = (m_key, self.data);
        let mut mad = [0; MAD_LEN];
        smp.emit(&mut mad);
        mad
    }
}

/// Requests that wait, and those that wait for their answers.
#[derive(Debug, Default)]
pub(super) struct Asks {
    waiting: VecDeque<Ask>,
    in_flight: BTreeMap<u32, Ask>,
    last_id: u32,
    /// Requests sent since ever.
    pub(super) sent: u64,
}

impl Asks {
    pub(super) fn push(&mut self, ask: Ask) {
        self.waiting.push_back(ask);
    }
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }
    /// Forgets everything: answers are for nothing.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.in_flight.clear();
    }
    /// Returns the next datagram to be sent, if no more than `window` are on their way.
    pub(super) fn poll(&mut self, window: usize, m_key: u64) -> Option<[u8; MAD_LEN]> {
        if self.in_flight.len() >= window {
            return None;
        }
        let ask = self.waiting.pop_front()?;
        self.last_id = self.last_id.wrapping_add(1);
        self.sent += 1;
        let mad = ask.datagram(u64::from(self.last_id), m_key);
        self.in_flight.insert(self.last_id, ask);
        Some(mad)
    }
    /// Takes the request that an answer is for.
    pub(super) fn answer(&mut self, header: &MadHeader) -> Option<Ask> {
        self.in_flight.remove(&(header.transaction_id as u32))
    }
}

/// Where datagrams of directed routes go.
pub(super) fn anywhere() -> MadAddress {
    MadAddress { qpn: Qpn::SMI, lid: Lid::PERMISSIVE, ..MadAddress::default() }
}

//! Other subnet managers: which of them is the master (IBTA 14.4.1).
//!
//! | state | becomes |
//! |---|---|
//! | discovering | standby, if there is a master or another one with more right; else master |
//! | standby | discovering, if the master does not answer or hands over |
//! | master | standby, once a manager with more right has taken over |

use vernic_proto::mad::MadAddress;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{MadStatus, PortInfo, SmAttribute, SmInfo, Smp};
use vernic_wire::{Guid, Qpn};

use super::ask::{Ask, Purpose};
use super::sweep::Phase;
use super::{Manager, Outgoing, SmState, Via};
use crate::Time;

/// What a write of SMInfo asks for: its attribute modifier (IBTA 14.4.1.2).
const HANDOVER: u32 = 1;
const ACKNOWLEDGE: u32 = 2;
const DISABLE: u32 = 3;
const STANDBY: u32 = 4;
const DISCOVER: u32 = 5;
/// The key by which managers of a subnet know each other, that of OpenSM unless it is told another
/// one: it ignores managers without it, and would be a second master beside them.
const SM_KEY: u64 = 1;
/// Requests to the master that may stay without an answer.
const MOST_SILENT: u32 = 3;

/// Another manager.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) info: SmInfo,
    pub(super) path: Vec<u8>,
}

impl Manager {
    pub(super) fn sm_info(&self) -> SmInfo {
        SmInfo {
            guid: self.config.guid,
            sm_key: SM_KEY,
            activity_count: self.asks.sent as u32,
            priority: self.config.priority & 15,
            state: self.state as u8,
        }
    }
    /// Whether another manager has more right to be the master: a higher priority, or the same and
    /// a lower GUID.
    fn yields_to(&self, other: &SmInfo) -> bool {
        let own = self.sm_info();
        (other.priority, own.guid.0) > (own.priority, other.guid.0)
    }
    /// Asks all ports that say that a manager is there.
    pub(super) fn ask_peers(&mut self) {
        self.peers.clear();
        let own = self.own_end();
        let manages = |info: &PortInfo| info.capabilities & PortInfo::CAPABILITY_SM != 0;
        let ends = self.map.end_ports();
        let ends = ends.filter(|(end, port)| Some(*end) != own && manages(&port.info));
        let paths: Vec<_> = ends.map(|(_, port)| port.path.clone()).collect();
        for path in paths {
            self.asks.push(Ask::read(Purpose::Peer, &path, SmAttribute::SM_INFO, 0));
        }
    }
    /// Takes the answer of another manager.
    pub(super) fn learn_peer(&mut self, ask: &Ask, smp: &Smp, now: Time) {
        let Ok(info) = SmInfo::parse(&smp.data) else { return };
        match ask.purpose {
            Purpose::Master => {
                self.silent = 0;
                self.look_at = Some(now + self.config.poll_ns);
                if info.state != SmState::Master as u8 {
                    self.discover(now);
                }
            }
            _ => self.peers.push(Peer { info, path: ask.path.clone() }),
        }
    }
    /// Decides whether this manager is the master, once all others have answered.
    pub(super) fn decide(&mut self, now: Time) -> bool {
        if self.state == SmState::NotActive {
            return false;
        }
        let is_master = |peer: &&Peer| peer.info.state == SmState::Master as u8;
        let master = self.peers.iter().find(is_master).cloned();
        let better = self
            .peers
            .iter()
            .find(|peer| peer.info.state != SmState::NotActive as u8 && self.yields_to(&peer.info));
        let better = better.cloned();
        match (self.state, master, better) {
            // The other one still learns what there is: it can take over once it stands by.
            (SmState::Master, _, Some(better))
                if better.info.state == SmState::Discovering as u8 =>
            {
                self.want_sweep(now + self.config.poll_ns);
                true
            }
            (SmState::Master, _, Some(better)) => {
                // The subnet goes on as it is until the other one acknowledges.
                let info = self.sm_info();
                let (attribute, path) = (SmAttribute::SM_INFO, &better.path);
                let emit = |buf: &mut [u8]| info.emit(buf);
                self.asks.push(Ask::write(Purpose::Handover, path, attribute, HANDOVER, emit));
                true
            }
            (SmState::Master, ..) => true,
            (_, Some(master), _) | (_, None, Some(master)) => {
                self.stand_by(master.path, now);
                false
            }
            (_, None, None) => {
                self.state = SmState::Master;
                self.forget_written();
                true
            }
        }
    }
    /// Leaves the subnet to another manager that has taken it over.
    pub(super) fn yield_to(&mut self, path: Vec<u8>, now: Time) {
        self.stand_by(path, now);
    }
    fn stand_by(&mut self, master: Vec<u8>, now: Time) {
        self.state = SmState::Standby;
        self.master = master;
        self.silent = 0;
        self.asks.clear();
        self.phase = Phase::Idle;
        self.look_at = Some(now + self.config.poll_ns);
    }
    /// Sweeps as if new.
    pub(super) fn discover(&mut self, now: Time) {
        self.state = SmState::Discovering;
        self.want_sweep(now);
    }
    /// Asks the master whether it is there.
    pub(super) fn ask_master(&mut self) {
        let path = self.master.clone();
        self.asks.push(Ask::read(Purpose::Master, &path, SmAttribute::SM_INFO, 0));
    }
    /// Notes that the master did not answer.
    pub(super) fn miss_master(&mut self, now: Time) {
        self.silent += 1;
        self.look_at = Some(now + self.config.poll_ns);
        if self.silent >= MOST_SILENT {
            self.discover(now);
        }
    }
    /// Answers a request of another manager, or of a tool.
    pub(super) fn answer_sm_info(&mut self, via: Via, from: MadAddress, smp: &Smp, now: Time) {
        let asked = SmInfo::parse(&smp.data).ok();
        let mut status = MadStatus::OK;
        match (smp.header.method, smp.header.attribute_modifier) {
            (Method::GET, _) => {}
            (Method::SET, modifier) => {
                if !self.obey(modifier, asked, from, now) {
                    status = MadStatus::INVALID_FIELD;
                }
            }
            _ => status = MadStatus::METHOD_NOT_SUPPORTED,
        }
        let returns = if smp.is_directed() { Smp::RETURNS } else { 0 };
        let header =
            MadHeader { method: Method::GET_RESP, status: status.0 | returns, ..smp.header };
        let mut answer = Smp { header, ..*smp };
        answer.data = [0; 64];
        self.sm_info().emit(&mut answer.data);
        let mut mad = [0; MAD_LEN];
        answer.emit(&mut mad);
        self.send(via, from, mad.to_vec(), 0);
    }
    /// Does what a write of SMInfo asks for. Returns whether that is possible in this state.
    fn obey(&mut self, modifier: u32, asked: Option<SmInfo>, from: MadAddress, now: Time) -> bool {
        match (self.state, modifier) {
            (SmState::Standby, HANDOVER) => {
                self.acknowledge(from);
                self.state = SmState::Master;
                self.forget_written();
                self.want_sweep(now);
                true
            }
            (SmState::Master, HANDOVER) => {
                self.acknowledge(from);
                self.want_sweep(now);
                true
            }
            (SmState::Master, ACKNOWLEDGE) => {
                let other = asked.map_or(Guid(0), |info| info.guid);
                let path = self.subnet.by_port_guid(other).map(|(_, port)| port.path.clone());
                if let Some(path) = path {
                    self.stand_by(path, now);
                }
                true
            }
            (SmState::Standby, DISABLE) => {
                self.state = SmState::NotActive;
                true
            }
            (SmState::NotActive, STANDBY) | (SmState::Standby, DISCOVER) => {
                self.discover(now);
                true
            }
            _ => false,
        }
    }
    /// Tells a master that hands over that it is done.
    fn acknowledge(&mut self, to: MadAddress) {
        if !to.lid.is_unicast() {
            return;
        }
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            mgmt_class: MgmtClass::SUBNET_LID_ROUTED,
            class_version: vernic_wire::smp::CLASS_VERSION,
            method: Method::SET,
            transaction_id: self.next_own_id(),
            attribute_id: SmAttribute::SM_INFO.0,
            attribute_modifier: ACKNOWLEDGE,
            ..MadHeader::default()
        };
        let mut mad = vec![0; MAD_LEN];
        header.emit(&mut mad);
        self.sm_info().emit(&mut mad[Smp::DATA_AT..]);
        let address = MadAddress { qpn: Qpn::SMI, ..to };
        self.out.push_back(Outgoing {
            via: Via::Lid,
            address,
            mad,
            timeout_ms: self.config.timeout_ms,
            retries: self.config.retries,
        });
    }
}

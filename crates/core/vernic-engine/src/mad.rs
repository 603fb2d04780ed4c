//! Management datagrams (MADs) of a RoCE device, those of communication management aside: the
//! agents of this process, and what a device answers by itself.
//!
//! Owns the agents of the process on this device (`vernic_proto::mad`). Called by the lane with
//! datagrams for QP1 (`lane/gsi.rs`), and by programs through `management.rs`. An InfiniBand device
//! has none of this: its agents are in the fabric process.
//!
//! | file | what |
//! |---|---|
//! | `mad.rs` | who gets a datagram, and the path of one that is sent |
//! | `mad/performance.rs` | the agent of performance management, which every device has |
//!
//! # Which process gets a datagram
//!
//! All processes of a host share port 4791, and QP1. An answer has the slot of the process that
//! asked in the high bits of its transaction id, as a communication id has. A request goes to the
//! process that has claimed the name of its class, version and vendor. What nobody has claimed is
//! answered by the process that received it.
//!
//! # Locks
//!
//! The state has a lock of its own, which is taken with and without the lane, and under which
//! nothing else is locked but the bell. Whoever registers agents has another lock around it.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use vernic_io::host::Slot;
use vernic_io::udp::FLOWS;
use vernic_io::{
    Address, HandoverResult, NameError, NoPath, PathId, PathRequest, RxPacket, ServiceName,
    ServiceScope, TxPath,
};
use vernic_proto::mad::{
    Agents, Delivery, MadAddress, MadGrh, MadTransmit, Registration, has_oui, oui_of,
};
use vernic_proto::{DropReason, Time};
use vernic_wire::cm::ServiceId;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::{Deth, Lid, Qpn, RoceVersion};

use crate::counters::Counted;
use crate::device::gid::GidEntry;
use crate::device::opened::Device;
use crate::support::events::{EventQueue, lock};

use performance::{Kept, Outcome};

mod performance;

/// Requests for performance management that may wait, with answers that were not sent. Their
/// askers repeat.
const MAX_ASKED: usize = 64;

/// High byte of the service that stands for a class: none of connection management has it.
const CLASS_SERVICE: u64 = 0xFD << 56;

/// A request that the device answers itself.
struct Asked {
    from: MadAddress,
    mad: [u8; MAD_LEN],
}

/// What changes.
#[derive(Default)]
pub(crate) struct State {
    /// The agents, once the first was registered.
    pub(crate) agents: Option<Agents>,
    /// Names of classes that this process has claimed, with how many agents have each.
    names: Vec<(ServiceName, usize)>,
    /// Holds an entry while a datagram waits for the program.
    bell: Option<Arc<EventQueue<()>>>,
    /// Whether the bell has its entry.
    is_rung: bool,
    /// Whether the program has put a datagram back.
    pub(crate) is_put_back: bool,
    /// Requests that wait for sums of counters.
    asked: Vec<Asked>,
    /// The sums of counters of a moment ago.
    counted: Kept,
    /// A thread answers what is asked.
    is_answering: bool,
    answers: VecDeque<MadTransmit>,
}

impl State {
    /// Leaves an answer to the lane.
    fn push_answer(&mut self, from: MadAddress, mad: [u8; MAD_LEN]) {
        let address = MadAddress { qkey: vernic_wire::cm::GSI_QKEY, ..from };
        self.answers.push_back(MadTransmit { qpn: Qpn::GSI, address, mad });
    }

    /// How many agents have this name.
    fn agents_of(&mut self, name: ServiceName) -> Option<&mut usize> {
        self.names.iter_mut().find(|(claimed, _)| *claimed == name).map(|(_, agents)| agents)
    }

    /// Returns the next datagram for the program.
    pub(crate) fn take_delivery(&mut self) -> Option<Delivery> {
        let agents = self.agents.as_mut()?;
        let agent = agents.ready().next()?;
        let delivery = agents.poll_deliver(agent);
        self.ring_or_still();
        delivery
    }

    /// Makes the bell say whether a datagram waits.
    pub(crate) fn ring_or_still(&mut self) {
        let Some(bell) = &self.bell else { return };
        // Entries come and go here only, under the lock of the state.
        let is_wanted = self.has_delivery() || self.is_put_back;
        match (is_wanted, self.is_rung) {
            (true, false) => drop(bell.push(())),
            (false, true) => drop(bell.try_next(|()| ())),
            _ => {}
        }
        self.is_rung = is_wanted;
    }

    /// Whether a datagram waits for the program.
    pub(crate) fn has_delivery(&self) -> bool {
        self.agents.as_ref().is_some_and(|agents| agents.ready().next().is_some())
    }
}

/// The management agents of a device.
pub(crate) struct MadShared {
    device: Arc<Device>,
    pub(crate) state: Mutex<State>,
    /// Held while an agent comes or goes.
    pub(crate) registering: Mutex<()>,
    /// Whether there may be something to send that the lane does not know of.
    work: AtomicBool,
    /// Makes the lane look at this again, from any thread.
    ring: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Chooses the source port: each datagram takes another one, in case one of the processes that
    /// share the port of the other end is stopped.
    flow: AtomicU16,
}

impl MadShared {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let (state, registering) = (Mutex::default(), Mutex::default());
        let (work, ring, flow) = (AtomicBool::new(false), OnceLock::new(), AtomicU16::new(0));
        Self { device, state, registering, work, ring, flow }
    }

    /// Sets what makes the lane look at this again.
    pub(crate) fn set_ring(&self, ring: impl Fn() + Send + Sync + 'static) {
        let _ = self.ring.set(Box::new(ring));
    }

    /// Notes that there is something to send: step P1 of the proof at the head of `progress.rs`.
    pub(crate) fn leave_work(&self) {
        self.work.store(true, Ordering::Release);
    }

    /// Whether there may be something to send. Resets the note.
    pub(crate) fn take_work(&self) -> bool {
        self.work.swap(false, Ordering::AcqRel)
    }

    /// Whether the device has agents of its own.
    pub(crate) fn has_agents(&self) -> bool {
        let rules = self.device.rules();
        rules.uses_gids() && !rules.has_lids()
    }

    /// Claims the name of a class among the processes of the host, for one more agent. May wait for
    /// a moment, without the lock of the state.
    ///
    /// # Errors
    /// Another process has it, or the system has no descriptor left.
    pub(crate) fn claim(&self, wanted: &Registration) -> Result<(), NameError> {
        let name = self.name_of_agent(wanted);
        let is_claimed = lock(&self.state).agents_of(name).is_some();
        if !is_claimed {
            let slots = self.device.slots();
            slots.claim_name(&name)?;
            slots.open_name(&name).inspect_err(|_| slots.release_name(&name))?;
        }
        let mut state = lock(&self.state);
        match state.agents_of(name) {
            Some(agents) => *agents += 1,
            None => state.names.push((name, 1)),
        }
        Ok(())
    }

    /// Gives the name of a class back, for one agent less.
    pub(crate) fn release(&self, registration: &Registration) {
        let name = self.name_of_agent(registration);
        let mut state = lock(&self.state);
        let Some(agents) = state.agents_of(name) else { return };
        *agents -= 1;
        if *agents == 0 {
            state.names.retain(|(claimed, _)| *claimed != name);
            drop(state);
            self.device.slots().release_name(&name);
        }
    }

    fn name_of_agent(&self, agent: &Registration) -> ServiceName {
        let oui = if has_oui(agent.class) { agent.oui } else { 0 };
        self.name_of(agent.class, agent.class_version, oui)
    }

    /// Returns the name by which processes of this host find the one that takes a class.
    fn name_of(&self, class: MgmtClass, version: u8, oui: u32) -> ServiceName {
        let number = u64::from(oui) << 16 | u64::from(class.0) << 8 | u64::from(version);
        let scope = ServiceScope::Netdev(self.device.ports()[0].netdev_index());
        ServiceName { service: ServiceId(CLASS_SERVICE | number), scope }
    }

    /// Handles a datagram for QP1. For the thread that has the lane.
    pub(crate) fn take(
        self: &Arc<Self>,
        packet: &RxPacket<'_>,
        deth: &Deth,
        header: &MadHeader,
        mad: &[u8; MAD_LEN],
        now: Time,
    ) -> Result<(), DropReason> {
        if !self.has_agents() {
            return Err(DropReason::MadClass);
        }
        if !packet.meta.handed_over && !self.is_ours(header, mad) {
            match self.hand_over(packet, header, mad) {
                HandoverResult::Yes => {
                    self.device.counts().note(Counted::MadHandedOver);
                    return Ok(());
                }
                HandoverResult::Full => return Err(DropReason::MadOverflow),
                HandoverResult::NoOwner => {}
            }
        }
        if !self.device.config().peers.contains(packet.meta.src.ip()) {
            return Err(DropReason::PeerNotAllowed);
        }
        let from = self.source(packet, deth);
        if header.mgmt_class == MgmtClass::PERFORMANCE && !is_response(header) {
            self.ask(Asked { from, mad: *mad }, packet.meta.src);
            return Ok(());
        }
        let mut state = lock(&self.state);
        let agents = state.agents.get_or_insert_with(|| Agents::new(Default::default()));
        let taken = agents.handle_mad(now, Qpn::GSI, from, mad);
        state.ring_or_still();
        taken.map_err(|reason| {
            tracing::debug!(src = %packet.meta.src, %reason, "management datagram dropped");
            DropReason::MadClass
        })
    }

    /// Whether a datagram is for this process, or for any that has the device.
    fn is_ours(&self, header: &MadHeader, mad: &[u8; MAD_LEN]) -> bool {
        if is_response(header) {
            let slot = slot_of(header);
            return !slot.is_ordinary() || self.device.slots().is_ours(slot);
        }
        let name = self.name_of_request(header, mad);
        header.mgmt_class == MgmtClass::PERFORMANCE
            || lock(&self.state).names.iter().any(|(claimed, _)| *claimed == name)
    }

    fn hand_over(
        &self,
        packet: &RxPacket<'_>,
        header: &MadHeader,
        mad: &[u8; MAD_LEN],
    ) -> HandoverResult {
        match is_response(header) {
            true => self.device.slots().hand_over_to_slot(slot_of(header), packet),
            false => {
                let name = self.name_of_request(header, mad);
                self.device.slots().hand_over_to_name(&name, packet)
            }
        }
    }

    fn name_of_request(&self, header: &MadHeader, mad: &[u8; MAD_LEN]) -> ServiceName {
        let oui = oui_of(header.mgmt_class, mad);
        self.name_of(header.mgmt_class, header.class_version, oui)
    }

    /// Returns where a datagram came from.
    fn source(&self, packet: &RxPacket<'_>, deth: &Deth) -> MadAddress {
        let meta = packet.meta;
        let index = row_of(&self.device.gid_rows(), meta.dst).map_or(0, |row| row.index);
        let grh = MadGrh {
            gid: meta.src.gid(),
            gid_index: index,
            flow_label: meta.flow_label,
            hop_limit: meta.hop_limit,
            traffic_class: meta.traffic_class & !3,
        };
        MadAddress { qpn: deth.src_qpn, qkey: deth.qkey, grh: Some(grh), ..MadAddress::default() }
    }

    /// Answers a request, or leaves it to the thread that counts, which is started if it does not
    /// run. A request too many is dropped and counted here: [`DropReason::MadOverflow`] would put
    /// it into the queue of datagrams for other processes, in which connections wait.
    fn ask(self: &Arc<Self>, mut asked: Asked, src: Address) {
        let mut state = lock(&self.state);
        if state.asked.len() + state.answers.len() >= MAX_ASKED {
            drop(state);
            self.device.drop_from(src, DropReason::MadOverflow);
            return;
        }
        match state.counted.answer(&mut asked.mad) {
            // The lane sends after each datagram that it has taken.
            Outcome::Answered => return state.push_answer(asked.from, asked.mad),
            Outcome::Unanswered => return,
            Outcome::MustCount => state.asked.push(asked),
        }
        if state.is_answering {
            return;
        }
        state.is_answering = true;
        drop(state);
        let shared = self.clone();
        let spawned =
            crate::support::threads::spawn("vernic-counters", move || shared.answer_all());
        if let Err(error) = spawned {
            tracing::warn!(%error, "performance management cannot answer");
            let mut state = lock(&self.state);
            (state.is_answering, state.asked) = (false, Vec::new());
            drop(state);
            self.device.drop_from(src, DropReason::MadOverflow);
        }
    }

    /// Counts, and answers all who asked meanwhile. Asking the processes of the host takes a
    /// moment, which the lane cannot wait.
    fn answer_all(&self) {
        self.answer_from(Kept::count(&self.device.info().name));
    }

    fn answer_from(&self, counted: Kept) {
        let mut state = lock(&self.state);
        (state.counted, state.is_answering) = (counted, false);
        for Asked { from, mut mad } in std::mem::take(&mut state.asked) {
            if counted.answer_waiting(&mut mad) == Outcome::Answered {
                state.push_answer(from, mad);
            }
        }
        drop(state);
        if let Some(ring) = self.ring.get() {
            ring();
        }
    }

    /// Handles deadlines that are over. For the thread that has the lane.
    pub(crate) fn handle_timeout(&self, now: Time) {
        let mut state = lock(&self.state);
        if let Some(agents) = &mut state.agents {
            agents.handle_timeout(now);
        }
        state.ring_or_still();
    }

    /// Calls `send` with a function that returns the next datagram to send, or `None`. Returns the
    /// latest time at which this module must be called again. For the thread that has the lane.
    pub(crate) fn drain(
        &self,
        now: Time,
        send: impl FnOnce(&mut dyn FnMut() -> Option<MadTransmit>),
    ) -> Option<Time> {
        let mut state = lock(&self.state);
        let State { agents, answers, .. } = &mut *state;
        send(&mut || {
            let next = answers.pop_front();
            next.or_else(|| agents.as_mut()?.poll_transmit(now))
        });
        let deadline = agents.as_ref().and_then(Agents::next_deadline);
        state.ring_or_still();
        deadline
    }

    /// Returns the path of a datagram: by its GIDs, or without them to this device itself, which
    /// is what LID 0 stands for.
    pub(crate) fn path(&self, address: &MadAddress) -> TxPath {
        let rows = self.device.gid_rows();
        let grh = address.grh.unwrap_or_default();
        let row = rows.iter().find(|row| row.index == grh.gid_index);
        let local = row.map(|row| row.gid).unwrap_or_default();
        let remote = address.grh.map_or(local, |grh| grh.gid);
        let from = self.device.port_of_gid(local);
        let hop_limit = if grh.hop_limit == 0 { HOP_LIMIT } else { grh.hop_limit };
        let to = PathRequest {
            port: from.number(),
            local,
            remote,
            netdev_index: from.netdev_index(),
            traffic_class: grh.traffic_class,
            hop_limit,
            service_level: 0,
            flow_label: grh.flow_label,
            dlid: Lid::RESERVED,
            path_bits: 0,
            roce: row.map(|row| row.kind.roce_version()).unwrap_or_default(),
            may_wait: false,
        };
        // If there is no path, the link refuses the packet and counts it.
        let nowhere = |_: NoPath| TxPath::new(local, remote, PathId::default(), 0);
        let path = from.open_path(&to).map_or_else(nowhere, |open| open.path);
        let flow = self.flow.fetch_add(FLOW_STEP, Ordering::Relaxed) % FLOWS;
        path.with_flow(flow).with_hop_limit(hop_limit)
    }

    /// Makes the queue whose descriptor says whether a datagram waits for the program.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn bell(&self) -> io::Result<Arc<EventQueue<()>>> {
        let mut state = lock(&self.state);
        if let Some(bell) = &state.bell {
            return Ok(bell.clone());
        }
        let bell = Arc::new(EventQueue::new()?);
        state.bell = Some(bell.clone());
        state.ring_or_still();
        Ok(bell)
    }
}

/// Hop limit where nobody said anything else: the usual one of IP.
const HOP_LIMIT: u8 = 64;

/// How much further the next datagram's source port is: odd, so that all ports have their turn.
const FLOW_STEP: u16 = 5;

/// Returns the row that a packet came to: of its version of RoCE, so that its answer is of the
/// same.
fn row_of(rows: &[GidEntry], to: Address) -> Option<&GidEntry> {
    let version = match to {
        Address::RoceV1(_) => RoceVersion::V1,
        _ => RoceVersion::V2,
    };
    let of_gid = rows.iter().filter(|row| row.gid == to.gid());
    of_gid.min_by_key(|row| row.kind.roce_version() != version)
}

/// Whether a datagram answers another one.
fn is_response(header: &MadHeader) -> bool {
    header.method.is_response() || header.method == Method::TRAP_REPRESS
}

/// Returns the slot of the process that asked what a datagram answers.
fn slot_of(header: &MadHeader) -> Slot {
    crate::cm::slot_of(vernic_wire::cm::CommId((header.transaction_id >> 32) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gid::GidType;
    use crate::{Config, Context};

    fn shared() -> Arc<MadShared> {
        let context = Context::open(Some("lo"), Config::default()).unwrap();
        Arc::new(MadShared::new(context.engine().mads.device.clone()))
    }

    #[test]
    fn a_request_by_version_1_is_answered_by_version_1() {
        let context = Context::open(Some("lo"), Config::default()).unwrap();
        let ours = context.gid_table().swap_remove(0);
        let row = |index, kind| GidEntry { index, kind, ..ours.clone() };
        let rows = [row(0, GidType::RoceV2), row(32, GidType::RoceV1)];
        let index = |to| row_of(&rows, to).map(|row| row.index);
        assert_eq!(index(Address::RoceV1(ours.gid)), Some(32));
        let udp =
            vernic_io::udp::arrival(([10, 0, 0, 9], 1).into(), (ours.gid.to_ip(), 4791).into());
        assert_eq!(index(udp.dst), Some(0));
        assert_eq!(index(Address::RoceV1(vernic_wire::Gid([9; 16]))), None);
        assert_eq!(row_of(&rows[..1], Address::RoceV1(ours.gid)).map(|row| row.index), Some(0));
    }

    /// A request for the counters of port 1.
    fn asked() -> Asked {
        let header = MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::PERFORMANCE,
            class_version: 1,
            method: Method::GET,
            attribute_id: vernic_wire::pma::PmAttribute::PORT_COUNTERS.0,
            ..MadHeader::default()
        };
        let mut mad = [0; MAD_LEN];
        header.emit(&mut mad);
        mad[vernic_wire::pma::DATA_AT + 1] = 1;
        Asked { from: MadAddress::default(), mad }
    }

    #[test]
    fn sums_answer_all_who_ask_and_requests_too_many_are_dropped_and_counted() {
        let shared = shared();
        let src = Address::RoceV1(vernic_wire::Gid::default());
        let dropped = || shared.device.counts().drops(DropReason::MadOverflow);
        let waiting = || {
            let state = lock(&shared.state);
            (state.asked.len(), state.answers.len())
        };
        // As if a thread counted.
        lock(&shared.state).is_answering = true;
        for _ in 0..MAX_ASKED {
            shared.ask(asked(), src);
        }
        assert_eq!((waiting(), dropped()), ((MAX_ASKED, 0), 0));
        shared.ask(asked(), src);
        assert_eq!((waiting(), dropped()), ((MAX_ASKED, 0), 1));
        shared.answer_from(Kept::of_now());
        assert_eq!((waiting(), dropped()), ((0, MAX_ASKED), 1));
        shared.ask(asked(), src);
        assert_eq!((waiting(), dropped()), ((0, MAX_ASKED), 2), "answers that were not sent");
        lock(&shared.state).answers.clear();
        lock(&shared.state).counted = Kept::of_now();
        shared.ask(asked(), src);
        assert_eq!(waiting(), (0, 1), "answered at once");
        assert!(!lock(&shared.state).is_answering);
    }
}

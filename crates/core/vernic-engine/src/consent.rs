//! Neighbours that may be granted access to this process's memory, and what they told about
//! tickets.
//!
//! Called by the lane when a neighbour is met, has told something, or is gone. Nobody is granted
//! what his packets would not be: the queue pair must be connected to the one that asks, in a state
//! that takes requests, and the checks of key, domain, queue pair and rights are the responder's
//! (`vernic_mem::Memory::grant`). What is granted ends with the gates: the key's when it changes or
//! dies, the queue pair's when it leaves those states.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use vernic_io::host::Slot;
use vernic_io::neighbour::{Neighbour, NeighbourId};
use vernic_mem::{
    Access, GatePass, Grant, GrantError, PeerGates, PeerMemory, PeerProcess, Reach, Sentinel,
    SharedRange, Visitor, VisitorId, admit,
};
use vernic_proto::{QpState, QpType};
use vernic_wire::{Qpn, Rkey};

use crate::direct::Refusal;
use crate::events::lock;
use crate::lane::Lane;
use crate::near::{Lender, Way};
use crate::progress::Engine;
use crate::qp_state::{QpCore, QpInner};
use crate::tickets::{Consent, Denial, Offer, Ticket, Told};

/// A neighbour in its two roles: it visits our memory, and we visit its.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) neighbour: Arc<Neighbour>,
    /// When its connection was looked at last, nanoseconds of the engine.
    pub(crate) looked: AtomicU64,
    /// The kernel does not let us copy from or to its memory: tried once.
    pub(crate) is_forbidden: AtomicBool,
    /// Its gates have come.
    has_gates: AtomicBool,
    /// Whether it copies bytes of our SENDs by itself: a [`Pulls`].
    pulls: AtomicU8,
    /// Counts those that did not leave our memory in time.
    cut_off: Arc<AtomicU64>,
    /// Counts what a neighbour could not be told.
    ends_untold: Arc<AtomicU64>,
}

/// Whether a neighbour copies bytes of our SENDs out of this process's memory by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Pulls {
    NotAsked,
    Asked,
    Yes,
    No,
}

impl Guest {
    /// Whether it copies bytes of our SENDs by itself.
    #[inline]
    pub(crate) fn pulls(&self) -> bool {
        self.pulls.load(Ordering::Relaxed) == Pulls::Yes as u8
    }

    /// Asks it to, unless it was asked.
    #[inline]
    pub(crate) fn want_pulls(&self, engine: &Engine) {
        if self.pulls.load(Ordering::Relaxed) == Pulls::NotAsked as u8 {
            self.lend(engine);
        }
    }

    #[cold]
    fn lend(&self, engine: &Engine) {
        let (memory, pid) = (&engine.memory, self.neighbour.pid());
        let gates = memory.sentinel().and_then(|sentinel| Ok((sentinel, memory.gates_file()?)));
        let next = match gates {
            Ok((sentinel, file)) if admit(pid) => {
                match self.neighbour.tell(&Told::Lend { sentinel }.emit(), Some(file)) {
                    Ok(()) => Pulls::Asked,
                    // It does not listen now: asked with another SEND.
                    Err(_) => Pulls::NotAsked,
                }
            }
            // The kernel lets another process in, or there are no gates.
            _ => Pulls::No,
        };
        self.pulls.store(next as u8, Ordering::Relaxed);
    }

    /// It has said whether it can. False if nobody asked.
    fn note_pulls(&self, can: bool) -> bool {
        let now = self.pulls.load(Ordering::Relaxed);
        let next = if can { Pulls::Yes } else { Pulls::No };
        // Once it could not it is not believed to be able any more.
        let was_asked = [Pulls::Asked, Pulls::Yes].iter().any(|known| now == *known as u8);
        if was_asked {
            self.pulls.store(next as u8, Ordering::Relaxed);
        }
        was_asked || now == Pulls::No as u8 && !can
    }

    /// Asks for consent. Where it cannot be told now, or something of the answer is lost (a file
    /// for which this process has no descriptor), it is asked again after a while.
    pub(crate) fn ask(&self, asker: Qpn, target: Qpn, rkey: Rkey) {
        let has_gates = self.has_gates.load(Ordering::Relaxed);
        let _ = self.neighbour.tell(&Told::Ask { asker, target, rkey, has_gates }.emit(), None);
    }
}

impl Visitor for Guest {
    fn inside(&self) -> u64 {
        self.neighbour.inside_us().load(Ordering::Acquire)
    }

    fn is_gone(&self) -> bool {
        self.neighbour.has_hung_up()
    }

    fn cut_off(&self) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            pid = self.neighbour.pid(),
            "a process of this host stays inside memory that was taken back: it is granted no more"
        );
    }

    fn tell_ended(&self) -> bool {
        let Err(error) = self.neighbour.tell(&Told::Ended.emit(), None) else { return true };
        if self.is_gone() {
            return true;
        }
        self.ends_untold.fetch_add(1, Ordering::Relaxed);
        let pid = self.neighbour.pid();
        tracing::debug!(pid, %error, "a process of this host was not told to unmap memory");
        false
    }
}

/// What the lane knows of a neighbour's memory, and the neighbour of ours.
#[derive(Debug)]
struct Host {
    guest: Arc<Guest>,
    /// It was named to the gates, which wait for it until it is cut off.
    visitor: Option<VisitorId>,
    /// Its gates.
    gates: Option<Arc<PeerGates>>,
    /// Out of whose memory we copy bytes of its SENDs.
    lender: Option<Lender>,
    /// Ways to its memory that are in use, by the gate of their key, and whether they may be
    /// written.
    reaches: Vec<(GatePass, bool, Weak<Reach>)>,
}

/// The neighbours of a lane. At most as many as there are neighbours.
#[derive(Debug, Default)]
pub(crate) struct Guests(Vec<Host>);

impl Guests {
    fn find(&mut self, id: NeighbourId) -> Option<&mut Host> {
        self.0.iter_mut().find(|host| host.guest.neighbour.id() == id)
    }

    /// A neighbour is met.
    pub(crate) fn add(&mut self, engine: &Engine, neighbour: Arc<Neighbour>) {
        let guest = Arc::new(Guest {
            neighbour,
            looked: AtomicU64::new(0),
            is_forbidden: AtomicBool::new(false),
            has_gates: AtomicBool::new(false),
            pulls: AtomicU8::new(Pulls::NotAsked as u8),
            cut_off: engine.counters.direct.cut_off.clone(),
            ends_untold: engine.counters.direct.ends_untold.clone(),
        });
        self.0.push(Host { guest, visitor: None, gates: None, lender: None, reaches: Vec::new() });
    }

    /// The one that a queue pair is connected to.
    pub(crate) fn get(&self, id: NeighbourId) -> Option<&Arc<Guest>> {
        self.0.iter().map(|host| &host.guest).find(|guest| guest.neighbour.id() == id)
    }

    /// The neighbour's memory, if bytes of its SENDs are copied out of it here.
    pub(crate) fn lender(&self, id: NeighbourId) -> Option<&Lender> {
        let host = self.0.iter().find(|host| host.guest.neighbour.id() == id)?;
        host.lender.as_ref()
    }

    /// The device is closed.
    pub(crate) fn close(&mut self, engine: &Engine) {
        for visitor in self.0.drain(..).filter_map(|host| host.visitor) {
            engine.memory.remove_visitor(visitor);
        }
    }

    /// A neighbour is gone: nobody waits for it any more.
    pub(crate) fn remove(&mut self, engine: &Engine, id: NeighbourId) {
        let Some(at) = self.0.iter().position(|host| host.guest.neighbour.id() == id) else {
            return;
        };
        if let Some(visitor) = self.0.swap_remove(at).visitor {
            engine.memory.remove_visitor(visitor);
        }
    }
}

impl Lane {
    /// A neighbour has told something about tickets.
    pub(crate) fn handle_told(
        &mut self,
        engine: &Engine,
        from: NeighbourId,
        bytes: &[u8],
        file: Option<OwnedFd>,
    ) {
        if !engine.config.direct {
            // Unanswered it asks less and less often.
            return;
        }
        let understood = match Told::parse(bytes) {
            Some(Told::Ask { asker, target, rkey, has_gates }) => {
                let consent = self.consent(engine, from, (asker, target), rkey, has_gates);
                self.tell_consent(engine, from, (asker, rkey), consent)
            }
            Some(Told::Gates) => self.take_gates(from, file),
            // Over already, which was said before; or the gates' file was lost: they are asked for
            // with the key, when it is asked for again.
            Some(Told::Offer { asker, offer, .. }) if !self.is_let(from, offer.key) => {
                self.is_asked_by(from, asker)
            }
            Some(Told::Offer { asker, rkey, offer }) => {
                let consent = self.accept(engine, from, &offer, file);
                self.note_answer(from, asker, rkey, consent)
            }
            Some(Told::Deny { asker, rkey, why }) => {
                tracing::debug!(qpn = %asker, %rkey, ?why, "a process of this host grants no access");
                // Asked for again after a while: what is in the way may go.
                self.is_asked_by(from, asker)
            }
            Some(Told::Ended) => self.let_go(from),
            Some(Told::Lend { sentinel }) => self.borrow(from, sentinel, file),
            Some(Told::Pulls { can }) => {
                tracing::debug!(neighbour = %from, can, "large SENDs by one copy");
                self.guests.get(from).is_some_and(|guest| guest.note_pulls(can))
            }
            None => false,
        };
        if !understood {
            engine.counters.direct.bad_messages.add(1);
        }
    }

    /// Whether the one that asks may have access, and what its tickets say.
    fn consent(
        &mut self,
        engine: &Engine,
        from: NeighbourId,
        (asker, target): (Qpn, Qpn),
        rkey: Rkey,
        has_gates: bool,
    ) -> Result<(Grant, Access), Denial> {
        let host = self.guests.find(from).ok_or(Denial::NotConnected)?;
        let visitor = host.welcome(engine, has_gates).ok_or(Denial::Unreachable)?;
        let qp = self.table.find(target).ok_or(Denial::NotConnected)?;
        let mut core = lock(&qp.core);
        let QpCore { machine, side } = &mut *core;
        let machine = machine.packets().ok_or(Denial::NotConnected)?;
        if !takes_requests(machine.state()) || machine.attr().dest_qpn != asker {
            return Err(Denial::NotConnected);
        }
        // The peer may have been too busy to say that it is of this host when the queue pair went
        // to RTR. One that only answers has no timeout at which it would ask again.
        if !machine.has_unacknowledged()
            && let Some(path) = &side.path
            && let Some((path, process)) = engine.straighten(path, asker)
        {
            self.near.found.push((Slot::of(asker), process.pid));
            side.go_straight(engine, path, asker, process);
        }
        // Who has the peer's slot is not what the asker says, but what the kernel does.
        let path = side.path.as_ref().filter(|_| side.way.requests != Way::Barred);
        let peer = path.and_then(|path| self.near.neighbour_of(path, asker));
        if peer != Some(from) {
            return Err(Denial::NotConnected);
        }
        let rights = rights_of(qp, machine.attr().access);
        // Under the queue pair's lock, as its gate is closed.
        let grant = engine.memory.grant(visitor, qp.pd, qp.qpn, rkey).map_err(|error| {
            tracing::debug!(qpn = %target, %rkey, %error, "no access for another process");
            match error {
                GrantError::Check(_) | GrantError::Rights => Denial::Refused,
                _ => Denial::Unreachable,
            }
        })?;
        let access = grant.access & rights;
        if access.is_empty() { Err(Denial::Refused) } else { Ok((grant, access)) }
    }

    fn tell_consent(
        &mut self,
        engine: &Engine,
        from: NeighbourId,
        (asker, rkey): (Qpn, Rkey),
        consent: Result<(Grant, Access), Denial>,
    ) -> bool {
        let Some(host) = self.guests.find(from) else { return false };
        let neighbour = &host.guest.neighbour;
        let counts = &engine.counters.direct;
        let consent = consent.and_then(|(grant, access)| {
            let (grant, file) = file_for(grant, access);
            let reachable = grant.share.is_some() || admit(neighbour.pid());
            reachable.then_some((grant, access, file)).ok_or(Denial::Unreachable)
        });
        let told = match &consent {
            Ok((grant, access, read_only)) => {
                counts.granted.add(1);
                let writable = || grant.share.as_ref().map(SharedRange::file);
                let file = read_only.as_ref().map(AsFd::as_fd).or_else(writable);
                let offer = offer_of(grant, *access);
                neighbour.tell(&Told::Offer { asker, rkey, offer }.emit(), file)
            }
            Err(why) => {
                counts.denied.add(1);
                neighbour.tell(&Told::Deny { asker, rkey, why: *why }.emit(), None)
            }
        };
        if let Err(error) = told {
            // It asks again after a while.
            tracing::debug!(pid = neighbour.pid(), %error, "a process of this host does not listen");
        }
        true
    }

    /// The file of a neighbour's gates has come.
    fn take_gates(&mut self, from: NeighbourId, file: Option<OwnedFd>) -> bool {
        let (Some(host), Some(file)) = (self.guests.find(from), file) else { return false };
        if host.gates.is_some() {
            // Asked for more than once before they came. Tickets hold on to those that they came
            // with.
            return true;
        }
        match PeerGates::open(file.as_fd()) {
            Ok(gates) => {
                host.gates = Some(Arc::new(gates));
                host.guest.has_gates.store(true, Ordering::Relaxed);
                true
            }
            Err(error) => {
                tracing::debug!(pid = host.guest.neighbour.pid(), %error, "gates that are none");
                false
            }
        }
    }

    /// A neighbour lends its memory: says whether it can be read.
    fn borrow(&mut self, from: NeighbourId, sentinel: Sentinel, file: Option<OwnedFd>) -> bool {
        // Without a descriptor for the file there are no gates, and the answer is no.
        let is_lost = file.is_none();
        if !self.take_gates(from, file) && !is_lost {
            return false;
        }
        let Some(host) = self.guests.find(from) else { return false };
        let neighbour = host.guest.neighbour.clone();
        host.lender = host.gates.clone().and_then(|gates| Lender::new(neighbour, sentinel, gates));
        let can = host.lender.is_some();
        if let Err(error) = host.guest.neighbour.tell(&Told::Pulls { can }.emit(), None) {
            // It waits for the answer, and sends packets.
            let pid = host.guest.neighbour.pid();
            tracing::debug!(pid, %error, "a process of this host does not listen");
        }
        true
    }

    /// Whether a neighbour's gate is open.
    fn is_let(&mut self, from: NeighbourId, pass: GatePass) -> bool {
        let gates = self.guests.find(from).and_then(|host| host.gates.as_ref());
        gates.is_some_and(|gates| gates.lets(pass))
    }

    /// Regions of a neighbour have ended: gives up the ways to them, and with the last ticket their
    /// mapping. False if it never gave any. Looks at queue pairs only if there is a way to give up.
    fn let_go(&mut self, from: NeighbourId) -> bool {
        let Some(host) = self.guests.find(from) else { return false };
        let Some(gates) = &host.gates else { return false };
        host.reaches.retain(|(_, _, reach)| reach.strong_count() != 0);
        if host.reaches.iter().all(|&(key, ..)| gates.lets(key)) {
            return true;
        }
        for qp in self.table.iter() {
            let tickets = &mut lock(&qp.core).side.tickets;
            if tickets.guest().is_some_and(|guest| guest.neighbour.id() == from) {
                tickets.end_closed();
            }
        }
        true
    }

    /// Makes the way to what was offered; where that is not possible, the key is never asked for
    /// again. `None` if the offer breaks the rules.
    fn accept(
        &mut self,
        engine: &Engine,
        from: NeighbourId,
        offer: &Offer,
        file: Option<OwnedFd>,
    ) -> Option<Consent> {
        let host = self.guests.find(from)?;
        let gates = host.gates.clone()?;
        if offer.is_mapped && file.is_none() {
            return None;
        }
        Some(match host.reach(offer, file) {
            Ok(reach) => Consent::Ticket(Ticket { offer: *offer, gates, reach }),
            Err(why) => {
                engine.counters.direct.note_refusal(why);
                Consent::Never
            }
        })
    }

    /// Gives the answer to the queue pair that has asked.
    fn note_answer(
        &mut self,
        from: NeighbourId,
        asker: Qpn,
        rkey: Rkey,
        consent: Option<Consent>,
    ) -> bool {
        let Some(qp) = self.table.find(asker) else { return false };
        let tickets = &mut lock(&qp.core).side.tickets;
        let connected = tickets.guest().is_some_and(|guest| guest.neighbour.id() == from);
        connected && consent.is_some_and(|consent| tickets.answer(rkey, consent))
    }

    fn is_asked_by(&self, from: NeighbourId, asker: Qpn) -> bool {
        let Some(qp) = self.table.find(asker) else { return false };
        let core = lock(&qp.core);
        core.side.tickets.guest().is_some_and(|guest| guest.neighbour.id() == from)
    }
}

impl Host {
    /// Lets it visit: from here on it is waited for. Tells it of our gates unless it has them.
    /// `None` if that is not possible.
    fn welcome(&mut self, engine: &Engine, has_gates: bool) -> Option<VisitorId> {
        let memory = &engine.memory;
        if !has_gates {
            let file = memory.gates_file().ok()?;
            self.guest.neighbour.tell(&Told::Gates.emit(), Some(file)).ok()?;
        }
        if self.visitor.is_none() {
            self.visitor = memory.add_visitor(self.guest.clone()).ok();
        }
        self.visitor
    }

    /// A way to what was offered: one that is there, or a new one.
    fn reach(&mut self, offer: &Offer, file: Option<OwnedFd>) -> Result<Arc<Reach>, Refusal> {
        let writable = writes(offer.access);
        self.reaches.retain(|(_, _, reach)| reach.strong_count() != 0);
        let is_it =
            |known: &&(GatePass, bool, Weak<Reach>)| (known.0, known.1) == (offer.key, writable);
        if let Some(reach) = self.reaches.iter().find(is_it).and_then(|known| known.2.upgrade()) {
            return Ok(reach);
        }
        let pid = self.guest.neighbour.pid();
        let reach = match file.filter(|_| offer.is_mapped) {
            Some(file) => {
                let memory = PeerMemory::map(file.as_fd(), offer.at, offer.len, writable);
                Reach::Mapped(memory.map_err(|error| {
                    tracing::debug!(pid, %error, "memory that was offered is not mapped");
                    Refusal::Unreachable
                })?)
            }
            None => {
                // 0 in a PID namespace that cannot be seen.
                let named = i32::try_from(pid).ok().filter(|&pid| pid > 0);
                let pid = named.ok_or(Refusal::NotPermitted)?;
                let Offer { at: addr, len, sentinel, .. } = *offer;
                Reach::Process(PeerProcess { pid, addr, len, sentinel })
            }
        };
        let reach = Arc::new(reach);
        self.reaches.push((offer.key, writable, Arc::downgrade(&reach)));
        Ok(reach)
    }
}

/// Whether the responder of a queue pair in this state takes requests.
pub(crate) fn takes_requests(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

/// What a queue pair's own rights (`ibv_access_flags`) permit. Of RC alone: its acknowledgements
/// say when nothing sent before is under way any more.
fn rights_of(qp: &QpInner, access: u32) -> Access {
    let service = match qp.qp_type {
        QpType::Rc => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        _ => Access::empty(),
    };
    Access::from_bits_truncate(access) & service
}

/// Whether `access` changes memory.
fn writes(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// A grant by what is to be handed over for it: a descriptor of its own for those who may only
/// read. Where there can be none, the memory is not shared by file.
fn file_for(grant: Grant, access: Access) -> (Grant, Option<OwnedFd>) {
    let Some(share) = grant.share.as_ref().filter(|_| !writes(access)) else {
        return (grant, None);
    };
    match share.file_to_read() {
        Ok(file) => (grant, Some(file)),
        Err(error) => {
            tracing::debug!(%error, "memory that may only be read is not shared by file");
            (Grant { share: None, ..grant }, None)
        }
    }
}

fn offer_of(grant: &Grant, access: Access) -> Offer {
    let at = grant.share.as_ref().map_or(grant.base, SharedRange::offset);
    Offer {
        iova: grant.iova,
        len: grant.len,
        access,
        key: grant.key,
        qp: grant.qp,
        is_mapped: grant.share.is_some(),
        at,
        sentinel: grant.sentinel,
    }
}

//! Communication management (CM): the machine, and what brings it the world.
//!
//! Owns the machine ([`Cm`], `vernic_proto::cm`), which knows all about messages and nothing about
//! the world, and brings it datagrams from QP1 (`lane/gsi.rs`) and time. What it has to say goes to
//! one [`CmSink`]; what it has to send, out through the lane. The commands of the layers above are
//! in `agent.rs`.
//!
//! | file | what |
//! |---|---|
//! | `cm.rs` | the machine behind its lock |
//! | `cm/early.rs` | requests that came before somebody listens |
//! | `cm/forwarded.rs` | requests that were handed to other processes |
//! | `cm/host.rs` | the addresses of this host |
//! | `cm/neighbours.rs` | processes of this host at the other end, and which of them are gone |
//! | `cm/route.rs` | whose a datagram is that came in, and by which path one goes out |
//!
//! # Locks
//!
//! The machine has a lock of its own, taken by commands alone or by the holder of the lane: lane,
//! then machine, and from there a queue pair's core, to look when it heard its peer; never the
//! other way. Events are told under the machine's lock, so that they are in order; a sink may only
//! take note of them.
//!
//! # Communication ids
//!
//! An id is a process slot (10 high bits), as a QPN is, and a number (22 bits) that nobody can tell
//! beforehand. So a datagram that reached the wrong process of this host says whose it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::SlotError;
use vernic_io::{ServiceName, Slot, TxPath, random};
use vernic_proto::Time;
use vernic_proto::cm::{Cm, CmConfig, CmCounters, Datagram, Event, ListenerId};
use vernic_wire::cm::{CommId, ServiceId};
use vernic_wire::{Gid, Qpn};

use crate::device::opened::Device;
use crate::qp::table::QpTable;
use crate::support::events::{lock, try_lock};

mod early;
mod forwarded;
mod host;
mod neighbours;
mod route;

use early::EarlyRequests;
use forwarded::Forwarded;
use host::HostAddresses;
use neighbours::Neighbours;

/// Bits of a communication id that are a number; those above are the slot.
pub(crate) const NUMBER_BITS: u32 = 32 - Slot::BITS;

/// The slot of the process (more exactly, of the device) that made an id.
pub(crate) fn slot_of(id: CommId) -> Slot {
    // A slot is the high bits of a QPN's 24 as well.
    Slot::of(Qpn::new(id.value() >> 8))
}

/// Where the events of connections go.
///
/// Called under locks of the engine, on any thread: it may take note of the event and wake
/// somebody, but must not call the engine or wait.
pub trait CmSink: Send + Sync {
    /// Something happened to a connection or an exchange.
    fn event(&self, event: Event);
    /// The device's netdev is gone, for good. Told once.
    fn removed(&self) {}
}

/// The machine and whom it tells.
#[derive(Default)]
pub(crate) struct State {
    /// Made when it is first needed: it needs a process slot.
    pub(crate) machine: Option<Cm>,
    pub(crate) sink: Option<Arc<dyn CmSink>>,
}

impl State {
    pub(crate) fn machine(&mut self, slot: Slot, response_timeout: u8) -> &mut Cm {
        self.machine.get_or_insert_with(|| {
            let base = u32::from(slot.value()) << NUMBER_BITS;
            let seed = u128::from(random()) << 64 | u128::from(random());
            let usual = CmConfig::new(base, NUMBER_BITS, seed);
            Cm::new(CmConfig { response_timeout, ..usual })
        })
    }

    fn counters(&self) -> CmCounters {
        self.machine.as_ref().map(|machine| *machine.counters()).unwrap_or_default()
    }

    /// Tells what has happened.
    pub(crate) fn tell(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        // Bounded: the machine makes events when it is called only.
        while let Some(event) = machine.poll_event() {
            if let Some(sink) = &self.sink {
                sink.event(event);
            }
        }
    }
}

/// A name that this device has among the processes of the host.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) name: ServiceName,
    pub(crate) listener: Option<ListenerId>,
}

/// What threads share of the device's communication management.
pub(crate) struct CmShared {
    device: Arc<Device>,
    pub(crate) state: Mutex<State>,
    /// A command has changed the machine since the lane last looked.
    work: AtomicBool,
    /// Datagrams that went to port 4791 of this host.
    pub(crate) sent_home: AtomicU64,
    /// The names that this device has.
    pub(crate) listening: Mutex<Vec<Claimed>>,
    early: Mutex<EarlyRequests>,
    forwarded: Mutex<Forwarded>,
    host: Mutex<HostAddresses>,
    neighbours: Mutex<Neighbours>,
}

impl CmShared {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            state: Mutex::default(),
            work: AtomicBool::new(false),
            sent_home: AtomicU64::new(0),
            listening: Mutex::default(),
            early: Mutex::default(),
            forwarded: Mutex::default(),
            host: Mutex::default(),
            neighbours: Mutex::default(),
        }
    }

    /// A datagram goes out by that path.
    pub(crate) fn note_sent(&self, path: &TxPath) {
        let ip = path.remote().to_ip();
        if !path.is_local() && (ip.is_loopback() || self.device.has_address(ip)) {
            self.sent_home.fetch_add(1, Ordering::Release);
        }
    }

    /// Step P1 of the proof at the head of `progress.rs`.
    pub(crate) fn leave_work(&self) {
        self.work.store(true, Ordering::Release);
    }

    /// The netdev is gone.
    pub(crate) fn tell_removed(&self) {
        if let Some(sink) = &lock(&self.state).sink {
            sink.removed();
        }
    }

    /// Whether work was left.
    pub(crate) fn take_work(&self) -> bool {
        self.work.swap(false, Ordering::AcqRel)
    }

    /// For the holder of the lane: the deadline has come.
    pub(crate) fn handle_timeout(&self, table: &QpTable, now: Time) {
        let mut state = lock(&self.state);
        if let Some(machine) = &mut state.machine {
            machine.handle_timeout_with(now, &|qpn| table.heard(qpn));
            state.tell();
        }
    }

    /// For the holder of the lane: `send` calls what it is given for the next datagram to send,
    /// until there is none. Returns when the machine wants to be called next.
    pub(crate) fn drain(
        &self,
        send: impl FnOnce(&mut dyn FnMut() -> Option<Datagram>),
    ) -> Option<Time> {
        let others = [lock(&self.early).next_due(), lock(&self.neighbours).due()];
        let mut state = lock(&self.state);
        let machine = state.machine.as_mut().and_then(|machine| {
            send(&mut || machine.poll_transmit());
            machine.next_deadline()
        });
        others.into_iter().chain([machine]).flatten().min()
    }

    /// Whether a request for `service` at `local` finds a listener in this process.
    fn has_listener(&self, service: ServiceId, local: Gid) -> bool {
        lock(&self.state).machine.as_ref().is_some_and(|m| m.has_listener(service, local))
    }

    /// Whether the peer at `remote` has asked this process for a connection that it calls `id`.
    fn was_asked(&self, remote: Gid, id: CommId) -> bool {
        lock(&self.state).machine.as_ref().is_some_and(|m| m.was_asked(remote, id))
    }

    pub(crate) fn counters(&self) -> CmCounters {
        lock(&self.state).counters()
    }

    /// As [`counters`](Self::counters), without waiting.
    pub(crate) fn try_counters(&self) -> Option<CmCounters> {
        try_lock(&self.state).map(|state| state.counters())
    }
}

impl CmShared {
    /// The machine, for the holder of the lane: for a datagram that nobody may have waited for.
    fn with_machine<T>(
        &self,
        table: &mut QpTable,
        f: impl FnOnce(&mut Cm, &QpTable) -> T,
    ) -> Result<T, SlotError> {
        let mut state = lock(&self.state);
        let slot = match state.machine {
            Some(_) => Slot::FIRST,
            None => table.first_slot(self.device.slots())?,
        };
        let result = f(state.machine(slot, self.device.config().cm_response_timeout), table);
        state.tell();
        Ok(result)
    }
}

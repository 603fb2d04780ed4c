//! Communication management (CM): the machine, and its connection to the network.
//!
//! Owns the machine ([`Cm`], `vernic_proto::cm`), which knows all about messages and does no I/O.
//! This module gives the machine the time, and datagrams from QP1 (`lane/gsi.rs`). The machine's
//! events go to one [`CmSink`], and its messages go out through the lane. The commands of the
//! layers above are in `agent.rs`.
//!
//! | file | what |
//! |---|---|
//! | `cm.rs` | the machine behind its lock |
//! | `cm/early.rs` | requests that came before a listener was there |
//! | `cm/forwarded.rs` | requests that were handed to other processes |
//! | `cm/host.rs` | the addresses of this host |
//! | `cm/neighbours.rs` | processes of this host that have connections with this one, and which of
//! them are gone |
//! | `cm/route.rs` | which process a received datagram belongs to, and the path of a sent one |
//!
//! # Locks
//!
//! The machine has a lock of its own. Commands take it alone; the lane's holder takes it after the
//! lane. From there the core of a queue pair is locked, to check when that queue pair last heard
//! its peer. The reverse order never occurs. Events are reported under the machine's lock, so that
//! they are in order; a sink may only take note of them.
//!
//! # Communication ids
//!
//! Like a QPN, an id has a process slot in its 10 high bits. The other 22 bits are a number that
//! cannot be predicted. So a datagram that reached the wrong process of this host shows which
//! process it belongs to.

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

/// Number of low bits of a communication id that are its number; the bits above are the slot.
pub(crate) const NUMBER_BITS: u32 = 32 - Slot::BITS;

/// Returns the slot of the process (more exactly, of the device) that made an id.
pub(crate) fn slot_of(id: CommId) -> Slot {
    // A slot is the high bits of a 24-bit QPN as well.
    Slot::of(Qpn::new(id.value() >> 8))
}

/// The receiver of connection events.
///
/// Called under locks of the engine, on any thread. An implementation may take note of the event
/// and wake a thread, but must not call the engine or wait.
pub trait CmSink: Send + Sync {
    /// Reports that something happened to a connection or an exchange.
    fn event(&self, event: Event);
    /// Reports that the device's netdev is gone for good. Called once.
    fn removed(&self) {}
}

/// The machine, and the sink of its events.
#[derive(Default)]
pub(crate) struct State {
    /// The machine, made when it is first needed, because it needs a process slot.
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

    /// Reports the events that have happened.
    pub(crate) fn tell(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        // Bounded: the machine makes events only when it is called.
        while let Some(event) = machine.poll_event() {
            if let Some(sink) = &self.sink {
                sink.event(event);
            }
        }
    }
}

/// A name that this device has claimed among the processes of the host.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) name: ServiceName,
    pub(crate) listener: Option<ListenerId>,
}

/// The state of the device's communication management that threads share.
pub(crate) struct CmShared {
    device: Arc<Device>,
    pub(crate) state: Mutex<State>,
    /// Whether a command has changed the machine since the lane last checked.
    work: AtomicBool,
    /// The number of datagrams sent to port 4791 of this host.
    pub(crate) sent_home: AtomicU64,
    /// The names that this device has claimed.
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

    /// Counts a datagram that goes out by `path`, if it goes to port 4791 of this host.
    pub(crate) fn note_sent(&self, path: &TxPath) {
        let ip = path.remote().to_ip();
        if !path.is_local() && (ip.is_loopback() || self.device.has_address(ip)) {
            self.sent_home.fetch_add(1, Ordering::Release);
        }
    }

    /// Notes that there is work: step P1 of the proof at the head of `progress.rs`.
    pub(crate) fn leave_work(&self) {
        self.work.store(true, Ordering::Release);
    }

    /// Reports that the netdev is gone.
    pub(crate) fn tell_removed(&self) {
        if let Some(sink) = &lock(&self.state).sink {
            sink.removed();
        }
    }

    /// Whether there was work; clears the note.
    pub(crate) fn take_work(&self) -> bool {
        self.work.swap(false, Ordering::AcqRel)
    }

    /// Handles a deadline of the machine. For the holder of the lane.
    pub(crate) fn handle_timeout(&self, table: &QpTable, now: Time) {
        let mut state = lock(&self.state);
        if let Some(machine) = &mut state.machine {
            machine.handle_timeout_with(now, &|qpn| table.heard(qpn));
            state.tell();
        }
    }

    /// Passes `send` a function that returns the next datagram to send, or `None`. Returns when
    /// this module must be called next. For the holder of the lane.
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

    /// Returns the [`counters`](Self::counters), or `None` if the lock is taken.
    pub(crate) fn try_counters(&self) -> Option<CmCounters> {
        try_lock(&self.state).map(|state| state.counters())
    }
}

impl CmShared {
    /// Calls `f` with the machine, and makes the machine if there is none yet. For the holder of
    /// the lane, when a datagram may come before any command.
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

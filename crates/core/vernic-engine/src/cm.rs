//! Communication management (CM): the protocol machine, and its connection to the network.
//!
//! Owns the machine ([`Cm`], `vernic_proto::cm`), which knows everything about messages and does no
//! I/O. This module gives the machine the time and the datagrams of QP1 (`lane/gsi.rs`), passes its
//! events to one [`CmSink`], and sends its messages by the lane. The calls of the layers above are
//! in `agent.rs`.
//!
//! | file | what |
//! |---|---|
//! | `cm.rs` | the machine behind its lock |
//! | `cm/early.rs` | requests that came before a listener was there |
//! | `cm/forwarded.rs` | requests that were handed to other processes |
//! | `cm/host.rs` | the addresses of this host |
//! | `cm/local_processes.rs` | processes of this host with connections to this one |
//! | `cm/route.rs` | which process a received datagram belongs to, and the path of a sent one |
//! | `cm/subnet.rs` | paths within an InfiniBand subnet |
//!
//! # Locks
//!
//! The machine has a lock of its own. Commands take only this lock. The thread that has the lane
//! takes it while it has the lane, and then locks queue pairs, to ask when a queue pair last heard
//! from its peer. The reverse order never occurs. Events are reported under the machine's lock, so
//! that they are in order. So a sink may only record them.
//!
//! # Communication ids
//!
//! As in a QPN, the 10 high bits of a communication id are the process slot. The other 22 bits are
//! a number that cannot be predicted. So if the kernel delivers a datagram to the wrong process of
//! this host, the id shows which process it belongs to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::SlotError;
use vernic_io::infiniband::ServiceClaim;
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
mod local_processes;
mod route;
mod subnet;

use early::EarlyRequests;
use forwarded::Forwarded;
use host::HostAddresses;
use local_processes::LocalProcesses;

/// The number of low bits of a communication id that are its number. The bits above are the process
/// slot.
pub(crate) const NUMBER_BITS: u32 = 32 - Slot::BITS;

/// Returns the process slot of the device that made a communication id.
pub(crate) fn slot_of(id: CommId) -> Slot {
    // The slot is in the high bits of a 24-bit QPN, as it is in a 32-bit communication id.
    Slot::of(Qpn::new(id.value() >> 8))
}

/// A listener for the events of a device's connection manager.
///
/// Called under locks of the engine, on any thread. An implementation may record the event and wake
/// a thread, but must neither call the engine nor block.
pub trait CmSink: Send + Sync {
    /// Reports an event of a connection, or of an exchange of SIDR messages.
    fn event(&self, event: Event);
    /// Reports that the device's netdev was removed for good. Called once.
    fn removed(&self) {}
}

/// The CM machine, and the sink of its events.
#[derive(Default)]
pub(crate) struct State {
    /// The machine; `None` until it is needed, because it takes a process slot.
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

    /// Reports all events that the machine has.
    pub(crate) fn report_events(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        // Bounded, because the machine makes events only when it is called.
        while let Some(event) = machine.poll_event() {
            if let Some(sink) = &self.sink {
                sink.event(event);
            }
        }
    }
}

/// A name of a service that this device has claimed, so that no other process of the host uses it.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) name: ServiceName,
    pub(crate) listener: Option<ListenerId>,
    /// The claim at the fabric process, on InfiniBand.
    pub(crate) claim: Option<ServiceClaim>,
}

/// The state of a device's connection manager that its threads share.
pub(crate) struct CmShared {
    device: Arc<Device>,
    pub(crate) state: Mutex<State>,
    /// Whether a command has changed the machine since the lane last looked at it.
    work: AtomicBool,
    /// The number of datagrams sent to the shared port 4791 of this host.
    pub(crate) sent_home: AtomicU64,
    /// The names that this device has claimed, with their listeners.
    pub(crate) listening: Mutex<Vec<Claimed>>,
    early: Mutex<EarlyRequests>,
    forwarded: Mutex<Forwarded>,
    host: Mutex<HostAddresses>,
    local_processes: Mutex<LocalProcesses>,
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
            local_processes: Mutex::default(),
        }
    }

    /// Counts a datagram that is sent by `path`, if it goes to the shared port 4791 of this host.
    pub(crate) fn note_sent(&self, path: &TxPath) {
        if self.device.rules().has_lids() {
            return;
        }
        let ip = path.remote().to_ip();
        if !path.is_local() && (ip.is_loopback() || self.device.has_address(ip)) {
            self.sent_home.fetch_add(1, Ordering::Release);
        }
    }

    /// Notes that the machine has something for the lane to do. This is step P1 of the proof at the
    /// head of `progress.rs`.
    pub(crate) fn leave_work(&self) {
        self.work.store(true, Ordering::Release);
    }

    /// Reports to the sink that the netdev was removed.
    pub(crate) fn report_removed(&self) {
        if let Some(sink) = &lock(&self.state).sink {
            sink.removed();
        }
    }

    /// Whether the machine has something for the lane to do. Resets the note.
    pub(crate) fn take_work(&self) -> bool {
        self.work.swap(false, Ordering::AcqRel)
    }

    /// Handles the machine's deadlines that are over. For the thread that has the lane.
    pub(crate) fn handle_timeout(&self, table: &QpTable, now: Time) {
        let mut state = lock(&self.state);
        if let Some(machine) = &mut state.machine {
            machine.handle_timeout_with(now, &|qpn| table.heard(qpn));
            state.report_events();
        }
    }

    /// Calls `send` with a function that returns the next datagram to send, or `None`. Returns the
    /// latest time at which this module must be called again. For the thread that has the lane.
    pub(crate) fn drain(
        &self,
        send: impl FnOnce(&mut dyn FnMut() -> Option<Datagram>),
    ) -> Option<Time> {
        let others = [lock(&self.early).next_due(), lock(&self.local_processes).due()];
        let mut state = lock(&self.state);
        let machine = state.machine.as_mut().and_then(|machine| {
            send(&mut || machine.poll_transmit());
            machine.next_deadline()
        });
        others.into_iter().chain([machine]).flatten().min()
    }

    /// Whether this process has a listener for requests for `service` at the address `local`.
    fn has_listener(&self, service: ServiceId, local: Gid) -> bool {
        lock(&self.state).machine.as_ref().is_some_and(|m| m.has_listener(service, local))
    }

    /// Whether the peer at `remote` has sent this process a request for the connection that the
    /// peer calls `id`.
    fn was_asked(&self, remote: Gid, id: CommId) -> bool {
        lock(&self.state).machine.as_ref().is_some_and(|m| m.was_asked(remote, id))
    }

    pub(crate) fn counters(&self) -> CmCounters {
        lock(&self.state).counters()
    }

    /// Returns the [`counters`](Self::counters); `None` if another thread has the lock.
    pub(crate) fn try_counters(&self) -> Option<CmCounters> {
        try_lock(&self.state).map(|state| state.counters())
    }
}

impl CmShared {
    /// Calls `f` with the machine, which is made first if necessary, because a datagram may come
    /// before any command. For the thread that has the lane.
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
        state.report_events();
        Ok(result)
    }
}

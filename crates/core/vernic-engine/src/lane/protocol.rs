//! The lane: the unit of progress. The thread that holds the lane moves bytes.
//!
//! Owns [`Lane`], which is behind one mutex in [`Engine`](crate::progress::engine::Engine). Threads
//! of the data path only try to lock it. And owns [`WireProtocol`], the one trait by which RoCE
//! (`packets.rs`) and iWARP (`streams.rs`) differ for everything above: the engine, the background
//! thread, the verbs.
//!
//! A lane has one protocol from its device's opening to its end. It is asked once for a batch or
//! for a turn, never for a packet, so the choice costs the data path a few instructions a call.

use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard};

use vernic_io::{Clock, Link};
use vernic_proto::congestion::Algorithm;
use vernic_proto::{QpInit, Time};
use vernic_wire::Qpn;

use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::lane::gsi::Gsi;
use crate::qp::machine::Machine;
use crate::qp::state::{QpCore, QpInner};
use crate::streams::{LingeringConnection, Streams};

/// A protocol that carries the work of queue pairs over a network: RoCE or iWARP.
///
/// Each method runs under the lane's lock, with the state of that lane.
pub(crate) trait WireProtocol: Send {
    /// Returns the protocol machine of a new queue pair. `congestion` is of no use where TCP has a
    /// control of its own.
    fn machine(&self, init: QpInit, congestion: Algorithm) -> Machine;

    /// Receives a batch of packets, or from some of the connections that are ready. Returns how
    /// many packets or connections there were.
    fn receive(&mut self, lane: &mut LaneState, device: &Device, now: Time) -> usize;

    /// Receives as [`receive`](Self::receive) does, for a thread that sleeps on
    /// [the descriptors](Self::add_fds) if nothing came: everything that is ready is asked.
    fn receive_before_sleep(&mut self, lane: &mut LaneState, device: &Device, now: Time) -> usize {
        self.receive(lane, device, now)
    }

    /// Sends what is ready, within the bounds of a call.
    fn transmit(&mut self, lane: &mut LaneState, device: &Device, now: Time);

    /// Sends as [`transmit`](Self::transmit) does, with every delayed acknowledgement.
    fn transmit_all(&mut self, lane: &mut LaneState, device: &Device, now: Time) {
        self.transmit(lane, device, now);
    }

    /// Sends what was just posted to `qp`, ahead of everything else that is ready: the application
    /// waits for it. `core` is the queue pair's; it is unlocked before any other queue pair is
    /// locked.
    fn transmit_posted(
        &mut self,
        lane: &mut LaneState,
        device: &Device,
        qp: &Arc<QpInner>,
        core: MutexGuard<'_, QpCore>,
        now: Time,
    );

    /// Fires the timers that are due.
    fn fire_timers(&mut self, lane: &mut LaneState, device: &Device, now: Time);

    /// Returns when the background thread must poll the lane again though no descriptor is
    /// readable; `None`: never. Acknowledgements may wait for that thread `patience` nanoseconds
    /// longer than for others.
    fn next_work(&self, lane: &LaneState, now: Time, patience: u64) -> Option<Time>;

    /// Adds the descriptors that are readable when something has come.
    fn add_fds(&self, lane: &LaneState, fds: &mut Vec<RawFd>);

    /// Forgets a queue pair that was taken out of the table.
    fn forget_qp(&mut self, device: &Device, qpn: Qpn, now: Time) {
        let _ = (device, qpn, now);
    }

    /// Leaves the port of the host to other processes, because the process or the device ends.
    /// Returns whether something for those processes may be in our sockets.
    fn leave_shared_port(&mut self, lane: &mut LaneState, now: Time) -> bool;

    /// Ends because the device is closed. Returns the connections that have something to send yet.
    fn close(&mut self, device: &Device) -> Vec<LingeringConnection> {
        let _ = device;
        Vec::new()
    }

    /// Ends because the process ends. Returns the connections that have something to send yet.
    fn leave(&mut self, lane: &mut LaneState, device: &Device) -> Vec<LingeringConnection>;

    /// Returns the streams, for the handshakes of iWARP devices; `None` where there are packets.
    fn streams(&mut self) -> Option<&mut Streams> {
        None
    }
}

/// The lane of a device: its state, and the protocol that moves its bytes.
pub(crate) struct Lane {
    clock: Clock,
    pub(super) state: LaneState,
    pub(super) protocol: Box<dyn WireProtocol>,
}

impl Deref for Lane {
    type Target = LaneState;

    #[inline]
    fn deref(&self) -> &LaneState {
        &self.state
    }
}

impl DerefMut for Lane {
    #[inline]
    fn deref_mut(&mut self) -> &mut LaneState {
        &mut self.state
    }
}

impl Lane {
    pub(crate) fn new(
        device: &Device,
        link: Box<dyn Link>,
        protocol: Box<dyn WireProtocol>,
        gsi: Gsi,
        now: Time,
    ) -> Self {
        let state = LaneState::new(device, link, gsi, now);
        Self { clock: Clock::default(), state, protocol }
    }

    /// Returns the clock of the threads that run the lane.
    #[inline]
    pub(crate) fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// See [`WireProtocol::receive`].
    #[inline]
    pub(crate) fn receive(&mut self, device: &Device, now: Time) -> usize {
        self.protocol.receive(&mut self.state, device, now)
    }

    /// See [`WireProtocol::receive_before_sleep`].
    pub(crate) fn receive_before_sleep(&mut self, device: &Device, now: Time) -> usize {
        self.protocol.receive_before_sleep(&mut self.state, device, now)
    }

    /// See [`WireProtocol::transmit`].
    #[inline]
    pub(crate) fn transmit(&mut self, device: &Device, now: Time) {
        self.protocol.transmit(&mut self.state, device, now);
    }

    /// See [`WireProtocol::transmit_all`].
    pub(crate) fn transmit_all(&mut self, device: &Device, now: Time) {
        self.protocol.transmit_all(&mut self.state, device, now);
    }

    /// See [`WireProtocol::transmit_posted`].
    #[inline]
    pub(crate) fn transmit_posted(
        &mut self,
        device: &Device,
        qp: &Arc<QpInner>,
        core: MutexGuard<'_, QpCore>,
        now: Time,
    ) {
        self.protocol.transmit_posted(&mut self.state, device, qp, core, now);
    }

    /// See [`WireProtocol::fire_timers`].
    #[inline]
    pub(crate) fn fire_timers(&mut self, device: &Device, now: Time) {
        self.protocol.fire_timers(&mut self.state, device, now);
    }

    /// See [`WireProtocol::next_work`].
    #[inline]
    pub(crate) fn next_work(&self, now: Time, patience: u64) -> Option<Time> {
        self.protocol.next_work(&self.state, now, patience)
    }

    /// See [`WireProtocol::add_fds`].
    pub(crate) fn add_fds(&self, fds: &mut Vec<RawFd>) {
        self.protocol.add_fds(&self.state, fds);
    }

    /// See [`WireProtocol::leave_shared_port`].
    pub(crate) fn leave_shared_port(&mut self, now: Time) -> bool {
        self.protocol.leave_shared_port(&mut self.state, now)
    }

    /// See [`WireProtocol::close`].
    pub(crate) fn close(&mut self, device: &Device) -> Vec<LingeringConnection> {
        self.protocol.close(device)
    }

    /// See [`WireProtocol::leave`].
    pub(crate) fn leave(&mut self, device: &Device) -> Vec<LingeringConnection> {
        self.protocol.leave(&mut self.state, device)
    }

    /// See [`WireProtocol::streams`].
    pub(crate) fn streams(&mut self) -> Option<&mut Streams> {
        self.protocol.streams()
    }
}

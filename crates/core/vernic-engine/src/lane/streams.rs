//! iWARP as a wire protocol: the TCP connections of the lane, and how they come to it.

use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard};

use vernic_io::tcp::Connection;
use vernic_proto::congestion::Algorithm;
use vernic_proto::iwarp::{self, Agreed};
use vernic_proto::{QpInit, RateLimit, Time};
use vernic_wire::Qpn;

use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::lane::protocol::{Lane, WireProtocol};
use crate::qp::machine::Machine;
use crate::qp::state::{QpCore, QpInner};
use crate::sched::Event;
use crate::streams::{
    BindStreamError, HELD_NANOS, LingeringConnection, PendingStartup, StreamTerms, Streams,
};

impl WireProtocol for Streams {
    fn machine(&self, init: QpInit, _: Algorithm) -> Machine {
        Machine::Stream(Box::new(iwarp::Qp::new(init)))
    }

    fn receive(&mut self, lane: &mut LaneState, device: &Device, now: Time) -> usize {
        self.receive_ready(device, &mut lane.sched, now, false)
    }

    fn receive_before_sleep(&mut self, lane: &mut LaneState, device: &Device, now: Time) -> usize {
        self.receive_ready(device, &mut lane.sched, now, true)
    }

    fn transmit(&mut self, lane: &mut LaneState, device: &Device, now: Time) {
        self.transmit_ready(device, &mut lane.sched, now);
    }

    fn transmit_posted(
        &mut self,
        lane: &mut LaneState,
        device: &Device,
        qp: &Arc<QpInner>,
        core: MutexGuard<'_, QpCore>,
        now: Time,
    ) {
        drop(core);
        lane.sched.make_ready(qp);
        self.transmit_ready(device, &mut lane.sched, now);
    }

    fn fire_timers(&mut self, lane: &mut LaneState, device: &Device, now: Time) {
        self.check_peers(device, &mut lane.sched, now);
        // A stream whose timer fired may have a connection to close.
        lane.fire_qp_timers(device, Event::Stream { again: true }, now, |_, _, _, _| {});
    }

    fn next_work(&self, lane: &LaneState, now: Time, patience: u64) -> Option<Time> {
        let queue_pairs = lane.sched.next_at(now, patience);
        let waiting = self.has_held().then(|| now + HELD_NANOS);
        [queue_pairs, waiting, self.next_deadline()].into_iter().flatten().min()
    }

    fn add_fds(&self, _lane: &LaneState, fds: &mut Vec<RawFd>) {
        fds.push(self.raw_fd());
    }

    fn forget_qp(&mut self, device: &Device, qpn: Qpn, now: Time) {
        self.remove(device, qpn, now);
    }

    /// The host's processes share no port of TCP, so nothing is left to them.
    fn leave_shared_port(&mut self, _lane: &mut LaneState, _now: Time) -> bool {
        false
    }

    fn close(&mut self, device: &Device) -> Vec<LingeringConnection> {
        self.take_connections(device)
    }

    /// No sink is called.
    fn leave(&mut self, _lane: &mut LaneState, device: &Device) -> Vec<LingeringConnection> {
        self.silence_sinks();
        self.take_connections(device)
    }

    fn streams(&mut self) -> Option<&mut Streams> {
        Some(self)
    }
}

impl Lane {
    /// Binds a connection whose start-up is complete to a queue pair; `rest` is what was received
    /// behind the start-up.
    pub(crate) fn bind_stream(
        &mut self,
        device: &Device,
        qp: &Arc<QpInner>,
        connection: Connection,
        terms: StreamTerms<'_>,
        rest: &[u8],
    ) -> Result<(), (BindStreamError, Option<Connection>)> {
        let Self { state, protocol, .. } = self;
        let Some(streams) = protocol.streams() else {
            return Err((BindStreamError::Gone, Some(connection)));
        };
        let result = streams.bind(device, &mut state.sched, qp, connection, terms, rest);
        self.transmit(device, device.now());
        result
    }

    /// Limits the rate of a queue pair's connection, if it has one. Where there are packets, the
    /// machine does that.
    pub(crate) fn limit_stream(&mut self, qpn: Qpn, limit: RateLimit) {
        if let Some(streams) = self.streams() {
            streams.limit(qpn, limit);
        }
    }

    /// Takes over a connection whose start-up is complete, but that no queue pair has taken.
    pub(crate) fn leave_stream(
        &mut self,
        device: &Device,
        connection: Connection,
        agreed: &Agreed,
        last: Vec<u8>,
    ) {
        if let Some(streams) = self.streams() {
            streams.adopt_agreed(device, connection, agreed, last);
        }
    }

    /// Takes over a connection that its owner has left before the peer's reply.
    pub(crate) fn leave_startup(
        &mut self,
        device: &Device,
        connection: Connection,
        pending_startup: PendingStartup,
    ) {
        if let Some(streams) = self.streams() {
            streams.adopt_startup(device, connection, pending_startup);
        }
    }
}

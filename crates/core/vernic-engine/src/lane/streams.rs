//! The lane's part in iWARP connections.

use std::sync::Arc;

use vernic_io::tcp::Connection;
use vernic_proto::Time;
use vernic_proto::iwarp::Agreed;

use crate::device::opened::Device;
use crate::lane::core::Lane;
use crate::qp::state::QpInner;
use crate::streams::{BindStreamError, StreamTerms, Unanswered};

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
        let Self { streams, sched, .. } = self;
        let Some(streams) = streams else {
            return Err((BindStreamError::Gone, Some(connection)));
        };
        let result = streams.bind(device, sched, qp, connection, terms, rest);
        self.transmit_streams(device, device.now());
        result
    }

    /// Takes over a connection whose start-up is complete, but that no queue pair has taken.
    pub(crate) fn leave_stream(
        &mut self,
        device: &Device,
        connection: Connection,
        agreed: &Agreed,
        last: Vec<u8>,
    ) {
        if let Some(streams) = &mut self.streams {
            streams.adopt_agreed(device, connection, agreed, last);
        }
    }

    /// Takes over a connection that its owner has left before the peer's reply.
    pub(crate) fn leave_unanswered(
        &mut self,
        device: &Device,
        connection: Connection,
        unanswered: Unanswered,
    ) {
        if let Some(streams) = &mut self.streams {
            streams.adopt_unanswered(device, connection, unanswered);
        }
    }

    /// Receives from connections that are ready; returns how many had something. Asks only some of
    /// the connections each time, or all of them if `all` is set.
    pub(crate) fn receive_streams(&mut self, device: &Device, now: Time, all: bool) -> usize {
        let Self { streams, sched, .. } = self;
        let Some(streams) = streams else { return 0 };
        streams.receive_ready(device, sched, now, all)
    }

    /// Gives each queue pair that is ready a turn to send.
    pub(crate) fn transmit_streams(&mut self, device: &Device, now: Time) {
        let Self { streams, sched, .. } = self;
        if let Some(streams) = streams {
            streams.transmit_ready(device, sched, now);
        }
    }

    /// Gives up peers that do not answer, and connections whose time is over.
    pub(crate) fn look_after_streams(&mut self, device: &Device, now: Time) {
        let Self { streams, sched, .. } = self;
        if let Some(streams) = streams {
            streams.look_after(device, sched, now);
        }
    }
}

//! The lane's turn for connections of iWARP.

use std::sync::Arc;

use vernic_io::tcp::Connection;
use vernic_proto::Time;
use vernic_proto::iwarp::Agreed;

use crate::device::opened::Device;
use crate::lane::core::Lane;
use crate::qp::state::QpInner;
use crate::streams::{BindStreamError, Due, StreamTerms, Unanswered};

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
        let Self { streams, timers, ready, .. } = self;
        let Some(streams) = streams else {
            return Err((BindStreamError::Gone, Some(connection)));
        };
        let result = streams.bind(device, &mut Due { timers, ready }, qp, connection, terms, rest);
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

    /// Receives from connections that are ready; returns how many had something. Not all are asked
    /// each time, unless `all` of them shall be.
    pub(crate) fn receive_streams(&mut self, device: &Device, now: Time, all: bool) -> usize {
        let Self { streams, timers, ready, .. } = self;
        let Some(streams) = streams else { return 0 };
        streams.receive_ready(device, &mut Due { timers, ready }, now, all)
    }

    /// Sends for the queue pairs that are ready, each a turn.
    pub(crate) fn transmit_streams(&mut self, device: &Device, now: Time) {
        let Self { streams, timers, ready, .. } = self;
        if let Some(streams) = streams {
            streams.transmit_ready(device, &mut Due { timers, ready }, now);
        }
    }

    /// Gives up peers that do not answer, and connections that have had their time.
    pub(crate) fn look_after_streams(&mut self, device: &Device, now: Time) {
        let Self { streams, timers, ready, .. } = self;
        if let Some(streams) = streams {
            streams.look_after(device, &mut Due { timers, ready }, now);
        }
    }
}

//! Ends connections that no queue pair has taken over.

use vernic_io::tcp::Connection;

use super::{Agreed, Handshake, Phase};
use crate::streams::PendingStartup;
use crate::verbs::context::Context;

impl Handshake {
    /// Closes the connection without surprising the peer. If both ends have agreed, and the peer
    /// may wait for this end's ready-to-receive indication, the peer first gets the indication. The
    /// connection is closed when the peer has answered it, or a second later.
    ///
    /// If this end has sent its request, and the reply may be on its way, the connection first
    /// waits for the reply, a second at most. If the reply accepts, the connection ends as one on
    /// which both ends had agreed before. Dropping the handshake instead closes the connection at
    /// once, even if the peer is not prepared for that.
    pub fn leave(mut self) {
        // TCP may have connected since the last poll; then the request is sent now.
        self.poll();
        if !self.context.is_orphan() {
            self.watch_for(None);
        }
        let Self { context, connection, phase, .. } = self;
        let Phase::Startup(startup) = phase else { return };
        if let Some(agreed) = startup.agreed() {
            say_last(&context, connection, Some(agreed), Vec::new());
        } else if !context.is_orphan()
            && !context.is_closed()
            && let Some(pending_startup) = PendingStartup::new(startup, context.now())
        {
            let engine = context.engine();
            engine.with_lane(|lane| lane.leave_startup(engine, connection, pending_startup));
        }
    }
}

/// Sends the bytes in `last` over a connection, and closes the connection as [`Handshake::leave`]
/// does.
pub(super) fn say_last(
    context: &Context,
    connection: Connection,
    agreed: Option<&Agreed>,
    last: Vec<u8>,
) {
    let Some(agreed) = agreed.filter(|_| !context.is_orphan()) else { return };
    if context.is_closed() {
        // The device is closed, so no lane is left that could wait for the peer.
        let _ = connection.send(&last);
        return;
    }
    let engine = context.engine();
    engine.with_lane(|lane| lane.leave_stream(engine, connection, agreed, last));
}

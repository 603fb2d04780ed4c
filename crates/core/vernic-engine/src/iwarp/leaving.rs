//! Ends connections that no queue pair has taken.

use vernic_io::tcp::Connection;

use super::{Agreed, Handshake, Phase};
use crate::streams::Unanswered;
use crate::verbs::context::Context;

impl Handshake {
    /// Closes the connection, in order if both ends have agreed. A peer that may wait for this
    /// end's ready-to-receive indication gets it. The end follows when the peer has answered, or a
    /// second later.
    ///
    /// If this end has sent its request and the reply may be on its way, the reply is waited for, a
    /// second at most. A peer that accepts is then treated like one whose reply came before. Merely
    /// dropping the handshake may end the connection when the peer is not prepared for that.
    pub fn leave(mut self) {
        // The peer's system may not have reported a connection that was just made; the request is
        // sent on it, too.
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
            && let Some(unanswered) = Unanswered::new(startup, context.now())
        {
            let engine = context.engine();
            engine.with_lane(|lane| lane.leave_unanswered(engine, connection, unanswered));
        }
    }
}

/// Leaves a connection after sending the bytes in `last`.
pub(super) fn say_last(
    context: &Context,
    connection: Connection,
    agreed: Option<&Agreed>,
    last: Vec<u8>,
) {
    let Some(agreed) = agreed.filter(|_| !context.is_orphan()) else { return };
    if context.is_closed() {
        // The device is closed, so nothing can be waited for.
        let _ = connection.send(&last);
        return;
    }
    let engine = context.engine();
    engine.with_lane(|lane| lane.leave_stream(engine, connection, agreed, last));
}

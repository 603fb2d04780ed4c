//! How connections end that no queue pair has taken.

use vernic_io::tcp::Connection;

use super::{Agreed, Handshake, Phase};
use crate::streams::Unanswered;
use crate::verbs::context::Context;

impl Handshake {
    /// Closes it, in order if both ends have agreed: a peer that may wait for this end's first word
    /// gets that, and the end when it has answered, or a second later. If this end has asked, and
    /// the answer may be on its way, that is waited for, a second at most: a peer that has accepted
    /// is left as if this end had heard of it before. Dropping it may be an end that a peer is not
    /// prepared for.
    pub fn leave(mut self) {
        // Of a connection that is just made the peer's system may not have told the peer: it gets
        // its request, too.
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

/// Leaves a connection with these last words.
pub(super) fn say_last(
    context: &Context,
    connection: Connection,
    agreed: Option<&Agreed>,
    last: Vec<u8>,
) {
    let Some(agreed) = agreed.filter(|_| !context.is_orphan()) else { return };
    if context.is_closed() {
        // Nobody would wait for anything.
        let _ = connection.send(&last);
        return;
    }
    let engine = context.engine();
    engine.with_lane(|lane| lane.leave_stream(engine, connection, agreed, last));
}

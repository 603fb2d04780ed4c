//! Bytes put into a neighbour's memory on the caller's thread, outside of the send queue.
//!
//! For protocols that write to where the peer looks only after a message has said so. Their bytes
//! need no place in the queue's order, no acknowledgement, and no buffer that stays as it is until
//! then: it is one copy, from wherever they are. What else a direct request needs is the same: a
//! ticket, and a visit through its gates.
//!
//! Only memory that is mapped here is written to: a copy of the kernel's costs as much as packets
//! of a few KiB, and may fail half-way.

use vernic_mem::PeerRegion;
use vernic_proto::{QpState, Remote, Time};
use vernic_wire::Qpn;

use crate::counters::Refusal;
use crate::local::tickets::Consent;
use crate::progress::engine::Engine;
use crate::qp::direct::is_there;
use crate::qp::state::QpCore;
use crate::support::events::lock;
use crate::verbs::handle::Qp;

/// Bytes that are copied between two looks at the gates, as of a WRITE.
const PIECE: usize = 16 << 10;

/// What became of bytes for a neighbour's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It cannot be done now: they were not asked for, and nothing was written.
    Not,
    /// They are there.
    Whole,
    /// The peer took its consent back in the middle; some may be there.
    Cut,
}

impl Qp {
    /// Puts `len` bytes into the peer's memory at `to`, before it returns, where the peer is a
    /// process of this host that has consented (setting `direct`) and whose memory is mapped here.
    /// `fill` is called with a function that takes the bytes, in as many pieces as it likes; what
    /// is beyond `len` is left out.
    ///
    /// The bytes are in no order with requests that were posted before. The peer sees them before
    /// it sees anything of a request that is posted afterwards. The first call for a key asks for
    /// consent.
    ///
    /// What it needs is held meanwhile: no other thread makes progress on this device. It does not
    /// wait for that: it is [`Placed::Not`] while another thread does, and a WRITE does the same
    /// then, after one more copy.
    pub fn place(&self, to: Remote, len: u32, fill: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Placed {
        let engine = self.engine();
        if len == 0 || engine.is_orphan() {
            return Placed::Not;
        }
        let (inner, mut placed) = (self.inner(), Placed::Not);
        // The lane's holder alone is inside a neighbour's memory.
        engine.with_free_lane(|now| {
            let mut core = lock(&inner.core);
            placed = place(engine, inner.qpn, &mut core, (to, len), now, fill);
        });
        placed
    }
}

fn place(
    engine: &Engine,
    own: Qpn,
    core: &mut QpCore,
    (to, len): (Remote, u32),
    now: Time,
    fill: impl FnOnce(&mut dyn FnMut(&[u8])),
) -> Placed {
    let counts = &engine.counts().direct;
    let attr = core.machine.attr();
    let (state, target) = (attr.state, attr.dest_qpn);
    let (tickets, rkey) = (&mut core.side.tickets, to.rkey);
    if state != QpState::Rts {
        return Placed::Not;
    }
    let Some((guest, consent)) = tickets.find(rkey) else { return Placed::Not };
    let ticket = match consent {
        Some(Consent::Ticket(ticket)) => ticket,
        None => {
            guest.ask(own, target, rkey);
            return Placed::Not;
        }
        Some(Consent::No { .. } | Consent::Never) => return Placed::Not,
    };
    if !matches!(*ticket.reach, PeerRegion::Mapped(_)) {
        return Placed::Not;
    }
    let Some(start) = ticket.offer.place_write(to.addr, len) else {
        counts.note_refusal(Refusal::Range);
        return Placed::Not;
    };
    if !is_there(guest, now) {
        counts.note_refusal(Refusal::Unreachable);
        return Placed::Not;
    }
    let (key, qp) = (ticket.offer.key, ticket.offer.qp);
    let Some(visit) = ticket.gates.begin_access(guest.neighbour.inside(), key, qp) else {
        tickets.end(rkey, false);
        counts.note_refusal(Refusal::Closed);
        return Placed::Not;
    };
    let (mut done, mut is_whole) = (0, true);
    fill(&mut |bytes| {
        let bytes = &bytes[..bytes.len().min((len - done) as usize)];
        for piece in bytes.chunks(PIECE) {
            let at = start + u64::from(done);
            is_whole = is_whole && visit.is_valid() && ticket.reach.write(at, piece).is_ok();
            done += piece.len() as u32;
        }
    });
    is_whole &= visit.is_valid() && done == len;
    drop(visit);
    if !is_whole {
        tickets.end(rkey, false);
        counts.note_refusal(Refusal::Closed);
        return Placed::Cut;
    }
    counts.writes.add(1);
    counts.bytes.add(u64::from(len));
    Placed::Whole
}

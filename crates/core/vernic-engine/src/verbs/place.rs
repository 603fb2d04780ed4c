//! Copies bytes into a local peer's memory on the caller's thread, outside of the send queue.
//!
//! This is for protocols whose peer reads the memory only after a message has announced the bytes.
//! Such bytes need no position in the send queue's order, no acknowledgement, and no buffer that
//! stays unchanged until then. They take one copy, from wherever they are. As for any direct
//! access, a grant is needed, and its revocation words are checked.
//!
//! Only memory that is mapped in this process is written to. A copy by the kernel costs as much as
//! packets of a few KiB, and may fail half-way.

use vernic_mem::PeerRegion;
use vernic_proto::{DirectOp, QpState, Remote, Time};
use vernic_wire::Qpn;

use crate::counters::Refusal;
use crate::local::tickets::Consent;
use crate::progress::engine::Engine;
use crate::qp::direct::is_there;
use crate::qp::state::QpCore;
use crate::support::events::lock;
use crate::verbs::handle::Qp;

/// The bytes that are copied between two checks of the revocation words, as for a WRITE.
const PIECE: usize = 16 << 10;

/// The outcome of a copy into a local peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The copy is not possible now. The bytes were not asked for, and nothing was written.
    Not,
    /// All bytes are in the peer's memory.
    Whole,
    /// The peer revoked the grant in the middle; some bytes may be in its memory.
    Cut,
}

impl Qp {
    /// Copies `len` bytes into the peer's memory at `to` before it returns. The peer must be a
    /// process of this host that has granted access (setting `direct`), and whose memory is mapped
    /// here. `fill` is called with a function that takes the bytes, in any number of pieces. Bytes
    /// beyond `len` are left out.
    ///
    /// The copy has no order with requests that were posted before. The peer sees the bytes before
    /// it sees anything of a request that is posted afterwards. The first call for a key requests a
    /// grant.
    ///
    /// The lane is held during the copy, so no other thread makes progress on this device. The call
    /// does not wait for the lane: if another thread holds it, the result is [`Placed::Not`]. A
    /// WRITE has the same effect then, with one more copy.
    pub fn place(&self, to: Remote, len: u32, fill: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Placed {
        let engine = self.engine();
        if len == 0 || engine.is_orphan() {
            return Placed::Not;
        }
        let (inner, mut placed) = (self.inner(), Placed::Not);
        // Only the holder of the lane accesses a local peer's memory.
        engine.with_free_lane(|now| {
            let mut core = lock(&inner.core);
            placed = place(engine, inner.qpn(), &mut core, (to, len), now, fill);
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
    let (tickets, rkey) = (core.side.peer.tickets_mut(), to.rkey);
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
    counts.count(&DirectOp::Write, len, true);
    Placed::Whole
}

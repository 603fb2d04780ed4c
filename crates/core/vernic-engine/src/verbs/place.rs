//! Copying bytes into a local peer's memory at once, on the caller's thread, without a work
//! request.
//!
//! This is for protocols where the peer reads the memory only after a message has announced the
//! bytes. Such bytes need no order with other requests, no acknowledgement, and no buffer that
//! stays unchanged until then. They are copied once, from wherever they are. As for any direct
//! access, this needs a grant, and the revocation words of the grant are checked.
//!
//! Only memory that this process has mapped is written to. If the kernel has to do the copy, it
//! costs as much as packets of a few KiB, and may fail half-way.

use vernic_local::{GrantState, Refusal};
use vernic_proto::{DirectOp, QpState, QpType, Remote, Time};
use vernic_wire::Qpn;

use crate::progress::engine::Engine;
use crate::qp::state::QpCore;
use crate::support::events::lock;
use crate::verbs::handle::Qp;

/// The number of bytes that are copied between two checks of the revocation words.
const PIECE: usize = 16 << 10;

/// The outcome of a copy into a local peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The copy is not possible now. `fill` was not called, and nothing was written.
    Not,
    /// All bytes are in the peer's memory.
    Whole,
    /// The peer revoked the grant during the copy, so only some of the bytes may be in its memory.
    Cut,
}

impl Qp {
    /// Copies `len` bytes into the peer's memory at `to` before it returns. The peer must be a
    /// process of this host, must have granted access to the memory (setting `direct`), and this
    /// process must have mapped it. `fill` is called with a function that takes the bytes, in any
    /// number of pieces; bytes beyond `len` are ignored.
    ///
    /// The copy has no order with requests that were posted before it. A request that is posted
    /// after it takes effect after it: the peer sees these bytes first. The first call for a key
    /// only requests a grant.
    ///
    /// During the copy, this thread has the lane, so no other thread makes progress on this device.
    /// If another thread has the lane, the call does not wait, and the result is [`Placed::Not`].
    /// The caller can then post a WRITE, which has the same effect and costs one more copy.
    pub fn place(&self, to: Remote, len: u32, fill: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Placed {
        let engine = self.engine();
        if len == 0 || engine.is_orphan() {
            return Placed::Not;
        }
        let (inner, mut placed) = (self.inner(), Placed::Not);
        if inner.qp_type() != QpType::Rc {
            return Placed::Not;
        }
        // Only the thread that has the lane may access a local peer's memory.
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
    let (grants, rkey) = (core.side.peer.grants_mut(), to.rkey);
    if state != QpState::Rts {
        return Placed::Not;
    }
    let Some((peer, state)) = grants.find(rkey) else { return Placed::Not };
    let grant = match state {
        Some(GrantState::Granted(grant)) => grant,
        None => {
            peer.ask(own, target, rkey);
            return Placed::Not;
        }
        Some(GrantState::No { .. } | GrantState::Never) => return Placed::Not,
    };
    if !grant.region.is_mapped() {
        return Placed::Not;
    }
    let Some(start) = grant.offer.place_write(to.addr, len) else {
        counts.note_refusal(Refusal::Range);
        return Placed::Not;
    };
    if !peer.is_there(now) {
        counts.note_refusal(Refusal::Unreachable);
        return Placed::Not;
    }
    let (key, qp) = (grant.offer.key, grant.offer.qp);
    let Some(access) = grant.words.begin_access(peer.inside(), key, qp) else {
        grants.end(rkey, false);
        counts.note_refusal(Refusal::Closed);
        return Placed::Not;
    };
    let (mut done, mut is_whole) = (0, true);
    fill(&mut |bytes| {
        let bytes = &bytes[..bytes.len().min((len - done) as usize)];
        for piece in bytes.chunks(PIECE) {
            let at = start + u64::from(done);
            is_whole = is_whole && access.is_valid() && grant.region.write_bytes(piece, at).is_ok();
            done += piece.len() as u32;
        }
    });
    is_whole &= access.is_valid() && done == len;
    drop(access);
    if !is_whole {
        grants.end(rkey, false);
        counts.note_refusal(Refusal::Closed);
        return Placed::Cut;
    }
    counts.count(&DirectOp::Write, u64::from(len), 1);
    Placed::Whole
}

//! Direct access: one-sided requests to a local peer that this process carries out itself in the
//! peer's memory, without packets.
//!
//! Called by the lane in a queue pair's turn. A request that cannot be carried out for certain
//! takes packets, so that the responder finds every error and reports it as for any packet. The
//! permission to access memory is a grant (`grants.rs`, `grant_requests.rs`).
//!
//! A long request is carried out in parts of at most [`PART_BYTES`]. Each part is one access, which
//! checks the revocation words of the grant (`vernic_mem`), so the owner of the memory never waits
//! for more than one part when it revokes. Between parts, and between small requests, other queue
//! pairs have their turns. A small request counts as more bytes than it has ([`REQUEST_COST`],
//! [`CALL_COST`]), so that the time of one call of the lane is bounded.
//!
//! A process that has ended, or runs another program after `exec`, is no longer the process that
//! gave the grant. In mapped memory this does no harm: only the file that the process shared is
//! touched. Where the kernel copies, the same system call also reads a random word that no other
//! program has at that address (`vernic_mem::LivenessWord`). So it is enough to check every
//! [`LOOK_NANOS`] that the connection of the process is open. A request to a process that died
//! since the last check may complete with success, as on a wire where the process dies just after
//! its last ACK.

use std::io;
use std::sync::atomic::Ordering;

use vernic_mem::{Memory, PdId, PeerAtomic, PeerCopyError, PeerRegion};
use vernic_proto::{After, AtomicOp, Direct, DirectOp, Qp, Time};
use vernic_wire::Qpn;

use crate::counters::{DirectCounts, Refusal};
use crate::local::direct_peer::DirectPeer;
use crate::local::grants::GrantState;
use crate::qp::host::QpHost;
use crate::qp::send_slots::SendSlots;

/// Largest number of bytes of one access, and of one turn. Copying them takes some 50 us.
const PART_BYTES: u32 = 256 << 10;

/// Largest number of requests that one turn carries out.
const TURN_REQUESTS: usize = 64;

/// The least number of bytes that a request to mapped memory counts as, against the [`PART_BYTES`]
/// of a turn. A small request takes some 0.1 us, in which this many bytes are copied.
const REQUEST_COST: u32 = 1 << 10;

/// The least number of bytes that a request counts as, against the [`PART_BYTES`] of a turn, if the
/// kernel copies. A small request takes two system calls, some 0.8 us.
const CALL_COST: u32 = 4 << 10;

/// The length from which a request waits until earlier requests are acknowledged, instead of taking
/// packets itself. The wait is one round trip. A copy of this length saves more than nine tenths of
/// what packets would cost.
const WORTH_WAITING: u32 = 16 << 10;

/// Time between two checks whether the connection of a process is open, in nanoseconds. A check
/// takes 0.2 us, which is 0.2 % of this time.
const LOOK_NANOS: u64 = 100_000;

/// What is left to do after a queue pair's turn to carry out requests directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The next request, if there is one, takes packets.
    Packets,
    /// The next request waits for acknowledgements of earlier ones. Nothing else may leave before
    /// it.
    Wait,
    /// There may be more requests to carry out directly, in another turn.
    More,
}

/// The result of carrying out one part of a request.
enum Step {
    /// The part is done, and counts as this many bytes.
    Done(u32),
    Packets,
    Wait,
}

/// Counts the reason why a request takes packets instead.
#[cold]
fn refuse(counts: &DirectCounts, why: Refusal) -> Step {
    counts.note_refusal(why);
    Step::Packets
}

/// Carries out a queue pair's next requests directly, until its turn is over or a request cannot
/// be. Also returns as how many bytes these requests count.
#[inline]
pub(crate) fn turn(machine: &mut Qp, host: &mut QpHost<'_>, now: Time) -> (Turn, u32) {
    let mut spent = 0;
    if host.side.peer.grants().peer().is_none() {
        // The peer may have gone in the middle of a request.
        machine.refuse_direct();
        return (Turn::Packets, spent);
    }
    for _ in 0..TURN_REQUESTS {
        let Some(direct) = machine.next_direct() else { return (Turn::Packets, spent) };
        let left = direct.length - direct.done;
        let part = left.min(PART_BYTES - spent);
        let dest = machine.attr().dest_qpn;
        match step(host, &direct, part, dest, now) {
            Step::Done(cost) => {
                spent += cost;
                if part == left {
                    machine.finish_direct(now, host);
                } else {
                    machine.direct_progress(part);
                }
            }
            Step::Wait => return (Turn::Wait, spent),
            Step::Packets => {
                machine.refuse_direct();
                return (Turn::Packets, spent);
            }
        }
        if spent >= PART_BYTES {
            break;
        }
    }
    (Turn::More, spent)
}

/// Carries out the next `part` bytes of a request, if there is a grant that allows it.
#[inline]
fn step(host: &mut QpHost<'_>, direct: &Direct, part: u32, dest: Qpn, now: Time) -> Step {
    let (engine, pd, own) = (host.engine, host.qp.pd(), host.qp.qpn());
    let counts = &engine.counts().direct;
    let rkey = direct.remote.rkey;
    let (grants, slots) = (host.side.peer.grants_mut(), &mut host.side.slots);
    let Some((peer, state)) = grants.find(rkey) else { return Step::Packets };
    let grant = match state {
        Some(GrantState::Granted(grant)) => grant,
        None => {
            peer.ask(own, dest, rkey);
            return refuse(counts, Refusal::NoGrant);
        }
        Some(GrantState::No { .. } | GrantState::Never) => return refuse(counts, Refusal::NoGrant),
    };
    let Some(at) = grant.place(direct) else { return refuse(counts, Refusal::Range) };
    if matches!(direct.op, DirectOp::Atomic(_)) && !grant.region.has_word(at) {
        return refuse(counts, Refusal::Range);
    }
    if direct.after != After::Nothing {
        let worth = direct.after == After::OneSided || direct.length >= WORTH_WAITING;
        return if worth { Step::Wait } else { Step::Packets };
    }
    let by_kernel = matches!(*grant.region, PeerRegion::ByKernel(_));
    if by_kernel && peer.is_forbidden.load(Ordering::Relaxed) {
        // The kernel has refused to access this process with another key, and would refuse this
        // key, too.
        grants.end(rkey, true);
        return refuse(counts, Refusal::NotPermitted);
    }
    if !is_there(peer, now) {
        return refuse(counts, Refusal::Unreachable);
    }
    let (key, qp) = (grant.offer.key, grant.offer.qp);
    let Some(access) = grant.words.begin_access(peer.local_peer.inside(), key, qp) else {
        grants.end(rkey, false);
        return refuse(counts, Refusal::Closed);
    };
    let to = (&*grant.region, at + u64::from(direct.done));
    let done = carry_out((engine.memory(), pd), slots, direct, part, to, || access.is_valid());
    drop(access);
    if let Err(fault) = done {
        let why = why_of(&fault);
        match why {
            // The fault is in this request's local memory, so another request with the key may
            // succeed.
            Refusal::Local => {}
            Refusal::Closed => grants.end(rkey, false),
            _ => {
                let pid = peer.local_peer.pid();
                tracing::debug!(qpn = %own, %rkey, pid, ?fault, "requests with this key take packets");
                peer.is_forbidden.fetch_or(why == Refusal::NotPermitted, Ordering::Relaxed);
                grants.end(rkey, true);
            }
        }
        return refuse(counts, why);
    }
    counts.count(&direct.op, part, direct.done + part == direct.length);
    Step::Done(part.max(if by_kernel { CALL_COST } else { REQUEST_COST }))
}

/// Whether the process that gave the grant still runs. Asks the kernel if the last check is older
/// than [`LOOK_NANOS`].
#[inline]
pub(crate) fn is_there(peer: &DirectPeer, now: Time) -> bool {
    let checked_at = Time(peer.checked_at.load(Ordering::Relaxed));
    if now.since(checked_at) < LOOK_NANOS {
        return true;
    }
    peer.checked_at.store(now.nanos(), Ordering::Relaxed);
    !peer.local_peer.has_hung_up()
}

/// Copies the part, or carries out the atomic, and stops when `holds` says that the grant was
/// revoked.
#[inline]
fn carry_out(
    memory: (&Memory, PdId),
    slots: &mut SendSlots,
    direct: &Direct,
    part: u32,
    to: (&PeerRegion, u64),
    holds: impl Fn() -> bool,
) -> Result<(), PeerCopyError> {
    let (slot, done) = (direct.slot, direct.done);
    match direct.op {
        DirectOp::Write => slots.write_peer(memory, slot, done, part, to, holds),
        DirectOp::Read => slots.read_peer(memory, slot, done, part, to, holds),
        DirectOp::Atomic(op) => {
            let op = match op {
                AtomicOp::CmpSwap { compare, swap } => PeerAtomic::CmpSwap { compare, swap },
                AtomicOp::FetchAdd(add) => PeerAtomic::FetchAdd(add),
            };
            slots.atomic_peer(memory, slot, to, op)
        }
    }
}

/// Returns the reason to count for a fault, which also decides whether the key may be used again.
#[cold]
fn why_of(fault: &PeerCopyError) -> Refusal {
    use io::ErrorKind::{PermissionDenied, Unsupported};
    match fault {
        PeerCopyError::Local(_) => Refusal::Local,
        PeerCopyError::Revoked => Refusal::Closed,
        // A filter of system calls (seccomp) returns one of these two errors.
        PeerCopyError::Peer(error) if matches!(error.kind(), PermissionDenied | Unsupported) => {
            Refusal::NotPermitted
        }
        PeerCopyError::Peer(_) => Refusal::Unreachable,
    }
}

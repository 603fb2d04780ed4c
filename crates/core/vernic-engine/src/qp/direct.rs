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
//! [`CALL_COST`], [`PIECE_COST`]), so that the time of one call of the lane is bounded.
//!
//! Where the kernel copies, WRITEs that follow each other with one key go in one call, and so do
//! READs ([`list`]). They are one access. The kernel copies them in their order, so the bytes of a
//! later one win where they overlap. The list ends before a request that cannot be carried out so,
//! which then has its own way. Whatever stops a list, the requests that were not wholly copied go
//! one by one: a list reports nothing and refuses nothing.
//!
//! A process that has ended, or runs another program after `exec`, is no longer the process that
//! gave the grant. In mapped memory this does no harm: only the file that the process shared is
//! touched. Where the kernel copies, the same system call also reads a random word that no other
//! program has at that address (`vernic_mem::LivenessWord`). So it is enough to check every
//! 100 us that the connection of the process is open. A request to a process that died
//! since the last check may complete with success, as on a wire where the process dies just after
//! its last ACK.

use std::io;
use std::iter;
use std::sync::atomic::AtomicU64;

use vernic_local::{GrantState, PeerGrant, QpGrants, Refusal};
use vernic_mem::{
    Holds, Memory, PdId, PeerAtomic, PeerCopies, PeerCopyError, PeerRange, RemoteMemory,
};
use vernic_proto::{After, AtomicOp, Direct, DirectOp, Qp, Time};
use vernic_wire::{Qpn, Rkey};

use crate::counters::DirectCounts;
use crate::device::opened::Device;
use crate::qp::host::QpHost;
use crate::qp::send_slots::{SendSlots, Stored};

/// Largest number of bytes of one access, and of one turn. Copying them takes some 50 us.
const PART_BYTES: u32 = 256 << 10;

/// Largest number of requests, or lists of requests, that one turn carries out.
const TURN_STEPS: usize = 64;

/// The least number of bytes that a request to mapped memory counts as, against the [`PART_BYTES`]
/// of a turn. A small request takes some 0.1 us, in which this many bytes are copied.
const REQUEST_COST: u32 = 1 << 10;

/// The least number of bytes that a request counts as, against the [`PART_BYTES`] of a turn, if the
/// kernel copies. So does the first one of a list. A small request takes some 0.6 us, most of it in
/// the system call.
const CALL_COST: u32 = 4 << 10;

/// The least number of bytes that each piece of a further request of a list counts as. The kernel
/// takes some 0.15 us for a piece of remote memory, and little for a piece of local memory. A small
/// request has one of each: 1 KiB, or 0.2 us.
const PIECE_COST: u32 = 512;

/// The length from which a request waits until earlier requests are acknowledged, instead of taking
/// packets itself. The wait is one round trip. A copy of this length saves more than nine tenths of
/// what packets would cost.
const WORTH_WAITING: u32 = 16 << 10;

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

/// The result of carrying out one part of a request, or a list of requests.
enum Step {
    /// So many requests are done to their end, and count as `cost` bytes.
    Done {
        requests: usize,
        cost: u32,
    },
    /// `bytes` more of the request are done, which is not all of it.
    Part {
        bytes: u32,
        cost: u32,
    },
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
    for _ in 0..TURN_STEPS {
        let Some(direct) = machine.next_direct() else { return (Turn::Packets, spent) };
        match step(machine, host, &direct, PART_BYTES - spent, now) {
            Step::Done { requests, cost } => {
                spent += cost;
                for _ in 0..requests {
                    machine.finish_direct(now, host);
                }
            }
            Step::Part { bytes, cost } => {
                spent += cost;
                machine.direct_progress(bytes);
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

/// Carries out at most `room` bytes more of the next request, or a list that begins with it, if
/// there is a grant that allows it.
#[inline]
fn step(machine: &Qp, host: &mut QpHost<'_>, direct: &Direct, room: u32, now: Time) -> Step {
    let (engine, pd, own) = (host.engine, host.qp.pd(), host.qp.qpn());
    let counts = &engine.counts().direct;
    let rkey = direct.remote.rkey;
    let (grants, slots) = (host.side.peer.grants_mut(), &mut host.side.slots);
    let Some((peer, state)) = grants.find(rkey) else { return Step::Packets };
    let grant = match state {
        Some(GrantState::Granted(grant)) => grant,
        None => {
            peer.ask(own, machine.attr().dest_qpn, rkey);
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
    let by_kernel = !grant.region.is_mapped();
    if by_kernel && peer.is_forbidden() {
        // The kernel has refused to access this process with another key, and would refuse this
        // key, too.
        grants.end(rkey, true);
        return refuse(counts, Refusal::NotPermitted);
    }
    if !peer.is_there(now) {
        return refuse(counts, Refusal::Unreachable);
    }
    let inside = peer.inside();
    if by_kernel
        && direct.done == 0
        && let Some(done) = list(machine, slots, (engine, pd), grant, inside, room)
    {
        return done;
    }
    let part = (direct.length - direct.done).min(room);
    let (key, qp) = (grant.offer.key, grant.offer.qp);
    let Some(access) = grant.words.begin_access(inside, key, qp) else {
        grants.end(rkey, false);
        return refuse(counts, Refusal::Closed);
    };
    let to = (&*grant.region, at + u64::from(direct.done));
    let done = carry_out((engine.memory(), pd), slots, direct, part, to, &|| access.is_valid());
    drop(access);
    if let Err(fault) = done {
        return refuse(counts, note_fault(grants, own, rkey, &fault));
    }
    let ends = direct.done + part == direct.length;
    counts.count(&direct.op, u64::from(part), ends.into());
    let cost = part.max(if by_kernel { CALL_COST } else { REQUEST_COST });
    if ends { Step::Done { requests: 1, cost } } else { Step::Part { bytes: part, cost } }
}

/// Whether a request may go in one list with the first one of the list.
#[inline]
fn goes_with(direct: &Direct, first: &Direct) -> bool {
    let kinds = (direct.op, first.op);
    matches!(kinds, (DirectOp::Write, DirectOp::Write) | (DirectOp::Read, DirectOp::Read))
        && direct.remote.rkey == first.remote.rkey
}

/// Adds a WRITE of `len` bytes to offset `at` of the granted range. Returns false if it cannot be
/// carried out in a list.
#[inline]
fn add_write<'a>(
    copies: &mut PeerCopies<'a, true>,
    from: Stored<'a>,
    (at, len): (u64, u32),
) -> bool {
    match from {
        Stored::Sges(sges) => copies.push(sges, u64::from(len), at),
        Stored::Inline(bytes) => {
            bytes.get(..len as usize).is_some_and(|bytes| copies.push_bytes(bytes, at))
        }
    }
}

/// Adds a READ of `len` bytes from offset `at` of the granted range, as [`add_write`] does.
#[inline]
fn add_read<'a>(copies: &mut PeerCopies<'a, false>, to: Stored<'a>, (at, len): (u64, u32)) -> bool {
    matches!(to, Stored::Sges(sges) if copies.push(sges, u64::from(len), at))
}

/// What was done of a list.
struct List {
    /// Requests that were wholly copied, at least one.
    requests: usize,
    /// Bytes of these requests.
    bytes: u64,
    /// Bytes that the list counts as.
    cost: u32,
}

/// Carries out the next request and those behind it that go with it, by one call of the kernel and
/// in one access, if they count as no more than `room` bytes. `None` if only the next request can
/// go, or not even that one. It then goes alone, which finds what is wrong with it. A request
/// that goes alone pays little: nothing is inlined, and the caller keeps the request in registers.
#[inline(never)]
fn list(
    machine: &Qp,
    slots: &SendSlots,
    (engine, pd): (&Device, PdId),
    grant: &PeerGrant,
    inside: &AtomicU64,
    room: u32,
) -> Option<Step> {
    let range = grant.region.range()?;
    let second = machine.directs_behind().next()?;
    let next = machine.next_direct().filter(|next| goes_with(&second, next))?;
    let requests = || {
        let behind = machine.directs_behind().take_while(|direct| goes_with(direct, &next));
        iter::once(next).chain(behind)
    };
    let stored = |direct: &Direct| slots.stored(direct.slot);
    let (memory, grant) = ((engine.memory(), pd), (grant, range));
    let List { requests, bytes, cost } = match next.op {
        DirectOp::Write => copy_list(requests, stored, add_write, memory, grant, inside, room)?,
        DirectOp::Read => copy_list(requests, stored, add_read, memory, grant, inside, room)?,
        DirectOp::Atomic(_) => return None,
    };
    engine.counts().direct.count(&next.op, bytes, requests as u64);
    Some(Step::Done { requests, cost })
}

/// Copies `requests`, which are of one kind and have the key of the grant. `stored` has the payload
/// of a request, and `add` adds the request to the call.
#[inline(never)]
fn copy_list<'a, const TO_PEER: bool, I: Iterator<Item = Direct>>(
    requests: impl Fn() -> I,
    stored: impl Fn(&Direct) -> Stored<'a>,
    add: impl Fn(&mut PeerCopies<'a, TO_PEER>, Stored<'a>, (u64, u32)) -> bool,
    (memory, pd): (&'a Memory, PdId),
    (grant, range): (&PeerGrant, &PeerRange),
    inside: &AtomicU64,
    room: u32,
) -> Option<List> {
    let mut copies = PeerCopies::<TO_PEER>::new(memory, pd, range);
    let (mut count, mut cost) = (0, 0);
    for direct in requests() {
        if direct.length > room.saturating_sub(cost) {
            break;
        }
        let Some(at) = grant.place(&direct) else { break };
        let before = copies.pieces();
        if !add(&mut copies, stored(&direct), (at, direct.length)) {
            break;
        }
        let least = (copies.pieces() - before) as u32 * PIECE_COST;
        let least = if count == 0 { least.max(CALL_COST) } else { least };
        cost += direct.length.max(least);
        count += 1;
    }
    if count < 2 {
        return None;
    }
    let access = grant.words.begin_access(inside, grant.offer.key, grant.offer.qp)?;
    let copied = copies.copy();
    drop(access);
    let bytes = copied.ok()?;
    let mut left = bytes;
    let whole = requests().take(count).map_while(|direct| {
        left = left.checked_sub(u64::from(direct.length))?;
        Some(())
    });
    let requests = whole.count();
    (requests > 0).then_some(List { requests, bytes: bytes - left, cost })
}

/// Notes that a request was not carried out because of a fault, and returns the reason to count.
#[cold]
fn note_fault(grants: &mut QpGrants, own: Qpn, rkey: Rkey, fault: &PeerCopyError) -> Refusal {
    let why = why_of(fault);
    match why {
        // The fault is in this request's local memory, so another request with the key may succeed.
        Refusal::Local => {}
        Refusal::Closed => grants.end(rkey, false),
        _ => {
            if let Some(peer) = grants.peer() {
                let pid = peer.pid();
                tracing::debug!(qpn = %own, %rkey, pid, ?fault, "requests with this key take packets");
                if why == Refusal::NotPermitted {
                    peer.forbid();
                }
            }
            grants.end(rkey, true);
        }
    }
    why
}

/// Copies the part, or carries out the atomic, and stops when `holds` says that the grant was
/// revoked.
#[inline]
fn carry_out(
    memory: (&Memory, PdId),
    slots: &mut SendSlots,
    direct: &Direct,
    part: u32,
    to: (&dyn RemoteMemory, u64),
    holds: Holds<'_>,
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

//! One-sided requests to a local peer, carried out by this process in the peer's memory.
//!
//! Called by the lane in a queue pair's turn. What cannot be done for certain is left to packets,
//! so that the responder finds every error, and errors are those of packets. Permission comes as a
//! grant (`tickets.rs`, `consent.rs`).
//!
//! A request is carried out in parts of at most [`PART_BYTES`]. Each part is one access under the
//! revocation words of its grant (`vernic_mem`), so the owner of the memory waits for one part at
//! most. Other queue pairs have their turn between parts and between small requests. Each small
//! request counts as some bytes ([`REQUEST_COST`], [`CALL_COST`]), so the time of one call of the
//! lane is bounded.
//!
//! A process that has ended, or replaced itself by exec, no longer is the process that gave the
//! grant. In mapped memory, nothing but the process's own file is touched. Where the kernel copies,
//! it is asked in the same call for a word that no other program has (`vernic_mem::LivenessWord`).
//! So the connection of the process is checked every [`LOOK_NANOS`] only. What is written to a
//! process that died since then may complete with success, as on a wire whose last ACK was on the
//! way.

use std::io;
use std::sync::atomic::Ordering;

use vernic_mem::{Memory, PdId, PeerAtomic, PeerCopyError, PeerRegion};
use vernic_proto::{After, AtomicOp, Direct, DirectOp, Qp, Time};
use vernic_wire::Qpn;

use crate::counters::{DirectCounts, Refusal};
use crate::local::guest::Guest;
use crate::local::tickets::Consent;
use crate::qp::host::QpHost;
use crate::qp::send_slots::SendSlots;

/// Bytes of one access, and of one turn: some 50 us of copying.
const PART_BYTES: u32 = 256 << 10;

/// Largest number of requests of one turn.
const TURN_REQUESTS: usize = 64;

/// Least bytes that a request to mapped memory counts as. It takes some 0.1 us, in which so much is
/// copied.
const REQUEST_COST: u32 = 1 << 10;

/// Least bytes that a request counts as if the kernel carries it out: two system calls, some 0.8
/// us.
const CALL_COST: u32 = 4 << 10;

/// The length from which a request waits for packets of other requests rather than takes packets
/// itself. Its copy costs less than a tenth of what its packets would, and the wait is one round
/// trip.
const WORTH_WAITING: u32 = 16 << 10;

/// How often the connection of a process is checked, in nanoseconds. A check takes 0.2 us, so it
/// costs 0.2 %.
const LOOK_NANOS: u64 = 100_000;

/// The result of a queue pair's turn to carry out requests directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The next request, if there is one, takes packets.
    Packets,
    /// The next request waits for acknowledgements; nothing else may leave.
    Wait,
    /// There may be more requests, for another turn.
    More,
}

/// The result of one part of a request.
enum Step {
    /// This part is done; it counts as so many bytes.
    Done(u32),
    Packets,
    Wait,
}

/// Counts a request that takes packets instead.
#[cold]
fn refuse(counts: &DirectCounts, why: Refusal) -> Step {
    counts.note_refusal(why);
    Step::Packets
}

/// Carries out what a queue pair can do without packets, until its turn is over. Also returns as
/// how many bytes that counts.
#[inline]
pub(crate) fn turn(machine: &mut Qp, host: &mut QpHost<'_>, now: Time) -> (Turn, u32) {
    let mut spent = 0;
    if host.side.peer.tickets().guest().is_none() {
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

/// Carries out the next `part` bytes of a request, if there is a grant for it.
#[inline]
fn step(host: &mut QpHost<'_>, direct: &Direct, part: u32, dest: Qpn, now: Time) -> Step {
    let (engine, pd, own) = (host.engine, host.qp.pd(), host.qp.qpn());
    let counts = &engine.counts().direct;
    let rkey = direct.remote.rkey;
    let (tickets, slots) = (host.side.peer.tickets_mut(), &mut host.side.slots);
    let Some((guest, consent)) = tickets.find(rkey) else { return Step::Packets };
    let ticket = match consent {
        Some(Consent::Ticket(ticket)) => ticket,
        None => {
            guest.ask(own, dest, rkey);
            return refuse(counts, Refusal::NoTicket);
        }
        Some(Consent::No { .. } | Consent::Never) => return refuse(counts, Refusal::NoTicket),
    };
    let Some(at) = ticket.place(direct) else { return refuse(counts, Refusal::Range) };
    if matches!(direct.op, DirectOp::Atomic(_)) && !ticket.reach.has_word(at) {
        return refuse(counts, Refusal::Range);
    }
    if direct.after != After::Nothing {
        let worth = direct.after == After::OneSided || direct.length >= WORTH_WAITING;
        return if worth { Step::Wait } else { Step::Packets };
    }
    let by_kernel = matches!(*ticket.reach, PeerRegion::ByKernel(_));
    if by_kernel && guest.is_forbidden.load(Ordering::Relaxed) {
        // The kernel has refused this with another key.
        tickets.end(rkey, true);
        return refuse(counts, Refusal::NotPermitted);
    }
    if !is_there(guest, now) {
        return refuse(counts, Refusal::Unreachable);
    }
    let (key, qp) = (ticket.offer.key, ticket.offer.qp);
    let Some(visit) = ticket.gates.begin_access(guest.neighbour.inside(), key, qp) else {
        tickets.end(rkey, false);
        return refuse(counts, Refusal::Closed);
    };
    let to = (&*ticket.reach, at + u64::from(direct.done));
    let done = carry_out((engine.memory(), pd), slots, direct, part, to, || visit.is_valid());
    drop(visit);
    if let Err(fault) = done {
        let why = why_of(&fault);
        match why {
            // Another request may succeed.
            Refusal::Local => {}
            Refusal::Closed => tickets.end(rkey, false),
            _ => {
                let pid = guest.neighbour.pid();
                tracing::debug!(qpn = %own, %rkey, pid, ?fault, "requests with this key take packets");
                guest.is_forbidden.fetch_or(why == Refusal::NotPermitted, Ordering::Relaxed);
                tickets.end(rkey, true);
            }
        }
        return refuse(counts, why);
    }
    counts.count(&direct.op, part, direct.done + part == direct.length);
    Step::Done(part.max(if by_kernel { CALL_COST } else { REQUEST_COST }))
}

/// Whether the process is still the one that gave the grant, as far as that must be known.
#[inline]
pub(crate) fn is_there(guest: &Guest, now: Time) -> bool {
    let looked = Time(guest.looked.load(Ordering::Relaxed));
    if now.since(looked) < LOOK_NANOS {
        return true;
    }
    guest.looked.store(now.nanos(), Ordering::Relaxed);
    !guest.neighbour.has_hung_up()
}

/// Copies, or runs the atomic, while access `holds`.
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

/// Returns what a fault means for later requests.
#[cold]
fn why_of(fault: &PeerCopyError) -> Refusal {
    use io::ErrorKind::{PermissionDenied, Unsupported};
    match fault {
        PeerCopyError::Local(_) => Refusal::Local,
        PeerCopyError::Revoked => Refusal::Closed,
        // A filter of system calls returns one error or the other.
        PeerCopyError::Peer(error) if matches!(error.kind(), PermissionDenied | Unsupported) => {
            Refusal::NotPermitted
        }
        PeerCopyError::Peer(_) => Refusal::Unreachable,
    }
}

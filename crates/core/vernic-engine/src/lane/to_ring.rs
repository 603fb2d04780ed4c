//! Requests of a queue pair to the ring of a local peer: SENDs as parts of messages, the rest in
//! packets.

use vernic_local::{LIMITS, RingOut};
use vernic_proto::{Qp, QpState, RendezvousLimits, Time};

use super::plan::{TURN_BYTES, TURN_PACKETS};
use crate::counters::Counted;
use crate::qp::host::QpHost;
use crate::sched::TurnResult;

/// Sends what was posted, if it is SENDs that this ring has room for: then a turn has nothing else
/// to see to. Returns whether something was sent, and all that was posted; the rest is left to a
/// turn.
#[inline]
pub(super) fn send_messages(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    mut ring: RingOut<'_>,
    now: Time,
) -> bool {
    let carries_acks = begin_messages(machine, host);
    let (mut is_written, mut is_done, mut bytes) = (false, false, 0);
    for _ in 0..TURN_PACKETS {
        let Some(room) = ring.room(false) else { break };
        let Some((part, len)) = machine.poll_message(now, host, room) else { break };
        let ack = if carries_acks { machine.take_ack(now, host) } else { None };
        ring.push_message(machine.attr().dest_qpn, &part, ack, len);
        bytes += part.length as usize;
        (is_written, is_done) = (true, machine.has_sent_all());
        if bytes >= TURN_BYTES || is_done {
            break;
        }
    }
    if is_written {
        host.engine.counts().note_written(ring.finish());
    }
    is_done
}

/// Tells the machine that its SENDs leave as parts of messages, and of which the peer copies the
/// payload. Returns whether they carry acknowledgements: answers take the same ring.
#[inline]
fn begin_messages(machine: &mut Qp, host: &QpHost<'_>) -> bool {
    machine.set_messages(true);
    machine.set_rendezvous(rendezvous(machine, host));
    host.side.peer.route().answers_beside_requests()
}

/// Writes requests of a connection to the ring of a local peer: SENDs as parts of messages, the
/// rest in packets.
#[inline]
pub(super) fn write_to_ring(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    ring: &mut RingOut<'_>,
    now: Time,
) -> TurnResult {
    if !matches!(machine.state(), QpState::Rts | QpState::Sqd) {
        // What was posted is flushed, which writes nothing: a full ring is not in its way.
        machine.poll_request(now, host, &mut []);
        return TurnResult::Nothing;
    }
    let carries_acks = begin_messages(machine, host);
    let (mut written, mut bytes) = (false, 0);
    for _ in 0..TURN_PACKETS {
        if bytes >= TURN_BYTES || (written && machine.has_sent_all()) {
            break;
        }
        // A ring that nobody reads any more loses packets, so that retries are used up. Where an
        // answer is awaited the ACK timer does that by itself.
        let is_lost = ring.is_given_up() && !machine.has_unacknowledged();
        if is_lost {
            machine.set_messages(false);
        }
        let Some(room) = ring.room(is_lost) else {
            return if machine.wants_requests() {
                backpressured(host)
            } else {
                TurnResult::written(written)
            };
        };
        if let Some((part, len)) = machine.poll_message(now, host, room) {
            let ack = if carries_acks { machine.take_ack(now, host) } else { None };
            ring.push_message(machine.attr().dest_qpn, &part, ack, len);
            bytes += part.length as usize;
        } else if let Some(sent) = machine.poll_request(now, host, room) {
            let Some(path) = host.side.peer.path() else { break };
            ring.push(path, sent.len);
            bytes += sent.len;
        } else if machine.has_message() {
            // Local requests were carried out, and a SEND follows them.
            continue;
        } else {
            break;
        }
        written = true;
    }
    TurnResult::written(written)
}

/// The receiver has not made room in its ring.
#[cold]
pub(super) fn backpressured(host: &QpHost<'_>) -> TurnResult {
    host.engine.counts().note(Counted::NearFullTurn);
    TurnResult::Backpressured
}

/// Returns which payload of SENDs the local peer copies by itself (a rendezvous), if any.
#[inline]
fn rendezvous(machine: &Qp, host: &QpHost<'_>) -> Option<RendezvousLimits> {
    let peer = host.side.peer.grants().peer()?;
    if peer.supports_rendezvous() {
        return Some(LIMITS);
    }
    if machine.next_send_bytes() >= LIMITS.min_bytes {
        peer.want_rendezvous(host.engine.memory());
    }
    None
}

//! One queue pair's turn: its machine builds packets, and they are written along their routes.

use vernic_local::{LocalPeer, LocalPeers, RequestRoute};
use vernic_proto::{Qp, QpState, Time};
use vernic_wire::{AckTimeout, Service};

use super::plan::{self, Direct, TURN_BYTES, TURN_PACKETS, TurnPart};
use super::sinks::{PacketSink, Room, Sinks};
use super::to_ring::{backpressured, write_to_ring};
use super::unreliable;
use crate::counters::Counted;
use crate::qp::direct;
use crate::qp::host::QpHost;
use crate::sched::TurnResult;

/// Runs the parts of a turn, one after the other. By the link, so many packets of requests leave at
/// most.
pub(super) fn run(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    sinks: &mut Sinks<'_>,
    (mut parts, requests): (&[TurnPart], usize),
    now: Time,
) -> TurnResult {
    let (mut did, mut switches) = (TurnResult::Nothing, false);
    if chooses_by_request(machine) {
        did = unreliable::run(machine, host, sinks, now);
        if !machine.wants_responses() {
            return did;
        }
        // A congestion notification of UC: the one response that such a service has.
        parts = &[TurnPart::Responses];
    } else {
        switches = self::switches(machine, host, sinks);
    }
    for &part in parts {
        if parts.len() > 1 && !is_wanted(part, machine) {
            continue;
        }
        let part = if part == TurnPart::Requests {
            let direct = directly(machine, host, sinks.local_peers, now);
            if direct == Direct::Did {
                did = did.and(TurnResult::Wrote);
            }
            match plan::requests(direct, switches, machine.is_probing()) {
                Some(part) => part,
                None => continue,
            }
        } else {
            part
        };
        let most = if part == TurnPart::Requests { requests } else { TURN_PACKETS };
        did = did.and(along_route((part, most), machine, host, sinks, now));
    }
    did
}

/// Whether a queue pair of an unreliable service is in a sending state, so that each request
/// chooses its route.
fn chooses_by_request(machine: &Qp) -> bool {
    matches!(machine.service(), Service::Uc | Service::Ud)
        && matches!(machine.state(), QpState::Rts | QpState::Sqd)
}

/// Whether the queue pair has anything to write in a part.
#[inline]
fn is_wanted(part: TurnPart, machine: &Qp) -> bool {
    match part {
        TurnPart::Requests | TurnPart::Probe => machine.wants_requests(),
        TurnPart::Responses => machine.wants_responses(),
    }
}

/// Writes a part of a turn of RC or XRC along its route: the ring of a local peer, or the link.
#[inline]
fn along_route(
    (part, most): (TurnPart, usize),
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    sinks: &mut Sinks<'_>,
    now: Time,
) -> TurnResult {
    let route = host.side.peer.route();
    let ring = match part {
        TurnPart::Requests | TurnPart::Probe => route.request_ring(),
        TurnPart::Responses => route.answer_ring(),
    };
    if let Some(mut ring) = ring.and_then(|id| sinks.local_peers.out(id, now)) {
        if machine.attr().timeout == AckTimeout::INFINITE {
            ring.wait_for_ever();
        }
        let did = match part {
            TurnPart::Requests => write_to_ring(machine, host, &mut ring, now),
            TurnPart::Probe | TurnPart::Responses => {
                write((part, most), machine, host, &mut ring, now)
            }
        };
        host.engine.counts().note_written(ring.finish());
        return did;
    }
    if part == TurnPart::Requests {
        machine.set_messages(false);
    }
    let lane = host.side.peer.path().map_or(0, |path| path.lane());
    let Some(batch) = sinks.tx.of(lane) else { return TurnResult::Backpressured };
    let before = machine.counters().retransmitted_packets;
    let did = write((part, most), machine, host, batch, now);
    let repeated = machine.counters().retransmitted_packets - before;
    if repeated != 0 {
        host.engine.counts().add(Counted::PacketRepeated, repeated);
    }
    did
}

/// Writes the packets of one part of a turn along a route, `most` at most.
#[inline]
fn write(
    (part, most): (TurnPart, usize),
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    sink: &mut impl PacketSink,
    now: Time,
) -> TurnResult {
    let (mut written, mut bytes) = (false, 0);
    for packet in 1..=most.min(TURN_PACKETS) {
        // A probe has two packets, and is over with the second.
        if bytes >= TURN_BYTES || part == TurnPart::Probe && !machine.is_probing() {
            break;
        }
        let room = match sink.room() {
            Room::Free(room) => room,
            Room::Batch => break,
            Room::Receiver if is_wanted(part, machine) => return backpressured(host),
            Room::Receiver => break,
        };
        if part == TurnPart::Requests && packet == most {
            // The others that wait for the destination's window need the room again.
            machine.ask_ack();
        }
        let sent = match part {
            TurnPart::Requests => machine.poll_request(now, host, room),
            TurnPart::Probe => machine.poll_probe(now, host, room),
            TurnPart::Responses => machine.poll_response(now, host, room),
        };
        let Some(sent) = sent else { break };
        let Some(path) = host.side.peer.path() else { break };
        sink.push(path, sent.len);
        if part == TurnPart::Requests {
            bytes += sent.len;
        }
        written = true;
    }
    TurnResult::written(written)
}

/// Whether requests pause in order to switch from the link to shared memory. Requests go through a
/// ring as soon as there is a ring and no request is in flight by the link; this function makes
/// that switch. A queue pair that always has something to send always has something in flight, so
/// it pauses once, for a round trip. It does not pause where a loss would then go unnoticed
/// (infinite timeout), or could not be repaired (a retry count of 0). In other states nothing is
/// sent, and what was in flight may never be acknowledged.
#[inline]
fn switches(machine: &mut Qp, host: &mut QpHost<'_>, sinks: &Sinks<'_>) -> bool {
    let local_peers = &sinks.local_peers;
    if local_peers.is_empty()
        || host.side.peer.route().requests() != RequestRoute::Wire
        || !matches!(machine.state(), QpState::Rts | QpState::Sqd)
    {
        return false;
    }
    let Some(path) = host.side.peer.path() else { return false };
    let Some(id) = local_peers.peer_of(path, machine.attr().dest_qpn) else { return false };
    if machine.has_unacknowledged() {
        let attr = machine.attr();
        let is_repaired = attr.timeout != AckTimeout::INFINITE && attr.retry_cnt != 0;
        return is_repaired && !machine.is_repeating();
    }
    let pid = local_peers.peer(id).map(LocalPeer::pid);
    tracing::debug!(qpn = %host.qp.qpn(), pid, "packets to a local peer go through memory from now on");
    let process = local_peers.peer(id).map(LocalPeer::process);
    let peer = process.filter(|process| process.may_access()).cloned();
    host.side.peer.switch_to(id, peer);
    false
}

/// Carries out requests that need no packets (direct access).
#[inline]
fn directly(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    local_peers: &mut LocalPeers,
    now: Time,
) -> Direct {
    let (turn, bytes) = direct::turn(machine, host, now);
    local_peers.spend(bytes as usize);
    match turn {
        direct::Turn::Packets => Direct::Packets,
        direct::Turn::Wait => Direct::Waits,
        direct::Turn::More => Direct::Did,
    }
}

//! Receives the bytes of connections.
//!
//! Long payload with a known destination goes from the socket directly to registered memory. What
//! follows the payload goes into the buffer by the same system call, so this code copies nothing
//! itself. The exception are the last [`LAST_BYTES`] of the payload, which go through the buffer:
//! programs spin on the last byte that is written to them, and only our own copy can store it after
//! all others.
//!
//! Everything else goes through the buffer, too: headers, payload that must be checked before it is
//! placed, destinations that are not plain memory, and short payload, where a system call for each
//! FPDU would cost more than the copy.
//!
//! ```text
//!   recvmsg:  [ payload ........................ ][ 8 bytes, pad, CRC, the next FPDU's headers ]
//!               registered memory                   buffer, then iwarp::Qp::handle_bytes
//! ```

use vernic_io::tcp::{MAX_PIECES, Received};
use vernic_mem::{RacySliceMut, SliceScope, Slices};
use vernic_proto::iwarp::{Place, RxNext, StreamEnd, Target};
use vernic_proto::{AccessFault, QpCounters, QpState, Time};
use vernic_wire::iwarp::Crc32c;

use super::{Conn, Streams, TURN_BYTES, end_of, with_stream};
use crate::device::opened::Device;
use crate::qp::host::{QpHost, fault};
use crate::qp::state::{QpCore, QpInner};

/// The length in bytes from which payload is received directly into its destination. For shorter
/// payload, the additional system call for each FPDU costs more than the copy: it takes as long as
/// copying some 16 KiB that are in the cache.
const PLACE_BYTES: u32 = 16 << 10;

/// The number of bytes at the end of a segment's payload that our own copy stores. An aligned word
/// of this size is stored as a whole.
const LAST_BYTES: u32 = 8;

/// Size in bytes of the space for what follows payload that is received directly: its last bytes,
/// pad, CRC, length and header of the next FPDU, and a short message or two.
const BEHIND_BYTES: usize = 256;

/// The result of a receiving system call.
struct Got {
    received: Received,
    /// Bytes that could have been received at most.
    room: usize,
}

impl Streams {
    /// Receives a turn's bytes, or handles that the connection is lost (`broken`). Returns whether
    /// there was anything to do.
    pub(super) fn receive(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        broken: bool,
    ) -> bool {
        let Some(conn) = self.connections.get_mut(&qp.qpn().value()) else { return false };
        let held = conn.held;
        if conn.ended || held && !conn.retry(engine, qp, core, now) {
            // While a message waits, the connection is not read, so its loss would not be noticed
            // otherwise.
            if broken {
                conn.ended = true;
                with_stream(engine, qp, now, core, |machine, host| {
                    machine.handle_end(now, StreamEnd::Reset, 0, host);
                });
            }
            return broken;
        }
        if core.machine.stream().is_none_or(|machine| machine.rx_next() == RxNext::Nothing) {
            // The queue pair was reset, or its stream is over.
            return false;
        }
        let (mut left, mut did) = (TURN_BYTES, held);
        while left > 0 && !conn.held {
            let got = conn.recv_in_place(engine, qp, core, now, &mut self.buffer);
            let got = got.unwrap_or_else(|| conn.recv(engine, qp, core, now, &mut self.buffer));
            engine.counts().streams.rx_calls.add(1);
            let end = match got.received {
                Received::Bytes(len) => {
                    engine.counts().streams.rx_bytes.add(len as u64);
                    conn.measure(core);
                    did = true;
                    if len < got.room {
                        return true;
                    }
                    left = left.saturating_sub(len);
                    continue;
                }
                Received::Nothing => return did,
                Received::End => StreamEnd::Closed,
                Received::Lost(error) => end_of(&error),
            };
            conn.ended = true;
            let rest = conn.rest.len();
            with_stream(engine, qp, now, core, |machine, host| {
                machine.handle_end(now, end, rest, host);
                // The peer has closed its end, so this end closes, too.
                if machine.state() == QpState::Rts {
                    machine.close(now, host);
                }
            });
            return true;
        }
        did
    }
}

impl Conn {
    /// Receives into the buffer, and passes what came to the machine.
    fn recv(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        buffer: &mut [u8],
    ) -> Got {
        let rest = self.rest.len();
        buffer[..rest].copy_from_slice(&self.rest);
        let room = match core.machine.stream().map(|machine| machine.rx_next()) {
            // In a stream of long FPDUs, read only as far as the next header, so that the payload
            // after it can be received directly into its destination.
            Some(RxNext::Place(place)) if self.is_long => place.len as usize + BEHIND_BYTES,
            Some(RxNext::Bytes(_)) if self.is_long => BEHIND_BYTES,
            _ => buffer.len() - rest,
        };
        let received = self.connection.recv(&mut buffer[rest..rest + room]);
        if let Received::Bytes(len) = received {
            self.pass(engine, qp, core, now, &buffer[..rest + len]);
        }
        Got { received, room }
    }

    /// Computes `is_long` anew from the FPDUs that have come since the last call.
    fn measure(&mut self, core: &mut QpCore) {
        let QpCounters { rx_packets, rx_bytes, .. } = *core.machine.counters();
        let (packets, bytes) = self.measured;
        // No FPDU has come, or the queue pair was reset and counts from 0 again.
        if rx_packets <= packets {
            return;
        }
        self.measured = (rx_packets, rx_bytes);
        let is_long = rx_bytes - bytes >= (rx_packets - packets) * u64::from(PLACE_BYTES);
        self.is_long = is_long && core.machine.stream().is_some_and(|qp| qp.places_payload());
    }

    /// Receives payload directly into its destination, and what follows it into the buffer. Returns
    /// `None` if the next bytes have to be received in another way.
    fn recv_in_place(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<Got> {
        let place = match core.machine.stream()?.rx_next() {
            RxNext::Place(place) if self.rest.is_empty() && place.len >= PLACE_BYTES => place,
            _ => return None,
        };
        let direct = place.len - LAST_BYTES;
        let room = direct as usize + BEHIND_BYTES;
        let behind = &mut buffer[..BEHIND_BYTES];
        let (received, crc) = match self.recv_pieces(engine, qp, core, now, &place, behind)? {
            Ok(received) => received,
            Err(fault) => {
                with_stream(engine, qp, now, core, |machine, host| {
                    machine.refuse_place(now, fault, host);
                });
                return Some(Got { received: Received::Nothing, room });
            }
        };
        if let Received::Bytes(len) = received {
            let placed = direct.min(len as u32);
            engine.counts().streams.placed_bytes.add(u64::from(placed));
            if let Some(machine) = core.machine.stream() {
                machine.handle_placed(now, placed, crc);
            }
            if let Some(len) = len.checked_sub(direct as usize).filter(|&len| len > 0) {
                self.pass(engine, qp, core, now, &buffer[..len]);
            }
        }
        Some(Got { received, room })
    }

    /// Receives payload, except for its last bytes, into its destination, and what follows into
    /// `behind`. Also returns the CRC, updated over the bytes that went to the destination. Returns
    /// `None` if the destination is not plain memory.
    fn recv_pieces(
        &self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        place: &Place,
        behind: &mut [u8],
    ) -> Option<Result<(Received, Option<Crc32c>), AccessFault>> {
        let direct = place.len - LAST_BYTES;
        engine.memory().with_slices(|access| {
            let mut pieces = [const { RacySliceMut::EMPTY }; MAX_PIECES];
            let mut count = 0;
            let named = qp.with_host(engine, now, core, |_, host| {
                host.name_target(access, place.target, direct, |piece| {
                    // The last piece is kept for what follows the payload.
                    let has_room = count + 1 < MAX_PIECES;
                    if has_room {
                        pieces[count] = piece;
                        count += 1;
                    }
                    has_room
                })
            });
            match named {
                Err(fault) => return Some(Err(fault)),
                Ok(Slices::MustCopy) => return None,
                Ok(Slices::Complete) => {}
            }
            pieces[count] = RacySliceMut::from(behind);
            let received = self.connection.recv_pieces(&mut pieces[..=count]);
            let crc = match received {
                Received::Bytes(len) => place.crc.map(|crc| crc_over(crc, &pieces[..count], len)),
                _ => place.crc,
            };
            Some(Ok((received, crc)))
        })
    }

    /// Passes bytes to the machine, and keeps in `rest` those that the machine does not take.
    pub(super) fn pass(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        bytes: &[u8],
    ) {
        let taken = self.feed(engine, qp, core, now, bytes);
        self.rest.clear();
        self.rest.extend_from_slice(&bytes[taken..]);
    }

    /// Passes bytes to the machine, and returns how many it took.
    fn feed(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        bytes: &[u8],
    ) -> usize {
        let taken = with_stream(engine, qp, now, core, |machine, host| {
            let mut taken = 0;
            // Bounded, because each round consumes something.
            loop {
                match machine.handle_bytes(now, &bytes[taken..], host) {
                    0 => break,
                    more => taken += more,
                }
                if taken == bytes.len() {
                    break;
                }
            }
            self.held = machine.rx_next() == RxNext::Hold;
            taken
        });
        taken.unwrap_or(bytes.len())
    }

    /// Tries again to deliver the message that waits, because a receive may have been posted
    /// meanwhile. Returns true if no message waits any more. The waiting bytes stay where they are,
    /// because they may be many, and each poll tries again.
    fn retry(&mut self, engine: &Device, qp: &QpInner, core: &mut QpCore, now: Time) -> bool {
        if let Some(machine) = core.machine.stream().filter(|_| self.is_impatient) {
            machine.hold_no_more();
        }
        let mut rest = std::mem::take(&mut self.rest);
        let taken = self.feed(engine, qp, core, now, &rest);
        if taken > 0 {
            rest.drain(..taken);
        }
        if rest.is_empty() {
            // The allocation held a long message. What is left over later is usually short.
            rest = Vec::new();
        }
        self.rest = rest;
        !self.held
    }
}

/// Returns `crc`, updated over the first `len` bytes of the pieces as they are in memory now.
fn crc_over(mut crc: Crc32c, pieces: &[RacySliceMut<'_>], len: usize) -> Crc32c {
    let mut left = len;
    for piece in pieces {
        let now = left.min(piece.len());
        piece.as_read().for_chunks(now, |chunk| crc = crc.update(chunk));
        left -= now;
    }
    crc
}

impl QpHost<'_> {
    /// Passes to `take` the pieces of memory to which the next `len` bytes of payload go.
    fn name_target<'s>(
        &mut self,
        access: SliceScope<'s>,
        target: Target,
        len: u32,
        take: impl FnMut(RacySliceMut<'s>) -> bool,
    ) -> Result<Slices, AccessFault> {
        let len = u64::from(len);
        match target {
            Target::Recv { offset } => {
                let (pd, list, cursor) = self.side.filling.list(self.qp.receives());
                access.write_local(pd, list, cursor, (offset, len), take)
            }
            Target::Write { rkey, addr } => {
                access.write_remote(self.qp.pd(), self.qp.qpn(), rkey, (addr, len), take)
            }
            Target::Response { slot, offset } => {
                let (list, cursor) = self.side.slots.scatter_list(slot);
                access.write_local(self.qp.pd(), list, cursor, (u64::from(offset), len), take)
            }
        }
        .map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use vernic_proto::QpState;

    use crate::streams::held_messages::MAX_HELD_BYTES;
    use crate::streams::testing::{Fixture, send_fpdu};
    use crate::{EMPTY_WC, RecvWr, WcStatus};

    #[test]
    fn what_all_connections_hold_is_bounded_and_the_oldest_stops_waiting() {
        let mut fixture = Fixture::new();
        let context = fixture.context.clone();
        let engine = context.engine();
        let held = || {
            engine.with_lane(|lane| {
                let connections = &lane.streams().unwrap().connections;
                let rests = connections.values().map(|conn| conn.rest.len());
                (rests.clone().filter(|rest| *rest > 0).count(), rests.sum::<usize>())
            })
        };
        let refused = || context.counters().streams.held_refused;
        let until = Instant::now() + Duration::from_secs(20);
        let message = send_fpdu(1, &[7; 20_000]);
        fixture.peer.write_all(&message).unwrap();
        let mut others = Vec::new();
        for count in 1.. {
            while held().0 < count && refused() == 0 {
                context.progress();
                assert!(Instant::now() < until, "{count}: {:?}", held());
            }
            if refused() > 0 {
                break;
            }
            assert!(held().1 <= MAX_HELD_BYTES);
            let (mut peer, qp) = fixture.another();
            peer.write_all(&message).unwrap();
            others.push((peer, qp));
        }
        assert!(others.len() >= 6, "there is room for {}", others.len());
        while fixture.qp.state() != QpState::Error {
            context.progress();
            assert!(Instant::now() < until);
        }
        assert!(held().1 <= MAX_HELD_BYTES && refused() == 1);
        assert!(others.iter().all(|(_, qp)| qp.state() == QpState::Rts), "the others wait on");
    }

    #[test]
    fn what_waits_for_a_receive_is_not_copied_by_each_poll() {
        let mut fixture = Fixture::new();
        let bytes: Vec<u8> = (1..5).flat_map(|msn| send_fpdu(msn, &[msn as u8; 20_000])).collect();
        fixture.peer.write_all(&bytes).unwrap();
        let Fixture { context, qp, cq, .. } = &fixture;
        let engine = context.engine();
        let rest = || {
            engine.with_lane(|lane| {
                let connections = &lane.streams().unwrap().connections;
                let conn = &connections[&qp.qpn().value()];
                (conn.rest.as_ptr().addr(), conn.rest.len())
            })
        };
        let until = Instant::now() + Duration::from_secs(20);
        while rest().1 < 20_000 {
            context.progress();
            assert!(Instant::now() < until, "nothing waits");
        }
        let before = rest();
        for _ in 0..3 {
            context.progress();
            assert_eq!(rest(), before);
        }
        // The messages are taken once there are receives for them.
        let sges = [fixture.sge(20_000)];
        for wr_id in 1..5 {
            qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
        let mut wcs = [EMPTY_WC; 4];
        let mut count = 0;
        while count < 4 {
            count += cq.poll(&mut wcs[count..]).unwrap();
            assert!(Instant::now() < until, "{count} came");
        }
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success && wc.byte_len == 20_000));
        assert_eq!(rest().1, 0);
    }
}

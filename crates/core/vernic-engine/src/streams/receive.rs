//! Receives the bytes of connections.
//!
//! Long payload whose destination is known goes from the socket directly to that destination. What
//! follows it goes into the buffer in the same system call, so no copy of our own is made. The last
//! [`LAST_BYTES`] of the payload go through the buffer nevertheless. Programs spin on the last byte
//! of what is written to them, and only a copy of our own stores that byte last.
//!
//! Everything else goes through the buffer too: headers, payload that is checked before it is
//! placed, memory that is no plain range, and short payload. For short payload, a system call for
//! each FPDU costs more than the copy.
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

/// Shortest payload, in bytes, that is received directly into its destination. For shorter payload,
/// the system call that each FPDU then needs costs more than the copy. That call takes as long as
/// copying some 16 KiB that are in the cache.
const PLACE_BYTES: u32 = 16 << 10;

/// Bytes at the end of a segment's payload that our own copy stores: one word, which is stored as a
/// whole if it is aligned.
const LAST_BYTES: u32 = 8;

/// Room for bytes that follow directly placed payload: its last bytes, pad, CRC, the next FPDU's
/// length and header, and a short message or two.
const BEHIND_BYTES: usize = 256;

/// The result of a receiving system call.
struct Got {
    received: Received,
    /// Bytes that there was room for.
    room: usize,
}

impl Streams {
    /// Receives a turn's bytes, or handles that the connection is `broken`. Returns whether there
    /// was anything.
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
            // The connection is not read, so its loss would not be noticed otherwise.
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
                // The peer has finished, so this end has no reason to stay.
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
    /// Receives into the buffer, and passes on what came.
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
            // In a stream of long FPDUs, read only until the destination of the next payload is
            // known.
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

    /// Updates `is_long` from the FPDUs that came since the last call.
    fn measure(&mut self, core: &mut QpCore) {
        let QpCounters { rx_packets, rx_bytes, .. } = *core.machine.counters();
        let (packets, bytes) = self.measured;
        // No FPDU came, or the queue pair was reset.
        if rx_packets <= packets {
            return;
        }
        self.measured = (rx_packets, rx_bytes);
        let is_long = rx_bytes - bytes >= (rx_packets - packets) * u64::from(PLACE_BYTES);
        self.is_long = is_long && core.machine.stream().is_some_and(|qp| qp.places_payload());
    }

    /// Receives payload into its destination, and what follows it into the buffer. `None` if the
    /// next bytes are not received in this way.
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

    /// Receives all but the end of a payload into `place`, and what follows it into `behind`.
    /// Returns the CRC of the place, updated over the received bytes. `None` if the place is no
    /// plain memory.
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
                    // The last piece is reserved for what follows the payload.
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

    /// Passes bytes to the machine, and keeps those that the machine does not take.
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
            // Bounded: each round consumes something.
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

    /// Tries again the bytes that wait, since a receive may have been posted meanwhile. Returns
    /// whether no message waits any more. Bytes that still wait are not copied, since they may be
    /// long and each poll tries them.
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
            // The old allocation was long, and what is left over later usually is not.
            rest = Vec::new();
        }
        self.rest = rest;
        !self.held
    }
}

/// Returns `crc` updated over the first `len` bytes of the pieces, as they are now.
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
    /// Names the memory that the next `len` bytes of payload are to be written to.
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

    use crate::streams::holding::MAX_HELD_BYTES;
    use crate::streams::testing::{Fixture, send_fpdu};
    use crate::{EMPTY_WC, RecvWr, WcStatus};

    #[test]
    fn what_all_connections_hold_is_bounded_and_the_oldest_stops_waiting() {
        let mut fixture = Fixture::new();
        let context = fixture.context.clone();
        let engine = context.engine();
        let held = || {
            engine.with_lane(|lane| {
                let connections = &lane.streams.as_ref().unwrap().connections;
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
                let connections = &lane.streams.as_ref().unwrap().connections;
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

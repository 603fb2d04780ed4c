//! Sends the bytes of connections.
//!
//! Long payload without a CRC goes to the socket directly from registered memory, and the headers
//! of its FPDU from the buffer. One system call takes up to [`MAX_PIECES`] pieces. Everything else
//! is first copied into the buffer: short payload (a copy costs less than one more piece), memory
//! that is not plain, and payload with a CRC. The CRC would be wrong if the application changed the
//! payload between the computation and the system call.
//!
//! ```text
//!   sendmsg:  [ headers ][ payload ........... ][ tail, headers ][ payload .... ][ tail ]
//!               buffer     registered memory      buffer           registered      buffer
//! ```
//! What the socket has no room for is copied at once, under the same lock. Once the lock is
//! released, a request may be reported as flushed, and the application may reuse its memory, but an
//! FPDU that was begun must still be sent to its end.

use std::ops::Range;

use vernic_io::tcp::{MAX_PIECES, Sent};
use vernic_mem::{RacySlice, SliceScope, Slices};
use vernic_proto::iwarp::{self, Fpdu, MAX_FPDU, Source};
use vernic_proto::{AccessFault, Time};

use super::{Conn, Streams, end_of, with_stream};
use crate::device::opened::Device;
use crate::qp::host::{QpHost, fault};
use crate::qp::state::{QpCore, QpInner};

/// The length in bytes from which payload is sent directly from registered memory. One more piece
/// costs the kernel about as much as copying this many bytes.
const GATHER_BYTES: u32 = 2048;

/// The number of bytes after which no more FPDUs are added to a system call. It bounds how much is
/// copied if the socket is full. With a quarter of it, the kernel sends many short segments, which
/// costs a quarter of the throughput.
const CALL_BYTES: usize = 512 << 10;

/// A part of the bytes that one system call sends.
#[derive(Clone, Copy)]
enum Part<'s> {
    /// Bytes of the buffer, from the end of the previous part in the buffer up to this index.
    Buffer(usize),
    Memory(RacySlice<'s>),
}

/// The pieces that one system call sends.
struct Parts<'s> {
    list: [Part<'s>; MAX_PIECES],
    count: usize,
    /// Bytes of the shared buffer that are in use.
    used: usize,
    /// Bytes at the end of the used ones that no part of the list covers yet.
    open: usize,
    /// Bytes in total, in the buffer and in registered memory.
    total: usize,
    /// Bytes sent directly from registered memory.
    gathered: usize,
}

/// The result of an attempt to add an FPDU with its payload in registered memory.
enum Added {
    Yes,
    /// Not added: the payload must be copied into the buffer.
    Copy,
    /// Not added: the list has no room for so many pieces.
    Full,
}

/// Whether the payload of an FPDU should be sent directly from registered memory.
fn is_gathered(machine: &iwarp::Qp, fpdu: &Fpdu) -> bool {
    fpdu.payload_len() >= GATHER_BYTES && !machine.copies_payload()
}

/// Writes FPDUs into the buffer until there are no more, the buffer is full, or the payload of the
/// next FPDU should be sent directly from registered memory. Returns the bytes written, and whether
/// the last case ended it.
fn fill_buffer(
    machine: &mut iwarp::Qp,
    host: &mut QpHost<'_>,
    now: Time,
    buffer: &mut [u8],
) -> (usize, bool) {
    machine.begin_batch();
    let mut used = 0;
    // Bounded by the buffer. An FPDU that is refused stops its request or ends the stream.
    while buffer.len() - used >= MAX_FPDU
        && let Some(fpdu) = machine.poll_fpdu(now, host)
    {
        if is_gathered(machine, &fpdu) {
            return (used, true);
        }
        used += machine.write_fpdu(now, &fpdu, host, &mut buffer[used..]).unwrap_or(0);
    }
    (used, false)
}

impl<'s> Parts<'s> {
    /// Returns parts that begin with the first `used` bytes of the buffer.
    fn behind(used: usize) -> Self {
        let list = [Part::Buffer(0); MAX_PIECES];
        Self { list, count: 0, used, open: used, total: used, gathered: 0 }
    }

    fn push(&mut self, part: Part<'s>) -> bool {
        // The last part is kept for open bytes of the buffer at the end.
        let has_room = self.count + 1 < MAX_PIECES;
        if has_room {
            self.list[self.count] = part;
            self.count += 1;
        }
        has_room
    }

    /// Makes a part of the open bytes of the buffer. Returns false if the list has no room.
    fn close(&mut self) -> bool {
        let is_empty = self.open == 0;
        self.open = 0;
        is_empty || self.push(Part::Buffer(self.used))
    }

    /// Notes that `len` more bytes of the buffer are in use.
    fn grow(&mut self, len: usize) {
        self.used += len;
        self.open += len;
        self.total += len;
    }

    fn put(&mut self, bytes: &[u8], buffer: &mut [u8]) {
        buffer[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.grow(bytes.len());
    }

    /// Adds an FPDU with the payload in registered memory and the headers in the buffer.
    fn name(
        &mut self,
        access: SliceScope<'s>,
        fpdu: &Fpdu,
        host: &mut QpHost<'_>,
        buffer: &mut [u8],
    ) -> Result<Added, AccessFault> {
        let Self { count, used, open, total, .. } = *self;
        self.put(fpdu.head(), buffer);
        let mut is_full = !self.close();
        let named = host.name_source(access, fpdu.source(), fpdu.payload_len(), |piece| {
            is_full |= !self.push(Part::Memory(piece));
            !is_full
        });
        if let (Ok(Slices::Complete), false) = (&named, is_full) {
            self.total += fpdu.payload_len() as usize;
            self.gathered += fpdu.payload_len() as usize;
            self.put(fpdu.tail(), buffer);
            return Ok(Added::Yes);
        }
        // The FPDU does not fit or must be copied: undo what was added.
        (self.count, self.used, self.open, self.total) = (count, used, open, total);
        named.map(|_| if is_full { Added::Full } else { Added::Copy })
    }

    /// Adds FPDUs until there are enough. An FPDU with unreadable payload fails its request, and
    /// may end the stream; from then on, the application may reuse the memory of its requests. So
    /// if earlier parts of the list are in registered memory, such an FPDU is left to the next
    /// call, after these parts have been sent.
    fn fill(
        &mut self,
        access: SliceScope<'s>,
        machine: &mut iwarp::Qp,
        host: &mut QpHost<'_>,
        now: Time,
        buffer: &mut [u8],
    ) {
        // Bounded by the buffer and by the list. An FPDU that is refused stops its request or ends
        // the stream.
        while buffer.len() - self.used >= MAX_FPDU
            && self.total < CALL_BYTES
            && let Some(fpdu) = machine.poll_fpdu(now, host)
        {
            let added = match is_gathered(machine, &fpdu) {
                true => self.name(access, &fpdu, host, buffer),
                false => Ok(Added::Copy),
            };
            let fault = match added {
                Ok(Added::Yes) => {
                    machine.commit_fpdu(&fpdu);
                    continue;
                }
                Ok(Added::Full) => break,
                Ok(Added::Copy) => {
                    match machine.try_write_fpdu(&fpdu, host, &mut buffer[self.used..]) {
                        Ok(len) => {
                            self.grow(len);
                            continue;
                        }
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            if self.gathered > 0 {
                break;
            }
            machine.refuse_fpdu(now, &fpdu, fault, host);
        }
        if self.open > 0 {
            self.list[self.count] = Part::Buffer(self.used);
            self.count += 1;
        }
    }

    /// Returns the parts as pieces of memory for a system call.
    fn pieces<'b>(&self, buffer: &'b [u8]) -> [RacySlice<'b>; MAX_PIECES]
    where
        's: 'b,
    {
        let mut from = 0;
        let mut pieces = [RacySlice::EMPTY; MAX_PIECES];
        for (piece, part) in pieces.iter_mut().zip(&self.list[..self.count]) {
            *piece = match *part {
                Part::Memory(piece) => piece,
                Part::Buffer(to) => {
                    let range: Range<usize> = from..to;
                    from = to;
                    RacySlice::from(&buffer[range])
                }
            };
        }
        pieces
    }
}

impl Streams {
    /// Sends a turn's bytes. Returns true if there are more to send.
    pub(super) fn transmit(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
    ) -> bool {
        let Self { connections, buffer, .. } = self;
        let Some(conn) = connections.get_mut(&qp.qpn().value()) else {
            // Without a connection nothing is sent, and in Error what is posted is flushed.
            with_stream(engine, qp, now, core, |machine, host| {
                machine.poll_transmit(now, host, buffer)
            });
            return false;
        };
        if !conn.send_rest(engine, qp, core, now) {
            return false;
        }
        let filled = with_stream(engine, qp, now, core, |machine, host| {
            fill_buffer(machine, host, now, buffer)
        });
        let taken = match filled {
            None | Some((0, false)) => return false,
            Some((used, false)) => {
                conn.send(engine, qp, core, now, &[RacySlice::from(&buffer[..used])])
            }
            Some((used, true)) => engine.memory().with_slices(|access| {
                let mut parts = Parts::behind(used);
                with_stream(engine, qp, now, core, |machine, host| {
                    parts.fill(access, machine, host, now, buffer);
                });
                engine.counts().streams.gathered_bytes.add(parts.gathered as u64);
                let pieces = parts.pieces(buffer);
                conn.send(engine, qp, core, now, &pieces[..parts.count])
            }),
        };
        taken && core.machine.wants_transmit()
    }
}

impl Conn {
    /// Sends the bytes that the socket had no room for earlier. Returns true if all are sent.
    fn send_rest(&mut self, engine: &Device, qp: &QpInner, core: &mut QpCore, now: Time) -> bool {
        if self.out.is_empty() {
            return true;
        }
        let sent = self.connection.send(&self.out);
        let done = self.took(engine, qp, core, now, sent);
        let Some(done) = done else {
            self.out.clear();
            return false;
        };
        self.out.drain(..done);
        self.out.is_empty()
    }

    /// Sends pieces, and keeps a copy of what the socket has no room for. Returns true if the
    /// socket has taken everything.
    fn send(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        pieces: &[RacySlice<'_>],
    ) -> bool {
        let sent = self.connection.send_pieces(pieces);
        let mut done = match &sent {
            Sent::Bytes(len) => *len,
            Sent::Full => 0,
            Sent::Lost(_) => usize::MAX,
        };
        // The copy is made before the machine learns what was sent, because the machine may then
        // complete requests, and the application may reuse their memory.
        for piece in pieces {
            piece.skip(done).append_to(&mut self.out);
            done = done.saturating_sub(piece.len());
        }
        self.took(engine, qp, core, now, sent);
        self.out.is_empty()
    }

    /// Informs the machine how many bytes the socket has taken, or that the connection is lost.
    /// Returns the number of bytes; `None` if the connection is lost.
    fn took(
        &mut self,
        engine: &Device,
        qp: &QpInner,
        core: &mut QpCore,
        now: Time,
        sent: Sent,
    ) -> Option<usize> {
        let (done, lost) = match sent {
            Sent::Bytes(len) => (len, None),
            Sent::Full => (0, None),
            Sent::Lost(error) => (0, Some(end_of(&error))),
        };
        self.sent += done as u64;
        engine.counts().streams.tx_calls.add(1);
        engine.counts().streams.tx_bytes.add(done as u64);
        let total = self.sent;
        let is_lost = lost.is_some();
        with_stream(engine, qp, now, core, |machine, host| {
            machine.handle_sent(now, total, host);
            if let Some(end) = lost {
                machine.handle_end(now, end, 0, host);
            }
        });
        (!is_lost).then_some(done)
    }
}

impl QpHost<'_> {
    /// Passes to `take` the pieces of memory in which the `len` bytes of payload lie.
    fn name_source<'s>(
        &mut self,
        access: SliceScope<'s>,
        source: Source,
        len: u32,
        take: impl FnMut(RacySlice<'s>) -> bool,
    ) -> Result<Slices, AccessFault> {
        let len = u64::from(len);
        match source {
            Source::None => Ok(Slices::MustCopy),
            Source::Send { slot, offset } => {
                let Some((list, cursor)) = self.side.slots.gather_list(slot) else {
                    return Ok(Slices::MustCopy);
                };
                access.read_local(self.qp.pd(), list, cursor, (u64::from(offset), len), take)
            }
            Source::Remote { rkey, addr } => {
                access.read_remote(self.qp.pd(), self.qp.qpn(), rkey, (addr, len), take)
            }
        }
        .map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use vernic_proto::{QpState, Remote, SendFlags, SendOp};
    use vernic_wire::{Lkey, Rkey};

    use super::*;
    use crate::streams::testing::{Fixture, MEMORY, send_fpdu};
    use crate::support::events::lock;
    use crate::{Payload, RecvWr, SendWr, Sge};

    #[test]
    fn nobody_is_told_of_a_fault_while_named_memory_is_still_to_be_sent() {
        let mut fixture = Fixture::new();
        fixture.qp.post_recv(&[RecvWr { wr_id: 9, sges: &[] }]).unwrap();
        // The peer's first message allows this end to send.
        fixture.peer.write_all(&send_fpdu(1, &[])).unwrap();
        let Fixture { context, qp, cq, .. } = &fixture;
        while cq.poll(&mut [crate::EMPTY_WC]).unwrap() == 0 {}
        // Several long FPDUs, followed by memory that is not registered.
        let good = fixture.sge(MEMORY as u32);
        let sges = [good, Sge { lkey: Lkey(0x1234_5600), ..good }];
        let remote = Remote { addr: 0, rkey: Rkey(0x100) };
        let engine = context.engine();
        engine.with_lane(|lane| {
            // The post sends nothing, because this thread has the lane.
            let payload = Payload::Sges(&sges);
            let op = SendOp::Write(remote);
            let flags = SendFlags::SIGNALED;
            let wr = SendWr { wr_id: 1, op, flags, payload, dest: None, srqn: None };
            qp.post_send(&[wr]).unwrap();
            let streams = lane.streams().unwrap();
            let (inner, now) = (qp.inner(), engine.now());
            let mut core = lock(&inner.core);
            engine.memory().with_slices(|access| {
                let mut parts = Parts::behind(0);
                with_stream(engine, inner, now, &mut core, |machine, host| {
                    parts.fill(access, machine, host, now, &mut streams.buffer);
                });
                assert!(parts.gathered >= 64 << 10, "{} bytes are named", parts.gathered);
                assert_eq!(core.machine.state(), QpState::Rts);
                let Streams { connections, buffer, .. } = streams;
                let conn = connections.get_mut(&qp.qpn().value()).unwrap();
                let pieces = parts.pieces(buffer);
                conn.send(engine, inner, &mut core, now, &pieces[..parts.count]);
            });
            // The next turn refuses the FPDU with the fault.
            streams.transmit(engine, inner, &mut core, now);
            assert_eq!(core.machine.state(), QpState::Error);
        });
    }
}

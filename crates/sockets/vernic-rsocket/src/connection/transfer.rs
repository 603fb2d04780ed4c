//! Sending and receiving bytes.

use std::time::{Duration, Instant};

use vernic_engine::{Placed, Remote};

use super::{Connection, Core};
use crate::Error;
use crate::pieces::{Incoming, Outgoing};
use crate::stream::Spans;
use crate::wake::lock;
use crate::wire::RemoteSge;

/// So many bytes are copied under the lock of the core; more would keep others waiting, fewer would
/// take the lock twice for nothing.
const COPIED_UNDER_LOCK: u32 = 4096;

/// The first message of a call, bytes: the peer shall have something to do soon, unless it has
/// still.
const FIRST_MESSAGE: u32 = 4096;

/// Later ones are twice as long each time, up to this.
const LONGEST_MESSAGE: u32 = 1 << 16;

/// Messages from this length on are copied to the memory of a peer on this host, if it consents:
/// shorter ones cost less in their packet than the way through the gates of that memory.
const PLACED: u32 = 1024;

/// Longest inline data of a queue pair, bytes.
const MAX_INLINE: usize = vernic_engine::limits::MAX_INLINE as usize;

/// How to receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvMode {
    /// Do not wait.
    pub(crate) nonblocking: bool,
    /// Leave what is read in the stream.
    pub(crate) peek: bool,
    /// Wait until all room is filled.
    pub(crate) all: bool,
    /// Wait for so long.
    pub(crate) timeout: Option<Duration>,
}

impl Connection {
    /// Receives; 0 at the end of the stream.
    pub(crate) fn recv(&self, room: &mut Incoming<'_, '_>, mode: RecvMode) -> Result<usize, Error> {
        let _turn = lock(&self.reader);
        let deadline = mode.timeout.map(|timeout| Instant::now() + timeout);
        let mut done = 0;
        // Each turn receives something or waits.
        while room.left() > 0 {
            let mut core = lock(&self.core);
            let wanted = u32::try_from(room.left()).unwrap_or(u32::MAX);
            let needed = match mode.peek && mode.all {
                // No more than that fits into the ring for sure.
                true => wanted.min(core.stream.limits().recv_bytes / 2),
                false => 1,
            };
            if core.stream.unread() < needed {
                self.progress(&mut core);
            }
            let unread = core.stream.unread();
            if unread >= needed || unread > 0 && !core.stream.may_receive() {
                let spans = core.stream.peek(0, wanted);
                done += spans.len() as usize;
                let core = self.copy_out(core, spans, room);
                if mode.peek {
                    break;
                }
                self.consume(core, spans.len());
                continue;
            }
            let over = !core.stream.may_receive();
            let failure = if over && done == 0 { core.failure.take() } else { None };
            drop(core);
            match failure {
                Some(failure) => return Err(Error::Failed(failure)),
                None if over || done > 0 && !mode.all => break,
                None if mode.nonblocking && done > 0 => break,
                None if mode.nonblocking => return Err(Error::WouldBlock),
                None => {}
            }
            let is_there =
                |core: &Core| core.stream.unread() >= needed || !core.stream.may_receive();
            match self.wait(deadline, is_there) {
                Err(_) if done > 0 => break,
                waited => waited?,
            }
        }
        Ok(done)
    }

    /// Copies out of the receive ring, many bytes without the lock: nobody else reads them, and the
    /// peer does not write there before it is told.
    fn copy_out<'a>(
        &'a self,
        core: std::sync::MutexGuard<'a, Core>,
        spans: Spans,
        room: &mut Incoming<'_, '_>,
    ) -> Option<std::sync::MutexGuard<'a, Core>> {
        let kept = (spans.len() <= COPIED_UNDER_LOCK).then_some(core);
        for mut span in spans.pieces() {
            room.fill(span.len as usize, |piece| {
                let now = crate::stream::Span { at: span.at, len: piece.len() as u32 };
                self.memory.read_recv(now, piece);
                span.at += now.len;
            });
        }
        kept
    }

    fn consume(&self, core: Option<std::sync::MutexGuard<'_, Core>>, len: u32) {
        let mut core = core.unwrap_or_else(|| lock(&self.core));
        core.stream.consume(len);
        self.changed(&mut core);
    }

    /// Sends; how many bytes, which may be fewer than all if it does not wait, or not for longer.
    pub(crate) fn send(
        &self,
        bytes: &mut Outgoing<'_>,
        nonblocking: bool,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let _turn = lock(&self.sender);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let (all, mut longest) = (bytes.left(), None);
        // Each turn sends something or waits.
        while bytes.left() > 0 {
            let sent = all - bytes.left();
            let mut core = lock(&self.core);
            let busy = core.stream.is_busy();
            let most = *longest.get_or_insert(if busy { LONGEST_MESSAGE } else { FIRST_MESSAGE });
            let wanted = u32::try_from(bytes.left()).unwrap_or(u32::MAX).min(most);
            let mut len = core.stream.next_len(wanted);
            if len == 0 {
                self.progress(&mut core);
                len = core.stream.next_len(wanted);
            }
            if len > 0 {
                longest = Some((most * 2).min(LONGEST_MESSAGE));
                self.send_message(core, bytes, len);
                continue;
            }
            let over = !core.stream.may_send();
            // Who has sent some is told the next time.
            let failure = if over && sent == 0 { core.failure.take() } else { None };
            drop(core);
            match failure {
                Some(failure) => return Err(Error::Failed(failure)),
                None if over && sent > 0 => return Ok(sent),
                None if over => return Err(Error::Shut),
                None if nonblocking && sent > 0 => return Ok(sent),
                None if nonblocking => return Err(Error::WouldBlock),
                None => {}
            }
            let has_room = |core: &Core| core.stream.can_send() || !core.stream.may_send();
            match self.wait(deadline, has_room) {
                Err(_) if sent > 0 => return Ok(sent),
                waited => waited?,
            }
        }
        Ok(all)
    }

    /// Sends a message of `len` bytes, which the machine has room for. Nothing is sent, and the
    /// bytes are the next ones still, if there is none left when they are copied: a buffer that
    /// another thread has mapped meanwhile goes first, and may take the credit; or the stream was
    /// shut down.
    fn send_message(
        &self,
        core: std::sync::MutexGuard<'_, Core>,
        bytes: &mut Outgoing<'_>,
        len: u32,
    ) {
        let before = bytes.clone();
        let core = match self.copy_placed(core, bytes, len) {
            Ok(mut core) => {
                match core.stream.send_placed(len) {
                    Some(write) => self.post(&mut core, &write, &[]),
                    None => *bytes = before,
                }
                return self.changed(&mut core);
            }
            Err(core) => core,
        };
        *bytes = before.clone();
        let place = core.stream.place(len);
        let mut is_sent = false;
        let mut core = self.copy_in(core, place, bytes, len, |core, user| {
            if let Some(write) = core.stream.send(len) {
                self.post(core, &write, user);
                is_sent = true;
            }
        });
        if !is_sent {
            *bytes = before;
        }
        self.changed(&mut core);
    }

    /// Copies `len` bytes to where the peer wants them, if that can be done: one copy, and a
    /// message without bytes. If not, some of `bytes` may be used up all the same.
    fn copy_placed<'a>(
        &'a self,
        core: std::sync::MutexGuard<'a, Core>,
        bytes: &mut Outgoing<'_>,
        len: u32,
    ) -> Result<std::sync::MutexGuard<'a, Core>, std::sync::MutexGuard<'a, Core>> {
        let target = core.stream.target().filter(|_| self.places && len >= PLACED);
        let Some(RemoteSge { addr, rkey, .. }) = target else { return Err(core) };
        drop(core);
        // Bytes that have to be fetched first are fetched before the device is held for them.
        bytes.touch(len as usize);
        let placed = self.qp.place(Remote { addr, rkey }, len, |write| {
            bytes.copy(len as usize, write);
        });
        let mut core = lock(&self.core);
        match placed {
            Placed::Whole => Ok(core),
            Placed::Not => Err(core),
            Placed::Cut => {
                // The peer took its buffer away, as at its end, which has come before that if it
                // was in order. If not, the message fails as one of packets does.
                self.progress(&mut core);
                Err(core)
            }
        }
    }

    /// Copies `len` bytes to `place`, many of them without the lock, then has `send` send them.
    pub(super) fn copy_in<'a>(
        &'a self,
        core: std::sync::MutexGuard<'a, Core>,
        place: Option<Spans>,
        bytes: &mut Outgoing<'_>,
        len: u32,
        send: impl FnOnce(&mut Core, &[u8]),
    ) -> std::sync::MutexGuard<'a, Core> {
        let Some(spans) = place else {
            let mut core = core;
            let mut inline = [0; MAX_INLINE];
            let mut at = 0;
            bytes.copy((len as usize).min(MAX_INLINE), |piece| {
                inline[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            });
            send(&mut core, &inline[..at]);
            return core;
        };
        let kept = (len <= COPIED_UNDER_LOCK).then_some(core);
        for mut span in spans.pieces() {
            bytes.copy(span.len as usize, |piece| {
                let now = crate::stream::Span { at: span.at, len: piece.len() as u32 };
                self.memory.write_send(now, piece);
                span.at += now.len;
            });
        }
        let mut core = kept.unwrap_or_else(|| lock(&self.core));
        send(&mut core, &[]);
        core
    }
}

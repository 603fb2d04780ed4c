//! The sending half of a queue pair's contract: FPDUs out, and how far the connection has taken
//! them.

use super::Qp;
use crate::error::{AccessFault, StreamEnd};
use crate::host::Host;
use crate::iwarp::layout::{Fpdu, Item};
use crate::state::QpState;
use crate::time::Time;

impl Qp {
    /// Whether payload has to be copied into the stream with
    /// [`poll_transmit`](Self::poll_transmit), because it is covered by a CRC or interrupted by
    /// markers. Otherwise [`poll_fpdu`](Self::poll_fpdu) will do.
    pub fn copies_payload(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.layout.copies())
    }

    /// What was made before has been handed to the connection to be sent at once: the next FPDU
    /// begins a TCP segment.
    pub fn begin_batch(&mut self) {
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.layout.begin_batch();
        }
    }

    /// The next FPDU, without its payload. It counts once [`commit_fpdu`](Self::commit_fpdu) is
    /// called; until then the same one is given again.
    ///
    /// In Error it gives nothing but the last word, and flushes what was posted meanwhile.
    pub fn poll_fpdu(&mut self, now: Time, host: &mut impl Host) -> Option<Fpdu> {
        if self.attr.state == QpState::Error && !self.sq.is_empty() {
            self.flush_sends(now, None, host);
        }
        let stream = self.stream.as_deref_mut()?;
        stream.expect_word(now);
        stream.expect_permission(now, !self.sq.is_empty());
        if stream.asks_in_vain(&self.sq) {
            self.lost(now, StreamEnd::Closed, host);
            return None;
        }
        match stream.next(&mut self.sq, host) {
            Ok(fpdu) => {
                // Local operations at the head are finished without an answer.
                self.settle(now, host);
                fpdu
            }
            Err(fatal) => {
                self.fail_request(now, fatal, host);
                self.stream.as_deref_mut()?.next(&mut self.sq, host).ok().flatten()
            }
        }
    }

    /// The FPDU that [`poll_fpdu`](Self::poll_fpdu) gave last is on its way: its bytes will leave,
    /// in this order, or the connection fails.
    pub fn commit_fpdu(&mut self, fpdu: &Fpdu) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        stream.commit(&mut self.sq, &mut self.counters, fpdu);
    }

    /// The payload of the FPDU that [`poll_fpdu`](Self::poll_fpdu) gave last cannot be read.
    /// Nothing of it has been sent.
    pub fn refuse_fpdu(
        &mut self,
        now: Time,
        fpdu: &Fpdu,
        fault: AccessFault,
        host: &mut impl Host,
    ) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        if fpdu.item == Item::Answer {
            return self.fail_answer(now, fault, host);
        }
        let Some((_, &entry)) = self.sq.at_cursor() else { return };
        if let Err(fatal) = stream.requester.local_error(&self.sq, &entry, fault) {
            self.fail_request(now, fatal, host);
        }
    }

    /// Writes the next FPDU, payload and all, into `buf`, which has room for
    /// [`MAX_FPDU`](crate::iwarp::MAX_FPDU) bytes, and returns its length.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        // Bounded: a refused FPDU makes the request stand, or ends the stream.
        loop {
            let fpdu = self.poll_fpdu(now, host)?;
            if let Some(len) = self.write_fpdu(now, &fpdu, host, buf) {
                return Some(len);
            }
        }
    }

    /// Writes the FPDU that [`poll_fpdu`](Self::poll_fpdu) gave last, payload and all, into `buf`,
    /// as [`poll_transmit`](Self::poll_transmit) does, and commits it; returns its length. Nothing
    /// if its payload cannot be read, which has been seen to.
    pub fn write_fpdu(
        &mut self,
        now: Time,
        fpdu: &Fpdu,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        match self.try_write_fpdu(fpdu, host, buf) {
            Ok(len) => Some(len),
            Err(fault) => {
                self.refuse_fpdu(now, fpdu, fault, host);
                None
            }
        }
    }

    /// As [`write_fpdu`](Self::write_fpdu), but an FPDU whose payload cannot be read is left as it
    /// is, to be [refused](Self::refuse_fpdu) or given again.
    ///
    /// # Errors
    /// What is wrong with its payload.
    pub fn try_write_fpdu(
        &mut self,
        fpdu: &Fpdu,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<usize, AccessFault> {
        let Some(stream) = self.stream.as_deref() else { return Ok(0) };
        let len = stream.layout.write(fpdu, host, buf)?;
        self.commit_fpdu(fpdu);
        Ok(len)
    }

    /// Bytes that were committed since the stream began: what [`handle_sent`](Self::handle_sent)
    /// counts up to.
    pub fn committed(&self) -> u64 {
        self.stream.as_ref().map_or(0, |stream| stream.layout.position())
    }

    /// The connection has taken the first `total` bytes of the stream. Requests that ended before
    /// are complete.
    pub fn handle_sent(&mut self, now: Time, total: u64, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        let before = stream.accepted;
        stream.accepted = before.max(total.min(stream.layout.position()));
        if stream.accepted > before {
            stream.moves_on(now, &self.sq);
        }
        self.settle(now, host);
    }

    /// Whether [`poll_fpdu`](Self::poll_fpdu) or [`poll_transmit`](Self::poll_transmit) has
    /// something to send, carry out or flush.
    pub fn wants_transmit(&self) -> bool {
        if self.attr.state == QpState::Error && !self.sq.is_empty() {
            return true;
        }
        self.stream.as_ref().is_some_and(|stream| stream.is_ready(&self.sq))
    }
}

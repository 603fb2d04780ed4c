//! A message that leaves in segments, as its sender sees it (IBTA 13.6.6).
//!
//! ```text
//!   message   | headers of the class | data                                   |
//!   segment 1 | headers, first       | data ...        |
//!   segment 2 | headers              | ... data ...    |
//!   segment 3 | headers, last        | ... data | 0    |
//! ```
//! Segments up to the window's end leave one after the other. An ACK says up to where all have
//! arrived, and moves the end. After a silence the sender begins again behind the last ACK.

use vernic_wire::mad::{MAD_LEN, MadHeader};
use vernic_wire::{Rmpp, RmppStatus};

/// What an ACK did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acked {
    /// Nothing: it says less than one before.
    Old,
    /// More may be sent, or more has arrived.
    More,
    /// Everything has arrived, which was not known before.
    All,
}

/// Segments of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments {
    header_len: usize,
    data_len: usize,
    count: u32,
    /// Last segment that was sent since the beginning or since the last repeat.
    sent: u32,
    /// Last segment that has arrived, with all before it.
    acked: u32,
    /// Last segment that may be sent.
    window: u32,
}

impl Segments {
    /// Returns the segments of a message of `len` bytes, which has at least the headers. The first
    /// segment alone may be sent until there is an ACK.
    pub(super) fn new(header_len: usize, len: usize) -> Self {
        let data_len = len - header_len;
        let count = data_len.div_ceil(MAD_LEN - header_len).max(1) as u32;
        Self { header_len, data_len, count, sent: 0, acked: 0, window: 1 }
    }

    /// Returns whether a segment may be sent now.
    pub(super) fn may_send(&self) -> bool {
        self.sent < self.count.min(self.window)
    }

    /// Returns whether all have arrived.
    pub(super) fn is_acked(&self) -> bool {
        self.acked == self.count
    }

    /// Begins again behind what has arrived.
    pub(super) fn rewind(&mut self) {
        self.sent = self.acked;
    }

    /// Returns the next segment of `message`.
    pub(super) fn next(&mut self, message: &[u8]) -> [u8; MAD_LEN] {
        self.sent += 1;
        let room = MAD_LEN - self.header_len;
        let start = self.header_len + room * (self.sent as usize - 1);
        let data = message.get(start..).unwrap_or_default();
        let data = &data[..data.len().min(room)];
        let mut mad = [0; MAD_LEN];
        mad[..self.header_len].copy_from_slice(&message[..self.header_len]);
        mad[self.header_len..self.header_len + data.len()].copy_from_slice(data);
        let pad = room * self.count as usize - self.data_len;
        let total = Rmpp::SEGMENT_LEN * self.count as usize - pad;
        let last = Rmpp::SEGMENT_LEN - pad;
        let rmpp = Rmpp::data(self.sent, self.count, total as u32, last as u32);
        rmpp.emit(&mut mad[MadHeader::LEN..]);
        mad
    }

    /// Takes an ACK of all segments up to `number`, which lets those up to `window` be sent.
    ///
    /// # Errors
    /// The status of the ABORT that answers what cannot be.
    pub(super) fn handle_ack(&mut self, number: u32, window: u32) -> Result<Acked, RmppStatus> {
        if window < number {
            return Err(RmppStatus::WINDOW_TOO_SMALL);
        }
        if number > self.count.min(self.window) {
            return Err(RmppStatus::SEGMENT_TOO_BIG);
        }
        let news = number > self.acked || window > self.window && number == self.acked;
        if window < self.window || number < self.acked || !news {
            return Ok(Acked::Old);
        }
        let was_acked = self.is_acked();
        self.acked = number;
        self.sent = self.sent.max(number);
        self.window = window;
        Ok(if self.is_acked() && !was_acked { Acked::All } else { Acked::More })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(data: usize) -> Vec<u8> {
        (0..56 + data).map(|at| at as u8).collect()
    }

    fn rmpp(mad: &[u8; MAD_LEN]) -> Rmpp {
        Rmpp::parse(&mad[MadHeader::LEN..]).unwrap()
    }

    #[test]
    fn a_message_is_cut_into_segments_that_each_have_the_headers() {
        let message = message(450);
        let mut segments = Segments::new(56, message.len());
        segments.window = 3;
        let sent: Vec<_> = (0..3).map(|_| segments.next(&message)).collect();
        assert!(!segments.may_send());
        assert!(
            sent.iter().all(|mad| mad[..24] == message[..24] && mad[36..56] == message[36..56])
        );
        assert_eq!(sent[1][56..], message[256..456]);
        assert_eq!(sent[2][56..106], message[456..]);
        assert!(sent[2][106..].iter().all(|byte| *byte == 0));
        // 3 segments with 20 bytes of headers each; 50 bytes of data in the last.
        assert_eq!(rmpp(&sent[0]).data2, 450 + 3 * 20);
        assert_eq!((rmpp(&sent[1]).data2, rmpp(&sent[2]).data2), (0, 70));
    }

    #[test]
    fn a_message_without_data_is_one_segment() {
        let message = message(0);
        let mut segments = Segments::new(56, message.len());
        let mad = segments.next(&message);
        assert_eq!(rmpp(&mad), Rmpp::data(1, 1, 20, 20));
        assert!(!segments.may_send() && !segments.is_acked());
        assert_eq!(segments.handle_ack(1, 1), Ok(Acked::All));
    }

    #[test]
    fn acks_move_the_window_and_old_ones_do_nothing() {
        let message = message(1000);
        let mut segments = Segments::new(56, message.len());
        segments.next(&message);
        assert_eq!(segments.handle_ack(1, 3), Ok(Acked::More));
        segments.next(&message);
        segments.next(&message);
        assert!(!segments.may_send());
        for (ack, window) in [(1, 3), (1, 2), (0, 3), (0, 1)] {
            assert_eq!(segments.handle_ack(ack, window), Ok(Acked::Old));
        }
        assert_eq!(segments.handle_ack(3, 2), Err(RmppStatus::WINDOW_TOO_SMALL));
        assert_eq!(segments.handle_ack(4, 9), Err(RmppStatus::SEGMENT_TOO_BIG));
        assert_eq!(segments.handle_ack(2, 64), Ok(Acked::More));
        segments.rewind();
        assert_eq!(rmpp(&segments.next(&message)).data1, 3);
        assert_eq!(segments.handle_ack(5, 64), Ok(Acked::All));
        assert!(!segments.may_send() && segments.is_acked());
        assert_eq!(segments.handle_ack(5, 64), Ok(Acked::Old));
    }
}

//! The ring of an all-reduce: a message follows from another one.
//!
//! Each of N hosts has a vector, and all want the sum. The vector is cut into N pieces; each host
//! sends one to the next host of the ring, and whenever it has received one, it sends one on: N-1
//! times to add up, N-1 times to spread the result. So after `2 (N-1)` pieces a round is over at a
//! host, and it begins the next one at once.

use std::collections::VecDeque;

/// What one host sends to the next.
#[derive(Debug, Default)]
struct Arc {
    /// When messages were asked for that are not complete, oldest first.
    begun: VecDeque<u64>,
    /// Messages that wait for room in the send queue.
    waiting: u32,
    /// Pieces that the next host has received.
    received: u64,
}

/// A round that has ended at some hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Hosts that have ended it, and when the last of them did, in picoseconds.
    hosts: usize,
    ended: u64,
}

/// The ring. The connection number `n` goes from the host at place `n` to the next one.
#[derive(Debug)]
pub(super) struct Ring {
    arcs: Vec<Arc>,
    /// Bytes of a piece.
    pub(super) piece: u32,
    rounds: Vec<Round>,
}

impl Ring {
    /// A ring of so many hosts, for a vector of `bytes`.
    ///
    /// # Errors
    /// A piece that is too long for a message.
    pub(super) fn new(hosts: usize, bytes: u64) -> Result<Self, String> {
        let most = 1_u64 << 30;
        let piece = bytes.div_ceil(hosts as u64).max(1);
        let piece = u32::try_from(piece).ok().filter(|piece| u64::from(*piece) <= most);
        let piece = piece.ok_or_else(|| {
            let largest = most * hosts as u64;
            format!("{bytes} bytes for an all-reduce of {hosts} hosts: at most {largest}")
        })?;
        let arcs = (0..hosts).map(|_| Arc::default()).collect();
        Ok(Self { arcs, piece, rounds: Vec::new() })
    }

    /// Hosts.
    pub(super) fn len(&self) -> usize {
        self.arcs.len()
    }

    /// A message is to be sent on an arc.
    pub(super) fn ask(&mut self, arc: usize, now: u64) {
        self.arcs[arc].begun.push_back(now);
        self.arcs[arc].waiting += 1;
    }

    /// Messages of an arc that may be posted now, of which there is room for so many.
    pub(super) fn post(&mut self, arc: usize, room: u32) -> u32 {
        let posted = self.arcs[arc].waiting.min(room);
        self.arcs[arc].waiting -= posted;
        posted
    }

    /// The oldest message of an arc is complete. Returns when it was asked for.
    pub(super) fn complete(&mut self, arc: usize) -> Option<u64> {
        self.arcs[arc].begun.pop_front()
    }

    /// The host behind an arc has received a piece. Returns its own arc, on which it sends one.
    pub(super) fn receive(&mut self, arc: usize, now: u64) -> usize {
        let hosts = self.len();
        let in_round = 2 * (hosts as u64 - 1);
        let received = &mut self.arcs[arc].received;
        *received += 1;
        if received.is_multiple_of(in_round) {
            let number = (*received / in_round) as usize;
            // Bounded: a host is at most a round ahead of another one.
            self.rounds.resize(self.rounds.len().max(number), Round::default());
            let round = &mut self.rounds[number - 1];
            round.hosts += 1;
            round.ended = round.ended.max(now);
        }
        (arc + 1) % hosts
    }

    /// Rounds that have ended at all hosts, and when the last of them did.
    pub(super) fn rounds(&self) -> (usize, u64) {
        let ended = self.rounds.iter().take_while(|round| round.hosts == self.arcs.len());
        ended.fold((0, 0), |(count, _), round| (count + 1, round.ended))
    }

    /// Messages that are not complete.
    pub(super) fn open(&self) -> usize {
        self.arcs.iter().map(|arc| arc.begun.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_when_all_hosts_have_their_pieces() {
        let mut ring = Ring::new(3, 300).unwrap();
        assert_eq!(ring.piece, 100);
        for step in 1..=4 {
            for arc in 0..3 {
                assert_eq!(ring.receive(arc, step * 10 + arc as u64), (arc + 1) % 3);
            }
        }
        assert_eq!(ring.rounds(), (1, 42));
    }

    #[test]
    fn a_full_send_queue_has_messages_wait() {
        let mut ring = Ring::new(2, 10).unwrap();
        ring.ask(0, 5);
        ring.ask(0, 6);
        assert_eq!([ring.post(0, 1), ring.post(0, 9), ring.post(0, 9)], [1, 1, 0]);
        assert_eq!(
            [ring.complete(0), ring.complete(0), ring.complete(0)],
            [Some(5), Some(6), None]
        );
        assert!(Ring::new(2, 1 << 40).unwrap_err().contains("at most 2147483648"));
    }
}

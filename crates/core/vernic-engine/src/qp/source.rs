//! The UDP ports from which a connected queue pair accepts packets, against other users of the
//! peer's host that forge packets.
//!
//! A packet of RoCEv2 does not prove who sent it. The source address is checked, but all users of
//! the peer's host have that address. Other users do not have the peer's source port: Vernic binds
//! each port that it sends from on all addresses and shares it with no other process
//! (`vernic_io::udp`), so the kernel lets no other process send from it.
//!
//! Every implementation that we know sends all packets of a queue pair from one port. `rdma_rxe`
//! uses 0xC000 plus a hash of the queue pair's number. Adapters compute the port from the queue
//! pair numbers or from the flow label; a change of the path in SQD may change the port. So the
//! port of the first packet that the protocol machine accepts is taken for the peer's. There is one
//! port for the peer's requests and one for its responses, which may differ.
//!
//! A packet from any other port is either forged, or from a peer whose port has changed. A port
//! changes if the peer's netdev lost its address and found none of its old ports free, if the peer
//! changed its path, or if a router translates ports. What distinguishes the peer is that it knows
//! the current sequence number out of 2^24. So each packet from another port counts as one guess at
//! that number. A queue pair allows [`GUESSES`] guesses, and one more each [`GUESS_NANOS`]. When
//! none is left, the packet is refused.
//!
//! The machine carries out a request only if it has exactly the expected sequence number. A
//! response must acknowledge what the peer must have received (`vernic_proto::Qp::is_credible`). A
//! packet that passes is from the peer: its port becomes the peer's, and its guess is not counted.
//! All other packets have no effect but an answer to the peer, at the peer's own address and port:
//! duplicates are acknowledged again, and a gap is reported. So if the peer has a new port and
//! repeats its packets, the expected one is soon among them. An attacker is right once in 2^24 / 15
//! s, which is 13 days, on average (for responses of a busy queue pair a third of it). Without the
//! limit on guesses it would take some seconds.
//!
//! A flood of forged packets uses up all guesses, so a peer that changes its port during the flood
//! is refused until its retries are used up. Packets from the port that is known are not affected.
//! For peers that spread the packets of a queue pair over many ports on purpose, the setting
//! `pin_source_ports` must be off. The first packet that a queue pair refuses logs a warning that
//! says so.
//!
//! UC accepts any sequence number, so from another port a packet must have one of the next 1024
//! numbers. UD and QP1 have no connection, and are not checked. Packets out of a ring are not
//! checked either, because only one process can write to the ring.

use vernic_proto::Time;
use vernic_wire::Qpn;

/// The number of packets from other ports that are examined before one is refused. It is enough for
/// what a peer repeats from a new port, together with packets of its old port that were on their
/// way.
const GUESSES: u8 = 16;

/// The time after which one more guess is allowed, some 15 per second. This is 67 ms, the ACK
/// timeout that most programs use, so that each retry of a peer finds a guess.
const GUESS_NANOS: u64 = 1 << 26;

/// How the source port of a packet relates to the queue pair's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The packet comes from the peer's port.
    Peer,
    /// No port is known yet. The packet's port becomes the peer's if the machine accepts the
    /// packet.
    First,
    /// The packet comes from another port than the peer's, and has used one of the guesses.
    Stranger,
}

/// The UDP ports of a queue pair's peer, and how many guesses packets from other ports have used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Source {
    /// The peer's ports for responses (index 0) and for requests (index 1); 0 if not known.
    ports: [u16; 2],
    /// Guesses that were used and are not available again yet.
    guessed: u8,
    is_logged: bool,
    since: Time,
}

impl Source {
    /// Whether a packet comes from the peer's port for requests or responses.
    #[inline]
    pub(crate) fn is_peer(&self, is_request: bool, port: u16) -> bool {
        self.ports[usize::from(is_request)] == port
    }

    /// Decides about a packet that does not come from the peer's port. Returns `None` if the packet
    /// is to be refused.
    #[cold]
    pub(crate) fn admit(&mut self, is_request: bool, now: Time) -> Option<Sender> {
        if self.ports[usize::from(is_request)] == 0 {
            return Some(Sender::First);
        }
        let back = now.since(self.since) / GUESS_NANOS;
        if back != 0 {
            self.guessed = self.guessed.saturating_sub(u8::try_from(back).unwrap_or(u8::MAX));
            self.since = now;
        }
        if self.guessed == GUESSES {
            return None;
        }
        self.guessed += 1;
        Some(Sender::Stranger)
    }

    /// Notes that the machine accepted a packet from this port, so that it is the peer's port from
    /// now on.
    #[cold]
    pub(crate) fn learn(&mut self, sender: Sender, is_request: bool, port: u16, qpn: Qpn) {
        let known = std::mem::replace(&mut self.ports[usize::from(is_request)], port);
        if sender == Sender::Stranger {
            self.guessed = self.guessed.saturating_sub(1);
            tracing::debug!(%qpn, was = known, port, is_request, "the peer's UDP port changed");
        }
    }

    /// Logs that a packet was refused, once for each queue pair.
    #[cold]
    pub(crate) fn log_refusal(&mut self, is_request: bool, port: u16, qpn: Qpn) {
        if !std::mem::replace(&mut self.is_logged, true) {
            let peer = self.ports[usize::from(is_request)];
            tracing::warn!(
                %qpn, peer, port,
                "packets from the peer's address and another UDP port than the peer's are refused: \
                 another user of its host forges them, or it sends from many ports (then set \
                 pin_source_ports to off)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QPN: Qpn = Qpn::new(7);

    #[test]
    fn strangers_have_some_guesses_and_one_more_each_67_ms() {
        let mut source = Source::default();
        assert_eq!(source.admit(true, Time(0)), Some(Sender::First));
        source.learn(Sender::First, true, 50_000, QPN);
        assert!(source.is_peer(true, 50_000) && !source.is_peer(false, 50_000));
        let guesses = |source: &mut Source, now| {
            (0..100).filter(|_| source.admit(true, Time(now)).is_some()).count()
        };
        assert_eq!(guesses(&mut source, 1), usize::from(GUESSES));
        assert_eq!(guesses(&mut source, GUESS_NANOS), 1);
        assert_eq!(guesses(&mut source, GUESS_NANOS * 2 - 1), 0);
        assert_eq!(guesses(&mut source, GUESS_NANOS * 4), 3);
        assert_eq!(guesses(&mut source, GUESS_NANOS << 20), usize::from(GUESSES));
    }

    #[test]
    fn a_port_that_proves_to_be_the_peers_costs_no_guess() {
        let mut source = Source::default();
        source.learn(Sender::First, false, 1, QPN);
        for port in 2..100 {
            let sender = source.admit(false, Time(0)).unwrap();
            assert_eq!(sender, Sender::Stranger);
            source.learn(sender, false, port, QPN);
            assert!(source.is_peer(false, port));
        }
    }
}

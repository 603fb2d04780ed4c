//! The UDP ports from which a connected queue pair accepts packets of its peer.
//!
//! A packet of RoCEv2 has no proof of its sender. The source address is checked, but all users of
//! the peer's host have that address. Other users do not have the peer's source port: Vernic binds
//! each port that it sends from alone and on all addresses (`vernic_io::udp`), so the kernel lets
//! no other process send from it.
//!
//! Every implementation that we know sends the packets of a queue pair from one port. `rdma_rxe`
//! takes 0xC000 and a hash of the queue pair's number. Adapters make the port of the numbers or of
//! the flow label; a path that is changed in SQD may bring another port. So the port of the first
//! packet that the machine accepts is the peer's: one for requests, one for responses, which need
//! not be the same.
//!
//! Packets from other ports come from *strangers*, or from a peer that has changed its port. A port
//! changes if the peer's netdev lost its address and found none of its old ports free, if the peer
//! changed its path, or if a router translates. Only the peer knows the place in the sequence, of
//! 2^24, and that distinguishes it from a stranger. A stranger's packet costs one of [`GUESSES`];
//! guesses come back one each [`GUESS_NANOS`]. Without a guess left the packet is refused.
//!
//! The machine carries out a request only if it has the very next number. A response must answer
//! what the peer must have heard (`vernic_proto::Qp::is_credible`). A packet that the machine
//! accepts so is the peer's: its port is the peer's from then on, and the guess is given back. All
//! other packets change nothing: duplicates are answered, to the peer, and a gap is reported to the
//! peer. So a peer that repeats what it sent from its old port is soon at the next number. A sender
//! that guesses is right once in 2^24 / 15 s, which is 13 days, on average (for responses of a busy
//! queue pair a third of it). Without the limit it would take some seconds.
//!
//! A flood of strangers' packets uses up all guesses, so while it lasts a peer cannot change its
//! port: its retries end. Packets from its present port are not concerned. Peers that spread a
//! queue pair over many ports on purpose need the setting `pin_source_ports` off. The first refused
//! packet of a queue pair is a warning that says so.
//!
//! UC takes any number, so a stranger's packet must have one of the next 1024 numbers. Datagrams
//! (UD, QP1) have no connection, and packets out of a ring come from the process that has the ring.

use vernic_proto::Time;
use vernic_wire::Qpn;

/// Packets of strangers that are examined in a row: what a peer repeats from a new port, and room
/// for packets that its old port had under way.
const GUESSES: u8 = 16;

/// The time after which one guess comes back: some 15 in a second. This is 67 ms, the ACK timeout
/// that most programs use, so each of a peer's retries has one.
const GUESS_NANOS: u64 = 1 << 26;

/// The relation of a packet's source to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The peer.
    Peer,
    /// The first sender: it is the peer if the machine accepts the packet.
    First,
    /// A sender from another port; the packet has used one of the guesses.
    Stranger,
}

/// The ports of a queue pair's peer, and the guesses left to strangers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Source {
    /// The peer's ports for responses and for requests; 0 means not known.
    ports: [u16; 2],
    /// Guesses that were made and have not come back.
    guessed: u8,
    told: bool,
    since: Time,
}

impl Source {
    /// Whether a packet comes from the peer's port.
    #[inline]
    pub(crate) fn is_peer(&self, is_request: bool, port: u16) -> bool {
        self.ports[usize::from(is_request)] == port
    }

    /// Returns the sender of a packet that does not come from the peer's port; `None` if the packet
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

    /// Notes that the machine accepted a packet from a port that was not the peer's: now it is.
    #[cold]
    pub(crate) fn learn(&mut self, sender: Sender, is_request: bool, port: u16, qpn: Qpn) {
        let known = std::mem::replace(&mut self.ports[usize::from(is_request)], port);
        if sender == Sender::Stranger {
            self.guessed = self.guessed.saturating_sub(1);
            tracing::debug!(%qpn, was = known, port, is_request, "the peer's UDP port changed");
        }
    }

    /// Logs that a packet was refused, once.
    #[cold]
    pub(crate) fn tell(&mut self, is_request: bool, port: u16, qpn: Qpn) {
        if !std::mem::replace(&mut self.told, true) {
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

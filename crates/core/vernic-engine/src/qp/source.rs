//! From which UDP ports a connected queue pair hears its peer.
//!
//! A packet of RoCEv2 has no proof of who sent it. That it comes from the peer's address is
//! checked, but all users of the peer's host have that address. What they do not have is its source
//! port: Vernic binds each port that it sends from alone and on all addresses (`vernic_io::udp`),
//! so the kernel lets nobody else send from it, and every implementation that we know sends the
//! packets of a queue pair from one port (`rdma_rxe` from 0xC000 and a hash of its number, adapters
//! from one that is made of the numbers or the flow label; a path that is changed in SQD may bring
//! another). So the port of the first packet that the machine accepts is the peer's: one for
//! requests, one for responses, which need not be the same.
//!
//! Packets from other ports come of *strangers*, or of a peer whose port has changed: its netdev
//! lost its address and found no port free that it had, it changed its path, or a router
//! translates. They are told apart by what only the peer knows, the place in the sequence, of 2^24.
//! A stranger's packet costs one of [`GUESSES`] that come back one each [`GUESS_NANOS`]; without
//! any left it is refused. The machine carries out a request only if it has the very next number,
//! and a response must answer what the peer must have heard (`vernic_proto::Qp::is_credible`). One
//! that the machine accepts so is the peer's: its port is the peer's from then on, and the guess is
//! given back. All others change nothing: duplicates are answered, to the peer, and a gap is
//! reported to it, so a peer that repeats what it sent from its old port is soon at the next
//! number. Who guesses is right once in 2^24 / 15 s, which is 13 days, on average (for responses of
//! a busy queue pair a third of it); without the limit that were some seconds.
//!
//! A flood of strangers' packets uses up all guesses, so while it lasts a peer cannot change its
//! port: its retries end. Packets from its present port are not concerned. Peers that spread a
//! queue pair over many ports on purpose need the setting `pin_source_ports` off; the first refused
//! packet of a queue pair is a warning that says so.
//!
//! UC takes any number, so of a stranger's packet it is asked that its number is one of the next
//! 1024. Datagrams (UD, QP1) have no connection, and packets out of a ring come of the process that
//! has it.

use vernic_proto::Time;
use vernic_wire::Qpn;

/// Packets of strangers that are looked at in a row: what a peer repeats from a new port, and room
/// for those that its old one had under way.
const GUESSES: u8 = 16;

/// How soon one more is: some 15 in a second (67 ms, the ACK timeout that most programs use, so
/// each of a peer's retries has one).
const GUESS_NANOS: u64 = 1 << 26;

/// What a packet's source is to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The peer.
    Peer,
    /// Nobody was heard before: the peer if the machine accepts the packet.
    First,
    /// Another port, one of the guesses.
    Stranger,
}

/// See the module's head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Source {
    /// The peer's port for responses and for requests; 0 is not known.
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

    /// Whose packet it is that does not come from the peer's port; `None` if it is to be refused.
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

    /// The machine accepted a packet that did not come from the peer's port: it does, then.
    #[cold]
    pub(crate) fn learn(&mut self, sender: Sender, is_request: bool, port: u16, qpn: Qpn) {
        let known = std::mem::replace(&mut self.ports[usize::from(is_request)], port);
        if sender == Sender::Stranger {
            self.guessed = self.guessed.saturating_sub(1);
            tracing::debug!(%qpn, was = known, port, is_request, "the peer's UDP port changed");
        }
    }

    /// A packet was refused: says so, once.
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

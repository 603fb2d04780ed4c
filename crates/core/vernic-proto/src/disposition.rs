//! What became of a received packet, with the table of the reasons to drop one.

use crate::error::ErrorClass;

/// What became of a received packet. Each drop reason has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Taken as expected.
    Accepted,
    /// A request seen before: acknowledged or replayed again.
    Duplicate,
    /// Refused with a NAK of this class; on fatal classes the queue pair is now in error.
    Nak(ErrorClass),
    /// No receive posted: RNR NAK (RC) sent.
    Rnr,
    /// Ahead of a gap that has been reported: kept until the gap closes
    /// ([`Qp::take_kept`](crate::Qp::take_kept)). A packet that is the sign of a gap is kept too,
    /// and is a [`Nak`](Self::Nak).
    Kept,
    /// Dropped silently.
    Drop(DropReason),
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet was dropped without an answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// All, in order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than its headers.
    Truncated = "truncated",
    /// An opcode that nobody defined.
    UnknownOpcode = "unknown_opcode",
    /// A transport version other than 0, a pad count beyond the payload.
    Malformed = "malformed",
    /// The ICRC does not match.
    Icrc = "icrc",
    /// No queue pair has the destination number.
    UnknownQpn = "unknown_qpn",
    /// The opcode belongs to another service than the queue pair's, or to the other end's half of
    /// an XRC connection.
    WrongService = "wrong_service",
    /// The partition key does not match.
    Pkey = "pkey",
    /// The queue key does not match.
    Qkey = "qkey",
    /// The source is not the connected peer.
    WrongSource = "wrong_source",
    /// The source is none of the peers that the device may talk to.
    PeerNotAllowed = "peer_not_allowed",
    /// The source is the connected peer's host, and a UDP port that this peer does not send from.
    WrongPort = "wrong_port",
    /// It came by the wire, and the connected peer sends through shared memory.
    WrongWay = "wrong_way",
    /// The queue pair's state does not accept packets.
    BadState = "bad_state",
    /// A request ahead of a gap that has been reported, where nothing is kept, or a copy of one
    /// that is kept.
    AheadOfNak = "ahead_of_nak",
    /// A request ahead of a gap for which there is no room among those that are kept.
    NoKeepRoom = "no_keep_room",
    /// A response to nothing outstanding.
    StaleResponse = "stale_response",
    /// A duplicate whose replay is no longer possible.
    LostReplay = "lost_replay",
    /// A response while waiting out a gap that is being repaired.
    ResponseAhead = "response_ahead",
    /// An unreliable message with a missing, unexpected or over-long packet.
    MessageBroken = "message_broken",
    /// An unreliable message without a receive.
    NoReceive = "no_receive",
    /// An unreliable message refused by a memory check.
    AccessRefused = "access_refused",
    /// The payload's length is wrong for an unreliable message, or its opcode forbids one on an
    /// answer.
    Length = "length",
    /// A multicast group that nobody here joined.
    NotAttached = "not_attached",
    /// A management datagram of a class that no agent here is for.
    MadClass = "mad_class",
    /// A management datagram for a process of this host that does not keep up.
    MadOverflow = "mad_overflow",
    /// A management datagram that needs an agent, for which no process slot is left.
    MadNoSlot = "mad_no_slot",
    /// Congestion notification: for the queue pair's congestion control, and counted elsewhere.
    Cnp = "cnp",
    /// A part of a message whose payload is in the sender's memory, and that names no payload, or
    /// more than this process copies.
    RendezvousRefused = "rendezvous_refused",
    /// A part of a message whose payload the sender has taken back.
    RendezvousWithdrawn = "rendezvous_withdrawn",
}

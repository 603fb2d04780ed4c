//! Counters of the agents of a port, and why datagrams are dropped.

macro_rules! drops {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a datagram reached no agent. Each reason has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum MadDrop { $($(#[$doc])* $name,)* }

        impl MadDrop {
            /// All, in order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

drops! {
    /// Another base version than 1.
    BadVersion = "mad_drop_bad_version",
    /// Subnet management to QP 1, or something else to QP 0.
    WrongQueuePair = "mad_drop_wrong_queue_pair",
    /// A request that no agent takes. Get and Set are answered.
    NoAgent = "mad_drop_no_agent",
    /// An answer to an agent that is gone, or that has not asked, or not any more.
    Unasked = "mad_drop_unasked",
    /// The agent leaves too much lying.
    QueueFull = "mad_drop_queue_full",
    /// More transfers, or longer ones, than are kept at a time.
    NoRoom = "mad_drop_no_room",
    /// A segment, an ACK or an end of a transfer that there is not.
    NoTransfer = "mad_drop_no_transfer",
    /// A segment that was there, or an ACK that says nothing new.
    Duplicate = "mad_drop_duplicate",
    /// A segment beyond what the sender may send.
    BeyondWindow = "mad_drop_beyond_window",
    /// An RMPP header that is wrong; answered by ABORT.
    BadRmpp = "mad_drop_bad_rmpp",
}

impl core::fmt::Display for MadDrop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// What the agents of a port have counted since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MadCounters {
            $($(#[$doc])* pub $field: u64,)*
            /// Datagrams that reached no agent, by reason.
            pub dropped: [u64; MadDrop::ALL.len()],
        }

        impl MadCounters {
            /// Yields each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let plain = [$(($name, self.$field),)*];
                let dropped = MadDrop::ALL.iter().map(|drop| drop.name()).zip(self.dropped);
                plain.into_iter().chain(dropped)
            }
        }
    };
}

counters! {
    /// Datagrams sent: segments, ACKs and repeats each count.
    sent = "mad_sent",
    /// Datagrams that came.
    received = "mad_received",
    /// Datagrams and messages given to agents.
    delivered = "mad_delivered",
    /// Datagrams and segments sent again because no answer came.
    retries = "mad_retries",
    /// Requests and transfers that were not answered for all their repeats.
    timed_out = "mad_timed_out",
    /// Transfers of ours that the other end gave up.
    aborted = "mad_aborted",
    /// Transfers to us that stopped in the middle.
    stalled = "mad_stalled",
    /// Requests of no agent that were answered with a status.
    refused = "mad_refused",
    /// Answers of our own that were not sent because too many wait to be sent.
    answers_withheld = "mad_answers_withheld",
}

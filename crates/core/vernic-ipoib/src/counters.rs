//! What an interface counts, and why it drops packets.

macro_rules! drops {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet was dropped. Each reason has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
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
    /// The host's packet is no IP packet, or shorter than its header says.
    NotIp = "ipoib_drop_not_ip",
    /// The broadcast group is not joined.
    LinkDown = "ipoib_drop_link_down",
    /// No address of ours has the destination on its link, and no router is known.
    NoRoute = "ipoib_drop_no_route",
    /// Longer than what the destination takes.
    TooBig = "ipoib_drop_too_big",
    /// No answer to the question for a hardware address.
    NoAnswer = "ipoib_drop_no_answer",
    /// The SA knows no path to the GID.
    NoPath = "ipoib_drop_no_path",
    /// The multicast group does not exist, and no router is there.
    NoGroup = "ipoib_drop_no_group",
    /// Too many packets wait, or too many groups are in use.
    NoRoom = "ipoib_drop_no_room",
    /// Received: shorter than its headers say, or with one that cannot be read.
    Malformed = "ipoib_drop_malformed",
    /// Received: an encapsulation of something that we do not know.
    UnknownType = "ipoib_drop_unknown_type",
    /// Received: our own multicast packet.
    Own = "ipoib_drop_own",
    /// Received: by a connection that there is not, or no longer.
    NoConnection = "ipoib_drop_no_connection",
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// What an interface has counted since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
            /// Packets dropped, by reason.
            pub dropped: [u64; DropReason::ALL.len()],
        }

        impl Counters {
            /// Returns all with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let counted = [$(($name, self.$field),)*];
                let dropped = DropReason::ALL.iter().map(|reason| reason.name()).zip(self.dropped);
                counted.into_iter().chain(dropped)
            }
        }
    };
}

counters! {
    /// IP packets sent as datagrams to one interface.
    sent_datagrams = "ipoib_sent_datagrams",
    /// IP packets sent by connections.
    sent_messages = "ipoib_sent_messages",
    /// IP packets sent to groups.
    sent_multicast = "ipoib_sent_multicast",
    /// Messages of address resolution sent.
    sent_resolution = "ipoib_sent_resolution",
    /// IP packets received as datagrams, multicast ones included.
    received_datagrams = "ipoib_received_datagrams",
    /// IP packets received by connections.
    received_messages = "ipoib_received_messages",
    /// Messages of address resolution received.
    received_resolution = "ipoib_received_resolution",
}

impl Counters {
    pub(crate) fn note_drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}

//! Counters of the connection manager, and why datagrams are dropped.

use vernic_wire::cm::CmAttribute;

macro_rules! drops {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a datagram was dropped. Each reason has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum CmDrop { $($(#[$doc])* $name,)* }

        impl CmDrop {
            /// All, in order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

drops! {
    /// No datagram of communication management: too short, another class, version or message.
    Malformed = "cm_drop_malformed",
    /// For a connection that does not exist; a DREQ, REP or RTU is answered all the same.
    UnknownConnection = "cm_drop_unknown_connection",
    /// From or to another address than the connection's.
    WrongPath = "cm_drop_wrong_path",
    /// A communication id is absent or not the connection's, or our queue pair number is not.
    WrongInstance = "cm_drop_wrong_instance",
    /// Of no meaning in the state that the connection is in.
    WrongState = "cm_drop_wrong_state",
    /// Seen before, and no answer is due.
    Duplicate = "cm_drop_duplicate",
    /// A request, while the owner leaves too many events lying.
    EventsFull = "cm_drop_events_full",
}

impl core::fmt::Display for CmDrop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// What the connection manager has counted since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CmCounters {
            $($(#[$doc])* pub $field: u64,)*
            /// Datagrams taken or answered, by message from REQ on.
            pub received: [u64; CmAttribute::ALL.len()],
            /// Datagrams sent, repeated ones included.
            pub sent: [u64; CmAttribute::ALL.len()],
            /// Datagrams dropped, by reason.
            pub dropped: [u64; CmDrop::ALL.len()],
        }

        impl std::ops::AddAssign for CmCounters {
            fn add_assign(&mut self, more: Self) {
                let Self { $($field,)* received, sent, dropped } = more;
                $(self.$field += $field;)*
                let add = |to: &mut [u64], more: &[u64]| {
                    to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
                };
                add(&mut self.received, &received);
                add(&mut self.sent, &sent);
                add(&mut self.dropped, &dropped);
            }
        }

        impl CmCounters {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let plain = [$(($name, self.$field),)*];
                let received = RECEIVED.into_iter().zip(self.received);
                let sent = SENT.into_iter().zip(self.sent);
                let dropped = CmDrop::ALL.iter().map(|drop| drop.name()).zip(self.dropped);
                plain.into_iter().chain(received).chain(sent).chain(dropped)
            }
        }
    };
}

counters! {
    /// Messages sent again because no answer came.
    retries = "cm_retries",
    /// Repeats of a REP that were not sent, since nothing was heard of the peer but its REQ.
    reps_withheld = "cm_reps_withheld",
    /// Messages that were seen before, and were answered again.
    duplicates_answered = "cm_duplicates_answered",
    /// MRAs that were ignored, since those before had put the end off for as long as may be.
    mras_beyond = "cm_mras_beyond_limit",
    /// Messages that nobody answered for all their repeats.
    unanswered = "cm_unanswered",
    /// REQs and SIDR_REQs for services that nobody listens on.
    no_listener = "cm_no_listener",
    /// REQs ignored, and SIDR_REQs refused, because the listener's backlog was full.
    backlog_full = "cm_backlog_full",
    /// Requests dropped because their peer had too much of a full backlog, for those of others.
    backlog_displaced = "cm_backlog_displaced",
    /// REQs and SIDR_REQs refused because there were too many connections.
    too_many = "cm_too_many_connections",
    /// Requests dropped because later ones needed their place: of the peer that had most.
    half_open_dropped = "cm_half_open_dropped",
    /// Requests dropped because the peer had stopped asking.
    half_open_expired = "cm_half_open_expired",
    /// Entries of TIMEWAIT forgotten early, because later ones needed their place.
    timewait_cut_short = "cm_timewait_cut_short",
    /// REQs and REPs of a queue pair that a connection of ours still names.
    stale_connections = "cm_stale_connections",
    /// Of these, those whose connection was kept, since its queue pair had just heard the peer.
    stale_but_heard = "cm_stale_but_heard",
    /// Connections whose peer's process was gone, without a word.
    peers_gone = "cm_peers_gone",
    /// Requests that ended at once because nobody was there to hear them.
    refused_here = "cm_refused_here",
    /// Datagrams that were not sent because nobody fetched those before them.
    outbox_full = "cm_outbox_full",
}

const RECEIVED: [&str; CmAttribute::ALL.len()] = [
    "cm_received_req",
    "cm_received_mra",
    "cm_received_rej",
    "cm_received_rep",
    "cm_received_rtu",
    "cm_received_dreq",
    "cm_received_drep",
    "cm_received_sidr_req",
    "cm_received_sidr_rep",
    "cm_received_lap",
    "cm_received_apr",
];
const SENT: [&str; CmAttribute::ALL.len()] = [
    "cm_sent_req",
    "cm_sent_mra",
    "cm_sent_rej",
    "cm_sent_rep",
    "cm_sent_rtu",
    "cm_sent_dreq",
    "cm_sent_drep",
    "cm_sent_sidr_req",
    "cm_sent_sidr_rep",
    "cm_sent_lap",
    "cm_sent_apr",
];

/// Place of a message in the arrays.
pub(super) const fn index(attribute: CmAttribute) -> usize {
    (attribute.0 - CmAttribute::REQ.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_their_messages() {
        for (at, attribute) in CmAttribute::ALL.iter().enumerate() {
            let name = attribute.name().unwrap().to_lowercase();
            assert_eq!(index(*attribute), at);
            assert_eq!(RECEIVED[at], format!("cm_received_{name}"));
            assert_eq!(SENT[at], format!("cm_sent_{name}"));
        }
        let mut counters = CmCounters::default();
        counters.dropped[CmDrop::WrongPath as usize] = 3;
        assert!(counters.iter().any(|counter| counter == ("cm_drop_wrong_path", 3)));
    }
}

//! Counters of iWARP connections. Only the holder of the lane writes them, as with those of the
//! device.

use vernic_proto::iwarp::Ending;
use vernic_wire::iwarp::TermCode;

use super::Count;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// The counters of iWARP connections while the device is open.
        #[derive(Debug, Default)]
        pub(crate) struct StreamCounts {
            $(pub(crate) $field: Count,)*
        }

        /// Counters of an iWARP device since it was opened; zeros on other devices.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StreamCounters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl StreamCounts {
            pub(crate) fn snapshot(&self) -> StreamCounters {
                StreamCounters { $($field: self.$field.value(),)* }
            }
        }

        vernic_io::sum_fields! { StreamCounters: $($field),* }

        impl StreamCounters {
            /// Returns each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections that became the connection of a queue pair.
    connections = "iwarp_connections",
    /// Connections whose FPDUs have CRCs (RFC 5044, 7.1.1).
    with_crc = "iwarp_connections_with_crc",
    /// Connections whose FPDUs have no CRCs; errors that TCP's checksum misses are not noticed.
    without_crc = "iwarp_connections_without_crc",
    /// Connections that were lost: reset, timed out, or closed in the middle of a message or an
    /// exchange.
    lost = "iwarp_connections_lost",
    /// Streams that this device ended because of a violation or a failure. It sent a Terminate if
    /// it could.
    terminates_sent = "iwarp_terminates_sent",
    /// Streams that the peer ended with a Terminate.
    terminates_received = "iwarp_terminates_received",
    /// Streams that ended because the CRC of an FPDU was wrong (RFC 5044, 8); counted in
    /// `terminates_sent` too.
    crc_errors = "iwarp_crc_errors",
    /// FPDUs received completely (RFC 5044, 4.1).
    rx_fpdus = "iwarp_rx_fpdus",
    /// FPDUs sent.
    tx_fpdus = "iwarp_tx_fpdus",
    /// Lingering connections (TCP connections whose queue pair is gone, but whose bytes are still
    /// being delivered) that were closed before their peers had acknowledged everything, because
    /// there were too many. The kernel goes on sending their bytes, and resets such a connection if
    /// the peer sends something more.
    left_to_system = "iwarp_left_to_system",
    /// Lingering connections that were reset before their peers had acknowledged everything,
    /// because their time was over or there were too many.
    reset_unacknowledged = "iwarp_reset_unacknowledged",
    /// Connections whose message found no posted receive and could no longer wait for one, because
    /// too many bytes waited like this. Their streams ended.
    held_refused = "iwarp_held_refused",
    /// Bytes received from sockets, with the headers and CRCs of FPDUs.
    rx_bytes = "iwarp_rx_bytes",
    /// System calls that received bytes, including those that found nothing.
    rx_calls = "iwarp_rx_calls",
    /// Received bytes that went from the socket directly into registered memory.
    placed_bytes = "iwarp_placed_bytes",
    /// Bytes that sockets accepted.
    tx_bytes = "iwarp_tx_bytes",
    /// System calls that sent bytes, including those that found no room.
    tx_calls = "iwarp_tx_calls",
    /// Sent bytes that a socket took directly from registered memory.
    gathered_bytes = "iwarp_gathered_bytes",
}

impl StreamCounts {
    /// Counts the end of a connection under its cause.
    pub(crate) fn count_ending(&self, ending: Ending) {
        match ending {
            Ending::PeerClosed | Ending::Closed => {}
            Ending::Lost(_) => self.lost.add(1),
            Ending::Terminated(_) => self.terminates_received.add(1),
            Ending::Aborted(code) => {
                self.terminates_sent.add(1);
                self.crc_errors.add(u64::from(code == TermCode::MPA_CRC));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_crc_is_counted_among_the_terminates() {
        let counts = StreamCounts::default();
        for code in [TermCode::MPA_CRC, TermCode::RDMAP_LOCAL] {
            counts.count_ending(Ending::Aborted(code));
        }
        counts.count_ending(Ending::Terminated(TermCode::MPA_CRC));
        let now = counts.snapshot();
        assert_eq!((now.terminates_sent, now.terminates_received, now.crc_errors), (2, 1, 1));
    }
}

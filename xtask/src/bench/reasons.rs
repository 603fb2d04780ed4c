//! What was found, where a bar was short: a sentence or two for each.

/// A reason: which bars it is about, by how their names begin and end.
type Reason = (&'static [(&'static str, &'static str)], &'static str);

#[rustfmt::skip] // a list reads best with the bars before the reason
const REASONS: &[Reason] = &[
    (&[("ib_write_lat 8 B, same host", "")],
     "The slower machine's kernel, which does the copy, takes two to four times as long for everything. The faster one \
      had 1.27 us."),
    (&[("ib_write_lat 8 B", "")],
     "At its bar within what runs differ: three runs by hand had 60, 62 and 66 us."),
    (&[("ib_write_lat 8 B, mapped", "")],
     "In slow minutes a bare word from core to core takes 0.26 to 0.29 of the 0.30 us."),
    (&[("ib_send_lat 8 B, same host", "")],
     "UCX stores message and flag into one cache line. Here the message is a packet that is answered: 9,250 \
      instructions with its ACK."),
    (&[("ib_write_bw 64 KiB, mapped", ""), ("Rust API, WRITE 64 KiB, mapped", "")],
     "Of the time 54 % is the copy, and 21 % the reading of the clock behind it, which waits for the copy."),
    (&[("ib_write_bw 1 MiB, same host", "")],
     "Ratios below 1 are of the start, which perftest's average includes and UCX's warm-up leaves out."),
    (&[("ib_write_bw 1 MiB, MTU 4096", ""), ("ib_send_bw 1 MiB, MTU 4096", ""),
       ("RC ", "1 MiB, MTU 4096")],
     "RoCEv2 over a UDP socket copies each byte twice more than TCP, and computes a CRC at each end."),
    (&[("ib_write_bw 1 MiB, MTU 1024", ""), ("RC ", "1 MiB, MTU 1024")],
     "A packet of 1024 bytes takes the sender 208 ns: 90 in the kernel, 58 for copy and CRC. The other 60 are the \
      protocol's, which bare UDP does without."),
    (&[("RC READ 8 B, message rate", ""), ("RC ATOMIC 8 B, message rate", "")],
     "Each is a packet there and a packet back: 5,800 instructions in a list of 16, where a WRITE is 4,100."),
    (&[("ib_write_bw 8 B, lists of 16, 8 QPs", ""), ("Rust API, WRITE 8 B, lists of 64, 8 QPs", "")],
     "At its bar within what runs differ."),
    (&[("ib_write_bw 8 B, lists of 16", "")],
     "Both ends take turns: the sender looked 22 times in vain for each call that it made."),
    (&[("Rust API, WRITE 8 B, lists of 64", ""), ("RC WRITE 8 B, message rate", "")],
     "The slower machine's kernel takes two to four times as long for everything. The faster one had 6.0 M/s through the \
      Rust API and 7.1 by `vernic bench`."),
    (&[("ib_send_lat 8 B", "")],
     "On the slower machine a plain UDP ping-pong alone takes 4.3 us. The faster one had 3.22 us, and reached the bar."),
    (&[("RC SEND 64 B, one way", ""), ("UD SEND 64 B, one way", "")],
     "Three quarters of the time are `sendto`, the loopback and `recvmsg`. A hop also checks two ICRCs, and the ACK \
      shares the receiver's core."),
    (&[("iWARP WRITE 1 MiB, CRC", "")],
     "The sender reads payload once more for the CRC, which takes about as long as the kernel's copy."),
    (&[("iWARP SEND 8 B, one way", "")],
     "Of the samples 28 % are in `ppoll` and `epoll_pwait`, which only Vernic calls, now and then while it polls."),
    (&[("in one host: ib_send_bw 8 B, lists of 16", "")],
     "A message takes 218 instructions at both ends together. Builds of the same source had 9.2 to 10.1 M msg/s."),
    (&[("in one host: ib_send_bw 64 KiB", "")],
     "The kernel has 92 % of the receiver's time. Half of that is the copy, the rest looks up and pins pages."),
    (&[("in one host: ib_send_bw 1 MiB", "")],
     "Source and destination fill the second-level cache: a bare loop of the same copies falls from 31 to 21 GB/s."),
    (&[("in one host: ib_send_lat 64 B, UD", "")],
     "UD takes 1,200 instructions more than UC: a datagram keeps its headers, and its receive begins with a GRH."),
    (&[("in one host: ib_write_bw 64 KiB, mapped", "")],
     "Of each 1.6 us 0.3 is not the copy."),
    (&[("in the guest: ib_write_lat", "by UDP"), ("in the guest: ib_send_lat", "by UDP")],
     "Four threads share two processors: both programs spin, and what comes is received by their devices' threads."),
    (&[("in the guest: ", "Vernic by UDP")],
     "A sender that finds the lane taken offers its core on and on, and what a late receiver had is sent again. rxe \
      does all in the sender's context."),
    (&[("in the guest: ib_send_lat", ", Vernic")],
     "Instructions take the time in an emulated machine: 22 to 25 of the 43 us are computing."),
    (&[("in the guest: ib_write_lat", ", Vernic"), ("in the guest: ib_write_bw 4 KiB", ", Vernic")],
     "At its bar within what runs differ."),
    (&[("in the guest: ", "Vernic iWARP")],
     "siw copies once: its sender gives TCP references to the program's pages. Over a socket there are two copies."),
];

/// The reason why a bar was short, where one was found.
pub(super) fn why(what: &str) -> Option<&'static str> {
    let is_about = |(begin, end): &(&str, &str)| match *end {
        // A whole name, so that longer ones are not meant.
        "" => what == *begin,
        end => what.starts_with(begin) && what.ends_with(end),
    };
    REASONS.iter().find(|(bars, _)| bars.iter().any(is_about)).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_found_by_the_whole_name_or_by_both_its_ends() {
        let of = |what| why(what).map(|reason| &reason[..9]);
        assert_eq!(of("ib_write_bw 64 KiB, mapped"), Some("Of the ti"));
        assert_eq!(of("ib_write_bw 64 KiB, mapped, again"), None);
        assert_eq!(of("RC READ 1 MiB, MTU 4096"), Some("RoCEv2 ov"));
        assert_eq!(of("in the guest: ib_send_lat 8 B, Vernic by UDP"), Some("Four thre"));
        assert_eq!(of("in the guest: ib_send_bw 1 MiB, Vernic by UDP"), Some("A sender "));
        assert_eq!(of("in the guest: ib_send_lat 8 B, Vernic"), Some("Instructi"));
    }
}

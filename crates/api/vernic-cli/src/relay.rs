//! `vernic relay`: a bad network between two netdevs.

use clap::Args;
use std::fmt::Write as _;
use std::os::fd::AsFd as _;
use vernic_relay::{Counts, Impairment, Relay, Report};

use crate::failure::{Failure, Outcome, complain};
use crate::table::print;

/// `vernic relay`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Netdev at one end, such as veth0
    #[arg(value_name = "NETDEV")]
    one: String,
    /// Netdev at the other end
    #[arg(value_name = "NETDEV")]
    other: String,
    /// What the network does in each direction: loss=1% dup=0.1% corrupt=1e-6 reorder=1% delay=5ms
    /// jitter=1ms rate=100m queue=100k ecn=50k seed=7 (rate in bits per second, queue and ecn in
    /// bytes; k, m and g stand for 1000, 1000000 and 1000000000)
    #[arg(value_name = "NAME=VALUE")]
    words: Vec<String>,
}

/// Carries frames until a signal ends it, and then tells what has happened to them.
pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    let failed = |error: vernic_relay::RelayError| Failure::new(error.to_string());
    let Arguments { one, other, words } = arguments;
    let impairment = Impairment::parse(words.iter().map(String::as_str))
        .map_err(|error| Failure::usage(error.to_string()))?;
    let stop = vernic_sys::termination().map_err(|error| Failure::new(error.to_string()))?;
    let mut relay = Relay::new([one, other], impairment).map_err(failed)?;
    complain(format_args!("{one} and {other} are connected; Ctrl-C ends it"));
    for netdev in relay.without_carrier() {
        complain(format_args!(
            "{netdev} has no carrier: nothing passes until the other end of its cable is up (of veth: \
             `ip link set PEER up`)"
        ));
    }
    let ended = relay.run(stop.as_fd()).map_err(failed);
    print(&text([one, other], &relay.report()))?;
    ended
}

/// What a relay has done, a line for each direction.
fn text(names: [&str; 2], report: &Report) -> String {
    let mut text = String::new();
    for (at, counts) in report.directions.iter().enumerate() {
        let (from, to) = (names[at], names[1 - at]);
        // Writing to a String does not fail.
        let _ = writeln!(text, "{from} to {to}: {}", line(counts));
        let problems = [
            (report.missed[at], "found the ring full: they came faster than they were taken"),
            (report.refused[at], "were dropped by the queue of the other netdev"),
            (
                report.without_checksums[at],
                "came without their checksums, so that hosts drop them: switch off what leaves these to a network \
                 card (`ethtool -K NETDEV tx off` at both hosts)",
            ),
            (
                report.too_long[at],
                "were longer than the MTU: switch off what cuts frames behind the host \
                 (`ethtool -K NETDEV tso off gso off` at both hosts)",
            ),
        ];
        for (count, what) in problems.into_iter().filter(|(count, _)| *count > 0) {
            let _ = writeln!(text, "  {count} frames {what}");
        }
    }
    text
}

fn line(counts: &Counts) -> String {
    let Counts { received, sent, .. } = counts;
    let named = [
        (counts.lost, "lost"),
        (counts.dropped, "dropped by the full queue"),
        (counts.marked, "marked"),
        (counts.doubled, "doubled"),
        (counts.corrupted, "damaged"),
        (counts.held_up, "held up"),
        (counts.overflowed, "too many to keep"),
    ];
    let named = named.into_iter().filter(|(count, _)| *count > 0);
    let words: Vec<_> = named.map(|(count, what)| format!(", {count} {what}")).collect();
    let queue = match counts.longest_queue {
        0 => String::new(),
        bytes => format!("; {bytes} bytes waited at most"),
    };
    format!("{received} frames came, {sent} left{}{queue}", words.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_what_has_happened_and_what_is_wrong() {
        let counts =
            Counts { received: 10, sent: 8, lost: 2, longest_queue: 99, ..Counts::default() };
        let report = Report {
            directions: [counts, Counts::default()],
            too_long: [0, 3],
            without_checksums: [0, 19],
            missed: [42, 0],
            ..Report::default()
        };
        let text = text(["a", "b"], &report);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "a to b: 10 frames came, 8 left, 2 lost; 99 bytes waited at most",
                "  42 frames found the ring full: they came faster than they were taken",
                "b to a: 0 frames came, 0 left"
            ]
        );
        assert!(lines[3].starts_with("  19 frames came without their checksums"), "{text}");
        assert!(lines[4].starts_with("  3 frames were longer") && lines.len() == 5, "{text}");
    }
}

//! The words of `vernic explain --wr`.

use std::fmt::Write as _;

use vernic_explain::units::{bytes, counted, duration, times};

use super::{Life, Watched, WatchedQp};
use crate::table::{Align, Table};

/// The stages of a request: what each is called, and what takes time in it.
const STAGES: [(&str, &str); 4] = [
    ("queued", "other requests, the window, a receive, a fence"),
    ("sending", "its packets, first to last; by memory the copy"),
    ("answer", "the ACK or the response of the peer"),
    ("polled", "the program, to take the completion"),
];

/// The share of the whole time from which on a stage is what takes the time.
const MOST_OF_IT: f64 = 0.5;

/// Columns of the bar of a stage.
const BAR: usize = 40;

impl Life {
    /// The times at the ends of the stages.
    fn marks(&self) -> [Option<u64>; STAGES.len() + 1] {
        [self.posted_ns, self.begun_ns, self.sent_ns, self.completed_ns, self.polled_ns]
    }

    /// How long a stage took.
    fn stage(&self, at: usize) -> Option<u64> {
        let marks = self.marks();
        Some(marks[at + 1]?.saturating_sub(marks[at]?))
    }

    /// From the post to the last that is known to have happened.
    fn whole(&self) -> Option<u64> {
        let last = self.marks().into_iter().flatten().max()?;
        Some(last - self.posted_ns?)
    }

    /// Whether its times are known from the post to the completion.
    fn is_whole(&self) -> bool {
        self.posted_ns.is_some() && self.completed_ns.is_some()
    }

    fn title(&self) -> String {
        let of = if self.bytes == 0 { String::new() } else { format!(" of {}", bytes(self.bytes)) };
        format!("{}{of}, wr_id {}, number {}", self.operation, self.wr_id, self.number)
    }
}

/// Everything that was watched, in words.
pub(super) fn of(watched: &Watched, wr_id: Option<u64>) -> String {
    let mut text = String::new();
    for (at, qp) in watched.queue_pairs.iter().enumerate() {
        if at != 0 {
            text.push('\n');
        }
        of_qp(qp, watched.seconds, wr_id, &mut text);
    }
    if watched.silent_processes != 0 {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "\n{} more did not answer: stopped (SIGSTOP, a debugger), or very busy",
            watched.silent_processes
        );
    }
    text
}

fn of_qp(qp: &WatchedQp, seconds: f64, wr_id: Option<u64>, text: &mut String) {
    let WatchedQp { pid, command, device, number, kind, peer, peer_number, route, .. } = qp;
    let address = peer.as_deref().map(|peer| format!(" to {peer}")).unwrap_or_default();
    let peer = peer_number.map(|number| format!(" {number:#x}")).unwrap_or_default();
    // Writing to a String does not fail.
    let _ = writeln!(text, "{device}, process {pid}: {command}");
    let _ = writeln!(text, "{kind} queue pair {number:#x}{address}{peer}, {route}");
    let whole: Vec<&Life> = qp.requests.iter().filter(|life| life.is_whole()).collect();
    let with = wr_id.map(|wr_id| format!(" with wr_id {wr_id}")).unwrap_or_default();
    let _ = writeln!(
        text,
        "  {} posted in {seconds:.1} s, {} of them{with} seen from post to completion",
        counted(qp.posted, "send request"),
        whole.len()
    );
    if !whole.is_empty() {
        text.push_str(&stages(&whole).render());
        advice(&whole, text);
    }
    // The latest of the longest.
    if let Some(longest) = whole.iter().max_by_key(|life| (life.whole(), life.number)) {
        let _ = writeln!(text, "\n  the longest: {}", longest.title());
        life(longest, qp.told_ns, text);
    }
    if let Some(oldest) = qp.outstanding_requests.first() {
        let outstanding = counted(qp.outstanding, "request");
        let _ = writeln!(text, "\n  {outstanding} outstanding; the oldest: {}", oldest.title());
        life(oldest, qp.told_ns, text);
    }
}

/// How long the stages took, of requests that are complete.
fn stages(lives: &[&Life]) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("stage", Align::Left),
        ("median", right),
        ("99 %", right),
        ("longest", right),
        ("what it waits for", Align::Left),
    ]);
    for (at, (name, what)) in STAGES.into_iter().enumerate() {
        let [median, most, longest] = spread(lives.iter().filter_map(|life| life.stage(at)));
        table.row([name.to_owned(), median, most, longest, what.to_owned()]);
    }
    let [median, most, longest] = spread(lives.iter().filter_map(|life| life.whole()));
    table.row(["all".to_owned(), median, most, longest]);
    table
}

/// The median, what 99 in a hundred do not exceed, and the longest.
fn spread(values: impl Iterator<Item = u64>) -> [String; 3] {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    let Some(last) = values.len().checked_sub(1) else { return [(); 3].map(|()| "-".into()) };
    [last / 2, last * 99 / 100, last].map(|at| duration(values[at]))
}

/// What takes most of the time, and what helps. What less than a tenth of the requests had is not
/// the reason.
fn advice(lives: &[&Life], text: &mut String) {
    let sum = |at: usize| lives.iter().filter_map(|life| life.stage(at)).sum::<u64>() as f64;
    let sums: [f64; STAGES.len()] = std::array::from_fn(sum);
    let all: f64 = sums.iter().sum();
    let largest = sums.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let Some((at, share)) = largest.map(|(at, sum)| (at, sum / all)) else { return };
    if !(all > 0.0 && share >= MOST_OF_IT) {
        return;
    }
    let often = |had: fn(&&&Life) -> bool| lives.iter().filter(had).count() * 10 >= lives.len();
    let (has_rnr, has_loss) = (often(|l| l.rnr_naks != 0), often(|l| l.resent_packets != 0));
    let has_packets = often(|life| life.packets != 0);
    let helps = match at {
        0..=2 if has_rnr => {
            "the peer had no receive posted (RNR NAK): post more of them, and before a SEND comes"
        }
        0..=2 if has_loss => {
            "packets were sent again: capture, and let `vernic explain` look for losses"
        }
        0 => "each request waits behind others: a shorter queue may be as fast, and waits less",
        1 if !has_packets => {
            "it is the copy into or out of the peer's memory, and needs no packets"
        }
        1 => "messages are long, or the window is small (`vernic stat`)",
        2 => "it goes to the network and to the peer, which may be busy or asleep",
        _ => "the program takes completions late: poll more often, or from a thread of its own",
    };
    let (name, percent) = (STAGES[at].0, share * 100.0);
    // Writing to a String does not fail.
    let _ = writeln!(text, "  > `{name}` is {percent:.0} % of the time:\n    {helps}");
}

/// One request, stage by stage.
fn life(life: &Life, now_ns: u64, text: &mut String) {
    let behind = match life.ahead {
        0 => "posted".to_owned(),
        ahead => format!("posted, behind {}", counted(ahead, "request")),
    };
    let sent = match life.packets {
        0 => "carried out, without packets".to_owned(),
        1 => "its packet has left".to_owned(),
        packets => format!("the last of {packets} packets has left"),
    };
    let words = [&behind, "its turn", &sent, "completed", "the program took the completion"];
    let marks = life.marks();
    let known = || marks.into_iter().flatten();
    let (Some(start), Some(end)) = (known().min(), known().max()) else {
        // Writing to a String does not fail.
        let _ = writeln!(text, "             posted before this was watched, and not complete");
        return troubles(life, text);
    };
    let column = |time: u64| {
        let share = (time - start) as f64 / (end - start).max(1) as f64;
        (share * BAR as f64).round() as usize
    };
    let mut before = start;
    for (words, time) in words.into_iter().zip(marks) {
        let Some(time) = time else { continue };
        let (from, to) = (column(before), column(time.max(before)));
        let bar = format!("{}{}", " ".repeat(from), "#".repeat(to - from));
        let line = format!("  {:>9}  {words:<36}|{bar:<BAR$}|", duration(time - start));
        // Writing to a String does not fail.
        let _ = writeln!(text, "{line}");
        before = time;
    }
    if life.completed_ns.is_none() {
        let waited = duration(now_ns.saturating_sub(start));
        let _ = writeln!(text, "  {waited:>9}  not complete yet");
    }
    troubles(life, text);
}

/// What went wrong on the queue pair during a request.
fn troubles(life: &Life, text: &mut String) {
    let Life { resent_packets, rnr_naks, sequence_naks, timeouts, .. } = *life;
    let kinds = [
        (rnr_naks, "the peer said that it has no receive (RNR NAK)"),
        (sequence_naks, "the peer missed packets (NAK)"),
        (timeouts, "the peer was silent for the ACK timeout"),
    ];
    // Writing to a String does not fail.
    for (count, what) in kinds.into_iter().filter(|(count, _)| *count != 0) {
        let _ = writeln!(text, "  - meanwhile, {}: {what}", times(count));
    }
    if resent_packets != 0 {
        let _ = writeln!(text, "  - meanwhile, {} sent again", counted(resent_packets, "packet"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life_of(number: u64, marks: [u64; 5]) -> Life {
        let [posted_ns, begun_ns, sent_ns, completed_ns, polled_ns] = marks.map(Some);
        Life {
            number,
            operation: "RDMA WRITE".into(),
            bytes: 65_536,
            packets: 16,
            signaled: true,
            posted_ns,
            begun_ns,
            sent_ns,
            completed_ns,
            polled_ns,
            ..Life::default()
        }
    }

    fn watched(requests: Vec<Life>) -> Watched {
        let is_done = |life: &Life| life.completed_ns.is_some();
        let (requests, outstanding): (Vec<Life>, Vec<Life>) =
            requests.into_iter().partition(is_done);
        let qp = WatchedQp {
            pid: 7,
            command: "program".into(),
            device: "vernic0".into(),
            number: 0x4001,
            kind: "RC",
            peer: Some("10.0.0.2".into()),
            peer_number: Some(0x4002),
            way: "link".into(),
            route: "by UDP".into(),
            posted: 90,
            told_ns: 9_000_000,
            requests,
            outstanding: outstanding.len() as u64,
            outstanding_requests: outstanding,
        };
        Watched { seconds: 1.0, queue_pairs: vec![qp], silent_processes: 0 }
    }

    #[test]
    fn the_stages_of_the_longest_request_are_drawn() {
        let short = life_of(3, [0, 1000, 2000, 3000, 4000]);
        let long = Life { ahead: 2, ..life_of(4, [1000, 2000, 11_000, 91_000, 101_000]) };
        let text = of(&watched(vec![short, long]), None);
        let expected = "\
vernic0, process 7: program
RC queue pair 0x4001 to 10.0.0.2 0x4002, by UDP
  90 send requests posted in 1.0 s, 2 of them seen from post to completion
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("the longest: RDMA WRITE of 65.5 kB, wr_id 0, number 4\n"), "{text}");
        let bar = format!("|{}{}{}|\n", " ".repeat(4), "#".repeat(32), " ".repeat(4));
        let line = format!("    90.0 us  {:<36}{bar}", "completed");
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("posted, behind 2 requests"), "{text}");
        assert!(text.contains("> `answer` is 78 % of the time"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn a_request_that_waits_says_for_how_long_and_what_happened() {
        let marks = life_of(5, [1_000_000, 1_001_000, 1_002_000, 0, 0]);
        let waits = Life { completed_ns: None, polled_ns: None, rnr_naks: 3, ..marks };
        let before = Life { posted_ns: None, begun_ns: None, sent_ns: None, ..waits.clone() };
        let text = of(&watched(vec![before]), None);
        assert!(text.contains("1 request outstanding; the oldest: RDMA WRITE"), "{text}");
        assert!(text.contains("posted before this was watched, and not complete"), "{text}");
        let text = of(&watched(vec![waits]), Some(0));
        assert!(text.contains("0 of them with wr_id 0 seen"), "{text}");
        assert!(text.contains("    8.00 ms  not complete yet\n"), "{text}");
        assert!(text.contains("3 times: the peer said that it has no receive (RNR NAK)"), "{text}");
    }

    #[test]
    fn what_helps_is_said_of_the_stage_that_takes_the_time() {
        let late = life_of(1, [0, 10, 20, 30, 1000]);
        assert!(of(&watched(vec![late.clone()]), None).contains("takes completions late"));
        let early = life_of(1, [0, 10, 20, 1000, 1010]);
        let lossy = Life { resent_packets: 2, ..early };
        assert!(of(&watched(vec![lossy]), None).contains("packets were sent again"));
        let copied = Life { packets: 0, ..life_of(1, [0, 10, 1000, 1000, 1010]) };
        assert!(of(&watched(vec![copied]), None).contains("it is the copy"));
    }
}

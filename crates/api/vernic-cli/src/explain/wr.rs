//! `vernic explain --wr`: the life of send requests of running programs, with times per stage.
//!
//! Owns what was told of each queue pair in some seconds of asking. `text` has the words.
//!
//! Limit: the latest [`MOST_REQUESTS`] requests of a queue pair are kept.

mod text;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use vernic::{Device, Qpn, RequestLife, TracedQp};

use crate::devices::qp_kind;
use crate::failure::{Doing as _, Failure, Outcome};
use crate::table::{print, print_json};
use crate::watch::command_of;

/// The pause between two questions: a process tells its latest requests each time.
const PAUSE: Duration = Duration::from_millis(50);

/// The most requests of a queue pair that are kept.
const MOST_REQUESTS: usize = 1 << 16;

/// Which requests are explained.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct WrArguments {
    /// Show what happens to the send requests of programs that run now: when they are posted, sent,
    /// acknowledged and polled
    #[arg(long, conflicts_with_all = ["files", "live", "diagram", "svg", "program"])]
    pub(super) wr: bool,
    /// Only requests of this process
    #[arg(long, requires = "wr")]
    pid: Option<u32>,
    /// Only requests with this number of the program's
    #[arg(long, requires = "wr", value_name = "NUMBER")]
    wr_id: Option<u64>,
    /// Watch for so many seconds
    #[arg(long, requires = "wr", default_value = "1", value_parser = seconds)]
    seconds: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("the range is 0.1 to 3600 seconds".into()),
    }
}

/// What was told of all queue pairs.
#[derive(Debug, Serialize)]
struct Watched {
    /// Seconds from the first answer to the last.
    seconds: f64,
    queue_pairs: Vec<WatchedQp>,
    /// Processes that did not answer the last question: stopped, or very busy.
    silent_processes: usize,
}

/// What was told of a queue pair.
#[derive(Clone, Debug, Default, Serialize)]
struct WatchedQp {
    pid: u32,
    command: String,
    device: String,
    number: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    peer: Option<String>,
    peer_number: Option<u32>,
    /// `memory`, `link`, `tcp`, `fabric` or `none`.
    way: String,
    /// The way in words, with the reason.
    route: String,
    /// Requests that were posted while this was watched, and those that were outstanding before.
    posted: u64,
    /// The time of the last answer, in nanoseconds of CLOCK_MONOTONIC.
    told_ns: u64,
    /// The requests whose completion was seen, the oldest first.
    requests: Vec<Life>,
    /// Requests that were outstanding at the last answer, and the oldest of them.
    outstanding: u64,
    outstanding_requests: Vec<Life>,
}

/// A send request. Times are nanoseconds of CLOCK_MONOTONIC, which the processes of a host share.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Life {
    number: u64,
    wr_id: u64,
    operation: String,
    bytes: u64,
    signaled: bool,
    packets: u64,
    ahead: u64,
    posted_ns: Option<u64>,
    begun_ns: Option<u64>,
    sent_ns: Option<u64>,
    completed_ns: Option<u64>,
    polled_ns: Option<u64>,
    resent_packets: u64,
    rnr_naks: u64,
    sequence_naks: u64,
    timeouts: u64,
}

impl From<RequestLife> for Life {
    fn from(told: RequestLife) -> Self {
        Self {
            number: told.index,
            wr_id: told.wr_id,
            operation: told.operation,
            bytes: told.bytes,
            signaled: told.is_signaled,
            packets: told.packets,
            ahead: told.ahead,
            posted_ns: told.posted_ns,
            begun_ns: told.begun_ns,
            sent_ns: told.sent_ns,
            completed_ns: told.completed_ns,
            polled_ns: told.polled_ns,
            resent_packets: told.resent,
            rnr_naks: told.rnr_naks,
            sequence_naks: told.sequence_naks,
            timeouts: told.timeouts,
        }
    }
}

/// What was told of a queue pair so far.
#[derive(Debug, Default)]
struct Gathered {
    last: TracedQp,
    /// The number of the first request of which anything could be told.
    first: u64,
    /// Requests that were completed. What was told last is more than what was told before: when the
    /// completion was taken, say.
    completed: BTreeMap<u64, RequestLife>,
    /// The oldest that were not, at the last answer.
    outstanding: Vec<RequestLife>,
}

impl Gathered {
    /// Adds a newer answer.
    fn add(&mut self, mut told: TracedQp) {
        if self.last.device.is_empty() || told.posted < self.last.posted {
            // Not seen before, or reset since.
            self.completed.clear();
            self.first = told.posted - told.outstanding.min(told.posted);
        }
        let is_done = |life: &RequestLife| life.completed_ns.is_some();
        let (done, waiting) = std::mem::take(&mut told.requests).into_iter().partition(is_done);
        self.outstanding = waiting;
        let done: Vec<RequestLife> = done;
        self.completed.extend(done.into_iter().map(|life| (life.index, life)));
        while self.completed.len() > MOST_REQUESTS {
            self.completed.pop_first();
        }
        self.last = told;
    }

    fn watched(self, wr_id: Option<u64>) -> WatchedQp {
        let Self { last, first, completed, outstanding } = self;
        let peer_number = last.dest_qpn.value();
        let wanted = |life: &RequestLife| wr_id.is_none_or(|wr_id| life.wr_id == wr_id);
        WatchedQp {
            pid: last.pid,
            command: command_of(last.pid),
            device: last.device,
            number: last.qpn.value(),
            kind: qp_kind(last.qp_type),
            peer: last.peer,
            peer_number: (peer_number != 0).then_some(peer_number),
            way: last.way,
            route: last.route,
            posted: last.posted.saturating_sub(first),
            told_ns: last.now_ns,
            requests: completed.into_values().filter(wanted).map(Life::from).collect(),
            outstanding: last.outstanding,
            outstanding_requests: outstanding.into_iter().filter(wanted).map(Life::from).collect(),
        }
    }
}

/// Asks again and again, and tells what happened.
pub(super) fn run(arguments: &WrArguments, qpn: Option<Qpn>, json: bool) -> Outcome<()> {
    let WrArguments { pid, wr_id, seconds, .. } = *arguments;
    let mut gathered: BTreeMap<(u32, String, u32), Gathered> = BTreeMap::new();
    let begun = Instant::now();
    let silent_processes = loop {
        let asked = Instant::now();
        let (told, silent) =
            Device::trace_requests(pid, qpn).doing(|| "read /proc/net/unix".into())?;
        for qp in told {
            let key = (qp.pid, qp.device.clone(), qp.qpn.value());
            gathered.entry(key).or_default().add(qp);
        }
        if begun.elapsed() >= seconds {
            break silent;
        }
        let left = seconds.saturating_sub(begun.elapsed());
        std::thread::sleep(PAUSE.saturating_sub(asked.elapsed()).min(left));
    };
    if gathered.is_empty() {
        return Err(nothing(pid, qpn, silent_processes));
    }
    let watched = Watched {
        seconds: begun.elapsed().as_secs_f64(),
        queue_pairs: gathered.into_values().map(|one| one.watched(wr_id)).collect(),
        silent_processes,
    };
    match json {
        true => print_json(&watched),
        false => print(&text::of(&watched, wr_id)),
    }
}

/// Why there is nothing to tell.
fn nothing(pid: Option<u32>, qpn: Option<Qpn>, silent: usize) -> Failure {
    let of = pid.map(|pid| format!(" of process {pid}")).unwrap_or_default();
    let what = match qpn {
        Some(qpn) => format!("there is no queue pair {qpn}{of}"),
        None => format!("no queue pair{of} has sent anything"),
    };
    let failure = Failure::new(what);
    match silent {
        0 => failure.hint(
            "`vernic stat` lists the programs of this user and network namespace, and their queue pairs",
        ),
        _ => failure.hint(format!("{silent} processes did not answer: stopped, or very busy")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with these requests, of which the last is outstanding.
    fn told(posted: u64, indices: &[u64]) -> TracedQp {
        let last = indices.last().copied();
        let request = |&index| RequestLife {
            index,
            wr_id: index % 2,
            completed_ns: (Some(index) != last).then_some(5),
            ..RequestLife::default()
        };
        let requests = indices.iter().map(request).collect();
        let device = "d".to_owned();
        TracedQp { device, posted, outstanding: 1, requests, ..TracedQp::default() }
    }

    fn numbers(lives: &[Life]) -> Vec<u64> {
        lives.iter().map(|life| life.number).collect()
    }

    #[test]
    fn answers_are_put_together_and_begin_anew_after_a_reset() {
        let mut gathered = Gathered::default();
        gathered.add(told(9, &[6, 7, 8]));
        gathered.add(told(30, &[7, 8, 28, 29]));
        let (first, last) = (gathered.first, gathered.last.posted);
        assert_eq!((first, last), (8, 30));
        let all: Vec<u64> = gathered.completed.keys().copied().collect();
        assert_eq!(all, [6, 7, 8, 28]);
        gathered.add(told(4, &[0, 1, 2, 3]));
        let watched = gathered.watched(Some(1));
        assert_eq!((watched.posted, watched.outstanding), (1, 1));
        assert_eq!(numbers(&watched.requests), [1]);
        assert_eq!(numbers(&watched.outstanding_requests), [3]);
    }

    #[test]
    fn no_more_requests_are_kept_than_the_limit() {
        let mut gathered = Gathered::default();
        let most = MOST_REQUESTS as u64;
        gathered.add(told(most, &(0..most).collect::<Vec<_>>()));
        gathered.add(told(most + 2, &[most - 1, most, most + 1]));
        let oldest = gathered.completed.first_key_value().map(|(index, _)| *index);
        assert_eq!((gathered.completed.len(), oldest), (MOST_REQUESTS, Some(1)));
    }
}

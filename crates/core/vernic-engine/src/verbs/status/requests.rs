//! The latest send requests of queue pairs, with the times of their stages: the text that a process
//! tells, and what a caller reads in it.
//!
//! ```text
//!   device vernic0
//!   pid 4711
//!   now 81723645120         nanoseconds of CLOCK_MONOTONIC, as all times here
//!   trace 16385 2 16386 9 1 10.0.0.2 link by UDP    queue pair, type, peer's number, requests that
//!                           were posted, and those of them that are outstanding, peer, way, route;
//!                           tabs are between its words
//!   request 16385 8 77 ...  a request of it, as `words` has them; tabs are between its words
//!   end
//! ```
//!
//! A process notes times only while it is asked: the first question begins the trace, and finds the
//! requests that are outstanding then, without the times of what was before.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use vernic_io::status::{Question, ask_each};
use vernic_proto::SendProgress;
use vernic_wire::Qpn;

use super::read::{PATIENCE, PATIENCE_FOR_ONE};
use crate::progress::engine::Engine;
use crate::qp::request_trace::{RequestTrace, TracedRequest, Troubles};
use crate::qp::state::{QpCore, QpInner};
use crate::support::events::lock;
use crate::verbs::route::Route;

/// The most queue pairs that are traced where none is named.
const MOST_QPS: usize = 32;

/// The most requests in a text, so that the text fits into a socket's buffer.
const MOST_LINES: usize = 1024;

/// A queue pair of a process, and its latest send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedQp {
    /// The device.
    pub device: String,
    /// The process.
    pub pid: u32,
    /// The number.
    pub qpn: Qpn,
    /// The type, by its number in `ibv_qp_type`.
    pub qp_type: u8,
    /// The number of the peer's queue pair; 0 if there is none.
    pub dest_qpn: Qpn,
    /// The peer's address, or its LID.
    pub peer: Option<String>,
    /// The route in one word, as [`Route::way`] is.
    pub way: String,
    /// How requests go to the peer, and why, as [`Route`] is written.
    pub route: String,
    /// Send requests that were posted since the last reset.
    pub posted: u64,
    /// Send requests that are posted and not completed.
    pub outstanding: u64,
    /// The time at which the process told this, in nanoseconds of CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// The latest requests that are completed, and the oldest 8 that are not, in the order of their
    /// posts: 256 at most, and fewer of each queue pair where many are told.
    pub requests: Vec<RequestLife>,
}

/// The life of a send request. Times are nanoseconds of CLOCK_MONOTONIC; `None` stands for what has
/// not happened yet, or was before the trace began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLife {
    /// The number of the request since the queue pair's reset, from 0.
    pub index: u64,
    /// The application's number for it.
    pub wr_id: u64,
    /// The operation, as `RDMA WRITE`.
    pub operation: String,
    /// Bytes of payload.
    pub bytes: u64,
    /// Whether its success is reported.
    pub is_signaled: bool,
    /// Sequence numbers that it took: packets, for a READ those of the response. 0 if it was
    /// carried out without packets, or nothing of it has left.
    pub packets: u64,
    /// Requests before it that were not completed when it was posted.
    pub ahead: u64,
    /// When it was posted.
    pub posted_ns: Option<u64>,
    /// When the turn began in which its first packet left.
    pub begun_ns: Option<u64>,
    /// When the turn ended in which its last packet left.
    pub sent_ns: Option<u64>,
    /// When it was completed: acknowledged, answered, flushed, or, on a service that acknowledges
    /// nothing, sent.
    pub completed_ns: Option<u64>,
    /// When the application took its completion.
    pub polled_ns: Option<u64>,
    /// Packets that the queue pair sent again from the post to the completion, or until now.
    pub resent: u64,
    /// RNR NAKs that the queue pair received in that time.
    pub rnr_naks: u64,
    /// NAKs for missing packets that the queue pair received in that time.
    pub sequence_naks: u64,
    /// Silences of the peer in that time that lasted a whole ACK timeout.
    pub timeouts: u64,
}

/// The text about one queue pair, or about the first that have sent anything.
pub(super) fn of(engine: &Engine, qpn: Option<Qpn>) -> String {
    let now_ns = engine.timestamp_ns(engine.now());
    let (name, pid) = (&engine.info().name, std::process::id());
    let mut text = format!("device {name}\npid {pid}\nnow {now_ns}\n");
    let wanted = |qp: &&Arc<QpInner>| match qpn {
        Some(qpn) => qp.qpn() == qpn,
        None => lock(&qp.core).machine.send_progress().posted != 0,
    };
    let qps: Vec<_> = engine
        .with_lane(|lane| lane.table().iter().filter(wanted).take(MOST_QPS).cloned().collect());
    let routes = engine.routes(&qps);
    let most = MOST_LINES / qps.len().max(1);
    for (qp, route) in qps.iter().zip(routes) {
        lines(engine, (qp, most), &route, &mut text);
    }
    text.push_str("end\n");
    text
}

/// The lines of a queue pair and of `most` of its requests.
fn lines(engine: &Engine, (qp, most): (&QpInner, usize), route: &Route, text: &mut String) {
    let now = engine.now();
    let mut core = lock(&qp.core);
    let QpCore { machine, side } = &mut *core;
    match side.trace() {
        Some(trace) => trace.renew(now),
        None => side.set_trace(Some(RequestTrace::begin(machine, now))),
    }
    let SendProgress { completed, posted, .. } = machine.send_progress();
    let dest = machine.attr().dest_qpn.value();
    let peer = side.peer.address().map(|peer| peer.to_string());
    let peer = peer.or_else(|| side.stream().map(|(_, peer)| peer.to_string())).unwrap_or_default();
    let stamp = |time| engine.timestamp_ns(time);
    let Some(trace) = side.trace() else { return };
    let told = match qp.send_cq() {
        Some(cq) => cq.with_trace(|taken| trace.told((qp.qpn(), most), Some(taken), stamp)),
        None => trace.told((qp.qpn(), most), None, stamp),
    };
    drop(core);
    let (number, kind, way) = (qp.qpn().value(), qp.qp_type() as u8, route.way());
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "trace\t{number}\t{kind}\t{dest}\t{posted}\t{}\t{peer}\t{way}\t{route}",
        posted - completed
    );
    for (request, polled) in told {
        let TracedRequest { index, wr_id, operation, bytes, is_signaled, packets, ahead, .. } =
            request;
        let _ = write!(
            text,
            "request\t{number}\t{index}\t{wr_id}\t{operation}\t{bytes}\t{}\t{packets}\t{ahead}",
            u8::from(is_signaled)
        );
        let TracedRequest { posted, begun, sent, completed, troubles, .. } = request;
        for time in [posted, begun, sent, completed, polled] {
            let _ = match time {
                Some(time) => write!(text, "\t{}", stamp(time)),
                None => text.write_str("\t-"),
            };
        }
        let Troubles { resent, rnr_naks, sequence_naks, timeouts } = troubles;
        let _ = writeln!(text, "\t{resent}\t{rnr_naks}\t{sequence_naks}\t{timeouts}");
    }
}

/// Reads a text of [`of`]. Lines that are not known are left out.
fn parse(text: &str) -> Vec<TracedQp> {
    let (mut device, mut pid, mut now_ns) = (String::new(), 0, 0);
    let mut qps: Vec<TracedQp> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(if line.contains('\t') { '\t' } else { ' ' }).collect();
        let word = |at: usize| words.get(at).copied().unwrap_or_default().to_owned();
        let known = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let number = |at| known(at).unwrap_or(0);
        match words[0] {
            "device" => device = word(1),
            "pid" => pid = number(1) as u32,
            "now" => now_ns = number(1),
            "trace" => qps.push(TracedQp {
                device: device.clone(),
                pid,
                qpn: Qpn::new(number(1) as u32),
                qp_type: number(2) as u8,
                dest_qpn: Qpn::new(number(3) as u32),
                posted: number(4),
                outstanding: number(5),
                peer: Some(word(6)).filter(|peer| !peer.is_empty()),
                way: word(7),
                route: word(8),
                now_ns,
                requests: Vec::new(),
            }),
            "request" => {
                let Some(qp) = qps.iter_mut().find(|qp| u64::from(qp.qpn.value()) == number(1))
                else {
                    continue;
                };
                qp.requests.push(RequestLife {
                    index: number(2),
                    wr_id: number(3),
                    operation: word(4),
                    bytes: number(5),
                    is_signaled: number(6) != 0,
                    packets: number(7),
                    ahead: number(8),
                    posted_ns: known(9),
                    begun_ns: known(10),
                    sent_ns: known(11),
                    completed_ns: known(12),
                    polled_ns: known(13),
                    resent: number(14),
                    rnr_naks: number(15),
                    sequence_naks: number(16),
                    timeouts: number(17),
                });
            }
            _ => {}
        }
    }
    qps
}

/// Asks the processes of this user (for root, of all users) in this network namespace for the
/// latest send requests of their queue pairs, and returns them and how many processes did not
/// answer. Without a number, a process tells of the first 32 queue pairs of each device that have
/// sent anything. `pid` is a process id as the process itself sees it.
///
/// The processes note the times of requests for a second after each call, so a caller calls again
/// and again. Waits 0.25 s for one process, and 2 s for all.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn trace_requests(pid: Option<u32>, qpn: Option<Qpn>) -> io::Result<(Vec<TracedQp>, usize)> {
    let question = Question::Requests(qpn.map(Qpn::value));
    let (texts, silent) = ask_each(question, pid, PATIENCE_FOR_ONE, PATIENCE)?;
    Ok((texts.iter().flat_map(|text| parse(text)).collect(), silent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{post_sends, post_writes, rc_pair, without_background};
    use crate::{Config, Context, EMPTY_WC};

    fn told(context: &Context, qpn: Qpn) -> TracedQp {
        let all = parse(&of(context.engine(), Some(qpn)));
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    fn is_in_order(request: &RequestLife) -> bool {
        let RequestLife { posted_ns, begun_ns, sent_ns, completed_ns, polled_ns, .. } = request;
        let times = [posted_ns, begun_ns, sent_ns, completed_ns, polled_ns].map(|time| *time);
        times.iter().all(Option::is_some) && times.is_sorted()
    }

    #[test]
    fn each_stage_of_a_request_by_the_wire_has_its_time() {
        let mut config = Config::default();
        config.set("device", "lo").unwrap();
        config.set("same_host", "off").unwrap();
        let context = Context::open(None, config).unwrap();
        context.stop_background();
        let cq = context.create_cq(16, None).unwrap();
        let [a, b] = rc_pair(&context, &cq, 16);
        // Two that were there before anybody asked.
        post_writes(&a, 2);
        let first = told(&context, a.qpn());
        let indices = |qp: &TracedQp| qp.requests.iter().map(|r| r.index).collect::<Vec<_>>();
        assert_eq!((indices(&first), first.posted, first.dest_qpn), (vec![0, 1], 2, b.qpn()));
        assert!(first.requests.iter().all(|r| (r.posted_ns, r.completed_ns) == (None, None)));
        post_writes(&a, 1);
        let mut wcs = [EMPTY_WC; 4];
        let mut taken = 0;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while taken < 3 && std::time::Instant::now() < deadline {
            taken += cq.poll(&mut wcs).unwrap();
        }
        let last = told(&context, a.qpn());
        assert_eq!(indices(&last), [0, 1, 2]);
        assert!(last.requests.iter().all(|r| r.polled_ns.is_some()), "{last:?}");
        let third = &last.requests[2];
        assert!(is_in_order(third), "{third:?}");
        assert_eq!((third.operation.as_str(), third.packets, third.bytes), ("RDMA WRITE", 1, 0));
        assert_eq!((third.ahead, third.is_signaled, &*last.way), (2, true, "link"));
        let ends = [third.posted_ns, third.polled_ns].map(Option::unwrap);
        assert!(first.now_ns <= ends[0] && ends[1] <= last.now_ns, "{first:?} {last:?}");
    }

    #[test]
    fn a_request_that_found_no_receive_says_so() {
        let context = without_background();
        let cq = context.create_cq(16, None).unwrap();
        let [a, _b] = rc_pair(&context, &cq, 16);
        told(&context, a.qpn());
        post_sends(&a, 1);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let waits = |qp: &TracedQp| qp.requests.iter().any(|r| r.rnr_naks != 0);
        while !waits(&told(&context, a.qpn())) && std::time::Instant::now() < deadline {
            cq.poll(&mut [EMPTY_WC; 4]).unwrap();
        }
        let qp = told(&context, a.qpn());
        // It may not be sent again (`rnr_retry` 0), and fails.
        assert!(is_in_order(&qp.requests[0]) && qp.requests[0].rnr_naks == 1, "{qp:?}");
    }

    #[test]
    fn a_trace_that_nobody_asks_for_ends() {
        let context = without_background();
        let cq = context.create_cq(1024, None).unwrap();
        let [a, _b] = rc_pair(&context, &cq, 512);
        told(&context, a.qpn());
        // More than are kept.
        post_writes(&a, 500);
        let last = |qp: &TracedQp| qp.requests.last().map(|last| last.index);
        let qp = told(&context, a.qpn());
        assert_eq!((qp.posted, qp.outstanding, last(&qp)), (500, 500, Some(7)));
        let mut taken = 0;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while taken < 500 && std::time::Instant::now() < deadline {
            taken += cq.poll(&mut [EMPTY_WC; 4]).unwrap();
            told(&context, a.qpn());
        }
        let qp = told(&context, a.qpn());
        assert_eq!((qp.outstanding, qp.requests.len(), last(&qp)), (0, 256, Some(255)));
        let is_traced = || lock(&a.inner().core).side.trace().is_some();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while is_traced() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(100));
            cq.poll(&mut [EMPTY_WC; 4]).unwrap();
            if cq.ring().waiting() == 0 {
                post_writes(&a, 1);
            }
        }
        assert!(!is_traced());
    }

    #[test]
    fn lines_that_are_not_known_are_left_out() {
        assert_eq!(parse("device d\npid 7\nnew 1\nrequest\t5\t1\n\nend\n"), []);
        let text = "pid 7\nnow 9\ntrace\t5\t2\t6\t3\t1\t\tlink\tby UDP\tmore\nrequest\t5\t1\t77\n";
        let qps = parse(text);
        assert_eq!((qps[0].peer.clone(), &*qps[0].route, qps[0].now_ns), (None, "by UDP", 9));
        let request = &qps[0].requests[0];
        assert_eq!((request.index, request.wr_id, request.posted_ns), (1, 77, None));
    }
}

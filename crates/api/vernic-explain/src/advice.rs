//! What is wrong with a flow, and what helps.
//!
//! One function per mistake. Each says what was seen, with numbers, and then what is the usual
//! cause and what to do. A is the end that the flow names first.

use serde::Serialize;
use vernic_wire::cm::RejReason;
use vernic_wire::{Kind, NakCode, Psn, RnrTimer};

use crate::connection::Connection;
use crate::requests::{Asked, kind_name};
use crate::responses::Nak;
use crate::stream::{Stream, WaitedFor};
use crate::units::{bytes, counted, duration, times};

/// A capture may begin so many PSNs after its flow.
const BEGAN_BEFORE: u32 = 1 << 16;
/// A wait for an answer that is worth a word, in nanoseconds.
const LONG_WAIT_NS: u64 = 50_000_000;
/// A requester that goes on sending so long without an answer gets none, in nanoseconds.
const NO_ANSWER_NS: u64 = 5_000_000;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Costs time.
    Warning,
    /// Something failed.
    Error,
}

/// Something that is worth attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A word for programs that read the JSON.
    pub kind: &'static str,
    /// What was seen.
    pub what: String,
    /// The usual cause, and what helps.
    pub advice: String,
}

impl Finding {
    fn new(
        severity: Severity,
        kind: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { severity, kind, what: what.into(), advice: advice.into() }
    }
}

/// One direction of a flow: its requests, and the answers to them.
#[derive(Clone, Copy)]
struct Way<'a> {
    there: &'a Stream,
    back: Option<&'a Stream>,
    /// Name of the end that requests.
    requester: &'a str,
    /// Name of the end that responds.
    responder: &'a str,
}

impl Way<'_> {
    fn is_reliable(&self) -> bool {
        self.there.is_reliable()
    }
    fn has_requests(&self) -> bool {
        self.there.requests.packets != 0
    }
    /// The requests' share of something, in percent.
    fn share(&self, count: u64) -> f64 {
        count as f64 * 100.0 / self.there.requests.packets.max(1) as f64
    }
}

/// Everything that is worth attention, what matters most first. `a` and `b` are the streams that
/// the ends send.
pub(crate) fn findings(
    a: Option<&Stream>,
    b: Option<&Stream>,
    connection: Option<&Connection>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(connection.and_then(not_connected));
    found.extend(partitions(a, b));
    for (there, back, requester, responder) in [(a, b, "A", "B"), (b, a, "B", "A")] {
        let Some(there) = there else { continue };
        let way = Way { there, back, requester, responder };
        found.extend(damaged(way));
        found.extend(congested(way));
        found.extend(left_and_lost(way));
        if way.has_requests() {
            let expected = connection.and_then(|connection| match requester {
                "A" => connection.active_psn,
                _ => Some(connection.passive_psn),
            });
            found.extend(other_psn(way, expected));
            found.extend(no_answer(way));
            found.extend(refused(way));
            found.extend(not_ready(way));
            found.extend(sent_again(way));
            found.extend(missing(way));
            found.extend(overtaken(way));
            found.extend(answered_twice(way));
            found.extend(small_mtu(way));
            found.extend(other_qkeys(way));
        }
    }
    found.extend(long_wait(a, b));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// A connection that did not come about, or took several tries.
fn not_connected(connection: &Connection) -> Option<Finding> {
    let service = connection.service;
    if let Some(rejected) = connection.rejected {
        let (by, of) = if rejected.is_by_active { ("A", "B") } else { ("B", "A") };
        let what =
            format!("{by} rejected the connection of {of} to {service}: {}", rejected.reason);
        return Some(Finding::new(
            Severity::Error,
            "rejected",
            what,
            after_rejection(rejected.reason),
        ));
    }
    if connection.rep_ns.is_none() {
        let what = format!(
            "B did not answer the REQ of A for {service}, which was sent {}",
            times(connection.repeats + 1)
        );
        let advice = "nobody at B has the address or takes packets for QP1: check the address, that \
                      B has an RDMA device on it, and firewalls (RoCEv2 is UDP port 4791)";
        return Some(Finding::new(Severity::Error, "no_reply", what, advice));
    }
    if connection.rtu_ns.is_none() {
        let advice = "the REP was lost, or A gave up: B stays in its accept until a request comes";
        let what = "no RTU of A followed the REP of B";
        return Some(Finding::new(Severity::Warning, "no_rtu", what, advice));
    }
    (connection.repeats != 0).then(|| {
        let what = format!(
            "{} of the connection manager sent again",
            counted(connection.repeats, "message")
        );
        let advice = "messages were lost, or a program took long to accept";
        Finding::new(Severity::Note, "cm_repeats", what, advice)
    })
}

fn after_rejection(reason: RejReason) -> &'static str {
    match reason {
        RejReason::INVALID_SERVICE_ID => {
            "start the server first, and check its port and the address that it listens on"
        }
        RejReason::CONSUMER => "the program at the other end refused, or ended: look at its output",
        RejReason::STALE_CONNECTION => {
            "an earlier connection of this queue pair number was not ended; try again later"
        }
        RejReason::TIMEOUT => "answers were lost, or a program took too long to accept",
        RejReason::INVALID_MTU => "use a smaller path MTU: the ports' MTUs differ",
        RejReason::INSUFFICIENT_RESPONDER_RESOURCES | RejReason::NO_RESOURCES => {
            "ask for fewer READs and atomics at once (initiator_depth), or for fewer connections"
        }
        RejReason::INVALID_GID | RejReason::INVALID_ALT_GID => {
            "the GIDs of the path are not those of the packets: check addresses and GID index"
        }
        _ => "the reason is the other end's: look at its output and log",
    }
}

fn partitions(a: Option<&Stream>, b: Option<&Stream>) -> Option<Finding> {
    let (a, b) = (a?.pkey, b?.pkey);
    (!a.matches(b)).then(|| {
        let what = format!("A sends P_Key {a}, B sends P_Key {b}: they do not match");
        let advice = "each end drops the packets of the other: set pkey_index of both queue pairs to \
                      one partition, of which one end at least is a full member (top bit set)";
        Finding::new(Severity::Error, "pkey_mismatch", what, advice)
    })
}

fn damaged(way: Way<'_>) -> Option<Finding> {
    let Way { there, requester, .. } = way;
    (there.wrong_icrcs != 0).then(|| {
        let what =
            format!("{} of {requester} with a wrong ICRC", counted(there.wrong_icrcs, "packet"));
        let advice = "receivers drop them without a word. Where all are wrong, something on the way \
                      changes addresses or ports (NAT does); where few are, a link damages packets";
        Finding::new(Severity::Error, "wrong_icrc", what, advice)
    })
}

fn congested(way: Way<'_>) -> Option<Finding> {
    let marked = way.there.marked;
    let cnps = way.back.map_or(0, |back| back.cnps);
    if marked == 0 && cnps == 0 {
        return None;
    }
    let Way { requester, responder, .. } = way;
    let what = format!(
        "congestion: {} of {requester} marked by a switch (ECN), {} by {responder}",
        counted(marked, "packet"),
        counted(cnps, "CNP")
    );
    let advice = if cnps == 0 {
        "the receiver does not answer marks with CNPs, so the sender does not slow down by them: is \
         congestion control on at both ends?"
    } else {
        "the sender is to slow down; where marks go on, several flows share a link that is too slow"
    };
    Some(Finding::new(Severity::Note, "congestion", what, advice))
}

fn left_and_lost(way: Way<'_>) -> Option<Finding> {
    let Way { there, requester, responder, .. } = way;
    let (lost, arrived) = (there.transit.lost(), there.transit.arrived());
    (lost != 0).then(|| {
        let what = format!(
            "{} left {requester} and did not arrive at {responder}, {arrived} did",
            counted(lost, "packet")
        );
        let advice = "the network lost them, or the capture at the receiver did: compare with drops \
                      of switches and `nstat -az UdpRcvbufErrors`; a few at the end may be under way";
        let severity = if lost > 4 { Severity::Warning } else { Severity::Note };
        Finding::new(severity, "lost_on_the_way", what, advice)
    })
}

/// Requests that begin where the responder does not expect them.
fn other_psn(way: Way<'_>, expected: Option<Psn>) -> Option<Finding> {
    let Way { there, back, requester, responder } = way;
    let first =
        there.requests.first.filter(|_| way.is_reliable() && there.requests.new_lives == 0)?;
    let responses = back.map(|back| &back.responses);
    // A NAK names the PSN that is expected. An ACK of something else answers what looks old.
    let asked_for = responses.and_then(|r| r.first_sequence_nak).map(|nak| nak.psn);
    let acknowledged = responses.and_then(|r| r.highest());
    // What is far away was never sent. What is near may have been sent before the capture began, or
    // be missing in it; then the requester would not send the same again and again.
    let first_answer = responses.and_then(|r| r.first);
    let mut answers = [first_answer, asked_for, acknowledged].into_iter().flatten();
    let is_strange = !there.requests.was_met && answers.all(|psn| !there.requests.covers(psn));
    let margin = if is_strange && there.requests.again.packets != 0 { 0 } else { BEGAN_BEFORE };
    let is_other = |psn: &Psn| !there.requests.is_near(*psn, margin);
    let answered = asked_for.filter(is_other);
    let answered = answered.or(acknowledged.filter(is_other).map(Psn::next));
    let agreed = expected.filter(|psn| {
        psn.distance_from(first) >= BEGAN_BEFORE && first.distance_from(*psn) >= BEGAN_BEFORE
    });
    answered.or(agreed).map(|other| {
        let what = format!("{requester} begins with PSN {first}, but {responder} expects {other}");
        let advice = format!(
            "the rq_psn of {responder} has to be the sq_psn of {requester}: exchange the PSNs with the \
             queue pair numbers before RTR, and take each end's own for sq_psn"
        );
        Finding::new(Severity::Error, "psn_mismatch", what, advice)
    })
}

fn no_answer(way: Way<'_>) -> Option<Finding> {
    let Way { there, back, requester, responder } = way;
    let answers = back.map_or(0, |back| back.responses.packets);
    let lasted_ns = there.last_ns.saturating_sub(there.first_ns);
    if !way.is_reliable() || answers != 0 {
        return None;
    }
    let again = there.requests.again.packets;
    let what = format!(
        "{responder} answered none of {} of {requester} in {}; {} sent again",
        counted(there.requests.packets, "request packet"),
        duration(lasted_ns),
        counted(again, "packet")
    );
    if again == 0 && lasted_ns < NO_ANSWER_NS {
        let advice = "the capture is too short to tell, or has one direction only";
        return Some(Finding::new(Severity::Note, "no_answer_yet", what, advice));
    }
    let advice = if there.transit.arrived() != 0 {
        format!(
            "the packets arrive at {responder}: its queue pair is not in RTR, or the QPN, the peer's \
             address or the P_Key is wrong there"
        )
    } else {
        format!(
            "wrong address, GID index or QPN; the queue pair of {responder} not in RTR; a firewall \
             (RoCEv2 is UDP port 4791); or answers that go past this capture"
        )
    };
    Some(Finding::new(Severity::Error, "no_answer", what, advice))
}

/// A NAK that ends the queue pair.
fn refused(way: Way<'_>) -> Option<Finding> {
    let Way { there, back, requester, responder } = way;
    let responses = &back?.responses;
    let Nak { code, psn } = responses.refusal?;
    let asked = there.requests.asked_at(psn);
    let message = asked.map_or_else(|| "a request".into(), described);
    let (kind, error, advice) = match code {
        NakCode::REMOTE_ACCESS => (
            "remote_access",
            "remote access error",
            format!(
                "check the R_Key (that of the region as {responder} sent it after registering), the \
                 range (address and length within the region), the rights of region and queue pair \
                 (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC), and that both are of one protection domain"
            ),
        ),
        NakCode::INVALID_REQUEST => {
            ("invalid_request", "invalid request", invalid(asked, responder))
        }
        NakCode::REMOTE_OPERATIONAL => (
            "remote_operational",
            "remote operational error",
            format!(
                "{responder} failed for a reason of its own, as a receive whose memory is not \
                 registered for local write: look at its completions and asynchronous events"
            ),
        ),
        _ => (
            "refused",
            "a code that is not for such requests",
            "look at the other end's log".into(),
        ),
    };
    let what = format!(
        "{responder} refused {message} of {requester}, PSN {psn}: {error} ({})",
        counted(responses.naks(code), "NAK")
    );
    Some(Finding::new(Severity::Error, kind, what, advice))
}

fn described(asked: &Asked) -> String {
    let kind = kind_name(asked.kind);
    match asked.memory {
        Some((addr, rkey, len)) => {
            format!("a {kind} of {} at {addr:#x} with R_Key {rkey}", counted(len.into(), "byte"))
        }
        None => format!("a {kind} of {} or more", counted(asked.bytes, "byte")),
    }
}

fn invalid(asked: Option<&Asked>, responder: &str) -> String {
    let mtus = "or the path MTUs of the two queue pairs differ";
    match asked.map(|asked| asked.kind) {
        Some(Kind::Send) => {
            format!("the message is longer than the receive that {responder} had posted, {mtus}")
        }
        Some(Kind::ReadRequest | Kind::CmpSwap | Kind::FetchAdd) => format!(
            "more READs and atomics at once than max_dest_rd_atomic of {responder} (0 grants none), \
             a right that its queue pair does not grant, or an atomic that is not aligned to 8 bytes"
        ),
        Some(Kind::Write) => format!(
            "the queue pair of {responder} does not grant REMOTE_WRITE, an immediate met a receive \
             that does not fit, {mtus}"
        ),
        _ => format!("the queue pair of {responder} does not have this operation, {mtus}"),
    }
}

fn not_ready(way: Way<'_>) -> Option<Finding> {
    let Way { back, requester, responder, .. } = way;
    let responses = &back?.responses;
    let count: u64 = responses.rnr_counts().map(|(_, count)| count).sum();
    if count == 0 {
        return None;
    }
    let waited: u64 = responses.rnr_counts().map(|(timer, count)| timer.nanos() * count).sum();
    let timers: Vec<_> = responses.rnr_counts().map(|(timer, _)| duration(timer.nanos())).collect();
    let mut what = format!(
        "{responder} had no receive posted: {} (timer {}), {requester} waits {} for them",
        counted(count, "RNR NAK"),
        timers.join(", "),
        duration(waited)
    );
    let mut advice = format!(
        "post receives at {responder} before {requester} sends, and more of them; with an SRQ refill \
         it sooner"
    );
    let has_longest = responses.rnr_counts().any(|(timer, _)| timer == RnrTimer::new(0));
    if has_longest {
        advice += &format!(
            ". The timer is the longest there is, since min_rnr_timer of {responder} is 0: 12 is \
             0.64 ms"
        );
    }
    let mut severity = Severity::Warning;
    if responses.ends_in_rnr {
        severity = Severity::Error;
        what += "; the last answer is one";
        advice += &format!(
            ". Where {requester} fails with RNR_RETRY_EXC_ERR its rnr_retry is used up: 7 tries for \
             ever"
        );
    }
    Some(Finding::new(severity, "receiver_not_ready", what, advice))
}

fn sent_again(way: Way<'_>) -> Option<Finding> {
    let Way { there, requester, responder, .. } = way;
    let again = &there.requests.again;
    // After an RNR NAK a packet is sent again by design; what gets no answer is told elsewhere.
    let is_by_rnr = again.bursts_after_nak + again.bursts_after_silence == 0;
    if again.packets == 0 || is_by_rnr || way.back.is_none_or(|b| b.responses.packets == 0) {
        return None;
    }
    let what = format!(
        "{} of {requester} sent again ({:.2} %): {} after a NAK, {} after silence; at most {} in a \
         row, one PSN {}",
        counted(again.packets, "packet"),
        way.share(again.packets),
        times(again.bursts_after_nak),
        times(again.bursts_after_silence),
        again.largest_burst,
        times(again.most_of_one)
    );
    let mut advice = String::from(
        "packets are lost: look at drops of switches, at `ethtool -S` and at full socket buffers \
         (`nstat -az UdpRcvbufErrors`)",
    );
    if again.bursts_after_silence != 0 {
        advice += &format!(
            ". Silence means that the last packets or the ACKs of {responder} were lost, or that it was \
             too slow for the ACK timeout (`timeout` of the queue pair)"
        );
    }
    if again.largest_burst >= 32 {
        advice += ". Long rows are go-back-N: all behind the lost packet is sent again";
    }
    let severity = if way.share(again.packets) < 0.1 { Severity::Note } else { Severity::Warning };
    Some(Finding::new(severity, "sent_again", what, advice))
}

fn missing(way: Way<'_>) -> Option<Finding> {
    let Way { there, requester, .. } = way;
    let requests = &there.requests;
    let (missing, repaired) = (requests.missing(), requests.repaired);
    if missing == 0 && repaired == 0 {
        return None;
    }
    let what = format!(
        "gaps in the PSNs of {requester}: {} lost before this capture, {repaired} of them sent again",
        counted(missing + repaired, "packet")
    );
    let (severity, advice) = match (way.is_reliable(), missing) {
        (true, 0) => {
            (Severity::Warning, "the network lost them on the way to where the capture was made")
        }
        (true, _) => (
            Severity::Warning,
            "what was not sent again the capture itself did not see: give it a larger buffer \
             (`tcpdump -B`), or shorter packets (`-s 128`)",
        ),
        (false, _) => (Severity::Warning, "this service repeats nothing: their messages are lost"),
    };
    Some(Finding::new(severity, "gaps", what, advice))
}

fn overtaken(way: Way<'_>) -> Option<Finding> {
    let (requester, count) = (way.requester, way.there.requests.overtaken);
    (count != 0).then(|| {
        let what = format!("{} of {requester} overtaken by later ones", counted(count, "packet"));
        let advice = "paths of different length: responders take that for loss; a flow should keep \
                      its UDP source port";
        Finding::new(Severity::Note, "reordered", what, advice)
    })
}

fn answered_twice(way: Way<'_>) -> Option<Finding> {
    let Way { there, back, requester, responder } = way;
    let responses = &back?.responses;
    let is_much = responses.duplicate_acks >= 3 && responses.duplicate_acks * 20 > responses.acks;
    (is_much && there.requests.again.packets != 0).then(|| {
        let what = format!(
            "{} by {responder} that acknowledge nothing new",
            counted(responses.duplicate_acks, "ACK")
        );
        let advice = format!(
            "{requester} sends again what {responder} has: ACKs are lost, or the ACK timeout is too short"
        );
        Finding::new(Severity::Note, "duplicate_acks", what, advice)
    })
}

fn small_mtu(way: Way<'_>) -> Option<Finding> {
    let requests = &way.there.requests;
    let mtu = requests.mtu?;
    let is_small = mtu <= 1024 && requests.longest_message > u64::from(mtu) * 8;
    is_small.then(|| {
        let what = format!(
            "path MTU {mtu}, messages of up to {}",
            bytes(requests.longest_message)
        );
        let advice = "an MTU of 4096 takes fewer packets; the network needs frames of 4200 bytes for it \
                      (`ip link set dev eth0 mtu 4200`)";
        Finding::new(Severity::Note, "small_mtu", what, advice)
    })
}

fn other_qkeys(way: Way<'_>) -> Option<Finding> {
    way.there.has_other_qkeys.then(|| {
        let what = format!("{} sends datagrams with different Q_Keys", way.requester);
        let advice = "a queue pair takes one Q_Key, and drops the others without a word";
        Finding::new(Severity::Warning, "qkeys", what, advice)
    })
}

fn long_wait(a: Option<&Stream>, b: Option<&Stream>) -> Option<Finding> {
    if a.is_some_and(|a| !a.is_followed(b)) || b.is_some_and(|b| !b.is_followed(a)) {
        return None;
    }
    let waits = [(a, "A", "B"), (b, "B", "A")].into_iter().filter_map(|(stream, own, other)| {
        let wait = stream?.longest_wait?;
        let (waiting, waited_for) = match wait.waited_for {
            WaitedFor::AnswerOfReceiver => (own, other),
            WaitedFor::AnswerOfSender => (other, own),
            WaitedFor::RnrTimer | WaitedFor::Programs => return None,
        };
        Some((wait.nanos, waiting, waited_for))
    });
    let (nanos, waiting, waited_for) = waits.max_by_key(|(nanos, ..)| *nanos)?;
    (nanos >= LONG_WAIT_NS).then(|| {
        let what = format!("{waiting} waited {} for an answer of {waited_for}", duration(nanos));
        let advice = format!(
            "an answer or its request was lost and the ACK timeout is long, or {waited_for} is stopped or \
             has no processor"
        );
        Finding::new(Severity::Warning, "long_wait", what, advice)
    })
}

//! The report: what happened, flow by flow.
//!
//! A flow is a connection or a pair of queue pairs, of which A is the end that asked for the
//! connection, else that sends most requests. All times count from the first frame.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use serde::Serialize;
use vernic_wire::{Opcode, Qpn, Service};

use crate::advice::{self, Finding, Severity};
use crate::connection::{CmEvent, Connection, Connections};
use crate::file::FileReport;
use crate::frame::Unread;
use crate::log::{Entry, Event, Fate, What};
use crate::requests::{kind_name, packet_name};
use crate::stream::{Stream, StreamKey, WaitedFor};
use crate::units::{bytes, counted, duration};

/// What is counted of the whole capture.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) frames: u64,
    pub(crate) packets: u64,
    /// Payload.
    pub(crate) bytes: u64,
    pub(crate) frames_of_several_packets: u64,
    pub(crate) wrong_icrcs: u64,
    /// Packets by opcode.
    pub(crate) opcodes: BTreeMap<u8, u64>,
    pub(crate) unread: BTreeMap<Unread, u64>,
    /// Packets of streams beyond the most that are followed.
    pub(crate) not_followed: u64,
    pub(crate) first_ns: Option<u64>,
    pub(crate) last_ns: u64,
}

/// What happened in a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The files, in the order in which they were given.
    pub files: Vec<FileReport>,
    /// Frames of all files.
    pub frames: u64,
    /// RoCE packets in them; a packet that two files have is counted twice.
    pub packets: u64,
    /// Payload bytes of the packets.
    pub bytes: u64,
    /// Time of the first frame, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Nanoseconds from the first frame to the last.
    pub duration_ns: u64,
    /// Frames that hold several packets: the sender's segmentation offload.
    pub frames_of_several_packets: u64,
    /// Packets whose ICRC is wrong.
    pub wrong_icrc_packets: u64,
    /// Packets by the name of their opcode.
    pub opcodes: BTreeMap<String, u64>,
    /// Frames that are not explained, by what they are.
    pub unread: Vec<UnreadFrames>,
    /// Packets of flows beyond the most that are followed.
    pub packets_not_followed: u64,
    /// Messages of the connection manager without a connection: beyond the most that are followed,
    /// or of one that began before the capture.
    pub cm_messages_not_followed: u64,
    /// All flows, before [`keep`](Self::keep).
    pub flow_count: usize,
    /// Flows in which something failed or costs time.
    pub attention_count: usize,
    /// The flows, those first that need most attention.
    pub flows: Vec<Flow>,
}

/// Frames that are not explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadFrames {
    /// What they are, as a phrase that follows a count.
    pub what: String,
    /// How many.
    pub frames: u64,
}

/// A pair of queue pairs, or a connection that did not come about.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Place in the order of beginning, from 1.
    pub number: usize,
    /// Transport service: RC, UC, UD, XRC, RD.
    pub service: String,
    /// The end that asked for the connection, else that sends most requests.
    pub a: End,
    /// The end that answers.
    pub b: End,
    /// Nanoseconds from the beginning of the capture to the first packet.
    pub start_ns: u64,
    /// Nanoseconds from the first packet to the last.
    pub duration_ns: u64,
    /// Path MTU, where packets or the connection's messages tell.
    pub mtu_bytes: Option<u32>,
    /// The connection's messages, if there were any.
    pub connection: Option<Connected>,
    /// What A sent.
    pub a_to_b: Way,
    /// What B sent.
    pub b_to_a: Way,
    /// Longest time without a packet.
    pub longest_silence: Option<Silence>,
    /// What is worth attention, what matters most first.
    pub findings: Vec<Finding>,
    /// The packets, folded and not all of them, for diagrams.
    #[serde(skip)]
    pub arrows: Vec<Arrow>,
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct End {
    /// IP address, or that of a GID.
    pub address: IpAddr,
    /// Queue pair number, as far as the capture tells.
    pub qpn: Option<u32>,
}

/// A connection's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connected {
    /// What A asked for, as `tcp:7174`.
    pub service_id: String,
    /// Nanoseconds from the REQ to the REP.
    pub reply_ns: Option<u64>,
    /// Nanoseconds from the REQ to the RTU.
    pub established_ns: Option<u64>,
    /// Reason of a rejection.
    pub rejected: Option<String>,
    /// Nanoseconds from the REQ to the first DREQ.
    pub disconnected_ns: Option<u64>,
    /// End that sent the first DREQ: A or B.
    pub disconnected_by: Option<&'static str>,
    /// Messages sent again.
    pub repeats: u64,
    /// ACK timeout of the path, in nanoseconds; none is for ever.
    pub ack_timeout_ns: Option<u64>,
    /// Retries of the queue pairs.
    pub retries: u8,
    /// RNR retries; 7 tries for ever.
    pub rnr_retries: u8,
}

/// What one end sent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Way {
    /// Packets of all kinds.
    pub packets: u64,
    /// Requests.
    pub requests: Requested,
    /// Answers to the requests of the other end.
    pub answers: Answers,
    /// Packets that a switch marked: congestion experienced.
    pub marked_packets: u64,
    /// Congestion notifications.
    pub cnps: u64,
    /// Packets whose ICRC is wrong.
    pub wrong_icrc_packets: u64,
    /// Packets that left and did not arrive, where the capture has both.
    pub lost_packets: u64,
}

/// Requests of one end.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Requested {
    /// Packets, those sent again included.
    pub packets: u64,
    /// Payload bytes, each once.
    pub bytes: u64,
    /// Whole messages, by kind.
    pub messages: Vec<Messages>,
    /// PSN of the first request.
    pub first_psn: Option<u32>,
    /// Packets sent again.
    pub sent_again: u64,
    /// Times that packets were sent again after a NAK for a missing packet.
    pub sent_again_after_nak: u64,
    /// Times that packets were sent again after an RNR NAK.
    pub sent_again_after_rnr: u64,
    /// Times that packets were sent again after silence.
    pub sent_again_after_silence: u64,
    /// Packets that are missing in the capture.
    pub missing: u64,
    /// Packets that were missing and came later, sent again.
    pub repaired: u64,
    /// Packets that came after later ones.
    pub overtaken: u64,
}

/// Messages of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Messages {
    /// Name of the operation.
    pub kind: &'static str,
    /// Messages that were sent to their end.
    pub count: u64,
    /// Payload bytes; of READs what was asked for.
    pub bytes: u64,
}

/// Answers of one end.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Answers {
    /// Packets.
    pub packets: u64,
    /// ACKs.
    pub acks: u64,
    /// ACKs that acknowledge nothing new.
    pub duplicate_acks: u64,
    /// Packets of READ answers.
    pub read_packets: u64,
    /// Packets of READ answers that were sent before.
    pub read_packets_again: u64,
    /// Payload bytes of READ answers.
    pub read_bytes: u64,
    /// Answers of atomics.
    pub atomic_acks: u64,
    /// NAKs by code.
    pub naks: BTreeMap<String, u64>,
    /// RNR NAKs by timer in nanoseconds.
    pub rnr_naks: BTreeMap<u64, u64>,
}

/// A time without packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silence {
    /// How long.
    pub nanos: u64,
    /// When it ended, from the beginning of the capture.
    pub until_ns: u64,
    /// What was waited for.
    pub waited_for: String,
}

/// An arrow of a diagram: packets of one kind that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// Nanoseconds from the beginning of the capture.
    pub time_ns: u64,
    /// Whether A sent them.
    pub is_from_a: bool,
    /// What they are.
    pub label: String,
    /// How they are drawn.
    pub tone: Tone,
}

/// How an arrow is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// As most.
    Plain,
    /// A message of the connection manager.
    Connection,
    /// A refusal, a repetition.
    Trouble,
    /// Packets that do not arrive.
    Lost,
    /// No arrow: a place where packets are left out, or missing.
    Left,
}

impl Report {
    /// Keeps the flows of a queue pair, and of those so many that need most attention.
    pub fn keep(&mut self, qpn: Option<Qpn>, top: Option<usize>) {
        if let Some(qpn) = qpn {
            let is_it = |end: &End| end.qpn == Some(qpn.value());
            self.flows.retain(|flow| is_it(&flow.a) || is_it(&flow.b));
        }
        self.flows.truncate(top.unwrap_or(usize::MAX));
    }
}

impl Flow {
    /// Findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Whether something failed or costs time.
    pub fn needs_attention(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity > Severity::Note)
    }
}

/// Makes the report. `connection_of` gives the number of the connection of a stream.
pub(crate) fn report(
    files: Vec<FileReport>,
    totals: &Totals,
    streams: &[Stream],
    connections: &Connections,
    connection_of: impl Fn(&StreamKey) -> Option<usize>,
) -> Report {
    let start_ns = totals.first_ns.unwrap_or(0);
    let mut with_stream = HashSet::new();
    let mut flows = Vec::new();
    for (at, stream) in streams.iter().enumerate() {
        let peer = stream.peer.and_then(|peer| streams.get(peer).map(|other| (peer, other)));
        if peer.is_some_and(|(peer, _)| peer < at) {
            continue;
        }
        let connection = connection_of(&stream.key);
        with_stream.extend(connection);
        let connection = connection.and_then(|at| connections.all().get(at));
        flows.push(of_streams(stream, peer.map(|(_, other)| other), connection, start_ns));
    }
    let others = connections.all().iter().enumerate();
    let others = others.filter(|(at, _)| !with_stream.contains(at));
    flows.extend(others.map(|(_, connection)| flow(None, None, Some(connection), start_ns)));
    flows.sort_by_key(|flow| flow.start_ns);
    for (flow, number) in flows.iter_mut().zip(1..) {
        flow.number = number;
    }
    flows.sort_by_key(|flow| {
        let counts = [Severity::Error, Severity::Warning, Severity::Note].map(|s| flow.count(s));
        Reverse((counts, flow.a_to_b.packets + flow.b_to_a.packets))
    });
    let opcodes = totals.opcodes.iter().map(|(code, count)| (Opcode(*code).to_string(), *count));
    let unread = totals.unread.iter();
    Report {
        files,
        frames: totals.frames,
        packets: totals.packets,
        bytes: totals.bytes,
        start_ns,
        duration_ns: totals.last_ns.saturating_sub(start_ns),
        frames_of_several_packets: totals.frames_of_several_packets,
        wrong_icrc_packets: totals.wrong_icrcs,
        opcodes: opcodes.collect(),
        unread: unread.map(|(why, n)| UnreadFrames { what: why.label(), frames: *n }).collect(),
        packets_not_followed: totals.not_followed,
        cm_messages_not_followed: connections.not_followed(),
        flow_count: flows.len(),
        attention_count: flows.iter().filter(|flow| flow.needs_attention()).count(),
        flows,
    }
}

/// A flow of one or two streams: the requester's is A's.
fn of_streams(
    one: &Stream,
    other: Option<&Stream>,
    connection: Option<&Connection>,
    start_ns: u64,
) -> Flow {
    let is_a = match connection.and_then(Connection::streams) {
        Some((of_active, _)) => one.key == of_active,
        None => {
            let others = other.map_or(0, |other| other.requests.packets);
            let own = one.requests.packets;
            // Of a stream of answers alone the requester is the receiver.
            own > others || own == others && own != 0
        }
    };
    let (a, b) = if is_a { (Some(one), other) } else { (other, Some(one)) };
    flow(a, b, connection, start_ns)
}

fn flow(
    a: Option<&Stream>,
    b: Option<&Stream>,
    connection: Option<&Connection>,
    start_ns: u64,
) -> Flow {
    let both = || a.into_iter().chain(b);
    let first_ns = both().map(|s| s.first_ns).chain(connection.map(|c| c.req_ns)).min();
    let last_ns = both().map(|s| s.last_ns).chain(connection.map(|c| c.last_ns)).max();
    let (first_ns, last_ns) = (first_ns.unwrap_or(0), last_ns.unwrap_or(0));
    let is_known = |stream: &&Stream| stream.service != Service::Cnp;
    let service = both().find(is_known).map_or(Service::Rc, |stream| stream.service);
    let mtu = both().find_map(Stream::mtu);
    let mtu = mtu.or_else(|| connection.and_then(|c| c.mtu).map(|mtu| mtu.bytes()));
    let silences = both().filter_map(|stream| {
        let wait = stream.longest_wait?;
        let is_a = a.is_some_and(|a| std::ptr::eq(a, stream));
        Some((wait, is_a))
    });
    let is_followed = a.is_none_or(|a| a.is_followed(b)) && b.is_none_or(|b| b.is_followed(a));
    let longest_silence = silences.max_by_key(|(wait, _)| wait.nanos).map(|(wait, is_a)| {
        let (own, other) = if is_a { ("A", "B") } else { ("B", "A") };
        let waited_for = match wait.waited_for {
            _ if !is_followed => "something that the capture does not tell".into(),
            WaitedFor::AnswerOfReceiver => format!("an answer of {other}"),
            WaitedFor::AnswerOfSender => format!("an answer of {own}"),
            WaitedFor::RnrTimer => "the timer of an RNR NAK".into(),
            WaitedFor::Programs => "the programs: nothing was under way".into(),
        };
        let until_ns = wait.until_ns.saturating_sub(start_ns);
        Silence { nanos: wait.nanos, until_ns, waited_for }
    });
    let (end_a, end_b) = ends(a, b, connection);
    Flow {
        number: 0,
        service: format!("{service:?}").to_uppercase(),
        a: end_a,
        b: end_b,
        start_ns: first_ns.saturating_sub(start_ns),
        duration_ns: last_ns.saturating_sub(first_ns),
        mtu_bytes: mtu,
        connection: connection.map(connected),
        a_to_b: a.map(way).unwrap_or_default(),
        b_to_a: b.map(way).unwrap_or_default(),
        longest_silence,
        findings: advice::findings(a, b, connection),
        arrows: arrows(a, b, connection, start_ns),
    }
}

/// The ends: packets name the queue pair that they are for, and datagrams both.
fn ends(a: Option<&Stream>, b: Option<&Stream>, connection: Option<&Connection>) -> (End, End) {
    let sender = |own: Option<&Stream>, other: Option<&Stream>| {
        let address = own.map(|s| s.key.src).or_else(|| other.map(|s| s.key.dst));
        let qpn = other.map(|s| s.key.dest_qpn).or_else(|| own.and_then(|s| s.key.src_qpn));
        (address, qpn)
    };
    let end = |(address, qpn): (Option<IpAddr>, Option<Qpn>), of_connection: Option<End>| End {
        address: address
            .or(of_connection.map(|end| end.address))
            .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
        qpn: qpn.map(Qpn::value).or_else(|| of_connection.and_then(|end| end.qpn)),
    };
    let active = connection.map(|c| End { address: c.active, qpn: Some(c.active_qpn.value()) });
    let passive =
        connection.map(|c| End { address: c.passive, qpn: c.passive_qpn.map(Qpn::value) });
    (end(sender(a, b), active), end(sender(b, a), passive))
}

fn connected(connection: &Connection) -> Connected {
    let since = |time: u64| time.saturating_sub(connection.req_ns);
    Connected {
        service_id: connection.service.to_string(),
        reply_ns: connection.rep_ns.map(since),
        established_ns: connection.rtu_ns.map(since),
        rejected: connection
            .rejected
            .map(|rejected| format!("{} refused: {}", rejected.message, rejected.reason)),
        disconnected_ns: connection.dreq.map(|(time, _)| since(time)),
        disconnected_by: connection.dreq.map(|(_, by_active)| if by_active { "A" } else { "B" }),
        repeats: connection.repeats,
        ack_timeout_ns: connection.ack_timeout.nanos(),
        retries: connection.retries,
        rnr_retries: connection.rnr_retries,
    }
}

fn way(stream: &Stream) -> Way {
    let (requests, responses) = (&stream.requests, &stream.responses);
    let messages = requests.sent.iter().map(|sent| Messages {
        kind: kind_name(sent.kind),
        count: sent.count,
        bytes: sent.bytes,
    });
    Way {
        packets: stream.packets,
        requests: Requested {
            packets: requests.packets,
            bytes: requests.bytes,
            messages: messages.collect(),
            first_psn: requests.first.map(|psn| psn.value()),
            sent_again: requests.again.packets,
            sent_again_after_nak: requests.again.bursts_after_nak,
            sent_again_after_rnr: requests.again.bursts_after_rnr,
            sent_again_after_silence: requests.again.bursts_after_silence,
            missing: requests.missing(),
            repaired: requests.repaired,
            overtaken: requests.overtaken,
        },
        answers: Answers {
            packets: responses.packets,
            acks: responses.acks,
            duplicate_acks: responses.duplicate_acks,
            read_packets: responses.read_packets,
            read_packets_again: responses.read_packets_again,
            read_bytes: responses.bytes,
            atomic_acks: responses.atomic_acks,
            naks: responses.nak_counts().map(|(code, n)| (code.to_string(), n)).collect(),
            rnr_naks: responses.rnr_counts().map(|(timer, n)| (timer.nanos(), n)).collect(),
        },
        marked_packets: stream.marked,
        cnps: stream.cnps,
        wrong_icrc_packets: stream.wrong_icrcs,
        lost_packets: stream.transit.lost(),
    }
}

fn arrows(
    a: Option<&Stream>,
    b: Option<&Stream>,
    connection: Option<&Connection>,
    start_ns: u64,
) -> Vec<Arrow> {
    let cm = connection.into_iter().flat_map(|connection| &connection.events);
    let mut arrows: Vec<Arrow> = cm.map(cm_arrow).collect();
    for (stream, is_from_a) in [(a, true), (b, false)] {
        let entries = stream.map(|stream| stream.log.entries()).unwrap_or_default();
        arrows.extend(entries.iter().map(|entry| arrow(entry, is_from_a)));
    }
    arrows.sort_by_key(|arrow| arrow.time_ns);
    for arrow in &mut arrows {
        arrow.time_ns = arrow.time_ns.saturating_sub(start_ns);
    }
    arrows
}

fn cm_arrow(event: &CmEvent) -> Arrow {
    let again = if event.is_repeated { " again" } else { "" };
    Arrow {
        time_ns: event.time_ns,
        is_from_a: event.is_of_active,
        label: format!("CM {}{again}", event.attribute),
        tone: if event.is_repeated { Tone::Trouble } else { Tone::Connection },
    }
}

fn arrow(entry: &Entry, is_from_a: bool) -> Arrow {
    let time_ns = entry.time_ns();
    let (label, tone) = match entry {
        Entry::Event(event) => (label(event), tone(event)),
        Entry::Skipped { packets, .. } => {
            let sender = if is_from_a { "A" } else { "B" };
            (format!("{} of {sender} left out", counted(*packets, "packet")), Tone::Left)
        }
    };
    Arrow { time_ns, is_from_a, label, tone }
}

fn tone(event: &Event) -> Tone {
    match (event.what, event.fate) {
        (What::Lost, _) => Tone::Lost,
        (What::Rnr(_) | What::Nak(_), _) => Tone::Trouble,
        (What::Packet(_), Fate::New) => Tone::Plain,
        (What::Packet(_), _) => Tone::Trouble,
    }
}

fn label(event: &Event) -> String {
    let name = match event.what {
        What::Packet(opcode) => packet_name(opcode),
        What::Rnr(timer) => format!("RNR NAK {}", duration(timer.nanos())),
        What::Nak(code) => format!("NAK {code}"),
        What::Lost => "did not arrive".into(),
    };
    let mut label = match event.count {
        1 => format!("{name}, PSN {}", event.first),
        count => format!("{name} x {count}, PSN {}..{}", event.first, event.last),
    };
    if event.bytes != 0 {
        label += &format!(", {}", bytes(event.bytes));
    }
    label += match event.fate {
        Fate::New => "",
        Fate::Ahead => ", gap before it",
        Fate::Resent | Fate::Repaired => ", sent again",
        Fate::Overtaken => ", late",
    };
    if event.is_marked {
        label += ", ECN mark";
    }
    label
}

//! The report in words.

use std::fmt::Write as _;

use crate::advice::Severity;
use crate::story::{Answers, Connected, End, Flow, Report, Requested, Way};
use crate::units::{bytes, counted, duration, rate};

/// Widest line of advice, in columns.
const WIDTH: usize = 100;

/// The report in words, for a terminal: what the capture holds, then each flow.
pub fn text(report: &Report) -> String {
    let mut out = head(report);
    for flow in &report.flows {
        out.push('\n');
        out += &of_flow(flow);
    }
    out
}

fn head(report: &Report) -> String {
    let mut out = String::new();
    for file in &report.files {
        let mut line = format!("{}: {}", file.name, counted(file.frames, "frame"));
        if file.skipped_frames != 0 {
            let _ = write!(line, ", {} damaged and left out", file.skipped_frames);
        }
        if let Some(damage) = &file.damage {
            let _ = write!(line, "; the file is {damage}, and is explained up to there");
        }
        out += &line;
        out.push('\n');
    }
    // Writing to a String does not fail, here and below.
    let _ = writeln!(
        out,
        "{} with {} of payload in {}",
        counted(report.packets, "RoCE packet"),
        bytes(report.bytes),
        duration(report.duration_ns)
    );
    if !report.unread.is_empty() {
        let unread = report.unread.iter().map(|u| format!("{} {}", u.frames, u.what));
        let _ = writeln!(out, "not explained: {}", unread.collect::<Vec<_>>().join(", "));
    }
    if report.frames_of_several_packets != 0 {
        let count = report.frames_of_several_packets;
        let _ =
            writeln!(out, "{} of several packets taken apart (offload)", counted(count, "frame"));
    }
    if report.packets_not_followed != 0 {
        let count = report.packets_not_followed;
        let _ = writeln!(out, "{} of further flows counted only", counted(count, "packet"));
    }
    if report.cm_messages_not_followed != 0 {
        let count = report.cm_messages_not_followed;
        let _ =
            writeln!(out, "{} of connections whose REQ is not here", counted(count, "CM message"));
    }
    let flows = counted(report.flow_count as u64, "flow");
    let shown = match report.flows.len() {
        shown if shown == report.flow_count => String::new(),
        shown => format!(", of which {shown} are shown"),
    };
    let _ = writeln!(out, "{flows}, {} in need of attention{shown}", report.attention_count);
    out
}

fn of_flow(flow: &Flow) -> String {
    let mut out = format!("[{}] {}\n", flow.number, title(flow));
    if let Some(connection) = &flow.connection {
        let _ = writeln!(out, "    {}", connected(connection));
    }
    for (way, back, arrow) in
        [(&flow.a_to_b, &flow.b_to_a, "A -> B"), (&flow.b_to_a, &flow.a_to_b, "B -> A")]
    {
        if way.packets != 0 {
            let _ = writeln!(out, "    {arrow}  {}", of_way(way, back, flow.duration_ns));
        }
    }
    if let Some(silence) = flow.longest_silence.as_ref().filter(|silence| silence.nanos != 0) {
        let _ = writeln!(
            out,
            "    longest silence {}, until {}: waited for {}",
            duration(silence.nanos),
            duration(silence.until_ns),
            silence.waited_for
        );
    }
    for finding in &flow.findings {
        let mark = match finding.severity {
            Severity::Error => "!!",
            Severity::Warning => " !",
            Severity::Note => " -",
        };
        out += &wrapped(&format!(" {mark} "), &finding.what);
        out += &wrapped("      > ", &finding.advice);
    }
    out
}

/// The flow's service, ends and time, in one line.
pub(crate) fn title(flow: &Flow) -> String {
    let mtu = flow.mtu_bytes.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
    format!(
        "{}  A {}  B {}  from {} for {}{mtu}",
        flow.service,
        end(&flow.a),
        end(&flow.b),
        duration(flow.start_ns),
        duration(flow.duration_ns),
    )
}

/// Address and queue pair.
pub(crate) fn end(end: &End) -> String {
    match end.qpn {
        Some(qpn) => format!("{} QP {qpn:#x}", end.address),
        None => format!("{} QP ?", end.address),
    }
}

fn connected(connection: &Connected) -> String {
    let mut line = format!("connection to {}", connection.service_id);
    match (&connection.rejected, connection.reply_ns, connection.established_ns) {
        (Some(_), ..) => line += ": rejected",
        (None, _, Some(after)) => {
            let _ = write!(line, ": established after {}", duration(after));
        }
        (None, Some(after), None) => {
            let _ = write!(line, ": reply after {}, no RTU", duration(after));
        }
        (None, None, None) => line += ": no reply",
    }
    if let (Some(after), Some(by)) = (connection.disconnected_ns, connection.disconnected_by) {
        let _ = write!(line, ", ended by {by} after {}", duration(after));
    }
    let timeout = connection.ack_timeout_ns.map_or("none".into(), duration);
    let _ = write!(line, "; ACK timeout {timeout}, {} retries", connection.retries);
    line
}

fn of_way(way: &Way, back: &Way, nanos: u64) -> String {
    let mut parts = messages(&way.requests);
    parts.extend(answers(&way.answers));
    if way.cnps != 0 {
        parts.push(counted(way.cnps, "CNP"));
    }
    let moved = way.requests.bytes + back.answers.read_bytes;
    let speed = rate(moved, nanos).filter(|_| way.requests.packets != 0);
    let speed = speed.map(|speed| format!(", {speed}")).unwrap_or_default();
    let packets = counted(way.packets, "packet");
    if parts.is_empty() {
        return packets;
    }
    format!("{} in {packets}{speed}", parts.join(", "))
}

fn messages(requests: &Requested) -> Vec<String> {
    let mut parts: Vec<String> = requests
        .messages
        .iter()
        .map(|messages| format!("{} {} ({})", messages.count, messages.kind, bytes(messages.bytes)))
        .collect();
    if requests.sent_again != 0 {
        parts.push(format!("{} sent again", requests.sent_again));
    }
    parts
}

fn answers(answers: &Answers) -> Vec<String> {
    let mut parts = Vec::new();
    let mut add = |count: u64, noun: &str| {
        if count != 0 {
            parts.push(counted(count, noun));
        }
    };
    add(answers.acks, "ACK");
    add(answers.atomic_acks, "atomic ACK");
    if answers.read_packets != 0 {
        let read = bytes(answers.read_bytes);
        parts.push(format!("{} ({read})", counted(answers.read_packets, "READ response packet")));
    }
    for (timer, count) in &answers.rnr_naks {
        parts.push(format!("{} ({})", counted(*count, "RNR NAK"), duration(*timer)));
    }
    for (code, count) in &answers.naks {
        parts.push(format!("{} {code}", counted(*count, "NAK")));
    }
    parts
}

/// Words in lines that begin with `first`, and then with as many blanks.
fn wrapped(first: &str, words: &str) -> String {
    let (mut out, mut line) = (String::new(), first.to_owned());
    for word in words.split_whitespace() {
        let columns = line.chars().count();
        if columns + 1 + word.chars().count() > WIDTH && columns > first.len() {
            out += line.trim_end();
            out.push('\n');
            line = " ".repeat(first.len());
        }
        line += word;
        line.push(' ');
    }
    out += line.trim_end();
    out.push('\n');
    out
}

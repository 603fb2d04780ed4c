//! What all processes told at one moment, and the rates between two moments.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Instant;

use serde::Serialize;
use vernic::{Device, PORT_COUNTERS, ProcessStatus, QpCounters, QpStatus};

use crate::devices::{qp_kind, qp_state};
use crate::failure::{Doing, Outcome};

/// Which processes and devices are wanted; empty lists want all.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) pids: Vec<u32>,
    pub(super) devices: Vec<String>,
}

/// What all processes told at one moment.
#[derive(Debug)]
pub(super) struct Sample {
    at: Instant,
    told: Vec<ProcessStatus>,
    silent: usize,
}

/// A [`Sample`] as it is shown.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct View {
    pub(super) processes: Vec<ProcessRow>,
    /// Processes that have a device open and did not answer: stopped, or very busy.
    pub(super) silent_processes: usize,
    /// Seconds since the sample before, of which the rates are.
    pub(super) interval_s: Option<f64>,
}

/// A process on one of its devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct ProcessRow {
    pub(super) pid: u32,
    /// The command line, or the name where that cannot be read.
    pub(super) command: String,
    pub(super) device: String,
    pub(super) queue_pairs: u64,
    pub(super) completion_queues: u64,
    pub(super) shared_receive_queues: u64,
    pub(super) memory_regions: u64,
    pub(super) protection_domains: u64,
    /// Bytes and packets since the device was opened: those of packets, and those that went from
    /// memory to memory without any.
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) rates: Option<ProcessRates>,
    /// The counters that are not 0.
    pub(super) counters: Vec<Counter>,
    pub(super) qps: Vec<QpRow>,
}

/// Bytes a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct ProcessRates {
    pub(super) sent_bytes: f64,
    pub(super) received_bytes: f64,
    pub(super) memory_bytes: f64,
}

/// A number with a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Counter {
    pub(super) name: Cow<'static, str>,
    pub(super) value: u64,
}

/// A queue pair.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct QpRow {
    pub(super) number: u32,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) state: &'static str,
    /// Address or LID of the peer.
    pub(super) peer: Option<String>,
    pub(super) peer_number: Option<u32>,
    /// `memory`, `link`, `tcp`, `fabric` or `none`.
    pub(super) way: String,
    /// The way in words, with the reason.
    pub(super) route: String,
    /// Send requests that are posted and not completed.
    pub(super) outstanding: u64,
    /// Send requests that were completed.
    pub(super) completed: u64,
    pub(super) in_flight_packets: u64,
    pub(super) window_packets: Option<u64>,
    pub(super) round_trip_us: Option<f64>,
    /// The counters that are not 0.
    pub(super) counters: Vec<Counter>,
    pub(super) rates: Option<QpRates>,
    pub(super) failure: Option<String>,
}

/// What a queue pair does in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct QpRates {
    /// Send requests completed.
    pub(super) completed: f64,
    /// Messages that came, those that need no receive and no packet apart.
    pub(super) received_messages: f64,
    /// Bytes of packets, with headers.
    pub(super) sent_bytes: f64,
    pub(super) received_bytes: f64,
    pub(super) retransmitted_packets: f64,
}

impl Sample {
    /// Asks all processes.
    pub(super) fn take(filter: &Filter) -> Outcome<Self> {
        let (mut told, silent) =
            Device::processes_of_all().doing(|| "read /proc/net/unix".into())?;
        told.retain(|process| {
            (filter.pids.is_empty() || filter.pids.contains(&process.pid))
                && (filter.devices.is_empty() || filter.devices.contains(&process.device))
        });
        told.sort_by(|a, b| (a.pid, &a.device).cmp(&(b.pid, &b.device)));
        Ok(Self { at: Instant::now(), told: merged(told), silent })
    }

    /// When all had told.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// What each process told of each device, ordered by both.
    pub(super) fn told(&self) -> &[ProcessStatus] {
        &self.told
    }

    /// How many processes did not answer.
    pub(super) fn silent(&self) -> usize {
        self.silent
    }

    /// Shows it, with rates since a sample before.
    pub(super) fn view(&self, before: Option<&Self>) -> View {
        let seconds = before.map(|before| (self.at - before.at).as_secs_f64());
        let seconds = seconds.filter(|seconds| *seconds > 0.0);
        let old: HashMap<_, _> = before
            .iter()
            .flat_map(|sample| &sample.told)
            .map(|process| ((process.pid, &*process.device), process))
            .collect();
        let row = |process: &ProcessStatus| {
            let old = old.get(&(process.pid, &*process.device));
            ProcessRow::of(process, old.copied().zip(seconds))
        };
        View {
            processes: self.told.iter().map(row).collect(),
            silent_processes: self.silent,
            interval_s: seconds,
        }
    }
}

/// One entry for each process and device, where a process has opened a device several times.
fn merged(sorted: Vec<ProcessStatus>) -> Vec<ProcessStatus> {
    let mut all: Vec<ProcessStatus> = Vec::with_capacity(sorted.len());
    for one in sorted {
        match all.last_mut() {
            Some(last) if (last.pid, &last.device) == (one.pid, &one.device) => {
                last.port.iter_mut().zip(one.port).for_each(|(sum, value)| *sum += value);
                add(&mut last.counters, one.counters);
                add(&mut last.objects, one.objects);
                last.qps.extend(one.qps);
            }
            _ => all.push(one),
        }
    }
    all
}

/// Adds named numbers to others.
fn add(sums: &mut Vec<(String, u64)>, more: Vec<(String, u64)>) {
    for (name, value) in more {
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => sums.push((name, value)),
        }
    }
}

impl ProcessRow {
    fn of(process: &ProcessStatus, before: Option<(&ProcessStatus, f64)>) -> Self {
        let bytes = traffic(process);
        let rates = before.and_then(|(old, seconds)| {
            let rate = |at: usize| Some(bytes[at].checked_sub(traffic(old)[at])? as f64 / seconds);
            let (sent_bytes, received_bytes) = (rate(0)?, rate(1)?);
            Some(ProcessRates { sent_bytes, received_bytes, memory_bytes: rate(2)? })
        });
        let old: HashMap<_, _> =
            before.iter().flat_map(|(old, _)| &old.qps).map(|qp| (qp.qpn, qp)).collect();
        let qp = |qp: &QpStatus| {
            let old = old.get(&qp.qpn).copied();
            QpRow::of(qp, old.zip(before.map(|(_, seconds)| seconds)))
        };
        let [sent_bytes, received_bytes, memory_bytes] = bytes;
        Self {
            pid: process.pid,
            command: command_of(process.pid),
            device: process.device.clone(),
            queue_pairs: process.count("qp"),
            completion_queues: process.count("cq"),
            shared_receive_queues: process.count("srq"),
            memory_regions: process.count("mr"),
            protection_domains: process.count("pd"),
            sent_bytes,
            received_bytes,
            memory_bytes,
            rates,
            counters: counters(
                process.counters.iter().map(|(name, value)| (name.clone().into(), *value)),
            ),
            qps: process.qps.iter().map(qp).collect(),
        }
    }
}

impl QpRow {
    fn of(qp: &QpStatus, before: Option<(&QpStatus, f64)>) -> Self {
        let peer_number = qp.dest_qpn.value();
        let names = QpCounters::NAMES.iter().map(|name| Cow::Borrowed(*name));
        Self {
            number: qp.qpn.value(),
            kind: qp_kind(qp.qp_type),
            state: qp_state(qp.state),
            peer: qp.peer.clone(),
            peer_number: (peer_number != 0).then_some(peer_number),
            way: qp.way.clone(),
            route: qp.route.clone(),
            outstanding: qp.posted.saturating_sub(qp.completed),
            completed: qp.completed,
            in_flight_packets: qp.in_flight,
            window_packets: qp.window,
            round_trip_us: qp.round_trip.map(|time| time.as_secs_f64() * 1e6),
            counters: counters(names.zip(qp.counters.values())),
            rates: before.and_then(|(old, seconds)| QpRates::of(qp, old, seconds)),
            failure: qp.failure.clone(),
        }
    }

    /// The value of a counter.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|counter| counter.name == name).map_or(0, |found| found.value)
    }
}

impl QpRates {
    /// `None` if the queue pair was reset in between, or is another one of the same number.
    fn of(new: &QpStatus, old: &QpStatus, seconds: f64) -> Option<Self> {
        let rate = |of: fn(&QpStatus) -> u64| Some(of(new).checked_sub(of(old))? as f64 / seconds);
        Some(Self {
            completed: rate(|qp| qp.completed)?,
            received_messages: rate(|qp| qp.counters.messages_received)?,
            sent_bytes: rate(|qp| qp.counters.tx_bytes)?,
            received_bytes: rate(|qp| qp.counters.rx_bytes)?,
            retransmitted_packets: rate(|qp| qp.counters.retransmitted_packets)?,
        })
    }
}

/// Bytes sent and received in packets, and moved from memory to memory.
fn traffic(process: &ProcessStatus) -> [u64; 3] {
    // The port counts in words of four bytes, as the kernel's counters do.
    let port = |name: &str| {
        let at = PORT_COUNTERS.iter().position(|counter| *counter == name);
        at.map_or(0, |at| process.port[at] * 4)
    };
    let moved = process
        .counters
        .iter()
        .filter(|(name, _)| matches!(&**name, "direct_bytes" | "near_pulled_bytes"));
    [port("port_xmit_data"), port("port_rcv_data"), moved.map(|(_, value)| value).sum()]
}

fn counters(all: impl Iterator<Item = (Cow<'static, str>, u64)>) -> Vec<Counter> {
    let counted = all.filter(|(_, value)| *value != 0);
    counted.map(|(name, value)| Counter { name, value }).collect()
}

/// The command line of a process.
pub(crate) fn command_of(pid: u32) -> String {
    let command = read_of(pid, "cmdline");
    let words = command.trim_end_matches('\0').replace('\0', " ");
    if words.is_empty() { program_of(pid) } else { without_controls(&words) }
}

/// The name of the program that a process runs; empty if the process has ended.
pub(super) fn program_of(pid: u32) -> String {
    without_controls(read_of(pid, "comm").trim_end_matches('\n'))
}

fn read_of(pid: u32, file: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text that other processes choose, made harmless to terminals.
fn without_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use vernic::Qpn;

    use super::*;

    /// A process with a queue pair that has sent so much.
    pub(in crate::watch) fn process(pid: u32, completed: u64, tx_bytes: u64) -> ProcessStatus {
        let counters = QpCounters { tx_bytes, tx_packets: tx_bytes / 100, ..Default::default() };
        let qp = QpStatus {
            qpn: Qpn::new(pid + 100),
            qp_type: 2,
            state: 3,
            dest_qpn: Qpn::new(7),
            peer: Some("10.0.0.2".into()),
            way: "link".into(),
            route: "wire: the peer is no process of this host and user".into(),
            completed,
            posted: completed + 3,
            window: Some(64),
            round_trip: Some(Duration::from_micros(30)),
            counters,
            ..QpStatus::default()
        };
        ProcessStatus {
            device: "vernic0".into(),
            pid,
            port: [tx_bytes / 4, 0, 0, 0, 0, 0],
            counters: vec![("direct_bytes".into(), 5 * tx_bytes), ("drop_icrc".into(), 0)],
            objects: vec![("qp".into(), 1), ("mr".into(), 2)],
            qps: vec![qp],
        }
    }

    /// What was told at a second of an imagined time.
    pub(in crate::watch) fn sample(second: u64, told: Vec<ProcessStatus>) -> Sample {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        Sample { at: start + Duration::from_secs(second), told, silent: 0 }
    }

    #[test]
    fn rates_are_between_two_samples_and_of_nothing_that_was_reset_or_is_new() {
        let before = sample(10, vec![process(1, 100, 4000), process(2, 50, 400)]);
        let now = sample(12, vec![process(1, 300, 12_000), process(2, 20, 40), process(3, 1, 4)]);
        let view = now.view(Some(&before));
        assert_eq!(view.interval_s, Some(2.0));
        let [first, second, third] = &view.processes[..] else { panic!("{view:?}") };
        let rates = first.rates.unwrap();
        assert_eq!([rates.sent_bytes, rates.received_bytes, rates.memory_bytes], [4e3, 0.0, 2e4]);
        let qp = &first.qps[0];
        let rates = qp.rates.unwrap();
        assert_eq!((rates.completed, rates.sent_bytes), (100.0, 4000.0));
        assert_eq!((qp.outstanding, qp.kind, qp.state), (3, "RC", "RTS"));
        assert_eq!((qp.peer_number, qp.round_trip_us), (Some(7), Some(30.0)));
        assert_eq!((qp.counter("tx_bytes"), qp.counter("rx_bytes")), (12_000, 0));
        assert_eq!(second.qps[0].rates, None, "it was reset");
        assert_eq!((third.rates, third.qps[0].rates), (None, None), "it is new");
        assert_eq!(first.counters, [Counter { name: "direct_bytes".into(), value: 60_000 }]);
        assert_eq!(now.view(None).processes[0].rates, None);
    }

    #[test]
    fn a_device_that_a_process_has_opened_twice_is_one() {
        let told = merged(vec![process(1, 3, 400), process(1, 5, 800), process(2, 1, 4)]);
        let [first, second] = &told[..] else { panic!("{told:?}") };
        assert_eq!((first.qps.len(), first.port[0], first.count("mr")), (2, 300, 4));
        assert_eq!(first.counters[0], ("direct_bytes".into(), 6000));
        assert_eq!((second.pid, second.qps.len()), (2, 1));
    }

    #[test]
    fn a_command_line_has_no_control_characters_and_one_that_is_gone_is_empty() {
        assert!(command_of(std::process::id()).contains("vernic"));
        assert_eq!([command_of(u32::MAX), program_of(u32::MAX)], ["", ""]);
        assert!(!program_of(std::process::id()).is_empty());
        assert_eq!(without_controls("\"\n<b>\u{1b}[2J"), "\"?<b>?[2J");
    }
}

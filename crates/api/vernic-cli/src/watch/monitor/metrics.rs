//! A sample as metrics: the families of `families`, written by `exposition`.
//!
//! What other processes tell is data. A name that occurs twice would make the whole text invalid,
//! so each series is taken once.

use std::collections::{BTreeMap, BTreeSet};

use vernic::{PORT_COUNTERS, ProcessStatus};

use super::super::sample::program_of;
use super::exposition::{Exposition, Format, Kind};
use super::families::{EVENTS, OF_DEVICES, QP_GAUGES, QP_TOTALS, Source};
use super::looks::Look;
use crate::devices::{qp_kind, qp_state};

/// A process on one of its devices, as it is looked into.
struct Row<'a> {
    pid: String,
    status: &'a ProcessStatus,
    counters: BTreeMap<&'a str, u64>,
}

/// Writes a look at all processes; with series for each queue pair if they are wanted.
pub(super) fn expose(format: Format, look: &Look, per_qp: bool) -> String {
    let rows: Vec<_> = look.now.told().iter().map(Row::of).collect();
    let mut text = Exposition::new(format);
    monitor(&mut text, look);
    processes(&mut text, &rows);
    devices(&mut text, &rows);
    events(&mut text, &rows);
    if per_qp {
        queue_pairs(&mut text, &rows);
    }
    text.finish()
}

impl<'a> Row<'a> {
    fn of(status: &'a ProcessStatus) -> Self {
        let counters = status.counters.iter().map(|(name, value)| (&**name, *value));
        Self { pid: status.pid.to_string(), status, counters: counters.collect() }
    }

    fn labels(&self) -> [(&str, &str); 2] {
        [("pid", &self.pid), ("device", &self.status.device)]
    }

    /// A series of this process and device, with one more label.
    fn labelled<'b>(&'b self, label: &'b str, value: &'b str) -> [(&'b str, &'b str); 3] {
        let [pid, device] = self.labels();
        [pid, device, (label, value)]
    }

    /// The values of a family: the further label of each, if it has one.
    fn values(&self, source: &Source) -> Vec<(Option<(&'static str, &str)>, u64)> {
        let one = |name: &str| self.counters.get(name).copied();
        match *source {
            Source::Port(name, unit) => {
                let at = PORT_COUNTERS.iter().position(|counter| *counter == name);
                at.map(|at| (None, self.status.port[at].saturating_mul(unit))).into_iter().collect()
            }
            Source::Objects(kind) => vec![(None, self.status.count(kind))],
            Source::One(name) => one(name).map(|value| (None, value)).into_iter().collect(),
            Source::Several(label, names) => {
                let known = names.iter().filter_map(|(name, is)| Some((*is, one(name)?)));
                known.map(|(is, value)| (Some((label, is)), value)).collect()
            }
            Source::Begins(label, start) => {
                let begins = self.counters.iter();
                let begins = begins.filter_map(|(name, v)| Some((name.strip_prefix(start)?, *v)));
                begins.map(|(rest, value)| (Some((label, rest)), value)).collect()
            }
        }
    }
}

/// What the monitor says of itself, and of processes that do not answer.
fn monitor(text: &mut Exposition, look: &Look) {
    text.family(Kind::Info, "vernic_monitor", "The program that exports these metrics.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family(Kind::Counter, "vernic_samples", "Times that all processes were asked.");
    text.sample(&[], look.taken);
    text.family(
        Kind::Gauge,
        "vernic_sample_duration_seconds",
        "How long it took to ask all processes.",
    );
    text.sample(&[], look.took.as_secs_f64());
    text.family(
        Kind::Gauge,
        "vernic_silent_processes",
        "Processes that have a device open and did not answer: stopped, or very busy.",
    );
    text.sample(&[], look.now.silent());
}

fn processes(text: &mut Exposition, rows: &[Row<'_>]) {
    let pids: BTreeSet<u32> = rows.iter().map(|row| row.status.pid).collect();
    text.family(Kind::Gauge, "vernic_processes", "Processes that have a device open.");
    text.sample(&[], pids.len());
    text.family(Kind::Info, "vernic_process", "The program that a process runs.");
    for pid in pids {
        text.sample(&[("pid", &pid.to_string()), ("program", &program_of(pid))], 1);
    }
}

fn devices(text: &mut Exposition, rows: &[Row<'_>]) {
    for family in OF_DEVICES {
        text.family(family.kind, family.name, family.help);
        for row in rows {
            for (label, value) in row.values(&family.from) {
                match label {
                    Some((name, is)) => text.sample(&row.labelled(name, is), value),
                    None => text.sample(&row.labels(), value),
                }
            }
        }
    }
}

/// The counters that no family takes, so that those of later versions are seen too.
fn events(text: &mut Exposition, rows: &[Row<'_>]) {
    let (name, help) = EVENTS;
    text.family(Kind::Counter, name, help);
    for row in rows {
        let is_other = |counter: &str| !OF_DEVICES.iter().any(|family| family.from.takes(counter));
        for (counter, value) in row.counters.iter().filter(|(counter, _)| is_other(counter)) {
            text.sample(&row.labelled("event", counter), *value);
        }
    }
}

fn queue_pairs(text: &mut Exposition, rows: &[Row<'_>]) {
    let qps = rows.iter().flat_map(|row| {
        let numbered = row.status.qps.iter().map(|qp| (qp.qpn.value(), qp));
        let once: BTreeMap<_, _> = numbered.collect();
        once.into_iter().map(move |(number, qp)| (row, format!("{number:#x}"), qp))
    });
    let qps: Vec<_> = qps.collect();
    text.family(Kind::Info, "vernic_queue_pair", "What a queue pair is, and where its peer is.");
    for (row, qpn, qp) in &qps {
        let [pid, device, qpn] = row.labelled("qpn", qpn);
        let (peer, peer_qpn) = (qp.peer.as_deref(), qp.dest_qpn.value());
        let peer_qpn = if peer_qpn == 0 { String::new() } else { format!("{peer_qpn:#x}") };
        let labels = [
            pid,
            device,
            qpn,
            ("type", qp_kind(qp.qp_type)),
            ("state", qp_state(qp.state)),
            ("peer", peer.unwrap_or_default()),
            ("peer_qpn", &peer_qpn),
            ("route", &qp.way),
        ];
        text.sample(&labels, 1);
    }
    for total in QP_TOTALS {
        text.family(Kind::Counter, total.name, total.help);
        for (row, qpn, qp) in &qps {
            text.sample(&row.labelled("qpn", qpn), (total.value)(qp));
        }
    }
    for gauge in QP_GAUGES {
        text.family(Kind::Gauge, gauge.name, gauge.help);
        for (row, qpn, qp) in &qps {
            if let Some(value) = (gauge.value)(qp) {
                text.sample(&row.labelled("qpn", qpn), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use vernic::{DeviceCounters, QpCounters, QpStatus};

    use super::super::super::sample::tests::{process, sample};
    use super::*;

    /// A process with every counter that a device has, each with another value.
    fn full() -> ProcessStatus {
        let all = DeviceCounters::default();
        let counters = all.iter().map(|(name, _)| name.into_owned()).zip(1..).collect();
        ProcessStatus { counters, ..process(7, 100, 4000) }
    }

    fn exposed(told: Vec<ProcessStatus>, per_qp: bool) -> String {
        let look = Look::after(None, Arc::new(sample(0, told)), Duration::from_millis(2));
        expose(Format::OpenMetrics, &look, per_qp)
    }

    #[test]
    fn every_counter_of_a_device_is_in_exactly_one_series() {
        let told = full();
        let text = exposed(vec![told.clone()], false);
        for (name, value) in &told.counters {
            let end = format!("}} {value}");
            let with = text.lines().filter(|line| {
                line.contains("_total{pid=\"7\",device=\"vernic0\"")
                    && !line.starts_with("vernic_port_")
                    && line.ends_with(&end)
            });
            assert_eq!(with.count(), 1, "{name} {value}");
        }
        for family in OF_DEVICES {
            let start = format!("\n{}{{", family.name);
            let start =
                if family.kind == Kind::Counter { start.replace('{', "_total{") } else { start };
            assert!(text.contains(&start), "{} has no value", family.name);
        }
    }

    #[test]
    fn values_and_labels_are_those_that_were_told() {
        let mut told = full();
        told.port = [10, 20, 3, 4, 5, 6];
        told.counters = vec![
            ("drop_icrc".into(), 3),
            ("rx_overflow_drops".into(), 4),
            ("cm_sent_req".into(), 5),
            ("of a later version".into(), 6),
        ];
        let text = exposed(vec![told], false);
        let of = "pid=\"7\",device=\"vernic0\"";
        for line in [
            format!("vernic_port_transmit_bytes_total{{{of}}} 40"),
            format!("vernic_port_receive_errors_total{{{of}}} 6"),
            format!("vernic_dropped_packets_total{{{of},reason=\"icrc\"}} 3"),
            format!("vernic_link_dropped_packets_total{{{of},reason=\"overflow\"}} 4"),
            format!("vernic_cm_messages_sent_total{{{of},message=\"req\"}} 5"),
            format!("vernic_events_total{{{of},event=\"of a later version\"}} 6"),
            format!("vernic_memory_regions{{{of}}} 2"),
            "vernic_processes 1".into(),
            "vernic_silent_processes 0".into(),
            "vernic_sample_duration_seconds 0.002".into(),
            "vernic_samples_total 1".into(),
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "no {line} in\n{text}");
        }
        assert!(!text.contains("vernic_queue_pair_"), "queue pairs are told where they are wanted");
    }

    #[test]
    fn every_counter_of_a_queue_pair_has_a_family() {
        let mut counters = QpCounters::default();
        for (name, value) in QpCounters::NAMES.iter().zip(1..) {
            *counters.by_name(name).unwrap() = value;
        }
        let completed = QpCounters::NAMES.len() as u64 + 1;
        let qp = QpStatus { counters, completed, ..QpStatus::default() };
        let mut values: Vec<_> = QP_TOTALS.iter().map(|total| (total.value)(&qp)).collect();
        values.sort_unstable();
        assert_eq!(values, (1..=completed).collect::<Vec<_>>());
    }

    #[test]
    fn a_queue_pair_has_its_peer_and_route_in_one_series_and_its_number_in_all() {
        let mut told = process(1, 3, 400);
        told.qps[0].peer = Some("a\"b".into());
        let text = exposed(vec![told], true);
        for line in [
            "vernic_queue_pair_info{pid=\"1\",device=\"vernic0\",qpn=\"0x65\",type=\"RC\",\
             state=\"RTS\",peer=\"a\\\"b\",peer_qpn=\"0x7\",route=\"link\"} 1",
            "vernic_queue_pair_completed_requests_total{pid=\"1\",device=\"vernic0\",qpn=\"0x65\"} 3",
            "vernic_queue_pair_outstanding_requests{pid=\"1\",device=\"vernic0\",qpn=\"0x65\"} 3",
            "vernic_queue_pair_round_trip_seconds{pid=\"1\",device=\"vernic0\",qpn=\"0x65\"} 0.00003",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "no {line} in\n{text}");
        }
    }

    #[test]
    fn what_is_told_twice_is_one_series() {
        let mut told = process(1, 3, 400);
        told.counters = vec![("stalls".into(), 1), ("stalls".into(), 2)];
        told.qps.push(told.qps[0].clone());
        let text = exposed(vec![told], true);
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let series: Vec<_> = samples.map(|line| line.rsplit_once(' ').unwrap().0).collect();
        let unique: BTreeSet<_> = series.iter().collect();
        assert_eq!(unique.len(), series.len(), "{text}");
    }
}

//! What other processes tell: the status text, read.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use vernic_io::status::{Question, ask_each};
use vernic_proto::QpCounters;
use vernic_wire::Qpn;

use super::PORT_COUNTERS;

/// How long the processes of a device together are waited for: one that runs answers in a
/// millisecond.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How long one of many processes is waited for.
pub(super) const PATIENCE_FOR_ONE: Duration = Duration::from_millis(250);

/// What a process of this host has on a device that it has open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The device.
    pub device: String,
    /// The process.
    pub pid: u32,
    /// The values of [`PORT_COUNTERS`], in their order.
    pub port: [u64; PORT_COUNTERS.len()],
    /// The device's other counters, as [`DeviceCounters`](crate::DeviceCounters) has them, by
    /// their names.
    pub counters: Vec<(String, u64)>,
    /// How many objects of each kind there are: `pd`, `cq`, `qp`, `mr`, `ctx`, `srq`.
    pub objects: Vec<(String, u64)>,
    /// The queue pairs; the first thousand.
    pub qps: Vec<QpStatus>,
}

/// A queue pair of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpStatus {
    /// The number.
    pub qpn: Qpn,
    /// The type, by its number in `ibv_qp_type`.
    pub qp_type: u8,
    /// The state, by its number in `ibv_qp_state`.
    pub state: u8,
    /// The number of the peer's queue pair; 0 if there is none.
    pub dest_qpn: Qpn,
    /// The peer's address, or its LID.
    pub peer: Option<String>,
    /// How requests go to the peer, and why, as [`Route`](crate::Route) is written.
    pub route: String,
    /// The route in one word, as [`Route::way`](crate::Route::way) is.
    pub way: String,
    /// Send requests that were completed since the last reset, whatever their route.
    pub completed: u64,
    /// Send requests that were posted since the last reset.
    pub posted: u64,
    /// Packets that an answer is awaited for.
    pub in_flight: u64,
    /// The congestion window in packets, of services that have one.
    pub window: Option<u64>,
    /// The smoothed round trip, once one was measured. Packets alone have one: what goes from
    /// memory to memory is not measured.
    pub round_trip: Option<Duration>,
    /// The counters since the last reset.
    pub counters: QpCounters,
    /// Why it failed, in words; of the first 32 of a process that have.
    pub failure: Option<String>,
}

impl ProcessStatus {
    /// Returns how many objects of a kind there are.
    pub fn count(&self, kind: &str) -> u64 {
        self.objects.iter().find(|(name, _)| name == kind).map_or(0, |(_, count)| *count)
    }

    /// Reads a text of [`Engine::status`](crate::progress::engine::Engine). Lines that are not
    /// known are left out.
    pub(super) fn parse(text: &str) -> Self {
        let mut status = Self::default();
        let mut columns = Vec::new();
        let mut places = HashMap::new();
        // One list for all lines: a thousand queue pairs have two each.
        let mut words: Vec<&str> = Vec::new();
        for line in text.lines() {
            words.clear();
            words.extend(line.split(if line.contains('\t') { '\t' } else { ' ' }));
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            match words[0] {
                "device" => status.device = words.get(1).copied().unwrap_or_default().to_owned(),
                "pid" => status.pid = number(1).unwrap_or(0) as u32,
                "port" => {
                    let at = PORT_COUNTERS.iter().position(|name| words.get(1) == Some(name));
                    if let (Some(at), Some(value)) = (at, number(2)) {
                        status.port[at] = value;
                    }
                }
                kind @ ("hw" | "resource") => {
                    if let (Some(name), Some(value)) = (words.get(1), number(2)) {
                        let list =
                            if kind == "hw" { &mut status.counters } else { &mut status.objects };
                        list.push(((*name).to_owned(), value));
                    }
                }
                "qp" => {
                    if let Some(qp) = QpStatus::of([1, 2, 3, 4].map(number)) {
                        places.insert(qp.qpn, status.qps.len());
                        status.qps.push(qp);
                    }
                }
                "columns" => columns = words[1..].to_vec(),
                kind @ ("flow" | "failure") => {
                    let qpn = number(1).and_then(|number| u32::try_from(number).ok());
                    let place = qpn.and_then(|qpn| places.get(&Qpn::new(qpn)));
                    if let Some(&place) = place {
                        let qp = &mut status.qps[place];
                        match kind {
                            "flow" => qp.take(columns.iter().copied().zip(words[2..].iter())),
                            _ => qp.failure = words.get(2).map(|why| (*why).to_owned()),
                        }
                    }
                }
                _ => {}
            }
        }
        status
    }
}

impl QpStatus {
    fn of(numbers: [Option<u64>; 4]) -> Option<Self> {
        let [qpn, qp_type, state, dest_qpn] = numbers;
        Some(Self {
            qpn: Qpn::new(qpn? as u32),
            qp_type: qp_type? as u8,
            state: state? as u8,
            dest_qpn: Qpn::new(dest_qpn? as u32),
            ..Self::default()
        })
    }

    /// Takes the words of a line `flow`, by the names of their columns. What is not known is left
    /// out.
    fn take<'a>(&mut self, words: impl Iterator<Item = (&'a str, &'a &'a str)>) {
        for (column, word) in words {
            let value = word.parse::<u64>().ok();
            match column {
                "peer" => self.peer = (!word.is_empty()).then(|| (*word).to_owned()),
                "way" => self.way = (*word).to_owned(),
                "route" => self.route = (*word).to_owned(),
                "completed" => self.completed = value.unwrap_or(0),
                "posted" => self.posted = value.unwrap_or(0),
                "in_flight" => self.in_flight = value.unwrap_or(0),
                "window" => self.window = value,
                "round_trip_ns" => self.round_trip = value.map(Duration::from_nanos),
                counter => {
                    if let (Some(place), Some(value)) = (self.counters.by_name(counter), value) {
                        *place = value;
                    }
                }
            }
        }
    }
}

/// Returns what the processes of this user (for root, of all users) have on a device, this process
/// included.
///
/// # Errors
/// A process did not tell within 2 s, or not everything.
pub fn processes(device: &str) -> io::Result<Vec<ProcessStatus>> {
    let texts = vernic_io::status::ask_all(device, PATIENCE, PATIENCE)?;
    Ok(texts.iter().map(|text| ProcessStatus::parse(text)).collect())
}

/// Returns what the processes of this user (for root, of all users) in this network namespace have
/// on all their devices, one entry for each that a process has open; and how many did not tell,
/// since they are stopped or very busy. Waits 0.25 s for one of them, and 2 s for all.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn processes_of_all() -> io::Result<(Vec<ProcessStatus>, usize)> {
    let (texts, silent) = ask_each(Question::Status, None, PATIENCE_FOR_ONE, PATIENCE)?;
    Ok((texts.iter().map(|text| ProcessStatus::parse(text)).collect(), silent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_that_are_not_known_are_left_out() {
        assert_eq!(ProcessStatus::parse("qp 1 2 x 4\nqp 5\nnew 1\n\nport a 1"), Default::default());
        let text = "device d\npid 7\nhw a 1\nhw b\nresource mr 3\nqp 5 2 3 6 0 0\n\
            columns\tnew\tpeer\ttx_packets\tposted\n\
            flow\t5\tx y\tLID 3\t17\t-\nflow\t4\t1\t2\nflow\nflow\tz\n\
            failure\t5\tno answer, no\tmore\nfailure\t5000000000\tx\n";
        let status = ProcessStatus::parse(text);
        let counters = QpCounters { tx_packets: 17, ..QpCounters::default() };
        let (peer, failure) = (Some("LID 3".into()), Some("no answer, no".into()));
        let (qpn, dest_qpn) = (Qpn::new(5), Qpn::new(6));
        let qp = QpStatus { qpn, qp_type: 2, state: 3, dest_qpn, ..QpStatus::default() };
        assert_eq!(status.qps, [QpStatus { peer, failure, counters, ..qp }]);
        assert_eq!(status.counters, [("a".to_owned(), 1)]);
        assert_eq!((status.device.as_str(), status.pid, status.count("mr")), ("d", 7, 3));
    }
}

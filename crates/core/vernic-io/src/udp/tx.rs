//! Sending: runs to sockets, with one system call for as many runs as a socket takes.
//!
//! A run goes out through the socket of its source address and flow. Consecutive runs of one socket
//! share a `sendmmsg` (32 at most). Sending stops where a socket is full: the order is kept, and
//! what is left stays in the batch.
//!
//! The kernel may refuse a run that it is to cut up, and yet accept its packets one by one. Then
//! the route has no segmentation, and the address does without it from then on. Packets were
//! stamped for Identification 0, 1, 2...; one by one they leave with 0, so their ICRCs are changed
//! first.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use vernic_sys as sys;
#[cfg(test)]
use vernic_sys::OwnFd;
use vernic_wire::icrc::IcrcFlow;

use crate::address::LocalAddr;
use crate::batch::{TxBatch, TxRun};
use crate::endpoint::{destination_of, local_of};
use crate::host::Slot;
use crate::icrc;
use crate::link::{Departure, LinkCounters, LinkError, SendReport};
use crate::path::TxPath;
use crate::udp::socket::Transmitter;
use crate::udp::{MAX_FLOW_SOCKETS, SOURCE_PORTS, UdpConfig, ecn, gso, priority, socket};

/// The sockets of one source address.
#[derive(Debug)]
struct Source {
    local: LocalAddr,
    /// The sockets in the order in which they were opened; the first came with the address.
    ports: Vec<Transmitter>,
    /// The index in `ports` of each flow's socket, once the flow was used. It never changes, since
    /// ICRCs are made for the socket's port.
    by_flow: Box<[Option<u8>; SOURCE_PORTS]>,
    segmented: bool,
}

impl Source {
    /// Returns the socket of a flow.
    fn port(&self, flow: u16) -> Option<&Transmitter> {
        let at = self.by_flow[usize::from(flow) % SOURCE_PORTS].unwrap_or(0);
        self.ports.get(usize::from(at))
    }
}

/// Paths that stamping remembers, so that as many queue pairs alternate at no cost. A power of two.
const KNOWN_PATHS: usize = 64;

/// The facts that stamping needs of a path.
#[derive(Debug)]
struct KnownPath {
    path: TxPath,
    port: u16,
    flow: IcrcFlow,
    segmented: bool,
}

/// The sending half of a UDP link.
#[derive(Debug)]
pub(crate) struct Transmit {
    sources: Vec<Source>,
    /// The remembered paths by flow; a path with the same index replaces the one before.
    known: Vec<Option<KnownPath>>,
    segmented: bool,
    /// The highest priority that packets may have; `None` until a path has one.
    priorities: Option<u8>,
    seed: u32,
}

/// The result of one attempt to send.
enum Progress {
    /// This many runs went out.
    Sent(usize),
    /// The socket is full.
    Blocked,
    /// The first run was refused.
    Refused(std::io::Error),
}

impl Transmit {
    pub(crate) fn new(segmented: bool, seed: u32) -> Self {
        let known = (0..KNOWN_PATHS).map(|_| None).collect();
        Self { sources: Vec::new(), known, segmented, priorities: None, seed }
    }

    /// Forgets the remembered paths, whose facts may be wrong from now on.
    fn forget(&mut self) {
        self.known.fill_with(|| None);
    }

    /// Makes `local` a source, with one socket for a start.
    pub(crate) fn add(&mut self, local: LocalAddr, config: &UdpConfig) -> Result<(), LinkError> {
        let first = socket::transmit(local, config, self.first_port(local, 0))?;
        let mut by_flow = Box::new([None; SOURCE_PORTS]);
        by_flow[0] = Some(0);
        let ports = vec![first];
        self.sources.push(Source { local, ports, by_flow, segmented: self.segmented });
        Ok(())
    }

    pub(crate) fn remove(&mut self, local: LocalAddr) {
        self.sources.retain(|source| source.local != local);
        self.forget();
    }

    /// Returns all sockets that are open.
    #[cfg(test)]
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &OwnFd> {
        self.sources.iter().flat_map(|source| &source.ports).map(|port| &port.fd)
    }

    /// Assumes that packets may have priorities up to this one.
    #[cfg(test)]
    pub(crate) fn assume_priorities(&mut self, most: u8) {
        self.priorities = Some(most);
    }

    fn index_of(&self, path: &TxPath) -> Option<usize> {
        let local = local_of(path);
        self.sources.iter().position(|source| source.local == local)
    }

    /// Writes the ICRCs of the runs that have none. Opens the socket of a flow that is new, since
    /// its port is part of the ICRC. Runs from an unknown source stay as they are, to be refused
    /// by [`send`](Self::send).
    pub(crate) fn stamp(&mut self, batch: &mut TxBatch, config: &UdpConfig) {
        batch.stamp_with(|path, first, bytes, stride| {
            self.stamp_run(path, first, bytes, stride, config);
        });
    }

    /// Writes the ICRCs of packets of one run, of which `first` is the index of the first.
    #[inline]
    pub(crate) fn stamp_run(
        &mut self,
        path: &TxPath,
        first: u16,
        bytes: &mut [u8],
        stride: usize,
        config: &UdpConfig,
    ) {
        let index = usize::from(path.flow()) % KNOWN_PATHS;
        if self.known[index].as_ref().is_none_or(|known| known.path != *path) {
            self.known[index] = self.look_up(path, config);
        }
        let Some(KnownPath { flow, segmented, .. }) = &self.known[index] else { return };
        icrc::stamp_run(flow, segmented.then_some(first), bytes, stride);
    }

    /// Returns how packets of a path leave.
    pub(crate) fn departure(&mut self, path: &TxPath, config: &UdpConfig) -> Option<Departure> {
        let found = self.look_up(path, config)?;
        Some(Departure {
            src: local_of(path).with_port(found.port),
            dst: destination_of(path),
            segmented: found.segmented,
        })
    }

    /// Finds, or opens, the socket of a path.
    fn look_up(&mut self, path: &TxPath, config: &UdpConfig) -> Option<KnownPath> {
        let at = self.index_of(path)?;
        if path.priority() != 0 && self.priorities.is_none() {
            self.learn_priorities(path);
        }
        self.assign(at, path.flow(), config);
        let source = &self.sources[at];
        let port = source.port(path.flow())?.port;
        let flow = icrc::flow_of(path, port);
        Some(KnownPath { path: *path, port, flow, segmented: source.segmented })
    }

    /// Finds out which priorities packets may have, for the first path that has one.
    #[cold]
    fn learn_priorities(&mut self, path: &TxPath) {
        let home = match local_of(path).ip {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
        };
        let most = priority::probe((home, 0).into());
        self.priorities = Some(most);
        match most {
            0 => tracing::warn!(
                "packets leave without the priority of their service level: Linux takes one for each packet from 6.14 on"
            ),
            priority::WITHOUT_RIGHT => tracing::info!(
                "packets of service levels above {most} leave without its priority, which needs CAP_NET_ADMIN"
            ),
            _ => {}
        }
    }

    /// Returns the index of the socket of a source that a flow leaves from. This is the flow's own
    /// socket, unless there are enough, or no descriptors or ports for it. Else it is that of the
    /// first flow of its class, else the first of all. Flows of one class go to the same links, so
    /// flows that share a socket are steered together.
    fn assign(&mut self, at: usize, flow: u16, config: &UdpConfig) -> u8 {
        let index = usize::from(flow) % SOURCE_PORTS;
        if let Some(known) = self.sources[at].by_flow[index] {
            return known;
        }
        let first_of_class = flow % Slot::CLASSES;
        let is_first = index == usize::from(first_of_class);
        let limit = if is_first { MAX_FLOW_SOCKETS } else { MAX_FLOW_SOCKETS / 2 };
        let open: usize = self.sources.iter().map(|source| source.ports.len() - 1).sum();
        let own = if open < limit { self.open(at, index, config) } else { None };
        let chosen = match own {
            Some(own) => own,
            None if is_first => 0,
            None => self.assign(at, first_of_class, config),
        };
        self.sources[at].by_flow[index] = Some(chosen);
        chosen
    }

    /// Opens one more socket of a source, for a flow.
    fn open(&mut self, at: usize, flow: usize, config: &UdpConfig) -> Option<u8> {
        let local = self.sources[at].local;
        let index = u8::try_from(self.sources[at].ports.len()).ok()?;
        let opened = socket::transmit(local, config, self.first_port(local, flow));
        let opened = opened.inspect_err(|error| {
            tracing::debug!(%local, %error, "a flow shares a source port with others");
        });
        self.sources[at].ports.push(opened.ok()?);
        Some(index)
    }

    /// Returns the port that is tried first for a flow. The port is the same each time that the
    /// address comes back, since peers know us by it. Adjacent flows try adjacent ports.
    fn first_port(&self, local: LocalAddr, flow: usize) -> u32 {
        let mut hasher = DefaultHasher::new();
        (self.seed, local).hash(&mut hasher);
        (hasher.finish() as u32).wrapping_add(flow as u32)
    }

    /// Sends the waiting packets of the batch, which is stamped.
    pub(crate) fn send(&mut self, batch: &mut TxBatch, counters: &mut LinkCounters) -> SendReport {
        let mut report = SendReport::default();
        while let Some(first) = batch.first_run() {
            let Some(at) = self.index_of(first.path) else {
                fail(&first, libc::EADDRNOTAVAIL, &mut report);
                batch.retire(1);
                continue;
            };
            let source = &self.sources[at];
            let single = !source.segmented && first.count() > 1;
            let most = self.priorities.unwrap_or(0);
            let progress = if single {
                send_singly(source, batch, most, &mut report, counters)
            } else {
                send_runs(source, batch, most, &mut report, counters)
            };
            match progress {
                Progress::Sent(runs) => batch.retire(runs),
                Progress::Blocked => {
                    report.blocked = true;
                    counters.tx_blocked += 1;
                    break;
                }
                Progress::Refused(error) => {
                    self.refused(at, &error, batch, &mut report, counters);
                    if report.blocked {
                        break;
                    }
                }
            }
        }
        counters.tx_packets += report.packets as u64;
        counters.tx_bytes += report.bytes as u64;
        counters.tx_errors += report.failed as u64;
        report
    }

    /// Handles a first run that the kernel refused: gives up segmentation if that may be the
    /// reason, else drops the run.
    fn refused(
        &mut self,
        at: usize,
        error: &std::io::Error,
        batch: &mut TxBatch,
        report: &mut SendReport,
        counters: &mut LinkCounters,
    ) {
        let Some(run) = batch.first_run() else { return };
        let (priority, most) = (run.path.priority(), self.priorities.unwrap_or(0));
        if priority <= most && priority::is_refusal(error, priority) {
            // The run is sent again, with what needs no right.
            self.priorities = Some(priority::WITHOUT_RIGHT);
            counters.downgrades += 1;
            tracing::warn!(
                priority,
                "the system refuses this priority by now: packets of this service level leave without one"
            );
            return;
        }
        let source = &mut self.sources[at];
        if !(source.segmented && run.count() > 1 && gso::is_refusal(error)) {
            fail(&run, error.raw_os_error().unwrap_or(0), report);
            batch.retire(1);
            return;
        }
        // Is segmentation refused, or these packets? Try one packet, whose Identification is 0
        // either way. If it goes out, segmentation was the reason.
        let first = TxRun { bytes: &run.bytes[..run.stride], ..run };
        let Some(port) = source.port(run.path.flow()) else { return };
        match sys::send_many(port.fd.as_fd(), std::iter::once(outgoing(&first, most))) {
            Ok(_) => {
                count_sent(&first, report);
                counters.tx_calls += 1;
                counters.downgrades += 1;
                tracing::warn!(
                    local = %source.local, %error,
                    "segmentation offload is refused on this path: sending packet by packet"
                );
                source.segmented = false;
                self.forget();
                let source = &self.sources[at];
                batch.rewrite_stamped(|path, bytes, stride| {
                    if local_of(path) == source.local
                        && let Some(port) = source.port(path.flow())
                    {
                        icrc::unsegment_run(&icrc::flow_of(path, port.port), bytes, stride);
                    }
                });
                batch.retire_part(1);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => report.blocked = true,
            Err(e) => {
                fail(&run, e.raw_os_error().unwrap_or(0), report);
                batch.retire(1);
            }
        }
    }
}

fn fail(run: &TxRun<'_>, os_error: i32, report: &mut SendReport) {
    report.failed += run.count();
    report.failure = Some((*run.path, os_error));
}

fn count_sent(run: &TxRun<'_>, report: &mut SendReport) {
    report.packets += run.count();
    report.bytes += run.bytes.len();
}

/// Returns what the system gets for a run, where packets may have priorities up to `most`.
fn outgoing<'a>(run: &TxRun<'a>, most: u8) -> sys::Outgoing<'a> {
    let path = run.path;
    let priority = path.priority();
    let class = path.traffic_class();
    let hops = path.hop_limit();
    sys::Outgoing {
        dst: destination_of(path),
        bytes: run.bytes,
        segment: (run.count() > 1).then_some(run.stride as u16),
        traffic_class: (class != ecn::DEFAULT_TRAFFIC_CLASS).then_some(class),
        hop_limit: (hops != TxPath::DEFAULT_HOP_LIMIT).then_some(hops),
        priority: (priority != 0 && priority <= most).then_some(priority),
    }
}

fn progress_of(result: std::io::Result<usize>) -> Progress {
    match result {
        Ok(n) => Progress::Sent(n),
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Progress::Blocked,
        // The queue of the device is full: to us the same as a full socket, though polling cannot
        // show it.
        Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Progress::Blocked,
        Err(e) => Progress::Refused(e),
    }
}

/// Sends the first runs of the batch that leave through one socket.
fn send_runs(
    source: &Source,
    batch: &TxBatch,
    most: u8,
    report: &mut SendReport,
    counters: &mut LinkCounters,
) -> Progress {
    let Some(first) = batch.first_run() else { return Progress::Sent(0) };
    let Some(port) = source.port(first.path.flow()) else { return Progress::Blocked };
    let same_socket = |run: &TxRun<'_>| {
        (*run.path == *first.path
            || local_of(run.path) == source.local
                && source.port(run.path.flow()).is_some_and(|p| p.port == port.port))
            && (source.segmented || run.count() == 1)
    };
    let messages = batch.runs().take_while(same_socket).map(|run| outgoing(&run, most));
    counters.tx_calls += 1;
    let result = sys::send_many(port.fd.as_fd(), messages);
    if let Ok(sent) = result {
        counters.tx_runs += sent as u64;
        batch.runs().take(sent).for_each(|run| count_sent(&run, report));
    }
    progress_of(result)
}

/// Sends the packets of the first run one by one.
fn send_singly(
    source: &Source,
    batch: &mut TxBatch,
    most: u8,
    report: &mut SendReport,
    counters: &mut LinkCounters,
) -> Progress {
    let Some(run) = batch.first_run() else { return Progress::Sent(0) };
    let Some(port) = source.port(run.path.flow()) else { return Progress::Blocked };
    let count = run.count();
    let messages = run.packets().map(|bytes| outgoing(&TxRun { bytes, ..run }, most));
    counters.tx_calls += 1;
    let result = sys::send_many(port.fd.as_fd(), messages);
    let Ok(sent) = result else { return progress_of(result) };
    counters.tx_runs += sent as u64;
    run.packets().take(sent).for_each(|bytes| count_sent(&TxRun { bytes, ..run }, report));
    if sent == count {
        return Progress::Sent(1);
    }
    batch.retire_part(sent);
    Progress::Sent(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint;

    #[test]
    fn a_run_has_the_priority_of_its_path_if_it_may() {
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        for (level, most, expected) in [
            (0, 15, None),
            (3, 6, Some(3)),
            (6, 6, Some(6)),
            (7, 6, None),
            (15, 15, Some(15)),
            (1, 0, None),
        ] {
            let path = endpoint::path(ip, (ip, 4791).into()).with_priority(level);
            let run = TxRun { path: &path, bytes: &[0; 8], stride: 8 };
            assert_eq!(outgoing(&run, most).priority, expected, "level {level}, up to {most}");
        }
    }
}

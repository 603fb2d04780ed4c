//! A link for tests of middlewares: remembers what was sent, and receives it again when asked.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use vernic_wire::Lid;

use crate::ROCE_PORT;
use crate::address::LocalAddr;
use crate::batch::{Icrc, LinkLimits};
use crate::batch::{RxBatch, RxPacket, TxBatch};
use crate::closed::ClosedLink;
use crate::endpoint;
use crate::icrc::{self, IcrcChecker};
use crate::link::{Departure, Link, LinkCounters, LinkError, Nanos, Paths, SendReport};
use crate::path::TxPath;

/// UDP source port of all packets.
pub(crate) const SOURCE_PORT: u16 = 50_000;

/// The packets that were sent, each with its index in its run.
pub(crate) type Sent = Arc<Mutex<Vec<(u16, Vec<u8>)>>>;

/// A link that sends into memory.
pub(crate) struct MemoryLink {
    pub(crate) sent: Sent,
    received: usize,
    checker: IcrcChecker,
    /// Whether the link tells the headers of its packets, as links over UDP do.
    knows_headers: bool,
}

impl MemoryLink {
    pub(crate) fn boxed() -> (Box<dyn Link>, Sent) {
        let (link, sent) = Self::new(true);
        (Box::new(link), sent)
    }

    /// A link of a kind that sends no UDP.
    pub(crate) fn without_headers() -> Box<dyn Link> {
        Box::new(Self::new(false).0)
    }

    fn new(knows_headers: bool) -> (Self, Sent) {
        let sent = Sent::default();
        let checker = IcrcChecker::new();
        (Self { sent: Arc::clone(&sent), received: 0, checker, knows_headers }, sent)
    }
}

/// Returns a path to the sender itself.
pub(crate) fn path() -> TxPath {
    let home = IpAddr::from([127, 0, 0, 1]);
    endpoint::path(home, (home, ROCE_PORT).into())
}

/// Appends a packet of `size` transport bytes of value `fill`.
pub(crate) fn append(batch: &mut TxBatch, size: usize, fill: u8) {
    batch.room().expect("the batch has room")[..size].fill(fill);
    batch.push(&path(), size);
}

impl Link for MemoryLink {
    fn limits(&self) -> LinkLimits {
        LinkLimits::default()
    }
    fn stamp(&mut self, batch: &mut TxBatch) {
        batch.stamp_with(|path, first, bytes, stride| {
            icrc::stamp_run(&icrc::flow_of(path, SOURCE_PORT), Some(first), bytes, stride);
        });
    }
    fn send(&mut self, _now: Nanos, batch: &mut TxBatch) -> SendReport {
        self.stamp(batch);
        let report =
            SendReport { packets: batch.packets(), bytes: batch.bytes(), ..SendReport::default() };
        let mut sent = self.sent.lock().unwrap();
        for run in batch.runs() {
            sent.extend((0..).zip(run.packets().map(<[u8]>::to_vec)));
        }
        batch.clear();
        report
    }
    fn recv(&mut self, _now: Nanos, batch: &mut RxBatch) -> usize {
        batch.clear();
        let sent = self.sent.lock().unwrap();
        let src = SocketAddr::from(([127, 0, 0, 1], SOURCE_PORT));
        let meta = endpoint::arrival(src, endpoint::destination_of(&path()));
        for (index, bytes) in &sent[self.received..] {
            if batch.free() == 0 {
                break;
            }
            batch.spare()[..bytes.len()].copy_from_slice(bytes);
            batch.commit_part(0, bytes.len(), bytes.len(), *index, meta);
            batch.next_buffer();
            self.received += 1;
        }
        batch.len()
    }
    fn verify(&mut self, packet: &RxPacket<'_>) -> Icrc {
        self.checker.check(packet).icrc()
    }
    fn poll_fds(&self) -> &[RawFd] {
        &[]
    }
    fn poll_generation(&self) -> u64 {
        0
    }
    fn paths(&self) -> Arc<dyn Paths> {
        ClosedLink::unused().paths()
    }
    fn activate(&mut self, _local: LocalAddr) -> Result<(), LinkError> {
        Ok(())
    }
    fn deactivate(&mut self, _local: LocalAddr) {}
    fn join(&mut self, _local: LocalAddr, _group: IpAddr, _lid: Lid) -> Result<(), LinkError> {
        Ok(())
    }
    fn leave(&mut self, _local: LocalAddr, _group: IpAddr, _lid: Lid) {}
    fn departure(&mut self, path: &TxPath) -> Option<Departure> {
        let src = endpoint::local_of(path).with_port(SOURCE_PORT);
        self.knows_headers.then(|| Departure {
            src,
            dst: endpoint::destination_of(path),
            segmented: true,
        })
    }
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

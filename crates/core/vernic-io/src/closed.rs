//! The link of a device that was closed.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use vernic_wire::Lid;

use crate::address::{Address, LocalAddr};
use crate::batch::{Icrc, LinkLimits};
use crate::batch::{RxBatch, RxPacket, TxBatch};
use crate::link::{
    Departure, Link, LinkCounters, LinkError, Nanos, NoPath, OpenPath, PathRequest, Paths,
    SendReport,
};
use crate::path::{PathId, TxPath};

/// The link of a device that was closed: nothing goes out, nothing comes in. It replaces another
/// link, whose sockets close then, while queue pairs are still there to be destroyed. It keeps the
/// totals of the link that it replaces.
#[derive(Debug)]
pub struct ClosedLink {
    limits: LinkLimits,
    counters: LinkCounters,
    generation: u64,
}

impl ClosedLink {
    /// Makes the link of a device that has no packets.
    pub fn unused() -> Self {
        let (limits, counters) = (LinkLimits::default(), LinkCounters::default());
        Self { limits, counters, generation: 0 }
    }

    /// Makes the link that replaces `link`.
    pub fn after(link: &dyn Link) -> Self {
        let generation = link.poll_generation().wrapping_add(1);
        Self { limits: link.limits(), counters: link.counters(), generation }
    }
}

/// An object that opens no path.
#[derive(Debug)]
struct Nowhere;

impl Paths for Nowhere {
    fn open_path(&self, to: &PathRequest) -> Result<OpenPath, NoPath> {
        let path = TxPath::new(to.local, to.remote, PathId::default(), 0);
        Ok(OpenPath { path, remote: Address::Gid(to.remote), local: Address::Gid(to.local) })
    }
}

impl Link for ClosedLink {
    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn stamp(&mut self, _batch: &mut TxBatch) {}

    /// Drops the waiting packets, and counts them as refused.
    fn send(&mut self, _now: Nanos, batch: &mut TxBatch) -> SendReport {
        let failed = batch.packets();
        batch.clear();
        self.counters.tx_errors += failed as u64;
        SendReport { failed, ..SendReport::default() }
    }

    fn recv(&mut self, _now: Nanos, batch: &mut RxBatch) -> usize {
        batch.clear();
        0
    }

    fn verify(&mut self, _packet: &RxPacket<'_>) -> Icrc {
        Icrc::Bad
    }

    fn poll_fds(&self) -> &[RawFd] {
        &[]
    }

    fn poll_generation(&self) -> u64 {
        self.generation
    }

    fn paths(&self) -> Arc<dyn Paths> {
        Arc::new(Nowhere)
    }

    fn activate(&mut self, local: LocalAddr) -> Result<(), LinkError> {
        Err(LinkError::Closed { addr: local })
    }

    fn deactivate(&mut self, _local: LocalAddr) {}

    fn join(&mut self, local: LocalAddr, _group: IpAddr, _lid: Lid) -> Result<(), LinkError> {
        Err(LinkError::Closed { addr: local })
    }

    fn leave(&mut self, _local: LocalAddr, _group: IpAddr, _lid: Lid) {}

    fn departure(&mut self, _path: &TxPath) -> Option<Departure> {
        None
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemoryLink, path};

    #[test]
    fn what_is_sent_through_a_closed_link_is_dropped_and_counted() {
        let (inner, _) = MemoryLink::boxed();
        let mut link = ClosedLink::after(inner.as_ref());
        let mut batch = TxBatch::new(&link.limits());
        assert!(batch.push_copy(&path(), &[0; 64]));
        let report = link.send(Nanos(0), &mut batch);
        assert_eq!((report.failed, report.packets, report.blocked), (1, 0, false));
        assert_eq!((batch.is_empty(), link.counters().tx_errors), (true, 1));
        assert_eq!(link.recv(Nanos(0), &mut RxBatch::new()), 0);
        let home = crate::endpoint::local_of(&path());
        assert!(matches!(link.activate(home), Err(LinkError::Closed { .. })));
        assert!(matches!(
            link.join(home, path().local().to_ip(), Lid::RESERVED),
            Err(LinkError::Closed { .. })
        ));
    }
}

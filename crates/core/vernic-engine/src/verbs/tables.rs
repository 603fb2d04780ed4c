//! Opening and closing queue pairs, XRC shared receive queues and multicast groups: changes of the
//! lane's tables.

use std::net::IpAddr;
use std::sync::Arc;

use vernic_wire::{Gid, Qpn, Srqn};

use crate::error::{CreateError, McastError};
use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::qp::xrc::XrcSrq;
use crate::support::events::lock;

impl Engine {
    /// Gives a queue pair a number and puts it into the table.
    pub(crate) fn open_qp(
        &self,
        make: impl FnOnce(Qpn) -> Arc<QpInner>,
    ) -> Result<Arc<QpInner>, CreateError> {
        let (qp, new_slot) = self.with_lane(|lane| -> Result<_, CreateError> {
            // `close` sets this flag before it takes the lane, so no queue pair is added after it.
            if self.is_closed() {
                return Err(CreateError::Closed);
            }
            let slots = lane.table().slots();
            let qp = lane.open_qp(self.slots(), make);
            // A queue pair is at most once in the doorbells, so with this capacity they never
            // allocate on the data path.
            let mut doorbells = lock(&self.doorbells);
            let missing = lane.table().len().saturating_sub(doorbells.len());
            doorbells.reserve(missing);
            drop(doorbells);
            Ok((qp?, lane.table().slots() != slots))
        })?;
        lock(self.past_failures()).forget(qp.qpn());
        self.follow_slots();
        if new_slot {
            // The background thread must watch the descriptors of the new process slot, where other
            // processes may send queries.
            self.waker().wake();
        }
        Ok(qp)
    }

    /// Takes a queue pair out of the table and of every multicast group.
    pub(crate) fn close_qp(&self, qpn: Qpn) {
        let gone = self.with_lane(|lane| {
            // A doorbell that the queue pair rang would bring it back to the ready list.
            self.answer_doorbells(lane);
            // The application has seen the messages that were received, so the peer must not be
            // left waiting for their ACKs.
            lane.transmit_all(self, self.now());
            lane.close_qp(qpn)
        });
        // Dropped outside the lane: this may be the last reference to its completion queues.
        drop(gone);
    }

    /// Gives an XRC shared receive queue a number.
    pub(crate) fn open_srq(
        &self,
        make: impl FnOnce(Srqn) -> XrcSrq,
    ) -> Result<Arc<XrcSrq>, CreateError> {
        self.with_lane(|lane| lane.open_srq(make))
    }

    /// Takes an XRC shared receive queue out of the table, and away from the targets that use it.
    pub(crate) fn close_srq(&self, number: Srqn) {
        let gone = self.with_lane(|lane| lane.close_srq(number));
        // Dropped outside the lane: this may be the last reference to its completion queue.
        drop(gone);
    }

    /// Adds a queue pair to a multicast group; returns false if it was a member already.
    pub(crate) fn attach_mcast(&self, qpn: Qpn, gid: Gid) -> Result<bool, McastError> {
        if !gid.is_multicast() {
            return Err(McastError::NotGroup(gid));
        }
        let ip = gid.to_ip();
        if is_interface_local(ip) {
            tracing::warn!(
                %qpn, group = %gid,
                "a group of interface-local scope (ff01::/16): the kernel takes its packets from this \
                 host alone"
            );
        }
        let local =
            self.port().gids().iter().map(|row| row.local).find(|l| l.ip.is_ipv4() == ip.is_ipv4());
        let local = local.ok_or(McastError::NoAddress(gid))?;
        let new = self.with_lane(|lane| lane.attach(qpn, gid, local))?;
        // The link may have a new descriptor to watch.
        self.waker().wake();
        Ok(new)
    }

    /// Takes a queue pair out of a multicast group.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, gid: Gid) -> Result<(), McastError> {
        self.with_lane(|lane| lane.detach(qpn, gid))
    }
}

/// Whether a group spans a single interface, useful only for loopback of multicast (RFC 4291,
/// section 2.7, erratum 3480). That is scope 1, with any flags.
fn is_interface_local(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(ip) if ip.octets()[1] & 0xF == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_interface_are_told_by_their_scope() {
        let is = |ip: &str| is_interface_local(ip.parse().unwrap());
        assert!(is("ff01::1") && is("ff11:0:2:c985::"));
        assert!(!is("ff02::1") && !is("ff0e::1") && !is("239.1.1.1"));
    }
}

//! Adds and removes entries of the lane's tables: queue pairs, XRC shared receive queues, and
//! members of multicast groups.

use std::net::IpAddr;
use std::sync::Arc;

use vernic_wire::{Gid, Lid, Qpn, Srqn};

use crate::error::{CreateError, McastError};
use crate::lane::protocol::WireProtocol;
use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::qp::xrc::XrcSrq;
use crate::support::events::lock;

impl Engine {
    /// Adds a queue pair to the table, under a number that is free.
    pub(crate) fn open_qp(
        &self,
        make: impl FnOnce(Qpn, &dyn WireProtocol) -> Arc<QpInner>,
    ) -> Result<Arc<QpInner>, CreateError> {
        if self.rules().has_lids() {
            self.prepare_slot()?;
        }
        let (qp, new_slot) = self.with_lane(|lane| -> Result<_, CreateError> {
            // `close` sets this flag before it takes the lane, so no queue pair is added after
            // that.
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
            // The background thread must watch the descriptors of the new process slot, because
            // other processes may send queries there.
            self.waker().wake();
        }
        Ok(qp)
    }

    /// Takes another process slot if the next queue pair needs one. The fabric process is asked for
    /// it, and nobody is to wait for the lane meanwhile.
    fn prepare_slot(&self) -> Result<(), CreateError> {
        let (is_full, open) = self.with_lane(|lane| (lane.table().is_full(), lane.table().len()));
        match is_full {
            true => self.slots().prepare().map_err(|source| CreateError::NoQpn { open, source }),
            false => Ok(()),
        }
    }

    /// Removes a queue pair from the table, and from all multicast groups.
    pub(crate) fn close_qp(&self, qpn: Qpn) {
        let gone = self.with_lane(|lane| {
            // The queue pair may have a doorbell, which would put it on the ready list again later.
            self.answer_doorbells(lane);
            // The application has seen the messages that were received, so their ACKs are sent now;
            // otherwise the peer would wait for them.
            lane.transmit_all(self, self.now());
            lane.close_qp(self, qpn, self.now())
        });
        // Dropped without the lane, because this may be the last reference to its completion
        // queues.
        drop(gone);
    }

    /// Adds an XRC shared receive queue to the table, under a number that is free.
    pub(crate) fn open_srq(
        &self,
        make: impl FnOnce(Srqn) -> XrcSrq,
    ) -> Result<Arc<XrcSrq>, CreateError> {
        self.with_lane(|lane| lane.open_srq(make))
    }

    /// Removes an XRC shared receive queue from the table, and from the targets that use it.
    pub(crate) fn close_srq(&self, number: Srqn) {
        let gone = self.with_lane(|lane| lane.close_srq(number));
        // Dropped outside the lane: this may be the last reference to its completion queue.
        drop(gone);
    }

    /// Adds a queue pair to a multicast group. Returns false if it was a member already.
    pub(crate) fn attach_mcast(&self, qpn: Qpn, gid: Gid, lid: Lid) -> Result<bool, McastError> {
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
        let new = self.with_lane(|lane| lane.attach(self, qpn, (gid, lid)))?;
        // The link may have a new socket, which the background thread must watch.
        self.waker().wake();
        Ok(new)
    }

    /// Removes a queue pair from a multicast group.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, gid: Gid) -> Result<(), McastError> {
        self.with_lane(|lane| lane.detach(qpn, gid))
    }
}

/// Whether a multicast group has interface-local scope (scope 1, with any flags). Packets to it
/// never leave the host (RFC 4291, section 2.7, erratum 3480).
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

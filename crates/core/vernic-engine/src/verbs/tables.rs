//! Opening and closing queue pairs, XRC shared receive queues and multicast groups: changes of the
//! lane's tables.

use std::net::IpAddr;
use std::sync::Arc;

use vernic_io::LocalAddr;
use vernic_proto::QpType;
use vernic_wire::{Gid, Qpn, Srqn};

use crate::device::limits::{MAX_MCAST_GROUPS, MAX_MCAST_QPS};
use crate::error::{CreateError, McastError};
use crate::lane::core::{Group, Lane};
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
            let (open, slots) = (lane.table.len(), lane.table.slots());
            let qp = lane.table.insert(self.slots(), make);
            // A queue pair is at most once in the doorbells, so with this capacity they never
            // allocate on the data path.
            let mut doorbells = lock(&self.doorbells);
            let missing = lane.table.len().saturating_sub(doorbells.len());
            doorbells.reserve(missing);
            drop(doorbells);
            let qp = qp.map_err(|source| CreateError::NoQpn { open, source })?;
            lane.sched.add(&qp);
            Ok((qp, lane.table.slots() != slots))
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
            let mut at = 0;
            while let Some(group) = lane.groups.get_mut(at) {
                group.members.retain(|&member| member != qpn);
                if group.members.is_empty() { leave(lane, at) } else { at += 1 }
            }
            let gone = lane.table.remove(qpn);
            if let Some(qp) = &gone {
                lane.sched.remove(qp);
            }
            gone
        });
        // Dropped outside the lane: this may be the last reference to its completion queues.
        drop(gone);
    }

    /// Gives an XRC shared receive queue a number.
    pub(crate) fn open_srq(
        &self,
        make: impl FnOnce(Srqn) -> XrcSrq,
    ) -> Result<Arc<XrcSrq>, CreateError> {
        self.with_lane(|lane| lane.srqs.insert(make))
    }

    /// Takes an XRC shared receive queue out of the table, and away from the targets that use it.
    pub(crate) fn close_srq(&self, number: Srqn) {
        let gone = self.with_lane(|lane| {
            let mut gone: Vec<_> = lane.srqs.remove(number).into_iter().collect();
            for qp in lane.table.iter().filter(|qp| qp.qp_type() == QpType::XrcTgt) {
                gone.extend(lock(&qp.core).side.filling.remove_queue(number));
            }
            gone
        });
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
        let new = self.with_lane(|lane| {
            if lane.table.find(qpn).is_none() {
                return Err(McastError::Destroyed(qpn));
            }
            let groups = lane.groups.len();
            match lane.groups.iter_mut().find(|group| group.gid == gid) {
                Some(group) if group.members.contains(&qpn) => return Ok(false),
                Some(group) => group.add(qpn)?,
                None if groups >= MAX_MCAST_GROUPS as usize => {
                    return Err(McastError::Full { limit: MAX_MCAST_GROUPS });
                }
                None => {
                    lane.link.join(local, ip)?;
                    lane.groups.push(Group { gid, local: Some(local), members: vec![qpn] });
                }
            }
            Ok(true)
        })?;
        // The link may have a new descriptor to watch.
        self.waker().wake();
        Ok(new)
    }

    /// Takes a queue pair out of a multicast group.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, gid: Gid) -> Result<(), McastError> {
        let missing = McastError::NotAttached { qpn, group: gid };
        self.with_lane(|lane| {
            let at = lane.groups.iter().position(|group| group.gid == gid);
            let Some(at) = at else { return Err(missing) };
            let members = &mut lane.groups[at].members;
            let Some(place) = members.iter().position(|&member| member == qpn) else {
                return Err(missing);
            };
            members.swap_remove(place);
            if members.is_empty() {
                leave(lane, at);
            }
            Ok(())
        })
    }
}

/// Whether a group spans a single interface, useful only for loopback of multicast (RFC 4291,
/// section 2.7, erratum 3480). That is scope 1, with any flags.
fn is_interface_local(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(ip) if ip.octets()[1] & 0xF == 1)
}

impl Group {
    fn add(&mut self, qpn: Qpn) -> Result<(), McastError> {
        if self.members.len() >= MAX_MCAST_QPS as usize {
            return Err(McastError::GroupFull { group: self.gid, limit: MAX_MCAST_QPS });
        }
        self.members.push(qpn);
        Ok(())
    }
}

impl Lane {
    /// Marks the groups that were joined on an address that is gone. The link has given up their
    /// sockets. Their members stay attached.
    pub(crate) fn leave_home(&mut self, local: LocalAddr) {
        for group in self.groups.iter_mut().filter(|group| group.local == Some(local)) {
            group.local = None;
        }
    }

    /// Joins again the groups that have lost their address, on the first of `locals` with their IP
    /// version. That is the same address if it is back, otherwise another one.
    pub(crate) fn rejoin(&mut self, locals: &[LocalAddr]) {
        for group in self.groups.iter_mut().filter(|group| group.local.is_none()) {
            let ip = group.gid.to_ip();
            let home = locals.iter().find(|local| local.ip.is_ipv4() == ip.is_ipv4());
            let Some(&local) = home else { continue };
            match self.link.join(local, ip) {
                Ok(()) => group.local = Some(local),
                Err(error) => {
                    tracing::warn!(group = %group.gid, %local, %error, "multicast group not joined again");
                }
            }
        }
    }
}

fn leave(lane: &mut Lane, at: usize) {
    let group = lane.groups.swap_remove(at);
    if let Some(local) = group.local {
        lane.link.leave(local, group.gid.to_ip());
    }
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

    #[test]
    fn a_group_takes_members_up_to_the_limit_that_the_device_tells() {
        let group = Gid::from_ip([239, 77, 1, 3].into());
        let mut joined = Group { gid: group, local: None, members: Vec::new() };
        (0..MAX_MCAST_QPS).for_each(|n| joined.add(Qpn::new(2 + n)).unwrap());
        let error = joined.add(Qpn::new(1)).unwrap_err();
        assert!(matches!(error, McastError::GroupFull { limit: MAX_MCAST_QPS, .. }), "{error}");
        joined.members.pop();
        joined.add(Qpn::new(1)).unwrap();
    }
}

//! The multicast groups that queue pairs of a device receive from (IBTA 10.5).
//!
//! A group is joined on one address of a port: that of its members, all of which are on one port.
//! Members on another port make another group of the same GID. If the address is removed, the link
//! closes the group's socket. The members stay attached, and the group is joined again by another
//! address of the port.
//!
//! Limits: [`MAX_MCAST_GROUPS`] groups of [`MAX_MCAST_QPS`] members.

use vernic_io::{Link, LocalAddr};
use vernic_wire::{Gid, Lid, PortNum, Qpn};

use crate::device::limits::{MAX_MCAST_GROUPS, MAX_MCAST_QPS};
use crate::device::port::Port;
use crate::error::McastError;

/// A multicast group.
#[derive(Debug)]
struct Group {
    gid: Gid,
    /// LID of the group on an InfiniBand link, else 0.
    lid: Lid,
    /// The port that the members are on.
    port: PortNum,
    /// The index of the port's netdev; 0 if the port has none.
    netdev_index: u32,
    /// The address on whose netdev it is joined; `None` while the device has none of its IP
    /// version.
    local: Option<LocalAddr>,
    members: Vec<Qpn>,
}

impl Group {
    /// Whether a packet to the group `gid` that came by the netdev `netdev` (0: unknown) is for the
    /// members.
    fn takes(&self, gid: Gid, netdev: u32) -> bool {
        let same = self.netdev_index == netdev || self.netdev_index == 0 || netdev == 0;
        self.gid == gid && same
    }

    fn add(&mut self, qpn: Qpn) -> Result<(), McastError> {
        if self.members.len() >= MAX_MCAST_QPS as usize {
            return Err(McastError::GroupFull { group: self.gid, limit: MAX_MCAST_QPS });
        }
        self.members.push(qpn);
        Ok(())
    }
}

/// The groups of a lane.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Group>);

impl Groups {
    /// Returns the members that a packet to the group `gid` is for, which came by the netdev
    /// `netdev` (0: unknown).
    #[inline]
    pub(super) fn members(&self, gid: Gid, netdev: u32) -> impl Iterator<Item = Qpn> {
        self.0
            .iter()
            .filter(move |group| group.takes(gid, netdev))
            .flat_map(|g| &g.members)
            .copied()
    }

    /// Adds a member that is on `port`. Joins the group by `local` if the member is the first.
    /// Returns false if the queue pair was a member already.
    pub(super) fn add(
        &mut self,
        link: &mut dyn Link,
        qpn: Qpn,
        (gid, lid): (Gid, Lid),
        (port, local): (&Port, LocalAddr),
    ) -> Result<bool, McastError> {
        let (count, number) = (self.0.len(), port.number());
        match self.0.iter_mut().find(|group| (group.gid, group.port) == (gid, number)) {
            Some(group) if group.members.contains(&qpn) => return Ok(false),
            Some(group) => group.add(qpn)?,
            None if count >= MAX_MCAST_GROUPS as usize => {
                return Err(McastError::Full { limit: MAX_MCAST_GROUPS });
            }
            None => {
                link.join(local, gid.to_ip(), lid)?;
                let (netdev_index, local) = (port.netdev_index(), Some(local));
                let members = vec![qpn];
                self.0.push(Group { gid, lid, port: number, netdev_index, local, members });
            }
        }
        Ok(true)
    }

    /// Removes a member; returns false if the queue pair was none.
    pub(super) fn remove(&mut self, link: &mut dyn Link, qpn: Qpn, gid: Gid) -> bool {
        let is_member = |group: &Group| group.gid == gid && group.members.contains(&qpn);
        let Some(at) = self.0.iter().position(is_member) else { return false };
        let members = &mut self.0[at].members;
        members.retain(|&member| member != qpn);
        if members.is_empty() {
            self.leave(link, at);
        }
        true
    }

    /// Removes a queue pair that is closed from every group.
    pub(super) fn remove_all(&mut self, link: &mut dyn Link, qpn: Qpn) {
        let mut at = 0;
        while let Some(group) = self.0.get_mut(at) {
            group.members.retain(|&member| member != qpn);
            if group.members.is_empty() { self.leave(link, at) } else { at += 1 }
        }
    }

    fn leave(&mut self, link: &mut dyn Link, at: usize) {
        let group = self.0.swap_remove(at);
        if let Some(local) = group.local {
            link.leave(local, group.gid.to_ip(), group.lid);
        }
    }

    /// Notes that an address was removed: the link has closed the sockets of the groups that were
    /// joined by it. Their members stay attached.
    pub(super) fn lose_address(&mut self, local: LocalAddr) {
        for group in self.0.iter_mut().filter(|group| group.local == Some(local)) {
            group.local = None;
        }
    }

    /// Joins the groups of a port again that were joined by a removed address, by the first of
    /// `locals` with the same IP version. If the removed address is back, that may be the same one.
    pub(super) fn rejoin(&mut self, link: &mut dyn Link, port: PortNum, locals: &[LocalAddr]) {
        let lost = |group: &&mut Group| group.port == port && group.local.is_none();
        for group in self.0.iter_mut().filter(lost) {
            let ip = group.gid.to_ip();
            let home = locals.iter().find(|local| local.ip.is_ipv4() == ip.is_ipv4());
            let Some(&local) = home else { continue };
            match link.join(local, ip, group.lid) {
                Ok(()) => group.local = Some(local),
                Err(error) => {
                    tracing::warn!(group = %group.gid, %local, %error, "multicast group not joined again");
                }
            }
        }
    }

    /// Returns the address that the first group is joined by.
    #[cfg(test)]
    pub(super) fn first_home(&self) -> Option<LocalAddr> {
        self.0[0].local
    }

    /// Notes that the link has given up the sockets of all groups.
    pub(super) fn forget_homes(&mut self) {
        self.0.iter_mut().for_each(|group| group.local = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_takes_members_up_to_the_limit_that_the_device_tells() {
        let group = Gid::from_ip([239, 77, 1, 3].into());
        let mut joined = Group {
            gid: group,
            lid: Lid::RESERVED,
            port: PortNum(1),
            netdev_index: 0,
            local: None,
            members: Vec::new(),
        };
        (0..MAX_MCAST_QPS).for_each(|n| joined.add(Qpn::new(2 + n)).unwrap());
        let error = joined.add(Qpn::new(1)).unwrap_err();
        assert!(matches!(error, McastError::GroupFull { limit: MAX_MCAST_QPS, .. }), "{error}");
        joined.members.pop();
        joined.add(Qpn::new(1)).unwrap();
    }
}

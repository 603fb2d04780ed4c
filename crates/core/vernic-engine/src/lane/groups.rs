//! The multicast groups that queue pairs of a device receive from (IBTA 10.5).
//!
//! A group is joined on one address of the device. If that address goes, the link gives up the
//! group's socket. The members stay attached, and the group is joined again on another address.
//!
//! Limits: [`MAX_MCAST_GROUPS`] groups of [`MAX_MCAST_QPS`] members.

use vernic_io::{Link, LocalAddr};
use vernic_wire::{Gid, Qpn};

use crate::device::limits::{MAX_MCAST_GROUPS, MAX_MCAST_QPS};
use crate::error::McastError;
use crate::lane::core::Lane;

/// A multicast group.
#[derive(Debug)]
struct Group {
    gid: Gid,
    /// The address on whose netdev it is joined; `None` while the device has none of its IP
    /// version.
    local: Option<LocalAddr>,
    members: Vec<Qpn>,
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

/// The groups of a lane.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Group>);

impl Groups {
    /// Returns the members of a group; `None` if it has none.
    #[inline]
    pub(super) fn members(&self, gid: Gid) -> Option<&[Qpn]> {
        self.0.iter().find(|group| group.gid == gid).map(|group| group.members.as_slice())
    }

    /// Adds a member. Joins the group on `local` if the member is the first. Returns false if the
    /// queue pair was a member already.
    fn add(
        &mut self,
        link: &mut dyn Link,
        qpn: Qpn,
        gid: Gid,
        local: LocalAddr,
    ) -> Result<bool, McastError> {
        let count = self.0.len();
        match self.0.iter_mut().find(|group| group.gid == gid) {
            Some(group) if group.members.contains(&qpn) => return Ok(false),
            Some(group) => group.add(qpn)?,
            None if count >= MAX_MCAST_GROUPS as usize => {
                return Err(McastError::Full { limit: MAX_MCAST_GROUPS });
            }
            None => {
                link.join(local, gid.to_ip())?;
                self.0.push(Group { gid, local: Some(local), members: vec![qpn] });
            }
        }
        Ok(true)
    }

    /// Removes a member; returns false if the queue pair was none.
    fn remove(&mut self, link: &mut dyn Link, qpn: Qpn, gid: Gid) -> bool {
        let Some(at) = self.0.iter().position(|group| group.gid == gid) else { return false };
        let members = &mut self.0[at].members;
        let Some(index) = members.iter().position(|&member| member == qpn) else { return false };
        members.swap_remove(index);
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
            link.leave(local, group.gid.to_ip());
        }
    }

    /// Notes that the link has given up the sockets of all groups.
    pub(super) fn forget_homes(&mut self) {
        self.0.iter_mut().for_each(|group| group.local = None);
    }
}

impl Lane {
    /// Adds an open queue pair to a multicast group, which is joined on `local` if it is new. Returns false if the queue pair was a member already.
    pub(crate) fn attach(
        &mut self,
        qpn: Qpn,
        gid: Gid,
        local: LocalAddr,
    ) -> Result<bool, McastError> {
        if self.table.find(qpn).is_none() {
            return Err(McastError::Destroyed(qpn));
        }
        self.groups.add(self.link.as_mut(), qpn, gid, local)
    }

    /// Takes a queue pair out of a multicast group.
    pub(crate) fn detach(&mut self, qpn: Qpn, gid: Gid) -> Result<(), McastError> {
        match self.groups.remove(self.link.as_mut(), qpn, gid) {
            true => Ok(()),
            false => Err(McastError::NotAttached { qpn, group: gid }),
        }
    }

    /// Ends the use of an address that is gone. The link gives up the sockets of the groups that
    /// were joined on it. Their members stay attached.
    pub(crate) fn lose_address(&mut self, local: LocalAddr) {
        self.link.deactivate(local);
        for group in self.groups.0.iter_mut().filter(|group| group.local == Some(local)) {
            group.local = None;
        }
    }

    /// Joins again the groups that have lost their address, on the first of `locals` with their IP
    /// version. That is the same address if it is back, otherwise another one.
    pub(crate) fn rejoin(&mut self, locals: &[LocalAddr]) {
        for group in self.groups.0.iter_mut().filter(|group| group.local.is_none()) {
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

    /// Returns the address that the first group is joined on.
    #[cfg(test)]
    pub(crate) fn first_home(&self) -> Option<LocalAddr> {
        self.groups.0[0].local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

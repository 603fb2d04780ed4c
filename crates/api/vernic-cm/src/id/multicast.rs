//! Multicast groups of datagram ids.
//!
//! On RoCE a group is an IP multicast address: its GID is the IPv6 address itself or the
//! IPv4-mapped one, so no subnet manager is asked for it. On InfiniBand subnet administration lets
//! the port into the group (`subnet.rs`), and the event waits for its answer. Joining attaches the
//! id's queue pair, when the event is taken, and the event reports where to send.

use std::net::SocketAddr;
use std::sync::Arc;

use vernic_engine::{AddressVector, McastError, Qkey, Qp, QpType};
use vernic_io::LocalAddr;
use vernic_io::udp::check_route;
use vernic_wire::sa::McMemberRecord;
use vernic_wire::{Gid, Qpn};

use crate::error::Error;
use crate::event::{EventKind, Param, UdInfo};
use crate::id::{Id, Inner};
use crate::param::UDP_QKEY;
use crate::registry::EntryContent;
use crate::route;

/// The IP hop limit of multicast: groups end at the link, as those of sockets do.
const MULTICAST_HOP_LIMIT: u8 = 1;

/// The kind of membership in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinState {
    /// The id sends and receives.
    FullMember,
    /// The id only sends: its queue pair is not attached.
    SendOnlyFullMember,
}

/// A group that an id has joined.
#[derive(Debug)]
pub(crate) struct Membership {
    addr: SocketAddr,
    gid: Gid,
    join: JoinState,
    context: usize,
    av: AddressVector,
    qkey: Qkey,
    /// The queue pair that was attached.
    attached: Option<Arc<Qp>>,
}

impl Membership {
    /// One that was asked for, and of which nothing else is known yet.
    pub(super) fn asked(addr: SocketAddr, gid: Gid, join: JoinState, context: usize) -> Self {
        let (av, qkey, attached) = (AddressVector::default(), UDP_QKEY, None);
        Self { addr, gid, join, context, av, qkey, attached }
    }

    pub(super) fn gid(&self) -> Gid {
        self.gid
    }

    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// Notes the answer of subnet administration.
    pub(super) fn joined(&mut self, av: AddressVector, record: &McMemberRecord) {
        (self.av, self.qkey) = (av, record.qkey);
    }

    pub(super) fn detach(&mut self) {
        if let Some(qp) = self.attached.take() {
            // A queue pair that was destroyed meanwhile is in no group.
            let _ = qp.detach_mcast(self.gid);
        }
    }
}

impl Id {
    /// Joins a multicast group: an IPv4 or IPv6 multicast address; the port is ignored.
    /// [`EventKind::MulticastJoin`] reports where to send, and carries `context`. From then on the
    /// id's queue pair, if the id has one at that time, receives what is sent to the group. A
    /// sender that has joined receives its own messages (IBTA 10.5.2.1).
    ///
    /// # Errors
    /// [`Error::NoDevice`] for an id that is bound to no address, [`Error::Value`] for an id that
    /// is not for datagrams, [`Error::Group`] for an address that is no group or for whose kind the
    /// device has no address, [`Error::NoRoute`] for a group without a route, [`Error::Joined`].
    pub fn join_multicast(
        &self,
        group: SocketAddr,
        join: JoinState,
        context: usize,
    ) -> Result<(), Error> {
        let mut inner = self.enter("join_multicast")?;
        let device = inner.device.as_ref().ok_or(Error::NoDevice { call: "join_multicast" })?;
        if self.qp_type() != QpType::Ud {
            return Err(Error::Value {
                what: "type of the id's queue pair",
                value: self.qp_type() as u64,
                allowed: "Ud (4)".to_owned(),
            });
        }
        if device.has_lids() {
            return self.join_in_subnet(&mut inner, group, join, context);
        }
        let gid = Gid::from_ip(group.ip());
        if !gid.is_multicast() {
            return Err(McastError::NotGroup(gid).into());
        }
        if inner.groups.iter().any(|member| member.gid == gid) {
            return Err(Error::Joined(group));
        }
        let own = inner.local.map(route::local);
        let of_kind = |row: &&vernic_engine::GidEntry| row.local.ip.is_ipv4() == group.is_ipv4();
        let rows = device.context.gid_table();
        let version = device.context.config().roce;
        let row = rows
            .iter()
            .filter(of_kind)
            .min_by_key(|row| (Some(row.local) != own, row.kind.roce_version() != version));
        let row = row.ok_or(McastError::NoAddress(gid))?;
        // Without a route, messages would be lost silently.
        let on_link = LocalAddr::new(group.ip(), device.context.info().port.netdev_index);
        route::source(Some(row.local.with_port(0)), on_link.with_port(0))?;
        if row.local.ip.is_loopback() {
            // A route of another netdev would satisfy the check above, and lead nowhere.
            check_route(row.local, group.ip()).map_err(McastError::from)?;
        }
        let av = AddressVector {
            dgid: gid,
            sgid_index: row.index,
            hop_limit: MULTICAST_HOP_LIMIT,
            traffic_class: inner.options.tos,
            port: row.port,
            ..AddressVector::default()
        };
        inner.groups.push(Membership { av, ..Membership::asked(group, gid, join, context) });
        self.shared.registry.push(self.key(), EntryContent::Joined { gid });
        Ok(())
    }

    /// Leaves a group. An untaken event of joining it is dropped.
    ///
    /// # Errors
    /// [`Error::NotJoined`].
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<(), Error> {
        let mut inner = self.enter("leave_multicast")?;
        let at = inner.groups.iter().position(|member| member.addr.ip() == group.ip());
        let mut member = inner.groups.swap_remove(at.ok_or(Error::NotJoined(group))?);
        member.detach();
        let gid = member.gid;
        self.shared.waits.drop_group(self.key(), gid);
        let of_group = |what: &EntryContent| matches!(what, EntryContent::Joined { gid: joined } if *joined == gid);
        self.shared.registry.withdraw(self.key(), of_group);
        Ok(())
    }

    /// Attaches the queue pair to a group that the id has joined: the work of the event.
    pub(crate) fn apply_joined(inner: &mut Inner, gid: Gid) -> Option<(EventKind, i32, Param)> {
        let qp = inner.qp.clone();
        let member = inner.groups.iter_mut().find(|member| member.gid == gid)?;
        let mut outcome = (EventKind::MulticastJoin, 0);
        if let Some(qp) = qp.filter(|_| member.join == JoinState::FullMember) {
            match qp.attach_mcast_at(gid, member.av.dlid) {
                Ok(()) => member.attached = Some(qp),
                Err(error) => {
                    tracing::warn!(group = %member.addr, %error, "cannot join");
                    outcome = (EventKind::MulticastError, -Error::from(error).errno());
                }
            }
        }
        let info = UdInfo {
            private_data: Vec::new(),
            av: member.av,
            qp_num: Qpn::MULTICAST,
            qkey: member.qkey,
            context: member.context,
        };
        Some((outcome.0, outcome.1, Param::Ud(info)))
    }
}

impl Inner {
    /// Leaves every group.
    pub(crate) fn leave_groups(&mut self) {
        self.leave_groups_of_qp();
        self.groups.clear();
    }

    /// Detaches the queue pair from every group.
    pub(crate) fn leave_groups_of_qp(&mut self) {
        self.groups.iter_mut().for_each(Membership::detach);
    }
}

//! Ids on an InfiniBand device: their addresses are those of IP interfaces, and their paths come
//! from subnet administration (IBTA annex A11, RFC 4391).
//!
//! | step | asked |
//! |---|---|
//! | bind | the host's interfaces: the port and the partition of an address |
//! | address | the interface's owner: the port that has the destination |
//! | route | subnet administration: the path for the service |
//! | group | subnet administration: to join |

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use vernic_attach::{GroupJoin, IpInterface, PathAsked, PathQuestion};
use vernic_engine::{AddressVector, Mtu, Pkey, PortNum};
use vernic_proto::cm::{CmPath, LidPath};
use vernic_wire::cm::PortSpace;
use vernic_wire::ipoib::{Scope, group_of};
use vernic_wire::sa::{McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::{Gid, Lid, Qkey, Qpn, StaticRate, sa};

use crate::device::Device;
use crate::error::Error;
use crate::event::{EventKind, Param, UdInfo};
use crate::fabric::Fabric;
use crate::id::bind::Purpose;
use crate::id::multicast::{JoinState, Membership};
use crate::id::native;
use crate::id::waits::{self, Answer, Finding, Poll};
use crate::id::{Id, Inner};
use crate::param::UDP_QKEY;
use crate::registry::EntryContent;
use crate::route;
use crate::state::State;

/// How long subnet administration has to let a port into a group: longer than its own repeats take.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Where the signature in the GID of a group says that the group is one of `rdma_cm`'s port space
/// UDP: 0x4001 or 0x6001 in place of IPoIB's 0x401B or 0x601B.
const SIGNATURE_AT: usize = 3;
/// What it says.
const SIGNATURE: u8 = 1;
/// Beginning of an IPv6 group that is a GID of subnet administration's own choice, without the
/// scope.
const ASSIGNED: [u8; 4] = [0xFF, 0x10, 0xA0, 0x1B];

impl Id {
    /// The name of the fabric and the host in it; `None` of ids whose transport is not InfiniBand.
    pub fn fabric_host(&self) -> Option<(&str, &str)> {
        self.shared.fabric.as_ref().map(|fabric| (fabric.name.as_str(), fabric.host.as_str()))
    }

    /// The host of the fabric; only of ids whose transport is InfiniBand.
    pub(super) fn fabric(&self, call: &'static str) -> Result<&Fabric, Error> {
        self.shared.fabric.as_ref().ok_or(Error::NoDevice { call })
    }

    /// Chooses the interface of a local address.
    pub(super) fn choose_interface(
        &self,
        inner: &mut Inner,
        device: &Device,
        ip: IpAddr,
    ) -> Result<(), Error> {
        if inner.interface.is_none() {
            let interface = match inner.native {
                Some(pkey) => native::interface_of(device, Gid::from_ip(ip), pkey)?,
                None => self.fabric("bind_addr")?.with_address(device, ip)?,
            };
            inner.interface = Some(Box::new(interface));
        }
        Ok(())
    }

    /// Resolves a destination: as [`Id::resolve_addr`] does.
    pub(super) fn resolve_in_subnet(
        &self,
        inner: &mut Inner,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let fabric = self.fabric("resolve_addr")?;
        let device = self.shared.devices.fabric()?;
        let from = src.map(|src| src.ip()).filter(|ip| !ip.is_unspecified());
        let (interface, own) = fabric.towards(&device, from, dst.ip())?;
        let found = SocketAddr::new(own, 0);
        let peer = match dst.ip().is_unspecified() {
            true => route::with_port(found, dst.port()),
            false => dst,
        };
        let question = match dst.ip().is_multicast() {
            true => None,
            false => Some(fabric.ask(&interface, peer)?),
        };
        let before = inner.interface.replace(Box::new(interface));
        if inner.state == State::Idle {
            let port = src.map_or(0, |src| src.port());
            let addr = route::with_port(found, port);
            if let Err(error) = self.bind_inner(inner, "resolve_addr", addr, Purpose::Connecting) {
                inner.interface = before;
                return Err(error);
            }
        }
        self.narrow(inner, found);
        (inner.device, inner.peer) = (Some(device), Some(peer));
        let Some(mut question) = question else {
            self.resolved(inner);
            return Ok(());
        };
        let poll: Poll = Box::new(move || match question.poll() {
            None => Finding::Asked,
            Some(Ok((_, record))) => Finding::Known(Answer::Address(Box::new(record))),
            Some(Err(error)) => {
                tracing::warn!(%peer, %error, "the address is not resolved");
                Finding::Failed(error.errno())
            }
        });
        self.begin_wait(inner, State::AddrQuery, timeout, poll)
    }

    /// The Q_Key of the id's datagrams: in the port space IPOIB that of the link.
    pub(super) fn qkey(&self, inner: &Inner) -> Qkey {
        let group = inner.interface.as_ref().and_then(|interface| interface.group.as_ref());
        match group {
            Some(group) if self.port_space() == PortSpace::IPOIB => group.qkey,
            _ => UDP_QKEY,
        }
    }

    /// Asks subnet administration for the path of the id's service.
    pub(super) fn resolve_route_in_subnet(
        &self,
        inner: &mut Inner,
        timeout: Duration,
    ) -> Result<(), Error> {
        let fabric = self.fabric("resolve_route")?;
        let (Some(path), Some(interface), Some(peer)) =
            (inner.path, inner.interface.as_deref(), inner.peer)
        else {
            return Err(Error::NoDevice { call: "resolve_route" });
        };
        let asked = PathAsked {
            sgid: path.local,
            dgid: path.remote,
            pkey: path.pkey,
            service: Some(self.port_space().service_id(peer.port())),
            traffic_class: (inner.options.tos != 0).then_some(inner.options.tos),
        };
        let mut question = PathQuestion::ask(&fabric.name, &fabric.host, interface.port, &asked)?;
        let poll: Poll = Box::new(move || match question.poll() {
            None => Finding::Asked,
            Some(Ok(record)) => Finding::Known(Answer::Route(Box::new(record))),
            Some(Err(error)) => {
                tracing::warn!(%peer, %error, "the route is not resolved");
                Finding::Failed(error.errno())
            }
        });
        self.begin_wait(inner, State::RouteQuery, timeout, poll)
    }

    /// Takes a path that the program has found itself, instead of resolving the route.
    /// [`EventKind::RouteResolved`] follows. Only InfiniBand has such paths.
    ///
    /// # Errors
    /// [`Error::State`] for an id whose address is not resolved; [`Error::NoSubnet`] on other
    /// devices.
    pub fn set_path(&self, record: &PathRecord) -> Result<(), Error> {
        let mut inner = self.enter("set_path")?;
        if inner.state != State::AddrResolved {
            return Err(self.wrong_state(&inner, "set_path", "has resolved its address"));
        }
        if !inner.device.as_ref().is_some_and(|device| device.has_lids()) {
            return Err(Error::NoSubnet);
        }
        inner.take_path(record);
        self.route_resolved(&mut inner);
        Ok(())
    }

    /// Joins a group: as [`Id::join_multicast`] does.
    pub(super) fn join_in_subnet(
        &self,
        inner: &mut Inner,
        group: SocketAddr,
        join: JoinState,
        context: usize,
    ) -> Result<(), Error> {
        let fabric = self.fabric("join_multicast")?;
        let interface = inner.interface.as_deref();
        let interface = interface.ok_or(Error::NoDevice { call: "join_multicast" })?;
        // A link that is down has no values for groups.
        let link = interface.group.as_ref().ok_or_else(|| Error::LinkDown {
            fabric: fabric.name.clone(),
            host: fabric.host.clone(),
            pkey: interface.pkey,
        })?;
        let (record, components) = self.member(interface, link, group.ip(), join)?;
        let gid = record.mgid;
        if inner.groups.iter().any(|member| member.gid() == gid) {
            return Err(Error::Joined(group));
        }
        let port = interface.port;
        let mut question =
            Some(GroupJoin::ask(&fabric.name, &fabric.host, port, &record, components)?);
        let poll: Poll = Box::new(move || match question.as_mut().and_then(GroupJoin::poll) {
            None => Finding::Asked,
            Some(Ok(record)) => match question.take() {
                Some(held) => Finding::Known(Answer::Group(Box::new((record, held)))),
                None => Finding::Asked,
            },
            Some(Err(error)) => {
                tracing::warn!(%group, %error, "the group is not joined");
                Finding::Failed(error.errno())
            }
        });
        self.shared.start_keeper()?;
        inner.groups.push(Membership::asked(group, gid, join, context));
        let purpose = waits::Purpose::Group(gid);
        self.shared.waits.add(self.key(), purpose, JOIN_TIMEOUT, poll);
        self.shared.worker.wake();
        Ok(())
    }

    /// The record that joins a group, and what of it counts: the values of the link's broadcast
    /// group, so that all of the link can join.
    fn member(
        &self,
        interface: &IpInterface,
        link: &McMemberRecord,
        ip: IpAddr,
        join: JoinState,
    ) -> Result<(McMemberRecord, MemberComponents), Error> {
        let is_udp = self.port_space() == PortSpace::UDP;
        let scope = Scope::new(link.scope);
        let mgid = group_gid(ip, interface.pkey, scope, is_udp)
            .ok_or_else(|| Error::from(vernic_engine::McastError::NotGroup(Gid::from_ip(ip))))?;
        let record = McMemberRecord {
            mgid,
            port_gid: interface.gid,
            qkey: if is_udp { UDP_QKEY } else { link.qkey },
            pkey: interface.pkey.to_full(),
            join_state: match join {
                JoinState::FullMember => sa::JoinState::FULL_MEMBER,
                JoinState::SendOnlyFullMember => sa::JoinState::SEND_ONLY_FULL_MEMBER,
            },
            mlid: Lid::RESERVED,
            ..*link
        };
        let mut components = MemberComponents::MGID
            | MemberComponents::PORT_GID
            | MemberComponents::PKEY
            | MemberComponents::JOIN_STATE
            | MemberComponents::QKEY
            | MemberComponents::SERVICE_LEVEL
            | MemberComponents::FLOW_LABEL
            | MemberComponents::TRAFFIC_CLASS;
        if self.port_space() == PortSpace::IPOIB {
            components |= MemberComponents::RATE
                | MemberComponents::RATE_SELECTOR
                | MemberComponents::MTU
                | MemberComponents::MTU_SELECTOR
                | MemberComponents::HOP_LIMIT;
        }
        Ok((record, components))
    }

    /// Ends the wait for a group with its outcome.
    pub(super) fn end_group_wait(
        &self,
        inner: &mut Inner,
        gid: Gid,
        outcome: Result<Answer, libc::c_int>,
    ) {
        let Some(at) = inner.groups.iter().position(|member| member.gid() == gid) else { return };
        match outcome {
            Ok(Answer::Group(joined)) => {
                let (record, held) = *joined;
                let port = inner.port_num();
                inner.groups[at].joined(group_vector(&record, port), &record);
                self.shared.registry.push(self.key(), EntryContent::Joined { gid });
                let purpose = waits::Purpose::Group(gid);
                self.shared.waits.watch(self.key(), purpose, poll_of_membership(held, gid));
            }
            Ok(_) => {}
            Err(errno) => {
                let mut member = inner.groups.swap_remove(at);
                member.detach();
                let info = UdInfo {
                    private_data: Vec::new(),
                    av: AddressVector::default(),
                    qp_num: Qpn::MULTICAST,
                    qkey: UDP_QKEY,
                    context: member.context(),
                };
                let (kind, status, param) = (EventKind::MulticastError, -errno, Param::Ud(info));
                let what = EntryContent::Decided { kind, status, param };
                self.shared.registry.push(self.key(), what);
            }
        }
    }
}

impl Inner {
    /// The port that the id is on.
    pub(super) fn port_num(&self) -> PortNum {
        let of_path = || Some(self.device.as_ref()?.port_of(&self.path?));
        match &self.interface {
            Some(interface) => interface.port,
            None => of_path().unwrap_or(PortNum(1)),
        }
    }

    /// The GID of the port that the id is on.
    pub(super) fn port_gid(&self) -> Option<Gid> {
        self.interface.as_ref().map(|interface| interface.gid).or(Some(self.path?.local))
    }

    /// The partition that the id is in.
    pub(super) fn pkey(&self) -> Pkey {
        let of_path = || self.path.map(|path| path.pkey);
        let of_interface = self.interface.as_ref().map(|interface| interface.pkey);
        of_interface.or_else(of_path).unwrap_or(Pkey::DEFAULT)
    }

    /// The row of the P_Key table with the id's partition, and the P_Key there.
    pub(super) fn pkey_row(&self) -> (u16, Pkey) {
        let row = |device: &Arc<Device>| device.context.pkey_row(self.port_num(), self.pkey());
        self.device.as_ref().and_then(row).unwrap_or((0, self.pkey()))
    }

    /// The largest path MTU that the path allows.
    pub(super) fn largest_mtu(&self, device: &Device) -> Mtu {
        let of_port = device.mtu(self.port_num());
        self.path_mtu.map_or(of_port, |mtu| mtu.min(of_port))
    }

    /// Takes the path of a record.
    pub(super) fn take_path(&mut self, record: &PathRecord) {
        let Some(device) = self.device.clone() else { return };
        let link = device.context.port_attr(self.port_num()).ok().and_then(|attr| attr.link);
        let lids = LidPath {
            port: self.port_num(),
            local: record.slid,
            remote: record.dlid,
            service_level: record.service_level.value(),
            lmc: link.map_or(0, |link| link.lmc),
            is_global: record.hop_limit > 1,
            rate: record.rate.value,
        };
        let (_, pkey) = self.pkey_row();
        self.path_mtu = Mtu::from_code(record.mtu.value);
        self.path = Some(CmPath {
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit,
            flow_label: record.flow_label,
            pkey,
            lids: Some(lids),
            ..CmPath::new(record.sgid, record.dgid)
        });
    }
}

/// Returns the poll of a membership, which the port has for as long as the poll is kept: it ends
/// when the port is out of the group, or the group has another LID than the queue pair knows.
fn poll_of_membership(mut held: GroupJoin, gid: Gid) -> Poll {
    Box::new(move || match held.poll() {
        None => Finding::Asked,
        Some(change) => {
            let error = change.err().map(|error| error.to_string());
            tracing::warn!(%gid, error, "the membership in a group has ended");
            Finding::Failed(libc::ENETRESET)
        }
    })
}

/// The GID of an IP group. The port space UDP has groups of its own, since IPoIB's have another
/// Q_Key.
fn group_gid(ip: IpAddr, pkey: Pkey, scope: Scope, is_udp: bool) -> Option<Gid> {
    if let IpAddr::V6(v6) = ip {
        let mut start = v6.octets();
        start[1] &= 0xF0;
        if start[..4] == ASSIGNED {
            return Some(Gid(v6.octets()));
        }
    }
    let mut gid = group_of(ip, pkey, scope)?;
    if is_udp {
        gid.0[SIGNATURE_AT] = SIGNATURE;
    }
    Some(gid)
}

/// The address vector of a path.
pub(crate) fn vector(device: &Device, path: &CmPath, lids: LidPath) -> AddressVector {
    let (port, row) = (device.port_of(path), device.context.gid_row(path.local));
    let mut av = AddressVector {
        sl: lids.service_level,
        dlid: lids.remote,
        path_bits: lids.path_bits(),
        static_rate: StaticRate(lids.rate).known_or_max(),
        port,
        ..AddressVector::default()
    };
    if lids.is_global {
        av.dgid = path.remote;
        av.sgid_index = row.map_or(0, |row| row.index);
        av.hop_limit = path.hop_limit;
        av.traffic_class = path.traffic_class;
        av.flow_label = path.flow_label;
    }
    av
}

/// The address vector of a group.
fn group_vector(record: &McMemberRecord, port: PortNum) -> AddressVector {
    AddressVector {
        dgid: record.mgid,
        hop_limit: record.hop_limit,
        traffic_class: record.traffic_class,
        flow_label: record.flow_label,
        sl: record.service_level.value(),
        dlid: record.mlid,
        static_rate: StaticRate(record.rate.value).known_or_max(),
        port,
        ..AddressVector::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_rdma_cm_have_a_signature_of_their_own() {
        let gid = |ip: &str, is_udp| {
            let gid = group_gid(ip.parse().unwrap(), Pkey(0xFFFF), Scope::LINK_LOCAL, is_udp);
            gid.unwrap().to_string()
        };
        assert_eq!(gid("239.77.2.1", false), "ff12:401b:ffff::f4d:201");
        assert_eq!(gid("239.77.2.1", true), "ff12:4001:ffff::f4d:201");
        assert_eq!(gid("ff02::1:2:3", true), "ff12:6001:ffff::1:2:3");
        assert_eq!(gid("ff12:a01b:fe80::7", true), "ff12:a01b:fe80::7", "as it is");
        let one = "192.0.2.1".parse().unwrap();
        assert_eq!(group_gid(one, Pkey(0xFFFF), Scope::LINK_LOCAL, true), None);
    }
}

//! The way from an address vector to a path that the link can take.
//!
//! Called by the control path: when a queue pair goes to RTR and when an address handle is made.
//! The peer of a connected queue pair is searched for among the processes of this host. That may
//! wait (for at most `peer_query_us`), and no lock is held meanwhile.

use std::net::IpAddr;
use std::time::Duration;

use vernic_io::host::{Lookup, Slot};
use vernic_io::netdev::HEADER_ALLOWANCE_BYTES;
use vernic_io::{Address, NoPath, OpenPath, PathRequest, TxPath};
use vernic_proto::AddressVector;
use vernic_wire::{Gid, Mtu, Qpn, RoceVersion};

use crate::config::EcnChoice;
use crate::device::opened::Device;
use crate::device::port::Port;
use crate::error::PathError;
use crate::local::watch::{HostProcess, PeerLocation};

/// The ECN field of packets that routers may mark: ECT(0) of RFC 3168.
const ECT_0: u8 = 2;
/// The bits of the ECN field in a traffic class. They are the device's, not the application's: a
/// packet that leaves with CE would slow its own sender down.
const ECN: u8 = 3;
/// The largest service level (IBTA 7.6.5).
const MOST_SERVICE_LEVEL: u8 = 15;

/// A usable path with the addresses that packets coming back must have.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) path: TxPath,
    pub(crate) peer: Address,
    pub(crate) local: Address,
    /// The process of this host that the path leads to, if any.
    pub(crate) location: PeerLocation,
}

impl Device {
    /// Returns the request for a link's path, for an address vector that may be used.
    pub(crate) fn path_request(&self, av: &AddressVector) -> Result<PathRequest, PathError> {
        let (port, index) = (self.port(av.port)?, av.sgid_index);
        let (remote, has_lids) = (av.dgid, self.rules().has_lids());
        let (local, roce) = match has_lids && remote.is_zero() {
            true => (Gid::default(), RoceVersion::default()),
            false => {
                let gids = port.gids();
                let rows = gids.iter().count();
                let row = gids.row(index).ok_or(PathError::NoSuchGid { index, rows })?;
                (row.gid, row.kind.roce_version())
            }
        };
        if !av.static_rate.is_known() {
            return Err(PathError::StaticRate { rate: av.static_rate });
        }
        if av.sl > MOST_SERVICE_LEVEL {
            return Err(PathError::ServiceLevel { level: av.sl });
        }
        if has_lids {
            check_lid(port, av)?;
        } else if remote.is_zero() {
            return Err(PathError::NoDestination);
        } else if !remote.is_multicast() {
            self.config().peers.check(remote.to_ip())?;
        }
        Ok(PathRequest {
            port: port.number(),
            local,
            remote,
            netdev_index: port.netdev_index(),
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            service_level: av.sl,
            flow_label: av.flow_label,
            dlid: av.dlid,
            path_bits: av.path_bits,
            roce,
            may_wait: true,
        })
    }

    /// Returns the path of an address vector. `entropy` chooses the number of its flow;
    /// [`Slot::flow`] turns the number into the flow of a slot.
    pub(crate) fn resolve(&self, av: &AddressVector, entropy: u32) -> Result<Resolved, PathError> {
        let to = self.path_request(av)?;
        let OpenPath { mut path, remote: peer, local } = self.open_path(av, &to)?;
        if self.carries_marks(&peer) {
            path = path.with_traffic_class(path.traffic_class() & !ECN);
        }
        if self.rules().has_lids() {
            return Ok(Resolved { path, peer, local, location: PeerLocation::NotHere });
        }
        if to.roce == RoceVersion::V1 {
            // The path may be the first, and the background thread is to receive on its sockets.
            self.waker().wake();
        }
        if matches!(peer, Address::RoceV1(_)) {
            return Ok(Resolved { path, peer, local, location: PeerLocation::NotHere });
        }
        let flow = (hash(entropy) % u32::from(self.config().flows)) as u16;
        Ok(Resolved { path: path.with_flow(flow), peer, local, location: PeerLocation::NotHere })
    }

    /// Checks that packets can be sent by an address vector, with what the system knows now. Never
    /// waits for a neighbour; one that is not known is asked for.
    pub(crate) fn check_path_now(&self, av: &AddressVector) -> Result<(), PathError> {
        let to = PathRequest { may_wait: false, ..self.path_request(av)? };
        self.open_path(av, &to).map(drop)
    }

    fn open_path(&self, av: &AddressVector, to: &PathRequest) -> Result<OpenPath, PathError> {
        self.port(to.port)?.open_path(to).map_err(|why| {
            let (index, sgid, dgid) = (av.sgid_index, to.local, to.remote);
            match why {
                NoPath::Family => PathError::Family { index, sgid, dgid },
                source => PathError::NoPath { index, sgid, dgid, source },
            }
        })
    }

    /// Whether an address belongs to this device.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        self.port_with(ip).is_some()
    }

    /// Returns the path of a connected queue pair `own` to `peer`. It leads to the peer's own port
    /// where the peer is a process of this host.
    pub(crate) fn resolve_peer(
        &self,
        av: &AddressVector,
        own: Qpn,
        peer: Qpn,
    ) -> Result<Resolved, PathError> {
        if av.dgid.is_multicast() {
            return Err(PathError::Multicast { dgid: av.dgid });
        }
        // UCX chooses the source ports of RoCE by a destination LID, which says nothing there.
        if self.rules().has_lids() && av.dlid.is_multicast() {
            return Err(PathError::MulticastLid { dlid: av.dlid });
        }
        let entropy = if av.flow_label != 0 { av.flow_label } else { own.value() };
        let mut resolved = self.resolve(av, entropy)?;
        if !self.carries_marks(&resolved.peer) {
            return Ok(resolved);
        }
        if self.packets_may_be_marked(av) {
            let class = resolved.path.traffic_class();
            resolved.path = resolved.path.with_traffic_class(class | ECT_0);
        }
        let flow = Slot::of(peer).flow(resolved.path.flow());
        resolved.path = resolved.path.with_flow(flow);
        let (ip, wait) = (av.dgid.to_ip(), Duration::from_micros(self.config().peer_query_us));
        let Some(process) = self.slots().query(ip, peer, wait) else {
            // The process may have been too busy to answer.
            if matches!(self.slots().lookup(ip, peer), Lookup::Asked | Lookup::Pending) {
                resolved.location = PeerLocation::Perhaps;
            }
            return Ok(resolved);
        };
        resolved.location = PeerLocation::Here(self.host_process(&process));
        if !self.config().force_wire {
            resolved.path = resolved.path.to_process(process.id());
            self.want_local_peer(Slot::of(peer), process.pid);
        }
        let path = &resolved.path;
        tracing::debug!(%own, %peer, pid = process.pid, %path, "peer is on this host");
        Ok(resolved)
    }

    /// Whether packets to or from an address have an IP header, in which routers mark them.
    pub(crate) fn carries_marks(&self, address: &Address) -> bool {
        !self.rules().has_lids() && matches!(address, Address::Gid(_))
    }

    /// Whether packets of a connected queue pair say that routers may mark them. With `auto` the
    /// traffic class may ask for it: recipes for RoCE name 106, which is DSCP 26 and ECT(0).
    fn packets_may_be_marked(&self, av: &AddressVector) -> bool {
        match self.config().ecn {
            EcnChoice::Auto => {
                self.config().congestion.needs_marks() || av.traffic_class & ECN != 0
            }
            EcnChoice::On => true,
            EcnChoice::Off => false,
        }
    }

    /// Returns a better path for a connected queue pair whose packets went unanswered, and the
    /// peer's process. The peer may be a process of this host that was too busy to answer when the
    /// queue pair went to RTR. Does not wait: the first call asks, a later call knows the answer.
    pub(crate) fn local_path(&self, path: &TxPath, peer: Qpn) -> Option<(TxPath, HostProcess)> {
        if path.is_local() || self.config().force_wire || self.rules().has_lids() {
            return None;
        }
        match self.slots().lookup(path.remote().to_ip(), peer) {
            Lookup::Here(process) => {
                let local = path.to_process(process.id());
                Some((local, self.host_process(&process)))
            }
            Lookup::NotHere | Lookup::Asked | Lookup::Pending => None,
        }
    }

    /// Refuses a path MTU that a port cannot carry.
    pub(crate) fn check_mtu(&self, port: &Port, wanted: Mtu) -> Result<(), PathError> {
        let active = port.active_mtu();
        if wanted <= active {
            return Ok(());
        }
        let netdev = port.netdev().to_owned();
        // If both the setting and the netdev forbid it, report the setting: only without it does
        // the netdev decide.
        if let Some(allowed) = self.config().mtu.filter(|&allowed| allowed < wanted) {
            return Err(PathError::MtuSetting { wanted, allowed, netdev });
        }
        let needed_bytes = wanted.bytes() + HEADER_ALLOWANCE_BYTES;
        Err(PathError::Mtu { wanted, active, netdev, needed_bytes })
    }
}

/// Refuses what an address vector of InfiniBand has wrong: a LID that is none, or a port without
/// one.
fn check_lid(port: &Port, av: &AddressVector) -> Result<(), PathError> {
    let (number, dlid) = (port.number().value(), av.dlid);
    if !dlid.is_unicast() && !dlid.is_multicast() {
        return Err(PathError::NoLid { dlid });
    }
    match port.link().filter(|link| !link.lid.is_unicast()) {
        Some(link) => Err(PathError::NoOwnLid { port: number, state: link.state }),
        None => Ok(()),
    }
}

/// Spreads consecutive numbers (the finaliser of MurmurHash3).
pub(crate) fn hash(mut n: u32) -> u32 {
    n ^= n >> 16;
    n = n.wrapping_mul(0x85EB_CA6B);
    n ^= n >> 13;
    n = n.wrapping_mul(0xC2B2_AE35);
    n ^ n >> 16
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use vernic_io::Peer;
    use vernic_wire::PortNum;

    use super::*;
    use crate::{Config, Context, QpCap, QpInit};

    #[test]
    fn a_path_through_the_shared_port_is_straightened_once_the_peer_is_known_to_be_near() {
        let context = Context::open(Some("lo"), Config::default()).unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let init = QpInit {
            service: vernic_wire::Service::Rc,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            signal_all: true,
            congestion: None,
        };
        let peer = context.alloc_pd().create_qp(init).unwrap();
        let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let shared = vernic_io::udp::path(home, (home, vernic_io::ROCE_PORT).into()).with_flow(1);
        let engine = context.engine();
        let (private, process) = engine.local_path(&shared, peer.qpn()).unwrap();
        assert_eq!(process.pid(), std::process::id());
        let Peer::LocalProcess(id) = private.peer() else { panic!("{private}") };
        assert_ne!(id.door, vernic_io::ROCE_PORT);
        assert_eq!(private, shared.to_process(id));
        assert!(engine.local_path(&private, peer.qpn()).is_none());
    }

    #[test]
    fn the_ecn_bits_of_a_traffic_class_are_the_settings() {
        let classes = |settings: [(&str, &str); 2], class: u8| {
            let mut config = Config::default();
            for (name, value) in settings {
                config.set(name, value).unwrap();
            }
            let context = Context::open(Some("lo"), config).unwrap();
            let dgid = context.gid_table()[0].gid;
            let av = AddressVector {
                dgid,
                traffic_class: class,
                port: PortNum(1),
                ..AddressVector::default()
            };
            let engine = context.engine();
            let connected = engine.resolve_peer(&av, Qpn::new(17), Qpn::new(18)).unwrap();
            let datagrams = engine.resolve(&av, 0).unwrap();
            (connected.path.traffic_class(), datagrams.path.traffic_class())
        };
        let aimd = ("congestion", "aimd");
        assert_eq!(classes([aimd, ("ecn", "auto")], 104), (104, 104));
        assert_eq!(classes([aimd, ("ecn", "auto")], 106), (106, 104));
        // No packet leaves with CE.
        assert_eq!(classes([aimd, ("ecn", "auto")], 107), (106, 104));
        assert_eq!(classes([aimd, ("ecn", "off")], 107), (104, 104));
        assert_eq!(classes([("congestion", "dcqcn"), ("ecn", "off")], 106), (104, 104));
        assert_eq!(classes([("congestion", "dcqcn"), ("ecn", "auto")], 0), (2, 0));
        assert_eq!(classes([aimd, ("ecn", "on")], 0), (2, 0));
    }
}

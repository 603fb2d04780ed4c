//! Ids whose addresses are InfiniBand's own (`AF_IB`): a GID with a partition and a port instead of
//! an IP address with a port.
//!
//! They need no IP interface. Their requests have no header with IP addresses, so all private data
//! is the program's. Inside the id the GID stands where the IP address does otherwise.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use vernic_attach::IpInterface;
use vernic_engine::{GidEntry, Pkey, Transport};
use vernic_proto::cm::CmPath;
use vernic_wire::{Gid, Guid};

use crate::device::Device;
use crate::error::Error;
use crate::id::bind::Purpose;
use crate::id::{Id, Inner};
use crate::state::State;

/// An address of InfiniBand's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidAddr {
    /// The GID of a port; zero for any.
    pub gid: Gid,
    /// The port of the id's port space: the low 16 bits of the service id.
    pub port: u16,
    /// The partition; 0 for the default one.
    pub pkey: Pkey,
}

impl GidAddr {
    /// The address in the form that ids keep.
    fn kept(self) -> SocketAddr {
        SocketAddrV6::new(Ipv6Addr::from(self.gid.0), self.port, 0, 0).into()
    }
}

/// The first 8 bytes of a GID: the subnet.
fn prefix(gid: Gid) -> [u8; 8] {
    std::array::from_fn(|at| gid.0[at])
}

impl Id {
    /// Binds the id to a GID and a port: as [`bind_addr`](Self::bind_addr) does.
    ///
    /// # Errors
    /// [`Error::NoSubnet`] on devices other than InfiniBand's; [`Error::NoGid`] for a GID that no
    /// port has; those of [`bind_addr`](Self::bind_addr).
    pub fn bind_gid(&self, addr: GidAddr) -> Result<(), Error> {
        let mut inner = self.enter("bind_gid")?;
        let before = make_native(&mut inner, addr.pkey)?;
        let bound = self.bind_inner(&mut inner, "bind_gid", addr.kept(), Purpose::Unknown);
        if bound.is_err() {
            (inner.native, inner.interface) = before;
        }
        bound
    }

    /// Resolves a GID to the port of this host that is in its subnet, or to the port with the GID
    /// `src`: as [`resolve_addr`](Self::resolve_addr) does. The event comes at once.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::NoSubnet`], [`Error::NoGid`]; those of
    /// [`bind_addr`](Self::bind_addr).
    pub fn resolve_gid(&self, src: Option<GidAddr>, dst: GidAddr) -> Result<(), Error> {
        let mut inner = self.enter("resolve_gid")?;
        let bound = match inner.state {
            State::Idle => None,
            State::Bound if inner.native.is_some() => inner.local,
            _ => return Err(self.wrong_state(&inner, "resolve_gid", "is new or bound to a GID")),
        };
        let before = make_native(&mut inner, dst.pkey)?;
        let resolved = self.resolve_native(&mut inner, bound, src, dst);
        if resolved.is_err() {
            (inner.native, inner.interface) = before;
        }
        resolved
    }

    fn resolve_native(
        &self,
        inner: &mut Inner,
        bound: Option<SocketAddr>,
        src: Option<GidAddr>,
        dst: GidAddr,
    ) -> Result<(), Error> {
        let device = self.shared.devices.fabric()?;
        let of = |addr: SocketAddr| Gid::from_ip(addr.ip());
        let own = bound.map(of).or(src.map(|src| src.gid)).filter(|gid| !gid.is_zero());
        let row = match own {
            Some(own) => own_row(&device, |row| row.gid == own, own)?,
            None => own_row(&device, |row| prefix(row.gid) == prefix(dst.gid), dst.gid)?,
        };
        let pkey = inner.native.unwrap_or_default();
        inner.interface = Some(Box::new(interface(&device, &row, pkey)));
        let found = GidAddr { gid: row.gid, port: src.map_or(0, |src| src.port), pkey }.kept();
        if inner.state == State::Idle {
            self.bind_inner(inner, "resolve_gid", found, Purpose::Connecting)?;
        }
        self.narrow(inner, found);
        inner.device = Some(device);
        inner.peer = Some(dst.kept());
        let (_, pkey) = inner.pkey_row();
        inner.path = Some(CmPath { pkey, ..CmPath::new(row.gid, dst.gid) });
        self.resolved(inner);
        Ok(())
    }

    /// Whether the id's addresses are GIDs: [`local_addr`](Self::local_addr) and
    /// [`peer_addr`](Self::peer_addr) have them in the form of IPv6 addresses.
    pub fn is_native(&self) -> bool {
        self.look(|inner| inner.native.is_some()).unwrap_or(false)
    }
}

/// What of an id says where it is, and is put back if a step fails.
type Before = (Option<Pkey>, Option<Box<IpInterface>>);

/// Makes the id one of GIDs, in a partition: a bound one stays in its own. Returns what was before.
fn make_native(inner: &mut Inner, pkey: Pkey) -> Result<Before, Error> {
    if inner.transport != Transport::InfiniBand {
        return Err(Error::NoSubnet);
    }
    let before = (inner.native, inner.interface.clone());
    let pkey = if pkey == Pkey(0) { Pkey::DEFAULT } else { pkey };
    if inner.state == State::Idle {
        inner.native = Some(pkey);
        inner.interface = None;
    }
    Ok(before)
}

/// The row of the GID table that suits; `wanted` is for the error.
fn own_row(
    device: &Device,
    suits: impl Fn(&GidEntry) -> bool,
    wanted: Gid,
) -> Result<GidEntry, Error> {
    let all = device.context.gid_table();
    let present = || {
        let gids: Vec<_> = all.iter().map(|row| row.gid.to_string()).collect();
        gids.join(", ")
    };
    let name = || device.context.info().name.clone();
    let found = all.iter().find(|row| suits(row)).cloned();
    found.ok_or_else(|| Error::NoGid { device: name(), wanted, present: present() })
}

/// A port in the form of an interface without IP addresses.
fn interface(device: &Device, row: &GidEntry, pkey: Pkey) -> IpInterface {
    IpInterface {
        guid: Guid(device.context.info().node_guid),
        port: row.port,
        pkey,
        gid: row.gid,
        mtu: None,
        addresses: Vec::new(),
        group: None,
    }
}

/// The port with the GID that an id is bound to.
pub(super) fn interface_of(device: &Device, gid: Gid, pkey: Pkey) -> Result<IpInterface, Error> {
    let row = own_row(device, |row| row.gid == gid, gid)?;
    Ok(interface(device, &row, pkey))
}

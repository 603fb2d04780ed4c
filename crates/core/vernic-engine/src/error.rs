//! Errors of the control path. Each message says what caused the error, with the values, and what
//! to do about it.
//!
//! Owns the error types that several objects share. Errors of posting, on the data path, are in
//! `qp.rs` and `recv_queue.rs`, beside the code that raises them. Configuration errors are in
//! `config.rs`.

use std::fmt;
use std::io;
use std::net::IpAddr;

use vernic_io::PortState;
use vernic_io::host::SlotError;
use vernic_io::netdev::{NetDevError, Unusable};
use vernic_io::{LinkError, NoPath};
use vernic_mem::{DeregisterError, RegisterError};
use vernic_proto::congestion::ParamError;
use vernic_wire::{Gid, Lid, Mtu, Qpn, Service, StaticRate};

use crate::config::{ConfigError, PeerRefused};

/// The error message of calls on an object that this process has inherited by `fork`.
pub(crate) const ORPHAN: &str = "made by the process that this one was forked from, and unusable \
                                 here: open the device again in this process";

/// The error message of calls on an object whose device was closed.
pub(crate) const CLOSED: &str =
    "the device was closed: nothing is left to do but to destroy what is left of it";

/// Returns EIO, the error of calls on an inherited object ([`ORPHAN`]) that can return system
/// errors only.
pub(crate) fn orphan_io() -> io::Error {
    nix::errno::Errno::EIO.into()
}

/// The reason why a device was not opened, or devices were not listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No device has this name.
    #[error("there is no device {name:?}; this machine has: {present}")]
    NoSuchDevice {
        /// Name asked for.
        name: String,
        /// Names that exist.
        present: String,
    },
    /// No device has this address.
    #[error("no device has the address {address}; this machine has: {present}")]
    NoSuchAddress {
        /// Address asked for.
        address: IpAddr,
        /// Devices that exist, with their addresses.
        present: String,
    },
    /// The netdev asked for exists, but is down or has no address.
    #[error("there is no device on {}: {netdev}", netdev.name)]
    Unusable {
        /// The netdev, with the reason why it cannot be used.
        netdev: Unusable,
    },
    /// The fabric that the settings name, or its host, is not there.
    #[error("cannot use host {host:?} of fabric {fabric:?}: {source}")]
    Fabric {
        /// The setting `fabric`.
        fabric: String,
        /// The setting `host`.
        host: String,
        /// What is wrong, and what to do.
        source: std::io::Error,
    },
    /// There is no device at all.
    #[error("there is no device, for no netdev is up and has an address: {netdevs}")]
    NoDevice {
        /// The netdevs of this machine, each with the reason why it cannot be used.
        netdevs: String,
    },
    /// The netdev exists but has no usable IP address.
    #[error(
        "{device} ({netdev}) has no usable IP address: give it one, as `ip address add ADDR dev {netdev}`"
    )]
    NoAddress {
        /// The device.
        device: String,
        /// The netdev of the device.
        netdev: String,
    },
    /// The netdev's MTU is too small for any path MTU.
    #[error(
        "{device}: the MTU of {netdev} is {netdev_mtu_bytes} bytes, but the smallest path MTU, 256, needs {needed_bytes}: raise it with `ip link set {netdev} mtu 1500`"
    )]
    MtuTooSmall {
        /// The device.
        device: String,
        /// The netdev of the device.
        netdev: String,
        /// MTU of the netdev.
        netdev_mtu_bytes: u32,
        /// MTU that the netdev would need.
        needed_bytes: u32,
    },
    /// The setting `mtu` is larger than the MTU of the netdev permits.
    #[error(
        "{device}: the setting mtu (VERNIC_MTU) is {wanted}, which does not fit {netdev}, whose MTU is {netdev_mtu_bytes} bytes; the largest that fits is {fits}, and 0 takes that"
    )]
    MtuTooLarge {
        /// The device.
        device: String,
        /// The netdev of the device.
        netdev: String,
        /// The MTU asked for.
        wanted: Mtu,
        /// The largest path MTU that fits the MTU of the netdev.
        fits: Mtu,
        /// MTU of the netdev.
        netdev_mtu_bytes: u32,
    },
    /// A setting about packets of RoCE was given for a device that has none: iWARP, whose bytes TCP
    /// carries, or InfiniBand.
    #[error(
        "{device} has no packets of RoCE, which the setting {setting} (VERNIC_{}) is about; unset it ({instead})",
        setting.to_uppercase()
    )]
    NoPackets {
        /// The device.
        device: String,
        /// The setting.
        setting: &'static str,
        /// The alternative to the setting.
        instead: &'static str,
    },
    /// The settings ask for RoCEv1, and the netdev has none.
    #[error(
        "{device} ({netdev}) has no RoCEv1, which the setting roce=v1 (VERNIC_ROCE) asks for: {reason}"
    )]
    NoRoceV1 {
        /// The device.
        device: String,
        /// The netdev.
        netdev: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The UDP port or an address of the device cannot be used.
    #[error("{device}: {source}")]
    Link {
        /// The device.
        device: String,
        /// Why.
        source: LinkError,
    },
    /// The sockets by which processes of this host find each other cannot be opened.
    #[error("{device}: {source}")]
    Slot {
        /// The device.
        device: String,
        /// Why.
        source: SlotError,
    },
    /// The netdevs cannot be listed.
    #[error(transparent)]
    NetDev(#[from] NetDevError),
    /// A middleware of the link (capture, faults, trace) cannot be made from its setting.
    #[error("{setting} = {value:?}: {reason}")]
    Middleware {
        /// The setting.
        setting: &'static str,
        /// The value of the setting.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The reason why an object was not created. Nothing changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The device was closed.
    #[error("{}", CLOSED)]
    Closed,
    /// A size is outside of the device's limits.
    #[error("{what} is {value}, the device allows {min} to {max}")]
    Limit {
        /// The attribute.
        what: &'static str,
        /// The value asked for.
        value: u64,
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// Queue pairs of this service cannot be created by this call.
    #[error("{0:?} queue pairs cannot be made so: Rc, Uc and Ud are; XRC has its own calls")]
    Service(Service),
    /// The call needs something that iWARP devices do not have.
    #[error("{device} is an iWARP device, which has no {what}: its queue pairs are Rc")]
    NotOnIwarp {
        /// The name of the device.
        device: String,
        /// The thing that iWARP devices do not have.
        what: &'static str,
    },
    /// A queue pair of another service than XRC was to receive from a shared receive queue of an
    /// XRC domain.
    #[error("the shared receive queue belongs to an XRC domain: only XRC targets receive from it")]
    XrcSrq,
    /// The congestion control's parameters are out of range, or contradict each other.
    #[error("congestion control: {0}")]
    Congestion(#[from] ParamError),
    /// Two objects of the call belong to different devices.
    #[error("{what} belongs to another device than its protection domain")]
    OtherDevice {
        /// The object of the other device.
        what: &'static str,
    },
    /// All queue pair numbers of the device's process slots are in use, and the host has no free
    /// process slot.
    #[error("no queue pair number is left ({open} open): {source}")]
    NoQpn {
        /// Queue pairs open.
        open: usize,
        /// The reason why the device did not get another process slot.
        source: SlotError,
    },
    /// The address vector cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The memory layer (`vernic-mem`) refused.
    #[error(transparent)]
    Memory(#[from] RegisterError),
    /// The region would not lie inside its device memory.
    #[error(transparent)]
    DeviceMemory(#[from] DmRangeError),
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> CreateError {
    CreateError::Os { what, source: source.into() }
}

/// The error of an attempt to destroy an object that other objects still use. Nothing changed (IBTA
/// 11.2: destroy fails with "in use").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} is in use by {users} {by}; destroy them first")]
pub struct Busy {
    /// The kind of the object that was to be destroyed.
    pub object: &'static str,
    /// The number of objects that use it.
    pub users: u32,
    /// The kind of the objects that use it.
    pub by: &'static str,
}

/// The error of a completion queue that was full when a completion came. That completion is lost.
/// The queue has failed, and so have all queue pairs that lost a completion (IBTA 11.6.3.1). The
/// queue can only be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the completion queue of {depth} entries overflowed and lost completions: make it as deep as all queues that feed it together"
)]
pub struct CqOverrun {
    /// Completions that the queue holds.
    pub depth: u32,
}

/// The reason why an address vector cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The row of the GID table that was chosen as source is empty or does not exist.
    #[error("sgid_index {index} names no GID: the table has {rows} (see `vernic info`)")]
    NoSuchGid {
        /// The row that was chosen as source.
        index: u8,
        /// The number of rows that are filled.
        rows: usize,
    },
    /// The static rate is none that is known.
    #[error("static rate {} is none: allowed are {}", .rate.0, StaticRate::KNOWN)]
    StaticRate {
        /// The code.
        rate: StaticRate,
    },
    /// The service level does not fit its four bits.
    #[error("service level {level} is none: 0 to 15 are allowed")]
    ServiceLevel {
        /// The level.
        level: u8,
    },
    /// The destination GID is zero.
    #[error("the destination GID is zero: a RoCE address vector needs the peer's GID")]
    NoDestination,
    /// The destination LID is of no port and no group.
    #[error(
        "the destination LID {dlid} is none of a port or group: an address vector of InfiniBand needs the peer's LID, 0x0001 to 0xbfff, or a group's"
    )]
    NoLid {
        /// The destination.
        dlid: Lid,
    },
    /// Subnet administration tells no path to the destination.
    #[error("no path to {dgid} within the fabric: {why}")]
    NoRecord {
        /// The destination.
        dgid: Gid,
        /// The reason, as text.
        why: String,
    },
    /// The port itself has no LID.
    #[error(
        "port {port} has no LID yet (its state is {state:?}): no subnet manager has set up the fabric; start one (`opensm`)"
    )]
    NoOwnLid {
        /// The number of the port.
        port: u8,
        /// The state of the port.
        state: PortState,
    },
    /// A connected queue pair cannot send to a group.
    #[error("{dlid} is a multicast LID: only datagrams go to groups")]
    MulticastLid {
        /// The destination.
        dlid: Lid,
    },
    /// Source and destination have different IP versions.
    #[error(
        "source GID {sgid} (row {index}) and destination {dgid} are of different IP versions; choose a row of the peer's kind"
    )]
    Family {
        /// The row of the GID table that was chosen as source.
        index: u8,
        /// Source.
        sgid: Gid,
        /// Destination.
        dgid: Gid,
    },
    /// The link of the device has no path to the destination.
    #[error(
        "the device's link has no path from {sgid} (row {index}) to {dgid}: {source}; is the peer up, and on the same network as this port?"
    )]
    NoPath {
        /// The row of the GID table that was chosen as source.
        index: u8,
        /// Source.
        sgid: Gid,
        /// Destination.
        dgid: Gid,
        /// The reason that the link gave.
        source: NoPath,
    },
    /// A connected queue pair cannot send to a multicast group.
    #[error("destination {dgid} is a multicast group, which only UD can reach")]
    Multicast {
        /// Destination.
        dgid: Gid,
    },
    /// The setting `peers` does not allow the destination.
    #[error("destination {0}")]
    NotAllowed(#[from] PeerRefused),
    /// The path MTU is larger than the port's active MTU.
    #[error(
        "path MTU {wanted} exceeds the port's active MTU {active}: use that, or `ip link set {netdev} mtu {needed_bytes}` at both ends"
    )]
    Mtu {
        /// The path MTU asked for.
        wanted: Mtu,
        /// The port's active MTU.
        active: Mtu,
        /// The netdev.
        netdev: String,
        /// MTU that the netdev would need.
        needed_bytes: u32,
    },
    /// The path MTU exceeds what the setting `mtu` allows.
    #[error(
        "path MTU {wanted} exceeds {allowed}, which the setting mtu (VERNIC_MTU) allows: use that, or raise the setting (0 takes the largest that fits {netdev})"
    )]
    MtuSetting {
        /// The path MTU asked for.
        wanted: Mtu,
        /// The setting.
        allowed: Mtu,
        /// The netdev.
        netdev: String,
    },
    /// A port that the device does not have.
    #[error("port {port} does not exist: {}", PortRange(*ports))]
    Port {
        /// The port asked for.
        port: u8,
        /// The number of ports of the device.
        ports: usize,
    },
}

/// The ports of a device, as a message names them.
struct PortRange(usize);

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => write!(f, "the device has port 1"),
            ports => write!(f, "the device has ports 1 to {ports}"),
        }
    }
}

/// The reason why a queue pair was not modified. Nothing changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The device was closed.
    #[error("{}", CLOSED)]
    Closed,
    /// The state machine refused.
    #[error("queue pair {qpn}: {source}")]
    State {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        source: vernic_proto::ModifyError,
    },
    /// The path cannot be used.
    #[error("queue pair {qpn}: {source}")]
    Path {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        source: PathError,
    },
    /// The index into the P_Key table names no partition.
    #[error(
        "queue pair {qpn}: P_Key index {index} names no partition: the table has {rows} rows, and a subnet manager fills those of InfiniBand ports"
    )]
    Pkey {
        /// The queue pair.
        qpn: Qpn,
        /// The index of the P_Key that was given.
        index: u16,
        /// The number of rows, with or without a partition.
        rows: u16,
    },
    /// The queue pair was destroyed.
    #[error("queue pair {0} was destroyed")]
    Destroyed(Qpn),
}

/// The reason why a completion queue was not resized, or a shared receive queue not modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The size is beyond the device's limit.
    #[error("{value} entries, the device allows 1 to {max}")]
    Limit {
        /// The size asked for.
        value: u32,
        /// The largest size allowed.
        max: u32,
    },
    /// The queue holds more entries than the new size allows.
    #[error("{held} entries are queued, {value} would not hold them: poll first")]
    Held {
        /// The size asked for.
        value: u32,
        /// Entries in the queue.
        held: u32,
    },
    /// The limit of the shared receive queue (below which it raises an event) is larger than its
    /// size.
    #[error("SRQ limit {limit} exceeds its size {size}")]
    SrqLimit {
        /// The limit asked for.
        limit: u32,
        /// The size of the queue.
        size: u32,
    },
}

/// The reason why a memory region or window was not freed. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// The memory layer (`vernic-mem`) refused.
    #[error(transparent)]
    Memory(#[from] DeregisterError),
}

/// The reason why a queue pair was not attached to a multicast group or not detached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McastError {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The queue pair is not UD; only UD queue pairs join multicast groups.
    #[error("queue pair {qpn} is {service:?}: only UD queue pairs join multicast groups")]
    Service {
        /// The queue pair.
        qpn: Qpn,
        /// The service of the queue pair.
        service: Service,
    },
    /// The queue pair was destroyed.
    #[error("queue pair {0} was destroyed")]
    Destroyed(Qpn),
    /// The GID is not a multicast GID.
    #[error("{0} is no multicast GID (ff00::/8, or ::ffff:224.0.0.0/4)")]
    NotGroup(Gid),
    /// The device is already in the largest possible number of groups.
    #[error("the device is in {limit} multicast groups, its limit")]
    Full {
        /// The largest possible number of groups.
        limit: u32,
    },
    /// The group already has the largest possible number of queue pairs of this device.
    #[error("{group} has {limit} queue pairs of this device, its limit")]
    GroupFull {
        /// The group.
        group: Gid,
        /// The largest possible number of queue pairs of this device in a group.
        limit: u32,
    },
    /// The queue pair was to be detached, but is not attached.
    #[error("queue pair {qpn} is not attached to {group}")]
    NotAttached {
        /// The queue pair.
        qpn: Qpn,
        /// The group.
        group: Gid,
    },
    /// The device has no address of the group's IP version.
    #[error("the device has no address of the IP version of {0}")]
    NoAddress(Gid),
    /// The link refused.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The error for a range that does not lie inside the device memory. Nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} leave the {size} bytes of this device memory")]
pub struct DmRangeError {
    /// The first byte of the range.
    pub offset: u64,
    /// The length of the range, in bytes.
    pub len: u64,
    /// The size of the device memory, in bytes.
    pub size: u64,
}

/// Checks a size against the device's limits.
pub(crate) fn check_limit(
    what: &'static str,
    value: u32,
    min: u32,
    max: u32,
) -> Result<(), CreateError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let (value, min, max) = (u64::from(value), u64::from(min), u64::from(max));
    Err(CreateError::Limit { what, value, min, max })
}

//! Errors of the connection manager: each carries the values, what helps, and the errno that C
//! programs expect.

use std::io;
use std::net::SocketAddr;

use libc::c_int;
use vernic_attach::AttachError;
use vernic_engine::iwarp::{ConnectError, StartError};
use vernic_engine::{
    CmCallError, LinkError, ListenError, McastError, ModifyError, OpenError, PathError, QpType,
};
use vernic_io::NameError;
use vernic_proto::cm::CmError;
use vernic_wire::Gid;
use vernic_wire::cm::{AprStatus, PortSpace};

use crate::event::EventKind;
use crate::state::State;

/// Why a call of the connection manager failed. Nothing changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object belongs to the parent process: this process was forked later.
    #[error(
        "made by the process that this one was forked from, and unusable here: make ids and event \
         channels anew in this process"
    )]
    Orphan,
    /// No id can be made in this port space with this type of queue pair.
    #[error(
        "{port_space} has no ids for {qp_type:?} queue pairs: TCP has Rc and Uc, UDP and IPOIB have \
         Ud, IB has all"
    )]
    PortSpace {
        /// The port space.
        port_space: PortSpace,
        /// The type.
        qp_type: QpType,
    },
    /// The id is not in a state that allows the call.
    #[error("{call} needs an id that {needs}, and this one ({id}) is in state {state:?}")]
    State {
        /// The call.
        call: &'static str,
        /// The state that the call needs.
        needs: &'static str,
        /// The addresses of the id.
        id: String,
        /// The state of the id.
        state: State,
    },
    /// The addresses are of different IP versions.
    #[error("{src} and {dst} are of different IP versions")]
    Family {
        /// The source.
        src: SocketAddr,
        /// The destination.
        dst: SocketAddr,
    },
    /// A link-local address names no netdev.
    #[error("{0} is link-local and names no netdev: give its scope id, as fe80::1%eth0 in text")]
    Scope(SocketAddr),
    /// No device has the address, or none can be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The system has no route.
    #[error("there is no route to {dst}{from}: {source}{hint}", from = from(*.src), hint = hint(*.src, *.dst))]
    NoRoute {
        /// The source that was asked for.
        src: Option<SocketAddr>,
        /// The destination.
        dst: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The host of the fabric has no IP interface that suits.
    #[error(
        "host {host} of fabric {fabric} has no IP interface {wanted}; its addresses: {present}. `vernic \
         fabric ipoib {fabric} {host} --address ADDRESS/LENGTH` makes one (with --no-device without root)"
    )]
    NoInterface {
        /// The fabric.
        fabric: String,
        /// The host.
        host: String,
        /// What the interface must have.
        wanted: String,
        /// The addresses that there are.
        present: String,
    },
    /// The link of the IP interface is down.
    #[error(
        "the IP interface of host {host} of fabric {fabric} in partition {pkey} is down: usually no subnet \
         manager runs (`vernic fabric up --sm` has one), or it has not let the port into the partition"
    )]
    LinkDown {
        /// The fabric.
        fabric: String,
        /// The host.
        host: String,
        /// The partition.
        pkey: vernic_wire::Pkey,
    },
    /// Only an InfiniBand device has GIDs for addresses, and paths that a program may choose.
    #[error(
        "GIDs as addresses (AF_IB) and paths of the program's own are for devices of InfiniBand: RoCE and \
         iWARP have IP addresses"
    )]
    NoSubnet,
    /// No port has the GID, or one in its subnet.
    #[error("{device} has no port for {wanted}; its GIDs: {present}")]
    NoGid {
        /// The device.
        device: String,
        /// The GID.
        wanted: vernic_wire::Gid,
        /// The GIDs that there are.
        present: String,
    },
    /// The fabric process, or the owner of an IP interface, cannot be asked.
    #[error(transparent)]
    Fabric(#[from] AttachError),
    /// The port is taken.
    #[error("port {} of {port_space} is in use on {addr} by {by}", .addr.port())]
    InUse {
        /// The port space.
        port_space: PortSpace,
        /// The address and port.
        addr: SocketAddr,
        /// What uses the port.
        by: String,
        /// Whether either side uses the port on all addresses of this machine: the kernel's rdma_cm
        /// then returns another errno than for one address.
        everywhere: bool,
    },
    /// Every ephemeral port is taken.
    #[error(
        "all ephemeral ports of {port_space} are in use (net.ipv4.ip_local_port_range: {first} to \
         {last})"
    )]
    NoPort {
        /// The port space.
        port_space: PortSpace,
        /// The first port of the range.
        first: u16,
        /// The last port of the range.
        last: u16,
    },
    /// Only privileged programs may bind the port.
    #[error(
        "port {port} is below {first} (net.ipv4.ip_unprivileged_port_start), and this program may not have \
         it: it needs the capability CAP_NET_BIND_SERVICE"
    )]
    Privileged {
        /// The port.
        port: u16,
        /// The first port that every program may bind.
        first: u16,
    },
    /// The call needs a device, and the id has none yet.
    #[error("{call} needs an id with a device: bind it to an address, or resolve one, first")]
    NoDevice {
        /// The call.
        call: &'static str,
    },
    /// The call needs a queue pair.
    #[error("{call} needs the queue pair of the id: attach one, or name it in the parameters")]
    NoQp {
        /// The call.
        call: &'static str,
    },
    /// The id has a queue pair already.
    #[error("the id has queue pair {0} already: detach that first")]
    HasQp(vernic_wire::Qpn),
    /// The queue pair does not fit the id.
    #[error("queue pair {qpn} {what}")]
    WrongQp {
        /// The queue pair.
        qpn: vernic_wire::Qpn,
        /// What does not fit.
        what: String,
    },
    /// The queue pair refused the transition.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The message has no room for so much private data.
    #[error("{given} bytes of private data, and {call} of {kind} carries at most {max}")]
    TooLong {
        /// The call.
        call: &'static str,
        /// What the call is for: a connection or datagrams.
        kind: &'static str,
        /// The bytes given.
        given: usize,
        /// The most bytes.
        max: usize,
    },
    /// A value is out of range.
    #[error("{what} is {value}, allowed: {allowed}")]
    Value {
        /// The name of the value.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The values allowed.
        allowed: String,
    },
    /// The multicast group cannot be joined or left.
    #[error(transparent)]
    Group(#[from] McastError),
    /// The id has not joined the group.
    #[error("the id has not joined {0}")]
    NotJoined(SocketAddr),
    /// The id has joined the group already.
    #[error("the id has joined {0} already: leave it first")]
    Joined(SocketAddr),
    /// The channel belongs to another manager than the id.
    #[error("the event channel belongs to another manager than the id")]
    OtherManager,
    /// An event reported a failure.
    #[error("{kind:?} with status {status}{}", words(*.status))]
    Failed {
        /// The kind of the event.
        kind: EventKind,
        /// The status of the event: a negative errno, or the peer's positive reason or status.
        status: i32,
    },
    /// Too many events of the program's own wait on the channel.
    #[error("{max} events of the program's own wait on the id's channel: take some first")]
    TooManyEvents {
        /// The most that may wait.
        max: u32,
    },
    /// The alternate path cannot be used from here.
    #[error("the alternate path from {local} to {remote}: {source}")]
    AlternatePath {
        /// The local GID.
        local: Gid,
        /// The peer's GID.
        remote: Gid,
        /// Why.
        source: PathError,
    },
    /// The device has not the local address of an alternate path.
    #[error(
        "{device} has not the address {local} of the alternate path: a queue pair keeps to its device, so \
         both paths are of one"
    )]
    NotOfDevice {
        /// The device.
        device: String,
        /// The local GID.
        local: Gid,
    },
    /// The peer did not load the alternate path.
    #[error(
        "the peer did not load the alternate path: {0} (the peer must have the path's remote address, and \
         a route to its local one)"
    )]
    NotLoaded(AprStatus),
    /// The device cannot listen.
    #[error(transparent)]
    Listen(ListenError),
    /// The exchange of messages failed.
    #[error(transparent)]
    Cm(#[from] CmCallError),
    /// iWARP has connections of RC queue pairs only.
    #[error(
        "iWARP carries Rc queue pairs in the port spaces TCP and IB, and this id is for {qp_type:?} in \
         {port_space}: the setting transport = roce has all"
    )]
    NotOverStreams {
        /// The port space.
        port_space: PortSpace,
        /// The type.
        qp_type: QpType,
    },
    /// The TCP connection cannot be made, or cannot be given to the queue pair.
    #[error("no iWARP connection: {0}")]
    Stream(StreamError),
    /// A call of the operating system failed.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a connection of iWARP cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The connection cannot be started.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The queue pair does not accept the stream.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The request is gone: the peer has given up, or another call has answered the request.
    #[error("the peer's request is not there any more{0}")]
    Gone(String),
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Stream(error.into())
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        Self::Stream(error.into())
    }
}

fn from(src: Option<SocketAddr>) -> String {
    src.map_or_else(String::new, |src| format!(" from {}", src.ip()))
}

/// Advice for an address without a route.
fn hint(src: Option<SocketAddr>, dst: SocketAddr) -> &'static str {
    match src {
        Some(src) if dst.ip().is_multicast() => vernic_io::route_hint(src.ip()),
        _ => "",
    }
}

/// The text of an errno.
fn words(status: i32) -> String {
    match status < 0 {
        true => format!(" ({})", io::Error::from_raw_os_error(-status)),
        false => String::new(),
    }
}

impl Error {
    /// The errno that librdmacm and the kernel return for this error.
    pub fn errno(&self) -> c_int {
        match self {
            Self::Orphan => libc::EIO,
            Self::PortSpace { .. } => libc::EPROTONOSUPPORT,
            Self::State { .. }
            | Self::Family { .. }
            | Self::Scope(_)
            | Self::NoDevice { .. }
            | Self::NoQp { .. }
            | Self::HasQp(_)
            | Self::WrongQp { .. }
            | Self::TooLong { .. }
            | Self::Value { .. }
            | Self::OtherManager => libc::EINVAL,
            Self::Failed { kind: EventKind::Rejected, .. } => libc::ECONNREFUSED,
            Self::Failed { status, .. } => status.abs(),
            Self::Device(error) => errno_of_open(error),
            Self::NoInterface { .. } | Self::NoGid { .. } => libc::EADDRNOTAVAIL,
            Self::LinkDown { .. } => libc::ENETDOWN,
            Self::NoSubnet => libc::EAFNOSUPPORT,
            Self::Fabric(error) => error.errno(),
            Self::NoRoute { source, .. } | Self::Os { source, .. } => errno_of(source),
            Self::InUse { everywhere: false, .. } => libc::EADDRINUSE,
            Self::Privileged { .. } => libc::EACCES,
            Self::InUse { everywhere: true, .. } | Self::NoPort { .. } | Self::NotJoined(_) => {
                libc::EADDRNOTAVAIL
            }
            Self::Joined(_) => libc::EADDRINUSE,
            Self::TooManyEvents { .. } => libc::ENOBUFS,
            Self::AlternatePath { source: PathError::NotAllowed(_), .. } => libc::EACCES,
            Self::AlternatePath { .. } => libc::EINVAL,
            Self::NotOfDevice { .. } => libc::EADDRNOTAVAIL,
            Self::NotLoaded(_) => libc::ECONNREFUSED,
            Self::Modify(error) => errno_of_modify(error),
            Self::Group(error) => errno_of_group(error),
            Self::Listen(error) => errno_of_listen(error),
            Self::Cm(CmCallError::Cm(CmError::TooMany { .. })) => libc::ENOMEM,
            Self::Cm(CmCallError::Orphan) => libc::EIO,
            Self::Cm(CmCallError::NotAllowed(_)) => libc::EACCES,
            Self::Cm(_) => libc::EINVAL,
            Self::NotOverStreams { .. } => libc::EOPNOTSUPP,
            Self::Stream(error) => errno_of_stream(error),
        }
    }
}

fn errno_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn errno_of_open(error: &OpenError) -> c_int {
    match error {
        OpenError::NoSuchAddress { .. } => libc::EADDRNOTAVAIL,
        OpenError::Os { source, .. } => errno_of(source),
        _ => libc::ENODEV,
    }
}

fn errno_of_stream(error: &StreamError) -> c_int {
    match error {
        StreamError::Connect(ConnectError::Gone { .. }) => libc::EIO,
        StreamError::Connect(ConnectError::NotAllowed(_)) => libc::EACCES,
        StreamError::Connect(
            ConnectError::Os { source, .. } | ConnectError::Descriptors(source),
        )
        | StreamError::Start(StartError::Os(source)) => errno_of(source),
        StreamError::Gone(_) => libc::ECONNRESET,
        StreamError::Connect(_) | StreamError::Start(_) => libc::EINVAL,
    }
}

fn errno_of_modify(error: &ModifyError) -> c_int {
    match error {
        ModifyError::Orphan | ModifyError::Closed => libc::EIO,
        ModifyError::Path { source: PathError::NotAllowed(_), .. } => libc::EACCES,
        _ => libc::EINVAL,
    }
}

fn errno_of_group(error: &McastError) -> c_int {
    match error {
        McastError::Orphan => libc::EIO,
        McastError::Full { .. } | McastError::GroupFull { .. } => libc::ENOMEM,
        McastError::NoAddress(_) => libc::EADDRNOTAVAIL,
        McastError::Link(LinkError::NoRoute { .. }) => libc::ENETUNREACH,
        McastError::Link(_) => libc::ENODEV,
        _ => libc::EINVAL,
    }
}

fn errno_of_listen(error: &ListenError) -> c_int {
    match error {
        ListenError::InUse(_) => libc::EADDRINUSE,
        ListenError::NoSuchAddress { .. } => libc::EADDRNOTAVAIL,
        ListenError::Claim { source, .. } => source.errno(),
        ListenError::Name(NameError::TooMany { .. }) => libc::EMFILE,
        ListenError::Name(NameError::Os { source, .. }) => errno_of(source),
        ListenError::Orphan => libc::EIO,
        _ => libc::EINVAL,
    }
}

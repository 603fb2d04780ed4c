//! The interface between the engine and the links that move its packets.
//!
//! A [`Link`] owns sockets (or wraps another link: capture, faults, trace). The engine owns the
//! batches. A link has one caller at a time (`&mut self`, under the engine's lane), never blocks,
//! never spawns a thread, and never allocates once its addresses are active.
//!
//! # Transmit
//!
//! ```text
//!  engine: room/push/stamp ... -> link.send(batch)
//!                             stamps the packets that are not stamped yet
//!                             one system call for up to 32 runs
//!                             retires what went out or failed; what the socket had no space
//!                             for stays in the batch, stamped, and goes out with a later send
//! ```
//!
//! # Receive
//!
//! ```text
//!  link.recv(batch) -> for packet in batch.packets() { link.verify(&packet) ... }
//! ```
//!
//! `verify` is per packet, so that the engine checks the ICRC and copies the payload while the
//! packet is in the first-level cache.
//!
//! # The ICRC
//!
//! The ICRC covers the IPv4 Identification and the UDP ports (IBTA annex A17, RoCEv2), so only the
//! link can compute it. On transmit, segment `i` of a run leaves with Identification `i` and DF
//! set. On receive the Identification cannot be seen through a UDP socket: see [`Icrc`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use vernic_wire::{Gid, Lid, PortNum, RoceVersion};

use crate::address::{Address, LocalAddr};
use crate::batch::{Icrc, LinkLimits, RxBatch, RxPacket, TxBatch};
use crate::link_port::PortWatch;
use crate::path::TxPath;

/// A time in nanoseconds of a clock that never goes back. The caller chooses the clock's zero,
/// which stays the same for the life of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time `nanos` later.
    #[must_use]
    pub fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// The result of a [`Link::send`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Packets handed to the kernel.
    pub packets: usize,
    /// Bytes handed to the kernel, ICRCs included, IP and UDP headers not.
    pub bytes: usize,
    /// Packets that the kernel refused for good: dropped, and counted. To the protocol they are
    /// lost packets.
    pub failed: usize,
    /// Whether a socket was full, or the batch's virtual lane had no credits: what is left in the
    /// batch should be sent again soon.
    pub blocked: bool,
    /// The last refusal: the path, and the error of the operating system.
    pub failure: Option<(TxPath, i32)>,
}

/// Totals of a link since it was made. Every packet that a link drops is in exactly one of the
/// `*_drops` or `*_errors`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets handed to the kernel.
    pub tx_packets: u64,
    /// Bytes handed to the kernel, ICRCs included.
    pub tx_bytes: u64,
    /// Runs handed to the kernel (one `UDP_SEGMENT` send each).
    pub tx_runs: u64,
    /// System calls made to send.
    pub tx_calls: u64,
    /// Times a socket was full.
    pub tx_blocked: u64,
    /// Packets that the kernel refused, dropped.
    pub tx_errors: u64,
    /// Packets that came in, handed-over ones included.
    pub rx_packets: u64,
    /// Bytes that came in, ICRCs included.
    pub rx_bytes: u64,
    /// Buffers that came in (one `UDP_GRO` receive each).
    pub rx_buffers: u64,
    /// System calls made to receive.
    pub rx_calls: u64,
    /// Receives that failed with an error (ICMP errors included).
    pub rx_errors: u64,
    /// Datagrams that were longer than a receive buffer, dropped.
    pub rx_truncated_drops: u64,
    /// Datagrams that the kernel dropped because the receive buffer of a socket was full.
    pub rx_overflow_drops: u64,
    /// Packets whose ICRC was wrong.
    pub icrc_errors: u64,
    /// Packets whose Identification had to be solved for, none of the guesses being right.
    pub icrc_solved: u64,
    /// Packets for another process of this host, handed over to it.
    pub handed_over: u64,
    /// Packets handed over to us by another process of this host.
    pub taken_over: u64,
    /// Packets for another process that were dropped: it was gone, or its queue was full.
    pub hand_over_drops: u64,
    /// Hand-over messages from a process of another user, or malformed, dropped.
    pub hand_over_rejects: u64,
    /// Frames of RoCEv1 that are cut short, or in which no packet follows a GRH, dropped.
    pub rx_bad_frames: u64,
    /// Frames of RoCEv1 for other stations, VLANs, GIDs or groups than this device's, dropped.
    pub rx_foreign_frames: u64,
    /// Flows steered straight to this process's socket after hand-overs.
    pub steered_flows: u64,
    /// Times an offload was given up at run time.
    pub downgrades: u64,
    /// Packets that fault injection lost on purpose.
    pub fault_drops: u64,
    /// Packets that fault injection duplicated, reordered, delayed or corrupted.
    pub fault_changes: u64,
}

crate::sum_fields! { LinkCounters: tx_packets, tx_bytes, tx_runs, tx_calls, tx_blocked, tx_errors, rx_packets, rx_bytes, rx_buffers, rx_calls, rx_errors, rx_truncated_drops, rx_overflow_drops, icrc_errors, icrc_solved, handed_over, taken_over, hand_over_drops, hand_over_rejects, rx_bad_frames, rx_foreign_frames, steered_flows, downgrades, fault_drops, fault_changes }

impl LinkCounters {
    /// Returns each counter with its name, in the order of the fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let rows = [
            ("tx_packets", self.tx_packets),
            ("tx_bytes", self.tx_bytes),
            ("tx_runs", self.tx_runs),
            ("tx_calls", self.tx_calls),
            ("tx_blocked", self.tx_blocked),
            ("tx_errors", self.tx_errors),
            ("rx_packets", self.rx_packets),
            ("rx_bytes", self.rx_bytes),
            ("rx_buffers", self.rx_buffers),
            ("rx_calls", self.rx_calls),
            ("rx_errors", self.rx_errors),
            ("rx_truncated_drops", self.rx_truncated_drops),
            ("rx_overflow_drops", self.rx_overflow_drops),
            ("icrc_errors", self.icrc_errors),
            ("icrc_solved", self.icrc_solved),
            ("handed_over", self.handed_over),
            ("taken_over", self.taken_over),
            ("hand_over_drops", self.hand_over_drops),
            ("hand_over_rejects", self.hand_over_rejects),
            ("rx_bad_frames", self.rx_bad_frames),
            ("rx_foreign_frames", self.rx_foreign_frames),
            ("steered_flows", self.steered_flows),
            ("downgrades", self.downgrades),
            ("fault_drops", self.fault_drops),
            ("fault_changes", self.fault_changes),
        ];
        rows.into_iter()
    }
}

/// The reason why a link cannot be opened or an address cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Another user, or a kernel driver, has the RoCEv2 port.
    #[error(
        "UDP port {port} on {addr} is held by {holder}: {hint}",
        port = crate::ROCE_PORT
    )]
    PortTaken {
        /// The address wanted.
        addr: LocalAddr,
        /// The process that holds the port, as far as `/proc/net/udp` shows.
        holder: String,
        /// Advice on what to do about it.
        hint: &'static str,
    },
    /// The address is not one of this host (any more).
    #[error("{addr} is not an address of this host: see `ip address`")]
    NoSuchAddress {
        /// The address wanted.
        addr: LocalAddr,
    },
    /// The address was not activated first.
    #[error("{addr} is not active on this link")]
    NotActive {
        /// The address wanted.
        addr: LocalAddr,
    },
    /// The device was closed.
    #[error("{addr} is of no use: the device was closed")]
    Closed {
        /// The address wanted.
        addr: LocalAddr,
    },
    /// The link has as many of `what` as it can.
    #[error("the link has all of its {limit} {what} in use")]
    TooMany {
        /// The kind of thing, such as addresses.
        what: &'static str,
        /// The most that there may be.
        limit: usize,
    },
    /// No packet sent to the group from `addr` reaches any member.
    #[error("the kernel has no route from {addr} to the multicast group {group}{}", route_hint(addr.ip))]
    NoRoute {
        /// The address that members are at.
        addr: LocalAddr,
        /// The group.
        group: IpAddr,
    },
    /// The operating system refused.
    #[error("cannot {what} for {addr}: {source}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The address that the operation was for.
        addr: LocalAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Returns advice, as "; ...", for where the kernel has no route from `local` to a multicast group.
/// `lo` has such a route over IPv4 by itself. Over IPv6 `lo` has none, and accepts no other than
/// this one.
pub fn route_hint(local: IpAddr) -> &'static str {
    match local {
        IpAddr::V6(ip) if ip.is_loopback() => {
            "; root can give it one: `ip -6 route add local ff00::/8 dev lo`"
        }
        _ => "",
    }
}

/// An object that moves batches of packets.
///
/// Implementations: `UdpLink`, and the middlewares, which wrap a
/// `Box<dyn Link>` and are links themselves.
pub trait Link: Send {
    /// Returns what the link can do; make batches with it. The limits do not change while the link
    /// lives: a link that loses an offload at run time splits the runs itself.
    fn limits(&self) -> LinkLimits;

    /// Writes the ICRC of every packet of `batch` that has none yet. [`send`](Self::send) does this
    /// itself. Call it after each large packet, while the packet is in the first-level cache (later
    /// packets may still join its run). Or call it to see packets as they will be on the wire.
    fn stamp(&mut self, batch: &mut TxBatch);

    /// Sends the waiting packets of `batch`, in order; all of them are of one virtual lane. Never
    /// blocks. Packets that the kernel had no space for stay in the batch. Packets that it refuses
    /// are dropped and reported: the protocol treats them as lost.
    fn send(&mut self, now: Nanos, batch: &mut TxBatch) -> SendReport;

    /// Clears `batch` and fills it with the packets that have arrived, up to its capacity. Never
    /// blocks. Returns the number of packets.
    ///
    /// One call polls the sockets that had traffic lately, and the others rarely (each link states
    /// its bound). So a return of 0 does not prove that every socket is empty: only sleeping on
    /// [`poll_fds`](Self::poll_fds) does.
    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize;

    /// Checks the ICRC of a packet of the batch that this link filled last.
    fn verify(&mut self, packet: &RxPacket<'_>) -> Icrc;

    /// Notes that the engine has accepted a packet that another process handed over. Its ICRC,
    /// queue pair, source and position in the sequence were right, so its flow belongs here. To be
    /// called for one packet of each buffer. Packets that were not accepted prove nothing: anybody
    /// may send them.
    fn note_accepted(&mut self, packet: &RxPacket<'_>, now: Nanos) {
        let _ = (packet, now);
    }

    /// Returns the file descriptors to sleep on (for reading). The link owns them, so they are good
    /// for polling only, and closes them at the earliest when
    /// [`poll_generation`](Self::poll_generation) changes. A stale descriptor can only cause a
    /// needless wake-up.
    ///
    /// Without a descriptor, packets are found only while the application polls: a peer that only
    /// responds answers late or never. A link that gets its packets from another thread needs a
    /// descriptor that becomes readable (a pipe, say), which [`recv`](Self::recv) empties.
    fn poll_fds(&self) -> &[RawFd];

    /// Returns a number that changes whenever [`poll_fds`](Self::poll_fds) does.
    fn poll_generation(&self) -> u64;

    /// The time at which [`recv`](Self::recv) or [`send`](Self::send) (with an empty batch) must be
    /// called at the latest, though no descriptor is readable. For packets that are held back on
    /// purpose.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Writes out what is kept to be written with more, or what there was no room for: the process
    /// or the link is about to end. Waits for 100 ms at most.
    fn flush(&mut self) {}

    /// Leaves the ports that other processes share: the process or the link is about to end. Other
    /// processes get the new packets from now on. Packets that are already in the sockets can still
    /// be received; later they would be lost with the process, whatever process they are for. A
    /// link that is still there 100 ms later gets packets again.
    fn leave_shared_port(&mut self, _now: Nanos) {}

    /// Returns the object that opens paths of this link, and that works as long as it is held. The
    /// control path uses it while another thread has the link.
    fn paths(&self) -> Arc<dyn Paths>;

    /// Starts to receive on `local` (UDP: port 4791), and makes it usable as a source.
    /// Activating an active address again is counted: it takes as many deactivations.
    ///
    /// # Errors
    /// [`LinkError::PortTaken`], [`LinkError::NoSuchAddress`], [`LinkError::TooMany`],
    /// [`LinkError::Os`].
    fn activate(&mut self, local: LocalAddr) -> Result<(), LinkError>;

    /// Undoes one [`activate`](Self::activate). Unknown addresses are ignored.
    fn deactivate(&mut self, local: LocalAddr);

    /// Receives packets to the multicast address `group` on the netdev that has `local`. `lid` is
    /// the group's on an InfiniBand link; others do not look at it.
    ///
    /// # Errors
    /// The errors of [`activate`](Self::activate); also [`LinkError::NotActive`] if `local` is not
    /// active. [`LinkError::NoRoute`] on a loopback device from which nothing reaches the group:
    /// nothing can come to that device from elsewhere.
    fn join(&mut self, local: LocalAddr, group: IpAddr, lid: Lid) -> Result<(), LinkError>;

    /// Undoes one [`join`](Self::join). Unknown groups are ignored.
    fn leave(&mut self, local: LocalAddr, group: IpAddr, lid: Lid);

    /// Returns how a run on this path leaves, for callers that must know the headers of its
    /// packets. `None` if its source is not active, or nothing is sent by UDP.
    fn departure(&mut self, path: &TxPath) -> Option<Departure>;

    /// Returns the watch over the link's ports; `None` if the ports follow netdevs.
    fn port_watch(&self) -> Option<Arc<dyn PortWatch>> {
        None
    }

    /// Returns the totals so far.
    fn counters(&self) -> LinkCounters;
}

/// An object that opens the paths of a link.
pub trait Paths: Send + Sync {
    /// Makes the path for an address vector, and returns the addresses that packets of that peer
    /// bear. Does not wait for the data path; if the request allows it, waits for a neighbour.
    ///
    /// # Errors
    /// [`NoPath`].
    fn open_path(&self, to: &PathRequest) -> Result<OpenPath, NoPath>;

    /// Notes that a queue pair takes datagrams on a netdev, and by either version of RoCE: from
    /// any sender, so no path need be opened first. Returns whether the link has other sockets now.
    fn receive_datagrams(&self, netdev_index: u32) -> bool {
        let _ = netdev_index;
        false
    }
}

/// A request for a path: an address vector whose source GID was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRequest {
    /// The port of the device that the path leaves from.
    pub port: PortNum,
    /// The source: a GID of the port.
    pub local: Gid,
    /// The destination, or a multicast group.
    pub remote: Gid,
    /// Index of the port's netdev, 0 if it has none: link-local addresses are valid on that netdev.
    pub netdev_index: u32,
    /// Traffic class (the whole TOS byte).
    pub traffic_class: u8,
    /// Hop limit; 0 for the default.
    pub hop_limit: u8,
    /// Service level, 0 to 15, from which the link chooses the virtual lane; 0 has lane 0.
    pub service_level: u8,
    /// Flow label of a GRH, 20 bits.
    pub flow_label: u32,
    /// Destination within the subnet, for links that have LIDs. If `remote` is zero, it is all that
    /// says where packets go.
    pub dlid: Lid,
    /// The low bits of the source LID, for links that have LIDs.
    pub path_bits: u8,
    /// The version of RoCE, which the row of the source GID says. Links of other kinds ignore it.
    pub roce: RoceVersion,
    /// Whether opening may wait until a neighbour has told its Ethernet address (a second at most).
    pub may_wait: bool,
}

/// A path that can be sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPath {
    /// The path, of flow 0, to the peer that has the address.
    pub path: TxPath,
    /// The source address of packets from the peer.
    pub remote: Address,
    /// The destination address of packets from the peer.
    pub local: Address,
}

/// The reason why a link has no path between two GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPath {
    /// One GID is an IPv4 address and the other one is not.
    #[error("the two GIDs are of different IP versions")]
    Family,
    /// The link knows no port that has the destination GID. For a link whose addresses do not
    /// follow from GIDs, such as LIDs.
    #[error("no port with the destination GID is known")]
    UnknownGid,
    /// Frames of RoCEv1 cannot be received, for this error number of the system.
    #[error("RoCEv1 needs packet sockets: {}; {}", io::Error::from_raw_os_error(*.0), frames_hint(*.0))]
    Frames(i32),
    /// No station answers for the destination.
    #[error("no station of this Ethernet has the destination GID's address (`ip neighbour`)")]
    NoNeighbour,
    /// The way to the destination has a router on it, which passes no frames of RoCEv1.
    #[error("the destination is behind a router, which RoCEv1 cannot pass: use a RoCEv2 GID")]
    NotOnLink,
    /// There are too many stations.
    #[error(
        "paths to {} stations are in use, which is the most",
        crate::roce_v1::control::MAX_STATIONS
    )]
    TooManyStations,
}

/// Returns what the usual errors of packet sockets mean.
fn frames_hint(os_error: i32) -> &'static str {
    match os_error {
        libc::EPERM | libc::EACCES => {
            "it takes CAP_NET_RAW, which root has, also that of a network namespace of its own"
        }
        libc::ENODEV | libc::ENXIO | libc::ENETDOWN => "the netdev is gone, or is no Ethernet",
        libc::EMFILE | libc::ENFILE => "no descriptor is left (`ulimit -n`)",
        _ => "see `errno`",
    }
}

/// The addresses and form in which packets of a path leave by UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Source address and UDP port.
    pub src: SocketAddr,
    /// Destination address and UDP port.
    pub dst: SocketAddr,
    /// Whether the kernel cuts up runs: the IPv4 Identification of a packet is then its index in
    /// its run, else 0.
    pub segmented: bool,
}

/// Defines the methods that a middleware passes on to the link in its field `inner`.
macro_rules! forward_to_inner {
    () => {
        fn limits(&self) -> $crate::LinkLimits {
            self.inner.limits()
        }
        fn stamp(&mut self, batch: &mut $crate::TxBatch) {
            self.inner.stamp(batch);
        }
        fn verify(&mut self, packet: &$crate::RxPacket<'_>) -> $crate::Icrc {
            self.inner.verify(packet)
        }
        fn note_accepted(&mut self, packet: &$crate::RxPacket<'_>, now: $crate::Nanos) {
            self.inner.note_accepted(packet, now);
        }
        fn poll_fds(&self) -> &[std::os::fd::RawFd] {
            self.inner.poll_fds()
        }
        fn poll_generation(&self) -> u64 {
            self.inner.poll_generation()
        }
        fn leave_shared_port(&mut self, now: $crate::Nanos) {
            self.inner.leave_shared_port(now);
        }
        fn paths(&self) -> std::sync::Arc<dyn $crate::link::Paths> {
            self.inner.paths()
        }
        fn activate(&mut self, local: $crate::LocalAddr) -> Result<(), $crate::LinkError> {
            self.inner.activate(local)
        }
        fn deactivate(&mut self, local: $crate::LocalAddr) {
            self.inner.deactivate(local);
        }
        fn join(
            &mut self,
            local: $crate::LocalAddr,
            group: std::net::IpAddr,
            lid: vernic_wire::Lid,
        ) -> Result<(), $crate::LinkError> {
            self.inner.join(local, group, lid)
        }
        fn leave(
            &mut self,
            local: $crate::LocalAddr,
            group: std::net::IpAddr,
            lid: vernic_wire::Lid,
        ) {
            self.inner.leave(local, group, lid);
        }
        fn port_watch(&self) -> Option<std::sync::Arc<dyn $crate::PortWatch>> {
            self.inner.port_watch()
        }
        fn departure(&mut self, path: &$crate::TxPath) -> Option<$crate::link::Departure> {
            self.inner.departure(path)
        }
    };
}
pub(crate) use forward_to_inner;

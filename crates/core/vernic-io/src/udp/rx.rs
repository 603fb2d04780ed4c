//! Receiving: which sockets to poll when, and what to do with their packets.
//!
//! A socket is *hot* for [`HOT_NANOS`] after its last packet. Each [`Receive::recv`] makes one
//! receive call per hot socket and nothing else, so that an idle link with one hot socket costs one
//! system call. The cold sockets are polled with one `ppoll` for all of them: on each call while no
//! socket is hot, and else every [`COLD_NANOS`]. That is the bound on how long a first packet waits
//! while the caller polls.
//!
//! The first two receives after an empty one are a `recvmsg`. While packets keep coming, a
//! `recvmmsg` receives several buffers. Measured on loopback (2 cores, Linux 6.18), a `recvmmsg`
//! adds about 0.1 us to a round trip. 1, 2, 4 or 8 full buffers per call carry the same within 5 %,
//! since one sender is slower than any of them. So `recvmmsg` is for several senders at once. A GRO
//! buffer is up to 64 KiB: [`BULK_BUFFERS`] of them stay in the second-level cache until they are
//! consumed. Small datagrams come [`SMALL_BUFFERS`] at a time.
//!
//! A packet on port 4791 whose QPN is in another process's slot is handed over to that process
//! (`exchange.rs`). Packets that others hand over to this process are taken before anything else.
//!
//! A process that ends also hands over what its sockets hold, after it has left the shared ports.
//! To leave a shared port, a socket connects to a peer that sends nothing. The kernel then no
//! longer chooses the socket among those that share the port, and the socket keeps the packets that
//! it has.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use vernic_sys::{self as sys, OwnFd};
use vernic_wire::Gid;

use crate::address::LocalAddr;
use crate::batch::{RX_BUFFER_BYTES, RxBatch, RxMeta, RxPacket};
use crate::endpoint::{arrival, receiver_of, sender_of};
use crate::host::handoff::{self, HandoverReceived, HandoverResult, Head};
use crate::host::slots::SharedFd;
use crate::host::{Slot, SlotTable};
use crate::link::{LinkCounters, Nanos};
use crate::roce_v1;
use crate::roce_v1::control::{FrameSocket, Purpose};
use crate::udp::exchange::Exchange;
use crate::udp::steer::{IDLE_NANOS, MAX_STEERED, Steering};
use crate::udp::{UdpConfig, socket};

/// How long a socket is hot after a packet: two milliseconds, far more than a round trip.
const HOT_NANOS: u64 = 2_000_000;

/// The longest time between two polls of the cold sockets while some are hot and the caller polls:
/// fifty microseconds, the time of some 200 empty receives.
const COLD_NANOS: u64 = 50_000;

/// Buffers per receive while large ones come in.
const BULK_BUFFERS: usize = 4;

/// Buffers per receive while small ones come in.
const SMALL_BUFFERS: usize = 16;

/// The bytes above which a buffer counts as large.
const BULK_BYTES: usize = 16 * 1024;

/// Hand-over messages taken per call and socket: as many as a socket's queue holds by default.
const TAKE_OVERS: usize = 10;

/// How long a slot that had no owner is assumed to have none: ten milliseconds.
const ABSENT_NANOS: u64 = 10_000_000;

/// How long a link leaves shared ports to others: far longer than a process takes to end when
/// nothing is left to do.
pub(crate) const ASIDE_NANOS: u64 = 100_000_000;

/// The kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Port 4791 of an address.
    Public,
    /// A private port, for peers on this host.
    Private,
    /// Port 4791 of an address, for packets of one peer only.
    Steered,
    /// A multicast group.
    Group,
    /// Frames of RoCEv1 on one netdev.
    Frames(Purpose, u32),
    /// Packets from other processes of this host, one by one.
    HandOver,
    /// Connections of other processes of this host that have packets for this slot.
    Door(Slot),
    /// Questions from other processes of this host.
    Questions,
}

/// The descriptor of a socket, with its owner.
#[derive(Debug)]
enum Fd {
    /// A socket of this link.
    Own(OwnFd),
    /// A socket of the slot table.
    Shared(SharedFd),
}

impl Fd {
    fn raw(&self) -> RawFd {
        match self {
            Self::Own(fd) => fd.as_raw_fd(),
            Self::Shared(fd) => fd.raw(),
        }
    }
}

/// What stands for the address of a socket that belongs to a netdev.
const NO_ADDRESS: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

#[derive(Debug)]
struct Socket {
    kind: Kind,
    fd: Fd,
    /// The active address that the socket belongs to; `None` for the sockets of slots.
    owner: Option<LocalAddr>,
    /// The address that the socket's packets are sent to.
    bound: LocalAddr,
    port: u16,
    hot_until: Nanos,
    /// Buffers to ask for in the next receive.
    appetite: usize,
    overflow: u32,
}

/// The receiving half of a UDP link.
#[derive(Debug)]
pub(crate) struct Receive {
    sockets: Vec<Socket>,
    hot: Vec<usize>,
    next_cold: Nanos,
    next_sweep: Nanos,
    slots: Arc<SlotTable>,
    slots_generation: u64,
    exchange: Exchange,
    exchange_generation: u64,
    steering: Steering,
    absent_until: Box<[Nanos; 1 << Slot::BITS]>,
    fds: Vec<RawFd>,
    polls: Vec<sys::PollFd>,
    generation: u64,
    /// The time at which the link returns to shared ports, while it has left them.
    back_at: Option<Nanos>,
    frames: Arc<roce_v1::Shared>,
    frame_addresses: roce_v1::rx::Addresses,
}

impl Receive {
    pub(crate) fn new(slots: Arc<SlotTable>, frames: Arc<roce_v1::Shared>) -> Self {
        Self {
            frames,
            frame_addresses: roce_v1::rx::Addresses::default(),
            sockets: Vec::new(),
            hot: Vec::new(),
            next_cold: Nanos(0),
            next_sweep: Nanos(0),
            slots_generation: slots.generation(),
            slots,
            exchange: Exchange::default(),
            exchange_generation: 0,
            steering: Steering::new(),
            absent_until: Box::new([Nanos(0); 1 << Slot::BITS]),
            fds: Vec::new(),
            polls: Vec::new(),
            generation: 0,
            back_at: None,
        }
    }

    /// The time at which [`recv`](Self::recv) must be called to return to shared ports.
    pub(crate) fn back_at(&self) -> Option<Nanos> {
        self.back_at
    }

    /// Leaves packets that come to shared ports from now on to other processes.
    pub(crate) fn leave_shared_port(&mut self, now: Nanos) {
        for socket in &self.sockets {
            // Nothing is sent from port 4791, so nothing comes to a socket that is connected to it.
            if let (Kind::Public | Kind::Steered, Fd::Own(fd)) = (socket.kind, &socket.fd)
                && let Err(error) = sys::connect(fd.as_fd(), &socket.bound.with_port(socket.port))
            {
                tracing::debug!(local = %socket.bound, %error, "cannot leave a shared port");
            }
        }
        self.back_at = Some(now.plus(ASIDE_NANOS));
        self.changed();
    }

    /// Returns to shared ports, since the process still runs. Opens new sockets, since some kernels
    /// do not put a socket that was connected back among those that share its port.
    #[cold]
    fn step_back(&mut self, now: Nanos, config: &UdpConfig) {
        self.back_at = None;
        // Steered flows are steered again if they go on.
        self.sockets.retain(|socket| socket.kind != Kind::Steered);
        for socket in self.sockets.iter_mut().filter(|socket| socket.kind == Kind::Public) {
            match socket::public(socket.bound, config) {
                Ok(fd) => (socket.fd, socket.overflow) = (Fd::Own(fd), 0),
                Err(error) => {
                    tracing::warn!(%error, "a shared port cannot be used again: tried later");
                    self.back_at = Some(now.plus(ASIDE_NANOS));
                }
            }
        }
        self.changed();
    }

    pub(crate) fn poll_fds(&self) -> &[RawFd] {
        &self.fds
    }

    pub(crate) fn poll_generation(&self) -> u64 {
        self.generation
    }

    /// Receives on one more socket.
    pub(crate) fn add(
        &mut self,
        kind: Kind,
        owner: LocalAddr,
        bound: LocalAddr,
        port: u16,
        fd: OwnFd,
    ) {
        self.push(kind, Some(owner), bound, port, Fd::Own(fd));
        self.changed();
    }

    fn push(&mut self, kind: Kind, owner: Option<LocalAddr>, bound: LocalAddr, port: u16, fd: Fd) {
        self.sockets.push(Socket {
            kind,
            fd,
            owner,
            bound,
            port,
            hot_until: Nanos(0),
            appetite: 0,
            overflow: 0,
        });
    }

    /// Closes all sockets of an address.
    pub(crate) fn remove(&mut self, owner: LocalAddr) {
        self.sockets.retain(|s| s.owner != Some(owner));
        self.changed();
    }

    /// Closes the socket of a multicast group.
    pub(crate) fn remove_group(&mut self, owner: LocalAddr, group: std::net::IpAddr) {
        self.sockets
            .retain(|s| !(s.kind == Kind::Group && s.owner == Some(owner) && s.bound.ip == group));
        self.changed();
    }

    /// Rebuilds the lists that depend on the list of sockets.
    fn changed(&mut self) {
        self.hot.clear();
        self.next_cold = Nanos(0);
        self.exchange_generation = self.exchange.generation();
        let is_deaf = self.exchange.is_deaf();
        let is_shut = |s: &Socket| is_deaf && matches!(s.kind, Kind::Door(_));
        // The kernel ignores negative descriptors.
        let raw = |s: &Socket| if is_shut(s) { -1 } else { s.fd.raw() };
        let all = self.sockets.iter().map(raw).chain(self.exchange.fds());
        self.polls.clear();
        self.polls.extend(all.map(sys::PollFd::readable));
        self.fds.clear();
        self.fds.extend(self.polls.iter().map(|poll| poll.fd()).filter(|&fd| fd >= 0));
        self.generation += 1;
    }

    /// Updates the list of sockets after slots were claimed or released.
    fn refresh_slots(&mut self) {
        self.slots_generation = self.slots.generation();
        self.sockets.retain(|s| s.owner.is_some());
        let nowhere = LocalAddr::from(std::net::IpAddr::from([0, 0, 0, 0]));
        for (control, packets) in self.slots.sockets() {
            self.push(Kind::Questions, None, nowhere, 0, Fd::Shared(control));
            self.push(Kind::HandOver, None, nowhere, 0, Fd::Shared(packets));
        }
        let slots = &self.slots;
        self.exchange.leave(|slot| !slots.is_ours(slot));
        self.take_frame_sockets();
        self.filter_frames();
        for (slot, door) in self.slots.doors() {
            self.push(Kind::Door(slot), None, nowhere, 0, Fd::Shared(door));
        }
        self.changed();
    }

    /// Fills `batch`. Returns the number of packets.
    pub(crate) fn recv(
        &mut self,
        now: Nanos,
        config: &UdpConfig,
        batch: &mut RxBatch,
        counters: &mut LinkCounters,
    ) -> usize {
        batch.clear();
        if self.slots.generation() != self.slots_generation {
            self.refresh_slots();
        }
        if self.back_at.is_some_and(|at| now >= at) {
            self.step_back(now, config);
        }
        self.exchange.take(batch, counters);
        let mut cooled = false;
        for index in 0..self.hot.len() {
            if batch.free() == 0 {
                break;
            }
            let at = self.hot[index];
            self.recv_from(at, now, batch, counters);
            cooled |= self.sockets[at].hot_until <= now;
        }
        if cooled {
            let sockets = &self.sockets;
            self.hot.retain(|&at| sockets[at].hot_until > now);
        }
        if self.hot.len() > 1 {
            self.hot.rotate_left(1);
        }
        if batch.free() != 0 && (self.hot.is_empty() || now >= self.next_cold) {
            self.look_at_cold(now, batch, counters);
        }
        if self.exchange.generation() != self.exchange_generation {
            self.changed();
        }
        let (mut packets, mut bytes) = (0, 0);
        for (count, len) in batch.totals() {
            packets += count;
            bytes += len;
        }
        counters.rx_packets += packets as u64;
        counters.rx_bytes += bytes as u64;
        packets
    }

    fn look_at_cold(&mut self, now: Nanos, batch: &mut RxBatch, counters: &mut LinkCounters) {
        self.next_cold = now.plus(COLD_NANOS);
        if now >= self.next_sweep {
            self.next_sweep = now.plus(IDLE_NANOS / 10);
            self.close_idle(now);
        }
        counters.rx_calls += 1;
        let ready = sys::poll(&mut self.polls, Some(std::time::Duration::ZERO)).unwrap_or(0);
        if ready == 0 {
            return;
        }
        for at in 0..self.sockets.len() {
            if batch.free() == 0 {
                // The remaining sockets are polled next time.
                self.next_cold = now;
                break;
            }
            if self.polls[at].is_ready() && !self.hot.contains(&at) {
                self.recv_from(at, now, batch, counters);
                if self.sockets[at].hot_until > now {
                    self.hot.push(at);
                }
            }
        }
        for poll in self.polls[self.sockets.len()..].iter().filter(|poll| poll.is_ready()) {
            self.exchange.listen(poll.fd(), counters);
        }
        if self.exchange.generation() != self.exchange_generation {
            // A process that has just connected has brought packets.
            self.exchange.take(batch, counters);
        }
    }

    /// Closes steered sockets and queues that had no packet for long.
    fn close_idle(&mut self, now: Nanos) {
        self.exchange.close_idle(now);
        let before = self.sockets.len();
        self.sockets.retain(|s| s.kind != Kind::Steered || now < s.hot_until.plus(IDLE_NANOS));
        if self.sockets.len() != before || self.exchange.generation() != self.exchange_generation {
            self.changed();
        }
    }

    fn recv_from(
        &mut self,
        at: usize,
        now: Nanos,
        batch: &mut RxBatch,
        counters: &mut LinkCounters,
    ) {
        match self.sockets[at].kind {
            Kind::Questions => self.slots.serve(),
            Kind::HandOver => self.take_over(at, now, batch, counters),
            Kind::Door(slot) => {
                if let Fd::Shared(door) = &self.sockets[at].fd {
                    self.exchange.accept(slot, door, now, counters);
                }
            }
            Kind::Frames(_, ifindex) => self.recv_frames(at, ifindex, now, batch, counters),
            _ => self.recv_udp(at, now, batch, counters),
        }
    }

    fn recv_udp(
        &mut self,
        at: usize,
        now: Nanos,
        batch: &mut RxBatch,
        counters: &mut LinkCounters,
    ) {
        let socket = &mut self.sockets[at];
        let Fd::Own(fd) = &socket.fd else { return };
        let mut one = [sys::Incoming::NONE];
        let mut many;
        let wanted = socket.appetite.min(batch.free());
        counters.rx_calls += 1;
        let (result, incoming) = if wanted <= 1 {
            let buffer = &mut batch.spare()[..RX_BUFFER_BYTES];
            let result = sys::recv_one(fd.as_fd(), buffer).map(|incoming| {
                one[0] = incoming;
                1
            });
            (result, &one[..])
        } else {
            many = [sys::Incoming::NONE; SMALL_BUFFERS];
            let (fd, spare) = (fd.as_fd(), batch.spare());
            (sys::recv_many(fd, spare, RX_BUFFER_BYTES, &mut many[..wanted]), &many[..])
        };
        let received = match result {
            Ok(received) => received,
            Err(e) => {
                socket.appetite = 0;
                // A steered socket reports ICMP errors; they concern the peer, not us.
                counters.rx_errors += u64::from(e.kind() != std::io::ErrorKind::WouldBlock);
                return;
            }
        };
        socket.hot_until = now.plus(HOT_NANOS);
        let incoming = &incoming[..received];
        let bulk = incoming.iter().any(|one| one.len > BULK_BYTES);
        // One packet, then none, is a round trip; two receives in a row make a stream.
        socket.appetite = match (socket.appetite, bulk) {
            (0, _) => 1,
            (_, true) => BULK_BUFFERS,
            (_, false) => SMALL_BUFFERS,
        };
        let shared = matches!(socket.kind, Kind::Public | Kind::Steered);
        let dst = socket.bound.with_port(socket.port);
        for one in incoming {
            counters.rx_buffers += 1;
            if let Some(overflow) = one.overflow {
                let socket = &mut self.sockets[at];
                let news = overflow.wrapping_sub(socket.overflow);
                counters.rx_overflow_drops += u64::from(news);
                socket.overflow = overflow;
            }
            match one.src {
                Some(src) if !one.truncated => {
                    let meta = RxMeta {
                        traffic_class: one.traffic_class,
                        hop_limit: one.hop_limit,
                        ..arrival(src, dst)
                    };
                    let stride = one.segment.unwrap_or(one.len);
                    self.sort(shared, one.len, stride, meta, now, batch, counters);
                }
                _ => counters.rx_truncated_drops += 1,
            }
            batch.next_buffer();
        }
    }

    #[cold]
    fn recv_frames(
        &mut self,
        at: usize,
        ifindex: u32,
        now: Nanos,
        batch: &mut RxBatch,
        counters: &mut LinkCounters,
    ) {
        let socket = &mut self.sockets[at];
        let Fd::Own(fd) = &socket.fd else { return };
        counters.rx_calls += 1;
        let (fd, wanted, addresses) = (fd.as_fd(), socket.appetite.max(1), &self.frame_addresses);
        match roce_v1::rx::receive(fd, ifindex, wanted, addresses, batch, counters) {
            Ok(overflow) => {
                socket.hot_until = now.plus(HOT_NANOS);
                // One frame, then none, is a round trip; two receives in a row make a stream.
                socket.appetite = if socket.appetite == 0 { 1 } else { roce_v1::rx::FRAMES };
                if let Some(overflow) = overflow {
                    counters.rx_overflow_drops += u64::from(overflow.wrapping_sub(socket.overflow));
                    socket.overflow = overflow;
                }
            }
            Err(error) => {
                socket.appetite = 0;
                counters.rx_errors += u64::from(error.kind() != std::io::ErrorKind::WouldBlock);
            }
        }
    }

    /// Commits the packets of this process in the first free buffer, and hands the rest over.
    #[expect(clippy::too_many_arguments, reason = "one call, on the data path")]
    fn sort(
        &mut self,
        shared: bool,
        len: usize,
        stride: usize,
        meta: RxMeta,
        now: Nanos,
        batch: &mut RxBatch,
        counters: &mut LinkCounters,
    ) {
        let stride = stride.max(1);
        let foreign = |bytes: &[u8]| {
            let slot = Slot::of(RxPacket { bytes, meta: &meta, segment: 0 }.dest_qpn()?);
            (slot.is_ordinary() && !self.slots.is_ours(slot)).then_some(slot)
        };
        let buffer = &batch.spare()[..len];
        if !shared || buffer.chunks(stride).all(|bytes| foreign(bytes).is_none()) {
            batch.commit_part(0, len, stride, 0, meta);
            return;
        }
        let mut start = 0;
        while start < len {
            // A group: adjacent packets with the same owner.
            let buffer = &batch.spare()[..len];
            let owner = foreign(&buffer[start..len.min(start + stride)]);
            let count = buffer[start..].chunks(stride).take_while(|b| foreign(b) == owner).count();
            let end = len.min(start + count * stride);
            let first_segment = (start / stride) as u16;
            let keep = match owner {
                None => true,
                // No process has the slot: let the engine count a packet for an unknown QPN.
                Some(slot) if now < self.absent_until[usize::from(slot.value())] => true,
                Some(slot) => {
                    let head = Head { stride: stride.min(end - start) as u16, first_segment, meta };
                    let (slots, packets) = (&self.slots, &buffer[start..end]);
                    match self.exchange.hand_over(slots, slot, &head, packets, now) {
                        HandoverResult::Yes => {
                            counters.handed_over += count as u64;
                            false
                        }
                        HandoverResult::Full => {
                            counters.hand_over_drops += count as u64;
                            false
                        }
                        HandoverResult::NoOwner => {
                            self.absent_until[usize::from(slot.value())] = now.plus(ABSENT_NANOS);
                            true
                        }
                    }
                }
            };
            if keep && !batch.commit_part(start, end - start, stride, first_segment, meta) {
                counters.hand_over_drops += count as u64;
            }
            start = end;
        }
    }

    /// Takes packets that other processes hand over one by one.
    fn take_over(
        &mut self,
        at: usize,
        now: Nanos,
        batch: &mut RxBatch,
        counters: &mut LinkCounters,
    ) {
        let Fd::Shared(fd) = &self.sockets[at].fd else { return };
        // If the slot was given back, the list of sockets is made anew the next time.
        let Some(fd) = fd.get() else { return };
        for _ in 0..TAKE_OVERS.min(batch.free()) {
            counters.rx_calls += 1;
            let buffer = &mut batch.spare()[..RX_BUFFER_BYTES];
            match handoff::recv(fd.as_fd(), buffer) {
                HandoverReceived::Empty => break,
                HandoverReceived::Rejected => counters.hand_over_rejects += 1,
                HandoverReceived::Packets(head, len) => {
                    let stride = usize::from(head.stride);
                    self.sockets[at].hot_until = now.plus(HOT_NANOS);
                    counters.rx_buffers += 1;
                    counters.taken_over += len.div_ceil(stride) as u64;
                    batch.commit_part(0, len, stride, head.first_segment, head.meta);
                    batch.next_buffer();
                }
            }
        }
    }

    /// Notes that the engine has accepted packets that another process handed over. A flow that
    /// keeps coming through another process is steered to this process.
    pub(crate) fn note_accepted(
        &mut self,
        meta: &RxMeta,
        now: Nanos,
        config: &UdpConfig,
        counters: &mut LinkCounters,
    ) {
        let (src, dst) = (sender_of(meta), receiver_of(meta));
        if self.steering.note(src, dst, now) {
            self.steer(src, dst, now, config, counters);
        }
    }

    /// Opens a socket for a flow, unless there are [`MAX_STEERED`] already.
    fn steer(
        &mut self,
        src: std::net::SocketAddr,
        dst: std::net::SocketAddr,
        now: Nanos,
        config: &UdpConfig,
        counters: &mut LinkCounters,
    ) {
        let steered = self.sockets.iter().filter(|s| s.kind == Kind::Steered).count();
        let public = |s: &&Socket| s.kind == Kind::Public && s.bound.with_port(s.port) == dst;
        let Some(local) = self.sockets.iter().find(public).map(|s| s.bound) else { return };
        if steered == MAX_STEERED {
            return;
        }
        match socket::steered(local, &src, config) {
            Ok(fd) => {
                self.add(Kind::Steered, local, local, crate::ROCE_PORT, fd);
                if let Some(socket) = self.sockets.last_mut() {
                    // The socket is hot from the start: packets are on their way.
                    socket.hot_until = now.plus(HOT_NANOS);
                    self.hot.push(self.sockets.len() - 1);
                }
                counters.steered_flows += 1;
                tracing::debug!(%src, %dst, "flow steered to this process");
            }
            Err(error) => tracing::debug!(%src, %error, "flow cannot be steered"),
        }
    }
}

/// Sockets for frames of RoCEv1.
impl Receive {
    /// Returns the addresses that frames are received for.
    pub(crate) fn frame_addresses(&mut self) -> &mut roce_v1::rx::Addresses {
        &mut self.frame_addresses
    }

    /// Takes the sockets that the control path has opened.
    fn take_frame_sockets(&mut self) {
        for socket in self.frames.take_fresh() {
            self.add_frames(socket);
        }
    }

    fn add_frames(&mut self, socket: FrameSocket) {
        let FrameSocket { purpose, ifindex, fd } = socket;
        let owner = LocalAddr { ip: NO_ADDRESS, scope_id: ifindex };
        self.push(Kind::Frames(purpose, ifindex), Some(owner), owner, 0, Fd::Own(fd));
        if purpose == Purpose::Own {
            let groups = &self.frame_addresses.groups;
            let groups: Vec<_> = groups.iter().filter(|(on, _)| *on == ifindex).copied().collect();
            groups.into_iter().for_each(|(_, gid)| self.receive_group(ifindex, gid, true));
        }
    }

    /// Lets the kernel give this process the frames for its slots and groups.
    fn filter_frames(&mut self) {
        if !self.frames.is_used() {
            return;
        }
        let slots = self.slots.own_slots();
        for socket in &self.sockets {
            let (Kind::Frames(Purpose::Own, ifindex), Fd::Own(fd)) = (socket.kind, &socket.fd)
            else {
                continue;
            };
            let groups = self.frame_addresses.groups.iter().any(|(on, _)| *on == ifindex);
            let program = roce_v1::of_slots(&slots, groups);
            if let Err(error) = sys::attach_filter(fd.as_fd(), &program) {
                tracing::warn!(ifindex, %error, "frames of RoCEv1 for new queue pairs are lost");
            }
        }
    }

    /// Receives frames of a group on a netdev, if any frames are received there.
    pub(crate) fn join_frames(&mut self, ifindex: u32, group: std::net::IpAddr) {
        // Else a group that is joined at once after a path was opened would miss its first packets.
        self.take_frame_sockets();
        let gid = Gid::from_ip(group);
        self.frame_addresses.groups.push((ifindex, gid));
        self.receive_group(ifindex, gid, true);
        self.filter_frames();
        self.changed();
    }

    /// Undoes one [`join_frames`](Self::join_frames).
    pub(crate) fn leave_frames(&mut self, ifindex: u32, group: std::net::IpAddr) {
        let (groups, gid) = (&mut self.frame_addresses.groups, Gid::from_ip(group));
        let Some(at) = groups.iter().position(|group| *group == (ifindex, gid)) else { return };
        groups.swap_remove(at);
        self.receive_group(ifindex, gid, false);
        self.filter_frames();
        self.changed();
    }

    /// Lets the netdev receive, or no longer receive, frames of a group, and those that this host
    /// sends to groups.
    fn receive_group(&mut self, ifindex: u32, gid: Gid, join: bool) {
        let own = Kind::Frames(Purpose::Own, ifindex);
        let Some(socket) = self.sockets.iter().find(|socket| socket.kind == own) else { return };
        let Fd::Own(fd) = &socket.fd else { return };
        let mac = roce_v1::of_group(gid);
        if let Err(error) = sys::set_frame_membership(fd.as_fd(), ifindex, mac.0, join) {
            tracing::warn!(ifindex, %gid, join, %error, "multicast frames of RoCEv1");
        }
        let own_groups = Kind::Frames(Purpose::OwnGroups, ifindex);
        let is_open = self.sockets.iter().any(|socket| socket.kind == own_groups);
        let is_wanted = self.frame_addresses.groups.iter().any(|(on, _)| *on == ifindex);
        match (is_open, is_wanted) {
            (false, true) => match self.frames.open_own_groups(ifindex) {
                Ok(socket) => self.add_frames(socket),
                Err(error) => {
                    tracing::warn!(ifindex, %error, "this host's own multicast by RoCEv1 is lost");
                }
            },
            (true, false) => self.sockets.retain(|socket| socket.kind != own_groups),
            _ => {}
        }
    }
}

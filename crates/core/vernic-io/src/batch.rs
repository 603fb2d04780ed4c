//! Batches of packets: what a link sends and receives in one call.
//!
//! Owns the packet memory of the data path: one arena per batch, allocated when the batch is
//! made and never again. The engine appends packets to a [`TxBatch`] and reads packets from an
//! [`RxBatch`]; links and middlewares do the reverse. No system call is made here.
//!
//! # Runs
//!
//! Packets of one size to one destination, one after the other, form a *run*:
//!
//! ```text
//!  arena  | pkt ICRC | pkt ICRC | pkt ICRC | pk ICRC | other ICRC | other ICRC |  free ...
//!         '------- run 0: stride 4 x n, last one shorter ---'------- run 1 ----'
//! ```
//!
//! A run becomes ONE `sendmsg` with `UDP_SEGMENT`, so it obeys the rules of the kernel: equal
//! sizes but for the last, at most `max_segments` packets and `max_run_bytes` bytes. A shorter
//! packet closes its run; so does another path or a bigger packet. Order of packets is never
//! changed.
//!
//! Limits: [`TX_ARENA_BYTES`] and [`TX_MAX_RUNS`] per `TxBatch`; [`RX_BUFFERS`] of
//! [`RX_BUFFER_BYTES`] per `RxBatch`.

use vernic_wire::LocalRoute;

use crate::address::Address;
use crate::path::TxPath;

/// Bytes of the ICRC that follows each transport packet.
pub const ICRC_BYTES: usize = 4;

/// Largest transport packet without its ICRC, in bytes: 4096 of payload, and 124 of headers. That
/// is twice what the longest header chain of IBTA needs (BTH 12 + RDETH 4 + DETH 8 + AtomicETH 28).
pub const MAX_TRANSPORT_BYTES: usize = 4096 + 124;

/// Largest packet in a batch, ICRC included, in bytes.
pub const MAX_PACKET_BYTES: usize = MAX_TRANSPORT_BYTES + ICRC_BYTES;

/// Bytes in the arena of a [`TxBatch`]: four full GSO runs, so that one `sendmmsg` carries 60
/// packets of 4 KiB. The arena is written, summed and handed to the kernel in turn. It is small
/// enough to stay in a 1 MiB L2 cache meanwhile, together with the payload it came from.
pub const TX_ARENA_BYTES: usize = 256 * 1024;

/// Most runs in a [`TxBatch`]. A batch that alternates between peers packet by packet (ACKs) has a
/// run per packet; 256 of them fill eight `sendmmsg` calls.
pub const TX_MAX_RUNS: usize = 256;

/// Bytes in one buffer of an [`RxBatch`]: the most that one `recvmsg` with `UDP_GRO` returns.
pub const RX_BUFFER_BYTES: usize = 64 * 1024;

/// Buffers in an [`RxBatch`]. Pages of a buffer that no large receive ever reached are never
/// touched, so this costs address space, not memory, when packets are small.
pub const RX_BUFFERS: usize = 16;

/// The limits of a link, found by trying when the link was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Most packets in a run. 1 when there is no segmentation offload.
    pub max_segments: u16,
    /// Most bytes in a run, ICRCs included.
    pub max_run_bytes: u32,
    /// Number of virtual lanes, at least 1: packets that wait on one lane do not delay those on
    /// another.
    pub lanes: u8,
}

impl Default for LinkLimits {
    /// Returns what every Linux with `UDP_SEGMENT` (4.18) can do: 64 segments, and the 65,507 bytes
    /// that an IPv4 datagram has left after the IP header (20) and the UDP header (8).
    fn default() -> Self {
        Self { max_segments: 64, max_run_bytes: 65_507, lanes: 1 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    path: TxPath,
    start: u32,
    bytes: u32,
    stride: u32,
    count: u16,
    /// Packets, from the first, that have their ICRC already.
    stamped: u16,
    closed: bool,
}

/// A run of packets, as a link sees it.
#[derive(Clone, Copy, Debug)]
pub struct TxRun<'a> {
    /// The path of the run.
    pub path: &'a TxPath,
    /// All packets of the run, one after the other, each with its ICRC.
    pub bytes: &'a [u8],
    /// Bytes of each packet but the last, which may be shorter. ICRC included.
    pub stride: usize,
}

impl<'a> TxRun<'a> {
    /// Returns the packets of the run in order, each from BTH to ICRC.
    pub fn packets(&self) -> std::slice::Chunks<'a, u8> {
        self.bytes.chunks(self.stride)
    }

    /// Returns the number of packets.
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.stride)
    }
}

/// A batch of packets to be sent: an arena cut into runs.
///
/// The life of a packet: [`room`](Self::room) lends space, the caller writes BTH to the end of
/// the padded payload, and [`push`](Self::push) closes the packet. Then
/// [`Link::stamp`](crate::Link::stamp) writes the ICRC, and [`Link::send`](crate::Link::send)
/// hands the packet to the kernel and forgets it.
///
/// ```
/// use vernic_io::{LinkLimits, PathId, TxBatch, TxPath};
/// use vernic_wire::Gid;
///
/// let path = TxPath::new(Gid([1; 16]), Gid([2; 16]), PathId(0), 0);
/// let mut batch = TxBatch::new(&LinkLimits::default());
/// for size in [1040, 1040, 300, 1040] {
///     batch.room().expect("an empty batch has room")[..size].fill(7);
///     batch.push(&path, size);
/// }
/// // The short packet closes the first run.
/// assert_eq!(batch.runs().map(|run| run.count()).collect::<Vec<_>>(), [3, 1]);
/// ```
#[derive(Debug)]
pub struct TxBatch {
    arena: Box<[u8]>,
    used: usize,
    runs: Vec<Run>,
    sent: usize,
    first_unstamped: usize,
    max_segments: u16,
    max_run_bytes: u32,
}

impl TxBatch {
    /// Makes an empty batch for a link with these limits. Allocates; the data path never does
    /// again.
    pub fn new(limits: &LinkLimits) -> Self {
        Self {
            arena: vec![0; TX_ARENA_BYTES].into_boxed_slice(),
            used: 0,
            runs: Vec::with_capacity(TX_MAX_RUNS),
            sent: 0,
            first_unstamped: 0,
            max_segments: limits.max_segments.max(1),
            max_run_bytes: limits.max_run_bytes.max(MAX_PACKET_BYTES as u32),
        }
    }

    /// Returns space for one packet of up to [`MAX_TRANSPORT_BYTES`] (ICRC not counted). `None`
    /// when the batch is full: send it first. Asking again without a [`push`](Self::push) returns
    /// the same space, so a packet that turns out not to be due costs nothing.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        if self.is_full() {
            return None;
        }
        Some(&mut self.arena[self.used..self.used + MAX_TRANSPORT_BYTES])
    }

    /// Closes the packet of `len` bytes that was written at the start of [`room`](Self::room)
    /// and adds 4 bytes for its ICRC. The packet joins the last run if it may, else starts one.
    ///
    /// # Panics
    /// If the batch is full or `len` is 0 or above [`MAX_TRANSPORT_BYTES`]. That is an error of the
    /// caller, which asked for room and knows what it wrote.
    pub fn push(&mut self, path: &TxPath, len: usize) {
        assert!(!self.is_full() && len != 0 && len <= MAX_TRANSPORT_BYTES, "push of {len} bytes");
        let size = (len + ICRC_BYTES) as u32;
        let (max_segments, max_run_bytes) = (self.max_segments, self.max_run_bytes);
        match self.runs.last_mut() {
            Some(run)
                if !run.closed
                    && size <= run.stride
                    && run.count < max_segments
                    && run.bytes + size <= max_run_bytes
                    && run.path == *path =>
            {
                run.closed = size < run.stride;
                run.bytes += size;
                run.count += 1;
            }
            _ => self.runs.push(Run {
                path: *path,
                start: self.used as u32,
                bytes: size,
                stride: size,
                count: 1,
                stamped: 0,
                closed: false,
            }),
        }
        self.used += size as usize;
    }

    /// Copies a whole packet (BTH to ICRC) in. Returns false, and does nothing, if the packet is
    /// too long, or too short to have an ICRC, or if the batch is full. For middlewares, not for
    /// the data path. The ICRC is written anew by the next stamp.
    pub fn push_copy(&mut self, path: &TxPath, packet: &[u8]) -> bool {
        let Some(len) = packet.len().checked_sub(ICRC_BYTES) else { return false };
        if len == 0 || len > MAX_TRANSPORT_BYTES {
            return false;
        }
        let Some(room) = self.room() else { return false };
        room[..len].copy_from_slice(&packet[..len]);
        self.push(path, len);
        true
    }

    /// Whether no further packet fits.
    pub fn is_full(&self) -> bool {
        self.runs.len() >= TX_MAX_RUNS || self.used + MAX_PACKET_BYTES > self.arena.len()
    }

    /// Whether no packet waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.runs.len()
    }

    /// Returns the bytes that wait to be sent, ICRCs included.
    pub fn bytes(&self) -> usize {
        self.runs[self.sent..].iter().map(|run| run.bytes as usize).sum()
    }

    /// Returns the number of packets that wait to be sent.
    pub fn packets(&self) -> usize {
        self.runs[self.sent..].iter().map(|run| usize::from(run.count)).sum()
    }

    /// Whether the last run that waits has `packets` packets or more, of `bytes` bytes at most.
    pub fn has_small_run(&self, packets: usize, bytes: usize) -> bool {
        let last = self.runs[self.sent..].last();
        last.is_some_and(|run| usize::from(run.count) >= packets && run.stride as usize <= bytes)
    }

    /// Returns the runs that wait to be sent, in order.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = TxRun<'_>> {
        self.runs[self.sent..].iter().map(|run| TxRun {
            path: &run.path,
            bytes: &self.arena[run.start as usize..][..run.bytes as usize],
            stride: run.stride as usize,
        })
    }

    /// Returns the first of [`runs`](Self::runs).
    pub fn first_run(&self) -> Option<TxRun<'_>> {
        self.runs().next()
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.used = 0;
        self.sent = 0;
        self.first_unstamped = 0;
    }

    /// For links: calls `stamp` for the packets of each run that were not stamped yet. Passes the
    /// path, the index in the run of the first such packet, the packets' bytes, and the stride.
    pub fn stamp_with(&mut self, mut stamp: impl FnMut(&TxPath, u16, &mut [u8], usize)) {
        for run in &mut self.runs[self.first_unstamped..] {
            if run.stamped < run.count {
                let skip = usize::from(run.stamped) * run.stride as usize;
                let bytes = &mut self.arena[run.start as usize..][..run.bytes as usize];
                stamp(&run.path, run.stamped, &mut bytes[skip..], run.stride as usize);
                run.stamped = run.count;
            }
        }
        // The last run may grow.
        self.first_unstamped = self.runs.len().saturating_sub(1);
    }

    /// For links: calls `rewrite` for each waiting run with its path, the bytes of its stamped
    /// packets, and its stride.
    pub(crate) fn rewrite_stamped(&mut self, mut rewrite: impl FnMut(&TxPath, &mut [u8], usize)) {
        for run in &self.runs[self.sent..] {
            let len = (usize::from(run.stamped) * run.stride as usize).min(run.bytes as usize);
            let bytes = &mut self.arena[run.start as usize..][..len];
            rewrite(&run.path, bytes, run.stride as usize);
        }
    }

    /// For links: calls `send` with a batch of the first `count` waiting runs only; those that it
    /// leaves stay in front of the others.
    pub(crate) fn with_first_runs<T>(
        &mut self,
        count: usize,
        send: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let end = (self.sent + count).min(self.runs.len());
        let (others, used) = (self.runs.split_off(end), self.used);
        let first_unstamped = self.first_unstamped;
        let result = send(self);
        // If all of them were retired, the arena counts as free, though it has the others.
        self.runs.extend(others);
        self.used = if self.runs.is_empty() { self.used } else { used };
        self.first_unstamped = first_unstamped.min(self.runs.len().saturating_sub(1));
        result
    }

    /// For middlewares: returns the bytes of packet `index` among those that wait, ICRC included.
    /// They may be changed in place (after stamping, if the change is to be seen as damage).
    pub fn packet_mut(&mut self, mut index: usize) -> Option<&mut [u8]> {
        for run in &self.runs[self.sent..] {
            let count = usize::from(run.count);
            if index < count {
                let bytes = &mut self.arena[run.start as usize..][..run.bytes as usize];
                return bytes.chunks_mut(run.stride as usize).nth(index);
            }
            index -= count;
        }
        None
    }

    /// For links: removes the first `packets` packets of the first waiting run, of which one or
    /// more are left. A link without segmentation offload sends packet by packet, and stops in the
    /// middle of a run when the socket is full.
    pub fn retire_part(&mut self, packets: usize) {
        if let Some(run) = self.runs.get_mut(self.sent) {
            let packets = (packets as u32).min(u32::from(run.count).saturating_sub(1));
            run.start += packets * run.stride;
            run.bytes -= packets * run.stride;
            run.count -= packets as u16;
            run.stamped = run.stamped.saturating_sub(packets as u16);
        }
    }

    /// For links: removes the first `runs` waiting runs (sent, or dropped and counted). When none
    /// is left the whole arena is free again.
    pub fn retire(&mut self, runs: usize) {
        self.sent = (self.sent + runs).min(self.runs.len());
        if self.sent == self.runs.len() {
            self.clear();
        }
    }
}

/// The state of a packet's invariant CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// The ICRC was not checked yet.
    Unchecked,
    /// The ICRC matches. The Identification is the one that a Vernic peer sends (0 or the segment
    /// index), the successor of the last one of this flow, or (IPv4 only) another 16-bit number.
    Good,
    /// The ICRC matches with no Identification, or the packet is too short to hold one: drop the
    /// packet.
    Bad,
}

/// The door of a packet: the kind of port that it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// The shared port, to which every host sends.
    Shared,
    /// A private port, to which only processes of this host send that were given this number; a
    /// port of UDP.
    Private(u16),
}

/// The properties that all packets of one receive buffer have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Address of the sender.
    pub src: Address,
    /// Address that the packet was sent to; for multicast, the group.
    pub dst: Address,
    /// The number that distinguishes the flows of a sender; its source port for UDP.
    pub flow: u16,
    /// The port that the packets came to.
    pub door: Door,
    /// Index of the netdev on which link-local addresses among these are valid, else 0.
    pub netdev: u32,
    /// The TOS byte (IPv6: traffic class) as received: ECN in the lower two bits, 3 = congestion
    /// experienced.
    pub traffic_class: u8,
    /// TTL (IPv6: hop limit) as received; 0 if the link does not know.
    pub hop_limit: u8,
    /// The flow label of a GRH; 0 if the link does not know.
    pub flow_label: u32,
    /// What an InfiniBand packet has besides; [`LocalRoute::NONE`] for other links.
    pub route: LocalRoute,
    /// The state of these packets' ICRC before [`Link::verify`](crate::Link::verify): `Good` for
    /// packets that another process of this host has verified and handed over.
    pub icrc: Icrc,
    /// Whether another process of this host received these packets and handed them over.
    pub handed_over: bool,
}

impl RxMeta {
    /// Whether a router on the path marked the packets with congestion experienced (ECN CE).
    pub fn is_congestion_experienced(&self) -> bool {
        self.traffic_class & 3 == 3
    }
}

/// One received packet.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'a> {
    /// The packet from the BTH to the ICRC, both included. It may have any length, even 0, since
    /// nothing was parsed yet.
    pub bytes: &'a [u8],
    /// The addresses of the packet, and how it came.
    pub meta: &'a RxMeta,
    /// Index of the packet in the buffer that the kernel returned (GRO), from 0.
    pub segment: u16,
}

impl<'a> RxPacket<'a> {
    /// Returns the packet without its ICRC: BTH to the end of the payload. Empty if the packet is
    /// too short to have an ICRC.
    pub fn transport(&self) -> &'a [u8] {
        &self.bytes[..self.bytes.len().saturating_sub(ICRC_BYTES)]
    }

    /// Returns the destination QPN in the BTH (IBTA 9.2.3), if the packet is long enough to have
    /// one.
    pub fn dest_qpn(&self) -> Option<vernic_wire::Qpn> {
        let &[a, b, c] = self.bytes.get(5..8)? else { return None };
        Some(vernic_wire::Qpn::new(u32::from_be_bytes([0, a, b, c])))
    }
}

/// A range of a buffer: the whole buffer, unless some packets of it were for other processes.
#[derive(Clone, Copy, Debug)]
struct RxRange {
    start: u32,
    len: u32,
    stride: u32,
    first_segment: u16,
    meta: RxMeta,
}

/// Most ranges in an [`RxBatch`]: enough for a buffer of the shortest packets of an InfiniBand
/// link, and some more. A buffer cut into more loses the rest, which [`RxBatch::commit_part`]
/// reports.
pub(crate) const RX_MAX_RANGES: usize = RX_BUFFERS * 256;

/// A batch of received packets: buffers filled by [`Link::recv`](crate::Link::recv).
#[derive(Debug)]
pub struct RxBatch {
    arena: Box<[u8]>,
    ranges: Vec<RxRange>,
    used_buffers: usize,
}

impl Default for RxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl RxBatch {
    /// Makes an empty batch of [`RX_BUFFERS`] buffers. Allocates; the data path never does again.
    pub fn new() -> Self {
        Self {
            arena: vec![0; RX_BUFFERS * RX_BUFFER_BYTES].into_boxed_slice(),
            ranges: Vec::with_capacity(RX_MAX_RANGES),
            used_buffers: 0,
        }
    }

    /// Removes all packets. [`Link::recv`](crate::Link::recv) does this itself, first.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.used_buffers = 0;
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of buffers that are still free.
    pub fn free(&self) -> usize {
        RX_BUFFERS - self.used_buffers
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.totals().map(|(packets, _)| packets).sum()
    }

    /// Returns the packets and bytes of each range.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ranges.iter().map(|r| (r.len.div_ceil(r.stride) as usize, r.len as usize))
    }

    /// Returns the packets, in the order of arrival.
    pub fn packets(&self) -> impl Iterator<Item = RxPacket<'_>> {
        self.ranges.iter().flat_map(|range| {
            let bytes = &self.arena[range.start as usize..][..range.len as usize];
            bytes.chunks(range.stride as usize).enumerate().map(move |(i, bytes)| RxPacket {
                bytes,
                meta: &range.meta,
                segment: range.first_segment.wrapping_add(i as u16),
            })
        })
    }

    /// For links: returns the free buffers as one slice, each of [`RX_BUFFER_BYTES`].
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.arena[self.used_buffers * RX_BUFFER_BYTES..]
    }

    /// For links: commits the first free buffer, which holds `len` bytes in packets of `stride`
    /// bytes (the last may be shorter). Does nothing when no buffer is free. An empty datagram
    /// takes its buffer and yields no packet.
    pub fn commit(&mut self, len: usize, stride: usize, meta: RxMeta) {
        self.commit_part(0, len, stride, 0, meta);
        self.next_buffer();
    }

    /// For links: does what [`commit`](Self::commit) does, but for `len` bytes from `offset` of the
    /// first free buffer. The first packet of them is segment `first_segment`. May be called any
    /// number of times before [`next_buffer`](Self::next_buffer). Returns false if there are too
    /// many parts, and this part is lost.
    pub fn commit_part(
        &mut self,
        offset: usize,
        len: usize,
        stride: usize,
        first_segment: u16,
        meta: RxMeta,
    ) -> bool {
        if len == 0 {
            return true;
        }
        if self.ranges.len() == RX_MAX_RANGES
            || self.used_buffers == RX_BUFFERS
            || offset + len > RX_BUFFER_BYTES
        {
            return false;
        }
        let start = (self.used_buffers * RX_BUFFER_BYTES + offset) as u32;
        let stride = stride.clamp(1, len) as u32;
        self.ranges.push(RxRange { start, len: len as u32, stride, first_segment, meta });
        true
    }

    /// For links: returns how many more parts there is room for
    /// ([`commit_part`](Self::commit_part)).
    pub(crate) fn free_parts(&self) -> usize {
        RX_MAX_RANGES - self.ranges.len()
    }

    /// For links: marks the first free buffer as used.
    pub fn next_buffer(&mut self) {
        self.used_buffers = (self.used_buffers + 1).min(RX_BUFFERS);
    }
}

#[cfg(test)]
mod tests;

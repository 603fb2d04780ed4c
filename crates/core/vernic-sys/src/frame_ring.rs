//! A ring of received frames in memory that the kernel shares with this process (`packet(7)`,
//! `PACKET_RX_RING`, version 2).
//!
//! The memory is the kernel's own: no bound on a socket's buffer holds for it, and a frame is taken
//! without a system call. The ring is made of blocks, and each block of slots for a frame each:
//!
//! ```text
//! byte 0        4     8        12    14    16     24    26     32        52    mac
//!      +--------+-----+--------+-----+-----+------+-----+------+---------+-----+--------------+
//!      | status | len | copied | mac | net | time | tci | tpid | address | gap | frame ...    |
//!      +--------+-----+--------+-----+-----+------+-----+------+---------+-----+--------------+
//! ```
//!
//! A slot belongs to the kernel or to this process, as its status says. The kernel stores the
//! status after all else, and writes to the slot no more until this process gives it back.
//!
//! No memory safety depends on that. The memory is accessed as atomics only, any value of which is
//! valid. Bytes are copied out before anybody looks at them, and what the kernel says of lengths
//! and places is checked first. A kernel that wrote to a slot out of turn would spoil that frame,
//! and nothing else.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{sockaddr_ll, tpacket_req, tpacket_stats, tpacket2_hdr};

use super::frames::kind_of;
use super::{FrameKind, OwnFd, check, set_option, set_option_bytes};

/// Bytes of a block: a multiple of every page size, in which slots for long frames fit too.
const BLOCK_BYTES: usize = 256 * 1024;

/// What the kernel aligns slots, and the parts of their heads, to (`TPACKET_ALIGNMENT`).
const ALIGNMENT: usize = 16;

/// Where the address of a frame is in its slot.
const ADDRESS: usize = size_of::<tpacket2_hdr>().next_multiple_of(ALIGNMENT);

/// Bytes of a slot before its frame, at most: the kernel keeps 16 bytes or more for the head of the
/// frame behind the address, and aligns what follows that head.
const HEAD: usize = (ADDRESS + size_of::<sockaddr_ll>() + 16).next_multiple_of(ALIGNMENT);

/// Bytes of a frame before the tag that the kernel takes out: the two addresses.
const BEFORE_TAG: usize = 12;

/// EtherType of the usual tag (802.1Q).
const TAG_8021Q: u16 = 0x8100;

/// How a ring is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    slot_bytes: usize,
    blocks: usize,
}

impl Geometry {
    /// Returns the geometry of a ring of at most this size; `None` if a frame does not fit a block,
    /// or a block not the ring.
    fn new(frame_bytes: usize, ring_bytes: usize) -> Option<Self> {
        let slot_bytes = frame_bytes.checked_add(HEAD)?.checked_next_multiple_of(ALIGNMENT)?;
        let blocks = ring_bytes / BLOCK_BYTES;
        // The kernel counts bytes by 32 bits.
        let is_possible = slot_bytes <= BLOCK_BYTES && blocks > 0 && ring_bytes <= 1 << 31;
        is_possible.then_some(Self { slot_bytes, blocks })
    }
    const fn slots_per_block(self) -> usize {
        BLOCK_BYTES / self.slot_bytes
    }
    const fn slots(self) -> usize {
        self.blocks * self.slots_per_block()
    }
    const fn bytes(self) -> usize {
        self.blocks * BLOCK_BYTES
    }
    /// Where in the ring a slot begins.
    const fn offset(self, slot: usize) -> usize {
        let per_block = self.slots_per_block();
        slot / per_block * BLOCK_BYTES + slot % per_block * self.slot_bytes
    }
    /// Returns the request for such a ring, as the kernel wants it.
    fn request(self) -> [u8; size_of::<tpacket_req>()] {
        let [block, blocks, slot, slots] =
            [BLOCK_BYTES, self.blocks, self.slot_bytes, self.slots()]
                .map(|value| (value as u32).to_ne_bytes());
        let mut request = [0; size_of::<tpacket_req>()];
        request[offset_of!(tpacket_req, tp_block_size)..][..4].copy_from_slice(&block);
        request[offset_of!(tpacket_req, tp_block_nr)..][..4].copy_from_slice(&blocks);
        request[offset_of!(tpacket_req, tp_frame_size)..][..4].copy_from_slice(&slot);
        request[offset_of!(tpacket_req, tp_frame_nr)..][..4].copy_from_slice(&slots);
        request
    }
}

/// What is known of a frame besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFrame {
    /// How it came.
    pub kind: FrameKind,
    /// Whether the frame did not fit its slot, so that bytes are missing at its end.
    pub truncated: bool,
    /// Whether checksums of its upper layers are in the frame, and not left to a network card.
    pub has_checksums: bool,
}

/// A packet socket that receives into a ring.
#[derive(Debug)]
pub struct FrameRing {
    socket: OwnFd,
    memory: NonNull<u8>,
    geometry: Geometry,
    /// The slot that the next frame is in.
    next: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access to it is by atomics.
unsafe impl Send for FrameRing {}

impl FrameRing {
    /// Gives a socket of [`frame_socket`](super::frame_socket) a ring of at most `ring_bytes` for
    /// frames of at most `frame_bytes`, which receives once the socket is bound
    /// ([`bind_frames`](super::bind_frames)).
    ///
    /// # Errors
    /// `InvalidInput` for frames of more than about 256 KiB, and for a ring that is shorter or is
    /// longer than 2 GiB; `ENOMEM` if the kernel has not as much memory; `EINVAL` where it has no
    /// such rings.
    pub fn new(socket: OwnFd, frame_bytes: usize, ring_bytes: usize) -> io::Result<Self> {
        let geometry = Geometry::new(frame_bytes, ring_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = socket.as_fd();
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        set_option_bytes(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &geometry.request())?;
        let (anywhere, len) = (std::ptr::null_mut(), geometry.bytes());
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of this process is
        // there.
        let at = unsafe { libc::mmap(anywhere, len, protection, shared, fd.as_raw_fd(), 0) };
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => {
                // A child of `fork` does not need the mapping, and leaves it alone where the kernel
                // refuses this.
                // SAFETY: the range was just mapped.
                let _ = unsafe { libc::madvise(at.as_ptr(), len, libc::MADV_DONTFORK) };
                Ok(Self { socket, memory: at.cast(), geometry, next: 0 })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes the next frame, if one is there, and makes `bytes` what it was on the wire: a tag that
    /// the kernel took out is in again. `bytes` keeps its memory. Never blocks; the socket is
    /// readable as long as frames are there.
    #[inline]
    pub fn take(&mut self, bytes: &mut Vec<u8>) -> Option<RingFrame> {
        let at = self.geometry.offset(self.next);
        let status = self.parts()[at / 4].load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let frame = self.read(at, status, bytes);
        self.parts()[at / 4].store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next += 1;
        if self.next == self.geometry.slots() {
            self.next = 0;
        }
        Some(frame)
    }

    /// Copies the frame of the slot at `at`, which has this status.
    #[inline]
    fn read(&self, at: usize, status: u32, bytes: &mut Vec<u8>) -> RingFrame {
        let slot = &self.parts()[at / 4..(at + self.geometry.slot_bytes) / 4];
        let part = |byte: usize| slot[byte / 4].load(Ordering::Relaxed);
        // Two fields of 16 bits each.
        let pair = |byte: usize| {
            let [a, b, c, d] = part(byte).to_ne_bytes();
            (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]))
        };
        let len = part(offset_of!(tpacket2_hdr, tp_len)) as usize;
        let copied = part(offset_of!(tpacket2_hdr, tp_snaplen)) as usize;
        let start = usize::from(pair(offset_of!(tpacket2_hdr, tp_mac)).0);
        // The kernel keeps to the slot; if it did not, the frame would be cut at the slot's end.
        let start = start.min(self.geometry.slot_bytes);
        let kept = copied.min(self.geometry.slot_bytes - start);
        let packet_type = offset_of!(sockaddr_ll, sll_pkttype);
        let kind = part(ADDRESS + packet_type / 4 * 4).to_ne_bytes()[packet_type % 4];
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0 && kept >= BEFORE_TAG).then(|| {
            let (tci, tpid) = pair(offset_of!(tpacket2_hdr, tp_vlan_tci));
            let has_type = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            [if has_type { tpid } else { TAG_8021Q }, tci].map(u16::to_be_bytes)
        });
        let start = at + start;
        match tag {
            None => {
                bytes.resize(kept, 0);
                self.copy_out(start, bytes);
            }
            Some(tag) => {
                bytes.resize(kept + size_of_val(&tag), 0);
                let (addresses, rest) = bytes.split_at_mut(BEFORE_TAG);
                let (tagged, rest) = rest.split_at_mut(size_of_val(&tag));
                self.copy_out(start, addresses);
                tagged.copy_from_slice(tag.as_flattened());
                self.copy_out(start + BEFORE_TAG, rest);
            }
        }
        let has_checksums = status & libc::TP_STATUS_CSUMNOTREADY == 0;
        RingFrame { kind: kind_of(kind), truncated: kept < len, has_checksums }
    }

    /// Copies bytes of the ring, from byte `at` of it on.
    #[inline]
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let (mut words, within) = (&self.words()[at / 8..], at % 8);
        let mut rest = bytes;
        if let Some((first, others)) = words.split_first().filter(|_| within > 0) {
            let first = &first.load(Ordering::Relaxed).to_ne_bytes()[within..];
            let (start, behind) = rest.split_at_mut(first.len().min(rest.len()));
            start.copy_from_slice(&first[..start.len()]);
            (words, rest) = (others, behind);
        }
        crate::copy_out(words, rest);
    }

    /// Returns how many frames found no free slot since the last call, or since the start.
    pub fn take_dropped(&self) -> io::Result<u32> {
        let mut stats = tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<tpacket_stats>() as libc::socklen_t;
        let (fd, at) = (self.socket.as_raw_fd(), (&raw mut stats).cast());
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: pointer and length describe `stats`, which lives through the call.
        check(unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) })?;
        Ok(stats.tp_drops)
    }

    /// Returns the ring as the fields of the slots' heads.
    #[inline]
    fn parts(&self) -> &[AtomicU32] {
        let (at, count) = (self.memory.as_ptr().cast(), self.geometry.bytes() / 4);
        // SAFETY: mapped, readable and writable, until `self` is dropped; aligned as pages are. The
        // mapping is `bytes()` long, and the kernel changes no ring that is mapped, so that no
        // access can fault. It changes the memory's content at any time, which atomics allow.
        unsafe { std::slice::from_raw_parts(at, count) }
    }

    /// Returns the ring as words, which frames are copied from.
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        let (at, count) = (self.memory.as_ptr().cast(), self.geometry.bytes() / 8);
        // SAFETY: as for `parts`. This process accesses the ring in `take` only, which has it for
        // itself, so its own accesses of different sizes to the same bytes are one after the other.
        unsafe { std::slice::from_raw_parts(at, count) }
    }
}

impl AsFd for FrameRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for FrameRing {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.geometry.bytes()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the kernel puts an Ethernet frame in a slot.
    const MAC: usize = HEAD - 14;
    const ARRIVED: u32 = libc::TP_STATUS_USER;

    /// A ring without a kernel: the memory is this process's own.
    fn ring(frame_bytes: usize, ring_bytes: usize) -> FrameRing {
        let geometry = Geometry::new(frame_bytes, ring_bytes).unwrap();
        let (anywhere, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(anywhere, geometry.bytes(), protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let memory = NonNull::new(at).unwrap().cast();
        FrameRing { socket: crate::eventfd().unwrap(), memory, geometry, next: 0 }
    }

    /// Does what the kernel does: fills a slot. The head says `len`, `copied` and `mac`.
    fn put(ring: &FrameRing, slot: usize, status: u32, head: (usize, usize, usize), frame: &[u8]) {
        let (len, copied, mac) = head;
        let at = ring.geometry.offset(slot);
        let mut bytes = vec![0; ring.geometry.slot_bytes];
        bytes[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
        bytes[8..12].copy_from_slice(&(copied as u32).to_ne_bytes());
        bytes[12..14].copy_from_slice(&(mac as u16).to_ne_bytes());
        bytes[24..26].copy_from_slice(&0x2005u16.to_ne_bytes());
        bytes[26..28].copy_from_slice(&0x88A8u16.to_ne_bytes());
        bytes[32 + 10] = libc::PACKET_OTHERHOST;
        bytes[MAC..][..frame.len()].copy_from_slice(frame);
        bytes[..4].copy_from_slice(&status.to_ne_bytes());
        for (part, bytes) in ring.parts()[at / 4..].iter().zip(bytes.chunks(4)) {
            part.store(u32::from_ne_bytes(bytes.try_into().unwrap()), Ordering::Release);
        }
    }

    fn frame(len: usize, salt: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + salt) as u8).collect()
    }

    #[test]
    fn slots_fill_blocks_and_never_cross_their_borders() {
        for (frame_bytes, slots_per_block) in [(1518, 163), (9018, 28), (65_554, 3)] {
            let geometry = Geometry::new(frame_bytes, 16 << 20).unwrap();
            assert_eq!(geometry.slots(), slots_per_block * 64);
            assert!(geometry.slot_bytes >= HEAD + frame_bytes);
            let offsets: Vec<_> = (0..geometry.slots()).map(|slot| geometry.offset(slot)).collect();
            for (this, next) in offsets.iter().zip(&offsets[1..]) {
                assert!(next - this >= geometry.slot_bytes);
                assert_eq!(this / BLOCK_BYTES, (this + geometry.slot_bytes - 1) / BLOCK_BYTES);
            }
            assert!(offsets[offsets.len() - 1] + geometry.slot_bytes <= geometry.bytes());
        }
        let impossible = [(1518, BLOCK_BYTES - 1), (BLOCK_BYTES, 16 << 20), (1518, usize::MAX)];
        for (frame_bytes, ring_bytes) in impossible {
            assert_eq!(Geometry::new(frame_bytes, ring_bytes), None);
        }
        assert_eq!(Geometry::new(usize::MAX, 16 << 20), None);
    }

    #[test]
    fn frames_are_taken_in_order_as_often_as_the_ring_goes_round() {
        let mut ring = ring(1518, BLOCK_BYTES);
        let mut bytes = Vec::new();
        assert_eq!(ring.take(&mut bytes), None);
        for number in 0..3 * ring.geometry.slots() {
            let frame = frame(14 + number % 1505, number);
            let len = frame.len();
            put(&ring, number % ring.geometry.slots(), ARRIVED, (len, len, MAC), &frame);
            let taken = ring.take(&mut bytes).unwrap();
            let (kind, truncated) = (FrameKind::Foreign, false);
            assert_eq!(taken, RingFrame { kind, truncated, has_checksums: true });
            assert_eq!(bytes, frame);
            assert_eq!(ring.take(&mut bytes), None, "the slot is given back");
        }
    }

    #[test]
    fn a_tag_is_put_in_again() {
        let mut ring = ring(1518, BLOCK_BYTES);
        let (frame, mut bytes) = (frame(100, 3), Vec::new());
        let tagged = ARRIVED | libc::TP_STATUS_VLAN_VALID;
        let statuses = [(tagged, 0x8100), (tagged | libc::TP_STATUS_VLAN_TPID_VALID, 0x88A8u16)];
        for (slot, (status, tpid)) in statuses.into_iter().enumerate() {
            put(&ring, slot, status, (100, 100, MAC), &frame);
            assert_eq!(ring.take(&mut bytes).map(|frame| frame.truncated), Some(false));
            let tag = [tpid, 0x2005].map(u16::to_be_bytes);
            assert_eq!(bytes, [&frame[..12], tag.as_flattened(), &frame[12..]].concat());
        }
        // So short a frame has no place for a tag.
        put(&ring, 2, tagged, (11, 11, MAC), &frame[..11]);
        ring.take(&mut bytes).unwrap();
        assert_eq!(bytes, frame[..11]);
    }

    #[test]
    fn what_does_not_fit_is_cut_whatever_the_head_says() {
        let mut ring = ring(1518, BLOCK_BYTES);
        let slot_bytes = ring.geometry.slot_bytes;
        let (frame, mut bytes) = (frame(1518, 1), Vec::new());
        let last = ring.geometry.slots() - 1;
        let huge = u32::MAX as usize;
        let heads = [
            ((60_000, 1518, MAC), 1518),
            ((huge, huge, MAC), slot_bytes - MAC),
            ((100, huge, usize::from(u16::MAX)), 0),
            ((100, 100, slot_bytes - 9), 9),
            ((huge, huge, 0), slot_bytes),
        ];
        for (head, kept) in heads {
            for status in [ARRIVED, ARRIVED | libc::TP_STATUS_VLAN_VALID] {
                ring.next = last;
                put(&ring, last, status, head, &frame);
                let taken = ring.take(&mut bytes).unwrap();
                assert!(taken.truncated, "{head:?}");
                let has_tag = status != ARRIVED && kept >= BEFORE_TAG;
                assert_eq!(bytes.len(), kept + if has_tag { 4 } else { 0 });
            }
        }
    }

    #[test]
    fn a_socket_that_cannot_have_a_ring_is_refused() {
        let socket = || crate::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        let error = |frame, ring| FrameRing::new(socket(), frame, ring).unwrap_err();
        assert_eq!(error(1518, 1000).kind(), io::ErrorKind::InvalidInput);
        assert!(error(1518, 1 << 20).raw_os_error().is_some());
    }
}

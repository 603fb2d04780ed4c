//! Receiving by RoCEv1: frames into a batch, each checked first.
//!
//! A frame is taken if it was sent to this netdev's address or to a group, on the netdev's own
//! VLAN: the kernel takes tags out, and gives the frames of a VLAN to its netdev. Its GRH must be
//! whole, and have a GID of this device, or a group that was joined. All else is counted and
//! dropped. A wrong ICRC is left to the engine, as that of a packet by UDP is.
//!
//! A frame takes a fifteenth of a receive buffer. There is no ring of memory that the kernel writes
//! frames to (`PACKET_RX_RING`). Packets must be in the buffers of the batch, so a ring would cost
//! a second copy of each. It would save system calls, of which there is one for 15 frames.

use std::os::fd::BorrowedFd;

use vernic_sys::{self as sys, FrameKind, IncomingFrame};
use vernic_wire::{FrameV1, Gid, LocalRoute};

use crate::address::{Address, LocalAddr};
use crate::batch::{Door, Icrc, MAX_PACKET_BYTES, RX_BUFFER_BYTES, RxBatch, RxMeta};
use crate::link::LinkCounters;

/// Bytes that a frame may take: its headers, the longest packet, what Ethernet may have added.
const FRAME_BYTES: usize = 4352;
const _: () = assert!(FRAME_BYTES >= FrameV1::HEADER_LEN + MAX_PACKET_BYTES);

/// Frames that fit a buffer.
pub(crate) const FRAMES: usize = RX_BUFFER_BYTES / FRAME_BYTES;

/// Bits of a tag (802.1Q) that are the VLAN; 0 is none, of a frame with a priority only.
const VLAN_BITS: u16 = 0xFFF;

/// The addresses that packets by RoCEv1 are received for.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// The device's addresses.
    pub(crate) locals: Vec<LocalAddr>,
    /// Groups that were joined, and the netdev of each.
    pub(crate) groups: Vec<(u32, Gid)>,
}

impl Addresses {
    fn has(&self, gid: Gid, ifindex: u32) -> bool {
        if gid.is_multicast() {
            return self.groups.contains(&(ifindex, gid));
        }
        let local = LocalAddr::new(gid.to_ip(), ifindex);
        self.locals.contains(&local)
    }

    /// Returns how the packet in a frame came. `None`, and counts, if the frame is dropped.
    fn accept<'a>(
        &self,
        bytes: &'a [u8],
        frame: &IncomingFrame,
        ifindex: u32,
        counters: &mut LinkCounters,
    ) -> Option<(&'a [u8], RxMeta)> {
        let is_foreign =
            frame.kind == FrameKind::Foreign || frame.tag.is_some_and(|tag| tag & VLAN_BITS != 0);
        if is_foreign {
            counters.rx_foreign_frames += 1;
            return None;
        }
        let Ok(parsed) = FrameV1::parse(bytes) else {
            counters.rx_bad_frames += 1;
            return None;
        };
        let grh = &parsed.grh;
        if !self.has(grh.dgid, ifindex) {
            counters.rx_foreign_frames += 1;
            return None;
        }
        let icrc = if parsed.is_icrc_right() {
            Icrc::Good
        } else {
            counters.icrc_errors += 1;
            Icrc::Bad
        };
        let meta = RxMeta {
            src: Address::RoceV1(grh.sgid),
            dst: Address::RoceV1(grh.dgid),
            flow: 0,
            door: Door::Shared,
            netdev: ifindex,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            flow_label: grh.flow_label,
            route: LocalRoute::NONE,
            icrc,
            handed_over: false,
        };
        Some((parsed.packet, meta))
    }
}

/// Receives up to `wanted` frames of a netdev into the first free buffer of a batch, which is not
/// full. Returns how many frames the socket has dropped, if it tells.
///
/// # Errors
/// The system's error; `WouldBlock` if there is no frame.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    ifindex: u32,
    wanted: usize,
    addresses: &Addresses,
    batch: &mut RxBatch,
    counters: &mut LinkCounters,
) -> std::io::Result<Option<u32>> {
    let mut incoming = [IncomingFrame::NONE; FRAMES];
    let wanted = wanted.min(FRAMES).min(batch.free_parts());
    let buffer = &mut batch.spare()[..RX_BUFFER_BYTES];
    let frames = sys::recv_frames(fd, buffer, FRAME_BYTES, &mut incoming[..wanted])?;
    let (mut overflow, mut is_used) = (None, false);
    for (n, frame) in incoming[..frames].iter().enumerate() {
        counters.rx_buffers += 1;
        overflow = frame.overflow.or(overflow);
        if frame.truncated {
            counters.rx_truncated_drops += 1;
            continue;
        }
        let start = n * FRAME_BYTES;
        let bytes = &batch.spare()[start..start + frame.len];
        if let Some((packet, meta)) = addresses.accept(bytes, frame, ifindex, counters) {
            let len = packet.len();
            is_used |= batch.commit_part(start + FrameV1::HEADER_LEN, len, len, 0, meta);
        }
    }
    if is_used {
        batch.next_buffer();
    }
    Ok(overflow)
}

#[cfg(test)]
mod tests {
    use vernic_wire::net::MacAddr;

    use super::*;
    use crate::path::{PathId, TxPath};
    use crate::roce_v1::tx;

    fn gid(ip: &str) -> Gid {
        Gid::from_ip(ip.parse().unwrap())
    }

    /// Returns a frame from 10.0.0.1 to `to`.
    fn frame(to: &str) -> Vec<u8> {
        let path = TxPath::new(gid("10.0.0.1"), gid(to), PathId::of_frames(0), 0);
        let mut packet = [7; 40];
        tx::stamp(&path, &mut packet, 40);
        let macs = (MacAddr([2; 6]), MacAddr([4; 6]));
        let mut frame = FrameV1::headers(macs, &tx::grh(&path, packet.len())).to_vec();
        frame.extend(packet);
        frame
    }

    /// Returns what becomes of a frame: its ICRC, or the names of the counters that counted it.
    fn fate(bytes: &[u8], how: IncomingFrame) -> Result<Icrc, Vec<&'static str>> {
        let locals = vec![LocalAddr::new("10.0.0.2".parse().unwrap(), 0)];
        let addresses = Addresses { locals, groups: vec![(7, gid("ff0e::1"))] };
        let mut counters = LinkCounters::default();
        let found = addresses.accept(bytes, &how, 7, &mut counters);
        let counted = counters.iter().filter(|(_, count)| *count != 0).map(|(name, _)| name);
        found.map(|(_, meta)| meta.icrc).ok_or_else(|| counted.collect())
    }

    const OWN: IncomingFrame = IncomingFrame::NONE;

    #[test]
    fn a_frame_to_this_device_is_taken() {
        assert_eq!(fate(&frame("10.0.0.2"), OWN), Ok(Icrc::Good));
        let group = IncomingFrame { kind: FrameKind::Group, ..OWN };
        assert_eq!(fate(&frame("ff0e::1"), group), Ok(Icrc::Good));
        let mut padded = frame("10.0.0.2");
        padded.extend([0; 20]);
        assert_eq!(fate(&padded, OWN), Ok(Icrc::Good));
        let priority = IncomingFrame { tag: Some(0x6000), ..OWN };
        assert_eq!(fate(&frame("10.0.0.2"), priority), Ok(Icrc::Good));
    }

    #[test]
    fn a_wrong_icrc_is_left_to_the_engine() {
        let mut wrong = frame("10.0.0.2");
        wrong[60] ^= 1;
        assert_eq!(fate(&wrong, OWN), Ok(Icrc::Bad));
    }

    #[test]
    fn every_other_frame_is_dropped_under_a_counter() {
        let right = frame("10.0.0.2");
        let foreign = Err(vec!["rx_foreign_frames"]);
        let bad = Err(vec!["rx_bad_frames"]);
        assert_eq!(fate(&frame("10.0.0.3"), OWN), foreign, "another GID");
        assert_eq!(fate(&frame("ff0e::2"), OWN), foreign, "another group");
        let other = IncomingFrame { kind: FrameKind::Foreign, ..OWN };
        assert_eq!(fate(&right, other), foreign, "another station");
        let vlan = IncomingFrame { tag: Some(0x6005), ..OWN };
        assert_eq!(fate(&right, vlan), foreign, "another VLAN");
        for len in 0..right.len() {
            assert_eq!(fate(&right[..len], OWN), bad, "{len} bytes");
        }
        for (at, value) in [(14, 0x40), (20, 17), (18, 1), (19, 4)] {
            let mut wrong = right.clone();
            wrong[at] = value;
            assert_eq!(fate(&wrong, OWN), bad, "byte {at}");
        }
    }
}

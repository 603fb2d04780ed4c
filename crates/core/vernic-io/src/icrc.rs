//! The ICRC of a UDP link: stamping runs, and checking packets whose IPv4 Identification cannot be
//! seen.
//!
//! Owns the memory of flows (their last Identification). Called by links; calls `vernic-wire` for
//! the arithmetic.
//!
//! On receive, the Identification is guessed from what senders are known to do:
//! 1. Vernic: the segment's index in its run, which after GRO is its index in the buffer; 0 for
//!    a packet alone, and for all packets of a host without segmentation offload.
//! 2. Linux rxe: one more than that of the packet before, per flow.
//! 3. If another 16-bit Identification explains the difference to the guess, it is taken to be
//!    the right one ([`IdentSolver`]): 1 in 65,536 damaged packets gets through here, and only
//!    here.
//!
//! Limits: [`FLOWS`] flows remembered, by source port; a flow that is replaced costs one solve when
//! it returns.

use vernic_wire::icrc::{IcrcFlow, IdentSolver, SizedFlow, Verdict};

use crate::address::Address;
use crate::batch::{ICRC_BYTES, Icrc, RxMeta, RxPacket};
use crate::endpoint::port_of;
use crate::path::TxPath;

/// Flows whose last Identification is remembered. A power of two.
const FLOWS: usize = 64;

/// Returns the flow of a path that leaves from UDP port `src_port`.
pub(crate) fn flow_of(path: &TxPath, src_port: u16) -> IcrcFlow {
    IcrcFlow::new(path.local().to_ip(), path.remote().to_ip(), src_port, path.door())
}

/// Writes the ICRC of packets of one run. If the kernel will cut the run up, counting the
/// Identification from 0, `first` is the index in the run of the first of these packets. `None` if
/// they leave one by one, with Identification 0.
pub(crate) fn stamp_run(flow: &IcrcFlow, first: Option<u16>, bytes: &mut [u8], stride: usize) {
    let mut ident = first.unwrap_or(0);
    let mut sized = flow.sized(stride.min(bytes.len()).saturating_sub(ICRC_BYTES));
    for packet in bytes.chunks_mut(stride) {
        if packet.len() != sized.packet_len() {
            sized = flow.sized(packet.len().saturating_sub(ICRC_BYTES));
        }
        sized.stamp(ident, packet);
        ident = ident.wrapping_add(u16::from(first.is_some()));
    }
}

/// Changes the ICRC of all packets of a stamped run from segmented (Identification 0, 1, 2...) to
/// not segmented (0, 0, 0...). A wrong ICRC stays wrong by the same difference, so that damage
/// done on purpose is not undone.
pub(crate) fn unsegment_run(flow: &IcrcFlow, bytes: &mut [u8], stride: usize) {
    if !flow.is_ipv4() {
        return;
    }
    for (packet, ident) in bytes.chunks_mut(stride).zip(0u16..) {
        if let Some((transport, icrc)) = packet.split_last_chunk_mut::<4>() {
            let change = flow.compute(ident, transport) ^ flow.compute(0, transport);
            *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
        }
    }
}

/// The result of checking an ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Good, with this Identification (0 over IPv6), which was a guess.
    Guessed(u16),
    /// Good, with this Identification, which had to be solved for.
    Solved(u16),
    /// The ICRC is wrong, or the packet is too short.
    Bad,
}

impl Found {
    /// Returns the result in the engine's form.
    pub(crate) fn icrc(self) -> Icrc {
        match self {
            Self::Guessed(_) | Self::Solved(_) => Icrc::Good,
            Self::Bad => Icrc::Bad,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct FlowEntry {
    src: Address,
    dst: Address,
    /// The sender's port and our port.
    ports: (u16, u16),
    flow: IcrcFlow,
    /// The flow's packets that are as long as the last one.
    sized: SizedFlow,
    /// The Identification to expect if it is not the segment index.
    next: u16,
    /// Whether the last Identification of the flow was its segment index: the usual guess.
    by_index: bool,
}

/// Checks ICRCs of received packets.
#[derive(Debug)]
pub(crate) struct IcrcChecker {
    flows: Box<[Option<FlowEntry>; FLOWS]>,
    solver: IdentSolver,
}

impl IcrcChecker {
    pub(crate) fn new() -> Self {
        Self { flows: Box::new([None; FLOWS]), solver: IdentSolver::new() }
    }

    /// Checks one packet.
    pub(crate) fn check(&mut self, packet: &RxPacket<'_>) -> Found {
        let RxMeta { src, dst, flow, door, .. } = packet.meta;
        let ports = (*flow, port_of(*door));
        let slot = &mut self.flows[usize::from(*flow) % FLOWS];
        let entry = match slot {
            Some(entry) if entry.ports == ports && entry.src == *src && entry.dst == *dst => entry,
            _ => {
                let flow = IcrcFlow::new(src.ip(), dst.ip(), ports.0, ports.1);
                let (src, dst, sized) = (*src, *dst, flow.sized(0));
                slot.insert(FlowEntry { src, dst, ports, flow, sized, next: 0, by_index: true })
            }
        };
        if entry.sized.packet_len() != packet.bytes.len() {
            entry.sized = entry.flow.sized(packet.bytes.len().saturating_sub(ICRC_BYTES));
        }
        let guess = if entry.by_index { packet.segment } else { entry.next };
        let found = match entry.sized.check(guess, packet.bytes) {
            Verdict::Good => Found::Guessed(guess),
            Verdict::Truncated => Found::Bad,
            Verdict::Differs { .. } if !entry.flow.is_ipv4() => Found::Bad,
            Verdict::Differs { diff } => {
                match self.solver.solve(diff, packet.bytes.len().saturating_sub(4)) {
                    None => Found::Bad,
                    Some(change) => {
                        let ident = guess ^ change;
                        let expected = ident == 0 || ident == packet.segment || ident == entry.next;
                        if expected { Found::Guessed(ident) } else { Found::Solved(ident) }
                    }
                }
            }
        };
        if let Found::Guessed(ident) | Found::Solved(ident) = found {
            entry.by_index = ident == packet.segment;
            entry.next = ident.wrapping_add(1);
        }
        found
    }
}

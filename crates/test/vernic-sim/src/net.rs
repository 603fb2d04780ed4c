//! The network: what becomes of a packet between two queue pairs.
//!
//! Owns the packets in flight and the state of each direction. A packet is serialized, delayed, and
//! perhaps lost, cut off, repeated, overtaken, or corrupted. A corrupted packet stands for one
//! whose ICRC fails: it is parsed, to prove that parsing bears it, and dropped. Called by the
//! world.

use vernic_proto::Time;
use vernic_wire::Packet;

use crate::cover::Count;
use crate::ctx::Ctx;
use crate::plan::{LinkPlan, Mutation};
use crate::rng::Rng;

/// Which piece of which message a request packet is; meaningless for responses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tag {
    pub(crate) msg: usize,
    pub(crate) index: u32,
}

/// A packet between two queue pairs.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) bytes: Vec<u8>,
    pub(crate) conn: usize,
    pub(crate) to: usize,
    pub(crate) incarnation: u32,
    pub(crate) tag: Tag,
}

/// One direction of a connection's path.
#[derive(Debug, Default)]
pub(crate) struct Link {
    busy_until: Time,
    last_arrival: Time,
    pub(crate) dead_until: Time,
    pub(crate) cut_until: Time,
    pub(crate) cut_bytes: usize,
}

/// What becomes of a packet: arrival times of up to two copies, and whether the flow is disturbed.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    pub(crate) arrivals: [Option<Time>; 2],
    pub(crate) disturbed: bool,
}

/// Packets in flight, in a slab so that buffers are used again.
#[derive(Debug, Default)]
pub(crate) struct Air {
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    pool: Vec<Vec<u8>>,
}

impl Air {
    pub(crate) fn buffer(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }
    pub(crate) fn insert(&mut self, packet: InFlight) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(packet);
                slot
            }
            None => {
                self.slots.push(Some(packet));
                self.slots.len() - 1
            }
        }
    }
    pub(crate) fn remove(&mut self, slot: usize) -> Option<InFlight> {
        let packet = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(packet)
    }
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        self.pool.push(buffer);
    }
}

/// Serialization time of `len` bytes.
pub(crate) fn wire_time(plan: &LinkPlan, len: usize) -> u64 {
    (len as u64 * plan.ns_per_kib) >> 10
}

impl Link {
    /// Decides about one packet. With `healed`, only delay remains.
    pub(crate) fn fate(
        &mut self,
        ctx: &mut Ctx,
        rng: &mut Rng,
        plan: &LinkPlan,
        healed: bool,
        bytes: &mut [u8],
    ) -> Fate {
        let now = ctx.now;
        let start = self.busy_until.max(now);
        self.busy_until = start + wire_time(plan, bytes.len());
        let mut arrival = self.busy_until + plan.delay + rng.below(plan.jitter + 1);
        if ctx.mutates(Mutation::SilentCorruption) {
            corrupt_payload(bytes);
        }
        if !healed {
            if now < self.dead_until {
                return lost(ctx, Count::Partitioned);
            }
            if now < self.cut_until && bytes.len() > self.cut_bytes {
                return lost(ctx, Count::MtuCut);
            }
            if rng.ppm(plan.loss) {
                return lost(ctx, Count::Lost);
            }
            if rng.ppm(plan.corrupt) {
                let flips = rng.range(1, 4);
                for _ in 0..flips {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << rng.below(8);
                }
                let cut = rng.below(bytes.len() as u64 + 1) as usize;
                let _ = Packet::parse(bytes).map(|packet| packet.headers());
                let _ = Packet::parse(&bytes[..cut]).map(|packet| packet.headers());
                return lost(ctx, Count::Corrupted);
            }
        }
        let mut fate = Fate::default();
        if !healed && plan.spread > 0 {
            fate.disturbed = true;
            arrival = arrival + rng.below(plan.spread);
        } else if !healed && rng.ppm(plan.reorder) {
            ctx.hit(Count::Reordered);
            fate.disturbed = true;
            arrival = arrival + rng.below(plan.delay * 2 + 2_000);
        } else {
            // Jitter alone does not reorder.
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        fate.arrivals[0] = Some(arrival);
        if !healed && rng.ppm(plan.duplicate) {
            ctx.hit(Count::Duplicated);
            fate.disturbed = true;
            fate.arrivals[1] = Some(arrival + rng.below(plan.delay * 2 + 2_000));
        }
        fate
    }
}

fn lost(ctx: &mut Ctx, why: Count) -> Fate {
    ctx.hit(why);
    Fate { arrivals: [None, None], disturbed: true }
}

/// Changes the last payload byte, or nothing if there is none.
pub(crate) fn corrupt_payload(bytes: &mut [u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let end = bytes.len() - packet.padding().len();
    if !packet.payload().is_empty() {
        bytes[end - 1] ^= 0x10;
    }
}

/// A packet that nobody sent: random bytes, or a real packet with random changes.
pub(crate) fn garbage(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match rng.below(4) {
        0 => bytes.iter_mut().for_each(|byte| *byte = rng.word() as u8),
        1 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize & !3),
        2 => bytes[0] = rng.word() as u8,
        _ => {}
    }
    for _ in 0..rng.range(1, 6) {
        if !bytes.is_empty() {
            let head = bytes.len().min(44) as u64;
            let at = rng.below(head) as usize;
            let other = rng.word() as u8;
            bytes[at] = rng.pick(&[0, 0xFF, bytes[at] ^ 1, bytes[at].wrapping_add(1), other]);
        }
    }
    bytes
}

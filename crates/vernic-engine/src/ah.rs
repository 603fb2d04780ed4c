//! Address handles (IBTA 11.2.2): destinations of datagrams.
//!
//! Owns an address vector, checked and made into a path when it is created, and the answer to "is
//! that queue pair one of this host, and on which private port?". It is asked for with the first
//! datagram to a process, which waits for it, at most [`FIRST_WAIT`]: datagrams on port 4791 are
//! handed over, and a hand-over queue holds ten. Later questions are not waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vernic_io::batch::flow_to;
use vernic_io::intake::IntakeId;
use vernic_io::slot::{Lookup, Slot};
use vernic_io::{ROCE_PORT, TxPath};
use vernic_proto::AddressVector;
use vernic_wire::Qpn;

use crate::context::Context;
use crate::device::Transport;
use crate::error::CreateError;
use crate::pd::Pd;
use crate::progress::Engine;

/// How long the answer about a peer's port is used without asking again.
const ANSWER_LIFE_MS: u64 = 500;
/// How long to wait before looking for an answer again.
const PENDING_LIFE_MS: u64 = 1;
/// Longest wait of a first datagram for the answer: far above the 20 us that it takes a process
/// that polls and the take-over time of one that does not, far below a timeout.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    av: AddressVector,
    path: TxPath,
    multicast: bool,
    /// What is known of the last destination, by the engine that sends there.
    known: Box<[AtomicU64]>,
}

/// What is known of a destination, in one word.
///
/// ```text
///  bit  0..16     16..26   26..36   36..64
///      +------+---------+--------+-------+
///      | port | intake  |  slot  | until |   until: time in ms, which wraps after three days
///      +------+---------+--------+-------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    port: u16,
    intake: Option<IntakeId>,
    slot: Slot,
}

const MS_MASK: u64 = (1 << 28) - 1;

impl Known {
    fn pack(self, until_ms: u64) -> u64 {
        let intake = self.intake.map_or(0, IntakeId::value);
        u64::from(self.port)
            | u64::from(intake & 0x3FF) << 16
            | u64::from(self.slot.value()) << 26
            | (until_ms & MS_MASK) << 36
    }

    /// What the word knows of `slot`, if it still holds.
    fn unpack(word: u64, slot: Slot, now_ms: u64) -> Option<Self> {
        let left_ms = (word >> 36).wrapping_sub(now_ms) & MS_MASK;
        if left_ms == 0
            || left_ms > ANSWER_LIFE_MS + 1
            || word >> 26 & 0x3FF != u64::from(slot.value())
        {
            return None;
        }
        Some(Self { port: word as u16, intake: IntakeId::new((word >> 16 & 0x3FF) as u16), slot })
    }
}

impl Ah {
    pub(crate) fn new(pd: &Arc<Pd>, av: AddressVector) -> Result<Arc<Self>, CreateError> {
        let engine = pd.context().engine();
        if engine.info.transport == Transport::Iwarp {
            let (device, what) = (engine.info.name.clone(), "address handles");
            return Err(CreateError::NotOnIwarp { device, what });
        }
        engine.check_port(av.port)?;
        let resolved = engine.resolve(&av, av.flow_label)?;
        pd.hold();
        let multicast = av.dgid.is_multicast();
        let known = pd.context().engines().iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Self { pd: pd.clone(), av, path: resolved.path, multicast, known }))
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// The address vector that it was made from.
    pub fn av(&self) -> &AddressVector {
        &self.av
    }

    /// The path of a datagram to `qpn`: its process's private port where it is known.
    pub(crate) fn path_to(&self, engine: &Engine, qpn: Qpn) -> TxPath {
        if self.multicast {
            return self.path;
        }
        let slot = Slot::of(qpn);
        let path = self.path.with_flow(flow_to(slot, self.path.flow()));
        if engine.config.force_wire {
            return path;
        }
        let now_ms = engine.now().nanos() / 1_000_000;
        let Some(place) = self.known.get(engine.place) else { return path };
        let known = Known::unpack(place.load(Ordering::Relaxed), slot, now_ms);
        let known = known.unwrap_or_else(|| {
            let (known, life) = self.ask(engine, slot, qpn);
            place.store(known.pack(now_ms + 1 + life), Ordering::Relaxed);
            known
        });
        path.with_port(known.port, known.intake)
    }

    #[cold]
    fn ask(&self, engine: &Engine, slot: Slot, qpn: Qpn) -> (Known, u64) {
        let ip = self.path.dst().ip();
        let answer = match engine.slots.lookup(ip, qpn) {
            Lookup::Asked => match engine.slots.query(ip, qpn, FIRST_WAIT) {
                Some(peer) => Lookup::Here(peer),
                None => Lookup::Pending,
            },
            answer => answer,
        };
        let (port, intake, life) = match answer {
            Lookup::Here(peer) => {
                engine.want_neighbour(slot, peer.pid);
                (peer.private_port, peer.intake, ANSWER_LIFE_MS)
            }
            Lookup::NotHere => (ROCE_PORT, None, ANSWER_LIFE_MS),
            Lookup::Asked | Lookup::Pending => (ROCE_PORT, None, PENDING_LIFE_MS),
        };
        (Known { port, intake, slot }, life)
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.pd.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_destination_holds_for_its_slot_until_its_time_also_where_the_time_wraps() {
        let slot = Slot::LAST;
        let known = Known { port: 0xFFFF, intake: IntakeId::new(1023), slot };
        for now in [0, 7, MS_MASK - 3, MS_MASK, MS_MASK + 1, u64::MAX >> 20] {
            let word = known.pack(now + 1 + ANSWER_LIFE_MS);
            assert_eq!(Known::unpack(word, slot, now), Some(known));
            assert_eq!(Known::unpack(word, slot, now + ANSWER_LIFE_MS), Some(known));
            assert_eq!(Known::unpack(word, slot, now + ANSWER_LIFE_MS + 1), None);
            assert_eq!(Known::unpack(word, slot, now + 1_000_000), None);
            assert_eq!(Known::unpack(word, Slot::FIRST, now), None);
            assert_eq!(Known::unpack(0, slot, now), None);
        }
    }
}

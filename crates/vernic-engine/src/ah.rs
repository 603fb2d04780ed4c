//! Address handles (IBTA 11.2.2): destinations of datagrams.
//!
//! Owns an address vector, checked and made into a path when it is created, and the answer to "is
//! that queue pair one of this host, and on which private port?". It is asked for with the first
//! datagram to a process, which waits for it, at most [`FIRST_WAIT`]: datagrams on port 4791 are
//! handed over, and a hand-over queue holds ten. Later questions are not waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vernic_io::slot::{Lookup, Slot};
use vernic_io::{ROCE_PORT, TxPath};
use vernic_proto::AddressVector;
use vernic_wire::Qpn;

use crate::context::Context;
use crate::error::CreateError;
use crate::path::to_port;
use crate::pd::Pd;

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
    /// What is known of the last destination: port (16 bits), slot (16), time in ms until which
    /// it holds (32).
    known: AtomicU64,
}

impl Ah {
    pub(crate) fn new(pd: &Arc<Pd>, av: AddressVector) -> Result<Arc<Self>, CreateError> {
        let engine = pd.context().engine();
        engine.check_port(av.port)?;
        let resolved = engine.resolve(&av, av.flow_label)?;
        pd.hold();
        let multicast = av.dgid.is_multicast();
        let known = AtomicU64::new(0);
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
    pub(crate) fn path_to(&self, qpn: Qpn) -> TxPath {
        let engine = self.pd.context().engine();
        if self.multicast || engine.config.force_wire {
            return self.path;
        }
        let slot = Slot::of(qpn);
        let now_ms = (engine.now().nanos() / 1_000_000) & 0xFFFF_FFFF;
        let known = self.known.load(Ordering::Relaxed);
        let holds = known >> 32 > now_ms && known >> 16 & 0xFFFF == u64::from(slot.value());
        let port = if holds { known as u16 } else { self.ask(slot, qpn, now_ms) };
        if port == ROCE_PORT {
            return self.path;
        }
        to_port(&self.path, port)
    }

    #[cold]
    fn ask(&self, slot: Slot, qpn: Qpn, now_ms: u64) -> u16 {
        let engine = self.pd.context().engine();
        let ip = self.path.dst().ip();
        let answer = match engine.slots.lookup(ip, qpn) {
            Lookup::Asked => match engine.slots.query(ip, qpn, FIRST_WAIT) {
                Some(peer) => Lookup::Here(peer),
                None => Lookup::Pending,
            },
            answer => answer,
        };
        let (port, life) = match answer {
            Lookup::Here(peer) => (peer.private_port, ANSWER_LIFE_MS),
            Lookup::NotHere => (ROCE_PORT, ANSWER_LIFE_MS),
            Lookup::Asked | Lookup::Pending => (ROCE_PORT, PENDING_LIFE_MS),
        };
        let until = now_ms + 1 + life;
        let known = until << 32 | u64::from(slot.value()) << 16 | u64::from(port);
        self.known.store(known, Ordering::Relaxed);
        port
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.pd.release();
    }
}

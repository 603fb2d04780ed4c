//! Address handles (IBTA 11.2.2): destinations of datagrams.
//!
//! Owns an address vector, which is checked and resolved to a path when the handle is created. Also
//! remembers the last destination: whether its queue pair belongs to a process of this host, and at
//! which private port that process receives.
//!
//! When the first datagram is sent to a process of this host, that process is asked for its private
//! port. The datagram waits for the answer, up to [`FIRST_WAIT`]. It would also arrive at the
//! shared port 4791, but perhaps at another process, which would have to hand it over by a queue
//! that holds only ten. Later datagrams do not wait when the process is asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vernic_io::host::{Lookup, Slot};
use vernic_io::{Address, ReceiverPageId};
use vernic_io::{Peer, ProcessId, TxPath};
use vernic_proto::AddressVector;
use vernic_wire::Qpn;

use crate::error::CreateError;
use crate::progress::engine::Engine;
use crate::verbs::context::Context;
use crate::verbs::pd::Pd;

/// Time in milliseconds for which the path to the destination is used as it was found. Then the
/// process at the destination is asked again on which port it receives.
const ANSWER_LIFE_MS: u64 = 500;
/// Time in milliseconds for which the path is used while that process has not yet answered. Then
/// the path is found again, to see whether the answer has come.
const PENDING_LIFE_MS: u64 = 1;
/// How long a first datagram waits for that answer at most. A process that polls sends its answer
/// within 20 us, and any other process within its take-over time (the setting `takeover_us`). This
/// limit is far longer than both, and far shorter than an ACK timeout.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// An address handle: the destination of datagrams, without the queue pair number.
#[derive(Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    av: AddressVector,
    path: TxPath,
    /// The static rate in Mb/s; 0 for none.
    rate_mbps: u32,
    /// Whether the path is the same for all processes of its destination: a group's, or that of a
    /// link with LIDs, or one of RoCEv1.
    is_final: bool,
    /// What is known of the last destination, packed by [`Known::pack`]; 0 if nothing is.
    known: AtomicU64,
}

/// What is known of a destination. It is packed into one word, so that it can be read without a
/// lock:
///
/// ```text
///  bit  0..16     16..26   26..36   36..64
///      +------+---------+--------+-------+
///      | door | page    |  slot  | until |   until: time in ms, which wraps after three days
///      +------+---------+--------+-------+   door: private port, 0 if not a process of this host
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    peer: Peer,
    slot: Slot,
}

const MS_MASK: u64 = (1 << 28) - 1;

impl Known {
    fn pack(self, until_ms: u64) -> u64 {
        let (door, receiver_page) = match self.peer {
            Peer::Remote => (0, 0),
            Peer::LocalProcess(id) => (id.door, id.receiver_page.map_or(0, ReceiverPageId::value)),
        };
        u64::from(door)
            | u64::from(receiver_page & 0x3FF) << 16
            | u64::from(self.slot.value()) << 26
            | (until_ms & MS_MASK) << 36
    }

    /// Returns what `word` says of the destination; `None` if it is about another process slot or
    /// too old.
    fn unpack(word: u64, slot: Slot, now_ms: u64) -> Option<Self> {
        let left_ms = (word >> 36).wrapping_sub(now_ms) & MS_MASK;
        if left_ms == 0
            || left_ms > ANSWER_LIFE_MS + 1
            || word >> 26 & 0x3FF != u64::from(slot.value())
        {
            return None;
        }
        let receiver_page = ReceiverPageId::new((word >> 16 & 0x3FF) as u16);
        let peer = match word as u16 {
            0 => Peer::Remote,
            door => Peer::LocalProcess(ProcessId { door, receiver_page }),
        };
        Some(Self { peer, slot })
    }

    /// Returns `path`, changed to lead to the known process if the destination is one of this host.
    #[inline]
    fn lead(self, path: TxPath) -> TxPath {
        match self.peer {
            Peer::Remote => path,
            Peer::LocalProcess(id) => path.to_process(id),
        }
    }
}

impl Pd {
    /// Creates an address handle.
    ///
    /// # Errors
    /// [`CreateError::Path`] if the address vector does not lead anywhere.
    pub fn create_ah(self: &Arc<Self>, av: AddressVector) -> Result<Arc<Ah>, CreateError> {
        self.alive()?;
        Ah::new(self, av)
    }
}

impl Ah {
    pub(crate) fn new(pd: &Arc<Pd>, av: AddressVector) -> Result<Arc<Self>, CreateError> {
        let engine = pd.context().engine();
        if !engine.rules().uses_gids() {
            let (device, what) = (engine.info().name.clone(), "address handles");
            return Err(CreateError::NotOnIwarp { device, what });
        }
        let resolved = engine.resolve(&av, av.flow_label)?;
        let port_mbps = engine.port(av.port)?.mbps();
        let rate_mbps = av.static_rate.mbps().filter(|mbps| *mbps < port_mbps).unwrap_or(0);
        pd.hold();
        let by_v1 = matches!(resolved.peer, Address::RoceV1(_));
        let is_final = by_v1 || av.dgid.is_multicast() || engine.rules().has_lids();
        let (pd, path, known) = (pd.clone(), resolved.path, AtomicU64::new(0));
        Ok(Arc::new(Self { pd, av, path, rate_mbps, is_final, known }))
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Returns the address vector from which the handle was created.
    pub fn av(&self) -> &AddressVector {
        &self.av
    }

    /// Returns the static rate in Mb/s; 0 for none, or one that the port does not exceed.
    #[inline]
    pub(crate) fn rate_mbps(&self) -> u32 {
        self.rate_mbps
    }

    /// Returns the path of a datagram to `qpn`, with the private port of its process if that is
    /// known. Returns `None` if the process was asked for it by this call. The caller then calls
    /// [`wait_for`](Self::wait_for) and tries again.
    pub(crate) fn path_to(&self, engine: &Engine, qpn: Qpn) -> Option<TxPath> {
        if self.is_final {
            return Some(self.path);
        }
        let slot = Slot::of(qpn);
        let path = self.path.with_flow(slot.flow(self.path.flow()));
        if engine.config().force_wire {
            return Some(path);
        }
        let now_ms = engine.now().nanos() / 1_000_000;
        let known = match Known::unpack(self.known.load(Ordering::Relaxed), slot, now_ms) {
            Some(known) => known,
            None => self.learn(engine, qpn, engine.slots().lookup(path.remote().to_ip(), qpn))?,
        };
        Some(known.lead(path))
    }

    /// Waits until the process of `qpn` has answered, which was asked before. The caller must not
    /// hold a lock, because that process may be stopped.
    #[cold]
    pub(crate) fn wait_for(&self, engine: &Engine, qpn: Qpn) {
        let answer = engine.slots().query(self.path.remote().to_ip(), qpn, FIRST_WAIT);
        self.learn(engine, qpn, answer.map_or(Lookup::Pending, Lookup::Here));
    }

    /// Stores an answer about a destination. Returns `None` if there is no answer yet, but one is
    /// expected soon.
    #[cold]
    fn learn(&self, engine: &Engine, qpn: Qpn, answer: Lookup) -> Option<Known> {
        let slot = Slot::of(qpn);
        let (peer, life) = match answer {
            Lookup::Here(process) => {
                engine.want_local_peer(slot, process.pid);
                (Peer::LocalProcess(process.id()), ANSWER_LIFE_MS)
            }
            Lookup::NotHere => (Peer::Remote, ANSWER_LIFE_MS),
            Lookup::Pending => (Peer::Remote, PENDING_LIFE_MS),
            Lookup::Asked => return None,
        };
        let known = Known { peer, slot };
        let now_ms = engine.now().nanos() / 1_000_000;
        self.known.store(known.pack(now_ms + 1 + life), Ordering::Relaxed);
        Some(known)
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.pd.release();
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use vernic_proto::{SendFlags, SendOp};
    use vernic_wire::{PortNum, Qkey};

    use super::*;
    use crate::support::events::lock;
    use crate::testing::{ud_qp, without_background};
    use crate::{Dest, EMPTY_WC, Payload, QpCap, SendWr};

    #[test]
    fn a_known_destination_holds_for_its_slot_until_its_time_also_where_the_time_wraps() {
        let slot = Slot::LAST;
        let id = ProcessId { door: 0xFFFF, receiver_page: ReceiverPageId::new(1023) };
        let known = Known { peer: Peer::LocalProcess(id), slot };
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

    /// Takes a process slot on behalf of a process that never answers, like one that is stopped.
    fn silent() -> (UnixDatagram, Slot) {
        let names = (Slot::FIRST.value()..Slot::LAST.value()).rev();
        let bind = |slot: u16| {
            let name = SocketAddr::from_abstract_name(format!("vernic/{slot}")).ok()?;
            let first = Qpn::new(u32::from(slot) << Slot::INDEX_BITS);
            Some((UnixDatagram::bind_addr(&name).ok()?, Slot::of(first)))
        };
        names.into_iter().find_map(bind).unwrap()
    }

    #[test]
    fn a_first_datagram_waits_for_its_process_and_leaves_its_queue_pair_to_others_meanwhile() {
        let context = without_background();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(16, None).unwrap());
        let cap = QpCap::default();
        let qp = ud_qp(&pd, &cq, cap);
        let entry = context.gid_table()[0].clone();
        let (dgid, sgid_index) = (entry.gid, entry.index);
        let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..Default::default() };
        let mut processes = Vec::new();
        // The check may run too late and then proves nothing, so there are several attempts.
        let is_free = (0..20).any(|_| {
            let (process, slot) = silent();
            let ah = pd.create_ah(av).unwrap();
            let dest = Some(Dest { ah: &ah, qpn: slot.qpn(1), qkey: Qkey(1) });
            let (op, flags) = (SendOp::Send, SendFlags::empty());
            let payload = Payload::Inline(&[b"first"]);
            let wr = SendWr { wr_id: 0, op, flags, payload, dest, srqn: None };
            let sent = qp.counters().messages_sent;
            let is_free = std::thread::scope(|scope| {
                scope.spawn(|| qp.post_send(&[wr]).unwrap());
                // The lookup sends the first query. The second query is the one that the post waits
                // for.
                (0..2).for_each(|_| assert_ne!(process.recv(&mut [0; 64]).unwrap(), 0));
                let core = lock(&qp.inner().core);
                let is_sent = core.machine.counters().messages_sent != sent;
                core.machine.send_room() == cap.max_send_wr && !is_sent
            });
            while cq.poll(&mut [EMPTY_WC; 16]).unwrap() == 0 {}
            processes.push(process);
            is_free
        });
        assert!(is_free, "whoever posts holds the queue pair while it waits");
    }
}

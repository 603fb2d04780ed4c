//! Steering: flows that keep coming to the wrong process are moved to the right one.
//!
//! The kernel picks among the processes that share port 4791 by a hash of addresses and ports. A
//! process may be handed [`HAND_OVERS`] buffers of one flow, and accept a packet of each. It then
//! opens a socket that is bound to the same address and port and *connected* to the flow's source.
//! That is a more exact match, which the kernel prefers (since Linux 5.0 also among sockets that
//! share a port). The socket needs no privilege, takes nothing from other flows, and vanishes with
//! the process.
//!
//! Only packets that the engine accepted count
//! ([`Link::note_accepted`](crate::Link::note_accepted)). Anybody may forge a packet of the flow
//! that has a wrong ICRC, no queue pair, another source or an old sequence number. If such packets
//! counted, they could bring the flow to the wrong process for good.
//!
//! The alternative is a classic BPF program that picks the process by QPN
//! (`SO_ATTACH_REUSEPORT_CBPF`). The program picks by index in the group of sockets, and the index
//! of the others changes whenever a process leaves. So all processes would need to agree anew each
//! time. Also, one program serves the whole group, whichever process attached it.
//!
//! A flow that carries packets for two processes is steered to one of them, which hands packets
//! over to the other. The other process cannot steer the flow by then. That is correct, at the same
//! price as before. Senders of this kind avoid such flows (`Slot::flow`).
//!
//! Limits: [`MAX_STEERED`] sockets; one that is idle for [`IDLE_NANOS`] is closed. Of more than
//! [`WAYS`] flows whose ports end in the same bits, those that come most often are counted.

use std::net::SocketAddr;

use crate::link::Nanos;

/// Buffers of one flow that are handed over before it is steered. Each is copied and may cost two
/// system calls; a socket costs ten.
pub(crate) const HAND_OVERS: u32 = 4;

/// The most flows steered at a time.
pub(crate) const MAX_STEERED: usize = 64;

/// How long a steered socket may have no packet before it is closed: ten seconds.
pub(crate) const IDLE_NANOS: u64 = 10_000_000_000;

/// Sets of flows counted at a time; by source port, so a power of two.
const SETS: usize = 32;

/// Flows in a set.
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Counted {
    src: SocketAddr,
    dst: SocketAddr,
    hand_overs: u32,
    since: Nanos,
}

/// Counts hand-overs per flow.
#[derive(Debug)]
pub(crate) struct Steering {
    flows: Box<[[Option<Counted>; WAYS]; SETS]>,
}

impl Steering {
    pub(crate) fn new() -> Self {
        Self { flows: Box::new([[None; WAYS]; SETS]) }
    }

    /// Notes that a buffer from `src` to `dst` was handed over to us and accepted. Returns true
    /// when it is time to steer the flow: once, and again each [`IDLE_NANOS`] if hand-overs go on.
    pub(crate) fn note(&mut self, src: SocketAddr, dst: SocketAddr, now: Nanos) -> bool {
        let set = &mut self.flows[usize::from(src.port()) % SETS];
        let fresh = |flow: &Counted| now < flow.since.plus(IDLE_NANOS);
        let is_it = |entry: &Option<Counted>| entry.is_some_and(|f| f.src == src && f.dst == dst);
        let hand_overs = |entry: &&mut Option<Counted>| {
            entry.filter(|flow| fresh(flow)).map_or(0, |flow| flow.hand_overs)
        };
        let known = set.iter().position(is_it);
        let entry = match known {
            Some(at) => Some(&mut set[at]),
            None => set.iter_mut().min_by_key(hand_overs),
        };
        let Some(entry) = entry else { return false };
        let flow = match entry {
            Some(flow) if known.is_some() && fresh(flow) => flow,
            _ => entry.insert(Counted { src, dst, hand_overs: 0, since: now }),
        };
        flow.hand_overs = flow.hand_overs.saturating_add(1);
        flow.hand_overs == HAND_OVERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_steered_once_after_enough_hand_overs() {
        let mut steering = Steering::new();
        let (src, dst) = ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
        let other = "10.0.0.1:50001".parse().unwrap();
        let steered: Vec<u32> = (1..100)
            .filter(|_| {
                steering.note(other, dst, Nanos(0));
                steering.note(src, dst, Nanos(0))
            })
            .collect();
        assert_eq!(steered, [HAND_OVERS]);
        // A flow that comes back after a long time counts from the start.
        assert!(!steering.note(src, dst, Nanos(IDLE_NANOS)));
    }
    #[test]
    fn flows_whose_ports_end_alike_do_not_keep_each_other_from_being_steered() {
        let dst = "10.0.0.2:4791".parse().unwrap();
        let port = |n: usize| SocketAddr::from(([10, 0, 0, 1], 49_152 + (n * SETS) as u16));
        let mut steering = Steering::new();
        let all = 0..WAYS * HAND_OVERS as usize;
        let steered = all.filter(|n| steering.note(port(n % WAYS), dst, Nanos(0))).count();
        assert_eq!(steered, WAYS);
    }
}

//! One side of a connection beside its queue pair: slots, receives, the packet being handled.
//!
//! [`SimHost`] joins it with what it shares with others for the length of one call; the calls of
//! the queue pair into it are in `host`, the check of its completions in `complete`.

use std::collections::VecDeque;

use vernic_proto::{AccessCheck, Failure, MessagePart, QpState, Time, WcStatus};
use vernic_wire::{AethCode, Mtu, NakCode, Packet, Qkey, Qpn, Rkey, Service};

use crate::ctx::Ctx;
use crate::flow::{Flow, Recv};
use crate::memory::Memory;
use crate::plan::ConnPlan;
use crate::ring::numbers_of;
use crate::xrc::QUEUES;

/// What the packet under way did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Bytes stored by WRITE or ATOMIC WRITE.
    pub(crate) written: u32,
    /// Bytes stored into the receive.
    pub(crate) scattered: u32,
    pub(crate) atomics: u32,
    pub(crate) flushes: u32,
    pub(crate) recvs_taken: u32,
    pub(crate) recvs_done: u32,
    pub(crate) invalidated: u32,
    /// A check of remote access failed.
    pub(crate) refused: Option<AccessCheck>,
}

/// What the packet under way must do: a piece of this message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) msg: usize,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// What became of the payload of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// The payload was copied, unless the receive itself refused.
    Bytes,
    /// The sender's memory cannot be reached.
    Unreachable,
    /// The sender has taken it back: it has reported an error.
    Withdrawn,
}

/// The payload of the rendezvous that is handled, and what is to become of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Number of the content, and where in it the payload begins.
    pub(crate) content: (u64, u64),
    pub(crate) pulled: Pulled,
}

/// Areas of a side's memory, and their keys.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Areas {
    pub(crate) write: u64,
    pub(crate) write_len: u64,
    pub(crate) write_key: Rkey,
    pub(crate) read: u64,
    pub(crate) read_len: u64,
    pub(crate) read_key: Rkey,
    pub(crate) read_id: u64,
    /// A key without any right, and one of another protection domain, over the write area.
    pub(crate) mute_key: Rkey,
    pub(crate) foreign_key: Rkey,
    /// Atomic cells of the node, shared by its connections.
    pub(crate) cells: u64,
    pub(crate) cells_key: Rkey,
    /// A window of this side, its present key, and whether it is bound.
    pub(crate) window: Rkey,
    pub(crate) window_bound: bool,
}

/// One end of a connection without its queue pair.
#[derive(Debug)]
pub(crate) struct SideState {
    pub(crate) conn: usize,
    pub(crate) side: usize,
    pub(crate) node: usize,
    pub(crate) qpn: Qpn,
    pub(crate) peer_qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) service: Service,
    pub(crate) mtu: Mtu,
    pub(crate) qkey: Qkey,
    pub(crate) shared: bool,
    /// Anything may arrive: only safety is checked.
    pub(crate) lenient: bool,
    /// A packet came with a mark, and no notification has left since.
    pub(crate) owes_notification: bool,
    /// High half of the `wr_id`s of this incarnation's send requests.
    pub(crate) wr_base: u64,
    pub(crate) slots: Vec<usize>,
    pub(crate) rq: VecDeque<Recv>,
    pub(crate) current: Option<Recv>,
    pub(crate) recvs_posted: u64,
    pub(crate) recvs_done: u64,
    pub(crate) failure: Option<Failure>,
    /// The application moved the queue pair to Error.
    pub(crate) forced: bool,
    /// The failed state that was noticed and dealt with.
    pub(crate) noticed: QpState,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    /// First message that SQD holds back.
    pub(crate) drain_from: usize,
    /// Receive completions were flushed, so none may succeed any more.
    pub(crate) recv_flushed: bool,
    /// Nanoseconds that the peer is waited for, which is known to be there.
    pub(crate) patience: u64,
    /// What was sent in this incarnation: packets, bytes, sequence NAKs, RNR NAKs.
    pub(crate) sent: [u64; 4],
    /// "Last WQE reached" was raised.
    pub(crate) last_wqe_reached: bool,
    /// Status of a receive that failed.
    pub(crate) recv_status: Option<WcStatus>,
    /// Capacity of the receive taken last, and whether its memory refuses.
    pub(crate) last_capacity: Option<u32>,
    pub(crate) last_recv_bad: bool,
    pub(crate) window: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The ACK timeout is shorter than the path needs: it may fire without a loss.
    pub(crate) hasty: bool,
    pub(crate) areas: Areas,
    pub(crate) piece: Option<Piece>,
    /// The message whose payload was read last, and up to which byte.
    pub(crate) gathered: Option<(usize, u64)>,
    /// The shared receive queue that an XRC target works for.
    pub(crate) selected: Option<usize>,
    pub(crate) fx: Effects,
    /// The rendezvous that is handled.
    pub(crate) offer: Option<Offer>,
    /// What became of the payload that the part under way asked for.
    pub(crate) pulled: Option<Pulled>,
    /// The bytes of what is kept, for the mutation that mixes them up.
    pub(crate) kept_bytes: Vec<Vec<u8>>,
    /// The packet under way was kept.
    pub(crate) was_kept: bool,
    /// A receive was taken for a rendezvous whose payload could not be copied.
    pub(crate) kept_recv: bool,
    /// Requests go through the ring.
    pub(crate) requests_by_ring: bool,
    /// The last request came through the ring: so go the responses.
    pub(crate) responses_by_ring: bool,
    /// The last response came through the ring.
    pub(crate) is_answered_by_ring: bool,
    /// The process of the peer is known to have ended.
    pub(crate) peer_gone: bool,
    // The engine's part.
    pub(crate) pump_at: Option<Time>,
    pub(crate) timer_at: Option<Time>,
}

impl SideState {
    /// A side of a connection that is not made yet.
    pub(crate) fn new(
        plan: &ConnPlan,
        c: usize,
        s: usize,
        pd: u32,
        qpn: Qpn,
        areas: Areas,
    ) -> Self {
        Self {
            conn: c,
            side: s,
            node: plan.nodes[s],
            qpn,
            peer_qpn: qpn,
            pd,
            service: plan.service,
            mtu: plan.mtu,
            qkey: Qkey(0x1111_0000 + pd),
            shared: plan.sides[s].srq,
            lenient: plan.lenient,
            owes_notification: false,
            wr_base: 0,
            slots: Vec::new(),
            rq: Default::default(),
            current: None,
            recvs_posted: 0,
            recvs_done: 0,
            failure: None,
            forced: false,
            noticed: QpState::Reset,
            draining: false,
            drained: false,
            drain_from: usize::MAX,
            recv_flushed: false,
            patience: 0,
            sent: [0; 4],
            last_wqe_reached: false,
            recv_status: None,
            last_capacity: None,
            last_recv_bad: false,
            window: plan.sides[s].window,
            timeout: plan.sides[s].timeout,
            retry_cnt: plan.sides[s].retry_cnt,
            rnr_retry: plan.sides[s].rnr_retry,
            hasty: plan.hasty,
            areas,
            piece: None,
            gathered: None,
            selected: None,
            fx: Effects::default(),
            offer: None,
            pulled: None,
            kept_bytes: Vec::new(),
            was_kept: false,
            kept_recv: false,
            requests_by_ring: false,
            responses_by_ring: false,
            is_answered_by_ring: false,
            peer_gone: false,
            pump_at: None,
            timer_at: None,
        }
    }

    /// A new incarnation begins.
    pub(crate) fn restart(&mut self, incarnation: u32, slots: usize) {
        self.wr_base = (self.conn as u64 + 1) << 56
            | (self.side as u64) << 48
            | u64::from(incarnation & 0xFFFF) << 32;
        self.slots.clear();
        self.slots.resize(slots, usize::MAX);
        let forgotten = self.rq.len() as u64 + u64::from(self.current.is_some());
        self.recvs_done += forgotten;
        self.rq.clear();
        self.current = None;
        self.failure = None;
        (self.forced, self.draining, self.drained) = (false, false, false);
        self.noticed = QpState::Reset;
        self.drain_from = usize::MAX;
        self.recv_flushed = false;
        self.sent = [0; 4];
        self.last_wqe_reached = false;
        self.recv_status = None;
        self.last_capacity = None;
        self.kept_recv = false;
        self.kept_bytes.clear();
        (self.requests_by_ring, self.responses_by_ring) = (false, false);
        (self.is_answered_by_ring, self.peer_gone) = (false, false);
    }

    /// Counts a packet sent, to be compared with the queue pair's own counters.
    pub(crate) fn note_sent(&mut self, packet: &Packet<'_>) {
        self.sent[0] += 1;
        self.sent[1] += packet.as_bytes().len() as u64;
        match packet.aeth().map(|aeth| aeth.syndrome.decode()) {
            Some(AethCode::Nak(NakCode::PSN_SEQUENCE)) => self.sent[2] += 1,
            Some(AethCode::RnrNak(_)) => self.sent[3] += 1,
            _ => {}
        }
    }

    /// Counts a part of a message as the packets that it stands for.
    pub(crate) fn note_sent_part(&mut self, part: &MessagePart) {
        self.sent[0] += numbers_of(part, self.mtu.bytes());
        self.sent[1] += u64::from(part.length);
    }

    /// Name in traces: A and B, with the connection's number from 1 if it is not the first.
    pub(crate) fn label(&self) -> String {
        let letter = if self.side == 0 { 'A' } else { 'B' };
        if self.conn == 0 { letter.to_string() } else { format!("{letter}{}", self.conn) }
    }
}

/// Everything that a queue pair reaches during one call.
pub(crate) struct SimHost<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) srqs: &'a mut [VecDeque<Recv>; QUEUES],
    pub(crate) st: &'a mut SideState,
    /// Messages that this side sends.
    pub(crate) out: &'a mut Flow,
    /// Messages that it receives.
    pub(crate) inn: &'a mut Flow,
    pub(crate) ctx: &'a mut Ctx,
}

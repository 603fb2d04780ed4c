//! The applications: what is posted, when, and with which deliberate mistakes.
//!
//! Owns no state beside the plan's quotas. A message's content, place and expected result are fixed
//! when it is posted, so the oracle can tell right from wrong without looking at the protocol.

use vernic_proto::{MwBind, PostError, QpState, Remote, SendFlags, SendOp, SendWqe, UdDest};
use vernic_wire::{Lkey, Qkey, Rkey, Service};

use crate::cover::Count;
use crate::ctx::fail;
use crate::flow::{Bad, Msg, Range, Recv};
use crate::lifecycle::CELLS;
use crate::memory::access;
use crate::rng::mix;
use crate::world::{Event, Phase, World};
use crate::xrc::{self, QUEUES, is_reliable};

/// Operations in the order of the plan's weights.
const KINDS: [Count; 13] = [
    Count::OpSend,
    Count::OpSendImm,
    Count::OpSendInv,
    Count::OpWrite,
    Count::OpWriteImm,
    Count::OpRead,
    Count::OpReadBack,
    Count::OpCmpSwap,
    Count::OpFetchAdd,
    Count::OpFlush,
    Count::OpAtomicWrite,
    Count::OpLocalInv,
    Count::OpBindMw,
];

/// What a message is, before it has a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft {
    pub(crate) op: SendOp,
    pub(crate) count: Count,
    pub(crate) len: u32,
    pub(crate) source: (u64, u64),
    pub(crate) bad: Bad,
}

impl World {
    /// Puts the application's next steps into the queue.
    pub(crate) fn schedule_application(&mut self, c: usize, s: usize) {
        let conn = &self.conns[c];
        let (plan, side) = (&conn.plan.sides[s], &conn.sides[s]);
        let state = side.qp.state();
        let may_post = conn.phase == Phase::Up && matches!(state, QpState::Rts | QpState::Sqd);
        if may_post && side.remaining > 0 && !side.post_scheduled && side.qp.send_room() > 0 {
            let delay = self.rng.below(plan.post_delay + 1);
            self.conns[c].sides[s].post_scheduled = true;
            self.at(delay, Event::Post(c, s));
        }
        let conn = &self.conns[c];
        let (plan, side) = (&conn.plan.sides[s], &conn.sides[s]);
        let plan_service = conn.plan.service;
        let delay = if self.healed { 1_000 } else { plan.recv_delay };
        let takes = !matches!(state, QpState::Reset | QpState::Error);
        if side.st.shared {
            let node = side.st.node;
            let queues = &self.nodes[node].srqs;
            let used = if plan_service == Service::Xrc { &queues[..] } else { &queues[..1] };
            let short = used.iter().any(|queue| queue.len() < plan.rq);
            if short && !self.nodes[node].srq_scheduled {
                self.nodes[node].srq_scheduled = true;
                let delay = self.rng.below(delay + 1);
                self.at(delay, Event::PostShared(node));
            }
        } else if takes && side.st.rq.len() < plan.rq && !side.recv_scheduled {
            self.conns[c].sides[s].recv_scheduled = true;
            let delay = self.rng.below(delay + 1);
            self.at(delay, Event::PostRecv(c, s));
        }
    }

    pub(crate) fn post_receives(&mut self, c: usize, s: usize) {
        self.conns[c].sides[s].recv_scheduled = false;
        let depth = self.conns[c].plan.sides[s].rq;
        let room = depth.saturating_sub(self.conns[c].sides[s].st.rq.len());
        let batch = self.rng.range(1, room.max(1) as u64).min(room as u64);
        let state = self.conns[c].sides[s].qp.state();
        if matches!(state, QpState::Reset | QpState::Error) {
            return; // posted in Error they would be flushed by the engine, not by the queue pair
        }
        for _ in 0..batch {
            let longest = self.conns[c].plan.max_len
                + if self.conns[c].plan.service == Service::Ud { 40 } else { 0 };
            let wr_id = 1 << 63
                | (c as u64) << 56
                | (s as u64) << 48
                | self.conns[c].sides[s].st.recvs_posted;
            let recv = self.recv(wr_id, longest, self.conns[c].plan.bad_recv_ppm);
            let st = &mut self.conns[c].sides[s].st;
            st.rq.push_back(recv);
            st.recvs_posted += 1;
        }
        self.settle(c, s);
    }

    pub(crate) fn post_shared(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.srq_scheduled = false;
        let sides = self.conns.iter().flat_map(|conn| (0..2).map(move |s| (conn, s)));
        let mine =
            sides.filter(|(conn, s)| conn.plan.nodes[*s] == number && conn.plan.sides[*s].srq);
        let (depth, bad) = mine.fold((1, 0), |(depth, bad), (conn, s)| {
            (depth.max(conn.plan.sides[s].rq), bad.max(conn.plan.bad_recv_ppm))
        });
        let used = if self.nodes[number].has_xrc { QUEUES } else { 1 };
        for queue in 0..used {
            let missing = depth.saturating_sub(self.nodes[number].srqs[queue].len()) as u64;
            let batch = self.rng.range(1, missing.max(1)).min(missing);
            for _ in 0..batch {
                let name = 3 << 62 | (number as u64) << 56 | xrc::recv_name(queue);
                let wr_id = name | self.nodes[number].srq_posted;
                let recv = self.recv(wr_id, self.nodes[number].srq_len, bad);
                let node = &mut self.nodes[number];
                node.srqs[queue].push_back(recv);
                node.srq_posted += 1;
            }
        }
        if self.nodes[number].srqs[..used].iter().any(|queue| queue.len() < depth) {
            self.nodes[number].srq_scheduled = true;
            self.at(1_000, Event::PostShared(number));
        }
    }

    fn recv(&mut self, wr_id: u64, longest: u32, bad_ppm: u32) -> Recv {
        let wrong = !self.healed && self.rng.ppm(bad_ppm);
        let short = wrong && self.rng.percent(50);
        let capacity = if short { self.rng.below(u64::from(longest)) as u32 } else { longest };
        Recv { wr_id, capacity, bad: wrong && !short, data: Vec::new() }
    }

    /// Posts a few send requests.
    pub(crate) fn post_some(&mut self, c: usize, s: usize) {
        self.conns[c].sides[s].post_scheduled = false;
        let batch = self.rng.pick(&[1, 1, 2, 5, 20]);
        for _ in 0..batch {
            let side = &self.conns[c].sides[s];
            let postable = matches!(side.qp.state(), QpState::Rts | QpState::Sqd)
                && self.conns[c].phase == Phase::Up;
            if side.remaining == 0 || side.qp.send_room() == 0 || !postable {
                break;
            }
            let draft = self.draft(c, s);
            let flags = self.draw_flags(c, s);
            self.post(c, s, draft, flags);
            self.conns[c].sides[s].remaining -= 1;
        }
        self.settle(c, s);
    }

    /// Requests posted in Error are flushed like those before.
    pub(crate) fn post_into_error(&mut self, c: usize) {
        for s in 0..2 {
            let side = &self.conns[c].sides[s];
            let posts =
                side.qp.state() == QpState::Error && side.remaining > 2 && side.qp.send_room() > 0;
            if posts && !self.manual && self.rng.percent(30) {
                let draft = self.draft(c, s);
                let flags = self.draw_flags(c, s);
                self.post(c, s, draft, flags);
                self.conns[c].sides[s].remaining -= 1;
                self.ctx.hit(Count::PostedInError);
                self.settle(c, s);
            }
        }
    }

    fn draw_flags(&mut self, c: usize, s: usize) -> SendFlags {
        let plan = &self.conns[c].plan;
        let side = &self.conns[c].sides[s];
        let mut flags = SendFlags::SIGNALED;
        // A queue full of unsignaled requests would never become free: every so often one is
        // signaled.
        let every = (plan.sides[s].sq / 2).max(1) as usize;
        let must =
            side.remaining <= 1 || (self.conns[c].flows[s].msgs.len() + 1).is_multiple_of(every);
        if self.rng.percent(plan.unsignaled_percent) && !must {
            flags.remove(SendFlags::SIGNALED);
        }
        if self.rng.percent(plan.fence_percent) && is_reliable(plan.service) {
            flags |= SendFlags::FENCE;
        }
        if self.rng.percent(10) {
            flags |= SendFlags::SOLICITED;
        }
        flags
    }

    /// Posts one message and enters it into the oracle's books.
    pub(crate) fn post(&mut self, c: usize, s: usize, draft: Draft, flags: SendFlags) -> usize {
        self.next_id += 1;
        let xrc = self.conns[c].plan.service == Service::Xrc;
        let queue = match (xrc, self.manual) {
            (true, false) => self.rng.below(QUEUES as u64) as usize,
            _ => self.next_queue,
        };
        let conn = &mut self.conns[c];
        let peer_qkey = conn.sides[1 - s].st.qkey;
        let flow = &mut conn.flows[s];
        let side = &mut conn.sides[s];
        let number = flow.msgs.len();
        let mtu = conn.plan.mtu.bytes();
        let mut msg = Msg {
            id: mix(self.next_id),
            op: draft.op,
            count: draft.count,
            flags,
            len: draft.len,
            first: flow.next_seq,
            packets: 1,
            bad: draft.bad,
            queue,
            source: draft.source,
            sink: Vec::new(),
            original: None,
            local_done: false,
            delivered: 0,
            copies: 0,
        };
        if msg.is_local() {
            msg.packets = 0;
            flow.next_local = flow.next_local.min(number);
        } else if msg.is_send() || msg.is_write() || msg.is_read() {
            msg.packets = msg.len.div_ceil(mtu).max(1);
        }
        flow.next_seq += u64::from(msg.packets);
        let ud = conn.plan.service == Service::Ud;
        let qkey = if msg.bad == Bad::Qkey { Qkey(7) } else { peer_qkey };
        let dest = ud.then_some(UdDest { ah: 1, qpn: side.st.peer_qpn, qkey, rate_mbps: 0 });
        let wqe = SendWqe {
            wr_id: side.st.wr_base | number as u64,
            op: msg.op,
            flags,
            length: msg.len,
            dest,
            srqn: xrc.then(|| xrc::srqn(queue, msg.bad)),
        };
        self.ctx.say(format_args!(
            "{} post {number} {:?} {} bytes {flags:?} {:?}",
            side.st.label(),
            msg.op,
            msg.len,
            msg.bad
        ));
        let slot = side.qp.next_slot() as usize;
        side.st.slots[slot] = number;
        flow.msgs.push(msg);
        match side.qp.post_send(wqe) {
            Ok(taken) if taken as usize == slot => {}
            Ok(taken) => fail!(self.ctx, "posted into slot {taken}, announced {slot}"),
            Err(error) => self.refused_post(c, s, error),
        }
        number
    }

    fn refused_post(&mut self, c: usize, s: usize, error: PostError) {
        let side = &self.conns[c].sides[s];
        fail!(
            self.ctx,
            "{} refused a post in {:?} with room for {}: {error}",
            side.st.label(),
            side.qp.state(),
            side.qp.send_room()
        );
    }

    fn draw_kind(&mut self, c: usize) -> Count {
        let plan = &self.conns[c].plan;
        let allowed: &[usize] = match plan.service {
            Service::Rc | Service::Xrc => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            Service::Uc => &[0, 1, 3, 4],
            _ => &[0, 1],
        };
        let total: u64 = allowed.iter().map(|&i| u64::from(plan.mix[i])).sum();
        let mut at = self.rng.below(total.max(1));
        for &i in allowed {
            let weight = u64::from(plan.mix[i]);
            if at < weight {
                return KINDS[i];
            }
            at -= weight;
        }
        Count::OpSend
    }

    fn draw_len(&mut self, c: usize) -> u32 {
        let max = u64::from(self.conns[c].plan.max_len);
        let mtu = u64::from(self.conns[c].plan.mtu.bytes());
        let len = match self.rng.below(8) {
            0 => 0,
            1 => 1,
            2 => self.rng.below(64),
            3 => mtu * self.rng.below(5),
            4 => mtu * self.rng.range(1, 4) + self.rng.below(3) - 1,
            5 => max,
            _ => self.rng.below(max + 1),
        };
        len.min(max) as u32
    }

    /// Decides what to post next.
    fn draft(&mut self, c: usize, s: usize) -> Draft {
        let count = self.draw_kind(c);
        let len = self.draw_len(c);
        let word = self.rng.word();
        let bad = !self.healed && self.rng.ppm(self.conns[c].plan.bad_ppm);
        let peer = self.conns[c].sides[1 - s].st.areas;
        let plain = |op, len| Draft { op, count, len, source: (0, 0), bad: Bad::None };
        let cell = |low: u64| Remote {
            addr: peer.cells + 8 * (low + word % (CELLS / 2)),
            rkey: peer.cells_key,
        };
        let mut draft = match count {
            Count::OpSendImm => plain(SendOp::SendImm(word as u32), len),
            Count::OpSendInv => {
                let key = self.disposable_key(c, 1 - s);
                plain(SendOp::SendInv(key), len)
            }
            Count::OpWrite | Count::OpWriteImm | Count::OpAtomicWrite => {
                self.draft_write(c, s, count, len, word)
            }
            Count::OpRead | Count::OpReadBack => self.draft_read(c, s, count, len, word),
            Count::OpCmpSwap => {
                let remote = cell(CELLS / 2);
                let node = self.conns[c].plan.nodes[1 - s];
                let compare = if word & 1 == 0 {
                    self.nodes[node].memory.load_u64(remote.addr)
                } else {
                    word
                };
                plain(SendOp::CmpSwap { remote, compare, swap: word }, 8)
            }
            Count::OpFetchAdd => plain(SendOp::FetchAdd { remote: cell(0), add: word >> 8 }, 8),
            Count::OpFlush => {
                let len = len.min(peer.write_len as u32);
                let remote = Remote { addr: peer.write, rkey: peer.write_key };
                plain(
                    SendOp::Flush { remote, placement: 1 + (word & 1) as u8, selectivity: 0 },
                    len,
                )
            }
            Count::OpLocalInv | Count::OpBindMw => self.draft_local(c, s, count),
            _ => plain(SendOp::Send, len),
        };
        if bad {
            self.spoil(&mut draft, c, s, word);
        }
        let rejected =
            self.conns[c].plan.sides[1 - s].reject_reads && matches!(draft.op, SendOp::Read(_));
        if rejected && self.healed {
            draft = Draft { count: Count::OpSend, ..plain(SendOp::Send, len) };
        } else if rejected {
            draft.bad = Bad::QpRights;
        }
        draft
    }

    fn draft_write(&mut self, c: usize, s: usize, count: Count, len: u32, word: u64) -> Draft {
        let peer = self.conns[c].sides[1 - s].st.areas;
        let number = self.conns[c].flows[s].msgs.len();
        let len = if count == Count::OpAtomicWrite { 8 } else { len };
        let draft = |count, op| Draft { op, count, len, source: (0, 0), bad: Bad::None };
        let Some(addr) = self.place(c, s, u64::from(len), number) else {
            // No room in the peer's memory before earlier messages are complete.
            return draft(Count::OpSend, SendOp::Send);
        };
        let reliable = is_reliable(self.conns[c].plan.service);
        let window = peer.window_bound && word & 3 == 0 && reliable;
        if window {
            self.ctx.hit(Count::OpWindow);
        }
        let remote = Remote { addr, rkey: if window { peer.window } else { peer.write_key } };
        let op = match count {
            Count::OpWrite => SendOp::Write(remote),
            Count::OpWriteImm => SendOp::WriteImm(remote, word as u32),
            _ => SendOp::AtomicWrite(remote),
        };
        draft(count, op)
    }

    fn draft_read(&mut self, c: usize, s: usize, count: Count, len: u32, word: u64) -> Draft {
        let peer = self.conns[c].sides[1 - s].st.areas;
        let flow = &mut self.conns[c].flows[s];
        let number = flow.msgs.len();
        let written = (flow.next_done..number).rev().find(|&i| {
            flow.msgs[i].len > 0 && flow.msgs[i].bad == Bad::None && flow.msgs[i].is_write()
        });
        if let (Count::OpReadBack, Some(earlier)) = (count, written)
            && let SendOp::Write(remote) | SendOp::WriteImm(remote, _) = flow.msgs[earlier].op
        {
            // The range stays reserved until this READ is complete.
            for range in flow.ring.iter_mut().filter(|range| range.writer == earlier) {
                range.until = number;
            }
            let (id, len) = (flow.msgs[earlier].id, flow.msgs[earlier].len);
            let remote = Remote { rkey: peer.write_key, ..remote };
            return Draft { op: SendOp::Read(remote), count, len, source: (id, 0), bad: Bad::None };
        }
        let skip = word % (peer.read_len - u64::from(len) + 1);
        let remote = Remote { addr: peer.read + skip, rkey: peer.read_key };
        Draft {
            op: SendOp::Read(remote),
            count: Count::OpRead,
            len,
            source: (peer.read_id, skip),
            bad: Bad::None,
        }
    }

    pub(crate) fn draft_local(&mut self, c: usize, s: usize, count: Count) -> Draft {
        let careless = self.conns[c].plan.careless && !self.healed;
        let own = self.conns[c].sides[s].st.areas;
        let pending = self.conns[c].flows[s].msgs[self.conns[c].flows[s].next_done..]
            .iter()
            .any(|msg| matches!(msg.op, SendOp::BindMw(_)));
        let in_use = self.conns[c].flows[1 - s].msgs[self.conns[c].flows[1 - s].next_done..]
            .iter()
            .any(|msg| msg.rkey() == Some(own.window));
        let draft = |op| Draft { op, count, len: 0, source: (0, 0), bad: Bad::None };
        if count == Count::OpBindMw && !own.window_bound && !pending {
            let new_rkey = Rkey(own.window.value() & !0xFF | (own.window.value() + 1) & 0xFF);
            return draft(SendOp::BindMw(MwBind {
                mw: own.window,
                new_rkey,
                mr: Lkey(own.write_key.value()),
                addr: own.write,
                length: own.write_len,
                access: access::REMOTE_WRITE | access::REMOTE_READ,
            }));
        }
        if own.window_bound && (careless || !in_use) {
            self.conns[c].sides[s].st.areas.window_bound = false;
            return Draft { count: Count::OpLocalInv, ..draft(SendOp::LocalInv(own.window)) };
        }
        let key = self.disposable_key(c, s);
        Draft { count: Count::OpLocalInv, ..draft(SendOp::LocalInv(key)) }
    }

    /// A key of side `s`, made to be invalidated.
    pub(crate) fn disposable_key(&mut self, c: usize, s: usize) -> Rkey {
        let st = &self.conns[c].sides[s].st;
        self.nodes[st.node].memory.grant(st.pd, st.areas.write, st.areas.write_len, access::ALL)
    }

    /// Reserves `len` bytes of the peer's write area until message `number` is complete.
    pub(crate) fn place(&mut self, c: usize, s: usize, len: u64, number: usize) -> Option<u64> {
        let area = self.conns[c].sides[1 - s].st.areas;
        let flow = &mut self.conns[c].flows[s];
        let need = len.next_multiple_of(8);
        let end = area.write + area.write_len;
        let mut start = if flow.ring.is_empty() { area.write } else { flow.ring_head };
        let oldest = flow.ring.front().map(|range| range.start);
        match oldest {
            Some(oldest) if start <= oldest && !flow.ring.is_empty() => {
                if start + need >= oldest {
                    return None;
                }
            }
            _ => {
                if start + need > end {
                    start = area.write;
                    if oldest.is_some_and(|oldest| start + need >= oldest) || start + need > end {
                        return None;
                    }
                }
            }
        }
        flow.ring.push_back(Range { start, writer: number, until: number });
        flow.ring_head = start + need;
        Some(start)
    }

    /// Makes a request wrong in a way that fits it.
    fn spoil(&mut self, draft: &mut Draft, c: usize, s: usize, word: u64) {
        let peer = self.conns[c].sides[1 - s].st.areas;
        let service = self.conns[c].plan.service;
        let len = draft.len;
        if service == Service::Ud && word & 1 == 0 {
            draft.bad = Bad::Qkey;
            return;
        }
        let local_op = matches!(draft.op, SendOp::LocalInv(_) | SendOp::BindMw(_));
        if service == Service::Xrc && word >> 24 & 3 == 0 && !local_op {
            draft.bad = if word >> 26 & 1 == 0 { Bad::UnknownSrq } else { Bad::ForeignSrq };
            return;
        }
        let from = self.rng.below(u64::from(len) + 1) as u32;
        let beyond = if matches!(draft.op, SendOp::AtomicWrite(_)) { 8 } else { 1 };
        let spoiled_remote = |remote: Remote| match word >> 8 & 3 {
            0 => Remote { rkey: peer.mute_key, ..remote },
            1 => Remote { rkey: peer.foreign_key, ..remote },
            2 => Remote { addr: peer.write + peer.write_len - u64::from(len) + beyond, ..remote },
            _ => Remote { rkey: Rkey(remote.rkey.value() ^ 0x55), ..remote },
        };
        let local = word & 3 == 0 && len > 0;
        match &mut draft.op {
            SendOp::LocalInv(_) | SendOp::BindMw(_) => draft.bad = Bad::Invalidate,
            op if local && !matches!(op, SendOp::Flush { .. }) => {
                let word_sized = matches!(
                    op,
                    SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_)
                );
                draft.bad = Bad::Local(if word_sized { 0 } else { from.min(len - 1) });
            }
            SendOp::SendInv(key) => {
                *key = Rkey(key.value() ^ 1);
                draft.bad = Bad::Invalidate;
            }
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) | SendOp::AtomicWrite(remote)
                if len > 0 =>
            {
                *remote = spoiled_remote(*remote);
                draft.bad = Bad::Key;
            }
            SendOp::Read(remote) if len > 0 => {
                *remote = spoiled_remote(*remote);
                if word >> 8 & 3 == 2 {
                    remote.addr = peer.read + peer.read_len + peer.write_len;
                }
                draft.bad = Bad::Key;
            }
            SendOp::CmpSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                if word & 4 == 0 {
                    remote.addr += 1 + (word >> 16) % 7;
                    draft.bad = Bad::Misaligned;
                } else {
                    remote.rkey = peer.mute_key;
                    draft.bad = Bad::Key;
                }
            }
            _ => {}
        }
    }
}

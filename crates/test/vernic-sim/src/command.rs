//! Carries out the orders that a scenario gives to the sides of its pair.

use vernic_proto::{QpState, Remote, SendOp};

use crate::app::Draft;
use crate::cover::Count;
use crate::ctx::fail;
use crate::flow::{Bad, Recv};
use crate::order::{Command, Posted};
use crate::world::World;
use crate::xrc::recv_name;

impl World {
    /// Carries out an order of a scenario.
    pub(crate) fn obey(&mut self, c: usize, s: usize, number: usize) {
        match self.commands[number] {
            Command::Post { op, len, flags, bad, queue } => {
                self.next_queue = queue;
                let draft = self.scenario_draft(c, s, op, len, bad);
                self.post(c, s, draft, flags);
            }
            Command::Recv { capacity, bad, queue } => {
                let st = &mut self.conns[c].sides[s].st;
                let recv =
                    Recv { wr_id: 1 << 63 | st.recvs_posted, capacity, bad, data: Vec::new() };
                if st.shared {
                    let node = &mut self.nodes[st.node];
                    let wr_id = 1 << 63 | recv_name(queue) | node.srq_posted;
                    node.srqs[queue].push_back(Recv { wr_id, ..recv });
                    node.srq_posted += 1;
                } else {
                    st.recvs_posted += 1;
                    st.rq.push_back(recv);
                }
            }
            Command::State(state) => {
                let flow = &self.conns[c].flows[s];
                let started = flow.msgs.iter().position(|msg| msg.first >= flow.high);
                let drain_from = started.unwrap_or(flow.msgs.len());
                let st = &mut self.conns[c].sides[s].st;
                (st.draining, st.drained) = (state == QpState::Sqd, false);
                st.drain_from = if st.draining { drain_from } else { usize::MAX };
                st.forced |= state == QpState::Error;
                self.change(c, s, state);
            }
            Command::JoinRings => self.join_rings(c),
            Command::LoseRings(keep) => self.lose_rings(c, true, Some(keep)),
            Command::Die(keep) => self.die(c, s, Some(keep)),
            Command::Unreachable(times) => self.conns[c].rings.unreachable = times,
            Command::RevokeWriteKey => {
                let st = &self.conns[c].sides[s].st;
                if !self.nodes[st.node].memory.revoke(st.areas.write_key) {
                    fail!(self.ctx, "the key was not valid");
                }
            }
        }
        self.settle(c, s);
    }

    fn scenario_draft(&mut self, c: usize, s: usize, op: Posted, len: u32, bad: Bad) -> Draft {
        let peer = self.conns[c].sides[1 - s].st.areas;
        let number = self.conns[c].flows[s].msgs.len();
        let key = |good| if bad == Bad::Key { peer.mute_key } else { good };
        let cell = Remote { addr: peer.cells, rkey: key(peer.cells_key) };
        let mut place = || {
            let addr =
                self.place(c, s, u64::from(len), number).expect("a scenario's WRITEs fit the area");
            Remote { addr, rkey: key(peer.write_key) }
        };
        let (op, count) = match op {
            Posted::Send => (SendOp::Send, Count::OpSend),
            Posted::SendImm(imm) => (SendOp::SendImm(imm), Count::OpSendImm),
            Posted::SendInv => (SendOp::SendInv(self.disposable_key(c, 1 - s)), Count::OpSendInv),
            Posted::Write => (SendOp::Write(place()), Count::OpWrite),
            Posted::WriteImm(imm) => (SendOp::WriteImm(place(), imm), Count::OpWriteImm),
            Posted::AtomicWrite => (SendOp::AtomicWrite(place()), Count::OpAtomicWrite),
            Posted::Read => {
                (SendOp::Read(Remote { addr: peer.read, rkey: key(peer.read_key) }), Count::OpRead)
            }
            Posted::FetchAdd(add) => (SendOp::FetchAdd { remote: cell, add }, Count::OpFetchAdd),
            Posted::CmpSwap(compare, swap) => {
                (SendOp::CmpSwap { remote: cell, compare, swap }, Count::OpCmpSwap)
            }
            Posted::Flush => {
                let remote = Remote { addr: peer.write, rkey: key(peer.write_key) };
                (SendOp::Flush { remote, placement: 1, selectivity: 0 }, Count::OpFlush)
            }
            Posted::LocalInv => (SendOp::LocalInv(self.disposable_key(c, s)), Count::OpLocalInv),
            Posted::BindMw => (self.draft_local(c, s, Count::OpBindMw).op, Count::OpBindMw),
        };
        Draft { op, count, len, source: (peer.read_id, 0), bad }
    }
}

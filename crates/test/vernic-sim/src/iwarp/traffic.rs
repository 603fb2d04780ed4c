//! What the applications ask for.

use vernic_proto::{Remote, SendFlags, SendOp, SendWqe};
use vernic_wire::Rkey;

use super::books::{AREA, CELLS, KINDS, Kind, Msg, PD};
use super::plan::Fault;
use super::tally::Tally;
use super::world::World;
use crate::memory::access;

/// A key that nobody has.
const NO_KEY: Rkey = Rkey(0x00FF_FF00);

impl World {
    /// Posts the next request of an end.
    pub(crate) fn post(&mut self, side: usize) {
        let index = self.books[side].msgs.len();
        let bad = match self.plan.fault {
            Fault::Bad { side: whose, index: which, how } => {
                (whose == side && which as usize == index).then_some(how)
            }
            _ => None,
        };
        let mut msg = match bad {
            Some(how) => self.bad_request(side, how),
            None => self.draw(side),
        };
        msg.content = (index as u64) << 1 | side as u64 | self.plan.seed << 20;
        let plan = &self.ends[side].plan;
        // The last one completes, so that the application knows when all are done.
        msg.signaled = self.ends[side].left == 1 || !self.rng.percent(plan.unsignaled_percent);
        let fenced = self.rng.percent(plan.fence_percent);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, msg.signaled);
        flags.set(SendFlags::SOLICITED, msg.solicited);
        flags.set(SendFlags::FENCE, fenced);
        let totals = &mut self.judge.totals;
        totals.add(Tally::Fenced, u64::from(fenced));
        totals.add(Tally::Unsignaled, u64::from(!msg.signaled));
        self.judge.say(format_args!("{side}: posts {index}: {:?}, {} bytes", msg.op, msg.len));
        let slot = self.ends[side].qp.next_slot();
        self.books[side].slots[slot as usize] = index;
        self.books[side].msgs.push(msg);
        self.ends[side].left -= 1;
        let wqe = SendWqe {
            wr_id: index as u64,
            op: msg.op,
            flags,
            length: msg.len,
            dest: None,
            srqn: None,
        };
        if let Err(error) = self.ends[side].qp.post_send(wqe) {
            self.judge.fail(format_args!("{side}: request {index} is refused: {error}"));
        }
    }

    fn draw(&mut self, side: usize) -> Msg {
        let mix = self.ends[side].plan.mix;
        let sum = mix.iter().map(|&weight| u64::from(weight)).sum();
        let mut place = self.rng.below(sum);
        let mut chosen = 0;
        for (at, &weight) in mix.iter().enumerate() {
            chosen = at;
            if place < u64::from(weight) {
                break;
            }
            place -= u64::from(weight);
        }
        let (kind, tally) = KINDS[chosen];
        self.judge.totals.hit(tally);
        let limit = u64::from(self.plan.max_len);
        let len = match self.rng.below(4) {
            0 => self.rng.below(limit.min(40) + 1),
            _ => self.rng.below(limit + 1),
        };
        let len = if kind.is_atomic() { 8 } else { len as u32 };
        let remote = self.remote(side, kind, len);
        let op = self.operation(side, kind, remote);
        let solicited = kind.takes_receive() && self.rng.percent(30);
        Msg { kind, op, len, remote, solicited, ..EMPTY }
    }

    /// Memory of the peer that a request names.
    fn remote(&mut self, side: usize, kind: Kind, len: u32) -> Remote {
        let peer = &self.books[1 - side];
        let at = self.rng.below(AREA - u64::from(len) + 1);
        let cell = 8 * self.rng.below(CELLS);
        let (addr, rkey) = match kind {
            Kind::Write | Kind::WriteImm => (peer.write_area + at, peer.write_key),
            Kind::Read | Kind::ReadInv => (peer.read_area + at, peer.read_key),
            Kind::CmpSwap | Kind::FetchAdd => (peer.cells + cell, peer.cells_key),
            Kind::Send | Kind::SendInv => (0, Rkey(0)),
        };
        Remote { addr, rkey }
    }

    fn operation(&mut self, side: usize, kind: Kind, remote: Remote) -> SendOp {
        let word = self.rng.word();
        match kind {
            Kind::Send => SendOp::Send,
            Kind::SendInv => SendOp::SendInv(self.key_to_end(1 - side)),
            Kind::Write => SendOp::Write(remote),
            Kind::WriteImm => SendOp::WriteImm(remote, word as u32),
            Kind::Read => SendOp::Read(remote),
            Kind::ReadInv => SendOp::ReadInv(remote, self.key_to_end(side)),
            Kind::FetchAdd => SendOp::FetchAdd { remote, add: word },
            // The values that are there are few, so that some swaps happen.
            Kind::CmpSwap => SendOp::CmpSwap { remote, compare: word >> 63, swap: word & 1 },
        }
    }

    /// A key of this end's memory that a request will end.
    fn key_to_end(&mut self, side: usize) -> Rkey {
        let books = &mut self.books[side];
        books.memory.grant(PD, books.write_area, AREA, access::REMOTE_READ)
    }

    /// A request that the peer must refuse.
    fn bad_request(&mut self, side: usize, how: u8) -> Msg {
        self.judge.disturbed = true;
        self.judge.totals.hit(Tally::Refused);
        let len = 1 + self.rng.below(u64::from(self.plan.max_len)) as u32;
        let peer = &self.books[1 - side];
        let end = peer.write_area + AREA;
        let (kind, addr, rkey) = match how {
            0 => (Kind::Write, peer.write_area, NO_KEY),
            1 => (Kind::Write, end - u64::from(len) + 1, peer.write_key),
            2 => (Kind::Read, peer.read_area, NO_KEY),
            3 => (Kind::Read, peer.write_area, peer.write_key),
            _ => (Kind::Send, 0, Rkey(0)),
        };
        let remote = Remote { addr, rkey };
        let (op, len) = match kind {
            Kind::Write => (SendOp::Write(remote), len),
            Kind::Read => (SendOp::Read(remote), len),
            // Longer than any receive.
            _ => (SendOp::Send, self.plan.max_len + len),
        };
        Msg { kind, op, len, remote, bad: true, ..EMPTY }
    }
}

const EMPTY: Msg = Msg {
    kind: Kind::Send,
    op: SendOp::Send,
    len: 0,
    remote: Remote { addr: 0, rkey: Rkey(0) },
    signaled: true,
    solicited: false,
    bad: false,
    content: 0,
    gathered: 0,
    end: None,
    answered: 0,
    found: None,
    finished: false,
};

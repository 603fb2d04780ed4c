//! From a send request to its packets: the one place where requests are cut by the path MTU.
//!
//! Used by the requesters of all services. The opcode comes from the opcode table by service,
//! operation, position and tail; so do the headers. Payload is fetched through [`Host::gather`].

use vernic_wire::opcode::{self, Kind, Position, Service, Tail};
use vernic_wire::{
    AtomicEth, Bth, Deth, Feth, Headers, Ieth, ImmDt, Placement, Psn, Qpn, Reth, Rkey, Selectivity,
    Xrceth,
};

use crate::completion::WcOpcode;
use crate::cx::Cx;
use crate::error::AccessFault;
use crate::host::Host;
use crate::wqe::{Remote, SendFlags, SendOp, SendWqe};

/// Kind and tail of an operation on the wire, and the opcode of its completion.
pub(crate) fn meaning(op: &SendOp) -> (Kind, Tail, WcOpcode) {
    match op {
        SendOp::Send => (Kind::Send, Tail::None, WcOpcode::Send),
        SendOp::SendImm(_) => (Kind::Send, Tail::Imm, WcOpcode::Send),
        SendOp::SendInv(_) => (Kind::Send, Tail::Inv, WcOpcode::Send),
        SendOp::Write(_) => (Kind::Write, Tail::None, WcOpcode::Write),
        SendOp::WriteImm(..) => (Kind::Write, Tail::Imm, WcOpcode::Write),
        SendOp::Read(_) => (Kind::ReadRequest, Tail::None, WcOpcode::Read),
        SendOp::ReadInv(..) => (Kind::Unknown, Tail::None, WcOpcode::Read),
        SendOp::CmpSwap { .. } => (Kind::CmpSwap, Tail::None, WcOpcode::CmpSwap),
        SendOp::FetchAdd { .. } => (Kind::FetchAdd, Tail::None, WcOpcode::FetchAdd),
        SendOp::Flush { .. } => (Kind::Flush, Tail::None, WcOpcode::Flush),
        SendOp::AtomicWrite(_) => (Kind::AtomicWrite, Tail::None, WcOpcode::AtomicWrite),
        SendOp::LocalInv(_) => (Kind::Unknown, Tail::None, WcOpcode::LocalInv),
        SendOp::BindMw(_) => (Kind::Unknown, Tail::None, WcOpcode::BindMw),
    }
}

/// Whether `service` carries the operation, by the opcode table. Local operations need RC or UC.
pub(crate) fn is_supported(service: Service, op: &SendOp) -> bool {
    match meaning(op) {
        (Kind::Unknown, _, WcOpcode::Read) => false,
        (Kind::Unknown, ..) => matches!(service, Service::Rc | Service::Uc | Service::Xrc),
        (kind, tail, _) => opcode::request(service, kind, Position::Only, tail).is_some(),
    }
}

/// Packets of `length` bytes: at least one.
#[inline]
pub(crate) fn packet_count(length: u32, mtu: u32) -> u32 {
    // Path MTUs are powers of two, and a division would take as long as all the rest.
    debug_assert!(mtu.is_power_of_two());
    let full = length >> mtu.trailing_zeros();
    let rest = u32::from(length & (mtu - 1) != 0);
    (full + rest).max(1)
}

/// One request packet: which piece of which request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) service: Service,
    pub(crate) wqe: &'a SendWqe,
    /// Slot of the request, for its payload.
    pub(crate) slot: u32,
    pub(crate) psn: Psn,
    pub(crate) dest: Qpn,
    /// First payload byte.
    pub(crate) offset: u32,
    /// Payload bytes of a SEND or WRITE; bytes asked for by a READ.
    pub(crate) length: u32,
    pub(crate) position: Position,
    pub(crate) ack_req: bool,
    /// The peer keeps packets ahead of a gap, and shall tell which.
    pub(crate) asks_kept: bool,
}

impl Segment<'_> {
    /// Writes the packet into `buf` and returns its length, without the ICRC.
    pub(crate) fn write(
        &self,
        cx: &Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<usize, AccessFault> {
        let (kind, ..) = meaning(&self.wqe.op);
        let payload = match kind {
            Kind::Send | Kind::Write => self.length as usize,
            Kind::AtomicWrite => 8,
            _ => 0,
        };
        let bth = self.bth(cx, payload);
        let start = self.headers(cx, bth).emit(buf);
        host.gather(self.slot, self.offset, &mut buf[start..start + payload])?;
        let end = start + payload + usize::from(bth.pad);
        buf[start + payload..end].fill(0);
        Ok(end)
    }

    #[inline]
    fn bth(&self, cx: &Cx<'_>, payload: usize) -> Bth {
        let (kind, mut tail, _) = meaning(&self.wqe.op);
        if !self.position.ends() {
            tail = Tail::None;
        }
        let opcode = opcode::request(self.service, kind, self.position, tail)
            .expect("post_send admits only operations that the table has");
        let mut bth = Bth::new(opcode, self.dest, self.psn);
        bth.pkey = cx.pkey;
        bth.migreq = cx.attr.migreq();
        bth.pad = (payload.wrapping_neg() & 3) as u8;
        bth.ack_req = self.ack_req;
        bth.reserved7 = if self.asks_kept { Bth::ASKS_KEPT } else { 0 };
        bth.solicited = self.position.ends()
            && self.wqe.flags.contains(SendFlags::SOLICITED)
            && may_solicit(kind, tail);
        bth
    }

    fn headers(&self, cx: &Cx<'_>, bth: Bth) -> Headers {
        let mut headers = Headers::new(bth);
        match self.wqe.op {
            SendOp::Send => {}
            SendOp::SendImm(imm) => headers.imm = Some(ImmDt(imm)),
            SendOp::SendInv(rkey) => headers.ieth = Some(Ieth { rkey }),
            SendOp::Write(remote) => headers.reth = Some(self.reth(remote)),
            SendOp::WriteImm(remote, imm) => {
                headers.reth = Some(self.reth(remote));
                headers.imm = Some(ImmDt(imm));
            }
            SendOp::Read(remote) => headers.reth = Some(self.reth(remote)),
            SendOp::CmpSwap { remote, compare, swap } => {
                headers.atomic = Some(atomic_eth(remote, swap, compare));
            }
            SendOp::FetchAdd { remote, add } => headers.atomic = Some(atomic_eth(remote, add, 0)),
            SendOp::Flush { remote, placement, selectivity } => {
                headers.feth = Some(Feth::new(
                    Selectivity(selectivity),
                    Placement::from_bits_retain(placement),
                ));
                headers.reth = Some(self.reth(remote));
            }
            SendOp::AtomicWrite(remote) => headers.reth = Some(self.reth(remote)),
            SendOp::LocalInv(_) | SendOp::BindMw(_) | SendOp::ReadInv(..) => {}
        }
        if self.service == Service::Xrc {
            // `post_send` takes no XRC request without the number.
            headers.xrceth = Some(Xrceth::new(self.wqe.srqn.unwrap_or_default()));
        }
        if let Some(dest) = self.wqe.dest {
            // A queue key with the top bit set stands for the queue pair's own (IBTA 10.2.5).
            let qkey = if dest.qkey.value() >> 31 == 1 { cx.attr.qkey } else { dest.qkey };
            headers.deth = Some(Deth::new(qkey, cx.qpn));
        }
        headers
    }

    /// The RETH: of the whole message for WRITE (IBTA 9.3.3.1), of the piece asked for with READ.
    fn reth(&self, remote: Remote) -> Reth {
        let Remote { addr, rkey } = remote;
        match self.wqe.op {
            SendOp::Read(_) => {
                Reth { addr: addr.wrapping_add(u64::from(self.offset)), rkey, length: self.length }
            }
            _ => Reth { addr, rkey, length: self.wqe.length },
        }
    }
}

fn atomic_eth(remote: Remote, swap_or_add: u64, compare: u64) -> AtomicEth {
    let Remote { addr, rkey }: Remote = remote;
    let rkey: Rkey = rkey;
    AtomicEth { addr, rkey, swap_or_add, compare }
}

/// Only messages that complete a receive may ask for a solicited event (IBTA 9.2.3).
fn may_solicit(kind: Kind, tail: Tail) -> bool {
    kind == Kind::Send || tail == Tail::Imm
}

//! What a complete segment leads to: the message goes on, or is delivered.
//!
//! "At the Data Sink, DDP MUST Deliver a DDP Message if and only if [...] the last DDP Segment of
//! the DDP Message had its Last flag set, all of the DDP Segments of the DDP Message have been
//! Placed, all preceding DDP Messages have been Placed, and each preceding DDP Message has been
//! Delivered" (RFC 5041, 5.4): segments are taken in the order of the stream, so a Last flag is all
//! that it takes.

use vernic_wire::LocalRoute;
use vernic_wire::iwarp::{
    AtomicCode, AtomicRequest, AtomicResponse, DdpHeader, Immediate, RdmapHeader, RdmapOpcode,
    ReadRequest, Terminate, Untagged,
};

use super::{Message, Stop, Taker};
use crate::completion::{Completion, Tag, WcOpcode};
use crate::cx::Cx;
use crate::error::{AccessFault, Violation, WcStatus};
use crate::host::{AtomicOp, Host, RemoteAccess};
use crate::inbound::Target as Memory;
use crate::iwarp::answers::Body;
use crate::iwarp::deframer::Refusal;

/// Tries of an atomic that is made of a compare and swap, before the memory counts as contended
/// beyond use.
const ATOMIC_TRIES: u32 = 100_000;

impl<H: Host> Taker<'_, '_, H> {
    pub(super) fn deliver(&mut self, header: &DdpHeader, len: u32) -> Result<(), Stop> {
        let last = header.control().last;
        match header {
            DdpHeader::Tagged(header) if header.control.opcode == RdmapOpcode::WRITE => {
                self.end_of_write(header.stag, len, last);
                Ok(())
            }
            DdpHeader::Tagged(_) => self.end_of_response(len, last),
            DdpHeader::Untagged(header) => {
                match header.control.opcode.info().map(|info| info.header) {
                    Some(RdmapHeader::None) => self.end_of_send(header, len),
                    Some(RdmapHeader::ReadRequest) => self.read_request(header),
                    Some(RdmapHeader::AtomicRequest) => self.atomic_request(header),
                    Some(RdmapHeader::AtomicResponse) => self.atomic_response(),
                    Some(RdmapHeader::Immediate) => self.immediate(header),
                    Some(RdmapHeader::Terminate) => self.terminate(len),
                    None => Err(Violation::Opcode.into()),
                }
            }
        }
    }

    /// "A valid RDMA Write Message MUST NOT be delivered to the Data Sink's ULP" (RFC 5040, 5.1).
    fn end_of_write(&mut self, stag: vernic_wire::Rkey, len: u32, last: bool) {
        let received = match self.inbound.message {
            Message::Write { received, .. } => received + len,
            _ => len,
        };
        if last {
            self.inbound.message = Message::None;
            self.inbound.last_write = Some(received);
            self.cx.counters.messages_received += 1;
        } else {
            self.inbound.message = Message::Write { stag, received };
        }
    }

    fn end_of_send(&mut self, header: &Untagged, len: u32) -> Result<(), Stop> {
        let opcode = header.control.opcode;
        let received = match self.inbound.message {
            Message::Send { received, .. } => received + len,
            _ => len,
        };
        self.inbound.last_write = None;
        if !header.control.last {
            self.inbound.message = Message::Send { opcode, msn: header.msn, received };
            return Ok(());
        }
        let info = opcode.info();
        let mut tag = Tag::None;
        if info.is_some_and(|info| info.invalidates) {
            // "Invalidate the STag if it is associated with the RDMAP Stream; or issue a Terminate
            // Message with the STag Cannot be Invalidated Terminate Error Code" (RFC 5040, 5.3).
            self.host.invalidate_remote(header.invalidate).map_err(|fault| Stop::Violation {
                violation: Violation::Invalidate,
                fault: Some(fault),
            })?;
            tag = Tag::Invalidated(header.invalidate);
        }
        self.inbound.message = Message::None;
        self.inbound.send_msn = header.msn.next();
        self.cx.counters.messages_received += 1;
        let solicited = info.is_some_and(|info| info.solicited);
        self.complete_recv(WcOpcode::Recv, received, tag, solicited);
        Ok(())
    }

    /// The receive completes. A ready-to-receive indication has none.
    fn complete_recv(&mut self, opcode: WcOpcode, byte_len: u32, tag: Tag, solicited: bool) {
        let Some(recv) = self.inbound.current.take() else { return };
        let status = WcStatus::Success;
        let completion = recv_completion(self.cx, recv.wr_id, status);
        self.host.complete_recv(Completion { opcode, byte_len, tag, solicited, ..completion });
    }

    /// "The combination of an RDMA Write Message followed by an Immediate Data Operation has the
    /// same behavior as the RDMA Write with Immediate Data operation found in InfiniBand" (RFC
    /// 7306, 6); alone it completes a receive of no bytes.
    fn immediate(&mut self, header: &Untagged) -> Result<(), Stop> {
        let data = Immediate::parse(&self.inbound.control).map_err(|_| Violation::Length)?;
        let (opcode, byte_len) = match self.inbound.last_write.take() {
            Some(written) => (WcOpcode::RecvWriteImm, written),
            None => (WcOpcode::Recv, 0),
        };
        self.inbound.send_msn = header.msn.next();
        self.cx.counters.messages_received += 1;
        let solicited = header.control.opcode.info().is_some_and(|info| info.solicited);
        self.complete_recv(opcode, byte_len, Tag::Imm(data.verbs()), solicited);
        Ok(())
    }

    /// Checks a READ of the peer's and queues its answer. "If the Data Source receives a
    /// non-zero-length RDMA Read Message Size, the Data Source RDMAP MUST validate the Data Source
    /// STag and Data Source Tagged Offset", and must not if the length is zero (RFC 5040, 5.2.1).
    fn read_request(&mut self, header: &Untagged) -> Result<(), Stop> {
        let request = ReadRequest::parse(&self.inbound.control).map_err(|_| Violation::Length)?;
        if request.size > 0 {
            let len = u64::from(request.size);
            self.check_memory(request.source_stag, request.source_offset, len, RemoteAccess::Read)?;
        }
        self.inbound.read_msn = header.msn.next();
        self.inbound.last_write = None;
        self.cx.counters.messages_received += 1;
        self.answers.push(*header, Body::Read(request));
        Ok(())
    }

    fn check_memory(
        &mut self,
        rkey: vernic_wire::Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), Stop> {
        if addr.checked_add(len).is_none() {
            return Err(Violation::RemoteWrap.into());
        }
        let needs: &[_] = match need {
            RemoteAccess::Atomic => &[RemoteAccess::Atomic],
            _ => &[RemoteAccess::Read],
        };
        let target = Memory { rkey, addr, len, needs };
        target
            .check_qp_rights(self.cx.attr.access)
            .and_then(|()| target.check_region(self.host))
            .map_err(of_read)
    }

    /// Carries an atomic of the peer's out, now that it is delivered, and queues its answer (RFC
    /// 7306, 5.4 (3), (5), (8)).
    fn atomic_request(&mut self, header: &Untagged) -> Result<(), Stop> {
        let request = AtomicRequest::parse(&self.inbound.control).map_err(|_| Violation::Length)?;
        // "a ULP Buffer address that is 64-bit aligned" (RFC 7306, 8.2).
        if !request.offset.is_multiple_of(8) {
            return Err(Violation::Misaligned.into());
        }
        self.check_memory(request.stag, request.offset, 8, RemoteAccess::Atomic)?;
        let original = self.atomic(&request)?;
        self.inbound.read_msn = header.msn.next();
        self.inbound.last_write = None;
        self.cx.counters.messages_received += 1;
        let request_id = request.request_id;
        self.answers.push(*header, Body::Atomic(AtomicResponse { request_id, original }));
        Ok(())
    }

    /// What masks leave plain is one operation; what they do not is made of a compare and swap.
    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, Stop> {
        let AtomicRequest { stag, offset, data, mask, compare, compare_mask, .. } = *request;
        match request.code {
            AtomicCode::FETCH_ADD if mask == 0 => {
                self.host.atomic(stag, offset, AtomicOp::FetchAdd(data)).map_err(of_read)
            }
            AtomicCode::FETCH_ADD => self.masked(request, |old| Some(masked_add(old, data, mask))),
            AtomicCode::CMP_SWAP if mask == u64::MAX && compare_mask == u64::MAX => {
                let op = AtomicOp::CmpSwap { compare, swap: data };
                self.host.atomic(stag, offset, op).map_err(of_read)
            }
            AtomicCode::CMP_SWAP => self.masked(request, |old| {
                ((old ^ compare) & compare_mask == 0).then_some(old & !mask | data & mask)
            }),
            // "an error MUST be surfaced in response to delivery [...] of an Atomic Operation
            // Request Message with an Atomic Operation Code that the RNIC does not support" (RFC
            // 7306, 5.2.1).
            _ => Err(Violation::Opcode.into()),
        }
    }

    /// Stores what `new` makes of the value that is there, if it makes something.
    fn masked(
        &mut self,
        request: &AtomicRequest,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Stop> {
        let (stag, offset) = (request.stag, request.offset);
        let mut old = self.host.atomic(stag, offset, AtomicOp::FetchAdd(0)).map_err(of_read)?;
        for _ in 0..ATOMIC_TRIES {
            let Some(swap) = new(old) else { return Ok(old) };
            let op = AtomicOp::CmpSwap { compare: old, swap };
            match self.host.atomic(stag, offset, op).map_err(of_read)? {
                seen if seen == old => return Ok(old),
                seen => old = seen,
            }
        }
        Err(Violation::Local.into())
    }

    /// Answers are delivered "in the order that they were Delivered to RDMAP" (RFC 5040, 5.5 (11)).
    fn end_of_response(&mut self, len: u32, last: bool) -> Result<(), Stop> {
        let left = self.requester.asked.received(len);
        if !last {
            return Ok(());
        }
        if left > 0 {
            let what = "a READ response that ends early";
            return Err(error(self.bad_answer(what, Violation::Length)));
        }
        self.answered()
    }

    fn atomic_response(&mut self) -> Result<(), Stop> {
        let answer = AtomicResponse::parse(&self.inbound.control).map_err(|_| Violation::Length)?;
        let Some((slot, request_id)) = self.requester.asked.atomic() else {
            return Err(Violation::NoBuffer.into());
        };
        if request_id != answer.request_id {
            let what = "the answer to another atomic";
            return Err(error(self.bad_answer(what, Violation::Opcode)));
        }
        let data = answer.original.to_ne_bytes();
        if let Err(fault) = self.host.scatter_response(slot, 0, &data) {
            return Err(self.local_fault(fault));
        }
        self.inbound.atomic_msn = self.inbound.atomic_msn.next();
        self.answered()
    }

    fn local_fault(&self, fault: AccessFault) -> Stop {
        match self.requester.asked.front_index() {
            Some(index) => Stop::Request {
                index,
                status: WcStatus::LocalProtection,
                stop: super::Answered::Memory(fault),
            },
            None => Stop::Violation { violation: Violation::SendMemory, fault: Some(fault) },
        }
    }

    /// The oldest READ or atomic is answered; one with local invalidate ends its key now.
    fn answered(&mut self) -> Result<(), Stop> {
        if let Some(wqe) = self.requester.asked.invalidates()
            && let Err(fault) = self.host.local_op(&wqe)
        {
            return Err(match self.requester.asked.front_index() {
                Some(index) => Stop::Request {
                    index,
                    status: WcStatus::LocalQpOperation,
                    stop: super::Answered::Memory(fault),
                },
                None => Stop::Violation { violation: Violation::SendMemory, fault: Some(fault) },
            });
        }
        self.requester.answered();
        Ok(())
    }

    /// The peer's last word.
    fn terminate(&mut self, len: u32) -> Result<(), Stop> {
        let control = self.inbound.control.get(..len as usize).unwrap_or(&[]);
        let terminate = Terminate::parse(control).map_err(|_| Violation::Length)?;
        Err(Stop::Terminated(terminate))
    }
}

/// A refusal that never says to wait.
fn error(refusal: Refusal<Stop>) -> Stop {
    match refusal {
        Refusal::Error(stop) => stop,
        Refusal::Hold => Violation::NoBuffer.into(),
    }
}

fn of_read(fault: AccessFault) -> Stop {
    Stop::Violation { violation: Violation::of_read(&fault), fault: Some(fault) }
}

/// Adds field by field: no carry leaves a bit whose mask is set (RFC 7306, 5.1.1).
fn masked_add(old: u64, add: u64, mask: u64) -> u64 {
    // Without the top bit of each field nothing can carry out of it; that bit's own sum is what
    // exclusive-or with the carry into it gives.
    ((old & !mask).wrapping_add(add & !mask)) ^ ((old ^ add) & mask)
}

/// The completion of a receive, of no bytes; the caller changes what differs.
pub(in crate::iwarp) fn recv_completion(cx: &Cx<'_>, wr_id: u64, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        tag: Tag::None,
        qpn: cx.qpn,
        src_qpn: cx.attr.dest_qpn,
        solicited: false,
        grh: false,
        route: LocalRoute::NONE,
        vendor_err: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The RFC's own way, bit by bit.
    fn by_the_rfc(old: u64, add: u64, mask: u64) -> u64 {
        let (mut carry, mut sum) = (0, 0);
        for bit in 0..64 {
            let total = carry + (old >> bit & 1) + (add >> bit & 1);
            sum |= (total & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }

    #[test]
    fn a_masked_add_is_that_of_the_rfc() {
        let words = [0, 1, 0x8000_0000_8000_0000, u64::MAX, 0x0123_4567_89AB_CDEF, 0xFF00_FF00, 3];
        for old in words {
            for add in words {
                for mask in words {
                    let (ours, theirs) = (masked_add(old, add, mask), by_the_rfc(old, add, mask));
                    assert_eq!(ours, theirs, "{old:#x} + {add:#x} mask {mask:#x}");
                }
            }
        }
        assert_eq!(masked_add(u64::MAX, 1, 0), 0);
    }
}

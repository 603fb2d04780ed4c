//! The checks of a segment's header, in the order of the layers: DDP's version, RDMAP's version and
//! opcode, the queue, then what the message needs (RFC 5041, 7.1; RFC 5040, 7.2).

use vernic_wire::iwarp::{
    AtomicRequest, AtomicResponse, Control, DdpHeader, Immediate, QueueNumber, RdmapHeader,
    RdmapInfo, RdmapOpcode, ReadRequest, Tagged, Terminate, Untagged,
};

use super::{Answered, Landing, MAX_CONTROL, Message, Stop, Taker, Target};
use crate::error::{AccessFault, Violation, WcStatus};
use crate::host::{Host, RemoteAccess};
use crate::inbound::Target as Memory;
use crate::iwarp::deframer::Refusal;
use crate::iwarp::requester::Expected;

type Check<T = ()> = Result<T, Violation>;

fn require(holds: bool, violation: Violation) -> Check {
    if holds { Ok(()) } else { Err(violation) }
}

fn faulty(violation: Violation, fault: AccessFault) -> Refusal<Stop> {
    Refusal::Error(Stop::Violation { violation, fault: Some(fault) })
}

fn refuse(violation: Violation) -> Refusal<Stop> {
    Refusal::Error(violation.into())
}

impl<H: Host> Taker<'_, '_, H> {
    /// Checks the header of a segment and says where its payload goes.
    pub(super) fn check(
        &mut self,
        header: &DdpHeader,
        payload_len: u32,
    ) -> Result<Landing, Refusal<Stop>> {
        let control = header.control();
        check_versions(control).map_err(refuse)?;
        let info = self.check_opcode(control).map_err(refuse)?;
        match header {
            DdpHeader::Tagged(header) => match header.control.opcode {
                RdmapOpcode::WRITE => self.check_write(header, payload_len),
                _ => self.check_response(header, payload_len),
            },
            DdpHeader::Untagged(header) => {
                check_queue(info, header.queue).map_err(refuse)?;
                if info.header == RdmapHeader::None {
                    return self.check_send(header, payload_len);
                }
                self.check_control(info, header, payload_len)
            }
        }
    }

    /// "The RDMA OpCode MUST be valid" (RFC 5040, 7.2 (2)): defined, supported, and of the buffer
    /// model that the segment has.
    fn check_opcode(&self, control: &Control) -> Check<&'static RdmapInfo> {
        let info = control.opcode.info().ok_or(Violation::Opcode)?;
        let supported = match info.header {
            RdmapHeader::AtomicRequest | RdmapHeader::AtomicResponse => self.rules.atomics,
            RdmapHeader::Immediate => self.rules.immediate,
            _ => true,
        };
        require(supported && info.is_tagged() == control.tagged, Violation::Opcode)?;
        Ok(info)
    }

    /// A WRITE: "For non-zero-length Tagged DDP Segments, the segment MUST be validated before
    /// Placement" (RFC 5041, 7.1); of an empty one "The STag and TO fields MUST NOT be checked"
    /// (RFC 5041, 5.2).
    fn check_write(&mut self, header: &Tagged, len: u32) -> Result<Landing, Refusal<Stop>> {
        let received = match self.inbound.message {
            Message::None => 0,
            Message::Write { stag, received } if stag == header.stag => received,
            // "Each DDP Segment within a specific DDP Message MUST contain the same value for this
            // field" (RFC 5041, 4.2).
            Message::Write { .. } => return Err(refuse(Violation::TaggedStag)),
            Message::Send { .. } => return Err(refuse(Violation::Opcode)),
        };
        require(received.checked_add(len).is_some(), Violation::TaggedBounds).map_err(refuse)?;
        if len == 0 {
            return Ok(Landing::Nowhere);
        }
        let (rkey, addr, len) = (header.stag, header.offset, u64::from(len));
        require(addr.checked_add(len).is_some(), Violation::TaggedWrap).map_err(refuse)?;
        let target = Memory { rkey, addr, len, needs: &[RemoteAccess::Write] };
        target
            .check_qp_rights(self.cx.attr.access)
            .and_then(|()| target.check_region(self.host))
            .map_err(|fault| faulty(Violation::of_write(&fault), fault))?;
        Ok(Landing::Memory(Target::Write { rkey, addr }))
    }

    /// A READ response: what the oldest READ waits for. Its STag is a number of our own, "copied,
    /// without interpretation" (RFC 5040, 4.4) by the peer, and names no memory to anybody else
    /// (RFC 5042, 6.3.5).
    fn check_response(&mut self, header: &Tagged, len: u32) -> Result<Landing, Refusal<Stop>> {
        let Some(Expected::Read { slot, stag, received, length }) = self.requester.asked.expected()
        else {
            return Err(refuse(Violation::TaggedStag));
        };
        if len == 0 {
            return Ok(Landing::Nowhere);
        }
        require(stag == header.stag, Violation::TaggedStag).map_err(refuse)?;
        let fits = header.offset == u64::from(received) && len <= length - received;
        if !fits {
            return Err(self.bad_answer("a READ response of other bytes", Violation::TaggedBounds));
        }
        match slot {
            Some(slot) => Ok(Landing::Memory(Target::Response { slot, offset: received })),
            None => Ok(Landing::Nowhere),
        }
    }

    /// Our own oldest READ or atomic fails with what the peer violated.
    pub(super) fn bad_answer(&self, what: &'static str, violation: Violation) -> Refusal<Stop> {
        Refusal::Error(match self.requester.asked.front_index() {
            Some(index) => Stop::Request {
                index,
                status: WcStatus::BadResponse,
                stop: Answered::Bad(what, violation),
            },
            None => violation.into(),
        })
    }

    /// A SEND: its number, its place in the message, a receive, and room there (RFC 5041, 7.1, of
    /// untagged segments).
    fn check_send(&mut self, header: &Untagged, len: u32) -> Result<Landing, Refusal<Stop>> {
        let received = match self.inbound.message {
            Message::Write { .. } => return Err(refuse(Violation::Opcode)),
            Message::Send { opcode, msn, received, .. } => {
                require(header.msn == msn, Violation::Msn).map_err(refuse)?;
                require(header.control.opcode == opcode, Violation::Opcode).map_err(refuse)?;
                received
            }
            Message::None => {
                require(header.msn == self.inbound.send_msn, Violation::Msn).map_err(refuse)?;
                0
            }
        };
        require(header.offset == received, Violation::Offset).map_err(refuse)?;
        if self.is_rtr(header, len) {
            return Ok(Landing::Nowhere);
        }
        let recv = self.take_recv()?;
        let end = u64::from(received) + u64::from(len);
        require(end <= recv.capacity, Violation::TooLong).map_err(refuse)?;
        if end > u64::from(u32::MAX) {
            // "The ULP Message Length MUST be less than 2^32" (RFC 5041, 5.2).
            return Err(refuse(Violation::TooLong));
        }
        Ok(match len {
            0 => Landing::Nowhere,
            _ => Landing::Memory(Target::Recv { offset: u64::from(received) }),
        })
    }

    /// The ready-to-receive indication by an empty SEND, first of all messages. Work requests are
    /// not disturbed by it (RFC 6581, 4.4.2).
    pub(super) fn is_rtr(&self, header: &Untagged, len: u32) -> bool {
        self.inbound.may_be_rtr
            && len == 0
            && header.control.last
            && header.control.opcode == RdmapOpcode::SEND
    }

    /// The receive for the message that begins or is in progress. "If there is not an associated
    /// buffer, DDP implementations MAY choose to disable the stream", or "MAY try to recover from
    /// the system fault using LLP means in a ULP-transparent way" (RFC 5041, 7.1): as long as the
    /// owner permits, the stream stands still until one is posted.
    fn take_recv(&mut self) -> Result<crate::wqe::RecvWqe, Refusal<Stop>> {
        let inbound = &mut *self.inbound;
        if inbound.current.is_none() {
            inbound.current = self.host.take_recv();
        }
        if let Some(recv) = inbound.current {
            inbound.held_since = None;
            return Ok(recv);
        }
        let since = *inbound.held_since.get_or_insert(self.cx.now);
        if self.cx.now.since(since) < self.rules.recv_wait_ns {
            return Err(Refusal::Hold);
        }
        Err(refuse(Violation::NoBuffer))
    }

    /// A message for the machine itself: one segment, of the length of its header, with its number.
    fn check_control(
        &mut self,
        info: &RdmapInfo,
        header: &Untagged,
        len: u32,
    ) -> Result<Landing, Refusal<Stop>> {
        let len = len as usize;
        let (least, most) = match info.header {
            RdmapHeader::ReadRequest => (ReadRequest::LEN, ReadRequest::LEN),
            RdmapHeader::AtomicRequest => (AtomicRequest::LEN, AtomicRequest::LEN),
            RdmapHeader::AtomicResponse => (AtomicResponse::LEN, AtomicResponse::LEN),
            // "The Remote Peer MUST check that Immediate Data and Immediate Data with SE Messages
            // include exactly 8 bytes of data from the DDP layer" (RFC 7306, 6.3).
            RdmapHeader::Immediate => (Immediate::LEN, Immediate::LEN),
            RdmapHeader::Terminate | RdmapHeader::None => (Terminate::MIN_LEN, MAX_CONTROL),
        };
        let is_answer = info.header == RdmapHeader::AtomicResponse;
        let is_last_word = info.header == RdmapHeader::Terminate;
        let in_turn = is_answer || is_last_word || self.inbound.message == Message::None;
        require(in_turn, Violation::Opcode).map_err(refuse)?;
        let due = match header.queue {
            QueueNumber::SEND => self.inbound.send_msn,
            QueueNumber::READ_REQUEST => self.inbound.read_msn,
            QueueNumber::ATOMIC_RESPONSE => self.inbound.atomic_msn,
            _ => vernic_wire::iwarp::Msn::FIRST,
        };
        require(header.msn == due, Violation::Msn).map_err(refuse)?;
        require(header.offset == 0, Violation::Offset).map_err(refuse)?;
        require(len <= most, Violation::TooLong).map_err(refuse)?;
        require(len >= least && header.control.last, Violation::Length).map_err(refuse)?;
        match header.queue {
            QueueNumber::READ_REQUEST => {
                // "For inbound RDMA Read Requests, the RDMAP layer MUST NOT exceed the maximum
                // number of outstanding, inbound RDMA Read Requests" (RFC 5040, 6.1).
                require(self.answers.has_room(), Violation::NoBuffer).map_err(refuse)?;
            }
            QueueNumber::ATOMIC_RESPONSE => {
                let expected = self.requester.asked.expected();
                let is_due = matches!(expected, Some(Expected::Atomic { .. }));
                require(is_due, Violation::NoBuffer).map_err(refuse)?;
            }
            QueueNumber::SEND => {
                self.take_recv()?;
            }
            _ => {}
        }
        Ok(Landing::Control)
    }
}

/// "The value of DV MUST be the same for all the DDP Segments transmitted or received on a DDP
/// Stream" (RFC 5041, 4.1); the RDMAP version, too, is the one of RFC 5040.
fn check_versions(control: &Control) -> Check {
    let ddp = match control.tagged {
        true => Violation::TaggedVersion,
        false => Violation::UntaggedVersion,
    };
    require(control.ddp_version == Control::VERSION, ddp)?;
    require(control.rdmap_version == Control::VERSION, Violation::Version)
}

/// "The QN is valid for this stream" (RFC 5041, 7.1); and it is the one of the opcode.
fn check_queue(info: &RdmapInfo, queue: QueueNumber) -> Check {
    require(queue.0 < QueueNumber::COUNT, Violation::Queue)?;
    require(info.queue == Some(queue), Violation::Opcode)
}

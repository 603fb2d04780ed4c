//! The steps of an RC request up to its execution, each small and without the responder: it gets
//! only the state that it may change, and gives the next step (IBTA 9.7.4.1).

use vernic_wire::{Kind, NakCode, Packet, Psn, Selectivity, Srqn};

use super::answers::Answers;
use crate::disposition::Disposition;
use crate::error::{AccessCheck, AccessFault, ErrorClass};
use crate::host::{AtomicOp, Host, SrqFault};
use crate::inbound::{Message, Target, takes_receive};
use crate::segment::packet_count;
use crate::wqe::{MAX_MESSAGE, RecvWqe};

/// Where a request goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    CheckOpSeq,
    CheckOpValid,
    CheckSrq,
    CheckResource,
    CheckLength,
    CheckRkey,
    Execute,
    Complete,
    Acknowledge,
    AnswerAgain,
    /// Ahead of a gap, which was reported before or is to be now.
    Ahead {
        reported: bool,
    },
    Refuse(ErrorClass, Option<AccessFault>),
    NotReady,
    Done(Disposition),
}

/// `Ok` leads to a step, a fault is refused with a class.
pub(super) fn step_or_refuse(
    result: Result<(), AccessFault>,
    next: Step,
    class: ErrorClass,
) -> Step {
    match result {
        Ok(()) => next,
        Err(fault) => Step::Refuse(class, Some(fault)),
    }
}

/// What is to be said after the answers that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Nothing.
    None,
    /// Everything up to and including this has been handled.
    Ack(Psn),
    /// The expected packet is missing. Its number is taken when the notice leaves.
    SequenceNak,
    /// No receive for the expected packet.
    RnrNak,
    /// The packet with this number was refused; the last word of this responder.
    Nak(Psn, NakCode),
}

/// Half of all sequence numbers: of two that are so far apart, neither is the later one (IBTA
/// 9.7.1). A READ of 2 GiB at the smallest MTU takes as many.
const HALF_SPACE: u32 = 1 << 23;

/// The place in the sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    /// Number of the next request packet.
    pub(super) expected: Psn,
    /// A NAK or RNR NAK asks for `expected`: what lies ahead of it is kept or dropped until it
    /// comes.
    pub(super) waiting: bool,
    /// Whether it was an RNR NAK.
    pub(super) not_ready: bool,
    /// Newest number that came ahead of it.
    pub(super) ahead: Psn,
}

/// Expected, seen before, or ahead of a gap (IBTA 9.7.4.1.1), of what takes the numbers from
/// `first` to `last`. A gap is reported once.
pub(super) fn check_psn(
    sequence: &mut Sequence,
    notice: &mut Notice,
    (first, last): (Psn, Psn),
) -> Step {
    match first.offset_from(sequence.expected) {
        0 => {
            // An unsent NAK stands, for what was dropped behind the gap is still missing.
            if *notice != Notice::SequenceNak {
                sequence.waiting = false;
            }
            sequence.not_ready = false;
            if *notice == Notice::RnrNak {
                *notice = Notice::None;
            }
            Step::CheckOpSeq
        }
        ..0 => Step::AnswerAgain,
        1.. => {
            let first_sign = !sequence.waiting;
            if first_sign || sequence.ahead.is_before(last) {
                sequence.ahead = last;
            }
            Step::Ahead { reported: !first_sign }
        }
    }
}

/// First or only starts a message, middle and last continue one of their kind (IBTA 9.7.4.1.2).
pub(super) fn check_op_seq(message: &Message, packet: &Packet<'_>) -> Step {
    let info = packet.info();
    if message.admits(info.kind, info.position) {
        Step::CheckOpValid
    } else {
        Step::Refuse(ErrorClass::OpcodeSequence, None)
    }
}

/// What this queue pair supports and grants (IBTA 9.7.4.1.3). An operation that it does not grant
/// is one that it does not support: an invalid request (IBTA 11.6.2), as from hardware and rxe.
pub(super) fn check_op_valid(access: u32, packet: &Packet<'_>) -> Step {
    let info = packet.info();
    let supported = match info.kind {
        Kind::Send | Kind::Write => true,
        Kind::ReadRequest | Kind::CmpSwap | Kind::FetchAdd | Kind::AtomicWrite => true,
        Kind::Flush => packet.feth().is_some_and(|feth| {
            matches!(feth.selectivity, Selectivity::RANGE | Selectivity::MR)
                && matches!(feth.placement.bits(), 1..=3)
        }),
        _ => false,
    };
    if !supported {
        return Step::Refuse(ErrorClass::UnsupportedOpcode, None);
    }
    let rights = Target::of(packet).map_or(Ok(()), |target| target.check_qp_rights(access));
    step_or_refuse(rights, Step::CheckSrq, ErrorClass::UnsupportedOpcode)
}

/// The shared receive queue that an XRC request names: one of the queue pair's domain, and the same
/// in all packets of a message (IBTA A14). `srqn` is that of the packet before.
#[inline]
pub(super) fn check_srq(
    srqn: Option<Srqn>,
    (named, starts): (Option<Srqn>, bool),
    host: &mut impl Host,
) -> Result<(), ErrorClass> {
    let Some(named) = named else { return Ok(()) };
    if !starts && srqn != Some(named) {
        return Err(ErrorClass::SrqUnknown);
    }
    host.select_srq(named).map_err(|fault| match fault {
        SrqFault::Unknown => ErrorClass::SrqUnknown,
        SrqFault::WrongDomain => ErrorClass::XrcDomain,
    })
}

/// A receive where the message takes one; a place among the answers (IBTA 9.7.4.1.4).
pub(super) fn check_resource(
    current: &mut Option<RecvWqe>,
    answers: &Answers,
    packet: &Packet<'_>,
    host: &mut impl Host,
) -> Step {
    if takes_receive(packet) {
        if current.is_none() {
            *current = host.take_recv();
        }
        if current.is_none() {
            return Step::NotReady;
        }
    }
    let needs_answer = !matches!(packet.info().kind, Kind::Send | Kind::Write);
    if needs_answer && !answers.has_room() {
        return Step::Refuse(ErrorClass::TooManyReads, None);
    }
    Step::CheckLength
}

/// Packet and message lengths (IBTA 9.7.4.1.6): what the opcode allows, what the position demands,
/// what the receive holds and the RETH announced.
pub(super) fn check_length(
    message: &Message,
    current: Option<RecvWqe>,
    packet: &Packet<'_>,
    mtu: u32,
) -> Step {
    let length = packet.reth().map_or(0, |reth| reth.length);
    let result = match packet.info().kind {
        _ if !packet.payload_fits() => Err(ErrorClass::PacketLength),
        Kind::Send | Kind::Write => {
            message.check_length(packet, mtu, current.map_or(0, |recv| recv.capacity))
        }
        Kind::ReadRequest if length > MAX_MESSAGE || packet_count(length, mtu) >= HALF_SPACE => {
            Err(ErrorClass::MessageLength)
        }
        Kind::AtomicWrite if length != 8 => Err(ErrorClass::PacketLength),
        _ => Ok(()),
    };
    match result {
        Ok(()) => Step::CheckRkey,
        Err(class) => Step::Refuse(class, None),
    }
}

/// Key, range and rights of the memory that a request names (IBTA 9.7.4.1.5). Later packets of a
/// WRITE are checked as they are stored.
pub(super) fn check_rkey(packet: &Packet<'_>, host: &mut impl Host) -> Step {
    let Some(target) = Target::of(packet) else { return Step::Execute };
    let kind = packet.info().kind;
    let aligned = matches!(kind, Kind::CmpSwap | Kind::FetchAdd | Kind::AtomicWrite);
    if aligned && target.addr % 8 != 0 {
        let fault = target.fault(AccessCheck::Alignment);
        return Step::Refuse(ErrorClass::Misaligned, Some(fault));
    }
    // A FLUSH checks its key as it is carried out: it may be for a whole region.
    if kind == Kind::Flush {
        return Step::Execute;
    }
    step_or_refuse(target.check_region(host), Step::Execute, ErrorClass::RemoteAccess)
}

/// Stores the payload of a SEND or WRITE packet.
pub(super) fn place(message: &Message, packet: &Packet<'_>, host: &mut impl Host) -> Step {
    let payload = packet.payload();
    if payload.is_empty() {
        return Step::Complete;
    }
    let (result, class) = match message.at(packet) {
        Message::None => (Ok(()), ErrorClass::OpcodeSequence),
        Message::Send { received } => {
            (host.scatter_recv(u64::from(received), payload), ErrorClass::ReceiveMemory)
        }
        Message::Write { rkey, addr, .. } => {
            (host.write_remote(rkey, addr, payload), ErrorClass::RemoteAccess)
        }
    };
    step_or_refuse(result, Step::Complete, class)
}

pub(super) fn atomic_op(packet: &Packet<'_>) -> AtomicOp {
    let atomic = packet.atomic().unwrap_or_default();
    match packet.info().kind {
        Kind::CmpSwap => AtomicOp::CmpSwap { compare: atomic.compare, swap: atomic.swap_or_add },
        _ => AtomicOp::FetchAdd(atomic.swap_or_add),
    }
}

/// Carries a FLUSH out. The whole region is asked for as 0 bytes: [`Host::flush`] checks the key
/// all the same.
pub(super) fn flush(
    target: Target,
    packet: &Packet<'_>,
    host: &mut impl Host,
) -> Result<(), AccessFault> {
    let whole = packet.feth().is_some_and(|feth| feth.selectivity == Selectivity::MR);
    let (addr, len) = if whole { (0, 0) } else { (target.addr, target.len) };
    target.needs.iter().try_for_each(|need| host.flush(target.rkey, addr, len, *need))
}

/// Notes what the peer is owed. Answers acknowledge what is before them by themselves.
pub(super) fn acknowledge(notice: &mut Notice, packet: &Packet<'_>) -> Step {
    let answered = !matches!(packet.info().kind, Kind::Send | Kind::Write);
    let psn = packet.psn();
    match *notice {
        Notice::Ack(_) if answered => *notice = Notice::None,
        Notice::Ack(_) => *notice = Notice::Ack(psn),
        Notice::None if packet.ack_req() && !answered => *notice = Notice::Ack(psn),
        _ => {}
    }
    Step::Done(Disposition::Accepted)
}

//! What incoming segments mean (RFC 5040, 5, 7.2; RFC 5041, 5, 7.1; RFC 7306, 5, 6).
//!
//! Owns the message of the peer's send queue that is in progress, the receive that it fills, and
//! the message numbers of the queues. A segment goes through [`Sink::begin`] (every check that its
//! header allows), [`Sink::place`], and [`Sink::end`], which delivers the message if it was the
//! last segment.
//!
//! Two sequences of messages arrive on a stream, each in order: what the peer's application sends,
//! and the answers to our READs and atomics. A message may be interrupted by one of the other
//! sequence, and by none of its own: "MUST transmit DDP Messages in the order they were submitted
//! to the DDP layer" (RFC 5041, 5.3). Segments of a message come in order of their offsets, as a
//! sender "SHOULD" (RFC 5041, 5.3) and all known ones do; others are refused.

mod checks;
mod deliver;

pub(super) use deliver::recv_completion;

use vernic_wire::Rkey;
use vernic_wire::iwarp::{DdpHeader, Msn, RdmapOpcode, Terminate};

use super::answers::Answers;
use super::deframer::{Refusal, Sink};
use super::requester::Requester;
use crate::cx::Cx;
use crate::error::{AccessFault, Violation, WcStatus};
use crate::host::Host;
use crate::time::Time;
use crate::wqe::RecvWqe;

/// Bytes of the longest message that the machine itself takes: an atomic request is 52, a Terminate
/// as long.
const MAX_CONTROL: usize = 64;

/// Where the payload of the segment under way goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Into the receive taken last, from this offset on: [`Host::scatter_recv`].
    Recv {
        /// First byte.
        offset: u64,
    },
    /// Into memory that the peer writes: [`Host::write_remote`].
    Write {
        /// Its key.
        rkey: Rkey,
        /// First byte.
        addr: u64,
    },
    /// Into the READ in this slot, from this offset on: [`Host::scatter_response`].
    Response {
        /// Slot of the request.
        slot: u32,
        /// First byte.
        offset: u32,
    },
}

impl Target {
    /// The same, `by` bytes further on.
    pub(super) fn at(self, by: u32) -> Self {
        match self {
            Self::Recv { offset } => Self::Recv { offset: offset + u64::from(by) },
            Self::Write { rkey, addr } => {
                Self::Write { rkey, addr: addr.wrapping_add(u64::from(by)) }
            }
            Self::Response { slot, offset } => Self::Response { slot, offset: offset + by },
        }
    }
}

/// Where a segment's payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landing {
    /// There is none.
    Nowhere,
    Memory(Target),
    /// To the machine itself.
    Control,
}

/// The message of the peer's send queue whose segments are arriving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    None,
    Send {
        opcode: RdmapOpcode,
        msn: Msn,
        /// Bytes so far.
        received: u32,
    },
    Write {
        stag: Rkey,
        /// Bytes so far.
        received: u32,
    },
}

/// Why an incoming segment ends the stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    /// It violates something.
    Violation { violation: Violation, fault: Option<AccessFault> },
    /// The answer to one of our own requests cannot be taken; the request has this status.
    Request { index: u64, status: WcStatus, stop: Answered },
    /// The peer has ended the stream.
    Terminated(Terminate),
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answered {
    /// The answer.
    Bad(&'static str, Violation),
    /// The memory that it is for.
    Memory(AccessFault),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation { violation, fault: None }
    }
}

/// The receiving side of one stream.
#[derive(Debug)]
pub(super) struct Inbound {
    message: Message,
    /// The receive taken and not completed.
    current: Option<RecvWqe>,
    /// Number of the next message of each queue.
    send_msn: Msn,
    read_msn: Msn,
    atomic_msn: Msn,
    /// Bytes of the WRITE that was the last message: immediate data may follow it.
    last_write: Option<u32>,
    landing: Landing,
    control: [u8; MAX_CONTROL],
    /// The segment under way, for the Terminate: its header and its length.
    segment: Option<(DdpHeader, u32)>,
    /// The first message may be an RTR by SEND.
    may_be_rtr: bool,
    /// Since when a message waits for a receive.
    held_since: Option<Time>,
}

impl Inbound {
    pub(super) fn new(may_be_rtr: bool) -> Self {
        Self {
            message: Message::None,
            current: None,
            send_msn: Msn::FIRST,
            read_msn: Msn::FIRST,
            atomic_msn: Msn::FIRST,
            last_write: None,
            landing: Landing::Nowhere,
            control: [0; MAX_CONTROL],
            segment: None,
            may_be_rtr,
            held_since: None,
        }
    }

    /// The receive that was taken and not completed.
    pub(super) fn current(&self) -> Option<RecvWqe> {
        self.current
    }
    /// The same, for the flush.
    pub(super) fn take_current(&mut self) -> Option<RecvWqe> {
        self.current.take()
    }
    /// Where payload goes that lies `offset` bytes from the beginning of the segment under way.
    pub(super) fn target(&self, offset: u32) -> Option<Target> {
        match self.landing {
            Landing::Memory(target) => Some(target.at(offset)),
            Landing::Nowhere | Landing::Control => None,
        }
    }
    /// The segment under way or last begun, with its RDMAP header if the machine takes that: what a
    /// Terminate reports.
    pub(super) fn segment(&self) -> Option<(DdpHeader, u32, &[u8])> {
        let (header, len) = self.segment?;
        let control = match self.landing {
            Landing::Control => {
                self.control.get(..len as usize - header.len()).unwrap_or(&self.control)
            }
            _ => &[],
        };
        Some((header, len, control))
    }
    /// Since when a message waits for a receive.
    pub(super) fn held_since(&self) -> Option<Time> {
        self.held_since
    }
    /// Number of the next message on the queue of SENDs, as a place in the sequence.
    pub(super) fn send_msn(&self) -> Msn {
        self.send_msn
    }

    /// The violation that a refused placement is.
    pub(super) fn refused(&self, fault: AccessFault, requester: &Requester) -> Stop {
        let fault_of = |violation| Stop::Violation { violation, fault: Some(fault) };
        match self.landing {
            Landing::Memory(Target::Write { .. }) => fault_of(Violation::of_write(&fault)),
            Landing::Memory(Target::Response { .. }) => match requester.asked.front_index() {
                Some(index) => Stop::Request {
                    index,
                    status: WcStatus::LocalProtection,
                    stop: Answered::Memory(fault),
                },
                None => fault_of(Violation::SendMemory),
            },
            _ => fault_of(Violation::ReceiveMemory),
        }
    }
}

/// What may be received, beside RFC 5040, and how long a message waits for a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) atomics: bool,
    pub(super) immediate: bool,
    pub(super) recv_wait_ns: u64,
}

/// Everything that a segment reaches.
pub(super) struct Taker<'a, 'c, H> {
    pub(super) inbound: &'a mut Inbound,
    pub(super) requester: &'a mut Requester,
    pub(super) answers: &'a mut Answers,
    pub(super) rules: Rules,
    pub(super) cx: &'a mut Cx<'c>,
    pub(super) host: &'a mut H,
}

impl<H: Host> Sink for Taker<'_, '_, H> {
    type Error = Stop;

    fn is_placeable(&self, header: &DdpHeader) -> bool {
        header.control().opcode.info().is_some_and(|info| info.payload)
    }

    fn begin(&mut self, header: &DdpHeader, payload_len: u32) -> Result<(), Refusal<Stop>> {
        self.inbound.segment = Some((*header, header.len() as u32 + payload_len));
        self.inbound.landing = Landing::Nowhere;
        self.inbound.landing = self.check(header, payload_len)?;
        Ok(())
    }

    fn place(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Stop> {
        let result = match self.inbound.landing {
            Landing::Nowhere => Ok(()),
            Landing::Control => {
                // The check of its length has made sure that it fits.
                let begin = offset as usize;
                if let Some(room) = self.inbound.control.get_mut(begin..begin + bytes.len()) {
                    room.copy_from_slice(bytes);
                }
                Ok(())
            }
            Landing::Memory(target) => match target.at(offset) {
                Target::Recv { offset } => self.host.scatter_recv(offset, bytes),
                Target::Write { rkey, addr } => self.host.write_remote(rkey, addr, bytes),
                Target::Response { slot, offset } => {
                    self.host.scatter_response(slot, offset, bytes)
                }
            },
        };
        result.map_err(|fault| self.inbound.refused(fault, self.requester))
    }

    fn end(&mut self) -> Result<(), Stop> {
        let Some((header, segment_len)) = self.inbound.segment else { return Ok(()) };
        let payload_len = segment_len - header.len() as u32;
        self.cx.counters.rx_packets += 1;
        self.inbound.may_be_rtr = false;
        self.deliver(&header, payload_len)
    }
}

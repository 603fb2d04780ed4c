//! Parts of messages from a process of this host: the same checks in the same order as for the
//! packets that they stand for, without headers to read.

use super::checks::{Notice, Step, check_psn, check_srq};
use super::{Responder, next_msn};
use crate::completion::{Completion, Tag};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::{AccessFault, ErrorClass};
use crate::host::{Host, PullFault};
use crate::inbound::{Message, send_completion, send_fits};
use crate::message::MessagePart;
use vernic_wire::{Mtu, Psn};

/// What becomes of a part.
enum Taken {
    Placed,
    /// There is no receive.
    NotReady,
    Refused(ErrorClass, Option<AccessFault>),
    /// The payload cannot be copied: packets must bring it.
    Unreachable,
    Withdrawn,
}

impl Responder {
    /// Handles a part of a SEND. `payload` is empty if it is a rendezvous.
    ///
    /// A refusal is what it is for a packet: see [`handle_request`](Self::handle_request).
    pub(crate) fn handle_message(
        &mut self,
        cx: &mut Cx<'_>,
        part: &MessagePart,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Disposition {
        if !self.begin(cx, host) {
            return Disposition::Drop(DropReason::BadState);
        }
        let mtu = cx.attr.path_mtu;
        let last = part.psn.add(part.packets() - 1);
        let taken = match check_psn(&mut self.sequence, &mut self.notice, (part.psn, last)) {
            Step::CheckOpSeq => self.take_part(part, payload, mtu, host),
            Step::AnswerAgain => {
                self.acknowledge_again(part.psn);
                return Disposition::Duplicate;
            }
            Step::Ahead { reported: false } => return self.report_gap(),
            Step::Ahead { reported: true } => return Disposition::Drop(DropReason::AheadOfNak),
            _ => return Disposition::Drop(DropReason::Malformed),
        };
        let taken = match taken {
            Taken::Placed => self.complete_part(cx, part, last, host),
            other => other,
        };
        match taken {
            Taken::Placed => Disposition::Accepted,
            Taken::NotReady => self.not_ready(),
            Taken::Refused(class, fault) => {
                let solicited = part.solicited;
                let completion = self.current.map(|recv| send_completion(cx, recv, solicited));
                self.refuse(part.psn, completion, (class, fault), host)
            }
            Taken::Unreachable => self.missed(last),
            Taken::Withdrawn => Disposition::Drop(DropReason::RendezvousWithdrawn),
        }
    }

    /// Checks the part and places its payload.
    #[inline]
    fn take_part(
        &mut self,
        part: &MessagePart,
        payload: &[u8],
        mtu: Mtu,
        host: &mut impl Host,
    ) -> Taken {
        let received = match (self.message, part.starts) {
            (Message::None, true) => 0,
            (Message::Send { received }, false) => received,
            _ => return Taken::Refused(ErrorClass::OpcodeSequence, None),
        };
        if let Err(class) = check_srq(self.srqn, (part.srqn, part.starts), host) {
            return Taken::Refused(class, None);
        }
        if part.starts && self.current.is_none() {
            self.current = host.take_recv();
            if self.current.is_none() {
                return Taken::NotReady;
            }
        }
        if !part.has_fitting_length(mtu) {
            return Taken::Refused(ErrorClass::PacketLength, None);
        }
        if !send_fits(received, part.length, self.current.map_or(0, |recv| recv.capacity)) {
            return Taken::Refused(ErrorClass::MessageLength, None);
        }
        let offset = u64::from(received);
        if part.is_rendezvous {
            return match host.pull_recv(offset, part.length) {
                Ok(()) => Taken::Placed,
                Err(PullFault::Local(fault)) => {
                    Taken::Refused(ErrorClass::ReceiveMemory, Some(fault))
                }
                Err(PullFault::Unreachable) => Taken::Unreachable,
                Err(PullFault::Withdrawn) => Taken::Withdrawn,
            };
        }
        if !payload.is_empty()
            && let Err(fault) = host.scatter_recv(offset, payload)
        {
            return Taken::Refused(ErrorClass::ReceiveMemory, Some(fault));
        }
        Taken::Placed
    }

    /// Moves on in the sequence behind `last`; at the end of the message, completes its receive.
    #[inline]
    fn complete_part(
        &mut self,
        cx: &mut Cx<'_>,
        part: &MessagePart,
        last: Psn,
        host: &mut impl Host,
    ) -> Taken {
        let received = match self.message {
            Message::Send { received } => received,
            _ => 0,
        };
        let total = received + part.length;
        if part.ends {
            if let Tag::Invalidated(rkey) = part.tag
                && let Err(fault) = host.invalidate_remote(rkey)
            {
                return Taken::Refused(ErrorClass::Invalidate, Some(fault));
            }
            if let Some(recv) = self.current.take() {
                let completion = send_completion(cx, recv, part.solicited);
                host.complete_recv(Completion { byte_len: total, tag: part.tag, ..completion });
            }
            self.msn = next_msn(self.msn);
            cx.counters.messages_received += 1;
            self.message = Message::None;
        } else {
            self.message = Message::Send { received: total };
        }
        self.srqn = part.srqn;
        self.sequence.expected = last.add(1);
        // Each part asks for an acknowledgement: no packet behind it would.
        if matches!(self.notice, Notice::None | Notice::Ack(_)) {
            self.notice = Notice::Ack(last);
        }
        Taken::Placed
    }

    /// A rendezvous up to `last` could not be copied: as if it had been lost, which is reported at
    /// once.
    fn missed(&mut self, last: Psn) -> Disposition {
        self.sequence.ahead = last;
        self.report_gap()
    }
}

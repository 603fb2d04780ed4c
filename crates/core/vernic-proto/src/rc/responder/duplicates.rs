//! Requests that were seen before: they are acknowledged or answered again, and not carried out
//! again (IBTA 9.7.5.1.5).

use vernic_wire::opcode::Kind;
use vernic_wire::{Packet, Psn};

use super::Responder;
use super::checks::{Notice, Step};
use crate::disposition::{Disposition, DropReason};

impl Responder {
    /// A duplicate: acknowledges again, or answers again without carrying out (IBTA 9.7.5.1.5).
    pub(super) fn answer_again(&mut self, mtu: u32, packet: &Packet<'_>) -> Step {
        let psn = packet.psn();
        let answered = match packet.info().kind {
            Kind::Send | Kind::Write => {
                self.acknowledge_again(psn);
                true
            }
            Kind::ReadRequest => {
                self.answers.replay_read(psn, packet.reth().unwrap_or_default(), mtu)
            }
            kind => {
                let atomic = matches!(kind, Kind::CmpSwap | Kind::FetchAdd);
                self.answers.replay_stored(psn, atomic)
            }
        };
        Step::Done(if answered {
            Disposition::Duplicate
        } else {
            Disposition::Drop(DropReason::LostReplay)
        })
    }

    /// Acknowledges all there is, but not past a READ or atomic whose answer may be what was lost:
    /// the peer would count that as one more loss.
    pub(super) fn acknowledge_again(&mut self, psn: Psn) {
        if !matches!(self.notice, Notice::None | Notice::Ack(_)) {
            return;
        }
        let upto = match self.answers.known_and_due_after(psn) {
            (_, true) => return,
            (true, false) => psn,
            (false, false) => self.sequence.expected.sub(1),
        };
        match self.notice {
            Notice::Ack(queued) if !queued.is_before(upto) => {}
            _ => self.notice = Notice::Ack(upto),
        }
    }
}

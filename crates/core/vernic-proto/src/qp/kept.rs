//! What comes ahead of a gap is kept and handled in its turn (RC and XRC).
//!
//! A responder without this drops everything behind a lost packet, and the peer sends all of it
//! again. With it the peer need not: once the missing packet has come, the owner hands over what
//! was kept, and one acknowledgement covers all of it. That is nothing new to any peer: it is what
//! follows if all of it had come in order, just then.

use super::Qp;
use super::machine::{Machine, each};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::host::Host;
use crate::kept::{Keeping, KeptPacket};
use crate::time::Time;
use crate::transport::Transport;
use vernic_wire::Packet;

impl Qp {
    /// Keeps packets ahead of a gap from now on, within these bounds; `None`, the state at first,
    /// drops them. What was kept before is forgotten. A reset leaves the bounds.
    pub fn set_keeping(&mut self, keeping: Option<Keeping>) {
        each!(&mut self.machine, m => m.set_keeping(keeping));
    }

    /// Whether anything is kept, and [`take_kept`](Self::take_kept) is to be asked after a packet
    /// or a part of a message.
    #[inline]
    pub fn has_kept(&self) -> bool {
        each!(&self.machine, m => m.has_kept())
    }

    /// Takes a packet that was kept and whose turn has come, for
    /// [`handle_kept`](Self::handle_kept): before any other packet is handled, and before anything
    /// is sent.
    pub fn take_kept(&mut self) -> Option<KeptPacket> {
        each!(&mut self.machine, m => m.take_kept())
    }

    /// Handles a packet that was kept, as if it had come now. It was counted when it came.
    pub fn handle_kept(
        &mut self,
        now: Time,
        kept: &KeptPacket,
        host: &mut impl Host,
    ) -> Disposition {
        let Ok(packet) = Packet::parse(kept.bytes()) else {
            return Disposition::Drop(DropReason::Malformed);
        };
        if let Err(reason) = self.admit(&packet, self.pkey) {
            return Disposition::Drop(reason);
        }
        let cx = cx!(self, now);
        let disposition = each!(&mut self.machine, m => m.handle_kept(cx, &packet, host));
        self.after_request(disposition, now, host)
    }
}

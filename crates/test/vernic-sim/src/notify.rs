//! The arrival of a congestion notification, which changes nothing but what congestion control
//! says.

use vernic_proto::{Disposition, DropReason, RxMeta};
use vernic_wire::{LocalRoute, Packet};

use crate::cover::Count;
use crate::ctx::fail;
use crate::world::World;

impl World {
    /// Hands a notification to a queue pair.
    pub(crate) fn receive_notification(&mut self, c: usize, s: usize, packet: &Packet<'_>) {
        let route = LocalRoute { service_level: 0xA, ..LocalRoute::NONE };
        let meta = RxMeta { grh: None, ecn: 0, route, is_peer: true };
        let disposition =
            self.with_qp(c, s, |qp, now, host| qp.handle_packet(now, packet, &meta, host));
        self.ctx.hit(Count::Notified);
        let is_dropped = matches!(
            disposition,
            Disposition::Drop(DropReason::Cnp | DropReason::Pkey | DropReason::BadState)
        );
        if !is_dropped {
            fail!(self.ctx, "{disposition:?} of a congestion notification");
        }
    }
}

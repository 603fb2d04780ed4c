//! What the control path asks of the lane: to open and close queue pairs and shared receive queues,
//! to hand over what the background thread must do, and to end.
//!
//! Called by verbs, by the engine and by its background thread, with the lane's lock.

use std::sync::Arc;

use vernic_io::host::{Intake, Slot, SlotError, SlotTable};
use vernic_io::neighbour::NeighbourId;
use vernic_io::{ClosedLink, Link, LinkError, LocalAddr, Nanos};
use vernic_mem::Memory;
use vernic_proto::congestion::Congestion;
use vernic_proto::{AttrMask, QpAttr, QpState, QpType, Time};
use vernic_wire::{Qpn, Srqn};

use crate::device::opened::Device;
use crate::error::CreateError;
use crate::lane::core::Lane;
use crate::lane::pacer::Pacer;
use crate::local::rings::Near;
use crate::qp::state::QpInner;
use crate::qp::table::QpTable;
use crate::qp::xrc::XrcSrq;
use crate::sched::Event;
use crate::support::events::lock;

/// Queue pairs and shared receive queues.
impl Lane {
    /// Returns the queue pairs.
    pub(crate) fn table(&self) -> &QpTable {
        &self.table
    }

    /// Gives each destination window the congestion controller that `make` returns.
    pub(crate) fn set_destination_control(&mut self, make: impl Fn() -> Box<dyn Congestion>) {
        self.sched.set_destination_control(make);
    }

    /// Gives a number to the queue pair that `make` returns, and to the scheduler.
    pub(crate) fn open_qp(
        &mut self,
        slots: &SlotTable,
        make: impl FnOnce(Qpn) -> Arc<QpInner>,
    ) -> Result<Arc<QpInner>, CreateError> {
        let open = self.table.len();
        let qp = self.table.insert(slots, make);
        let qp = qp.map_err(|source| CreateError::NoQpn { open, source })?;
        self.sched.add(&qp);
        Ok(qp)
    }

    /// Takes a queue pair out of the table, the scheduler and every multicast group.
    pub(crate) fn close_qp(&mut self, qpn: Qpn) -> Option<Arc<QpInner>> {
        self.groups.remove_all(self.link.as_mut(), qpn);
        let gone = self.table.remove(qpn)?;
        self.sched.remove(&gone);
        Some(gone)
    }

    /// Makes ready a queue pair that rang its doorbell; returns false if the queue pair is closed.
    pub(crate) fn answer(&mut self, qp: &Arc<QpInner>) -> bool {
        self.sched.answer(qp)
    }

    /// Returns the first slot of this device, for other numbers than those of queue pairs.
    pub(crate) fn first_slot(&mut self, slots: &SlotTable) -> Result<Slot, SlotError> {
        self.table.first_slot(slots)
    }

    /// Gives a number to the XRC shared receive queue that `make` returns.
    pub(crate) fn open_srq(
        &mut self,
        make: impl FnOnce(Srqn) -> XrcSrq,
    ) -> Result<Arc<XrcSrq>, CreateError> {
        self.srqs.insert(make)
    }

    /// Takes an XRC shared receive queue out of the table, and away from the targets that use it.
    /// The caller drops the references without the lane.
    pub(crate) fn close_srq(&mut self, number: Srqn) -> Vec<Arc<XrcSrq>> {
        let mut gone: Vec<_> = self.srqs.remove(number).into_iter().collect();
        for qp in self.table.iter().filter(|qp| qp.qp_type() == QpType::XrcTgt) {
            gone.extend(lock(&qp.core).side.filling.remove_queue(number));
        }
        gone
    }
}

/// The link and QP1.
impl Lane {
    /// Returns the link, to be asked.
    #[inline]
    pub(crate) fn link(&self) -> &dyn Link {
        self.link.as_ref()
    }

    /// Lets the link use an address that is new.
    pub(crate) fn activate(&mut self, local: LocalAddr) -> Result<(), LinkError> {
        self.link.activate(local)
    }

    /// Leaves the port that processes of the host share.
    pub(crate) fn step_aside(&mut self, now: Time) {
        self.link.step_aside(Nanos(now.nanos()));
    }

    /// Writes packets that a capture keeps to its file.
    pub(crate) fn flush_link(&mut self) {
        self.link.flush();
    }

    /// Notes whether the agent of communication management may have something to send.
    #[inline]
    pub(crate) fn note_mads(&mut self, are_pending: bool) {
        self.gsi.note_work(are_pending);
    }

    /// Sends the datagrams of communication management. Returns whether the kernel has all of them.
    pub(crate) fn send_mads(&mut self, device: &Device, now: Time) -> bool {
        self.transmit(device, now);
        !self.gsi.is_pending() && self.tx.is_empty()
    }

    /// Handles a batch from the sockets. Returns whether there was nothing, and no datagram waits
    /// for another process.
    pub(crate) fn empty_sockets(&mut self, device: &Device, now: Time) -> bool {
        self.near.link_had(1);
        let received = self.receive(device, now);
        self.gsi.fire_timers(device, &mut self.table, now);
        self.transmit(device, now);
        received == 0 && !self.gsi.has_waiting()
    }
}

/// Local peers.
impl Lane {
    /// Returns the rings of local peers, to be asked.
    #[inline]
    pub(crate) fn near(&self) -> &Near {
        &self.near
    }

    /// Takes the processes that are to be connected to, and the local peers that are to be
    /// expelled.
    pub(crate) fn take_near_work(&mut self) -> (Vec<(Slot, u32)>, Vec<NeighbourId>) {
        (self.near.take_found(), self.near.take_broken())
    }

    /// Notes that this process answered on the slot's own socket.
    pub(crate) fn set_owner(&mut self, slot: Slot, pid: u32) {
        self.near.set_owner(slot, pid);
    }

    /// Ends access to and from local peers, and returns their rings, which the caller drops.
    pub(crate) fn leave_neighbours(&mut self, memory: &Memory) -> Near {
        self.guests.close(memory);
        self.table.iter().for_each(|qp| lock(&qp.core).side.peer.end_grants());
        std::mem::replace(&mut self.near, Near::new())
    }
}

/// The end of the device.
impl Lane {
    /// Moves every queue pair to Error, which flushes what was posted to it.
    pub(crate) fn fail_all(&mut self, device: &Device, now: Time) {
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        let Self { table, srqs, sched, .. } = self;
        for qp in table.iter() {
            let mut core = lock(&qp.core);
            // Error can be entered from every state.
            let _ = qp.with_lane_host(device, Some(srqs), now, &mut core, |machine, host| {
                machine.modify(&attr, AttrMask::STATE, now, host)
            });
            sched.after(device, qp, &mut core, Event::Changed, now);
        }
    }

    /// Gives up everything that the lane shares with other processes, and the packets that the
    /// sockets had no room for. Returns the objects that the caller must drop.
    pub(crate) fn put_down(&mut self) -> (Box<dyn Link>, Pacer, Option<Arc<Intake>>) {
        self.tx.clear();
        self.groups.forget_homes();
        let closed: Box<dyn Link> = Box::new(ClosedLink::after(self.link.as_ref()));
        let link = std::mem::replace(&mut self.link, closed);
        let pacer = std::mem::replace(&mut self.pacer, Pacer::new(false));
        (link, pacer, self.intake.take())
    }
}

#[cfg(test)]
impl Lane {
    pub(crate) fn link_mut(&mut self) -> &mut Box<dyn Link> {
        &mut self.link
    }

    pub(crate) fn tx(&mut self) -> &mut vernic_io::TxLanes {
        &mut self.tx
    }

    pub(crate) fn sched(&mut self) -> &mut crate::sched::Scheduler {
        &mut self.sched
    }

    pub(crate) fn near_mut(&mut self) -> &mut Near {
        &mut self.near
    }

    /// Hands packets to QP1.
    pub(crate) fn handle_mads(
        &mut self,
        device: &Device,
        packets: &[vernic_io::RxPacket<'_>],
        now: Time,
    ) {
        self.gsi.handle(device, &mut self.table, packets, now);
    }

    pub(crate) fn mad_deadline(&self) -> Option<Time> {
        self.gsi.deadline()
    }
}

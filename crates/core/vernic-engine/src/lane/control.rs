//! What the control path asks of the lane: to open and close queue pairs and shared receive queues,
//! to hand over what the background thread must do, and to end.
//!
//! Called by verbs, by the engine and by its background thread, with the lane's lock.

use std::sync::Arc;

use vernic_io::host::{ReceiverPage, Slot, SlotError, SlotTable};
use vernic_io::{ClosedLink, Link, LinkError, LocalAddr};
use vernic_local::LocalPeerId;
use vernic_local::LocalPeers;
use vernic_mem::Memory;
use vernic_proto::congestion::Congestion;
use vernic_proto::{AttrMask, QpAttr, QpState, QpType, Time};
use vernic_wire::{Gid, Lid, Pkey, PortNum, Qpn, Srqn};

use crate::device::opened::Device;
use crate::device::port::Port;
use crate::error::{CreateError, McastError};
use crate::lane::core::LaneState;
use crate::lane::protocol::{Lane, WireProtocol};
use crate::lane::udp_backpressure::UdpBackpressure;
use crate::qp::state::QpInner;
use crate::qp::table::QpTable;
use crate::qp::xrc::XrcSrq;
use crate::sched::Event;
use crate::support::events::lock;

/// Queue pairs and shared receive queues.
impl LaneState {
    /// Returns the queue pairs.
    pub(crate) fn table(&self) -> &QpTable {
        &self.table
    }

    /// Gives each destination window the congestion controller that `make` returns.
    pub(crate) fn set_destination_control(&mut self, make: impl Fn() -> Box<dyn Congestion>) {
        self.sched.set_destination_control(make);
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
impl LaneState {
    /// Returns the link, to be asked.
    #[inline]
    pub(crate) fn link(&self) -> &dyn Link {
        self.link.as_ref()
    }

    /// Lets the link use an address that is new.
    pub(crate) fn activate(&mut self, local: LocalAddr) -> Result<(), LinkError> {
        self.link.activate(local)
    }

    /// Gives the queue pairs of a port the partitions that the port's P_Key table has now. A queue
    /// pair whose row is empty is of no partition: the adapter sends nothing for it (IBTA 10.9.2).
    pub(crate) fn renew_pkeys(&mut self, port: &Port) {
        for qp in self.table.iter() {
            let mut core = lock(&qp.core);
            let attr = *core.machine.attr();
            let row = |index| port.pkey(index).unwrap_or(Pkey(0));
            if attr.port == port.number() {
                core.machine.set_pkey(row(attr.pkey_index));
            }
            if attr.alt_port == port.number() {
                core.machine.set_alternate_pkey(row(attr.alt_pkey_index));
            }
        }
    }

    /// Lets the queue pairs of a port that is down migrate to their alternate paths.
    pub(crate) fn leave_port(&mut self, device: &Device, port: PortNum, now: Time) {
        let Self { table, sched, .. } = self;
        for qp in table.iter() {
            let mut core = lock(&qp.core);
            if core.machine.attr().port == port {
                qp.with_host(device, now, &mut core, |machine, host| {
                    machine.leave_port(now, host);
                });
                sched.after(device, qp, &mut core, Event::Changed, now);
            }
        }
    }

    /// Notes whether the agent of communication management may have something to send.
    #[inline]
    pub(crate) fn note_mads(&mut self, are_pending: bool) {
        self.gsi.note_work(are_pending);
    }
}

/// What needs the wire protocol as well.
impl Lane {
    /// Gives a number to the queue pair that `make` returns, and to the scheduler.
    pub(crate) fn open_qp(
        &mut self,
        slots: &SlotTable,
        make: impl FnOnce(Qpn, &dyn WireProtocol) -> Arc<QpInner>,
    ) -> Result<Arc<QpInner>, CreateError> {
        let Self { state, protocol, .. } = self;
        let open = state.table.len();
        let qp = state.table.insert(slots, |qpn| make(qpn, protocol.as_ref()));
        let qp = qp.map_err(|source| CreateError::NoQpn { open, source })?;
        state.sched.add(&qp);
        Ok(qp)
    }

    /// Removes a queue pair from the table, the scheduler, all multicast groups and the wire
    /// protocol. The caller drops the reference without the lane.
    pub(crate) fn close_qp(
        &mut self,
        device: &Device,
        qpn: Qpn,
        now: Time,
    ) -> Option<Arc<QpInner>> {
        let LaneState { groups, link, table, sched, .. } = &mut self.state;
        groups.remove_all(link.as_mut(), qpn);
        let gone = table.remove(qpn)?;
        sched.remove(&gone);
        self.protocol.forget_qp(device, qpn, now);
        Some(gone)
    }

    /// Sends the datagrams of communication management. Returns whether the kernel has all of them.
    pub(crate) fn send_mads(&mut self, device: &Device, now: Time) -> bool {
        self.transmit(device, now);
        !self.gsi.is_pending() && self.tx.is_empty()
    }

    /// Handles a batch from the sockets. Returns whether there was nothing, and no datagram waits
    /// for another process.
    pub(crate) fn empty_sockets(&mut self, device: &Device, now: Time) -> bool {
        self.local_peers.link_had(1);
        let received = self.receive(device, now);
        let LaneState { gsi, table, .. } = &mut self.state;
        gsi.fire_timers(device, table, now);
        self.transmit(device, now);
        received == 0 && !self.gsi.has_waiting()
    }
}

/// Multicast groups, and the addresses that they are joined by.
impl LaneState {
    /// Adds an open queue pair to a multicast group. A group without members is joined by the first
    /// address of the queue pair's port with the group's IP version. Returns false if the queue
    /// pair was a member already.
    pub(crate) fn attach(
        &mut self,
        device: &Device,
        qpn: Qpn,
        (gid, lid): (Gid, Lid),
    ) -> Result<bool, McastError> {
        let qp = self.table.find(qpn).ok_or(McastError::Destroyed(qpn))?;
        let number = lock(&qp.core).machine.attr().port;
        let port = device.port(number).unwrap_or(&device.ports()[0]);
        let is_ipv4 = gid.to_ip().is_ipv4();
        let local = {
            let gids = port.gids();
            gids.iter().map(|row| row.local).find(|local| local.ip.is_ipv4() == is_ipv4)
        };
        let local = local.ok_or(McastError::NoAddress(gid))?;
        self.groups.add(self.link.as_mut(), qpn, (gid, lid), (port, local))
    }

    /// Removes a queue pair from a multicast group.
    pub(crate) fn detach(&mut self, qpn: Qpn, gid: Gid) -> Result<(), McastError> {
        match self.groups.remove(self.link.as_mut(), qpn, gid) {
            true => Ok(()),
            false => Err(McastError::NotAttached { qpn, group: gid }),
        }
    }

    /// Stops using an address that was removed.
    pub(crate) fn lose_address(&mut self, local: LocalAddr) {
        self.link.deactivate(local);
        self.groups.lose_address(local);
    }

    /// Joins the groups of a port again that have lost their address, by one of `locals`.
    pub(crate) fn rejoin(&mut self, port: PortNum, locals: &[LocalAddr]) {
        self.groups.rejoin(self.link.as_mut(), port, locals);
    }
}

/// Local peers.
impl LaneState {
    /// Returns the rings of local peers, to be asked.
    #[inline]
    pub(crate) fn local_peers(&self) -> &LocalPeers {
        &self.local_peers
    }

    /// Takes the processes that are to be connected to, and the local peers that are to be
    /// expelled.
    pub(crate) fn take_near_work(&mut self) -> (Vec<(Slot, u32)>, Vec<LocalPeerId>) {
        (self.local_peers.take_found(), self.local_peers.take_broken())
    }

    /// Notes that this process answered on the slot's own socket.
    pub(crate) fn set_owner(&mut self, slot: Slot, pid: u32) {
        self.local_peers.set_owner(slot, pid);
    }

    /// Ends access to and from local peers, and returns their rings, which the caller drops.
    pub(crate) fn leave_neighbours(&mut self, memory: &Memory) -> LocalPeers {
        self.local_peers.close(memory);
        self.table.iter().for_each(|qp| lock(&qp.core).side.peer.end_grants());
        std::mem::take(&mut self.local_peers)
    }
}

/// The end of the device.
impl LaneState {
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
    /// sockets and the link had no room for. Returns the objects that the caller must drop.
    pub(crate) fn release(
        &mut self,
    ) -> (Box<dyn Link>, UdpBackpressure, Option<Arc<ReceiverPage>>) {
        self.link.flush();
        self.tx.clear();
        self.groups.forget_homes();
        let closed: Box<dyn Link> = Box::new(ClosedLink::after(self.link.as_ref()));
        let link = std::mem::replace(&mut self.link, closed);
        let udp_backpressure =
            std::mem::replace(&mut self.udp_backpressure, UdpBackpressure::new(false));
        (link, udp_backpressure, self.receiver_page.take())
    }
}

#[cfg(test)]
impl LaneState {
    pub(crate) fn first_home(&self) -> Option<LocalAddr> {
        self.groups.first_home()
    }

    pub(crate) fn link_mut(&mut self) -> &mut Box<dyn Link> {
        &mut self.link
    }

    pub(crate) fn tx(&mut self) -> &mut vernic_io::TxLanes {
        &mut self.tx
    }

    pub(crate) fn sched(&mut self) -> &mut crate::sched::Scheduler {
        &mut self.sched
    }

    pub(crate) fn rings_mut(&mut self) -> &mut LocalPeers {
        &mut self.local_peers
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

//! Parts of messages out of the ring of a local peer: to the machines of the queue pairs.
//!
//! A packet says with its addresses where it comes from. A part needs none: its queue pair is
//! connected to a process, and the kernel says which process writes to a ring.

use vernic_io::Address;
use vernic_local::{BYTES_PER_POLL, LIMITS, PartRecord, Rendezvous, RendezvousRecord, part_of};
use vernic_local::{LocalPeerId, MessageHead};
use vernic_proto::{Disposition, DropReason, MessagePart, PartAck};
use vernic_wire::{Gid, Qpn, Service};

use super::{Demux, count_disposition, is_from_peer, may_be_from_peer};
use crate::counters::Counted;
use crate::device::opened::Device;
use crate::qp::state::QpCore;

impl Demux<'_, '_> {
    /// Handles one part of a message. Returns how many of the bytes are its payload.
    #[inline]
    pub(super) fn handle_message(&mut self, head: MessageHead, bytes: &[u8]) -> usize {
        let mut payload = bytes.len();
        let handled = match part_of(head, bytes) {
            None => Err(DropReason::Malformed),
            Some(record) => {
                payload = record.payload.len();
                if record.part.is_rendezvous {
                    self.handle_rendezvous(&record)
                } else {
                    self.deliver_part(&record, None)
                }
            }
        };
        if let Err(reason) = handled {
            // No address says whose fault that is.
            self.engine.counts().drop_packet(reason);
        }
        payload
    }

    /// Handles a part whose payload is in the memory of the local peer.
    fn handle_rendezvous(&mut self, named: &PartRecord<'_>) -> Result<(), DropReason> {
        let record = RendezvousRecord::parse(named.payload);
        // Only what a peer that is gone left in its ring may name more bytes than one poll copies;
        // the rest is refused.
        let may = self.pulled < BYTES_PER_POLL;
        let (Some(record), Some(sender_memory), true) = (record, self.sender_memory, may) else {
            self.engine.counts().note(Counted::NearPullRefused);
            if let Some(ack) = named.ack {
                self.deliver_ack(named.dest, ack)?;
            }
            return Err(DropReason::RendezvousRefused);
        };
        // A copy takes a system call, however short it is.
        self.pulled += u64::from(record.length.max(LIMITS.min_bytes));
        let part = MessagePart { length: record.length, ..named.part };
        let named = PartRecord { part, payload: &[], ..*named };
        self.deliver_part(&named, Some(Rendezvous { record: &record, sender_memory }))
    }

    /// Hands a part to one queue pair, and first the acknowledgement that the part carries, if the
    /// process of its peer has sent them.
    #[inline]
    fn deliver_part(
        &mut self,
        record: &PartRecord<'_>,
        rendezvous: Option<Rendezvous<'_>>,
    ) -> Result<(), DropReason> {
        let PartRecord { dest, part, payload, ack } = record;
        self.lock(*dest)?;
        let (engine, srqs, now) = (self.engine, Some(self.srqs), self.now);
        let (Some(locked), Some(via)) = (&mut self.locked, &mut self.via) else { return Ok(()) };
        let core = &mut locked.core;
        let is_known = core.side.peer.route().answer_ring() == Some(via.id())
            || is_from_peer(engine, core, via);
        // UC is never sent again, and nothing answers it. A process of this host that has not said
        // yet that it has the slot of its queue pair is believed.
        let is_believed = || locked.qp.service() == Service::Uc && may_be_from_peer(core, via);
        if !is_known && !is_believed() {
            return Err(DropReason::WrongSource);
        }
        locked.requests = true;
        let mut answered = None;
        let disposition = locked.qp.with_part(
            engine,
            (srqs, rendezvous),
            now,
            core,
            |machine, host| match machine.packets() {
                Some(machine) => {
                    answered = ack.map(|ack| machine.handle_ack(now, ack, host));
                    machine.handle_message(now, part, payload, host)
                }
                None => Disposition::Drop(DropReason::WrongService),
            },
        );
        if let Some(answered) = answered {
            locked.heard |= note_answer(engine, core, answered, via.id());
        }
        if is_known
            && !matches!(disposition, Disposition::Drop(_))
            && core.side.peer.note_arrival(true, Some(via.id()))
        {
            core.side.peer.answer_through(Some(via.id()));
        }
        let src = core.side.peer.address();
        self.accepted += u64::from(disposition == Disposition::Accepted);
        let src = src.unwrap_or(Address::Gid(Gid::default()));
        count_disposition(engine, disposition, src)?;
        locked.heard = true;
        if core.machine.has_kept() {
            self.handle_kept(src);
        }
        Ok(())
    }

    /// Hands the acknowledgement of a part that is refused to one queue pair, if the process of its
    /// peer has sent it.
    #[cold]
    fn deliver_ack(&mut self, dest: Qpn, ack: PartAck) -> Result<(), DropReason> {
        self.lock(dest)?;
        let (engine, srqs, now) = (self.engine, Some(self.srqs), self.now);
        let (Some(locked), Some(via)) = (&mut self.locked, &mut self.via) else { return Ok(()) };
        let core = &mut locked.core;
        if !is_from_peer(engine, core, via) {
            return Err(DropReason::WrongSource);
        }
        let answered = locked.qp.with_part(engine, (srqs, None), now, core, |machine, host| {
            machine.packets().map(|machine| machine.handle_ack(now, ack, host))
        });
        if let Some(answered) = answered {
            locked.heard |= note_answer(engine, core, answered, via.id());
        }
        Ok(())
    }
}

/// Notes what a machine did with an acknowledgement that came through the ring of local peer `id`,
/// and returns whether the machine took it.
#[inline]
fn note_answer(engine: &Device, core: &mut QpCore, did: Disposition, id: LocalPeerId) -> bool {
    if let Disposition::Drop(reason) = did {
        engine.counts().drop_packet(reason);
        return false;
    }
    core.side.peer.note_arrival(false, Some(id));
    if did == Disposition::Duplicate {
        engine.counts().note(Counted::Duplicate);
    }
    true
}

//! QP1, the general services interface (GSI): management datagrams (MADs) in and out.
//!
//! A device has it without being asked (IBTA 10.2.4.1): the lane takes packets for QPN 1 from the other
//! ones, checks what a queue pair would, and hands their 256 bytes to the agent of communication
//! management (`cm.rs`). Here is also what the agent's datagrams become on their way out. There is no
//! other agent: datagrams of other classes are counted and dropped.
//!
//! Called by whoever has the lane. Costs queue pairs nothing: a packet is looked at here when its QPN
//! is in no table, and nothing is sent or fired before a flag or a deadline of the lane says so.

use vernic_io::RxPacket;
use vernic_proto::{DropReason, Time};
use vernic_wire::cm::GSI_QKEY;
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Bth, Deth, Headers, Opcode, Packet, Pkey, Psn, Qpn, Service};

use crate::lane::Lane;
use crate::progress::Engine;
use crate::qp_table::QpTable;
use crate::rx::reason_of;

/// QP1 as the lane has it.
#[derive(Debug, Default)]
pub(crate) struct Gsi {
    /// The agent may have something to send, or another deadline than the one here.
    pub(crate) pending: bool,
    /// When the agent wants to be called.
    deadline: Option<Time>,
    psn: Psn,
}

impl Gsi {
    /// When the lane must be looked at for it; not asked while it is `pending`.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    #[inline]
    fn is_due(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Writes a packet with the datagram, without the ICRC; returns its length.
    fn write(&mut self, mad: &[u8; MAD_LEN], room: &mut [u8]) -> usize {
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, self.psn));
        headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
        self.psn = self.psn.add(1);
        let start = headers.emit(room);
        room[start..start + MAD_LEN].copy_from_slice(mad);
        start + MAD_LEN
    }
}

/// The datagram in a packet for QP1, if everything about the packet is right.
fn mad_of<'a>(packet: &RxPacket<'a>) -> Result<&'a [u8; MAD_LEN], DropReason> {
    let parsed = Packet::parse(packet.transport()).map_err(reason_of)?;
    let is_send = parsed.info().service == Service::Ud && parsed.imm().is_none();
    let deth = parsed.deth().filter(|_| is_send).ok_or(DropReason::WrongService)?;
    if packet.meta.dst.ip().is_multicast() {
        return Err(DropReason::NotAttached);
    }
    if !parsed.bth().pkey.matches(Pkey::DEFAULT) {
        return Err(DropReason::Pkey);
    }
    if deth.qkey != GSI_QKEY {
        return Err(DropReason::Qkey);
    }
    // Only a QP1 may use that key; and it is where our answers go.
    if deth.src_qpn != Qpn::GSI {
        return Err(DropReason::WrongSource);
    }
    parsed.payload().try_into().map_err(|_| DropReason::Length)
}

impl Gsi {
    /// Handles packets for QP1, whose ICRC is right, in the order of their arrival.
    #[cold]
    pub(crate) fn handle(
        &mut self,
        engine: &Engine,
        table: &mut QpTable,
        packets: &[RxPacket<'_>],
        now: Time,
    ) {
        for packet in packets {
            let taken = mad_of(packet).and_then(|mad| engine.take_mad(table, packet, mad, now));
            if let Err(reason) = taken {
                engine.counters.drop_packet(reason);
            }
        }
        self.pending = true;
    }
}

impl Lane {
    /// Lets the agent act on what the time has brought.
    #[inline]
    pub(crate) fn fire_mad_timers(&mut self, engine: &Engine, now: Time) {
        if self.gsi.is_due(now) {
            engine.cm.handle_timeout(now);
            self.gsi.pending = true;
        }
    }

    /// Lets the agent write its datagrams into the batch.
    #[inline]
    pub(crate) fn fill_mads(&mut self, engine: &Engine) {
        if self.gsi.pending {
            self.write_mads(engine);
        }
    }

    /// Until nothing is left or the batch is full; learns when the agent wants to be called again.
    #[cold]
    fn write_mads(&mut self, engine: &Engine) {
        let Self { gsi, tx, .. } = self;
        // Before the machine is looked at: what changes from then on is announced again.
        gsi.pending = false;
        gsi.deadline = engine.cm.drain(|next| {
            // Bounded by the batch.
            while let Some(room) = tx.room() {
                let Some(out) = next() else { return };
                let len = gsi.write(&out.mad, room);
                tx.push(&engine.mad_path(&out), len);
            }
            gsi.pending = true;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use vernic_io::{Icrc, RxMeta};
    use vernic_wire::{ImmDt, Qkey};

    use super::*;

    /// What a packet with the datagram is taken for, after `change` and `pkey` and so on were set.
    fn taken(dst: &str, change: impl FnOnce(&mut Headers), len: usize) -> Result<(), DropReason> {
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(7)));
        headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
        change(&mut headers);
        let mut bytes = vec![0; headers.len() + len + 4];
        headers.emit(&mut bytes);
        let src: SocketAddr = "10.0.0.1:50000".parse().unwrap();
        let (dst, icrc) = (dst.parse().unwrap(), Icrc::Good);
        let meta = RxMeta { src, dst, traffic_class: 0, hop_limit: 64, icrc, handed_over: false };
        mad_of(&RxPacket { bytes: &bytes, meta: &meta, segment: 0 }).map(|_| ())
    }

    const HERE: &str = "10.0.0.2:4791";

    #[test]
    fn a_datagram_is_taken_only_from_a_packet_that_is_right_in_everything() {
        assert_eq!(taken(HERE, |_| {}, 256), Ok(()));
        assert_eq!(taken(HERE, |h| h.bth.pkey = Pkey(0x7FFF), 256), Ok(()), "limited member");
        let deth = |qkey, src| move |h: &mut Headers| h.deth = Some(Deth::new(qkey, src));
        for (result, reason) in [
            (taken(HERE, |_| {}, 252), DropReason::Length),
            (taken(HERE, |_| {}, 260), DropReason::Length),
            (taken(HERE, |_| {}, 0), DropReason::Length),
            (taken(HERE, |h| h.bth.pkey = Pkey(0x8001), 256), DropReason::Pkey),
            (taken(HERE, deth(Qkey(0x8001_0001), Qpn::GSI), 256), DropReason::Qkey),
            (taken(HERE, deth(GSI_QKEY, Qpn::new(2)), 256), DropReason::WrongSource),
            (taken("239.1.2.3:4791", |_| {}, 256), DropReason::NotAttached),
            (taken(HERE, |h| h.bth.opcode = Opcode::RC_SEND_ONLY, 256), DropReason::WrongService),
            (taken(HERE, with_imm, 256), DropReason::WrongService),
        ] {
            assert_eq!(result, Err(reason));
        }
    }

    fn with_imm(headers: &mut Headers) {
        headers.bth.opcode = Opcode::UD_SEND_ONLY_IMM;
        headers.imm = Some(ImmDt(1));
    }

    #[test]
    fn what_is_written_is_what_is_taken() {
        let mut gsi = Gsi::default();
        let mad = std::array::from_fn(|i| i as u8);
        let mut room = [0; 300];
        for psn in 0..2 {
            let len = gsi.write(&mad, &mut room);
            let parsed = Packet::parse(&room[..len]).unwrap();
            assert_eq!((parsed.payload(), parsed.psn()), (&mad[..], Psn::new(psn)));
            assert_eq!((parsed.dest_qpn(), len), (Qpn::GSI, 276));
            let deth = parsed.deth().unwrap();
            assert_eq!((deth.qkey, deth.src_qpn), (GSI_QKEY, Qpn::GSI));
        }
    }
}

//! Packets that carry a management datagram: LRH, GRH if there is one, BTH, DETH, 256 bytes, ICRC
//! (IBTA 13.4.2, 13.5.3).
//!
//! Owns the way from such a packet to its datagram and back. The agents' side of a subnet calls it,
//! and so do owners that bring datagrams of their clients to it.

mod port;

use vernic_wire::mad::MAD_LEN;
use vernic_wire::{
    Bth, Deth, Grh, LinkPacket, Lrh, Opcode, Pkey, Psn, Qkey, Qpn, VirtualLane, icrc, link_packet,
    vcrc,
};

/// The Q_Key of queue pair 1 (IBTA 10.2.5).
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// What surrounds a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Whether the packet goes by the lane of management.
    pub is_management: bool,
    /// The service level.
    pub service_level: u8,
    /// The source LID.
    pub slid: u16,
    /// The destination LID.
    pub dlid: u16,
    /// The global route header, if there is one.
    pub grh: Option<Grh>,
    /// The partition key.
    pub pkey: Pkey,
    /// The queue pair that sent it.
    pub source: Qpn,
    /// The queue pair that it is for.
    pub destination: Qpn,
    /// The queue key.
    pub qkey: Qkey,
}

impl Envelope {
    /// Makes the envelope of a packet of subnet management.
    pub const fn of_smp(slid: u16, dlid: u16, service_level: u8) -> Self {
        Self {
            is_management: true,
            service_level,
            slid,
            dlid,
            grh: None,
            pkey: Pkey::DEFAULT,
            source: Qpn::SMI,
            destination: Qpn::SMI,
            qkey: Qkey(0),
        }
    }
    /// Makes the envelope of an answer, which goes back where the packet came from.
    pub fn answer(&self) -> Self {
        let grh =
            self.grh.map(|grh| Grh { sgid: grh.dgid, dgid: grh.sgid, hop_limit: 0xFF, ..grh });
        let qkey = if self.destination == Qpn::GSI { GSI_QKEY } else { self.qkey };
        Self {
            slid: self.dlid,
            dlid: self.slid,
            grh,
            source: self.destination,
            destination: self.source,
            qkey,
            ..*self
        }
    }
    /// Reads a packet, LRH to VCRC, that the link layer has checked. `None` if it carries no
    /// datagram, or its ICRC is wrong.
    pub fn open(packet: &[u8]) -> Option<(Self, [u8; MAD_LEN])> {
        let packet = LinkPacket::parse(packet).ok().filter(LinkPacket::has_right_icrc)?;
        let (lrh, transport) = (packet.lrh(), packet.transport()?);
        let bth = Bth::parse(transport).ok()?;
        let deth = Deth::parse(transport.get(Bth::LEN..)?).ok()?;
        let mad = transport.get(Bth::LEN + Deth::LEN..)?.try_into().ok()?;
        let envelope = Self {
            is_management: packet.virtual_lane().is_management(),
            service_level: lrh.service_level,
            slid: lrh.slid,
            dlid: lrh.dlid,
            grh: packet.grh(),
            pkey: bth.pkey,
            source: deth.src_qpn,
            destination: bth.dest_qpn,
            qkey: deth.qkey,
        };
        (bth.opcode == Opcode::UD_SEND_ONLY).then_some((envelope, mad))
    }
    /// Writes the packet with a datagram, LRH to VCRC, to `out` alone.
    pub fn seal(&self, psn: Psn, mad: &[u8; MAD_LEN], out: &mut Vec<u8>) {
        let lane = if self.is_management { VirtualLane::MANAGEMENT.value() } else { 0 };
        let grh_len = if self.grh.is_some() { Grh::LEN } else { 0 };
        let transport_at = Lrh::LEN + grh_len;
        let mad_at = transport_at + Bth::LEN + Deth::LEN;
        out.clear();
        out.resize(mad_at + MAD_LEN + icrc::LEN + vcrc::LEN, 0);
        let next_header = if self.grh.is_some() { Lrh::NEXT_GRH } else { Lrh::NEXT_BTH };
        let lrh = Lrh {
            virtual_lane: lane,
            service_level: self.service_level,
            next_header,
            dlid: self.dlid,
            slid: self.slid,
            ..Lrh::default()
        };
        lrh.emit(out);
        if let Some(grh) = self.grh {
            grh.emit(&mut out[Lrh::LEN..]);
        }
        let bth = Bth { pkey: self.pkey, ..Bth::new(Opcode::UD_SEND_ONLY, self.destination, psn) };
        bth.emit(&mut out[transport_at..]);
        Deth::new(self.qkey, self.source).emit(&mut out[transport_at + Bth::LEN..]);
        out[mad_at..][..MAD_LEN].copy_from_slice(mad);
        // The length is that of a packet, whatever the fields are.
        let finished = link_packet::finish(out);
        debug_assert!(finished.is_ok(), "{finished:?}");
    }
}

#[cfg(test)]
mod tests {
    use vernic_wire::Gid;

    use super::*;

    fn envelope(grh: Option<Grh>) -> Envelope {
        Envelope {
            is_management: false,
            service_level: 3,
            slid: 7,
            dlid: 9,
            grh,
            pkey: Pkey(0x8001),
            source: Qpn::new(77),
            destination: Qpn::GSI,
            qkey: GSI_QKEY,
        }
    }

    #[test]
    fn what_is_sealed_is_opened() {
        let grh = Grh {
            version: 6,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 1,
            next_header: Grh::NEXT_HEADER_IBA,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            payload_length: (Bth::LEN + Deth::LEN + MAD_LEN + icrc::LEN) as u16,
        };
        let (mad, mut out) = (core::array::from_fn(|at| at as u8), Vec::new());
        for envelope in [Envelope::of_smp(0xFFFF, 0xFFFF, 0), envelope(None), envelope(Some(grh))] {
            envelope.seal(Psn::new(1), &mad, &mut out);
            let (opened, read) = Envelope::open(&out).unwrap();
            assert_eq!(read, mad);
            assert_eq!(opened, envelope);
        }
        let last = out.len() - 10;
        out[last] ^= 1;
        vcrc::stamp(&mut out);
        assert_eq!(Envelope::open(&out), None, "the ICRC is wrong");
    }

    #[test]
    fn an_answer_goes_back() {
        let answer = envelope(None).answer();
        assert_eq!((answer.slid, answer.dlid, answer.service_level), (9, 7, 3));
        assert_eq!((answer.source, answer.destination), (Qpn::GSI, Qpn::new(77)));
        assert_eq!(answer.answer(), envelope(None));
    }
}

//! What was sent, and what must arrive.

use std::collections::BTreeMap;

use vernic_wire::{Bth, LinkPacket, Lrh, Opcode, Pkey, Psn, Qpn, link_packet};

/// What a test packet says of itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Flow {
    pub source: u16,
    pub destination: u16,
    pub service_level: u8,
}

/// Counts, and the next number of each flow.
#[derive(Default, Debug)]
pub struct Oracle {
    /// Packets that ports took to be sent.
    pub sent: u64,
    /// Packets that ports refused and counted.
    pub refused: u64,
    /// Packets that arrived at a host.
    pub delivered: u64,
    /// Packets that were on a cable when it was pulled, or met no cable.
    pub lost_on_cables: u64,
    /// Whether each number must follow the one before, or may leave some out.
    pub lossy: bool,
    next: BTreeMap<(Flow, u16), u64>,
    /// Packets that arrived, by flow.
    pub by_flow: BTreeMap<Flow, u64>,
}

/// Bytes of payload that number a packet.
const NUMBER: usize = 8;

/// Makes a packet, LRH to ICRC, with so many bytes of payload, at least 8, and a number in it.
pub fn packet(flow: Flow, lane: u8, number: u64, payload: usize) -> Vec<u8> {
    let payload = payload.max(NUMBER).next_multiple_of(4);
    let mut bytes = vec![0; Lrh::LEN + Bth::LEN + payload + 4 + 2];
    let lrh = Lrh {
        virtual_lane: lane,
        service_level: flow.service_level,
        next_header: Lrh::NEXT_BTH,
        dlid: flow.destination,
        slid: flow.source,
        ..Lrh::default()
    };
    lrh.emit(&mut bytes);
    let mut bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(5), Psn::new(number as u32));
    bth.pkey = Pkey::DEFAULT;
    bth.emit(&mut bytes[Lrh::LEN..]);
    bytes[Lrh::LEN + Bth::LEN..][..NUMBER].copy_from_slice(&number.to_be_bytes());
    link_packet::finish(&mut bytes).expect("a packet of a right length");
    bytes.truncate(bytes.len() - 2);
    bytes
}

impl Oracle {
    /// Checks a packet that arrived at the host with such a LID.
    pub fn deliver(&mut self, host: u16, bytes: &[u8]) {
        let packet = LinkPacket::parse(bytes).expect("what arrives is whole");
        assert!(packet.has_right_icrc());
        let lrh = packet.lrh();
        let flow =
            Flow { source: lrh.slid, destination: lrh.dlid, service_level: lrh.service_level };
        if flow.source == 0 {
            // Of a liar: nothing is known of it.
            return;
        }
        if flow.destination < 0xC000 {
            assert_eq!(flow.destination, host, "a packet for another host");
        }
        let number = &bytes[Lrh::LEN + Bth::LEN..][..NUMBER];
        let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        let next = self.next.entry((flow, host)).or_default();
        let in_order = if self.lossy { number >= *next } else { number == *next };
        assert!(in_order, "{flow:?} at {host}: {number}, and {next} was next");
        *next = number + 1;
        self.delivered += 1;
        *self.by_flow.entry(flow).or_default() += 1;
    }
}

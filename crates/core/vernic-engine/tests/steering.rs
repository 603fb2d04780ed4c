//! Engines that share port 4791: to which of them a flow is steered.
//!
//! Another host is played by a link at an address of its own, which sends any packet.

mod common;

use std::net::IpAddr;
use std::time::Instant;

use common::*;
use vernic_engine::*;
use vernic_io::{Link, Nanos, RxBatch, SlotTable, TxBatch, UdpConfig, UdpLink, udp};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 9));
const FIRST: u32 = 0x1000;
const RC_SEND_ONLY: u8 = 0x04;
/// Flows of the peer: the kernel spreads them over the two engines.
const FLOWS: u16 = 16;
/// Packets of each flow, more than it takes to be steered.
const PACKETS: u32 = 12;

/// What may be wrong with a packet.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    Icrc,
    UnknownQpn,
    /// A packet that was taken long ago, as anybody may guess one.
    OldPsn,
}

struct Peer {
    link: UdpLink,
    tx: TxBatch,
    rx: RxBatch,
}

impl Peer {
    fn open() -> Self {
        let slots = SlotTable::with_scope(&format!("vs{}", std::process::id())).unwrap();
        let mut link = UdpLink::open(UdpConfig::default(), slots);
        link.activate(PEER.into()).unwrap();
        let tx = TxBatch::new(&link.limits());
        Self { link, tx, rx: RxBatch::new() }
    }

    fn send(&mut self, flow: u16, qpn: Qpn, psn: u32, flaw: Flaw) {
        let qpn = qpn.value() ^ u32::from(flaw == Flaw::UnknownQpn) << 13;
        let psn = if flaw == Flaw::OldPsn { FIRST - 0x100 } else { psn };
        let [_, qpn @ ..] = qpn.to_be_bytes();
        let [_, psn @ ..] = psn.to_be_bytes();
        let bth = [&[RC_SEND_ONLY, 0, 0xFF, 0xFF, 0][..], &qpn, &[0x80], &psn].concat();
        self.tx.room().unwrap()[..12].copy_from_slice(&bth);
        let path = udp::path(PEER, (HERE, vernic_io::ROCE_PORT).into()).with_flow(flow);
        self.tx.push(&path, bth.len());
        self.link.stamp(&mut self.tx);
        if flaw == Flaw::Icrc {
            self.tx.packet_mut(0).unwrap()[14] ^= 1;
        }
        assert_eq!(self.link.send(Nanos(1), &mut self.tx).packets, 1);
        // What comes back is of no interest.
        while self.link.recv(Nanos(1), &mut self.rx) != 0 {}
    }
}

fn drops(end: &End, reasons: &[DropReason]) -> u64 {
    let counters = end.context.counters();
    let drops = counters.drops.iter().filter(|(reason, _)| reasons.contains(reason));
    drops.map(|(_, count)| count).sum::<u64>() + counters.duplicates
}

#[test]
fn a_flow_is_steered_to_the_engine_that_accepts_its_packets_and_by_no_others() {
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    let ends = [(); 2].map(|()| End::with(config.clone()));
    let qps = ends.each_ref().map(|end| end.qp(Service::Rc));
    let mut peer = Peer::open();
    for (end, qp) in ends.iter().zip(&qps) {
        let psn = Psn::new(FIRST);
        connect_with_psn(end, qp, Gid::from_ip(PEER), Qpn::new(77), Setup::default(), psn);
        for wr_id in 0..u64::from(PACKETS) * u64::from(FLOWS) {
            qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
        }
    }
    let link = |of: fn(&vernic_io::LinkCounters) -> u64| -> u64 {
        ends.iter().map(|end| of(&end.context.counters().link)).sum()
    };

    // From the very addresses and ports that the peer sends from.
    let reasons = [DropReason::Icrc, DropReason::UnknownQpn];
    let dropped = || ends.iter().map(|end| drops(end, &reasons)).sum::<u64>();
    let (mut sent, begin) = (0, Instant::now());
    for flaw in [Flaw::Icrc, Flaw::UnknownQpn, Flaw::OldPsn] {
        for flow in 0..FLOWS {
            for _ in 0..PACKETS {
                qps.iter().for_each(|qp| peer.send(flow, qp.qpn(), FIRST, flaw));
                sent += 2;
                while dropped() < sent {
                    std::thread::sleep(std::time::Duration::from_micros(100));
                    assert!(begin.elapsed() < PATIENCE, "{} of {sent}", dropped());
                }
            }
        }
    }
    assert!(link(|of| of.taken_over) > 0, "the kernel brings all to whom they are for");
    assert_eq!(link(|of| of.steered_flows), 0, "by packets that anybody may send");

    for (end, qp) in ends.iter().zip(&qps) {
        for flow in 0..FLOWS {
            for n in 0..PACKETS {
                peer.send(flow, qp.qpn(), FIRST + u32::from(flow) * PACKETS + n, Flaw::None);
                let got = end.wait(1);
                assert_eq!(got[0].status, WcStatus::Success);
            }
        }
    }
    assert!(link(|of| of.steered_flows) > 0, "by packets that the peer has sent");
    assert_eq!(link(|of| of.hand_over_drops + of.hand_over_rejects), 0);
}

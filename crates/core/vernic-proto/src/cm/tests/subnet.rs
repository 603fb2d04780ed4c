//! Connections within an InfiniBand subnet: messages have LIDs alone, and requests say the rest.

use vernic_wire::cm::{CmaHeader, Dreq};
use vernic_wire::{Lid, PortNum};

use super::*;
use crate::cm::LidPath;

const A: Lid = Lid(0x10);
const B: Lid = Lid(0x20);
const PORT_B: Gid = Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2]);
const PORT_A: Gid = Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);

fn lids(local: Lid, remote: Lid, lmc: u8) -> LidPath {
    LidPath { port: PortNum(1), local, remote, service_level: 3, lmc, is_global: false, rate: 7 }
}

/// The path by which a message without a GRH comes.
fn arrival(at: Lid, from: Lid, lmc: u8) -> CmPath {
    let bare = |lid: Lid| {
        let mut gid = Gid::ZERO;
        gid.0[..2].copy_from_slice(&[0xFE, 0x80]);
        gid.0[14..].copy_from_slice(&lid.value().to_be_bytes());
        gid
    };
    CmPath { lids: Some(lids(at, from, lmc)), ..CmPath::new(bare(at), bare(from)) }
}

/// Two ends in one subnet, with this LMC: A has asked for a connection to an IP address of B.
struct Subnet {
    a: Cm,
    b: Cm,
    lmc: u8,
}

impl Subnet {
    fn new(lmc: u8) -> Self {
        Self { a: Cm::new(config(1)), b: Cm::new(config(2)), lmc }
    }
    fn connect(&mut self, to: [u8; 4]) -> ConnId {
        let mut data = [0; CmaHeader::LEN];
        CmaHeader::new(1, [10, 0, 0, 1].into(), to.into()).emit(&mut data);
        let path = CmPath {
            lids: Some(lids(A, B, self.lmc)),
            pkey: Pkey(0x8001),
            hop_limit: 0,
            ..CmPath::new(PORT_A, PORT_B)
        };
        let pkey = Pkey(0x8001);
        let params = ConnectParams { path, pkey, private_data: &data, ..params(PORT_A, PORT_B) };
        self.a.connect(Time(0), &params).unwrap()
    }
    /// Carries all messages there are from one end to the other.
    fn carry(&mut self, to_b: bool) {
        let (from, to, ends) = match to_b {
            true => (&mut self.a, &mut self.b, (B, A)),
            false => (&mut self.b, &mut self.a, (A, B)),
        };
        while let Some(out) = from.poll_transmit() {
            let lids = out.path.lids.unwrap();
            assert_eq!((lids.remote, lids.local), ends);
            to.handle_mad(Time(0), arrival(ends.0, ends.1, self.lmc), &out.mad).unwrap();
        }
    }
}

#[test]
fn a_request_says_where_packets_go_and_answers_go_back_as_it_came() {
    let mut net = Subnet::new(0);
    net.b.listen(SERVICE, None, 1).unwrap();
    net.connect([10, 0, 0, 2]);
    net.carry(true);
    let asked = net.b.poll_event().unwrap();
    let EventKind::Request { path, req, .. } = asked.kind else { panic!("{asked:?}") };
    assert_eq!((path.local, path.remote, path.pkey), (PORT_B, PORT_A, Pkey(0x8001)));
    assert_eq!(path.lids, Some(lids(B, A, 0)));
    assert!(req.primary.subnet_local && req.primary.sl == 3 && req.primary.packet_rate == 7);
    net.b.accept(Time(0), asked.conn, &accept_params(PORT_B)).unwrap();
    net.carry(false);
    let answered = net.a.poll_event().unwrap();
    assert!(matches!(answered.kind, EventKind::Reply { .. }), "{answered:?}");
    net.a.ready_to_use(answered.conn, b"").unwrap();
    net.carry(true);
    assert!(matches!(net.b.poll_event().unwrap().kind, EventKind::Established { .. }));
}

#[test]
fn a_request_is_for_the_ip_address_that_it_names() {
    for (to, is_own) in [([10, 0, 0, 2], true), ([10, 0, 0, 3], false)] {
        let mut net = Subnet::new(0);
        let at = net.b.listen(SERVICE, Some(gid(2)), 1).unwrap();
        let all = net.b.listen(SERVICE, None, 1).unwrap();
        net.connect(to);
        net.carry(true);
        let EventKind::Request { listener, .. } = net.b.poll_event().unwrap().kind else {
            panic!("a request")
        };
        assert_eq!(listener, if is_own { at } else { all });
    }
    // A service that is none of rdma_cm's has no such header.
    assert_eq!(arrival(B, A, 0).called(ServiceId(7), &[0; 92]), arrival(B, A, 0).local);
}

#[test]
fn a_port_is_the_same_peer_by_each_of_its_lids() {
    for (lmc, from, expected) in [
        (0, B, Ok(())),
        (0, Lid(B.value() + 1), Err(CmDrop::WrongPath)),
        (1, Lid(B.value() + 1), Ok(())),
        (1, Lid(B.value() + 2), Err(CmDrop::WrongPath)),
    ] {
        let mut net = Subnet::new(lmc);
        net.b.listen(SERVICE, None, 1).unwrap();
        net.connect([10, 0, 0, 2]);
        net.carry(true);
        let asked = net.b.poll_event().unwrap();
        net.b.accept(Time(0), asked.conn, &accept_params(PORT_B)).unwrap();
        let rep = net.b.poll_transmit().unwrap().mad;
        let taken = net.a.handle_mad(Time(0), arrival(A, from, lmc), &rep);
        assert_eq!(taken, expected, "LMC {lmc}, from {from}");
    }
}

#[test]
fn a_message_with_both_ids_is_taken_from_a_port_that_got_another_lid() {
    let mut net = Subnet::new(0);
    net.b.listen(SERVICE, None, 1).unwrap();
    let conn = net.connect([10, 0, 0, 2]);
    net.carry(true);
    let asked = net.b.poll_event().unwrap();
    net.b.accept(Time(0), asked.conn, &accept_params(PORT_B)).unwrap();
    let moved = arrival(B, Lid(0x30), 0);
    let dreq = |local_comm_id| Dreq {
        local_comm_id,
        remote_comm_id: asked.conn.0,
        remote_qpn: Qpn::new(0x22),
        ..Dreq::default()
    };
    let other = mad(dreq(vernic_wire::cm::CommId(conn.0.value() ^ 1)));
    assert_eq!(net.b.handle_mad(Time(0), moved, &other), Err(CmDrop::WrongPath));
    assert_eq!(net.b.handle_mad(Time(0), moved, &mad(dreq(conn.0))), Ok(()));
}

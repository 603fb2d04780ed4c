//! A stranger of this host, with a socket of UDP and no privilege: what its management datagrams do
//! to the connections of others.

mod common;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use common::cm::*;
use common::*;
use vernic_engine::*;
use vernic_proto::cm::{AcceptParams, CmPath, ConnId, ConnectParams, EventKind};
use vernic_wire::cm::{
    CmMessage, CommId, FailoverAccepted, GSI_QKEY, Rej, RejReason, RejectedMessage, Req,
};
use vernic_wire::icrc::IcrcFlow;
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Bth, Deth, Headers, Opcode};

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ROCE_PORT: u16 = 4791;

/// Somebody who has the address of the peer, as all users of its host have.
struct Stranger(UdpSocket);

impl Stranger {
    fn new() -> Self {
        Self(UdpSocket::bind((HOME, 0)).unwrap())
    }

    /// Says something to QP1.
    fn say(&self, message: impl Into<CmMessage>) {
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)));
        headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
        let mut mad = [0; MAD_LEN];
        message.into().emit(7, &mut mad);
        self.send(&headers, &mad);
    }

    /// Has all that is sent from now on carry the mark CE, as a router with a long queue would.
    fn mark(&self) {
        let (fd, class) = (self.0.as_raw_fd(), 3_i32);
        let (level, name, len) = (libc::IPPROTO_IP, libc::IP_TOS, size_of_val(&class));
        // SAFETY: the value is an integer of that length, and lives as long as the call.
        let set =
            unsafe { libc::setsockopt(fd, level, name, (&raw const class).cast(), len as u32) };
        assert_eq!(set, 0);
    }

    fn send(&self, headers: &Headers, payload: &[u8]) {
        let mut packet = vec![0; headers.len() + payload.len() + 4];
        let start = headers.emit(&mut packet);
        packet[start..start + payload.len()].copy_from_slice(payload);
        let from = self.0.local_addr().unwrap().port();
        // Linux has Identification 0 in datagrams of sockets that are not connected.
        IcrcFlow::new(HOME, HOME, from, ROCE_PORT).stamp(0, &mut packet);
        self.0.send_to(&packet, (HOME, ROCE_PORT)).unwrap();
    }
}

/// Two devices with a connection that is up.
struct Connection {
    client: (Node, End, std::sync::Arc<Qp>, ConnId),
    server: (Node, End, std::sync::Arc<Qp>, ConnId),
    /// What the client asked.
    req: Req,
}

impl Connection {
    fn new(number: u16) -> Self {
        let setup = Setup { timeout: AckTimeout::new(17), retry_cnt: 7, ..Setup::default() };
        let [(client, a, a_qp), (server, b, b_qp)] = [0, 1].map(|_| {
            let node = Node::new();
            let end = End::on(node.context.clone(), None);
            let qp = end.qp(Service::Rc);
            (node, end, qp)
        });
        let (home, service) = (Gid::from_ip(HOME), port(number));
        server.listen(service, server.everywhere());
        let asks = params(CmPath::new(home, home), service, b"");
        let asks = ConnectParams { local_qpn: a_qp.qpn(), ..asks };
        let asking = client.cm().connect(&asks).unwrap();
        let (asked, _, _, req) = server.request();
        connect(&b, &b_qp, a.gid().1, a_qp.qpn(), setup);
        let accept = AcceptParams {
            local_qpn: b_qp.qpn(),
            starting_psn: Psn::new(2),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            target_ack_delay: 5,
            failover: FailoverAccepted::NOT_SUPPORTED,
            local_ca_guid: 2,
            private_data: b"",
        };
        server.cm().accept(asked, &accept).unwrap();
        let reply = client.next();
        assert!(matches!(reply.kind, EventKind::Reply { .. }), "{reply:?}");
        connect(&a, &a_qp, b.gid().1, b_qp.qpn(), setup);
        client.cm().ready_to_use(asking, b"").unwrap();
        let up = server.next();
        assert!(matches!(up.kind, EventKind::Established { .. }), "{up:?}");
        let req = *req;
        Self { client: (client, a, a_qp, asking), server: (server, b, b_qp, asked), req }
    }

    /// The client sends a message.
    fn send(&self) {
        let ((_, a, a_qp, _), (_, b, b_qp, _)) = (&self.client, &self.server);
        b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[b.sge(0, 64)] }]).unwrap();
        a_qp.post_send(&[wr(2, SendOp::Send, &[a.sge(0, 8)])]).unwrap();
        assert_eq!(a.wait(1)[0].status, WcStatus::Success);
        assert_eq!(b.wait(1)[0].status, WcStatus::Success);
    }

    /// Waits until one of the counters of the server's machine is there.
    fn counts(&self, what: &str, count: u64) {
        let start = Instant::now();
        loop {
            let counters = self.server.0.context.counters().cm;
            if counters.iter().any(|(name, value)| name == what && value >= count) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {counters:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_stranger_who_knows_one_id_does_not_end_a_connection() {
    let connection = Connection::new(31_001);
    let stranger = Stranger::new();
    let (theirs, ours) = (connection.req.local_comm_id, connection.server.3.0);
    let message = RejectedMessage::OTHER;
    for reason in [RejReason::TIMEOUT, RejReason::CONSUMER, RejReason::STALE_CONNECTION] {
        let rej = Rej { message, reason, ..Rej::default() };
        stranger.say(Rej { remote_comm_id: ours, ..rej });
        stranger.say(Rej { remote_comm_id: ours, local_comm_id: CommId(1), ..rej });
        stranger.say(Rej { local_comm_id: theirs, ..rej });
    }
    // Those without our id may reach the client's machine, which does not know them.
    connection.counts("cm_drop_wrong_instance", 6);
    assert_eq!(connection.server.0.peek(), None);
    connection.send();
    // What has both is still believed.
    let both = Rej { remote_comm_id: ours, local_comm_id: theirs, message, ..Rej::default() };
    stranger.say(Rej { reason: RejReason::CONSUMER, ..both });
    assert_eq!(connection.server.0.next().kind, EventKind::Disconnected);
}

#[test]
fn a_stranger_who_names_a_queue_pair_does_not_end_its_connection_while_that_is_used() {
    let connection = Connection::new(31_002);
    let stranger = Stranger::new();
    let again = |id| Req { local_comm_id: CommId(id), ..connection.req };
    connection.send();
    stranger.say(again(77));
    connection.counts("cm_stale_but_heard", 1);
    // It is looked at again after 4 s, and then it was heard once more.
    for _ in 0..50 {
        connection.send();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(connection.server.0.peek(), None);
    assert_eq!(connection.server.0.cm().occupancy().live, 1);
    // Of a peer that is silent from now on it is true.
    stranger.say(again(78));
    connection.counts("cm_stale_but_heard", 2);
    assert_eq!(connection.client.0.next().conn, connection.client.3, "a DREQ came");
}

#[test]
fn congestion_notifications_reach_the_queue_pair_that_they_name_and_are_counted() {
    let node = Node::new();
    let end = End::on(node.context.clone(), None);
    let qp = end.qp(Service::Ud);
    bring_up_ud(&qp, Qkey(1));
    let stranger = Stranger::new();
    let start = Instant::now();
    for (sent, qpn) in [(1, qp.qpn()), (2, Qpn::new(qp.qpn().value() ^ 1))] {
        stranger.send(&Headers::new(Bth::new(Opcode::CNP, qpn, Psn::new(0))), &[0; 16]);
        while node.context.counters().cnps_received < sent {
            assert!(start.elapsed() < PATIENCE, "{:?}", node.context.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(qp.counters().cnps_received, 1);
    let drops = node.context.counters().drops;
    assert!(drops.contains(&(DropReason::Cnp, 2)), "{drops:?}");
}

#[test]
fn a_mark_on_a_packet_of_uc_has_a_notification_sent() {
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    let end = End::with(config);
    let qp = end.qp(Service::Uc);
    let (nobody, psn) = (Qpn::new(qp.qpn().value() ^ 1), Psn::new(5));
    connect_with_psn(&end, &qp, end.gid().1, nobody, Setup::default(), psn);
    qp.post_recv(&[1, 2].map(|wr_id| RecvWr { wr_id, sges: &[] })).unwrap();
    let packet = |psn| Headers::new(Bth::new(Opcode::UC_SEND_ONLY, qp.qpn(), psn));
    let sent = || (qp.counters().cnps_sent, end.context.counters().cnps_sent);
    let stranger = Stranger::new();
    stranger.send(&packet(psn), &[]);
    end.wait(1);
    assert_eq!(sent(), (0, 0), "nothing is told of what has no mark");
    stranger.mark();
    stranger.send(&packet(Psn::new(6)), &[]);
    end.wait(1);
    let start = Instant::now();
    while sent() != (1, 1) {
        assert!(start.elapsed() < PATIENCE, "{}", end.context.counters());
        end.context.progress();
    }
    assert_eq!(end.context.counters().ecn_marked_received, 1);
}

//! Datagrams of no sense, against connections in every state: nothing panics, tables stay bounded
//! and consistent, what is sent parses, and in the end everything goes away. Seeded; the seed is in
//! the message of a failure.

use std::collections::BTreeSet;

use vernic_wire::cm::{
    AckedMessage, Apr, CmService, CommId, Drep, Dreq, Info, Lap, Mra, Rej, RejectedMessage, Rep,
    Req, Rtu, SidrRep, SidrReq, SidrStatus,
};

use super::super::state::State;
use super::super::{Datagram, Heard, SidrReply};
use super::random::Random;
use super::*;

const SEEDS: u64 = if cfg!(miri) { 2 } else { 300 };
const STEPS: u32 = if cfg!(miri) { 150 } else { 1500 };
const MAX_HALF_OPEN: usize = 6;
const MAX_CONNECTIONS: usize = 16;
const MAX_TIMEWAIT: usize = 8;

struct Victim {
    cm: Cm,
    now: Time,
    random: Random,
    conns: Vec<ConnId>,
    /// Ids that peers have used, ours and the same as the peers see them.
    ids: Vec<CommId>,
    /// What it sent, turned round, to be thrown back.
    sent: Vec<(CmPath, Mad)>,
    /// States that connections were in.
    states: BTreeSet<&'static str>,
}

impl Victim {
    fn new(seed: u64) -> Self {
        let mut cm = Cm::new(CmConfig {
            max_half_open: MAX_HALF_OPEN,
            max_connections: MAX_CONNECTIONS,
            max_timewait: MAX_TIMEWAIT,
            ..config(seed.into())
        });
        cm.listen(SERVICE, None, 4).unwrap();
        cm.listen(DATAGRAM_SERVICE, Some(gid(1)), 4).unwrap();
        let ids = vec![CommId::NONE, CommId(1), CommId(2)];
        let (conns, sent, states) = Default::default();
        Self { cm, now: Time(0), random: Random::new(seed), conns, ids, sent, states }
    }

    fn path(&mut self) -> CmPath {
        let (local, remote) = (self.random.one_of(&[1, 1, 1, 5]), self.random.one_of(&[2, 2, 3]));
        CmPath::new(gid(local), gid(remote))
    }
    fn id(&mut self) -> CommId {
        self.random.one_of(&self.ids)
    }
    fn qpn(&mut self) -> Qpn {
        Qpn::new(self.random.below(6) as u32)
    }

    /// What the queue pairs hear of their peers.
    fn heard(&mut self) -> Option<Heard> {
        let before = self.random.one_of(&[0, 10, 1_000, 100_000]) * MS;
        let patience = self.random.one_of(&[0, 500 * MS, u64::MAX]);
        let at = Time(self.now.0.saturating_sub(before));
        self.random.percent(70).then_some(Heard { at, patience })
    }

    fn req(&mut self, path: CmPath) -> Req {
        let r = &mut self.random;
        let mut req = Req {
            local_ca_guid: r.below(3),
            responder_resources: r.next() as u8,
            remote_response_timeout: r.below(32) as u8,
            transport: CmService(r.one_of(&[0, 0, 0, 1, 2, 3])),
            local_response_timeout: r.below(32) as u8,
            path_mtu: r.one_of(&[1, 3, 5, 5, 5, 9]),
            max_cm_retries: r.below(16) as u8,
            ext_transport: r.below(2) as u8,
            service_id: r.one_of(&[SERVICE, SERVICE, DATAGRAM_SERVICE, ServiceId(9)]),
            ..Req::default()
        };
        (req.primary.local_gid, req.primary.remote_gid) = (path.remote, path.local);
        if r.percent(5) {
            req.primary.local_gid = Gid::ZERO;
        }
        req.primary.local_ack_timeout = AckTimeout::new(r.next() as u8);
        req.primary.hop_limit = r.next() as u8;
        req.alternate = r.one_of(&[req.alternate, req.primary]);
        (req.local_comm_id, req.local_qpn) = (self.id(), self.qpn());
        req
    }

    /// A message whose fields are near those that make sense.
    fn nonsense(&mut self, path: CmPath) -> CmMessage {
        let (mut local_comm_id, mut remote_comm_id) = (self.id(), self.id());
        let (mut qpn, byte) = (self.qpn(), self.random.next() as u8);
        if !self.conns.is_empty() && self.random.percent(40) {
            // What the peer of a connection would say.
            let ConnId(ours, _) = self.random.one_of(&self.conns);
            if let Some(conn) = self.cm.table.conn(ours) {
                (local_comm_id, remote_comm_id) = (conn.remote_id, ours);
                qpn = conn.local_qpn;
            }
        }
        match self.random.below(11) {
            0 => self.req(path).into(),
            1 => {
                let message = AckedMessage(byte & 3);
                let service_timeout = byte >> 3;
                let ids = Mra { local_comm_id, remote_comm_id, ..Mra::default() };
                Mra { message, service_timeout, ..ids }.into()
            }
            2 => {
                let (message, reason) = (RejectedMessage(byte & 3), RejReason(byte.into()));
                let info = Info { len: byte & 127, ..Info::NONE };
                let ids = Rej { local_comm_id, remote_comm_id, ..Rej::default() };
                Rej { message, reason, info, ..ids }.into()
            }
            3 => {
                let mut rep = Rep { local_comm_id, remote_comm_id, ..Rep::default() };
                (rep.local_ca_guid, rep.target_ack_delay) = (u64::from(byte % 3), byte >> 3);
                rep.set_qpn(qpn, byte & 4 != 0);
                rep.into()
            }
            4 => Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
            5 => {
                let ids = Dreq { local_comm_id, remote_comm_id, ..Dreq::default() };
                Dreq { remote_qpn: qpn, ..ids }.into()
            }
            6 => Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
            7 => {
                let service_id = self.random.one_of(&[SERVICE, DATAGRAM_SERVICE, ServiceId(9)]);
                SidrReq { request_id: local_comm_id, service_id, ..SidrReq::default() }.into()
            }
            8 => SidrRep { request_id: remote_comm_id, ..SidrRep::default() }.into(),
            9 => Lap { local_comm_id, remote_comm_id, ..Lap::default() }.into(),
            _ => Apr { local_comm_id, remote_comm_id, ..Apr::default() }.into(),
        }
    }

    fn attack(&mut self) {
        let path = self.path();
        let (path, mut mad) = match self.random.below(10) {
            0 if !self.sent.is_empty() => self.random.one_of(&self.sent),
            _ => (path, mad(self.nonsense(path))),
        };
        let mut len = mad.len();
        if self.random.percent(5) {
            mad[self.random.below(256) as usize] = self.random.next() as u8;
            len = self.random.one_of(&[0, 23, 24, 255, 256]);
        }
        let heard = self.heard();
        let _ = self.cm.handle_mad_with(self.now, path, &mad[..len], &|_| heard);
    }

    /// A command of an owner who does not care about states.
    fn command(&mut self) {
        let (now, path, qpn) = (self.now, CmPath::new(gid(1), gid(2)), self.qpn());
        let conn = match self.conns.is_empty() {
            true => ConnId(self.id(), 0),
            false => self.random.one_of(&self.conns),
        };
        let cm = &mut self.cm;
        let _ = match self.random.below(11) {
            0 => {
                let params = ConnectParams { local_qpn: qpn, ..params(path.local, path.remote) };
                cm.connect(now, &params).map(|conn| self.conns.push(conn))
            }
            1 => {
                let params = sidr_params(path.local, path.remote);
                cm.sidr_request(now, &params).map(|conn| self.conns.push(conn))
            }
            2 => cm.accept(now, conn, &AcceptParams { local_qpn: qpn, ..accept_params(gid(1)) }),
            3 => cm.ready_to_use(conn, b""),
            4 => cm.reject(now, conn, RejReason::CONSUMER, b"", b""),
            5 => cm.disconnect(now, conn, b""),
            6 => cm.notify_established(conn),
            7 => {
                let (status, qkey) = (SidrStatus::SUCCESS, Qkey(1));
                cm.sidr_reply(now, conn, &SidrReply { status, qpn, qkey, private_data: b"" })
            }
            8 => {
                cm.request_taken(conn);
                Ok(())
            }
            9 => {
                let listener = cm.listen(SERVICE, None, 4);
                listener.map(|listener| cm.stop_listening(listener))
            }
            _ => {
                cm.destroy(now, conn);
                Ok(())
            }
        };
    }

    fn collect(&mut self) {
        while let Some(Datagram { path, mad, .. }) = self.cm.poll_transmit() {
            CmMessage::parse(&mad).unwrap();
            self.sent.push((path, mad));
        }
        while let Some(event) = self.cm.poll_event() {
            self.conns.push(event.conn);
            self.ids.push(event.conn.0);
        }
        self.ids.extend(self.conns.last().map(|conn| conn.0));
        self.ids.drain(3..self.ids.len().saturating_sub(40).max(3));
        self.conns.drain(..self.conns.len().saturating_sub(30));
        self.sent.drain(..self.sent.len().saturating_sub(20));
        self.cm.table.assert_consistent();
        self.states.extend(self.cm.table.states().map(State::name));
        let occupancy = self.cm.occupancy();
        assert!(occupancy.half_open <= MAX_HALF_OPEN);
        assert!(occupancy.live <= MAX_CONNECTIONS);
        assert!(occupancy.timewait <= MAX_TIMEWAIT);
    }

    fn play(&mut self) {
        for _ in 0..STEPS {
            match self.random.below(10) {
                0..=6 => self.attack(),
                7 | 8 => self.command(),
                _ => {
                    let pause = self.random.one_of(&[0, 1, 100, 1_000, 10_000]);
                    self.now = self.now + pause * MS;
                    let heard = self.heard();
                    self.cm.handle_timeout_with(self.now, &|_| heard);
                }
            }
            self.collect();
        }
        // The owner lets everything go, and nobody answers.
        for id in self.cm.table.ids() {
            self.cm.destroy(self.now, self.cm.table.conn_id(id));
        }
        let mut turns = 0;
        while let Some(deadline) = self.cm.next_deadline() {
            turns += 1;
            assert!(turns < 10_000, "it never ends");
            self.now = self.now.max(deadline);
            self.cm.handle_timeout(self.now);
            self.collect();
        }
        let left = self.cm.occupancy();
        assert_eq!((left.live, left.half_open, left.timewait), (0, 0, 0));
    }
}

#[test]
fn nonsense_does_no_harm() {
    let (mut states, mut drops) = (BTreeSet::new(), [0; CmDrop::ALL.len()]);
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| {
            let mut victim = Victim::new(seed);
            victim.play();
            (victim.states, victim.cm.counters().dropped)
        });
        let Ok((seen, dropped)) = result else { panic!("seed {seed}") };
        states.extend(seen);
        drops.iter_mut().zip(dropped).for_each(|(sum, count)| *sum += count);
    }
    if !cfg!(miri) {
        let all = State::ALL.iter().map(|state| state.name()).collect();
        assert_eq!(states, all, "the states that were attacked");
        for drop in CmDrop::ALL.iter().filter(|drop| **drop != CmDrop::EventsFull) {
            assert!(drops[*drop as usize] > 0, "{drop} never happened");
        }
    }
}

#[test]
fn random_bytes_are_dropped_and_counted() {
    let mut random = Random::new(1);
    let mut cm = Cm::new(config(1));
    let path = CmPath::new(gid(1), gid(2));
    for len in (0..300).step_by(if cfg!(miri) { 50 } else { 1 }) {
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        assert_eq!(cm.handle_mad(Time(0), path, &bytes), Err(CmDrop::Malformed));
    }
    assert!(cm.counters().dropped[CmDrop::Malformed as usize] >= 6);
    assert!(cm.poll_transmit().is_none());
}

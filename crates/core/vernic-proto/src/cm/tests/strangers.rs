//! Messages of those who do not know both ids of a connection: they change nothing.

use vernic_wire::cm::{
    AckedMessage, Apr, CommId, Drep, Dreq, Lap, Mra, Rej, RejectedMessage, Rep, Req, Rtu, SidrRep,
    SidrReq,
};

use super::super::state::State;
use super::*;

/// What a message has in place of an id or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Right,
    Wrong,
    Absent,
}

impl Said {
    const ALL: [Self; 3] = [Self::Right, Self::Wrong, Self::Absent];

    fn id(self, right: CommId) -> CommId {
        match self {
            Self::Right => right,
            Self::Wrong => CommId(right.value() ^ 0x55),
            Self::Absent => CommId::NONE,
        }
    }
    fn qpn(self, right: Qpn) -> Qpn {
        match self {
            Self::Right => right,
            Self::Wrong => Qpn::new(right.value() ^ 0x40),
            Self::Absent => Qpn::new(0),
        }
    }
}

/// A message, and how much of it is right: our id, the peer's, the number of the queue pair.
struct Attempt {
    message: CmMessage,
    ours: Said,
    theirs: Said,
    qpn: Said,
}

/// A connection in a state, at A or at B.
struct Victim {
    t: Pair,
    at_a: bool,
    conn: ConnId,
    /// The peer's id; any, where it has not said one.
    theirs: CommId,
    /// Our queue pair, which a DREQ names.
    qpn: Qpn,
}

impl Victim {
    /// One in `state`, on the side that asked or on the one that was asked; `None` if the state is
    /// not met there.
    fn new(state: State, at_a: bool) -> Option<Self> {
        let mut t = Pair::new();
        let (a, b) = match state {
            State::Established | State::DreqSent | State::DreqRcvd | State::Timewait => {
                t.established()
            }
            _ => before(&mut t, state, at_a)?,
        };
        match (state, at_a) {
            (State::DreqSent, true) | (State::DreqRcvd, false) => {
                t.lose(&[CmAttribute::DREP]);
                t.a.cm.disconnect(t.now, a, b"").unwrap();
            }
            (State::DreqSent, false) | (State::DreqRcvd, true) => {
                t.b.cm.disconnect(t.now, b, b"").unwrap();
            }
            (State::Timewait, _) => {
                t.a.cm.disconnect(t.now, a, b"").unwrap();
                t.settle();
                t.b.cm.disconnect(t.now, b, b"").unwrap();
            }
            _ => {}
        }
        t.settle();
        t.a.events.clear();
        t.b.events.clear();
        let ((conn, peer), qpn) = if at_a { ((a, b), 0x11) } else { ((b, a), 0x22) };
        let victim = Self { t, at_a, conn, theirs: peer.0, qpn: Qpn::new(qpn) };
        (victim.state() == Some(state)).then_some(victim)
    }

    fn node(&self) -> &Node {
        if self.at_a { &self.t.a } else { &self.t.b }
    }
    fn state(&self) -> Option<State> {
        self.node().cm.table.entry(self.conn).map(|conn| conn.state)
    }
    fn take(&mut self, message: CmMessage) {
        let (now, mad) = (self.t.now, mad(message));
        let (node, path) = match self.at_a {
            true => (&mut self.t.a, CmPath::new(gid(1), gid(2))),
            false => (&mut self.t.b, CmPath::new(gid(2), gid(1))),
        };
        let _ = node.cm.handle_mad(now, path, &mad);
        node.cm.table.assert_consistent();
    }
    /// Everything about the connection that a message could change.
    fn snapshot(&self) -> String {
        format!("{:?}", self.node().cm.table.entry(self.conn))
    }
    fn has_events(&mut self) -> bool {
        let conn = self.conn;
        let node = if self.at_a { &mut self.t.a } else { &mut self.t.b };
        std::iter::from_fn(|| node.cm.poll_event()).any(|event| event.conn == conn)
    }
}

/// Both ends while the connection is being made; an id that no end has where there is none yet.
fn before(t: &mut Pair, state: State, at_a: bool) -> Option<(ConnId, ConnId)> {
    let nobody = ConnId(CommId(0x7777), 0);
    match (state, at_a) {
        (State::ReqSent, true) => t.lose(&[CmAttribute::REQ]),
        (State::RepSent, false) => t.lose(&[CmAttribute::REP]),
        _ => {}
    }
    let a = t.connect();
    match (state, at_a) {
        (State::ReqSent, true) => return Some((a, nobody)),
        (State::MraReqRcvd, true) | (State::MraReqSent, false) => {
            t.pass(300);
            return Some((a, t.b.expect_request()));
        }
        (State::ReqRcvd, false) => return Some((a, t.b.expect_request())),
        _ => {}
    }
    let b = t.accept();
    match (state, at_a) {
        (State::MraRepSent, true) | (State::MraRepRcvd, false) => t.pass(300),
        (State::RepRcvd, true) | (State::RepSent, false) => {}
        _ => return None,
    }
    Some((a, b))
}

/// Every message with every choice of ids and numbers.
fn attempts(victim: &Victim) -> Vec<Attempt> {
    let mut all = Vec::new();
    for (ours, theirs) in Said::ALL.into_iter().flat_map(|o| Said::ALL.map(|t| (o, t))) {
        let (remote_comm_id, local_comm_id) = (ours.id(victim.conn.0), theirs.id(victim.theirs));
        let mut add = |message: CmMessage, qpn| all.push(Attempt { message, ours, theirs, qpn });
        for message in [AckedMessage::REQ, AckedMessage::REP, AckedMessage::LAP] {
            let ids = Mra { local_comm_id, remote_comm_id, ..Mra::default() };
            add(Mra { message, service_timeout: 20, ..ids }.into(), Said::Right);
        }
        for reason in [
            RejReason::TIMEOUT,
            RejReason::STALE_CONNECTION,
            RejReason::CONSUMER,
            RejReason::INVALID_COMM_ID,
        ] {
            for message in [RejectedMessage::REQ, RejectedMessage::REP, RejectedMessage::OTHER] {
                let ids = Rej { local_comm_id, remote_comm_id, ..Rej::default() };
                add(Rej { message, reason, ..ids }.into(), Said::Right);
            }
        }
        add(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(), Said::Right);
        add(Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(), Said::Right);
        add(Lap { local_comm_id, remote_comm_id, ..Lap::default() }.into(), Said::Right);
        add(Apr { local_comm_id, remote_comm_id, ..Apr::default() }.into(), Said::Right);
        for qpn in Said::ALL {
            let remote_qpn = qpn.qpn(victim.qpn);
            let ids = Dreq { local_comm_id, remote_comm_id, ..Dreq::default() };
            add(Dreq { remote_qpn, ..ids }.into(), qpn);
        }
        // Of a queue pair that has no connection.
        let (qpn, local_ca_guid) = (Qpn::new(0x99), 9);
        let mut rep = Rep { local_comm_id, remote_comm_id, local_ca_guid, ..Rep::default() };
        rep.set_qpn(qpn, false);
        add(rep.into(), Said::Right);
        // These have one id only, which is not ours.
        let mut req = Req { local_comm_id, local_ca_guid, local_qpn: qpn, ..Req::default() };
        (req.service_id, req.path_mtu) = (SERVICE, 3);
        (req.primary.local_gid, req.primary.remote_gid) = (gid(1), gid(2));
        add(req.into(), Said::Wrong);
        let service_id = DATAGRAM_SERVICE;
        let sidr = SidrReq { request_id: local_comm_id, service_id, ..SidrReq::default() };
        add(sidr.into(), Said::Wrong);
        add(SidrRep { request_id: remote_comm_id, ..SidrRep::default() }.into(), Said::Wrong);
    }
    all
}

/// Whether the specification lets a message change a connection in this state though an id lacks.
fn may_lack_an_id(state: State, attempt: &Attempt) -> bool {
    let is_unknown = matches!(state, State::ReqSent | State::MraReqRcvd);
    // The peer has not said its id, or need not have heard ours.
    let gives_up = matches!(&attempt.message, CmMessage::Rej(rej)
        if rej.reason == RejReason::TIMEOUT && rej.message != RejectedMessage::REQ);
    let unheard =
        [State::ReqRcvd, State::MraReqSent, State::RepSent, State::MraRepRcvd].contains(&state);
    (is_unknown && attempt.ours == Said::Right)
        || (unheard && gives_up && (attempt.ours, attempt.theirs) == (Said::Absent, Said::Right))
}

#[test]
fn no_message_with_a_wrong_or_absent_id_changes_a_connection() {
    let (mut met, mut changed) = (Vec::new(), Vec::new());
    for (state, at_a) in State::ALL.into_iter().flat_map(|s| [(s, true), (s, false)]) {
        let Some(victim) = Victim::new(state, at_a) else { continue };
        met.push((state, at_a));
        for attempt in attempts(&victim) {
            let mut victim = Victim::new(state, at_a).unwrap();
            let before = victim.snapshot();
            victim.take(attempt.message);
            let is_same = victim.snapshot() == before && !victim.has_events();
            let Attempt { message, ours, theirs, qpn } = &attempt;
            let knows = [ours, theirs, qpn].into_iter().all(|said| *said == Said::Right);
            let place = if at_a { "A" } else { "B" };
            assert!(
                is_same || knows || may_lack_an_id(state, &attempt),
                "{} at {place}: {message}, our id {ours:?}, theirs {theirs:?}, number {qpn:?}",
                state.name()
            );
            if !is_same {
                changed.push((state, message.attribute()));
            }
        }
    }
    let of_connections = State::ALL.iter().filter(|state| !state.name().starts_with("SIDR"));
    for state in of_connections {
        assert!(met.iter().any(|(seen, _)| seen == state), "{} was not met", state.name());
    }
    for at_a in [true, false] {
        assert!(met.contains(&(State::Established, at_a)));
    }
    // Who knows everything does end it.
    for message in [CmAttribute::REJ, CmAttribute::DREQ] {
        assert!(changed.contains(&(State::Established, message)));
    }
}

#[test]
fn a_rejection_without_our_id_is_taken_only_from_a_peer_that_gave_up() {
    let mut t = Pair::new();
    let a = t.connect();
    t.b.expect_request();
    let without = Rej { local_comm_id: a.0, message: RejectedMessage::OTHER, ..Rej::default() };
    let consumer = Rej { reason: RejReason::CONSUMER, ..without };
    assert_eq!(t.deliver_to_b(&mad(consumer)), Err(CmDrop::WrongInstance));
    let timeout = Rej { reason: RejReason::TIMEOUT, ..without };
    assert_eq!(t.deliver_to_b(&mad(timeout)), Ok(()));
    t.settle();
    t.b.expect(|kind| matches!(kind, EventKind::Rejected { .. }));
}

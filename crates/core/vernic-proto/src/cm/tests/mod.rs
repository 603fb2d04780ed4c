//! Two connection managers and a wire between them, in virtual time. What happens is a trace:
//!
//! ```text
//! 0 A->B REQ               a datagram, at 0 ms
//! 0 B: Request             an event of B
//! 671 A->B REQ LOST
//! ```

mod destroy;
mod flow;
mod gone;
mod heir;
mod hostile;
mod lap;
mod limits;
mod loss;
mod mra;
mod random;
mod sidr;
mod stale;
mod strangers;
mod subnet;

use std::fmt::Write as _;

use vernic_wire::cm::{CmAttribute, CmMessage, FailoverAccepted, PortSpace, RejReason, ServiceId};
use vernic_wire::{AckTimeout, Gid, Mtu, Pkey, Psn, Qkey, Qpn};

use super::table::Mad;
use super::{
    AcceptParams, Cm, CmConfig, CmDrop, CmPath, ConnId, ConnectParams, Datagram, Event, EventKind,
    ListenerId, SidrParams,
};
use crate::state::QpType;
use crate::time::Time;

pub(super) const SERVICE: ServiceId = PortSpace::TCP.service_id(7);
pub(super) const DATAGRAM_SERVICE: ServiceId = PortSpace::UDP.service_id(7);
const MS: u64 = 1_000_000;

pub(super) fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

/// One end.
pub(super) struct Node {
    pub(super) cm: Cm,
    pub(super) gid: Gid,
    name: char,
    /// Events that no test has looked at.
    pub(super) events: Vec<Event>,
}

impl Node {
    fn new(name: char, gid: Gid, config: CmConfig) -> Self {
        Self { cm: Cm::new(config), gid, name, events: Vec::new() }
    }
    /// The first event that was not looked at.
    pub(super) fn next_event(&mut self) -> Event {
        self.events.remove(0)
    }
    /// The connection of that event, which must be of the kind that `is` tells.
    #[track_caller]
    pub(super) fn expect(&mut self, is: fn(&EventKind) -> bool) -> ConnId {
        let event = self.next_event();
        assert!(is(&event.kind), "{event:?}");
        event.conn
    }
    pub(super) fn expect_request(&mut self) -> ConnId {
        self.expect(|kind| matches!(kind, EventKind::Request { .. }))
    }
}

/// A (10.0.0.1), B (10.0.0.2) with a listener, and the wire.
pub(super) struct Pair {
    pub(super) a: Node,
    pub(super) b: Node,
    pub(super) now: Time,
    pub(super) listener: ListenerId,
    /// The next datagram of each of these is lost.
    lose: Vec<CmAttribute>,
    /// What was sent, in order, with the path as the sender sees it.
    pub(super) sent: Vec<(CmPath, Mad)>,
    trace: String,
}

pub(super) fn config(seed: u128) -> CmConfig {
    CmConfig::new(0xAB00_0000, 16, seed)
}

pub(super) fn params(from: Gid, to: Gid) -> ConnectParams<'static> {
    ConnectParams {
        path: CmPath::new(from, to),
        alternate: None,
        service: SERVICE,
        qp_type: QpType::Rc,
        local_qpn: Qpn::new(0x11),
        starting_psn: Psn::new(0x100),
        responder_resources: 4,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        path_mtu: Mtu::B1024,
        pkey: Pkey::DEFAULT,
        local_ack_timeout: AckTimeout::new(17),
        local_ca_guid: u64::from(from.0[15]),
        private_data: b"hello",
        response_timeout: None,
        max_retries: None,
    }
}

pub(super) fn accept_params(from: Gid) -> AcceptParams<'static> {
    AcceptParams {
        local_qpn: Qpn::new(0x22),
        starting_psn: Psn::new(0x200),
        responder_resources: 5,
        initiator_depth: 4,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        target_ack_delay: 15,
        failover: FailoverAccepted::NOT_SUPPORTED,
        local_ca_guid: u64::from(from.0[15]),
        private_data: b"welcome",
    }
}

pub(super) fn sidr_params(from: Gid, to: Gid) -> SidrParams<'static> {
    SidrParams {
        path: CmPath::new(from, to),
        service: DATAGRAM_SERVICE,
        pkey: Pkey::DEFAULT,
        private_data: b"who?",
        response_timeout: None,
        max_retries: None,
    }
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(config(0x100), config(0x200))
    }
    pub(super) fn with(a: CmConfig, b: CmConfig) -> Self {
        let mut b = Node::new('B', gid(2), b);
        let listener = b.cm.listen(SERVICE, None, 16).unwrap();
        b.cm.listen(DATAGRAM_SERVICE, Some(b.gid), 16).unwrap();
        let a = Node::new('A', gid(1), a);
        let (lose, sent) = (Vec::new(), Vec::new());
        Self { a, b, now: Time(0), listener, lose, sent, trace: String::new() }
    }
    pub(super) fn lose(&mut self, what: &[CmAttribute]) {
        self.lose.extend_from_slice(what);
    }
    /// A connects; the REQ has arrived.
    pub(super) fn connect(&mut self) -> ConnId {
        let conn = self.a.cm.connect(self.now, &params(gid(1), gid(2))).unwrap();
        self.settle();
        conn
    }
    /// B accepts its first request; the REP has arrived.
    pub(super) fn accept(&mut self) -> ConnId {
        let conn = self.b.expect_request();
        self.b.cm.accept(self.now, conn, &accept_params(gid(2))).unwrap();
        self.settle();
        conn
    }
    /// A connection that is up on both sides; the trace begins after it.
    pub(super) fn established(&mut self) -> (ConnId, ConnId) {
        let a = self.connect();
        let b = self.accept();
        self.a.expect(|kind| matches!(kind, EventKind::Reply { .. }));
        self.a.cm.ready_to_use(a, b"").unwrap();
        self.settle();
        self.b.expect(|kind| matches!(kind, EventKind::Established { .. }));
        self.trace.clear();
        (a, b)
    }
    /// Delivers all that is under way, and what comes of it.
    pub(super) fn settle(&mut self) {
        while self.carry(true) || self.carry(false) {}
    }
    fn carry(&mut self, from_a: bool) -> bool {
        let (from, to) =
            if from_a { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
        let sent = from.cm.poll_transmit();
        if let Some(Datagram { path, mad, .. }) = sent {
            let (_, message) = CmMessage::parse(&mad).unwrap();
            let ms = self.now.0 / MS;
            let lost = self.lose.iter().position(|lose| *lose == message.attribute());
            let mut line = format!("{ms} {}->{} {}", from.name, to.name, short(&message));
            self.sent.push((path, mad));
            if let Some(at) = lost {
                self.lose.remove(at);
                line += " LOST";
            }
            let end = self.trace.len();
            if lost.is_none()
                && let Err(drop) = to.cm.handle_mad(self.now, turned(path), &mad)
            {
                write!(line, " {drop}").unwrap();
            }
            self.trace.insert_str(end, &(line + "\n"));
        }
        let mut busy = sent.is_some();
        for node in [&mut self.a, &mut self.b] {
            while let Some(event) = node.cm.poll_event() {
                let ms = self.now.0 / MS;
                writeln!(self.trace, "{ms} {}: {}", node.name, named(&event.kind)).unwrap();
                node.events.push(event);
                busy = true;
            }
        }
        busy
    }
    /// Lets time pass, and does all that is due.
    pub(super) fn pass(&mut self, ms: u64) {
        let until = self.now + ms * MS;
        self.settle();
        loop {
            let due = [self.a.cm.next_deadline(), self.b.cm.next_deadline()];
            let Some(due) = due.into_iter().flatten().min().filter(|due| *due <= until) else {
                break;
            };
            self.now = self.now.max(due);
            self.a.cm.handle_timeout(self.now);
            self.b.cm.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }
    /// What happened since the last time.
    pub(super) fn trace(&mut self) -> String {
        self.settle();
        std::mem::take(&mut self.trace)
    }
    /// Delivers a datagram to B as if A had sent it.
    pub(super) fn deliver_to_b(&mut self, mad: &Mad) -> Result<(), CmDrop> {
        self.b.cm.handle_mad(self.now, CmPath::new(gid(2), gid(1)), mad)
    }
    /// Nothing is left at either end.
    #[track_caller]
    pub(super) fn assert_empty(&self) {
        for node in [&self.a, &self.b] {
            let left = node.cm.occupancy();
            assert_eq!((left.live, left.half_open, left.timewait), (0, 0, 0), "{}", node.name);
            assert_eq!(node.cm.next_deadline(), None);
        }
    }
}

/// The path as the receiver sees it.
pub(super) fn turned(path: CmPath) -> CmPath {
    CmPath { local: path.remote, remote: path.local, ..path }
}

pub(super) fn mad(message: impl Into<CmMessage>) -> Mad {
    let mut mad = [0; 256];
    message.into().emit(1, &mut mad);
    mad
}

fn short(message: &CmMessage) -> String {
    let name = message.attribute();
    match message {
        CmMessage::Rej(rej) => format!("{name} of={} {:?}", rej.message, rej.reason),
        CmMessage::Mra(mra) => format!("{name} of={}", mra.message),
        CmMessage::SidrRep(rep) => format!("{name} {:?}", rep.status),
        CmMessage::Apr(apr) => format!("{name} {}", apr.status.0),
        _ => name.to_string(),
    }
}

fn named(kind: &EventKind) -> String {
    match kind {
        EventKind::Rejected { reason, message, .. } => format!("Rejected of={message} {reason:?}"),
        EventKind::Unreachable { which } => format!("Unreachable {which:?}"),
        EventKind::AlternatePathAnswered { status, .. } => {
            format!("AlternatePathAnswered {status}")
        }
        EventKind::SidrReply { rep } => format!("SidrReply {:?} qpn={}", rep.status, rep.qpn),
        other => {
            let text = format!("{other:?}");
            text.split([' ', '{']).next().unwrap().to_string()
        }
    }
}

//! Two sides of connections, in this process, over `lo`.

#![allow(dead_code)] // each test file uses its part

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_cm::{
    Config, ConnParam, Context, Event, EventChannel, EventKind, Id, Manager, Param, PortSpace, Qp,
    QpType,
};
use vernic_engine::{
    Access, Cq, EMPTY_WC, Mr, Payload, QpCap, QpInit, QpState, RecvWr, SendFlags, SendOp, SendWr,
    Service, Sge, Wc, WcStatus,
};

pub(crate) const SOON: Duration = Duration::from_secs(2);
/// Longest wait for an event: a busy machine's time, far above what anything takes.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A manager with a channel: one side.
pub(crate) struct Side {
    pub(crate) manager: Arc<Manager>,
    pub(crate) channel: Arc<EventChannel>,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        let manager = Manager::new(config);
        let channel = manager.create_channel().unwrap();
        Self { manager, channel }
    }

    pub(crate) fn id(&self, space: PortSpace, qp_type: QpType) -> Arc<Id> {
        self.manager.create_id(Some(&self.channel), space, qp_type).unwrap()
    }

    pub(crate) fn tcp(&self) -> Arc<Id> {
        self.id(PortSpace::TCP, QpType::Rc)
    }

    pub(crate) fn udp(&self) -> Arc<Id> {
        self.id(PortSpace::UDP, QpType::Ud)
    }

    /// The next event, which must come.
    pub(crate) fn event(&self) -> Event {
        next(&self.channel)
    }

    /// The next event, which must be of `kind` and tell no failure.
    pub(crate) fn expect(&self, kind: EventKind) -> Event {
        let event = self.event();
        assert_eq!((event.kind, event.status), (kind, 0), "{event:?}");
        event
    }

    /// The next event, which must be of `kind` with `status`.
    pub(crate) fn expect_failure(&self, kind: EventKind, status: i32) -> Event {
        let event = self.event();
        assert_eq!((event.kind, event.status), (kind, status), "{event:?}");
        event
    }

    /// An id that listens at `place` for `qp_type`, and where that is.
    pub(crate) fn listener(
        &self,
        space: PortSpace,
        qp_type: QpType,
        place: &str,
    ) -> (Arc<Id>, SocketAddr) {
        let id = self.id(space, qp_type);
        id.bind_addr(addr(place)).unwrap();
        id.listen(64).unwrap();
        let place = id.local_addr().unwrap();
        (id, place)
    }

    /// An id whose route to `to` is resolved.
    pub(crate) fn routed(&self, space: PortSpace, qp_type: QpType, to: SocketAddr) -> Arc<Id> {
        let id = self.id(space, qp_type);
        id.resolve_addr(None, to, SOON).unwrap();
        self.expect(EventKind::AddrResolved);
        id.resolve_route(SOON).unwrap();
        self.expect(EventKind::RouteResolved);
        id
    }

    /// An id with a queue pair that is about to connect to `to`.
    pub(crate) fn connecting(&self, to: SocketAddr, param: &ConnParam<'_>) -> (Arc<Id>, End) {
        let id = self.routed(PortSpace::TCP, QpType::Rc, to);
        let end = End::new(&id);
        id.attach_qp(end.qp.clone()).unwrap();
        id.connect(param).unwrap();
        (id, end)
    }

    /// Nothing more has come.
    pub(crate) fn expect_nothing(&self) {
        assert!(self.channel.try_next().is_none());
    }
}

/// The next event of a channel, which must come.
pub(crate) fn next(channel: &Arc<EventChannel>) -> Event {
    let until = Instant::now() + LONG;
    loop {
        if let Some(event) = channel.try_next() {
            return event;
        }
        assert!(Instant::now() < until, "no event came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Room for a datagram without payload: for the area of the GRH (IBTA 11.4.1.2).
const GRH_BYTES: u32 = 40;

/// A queue pair with its completion queue.
pub(crate) struct End {
    pub(crate) context: Arc<Context>,
    pub(crate) grh: Arc<Mr>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
}

impl End {
    /// One for `id`, on its device.
    pub(crate) fn new(id: &Id) -> Self {
        Self::on(&id.context().unwrap(), id.qp_type())
    }

    pub(crate) fn on(context: &Arc<Context>, qp_type: QpType) -> Self {
        let service = match qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            _ => Service::Ud,
        };
        let cq = context.create_cq(64, None).unwrap();
        let init = QpInit {
            service,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap::default(),
            signal_all: true,
            congestion: None,
        };
        let pd = context.alloc_pd();
        let memory = context.alloc_dm(GRH_BYTES.into(), 0).unwrap();
        let grh = pd.reg_dm_mr(&memory, 0, GRH_BYTES.into(), Access::LOCAL_WRITE).unwrap();
        let qp = pd.create_qp(init).unwrap();
        Self { context: context.clone(), grh, cq, qp }
    }

    pub(crate) fn post_recv(&self) {
        let area = [Sge { addr: 0, length: GRH_BYTES, lkey: self.grh.lkey() }];
        let sges = if self.qp.qp_type() == QpType::Ud { &area[..] } else { &[] };
        self.qp.post_recv(&[RecvWr { wr_id: 1, sges }]).unwrap();
    }

    /// Sends a message without payload.
    pub(crate) fn send(&self) {
        let wr = SendWr {
            wr_id: 2,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
            dest: None,
            srqn: None,
        };
        self.qp.post_send(&[wr]).unwrap();
    }

    /// Waits for a completion.
    pub(crate) fn complete(&self) -> Wc {
        let until = Instant::now() + LONG;
        let mut wcs = [EMPTY_WC];
        while self.cq.poll(&mut wcs).unwrap() == 0 {
            assert!(Instant::now() < until, "no completion came");
        }
        wcs[0]
    }
}

/// A message goes through in each direction.
pub(crate) fn exchange(a: &End, b: &End) {
    for (from, to) in [(a, b), (b, a)] {
        to.post_recv();
        from.send();
        for end in [from, to] {
            let wc = end.complete();
            assert_eq!(wc.status, WcStatus::Success, "{:?}", end.qp.explain());
        }
    }
}

/// Two connected ids, each with its queue pair in RTS.
pub(crate) struct Pair {
    pub(crate) server: Side,
    pub(crate) client: Side,
    pub(crate) listener: Arc<Id>,
    pub(crate) accepted: Arc<Id>,
    pub(crate) connected: Arc<Id>,
    pub(crate) accepted_end: End,
    pub(crate) connected_end: End,
}

impl Pair {
    pub(crate) fn new(place: &str) -> Self {
        Self::with(place, &ConnParam::default(), &ConnParam::default())
    }

    pub(crate) fn with(place: &str, connect: &ConnParam<'_>, accept: &ConnParam<'_>) -> Self {
        Self::between((Side::new(), Side::new()), place, connect, accept)
    }

    pub(crate) fn between(
        (server, client): (Side, Side),
        place: &str,
        connect: &ConnParam<'_>,
        accept: &ConnParam<'_>,
    ) -> Self {
        let (listener, place) = server.listener(PortSpace::TCP, QpType::Rc, place);
        let (connected, connected_end) = client.connecting(place, connect);
        let accepted = server.expect(EventKind::ConnectRequest).id.clone();
        let accepted_end = End::new(&accepted);
        accepted.attach_qp(accepted_end.qp.clone()).unwrap();
        accepted.accept(accept).unwrap();
        client.expect(EventKind::Established);
        server.expect(EventKind::Established);
        for end in [&accepted_end, &connected_end] {
            assert_eq!(end.qp.state(), QpState::Rts);
        }
        Self { server, client, listener, accepted, connected, accepted_end, connected_end }
    }
}

/// What an event of a connection carries.
pub(crate) fn conn(event: &Event) -> &vernic_cm::ConnInfo {
    match &event.param {
        Param::Conn(info) => info,
        other => panic!("{other:?}"),
    }
}

/// What an event of datagrams carries.
pub(crate) fn ud(event: &Event) -> &vernic_cm::UdInfo {
    match &event.param {
        Param::Ud(info) => info,
        other => panic!("{other:?}"),
    }
}

/// The start of private data, whose rest must be zeros.
pub(crate) fn starts(data: &[u8], len: usize, start: &[u8]) {
    assert_eq!(data.len(), len);
    assert_eq!(&data[..start.len()], start);
    assert!(data[start.len()..].iter().all(|byte| *byte == 0));
}

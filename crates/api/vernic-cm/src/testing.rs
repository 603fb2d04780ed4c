//! An agent that only notes its calls, and events made by hand: states and orders that real peers
//! bring about rarely, and never on demand.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vernic_attach::{AttachError, Refusal, RefusalKind};
use vernic_engine::{CmCallError, Config, Context, ListenError, QpType, Service};
use vernic_io::ServiceScope;
use vernic_proto::cm::{
    AcceptParams, CmError, CmPath, ConnId, ConnectParams, Event, EventKind as CmEvent, LapParams,
    ListenerId, SidrParams, SidrReply,
};
use vernic_wire::cm::{AprStatus, CmaHeader, CommId, PortSpace, RejReason, Req, ServiceId};
use vernic_wire::{Gid, Psn, Qpn};

use crate::device::{Agent, Device};
use crate::id::Sink;
use crate::sync::lock;
use crate::{EventChannel, EventKind, Id, Manager};

/// The calls in words, and the numbers that the agent gives.
#[derive(Debug, Default)]
pub(crate) struct FakeAgent {
    asked: Mutex<Vec<String>>,
    next: AtomicU32,
    /// Whether calls about connections fail.
    pub(crate) refuses: Mutex<bool>,
    /// How many reservations are refused from now on, as if another program had the service.
    pub(crate) taken: AtomicU32,
    /// The PSN that the agent last asked a peer to start with.
    pub(crate) starting_psn: Mutex<Option<Psn>>,
}

impl FakeAgent {
    fn note(&self, text: String) {
        lock(&self.asked).push(text);
    }

    /// The calls since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.asked))
    }

    fn conn(&self, text: &str) -> ConnId {
        let n = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.note(format!("{text} = {n}"));
        ConnId(CommId(n), 0)
    }

    fn about(&self, text: &str, conn: ConnId) -> Result<(), CmCallError> {
        self.note(format!("{text} {}", conn.0.value()));
        match *lock(&self.refuses) {
            true => Err(CmError::UnknownConnection(conn).into()),
            false => Ok(()),
        }
    }
}

impl Agent for FakeAgent {
    fn reserve(&self, service: ServiceId, _: ServiceScope) -> Result<(), ListenError> {
        self.note(format!("reserve {}", service.port_space().unwrap()));
        let less = |left: u32| left.checked_sub(1);
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => {
                let refusal = Refusal::new(RefusalKind::Taken, "another program has it");
                Err(ListenError::Claim { service, source: AttachError::Refused(refusal) })
            }
            Err(_) => Ok(()),
        }
    }
    fn release(&self, service: ServiceId, _: ServiceScope) {
        self.note(format!("release {}", service.port_space().unwrap()));
    }
    fn listen(
        &self,
        _: ServiceId,
        _: ServiceScope,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.note(format!("listen {backlog}"));
        Ok(ListenerId(7))
    }
    fn stop_listening(&self, _: ListenerId) {
        self.note("stop".to_owned());
    }
    fn connect(&self, params: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        *lock(&self.starting_psn) = Some(params.starting_psn);
        Ok(self.conn("connect"))
    }
    fn refuse(&self, conn: ConnId) -> Result<bool, CmCallError> {
        self.about("refuse", conn).map(|()| true)
    }
    fn sent_unanswered(&self, conn: ConnId) -> Result<Option<u32>, CmCallError> {
        self.about("sent unanswered", conn).map(|()| Some(1))
    }
    fn connect_now(&self, _: &ConnectParams<'_>) -> Result<ConnId, CmCallError> {
        Ok(self.conn("connect now"))
    }
    fn accept(&self, conn: ConnId, params: &AcceptParams<'_>) -> Result<(), CmCallError> {
        *lock(&self.starting_psn) = Some(params.starting_psn);
        self.about("accept", conn)
    }
    fn ready_to_use(&self, conn: ConnId) -> Result<(), CmCallError> {
        self.about("ready", conn)
    }
    fn load_alternate_path(&self, conn: ConnId, _: &LapParams) -> Result<(), CmCallError> {
        self.about("load", conn)
    }
    fn answer_lap(&self, conn: ConnId, status: AprStatus) -> Result<(), CmCallError> {
        self.about(&format!("answer({})", status.0), conn)
    }
    fn about_to_wait(&self) {}
    fn reject(
        &self,
        conn: ConnId,
        reason: RejReason,
        info: &[u8],
        _: &[u8],
    ) -> Result<(), CmCallError> {
        let info = if info.is_empty() { String::new() } else { format!(", {info:?}") };
        self.about(&format!("reject({}{info})", reason.value()), conn)
    }
    fn disconnect(&self, conn: ConnId) -> Result<(), CmCallError> {
        self.about("disconnect", conn)
    }
    fn notify_established(&self, conn: ConnId) -> Result<(), CmCallError> {
        self.about("notify", conn)
    }
    fn sidr_request(&self, _: &SidrParams<'_>) -> Result<ConnId, CmCallError> {
        Ok(self.conn("sidr"))
    }
    fn sidr_reply(&self, conn: ConnId, _: &SidrReply<'_>) -> Result<(), CmCallError> {
        self.about("sidr_reply", conn)
    }
    fn request_taken(&self, conn: ConnId) {
        let _ = self.about("taken", conn);
    }
    fn ignore(&self, conn: ConnId) {
        let _ = self.about("ignore", conn);
    }
    fn destroy(&self, conn: ConnId) {
        let _ = self.about("destroy", conn);
    }
}

/// A manager whose `lo` has such an agent.
pub(crate) struct Lab {
    pub(crate) manager: Arc<Manager>,
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) agent: Arc<FakeAgent>,
    pub(crate) context: Arc<Context>,
    sink: Sink,
}

/// The PSN that connecting peers ask this side to start with.
pub(crate) const PEER_PSN: Psn = Psn::new(0x77);

pub(crate) const HOME: &str = "127.0.0.1:0";

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        let manager = Manager::new(config.clone());
        let channel = manager.create_channel().unwrap();
        let context = Context::open(Some("lo"), config).unwrap();
        let agent = Arc::new(FakeAgent::default());
        let device = Device::new(context.clone(), Some(agent.clone()));
        let shared = &channel.shared;
        let registry = shared.registry.clone();
        let sink = Sink { registry, device: device.key(), shared: Arc::downgrade(shared) };
        shared.devices.insert(device);
        Self { manager, channel, agent, context, sink }
    }

    pub(crate) fn id(&self) -> Arc<Id> {
        self.manager.create_id(Some(&self.channel), PortSpace::TCP, QpType::Rc).unwrap()
    }

    pub(crate) fn listener(&self) -> Arc<Id> {
        let id = self.id();
        id.bind_addr(HOME.parse().unwrap()).unwrap();
        id.listen(3).unwrap();
        self.agent.asked();
        id
    }

    /// An id that connects as connection 1, with a queue pair of the program's own.
    pub(crate) fn connecting(&self) -> Arc<Id> {
        let id = self.id();
        let soon = Duration::from_secs(1);
        id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), soon).unwrap();
        id.resolve_route(soon).unwrap();
        let qp_num = Some(Qpn::new(7));
        id.connect(&crate::ConnParam { qp_num, ..crate::ConnParam::default() }).unwrap();
        let told = [0; 2].map(|_| self.channel.try_next().unwrap().kind);
        assert_eq!(told, [EventKind::AddrResolved, EventKind::RouteResolved]);
        assert_eq!(self.agent.asked(), ["connect = 1"]);
        id
    }

    /// Delivers an event of the engine about a connection.
    pub(crate) fn tell(&self, conn: u32, kind: CmEvent) {
        use vernic_engine::CmSink as _;
        self.sink.event(Event { conn: ConnId(CommId(conn), 0), kind });
    }

    /// Delivers a request for the listener, from `src`.
    pub(crate) fn request(&self, conn: u32, src: &str) {
        let src: std::net::SocketAddr = src.parse().unwrap();
        let mut data = [0; 92];
        CmaHeader::new(src.port(), src.ip(), "127.0.0.1".parse().unwrap()).emit(&mut data);
        let (local_qpn, starting_psn) = (Qpn::new(9), PEER_PSN);
        let req = Req { private_data: data.into(), local_qpn, starting_psn, ..Req::default() };
        self.raw_request(conn, req);
    }

    /// Delivers a request with the given private data.
    pub(crate) fn raw_request(&self, conn: u32, req: Req) {
        let home = Gid::from_ip("127.0.0.1".parse().unwrap());
        let path = CmPath::new(home, home);
        let listener = ListenerId(7);
        self.tell(conn, CmEvent::Request { listener, path, req: Box::new(req) });
    }

    /// The kinds of the events that wait.
    pub(crate) fn kinds(&self) -> Vec<EventKind> {
        std::iter::from_fn(|| Some(self.channel.try_next()?.kind)).collect()
    }

    /// An RC queue pair.
    pub(crate) fn qp(&self) -> Arc<crate::Qp> {
        let cq = self.context.create_cq(4, None).unwrap();
        let init = vernic_engine::QpInit {
            service: Service::Rc,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: vernic_engine::QpCap::default(),
            signal_all: true,
            congestion: None,
        };
        self.context.alloc_pd().create_qp(init).unwrap()
    }
}

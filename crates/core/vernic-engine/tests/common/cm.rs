//! A device whose connection manager tells its events to the test.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use vernic_engine::*;
use vernic_proto::cm::{AcceptParams, CmPath, ConnId, ConnectParams, Event, EventKind, ListenerId};
use vernic_wire::cm::{FailoverAccepted, PortSpace, PrivateData, Req, ServiceId};

use super::{PATIENCE, test_config};

/// Events that were told and not looked at.
#[derive(Default)]
struct Told {
    events: Mutex<VecDeque<Event>>,
    news: Condvar,
}

impl CmSink for Told {
    fn event(&self, event: Event) {
        self.events.lock().unwrap().push_back(event);
        self.news.notify_all();
    }
}

/// A device with an agent.
pub struct Node {
    pub context: Arc<Context>,
    told: Arc<Told>,
}

/// The service of a TCP port.
pub fn port(port: u16) -> ServiceId {
    PortSpace::TCP.service_id(port)
}

impl Node {
    pub fn new() -> Self {
        Self::with(test_config())
    }

    pub fn with(config: Config) -> Self {
        Self::on("lo", config)
    }

    pub fn on(device: &str, config: Config) -> Self {
        let context = Context::open(Some(device), config).expect("the device can be opened");
        let told = Arc::new(Told::default());
        context.cm().attach(told.clone()).unwrap();
        Self { context, told }
    }

    pub fn cm(&self) -> &CmAgent {
        self.context.cm()
    }

    /// The next event. Waits without a call of the device.
    pub fn next(&self) -> Event {
        let start = Instant::now();
        let mut events = self.told.events.lock().unwrap();
        loop {
            if let Some(event) = events.pop_front() {
                return event;
            }
            let left = PATIENCE.checked_sub(start.elapsed()).expect("no event came");
            events = self.told.news.wait_timeout(events, left).unwrap().0;
        }
    }

    /// The event that is there, if one is.
    pub fn peek(&self) -> Option<Event> {
        self.told.events.lock().unwrap().front().cloned()
    }

    pub fn listen(&self, service: ServiceId, scope: ServiceScope) -> ListenerId {
        self.cm().listen(service, scope, 64).unwrap()
    }

    /// All addresses of the device.
    pub fn everywhere(&self) -> ServiceScope {
        ServiceScope::Netdev(self.context.info().port.netdev_index)
    }

    /// Asks `ip` for a connection, from the address of the device that is most like it.
    pub fn connect(&self, ip: IpAddr, service: ServiceId, private_data: &[u8]) -> ConnId {
        self.try_connect(ip, service, private_data).unwrap()
    }

    /// As [`connect`](Self::connect), which may be refused.
    pub fn try_connect(
        &self,
        ip: IpAddr,
        service: ServiceId,
        private_data: &[u8],
    ) -> Result<ConnId, CmCallError> {
        let rows = self.context.gid_table();
        let same = |row: &&GidEntry| row.local.ip == ip;
        let alike = |row: &&GidEntry| row.local.ip.is_ipv4() == ip.is_ipv4();
        let local = rows.iter().find(same).or(rows.iter().find(alike)).expect("an address").gid;
        self.cm().connect(&params(CmPath::new(local, Gid::from_ip(ip)), service, private_data))
    }

    /// The next event, which must be a request.
    pub fn request(&self) -> (ConnId, ListenerId, CmPath, Box<Req>) {
        let event = self.next();
        match event.kind {
            EventKind::Request { listener, path, req } => (event.conn, listener, path, req),
            other => panic!("no request: {other:?}"),
        }
    }

    pub fn accept(&self, conn: ConnId, private_data: &[u8]) {
        let params = AcceptParams {
            local_qpn: new_qpn(),
            starting_psn: Psn::new(2),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            target_ack_delay: 5,
            failover: FailoverAccepted::NOT_SUPPORTED,
            local_ca_guid: std::process::id().into(),
            private_data,
        };
        self.cm().accept(conn, &params).unwrap();
    }

    /// Uses what [`serve`](Self::serve) serves, from REQ to TIMEWAIT. Returns what the
    /// server said.
    pub fn use_service(&self, ip: IpAddr, service: ServiceId, say: &[u8]) -> Vec<u8> {
        let conn = self.connect(ip, service, say);
        let event = self.next();
        assert_eq!(event.conn, conn);
        let EventKind::Reply { rep } = event.kind else { panic!("no reply: {event:?}") };
        self.cm().ready_to_use(conn, b"").unwrap();
        self.cm().disconnect(conn, b"").unwrap();
        assert_eq!(self.next(), Event { conn, kind: EventKind::Disconnected });
        self.cm().destroy(conn);
        said(&rep.private_data)
    }

    /// Answers one request, and sees its connection through. Returns what the client said.
    pub fn serve(&self, say: &[u8]) -> Vec<u8> {
        let (conn, _, _, req) = self.request();
        self.accept(conn, say);
        let event = self.next();
        assert!(matches!(event.kind, EventKind::Established { .. }), "{event:?}");
        let event = self.next();
        assert!(matches!(event.kind, EventKind::DisconnectRequest { .. }), "{event:?}");
        self.cm().disconnect(conn, b"").unwrap();
        self.cm().destroy(conn);
        said(&req.private_data)
    }
}

/// Private data without the zeros at its end.
fn said<const N: usize>(data: &PrivateData<N>) -> Vec<u8> {
    let bytes = data.as_bytes();
    let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes[..len].to_vec()
}

/// A queue pair number that no connection of these tests had before: one that had is taken for
/// stale.
fn new_qpn() -> Qpn {
    static NEXT: AtomicU32 = AtomicU32::new(0x100);
    Qpn::new(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A REQ of what does not matter here. A lost message costs some 140 ms.
pub fn params(path: CmPath, service: ServiceId, private_data: &[u8]) -> ConnectParams<'_> {
    ConnectParams {
        path,
        alternate: None,
        service,
        qp_type: QpType::Rc,
        local_qpn: new_qpn(),
        starting_psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        path_mtu: Mtu::B1024,
        pkey: Pkey::DEFAULT,
        local_ack_timeout: AckTimeout::new(14),
        local_ca_guid: std::process::id().into(),
        private_data,
        response_timeout: Some(8),
        max_retries: None,
    }
}

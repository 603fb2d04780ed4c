//! How many connections per second the connection manager makes and ends, without queue pairs.
//!
//! ```sh
//! cargo run --release -p vernic-engine --example cm_speed -- \
//!     [--device lo] [--count 20000] [--at-once 64]
//! ```
//!
//! Both ends are in this process, each with a device of its own, so what goes over the wire is what
//! two processes would send. A tour comes first: one exchange of each kind, which
//! `cargo xtask capture` looks at.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vernic_engine::{
    AckTimeout, CmSink, Config, Context, Gid, Mtu, Pkey, Psn, Qkey, QpType, Qpn, ServiceScope,
};
use vernic_proto::cm::{
    AcceptParams, CmPath, ConnId, ConnectParams, Event, EventKind, ListenerId, SidrParams,
    SidrReply,
};
use vernic_wire::cm::{FailoverAccepted, PortSpace, RejReason, ServiceId, SidrStatus};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The port to which connections are accepted.
const WELCOME: ServiceId = PortSpace::TCP.service_id(47_910);
/// The port to which connections are refused by the application.
const UNWELCOME: ServiceId = PortSpace::TCP.service_id(47_911);
/// Nobody listens here.
const NOBODY: ServiceId = PortSpace::TCP.service_id(47_912);
/// A datagram queue pair has this one.
const DATAGRAMS: ServiceId = PortSpace::UDP.service_id(47_910);

/// Ends the server with `None`.
type Told = Option<Event>;

struct Sink(Mutex<Sender<Told>>);

impl CmSink for Sink {
    fn event(&self, event: Event) {
        if let Ok(sender) = self.0.lock() {
            // Without a receiver the program is at its end.
            let _ = sender.send(Some(event));
        }
    }
}

fn open(device: &str) -> Result<(Arc<Context>, Sender<Told>, Receiver<Told>)> {
    let context = Context::open(Some(device), Config::load()?)?;
    let (sender, told) = channel();
    context.cm().attach(Arc::new(Sink(Mutex::new(sender.clone()))))?;
    Ok((context, sender, told))
}

/// Answers everything until told to end.
fn serve(context: &Context, told: Receiver<Told>, unwelcome: ListenerId) {
    let cm = context.cm();
    for (event, number) in told.into_iter().map_while(|told| told).zip(1..) {
        // A connection that ended meanwhile refuses the answer, and needs none.
        let _ = match event.kind {
            EventKind::Request { listener, .. } if listener == unwelcome => {
                cm.reject(event.conn, RejReason::CONSUMER, b"", b"not today")
            }
            EventKind::Request { .. } => cm.accept(event.conn, &accept_params(number)),
            EventKind::SidrRequest { .. } => {
                let (status, qpn) = (SidrStatus(0), Qpn::new(77));
                let reply = SidrReply { status, qpn, qkey: Qkey(1), private_data: b"" };
                cm.sidr_reply(event.conn, &reply)
            }
            EventKind::DisconnectRequest { .. } => {
                let done = cm.disconnect(event.conn, b"");
                cm.destroy(event.conn);
                done
            }
            _ => Ok(()),
        };
    }
}

fn accept_params(number: u32) -> AcceptParams<'static> {
    AcceptParams {
        local_qpn: Qpn::new(number),
        starting_psn: Psn::new(number),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        target_ack_delay: 15,
        failover: FailoverAccepted::NOT_SUPPORTED,
        local_ca_guid: 1,
        private_data: b"",
    }
}

struct Client {
    context: Arc<Context>,
    told: Receiver<Told>,
    path: CmPath,
    connections: u32,
}

impl Client {
    fn connect(&mut self, service: ServiceId) -> Result<ConnId> {
        self.connections += 1;
        let params = ConnectParams {
            path: self.path,
            alternate: None,
            service,
            qp_type: QpType::Rc,
            // Never one that had a connection just now.
            local_qpn: Qpn::new(self.connections),
            starting_psn: Psn::new(self.connections),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            path_mtu: Mtu::B1024,
            pkey: Pkey::DEFAULT,
            local_ack_timeout: AckTimeout::new(14),
            local_ca_guid: 2,
            private_data: b"",
            response_timeout: None,
            max_retries: None,
        };
        Ok(self.context.cm().connect(&params)?)
    }

    /// Does what an event asks for; true if it ended a connection.
    fn go_on(&self, event: &Event) -> Result<bool> {
        let cm = self.context.cm();
        match &event.kind {
            EventKind::Reply { .. } => {
                cm.ready_to_use(event.conn, b"")?;
                cm.disconnect(event.conn, b"")?;
                Ok(false)
            }
            EventKind::Disconnected | EventKind::Rejected { .. } | EventKind::SidrReply { .. } => {
                cm.destroy(event.conn);
                Ok(true)
            }
            EventKind::TimewaitExit => Ok(false),
            other => Err(format!("unexpected: {other:?}").into()),
        }
    }

    /// Waits for the next event and does what it asks for; true if it ended a connection.
    fn step(&self) -> Result<bool> {
        let event = self.told.recv_timeout(PATIENCE)?.ok_or("the device is closed")?;
        self.go_on(&event)
    }

    /// Until an exchange has ended.
    fn finish(&self) -> Result<()> {
        while !self.step()? {}
        Ok(())
    }

    /// One exchange of each kind.
    fn tour(&mut self) -> Result<()> {
        for service in [WELCOME, UNWELCOME, NOBODY] {
            self.connect(service)?;
            self.finish()?;
        }
        self.context.cm().sidr_request(&SidrParams {
            path: self.path,
            service: DATAGRAMS,
            pkey: Pkey::DEFAULT,
            private_data: b"",
            response_timeout: None,
            max_retries: None,
        })?;
        self.finish()
    }

    fn measure(&mut self, count: u32, at_once: u32) -> Result<()> {
        let start = Instant::now();
        let at_once = at_once.clamp(1, count);
        for _ in 0..at_once {
            self.connect(WELCOME)?;
        }
        let mut ended = 0;
        while ended < count {
            if !self.step()? {
                continue;
            }
            ended += 1;
            if ended + at_once <= count {
                self.connect(WELCOME)?;
            }
        }
        let per_second = f64::from(count) / start.elapsed().as_secs_f64();
        let (left, counters) = (self.context.cm().occupancy(), self.context.counters().cm);
        println!(
            "{count} connections, {at_once} at once: {per_second:.0} per second, {} retries, {} left, \
             {} in TIMEWAIT",
            counters.retries, left.live, left.timewait
        );
        if left.live == 0 { Ok(()) } else { Err("connections were leaked".into()) }
    }
}

fn main() -> Result<()> {
    let (mut device, mut count, mut at_once) = ("lo".to_owned(), 20_000, 64);
    let mut words = std::env::args().skip(1);
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--device" => device = value,
            "--count" => count = value.parse()?,
            "--at-once" => at_once = value.parse()?,
            _ => return Err(format!("no such option: {option}").into()),
        }
    }
    let (server, end, requests) = open(&device)?;
    let everywhere = ServiceScope::Netdev(server.info().port.netdev_index);
    // As many as may be half-open.
    let listen = |service| server.cm().listen(service, everywhere, 1024);
    let unwelcome = listen(UNWELCOME)?;
    listen(WELCOME)?;
    listen(DATAGRAMS)?;
    let (context, _, told) = open(&device)?;
    let rows = context.gid_table();
    let row = rows.iter().find(|row| matches!(row.local.ip, IpAddr::V4(_))).or(rows.first());
    let gid: Gid = row.ok_or("the device has no address")?.gid;
    let mut client = Client { context, told, path: CmPath::new(gid, gid), connections: 0 };
    std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || serve(server, requests, unwelcome));
        let result = client.tour().and_then(|()| client.measure(count, at_once));
        end.send(None)?;
        result
    })
}

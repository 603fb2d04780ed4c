//! Queue pairs of iWARP devices on `lo`, connected within the process, and what their owner is
//! told.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use vernic_engine::iwarp::{
    Ending, Handshake, HandshakeState, Listener, RtrSet, StartupConfig, StartupState, StreamConfig,
    StreamSink, default_stream,
};
use vernic_engine::*;
use vernic_wire::iwarp::{MpaKey, MpaStart};

use super::{End, PATIENCE, test_config};

pub const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const AGREED: HandshakeState = HandshakeState::Startup(StartupState::Agreed);

pub fn end() -> End {
    end_with(test_config())
}

pub fn end_with(config: Config) -> End {
    End::on(Context::open_iwarp(Some("lo"), config).expect("lo can be opened"), None)
}

pub fn to_init(qp: &Qp) {
    let attr = QpAttr { state: QpState::Init, access: 0xF, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS).unwrap();
}

pub fn queue_pair(end: &End) -> Arc<Qp> {
    let qp = end.qp(Service::Rc);
    to_init(&qp);
    qp
}

/// Two connections whose start-up is complete: the initiator's end, and the responder's.
pub fn shake(a: &End, b: &End, ip: IpAddr, config: StartupConfig) -> (Handshake, Handshake) {
    let listener = Listener::bind(&b.context, SocketAddr::new(ip, 0), config).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut ours = Handshake::connect(&a.context, ip.into(), addr, config, b"question").unwrap();
    // TCP's own handshake first, then the request.
    let theirs = std::thread::scope(|scope| {
        let responder = scope.spawn(|| {
            let mut theirs = listener.wait(PATIENCE).unwrap().expect("a connection");
            let asked = HandshakeState::Startup(StartupState::Asked);
            assert_eq!(theirs.wait(PATIENCE).unwrap(), asked);
            assert_eq!(theirs.private(), b"question");
            theirs.accept(&config, b"answer").unwrap();
            assert_eq!(theirs.wait(PATIENCE).unwrap(), AGREED);
            theirs
        });
        assert_eq!(ours.wait(PATIENCE).unwrap(), AGREED);
        responder.join().unwrap()
    });
    assert_eq!(ours.private(), b"answer");
    (ours, theirs)
}

pub struct Pair {
    pub a_qp: Arc<Qp>,
    pub b_qp: Arc<Qp>,
    pub a: End,
    pub b: End,
}

pub fn pair_with(ip: IpAddr, startup: StartupConfig, stream: StreamConfig) -> Pair {
    let (a, b) = (end(), end());
    let (a_qp, b_qp) = (queue_pair(&a), queue_pair(&b));
    let (ours, theirs) = shake(&a, &b, ip, startup);
    theirs.start(&b_qp, stream).unwrap();
    ours.start(&a_qp, stream).unwrap();
    assert_eq!((a_qp.state(), b_qp.state()), (QpState::Rts, QpState::Rts));
    Pair { a_qp, b_qp, a, b }
}

pub fn startup() -> StartupConfig {
    StartupConfig { rtr: RtrSet::WRITE, ..StartupConfig::default() }
}

pub fn pair() -> Pair {
    pair_with(LO, startup(), default_stream())
}

pub fn recv(end: &End, qp: &Qp, wr_id: u64, offset: u64, length: u32) {
    qp.post_recv(&[RecvWr { wr_id, sges: &[end.sge(offset, length)] }]).unwrap();
}

/// Waits until a queue pair is in Error, which it reaches by itself.
pub fn until_error(end: &End, qp: &Qp) {
    let start = Instant::now();
    while qp.state() != QpState::Error {
        end.context.progress();
        assert!(start.elapsed() < PATIENCE, "it stays in {:?}", qp.state());
    }
}

/// News of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    Established,
    Ended(Ending),
}

/// An owner of a connection who notes what it is told.
#[derive(Default)]
pub struct Owner {
    news: Mutex<VecDeque<News>>,
    more: Condvar,
}

impl Owner {
    /// The next news. Waits without a call of the device.
    pub fn next(&self) -> News {
        let start = Instant::now();
        let mut news = self.news.lock().unwrap();
        loop {
            if let Some(one) = news.pop_front() {
                return one;
            }
            let left = PATIENCE.checked_sub(start.elapsed()).expect("nothing is told");
            news = self.more.wait_timeout(news, left).unwrap().0;
        }
    }

    /// Nothing more was told.
    pub fn is_done(&self) -> bool {
        self.news.lock().unwrap().is_empty()
    }

    fn note(&self, news: News) {
        self.news.lock().unwrap().push_back(news);
        self.more.notify_all();
    }
}

impl StreamSink for Owner {
    fn established(&self, _: Qpn) {
        self.note(News::Established);
    }
    fn ended(&self, _: Qpn, ending: Ending) {
        self.note(News::Ended(ending));
    }
}

/// A peer made by hand, without CRCs, whose start-up with a queue pair in Init is complete: its
/// socket.
pub fn raw_peer(
    end: &End,
    qp: &Qp,
    stream: StreamConfig,
    sink: Option<Arc<dyn StreamSink>>,
) -> TcpStream {
    let plain = StartupConfig { crc: false, ..startup() };
    let listener = Listener::bind(&end.context, SocketAddr::new(LO, 0), plain).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let request = MpaStart {
        key: MpaKey::Request,
        markers: false,
        crc: false,
        rejected: false,
        enhanced: false,
        reserved: 0,
        revision: 1,
        private_len: 0,
    };
    let mut bytes = [0; MpaStart::LEN];
    request.emit(&mut bytes);
    socket.write_all(&bytes).unwrap();
    let mut theirs = listener.wait(PATIENCE).unwrap().unwrap();
    theirs.wait(PATIENCE).unwrap();
    theirs.accept(&plain, &[]).unwrap();
    theirs.start_with(qp, stream, sink).unwrap();
    socket.read_exact(&mut bytes).unwrap();
    socket
}

//! What the tests of the engine share: an end of a connection on `lo` with memory of its own.
#![allow(dead_code, unreachable_pub, unsafe_code)]

pub mod cm;
pub mod direct;
pub mod iwarp;
pub mod near;
pub mod other;
pub mod stopped;
pub mod stranger;
pub mod toy;

use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_engine::*;
use vernic_mem::HostBuffer;

/// Longest time that anything in a test may take before the test gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of memory of each end.
pub const MEMORY: usize = 8 << 20;

/// A device on `lo`, a completion queue and registered memory.
pub struct End {
    pub memory: HostBuffer,
    pub mr: Arc<Mr>,
    pub cq: Arc<Cq>,
    pub pd: Arc<Pd>,
    pub context: Arc<Context>,
}

pub fn test_config() -> Config {
    let mut config = Config::default();
    config.set("takeover_us", "200").unwrap();
    // Either way for all tests: `VERNIC_SAME_HOST=off cargo test` has them go by the wire.
    if let Ok(value) = std::env::var("VERNIC_SAME_HOST") {
        config.set("same_host", &value).unwrap();
    }
    config
}

impl End {
    pub fn new() -> Self {
        Self::with(test_config())
    }

    pub fn with(config: Config) -> Self {
        Self::with_channel(config, None)
    }

    pub fn with_channel(config: Config, channel: Option<Arc<CompChannel>>) -> Self {
        let context = match &channel {
            Some(channel) => channel.context().clone(),
            None => Context::open(Some("lo"), config).expect("lo can be opened"),
        };
        Self::on(context, channel)
    }

    /// An end of a device that is open.
    pub fn on(context: Arc<Context>, channel: Option<Arc<CompChannel>>) -> Self {
        let pd = context.alloc_pd();
        let cq = context.create_cq(4096, channel.as_ref()).unwrap();
        let memory = HostBuffer::new(MEMORY).unwrap();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND
            | Access::FLUSH_GLOBAL;
        let addr = memory.as_mut_ptr();
        // SAFETY: the buffer lives in the same structure as the region and is dropped with it; it
        // is only accessed through `HostBuffer`, which does so racily by design.
        let mr = unsafe { pd.reg_mr(addr, MEMORY as u64, addr as u64, access) }.unwrap();
        Self { memory, mr, cq, pd, context }
    }

    /// The first row of IPv4 of port 1.
    pub fn gid(&self) -> (u8, Gid) {
        self.gid_of(PortNum(1))
    }

    /// The first row of IPv4 of a port.
    pub fn gid_of(&self, port: PortNum) -> (u8, Gid) {
        let mut rows = self.context.gid_table().into_iter();
        let row = rows.find(|row| row.port == port && row.local.ip.is_ipv4());
        let row = row.expect("the port has an IPv4 address");
        (row.index, row.gid)
    }

    pub fn qp(&self, service: Service) -> Arc<Qp> {
        self.qp_with(
            service,
            QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 256,
            },
            None,
        )
    }

    pub fn qp_with(&self, service: Service, cap: QpCap, srq: Option<Arc<Srq>>) -> Arc<Qp> {
        let init = QpInit {
            service,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq,
            cap,
            signal_all: false,
            congestion: None,
        };
        self.pd.create_qp(init).unwrap()
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.iova() + offset, length, lkey: self.mr.lkey() }
    }

    pub fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.mr.iova() + offset, rkey: self.mr.rkey() }
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.write_at(offset, bytes).unwrap();
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    /// Polls until `count` completions are there.
    pub fn wait(&self, count: usize) -> Vec<Wc> {
        self.wait_beside(count, || ())
    }

    /// As `wait`, doing something between two polls: the other end's progress, say.
    pub fn wait_beside(&self, count: usize, mut other: impl FnMut()) -> Vec<Wc> {
        let start = Instant::now();
        let mut got = Vec::new();
        let mut batch = [EMPTY_WC; 16];
        while got.len() < count {
            let n = self.cq.poll(&mut batch).unwrap();
            got.extend_from_slice(&batch[..n]);
            other();
            assert!(start.elapsed() < PATIENCE, "{} of {count} completions: {got:?}", got.len());
        }
        got
    }
}

/// A queue pair and the memory of its end, as a process tells another, which understands it.
pub fn describe(end: &End, qp: &Qp) -> String {
    format!("{} {} {}", qp.qpn().value(), end.mr.iova(), end.mr.rkey().value())
}

/// See [`describe`].
pub fn understand(line: &str) -> (Qpn, Remote) {
    let n: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (Qpn::new(n[0] as u32), Remote { addr: n[1], rkey: Rkey(n[2] as u32) })
}

/// What a connected queue pair is brought up with.
#[derive(Clone, Copy)]
pub struct Setup {
    pub mtu: Mtu,
    pub timeout: AckTimeout,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: RnrTimer,
    pub access: u32,
    pub service_level: u8,
    pub port: PortNum,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            mtu: Mtu::B4096,
            timeout: AckTimeout::new(12),
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(12),
            access: 0xF,
            service_level: 0,
            port: PortNum(1),
        }
    }
}

/// Takes a queue pair to RTS.
pub fn connect(end: &End, qp: &Qp, peer_gid: Gid, peer_qpn: Qpn, setup: Setup) {
    connect_with_psn(end, qp, peer_gid, peer_qpn, setup, Psn::new(0xFF_FFF0));
}

pub fn connect_with_psn(end: &End, qp: &Qp, peer_gid: Gid, peer_qpn: Qpn, setup: Setup, psn: Psn) {
    let attr = QpAttr {
        state: QpState::Init,
        access: setup.access,
        path_mtu: setup.mtu,
        dest_qpn: peer_qpn,
        rq_psn: psn,
        sq_psn: psn,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: setup.min_rnr_timer,
        timeout: setup.timeout,
        retry_cnt: setup.retry_cnt,
        rnr_retry: setup.rnr_retry,
        port: setup.port,
        av: AddressVector {
            dgid: peer_gid,
            sgid_index: end.gid_of(setup.port).0,
            port: setup.port,
            sl: setup.service_level,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    };
    use AttrMask as M;
    let responds = matches!(qp.qp_type(), QpType::Rc | QpType::XrcTgt);
    let requests = matches!(qp.qp_type(), QpType::Rc | QpType::XrcIni);
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let mut mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    if responds {
        mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    }
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, mask).unwrap();
    let mut mask = M::STATE | M::SQ_PSN;
    if requests {
        mask |= M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    }
    if qp.qp_type() == QpType::XrcTgt {
        mask |= M::TIMEOUT;
    }
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, mask).unwrap();
}

/// Takes a datagram queue pair to RTS.
pub fn bring_up_ud(qp: &Qp, qkey: Qkey) {
    use AttrMask as M;
    let attr = QpAttr { state: QpState::Init, qkey, ..QpAttr::default() };
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY).unwrap();
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, M::STATE).unwrap();
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, M::STATE | M::SQ_PSN).unwrap();
}

/// Two ends in one process and a connected queue pair on each.
pub struct Pair {
    pub a_qp: Arc<Qp>,
    pub b_qp: Arc<Qp>,
    pub a: End,
    pub b: End,
}

impl Pair {
    pub fn new(service: Service) -> Self {
        Self::with(service, Setup::default(), test_config(), test_config())
    }

    pub fn with(service: Service, setup: Setup, a: Config, b: Config) -> Self {
        let (a, b) = (End::with(a), End::with(b));
        let (a_qp, b_qp) = (a.qp(service), b.qp(service));
        connect(&a, &a_qp, b.gid().1, b_qp.qpn(), setup);
        connect(&b, &b_qp, a.gid().1, a_qp.qpn(), setup);
        Self { a_qp, b_qp, a, b }
    }
}

pub fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(sges),
        dest: None,
        srqn: None,
    }
}

/// Bytes that tell their place.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24) as u8)
        .collect()
}

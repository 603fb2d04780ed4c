//! An iWARP queue pair and a peer that is a plain TCP socket, for the tests of this folder.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use vernic_proto::{AttrMask, QpAttr, QpState};
use vernic_wire::Service;
use vernic_wire::iwarp::{MpaKey, MpaStart};

use crate::iwarp::{Listener, StartupConfig, StreamConfig, default_stream};
use crate::{Access, Config, Context, Cq, Mr, Pd, Qp, QpCap, QpInit, Sge};

/// The time after which a test that makes no progress fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of the device's memory that are registered: several long FPDUs.
pub(super) const MEMORY: u64 = 256 << 10;

/// The end of the connection under test. Nothing but the test makes progress.
pub(super) struct Fixture {
    pub(super) peer: TcpStream,
    pub(super) qp: Arc<Qp>,
    pub(super) mr: Arc<Mr>,
    pub(super) cq: Arc<Cq>,
    pub(super) context: Arc<Context>,
}

impl Fixture {
    /// Makes a queue pair in RTS, without CRCs, whose messages wait up to a minute for a receive.
    pub(super) fn new() -> Self {
        let context = Context::open_iwarp(Some("lo"), Config::default()).unwrap();
        context.stop_background();
        let pd: Arc<Pd> = context.alloc_pd();
        let cq = context.create_cq(64, None).unwrap();
        let (peer, qp) = queue_pair(&context, &pd, &cq);
        let dm = context.alloc_dm(MEMORY, 0).unwrap();
        let mr = pd.reg_dm_mr(&dm, 0, MEMORY, Access::LOCAL_WRITE).unwrap();
        Self { peer, qp, mr, cq, context }
    }

    /// Makes another queue pair of the same device, and its peer.
    pub(super) fn another(&self) -> (TcpStream, Arc<Qp>) {
        queue_pair(&self.context, &self.context.alloc_pd(), &self.cq)
    }

    pub(super) fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.iova(), length, lkey: self.mr.lkey() }
    }
}

/// Makes a queue pair in RTS, and its peer.
fn queue_pair(context: &Arc<Context>, pd: &Arc<Pd>, cq: &Arc<Cq>) -> (TcpStream, Arc<Qp>) {
    let init = QpInit {
        service: Service::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap { max_send_sge: 4, ..QpCap::default() },
        signal_all: true,
        congestion: None,
    };
    let qp = pd.create_qp(init).unwrap();
    let attr = QpAttr { state: QpState::Init, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
    (connect(context, &qp), qp)
}

/// Makes the peer, which has not sent its first message yet.
fn connect(context: &Arc<Context>, qp: &Qp) -> TcpStream {
    let plain = StartupConfig { crc: false, ..StartupConfig::default() };
    let home = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = Listener::bind(context, home, plain).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
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
    peer.write_all(&bytes).unwrap();
    let mut asked = listener.wait_request(PATIENCE).unwrap().unwrap();
    asked.accept(&plain, &[]).unwrap();
    let stream = StreamConfig { recv_wait_ns: 60_000_000_000, fence_ns: 1, ..default_stream() };
    asked.start(qp, stream).unwrap();
    peer.read_exact(&mut bytes).unwrap();
    peer
}

/// Makes the last FPDU of an untagged SEND (RFC 5044, 4.1; RFC 5041, 4.3; RFC 5040, 4.1).
pub(super) fn send_fpdu(msn: u32, payload: &[u8]) -> Vec<u8> {
    let len = 18 + payload.len() as u16;
    let mut fpdu = [&len.to_be_bytes()[..], &[0x41, 0x43]].concat();
    fpdu.extend([0; 4]);
    fpdu.extend([0; 4]);
    fpdu.extend(msn.to_be_bytes());
    fpdu.extend([0; 4]);
    fpdu.extend(payload);
    // Pad, and a CRC field that is not checked.
    fpdu.resize(fpdu.len().next_multiple_of(4) + 4, 0);
    fpdu
}

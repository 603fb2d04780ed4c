//! Datagram queue pairs by IP address and port: who answers, and who asks.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_cm::{ConnParam, EventKind, Id, Param};

use super::CmError;
use super::waiting::{OwnId, Told, data_of};
use crate::service::{Rts, Ud};
use crate::{Device, Gid, Path, Qkey, Qp, Qpn, SubnetPath};

/// Answers those who look for a datagram queue pair at a port. Dropping it refuses those that wait.
#[derive(Debug)]
pub struct DatagramListener(pub(super) OwnId);

impl DatagramListener {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// The next that asks; waits at most `timeout`, for ever without one.
    ///
    /// # Errors
    /// [`CmError::Timeout`], [`CmError::Wait`].
    pub fn next(&self, timeout: Option<Duration>) -> Result<DatagramRequest, CmError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        // Each turn takes an event; those of a listener are requests.
        loop {
            match self.0.wait(until)? {
                Told::Event(event) => {
                    if let Some(request) = Self::request(event)? {
                        return Ok(request);
                    }
                }
                Told::Nothing => {
                    let (peer, timeout) = (self.local_addr(), timeout.unwrap_or_default());
                    return Err(CmError::Timeout { peer, timeout });
                }
            }
        }
    }

    pub(super) fn request(event: vernic_cm::Event) -> Result<Option<DatagramRequest>, CmError> {
        if event.kind != EventKind::ConnectRequest {
            return Ok(None);
        }
        let id = event.id.clone();
        let (Some(context), Some(peer)) = (id.context(), id.peer_addr()) else { return Ok(None) };
        let device = Device::of(context, id.local_addr().map(|addr| addr.ip()));
        let private_data = data_of(event.param);
        Ok(Some(DatagramRequest { id, device, peer, private_data }))
    }
}

impl AsFd for DatagramListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for DatagramListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Somebody who asks for a datagram queue pair. Dropping it refuses it.
#[derive(Debug)]
pub struct DatagramRequest {
    id: Arc<Id>,
    device: Device,
    peer: SocketAddr,
    private_data: Vec<u8>,
}

impl DatagramRequest {
    /// The device that it came to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Who asks.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// What its program says: 180 bytes, those that it did not use are zero.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Names a queue pair and its key, with at most 136 bytes for the asker's program.
    ///
    /// # Errors
    /// [`CmError::Refused`]: too many bytes, or the asker has given up.
    pub fn accept(self, qp: &Qp<Ud, Rts>, private_data: &[u8]) -> Result<(), CmError> {
        let (qp_num, qkey) = (Some(qp.qpn()), qp.attributes().qkey);
        Ok(self.id.accept(&ConnParam { private_data, qp_num, qkey, ..ConnParam::default() })?)
    }

    /// Refuses, with at most 136 bytes for the asker's program.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        Ok(self.id.reject(private_data)?)
    }
}

/// A datagram queue pair, as its listener named it.
///
/// ```no_run
/// # use std::time::Duration;
/// # use vernic::{Error, Inline, Qp, Rts, Ud, UdInit, WrId, cm};
/// # fn main() -> Result<(), Error> {
/// let manager = cm::Manager::open()?;
/// let peer = manager.find("10.0.0.7:7174".parse().unwrap(), b"", Duration::from_secs(5))?;
/// let (pd, cq) = (peer.device().alloc_pd()?, peer.device().create_cq(16)?);
/// let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq).create()?;
/// let qp = qp.init(UdInit { qkey: cm::UDP_QKEY })?.activate()?;
/// let there = pd.create_ah_with(peer.gid, &peer.path)?;
/// qp.post_send_to(WrId(1), Inline(b"hello"), there.to(peer.qpn, peer.qkey))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatagramPeer {
    device: Device,
    /// Where it is.
    pub gid: Gid,
    /// How to get there.
    pub path: Path,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
    /// What the listener's program says: 136 bytes, those that it did not use are zero.
    pub private_data: Vec<u8>,
}

impl DatagramPeer {
    pub(super) fn new(own: &OwnId, param: Param) -> Result<Self, CmError> {
        let device = own.device()?;
        let Param::Ud(info) = param else {
            return Err(CmError::Unreachable { peer: own.peer_addr(), fabric: own.fabric() });
        };
        let path = Path {
            gid_index: Some(info.av.sgid_index),
            hop_limit: info.av.hop_limit,
            traffic_class: info.av.traffic_class,
            flow_label: info.av.flow_label,
            pkey_index: 0,
            static_rate: info.av.static_rate,
            service_level: info.av.sl,
            subnet: info.av.dlid.is_unicast().then_some(SubnetPath {
                dlid: info.av.dlid,
                path_bits: info.av.path_bits,
                is_global: !info.av.dgid.is_zero(),
            }),
        };
        let vernic_cm::UdInfo { private_data, av, qp_num: qpn, qkey, .. } = info;
        Ok(Self { device, gid: av.dgid, path, qpn, qkey, private_data })
    }

    /// The device that reaches it.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

//! A UD queue pair on one local address, with the slots of what it sends and receives.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use vernic_cm::{Id, PortSpace, QpType, UDP_QKEY};
use vernic_engine::{
    Ah, CompChannel, Cq, Dest, EMPTY_WC, Payload, Pd, PortNum, Qp, QpCap, QpInit, Qpn, RecvWr,
    SendFlags, SendOp, SendWr, Service, Transport, Wc, WcStatus,
};
use vernic_wire::Gid;

use super::destination::{Destination, Origin, vector_of_address};
use crate::Error;
use crate::memory::{GRH_BYTES, SlotMemory};
use crate::pieces::Outgoing;
use crate::shared::Shared;
use crate::wake::lock;
use crate::wire::DatagramHeader;

/// Bytes of a slot: header and payload of the longest datagram that peers of this protocol take.
pub(super) const SLOT_BYTES: usize = 2048;

/// Completions taken at once.
const BATCH: usize = 16;

/// Bit of the numbers of receive work requests; those of sends have it clear. The rest is the slot.
const RECV: u64 = 1 << 63;

/// A datagram that waits in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) slot: usize,
    /// Bytes, header included.
    pub(super) len: usize,
    /// Whose queue pair sent it, as the header says, and as the device knows it to be true.
    pub(super) source: SocketAddr,
    pub(super) src_qpn: Qpn,
    pub(super) origin: Origin,
}

/// What changes of a port.
#[derive(Debug)]
struct Core {
    /// Slots that nothing is sent from.
    free: Vec<usize>,
    armed: bool,
}

/// A queue pair for datagrams.
#[derive(Debug)]
pub(super) struct Port {
    /// The address, and the port of the UDP socket: the source that peers see.
    pub(super) source: SocketAddr,
    core: Mutex<Core>,
    id: Arc<Id>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    pd: Arc<Pd>,
    sends: usize,
    /// Longest message, bytes.
    mtu: usize,
    /// Whether ports have LIDs: on InfiniBand.
    has_subnet: bool,
    /// After what refers to it, so that it is dropped later. First the slots to send from.
    memory: SlotMemory,
}

impl Port {
    /// A queue pair on the device that has the address of `source`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        source: SocketAddr,
        sends: usize,
        receives: usize,
    ) -> Result<Self, Error> {
        let id = shared.manager.create_id(Some(&shared.channel), PortSpace::UDP, QpType::Ud)?;
        let mut home = source;
        // The port is that of the UDP socket, which the system guards.
        home.set_port(0);
        id.bind_addr(home)?;
        let context = id.context().ok_or(Error::NotConnected)?;
        let pd = context.alloc_pd();
        let memory = SlotMemory::new(&pd, sends + receives, SLOT_BYTES)?;
        let channel = context.create_channel()?;
        let cq = context.create_cq((sends + receives) as u32, Some(&channel))?;
        let qp = pd.create_qp(QpInit {
            service: Service::Ud,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: sends as u32,
                max_recv_wr: receives as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
            congestion: None,
        })?;
        id.attach_qp(qp.clone())?;
        let port_num = id.place().port.unwrap_or(PortNum(1));
        let port_attr = context.port_attr(port_num).map_err(vernic_engine::CreateError::from)?;
        let has_subnet = context.info().transport == Transport::InfiniBand;
        let mtu = port_attr.active_mtu.bytes() as usize;
        let core = Mutex::new(Core { free: (0..sends).collect(), armed: false });
        let port = Self { source, core, id, qp, cq, channel, pd, sends, mtu, has_subnet, memory };
        (sends..sends + receives).try_for_each(|slot| port.post_recv(slot))?;
        Ok(port)
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Longest datagram that goes through the queue pair to a peer, header not counted.
    pub(super) fn max_payload(&self, to: &Destination) -> usize {
        self.mtu.min(to.mtu).min(SLOT_BYTES) - self.header().len()
    }

    /// Whether the ways to peers are those of an InfiniBand subnet.
    pub(super) fn has_subnet(&self) -> bool {
        self.has_subnet
    }

    fn header(&self) -> DatagramHeader {
        DatagramHeader { source: self.source }
    }

    /// The way to a peer's address on RoCE.
    pub(super) fn destination(&self, to: IpAddr) -> Result<Destination, Error> {
        let row = self.id.local_gid_index().unwrap_or(0);
        let ah = self.pd.create_ah(vector_of_address(Gid::from_ip(to), row))?;
        Ok(Destination::of_address(ah))
    }

    /// The way that an id of the port's own address has found.
    pub(super) fn destination_of(&self, id: &Id) -> Result<Destination, Error> {
        let (Some(av), Some(path)) = (id.address_vector(), id.path()) else {
            return Err(Error::NotConnected);
        };
        let mtu = id.place().mtu.map_or(self.mtu, |mtu| mtu.bytes() as usize);
        Ok(Destination::of_path(self.pd.create_ah(av)?, mtu, &path))
    }

    /// The channel's descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    pub(super) fn arm(&self) {
        let mut core = lock(&self.core);
        if !core.armed {
            core.armed = true;
            self.cq.req_notify(false);
        }
    }

    pub(super) fn take_events(&self) {
        let mut core = lock(&self.core);
        // At most one turn per arming.
        while self.channel.try_next().is_some() {
            core.armed = false;
        }
    }

    /// Whether a datagram could be sent now.
    pub(super) fn can_send(&self) -> bool {
        !lock(&self.core).free.is_empty()
    }

    /// Whether everything that was sent has left.
    pub(super) fn is_flushed(&self) -> bool {
        lock(&self.core).free.len() == self.sends
    }

    /// Takes completions; `arrived` gets the datagrams, or why one is none, and says whether it
    /// keeps the slot. Whether there were any. `with_progress`: also makes progress on the caller's
    /// thread, if nothing has completed.
    pub(super) fn progress(
        &self,
        with_progress: bool,
        mut arrived: impl FnMut(Result<Arrived, Error>) -> bool,
    ) -> bool {
        let mut any = false;
        // Each turn takes some entries of the bounded queue.
        while with_progress || self.cq.waiting() != 0 {
            let mut wcs = [EMPTY_WC; BATCH];
            let count = self.cq.poll(&mut wcs).unwrap_or(0);
            for wc in &wcs[..count] {
                let slot = (wc.wr_id & !RECV) as usize;
                if wc.wr_id & RECV == 0 {
                    lock(&self.core).free.push(slot);
                    continue;
                }
                let len = (wc.byte_len as usize).checked_sub(GRH_BYTES);
                let good = len.filter(|_| wc.status == WcStatus::Success);
                if !good.is_some_and(|len| arrived(self.arrived(slot, len, wc))) {
                    let _ = self.post_recv(slot);
                }
            }
            any |= count != 0;
            if count < BATCH {
                break;
            }
        }
        any
    }

    /// What has come into a slot, if its header tells the truth: programs believe where a datagram
    /// is from. On InfiniBand no packet has its sender's IP address, and the way there tells.
    fn arrived(&self, slot: usize, len: usize, wc: &Wc) -> Result<Arrived, Error> {
        let source = self.header_of(slot, len)?.source;
        let (grh, src_qpn) = (self.memory.grh(slot), wc.src_qpn);
        let sender = source_of(&grh, source.is_ipv4());
        match self.has_subnet || sender == Some(source.ip()) {
            true => Ok(Arrived { slot, len, source, src_qpn, origin: Origin::new(wc, &grh) }),
            false => Err(Error::Forged { claimed: source, sender, src_qpn }),
        }
    }

    /// The header of a datagram in a slot.
    fn header_of(&self, slot: usize, len: usize) -> Result<DatagramHeader, Error> {
        let mut bytes = [0; DatagramHeader::MAX_LEN];
        let len = len.min(bytes.len());
        self.memory.read(slot, 0, &mut bytes[..len]);
        let wire = |error: crate::wire::WireError| Error::Protocol(error.into());
        let header = DatagramHeader::parse(&bytes[..len]).map_err(wire)?;
        Ok(header)
    }

    /// Place and length of the payload of the datagram in a slot.
    pub(super) fn payload(at: &Arrived) -> (usize, usize) {
        let start = DatagramHeader { source: at.source }.len();
        (start, at.len.saturating_sub(start))
    }

    /// Copies bytes of the slot, counted from the header.
    pub(super) fn read(&self, at: &Arrived, offset: usize, to: &mut [u8]) {
        self.memory.read(at.slot, offset, to);
    }

    /// Gives a slot back to the queue pair.
    pub(super) fn post_recv(&self, slot: usize) -> Result<(), Error> {
        let sges = [self.memory.recv_sge(slot)];
        Ok(self.qp.post_recv(&[RecvWr { wr_id: RECV | slot as u64, sges: &sges }])?)
    }

    /// Sends a datagram of at most [`max_payload`](Self::max_payload) bytes; false if there is no
    /// room.
    pub(super) fn send(
        &self,
        to: &Ah,
        qpn: Qpn,
        payload: &mut Outgoing<'_>,
    ) -> Result<bool, Error> {
        let Some(slot) = lock(&self.core).free.pop() else { return Ok(false) };
        let header = self.header();
        let mut bytes = [0; DatagramHeader::MAX_LEN];
        header.emit(&mut bytes);
        let mut len = header.len();
        self.memory.write(slot, 0, &bytes[..len]);
        payload.copy(SLOT_BYTES - len, |piece| {
            self.memory.write(slot, len, piece);
            len += piece.len();
        });
        let sges = [self.memory.sge(slot, len)];
        let wr = SendWr {
            wr_id: slot as u64,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: Some(Dest { ah: to, qpn, qkey: UDP_QKEY }),
            srqn: None,
        };
        if let Err(error) = self.qp.post_send(&[wr]) {
            lock(&self.core).free.push(slot);
            let what = "send a datagram";
            return Err(Error::Os { what, source: std::io::Error::other(error) });
        }
        Ok(true)
    }
}

/// The sender's address in the GRH of a datagram, or in what RoCEv2 has in its place (IBTA
/// A17.4.5.2): an IPv6 header, or 20 bytes of nothing and an IPv4 header.
fn source_of(grh: &[u8; GRH_BYTES], is_ipv4: bool) -> Option<IpAddr> {
    let version = |at: usize| grh[at] >> 4;
    match is_ipv4 {
        true => {
            let source: [u8; 4] = grh[32..36].try_into().ok().filter(|_| version(20) == 4)?;
            Some(source.into())
        }
        false => {
            let source: [u8; 16] = grh[8..24].try_into().ok().filter(|_| version(0) == 6)?;
            Some(source.into())
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.id.destroy();
    }
}

//! Connections of connected mode (RFC 4755): messages of communication management, reliable queue
//! pairs, and their memory.
//!
//! All queue pairs share a receive queue, a completion queue, and the memory of what is sent. One
//! that has ended is in error until its completions were taken: so no receive of the shared queue
//! is lost with it.
//!
//! Limits: as many connections as the machine has (`max_connections`); [`RECEIVES`] and [`SENDS`]
//! messages of all of them. When all sends are under way, the host's packets wait.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, PoisonError};

use vernic::{
    Access, AckTimeout, CompChannel, Cq, Device, Endpoint, Init, InitAttr, Mr, MrSlice, Mtu, Path,
    Pd, Psn, Qp, Qpn, Rc, RcRtr, RcRts, RnrTimer, Rts, Srq, StaticRate, SubnetPath, Wc, WrId,
};
use vernic_engine::{CmAgent, CmSink, ServiceScope};
use vernic_ipoib::{ConnectionId, Interface};
use vernic_proto::QpType;
use vernic_proto::Time;
use vernic_proto::cm::{AcceptParams, CmPath, ConnId, ConnectParams, Event, EventKind, LidPath};
use vernic_wire::cm::{FailoverAccepted, RejReason, Rep, Req};
use vernic_wire::ipoib::{ConnectedData, HardwareAddress, service_id};
use vernic_wire::sa::PathRecord;
use vernic_wire::{Gid, Guid};

/// Bytes of the longest message: the longest packet, and its encapsulation.
pub(crate) const MESSAGE: usize = 65_520 + 4;
/// Bytes between the places of messages.
const STRIDE: usize = 65_536;
/// Receives that are posted, of all connections.
const RECEIVES: usize = 128;
/// Messages that may be on their way out, of all connections.
const SENDS: usize = 64;
/// Completions that are taken at once.
const AT_ONCE: usize = 64;
/// Marks the work requests that are sends.
const IS_SEND: u64 = 1 << 32;
/// How long a queue pair that has ended stays, in nanoseconds: what it had begun completes
/// meanwhile.
const LINGER: u64 = 1_000_000_000;
/// Requests that wait to be answered.
const BACKLOG: usize = 1024;
/// How often a request is repeated, at first after half a second: packets wait meanwhile.
const REPEATS: u8 = 4;
/// How long a packet waits for its acknowledgement: 0.27 s, for a machine that is busy.
const ACK_TIMEOUT: AckTimeout = AckTimeout::new(16);
/// How often a packet is repeated, before the peer counts as gone: 2 s in all.
const RETRIES: u8 = 7;
/// For ever: a peer without receives is there, and takes the next message when it can.
const RNR_RETRIES: u8 = 7;
/// What a peer waits when there is no receive: 0.64 ms.
const MIN_RNR_TIMER: RnrTimer = RnrTimer::new(12);

/// Events of communication management, which another thread may bring.
#[derive(Debug)]
struct Inbox {
    events: Mutex<VecDeque<Event>>,
    bell: UnixDatagram,
}

impl CmSink for Inbox {
    fn event(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        // A bell that is full was rung.
        let _ = self.bell.send(&[1]);
    }
}

/// How far a queue pair is.
#[derive(Debug)]
enum Stage {
    /// Waits for the peer's answer, which names the PSN to start with.
    Asked(Qp<Rc, Init>, Route),
    /// Sends and receives.
    Works(Qp<Rc, Rts>),
    /// Being changed, or that failed.
    Gone,
}

/// How a queue pair gets to its peer.
#[derive(Clone, Copy, Debug)]
struct Route {
    remote: Gid,
    path: Path,
    mtu: Mtu,
    /// First PSN that we receive.
    psn: Psn,
}

#[derive(Debug)]
struct Link {
    conn: ConnId,
    qpn: Qpn,
    stage: Stage,
    /// Whether both ends know that the connection is up.
    is_up: bool,
}

/// The connections of an interface.
pub(crate) struct Connections {
    device: Device,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    incoming: Mr,
    outgoing: Mr,
    /// Parts of `outgoing` that no message is in.
    free: Vec<u32>,
    inbox: Arc<Inbox>,
    rung: UnixDatagram,
    links: BTreeMap<ConnectionId, Link>,
    by_conn: BTreeMap<ConnId, ConnectionId>,
    by_qpn: BTreeMap<Qpn, ConnectionId>,
    /// Queue pairs that have ended, whose completions may still be there.
    ended: Vec<(Time, Stage)>,
    last_psn: Psn,
    adapter: Guid,
    wcs: Vec<Wc>,
    bytes: Vec<u8>,
}

impl Connections {
    /// Makes what connections share, and listens for requests for the interface with a queue pair
    /// of datagrams.
    ///
    /// # Errors
    /// Why there are no connections, in words.
    pub(crate) fn open(
        device: &Device,
        channel: &CompChannel,
        (adapter, qpn): (Guid, Qpn),
    ) -> Result<Self, String> {
        let (bell, rung) = UnixDatagram::pair().map_err(words)?;
        for end in [&bell, &rung] {
            end.set_nonblocking(true).map_err(words)?;
        }
        let inbox = Arc::new(Inbox { events: Mutex::default(), bell });
        let made = Self::make(device, channel, (adapter, inbox, rung)).map_err(words)?;
        let agent = made.agent();
        agent.attach(made.inbox.clone()).map_err(words)?;
        // Of InfiniBand a service at any netdev is one at all addresses.
        let listening = agent.listen(service_id(qpn), ServiceScope::Netdev(0), BACKLOG);
        listening.map_err(words)?;
        Ok(made)
    }
    fn make(
        device: &Device,
        channel: &CompChannel,
        (adapter, inbox, rung): (Guid, Arc<Inbox>, UnixDatagram),
    ) -> Result<Self, vernic::Error> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq_on((RECEIVES + SENDS) as u32, channel)?;
        let srq = pd.create_srq(RECEIVES as u32, 1)?;
        let incoming = pd.alloc_mr(STRIDE * RECEIVES, Access::NONE.local_write())?;
        let outgoing = pd.alloc_mr(STRIDE * SENDS, Access::NONE)?;
        for at in 0..RECEIVES {
            srq.post_recv(WrId(at as u64), place(&incoming, at, STRIDE)?)?;
        }
        Ok(Self {
            device: device.clone(),
            pd,
            cq,
            srq,
            incoming,
            outgoing,
            free: (0..SENDS as u32).rev().collect(),
            inbox,
            rung,
            links: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            ended: Vec::new(),
            last_psn: Psn::new(0),
            adapter,
            wcs: vec![Wc::default(); AT_ONCE],
            bytes: vec![0; STRIDE],
        })
    }
    fn agent(&self) -> &CmAgent {
        self.device.connection_manager()
    }

    /// Whether a message can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// Why not; it is as if the peer had refused.
    pub(crate) fn connect(
        &mut self,
        id: ConnectionId,
        peer: HardwareAddress,
        record: &PathRecord,
        (data, pkey_index): (ConnectedData, u16),
    ) -> Result<(), String> {
        let lmc = self.device.port().link.map_or(0, |link| link.lmc);
        let path = path_of(record, lmc);
        let psn = self.next_psn();
        let mtu = self.mtu_of(Mtu::from_code(record.mtu.value));
        let qp = self.queue_pair(pkey_index)?;
        let asked = self.agent().connect(&ConnectParams {
            path,
            alternate: None,
            service: service_id(peer.qpn),
            qp_type: QpType::Rc,
            local_qpn: qp.qpn(),
            starting_psn: psn,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: RETRIES,
            rnr_retry_count: RNR_RETRIES,
            srq: true,
            path_mtu: mtu,
            pkey: record.pkey,
            local_ack_timeout: ACK_TIMEOUT,
            local_ca_guid: self.adapter.0,
            private_data: &data.to_bytes(),
            response_timeout: None,
            max_retries: Some(REPEATS),
        });
        let route = Route { remote: record.dgid, path: subnet_path(&path), mtu, psn };
        let conn = asked.map_err(words)?;
        self.insert(id, conn, qp.qpn(), Stage::Asked(qp, route));
        Ok(())
    }
    /// Ends a connection, and tells the peer.
    pub(crate) fn disconnect(&mut self, now: Time, id: ConnectionId) {
        if let Some(conn) = self.remove(now, id) {
            self.agent().destroy(conn);
        }
    }
    /// Takes what communication management has to tell. Returns how many events there were.
    pub(crate) fn handle_events(
        &mut self,
        interface: &mut Interface,
        now: Time,
        pkey_index: u16,
    ) -> usize {
        while self.rung.recv(&mut [0; 1]).is_ok() {}
        let taken =
            std::mem::take(&mut *self.inbox.events.lock().unwrap_or_else(PoisonError::into_inner));
        let count = taken.len();
        for event in taken {
            self.handle_event(interface, now, event, pkey_index);
        }
        count
    }

    fn handle_event(
        &mut self,
        interface: &mut Interface,
        now: Time,
        Event { conn, kind }: Event,
        pkey_index: u16,
    ) {
        let id = self.by_conn.get(&conn).copied();
        match (kind, id) {
            (EventKind::Request { path, req, .. }, _) => {
                self.answer(interface, now, (conn, &path, &req), pkey_index);
                self.agent().request_taken(conn);
            }
            (EventKind::Reply { rep }, Some(id)) => match self.establish(id, &rep) {
                Ok(data) => interface.handle_connected(now, id, Some(data)),
                Err(error) => {
                    tracing::debug!(?id, error, "a connection does not come about");
                    let _ = self.agent().reject(conn, RejReason::CONSUMER, &[], &[]);
                    self.end(interface, now, id);
                }
            },
            (EventKind::Established { .. }, Some(id)) => self.note_up(interface, now, id),
            (EventKind::DisconnectRequest { .. }, id) => {
                let _ = self.agent().disconnect(conn, &[]);
                id.into_iter().for_each(|id| self.end(interface, now, id));
            }
            (
                EventKind::Rejected { .. }
                | EventKind::Unreachable { .. }
                | EventKind::Disconnected
                | EventKind::HalfOpenDropped,
                Some(id),
            ) => self.end(interface, now, id),
            // Nobody asks for datagrams of a service here.
            (EventKind::SidrRequest { .. }, _) => self.agent().destroy(conn),
            _ => {}
        }
    }
    fn end(&mut self, interface: &mut Interface, now: Time, id: ConnectionId) {
        self.remove(now, id);
        interface.handle_disconnected(now, id);
    }
    /// Both ends know of a connection that we have accepted.
    fn note_up(&mut self, interface: &mut Interface, now: Time, id: ConnectionId) {
        let link = self.links.get_mut(&id);
        if link.is_some_and(|link| !std::mem::replace(&mut link.is_up, true)) {
            interface.handle_connected(now, id, None);
        }
    }

    /// Answers a peer's request.
    fn answer(
        &mut self,
        interface: &mut Interface,
        now: Time,
        (conn, path, req): (ConnId, &CmPath, &Req),
        pkey_index: u16,
    ) {
        let reject = |this: &Self, data: &[u8]| {
            let _ = this.agent().reject(conn, RejReason::CONSUMER, &[], data);
        };
        let Ok(data) = ConnectedData::parse(req.private_data.as_bytes()) else {
            return reject(self, &[]);
        };
        let (id, ours) = match interface.handle_connect_request(now, req.primary.local_gid, data) {
            Ok(accepted) => accepted,
            Err(ours) => return reject(self, &ours.to_bytes()),
        };
        if let Err(error) = self.accept(id, (conn, path, req), ours, pkey_index) {
            tracing::debug!(?id, %error, "a connection is not accepted");
            reject(self, &ours.to_bytes());
            self.end(interface, now, id);
        }
    }
    fn accept(
        &mut self,
        id: ConnectionId,
        (conn, path, req): (ConnId, &CmPath, &Req),
        data: ConnectedData,
        pkey_index: u16,
    ) -> Result<(), String> {
        let psn = self.next_psn();
        let mtu = self.mtu_of(Mtu::from_code(req.path_mtu));
        let route = Route { remote: path.remote, path: subnet_path(path), mtu, psn };
        let qp = self.queue_pair(pkey_index)?;
        let qpn = qp.qpn();
        let qp = bring_up(qp, &route, (req.local_qpn, req.starting_psn), req.rnr_retry_count)?;
        let accepted = self.agent().accept(
            conn,
            &AcceptParams {
                local_qpn: qpn,
                starting_psn: psn,
                responder_resources: 0,
                initiator_depth: 0,
                flow_control: false,
                failover: FailoverAccepted::ACCEPTED,
                rnr_retry_count: RNR_RETRIES,
                srq: true,
                target_ack_delay: 0,
                local_ca_guid: self.adapter.0,
                private_data: &data.to_bytes(),
            },
        );
        accepted.map_err(words)?;
        self.insert(id, conn, qpn, Stage::Works(qp));
        Ok(())
    }
    /// Takes the peer's answer to our request.
    fn establish(&mut self, id: ConnectionId, rep: &Rep) -> Result<ConnectedData, String> {
        let data = ConnectedData::parse(rep.private_data.as_bytes());
        let data = data.map_err(words)?;
        let link = self.links.get_mut(&id).ok_or("it has ended")?;
        let conn = link.conn;
        let Stage::Asked(qp, route) = std::mem::replace(&mut link.stage, Stage::Gone) else {
            return Err("it was answered before".to_owned());
        };
        let peer = (rep.local_qpn, rep.starting_psn);
        let qp = bring_up(qp, &route, peer, rep.rnr_retry_count);
        link.stage = Stage::Works(qp?);
        link.is_up = true;
        self.agent().ready_to_use(conn, &[]).map_err(words)?;
        Ok(data)
    }

    fn queue_pair(&self, pkey_index: u16) -> Result<Qp<Rc, Init>, String> {
        let qp = self.pd.qp::<Rc>().send_cq(&self.cq).recv_cq(&self.cq).srq(&self.srq);
        let qp = qp.max_send_wr(SENDS as u32).create().map_err(words)?;
        qp.with_pkey_index(pkey_index).init(InitAttr::default()).map_err(words)
    }
    /// Returns a PSN to start with, far from the last one.
    fn next_psn(&mut self) -> Psn {
        self.last_psn = Psn::new(self.last_psn.value().wrapping_add(0x0012_3457) & 0x00FF_FFFF);
        self.last_psn
    }
    fn mtu_of(&self, path: Option<Mtu>) -> Mtu {
        let port = self.device.port().active_mtu;
        path.map_or(port, |path| path.min(port))
    }
    fn insert(&mut self, id: ConnectionId, conn: ConnId, qpn: Qpn, stage: Stage) {
        self.by_conn.insert(conn, id);
        self.by_qpn.insert(qpn, id);
        self.links.insert(id, Link { conn, qpn, stage, is_up: false });
    }
    fn remove(&mut self, now: Time, id: ConnectionId) -> Option<ConnId> {
        let Link { conn, qpn, stage, .. } = self.links.remove(&id)?;
        self.by_conn.remove(&conn);
        self.by_qpn.remove(&qpn);
        if let Stage::Works(qp) = &stage {
            // What it has begun completes with an error, and is taken with the rest.
            let _ = qp.fail();
        }
        self.ended.push((now + LINGER, stage));
        Some(conn)
    }

    /// Sends a message of these parts. Without room it is lost, as on any wire.
    pub(crate) fn send(
        &mut self,
        id: ConnectionId,
        parts: [&[u8]; 2],
    ) -> Result<(), vernic::Error> {
        let len = parts[0].len() + parts[1].len();
        let Some(Link { stage: Stage::Works(qp), .. }) = self.links.get(&id) else { return Ok(()) };
        if len > MESSAGE {
            return Ok(());
        }
        let Some(at) = self.free.pop() else { return Ok(()) };
        let start = at as usize * STRIDE;
        self.outgoing.write_at(start, parts[0])?;
        self.outgoing.write_at(start + parts[0].len(), parts[1])?;
        let bytes = self.outgoing.slice(start..start + len)?;
        if let Err(error) = qp.post_send(WrId(IS_SEND | u64::from(at)), bytes) {
            // It has failed, and its completions say so.
            tracing::debug!(?id, %error, "a message is not sent");
            self.free.push(at);
        }
        Ok(())
    }
    /// Takes what has completed, and hands each message to `take`. Returns how many completions
    /// there were.
    pub(crate) fn receive(
        &mut self,
        interface: &mut Interface,
        now: Time,
        mut take: impl FnMut(&mut Interface, ConnectionId, &[u8]),
    ) -> Result<usize, vernic::Error> {
        let mut wcs = std::mem::take(&mut self.wcs);
        let count = self.cq.poll(&mut wcs)?.len();
        for wc in &wcs[..count] {
            let id = self.by_qpn.get(&wc.qpn()).copied();
            if wc.wr_id().0 & IS_SEND != 0 {
                self.free.push((wc.wr_id().0 & !IS_SEND) as u32);
            } else {
                self.take_receive(interface, now, (id, wc), &mut take)?;
            }
            if let Some(id) = id.filter(|_| !wc.is_success()) {
                tracing::debug!(?id, status = ?wc.status(), "a connection has failed");
                self.disconnect(now, id);
                interface.handle_disconnected(now, id);
            }
        }
        self.wcs = wcs;
        if count == 0 {
            self.ended.retain(|(until, _)| now < *until);
        }
        Ok(count)
    }
    fn take_receive(
        &mut self,
        interface: &mut Interface,
        now: Time,
        (id, wc): (Option<ConnectionId>, &Wc),
        take: &mut impl FnMut(&mut Interface, ConnectionId, &[u8]),
    ) -> Result<(), vernic::Error> {
        let at = wc.wr_id().0 as usize;
        if let Some(id) = id.filter(|_| wc.is_success()) {
            let len = (wc.byte_len() as usize).min(STRIDE);
            self.incoming.read_at(at * STRIDE, &mut self.bytes[..len])?;
            // A message may come before the last word of the handshake, or in its place.
            let link = self.links.get(&id).filter(|link| !link.is_up);
            if let Some(conn) = link.map(|link| link.conn) {
                let _ = self.agent().notify_established(conn);
                self.note_up(interface, now, id);
            }
            take(interface, id, &self.bytes[..len]);
        }
        self.srq.post_recv(WrId(at as u64), place(&self.incoming, at, STRIDE)?)?;
        Ok(())
    }

    /// Asks to be woken by the next completion or event; those that are there do not wake.
    pub(crate) fn arm(&self) {
        self.cq.arm();
        self.agent().about_to_wait();
    }
}

/// The descriptor that is readable when communication management has something to tell.
impl AsFd for Connections {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for link in self.links.values() {
            self.agent().destroy(link.conn);
        }
    }
}

/// Brings a queue pair up, whose peer has that number and starts with that PSN.
fn bring_up(
    qp: Qp<Rc, Init>,
    route: &Route,
    (qpn, starts): (Qpn, Psn),
    rnr_retry: u8,
) -> Result<Qp<Rc, Rts>, String> {
    let remote = Endpoint { qpn, psn: route.psn, gid: route.remote, mtu: route.mtu };
    let answers = qp.rtr(RcRtr {
        remote,
        path: route.path,
        path_mtu: route.mtu,
        max_dest_rd_atomic: 0,
        min_rnr_timer: MIN_RNR_TIMER,
    });
    let rts = RcRts { timeout: ACK_TIMEOUT, retry_cnt: RETRIES, rnr_retry, max_rd_atomic: 0 };
    answers.map_err(words)?.with_psn(starts).rts(rts).map_err(words)
}

/// The path of a record, as messages of communication management have it.
fn path_of(record: &PathRecord, lmc: u8) -> CmPath {
    let lids = LidPath {
        port: crate::port::PORT,
        local: record.slid,
        remote: record.dlid,
        service_level: record.service_level.value(),
        lmc,
        is_global: record.hop_limit > 1,
        rate: record.rate.value,
    };
    CmPath {
        traffic_class: record.traffic_class,
        hop_limit: record.hop_limit,
        flow_label: record.flow_label,
        pkey: record.pkey,
        lids: Some(lids),
        ..CmPath::new(record.sgid, record.dgid)
    }
}

/// The path of a queue pair.
fn subnet_path(path: &CmPath) -> Path {
    let lids = path.lids.unwrap_or_default();
    let subnet =
        SubnetPath { dlid: lids.remote, path_bits: lids.path_bits(), is_global: lids.is_global };
    Path {
        gid_index: None,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        flow_label: path.flow_label,
        pkey_index: 0,
        static_rate: StaticRate(lids.rate).known_or_max(),
        service_level: lids.service_level,
        subnet: Some(subnet),
    }
}

/// Part `at` of memory that has parts of `len` bytes.
fn place(mr: &Mr, at: usize, len: usize) -> Result<MrSlice<'_>, vernic::Error> {
    Ok(mr.slice(at * len..(at + 1) * len)?)
}

fn words(error: impl fmt::Display) -> String {
    error.to_string()
}

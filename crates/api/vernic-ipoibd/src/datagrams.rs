//! The queue pair of datagrams of an interface: its memory, and handles of where datagrams go.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use vernic::{
    Access, AddressVector, Ah, CompChannel, Config, Cq, Device, Mr, MrSlice, Pd, Qp, Reset, Rts,
    Ud, UdInit, Wc, WrId,
};
use vernic_ipoib::{Route, Source};
use vernic_wire::{Gid, Lid, Qkey, Qpn};

use crate::error::IpoibError;
use crate::port::PORT;

/// Bytes before each datagram in its receive: the GRH, or nothing that counts (IBTA 11.4.1.2).
const GRH: usize = 40;
/// Where a GRH has the sender's GID.
const SGID_AT: usize = 8;
/// Bytes of the longest datagram.
const MAX_DATAGRAM: usize = 4096;
const RECEIVE: usize = GRH + MAX_DATAGRAM;
/// Receives that are posted: as many as come while the thread does other things for a moment.
const RECEIVES: usize = 1024;
/// Datagrams that may be on their way out.
const SENDS: usize = 256;
/// Completions that are taken at once.
const AT_ONCE: usize = 64;
/// Marks the work requests that are sends.
const IS_SEND: u64 = 1 << 32;
/// Handles that are kept; all are made anew when there are more.
const MAX_HANDLES: usize = 4096;

/// How far the queue pair is.
enum Stage {
    /// Has a number.
    Made(Qp<Ud, Reset>),
    /// Sends and receives.
    Works(Qp<Ud, Rts>),
    /// Being changed, or that failed.
    Gone,
}

pub(crate) struct Datagrams {
    pd: Pd,
    channel: CompChannel,
    cq: Cq,
    stage: Stage,
    /// Q_Key and place of the P_Key that it works with.
    keys: Option<(Qkey, u16)>,
    qpn: Qpn,
    incoming: Mr,
    outgoing: Mr,
    /// Parts of `outgoing` that no datagram is in.
    free: Vec<u32>,
    handles: HashMap<Route, Ah>,
    wcs: Vec<Wc>,
}

impl Datagrams {
    pub(crate) fn open(device: &Device) -> Result<Self, IpoibError> {
        Self::make(device).map_err(failed)
    }
    fn make(device: &Device) -> Result<Self, vernic::Error> {
        let (pd, channel) = (device.alloc_pd()?, device.create_channel()?);
        let cq = device.create_cq_on((RECEIVES + SENDS) as u32, &channel)?;
        let qp = pd.qp::<Ud>().send_cq(&cq).recv_cq(&cq);
        let qp = qp.max_recv_wr(RECEIVES as u32).max_send_wr(SENDS as u32).create()?;
        let incoming = pd.alloc_mr(RECEIVE * RECEIVES, Access::NONE.local_write())?;
        let outgoing = pd.alloc_mr(MAX_DATAGRAM * SENDS, Access::NONE)?;
        Ok(Self {
            channel,
            cq,
            qpn: qp.qpn(),
            stage: Stage::Made(qp),
            keys: None,
            incoming,
            outgoing,
            free: (0..SENDS as u32).rev().collect(),
            handles: HashMap::new(),
            wcs: vec![Wc::default(); AT_ONCE],
            pd,
        })
    }
    /// Returns the channel that completions wake, those of connections as well.
    pub(crate) const fn channel(&self) -> &CompChannel {
        &self.channel
    }
    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Lets the queue pair send and receive with that Q_Key, in the partition at that place of the
    /// port's table.
    pub(crate) fn start(&mut self, qkey: Qkey, pkey_index: u16) -> Result<(), IpoibError> {
        self.bring_up(qkey, pkey_index).map_err(IpoibError::device("the queue pair of datagrams"))
    }
    fn bring_up(&mut self, qkey: Qkey, pkey_index: u16) -> Result<(), vernic::Error> {
        if self.keys.replace((qkey, pkey_index)) == Some((qkey, pkey_index)) {
            return Ok(());
        }
        let qp = match std::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Made(qp) => qp,
            // The link has other keys than before.
            Stage::Works(qp) => {
                let qp = qp.reset()?;
                // What completed before counts no more.
                while !self.cq.poll(&mut self.wcs)?.is_empty() {}
                self.free = (0..SENDS as u32).rev().collect();
                qp
            }
            Stage::Gone => return Ok(()),
        };
        let qp = qp.with_pkey_index(pkey_index).init(UdInit { qkey })?;
        let mut batch = qp.recv_batch();
        for at in 0..RECEIVES {
            batch.recv(WrId(at as u64), place(&self.incoming, at, RECEIVE)?);
        }
        batch.commit()?;
        self.stage = Stage::Works(qp.activate()?);
        Ok(())
    }

    /// Receives from a group from now on, or no longer.
    pub(crate) fn set_member(&mut self, mgid: Gid, mlid: Lid, is_member: bool) {
        let result = match (&self.stage, is_member) {
            (Stage::Made(qp), true) => qp.join_at(mgid, mlid),
            (Stage::Works(qp), true) => qp.join_at(mgid, mlid),
            (Stage::Made(qp), false) => qp.leave(mgid),
            (Stage::Works(qp), false) => qp.leave(mgid),
            (Stage::Gone, _) => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%mgid, %mlid, is_member, %error, "the queue pair and a group");
        }
    }

    /// Whether a datagram can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() && matches!(self.stage, Stage::Works(_))
    }

    /// Sends a datagram of these parts, one behind the other. Without room it is lost, as datagrams
    /// may be.
    pub(crate) fn send(
        &mut self,
        (route, qpn, qkey): (Route, Qpn, Qkey),
        parts: [&[u8]; 2],
    ) -> Result<(), vernic::Error> {
        let len = parts[0].len() + parts[1].len();
        if len > MAX_DATAGRAM || !self.has_room() {
            return Ok(());
        }
        if !self.handles.contains_key(&route) {
            if self.handles.len() >= MAX_HANDLES {
                self.handles.clear();
            }
            self.handles.insert(route, self.pd.create_ah_at(vector(&route))?);
        }
        let (Some(ah), Stage::Works(qp)) = (self.handles.get(&route), &self.stage) else {
            return Ok(());
        };
        let Some(at) = self.free.pop() else { return Ok(()) };
        let start = at as usize * MAX_DATAGRAM;
        self.outgoing.write_at(start, parts[0])?;
        self.outgoing.write_at(start + parts[0].len(), parts[1])?;
        let bytes = self.outgoing.slice(start..start + len)?;
        let posted = qp.post_send_to(WrId(IS_SEND | u64::from(at)), bytes, ah.to(qpn, qkey));
        if posted.is_err() {
            self.free.push(at);
        }
        Ok(posted?)
    }

    /// Takes what has completed, and hands each datagram to `take`: where it came from, and its
    /// bytes. `own`: our GID. Returns how many completions there were.
    pub(crate) fn receive(
        &mut self,
        own: (Gid, Lid),
        mut take: impl FnMut(Source, &[u8]),
    ) -> Result<usize, vernic::Error> {
        let Stage::Works(qp) = &self.stage else { return Ok(0) };
        let mut wcs = std::mem::take(&mut self.wcs);
        let count = self.cq.poll(&mut wcs)?.len();
        let mut batch = qp.recv_batch();
        let mut bytes = [0; RECEIVE];
        for wc in &wcs[..count] {
            let id = wc.wr_id().0;
            if id & IS_SEND != 0 {
                self.free.push((id & !IS_SEND) as u32);
                continue;
            }
            let at = id as usize;
            let len = (wc.byte_len() as usize).min(RECEIVE);
            if wc.is_success() && len >= GRH {
                let bytes = &mut bytes[..len];
                self.incoming.read_at(at * RECEIVE, bytes)?;
                let is_own = wc.has_grh()
                    && bytes[SGID_AT..SGID_AT + 16] == own.0.0
                    && wc.src_qpn() == self.qpn;
                // Only our own LID matters.
                let slid = if is_own { own.1 } else { Lid::RESERVED };
                take(Source { slid, qpn: wc.src_qpn() }, &bytes[GRH..]);
            }
            batch.recv(WrId(id), place(&self.incoming, at, RECEIVE)?);
        }
        batch.commit()?;
        self.wcs = wcs;
        Ok(count)
    }

    /// Asks to be woken by the next completion; those that are there already do not wake.
    pub(crate) fn arm(&self) {
        while self.channel.try_next().is_some() {}
        self.cq.arm();
    }
}

/// Opens the device of a host.
pub(crate) fn device_of(fabric: &str, host: &str) -> Result<Device, IpoibError> {
    let config = Config::load().map_err(|error| failed(error.into()))?;
    let config = Config { fabric: fabric.to_owned(), host: host.to_owned(), ..config };
    Device::open_with(config).map_err(failed)
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Part `at` of memory that has parts of `len` bytes.
fn place(mr: &Mr, at: usize, len: usize) -> Result<MrSlice<'_>, vernic::Error> {
    Ok(mr.slice(at * len..(at + 1) * len)?)
}

fn vector(route: &Route) -> AddressVector {
    let vector = AddressVector {
        dlid: route.dlid,
        sl: route.service_level.value(),
        port: PORT,
        ..AddressVector::default()
    };
    match route.global {
        Some(global) => AddressVector {
            dgid: global.dgid,
            flow_label: global.flow_label,
            hop_limit: global.hop_limit,
            traffic_class: global.traffic_class,
            ..vector
        },
        None => vector,
    }
}

fn failed(source: vernic::Error) -> IpoibError {
    IpoibError::device("the adapter of the host")(source)
}

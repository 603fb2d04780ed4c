//! QP1, the general services interface (GSI): management datagrams (MADs) in and out.
//!
//! A device has QP1 without asking for it (IBTA 10.2.4.1). The lane sorts out packets for QPN 1,
//! makes the checks that a queue pair would make, and hands their 256 bytes to the agent of
//! communication management (`cm.rs`), or those of other classes to the management agents
//! (`mad.rs`). This module also turns the datagrams of both into packets.
//!
//! A datagram for another process of this host waits here for a moment if that process's queue is
//! full. The queue is short (`net.unix.max_dgram_qlen`, 10 by default of the kernel), and the peer
//! is patient: Linux repeats a request only after seconds.
//!
//! Limits: [`MAX_WAITING`] datagrams wait, none longer than [`PATIENCE_NANOS`].
//!
//! Called by the holder of the lane. Queue pairs pay nothing for this module. A packet is examined
//! here only when its QPN is in no table, and nothing is sent or fired before a flag or a deadline
//! of the lane says so.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_io::{RxMeta, RxPacket, TxBatch};
use vernic_proto::{DropReason, Time};
use vernic_wire::cm::GSI_QKEY;
use vernic_wire::mad::{MAD_LEN, MadHeader, MgmtClass};
use vernic_wire::{Bth, Deth, Headers, Opcode, Packet, Pkey, Psn, Qkey, Qpn, Service};

use crate::cm::CmShared;
use crate::device::opened::Device;
use crate::mad::MadShared;
use crate::qp::table::QpTable;
use crate::support::packets::reason_of;

/// Datagrams that may wait for processes that do not keep up: some 300 KiB.
const MAX_WAITING: usize = 1024;

/// How long a datagram waits at most, in nanoseconds: a process that has a core gets to its sockets
/// in a fraction of this.
const PATIENCE_NANOS: u64 = 50_000_000;

/// How soon waiting datagrams are tried again, in nanoseconds: about what it takes to wake a thread
/// and empty a short queue.
const AGAIN_NANOS: u64 = 200_000;

/// How many waiting datagrams are tried at a time: a process that is stopped makes each try a
/// wasted system call.
const TRIES: usize = 64;

/// A waiting packet with a datagram for another process.
#[derive(Debug)]
struct QueuedMad {
    bytes: Box<[u8]>,
    meta: RxMeta,
    segment: u16,
    until: Time,
}

/// The lane's state of QP1.
pub(crate) struct Gsi {
    cm: Arc<CmShared>,
    mads: Arc<MadShared>,
    /// Whether the agent may have something to send, or another deadline than `deadline`.
    pending: bool,
    /// The time at which the agent wants to be called.
    deadline: Option<Time>,
    psn: Psn,
    waiting: VecDeque<QueuedMad>,
    /// The time at which the waiting datagrams are tried again.
    again: Option<Time>,
}

impl Gsi {
    pub(crate) fn new(cm: Arc<CmShared>, mads: Arc<MadShared>) -> Self {
        let (psn, waiting) = (Psn::default(), VecDeque::new());
        Self { cm, mads, pending: false, deadline: None, psn, waiting, again: None }
    }

    /// Notes whether the agent may have something to send.
    #[inline]
    pub(crate) fn note_work(&mut self, is_pending: bool) {
        self.pending |= is_pending;
    }

    /// Whether the agent may have something to send.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Returns the time at which the lane must be polled for QP1. Not asked while `pending` is set.
    pub(crate) fn deadline(&self) -> Option<Time> {
        [self.deadline, self.again].into_iter().flatten().min()
    }

    /// Whether datagrams wait for other processes.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Gsi {
    /// Lets the agent act if its deadline has passed, and tries waiting datagrams again.
    #[inline]
    pub(crate) fn fire_timers(&mut self, device: &Device, table: &mut QpTable, now: Time) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(self.deadline) || is_due(self.again) {
            self.fire_due_timers(device, table, now);
        }
    }

    #[cold]
    fn fire_due_timers(&mut self, device: &Device, table: &mut QpTable, now: Time) {
        if self.again.is_some_and(|again| again <= now) {
            self.hand_over_again(device, table, now);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.cm.handle_timeout(table, now);
            self.cm.retry_early(table, now);
            self.cm.check_local_processes(now);
            self.mads.handle_timeout(now);
            self.pending = true;
        }
    }

    /// Lets the agent write its datagrams into the batch.
    #[inline]
    pub(crate) fn fill(&mut self, tx: &mut TxBatch, now: Time) {
        if self.pending {
            self.write_pending(tx, now);
        }
    }

    /// Writes the agent's datagrams until none is left or the batch is full, and learns when the
    /// agent wants to be called again.
    #[cold]
    fn write_pending(&mut self, tx: &mut TxBatch, now: Time) {
        // Cleared before the machine is read: a later change sets the flag again.
        self.pending = false;
        let Self { cm, mads, psn, pending, .. } = self;
        let connections = cm.drain(|next| {
            // Bounded by the batch.
            while let Some(room) = tx.room() {
                let Some(out) = next() else { return };
                let to = (Qpn::GSI, GSI_QKEY, out.path.pkey);
                let len = write(psn, to, &out.mad, room);
                let path = cm.mad_path(&out);
                cm.note_sent(&path);
                tx.push(&path, len);
            }
            *pending = true;
        });
        let agents = mads.drain(now, |next| {
            // Bounded by the batch.
            while let Some(room) = tx.room() {
                let Some(out) = next() else { return };
                let to = (out.address.qpn, out.address.qkey, Pkey::DEFAULT);
                let len = write(psn, to, &out.mad, room);
                tx.push(&mads.path(&out.address), len);
            }
            *pending = true;
        });
        self.deadline = [connections, agents].into_iter().flatten().min();
    }
}

/// Writes a packet with the datagram to a queue pair with its Q_Key in a partition, without the
/// ICRC; returns its length.
fn write(
    psn: &mut Psn,
    (to, qkey, pkey): (Qpn, Qkey, Pkey),
    mad: &[u8; MAD_LEN],
    room: &mut [u8],
) -> usize {
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, to, *psn));
    headers.bth.pkey = pkey;
    headers.deth = Some(Deth::new(qkey, Qpn::GSI));
    *psn = psn.add(1);
    let start = headers.emit(room);
    room[start..start + MAD_LEN].copy_from_slice(mad);
    start + MAD_LEN
}

/// Returns the datagram in a packet for QP1, if everything about the packet is right.
///
/// On InfiniBand the datagram may be of any partition of the port: the fabric process has checked
/// that it is of one.
fn mad_of<'a>(
    packet: &RxPacket<'a>,
    is_infiniband: bool,
) -> Result<(Deth, &'a [u8; MAD_LEN]), DropReason> {
    let parsed = Packet::parse(packet.transport()).map_err(reason_of)?;
    let is_send = parsed.info().service == Service::Ud && parsed.imm().is_none();
    let deth = parsed.deth().filter(|_| is_send).ok_or(DropReason::WrongService)?;
    if packet.meta.dst.gid().is_multicast() {
        return Err(DropReason::NotAttached);
    }
    if !is_infiniband && !parsed.bth().pkey.matches(Pkey::DEFAULT) {
        return Err(DropReason::Pkey);
    }
    if deth.qkey != GSI_QKEY {
        return Err(DropReason::Qkey);
    }
    // Only a QP1 may use that Q_Key, and responses of this device go to QP1.
    if deth.src_qpn != Qpn::GSI {
        return Err(DropReason::WrongSource);
    }
    let mad = parsed.payload().try_into().map_err(|_| DropReason::Length)?;
    Ok((deth, mad))
}

/// Checks a packet for QP1, and has its datagram handled here or by the process that owns it.
fn take(
    (cm, mads): (&CmShared, &Arc<MadShared>),
    table: &mut QpTable,
    packet: &RxPacket<'_>,
    now: Time,
) -> Result<(), DropReason> {
    let (deth, mad) = mad_of(packet, cm.has_lids())?;
    let header = MadHeader::parse(mad).map_err(|_| DropReason::Malformed)?;
    match header.mgmt_class {
        MgmtClass::COMMUNICATION => cm.take_mad(table, packet, mad, now),
        _ => mads.take(packet, &deth, &header, mad, now),
    }
}

impl Gsi {
    /// Handles packets for QP1 whose ICRC is right, in the order of their arrival.
    #[cold]
    pub(crate) fn handle(
        &mut self,
        engine: &Device,
        table: &mut QpTable,
        packets: &[RxPacket<'_>],
        now: Time,
    ) {
        for packet in packets {
            match take((&self.cm, &self.mads), table, packet, now) {
                Err(DropReason::MadOverflow) if self.waiting.len() < MAX_WAITING => {
                    let (bytes, meta) = (packet.bytes.into(), *packet.meta);
                    let until = now + PATIENCE_NANOS;
                    let waiting = QueuedMad { bytes, meta, segment: packet.segment, until };
                    self.waiting.push_back(waiting);
                    self.again.get_or_insert(now + AGAIN_NANOS);
                }
                Err(reason) => engine.drop_from(packet.meta.src, reason),
                Ok(()) => {}
            }
        }
        self.pending = true;
    }

    /// Tries some of the waiting datagrams again.
    #[cold]
    fn hand_over_again(&mut self, engine: &Device, table: &mut QpTable, now: Time) {
        for _ in 0..self.waiting.len().min(TRIES) {
            let Some(waiting) = self.waiting.pop_front() else { break };
            let QueuedMad { bytes, meta, segment, until } = &waiting;
            let packet = RxPacket { bytes, meta, segment: *segment };
            match take((&self.cm, &self.mads), table, &packet, now) {
                Err(DropReason::MadOverflow) if now < *until => self.waiting.push_back(waiting),
                Err(reason) => engine.drop_from(packet.meta.src, reason),
                Ok(()) => {}
            }
        }
        self.again = (!self.waiting.is_empty()).then(|| now + AGAIN_NANOS);
        // The process that owned a datagram may have ended meanwhile; then this process answers it.
        self.pending = true;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use vernic_io::Icrc;
    use vernic_wire::ImmDt;

    use super::*;

    /// Returns what [`mad_of`] says of a packet to `dst` with a datagram of `len` bytes, after
    /// `change` was applied to its headers.
    fn taken(dst: &str, change: impl FnOnce(&mut Headers), len: usize) -> Result<(), DropReason> {
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(7)));
        headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
        change(&mut headers);
        let mut bytes = vec![0; headers.len() + len + 4];
        headers.emit(&mut bytes);
        let src: SocketAddr = "10.0.0.1:50000".parse().unwrap();
        let (dst, icrc) = (dst.parse().unwrap(), Icrc::Good);
        let meta = RxMeta { icrc, ..vernic_io::udp::arrival(src, dst) };
        mad_of(&RxPacket { bytes: &bytes, meta: &meta, segment: 0 }, false).map(|_| ())
    }

    const HERE: &str = "10.0.0.2:4791";

    #[test]
    fn a_datagram_is_taken_only_from_a_packet_that_is_right_in_everything() {
        assert_eq!(taken(HERE, |_| {}, 256), Ok(()));
        assert_eq!(taken(HERE, |h| h.bth.pkey = Pkey(0x7FFF), 256), Ok(()), "limited member");
        let deth = |qkey, src| move |h: &mut Headers| h.deth = Some(Deth::new(qkey, src));
        for (result, reason) in [
            (taken(HERE, |_| {}, 252), DropReason::Length),
            (taken(HERE, |_| {}, 260), DropReason::Length),
            (taken(HERE, |_| {}, 0), DropReason::Length),
            (taken(HERE, |h| h.bth.pkey = Pkey(0x8001), 256), DropReason::Pkey),
            (taken(HERE, deth(Qkey(0x8001_0001), Qpn::GSI), 256), DropReason::Qkey),
            (taken(HERE, deth(GSI_QKEY, Qpn::new(2)), 256), DropReason::WrongSource),
            (taken("239.1.2.3:4791", |_| {}, 256), DropReason::NotAttached),
            (taken(HERE, |h| h.bth.opcode = Opcode::RC_SEND_ONLY, 256), DropReason::WrongService),
            (taken(HERE, with_imm, 256), DropReason::WrongService),
        ] {
            assert_eq!(result, Err(reason));
        }
    }

    fn with_imm(headers: &mut Headers) {
        headers.bth.opcode = Opcode::UD_SEND_ONLY_IMM;
        headers.imm = Some(ImmDt(1));
    }

    #[test]
    fn what_is_written_is_what_is_taken() {
        let mut next = Psn::default();
        let mad = std::array::from_fn(|i| i as u8);
        let mut room = [0; 300];
        for psn in 0..2 {
            let len = write(&mut next, (Qpn::GSI, GSI_QKEY, Pkey::DEFAULT), &mad, &mut room);
            let parsed = Packet::parse(&room[..len]).unwrap();
            assert_eq!((parsed.payload(), parsed.psn()), (&mad[..], Psn::new(psn)));
            assert_eq!((parsed.dest_qpn(), len), (Qpn::GSI, 276));
            let deth = parsed.deth().unwrap();
            assert_eq!((deth.qkey, deth.src_qpn), (GSI_QKEY, Qpn::GSI));
        }
    }
}

//! One end of a connection: a real queue pair, and the device around it, whose memory is virtual.
//!
//! The queue pair writes whole packets and stores whole payloads; here nothing reads the bytes, so
//! the device copies none. What it keeps is how many there were.

use vernic_proto::congestion::Algorithm;
use vernic_proto::{
    AccessCheck, AccessFault, AddressVector, AtomicOp, AttrMask, Completion, Failure, Host,
    Keeping, Qp, QpAttr, QpCounters, QpEvent, QpInit, QpState, QpType, RecvWqe, Remote,
    RemoteAccess, RxMeta, SendFlags, SendOp, SendWqe, SrqFault, Time, WcStatus,
};
use vernic_wire::{AckTimeout, LocalRoute, Mtu, Packet, PortNum, Psn, Qpn, Rkey, RnrTimer, Srqn};

use crate::steps::to_rts;

/// Number of the first queue pair.
const FIRST_QPN: u32 = 0x100;
/// Requests of a queue pair at a time.
const SEND_REQUESTS: u32 = 16;
/// Packets in flight of a queue pair: enough for round trips of data centres.
const MAX_WINDOW: u32 = 1024;
/// ACK timeout: 67 ms, the default of the verbs' programs.
const TIMEOUT: u8 = 14;
/// Right to be written to, as of `ibv_access_flags`, with that of the owner.
const ACCESS: u32 = 3;
/// The key of what peers write to.
const RKEY: Rkey = Rkey(0x5151);
/// What a receive holds: any message.
const CAPACITY: u64 = 1 << 31;

/// What the queue pair told its device and nobody has dealt with.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// Bytes of the peer's messages that were stored, since the connection was made.
    pub(super) placed: u64,
    /// Send requests completed, and receives.
    pub(super) completed: u32,
    pub(super) received: u32,
    pub(super) failure: Option<String>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    qp: Qp,
    pub(super) device: Device,
    /// Hosts: its own, and that of the peer.
    pub(super) host: u32,
    pub(super) peer_host: u32,
    /// What ECMP hashes of its packets.
    pub(super) hash: u32,
    /// Connections that it has been of; packets of earlier ones are late.
    pub(super) generation: u32,
    /// Whether it stands in its host's line of those with a response, or with a request.
    pub(super) has_response: bool,
    pub(super) has_request: bool,
    /// Events of its timer to come, in picoseconds: the next one, and one behind that.
    timers: [u64; 2],
}

/// No timer.
const NEVER: u64 = u64::MAX;

/// What both ends of a connection agree on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) mtu: Mtu,
    /// First sequence numbers: own and peer's.
    pub(super) psns: [u32; 2],
    pub(super) hosts: [u32; 2],
    pub(super) hash: u32,
}

/// Number of the end that a queue pair is.
pub(super) fn end_of(qpn: Qpn) -> u32 {
    qpn.value().wrapping_sub(FIRST_QPN)
}

impl End {
    /// An end without a connection.
    pub(super) fn new(number: u32, algorithm: Algorithm) -> Self {
        let init = QpInit {
            qpn: Qpn::new(FIRST_QPN + number),
            qp_type: QpType::Rc,
            max_send_wr: SEND_REQUESTS,
            max_window: MAX_WINDOW,
            // Receives are without end, so the peer needs no credits.
            shared_rq: true,
        };
        Self {
            qp: Qp::with_algorithm(init, algorithm),
            device: Device::default(),
            host: 0,
            peer_host: 0,
            hash: 0,
            generation: 0,
            has_response: false,
            has_request: false,
            timers: [NEVER; 2],
        }
    }

    /// Connects the end number `number` with its peer, whose number differs in the lowest bit.
    pub(super) fn connect(
        &mut self,
        now: Time,
        number: u32,
        terms: &Terms,
        keeping: Option<Keeping>,
    ) {
        let attr = QpAttr {
            path_mtu: terms.mtu,
            access: ACCESS,
            av: AddressVector { port: PortNum(1), ..AddressVector::default() },
            dest_qpn: Qpn::new(FIRST_QPN + (number ^ 1)),
            sq_psn: Psn::new(terms.psns[0]),
            rq_psn: Psn::new(terms.psns[1]),
            min_rnr_timer: RnrTimer::new(12),
            timeout: AckTimeout::new(TIMEOUT),
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        self.disconnect(now);
        self.qp.set_keeping(keeping);
        for (state, mask) in to_rts() {
            let attr = QpAttr { state, ..attr };
            let made = self.qp.modify(&attr, mask, now, &mut self.device);
            made.expect("attributes of a new queue pair are right");
        }
        [self.host, self.peer_host] = terms.hosts;
        self.hash = terms.hash;
    }

    /// Ends the connection: packets that are still under way are late from now on.
    pub(super) fn disconnect(&mut self, now: Time) {
        if self.qp.state() != QpState::Reset {
            let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            let reset = self.qp.modify(&attr, AttrMask::STATE, now, &mut self.device);
            reset.expect("each state may be left for Reset");
        }
        self.device = Device::default();
        self.generation = self.generation.wrapping_add(1);
        (self.has_response, self.has_request) = (false, false);
        self.timers = [NEVER; 2];
    }

    /// Posts a WRITE of so many bytes, with immediate data if the peer is to be told. Returns
    /// whether there was room.
    pub(super) fn post(&mut self, bytes: u32, tells: bool) -> bool {
        let remote = Remote { addr: 0x1000, rkey: RKEY };
        let op = if tells { SendOp::WriteImm(remote, 0) } else { SendOp::Write(remote) };
        let flags = SendFlags::SIGNALED;
        let wqe = SendWqe { wr_id: 0, op, flags, length: bytes, dest: None, srqn: None };
        self.qp.post_send(wqe).is_ok()
    }

    /// Room for requests.
    pub(super) fn room(&self) -> u32 {
        self.qp.send_room()
    }

    #[inline]
    pub(super) fn handle_packet(&mut self, now: Time, bytes: &[u8], ecn: u8) {
        let packet = Packet::parse(bytes).expect("a queue pair wrote it, and nothing changed it");
        let meta = RxMeta { grh: None, ecn, route: LocalRoute::NONE, is_peer: true };
        self.qp.handle_packet(now, &packet, &meta, &mut self.device);
        while self.qp.has_kept()
            && let Some(kept) = self.qp.take_kept()
        {
            self.qp.handle_kept(now, &kept, &mut self.device);
        }
    }

    /// Writes the next response, or request. Returns its transport bytes.
    #[inline]
    pub(super) fn poll(&mut self, now: Time, is_response: bool, buf: &mut [u8]) -> Option<usize> {
        let sent = if is_response {
            self.qp.poll_response(now, &mut self.device, buf)
        } else {
            self.qp.poll_request(now, &mut self.device, buf)
        };
        sent.map(|sent| sent.len)
    }

    /// Looks at what a call will need.
    #[inline]
    pub(super) fn foresee(&self) -> bool {
        self.qp.wants_transmit()
    }

    #[inline]
    pub(super) fn wants_responses(&self) -> bool {
        self.qp.wants_responses()
    }

    #[inline]
    pub(super) fn wants_requests(&self) -> bool {
        self.qp.wants_requests()
    }

    pub(super) fn counters(&self) -> &QpCounters {
        self.qp.counters()
    }

    /// When an event of the timer is to be added, in picoseconds: the queue pair's deadline, where
    /// none comes by then. A deadline that moves away has the old event ask again; pacing, whose
    /// deadlines come and go with each packet, leaves the one for the ACK timer standing. One that
    /// has passed by some picoseconds comes at once.
    #[inline]
    pub(super) fn timer_due(&mut self, now: u64) -> Option<u64> {
        let due = self.qp.next_deadline()?.nanos().saturating_mul(super::units::PICOS).max(now);
        if due >= self.timers[0] {
            return None;
        }
        self.timers = [due, self.timers[0].min(self.timers[1])];
        Some(due)
    }

    /// An event of the timer has come. Returns whether a deadline has.
    #[inline]
    pub(super) fn handle_timer(&mut self, at: u64, now: Time) -> bool {
        if self.timers[0] != at {
            return false;
        }
        self.timers = [self.timers[1], NEVER];
        let is_due = self.qp.next_deadline().is_some_and(|due| due <= now);
        if is_due {
            self.qp.handle_timeout(now, &mut self.device);
        }
        is_due
    }
}

/// What nobody asks for here.
fn refuse<T>() -> Result<T, AccessFault> {
    Err(AccessFault { check: AccessCheck::KeyUnknown, key: 0, addr: 0, len: 0 })
}

impl Host for Device {
    fn gather(&mut self, _: u32, _: u32, _: &mut [u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn scatter_response(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn local_op(&mut self, _: &SendWqe) -> Result<(), AccessFault> {
        refuse()
    }
    fn check_remote(
        &mut self,
        rkey: Rkey,
        _: u64,
        _: u64,
        _: RemoteAccess,
    ) -> Result<(), AccessFault> {
        if rkey == RKEY { Ok(()) } else { refuse() }
    }
    fn write_remote(&mut self, _: Rkey, _: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.placed += data.len() as u64;
        Ok(())
    }
    fn read_remote(&mut self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), AccessFault> {
        refuse()
    }
    fn atomic(&mut self, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        refuse()
    }
    fn atomic_write(&mut self, _: Rkey, _: u64, _: [u8; 8]) -> Result<(), AccessFault> {
        refuse()
    }
    fn flush(&mut self, _: Rkey, _: u64, _: u64, _: RemoteAccess) -> Result<(), AccessFault> {
        refuse()
    }
    fn invalidate_remote(&mut self, _: Rkey) -> Result<(), AccessFault> {
        refuse()
    }
    fn select_srq(&mut self, _: Srqn) -> Result<(), SrqFault> {
        Err(SrqFault::Unknown)
    }
    fn take_recv(&mut self) -> Option<RecvWqe> {
        Some(RecvWqe { wr_id: 0, capacity: CAPACITY })
    }
    fn recv_credits(&mut self) -> Option<u32> {
        None
    }
    fn scatter_recv(&mut self, _: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.placed += data.len() as u64;
        Ok(())
    }
    fn flush_recv(&mut self, _: Option<RecvWqe>) {}
    fn complete_send(&mut self, completion: Completion) {
        self.completed += u32::from(completion.status == WcStatus::Success);
    }
    fn complete_recv(&mut self, completion: Completion) {
        self.received += u32::from(completion.status == WcStatus::Success);
    }
    fn event(&mut self, _: QpEvent) {}
    fn failure(&mut self, failure: Failure) {
        self.failure = Some(format!("{:?}: {}", failure.status, failure.cause));
    }
}

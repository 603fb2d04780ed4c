//! A queue pair: one state machine of its service behind the verbs' states.
//!
//! # The sans-I/O contract
//!
//! A [`Qp`] has no clock, socket, thread or memory. Its owner
//! 1. calls [`handle_packet`](Qp::handle_packet) for each packet addressed to it,
//!    or [`handle_packet_of_run`](Qp::handle_packet_of_run) for each of several,
//!    and then [`handle_kept`](Qp::handle_kept) for each of [`take_kept`](Qp::take_kept),
//! 2. calls [`poll_request`](Qp::poll_request) and [`poll_response`](Qp::poll_response) while they
//!    return packets and there is room to send,
//! 3. calls [`handle_timeout`](Qp::handle_timeout) when [`next_deadline`](Qp::next_deadline) has
//!    come.
//!
//! Whether step 2 has work is [`wants_transmit`](Qp::wants_transmit), valid until the next call
//! with `&mut self`. Acknowledgements are coalesced: however many packets are handled before step
//! 2, one leaves. Completions, memory accesses and events go through [`Host`] inside these calls.
//!
//! `poll_request` returns `None` while the window is closed, a fence, an RNR delay or congestion
//! control's pacing holds; the call that lifts the block makes `wants_transmit` true again. Every
//! method's work is bounded by the size of the packet or of the queues.

use vernic_wire::{Kind, Mtu, Packet, Pkey, Psn, Qpn, Service};

use crate::congestion::{Algorithm, Congestion, Controller, Tally};
use crate::cx::{Cx, QpInit};
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, PostError};
use crate::event::QpEvent;
use crate::host::{CONGESTION_EXPERIENCED, Host, QpCounters, RxMeta, Transmit};
use crate::migration::Migration;
use crate::notification::NotificationPoint;
use crate::segment;
use crate::sq::SendProgress;
use crate::state::{AttrMask, ModifyError, PathMigState, QpAttr, QpState, QpType};
use crate::time::Time;
use crate::transition::check_modify;
use crate::transport::{Broken, Transport};
use crate::wqe::{SendWqe, UdDest};

/// A queue pair. Its contract stands at the head of this module.
#[derive(Debug)]
pub struct Qp {
    init: QpInit,
    attr: QpAttr,
    counters: QpCounters,
    /// Largest datagram.
    port_mtu: Mtu,
    /// The partition.
    pkey: Pkey,
    /// The ACK timer's floor, in nanoseconds.
    ack_floor: u64,
    /// The rate of the port.
    port_mbps: u32,
    needs: Needs,
    migration: Migration,
    notification: NotificationPoint,
    machine: Machine,
}

macro_rules! cx {
    ($self:ident, $now:expr) => {
        &mut Cx {
            qpn: $self.init.qpn,
            service: $self.init.qp_type.service(),
            attr: &$self.attr,
            pkey: $self.pkey,
            ack_floor: $self.ack_floor,
            now: $now,
            counters: &mut $self.counters,
        }
    };
}

mod direct;
mod kept;
mod limit;
mod machine;
mod messages;
mod migration;

use limit::Needs;
use machine::{Machine, each};

impl Qp {
    /// A queue pair in Reset.
    pub fn new(init: QpInit) -> Self {
        Self::with_algorithm(init, Algorithm::default())
    }

    /// As [`new`](Self::new), with a congestion control of choice. UC heeds the pace of
    /// [`Algorithm::Dcqcn`] and nothing else; UD has no use for any.
    pub fn with_algorithm(init: QpInit, algorithm: Algorithm) -> Self {
        let mut qp = Self::with_controller(init, Controller::new(algorithm, init.max_window));
        if let Algorithm::Dcqcn(params) = algorithm {
            qp.notification.set_interval(u64::from(params.min_time_between_cnps) * 1000);
        }
        qp
    }

    /// As [`new`](Self::new), with a congestion controller of the owner's, for which services other
    /// than RC and XRC have no use.
    pub fn with_congestion(init: QpInit, congestion: Box<dyn Congestion>) -> Self {
        Self::with_controller(init, Controller::owners(congestion, init.max_window))
    }

    fn with_controller(init: QpInit, controller: Controller) -> Self {
        let machine = Machine::new(&init, controller);
        Self {
            init,
            attr: QpAttr::default(),
            counters: QpCounters::default(),
            port_mtu: Mtu::B4096,
            pkey: Pkey::DEFAULT,
            ack_floor: 0,
            port_mbps: u32::MAX,
            needs: Needs::empty(),
            migration: Migration::default(),
            notification: NotificationPoint::new(),
            machine,
        }
    }

    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.init.qpn
    }
    /// The type of queue pair.
    pub fn qp_type(&self) -> QpType {
        self.init.qp_type
    }
    /// The transport service.
    pub fn service(&self) -> Service {
        self.init.qp_type.service()
    }
    /// The present state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }
    /// Attributes as last modified.
    pub fn attr(&self) -> &QpAttr {
        &self.attr
    }
    /// Counters since the last reset.
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }
    /// Whether a send queue in SQD is still at work (`sq_draining` of a query).
    pub fn is_draining(&self) -> bool {
        self.attr.state == QpState::Sqd && !each!(&self.machine, m => m.is_drained())
    }

    /// Checks the change against the table of transitions and carries it out.
    ///
    /// `max_rd_atomic` 0 is refused while requests are queued that need it: they could neither be
    /// sent nor complete. Posting one afterwards is [`PostError::NoReadDepth`].
    ///
    /// Entering Error flushes both queues through `host`; entering Reset forgets everything
    /// silently.
    pub fn modify(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        self.end_run(now, host);
        let from = self.attr.state;
        let to = check_modify(self.init.qp_type, from, attr, mask)?;
        if mask.contains(AttrMask::MAX_RD_ATOMIC) && attr.max_rd_atomic == 0 {
            each!(&self.machine, m => m.check_no_reads())?;
        }
        let migration = Migration::wanted(&self.attr, attr, mask)?;
        self.attr.merge(attr, mask);
        self.attr.state = to;
        match (from, to) {
            (_, QpState::Reset) => {
                self.attr = QpAttr::default();
                self.counters = QpCounters::default();
                self.migration = Migration::default();
                self.needs = Needs::empty();
                self.notification.reset();
                each!(&mut self.machine, m => m.reset());
            }
            (QpState::Error, QpState::Error) => {}
            (_, QpState::Error) => self.stop(now, host),
            (QpState::Init, QpState::Rtr) => {
                each!(&mut self.machine, m => m.start_responder(&self.attr));
            }
            (QpState::Rtr, QpState::Rts) => {
                each!(&mut self.machine, m => m.start_requester(&self.attr));
            }
            (QpState::Rts | QpState::Sqd, QpState::Sqd | QpState::Rts) if from != to => {
                let draining = to == QpState::Sqd;
                let event = draining && self.attr.sqd_async_notify;
                each!(&mut self.machine, m => m.set_draining(draining, event, host));
            }
            (QpState::Sqd, QpState::Sqd) => {
                each!(&mut self.machine, m => m.set_read_depths(&self.attr));
            }
            _ => {}
        }
        let is_limited = mask.intersects(AttrMask::RATE_LIMIT | AttrMask::AV);
        if is_limited || to == QpState::Reset {
            self.apply_limit(now);
        }
        if let Some(migration) = migration {
            self.set_migration(migration, now, host);
        }
        Ok(())
    }

    fn flush(&mut self, now: Time, host: &mut impl Host) {
        let cx = cx!(self, now);
        each!(&mut self.machine, m => m.flush(cx, host));
    }

    /// Send requests that can be posted now.
    pub fn send_room(&self) -> u32 {
        each!(&self.machine, m => m.send_queue().room())
    }
    /// The slot that the next post takes: its scatter list and inline bytes go there first.
    pub fn next_slot(&self) -> u32 {
        each!(&self.machine, m => m.send_queue().next_slot())
    }
    /// Number of slots: `max_send_wr` rounded up to a power of two.
    pub fn send_slots(&self) -> u32 {
        each!(&self.machine, m => m.send_queue().slots())
    }

    /// Returns how far the send requests have come since the reset.
    pub fn send_progress(&self) -> SendProgress {
        each!(&self.machine, m => m.send_queue().progress())
    }

    /// Returns send request `index`, counted from the reset, and the sequence numbers that it takes
    /// (0 as long as nothing has left, and where it needs no packets). `None` if its slot has a
    /// later request.
    pub fn posted_send(&self, index: u64) -> Option<(&SendWqe, u32)> {
        each!(&self.machine, m => m.send_queue().posted(index))
    }

    /// Appends a send request and returns its slot. In Error and SQE it will be flushed.
    pub fn post_send(&mut self, wqe: SendWqe) -> Result<u32, PostError> {
        if !self.init.qp_type.sends() {
            return Err(PostError::NoSendQueue);
        }
        match self.attr.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => {}
            state => return Err(PostError::State(state)),
        }
        let service = self.service();
        if !segment::is_supported(service, &wqe.op) {
            return Err(PostError::Operation(service));
        }
        each!(&mut self.machine, m => {
            m.check_post(&wqe, &self.attr, self.port_mtu)?;
            let sq = m.send_queue_mut();
            if sq.room() == 0 {
                return Err(PostError::Full(sq.limit()));
            }
            Ok(sq.push(wqe))
        })
    }

    /// Sets the largest datagram: the port's active MTU (IBTA 9.8.3). 4096 bytes if never called.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        self.port_mtu = mtu;
    }

    /// Sets the partition: what the row `pkey_index` of the port's P_Key table has. The default
    /// partition if never called; a reset leaves it.
    pub fn set_pkey(&mut self, pkey: Pkey) {
        self.pkey = pkey;
    }

    /// Returns the partition.
    pub fn pkey(&self) -> Pkey {
        self.pkey
    }

    /// Sets how long an answer is waited for at least, whatever the attribute `timeout` says, in
    /// nanoseconds: as long as peers whose responders are threads may take. 0 if never called; a
    /// reset leaves it.
    pub fn set_ack_floor(&mut self, nanos: u64) {
        self.ack_floor = nanos;
    }

    /// Handles a packet whose destination is this queue pair. The link has verified its ICRC, the
    /// owner its source where the service is connected. A congestion notification packet reaches
    /// congestion control and is a [`DropReason::Cnp`]: nothing else is done with it.
    pub fn handle_packet(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Disposition {
        let disposition = self.handle_packet_of_run(now, packet, meta, host);
        self.end_run(now, host);
        disposition
    }

    /// Whether [`end_run`](Self::end_run) has anything to do.
    #[inline]
    pub fn has_run(&self) -> bool {
        each!(&self.machine, m => m.has_run())
    }

    /// Ends a run of packets: what was left for its end is done. Completions of READs and atomics
    /// are among that.
    #[inline]
    pub fn end_run(&mut self, now: Time, host: &mut impl Host) {
        if self.has_run() {
            let cx = cx!(self, now);
            each!(&mut self.machine, m => m.end_run(cx, host));
        }
    }

    /// As [`handle_packet`](Self::handle_packet), of a packet that others may follow at once. The
    /// caller calls [`end_run`](Self::end_run) behind the last one, before it asks or tells this
    /// queue pair anything else.
    pub fn handle_packet_of_run(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Disposition {
        if let Err(reason) = self.admit(packet, self.pkey) {
            if reason == DropReason::Cnp {
                self.handle_cnp(now);
            }
            return Disposition::Drop(reason);
        }
        if self.attr.path_mig_state != PathMigState::Migrated {
            self.note_migreq(packet.bth().migreq, now, host);
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += packet.as_bytes().len() as u64;
        if meta.ecn == CONGESTION_EXPERIENCED {
            self.note_mark(now);
        }
        let cx = cx!(self, now);
        let disposition = match each!(&mut self.machine, m => m.handle_packet(cx, packet, meta, host))
        {
            Ok(disposition) => disposition,
            Err(broken) => {
                self.stop_for(broken, now, host);
                Disposition::Accepted
            }
        };
        self.after_request(disposition, now, host)
    }

    /// Counts a packet that came with the mark, and has its sender told, if that is the connected
    /// peer. The sender of a datagram paces nothing by it.
    #[cold]
    fn note_mark(&mut self, now: Time) {
        self.counters.ecn_marked_received += 1;
        if self.init.qp_type != QpType::Ud {
            self.notification.on_mark(now);
        }
    }

    /// A refusal that is fatal moves the queue pair to Error.
    #[inline]
    fn after_request(
        &mut self,
        disposition: Disposition,
        now: Time,
        host: &mut impl Host,
    ) -> Disposition {
        match disposition {
            Disposition::Nak(class) if class.row().fatal => self.enter_error(now, host),
            Disposition::Duplicate => self.counters.duplicates_received += 1,
            _ => {}
        }
        disposition
    }

    /// Whether a packet of which nothing says that the peer has sent it may be handled: one that
    /// tells a little of the sequence, so that blind guesses are in vain. A request of RC always,
    /// since the responder carries out the next one alone. Of a response it is asked that it
    /// answers what a peer answers that has everything; of UC, which takes any number, one of the
    /// next few.
    pub fn is_credible(&self, packet: &Packet<'_>) -> bool {
        each!(&self.machine, m => m.is_credible(packet))
    }

    /// The peer tells that packets of this queue pair came to it with a mark (IBTA A17.9.3): heard
    /// by congestion control where there is one, and counted.
    #[cold]
    fn handle_cnp(&mut self, now: Time) {
        self.counters.cnps_received += 1;
        if matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            each!(&mut self.machine, m => m.handle_cnp(now));
        }
    }

    /// Service, state and partition, before anything looks at the packet (IBTA 9.6.1).
    fn admit(&self, packet: &Packet<'_>, pkey: Pkey) -> Result<(), DropReason> {
        let info = packet.info();
        let qp_type = self.init.qp_type;
        let mine = if info.is_request() { qp_type.receives() } else { qp_type.sends() };
        if info.service != qp_type.service() || !mine {
            return Err(match info.kind {
                Kind::Cnp if !packet.bth().pkey.matches(pkey) => DropReason::Pkey,
                Kind::Cnp => DropReason::Cnp,
                _ => DropReason::WrongService,
            });
        }
        if !self.takes(info.is_request()) {
            return Err(DropReason::BadState);
        }
        if !packet.bth().pkey.matches(pkey) {
            return Err(DropReason::Pkey);
        }
        Ok(())
    }

    /// Whether the state takes requests of the peer, or its responses.
    #[inline]
    fn takes(&self, is_request: bool) -> bool {
        match self.attr.state {
            QpState::Rtr => is_request,
            QpState::Rts | QpState::Sqd | QpState::Sqe => true,
            QpState::Reset | QpState::Init | QpState::Error => false,
        }
    }

    fn enter_error(&mut self, now: Time, host: &mut impl Host) {
        if self.attr.state != QpState::Error {
            self.attr.state = QpState::Error;
            self.stop(now, host);
        }
    }

    /// Error is entered: both queues are flushed. A shared receive queue stays as it is, and this
    /// queue pair takes nothing more off it (IBTA 11.6.3.1, last WQE reached).
    fn stop(&mut self, now: Time, host: &mut impl Host) {
        self.notification.reset();
        self.flush(now, host);
        if self.init.shared_rq {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// Writes the next request packet into `buf`, which holds the path MTU and all headers.
    ///
    /// In Error and SQE it sends nothing and flushes what was posted meanwhile.
    pub fn poll_request(
        &mut self,
        now: Time,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        match self.attr.state {
            QpState::Rts | QpState::Sqd => {}
            QpState::Error => {
                self.flush(now, host);
                return None;
            }
            QpState::Sqe => {
                let cx = cx!(self, now);
                each!(&mut self.machine, m => m.flush_send(cx, host));
                return None;
            }
            _ => return None,
        }
        let cx = cx!(self, now);
        match each!(&mut self.machine, m => m.poll_request(cx, host, buf)) {
            Ok(sent) => sent,
            Err(broken) => {
                self.stop_for(broken, now, host);
                None
            }
        }
    }

    /// Makes the next packet of [`poll_request`](Self::poll_request) ask for an acknowledgement:
    /// what is in flight is to be known soon, though the queue pair may have to wait before it
    /// sends more.
    pub fn ask_ack(&mut self) {
        each!(&mut self.machine, m => m.ask_ack());
    }

    /// Whether the peer has told which packets it keeps that came ahead of a gap. Only a peer that
    /// keeps packets can do so.
    #[inline]
    pub fn peer_keeps(&self) -> bool {
        each!(&self.machine, m => m.peer_keeps())
    }

    /// Whether requests ask the peer which packets it keeps.
    #[inline]
    pub fn asks_kept(&self) -> bool {
        each!(&self.machine, m => m.asks_kept())
    }

    /// The peer keeps packets that come ahead of a gap: another queue pair of the same peer device
    /// has shown it. Without this each queue pair finds out for itself, after losses.
    pub fn assume_peer_keeps(&mut self) {
        each!(&mut self.machine, m => m.assume_peer_keeps());
    }

    /// As [`poll_request`](Self::poll_request), of the packets that repeat what was sent since the
    /// peer has been silent: what was not sent before stays where it is.
    pub fn poll_probe(
        &mut self,
        now: Time,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        let cx = cx!(self, now);
        let len = each!(&mut self.machine, m => m.poll_probe(cx, host, buf))?;
        Some(Transmit { len, ah: None })
    }

    /// Where the datagram goes that [`poll_request`](Self::poll_request) would write next. `None`
    /// if there is none, or it is no datagram.
    pub fn next_dest(&self) -> Option<UdDest> {
        each!(&self.machine, m => m.next_dest())
    }

    /// An error of the machine stops the send queue, the queue pair, or the use of its path.
    #[cold]
    fn stop_for(&mut self, broken: Broken, now: Time, host: &mut impl Host) {
        match broken {
            Broken::SendQueue => {
                self.attr.state = QpState::Sqe;
                let cx = cx!(self, now);
                each!(&mut self.machine, m => m.flush_send(cx, host));
            }
            Broken::QueuePair => self.enter_error(now, host),
            Broken::Path => self.migrate_and_tell(now, host),
        }
    }

    /// Writes the next response packet into `buf`: an acknowledgement, READ or atomic response, or
    /// before them a congestion notification.
    pub fn poll_response(
        &mut self,
        now: Time,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let cx = cx!(self, now);
        let (len, failed) = if self.notification.is_due() {
            host.notification_sent();
            (self.notification.poll(cx, buf), false)
        } else {
            each!(&mut self.machine, m => {
                (m.poll_response(cx, host, buf)?, m.response_failed())
            })
        };
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        if failed {
            self.enter_error(now, host);
        }
        Some(Transmit { len, ah: None })
    }

    /// Packets of RC that an acknowledgement or an answer is awaited for, those of READ responses
    /// among them, without what the peer keeps or has missed; none of other services.
    #[inline]
    pub fn packets_in_flight(&self) -> u64 {
        each!(&self.machine, m => m.packets_in_flight())
    }

    /// The congestion window in packets; `None` of services that have none.
    pub fn window(&self) -> Option<u32> {
        each!(&self.machine, m => m.window())
    }

    /// The smoothed round trip in nanoseconds; `None` where none was measured.
    pub fn round_trip(&self) -> Option<u64> {
        each!(&self.machine, m => m.round_trip())
    }

    /// What congestion control was told since the queue pair was created; `None` of services that
    /// have none.
    #[inline]
    pub fn tally(&self) -> Option<&Tally> {
        each!(&self.machine, m => m.tally())
    }

    /// Requests of RC that have been started and not completed; none of other services.
    #[inline]
    pub fn requests_in_flight(&self) -> u64 {
        each!(&self.machine, m => m.requests_in_flight())
    }

    /// Whether [`poll_request`](Self::poll_request) has something to send, carry out or flush.
    pub fn wants_requests(&self) -> bool {
        match self.attr.state {
            QpState::Rts | QpState::Sqd => each!(&self.machine, m => m.wants_requests(&self.attr)),
            QpState::Sqe | QpState::Error => each!(&self.machine, m => !m.send_queue().is_empty()),
            _ => false,
        }
    }

    /// Whether [`poll_probe`](Self::poll_probe) may have something: the peer has been silent for
    /// longer than its answers take. [`poll_request`](Self::poll_request) begins with it.
    #[inline]
    pub fn is_probing(&self) -> bool {
        each!(&self.machine, m => m.is_probing())
    }

    /// Whether [`poll_response`](Self::poll_response) has something to send.
    pub fn wants_responses(&self) -> bool {
        self.notification.is_due() || each!(&self.machine, m => m.wants_responses())
    }

    /// Whether all that [`poll_response`](Self::poll_response) has is a positive acknowledgement.
    /// It may wait a while for more to acknowledge (IBTA 9.7.5.1.2); READ and atomic responses and
    /// NAKs should not.
    pub fn owes_only_ack(&self) -> bool {
        !self.notification.is_due() && each!(&self.machine, m => m.owes_only_ack())
    }

    /// The sequence number before which every request was received and handled in order: what the
    /// next ACK says, or would say. `None` for services that acknowledge nothing.
    #[inline]
    pub fn received_until(&self) -> Option<Psn> {
        each!(&self.machine, m => m.received_until())
    }

    /// Whether either poll has something to do.
    pub fn wants_transmit(&self) -> bool {
        self.wants_requests() || self.wants_responses()
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called, at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        each!(&self.machine, m => m.next_deadline())
    }

    /// Whether request packets are on the way that were not acknowledged. Never of services that
    /// acknowledge nothing.
    pub fn has_unacknowledged(&self) -> bool {
        each!(&self.machine, m => m.has_unacknowledged())
    }

    /// Since when the peer has been silent, if it is waited for since it is known to be there.
    pub fn silent_since(&self) -> Option<Time> {
        each!(&self.machine, m => m.silent_since())
    }

    /// Whether request packets that were sent are to be sent again.
    pub fn is_repeating(&self) -> bool {
        each!(&self.machine, m => m.is_repeating())
    }

    /// The process of the peer is known to have ended: as if all retries had failed at once. The
    /// oldest request completes with RETRY_EXC, and the queue pair enters Error; if there is none,
    /// the application is told by an event. Services that acknowledge nothing do not care.
    pub fn handle_peer_gone(&mut self, now: Time, host: &mut impl Host) {
        self.handle_gone(now, Cause::PeerGone, host);
    }

    /// This end's link is gone for good. Does what [`handle_peer_gone`](Self::handle_peer_gone)
    /// does.
    pub fn handle_link_gone(&mut self, now: Time, host: &mut impl Host) {
        self.handle_gone(now, Cause::LinkGone, host);
    }

    fn handle_gone(&mut self, now: Time, cause: Cause, host: &mut impl Host) {
        if !matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return;
        }
        let cx = cx!(self, now);
        if let Err(broken) = each!(&mut self.machine, m => m.handle_gone(cx, cause, host)) {
            self.stop_for(broken, now, host);
        }
    }

    /// Time has passed: repeats what was not answered, ends an RNR delay, or gives up. A peer that
    /// is known to be there ([`Host::live_peer_patience`]) is asked again, and uses up no retries.
    /// Does nothing before the deadline.
    pub fn handle_timeout(&mut self, now: Time, host: &mut impl Host) {
        let cx = cx!(self, now);
        if let Err(broken) = each!(&mut self.machine, m => m.handle_timeout(cx, host)) {
            self.stop_for(broken, now, host);
        }
    }
}

//! A queue pair whose transport is iWARP. The contract stands at the head of [`iwarp`](super).

mod transmit;

use super::agreed::Agreed;
use super::deframer::Refusal;
use super::inbound::Taker;
use super::stream::{Extensions, Rx, RxNext, Shutdown, Stream, StreamConfig, Tx};
use crate::cx::{Cx, QpInit};
use crate::error::{AccessFault, Cause, Ending, PostError, StreamEnd, Violation, WcStatus};
use crate::host::{Host, QpCounters};
use crate::send_completion::completion;
use crate::sq::{SendProgress, SendQueue};
use crate::state::{AttrMask, ModifyError, QpAttr, QpState};
use crate::time::Time;
use crate::transition::check_modify_iwarp;
use crate::wqe::{MAX_MESSAGE, SendOp, SendWqe};
use vernic_wire::iwarp::{Crc32c, Terminate};
use vernic_wire::{Pkey, Qpn, Service};

/// Why a stream was refused by a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// It is not in Init, RTR or RTS.
    #[error("the queue pair is in {0:?}: a stream is taken in Init, RTR and RTS")]
    State(QpState),
    /// It has one.
    #[error("the queue pair already has a stream")]
    HasStream,
}

/// An iWARP queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) init: QpInit,
    pub(super) attr: QpAttr,
    pub(super) counters: QpCounters,
    pub(super) sq: SendQueue,
    pub(super) stream: Option<Box<Stream>>,
    pub(super) shutdown: Option<Shutdown>,
}

/// [`Cx`] over some of the fields, so that the others can be borrowed beside it.
macro_rules! cx {
    ($self:ident, $now:expr) => {
        Cx {
            qpn: $self.init.qpn,
            service: Service::Rc,
            attr: &$self.attr,
            pkey: Pkey::DEFAULT,
            ack_floor: 0,
            now: $now,
            counters: &mut $self.counters,
        }
    };
}

impl Qp {
    /// A queue pair in Reset. Of `init`, the window means nothing here.
    pub fn new(init: QpInit) -> Self {
        Self {
            init,
            attr: QpAttr::default(),
            counters: QpCounters::default(),
            sq: SendQueue::new(init.max_send_wr),
            stream: None,
            shutdown: None,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.init.qpn
    }
    /// Its state. SQD is a stream that is closing.
    pub fn state(&self) -> QpState {
        self.attr.state
    }
    /// Attributes as last modified. The depths of READs are those that were agreed.
    pub fn attr(&self) -> &QpAttr {
        &self.attr
    }
    /// Counters since the last reset; a packet is an FPDU.
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }
    /// Whether a send queue in SQD is still at work.
    pub fn is_draining(&self) -> bool {
        let at_work = self.stream.as_ref().is_some_and(|stream| stream.tx != Tx::Shut);
        self.attr.state == QpState::Sqd && at_work
    }

    pub(super) fn cx(&mut self, now: Time) -> Cx<'_> {
        cx!(self, now)
    }

    /// Checks the change against the table of transitions and carries it out. RTS is entered by
    /// [`start`](Self::start); SQD closes the stream.
    ///
    /// Entering Error flushes both queues through `host` and tells the peer; entering Reset forgets
    /// everything silently, and resets the connection.
    ///
    /// # Errors
    /// [`ModifyError`], with nothing changed.
    pub fn modify(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        let from = self.attr.state;
        let to = check_modify_iwarp(from, attr, mask)?;
        self.attr.merge(attr, mask);
        self.attr.state = to;
        match (from, to) {
            (_, QpState::Reset) => {
                let is_over = self.stream.as_ref().is_none_or(|stream| stream.is_over());
                if !is_over {
                    self.shutdown = Some(Shutdown::Reset);
                }
                self.attr = QpAttr::default();
                self.counters = QpCounters::default();
                self.sq.reset(vernic_wire::Psn::new(0));
                self.stream = None;
            }
            (QpState::Error, QpState::Error) => {}
            (_, QpState::Error) => {
                let terminate = Terminate::new(Violation::Local.row().code);
                self.enter_error(now, None, Some(terminate), host);
            }
            (QpState::Rts, QpState::Sqd) => self.close(now, host),
            _ => {}
        }
        Ok(())
    }

    /// Takes a connection over whose start-up is complete. What was received beyond the start-up is
    /// to be passed to [`handle_bytes`](Self::handle_bytes).
    ///
    /// # Errors
    /// [`StartError`], with nothing changed.
    pub fn start(&mut self, agreed: &Agreed, config: StreamConfig) -> Result<(), StartError> {
        match self.attr.state {
            QpState::Init | QpState::Rtr | QpState::Rts => {}
            state => return Err(StartError::State(state)),
        }
        if self.stream.is_some() {
            return Err(StartError::HasStream);
        }
        self.attr.state = QpState::Rts;
        self.attr.max_rd_atomic = agreed.ord.min(255) as u8;
        self.attr.max_dest_rd_atomic = agreed.ird.min(255) as u8;
        self.stream = Some(Box::new(Stream::new(agreed, config, self.sq.slots())));
        Ok(())
    }

    /// Changes the size of segments, as the path's MTU changes (RFC 5044, 4.5).
    pub fn set_emss(&mut self, emss: u32) {
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.config.emss = emss;
            stream.layout.set_segment(emss, stream.config.large_fpdus);
        }
    }

    /// Closes the stream in order: what was posted is sent and answered, what is posted from now on
    /// is flushed; then this end's half is closed, and Error entered once the peer's is too (RFC
    /// 5041, 6.2.1), or has been for long enough. A peer that takes and answers nothing for
    /// [`linger_ns`](StreamConfig::linger_ns) meanwhile is not waited for, and none for longer than
    /// [`close_ns`](StreamConfig::close_ns). Does nothing without a stream.
    pub fn close(&mut self, now: Time, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        if self.attr.state == QpState::Rts {
            self.attr.state = QpState::Sqd;
        }
        if self.attr.state == QpState::Sqd && !stream.closing {
            stream.closing = true;
            stream.requester.close(&self.sq);
            stream.linger_until = Some(now + stream.config.linger_ns);
            stream.close_until = Some(now + stream.config.close_ns);
            self.check_drained(now, host);
        }
    }

    /// Whether this end may send, or might when it still could: from the start as initiator, from
    /// the first FPDU on as responder.
    pub fn is_established(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_established())
    }
    /// Whether the peer has closed its half in order.
    pub fn peer_has_closed(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.rx == Rx::Ended)
    }

    /// Whether the peer may not be in full operation: it has not answered a ready-to-receive
    /// indication that is a READ.
    pub fn is_unheard(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_unheard())
    }

    /// From now on no message waits for a receive: where there is none, the stream ends.
    pub fn hold_no_more(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.hold_no_more();
        }
    }

    /// How the stream ended, or why it is about to.
    pub fn ending(&self) -> Option<Ending> {
        self.stream.as_ref().and_then(|stream| stream.ending)
    }

    /// Send requests that can be posted now.
    pub fn send_room(&self) -> u32 {
        self.sq.room()
    }
    /// The slot that the next post takes: its scatter list and inline bytes go there first.
    pub fn next_slot(&self) -> u32 {
        self.sq.next_slot()
    }
    /// Number of slots: `max_send_wr` rounded up to a power of two.
    pub fn send_slots(&self) -> u32 {
        self.sq.slots()
    }

    /// Returns how far the send requests have come since the reset.
    pub fn send_progress(&self) -> SendProgress {
        self.sq.progress()
    }

    /// Returns send request `index`, counted from the reset, and the sequence numbers that it takes
    /// (0 as long as nothing has left, and where it needs no packets). `None` if its slot has a
    /// later request.
    pub fn posted_send(&self, index: u64) -> Option<(&SendWqe, u32)> {
        self.sq.posted(index)
    }

    /// Appends a send request and returns its slot. In Error and SQD it will be flushed.
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_send(&mut self, wqe: SendWqe) -> Result<u32, PostError> {
        match self.attr.state {
            QpState::Rts | QpState::Sqd | QpState::Error => {}
            state => return Err(PostError::State(state)),
        }
        self.check_operation(&wqe.op)?;
        if wqe.length > MAX_MESSAGE {
            return Err(PostError::Length { length: wqe.length, limit: MAX_MESSAGE });
        }
        if self.sq.room() == 0 {
            return Err(PostError::Full(self.sq.limit()));
        }
        Ok(self.sq.push(wqe))
    }

    /// What iWARP has, what the peer has, and whether READs were agreed upon.
    fn check_operation(&self, op: &SendOp) -> Result<(), PostError> {
        let needs = match op {
            SendOp::SendImm(_) => return Err(PostError::NotOnIwarp("SEND with immediate data")),
            SendOp::Flush { .. } => return Err(PostError::NotOnIwarp("FLUSH")),
            SendOp::AtomicWrite(_) => return Err(PostError::NotOnIwarp("ATOMIC WRITE")),
            SendOp::WriteImm(..) => Some((Extensions::IMMEDIATE, "immediate data")),
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => {
                Some((Extensions::ATOMICS, "atomics"))
            }
            _ => None,
        };
        let Some(stream) = self.stream.as_deref() else { return Ok(()) };
        if let Some((extension, what)) = needs
            && !stream.config.peer_has.contains(extension)
        {
            return Err(PostError::PeerLacks(what));
        }
        let asks = matches!(
            op,
            SendOp::Read(_)
                | SendOp::ReadInv(..)
                | SendOp::CmpSwap { .. }
                | SendOp::FetchAdd { .. }
        );
        if asks && stream.requester.asked.depth() == 0 {
            return Err(PostError::NoReadDepth);
        }
        Ok(())
    }

    /// What the next bytes of the stream are. Valid until the next call with `&mut self`.
    pub fn rx_next(&self) -> RxNext {
        self.stream.as_ref().map_or(RxNext::Nothing, |stream| stream.rx_next())
    }

    /// Whether [`rx_next`](Self::rx_next) names places of long payload: not where it is checked
    /// first, nor where markers cut it up.
    pub fn places_payload(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.deframer.places())
    }

    /// Takes received bytes and returns how many were consumed. The others are to be passed again,
    /// with more behind them, as [`rx_next`](Self::rx_next) asks.
    pub fn handle_bytes(&mut self, now: Time, bytes: &[u8], host: &mut impl Host) -> usize {
        let Some(stream) = self.stream.as_deref_mut() else { return 0 };
        match stream.rx {
            Rx::Open => {}
            Rx::Dead => {
                stream.hear();
                return bytes.len();
            }
            Rx::Ended => return 0,
        }
        let rules = stream.rules();
        let mut cx = cx!(self, now);
        let mut taker = Taker {
            inbound: &mut stream.inbound,
            requester: &mut stream.requester,
            answers: &mut stream.answers,
            rules,
            cx: &mut cx,
            host,
        };
        let (consumed, result) = stream.deframer.handle_bytes(bytes, &mut taker);
        self.counters.rx_bytes += consumed as u64;
        self.after_bytes(now, consumed < bytes.len());
        self.settle(now, host);
        match result {
            Ok(()) => consumed,
            Err(Refusal::Hold) => {
                // Waiting for a receive is not the peer's standing still.
                if let Some(stream) = self.stream.as_deref_mut() {
                    stream.stall_until = None;
                }
                consumed
            }
            Err(Refusal::Error(stop)) => {
                self.stop_over(now, &stop, host);
                bytes.len()
            }
        }
    }

    /// Payload was placed by the owner, as [`RxNext::Place`] allowed: its first `len` bytes; `crc`
    /// is the one of the [`Place`](super::Place), taken on over them.
    pub fn handle_placed(&mut self, now: Time, len: u32, crc: Option<Crc32c>) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        if stream.rx == Rx::Open {
            stream.deframer.handle_placed(len, crc);
            self.counters.rx_bytes += u64::from(len);
            self.after_bytes(now, false);
        }
    }

    /// The place that [`RxNext::Place`] names cannot be written: its key ended meanwhile.
    pub fn refuse_place(&mut self, now: Time, fault: AccessFault, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref() else { return };
        if stream.rx == Rx::Open {
            let stop = stream.inbound.refused(fault, &stream.requester);
            self.stop_over(now, &stop, host);
        }
    }

    /// Bytes came: the first FPDU lifts the responder's fence; within an FPDU a clock runs.
    fn after_bytes(&mut self, now: Time, has_rest: bool) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        if stream.tx == Tx::Fenced && stream.deframer.fpdus() > 0 {
            stream.tx = Tx::Open;
        }
        stream.hear();
        stream.moves_on(now, &self.sq);
        let within = has_rest || !stream.deframer.is_at_boundary();
        let stall_ns = stream.config.stall_ns;
        stream.stall_until = (within && stall_ns > 0).then(|| now + stall_ns);
    }

    /// Completes what is complete.
    pub(super) fn settle(&mut self, now: Time, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        let accepted = stream.accepted;
        stream.requester.settle(&mut self.sq, accepted, &cx!(self, now), host);
        self.check_drained(now, host);
    }

    /// The connection delivers nothing more. An end in order is passed in once all bytes before it
    /// have been; `rest` is how many of them were not consumed.
    pub fn handle_end(&mut self, now: Time, end: StreamEnd, rest: usize, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        if end != StreamEnd::Closed {
            return self.lost(now, end, host);
        }
        // What is not in full operation by now never will be.
        stream.requester.asked.forget_rtr();
        stream.expect_no_word();
        match stream.rx {
            Rx::Ended => return,
            Rx::Dead => stream.rx = Rx::Ended,
            Rx::Open => {
                let is_cut = rest > 0 || !stream.deframer.is_at_boundary();
                if is_cut || !stream.requester.asked.is_empty() {
                    return self.lost(now, end, host);
                }
                stream.rx = Rx::Ended;
                stream.stall_until = None;
                if !stream.closing {
                    stream.ending.get_or_insert(Ending::PeerClosed);
                }
                if stream.tx == Tx::Fenced {
                    // Nobody can ever permit it to speak.
                    stream.tx = Tx::Shut;
                }
            }
        }
        self.check_over(now, host);
    }

    /// What is to be done with the connection, once; after everything that was committed has been
    /// sent, unless it is to be reset.
    pub fn poll_shutdown(&mut self) -> Option<Shutdown> {
        self.shutdown.take()
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called, at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.stream.as_ref().and_then(|stream| stream.next_deadline())
    }

    /// Time has passed. Does nothing before the deadline; when a message has waited long enough for
    /// a receive, the same bytes are to be passed again.
    pub fn handle_timeout(&mut self, now: Time, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        stream.repeat_rtr(now);
        stream.release_last_word(now);
        if !stream.lift_fence(now) {
            return self.lost(now, StreamEnd::Stalled, host);
        }
        if stream.stall_until.is_some_and(|until| now >= until) {
            return self.lost(now, StreamEnd::Stalled, host);
        }
        if stream.linger_until.is_some_and(|until| now >= until) {
            // The peer does not close its half, or does not take our last word: enough.
            if matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
                self.enter_error(now, None, None, host);
            }
            self.let_go();
        }
    }

    /// Completes every send request as flushed, but for the one that failed.
    pub(super) fn flush_sends(
        &mut self,
        now: Time,
        failed: Option<(u64, WcStatus, u32)>,
        host: &mut impl Host,
    ) {
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.requester.flush(&mut self.sq, failed, &cx!(self, now), host);
            return;
        }
        let code = Cause::Flushed.vendor_err();
        while let Some(entry) = self.sq.pop() {
            let cx = cx!(self, now);
            host.complete_send(completion(&entry, &cx, WcStatus::Flushed, code));
        }
    }
}

//! One stream in full operation: who sends next, what ends it, what is due when (RFC 5040, 6; RFC
//! 5041, 6; RFC 5044, 7.2, 8).
//!
//! ```text
//!   receiving:  Open ---------> Ended     the peer closed its half, in order
//!                 \-----------> Dead      an error was found, or told: what comes is dropped
//!   sending:    Fenced -> Open -> Shut    a responder waits for the first FPDU of the initiator
//!                           \-> Terminating -> Shut
//! ```
//! Both halves belong together: [`Qp`](super::Qp) moves them, under the rules at the head of
//! `ending`.

use vernic_wire::iwarp::{Crc32c, Terminate};

use super::agreed::{Agreed, Role, RtrSet};
use super::answers::Answers;
use super::deframer::{Deframer, Need};
use super::inbound::{Inbound, Rules, Target};
use super::layout::{Fpdu, Item, Layout};
use super::requester::{Fatal, Requester};
use crate::error::{Ending, Violation};
use crate::host::{Host, QpCounters};
use crate::sq::SendQueue;
use crate::time::Time;

bitflags::bitflags! {
    /// What RFC 7306 adds to RFC 5040.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    pub struct Extensions: u8 {
        /// FETCH_ADD and CMP_SWAP.
        const ATOMICS = 1;
        /// Immediate data.
        const IMMEDIATE = 2;
    }
}

/// What the owner of a stream decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Bytes of a TCP segment: the effective maximum segment size (RFC 5044, 2).
    pub emss: u32,
    /// Send FPDUs of up to 64 KiB to a peer that does not mind. Without, "FPDUs' lengths do not
    /// exceed the EMSS under normal conditions" (RFC 5044, 3), and begin where TCP segments begin.
    pub large_fpdus: bool,
    /// Place payload while its FPDU arrives and check the CRC afterwards, instead of checking
    /// first. Memory that is written so must not be changed by the application before the message
    /// is delivered: the CRC is taken over what is there. Without CRCs it is always so.
    pub place_before_crc: bool,
    /// What of RFC 7306 is taken from the peer.
    pub accepts: Extensions,
    /// What of RFC 7306 the peer is known to take. Nothing in the protocol says so.
    pub peer_has: Extensions,
    /// Nanoseconds that a message waits for a receive before the stream is ended for want of one; 0
    /// ends it at once.
    pub recv_wait_ns: u64,
    /// Nanoseconds that a peer may stand still in the middle of an FPDU; 0 for as long as TCP
    /// lives: "ULPs SHOULD implement a reasonable timeout while waiting for FPDUs" (RFC 5044, 7.1.2
    /// (10)). An owner that knows whether the peer's TCP answers needs none, and does not mistake a
    /// program that is stopped for one that is gone.
    pub stall_ns: u64,
    /// Nanoseconds that a peer may take for the ready-to-receive indication that it has agreed to
    /// send; 0 for as long as TCP lives.
    pub rtr_wait_ns: u64,
    /// Nanoseconds that the peer has to close its half when this end has closed its own, and that
    /// nothing may be sent or received while a closing end still has requests.
    pub linger_ns: u64,
    /// Nanoseconds after which a closing end has sent what it had to send, at the latest, however
    /// the peer takes it: one that takes a byte now and then could prolong it without end.
    pub close_ns: u64,
    /// Nanoseconds after which an initiator sends an empty WRITE behind its ready-to-receive
    /// indication, if that was an empty WRITE and nothing has come from the peer, or a READ and it
    /// was not answered: a few times, each four times as late; 0 never does. A responder may have
    /// missed the news of bytes that came while it was not yet in full operation, and look at them
    /// only when more come: siw does, where its answer is faster than its way out of the call that
    /// sent it.
    pub rtr_repeat_ns: u64,
    /// Nanoseconds that an initiator whose ready-to-receive indication is a READ keeps its
    /// Terminate back until that is answered; a close in order waits for it as for any READ,
    /// `linger_ns` at most. A responder may not be prepared for an end that comes before it is in
    /// full operation: with siw the peer's kernel stops.
    pub rtr_answer_ns: u64,
    /// Nanoseconds that a responder with something to send waits for the initiator's first FPDU,
    /// where no ready-to-receive indication was agreed; 0 for ever. "MPA Responder mode
    /// implementations MUST receive and validate at least one FPDU before sending any FPDUs" (RFC
    /// 5044, 7.1.2 (4)), since the initiator may not have seen the reply. But applications in which
    /// the server speaks first would wait for ever for peers that ask for no such indication, and
    /// work between those (siw), which do not wait: after a while the initiator has seen the reply.
    pub fence_ns: u64,
}

/// How often a ready-to-receive indication is repeated.
const RTR_REPEATS: u32 = 4;

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            emss: 1448,
            large_fpdus: false,
            place_before_crc: false,
            accepts: Extensions::all(),
            peer_has: Extensions::empty(),
            recv_wait_ns: 0,
            stall_ns: 30_000_000_000,
            rtr_wait_ns: 30_000_000_000,
            linger_ns: 2_000_000_000,
            close_ns: 60_000_000_000,
            rtr_repeat_ns: 0,
            rtr_answer_ns: 1_000_000_000,
            fence_ns: 0,
        }
    }
}

/// What the next bytes of the stream are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxNext {
    /// To be passed to [`Qp::handle_bytes`](super::Qp::handle_bytes), at least so many in one
    /// piece.
    Bytes(usize),
    /// Payload, which may go straight to its place; or be passed to `handle_bytes` like the rest.
    Place(Place),
    /// Nothing more is taken until a receive is posted or the deadline has come; then the same
    /// bytes are to be passed again.
    Hold,
    /// They are read and thrown away, so that the peer is not reset while it reads our last word.
    Discard,
    /// There are none.
    Nothing,
}

/// Where payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The first byte's place.
    pub target: Target,
    /// Bytes, at most.
    pub len: u32,
    /// If there is one, the owner takes it on over the bytes that it placed and gives it back.
    pub crc: Option<Crc32c>,
}

/// What is to be done with the TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Close the sending half, in order, and go on receiving.
    Write,
    /// Close it: both ends are done.
    Close,
    /// Nothing more is waited for, though the connection has not taken all: it may try for as long
    /// as the owner likes, or be reset.
    Abandon,
    /// Reset it: nothing sensible can be sent any more.
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rx {
    Open,
    Ended,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tx {
    Fenced,
    Open,
    /// The last word, and the place in the stream behind it once it has been handed out.
    Terminating(Terminate, Option<u64>),
    Shut,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) config: StreamConfig,
    role: Role,
    pub(super) rx: Rx,
    pub(super) tx: Tx,
    pub(super) deframer: Deframer,
    pub(super) inbound: Inbound,
    pub(super) requester: Requester,
    pub(super) answers: Answers,
    pub(super) layout: Layout,
    /// Bytes that the connection has taken.
    pub(super) accepted: u64,
    /// The application wants it closed when everything is sent.
    pub(super) closing: bool,
    /// Of answers and requests, the answers have the next turn.
    answers_first: bool,
    /// Why it ends.
    pub(super) ending: Option<Ending>,
    /// When the peer's time to close its half is over.
    pub(super) linger_until: Option<Time>,
    /// When a closing end has no time left, whatever moves.
    pub(super) close_until: Option<Time>,
    /// When the peer's time to go on in an FPDU is over.
    pub(super) stall_until: Option<Time>,
    /// When the ready-to-receive indication is repeated, how long that is after the last one, and
    /// how often.
    rtr_repeat: Option<(Time, u64, u32)>,
    /// The ready-to-receive indication is a READ that the peer has not answered, nor said anything
    /// since the answer is not waited for any more: it may not be in full operation.
    unheard: bool,
    /// When the last word is said though the peer is [unheard](Self::unheard).
    hold_until: Option<Time>,
    /// Whether the initiator has agreed to speak first by itself.
    hears_rtr: bool,
    /// When a responder has waited long enough.
    fence_until: Option<Time>,
}

impl Stream {
    pub(super) fn new(agreed: &Agreed, config: StreamConfig, slots: u32) -> Self {
        let mut deframer = Deframer::new(agreed.crc, agreed.rx_markers);
        deframer.set_direct(config.place_before_crc);
        let mut layout = Layout::new(agreed);
        layout.set_segment(config.emss, config.large_fpdus);
        let (tx, rtr) = match agreed.role {
            Role::Initiator => (Tx::Open, agreed.rtr),
            Role::Responder => (Tx::Fenced, RtrSet::empty()),
        };
        let may_be_rtr = agreed.role == Role::Responder && agreed.rtr.contains(RtrSet::SEND);
        Self {
            config,
            role: agreed.role,
            rx: Rx::Open,
            tx,
            deframer,
            inbound: Inbound::new(may_be_rtr),
            requester: Requester::new(agreed.ord, slots, rtr),
            answers: Answers::new(agreed.ird),
            layout,
            accepted: 0,
            closing: false,
            answers_first: false,
            ending: None,
            linger_until: None,
            close_until: None,
            stall_until: None,
            rtr_repeat: None,
            unheard: rtr.choice() == Some(RtrSet::READ),
            hold_until: None,
            hears_rtr: !agreed.rtr.is_empty(),
            fence_until: None,
        }
    }

    /// A responder that may not speak yet is asked for what it has to say, which it is as soon as
    /// it runs.
    pub(super) fn expect_permission(&mut self, now: Time, has_work: bool) {
        if self.tx != Tx::Fenced || self.fence_until.is_some() {
            return;
        }
        let ns = match self.hears_rtr {
            // The initiator has promised to speak, whoever has something to say.
            true => self.config.rtr_wait_ns,
            false if has_work => self.config.fence_ns,
            false => 0,
        };
        if ns > 0 {
            self.fence_until = Some(now + ns);
        }
    }

    /// Time has passed without the initiator's first FPDU; false if it had promised one.
    pub(super) fn lift_fence(&mut self, now: Time) -> bool {
        if self.fence_until.is_some_and(|until| now >= until) {
            self.fence_until = None;
            if self.tx == Tx::Fenced {
                if self.hears_rtr {
                    return false;
                }
                self.tx = Tx::Open;
            }
        }
        true
    }

    /// The connection has taken or brought something: a closing end that still has requests goes
    /// on.
    pub(super) fn moves_on(&mut self, now: Time, sq: &SendQueue) {
        if self.closing && self.tx == Tx::Open && !self.requester.is_drained(sq) {
            let until = now + self.config.linger_ns;
            self.linger_until = Some(self.close_until.map_or(until, |last| until.min(last)));
        }
    }

    /// The ready-to-receive indication is about to be sent for the first time.
    pub(super) fn expect_word(&mut self, now: Time) {
        let ns = self.config.rtr_repeat_ns;
        let repeatable = [RtrSet::WRITE, RtrSet::READ].map(Some);
        let is_due = repeatable.contains(&self.requester.due_rtr());
        if ns > 0 && self.rtr_repeat.is_none() && is_due {
            self.rtr_repeat = Some((now + ns, ns, RTR_REPEATS));
        }
    }

    /// Something has come: the answer to a ready-to-receive indication by READ, or any sign of life
    /// if that is not waited for any more.
    pub(super) fn hear(&mut self) {
        let is_due = self.requester.due_rtr() == Some(RtrSet::READ);
        if self.rx != Rx::Open || !is_due && !self.requester.asked.has_rtr() {
            self.expect_no_word();
        }
    }

    /// An FPDU ends the stream. Be it the initiator's first one: if MPA itself had nothing against
    /// it, a responder may answer, "MUST receive and validate at least one FPDU before sending any
    /// FPDUs or Markers" (RFC 5044, 7.1.2).
    pub(super) fn hear_offence(&mut self, violation: Violation) {
        if self.tx == Tx::Fenced && !matches!(violation, Violation::Crc | Violation::Marker) {
            self.tx = Tx::Open;
        }
    }

    /// The peer is in full operation, or nothing more will come of it.
    pub(super) fn expect_no_word(&mut self) {
        self.rtr_repeat = None;
        self.unheard = false;
        self.hold_until = None;
        if self.tx != Tx::Fenced || self.rx != Rx::Open || self.deframer.fpdus() > 0 {
            self.fence_until = None;
        }
    }

    /// Time has passed without a word.
    pub(super) fn repeat_rtr(&mut self, now: Time) {
        let Some((due, ns, left)) = self.rtr_repeat.filter(|(due, ..)| now >= *due) else { return };
        self.rtr_repeat = None;
        if !matches!(self.tx, Tx::Open | Tx::Terminating(_, None)) || left == 0 {
            return;
        }
        if self.requester.is_begun() {
            // Not between the segments of a message, more of which are news enough.
            self.rtr_repeat = Some((due + ns, ns, left));
            return;
        }
        self.requester.repeat_rtr();
        self.rtr_repeat = Some((now + 4 * ns, 4 * ns, left - 1));
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            atomics: self.config.accepts.contains(Extensions::ATOMICS),
            immediate: self.config.accepts.contains(Extensions::IMMEDIATE),
            recv_wait_ns: self.config.recv_wait_ns,
        }
    }

    /// No message waits for a receive any more.
    pub(super) fn hold_no_more(&mut self) {
        self.config.recv_wait_ns = 0;
    }

    /// What the next bytes are.
    pub(super) fn rx_next(&self) -> RxNext {
        match (self.rx, self.deframer.need()) {
            (Rx::Ended, _) => RxNext::Nothing,
            (Rx::Dead, _) => RxNext::Discard,
            (Rx::Open, Need::Bytes(len)) => RxNext::Bytes(len),
            (Rx::Open, Need::Hold) => RxNext::Hold,
            (Rx::Open, Need::Payload { offset, len, crc }) => match self.inbound.target(offset) {
                Some(target) => RxNext::Place(Place { target, len, crc }),
                None => RxNext::Bytes(1),
            },
        }
    }

    /// Whether an FPDU could be made.
    pub(super) fn is_ready(&self, sq: &SendQueue) -> bool {
        match self.tx {
            Tx::Fenced | Tx::Shut | Tx::Terminating(_, Some(_)) => false,
            Tx::Terminating(_, None) => !self.unheard || self.requester.due_rtr().is_some(),
            Tx::Open => {
                if self.answers.is_begun() {
                    return true;
                }
                self.requester.is_ready(sq)
                    || !self.answers.is_empty() && !self.requester.is_begun()
            }
        }
    }

    /// The last word is to be said: not to a peer that may not be in full operation, for a while.
    pub(super) fn hold_last_word(&mut self, now: Time) {
        if self.unheard {
            self.hold_until = Some(now + self.config.rtr_answer_ns);
        } else {
            self.expect_no_word();
        }
    }

    /// Time has passed without an answer to the ready-to-receive indication.
    pub(super) fn release_last_word(&mut self, now: Time) {
        if self.hold_until.is_some_and(|until| now >= until) {
            self.expect_no_word();
        }
    }

    /// Whether the peer may not be in full operation, so that the end of the stream should wait.
    pub(super) fn is_unheard(&self) -> bool {
        self.unheard
    }

    /// The next FPDU: the last word before all else, then what is in the middle, then answers and
    /// requests in turns.
    ///
    /// Messages are not mixed. RFC 5041 would permit it for tagged and untagged ones, but not every
    /// receiver can take it.
    pub(super) fn next(
        &mut self,
        sq: &mut SendQueue,
        host: &mut impl Host,
    ) -> Result<Option<Fpdu>, Fatal> {
        let mut fpdu = match self.tx {
            Tx::Fenced | Tx::Shut | Tx::Terminating(_, Some(_)) => return Ok(None),
            Tx::Terminating(terminate, None) => match self.requester.next_rtr() {
                None if self.unheard => None,
                None => Some(Fpdu::terminate(&terminate)),
                rtr => rtr,
            },
            Tx::Open => self.choose(sq, host)?,
        };
        if let Some(fpdu) = &mut fpdu {
            self.layout.place(fpdu);
        }
        Ok(fpdu)
    }

    fn choose(&mut self, sq: &mut SendQueue, host: &mut impl Host) -> Result<Option<Fpdu>, Fatal> {
        if self.answers.is_begun() {
            return Ok(self.answers.next(&self.layout));
        }
        if self.answers_first && !self.requester.is_begun() && !self.answers.is_empty() {
            return Ok(self.answers.next(&self.layout));
        }
        let fpdu = self.requester.next(sq, &self.layout, host)?;
        if fpdu.is_some() || self.requester.is_begun() {
            return Ok(fpdu);
        }
        Ok(self.answers.next(&self.layout))
    }

    /// The FPDU has been taken.
    pub(super) fn commit(&mut self, sq: &mut SendQueue, counters: &mut QpCounters, fpdu: &Fpdu) {
        let before = self.layout.position();
        self.layout.commit(fpdu);
        let end = self.layout.position();
        counters.tx_packets += 1;
        counters.tx_bytes += end - before;
        match fpdu.item {
            Item::Request => {
                self.requester.sent(sq, counters, fpdu.payload_len(), end);
                self.answers_first = true;
            }
            Item::Answer => {
                self.answers.sent(fpdu.payload_len());
                self.answers_first = false;
            }
            Item::Rtr => self.requester.rtr_sent(),
            Item::Terminate => {
                if let Tx::Terminating(_, end_of_it) = &mut self.tx {
                    *end_of_it = Some(end);
                }
            }
        }
    }

    /// Whether both ends have been heard of in full operation.
    pub(super) fn is_established(&self) -> bool {
        self.role == Role::Initiator || self.deframer.fpdus() > 0
    }

    /// What to do with a connection that nothing more is to be said over: bytes that it has not
    /// taken would keep it for as long as the peer likes.
    pub(super) fn last_shutdown(&self) -> Shutdown {
        if self.accepted < self.layout.position() { Shutdown::Abandon } else { Shutdown::Close }
    }

    /// Whether both halves are closed.
    pub(super) fn is_over(&self) -> bool {
        self.tx == Tx::Shut && self.rx == Rx::Ended
    }

    /// Whether the next request would ask a peer that has closed its half, and cannot answer.
    pub(super) fn asks_in_vain(&self, sq: &SendQueue) -> bool {
        let asks = sq.at_cursor().is_some_and(|(_, entry)| entry.needs_response());
        self.rx == Rx::Ended && self.tx == Tx::Open && asks && self.requester.is_ready(sq)
    }

    /// Whether everything that a closing stream has to say has been said and taken.
    pub(super) fn is_drained(&self, sq: &SendQueue) -> bool {
        self.requester.is_drained(sq)
            && self.answers.is_empty()
            && self.accepted >= self.layout.position()
    }

    /// The next time that something is due.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let held = self.inbound.held_since().map(|since| since + self.config.recv_wait_ns);
        let held = held.filter(|_| self.rx == Rx::Open);
        let repeat = self.rtr_repeat.map(|(due, ..)| due);
        [held, self.stall_until, self.linger_until, repeat, self.fence_until, self.hold_until]
            .into_iter()
            .flatten()
            .min()
    }
}

//! Congestion control: how many packets an RC requester may have in flight, and when the next may
//! leave.
//!
//! [`Congestion`] is the seam. A controller is told what happens to the requests of one queue pair,
//! and answers two questions: [`window`](Congestion::window) and
//! [`not_before`](Congestion::not_before). It has no clock, timer or randomness: each call brings
//! the present, and what must grow with time is computed from it at the next call. All calls are
//! made from inside [`Qp`](crate::Qp)'s methods, on the caller's thread, some of them for each
//! packet: a controller neither blocks nor allocates.
//!
//! ```text
//!   Qp::poll_request   -> window, then on_sent (a packet left)            -> not_before
//!   Qp::handle_packet  -> on_mark (CE), on_ack, on_loss (NAK), or on_cnp  -> not_before
//!   Qp::handle_timeout -> on_silence (the ACK timer ended)                -> not_before
//! ```
//! `window` is asked before each packet; `not_before` behind the calls of one line, and once more
//! when the time that it named has come.
//!
//! What a controller does not govern: acknowledgements and READ responses; the two packets of a
//! tail-loss probe, which repeat what is in flight after several round trips of silence; one-sided
//! requests that the owner carries out without packets; UD, whose packets are of no flow, and
//! iWARP, where TCP has a control of its own. Nothing acknowledges UC, so it heeds the times of
//! `dcqcn`, which follow notifications, and no other controller.
//!
//! # Queue pairs that share a controller
//!
//! A thousand queue pairs to one receiver fill it together, each of them with the least that its
//! own window allows. An owner can therefore have one more controller for all that go to the same
//! place. That controller is of the same trait: events of several queue pairs reach it, and
//! `window` and `not_before` are of the sum of what they have in flight. Each queue pair keeps a
//! [`Tally`] of what its own controller was told ([`Qp::tally`](crate::Qp::tally)), and the owner
//! passes on what was added since the last time ([`Tally::pass_on`]). What differs:
//!
//! - Some packets, or some acknowledgements, may be told in one call, and before losses.
//! - A window that queue pairs share limits them while one of them waits for room, which the owner
//!   sees and the controller cannot: [`on_contention`](Congestion::on_contention) tells it. The
//!   events of a time without contention are of queue pairs that their own windows govern.
//! - `reset` is not called: a queue pair that ends leaves others behind.
//! - One that is put in while packets are in flight hears of acknowledgements of packets whose
//!   sending its predecessor was told of. So what it counts must not go below zero.
//!
//! # A controller of one's own
//!
//! Implement [`Congestion`] and give it to [`Qp::with_congestion`](crate::Qp::with_congestion). To
//! build one in: a file beside `aimd`, a variant of `Controller`, which is matched on rather than
//! called through a pointer, since it is asked for each packet, and one of [`Algorithm`].
//! `rc/send_tests/congestion.rs` has a controller to begin with.

use core::fmt;

use vernic_wire::Kind;

use crate::time::Time;

mod aimd;
mod algorithm;
mod cubic;
mod dcqcn;
mod limit;
mod pacer;
mod params;
mod queue;
mod shortest;
mod swift;
mod tally;
mod unlimited;

use aimd::Aimd;
pub use algorithm::Algorithm;
pub use dcqcn::Dcqcn;
use dcqcn::ReactionPoint;
use limit::Limited;
pub(crate) use limit::{DatagramPacer, Limit, rate_of_mbps};
pub use params::{Param, ParamError};
pub use shortest::Shortest;
use swift::DelayWindow;
pub use swift::Swift;
pub use tally::Tally;
use unlimited::Unlimited;

/// A packet of a request that was handed out, or the packets that a
/// [`MessagePart`](crate::MessagePart) stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Sequence numbers that it takes, at least 1: packets of a SEND or WRITE, or the responses
    /// that a READ asks for.
    pub packets: u32,
    /// Bytes that leave, from the BTH to the pad, and those that a READ or atomic asks for; the
    /// payload alone of a part of a message.
    pub bytes: u32,
    /// It was sent before.
    pub again: bool,
}

/// What an answer of the peer acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Sequence numbers that are now answered and were not before, READ responses among them; at
    /// least 1.
    pub packets: u32,
    /// The window was at least half full: it limits sending, rather than the application. Of a
    /// window that queue pairs share: one of them waits for room.
    pub limited: bool,
    /// A round trip in nanoseconds, where this answer ends one that was timed: about one at a time.
    /// Packets that were repeated are not timed (Karn).
    pub round_trip: Option<u64>,
}

/// A congestion controller of one queue pair. The head of this module says when it is called.
pub trait Congestion: fmt::Debug + Send {
    /// Forgets what was learnt of the path: the queue pair was reset, and may be connected to
    /// another peer next.
    fn reset(&mut self);

    /// A request's packet leaves, for the first time or again.
    fn on_sent(&mut self, now: Time, sent: Sent);

    /// The peer has acknowledged or answered something new.
    fn on_ack(&mut self, now: Time, acked: Acked);

    /// The peer reported a gap, or left out a response: a packet was lost, others got through, and
    /// the requester goes back to it. Called once for each time that it goes back, so several times
    /// where one round trip lost several packets.
    fn on_loss(&mut self, now: Time);

    /// What [`on_loss`](Self::on_loss) told of last was no loss: the packets had only changed their
    /// order, and all that was repeated since was needless.
    fn on_needless(&mut self, _now: Time) {}

    /// A packet of the peer, of this `kind`, carried the mark CE of ECN (RFC 3168): a queue on the
    /// path from the peer to here is long. The responses to a READ are data that this side asked
    /// for; marks on others say nothing of the path to the peer, which tells by
    /// [`on_cnp`](Self::on_cnp).
    fn on_mark(&mut self, now: Time, kind: Kind);

    /// The peer sent a congestion notification packet (IBTA A17.9.3): packets of this queue pair
    /// came to it with a mark. Called in RTS and SQD only. Its source was checked as that of any
    /// packet, but for the UDP port, which is the sender's choice: another user of the peer's host
    /// can forge it, so it must not stop a queue pair for good.
    fn on_cnp(&mut self, now: Time);

    /// Nothing was heard for an ACK timeout with packets in flight, and the requester sends all of
    /// them again. Not called while a peer of this host is known to be there and merely silent.
    fn on_silence(&mut self, now: Time);

    /// Whether a queue pair waits for room in the window that several share: told when that
    /// changes. Not called of one queue pair's own controller, whose `Acked` says as much. A method
    /// of its own, since losses and silence, too, mean another thing of a window that nobody waits
    /// for.
    fn on_contention(&mut self, _contended: bool) {}

    /// Packets that may be in flight. The queue pair takes 1 for less, so that some answer can open
    /// the window again, and what it was created with
    /// ([`QpInit::max_window`](crate::QpInit::max_window)) for more. Lowering it calls nothing back
    /// that has left; where none of that asks for an acknowledgement, one packet more leaves which
    /// does.
    fn window(&self) -> u32;

    /// Time before which no further request leaves: pacing. A time that has come holds nothing
    /// back. `None` while the controller does not pace.
    /// [`Qp::next_deadline`](crate::Qp::next_deadline) includes it, so the packet
    /// leaves then, as late as the owner's timers are coarse. A controller sees to it that the time
    /// comes: nothing else ends the wait.
    fn not_before(&self) -> Option<Time>;

    /// Whether pacing may hold back what follows a packet of so many bytes that leaves now. That
    /// packet then asks for an acknowledgement, since the next may be long in coming. By default
    /// every packet of a controller that paces is such. Not called of a controller that queue pairs
    /// share.
    fn pauses_after(&self, now: Time, bytes: u32) -> bool {
        let _ = (now, bytes);
        self.not_before().is_some()
    }
}

/// The controller of a queue pair, chosen when it is created.
#[derive(Debug)]
pub(crate) enum Controller {
    Aimd(Aimd),
    Dcqcn(Box<ReactionPoint>),
    Swift(Box<DelayWindow>),
    None(Unlimited),
    /// One of the owner's, and the largest window.
    Owners(Box<dyn Congestion>, u32),
    /// Any other, with a limit of the rate beside it.
    Limited(Box<Limited>),
}

/// Calls a method of whichever controller there is.
macro_rules! each {
    ($self:expr, $controller:ident => $call:expr) => {
        match $self {
            Self::Aimd($controller) => $call,
            Self::Dcqcn($controller) => $call,
            Self::Swift($controller) => $call,
            Self::None($controller) => $call,
            Self::Owners($controller, _) => $call,
            Self::Limited($controller) => $call,
        }
    };
}

impl Controller {
    /// A built-in one, with a window of at most `limit` packets.
    pub(crate) fn new(algorithm: Algorithm, limit: u32) -> Self {
        match algorithm {
            Algorithm::Aimd => Self::Aimd(Aimd::new(limit)),
            Algorithm::Dcqcn(params) => Self::Dcqcn(Box::new(ReactionPoint::new(params, limit))),
            Algorithm::Swift(params) => Self::Swift(Box::new(DelayWindow::new(params, limit))),
            Algorithm::None => Self::None(Unlimited::new(limit)),
        }
    }

    pub(crate) fn owners(controller: Box<dyn Congestion>, limit: u32) -> Self {
        Self::Owners(controller, limit.max(1))
    }

    /// One that lets everything leave at once, for what has no window.
    pub(crate) fn unpaced() -> Self {
        Self::None(Unlimited::new(1))
    }

    /// The part of a controller that is of use where nothing is acknowledged: one that paces by
    /// notifications alone.
    pub(crate) fn without_answers(self) -> Self {
        match self {
            Self::Dcqcn(_) => self,
            _ => Self::unpaced(),
        }
    }

    /// Sets the limit of the rate, or ends it. What left before is paid for at the new rate.
    #[cold]
    pub(crate) fn set_limit(&mut self, limit: Option<Limit>, now: Time) {
        match (&mut *self, limit) {
            (Self::Limited(limited), Some(limit)) => limited.change(limit, now),
            (Self::Limited(limited), None) => {
                let inner = core::mem::replace(&mut limited.inner, Self::unpaced());
                *self = inner;
            }
            (_, Some(limit)) => {
                let inner = core::mem::replace(self, Self::unpaced());
                *self = Self::Limited(Box::new(Limited::new(inner, limit, now)));
            }
            (_, None) => {}
        }
    }

    /// Says whether what leaves from now on is not held against the limit.
    #[cold]
    pub(crate) fn set_exempt(&mut self, is_exempt: bool) {
        if let Self::Limited(limited) = self {
            limited.is_exempt = is_exempt;
        }
    }

    /// Whether [`not_before`](Congestion::not_before) may be a time.
    #[inline]
    pub(crate) fn may_pace(&self) -> bool {
        match self {
            Self::Aimd(aimd) => aimd.is_paced(),
            Self::None(_) => false,
            Self::Dcqcn(_) | Self::Swift(_) | Self::Limited(_) | Self::Owners(..) => true,
        }
    }
}

impl Congestion for Controller {
    fn reset(&mut self) {
        each!(self, c => c.reset());
    }
    #[inline]
    fn on_sent(&mut self, now: Time, sent: Sent) {
        each!(self, c => c.on_sent(now, sent));
    }
    #[inline]
    fn on_ack(&mut self, now: Time, acked: Acked) {
        each!(self, c => c.on_ack(now, acked));
    }
    fn on_loss(&mut self, now: Time) {
        each!(self, c => c.on_loss(now));
    }
    fn on_needless(&mut self, now: Time) {
        each!(self, c => c.on_needless(now));
    }
    fn on_mark(&mut self, now: Time, kind: Kind) {
        each!(self, c => c.on_mark(now, kind));
    }
    fn on_cnp(&mut self, now: Time) {
        each!(self, c => c.on_cnp(now));
    }
    fn on_silence(&mut self, now: Time) {
        each!(self, c => c.on_silence(now));
    }
    #[inline]
    fn window(&self) -> u32 {
        match self {
            Self::Aimd(aimd) => aimd.window(),
            Self::Dcqcn(dcqcn) => dcqcn.window(),
            Self::Swift(swift) => swift.window().max(1),
            Self::None(unlimited) => unlimited.window(),
            Self::Owners(controller, limit) => controller.window().clamp(1, *limit),
            Self::Limited(limited) => limited.inner.window(),
        }
    }
    #[inline]
    fn not_before(&self) -> Option<Time> {
        each!(self, c => c.not_before())
    }
    #[inline]
    fn pauses_after(&self, now: Time, bytes: u32) -> bool {
        each!(self, c => c.pauses_after(now, bytes))
    }
}

//! Whether there is a link: both ends look for each other and answer (after IBTA 5.6).
//!
//! An end that polls sends [`Signal::Polling`] now and then. The other end answers
//! [`Signal::Ready`], which brings the link up and is answered once. An end that loses its link
//! polls anew, or says that it is silent, and takes the link of the other end down with it. Frames
//! keep their order on a cable, so nothing of a former link is taken for one of this.

use super::frame::Signal;
use crate::Time;
use crate::attributes::PhysicalState;

/// How far training is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No cable, or the port is switched off or asleep.
    Off,
    /// Looks for the other end.
    Polling,
    /// Has heard it, and waits until it is ready.
    Configuring,
    /// There is a link.
    Up,
}

/// What a step of training means for the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Stay,
    /// The link came up.
    Up,
    /// The link went down.
    Down,
}

/// The training of one end.
#[derive(Clone, Debug)]
pub(crate) struct Training {
    phase: Phase,
    plugged: bool,
    interval_ns: u64,
    /// When the next [`Signal::Polling`] is due.
    next: Time,
    /// What is to be sent at once.
    pending: Option<Signal>,
}

impl Training {
    /// Begins without a cable.
    pub(crate) const fn new(interval_ns: u64) -> Self {
        Self { phase: Phase::Off, plugged: false, interval_ns, next: Time(0), pending: None }
    }
    /// Returns whether there is a link.
    pub(crate) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }
    /// Returns whether the port looks for the other end.
    pub(crate) fn is_looking(&self) -> bool {
        matches!(self.phase, Phase::Polling | Phase::Configuring)
    }
    /// Plugs the cable in, or pulls it. A cable that is plugged in already stays.
    pub(crate) fn plug(&mut self, plugged: bool) -> Step {
        if plugged == self.plugged {
            return Step::Stay;
        }
        let was_up = self.is_up();
        self.plugged = plugged;
        self.phase = Phase::Off;
        self.pending = None;
        if was_up { Step::Down } else { Step::Stay }
    }
    /// Follows the physical state that management has set. A link that is up is taken down if the
    /// state is not that of a link.
    pub(crate) fn follow(&mut self, physical: PhysicalState, now: Time) -> Step {
        match (physical, self.phase) {
            (PhysicalState::LinkUp, _) => Step::Stay,
            (_, Phase::Up) => {
                self.fail(now);
                if physical != PhysicalState::Polling {
                    self.phase = Phase::Off;
                }
                Step::Down
            }
            (PhysicalState::Polling, Phase::Off) if self.plugged => {
                (self.phase, self.next) = (Phase::Polling, now);
                Step::Stay
            }
            (
                PhysicalState::Disabled | PhysicalState::Sleep,
                Phase::Polling | Phase::Configuring,
            ) => {
                (self.phase, self.pending) = (Phase::Off, Some(Signal::Silent));
                Step::Stay
            }
            _ => Step::Stay,
        }
    }
    /// Gives the link up because of an error: silent at first, then polling.
    pub(crate) fn fail(&mut self, now: Time) {
        (self.phase, self.next) = (Phase::Polling, now + self.interval_ns);
        self.pending = Some(Signal::Silent);
    }
    /// Takes a signal of the other end.
    pub(crate) fn handle(&mut self, signal: Signal, physical: PhysicalState, now: Time) -> Step {
        if !self.plugged {
            return Step::Stay;
        }
        match (self.phase, signal) {
            (Phase::Off, _) => self.wake(signal, physical, now),
            (Phase::Polling | Phase::Configuring, Signal::Polling) => self.answer(now),
            (Phase::Polling | Phase::Configuring, Signal::Ready) => {
                // The answer to an answer; an end that has answered before needs not.
                let unanswered = self.phase == Phase::Polling;
                self.phase = Phase::Up;
                self.pending = unanswered.then_some(Signal::Ready).or(self.pending);
                Step::Up
            }
            (Phase::Configuring, Signal::Silent) => {
                (self.phase, self.next) = (Phase::Polling, now + self.interval_ns);
                Step::Stay
            }
            (Phase::Up, Signal::Polling) => {
                self.answer(now);
                Step::Down
            }
            (Phase::Up, Signal::Silent) => {
                (self.phase, self.next) = (Phase::Polling, now + self.interval_ns);
                Step::Down
            }
            (Phase::Up, Signal::Ready) | (Phase::Polling, Signal::Silent) => Step::Stay,
        }
    }
    /// Takes the news that something else than a signal came without a link. A port that is off
    /// answers that it is silent, in case that signal was lost; one that polls says so anyway.
    pub(crate) fn handle_stray(&mut self) {
        if self.plugged && self.phase == Phase::Off {
            self.pending = Some(Signal::Silent);
        }
    }
    /// Takes a signal while the port is off: a port asleep wakes, a port switched off says so.
    fn wake(&mut self, signal: Signal, physical: PhysicalState, now: Time) -> Step {
        match (signal, physical) {
            (Signal::Silent, _) => Step::Stay,
            (Signal::Polling, PhysicalState::Sleep | PhysicalState::Polling) => self.answer(now),
            _ => {
                self.pending = Some(Signal::Silent);
                Step::Stay
            }
        }
    }
    fn answer(&mut self, now: Time) -> Step {
        (self.phase, self.next) = (Phase::Configuring, now + self.interval_ns);
        self.pending = Some(Signal::Ready);
        Step::Stay
    }
    /// Returns the signal that is to be sent now.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Signal> {
        if self.pending.is_some() {
            return self.pending.take();
        }
        if !self.is_looking() || now < self.next {
            return None;
        }
        (self.phase, self.next) = (Phase::Polling, now + self.interval_ns);
        Some(Signal::Polling)
    }
    /// Returns when there is a signal to be sent.
    pub(crate) fn due(&self) -> Option<Time> {
        match self.phase {
            _ if self.pending.is_some() => Some(Time(0)),
            Phase::Polling | Phase::Configuring => Some(self.next),
            Phase::Off | Phase::Up => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLLING: PhysicalState = PhysicalState::Polling;

    fn plugged(now: Time) -> Training {
        let mut training = Training::new(100);
        training.plug(true);
        training.follow(POLLING, now);
        training
    }

    /// Carries signals both ways until there are no more.
    fn settle(a: &mut Training, b: &mut Training, now: Time) {
        for _ in 0..10 {
            if let Some(signal) = a.poll(now) {
                b.handle(signal, POLLING, now);
            }
            if let Some(signal) = b.poll(now) {
                a.handle(signal, POLLING, now);
            }
        }
    }

    #[test]
    fn two_ends_that_poll_come_up() {
        let (mut a, mut b) = (plugged(Time(0)), plugged(Time(0)));
        settle(&mut a, &mut b, Time(0));
        assert!(a.is_up() && b.is_up());
        assert_eq!((a.due(), b.due()), (None, None));
    }

    #[test]
    fn two_ends_that_poll_at_once_come_up() {
        let (mut a, mut b) = (plugged(Time(0)), plugged(Time(0)));
        let signals = (a.poll(Time(0)).unwrap(), b.poll(Time(0)).unwrap());
        a.handle(signals.1, POLLING, Time(1));
        b.handle(signals.0, POLLING, Time(1));
        settle(&mut a, &mut b, Time(1));
        assert!(a.is_up() && b.is_up());
    }

    #[test]
    fn a_lost_answer_is_made_good_by_the_next_poll() {
        let (mut a, mut b) = (plugged(Time(0)), plugged(Time(0)));
        b.handle(a.poll(Time(0)).unwrap(), POLLING, Time(0));
        assert_eq!(b.poll(Time(0)), Some(Signal::Ready), "lost");
        settle(&mut a, &mut b, Time(50));
        assert!(!a.is_up() && !b.is_up());
        settle(&mut a, &mut b, Time(100));
        assert!(a.is_up() && b.is_up());
    }

    #[test]
    fn an_end_that_fails_takes_the_other_down_and_both_come_back() {
        let (mut a, mut b) = (plugged(Time(0)), plugged(Time(0)));
        settle(&mut a, &mut b, Time(0));
        a.fail(Time(10));
        let signal = a.poll(Time(10)).unwrap();
        assert_eq!(b.handle(signal, POLLING, Time(10)), Step::Down);
        settle(&mut a, &mut b, Time(50));
        assert!(!a.is_up() && !b.is_up());
        settle(&mut a, &mut b, Time(110));
        assert!(a.is_up() && b.is_up());
    }

    #[test]
    fn a_port_that_is_switched_off_answers_that_it_is_silent() {
        let mut off = Training::new(100);
        off.plug(true);
        assert_eq!(off.handle(Signal::Polling, PhysicalState::Disabled, Time(0)), Step::Stay);
        assert_eq!(off.poll(Time(0)), Some(Signal::Silent));
        assert_eq!(off.poll(Time(1000)), None);
        off.handle(Signal::Polling, PhysicalState::Sleep, Time(0));
        assert_eq!(off.poll(Time(0)), Some(Signal::Ready), "a port asleep wakes");
    }

    #[test]
    fn a_port_that_is_off_tells_an_end_that_still_sends() {
        let mut off = Training::new(100);
        off.handle_stray();
        assert_eq!(off.poll(Time(0)), None, "there is no cable");
        off.plug(true);
        off.handle_stray();
        assert_eq!((off.poll(Time(0)), off.poll(Time(0))), (Some(Signal::Silent), None));
        let mut polls = plugged(Time(0));
        polls.poll(Time(0));
        polls.handle_stray();
        assert_eq!(polls.poll(Time(99)), None);
    }

    #[test]
    fn a_pulled_cable_carries_nothing() {
        let (mut a, mut b) = (plugged(Time(0)), plugged(Time(0)));
        settle(&mut a, &mut b, Time(0));
        assert_eq!(a.plug(true), Step::Stay);
        assert!(a.is_up());
        assert_eq!(a.plug(false), Step::Down);
        a.follow(POLLING, Time(0));
        assert_eq!(a.handle(Signal::Polling, POLLING, Time(0)), Step::Stay);
        assert_eq!((a.poll(Time(1000)), a.due()), (None, None));
    }
}

//! The loop: two ends, two pipes, and one thing after another.
//!
//! Each step does one of the things that could happen now, at random; when none could, time leaps
//! to the next deadline. A run ends when both connections are closed; that it does end, within
//! [`MAX_STEPS`], is a property.

use vernic_proto::iwarp::{Agreed, Qp, RxNext, Shutdown, Startup, StartupState, StreamEnd};
use vernic_proto::{AttrMask, QpAttr, QpInit, QpState, QpType, Time};

use super::books::{Books, Judge};
use super::host::{StreamHost, qpn};
use super::pipe::Pipe;
use super::plan::{EndPlan, Fault, Plan};
use super::tally::{Tally, Totals};
use crate::memory::access;
use crate::rng::Rng;

/// Steps of the longest run: some 50 requests of 150,000 bytes, cut into small pieces.
const MAX_STEPS: u64 = 3_000_000;

/// Bytes that an owner keeps for the connection before it makes more.
const OUT_BYTES: usize = 70_000;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was exercised.
    pub totals: Totals,
    /// The first property that did not hold.
    pub violation: Option<String>,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
    /// The deliberate fault struck.
    pub mutated: bool,
}

/// One end of the connection: its protocol, and its owner's buffers.
pub(crate) struct End {
    pub(crate) plan: EndPlan,
    pub(crate) startup: Option<Startup>,
    pub(crate) qp: Qp,
    /// Made, and not taken by the connection.
    pub(super) out: Vec<u8>,
    /// Delivered, and not consumed.
    pub(super) inbox: Vec<u8>,
    /// Requests to be posted.
    pub(crate) left: u32,
    /// What to do with the connection when `out` is empty.
    shutdown: Option<Shutdown>,
    /// It has closed the connection, or lost it.
    pub(crate) gone: bool,
    pub(crate) closing: bool,
}

/// Everything of a run.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) ends: [End; 2],
    pub(crate) books: [Books; 2],
    /// From each end to the other.
    pub(crate) pipes: [Pipe; 2],
    pub(crate) judge: Judge,
    pub(crate) steps: u64,
}

/// What could happen next at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Post,
    PostRecv,
    Transmit,
    Take,
    Deliver,
    HearEnd,
    Close,
}

impl End {
    fn new(plan: &Plan, side: usize, now: Time) -> Self {
        let plan = plan.ends[side];
        let startup = match side {
            0 => Startup::initiate(plan.startup, b"question", now).ok(),
            _ => Some(Startup::respond(plan.startup, now)),
        };
        let qp = Qp::new(QpInit {
            qpn: qpn(side),
            qp_type: QpType::Rc,
            max_send_wr: plan.send_queue,
            max_window: 1,
            shared_rq: false,
        });
        Self {
            plan,
            startup,
            qp,
            out: Vec::new(),
            inbox: Vec::new(),
            left: plan.quota,
            shutdown: None,
            gone: false,
            closing: false,
        }
    }
}

/// Runs a plan.
pub fn run(plan: Plan, trace: bool) -> Report {
    let mut world = World::new(plan, trace);
    world.run();
    world.check_end();
    let Judge { mut totals, violation, trace, mutated, .. } = world.judge;
    totals.add(Tally::Steps, world.steps);
    Report { totals, violation, trace: trace.unwrap_or_default(), mutated }
}

impl World {
    fn new(plan: Plan, trace: bool) -> Self {
        let now = Time(1);
        let rng = Rng::new(plan.seed ^ 0x5EED_0000);
        let judge = Judge {
            now,
            totals: Totals::default(),
            violation: None,
            trace: trace.then(Vec::new),
            mutation: plan.mutation,
            fuse: plan.fuse,
            mutated: false,
            disturbed: matches!(plan.fault, Fault::NoReceive { .. }) || !plan.agrees(),
            lenient: false,
        };
        let books = [0, 1].map(|side| {
            let EndPlan { send_queue, receives, .. } = plan.ends[side];
            let slots = send_queue.next_power_of_two();
            Books::new(side, plan.seed * 2 + side as u64, slots, receives, plan.max_len)
        });
        let ends = [0, 1].map(|side| End::new(&plan, side, now));
        let pipes = [0, 1].map(|side| Pipe::new(plan.ends[side].room));
        let mut world = Self { plan, rng, ends, books, pipes, judge, steps: 0 };
        world.count_plan();
        (0..2).for_each(|side| world.enter_init(side));
        world
    }

    fn count_plan(&mut self) {
        let Plan { ends, .. } = &self.plan;
        let totals = &mut self.judge.totals;
        let mut note = |is: bool, tally| totals.add(tally, u64::from(is));
        note(ends.iter().any(|end| end.startup.crc), Tally::Crc);
        note(!ends.iter().any(|end| end.startup.crc), Tally::NoCrc);
        note(ends.iter().any(|end| end.startup.markers), Tally::Markers);
        note(ends.iter().any(|end| end.stream.large_fpdus), Tally::LargeFpdus);
        note(ends[0].chunk == 1, Tally::ByteByByte);
        note(!ends[0].startup.rtr.is_empty(), Tally::PeerToPeer);
        note(ends[0].startup.revision == 1, Tally::RevisionOne);
        note(matches!(self.plan.fault, Fault::NoReceive { .. }), Tally::NoReceive);
    }

    /// Calls into a queue pair with its host.
    pub(crate) fn with_qp<T>(
        &mut self,
        side: usize,
        call: impl FnOnce(&mut Qp, &mut StreamHost<'_>, Time) -> T,
    ) -> T {
        let [a, b] = &mut self.books;
        let (own, peer) = if side == 0 { (a, b) } else { (b, a) };
        let now = self.judge.now;
        let mut host = StreamHost { own, peer, judge: &mut self.judge };
        let result = call(&mut self.ends[side].qp, &mut host, now);
        if let Some(shutdown) = self.ends[side].qp.poll_shutdown() {
            self.judge.say(format_args!("{side}: to do: {shutdown:?}"));
            self.ends[side].shutdown = Some(shutdown);
        }
        result
    }

    pub(crate) fn modify(&mut self, side: usize, attr: QpAttr, mask: AttrMask) {
        let result = self.with_qp(side, |qp, host, now| qp.modify(&attr, mask, now, host));
        if let Err(error) = result {
            self.judge.fail(format_args!("{side}: to {:?}: {error}", attr.state));
        }
    }

    fn enter_init(&mut self, side: usize) {
        let attr = QpAttr { state: QpState::Init, access: access::ALL, ..QpAttr::default() };
        self.modify(side, attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS);
    }

    fn run(&mut self) {
        while self.judge.violation.is_none() && !self.ends.iter().all(|end| end.gone) {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                let ends = self.describe();
                self.judge.fail(format_args!("does not end: {ends}"));
                return;
            }
            self.strike();
            let mut moves = Vec::with_capacity(14);
            for side in 0..2 {
                self.moves(side, &mut moves);
            }
            if moves.is_empty() {
                self.leap();
                continue;
            }
            self.judge.now = self.judge.now + self.rng.below(200);
            let (side, what) = self.rng.pick(&moves);
            self.act(side, what);
            self.settle(side);
        }
    }

    /// Faults that come at a step.
    fn strike(&mut self) {
        match self.plan.fault {
            Fault::Reset { step } if step == self.steps => {
                self.judge.totals.hit(Tally::Reset);
                self.break_off(StreamEnd::Reset);
            }
            Fault::ToError { side, step } if step == self.steps && !self.ends[side].gone => {
                self.judge.disturbed = true;
                self.judge.totals.hit(Tally::ToError);
                let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
                self.modify(side, attr, AttrMask::STATE);
                if let Some(startup) = &mut self.ends[side].startup {
                    startup.abort();
                }
                self.settle(side);
            }
            _ => {}
        }
    }

    /// Both ends lose the connection.
    fn break_off(&mut self, end: StreamEnd) {
        self.judge.disturbed = true;
        for side in 0..2 {
            self.pipes[side].clear();
            self.lose(side, end);
        }
    }

    fn lose(&mut self, side: usize, end: StreamEnd) {
        if self.ends[side].gone {
            return;
        }
        if let Some(startup) = &mut self.ends[side].startup {
            startup.handle_end(end);
        }
        let rest = self.ends[side].inbox.len();
        self.with_qp(side, |qp, host, now| qp.handle_end(now, end, rest, host));
        self.ends[side].gone = true;
    }

    fn moves(&self, side: usize, moves: &mut Vec<(usize, Move)>) {
        let (end, books) = (&self.ends[side], &self.books[side]);
        let mut offer = |is: bool, what| {
            if is {
                moves.push((side, what));
            }
        };
        if end.gone {
            return;
        }
        let state = end.qp.state();
        let is_up = end.startup.is_none() && state == QpState::Rts;
        let receives_now = is_up || state == QpState::Sqd;
        offer(is_up && end.left > 0 && end.qp.send_room() > 0, Move::Post);
        let receives = match self.plan.fault {
            Fault::NoReceive { side: without } if without == side => 0,
            _ => u64::from(end.plan.receives),
        };
        offer(receives_now && books.recvs_outstanding() < receives, Move::PostRecv);
        let wants = end.startup.is_none() && end.qp.wants_transmit();
        offer(wants && end.out.len() < OUT_BYTES, Move::Transmit);
        let has_out = !end.out.is_empty()
            || end.startup.as_ref().is_some_and(|startup| !startup.transmit().is_empty());
        offer(has_out && self.pipes[side].room() > 0, Move::Take);
        let from = &self.pipes[1 - side];
        let holds = end.startup.is_none() && end.qp.rx_next() == RxNext::Hold;
        offer(!from.is_empty() && !holds, Move::Deliver);
        offer(from.is_empty() && from.closed && !from.told && !holds, Move::HearEnd);
        offer(is_up && !end.closing && self.may_close(side), Move::Close);
    }

    /// An application closes when its own requests are done, those of its peer too, and it is its
    /// turn.
    fn may_close(&self, side: usize) -> bool {
        let end = &self.ends[side];
        let own_done = end.left == 0 && self.books[side].is_done();
        let peer = 1 - side;
        let peer_done = self.ends[peer].left == 0 && self.books[peer].is_done();
        let is_turn = self.plan.closes_first == side;
        own_done && (end.qp.peer_has_closed() || peer_done && is_turn) && end.qp.is_established()
            || end.qp.peer_has_closed()
    }

    fn act(&mut self, side: usize, what: Move) {
        match what {
            Move::Post => self.post(side),
            Move::PostRecv => {
                let held = self.ends[side].qp.rx_next() == RxNext::Hold;
                self.books[side].post_recv();
                if held {
                    self.judge.totals.hit(Tally::Held);
                }
                self.consume(side);
            }
            Move::Transmit => self.transmit(side),
            Move::Take => self.take(side),
            Move::Deliver => {
                let len = self.rng.range(1, self.ends[1 - side].plan.chunk) as usize;
                let bytes = self.pipes[1 - side].deliver(len);
                self.ends[side].inbox.extend(bytes);
                self.consume(side);
            }
            Move::HearEnd => {
                self.pipes[1 - side].told = true;
                let rest = self.ends[side].inbox.len();
                if let Some(startup) = &mut self.ends[side].startup {
                    startup.handle_end(StreamEnd::Closed);
                } else {
                    let end = StreamEnd::Closed;
                    self.with_qp(side, |qp, host, now| qp.handle_end(now, end, rest, host));
                }
            }
            Move::Close => {
                self.ends[side].closing = true;
                let attr = QpAttr { state: QpState::Sqd, ..QpAttr::default() };
                self.modify(side, attr, AttrMask::STATE);
            }
        }
    }

    /// What follows from what both ends have told each other so far.
    pub(super) fn advance_startup(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let Some(startup) = &mut end.startup else { return };
        if startup.state() == StartupState::Asked {
            let accepted = startup.accept(&end.plan.startup, b"answer", self.judge.now);
            assert!(accepted.is_ok(), "six bytes fit");
        }
    }

    /// After each step: the owner's chores.
    pub(crate) fn settle(&mut self, side: usize) {
        if self.ends[side].gone {
            return;
        }
        if let Some(startup) = &self.ends[side].startup {
            let state = startup.state();
            let agreed = startup.agreed().copied();
            match (state, agreed) {
                (StartupState::Agreed, Some(agreed)) => self.begin(side, &agreed),
                (StartupState::Failed(error), _) if startup.transmit().is_empty() => {
                    self.judge.totals.hit(Tally::StartupFailed);
                    if !self.judge.disturbed {
                        self.judge.fail(format_args!("{side}: the start-up fails: {error}"));
                    }
                    self.leave(side);
                }
                _ => {}
            }
        }
        match self.ends[side].shutdown {
            Some(Shutdown::Reset | Shutdown::Abandon) => self.leave(side),
            Some(what) if self.ends[side].out.is_empty() => {
                self.ends[side].shutdown = None;
                self.pipes[side].close();
                if what == Shutdown::Close {
                    self.leave(side);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, side: usize, agreed: &Agreed) {
        self.judge.say(format_args!("{side}: agreed: {agreed}"));
        self.ends[side].startup = None;
        self.pipes[side].end_startup();
        let config = self.ends[side].plan.stream;
        if let Err(error) = self.ends[side].qp.start(agreed, config)
            && !self.judge.disturbed
        {
            self.judge.fail(format_args!("{side}: {error}"));
        }
        if self.ends[side].qp.state() == QpState::Error {
            return self.leave(side);
        }
        self.consume(side);
    }

    /// This end closes its descriptor: the peer hears the end, or of a reset.
    fn leave(&mut self, side: usize) {
        self.ends[side].gone = true;
        self.pipes[side].close();
        self.pipes[1 - side].clear();
    }

    /// Nothing can happen: time leaps to the next deadline. Where there is none, TCP itself gives
    /// up.
    fn leap(&mut self) {
        let mut next: Option<Time> = None;
        for end in self.ends.iter().filter(|end| !end.gone) {
            let deadline = match &end.startup {
                Some(startup) => startup.next_deadline(),
                None => end.qp.next_deadline(),
            };
            next = [next, deadline].into_iter().flatten().min();
        }
        let Some(next) = next else {
            if !self.judge.disturbed {
                let ends = self.describe();
                self.judge.fail(format_args!("silence, but not done: {ends}"));
            }
            return self.break_off(StreamEnd::TimedOut);
        };
        self.judge.now = self.judge.now + next.since(self.judge.now);
        for side in 0..2 {
            let now = self.judge.now;
            if let Some(startup) = &mut self.ends[side].startup {
                startup.handle_timeout(now);
            } else if !self.ends[side].gone {
                self.with_qp(side, |qp, host, now| qp.handle_timeout(now, host));
                self.consume(side);
            }
            self.settle(side);
            let end = &self.ends[side];
            if !end.gone && end.qp.next_deadline().is_some_and(|deadline| deadline <= now) {
                self.judge.fail(format_args!("{side}: a deadline that does not move"));
            }
        }
    }

    pub(crate) fn describe(&self) -> String {
        let one = |side: usize| {
            let (end, books) = (&self.ends[side], &self.books[side]);
            format!(
                "{side}: {:?}, startup {:?}, {} to post, {} of {} done, next {:?}, {} kept, gone {}",
                end.qp.state(),
                end.startup.as_ref().map(Startup::state),
                end.left,
                books.next_done,
                books.msgs.len(),
                end.qp.rx_next(),
                end.inbox.len(),
                end.gone,
            )
        };
        format!("{}; {}", one(0), one(1))
    }
}

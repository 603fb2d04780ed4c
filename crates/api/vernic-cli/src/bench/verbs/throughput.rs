//! Bandwidth and message rate: as many messages in flight as the depths allow.
//!
//! The active side posts, one doorbell per `post_list` messages, and asks for one completion per
//! `cq_mod` of them. On RC a completion says that the message arrived. On iWARP it says that TCP
//! has it, so the last thing of a run is a READ of one byte, which is answered behind all before
//! it. On UC and UD it does not, so the passive side returns *credits*: after each quarter of its
//! receives a SEND of one byte whose immediate data is the number of messages that have arrived. At
//! most `rx_depth` messages are on their way without a credit. Credits that stay away for
//! [`LOST_AFTER`] mean that messages were lost; they are not counted, and the flow goes on.

use super::flavor::Flavor;
use super::pipes::{Event, Pipes, Post};
use crate::bench::control::{Control, EndpointInfo, Message, Watch};
use crate::bench::end::{Active, PATIENCE, Passive, Run};
use crate::failure::Outcome;
use crate::spec::{Op, Spec};
use std::time::{Duration, Instant};

/// Longer than any scheduling delay of a receiver that is alive.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// Messages per credit, and per WRITE with immediate: a quarter of the receives.
fn credit_every(spec: &Spec) -> u64 {
    u64::from(spec.rx_depth / 4).max(1)
}

/// On services where a completion does not tell of arrival.
fn needs_credits(spec: &Spec) -> bool {
    !spec.service.is_reliable()
}

/// Of how many WRITEs one has immediate data, so that the receiver sees it: large messages all,
/// small ones one per credit.
fn imm_every(spec: &Spec) -> u64 {
    if crate::bench::suite::is_message_rate(spec.size) { credit_every(spec) } else { 1 }
}

/// One queue pair's progress through a run.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Messages to send in this run.
    quota: u64,
    posted: u64,
    /// Completed here.
    done: u64,
    /// Known to have arrived there.
    credited: u64,
    /// Given up.
    lost: u64,
}

impl Flow {
    /// How many messages may be posted now.
    fn room(&self, spec: &Spec) -> u64 {
        let queue = u64::from(spec.tx_depth) - (self.posted - self.done);
        let window = if needs_credits(spec) {
            u64::from(spec.rx_depth).saturating_sub(self.uncredited())
        } else {
            u64::MAX
        };
        queue.min(window).min(self.quota - self.posted).min(u64::from(spec.post_list))
    }

    fn uncredited(&self) -> u64 {
        self.posted.saturating_sub(self.credited + self.lost)
    }

    fn finished(&self, spec: &Spec) -> bool {
        self.done == self.quota && !(needs_credits(spec) && self.uncredited() > 0)
    }

    /// The message at `index` of the run.
    fn describe(&self, spec: &Spec, index: u64) -> Post {
        Post {
            covers: covers(index, self.quota, u64::from(spec.cq_mod)),
            imm: match (spec.op, needs_credits(spec)) {
                (Op::Write, true) => covers(index, self.quota, imm_every(spec)),
                _ => None,
            },
        }
    }
}

/// If the message at `index` ends a group of `every` (or the run, at `quota`): the group's size.
fn covers(index: u64, quota: u64, every: u64) -> Option<u32> {
    let in_group = index % every + 1;
    // A group is at most as long as a queue is deep.
    (in_group == every || index + 1 == quota).then_some(in_group as u32)
}

/// The active side.
pub(super) struct Pusher<S: Flavor> {
    pipes: Pipes<S>,
    flows: Vec<Flow>,
    last_credit: Instant,
}

impl<S: Flavor> Pusher<S> {
    pub(super) fn new(pipes: Pipes<S>) -> Self {
        let flows = vec![Flow::default(); pipes.spec().qps as usize];
        Self { pipes, flows, last_credit: Instant::now() }
    }

    fn post_what_fits(&mut self) -> Outcome<bool> {
        let mut posted = false;
        for (pipe, flow) in self.flows.iter_mut().enumerate() {
            let spec = *self.pipes.spec();
            let room = flow.room(&spec);
            if room > 0 {
                let first = flow.posted;
                self.pipes.post(pipe, room, |index| flow.describe(&spec, first + index))?;
                flow.posted += room;
                posted = true;
            }
        }
        Ok(posted)
    }

    fn take_completions(&mut self) -> Outcome<bool> {
        let (flows, last_credit) = (&mut self.flows, &mut self.last_credit);
        let mut credits = 0;
        let any = self.pipes.poll(|event| match event {
            Event::Sent { pipe, count } => flows[pipe].done += u64::from(count),
            Event::Received { pipe, imm } => {
                let arrived = u64::from(imm.unwrap_or(0));
                flows[pipe].credited = flows[pipe].credited.max(arrived);
                *last_credit = Instant::now();
                credits += 1;
            }
        })?;
        if credits > 0 {
            self.pipes.repost_receives()?;
        }
        Ok(any)
    }

    /// Waits until everything has arrived, where completions do not say so.
    fn see_the_end(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        if self.pipes.spec().service.tcp().is_none() {
            return Ok(());
        }
        let mut waiting = self.flows.len();
        for pipe in 0..waiting {
            self.pipes.post_probe(pipe)?;
        }
        while waiting > 0 {
            let mut done = 0;
            self.pipes.poll(|event| done += usize::from(matches!(event, Event::Sent { .. })))?;
            waiting -= done.min(waiting);
            if done == 0 {
                watch.idle("answer")?;
            }
        }
        Ok(())
    }

    fn give_up_lost(&mut self) {
        for flow in &mut self.flows {
            flow.lost += flow.uncredited();
        }
    }
}

impl<S: Flavor> Active for Pusher<S> {
    fn endpoint(&self) -> EndpointInfo {
        self.pipes.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.pipes.connect(peer)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run> {
        let spec = *self.pipes.spec();
        for (flow, quota) in self.flows.iter_mut().zip(shares(iterations, u64::from(spec.qps))) {
            *flow = Flow { quota, ..Flow::default() };
        }
        let mut watch = Watch::new(control);
        let began = Instant::now();
        while !self.flows.iter().all(|flow| flow.finished(&spec)) {
            let posted = self.post_what_fits()?;
            if self.take_completions()? || posted {
                watch.progress();
                continue;
            }
            watch.idle("completion")?;
            if needs_credits(&spec) && watch.standstill() > LOST_AFTER {
                self.give_up_lost();
            }
        }
        self.see_the_end(&mut watch)?;
        let ended = if needs_credits(&spec) { self.last_credit } else { Instant::now() };
        control.send(&Message::Stop)?;
        // What arrived on UC and UD, only the passive side knows.
        let messages = (!needs_credits(&spec)).then_some(iterations);
        let elapsed = ended.saturating_duration_since(began);
        Ok(Run { elapsed, samples: Vec::new(), messages })
    }
}

/// `total` in `parts` parts that differ by one at most.
fn shares(total: u64, parts: u64) -> impl Iterator<Item = u64> {
    (0..parts).map(move |part| total / parts + u64::from(part < total % parts))
}

/// The passive side: receives what uses up receives, and drives the device for what does not.
pub(super) struct Puller<S: Flavor> {
    pipes: Pipes<S>,
    arrivals: Vec<Arrivals>,
}

/// What one queue pair has received in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    quota: u64,
    received: u64,
    credited: u64,
}

impl<S: Flavor> Puller<S> {
    pub(super) fn new(pipes: Pipes<S>) -> Self {
        let arrivals = vec![Arrivals::default(); pipes.spec().qps as usize];
        Self { pipes, arrivals }
    }

    fn sleeps(&self) -> bool {
        self.pipes.spec().passive && self.pipes.spec().op != Op::Send
    }

    fn return_credits(&mut self) -> Outcome<()> {
        let every = credit_every(self.pipes.spec());
        for (pipe, arrivals) in self.arrivals.iter_mut().enumerate() {
            let due = arrivals.received >= arrivals.credited + every;
            let last = arrivals.received >= arrivals.quota && arrivals.credited < arrivals.quota;
            if due || last {
                // A run has fewer than 2^32 messages.
                self.pipes.post_credit(pipe, arrivals.received as u32)?;
                arrivals.credited = arrivals.received;
            }
        }
        Ok(())
    }
}

impl<S: Flavor> Passive for Puller<S> {
    fn endpoint(&self) -> EndpointInfo {
        self.pipes.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.pipes.connect(peer)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        let spec = *self.pipes.spec();
        for (arrivals, quota) in
            self.arrivals.iter_mut().zip(shares(iterations, u64::from(spec.qps)))
        {
            *arrivals = Arrivals { quota, ..Arrivals::default() };
        }
        // The active side says Stop when it is through; it, or its end, is the news. Until then
        // this side polls, as its device answers in the poll.
        while !self.sleeps() && !control.has_news() {
            let arrivals = &mut self.arrivals;
            let mut received = false;
            self.pipes.poll(|event| {
                if let Event::Received { pipe, imm } = event {
                    arrivals[pipe].received += u64::from(imm.unwrap_or(1));
                    received = true;
                }
            })?;
            if received {
                self.pipes.repost_receives()?;
                if needs_credits(&spec) {
                    self.return_credits()?;
                }
            } else {
                std::hint::spin_loop();
            }
        }
        match control.receive_within(PATIENCE)? {
            Message::Stop => Ok(self.arrivals.iter().map(|arrivals| arrivals.received).sum()),
            other => Err(crate::bench::control::unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Service;
    use crate::spec::tests::spec;

    #[test]
    fn each_group_and_the_end_of_the_run_are_signaled_with_their_size() {
        let signaled: Vec<_> = (0..10).map(|index| covers(index, 10, 4)).collect();
        let (none, four) = (None, Some(4));
        assert_eq!(signaled, [none, none, none, four, none, none, none, four, none, Some(2)]);
    }

    #[test]
    fn shares_add_up() {
        assert_eq!(shares(10, 3).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(shares(1, 2).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn every_depth_and_group_size_drains_its_quota() {
        for (tx_depth, cq_mod, post_list) in [(1, 1, 1), (8, 5, 8), (8, 8, 3), (7, 4, 2)] {
            let spec = Spec { tx_depth, cq_mod, post_list, ..spec(Op::Write, Service::Rc, 8) };
            let mut flow = Flow { quota: 101, ..Flow::default() };
            let mut signaled = std::collections::VecDeque::new();
            let mut steps = 0;
            while !flow.finished(&spec) {
                let room = flow.room(&spec);
                assert!(flow.posted - flow.done + room <= u64::from(tx_depth));
                signaled
                    .extend((0..room).filter_map(|i| flow.describe(&spec, flow.posted + i).covers));
                flow.posted += room;
                if room == 0 {
                    flow.done += u64::from(signaled.pop_front().expect("stuck"));
                }
                steps += 1;
                assert!(steps < 1000);
            }
            assert_eq!((flow.done, signaled.len()), (101, 0));
        }
    }

    #[test]
    fn an_unreliable_flow_stops_at_its_credits_and_goes_on_after_a_loss() {
        let spec = Spec { rx_depth: 8, tx_depth: 64, ..spec(Op::Send, Service::Ud, 64) };
        let mut flow = Flow { quota: 20, posted: 8, done: 8, ..Flow::default() };
        assert_eq!(flow.room(&spec), 0);
        flow.credited = 6;
        assert_eq!(flow.room(&spec), 6);
        flow.lost = 2;
        assert_eq!(flow.room(&spec), 8);
        // A late arrival of what was given up does no harm.
        flow.credited = 8;
        assert_eq!(flow.room(&spec), 8);
    }
}

//! Latency: one message at a time.
//!
//! SEND and WRITE go to and fro; the passive side answers each with its like. A WRITE is noticed by
//! the last byte of the memory that it fills, which changes with every message. READ and ATOMIC are
//! there and back by themselves, and their passive side only drives its device.

use super::flavor::Flavor;
use super::pipes::{Event, Pipes, Post};
use crate::bench::control::{Control, EndpointInfo, Watch};
use crate::bench::end::{Active, Passive, Run, Stopwatch};
use crate::failure::Outcome;
use crate::spec::Op;

/// The only queue pair of a latency task.
const PIPE: usize = 0;

/// One end of the exchange, whichever side.
struct Player<S: Flavor> {
    pipes: Pipes<S>,
    /// Sends posted and not known to be complete.
    in_flight: u32,
    /// Sends posted since the last signaled one.
    unsignaled: u32,
    /// Messages received and not yet asked for.
    received: u64,
    /// Marker of the next WRITE, 1 to 255.
    marker: u8,
}

impl<S: Flavor> Player<S> {
    fn new(pipes: Pipes<S>) -> Self {
        Self { pipes, in_flight: 0, unsignaled: 0, received: 0, marker: 1 }
    }

    /// Sends one message; waits for room first, where completions are behind.
    fn send(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        while self.in_flight >= self.pipes.spec().tx_depth {
            self.poll_or_idle(watch)?;
        }
        if self.pipes.spec().op == Op::Write {
            self.pipes.mark(PIPE, self.marker)?;
        }
        self.unsignaled += 1;
        // Of what is not answered, the completion is the answer.
        let every = if self.is_answered() { self.pipes.spec().cq_mod } else { 1 };
        let covers = (self.unsignaled >= every).then_some(self.unsignaled);
        if covers.is_some() {
            self.unsignaled = 0;
        }
        self.in_flight += 1;
        self.pipes.post(PIPE, 1, |_| Post { covers, imm: None })
    }

    /// Waits for the other side's message.
    fn receive(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        match self.pipes.spec().op {
            Op::Write => {
                while self.pipes.marked(PIPE)? != self.marker {
                    self.poll_or_idle(watch)?;
                }
            }
            _ => {
                while self.received == 0 {
                    self.poll_or_idle(watch)?;
                }
                self.received -= 1;
                self.pipes.repost_receives()?;
            }
        }
        watch.progress();
        Ok(())
    }

    /// The other side answers with the like; READ and ATOMIC are their own answers.
    fn is_answered(&self) -> bool {
        matches!(self.pipes.spec().op, Op::Send | Op::Write)
    }

    /// The next WRITE differs from this one.
    fn next_marker(&mut self) {
        self.marker = self.marker % u8::MAX + 1;
    }

    fn poll_or_idle(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        if self.poll()? { Ok(()) } else { watch.idle("message") }
    }

    fn poll(&mut self) -> Outcome<bool> {
        let (in_flight, received) = (&mut self.in_flight, &mut self.received);
        self.pipes.poll(|event| match event {
            Event::Sent { count, .. } => *in_flight -= count,
            Event::Received { .. } => *received += 1,
        })
    }
}

/// The side that holds the clock.
pub(super) struct Pinger<S: Flavor>(Player<S>);

impl<S: Flavor> Pinger<S> {
    pub(super) fn new(pipes: Pipes<S>) -> Self {
        Self(Player::new(pipes))
    }
}

impl<S: Flavor> Active for Pinger<S> {
    fn endpoint(&self) -> EndpointInfo {
        self.0.pipes.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.0.pipes.connect(peer)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run> {
        let player = &mut self.0;
        let mut watch = Watch::new(control);
        let answered = player.is_answered();
        let mut stopwatch = Stopwatch::start(iterations);
        for _ in 0..iterations {
            player.send(&mut watch)?;
            if answered {
                player.receive(&mut watch)?;
                player.next_marker();
            } else {
                while player.in_flight > 0 {
                    player.poll_or_idle(&mut watch)?;
                }
                watch.progress();
            }
            stopwatch.lap();
        }
        if !answered {
            control.send(&crate::bench::control::Message::Stop)?;
        }
        Ok(stopwatch.stop())
    }
}

/// The side that answers SEND and WRITE.
pub(super) struct Ponger<S: Flavor>(Player<S>);

impl<S: Flavor> Ponger<S> {
    pub(super) fn new(pipes: Pipes<S>) -> Self {
        Self(Player::new(pipes))
    }
}

impl<S: Flavor> Passive for Ponger<S> {
    fn endpoint(&self) -> EndpointInfo {
        self.0.pipes.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.0.pipes.connect(peer)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        let player = &mut self.0;
        let mut watch = Watch::new(control);
        for _ in 0..iterations {
            player.receive(&mut watch)?;
            player.send(&mut watch)?;
            player.next_marker();
        }
        Ok(iterations)
    }
}

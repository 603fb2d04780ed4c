//! What was run, as reports tell it: in one line, and field by field.

use std::fmt::{self, Display, Formatter};

use vernic_proto::congestion::Algorithm;

use super::forward::Build;
use super::load::Traffic;
use super::setup::Setup;
use super::topology::Shape;
use super::world::World;

/// What was run.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) topology: Shape,
    /// Hosts that sent or received, and switches.
    pub(super) hosts: usize,
    pub(super) switches: u32,
    pub(super) build: Build,
    pub(super) keep: bool,
    pub(super) algorithm: Algorithm,
    pub(super) load: &'static str,
    /// The part of the hosts' links that was asked for; `None` of loads that ask for all.
    pub(super) load_factor: Option<f64>,
    pub(super) time_nanos: u64,
    pub(super) seed: u64,
}

impl Ran {
    pub(super) fn new(setup: &Setup, world: &World) -> Self {
        let plan = &world.topology;
        let mut members: Vec<_> = plan.senders.iter().chain(&plan.receivers).collect();
        members.sort_unstable();
        members.dedup();
        let load = match &setup.traffic {
            Traffic::Flows(_) => "a list of flows",
            Traffic::Sizes(_) => "flows of a file",
            Traffic::WebSearch => "websearch",
            Traffic::Hadoop => "hadoop",
            Traffic::AllReduce => "allreduce",
            Traffic::Incast => "incast",
            Traffic::Pairs => "pairs",
        };
        let is_random = setup.traffic.is_random();
        Self {
            topology: setup.topology,
            hosts: members.len(),
            switches: plan.switches,
            build: Build::of(setup),
            keep: setup.keep,
            algorithm: setup.algorithm,
            load,
            load_factor: is_random.then_some(setup.load_factor),
            time_nanos: setup.time_nanos,
            seed: setup.seed,
        }
    }

    /// Milliseconds of simulated time.
    pub(super) fn time_ms(&self) -> f64 {
        self.time_nanos as f64 / 1e6
    }
}

/// Writes what was run in one line.
impl Display for Ran {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { topology, hosts, switches, build, algorithm, load, seed, .. } = self;
        let rate = build.rate;
        write!(f, "{topology}, {hosts} hosts, {switches} switches, {rate}, {algorithm}, {load}")?;
        if let Some(factor) = self.load_factor {
            write!(f, " at {factor}")?;
        }
        let pfc = if build.pfc { "on" } else { "off" };
        write!(f, ", PFC {pfc}, {} ms, seed {seed}", self.time_ms())
    }
}

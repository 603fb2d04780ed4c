//! `vernic fabric up`: the fabric itself, with a line that says how it is.

use std::fmt::Write as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vernic_fabric::attributes::NodeKind;
use vernic_fabric::manager::{Partition, SmState};
use vernic_fabric::subnet::SubnetConfig;
use vernic_fabric::topology::Topology;
use vernic_fabricd::{ManagerOptions, Options, Server, Summary};

use super::UpArguments;
use super::client::some_of;
use super::plan;
use crate::failure::{Failure, Outcome, complain};

/// Runs a fabric until a signal ends it.
pub(super) fn up(arguments: &UpArguments) -> Outcome<()> {
    let name = &arguments.name;
    let plan = plan::with_spare_ports(plan::plan(&arguments.plan, name)?, arguments.spare)?;
    let mut options = Options::new(name);
    options.capture.clone_from(&arguments.capture);
    options.spin = std::time::Duration::from_micros(arguments.spin.into());
    let base = if arguments.paced { SubnetConfig::MODELLED } else { SubnetConfig::UNPACED };
    let mtu = vernic::Mtu::from_bytes(arguments.mtu).unwrap_or(base.mtu);
    options.subnet = SubnetConfig { data_lanes: arguments.lanes, mtu, ..base };
    options.manager = arguments.sm.map(|routing| ManagerOptions {
        routing,
        priority: arguments.sm_priority,
        lmc: arguments.sm_lmc,
        partitions: arguments.partition.clone(),
    });
    warn_of_strangers(&plan, &arguments.partition);
    let failed = |error: vernic_fabricd::FabricError| Failure::new(error.to_string());
    let mut server = Server::new(plan, options).map_err(failed)?;
    server.end_on_signals().map_err(failed)?;
    let (switches, adapters, cables) = server.size();
    complain(format_args!(
        "fabric {name:?}: {switches} switches, {adapters} hosts, {cables} cables at {}\n\
         run programs with `vernic run --fabric {name} --host HOST -- PROGRAM`; Ctrl-C ends it",
        server.path().display()
    ));
    let line = Line::new();
    let ended = server.run(|summary| line.show(summary));
    line.end();
    ended.map_err(failed)
}

/// Warns of members of partitions that the plan does not have. Another fabric may have them, if one
/// is to be joined.
fn warn_of_strangers(plan: &Topology, partitions: &[Partition]) {
    for partition in partitions {
        for name in strangers(plan, partition) {
            complain(format_args!(
                "warning: partition {} has the member {name:?}, and this fabric has no such node; \
                 its hosts are {}",
                partition.pkey(),
                some_of(hosts(plan))
            ));
        }
    }
}

fn hosts(plan: &Topology) -> Vec<&str> {
    let hosts = plan.nodes().iter().filter(|node| node.kind == NodeKind::Adapter);
    hosts.map(|node| node.name.as_str()).collect()
}

fn strangers<'p>(plan: &Topology, partition: &'p Partition) -> Vec<&'p str> {
    let is_there = |name: &&str| plan.nodes().iter().any(|node| node.name == *name);
    partition.nodes().filter(|name| !is_there(name)).collect()
}

/// The line of state: redrawn on a terminal; else a line each time that something has changed.
struct Line {
    bar: ProgressBar,
    last: std::cell::RefCell<String>,
}

impl Line {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is a constant without errors.
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, last: std::cell::RefCell::default() }
    }
    fn show(&self, summary: &Summary) {
        if let Some(trouble) = &summary.trouble {
            self.bar.suspend(|| complain(format_args!("the capture has ended: {trouble}")));
        }
        if self.bar.is_hidden() {
            let state = steady(summary);
            if *self.last.borrow() != state {
                complain(format_args!("{state}"));
                *self.last.borrow_mut() = state;
            }
        } else {
            self.bar.set_message(live(summary));
        }
    }
    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns what changes seldom.
fn steady(summary: &Summary) -> String {
    let manager = match summary.manager {
        Some(manager) => match &summary.own_manager {
            Some(own) if own.state == SmState::Master => format!("own {manager}"),
            _ => manager.to_string(),
        },
        None if summary.own_manager.is_some() => "own SM sweeps".to_owned(),
        None => "no subnet manager".to_owned(),
    };
    let Summary { active, cables, programs, agents, .. } = summary;
    format!("{active}/{cables} cables active, {manager}, programs {programs}, agents {agents}")
}

/// Returns the line with what changes all the time.
fn live(summary: &Summary) -> String {
    let seconds = summary.uptime.as_secs();
    let mut line = format!("{:02}:{:02} {}", seconds / 60, seconds % 60, steady(summary));
    // Writing to a String does not fail.
    let _ = write!(
        line,
        ", {:.0} packets/s, {:.1} MB/s",
        summary.packets_per_s,
        summary.bytes_per_s * 1e-6
    );
    if let Some(captured) = summary.captured {
        let _ = write!(line, ", {captured} captured");
    }
    line
}

#[cfg(test)]
mod tests {
    use vernic_fabricd::control::SubnetManager;

    use super::*;

    #[test]
    fn the_line_says_whether_the_manager_is_there() {
        let mut summary = Summary {
            uptime: std::time::Duration::ZERO,
            cables: 2,
            active: 1,
            manager: None,
            own_manager: None,
            programs: 0,
            agents: 3,
            packets_per_s: 0.0,
            bytes_per_s: 0.0,
            captured: None,
            trouble: None,
        };
        assert!(steady(&summary).contains("1/2 cables active, no subnet manager,"));
        summary.manager = Some(SubnetManager { lid: 7, is_there: true });
        assert!(steady(&summary).contains("SM at LID 7,"));
        summary.manager = Some(SubnetManager { lid: 7, is_there: false });
        assert!(steady(&summary).contains("SM at LID 7 is gone,"));
    }
}

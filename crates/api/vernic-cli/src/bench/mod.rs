//! `vernic bench`: both sides of it.
//!
//! ```text
//! suite    which tasks            spec     what a task is
//! rounds   in which order         side     how the two sides run a task
//! opposite where the other is     control  how they talk
//! server   who waits for clients  memory   how much of it a measurement may take
//! report   what is printed        end      what an end of a task does
//! baselines, verbs                the traffic itself
//! ```

mod baselines;
mod control;
mod end;
mod memory;
mod opposite;
mod report;
mod rounds;
mod server;
mod side;
mod stats;
mod suite;
mod verbs;

use crate::args::{BenchArguments, BenchMode, BenchOptions, DeviceOptions};
use crate::failure::{Failure, Outcome};
use crate::select::Chosen;
use crate::table::{print, print_json};
use control::{Control, Message};
use end::Extent;
use opposite::Opposite;
use rounds::Plan;
use std::time::Duration;
use verbs::{Reach, Verbs};
use vernic::Settings;

/// Rounds, seconds of a measurement, seconds of all rounds.
const THOROUGH: (u32, f64, u64) = (7, 0.2, 3600);
/// The same with `--quick`: the whole table in less than 30 s, on a slow machine with fewer rounds.
const QUICK: (u32, f64, u64) = (3, 0.08, 24);

/// Runs `vernic bench` and its modes.
pub(crate) fn run(arguments: &BenchArguments, settings: &Settings) -> Outcome<()> {
    match &arguments.mode {
        None => {
            let device = arguments.options.device.clone();
            active(&arguments.options, settings, &Opposite::ThisMachine(device))
        }
        Some(BenchMode::Client { host, port, options }) => {
            active(options, settings, &Opposite::Host(host.clone(), *port))
        }
        Some(BenchMode::Server(options)) => server::run(options, settings),
        Some(BenchMode::Peer { port, device }) => peer(*port, device, settings),
    }
}

fn active(options: &BenchOptions, settings: &Settings, opposite: &Opposite) -> Outcome<()> {
    let config = settings.config();
    let packets_only = !config.capture.is_empty() || !config.fault.is_empty() || config.trace;
    let options = &BenchOptions { packets_only, ..options.clone() };
    // A wrong combination of options is told before anything is opened.
    suite::tasks(options, vernic::Mtu::B4096.bytes())?;
    let named = Chosen::find(options.device.device.as_deref(), settings);
    // So is a wrong device; without a name it is the connection that says which.
    let early = match (opposite, &named) {
        (Opposite::Host(..), None) => None,
        _ => Some(Verbs::open(named.as_ref(), options.device.gid_index, Reach::ThisMachine)?),
    };
    let session = opposite.open()?;
    let verbs = match early {
        Some(verbs) => verbs,
        None => {
            let reach = Reach::Via(session.control().local_ip()?);
            Verbs::open(None, options.device.gid_index, reach)?
        }
    };
    let tasks = suite::tasks(options, verbs.max_mtu().min(session.max_mtu()))?;
    let local = matches!(opposite, Opposite::ThisMachine(_));
    let resources = match local && suite::is_standard(options) {
        true => Some(verbs.resources()?),
        false => None,
    };
    let plan = plan(options);
    let series = rounds::run(opposite, session, &verbs, &tasks, plan)?;
    if options.json {
        print_json(&report::report(&series, resources, verbs.packets()))?;
    } else {
        let heading = report::heading(verbs.info(), &series, plan, verbs.packets());
        print(&(heading + &report::text(&series, resources)))?;
        if options.counters {
            print(&format!("\n{}", verbs.counters_text()))?;
        }
    }
    match series.iter().filter(|entry| entry.failure.is_some()).count() {
        0 => Ok(()),
        count if options.json => {
            let reasons = report::failures(&series);
            Err(Failure::new(format!("{count} of {} measurements failed\n{reasons}", series.len())))
        }
        count => Err(Failure::new(format!("{count} of {} measurements failed", series.len()))),
    }
}

fn plan(options: &BenchOptions) -> Plan {
    let (rounds, seconds, budget) = if options.quick { QUICK } else { THOROUGH };
    let extent = match options.iters {
        Some(count) => Extent::Iterations(count),
        None => Extent::For(Duration::from_secs_f64(options.duration.unwrap_or(seconds))),
    };
    // Rounds asked for are rounds given.
    let budget = if options.rounds.is_some() { THOROUGH.2 } else { budget };
    Plan { rounds: options.rounds.unwrap_or(rounds), extent, budget: Duration::from_secs(budget) }
}

fn peer(port: u16, device: &DeviceOptions, settings: &Settings) -> Outcome<()> {
    let control = opposite::connect_to_parent(port)?;
    // The parent hears of a failure over the connection and reports it.
    let named = Chosen::find(device.device.as_deref(), settings);
    let verbs = Verbs::open(named.as_ref(), device.gid_index, Reach::ThisMachine);
    let _ = told(&control, verbs).and_then(|verbs| side::serve(&control, &verbs));
    Ok(())
}

/// `outcome`, of which the other side is told if it is a failure.
fn told<T>(control: &Control, outcome: Outcome<T>) -> Outcome<T> {
    if let Err(failure) = &outcome {
        // The other side may be gone, too.
        let _ = control.send(&Message::Failed(failure.what().into()));
    }
    outcome
}

//! `vernic bench`: both sides of it.
//!
//! ```text
//! suite    which tasks            spec     what a task is
//! rounds   in which order         side     how the two sides run a task
//! opposite where the other is     control  how they talk
//! report   what is printed        baselines, verbs   the traffic itself
//! ```

mod baselines;
mod control;
mod opposite;
mod report;
mod rounds;
mod side;
pub(crate) mod spec;
mod stats;
mod suite;
mod verbs;

use crate::args::{BenchArguments, BenchMode, BenchOptions, DeviceOptions, ServerOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::table::{print, print_json};
use control::{Control, Message};
use opposite::Opposite;
use rounds::Plan;
use side::Extent;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;
use verbs::{Reach, Verbs};

/// Rounds, seconds of a measurement, seconds of all rounds.
const THOROUGH: (u32, f64, u64) = (7, 0.2, 3600);
/// The same with `--quick`: the whole table in less than 30 s, on a slow machine with fewer rounds.
const QUICK: (u32, f64, u64) = (3, 0.08, 24);

/// Runs `vernic bench` and its modes.
pub(crate) fn run(arguments: &BenchArguments) -> Outcome<()> {
    match &arguments.mode {
        None => {
            let device = arguments.options.device.clone();
            active(&arguments.options, &Opposite::ThisMachine(device))
        }
        Some(BenchMode::Client { host, port, options }) => {
            active(options, &Opposite::Host(host.clone(), *port))
        }
        Some(BenchMode::Server(options)) => server(options),
        Some(BenchMode::Peer { port, device }) => peer(*port, device),
    }
}

fn active(options: &BenchOptions, opposite: &Opposite) -> Outcome<()> {
    // A wrong combination of options is told before anything is opened.
    suite::tasks(options, vernic::Mtu::B4096.bytes())?;
    let session = opposite.open()?;
    let reach = match opposite {
        Opposite::ThisMachine(_) => Reach::ThisMachine,
        Opposite::Host(..) => Reach::Via(session.control().local_ip()?),
    };
    let verbs = Verbs::open(&options.device, reach)?;
    let tasks = suite::tasks(options, verbs.max_mtu())?;
    let local = matches!(opposite, Opposite::ThisMachine(_));
    let resources = match local && suite::is_standard(options) {
        true => Some(verbs.resources()?),
        false => None,
    };
    let plan = plan(options);
    let series = rounds::run(opposite, session, &verbs, &tasks, plan)?;
    if options.json {
        print_json(&report::report(&series, resources))?;
    } else {
        let heading = report::heading(verbs.info(), &series);
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

fn server(options: &ServerOptions) -> Outcome<()> {
    let port = options.port;
    // An IPv6 wildcard socket takes IPv4 connections too.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .doing(|| format!("listen on TCP port {port}"))
        .map_err(|failure| failure.hint("another server may run there; choose a port with -p"))?;
    print(&format!("waiting for `vernic bench client` on TCP port {port}\n"))?;
    loop {
        let (stream, address) = listener.accept().doing(|| "accept a client".into())?;
        let ip = address.ip().to_canonical();
        match serve_client(stream, options) {
            Ok(()) => print(&format!("served {ip}\n"))?,
            Err(failure) => print(&format!("client {ip}: {failure}\n"))?,
        }
        if options.once {
            return Ok(());
        }
    }
}

fn serve_client(stream: TcpStream, options: &ServerOptions) -> Outcome<()> {
    let control = Control::new(stream, || ())?;
    control.greet("")?;
    let reach = Reach::Via(control.local_ip()?);
    let verbs = told(&control, Verbs::open(&options.device, reach))?;
    let served = side::serve(&control, &verbs);
    if options.counters {
        print(&verbs.counters_text())?;
    }
    served
}

fn peer(port: u16, device: &DeviceOptions) -> Outcome<()> {
    let control = opposite::connect_to_parent(port)?;
    // The parent hears of a failure over the connection and reports it.
    let _ = told(&control, Verbs::open(device, Reach::ThisMachine))
        .and_then(|verbs| side::serve(&control, &verbs));
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

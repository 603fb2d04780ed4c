//! The `vernic` command: devices, their attributes, settings, programs run on them, a benchmark,
//! and InfiniBand fabrics.
//!
//! Uses the safe API of the `vernic` crate; for fabrics the crates of the fabric. Exit status: 0
//! success, 1 failure (the reason is on standard error), 2 wrong usage; of `vernic run` and of
//! `vernic explain --live`, the program's own, or 127 and 126 as in a shell.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod devices;
mod doctor;
mod errors;
mod explain;
mod fabric;
mod failure;
mod logger;
mod manual;
mod relay;
mod run;
mod select;
mod settings;
mod spec;
mod table;
mod watch;

use args::{Arguments, Command};
use clap::Parser as _;
use failure::{Outcome, complain};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    logger::install();
    match execute(command) {
        Ok(status) => status,
        Err(failure) => failure.report(),
    }
}

fn execute(command: Option<Command>) -> Outcome<ExitCode> {
    let settings = settings::load()?;
    match command {
        Some(Command::Run(arguments)) => return Ok(run::run(&arguments, &settings)),
        Some(Command::Env(options)) => return Ok(run::env(&options, &settings)),
        Some(Command::Explain(arguments)) => return explain::run(&arguments),
        Some(Command::Bench(arguments)) => bench::run(&arguments, &settings)?,
        None => {
            complain(format_args!(
                "running `vernic bench`, two to three minutes (`vernic bench --quick`: half a minute); \
                 `vernic --help` lists what else there is"
            ));
            let options = args::BenchOptions::default();
            bench::run(&args::BenchArguments { mode: None, options }, &settings)?;
        }
        Some(Command::Devices { json }) => devices::list(&settings, json)?,
        Some(Command::Info { device, json }) => {
            devices::info(device.as_deref(), &settings, json)?;
        }
        Some(Command::Stat(arguments)) => watch::stat(&arguments)?,
        Some(Command::Top(arguments)) => watch::top(&arguments)?,
        Some(Command::Monitor(arguments)) => watch::monitor(&arguments)?,
        Some(Command::Errors(arguments)) => errors::run(&arguments)?,
        Some(Command::Doctor(arguments)) => doctor::doctor(&arguments, &settings)?,
        Some(Command::Relay(arguments)) => relay::run(&arguments)?,
        Some(Command::Fabric { command }) => fabric::execute(command)?,
        Some(Command::Completions { shell }) => manual::completions(shell)?,
        Some(Command::ManPages { folder }) => manual::pages(&folder)?,
        Some(Command::Config { json }) => settings::show(&settings, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

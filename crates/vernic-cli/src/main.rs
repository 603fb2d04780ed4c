//! The `vernic` command: devices, their attributes, settings, and a benchmark.
//!
//! Uses the safe API of the `vernic` crate only. Exit status: 0 success, 1 failure (the reason is on
//! standard error), 2 wrong usage.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod devices;
mod failure;
mod table;

use args::{Arguments, Command};
use clap::Parser as _;
use failure::Outcome;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("vernic: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Option<Command>) -> Outcome<()> {
    match command {
        Some(Command::Bench(arguments)) => bench::run(&arguments),
        None => {
            eprintln!("running `vernic bench`; `vernic --help` lists what else there is");
            bench::run(&args::BenchArguments { mode: None, options: args::BenchOptions::default() })
        }
        Some(Command::Devices { json }) => devices::list(json),
        Some(Command::Info { device, json }) => devices::info(device.as_deref(), json),
        Some(Command::Config { json }) => devices::config(json),
    }
}

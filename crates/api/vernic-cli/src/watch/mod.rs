//! `vernic stat`, `vernic top`, `vernic monitor`: what programs do on their devices now.
//!
//! Each process tells others of its user what it has, by the status socket of each device that it
//! has open; nobody is asked unless one of these commands runs.
//!
//! | file | owns |
//! |---|---|
//! | `sample` | what all processes told at one moment, and the rates between two moments |
//! | `text` | numbers as people read them; `vernic stat` |
//! | `top` | the state of `vernic top`: order, filter, selection |
//! | `screen` | how that is drawn, and the keys |
//! | `monitor` | `vernic monitor`: metrics for Prometheus, a page for browsers |

mod monitor;
mod sample;
mod screen;
mod text;
mod top;

use std::io::IsTerminal as _;
use std::time::Duration;

use crate::failure::{Failure, Outcome};
use crate::table::{print, print_json};
use sample::{Filter, Sample};

pub(crate) use monitor::{MonitorArguments, run as monitor};
pub(crate) use sample::command_of;

/// `vernic stat`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatArguments {
    /// Print JSON: one object, or one a line with --watch
    #[arg(long)]
    json: bool,
    /// Print again every so many seconds, with rates, until interrupted
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = seconds)]
    watch: Option<Duration>,
    #[command(flatten)]
    filter: FilterArguments,
}

/// `vernic top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArguments {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    #[command(flatten)]
    filter: FilterArguments,
}

/// Which of the processes and devices are shown.
#[derive(Clone, Debug, Default, clap::Args)]
struct FilterArguments {
    /// Only this process (repeatable)
    #[arg(short, long, value_name = "PID")]
    pid: Vec<u32>,
    /// Only this device, as vernic0 (repeatable)
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    device: Vec<String>,
}

impl FilterArguments {
    fn filter(&self) -> Filter {
        Filter { pids: self.pid.clone(), devices: self.device.clone() }
    }
}

/// `vernic stat`.
pub(crate) fn stat(arguments: &StatArguments) -> Outcome<()> {
    let filter = arguments.filter.filter();
    let mut before: Option<Sample> = None;
    loop {
        let now = Sample::take(&filter)?;
        let view = now.view(before.as_ref());
        match (arguments.json, arguments.watch) {
            (true, None) => print_json(&view)?,
            (true, Some(_)) => {
                let line = serde_json::to_string(&view);
                print(
                    &(line.map_err(|why| Failure::new(format!("cannot write JSON: {why}")))?
                        + "\n"),
                )?;
            }
            (false, _) => print(&text::stat(&view))?,
        }
        let Some(interval) = arguments.watch else { return Ok(()) };
        before = Some(now);
        std::thread::sleep(interval);
    }
}

/// `vernic top`.
pub(crate) fn top(arguments: &TopArguments) -> Outcome<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage("`vernic top` needs a terminal")
            .hint("`vernic stat --watch` prints the same, line by line; --json for programs"));
    }
    screen::run(arguments.interval, &arguments.filter.filter())
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("the range is 0.05 to 3600 seconds".into()),
    }
}

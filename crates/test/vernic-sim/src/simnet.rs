//! The subcommand `net`: congestion controllers on a simulated network.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgAction, Args};
use vernic_proto::congestion::Algorithm;
use vernic_sim::network::{
    Ecn, Rate, Report, Setup, Shape, Traffic, algorithm, bytes, nanos, part, run,
};
use vernic_wire::Mtu;

use crate::processor_s;

/// Options of a network.
#[derive(Debug, Args)]
pub(crate) struct NetArgs {
    /// The network: fat-tree:K, dumbbell:N, incast:N or hpcc.
    #[arg(long)]
    topology: Shape,
    /// Hosts that take part, evenly spread; all if left out.
    #[arg(long)]
    hosts: Option<u32>,
    /// The congestion control of all queue pairs, with parameters: aimd, dcqcn,rpg_ai_rate=40, ...
    #[arg(long, default_value = "aimd", value_parser = algorithm)]
    algo: Algorithm,
    /// What hosts send: websearch, hadoop, allreduce, incast, pairs, or a file of flows or sizes.
    #[arg(long)]
    load: String,
    /// Random flows ask for this part of what the hosts' links carry: 0.5, which is the default, or
    /// 50%.
    #[arg(long, value_parser = part)]
    load_factor: Option<f64>,
    /// Bytes of a flow of incast and pairs (without end if left out), or of allreduce's vector
    /// (64m).
    #[arg(long, value_parser = bytes)]
    bytes: Option<u64>,
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated time.
    #[arg(long, default_value = "10ms", value_parser = nanos)]
    time: u64,
    /// Rate of the hosts' links.
    #[arg(long, default_value = "100g")]
    rate: Rate,
    /// Delay of each link.
    #[arg(long, default_value = "1us", value_parser = nanos)]
    delay: u64,
    /// Payload bytes of a packet: 256, 512, 1024, 2048 or 4096.
    #[arg(long, default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
    /// Buffer of each switch.
    #[arg(long, default_value = "32m", value_parser = bytes)]
    buffer: u64,
    /// Marks of ECN as KMIN,KMAX,PMAX at a link of the hosts' rate, or off.
    #[arg(long, default_value = "400k,1600k,0.2", value_parser = ecn)]
    ecn: Marks,
    /// Whether switches pause rather than drop: on or off.
    #[arg(long, default_value = "on", value_parser = on_or_off, action = ArgAction::Set)]
    pfc: bool,
    /// Whether queue pairs keep what comes ahead of a loss, as selective_recovery has them: on or
    /// off.
    #[arg(long, default_value = "on", value_parser = on_or_off, action = ArgAction::Set)]
    keep: bool,
    /// Draw slowdowns, the longest queue, goodput and fairness into this file, as SVG.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of tables. docs/sim-net.md lists its fields.
    #[arg(long)]
    json: bool,
}

/// Marks of ECN, or none. (An `Option` would be an argument that may be left out.)
#[derive(Clone, Copy, Debug)]
struct Marks(Option<Ecn>);

fn ecn(text: &str) -> Result<Marks, String> {
    if text == "off" { Ok(Marks(None)) } else { text.parse().map(|ecn| Marks(Some(ecn))) }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let known = text.parse().ok().and_then(Mtu::from_bytes);
    known.ok_or_else(|| format!("`{text}` is no MTU: 256, 512, 1024, 2048 or 4096"))
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}`: on or off")),
    }
}

impl NetArgs {
    fn setup(&self) -> Result<Setup, String> {
        let traffic = match Traffic::named(&self.load) {
            Some(traffic) => traffic,
            None => {
                let text = std::fs::read_to_string(&self.load).map_err(|error| {
                    let names = Traffic::names();
                    format!("--load {}: neither one of {names} nor a file: {error}", self.load)
                })?;
                Traffic::parse(&text).map_err(|error| format!("--load {}: {error}", self.load))?
            }
        };
        let load_factor = self.load_factor.unwrap_or(0.5);
        if !(load_factor > 0.0 && load_factor <= 2.0) {
            return Err(format!("--load-factor {load_factor}: above 0, at most 2"));
        }
        if self.load_factor.is_some() && !traffic.is_random() {
            return Err(format!("--load-factor: {} has no random flows", self.load));
        }
        if self.bytes.is_some() && !traffic.takes_bytes() {
            return Err(format!("--bytes: {} has sizes of its own", self.load));
        }
        if !(1_000..=60_000_000_000).contains(&self.time) {
            return Err(format!("--time {} ns: 1us to 60s", self.time));
        }
        if !(1..=10_000_000).contains(&self.delay) {
            return Err(format!("--delay {} ns: 1ns to 10ms", self.delay));
        }
        if !(10_000..=4_000_000_000).contains(&self.buffer) {
            return Err(format!("--buffer {} bytes: 10k to 4g", self.buffer));
        }
        Ok(Setup {
            topology: self.topology,
            hosts: self.hosts,
            algorithm: self.algo,
            traffic,
            load_factor,
            bytes: self.bytes.map(|bytes| bytes.max(1)),
            seed: self.seed,
            time_nanos: self.time,
            rate: self.rate,
            delay_nanos: self.delay,
            mtu: self.mtu,
            buffer: self.buffer,
            ecn: self.ecn.0,
            pfc: self.pfc,
            keep: self.keep,
        })
    }
}

/// Runs a network, and prints what came of it and how fast.
pub(crate) fn run_net(args: &NetArgs) -> ExitCode {
    match try_net(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("vernic-sim net: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_net(args: &NetArgs) -> Result<(), String> {
    let setup = args.setup()?;
    let (started, before) = (Instant::now(), processor_s());
    let report = run(&setup)?;
    let (wall, processor) = (started.elapsed().as_secs_f64(), processor_s() - before);
    if let Some(file) = &args.svg {
        let written = report
            .svg()
            .and_then(|svg| std::fs::write(file, svg).map_err(|error| error.to_string()));
        written.map_err(|error| format!("--svg {}: {error}", file.display()))?;
    }
    if args.json {
        println!("{}", report.json());
    } else {
        println!("{report}\n{}", speed(&report, wall, processor));
    }
    Ok(())
}

/// How fast it went, in packets that hosts took and in hops.
fn speed(report: &Report, wall: f64, processor: f64) -> String {
    format!(
        "{} packets/s of wall time ({wall:.2} s), {} of processor time ({processor:.2} s), \
         {} hops/s",
        per_second(report.delivered(), wall),
        per_second(report.delivered(), processor),
        per_second(report.hops(), processor)
    )
}

/// A rate, or a dash: the clock of the processor's time has steps, so that of a short run may be 0.
fn per_second(count: u64, seconds: f64) -> String {
    if seconds > 0.0 { format!("{:.0}", count as f64 / seconds) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_took_no_time_has_a_dash_for_its_speed() {
        assert_eq!([per_second(7, 2.0), per_second(7, 0.0)], ["4", "-"]);
    }
}
